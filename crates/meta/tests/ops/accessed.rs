//! Accesses that clients report later.

use espalier_meta::{Atime, Config};
use espalier_proto::*;

use super::set_layout::{ONE, OTHER, ask, connect};
use crate::harness::{Harness, config, name};

fn server(atime: Atime) -> Harness {
    let mut fs = Harness::with(Config { session_ms: Some(10_000), atime, ..config() });
    connect(&mut fs);
    fs
}

fn make(fs: &mut Harness, client: ClientId, file: &str) -> Ino {
    let (name, node) = (name(file), NewNode::Regular);
    let (perm, umask, open, exclusive, writeback) = (0o644, 0, None, true, None);
    let dir = Ino::ROOT;
    let made = ask(fs, client, Request::Create { dir, name, node, perm, umask, open, exclusive, writeback });
    let Ok(Reply::Entry(entry)) = made else { panic!("{made:?}") };
    entry.attr.ino
}

fn atime(fs: &mut Harness, ino: Ino) -> Time {
    match ask(fs, ONE, Request::GetAttr { ino }) {
        Ok(Reply::Attr(attr)) => attr.atime,
        other => panic!("{other:?}"),
    }
}

fn accessed(fs: &mut Harness, files: &[(Ino, Time)]) {
    assert_eq!(ask(fs, ONE, Request::Accessed { files: files.to_vec() }), Ok(Reply::Done));
}

#[test]
fn they_count_as_of_when_they_were() {
    let fs = &mut server(Atime::Relative);
    let (one, two) = (make(fs, ONE, "one"), make(fs, ONE, "two"));
    let then = fs.now.later(5);
    fs.now = fs.now.later(1_000);
    // A second report changes nothing (relatime), and unknown inodes are ignored.
    accessed(fs, &[(one, then), (Ino(999), then), (two, then), (one, then.later(1))]);
    assert_eq!((atime(fs, one), atime(fs, two)), (then, then));
    // A client's time that is far off is ignored.
    let three = make(fs, ONE, "three");
    fs.now = fs.now.later(1_000);
    let now = fs.now;
    accessed(fs, &[(three, fs.now.later(20_000))]);
    let reported = atime(fs, three);
    assert!(now <= reported && reported < now.later(1_000), "{reported:?}");
    assert_eq!(fs.fsck(), []);
}

/// A file, and a past time after it was made.
fn accessible(fs: &mut Harness, client: ClientId) -> (Ino, Time) {
    let file = make(fs, client, "file");
    let then = fs.now.later(5);
    fs.now = fs.now.later(1_000);
    (file, then)
}

#[test]
fn newer_times_are_preserved() {
    let fs = &mut server(Atime::Relative);
    let (file, then) = accessible(fs, ONE);
    let old = Time::new(7, 0);
    let set = SetAttr { atime: Some(SetTime::To(old)), ..SetAttr::default() };
    ask(fs, ONE, Request::SetAttr { ino: file, set }).unwrap();
    accessed(fs, &[(file, then)]);
    assert_eq!(atime(fs, file), old);
}

#[test]
fn accesses_count_only_for_known_inodes() {
    for (mode, by, counts) in
        [(Atime::Relative, ONE, true), (Atime::Relative, OTHER, false), (Atime::Never, ONE, false)]
    {
        let fs = &mut server(mode);
        let (file, then) = accessible(fs, by);
        accessed(fs, &[(file, then)]);
        assert_eq!(atime(fs, file) == then, counts);
    }
}
