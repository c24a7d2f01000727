//! Contents of checkpoints, whatever was created and removed since the last one.

use crate::harness::{Harness, ROOT_CALLER, name};
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
                fs.ask(Request::Rename { from_dir: dir, from: file, to_dir: Ino::ROOT, to, flags }).unwrap();
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
