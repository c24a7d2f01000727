//! Eviction: the cache stays within its bound, whatever the size of the tree and whatever clients
//! know, and nothing is lost.

use crate::harness::{self, Harness, config, name};
use espalier_meta::{Config, InoRecord};
use espalier_proto::*;

const BOUND: usize = 256 << 10;
const FILES: usize = 20_000;

fn filled() -> (Harness, Ino) {
    let mut fs = Harness::with(Config { cache_bytes: BOUND, ..config() });
    let dir = fs.create(Ino::ROOT, "dir", NewNode::Directory).unwrap();
    for n in 0..FILES {
        let ino = fs.create(dir, &format!("file {n}"), NewNode::Regular).unwrap();
        fs.write(ino, 0, &[n as u8; 10]).unwrap();
    }
    (fs, dir)
}

#[test]
fn the_cache_is_bounded_though_the_client_knows_every_file() {
    let (mut fs, dir) = filled();
    fs.checkpoint();
    for _ in 0..FILES {
        fs.lookup(Ino::ROOT, "dir");
    }
    // A client may ignore recalls; then only the location of the inode stays in memory.
    assert!(fs.recalled.len() > FILES / 2, "{}", fs.recalled.len());
    let known = 64 * FILES;
    assert!(fs.meta.cache_bytes() < BOUND + known, "{}", fs.meta.cache_bytes());
    for recall in std::mem::take(&mut fs.recalled) {
        fs.send(&harness::ROOT_CALLER, Request::Forget { ino: recall.ino, lookups: 1 });
    }
    assert!(fs.meta.cache_bytes() < 2 * BOUND, "{}", fs.meta.cache_bytes());
    assert_eq!(fs.list(dir, false).len(), FILES);
    for n in (0..FILES).step_by(97) {
        let attr = fs.lookup(dir, &format!("file {n}")).unwrap();
        assert_eq!(fs.read(attr.ino), [n as u8; 10]);
    }
    assert_eq!(fs.lookup(dir, "no such file"), None);
    assert_eq!(fs.fsck(), []);
}

#[test]
fn an_inode_that_is_known_by_its_number_is_found_again() {
    let (mut fs, dir) = filled();
    let known: Vec<_> = (0..FILES).step_by(501).collect();
    let inos: Vec<_> = known.iter().map(|n| fs.lookup(dir, &format!("file {n}")).unwrap().ino).collect();
    fs.checkpoint();
    for n in 0..FILES {
        fs.lookup(dir, &format!("file {n}"));
    }
    for (n, ino) in known.iter().zip(inos) {
        match fs.ask(Request::GetAttr { ino }) {
            Ok(Reply::Attr(attr)) => assert_eq!((attr.ino, attr.size), (ino, 10)),
            other => panic!("file {n}: {other:?}"),
        }
    }
}

#[test]
fn removed_entry_stays_removed_after_eviction() {
    let (mut fs, dir) = filled();
    fs.checkpoint();
    fs.lazy = true;
    for n in (0..FILES).step_by(2) {
        let (dir, name) = (dir, name(&format!("file {n}")));
        let id = fs.send(&harness::ROOT_CALLER, Request::Unlink { dir, name, time: None });
        // With too many unwritten changes it waits for a checkpoint.
        while !fs.answers.contains_key(&id) {
            fs.run_one();
        }
        assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Done)));
    }
    for n in 0..200 {
        assert_eq!(fs.lookup(dir, &format!("file {n}")).is_some(), n % 2 == 1, "file {n}");
    }
    assert_eq!(fs.list(dir, true).len(), FILES / 2);
    fs.lazy = false;
    assert_eq!(fs.fsck(), []);
    assert_eq!(fs.list(dir, true).len(), FILES / 2);
}

/// Also an inode with a record of its own, which the store has until the next checkpoint.
#[test]
fn an_inode_that_has_ceased_to_be_is_not_found_by_its_number() {
    let mut fs = Harness::new();
    let ino = fs.create(Ino::ROOT, "file", NewNode::Regular).unwrap();
    fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("other") }).unwrap();
    fs.checkpoint();
    for file in ["file", "other"] {
        fs.ask(Request::Unlink { dir: Ino::ROOT, name: name(file), time: None }).unwrap();
    }
    fs.forget(ino);
    for _ in 0..2 {
        assert_eq!(fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
        fs.checkpoint();
    }
    assert_eq!(fs.fsck(), []);
}

#[test]
fn missing_record_is_loaded_once() {
    let mut fs = Harness::with(config());
    let ino = fs.create(Ino::ROOT, "one", NewNode::Regular).unwrap();
    fs.create(Ino::ROOT, "other", NewNode::Regular).unwrap();
    fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("two") }).unwrap();
    fs.drain();
    let (object, key) = InoRecord::Inode.place(ino);
    fs.disk.store().stage([TableWrite { object, key, value: None }].into()).unwrap();
    fs.disk.store().publish().unwrap();
    let mut fs = fs.crash();
    let list = |plus| Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus };
    assert_eq!(fs.ask(list(true)), Err(Errno::ESTALE));
    assert!(fs.ask(list(false)).is_ok());
}
