use espalier_meta::Input;
use espalier_proto::*;

use crate::harness::{Fault, Harness, ROOT_CALLER, everywhere, name};

/// A tree that takes several steps to free.
fn grow(fs: &mut Harness) -> Ino {
    let top = fs.mkdir("top");
    for dir in 0..6 {
        let sub = fs.mkdir(&format!("top/{dir}"));
        for file in 0..60 {
            fs.create(sub, &format!("{file}"), NewNode::Regular).unwrap();
        }
        fs.file(&format!("top/{dir}/small"), b"bytes");
        fs.file(&format!("top/{dir}/big"), &[dir; 100]);
        fs.mkdir(&format!("top/{dir}/deep"));
        fs.file(&format!("top/{dir}/deep/file"), b"deep");
        let ino = fs.walk(&format!("top/{dir}/small")).unwrap();
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name(&format!("kept{dir}")) }).unwrap();
    }
    top
}

fn forget_all(fs: &mut Harness) {
    for ino in 2..800 {
        fs.forget(Ino(ino));
    }
}

/// Checks the state after everything has been freed.
fn check_rest(fs: &mut Harness, context: &str) {
    forget_all(fs);
    for _ in 0..40 {
        fs.input(Input::Tick);
    }
    for dir in 0..6 {
        let attr = fs.attr(&format!("kept{dir}"));
        assert_eq!((attr.nlink, fs.read(attr.ino)), (1, b"bytes".to_vec()), "{context}");
    }
    assert_eq!(fs.meta.figures().trash_entries, 0, "{context}");
    assert_eq!((fs.meta.files(), fs.dump().len()), (7, 6), "{context}");
    assert_eq!(fs.fsck(), [], "{context}");
    assert_eq!(fs.disk.store().streams().unwrap(), [], "{context}");
}

#[test]
fn frees_all_in_steps() {
    everywhere(|fs| {
        let top = grow(fs);
        forget_all(fs);
        fs.lazy = true;
        fs.ask(Request::RemoveTree { dir: top }).unwrap();
        let figures = fs.meta.figures();
        assert!((100..400).contains(&figures.trash_entries), "{}", figures.trash_entries);
        assert!(figures.trash_bytes > 0);
        assert_eq!((fs.figure(Ino::ROOT, "rfiles"), fs.figure(Ino::ROOT, "rbytes")), (Ok(6), Ok(30)));
        // Other operations run in between.
        fs.create(Ino::ROOT, "probe", NewNode::Regular).unwrap();
        fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("probe"), time: None }).unwrap();
        fs.run_until_idle();
        fs.lazy = false;
        check_rest(fs, "");
    });
}

/// A step may end with a directory's last entry, and a client may forget the directory before the
/// next step.
#[test]
fn directories_are_forgotten_between_steps() {
    for entries in 120..140 {
        let mut fs = Harness::new();
        let top = fs.mkdir("top");
        for dir in 0..3 {
            let dir = fs.mkdir(&format!("top/{dir}"));
            for entry in 0..entries {
                fs.create(dir, &format!("{entry}"), NewNode::Regular).unwrap();
            }
        }
        fs.lazy = true;
        fs.ask(Request::RemoveTree { dir: top }).unwrap();
        forget_all(&mut fs);
        fs.run_until_idle();
        assert_eq!((fs.meta.figures().trash_entries, fs.meta.files()), (0, 1), "{entries} entries");
    }
}

#[test]
fn goes_on_after_a_crash_at_any_point() {
    for cache_bytes in [usize::MAX, 0] {
        let config = espalier_meta::Config { cache_bytes, ..crate::harness::config() };
        let mut at = 0;
        loop {
            let context = format!("cache {cache_bytes}, crash at I/O {at}");
            let mut fs = Harness::with(config.clone());
            let top = grow(&mut fs);
            fs.checkpoint();
            fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
            forget_all(&mut fs);
            fs.lazy = true;
            fs.ask(Request::RemoveTree { dir: top }).unwrap();
            fs.count = 0;
            fs.fault = Some((at, Fault::Crash));
            let removed = fs.send(&ROOT_CALLER, Request::Fsync { ino: Ino::ROOT });
            // Everything becomes durable at once.
            for _ in 0..200 {
                while fs.run_one() {}
                fs.input(Input::Tick);
            }
            fs.run_until_idle();
            let durable = fs.answers.remove(&removed) == Some(Ok(Reply::Done));
            let done = fs.count <= at;
            fs = fs.crash();
            match fs.walk("top") {
                Ok(ino) => {
                    assert!(!durable, "{context}: it is back");
                    fs.forget(ino);
                    let found = fs.walk("top/5/deep/file").unwrap();
                    assert_eq!(fs.read(found), b"deep");
                    fs.ask(Request::RemoveTree { dir: ino }).unwrap();
                }
                Err(errno) => assert_eq!(errno, Errno::ENOENT, "{context}"),
            }
            check_rest(&mut fs, &context);
            if done {
                assert!(at > 10, "hardly anything could go wrong: {at}");
                break;
            }
            at += 1;
        }
    }
}

#[test]
fn a_check_in_between_finds_nothing_and_a_repair_keeps_the_trash() {
    let mut fs = Harness::new();
    let top = grow(&mut fs);
    forget_all(&mut fs);
    fs.lazy = true;
    fs.ask(Request::RemoveTree { dir: top }).unwrap();
    let left = fs.meta.figures().trash_entries;
    assert!(left > 0);
    fs.lazy = false;
    fs.input(Input::Drain);
    assert_eq!(fs.fsck(), []);
    let repaired = crate::repair::plan_all(&[fs.disk.store()]);
    assert_eq!(repaired, [espalier_meta::Repaired::default()]);
    let mut fs = fs.without_journal();
    assert_eq!(fs.meta.figures().trash_entries, left, "draining frees nothing");
    check_rest(&mut fs, "after a repair");
}

#[test]
fn failed_load_is_retried() {
    let mut fs = Harness::new();
    let top = grow(&mut fs);
    fs.checkpoint();
    fs = fs.crash();
    fs.walk("top").unwrap();
    // The answer needs no load.
    (fs.count, fs.fault) = (0, Some((0, Fault::Fails(Errno::EIO))));
    fs.ask(Request::RemoveTree { dir: top }).unwrap();
    check_rest(&mut fs, "");
}
