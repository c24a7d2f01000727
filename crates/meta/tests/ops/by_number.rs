use espalier_meta::{Config, InoRecord};
use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, config, everywhere, name, under_faults};

fn find(fs: &mut Harness, ino: Ino) -> Result<Reply, Errno> {
    fs.ask(Request::Find { ino, kind: None, open: None })
}

fn found(fs: &mut Harness, ino: Ino) -> Result<Attr, Errno> {
    match find(fs, ino)? {
        Reply::Entry(entry) => Ok(entry.attr),
        other => panic!("{ino}: {other:?}"),
    }
}

fn parent(fs: &mut Harness, dir: Ino) -> Result<Ino, Errno> {
    match fs.ask(Request::Parent { dir })? {
        Reply::Entry(entry) => Ok(entry.attr.ino),
        other => panic!("{dir}: {other:?}"),
    }
}

fn unlink(fs: &mut Harness, path: &str) {
    let (dir, name) = fs.place(path).unwrap();
    fs.ask(Request::Unlink { dir, name, time: None }).unwrap();
}

fn rename(fs: &mut Harness, from: &str, to: &str) {
    let ((from_dir, from), (to_dir, to)) = (fs.place(from).unwrap(), fs.place(to).unwrap());
    let flags = RenameFlags::empty();
    fs.ask(Request::Rename { from_dir, from, to_dir, to, flags, time: None }).unwrap();
}

/// One inode of each type, and one that has moved since a checkpoint.
fn grow(fs: &mut Harness) -> Vec<Ino> {
    fs.mkdir("dir");
    fs.mkdir("dir/sub");
    let mut inos = vec![
        fs.mkdir("dir/sub/deep"),
        fs.file("dir/sub/deep/small", b"bytes"),
        fs.file("dir/sub/deep/big", &[7; 100]),
        fs.make("dir/sub/deep/link", NewNode::Symlink(b"nowhere".as_slice().into())),
        fs.make("dir/fifo", NewNode::Fifo),
        fs.file("dir/linked", b"linked"),
        fs.file("moves", b"moved"),
        fs.mkdir("moves too"),
    ];
    fs.checkpoint();
    let dir = fs.walk("dir/sub").unwrap();
    fs.ask(Request::Link { ino: inos[5], dir, name: name("second") }).unwrap();
    rename(fs, "moves", "dir/sub/deep/moved");
    rename(fs, "moves too", "dir/sub/deep/moved too");
    inos.push(fs.file("dir/new", b"new"));
    inos
}

#[test]
fn inode_is_found_by_its_number_in_every_state_of_memory() {
    for cache_bytes in [config().cache_bytes, 0] {
        let mut fs = Harness::with(Config { cache_bytes, ..config() });
        let inos = grow(&mut fs);
        let attrs: Vec<Attr> = inos.iter().map(|ino| fs.attr_of(*ino)).collect();
        fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
        // First after a replay, then only from the tables.
        for _ in 0..2 {
            fs = fs.crash();
            for (ino, attr) in inos.iter().zip(&attrs) {
                assert_eq!(found(&mut fs, *ino), Ok(*attr));
                assert_eq!(found(&mut fs, *ino), Ok(*attr), "a second time");
            }
            assert_eq!(fs.read(inos[1]), b"bytes");
            assert_eq!(fs.read(inos[6]), b"moved");
            fs.checkpoint();
        }
        assert_eq!(fs.fsck(), []);
    }
}

#[test]
fn number_of_a_removed_inode_is_stale() {
    everywhere(|fs| {
        let retained = fs.file("kept", b"bytes");
        let before = fs.file("before", b"bytes");
        let dir = fs.mkdir("dir");
        let linked = fs.file("linked", b"bytes");
        fs.ask(Request::Link { ino: linked, dir, name: name("second") }).unwrap();
        rename(fs, "before", "dir/before");
        fs.checkpoint();
        let after = fs.file("after", b"bytes");
        let replaced = fs.file("replaced", b"bytes");
        for path in ["dir/before", "after", "linked", "dir/second"] {
            unlink(fs, path);
        }
        rename(fs, "kept", "replaced");
        fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("dir"), time: None }).unwrap();
        let gone = [before, after, replaced, linked, dir, Ino(1 << 40), Ino(0), Ino(u64::MAX)];
        for forgets in [false, true] {
            for ino in gone {
                assert_eq!(find(fs, ino), Err(Errno::ESTALE), "{ino}, forgotten: {forgets}");
                fs.forget(ino);
            }
        }
        fs.checkpoint();
        for ino in gone {
            assert_eq!(find(fs, ino), Err(Errno::ESTALE), "{ino}, in the tables");
        }
        assert_eq!(found(fs, retained).map(|attr| attr.nlink), Ok(1));
    });
}

#[test]
fn open_file_without_a_name_is_found() {
    everywhere(|fs| {
        fs.file("file", b"bytes");
        let ino = fs.open("file");
        unlink(fs, "file");
        assert_eq!(found(fs, ino).map(|attr| attr.nlink), Ok(0));
        fs.checkpoint();
        assert_eq!(found(fs, ino).map(|attr| attr.nlink), Ok(0));
        fs.ask(Request::Release { ino }).unwrap();
        assert_eq!(find(fs, ino), Err(Errno::ESTALE));
        fs.forget(ino);
        assert_eq!(find(fs, ino), Err(Errno::ESTALE));
    });
}

#[test]
fn inode_in_a_removed_tree_is_stale() {
    let mut fs = Harness::new();
    fs.mkdir("top");
    let sub = fs.mkdir("top/sub");
    let file = fs.file("top/sub/file", b"bytes");
    fs.checkpoint();
    let top = fs.walk("top").unwrap();
    fs.lazy = true;
    let id = fs.send(&ROOT_CALLER, Request::RemoveTree { dir: top });
    assert!(fs.answers[&id].is_ok());
    for ino in [top, sub, file] {
        assert_eq!(find(&mut fs, ino), Err(Errno::ESTALE));
    }
    assert_eq!(parent(&mut fs, top), Err(Errno::ESTALE));
    fs.lazy = false;
    assert_eq!(fs.fsck(), []);
}

#[test]
fn directory_leads_to_its_parent() {
    everywhere(|fs| {
        let dir = fs.mkdir("dir");
        let sub = fs.mkdir("dir/sub");
        let file = fs.file("dir/file", b"");
        assert_eq!(parent(fs, sub), Ok(dir));
        assert_eq!(parent(fs, dir), Ok(Ino::ROOT));
        assert_eq!(parent(fs, Ino::ROOT), Ok(Ino::ROOT));
        assert_eq!(parent(fs, file), Err(Errno::ENOTDIR));
        rename(fs, "dir/sub", "sub");
        assert_eq!(parent(fs, sub), Ok(Ino::ROOT));
    });
}

#[test]
fn file_that_never_reaches_the_tables_leaves_no_record_there() {
    let mut fs = Harness::new();
    let retained = fs.file("kept", b"bytes");
    let removed = fs.file("removed", b"bytes");
    unlink(&mut fs, "removed");
    fs.forget(removed);
    fs.checkpoint();
    let (object, key) = InoRecord::Place.place(retained);
    assert!(fs.disk.store().get(object, &key).unwrap().is_some());
    let (object, key) = InoRecord::Place.place(removed);
    assert!(fs.disk.store().get(object, &key).unwrap().is_none());
}

#[test]
fn is_whole_under_faults() {
    let inos = std::cell::RefCell::new(Vec::new());
    let before = |fs: &mut Harness| *inos.borrow_mut() = grow(fs);
    for which in [0, 1, 2, 5, 6, 8] {
        under_faults(before, |fs| {
            let ino = inos.borrow()[which];
            // The store determines the times of a stream.
            Ok(match find(fs, ino)? {
                Reply::Entry(entry) if entry.attr.streamed => Reply::Offset(entry.attr.size),
                other => other,
            })
        });
    }
}
