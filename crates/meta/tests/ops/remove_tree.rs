use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

fn remove(fs: &mut Harness, caller: &Caller, path: &str) -> Result<Reply, Errno> {
    let dir = fs.walk(path)?;
    fs.ask_as(caller, Request::RemoveTree { dir })
}

/// A user's tree with entries of many types.
fn grow(fs: &mut Harness) {
    fs.mkdir("top");
    fs.mkdir("top/sub");
    fs.mkdir("top/sub/deep");
    fs.mkdir("top/empty");
    fs.file("top/file", b"bytes");
    fs.file("top/sub/big", &[7; 100]);
    fs.file("top/sub/deep/file", b"more");
    fs.make("top/sub/link", NewNode::Symlink(b"nowhere".as_slice().into()));
    fs.make("top/fifo", NewNode::Fifo);
    let ino = fs.walk("top/file").unwrap();
    let dir = fs.walk("top/sub").unwrap();
    fs.ask(Request::Link { ino, dir, name: name("second") }).unwrap();
    for path in ["top", "top/sub", "top/sub/deep", "top/empty"] {
        fs.chown(path, 5, 5);
    }
}

fn files(fs: &mut Harness) -> u64 {
    match fs.ask(Request::StatFs { ino: Ino::ROOT }).unwrap() {
        Reply::StatFs(capacity) => capacity.files,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tree_goes_with_all_below_it() {
    everywhere(|fs| {
        fs.file("stays", b"");
        let before = (fs.dump(), files(fs));
        grow(fs);
        let top = fs.walk("top").unwrap();
        assert!(fs.figure(Ino::ROOT, "rfiles").unwrap() > 1);
        let reply = remove(fs, &ROOT_CALLER, "top");
        assert_eq!(reply, Ok(Reply::Removed { dir: Ino::ROOT, name: name("top") }));
        assert_eq!((fs.walk("top"), fs.figure(Ino::ROOT, "rfiles")), (Err(Errno::ENOENT), Ok(1)));
        for ino in top.0..top.0 + 20 {
            fs.forget(Ino(ino));
        }
        fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
        assert_eq!(fs.dump(), before.0);
        assert_eq!((files(fs), fs.meta.figures().trash_entries), (before.1, 0));
    });
}

#[test]
fn other_names_and_open_files_stay() {
    everywhere(|fs| {
        grow(fs);
        let (file, big) = (fs.walk("top/file").unwrap(), fs.open("top/sub/big"));
        fs.ask(Request::Link { ino: file, dir: Ino::ROOT, name: name("outside") }).unwrap();
        remove(fs, &ROOT_CALLER, "top").unwrap();
        fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
        assert!(
            fs.changed.contains(&file) && fs.changed.contains(&big),
            "clients take them for what they were"
        );
        assert_eq!((fs.attr("outside").nlink, fs.read(file)), (1, b"bytes".to_vec()));
        fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
        assert_eq!((fs.attr_of(big).nlink, fs.read(big)), (0, vec![7; 100]));
        fs.forget(big);
        fs.ask(Request::Release { ino: big }).unwrap();
        fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
        assert_eq!(fs.ask(Request::GetAttr { ino: big }), Err(Errno::ESTALE));
    });
}

#[test]
fn directories_in_use_below_are_empty_and_stay_so() {
    everywhere(|fs| {
        grow(fs);
        let (top, deep) = (fs.open("top"), fs.open("top/sub/deep"));
        let file = fs.walk("top/sub/deep/file").unwrap();
        // Freeing waits.
        fs.lazy = true;
        fs.send(&ROOT_CALLER, Request::Fsync { ino: Ino::ROOT });
        let many = fs.walk("top/empty").unwrap();
        for number in 0..200 {
            fs.create(many, &format!("{number}"), NewNode::Regular).unwrap();
        }
        remove(fs, &ROOT_CALLER, "top").unwrap();
        assert!(fs.meta.figures().trash_entries > 0, "all was freed at once");
        for dir in [top, deep] {
            let listing = fs.ask(Request::ReadDir { dir, after: 0, limit: 9, plus: false });
            assert!(matches!(listing, Ok(Reply::Listing { entries, end: true, .. }) if entries.is_empty()));
            assert!(matches!(fs.ask(Request::Lookup { dir, name: name("file") }), Ok(Reply::Absent { .. })));
            assert_eq!(fs.create(dir, "new", NewNode::Regular), Err(Errno::ENOENT));
            assert_eq!(fs.ask(Request::Unlink { dir, name: name("file"), time: None }), Err(Errno::ENOENT));
            let (from, to, flags) = (name("file"), name("saved"), RenameFlags::empty());
            let rename = Request::Rename { from_dir: dir, from, to_dir: Ino::ROOT, to, flags, time: None };
            assert_eq!(fs.ask(rename), Err(Errno::ENOENT));
        }
        let link = Request::Link { ino: file, dir: Ino::ROOT, name: name("saved") };
        assert!(matches!(fs.ask(link), Err(Errno::ENOENT | Errno::ESTALE)));
        assert_eq!(fs.ask(Request::RemoveTree { dir: deep }), Err(Errno::ENOENT));
        fs.lazy = false;
        fs.run_until_idle();
        for ino in [top, deep] {
            fs.ask(Request::Release { ino }).unwrap();
        }
    });
}

#[test]
fn remove_tree_needs_permission_for_all() {
    everywhere(|fs| {
        grow(fs);
        fs.mkdir("top/sub/other");
        fs.chown("top/sub/other", 6, 6);
        let refused = |fs: &mut Harness, errno: Errno| {
            let before = fs.dump();
            assert_eq!(remove(fs, &user(5), "top"), Err(errno));
            assert_eq!(fs.dump(), before);
        };
        // The parent belongs to the superuser.
        refused(fs, Errno::EACCES);
        fs.chmod("", 0o777);
        fs.file("top/sub/other/file", b"");
        refused(fs, Errno::EACCES);
        fs.chmod("top/sub/other", 0o777);
        fs.chmod("top/sub/deep", 0o500);
        refused(fs, Errno::EACCES);
        fs.chmod("top/sub/deep", 0o700);
        fs.chmod("top/sub/other", 0o1777);
        refused(fs, Errno::EPERM);
        let file = fs.walk("top/sub/other/file").unwrap();
        fs.ask(Request::Link { ino: file, dir: Ino::ROOT, name: name("second") }).unwrap();
        refused(fs, Errno::EPERM);
        fs.chmod("", 0o1777);
        fs.chown("top/sub/other/file", 5, 5);
        // The caller need not own an empty directory.
        fs.mkdir("top/sub/empty");
        fs.chmod("top/sub/empty", 0);
        assert!(matches!(remove(fs, &user(5), "top"), Ok(Reply::Removed { .. })));
    });
}

#[test]
fn tree_changed_during_check_is_checked_again() {
    // Some are visited before the directory that takes many steps, and some after it.
    let places: Vec<String> =
        ('a'..='k').flat_map(|c| [format!("top/{c}"), format!("top/{c}/below")]).collect();
    for path in &places {
        let mut fs = Harness::new();
        fs.mkdir("top");
        fs.mkdir("top/crowd");
        for place in &places {
            fs.mkdir(place);
        }
        for place in &places {
            fs.file(&format!("{place}/file"), b"");
        }
        let many = fs.walk("top/crowd").unwrap();
        for number in 0..3000 {
            fs.create(many, &format!("{number}"), NewNode::Regular).unwrap();
        }
        for path in ["", "top", "top/crowd"].into_iter().chain(places.iter().map(String::as_str)) {
            fs.chown(path, 5, 5);
        }
        let top = fs.walk("top").unwrap();
        // One step at a time.
        fs.shuffle = Some(fastrand::Rng::with_seed(1));
        let removal = fs.send(&user(5), Request::RemoveTree { dir: top });
        let mut steps = 0;
        while fs.waiting.len() == 1 && fs.run_one() {
            steps += 1;
            if steps == 1 {
                let random = fs.shuffle.take();
                fs.chown(path, 6, 6);
                fs.shuffle = random;
            }
        }
        fs.shuffle = None;
        fs.run_until_idle();
        assert!(steps > 1, "{path}: it was looked at in {steps} steps");
        assert_eq!(fs.answers.remove(&removal), Some(Err(Errno::EACCES)), "{path}");
        assert!(fs.walk(&format!("{path}/file")).is_ok());
        assert_eq!(fs.fsck(), []);
    }
}

#[test]
fn removals_wait_while_too_much_is_still_to_be_freed() {
    let mut fs =
        Harness::with(espalier_meta::Config { journal_capacity: 64 << 20, ..crate::harness::config() });
    let dirs: Vec<Ino> = (0..10_200).map(|number| fs.mkdir(&format!("{number}"))).collect();
    for dir in &dirs {
        fs.create(*dir, "file", NewNode::Regular).unwrap();
        fs.forget(*dir);
    }
    // This takes more than one step, and the second one waits.
    let many = fs.mkdir("many");
    for number in 0..300 {
        fs.create(many, &format!("{number}"), NewNode::Regular).unwrap();
    }
    fs.lazy = true;
    fs.ask(Request::RemoveTree { dir: many }).unwrap();
    let removals = dirs.iter().map(|dir| fs.send(&ROOT_CALLER, Request::RemoveTree { dir: *dir }));
    let removals: Vec<u64> = removals.collect();
    let answered = |fs: &Harness| removals.iter().filter(|id| fs.answers.contains_key(id)).count();
    assert!((9_900..10_200).contains(&answered(&fs)), "{}", answered(&fs));
    for _ in 0..400 {
        while fs.run_one() && fs.waiting.len() > 1 {}
        fs.input(espalier_meta::Input::Tick);
    }
    assert_eq!(answered(&fs), removals.len());
    fs.lazy = false;
    fs.run_until_idle();
    assert_eq!(fs.fsck(), []);
}

#[test]
fn only_directories_with_a_name_go() {
    everywhere(|fs| {
        let file = fs.file("file", b"");
        assert_eq!(fs.ask(Request::RemoveTree { dir: file }), Err(Errno::ENOTDIR));
        assert_eq!(fs.ask(Request::RemoveTree { dir: Ino::ROOT }), Err(Errno::EBUSY));
        assert!(fs.ask(Request::RemoveTree { dir: Ino(999) }).is_err());
        let empty = fs.mkdir("empty");
        assert!(remove(fs, &ROOT_CALLER, "empty").is_ok());
        assert_eq!(fs.ask(Request::RemoveTree { dir: empty }), Err(Errno::ENOENT));
    });
}

#[test]
fn is_whole_under_faults() {
    for caller in [ROOT_CALLER, user(5)] {
        let before = |fs: &mut Harness| {
            grow(fs);
            fs.chmod("", 0o777);
        };
        under_faults(before, |fs| {
            let top = fs.walk("top")?;
            let reply = fs.ask_as(&caller, Request::RemoveTree { dir: top });
            fs.forget(top);
            reply
        });
    }
}
