//! Effects of a signal to a waiting caller.

use crate::harness::{self, Harness, ROOT_CALLER};
use espalier_meta::Input;
use espalier_proto::*;

#[test]
fn fsync_is_not_interrupted() {
    let mut fs = Harness::new();
    fs.create(Ino::ROOT, "file", NewNode::Regular).unwrap();
    fs.lazy = true;
    let id = fs.send(&ROOT_CALLER, Request::Fsync { ino: Ino::ROOT });
    fs.input(Input::Cancel { from: ClientId(1), id: RequestId(id) });
    assert_eq!(fs.answers.get(&id), None, "it still waits");
    fs.run_until_idle();
    assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Done)));
}

#[test]
fn a_writer_that_waits_for_room_is_interrupted_and_has_changed_nothing() {
    let config = espalier_meta::Config { journal_capacity: 4 << 20, ..harness::config() };
    let mut fs = Harness::with(config);
    fs.lazy = true;
    let mut number = 0;
    let id = loop {
        number += 1;
        let target = vec![b'x'; 4000].into();
        let request = Request::Create {
            dir: Ino::ROOT,
            name: harness::name(&format!("{number}")),
            node: NewNode::Symlink(target),
            perm: 0,
            umask: 0,
            open: None,
            exclusive: true,
            writeback: None,
        };
        let id = fs.send(&ROOT_CALLER, request);
        if fs.answers.remove(&id).is_none() {
            break id;
        }
        assert!(number < 2000, "the journal must fill");
    };
    fs.input(Input::Cancel { from: ClientId(1), id: RequestId(id) });
    assert_eq!(fs.answers.remove(&id), Some(Err(Errno::EINTR)));
    // The checkpoint that it waited for makes space for others.
    fs.run_until_idle();
    fs.lazy = false;
    assert!(fs.create(Ino::ROOT, "later", NewNode::Regular).is_ok());
    assert_eq!(fs.lookup(Ino::ROOT, &format!("{number}")), None);
    assert_eq!(fs.fsck(), []);
}
