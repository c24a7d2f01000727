//! Leases on the bytes of files that other clients write to.

use espalier_meta::{Config, Input};
use espalier_proto::*;

use super::set_layout::{ONE, OTHER};
use crate::harness::{Harness, ROOT_CALLER, config, name};

const TERM: u32 = 10_000;
const READER: ClientId = OTHER;
const WRITER: ClientId = ONE;

struct SharedFile {
    fs: Harness,
    ino: Ino,
}

impl SharedFile {
    /// A file that one client has opened for reading, and another then for writing, which announces
    /// its first write.
    fn new() -> Self {
        let mut fs = Harness::with(Config { lease_ms: Some(TERM), session_ms: Some(60_000), ..config() });
        for client in [WRITER, READER] {
            fs.input(Input::Connect { client, leases: true, resumes: false });
        }
        let (node, perm, umask, open, exclusive, writeback) = (NewNode::Regular, 0o644, 0, None, true, None);
        let create = Request::Create {
            dir: Ino::ROOT,
            name: name("file"),
            node,
            perm,
            umask,
            open,
            exclusive,
            writeback,
        };
        let mut shared = Self { fs, ino: Ino::ROOT };
        match shared.ask(WRITER, create).0 {
            Reply::Entry(entry) => shared.ino = entry.attr.ino,
            other => panic!("{other:?}"),
        }
        shared.ask(READER, Request::Lookup { dir: Ino::ROOT, name: name("file") });
        assert!(!shared.open(READER, Access::READ).shared, "no client writes to it");
        assert!(shared.open(WRITER, Access::READ | Access::WRITE).shared);
        shared
    }

    fn send(&mut self, client: ClientId, request: Request) -> u64 {
        self.fs.send_from(client, &ROOT_CALLER, request)
    }

    fn answer(&mut self, id: u64) -> Option<(Reply, u32)> {
        let result = self.fs.answers.remove(&id)?;
        Some((result.unwrap(), self.fs.leases[&id].0))
    }

    fn ask(&mut self, client: ClientId, request: Request) -> (Reply, u32) {
        let id = self.send(client, request);
        self.answer(id).expect("an answer at once")
    }

    fn open(&mut self, client: ClientId, access: Access) -> Opened {
        let how = OpenHow { access, ..OpenHow::default() };
        let opens = self.send(client, Request::Open { ino: self.ino, how });
        self.give_up();
        match self.answer(opens) {
            Some((Reply::Opened(opened), _)) => opened,
            other => panic!("{other:?}"),
        }
    }

    fn lease(&mut self) -> u64 {
        self.send(READER, Request::LeaseData { ino: self.ino })
    }

    fn announce(&mut self) -> u64 {
        self.send(WRITER, Request::Announce(self.ino))
    }

    /// Acknowledges all revocations, and returns them.
    fn give_up(&mut self) -> Vec<(ClientId, Lease)> {
        let revocations = std::mem::take(&mut self.fs.revocations);
        for revocation in &revocations {
            self.fs.input(Input::Revoked { client: revocation.client, number: revocation.number });
        }
        revocations.into_iter().map(|revocation| (revocation.client, revocation.lease)).collect()
    }

    fn pass(&mut self, ms: u32) {
        self.fs.uptime_ms += u64::from(ms);
        self.fs.input(Input::Tick);
    }
}

#[test]
fn announced_write_is_answered_when_readers_have_dropped_the_file() {
    let mut shared = SharedFile::new();
    let (ino, leased) = (shared.ino, (Reply::Done, TERM));
    let lease = shared.lease();
    assert_eq!(shared.answer(lease), Some(leased.clone()), "the writer announces already");
    let announced = shared.announce();
    assert_eq!(shared.answer(announced), None);
    assert_eq!(shared.give_up(), [(READER, Lease::Data { ino })]);
    assert_eq!(shared.answer(announced), Some((Reply::Announced(false), 0)));
    // It stops announcing. A later reader makes it announce again.
    let lease = shared.lease();
    assert_eq!(shared.answer(lease), None);
    assert_eq!(shared.give_up(), [(WRITER, Lease::Unannounced { ino })]);
    assert_eq!(shared.answer(lease), Some(leased));
    let announced = shared.announce();
    assert_eq!(shared.give_up(), [(READER, Lease::Data { ino })]);
    assert_eq!(shared.answer(announced), Some((Reply::Announced(false), 0)));
}

#[test]
fn reader_gets_a_lease_while_its_last_one_is_revoked() {
    let mut shared = SharedFile::new();
    let ino = shared.ino;
    shared.lease();
    let first = shared.announce();
    let old = std::mem::take(&mut shared.fs.revocations);
    // A kernel completes its reads before it drops pages.
    let lease = shared.lease();
    assert_eq!(shared.answer(lease), Some((Reply::Done, TERM)));
    assert_eq!(shared.answer(first), None);
    shared.fs.input(Input::Revoked { client: READER, number: old[0].number });
    assert_eq!(shared.answer(first), Some((Reply::Announced(true), 0)), "it has been read already");
    let second = shared.announce();
    assert_eq!(shared.answer(second), None);
    assert_eq!(shared.give_up(), [(READER, Lease::Data { ino })]);
    assert_eq!(shared.answer(second), Some((Reply::Announced(false), 0)));
    // Two announcements; acknowledging the first revocation does not end the lease between them.
    shared.lease();
    shared.give_up();
    let first = shared.announce();
    let old = std::mem::take(&mut shared.fs.revocations);
    shared.lease();
    let second = shared.announce();
    shared.fs.input(Input::Revoked { client: READER, number: old[0].number });
    assert_eq!(shared.answer(second), None);
    assert_eq!(shared.give_up(), [(READER, Lease::Data { ino })]);
    assert!(shared.answer(first).is_some() && shared.answer(second).is_some());
}

#[test]
fn silent_clients_are_waited_for_until_their_leases_are_over() {
    let mut shared = SharedFile::new();
    shared.lease();
    let announced = shared.announce();
    shared.fs.revocations.clear();
    shared.pass(TERM + 1_000);
    assert_eq!(shared.answer(announced), Some((Reply::Announced(false), 0)));
    let lease = shared.lease();
    shared.fs.revocations.clear();
    shared.pass(TERM / 2);
    assert_eq!(shared.answer(lease), None);
    shared.pass(TERM / 2 + 1_000);
    assert_eq!(shared.answer(lease), Some((Reply::Done, 0)), "it may still write without a message");
}

#[test]
fn only_openings_for_writing_make_a_file_shared() {
    let mut shared = SharedFile::new();
    shared.send(WRITER, Request::Release { ino: shared.ino });
    assert!(!shared.open(READER, Access::READ).shared);
    assert!(!shared.open(WRITER, Access::READ).shared);
    assert!(shared.open(WRITER, Access::WRITE).shared);
    assert!(shared.open(READER, Access::READ).shared);
}
