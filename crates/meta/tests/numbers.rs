//! Inode numbers that a client has seen are never reused, whatever a power failure loses.

use std::collections::BTreeSet;

use crate::harness::{Harness, ROOT_CALLER, config, name};
use espalier_meta::{Acknowledge, Config, Input};
use espalier_proto::*;

const CLIENT: ClientId = ClientId(100);

/// The answer, whenever it arrives.
fn ask(fs: &mut Harness, id: u64, request: Request) -> Result<Reply, Errno> {
    let (number, caller) = (RequestId(id), ROOT_CALLER);
    fs.input(Input::Request {
        from: CLIENT,
        id: number,
        below: number,
        follows: Vec::new(),
        caller,
        request,
    });
    for _ in 0..1000 {
        match fs.answers.remove(&id) {
            Some(answer) => return answer,
            None if fs.run_one() => {}
            // It may wait for leases from before the restart.
            None => {
                fs.uptime_ms += 1000;
                fs.input(Input::Tick);
            }
        }
    }
    panic!("no answer")
}

fn file(id: u64) -> Name {
    name(&format!("file{id}"))
}

fn create(fs: &mut Harness, id: u64) -> Ino {
    let (dir, name, node, open) = (Ino::ROOT, file(id), NewNode::Regular, None);
    let request =
        Request::Create { dir, name, node, perm: 0o644, umask: 0, open, exclusive: true, writeback: None };
    match ask(fs, id, request) {
        Ok(Reply::Entry(entry)) => entry.attr.ino,
        other => panic!("{other:?}"),
    }
}

#[test]
fn numbers_do_not_come_again_after_losses_of_power() {
    let config = Config { session_ms: Some(60_000), acknowledge: Acknowledge::Written, ..config() };
    let (mut fs, mut given, mut lost) = (Harness::with(config), BTreeSet::new(), 0);
    for round in 1..8 {
        fs.input(Input::Connect { client: CLIENT, leases: true, resumes: false });
        fs.run_until_idle();
        let nothing = Request::Reclaim { held: Vec::new(), last: true, again: vec![] };
        assert_eq!(ask(&mut fs, round * 100 - 1, nothing), Ok(Reply::Done));
        let last = Request::Lookup { dir: Ino::ROOT, name: file(round * 100 - 96) };
        lost += usize::from(matches!(ask(&mut fs, round * 100, last), Ok(Reply::Absent { .. })));
        for file in 1..=4 {
            let ino = create(&mut fs, round * 100 + file);
            assert!(given.insert(ino), "{ino:?} comes again in round {round}");
        }
        fs = fs.crash();
    }
    // In the first round nothing can be lost.
    assert!(lost > 1, "nothing was lost, so nothing was tested");
}

#[test]
fn draining_reserves_no_numbers() {
    let mut fs = Harness::with(Config { session_ms: Some(u32::MAX), ..config() });
    let record = |fs: &Harness| fs.disk.store().get(ObjectId::SUPER, b"").unwrap();
    let before = record(&fs);
    for _ in 0..2 {
        fs.drain();
        assert_eq!(record(&fs), before);
        fs = fs.crash();
    }
}
