use espalier_meta::{Acknowledge, Config, Input};
use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

/// Copies everything in a directory. Returns what is left to the caller.
fn copy(
    fs: &mut Harness,
    caller: &Caller,
    (from, to): (&str, &str),
    preserve: bool,
) -> Result<Vec<String>, Errno> {
    let mut left = Vec::new();
    let mut levels = vec![CopyLevel { from: fs.walk(from)?, to: fs.walk(to)?, after: 0 }];
    while !levels.is_empty() {
        let request = CopyTree { levels, preserve, umask: 0o022 };
        let Reply::Copied(copied) = fs.ask_as(caller, Request::CopyTree(request))? else { panic!() };
        left.extend(copied.left.into_iter().map(|path| String::from_utf8(path).unwrap()));
        levels = copied.levels;
    }
    left.sort_unstable();
    Ok(left)
}

fn content(fs: &mut Harness, path: &str) -> Vec<u8> {
    let ino = fs.walk(path).unwrap();
    fs.read(ino)
}

fn grow(fs: &mut Harness) {
    fs.mkdir("a");
    fs.mkdir("a/sub");
    fs.mkdir("a/sub/deep");
    fs.mkdir("a/empty");
    fs.file("a/file", b"bytes");
    fs.file("a/sub/none", b"");
    fs.file("a/sub/deep/file", b"more");
    fs.make("a/sub/link", NewNode::Symlink(b"nowhere".as_slice().into()));
    fs.make("a/fifo", NewNode::Fifo);
    fs.make("a/device", NewNode::CharDevice(259));
    fs.mkdir("b");
}

fn set_xattr(fs: &mut Harness, ino: Ino, key: &str) {
    let (name, value) = (key.as_bytes().into(), b"value".as_slice().into());
    let mode = XattrMode::Any;
    fs.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false }).unwrap();
}

/// The policy of a directory, as TOML.
fn policy(fs: &mut Harness, path: &str) -> String {
    let ino = fs.walk(path).unwrap();
    match fs.ask(Request::GetXattr { ino, name: (*b"user.espalier.policy").into() }) {
        Ok(Reply::Bytes(text)) => String::from_utf8(text.into()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn policies_are_copied_with_attributes_and_inherited_otherwise() {
    everywhere(|fs| {
        grow(fs);
        for (path, setting, value) in
            [("a/sub", "dist_name", "basic"), ("b", "num_dfiles", "2"), ("b", "dist_params", "strip_size:1M")]
        {
            let (ino, mode) = (fs.walk(path).unwrap(), XattrMode::Any);
            let (name, value) =
                (format!("user.espalier.{setting}").into_bytes().into(), value.as_bytes().into());
            fs.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false }).unwrap();
        }
        let inherited = policy(fs, "b");
        copy(fs, &ROOT_CALLER, ("a", "b"), false).unwrap();
        assert_eq!(policy(fs, "b/sub"), inherited);
        fs.mkdir("b/kept");
        copy(fs, &ROOT_CALLER, ("a", "b/kept"), true).unwrap();
        assert_eq!(policy(fs, "b/kept/empty"), inherited);
        assert_eq!(policy(fs, "b/kept/sub"), "num_dfiles = 2\ndist_name = \"basic\"\n");
    });
}

#[test]
fn a_tree_is_copied_with_all_below_it() {
    everywhere(|fs| {
        grow(fs);
        fs.chmod("a/file", 0o4777);
        fs.chmod("a/sub", 0o1777);
        assert_eq!(copy(fs, &ROOT_CALLER, ("a", "b"), false), Ok(vec!["device".into()]));
        for (path, bytes) in [("b/file", "bytes"), ("b/sub/none", ""), ("b/sub/deep/file", "more")] {
            assert_eq!(content(fs, path), bytes.as_bytes());
        }
        let link = fs.walk("b/sub/link").unwrap();
        assert_eq!(fs.ask(Request::ReadLink { ino: link }), Ok(Reply::Bytes(b"nowhere"[..].into())));
        assert_eq!(fs.attr("b/fifo").kind, FileType::Fifo);
        fs.make("b/device", NewNode::CharDevice(259));
        // As with cp: without set-id bits, and masked by the umask.
        assert_eq!((fs.attr("b/file").perm, fs.attr("b/sub").perm), (0o755, 0o1755));
        let (a, b) = (fs.walk("a").unwrap(), fs.walk("b").unwrap());
        for figure in ["rfiles", "rsubdirs", "rbytes"] {
            assert_eq!(fs.figure(a, figure), fs.figure(b, figure));
        }
        // The copies are separate files.
        let file = fs.walk("a/file").unwrap();
        fs.write(file, 0, b"other").unwrap();
        assert_eq!(content(fs, "b/file"), b"bytes");
    });
}

#[test]
fn copy_preserves_attributes_as_permitted() {
    everywhere(|fs| {
        grow(fs);
        let file = fs.walk("a/file").unwrap();
        set_xattr(fs, file, "user.mine");
        set_xattr(fs, file, "security.theirs");
        let theirs = fs.walk("a/sub/none").unwrap();
        set_xattr(fs, theirs, "trusted.theirs");
        for path in ["a/file", "a/sub"] {
            fs.chown(path, 5, 6);
            fs.chmod(path, 0o2755);
            let ino = fs.walk(path).unwrap();
            let (atime, mtime) = (Some(SetTime::To(Time::new(11, 5))), Some(SetTime::To(Time::new(22, 5))));
            fs.ask(Request::SetAttr { ino, set: SetAttr { atime, mtime, ..SetAttr::default() } }).unwrap();
        }
        let left = ["device", "file", "sub/none"].map(String::from).to_vec();
        assert_eq!(copy(fs, &ROOT_CALLER, ("a", "b"), true), Ok(left));
        let ino = fs.walk("a/file").unwrap();
        let name = b"security.theirs".as_slice().into();
        fs.ask(Request::RemoveXattr { ino, name }).unwrap();
        assert_eq!(copy(fs, &ROOT_CALLER, ("a", "b"), true).unwrap().len(), 4, "the others are there");
        for path in ["file", "sub"] {
            let (from, to) = (fs.attr(&format!("a/{path}")), fs.attr(&format!("b/{path}")));
            let same = |attr: Attr| (attr.perm, attr.uid, attr.gid, attr.atime, attr.mtime);
            assert_eq!(same(from), same(to), "{path}");
        }
        let list = |fs: &mut Harness, path: &str| {
            let ino = fs.walk(path).unwrap();
            fs.ask(Request::ListXattr { ino }).unwrap()
        };
        assert_eq!(list(fs, "b/file"), Reply::Bytes(b"user.mine\0"[..].into()));
        // Another user: its own owner, no set-id bits, and only `user.` attributes.
        fs.mkdir("c");
        fs.chmod("c", 0o777);
        assert_eq!(copy(fs, &user(7), ("a", "c"), true), Ok(vec!["device".into()]));
        let file = fs.attr("c/file");
        assert_eq!((file.perm, file.uid, file.gid, file.mtime), (0o755, 7, 7, Time::new(22, 5)));
        assert_eq!(list(fs, "c/file"), Reply::Bytes(b"user.mine\0"[..].into()));
    });
}

#[test]
fn large_copy_is_left_to_the_caller() {
    everywhere(|fs| {
        grow(fs);
        fs.file("a/sub/big", &[7; 100]);
        let ino = fs.walk("a/file").unwrap();
        let dir = fs.walk("a/sub").unwrap();
        fs.ask(Request::Link { ino, dir, name: name("second") }).unwrap();
        let left = copy(fs, &ROOT_CALLER, ("a", "b"), false);
        assert_eq!(left, Ok(vec!["device".into(), "sub/big".into()]));
        assert_eq!((fs.attr("b/file").nlink, content(fs, "b/sub/second")), (1, b"bytes".to_vec()));
        fs.mkdir("c");
        fs.mkdir("c/sub");
        let left = copy(fs, &ROOT_CALLER, ("a", "c"), true);
        let paths = ["device", "file", "sub"].map(String::from).to_vec();
        assert_eq!(left, Ok(paths), "links to keep, and what is there");
        // Entries that the caller may not read or search.
        fs.mkdir("d");
        fs.chmod("d", 0o777);
        fs.chmod("a/sub/deep", 0o711);
        fs.chmod("a/file", 0o600);
        let left = copy(fs, &user(5), ("a", "d"), false);
        let paths = ["device", "file", "sub/big", "sub/deep", "sub/second"].map(String::from).to_vec();
        assert_eq!(left, Ok(paths));
    });
}

#[test]
fn a_directory_is_finished_when_the_caller_is_done_with_it() {
    everywhere(|fs| {
        grow(fs);
        fs.file("a/sub/big", &[7; 100]);
        fs.chmod("a/sub", 0o555);
        let top = CopyLevel { from: fs.walk("a").unwrap(), to: fs.walk("b").unwrap(), after: 0 };
        let ask = |fs: &mut Harness, levels| {
            let request = Request::CopyTree(CopyTree { levels, preserve: true, umask: 0o022 });
            let Ok(Reply::Copied(copied)) = fs.ask_as(&user(5), request) else { panic!() };
            copied
        };
        fs.chmod("b", 0o777);
        let mut copied = ask(fs, vec![top]);
        while !copied.left.contains(&b"sub/big".to_vec()) {
            copied = ask(fs, copied.levels);
        }
        // The directory is still writable.
        assert_eq!(fs.attr("b/sub").perm, 0o755);
        while !copied.levels.is_empty() {
            copied = ask(fs, copied.levels);
        }
        assert_eq!((fs.attr("b/sub").perm, fs.attr("b/sub").mtime), (0o555, fs.attr("a/sub").mtime));
    });
}

#[test]
fn capability_matches_client_rights() {
    everywhere(|fs| {
        grow(fs);
        let (from, to) = (fs.walk("a").unwrap(), fs.walk("b").unwrap());
        let request = |after| {
            let levels = vec![CopyLevel { from, to, after }];
            Request::CopyTree(CopyTree { levels, preserve: false, umask: 0 })
        };
        let Ok(Reply::Copied(copied)) = fs.ask(request(0)) else { panic!() };
        assert!(copied.made.is_empty(), "nobody has asked for a name there");
        assert_eq!(copied.changed, [to]);
        let more = fs.mkdir("more");
        assert_eq!(fs.lookup(more, "file"), None);
        let levels = vec![CopyLevel { from, to: more, after: 0 }];
        let request = Request::CopyTree(CopyTree { levels, preserve: false, umask: 0 });
        let Ok(Reply::Copied(copied)) = fs.ask(request) else { panic!() };
        assert!(copied.made.contains(&(more, name("file"))));
        assert!(copied.made.iter().all(|(dir, _)| *dir == more), "{:?}", copied.made);
    });
}

#[test]
fn tree_copy_honours_permissions_quotas_and_space() {
    everywhere(|fs| {
        grow(fs);
        assert_eq!(copy(fs, &user(5), ("a", "b"), false), Err(Errno::EACCES));
        assert_eq!(copy(fs, &ROOT_CALLER, ("a", "a/sub"), false), Err(Errno::EINVAL));
        assert_eq!(copy(fs, &ROOT_CALLER, ("a", "a"), false), Err(Errno::EINVAL));
        let b = fs.walk("b").unwrap();
        fs.set_limit(b, "max_files", 3).unwrap();
        let left = copy(fs, &ROOT_CALLER, ("a", "b"), false).unwrap();
        assert!(!left.is_empty());
        assert_eq!(fs.figure(b, "rfiles").unwrap() + fs.figure(b, "rsubdirs").unwrap(), 3);
    });
    let mut fs = Harness::with(Config { reserve: 1000, ..crate::harness::config() });
    grow(&mut fs);
    fs.input(Input::Space { free: 999 });
    assert_eq!(copy(&mut fs, &ROOT_CALLER, ("a", "b"), false), Err(Errno::ENOSPC));
}

#[test]
fn no_more_is_cloned_than_there_will_be_space_for() {
    let mut fs = Harness::with(Config { reserve: 1000, ..crate::harness::config() });
    fs.mkdir("a");
    fs.mkdir("b");
    for number in 0..9 {
        fs.file(&format!("a/{number}"), &[7; 50]);
    }
    // Space for three of them at a time.
    fs.input(Input::Space { free: 1000 + 4 * 150 });
    fs.lazy = true;
    let (from, to) = (fs.walk("a").unwrap(), fs.walk("b").unwrap());
    let levels = vec![CopyLevel { from, to, after: 0 }];
    let request = Request::CopyTree(CopyTree { levels, preserve: false, umask: 0 });
    let id = fs.send(&ROOT_CALLER, request);
    for count in [3, 6, 9] {
        assert_eq!(fs.list(to, false).len(), count);
        assert_eq!(fs.answers.contains_key(&id), count == 9);
        fs.run_until_idle();
        fs.input(Input::Space { free: 1000 + 4 * 150 });
    }
    // No space for one of this size.
    fs.mkdir("c");
    fs.input(Input::Space { free: 1000 + 4 * 49 });
    assert_eq!(copy(&mut fs, &ROOT_CALLER, ("a", "c"), false), Err(Errno::ENOSPC));
    fs.lazy = false;
    assert_eq!(fs.fsck(), []);
}

#[test]
fn many_entries_take_many_steps() {
    for cache_bytes in [usize::MAX, 0] {
        let mut fs = Harness::with(Config { cache_bytes, ..crate::harness::config() });
        grow(&mut fs);
        let many = fs.mkdir("a/many");
        for number in 0..700 {
            let ino = fs.create(many, &format!("{number}"), NewNode::Regular).unwrap();
            fs.write(ino, 0, &[number as u8; 40]).unwrap();
            fs.forget(ino);
        }
        fs.checkpoint();
        fs = fs.crash();
        assert_eq!(copy(&mut fs, &ROOT_CALLER, ("a", "b"), true), Ok(vec!["device".into()]));
        for number in 0..700 {
            assert_eq!(content(&mut fs, &format!("b/many/{number}")), [number as u8; 40]);
        }
        fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
        // Replay produces the same state.
        let before = fs.dump();
        fs = fs.crash();
        assert_eq!(fs.dump(), before);
        assert_eq!(fs.fsck(), []);
    }
}

#[test]
fn with_sync_a_step_is_durable_when_it_is_answered() {
    // The step ends with a load, long after its changes.
    let mut fs = Harness::with(Config { acknowledge: Acknowledge::Durable, ..crate::harness::config() });
    fs.mkdir("b");
    fs.mkdir("a");
    for number in 0..3 {
        fs.mkdir(&format!("a/{number}"));
    }
    fs.checkpoint();
    fs = fs.crash();
    fs.walk("a").unwrap();
    fs.walk("b").unwrap();
    fs.lazy = true;
    let levels = vec![CopyLevel { from: fs.walk("a").unwrap(), to: fs.walk("b").unwrap(), after: 0 }];
    let request = Request::CopyTree(CopyTree { levels, preserve: false, umask: 0 });
    let id = fs.send(&ROOT_CALLER, request);
    assert!(!fs.answers.contains_key(&id));
    fs.run_until_idle();
    assert!(fs.answers.contains_key(&id));
    let mut fs = fs.crash();
    assert!(fs.walk("b/2").is_ok());
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("a");
        fs.mkdir("b");
        fs.file("a/file", b"bytes");
        fs.chmod("a/file", 0o640);
    };
    under_faults(before, |fs| {
        let level = CopyLevel { from: fs.walk("a")?, to: fs.walk("b")?, after: 0 };
        let request = CopyTree { levels: vec![level], preserve: true, umask: 0 };
        match fs.ask(Request::CopyTree(request)) {
            // On the second attempt the copy exists.
            Ok(Reply::Copied(_)) => Ok(Reply::Done),
            other => other,
        }
    });
}
