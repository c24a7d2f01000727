use espalier_meta::{Config, Input};
use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, STRIP, config, everywhere, name, open_how, under_faults, user};

fn create(fs: &mut Harness, caller: &Caller, path: &str, node: NewNode) -> Result<Attr, Errno> {
    let (dir, name) = fs.place(path)?;
    let request =
        Request::Create { dir, name, node, perm: 0o7777, umask: 0o022, open: None, exclusive: true };
    match fs.ask_as(caller, request)? {
        Reply::Entry(entry) => Ok(entry.attr),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_is_made_for_the_caller() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.chmod("dir", 0o777);
        for (node, kind, rdev) in [
            (NewNode::Regular, FileType::Regular, 0),
            (NewNode::Directory, FileType::Directory, 0),
            (NewNode::Fifo, FileType::Fifo, 0),
            (NewNode::Socket, FileType::Socket, 0),
            (NewNode::CharDevice(0x103), FileType::CharDevice, 0x103),
            (NewNode::BlockDevice(0x700), FileType::BlockDevice, 0x700),
        ] {
            let attr = create(fs, &user(5), &format!("dir/{kind:?}"), node).unwrap();
            assert_eq!((attr.kind, attr.rdev, attr.perm), (kind, rdev, 0o7755));
            assert_eq!((attr.uid, attr.gid), (5, 5));
            assert_eq!(attr.nlink, if kind == FileType::Directory { 2 } else { 1 });
        }
        let link = create(fs, &user(5), "dir/link", NewNode::Symlink(b"to".as_slice().into())).unwrap();
        assert_eq!((link.kind, link.perm, link.size), (FileType::Symlink, 0o777, 2));
        let dir = fs.attr("dir");
        assert!(dir.nlink == 3 && dir.mtime == link.btime && dir.ctime == link.btime);
    });
}

#[test]
fn a_set_group_id_directory_gives_its_group() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.chown("dir", 0, 9);
        fs.chmod("dir", 0o2777);
        let sub = create(fs, &user(5), "dir/sub", NewNode::Directory).unwrap();
        assert_eq!((sub.gid, sub.perm & mode::SET_GID), (9, mode::SET_GID));
        // Executables lose the bit unless the caller is in the group.
        let file = create(fs, &user(5), "dir/file", NewNode::Regular).unwrap();
        assert_eq!((file.gid, file.perm), (9, 0o5755));
    });
}

#[test]
fn what_is_there_is_opened_unless_exclusive() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        let request = |exclusive| Request::Create {
            dir: Ino::ROOT,
            name: name("file"),
            node: NewNode::Regular,
            perm: 0o644,
            umask: 0,
            open: Some(open_how(Access::WRITE, false)),
            exclusive,
        };
        assert_eq!(fs.ask(request(true)), Err(Errno::EEXIST));
        let Ok(Reply::Created(entry, _)) = fs.ask(request(false)) else { panic!("it is opened") };
        assert_eq!((entry.attr.ino, entry.attr.size), (ino, 5));
        assert_eq!(fs.ask_as(&user(5), request(false)), Err(Errno::EACCES));
        // Opened, it outlives its name.
        fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file") }).unwrap();
        fs.forget(ino);
        assert_eq!(fs.read(ino), b"bytes");
        fs.ask(Request::Release { ino }).unwrap();
    });
}

#[test]
fn what_is_there_and_big_is_told_to_be_empty_when_it_is_emptied() {
    everywhere(|fs| {
        let file = fs.file("file", b"bytes");
        fs.write(file, STRIP, b"more").unwrap();
        assert!(fs.is_streamed(file));
        let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, true)));
        let (perm, umask, exclusive) = (0o644, 0, false);
        let request =
            Request::Create { dir: Ino::ROOT, name: name("file"), node, perm, umask, open, exclusive };
        let Ok(Reply::Created(entry, _)) = fs.ask(request) else { panic!("it is there") };
        assert_eq!((entry.attr.size, entry.attr.blocks), (0, 0));
        assert_eq!(fs.attr("file").size, 0);
    });
}

#[test]
fn what_has_been_emptied_is_opened_whatever_becomes_of_its_name() {
    for steps in 0..10 {
        let mut fs = Harness::new();
        let file = fs.file("file", &[7; 100]);
        fs.ask(Request::Open { ino: file, how: open_how(Access::WRITE, false) }).unwrap();
        fs.shuffle = Some(fastrand::Rng::with_seed(0));
        let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, true)));
        let (perm, umask, exclusive) = (0o644, 0, false);
        let request =
            Request::Create { dir: Ino::ROOT, name: name("file"), node, perm, umask, open, exclusive };
        let create = fs.send(&ROOT_CALLER, request);
        (0..steps).for_each(|_| _ = fs.settle_one());
        fs.send(&ROOT_CALLER, Request::Unlink { dir: Ino::ROOT, name: name("file") });
        while fs.settle_one() {}
        let Ok(Reply::Created(entry, _)) = &fs.answers[&create] else { panic!("it can be made") };
        let is_opened = entry.attr.ino == file;
        assert_eq!(fs.attr_of(file).size, if is_opened { 0 } else { 100 }, "after {steps} steps");
    }
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.file("dir/file", b"");
        let node = || NewNode::Regular;
        assert_eq!(create(fs, &user(5), "dir/file/x", node()), Err(Errno::ENOTDIR));
        // A name that is there is told before the directory's being closed to the caller.
        assert_eq!(create(fs, &user(5), "dir/file", node()), Err(Errno::EEXIST));
        assert_eq!(create(fs, &user(5), "dir/new", node()), Err(Errno::EACCES));
        fs.chmod("dir", 0o700);
        assert_eq!(create(fs, &user(5), "dir/file", node()), Err(Errno::EACCES));
        // In a directory that was removed there is nothing to be made.
        let gone = fs.mkdir("gone");
        fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("gone") }).unwrap();
        assert_eq!(fs.create(gone, "new", NewNode::Regular), Err(Errno::ENOENT));
        fs.forget(gone);
    });
}

#[test]
fn a_full_store_takes_no_more_but_lets_go() {
    let mut fs = Harness::with(Config { reserve: 1, ..config() });
    fs.file("file", b"");
    fs.input(Input::Space { free: 0 });
    assert_eq!(fs.create(Ino::ROOT, "new", NewNode::Regular), Err(Errno::ENOSPC));
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file") }).unwrap();
    fs.input(Input::Space { free: 1 });
    assert!(fs.create(Ino::ROOT, "new", NewNode::Regular).is_ok());
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.chmod("dir", 0o777);
        fs.file("dir/old", b"bytes");
    };
    for node in [NewNode::Regular, NewNode::Directory, NewNode::Symlink(b"to".as_slice().into())] {
        under_faults(before, |fs| create(fs, &user(5), "dir/new", node.clone()).map(Reply::Attr));
    }
    under_faults(before, |fs| {
        let (dir, name) = fs.place("dir/old")?;
        let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, false)));
        let request = Request::Create { dir, name, node, perm: 0o644, umask: 0, open, exclusive: false };
        fs.ask_as(&ROOT_CALLER, request)
    });
}
