//! Contents of checkpoints, whatever was created and removed since the last one.

use std::panic::catch_unwind;

use crate::harness::{Harness, ROOT_CALLER, Selection, name};
use espalier_meta::{CheckpointWhen, Dentry, Input, decode};
use espalier_proto::*;

/// Makes and removes more files than a piece of a checkpoint has records.
fn come_and_go(fs: &mut Harness, count: usize) {
    for number in 0..count {
        let file = format!("passing{number}");
        let ino = fs.create(Ino::ROOT, &file, NewNode::Regular).unwrap();
        fs.ask(Request::Unlink { dir: Ino::ROOT, name: name(&file), time: None }).unwrap();
        fs.send(&ROOT_CALLER, Request::Forget { ino, lookups: 1 });
    }
}

#[test]
fn records_behind_many_that_are_gone_are_written() {
    let mut fs = Harness::new();
    fs.create(Ino::ROOT, "before", NewNode::Directory).unwrap();
    fs.checkpoint();
    come_and_go(&mut fs, 2000);
    fs.create(Ino::ROOT, "after", NewNode::Regular).unwrap();
    let ino = fs.lookup(Ino::ROOT, "before").unwrap().ino;
    fs.create(ino, "inside", NewNode::Regular).unwrap();
    fs.checkpoint();
    let seen = fs.dump();
    assert_eq!(fs.fsck(), []);
    // The tables must contain everything without the journal.
    let mut fs = fs.without_journal();
    assert_eq!(fs.dump(), seen);
}

#[test]
fn changes_while_a_checkpoint_is_under_way_belong_to_the_next() {
    let mut fs = Harness::new();
    let dir = fs.create(Ino::ROOT, "dir", NewNode::Directory).unwrap();
    for number in 0..1000 {
        fs.create(dir, &format!("file{number}"), NewNode::Regular).unwrap();
    }
    fs.lazy = true;
    fs.checkpoint();
    // Something changes between any two pieces.
    for number in 0..1000 {
        fs.run_one();
        let file = name(&format!("file{number}"));
        match number % 3 {
            0 => drop(fs.ask(Request::Unlink { dir, name: file, time: None }).unwrap()),
            1 => {
                let (to, flags) = (name(&format!("moved{number}")), RenameFlags::empty());
                fs.ask(Request::Rename {
                    from_dir: dir,
                    from: file,
                    to_dir: Ino::ROOT,
                    to,
                    flags,
                    time: None,
                })
                .unwrap();
            }
            _ => {
                let ino = fs.lookup(dir, &format!("file{number}")).unwrap().ino;
                fs.ask(Request::Link { ino, dir, name: name(&format!("link{number}")) }).unwrap();
            }
        }
    }
    fs.run_until_idle();
    fs.lazy = false;
    assert_eq!(fs.fsck(), []);
}

/// Makes records of all kinds that need neither sessions nor other ranks, and changes them between
/// checkpoints.
fn change_all_kinds(unmarked: Option<Selection>) {
    let mut fs = Harness::new();
    fs.unmarked = unmarked;
    let ino = fs.file("file", b"bytes");
    let linked = fs.make("linked", NewNode::Regular);
    fs.make("orphan", NewNode::Regular);
    let orphan = fs.open("orphan");
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("orphan"), time: None }).unwrap();
    for number in 0..3 {
        fs.write(ino, number, b"more").unwrap();
        fs.set_xattr(ino, &number.to_string());
        fs.ask(Request::Link { ino: linked, dir: Ino::ROOT, name: name(&number.to_string()) }).unwrap();
        fs.write(orphan, number, b"more").unwrap();
        fs.checkpoint();
    }
}

/// Mutants: checkpoints lack the records of one kind, as if their changes were not marked. The
/// harness compares all records that count as written after each checkpoint of each test.
#[test]
fn record_that_is_not_marked_changed_is_found() {
    fn is_remote(write: &TableWrite) -> bool {
        matches!(write.value.as_deref().map(decode), Some(Ok(Dentry::Remote(_))))
    }
    fn is_tagged(write: &TableWrite, tag: u8) -> bool {
        write.object.kind == ObjectKind::Inodes && write.key.first() == Some(&tag)
    }
    let kinds: [(&str, Selection); 6] = [
        ("inode in its dentry", |write| write.object.kind == ObjectKind::Fragment && !is_remote(write)),
        ("remote dentry", |write| write.object.kind == ObjectKind::Fragment && is_remote(write)),
        ("inode with several names", |write| is_tagged(write, b'i')),
        ("orphan", |write| write.object.kind == ObjectKind::Orphans),
        ("strip", |write| is_tagged(write, b's')),
        ("extended attributes", |write| is_tagged(write, b'x')),
    ];
    change_all_kinds(None);
    for (kind, unmarked) in kinds {
        assert!(catch_unwind(|| change_all_kinds(Some(unmarked))).is_err(), "{kind}");
    }
}

#[test]
fn checkpoint_without_changes_is_written_on_demand() {
    let mut fs = Harness::new();
    fs.file("file", b"");
    fs.checkpoint();
    let before = fs.count;
    fs.input(Input::Checkpoint(CheckpointWhen::Changed));
    assert_eq!(fs.count, before);
    fs.input(Input::Checkpoint(CheckpointWhen::Always));
    assert_eq!(fs.count, before + 2, "the super record, and its publication");
    fs.input(Input::Checkpoint(CheckpointWhen::Always));
    assert_eq!(fs.count, before + 4);
    assert_eq!(fs.fsck(), []);
}
