//! Several clients of one server: each request is executed once, whatever messages are lost, and a
//! client's holds end with its session.

use std::collections::BTreeMap;

use crate::harness::{self, Engine, Harness, ROOT_CALLER, name, open_how, user};
use espalier_meta::{Acknowledge, Config, Input, Io, Now, Outbox};
use espalier_proto::*;

const SESSION_MS: u32 = 60_000;

fn config() -> Config {
    Config { session_ms: Some(SESSION_MS), acknowledge: Acknowledge::Written, ..harness::config() }
}

/// A client that numbers its requests, and accepts only the answer to the last one.
struct TestClient {
    id: ClientId,
    next: u64,
    /// The request that is unanswered.
    unanswered: Option<u64>,
}

impl TestClient {
    /// Requests of different clients get different numbers, so the harness can distinguish them.
    fn new(number: u64) -> Self {
        Self { id: ClientId(100 + number), next: number << 32, unanswered: None }
    }

    fn connect(fs: &mut Harness, number: u64) -> Self {
        let client = Self::new(number);
        client.reconnect(fs);
        client
    }

    /// Returns true if the session resumes; otherwise starts a new one.
    fn reconnect(&self, fs: &mut Harness) -> bool {
        self.greet(fs, true) || !self.greet(fs, false)
    }

    /// Returns true if the client has a session afterwards.
    fn greet(&self, fs: &mut Harness, resumes: bool) -> bool {
        fs.connected.clear();
        fs.refused.clear();
        fs.input(Input::Connect { client: self.id, leases: true, resumes });
        fs.run_until_idle();
        let is_connected = fs.connected == [self.id];
        let refused = if is_connected { vec![] } else { vec![(self.id, Errno::ESTALE)] };
        assert_eq!(fs.refused, refused);
        is_connected
    }

    /// Sends a new request, or repeats the last one.
    fn send(&mut self, fs: &mut Harness, request: &Request, again: bool) -> u64 {
        self.next += u64::from(!again);
        fs.now.nanos += 1;
        fs.input(Input::Request {
            from: self.id,
            id: RequestId(self.next),
            below: RequestId(self.unanswered.unwrap_or(self.next)),
            follows: Vec::new(),
            caller: ROOT_CALLER,
            request: request.clone(),
        });
        self.next
    }

    fn ask(&mut self, fs: &mut Harness, request: Request) -> Result<Reply, Errno> {
        let id = self.send(fs, &request, false);
        wait(fs, id)
    }

    fn again(&mut self, fs: &mut Harness, request: Request) -> Result<Reply, Errno> {
        let id = self.send(fs, &request, true);
        wait(fs, id)
    }

    fn create(&mut self, fs: &mut Harness, dir: Ino, file: &str, node: NewNode) -> Ino {
        entry(self.ask(fs, create(dir, file, node)))
    }

    fn lookup(&mut self, fs: &mut Harness, dir: Ino, file: &str) -> Ino {
        entry(self.ask(fs, Request::Lookup { dir, name: name(file) }))
    }

    /// Opens a file. Returns the reclaim token.
    fn open(&mut self, fs: &mut Harness, ino: Ino) -> u64 {
        self.open_for(fs, ino, Access::READ | Access::WRITE)
    }

    fn open_for(&mut self, fs: &mut Harness, ino: Ino, access: Access) -> u64 {
        match self.ask(fs, Request::Open { ino, how: open_how(access, false) }) {
            Ok(Reply::Opened(opened)) => opened.reclaim_token,
            other => panic!("{other:?}"),
        }
    }
}

fn wait(fs: &mut Harness, id: u64) -> Result<Reply, Errno> {
    while !fs.answers.contains_key(&id) && !fs.is_dead() && fs.run_one() {}
    if fs.is_dead() { Err(Errno::EIO) } else { fs.answers.remove(&id).expect("an answer") }
}

fn entry(reply: Result<Reply, Errno>) -> Ino {
    match reply.unwrap() {
        Reply::Entry(entry) | Reply::Created(entry, _) => entry.attr.ino,
        other => panic!("{other:?}"),
    }
}

fn create(dir: Ino, file: &str, node: NewNode) -> Request {
    Request::Create {
        dir,
        name: name(file),
        node,
        perm: 0o644,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    }
}

/// The first inode of a server waits for a sync; this makes it.
fn reserve_numbers(fs: &mut Harness, client: &mut TestClient) {
    client.create(fs, Ino::ROOT, "the first", NewNode::Regular);
    fs.run_until_idle();
}

fn tick(fs: &mut Harness, ms: u64) {
    fs.uptime_ms += ms;
    fs.input(Input::Tick);
    fs.run_until_idle();
}

/// Lets all sessions expire except those of `clients`.
fn expire_all_but(fs: &mut Harness, clients: &[&TestClient]) {
    tick(fs, 1);
    for _ in 0..=SESSION_MS / 1000 {
        for client in clients {
            fs.input(Input::Heard { client: client.id });
        }
        tick(fs, 1000);
    }
}

#[test]
fn a_client_without_a_session_is_refused() {
    let fs = &mut Harness::with(config());
    let mut stranger = TestClient::new(1);
    assert_eq!(stranger.ask(fs, Request::GetAttr { ino: Ino::ROOT }), Err(Errno::ESTALE));
    assert_eq!(stranger.ask(fs, create(Ino::ROOT, "a", NewNode::Regular)), Err(Errno::ESTALE));
    assert!(!stranger.reconnect(fs));
    assert!(stranger.reconnect(fs));
    stranger.create(fs, Ino::ROOT, "a", NewNode::Regular);
    assert_eq!(stranger.ask(fs, Request::Sweep), Err(Errno::EINVAL));
    // The machine's own client id.
    fs.input(Input::Connect { client: ClientId(0), leases: true, resumes: false });
    assert_eq!(fs.refused, [(ClientId(0), Errno::EINVAL)]);
}

#[test]
fn repeated_request_is_executed_once() {
    let fs = &mut Harness::with(config());
    let mut client = TestClient::connect(fs, 1);
    let make = create(Ino::ROOT, "a", NewNode::Regular);
    let first = client.ask(fs, make.clone());
    assert_eq!(client.again(fs, make.clone()), first);
    let ino = entry(first);
    let remove = Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None };
    assert_eq!(client.ask(fs, remove.clone()), Ok(Reply::Done));
    assert_eq!(client.again(fs, remove.clone()), Ok(Reply::Done));
    assert_eq!(client.ask(fs, remove), Err(Errno::ENOENT));
    // A second execution would find a file.
    let mut other = TestClient::connect(fs, 2);
    other.create(fs, Ino::ROOT, "a", NewNode::Regular);
    assert_eq!(
        client.again(fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }),
        Err(Errno::ENOENT)
    );
    let look = Request::Lookup { dir: Ino::ROOT, name: name("a") };
    let found = entry(client.ask(fs, look.clone()));
    client.again(fs, look).unwrap();
    other.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }).unwrap();
    other.ask(fs, Request::Forget { ino: found, lookups: 1 }).unwrap();
    assert_eq!(fs.meta.files(), 3);
    client.ask(fs, Request::Forget { ino: found, lookups: 1 }).unwrap();
    assert_eq!(fs.meta.files(), 2, "counted twice, it would stay");
    let forget = Request::Forget { ino, lookups: 1 };
    assert_eq!(client.ask(fs, forget.clone()), Ok(Reply::Done));
    assert_eq!(client.again(fs, forget), Ok(Reply::Done));
    assert_eq!(fs.meta.files(), 1);
}

#[test]
fn repeated_listing_counts_lookups_once() {
    let fs = &mut Harness::with(config());
    let mut client = TestClient::connect(fs, 1);
    let ino = client.create(fs, Ino::ROOT, "a", NewNode::Regular);
    let list = Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus: true };
    // Lookups counted for the first answer may make it seem known to others.
    let reported = |reply: Result<Reply, Errno>| match reply {
        Ok(Reply::Listing { entries, .. }) => {
            entries[0].entry.map(|entry| Entry { sole_holder: false, ..entry })
        }
        other => panic!("{other:?}"),
    };
    let first = reported(client.ask(fs, list.clone()));
    assert_eq!(reported(client.again(fs, list)), first);
    client.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }).unwrap();
    tick(fs, 1);
    assert_eq!(fs.meta.files(), 2);
    client.ask(fs, Request::Forget { ino, lookups: 2 }).unwrap();
    assert_eq!(fs.meta.files(), 1);
}

#[test]
fn request_repeated_while_running_is_answered_once() {
    let fs = &mut Harness::with(config());
    let mut client = TestClient::connect(fs, 1);
    fs.lazy = true;
    let make = create(Ino::ROOT, "a", NewNode::Regular);
    let id = client.send(fs, &make, false);
    assert_eq!(client.send(fs, &make, true), id);
    assert!(!fs.answers.contains_key(&id), "the change is not written");
    fs.run_until_idle();
    assert!(matches!(fs.answers[&id], Ok(Reply::Entry(_))));
    assert_eq!(fs.answered.iter().filter(|answered| **answered == (client.id, id)).count(), 1);
    // A late duplicate of an answered request.
    client.ask(fs, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    let old = Input::Request {
        from: client.id,
        id: RequestId(id),
        below: RequestId(id),
        follows: Vec::new(),
        caller: ROOT_CALLER,
        request: Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None },
    };
    fs.input(old);
    client.lookup(fs, Ino::ROOT, "a");
}

#[test]
fn ended_session_is_refused_until_client_requests_new_one() {
    let mut fs = Harness::with(config());
    let (mut one, other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
    one.ask(&mut fs, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    expire_all_but(&mut fs, &[&other]);
    // The refusal may have been lost.
    assert!(!one.greet(&mut fs, true));
    assert!(!one.greet(&mut fs, true));
    let mut fs = fs.crash();
    assert!(!one.greet(&mut fs, true));
    assert!(one.greet(&mut fs, false));
    let mut fs = fs.crash();
    assert!(one.greet(&mut fs, false), "the new session may be unknown to it");
    assert!(one.greet(&mut fs, true));
}

#[test]
fn holds_of_expired_client_are_released() {
    let fs = &mut Harness::with(config());
    let (mut one, mut other) = (TestClient::connect(fs, 1), TestClient::connect(fs, 2));
    for number in 0..300 {
        let file = format!("file{number}");
        let ino = one.create(fs, Ino::ROOT, &file, NewNode::Regular);
        one.open(fs, ino);
        one.open(fs, ino);
        if number == 7 {
            assert_eq!(other.lookup(fs, Ino::ROOT, &file), ino);
            other.open(fs, ino);
        }
        one.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name(&file), time: None }).unwrap();
    }
    assert_eq!(fs.meta.files(), 301);
    expire_all_but(fs, &[&other]);
    assert_eq!(fs.expired, [one.id]);
    assert_eq!(fs.meta.files(), 2, "the other has one open");
    assert_eq!(one.ask(fs, Request::GetAttr { ino: Ino::ROOT }), Err(Errno::ESTALE));
    assert!(!one.reconnect(fs), "a new session");
    expire_all_but(fs, &[]);
    assert_eq!(fs.meta.files(), 1);
    assert_eq!(fs.fsck(), []);
}

#[test]
fn a_client_reaches_the_bytes_of_files_that_it_has_open() {
    let fs = &mut Harness::with(config());
    let (mut one, mut two) = (TestClient::connect(fs, 1), TestClient::connect(fs, 2));
    let ino = one.create(fs, Ino::ROOT, "a", NewNode::Regular);
    one.open(fs, ino);
    assert_eq!(two.lookup(fs, Ino::ROOT, "a"), ino);
    let truncate = SetAttr { size: Some(0), through_handle: true, ..SetAttr::default() };
    for request in [
        Request::Read { ino, offset: 0, size: 9, noatime: false },
        Request::Write { ino, offset: 0, data: b"x"[..].into(), kill_suid_gid: false, time: None },
        Request::Allocate { ino, offset: 0, length: 9, mode: AllocateMode::empty() },
        Request::Extend { ino, offset: 0, length: 9, from: None, discards: false, acknowledged: false },
        Request::SetAttr { ino, set: truncate },
    ] {
        assert!(one.ask(fs, request.clone()).is_ok(), "{request:?}");
        assert_eq!(two.ask(fs, request.clone()), Err(Errno::EBADF), "{request:?}");
    }
    // A listing of a directory that is not open is checked by itself.
    let perm =
        |perm| Request::SetAttr { ino: Ino::ROOT, set: SetAttr { perm: Some(perm), ..SetAttr::default() } };
    let list = |fs: &mut Harness| {
        let request = Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 9, plus: false };
        fs.input(Input::Connect { client: ClientId(1), leases: true, resumes: false });
        fs.ask_as(&user(5), request).map(|_| ())
    };
    one.ask(fs, perm(0o755)).unwrap();
    assert_eq!(list(fs), Ok(()));
    one.ask(fs, perm(0o711)).unwrap();
    assert_eq!(list(fs), Err(Errno::EACCES));
}

#[test]
fn other_clients_are_recalled_after_last_unlink() {
    let fs = &mut Harness::with(config());
    let (mut one, mut two) = (TestClient::connect(fs, 1), TestClient::connect(fs, 2));
    one.create(fs, Ino::ROOT, "a", NewNode::Fifo);
    let unlink = |file: &str| Request::Unlink { dir: Ino::ROOT, name: name(file), time: None };
    one.ask(fs, unlink("a")).unwrap();
    assert_eq!(fs.recalled, [], "the client's own kernel knows");
    one.create(fs, Ino::ROOT, "b", NewNode::Fifo);
    let ino = two.lookup(fs, Ino::ROOT, "b");
    one.ask(fs, unlink("b")).unwrap();
    assert_eq!(fs.recalled, [Recall { ino, dir: None, name: None }]);
    // An inode that is open stays.
    one.create(fs, Ino::ROOT, "c", NewNode::Regular);
    let open = two.lookup(fs, Ino::ROOT, "c");
    two.open(fs, open);
    one.ask(fs, unlink("c")).unwrap();
    assert_eq!(fs.recalled.len(), 1);
    one.ask(fs, Request::Forget { ino: open, lookups: 1 }).unwrap();
    // Closing it does not forget it: another client has removed its name.
    two.ask(fs, Request::Release { ino: open }).unwrap();
    assert_eq!(fs.recalled[1..], [Recall { ino: open, dir: None, name: None }]);
    // When a client closes and forgets an inode together, nobody is left to recall it.
    one.create(fs, Ino::ROOT, "d", NewNode::Regular);
    let (ino, lookups) = (one.lookup(fs, Ino::ROOT, "d"), 2);
    one.open(fs, ino);
    one.ask(fs, unlink("d")).unwrap();
    one.ask(fs, Request::ForgetAll { inodes: vec![(ino, lookups)], released: vec![ino] }).unwrap();
    assert_eq!(fs.recalled.len(), 2);
    one.ask(fs, Request::GetAttr { ino }).unwrap_err();
}

#[test]
fn recall_is_resent_to_reconnecting_client() {
    for has_said in [false, true] {
        let fs = &mut Harness::with(config());
        let (mut one, mut two) = (TestClient::connect(fs, 1), TestClient::connect(fs, 2));
        let made = one.ask(fs, create(Ino::ROOT, "a", NewNode::Fifo)).unwrap();
        let ones = [held(&made, 1, 0)];
        let found = two.ask(fs, Request::Lookup { dir: Ino::ROOT, name: name("a") }).unwrap();
        let (ino, twos) = (ones[0].ino, [held(&found, 1, 0)]);
        fs.checkpoint();
        *fs = core::mem::replace(fs, Harness::with(config())).crash();
        if has_said {
            reclaim(fs, &mut two, &twos);
        }
        reclaim(fs, &mut one, &ones);
        fs.uptime_ms += 20_000;
        let unlink = Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None };
        assert_eq!(one.ask(fs, unlink), Ok(Reply::Done));
        if !has_said {
            fs.recalled.clear();
            reclaim(fs, &mut two, &twos);
        }
        assert_eq!(fs.recalled, [Recall { ino, dir: None, name: None }]);
    }
}

#[test]
fn client_cannot_release_inode_it_does_not_hold() {
    let fs = &mut Harness::with(config());
    let (mut one, mut other) = (TestClient::connect(fs, 1), TestClient::connect(fs, 2));
    let ino = one.create(fs, Ino::ROOT, "a", NewNode::Regular);
    one.open(fs, ino);
    one.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }).unwrap();
    for _ in 0..3 {
        assert_eq!(other.ask(fs, Request::Release { ino }), Ok(Reply::Done));
        assert_eq!(other.ask(fs, Request::Forget { ino, lookups: u64::MAX }), Ok(Reply::Done));
    }
    one.ask(fs, Request::GetAttr { ino }).unwrap();
    one.ask(fs, Request::Forget { ino, lookups: u64::MAX }).unwrap();
    one.ask(fs, Request::Read { ino, offset: 0, size: 10, noatime: false }).unwrap();
    one.ask(fs, Request::Release { ino }).unwrap();
    assert_eq!(fs.meta.files(), 1);
}

/// A stream request, which bypasses the machine, is executed once while the server lasts.
#[test]
fn stream_operation_is_executed_once() {
    let fs = &mut Harness::with(config());
    let client = TestClient::connect(fs, 1);
    let of = |id| (client.id, RequestId(id));
    let now = Now { time: fs.now, uptime_ms: fs.uptime_ms, queued: 0 };
    let begin = |fs: &mut Harness, id, below| {
        let mut out = Outbox::default();
        let begins = fs.meta.begin_stream(now, of(id), RequestId(below), &mut out);
        (begins, out.replies.pop().map(|answered| answered.result))
    };
    assert_eq!(begin(fs, 5, 5), (true, None));
    assert_eq!(begin(fs, 5, 5), (false, None), "it is in progress");
    assert!(fs.meta.end_stream(of(5), &Ok(Reply::Written(9))));
    assert_eq!(begin(fs, 5, 5), (false, Some(Ok(Reply::Written(9)))));
    // A read can be executed again.
    assert_eq!(begin(fs, 6, 5), (true, None));
    assert!(fs.meta.end_stream(of(6), &Ok(Reply::Bytes(vec![1; 9].into()))));
    assert_eq!(begin(fs, 6, 5), (true, None));
    assert!(fs.meta.end_stream(of(6), &Err(Errno::EIO)));
    assert_eq!(begin(fs, 5, 7), (false, None), "the answer has arrived");
    assert!(!fs.meta.end_stream(of(5), &Ok(Reply::Written(9))), "no client waits for it");
}

/// A client that never acknowledges answers is stopped, and other clients are served.
#[test]
fn session_state_is_bounded() {
    let fs = &mut Harness::with(config());
    let (one, mut other) = (TestClient::connect(fs, 1), TestClient::connect(fs, 2));
    let mut refused = 0;
    for number in 1..=1100 {
        fs.input(Input::Request {
            from: one.id,
            id: RequestId(number),
            below: RequestId(0),
            follows: Vec::new(),
            caller: ROOT_CALLER,
            request: Request::GetAttr { ino: Ino::ROOT },
        });
        refused += usize::from(fs.answers[&number] == Err(Errno::EAGAIN));
    }
    assert_eq!(refused, 1100 - 1023, "of the numbers 0 to 1023 all but 0 were used");
    other.create(fs, Ino::ROOT, "a", NewNode::Regular);
    for number in 3..=25_000 {
        fs.input(Input::Connect { client: ClientId(1000 + number), leases: true, resumes: false });
    }
    assert!(!fs.refused.is_empty());
    assert!(fs.refused.iter().all(|(_, errno)| *errno == Errno::ENFILE));
    expire_all_but(fs, &[&other]);
    assert!(!TestClient::new(9).reconnect(fs), "a session is free again");
}

/// An answered request's effect survives the end of the server's process.
#[test]
fn acknowledged_change_survives_process() {
    let mut fs = Harness::on(Engine::Local, config());
    let (mut one, mut other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
    reserve_numbers(&mut fs, &mut one);
    fs.lazy = true;
    let made = one.send(&mut fs, &create(Ino::ROOT, "a", NewNode::Regular), false);
    let seen = other.send(&mut fs, &Request::Lookup { dir: Ino::ROOT, name: name("a") }, false);
    assert!(!fs.answers.contains_key(&made) && !fs.answers.contains_key(&seen), "not written");
    let frames = fs.waiting.iter().filter(|(_, io)| matches!(io, Io::Journal { .. })).count();
    assert_eq!(frames, 1);
    assert!(matches!(fs.waiting[0].1, Io::Journal { sync: false, .. }), "the write waits for no sync");
    fs.run_one();
    assert!(fs.answers[&made].is_ok() && fs.answers[&seen].is_ok());
    fs.lazy = false;
    let requested = fs.count;
    other.ask(&mut fs, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    assert_eq!(fs.count, requested, "a reply that exposes no change does not wait");
    fs.lazy = true;
    one.send(&mut fs, &create(Ino::ROOT, "b", NewNode::Regular), false);
    let mut fs = fs.crash();
    let mut one = TestClient::connect(&mut fs, 3);
    one.lookup(&mut fs, Ino::ROOT, "a");
    let lost = one.ask(&mut fs, Request::Lookup { dir: Ino::ROOT, name: name("b") });
    assert!(matches!(lost, Ok(Reply::Absent { .. })), "{lost:?}");
    assert_eq!(fs.fsck(), []);
}

/// An operation that waits for a sync does not block others.
#[test]
fn changes_are_acknowledged_while_the_journal_is_synced() {
    let fs = &mut Harness::with(config());
    let (mut one, mut other) = (TestClient::connect(fs, 1), TestClient::connect(fs, 2));
    reserve_numbers(fs, &mut one);
    fs.lazy = true;
    let made = one.send(fs, &create(Ino::ROOT, "a", NewNode::Regular), false);
    let synced = other.send(fs, &Request::Fsync { ino: Ino::ROOT }, false);
    fs.run_one();
    assert!(fs.answers.contains_key(&made) && !fs.answers.contains_key(&synced));
    assert!(matches!(fs.waiting[..], [(_, Io::Sync)]));
    let (sync, io) = fs.waiting.pop().unwrap();
    let more = one.send(fs, &create(Ino::ROOT, "b", NewNode::Regular), false);
    let again = one.send(fs, &Request::Fsync { ino: Ino::ROOT }, false);
    assert!(matches!(fs.waiting[..], [(_, Io::Journal { sync: false, .. })]), "{:?}", fs.waiting);
    fs.run_one();
    assert!(fs.answers.contains_key(&more));
    assert!(fs.waiting.is_empty(), "one sync at a time");
    let result = fs.disk.execute(io);
    fs.input(Input::Done { id: sync, result });
    assert!(fs.answers.contains_key(&synced) && !fs.answers.contains_key(&again));
    fs.run_until_idle();
    assert!(fs.answers.contains_key(&again));
    // Changes that no operation waits for are synced once a second.
    one.send(fs, &create(Ino::ROOT, "c", NewNode::Regular), false);
    fs.run_until_idle();
    fs.input(Input::Tick);
    assert!(matches!(fs.waiting[..], [(_, Io::Sync)]), "{:?}", fs.waiting);
    fs.run_until_idle();
    fs.input(Input::Tick);
    assert!(fs.waiting.iter().all(|(_, io)| !matches!(io, Io::Sync)));
    fs.run_until_idle();
    // A failed sync is permanent.
    one.send(fs, &create(Ino::ROOT, "d", NewNode::Regular), false);
    let synced = other.send(fs, &Request::Fsync { ino: Ino::ROOT }, false);
    fs.run_one();
    let (sync, _) = fs.waiting.pop().unwrap();
    fs.input(Input::Done { id: sync, result: Err(Errno::EIO) });
    assert_eq!(fs.answers[&synced], Err(Errno::EIO));
    let late = one.send(fs, &create(Ino::ROOT, "e", NewNode::Regular), false);
    assert_eq!(fs.answers[&late], Err(Errno::EIO));
    let read = one.send(fs, &Request::GetAttr { ino: Ino::ROOT }, false);
    assert!(fs.answers[&read].is_ok());
}

/// A power failure may lose acknowledged changes that are not synced, at most those of the last
/// second, and none in part.
#[test]
fn a_loss_of_power_takes_the_last_second_at_most() {
    let mut fs = Harness::on(Engine::Memory, config());
    let mut one = TestClient::connect(&mut fs, 1);
    tick(&mut fs, 1000);
    one.create(&mut fs, Ino::ROOT, "a", NewNode::Regular);
    fs = fs.crash();
    reclaim(&mut fs, &mut one, &[]);
    one.create(&mut fs, Ino::ROOT, "a", NewNode::Regular);
    tick(&mut fs, 1000);
    fs = fs.crash();
    reclaim(&mut fs, &mut one, &[]);
    one.lookup(&mut fs, Ino::ROOT, "a");
    assert_eq!(fs.fsck(), []);
}

#[test]
fn concurrent_requests_share_a_journal_frame() {
    let fs = &mut Harness::with(config());
    let mut client = TestClient::connect(fs, 1);
    reserve_numbers(fs, &mut client);
    fs.lazy = true;
    fs.answered.clear();
    let mut ids = Vec::new();
    for number in 0..10 {
        fs.queued = 9 - number;
        client.next += 1;
        fs.input(Input::Request {
            from: client.id,
            id: RequestId(client.next),
            below: RequestId(1 << 32),
            follows: Vec::new(),
            caller: ROOT_CALLER,
            request: create(Ino::ROOT, &number.to_string(), NewNode::Regular),
        });
        ids.push(client.next);
    }
    assert_eq!(fs.waiting.len(), 1);
    fs.run_one();
    assert!(ids.iter().all(|id| fs.answers[id].is_ok()));
    let order: Vec<u64> = fs.answered.iter().map(|(_, id)| *id).collect();
    assert_eq!(order, ids);
}

// ---- Restarts

/// Has a client reclaim everything that it holds.
fn reclaim(fs: &mut Harness, client: &mut TestClient, held: &[Held]) {
    assert!(client.reconnect(fs), "the session resumes");
    assert_eq!(
        client.ask(fs, Request::Reclaim { held: held.to_vec(), last: true, again: vec![] }),
        Ok(Reply::Done)
    );
}

/// A client's hold on an inode after a reply.
fn held(reply: &Reply, lookups: u64, opens: u32) -> Held {
    match reply {
        Reply::Entry(entry) => Held {
            ino: entry.attr.ino,
            location: entry.location,
            lookups,
            opens,
            lookup_token: entry.reclaim_token,
            opened: 0,
            exclusive: false,
        },
        Reply::Created(entry, how) => {
            Held { opened: how.reclaim_token, ..held(&Reply::Entry(*entry), lookups, opens) }
        }
        other => panic!("{other:?}"),
    }
}

/// Kills and restarts a server on a disk that keeps what was written.
fn killed(fs: Harness, memory: CacheState) -> Harness {
    let mut fs = fs.crash();
    if memory == CacheState::Cold {
        fs.checkpoint();
        fs = fs.crash();
    }
    fs
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CacheState {
    Replayed,
    Cold,
}

/// Requests that change something, on the files of [`prepare`].
fn changes(dir: Ino, file: Ino, full: Ino) -> Vec<Request> {
    let (a, b) = (|| name("file"), || name("new"));
    let rename = |from: Name, to: Name, flags| Request::Rename {
        from_dir: dir,
        from,
        to_dir: Ino::ROOT,
        to,
        flags,
        time: None,
    };
    let xattr = || b"user.a".as_slice().into();
    let open = Some(open_how(Access::WRITE, false));
    let made = |node| Request::Create {
        dir,
        name: b(),
        node,
        perm: 0o644,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    };
    let level = CopyLevel { from: full, to: dir, after: 0 };
    vec![
        made(NewNode::Regular),
        made(NewNode::Directory),
        made(NewNode::Symlink(b"target".as_slice().into())),
        Request::Create {
            dir,
            name: b(),
            node: NewNode::Regular,
            perm: 0o644,
            umask: 0,
            open,
            exclusive: true,
            writeback: None,
        },
        Request::TmpFile { dir, perm: 0o600, umask: 0 },
        Request::Link { ino: file, dir, name: b() },
        Request::Unlink { dir, name: a(), time: None },
        Request::RmDir { dir, name: name("empty"), time: None },
        rename(a(), b(), RenameFlags::empty()),
        rename(a(), name("other"), RenameFlags::empty()),
        rename(a(), name("other"), RenameFlags::EXCHANGE),
        rename(a(), b(), RenameFlags::WHITEOUT),
        Request::Open { ino: file, how: open_how(Access::WRITE, true) },
        Request::SetAttr { ino: file, set: SetAttr { perm: Some(0o611), ..SetAttr::default() } },
        Request::SetAttr { ino: file, set: SetAttr { size: Some(3), ..SetAttr::default() } },
        Request::Write { ino: file, offset: 5, data: b"more"[..].into(), kill_suid_gid: false, time: None },
        Request::Write { ino: file, offset: END, data: b"more"[..].into(), kill_suid_gid: false, time: None },
        Request::Allocate { ino: file, offset: 0, length: 30, mode: AllocateMode::empty() },
        Request::SetXattr {
            ino: file,
            name: xattr(),
            value: [1; 3].into(),
            mode: XattrMode::Create,
            kill_sgid: false,
        },
        Request::RemoveXattr { ino: file, name: b"user.there".as_slice().into() },
        Request::RemoveTree { dir: full },
        Request::TakeNumbers { rank: Rank(0), count: 256 },
        Request::CopyTree(CopyTree { levels: vec![level], preserve: false, umask: 0 }),
    ]
}

/// Inode numbers from here on are newer than those of [`prepare`].
const NEW: Ino = Ino(8);

/// Makes a directory with a file and an empty directory, a non-empty directory, and another file.
/// Returns the client's holds too.
fn prepare(fs: &mut Harness, client: &mut TestClient) -> (Ino, Ino, Ino, Vec<Held>) {
    let mut has = Vec::new();
    let mut make = |fs: &mut Harness, client: &mut TestClient, dir: Ino, file: &str, node: NewNode| {
        let reply = client.ask(fs, create(dir, file, node)).unwrap();
        has.push(held(&reply, 1, 0));
        entry(Ok(reply))
    };
    let dir = make(fs, client, Ino::ROOT, "dir", NewNode::Directory);
    let file = make(fs, client, dir, "file", NewNode::Regular);
    make(fs, client, dir, "empty", NewNode::Directory);
    make(fs, client, Ino::ROOT, "other", NewNode::Regular);
    let full = make(fs, client, Ino::ROOT, "full", NewNode::Directory);
    make(fs, client, full, "in it", NewNode::Regular);
    (has[1].opens, has[1].opened) = (1, client.open(fs, file));
    client
        .ask(
            fs,
            Request::Write {
                ino: file,
                offset: 0,
                data: b"bytes"[..].into(),
                kill_suid_gid: false,
                time: None,
            },
        )
        .unwrap();
    let xattr = b"user.there".as_slice().into();
    let (value, mode) = ([2; 3].into(), XattrMode::Any);
    client.ask(fs, Request::SetXattr { ino: file, name: xattr, value, mode, kill_sgid: false }).unwrap();
    (dir, file, full, has)
}

/// A reply without the parts that depend on its time and on the server's incarnation, such as new
/// inode numbers.
fn timeless(reply: Result<Reply, Errno>) -> Result<Reply, Errno> {
    let unleased = |entry: Entry| {
        let attr = Attr { ino: entry.attr.ino.min(NEW), ..entry.attr };
        Entry { attr, name_leased: false, attr_leased: false, sole_holder: false, reclaim_token: 0, ..entry }
    };
    Ok(match reply? {
        Reply::Entry(entry) => Reply::Entry(unleased(entry)),
        Reply::Opened(_) => Reply::Opened(Opened { ..Opened::default() }),
        Reply::Created(entry, how) => {
            Reply::Created(unleased(entry), Opened { accessed: true, reclaim_token: 0, ..how })
        }
        Reply::Numbers { first, count, .. } => {
            Reply::Numbers { first: first.min(NEW), count, time: Time::default(), strip: 0, accesses: true }
        }
        // The client may have received these in another order or part.
        Reply::Copied(copied) => Reply::Copied(Box::new(Copied { made: vec![], changed: vec![], ..*copied })),
        other => other,
    })
}

/// The whole tree, without the numbers of new inodes.
fn look(fs: &mut Harness) -> BTreeMap<String, String> {
    fs.input(Input::Connect { client: ClientId(1), leases: true, resumes: false });
    let mut tree = fs.dump();
    for shown in tree.values_mut() {
        let (ino, rest) = shown.split_once(' ').unwrap();
        let ino = Ino(ino.parse().unwrap()).min(NEW);
        *shown = format!("{ino} {rest}");
    }
    tree
}

/// At whatever I/O the server is killed, a repeated change is made once, and gets the same answer.
#[test]
fn every_change_is_made_once_whatever_the_server_is_killed_at() {
    let config = || Config { journal_capacity: (1 << 20) + (256 << 10), ..config() };
    let count = changes(Ino(2), Ino(3), Ino(6)).len();
    for at in 0..count {
        let mut calm = Harness::on(Engine::Local, config());
        let mut client = TestClient::connect(&mut calm, 1);
        let (dir, file, full, _) = prepare(&mut calm, &mut client);
        let request = changes(dir, file, full).swap_remove(at);
        calm.now = Time::new(2000, 0);
        calm.count = 0;
        let reply = timeless(client.ask(&mut calm, request.clone()));
        assert!(reply.is_ok(), "{request:?}: {reply:?}");
        let ios = calm.count;
        expire_all_but(&mut calm, &[]);
        let (files, after) = (calm.meta.files(), look(&mut calm));
        for (crash, memory) in
            (0..=ios).flat_map(|crash| [(crash, CacheState::Replayed), (crash, CacheState::Cold)])
        {
            let context = format!("{request:?}, killed at I/O {crash}");
            let mut fs = Harness::on(Engine::Local, config());
            let mut client = TestClient::connect(&mut fs, 1);
            let (_, _, _, held) = prepare(&mut fs, &mut client);
            (fs.now, fs.count) = (Time::new(2000, 0), 0);
            fs.fault = Some((crash, harness::Fault::Crash));
            let first = client.ask(&mut fs, request.clone());
            assert_eq!(crash == ios, first.is_ok(), "{context}");
            let mut fs = killed(fs, memory);
            let id = client.next;
            client.unanswered = Some(id);
            reclaim(&mut fs, &mut client, &held);
            // As at the first attempt.
            fs.now = Time::new(2000, 1);
            let again = |fs: &mut Harness| {
                fs.input(Input::Request {
                    from: client.id,
                    id: RequestId(id),
                    below: RequestId(id),
                    follows: Vec::new(),
                    caller: ROOT_CALLER,
                    request: request.clone(),
                });
                timeless(wait(fs, id))
            };
            assert_eq!(again(&mut fs), reply, "{context}");
            assert_eq!(again(&mut fs), reply, "{context}");
            expire_all_but(&mut fs, &[]);

            assert_eq!(fs.meta.files(), files, "{context}: what was held is free");
            assert_eq!(look(&mut fs), after, "{context}");
            assert_eq!(fs.fsck(), [], "{context}");
        }
    }
}

/// The allocated inode numbers.
fn take_numbers(reply: Result<Reply, Errno>) -> std::ops::Range<u64> {
    match reply {
        Ok(Reply::Numbers { first, count, .. }) => first.0..first.0 + u64::from(count),
        other => panic!("{other:?}"),
    }
}

const TAKE: Request = Request::TakeNumbers { rank: Rank(0), count: 256 };

/// A create of a file that the client has already acknowledged.
fn writeback(fs: &Harness, file: &str, ino: u64) -> Request {
    let mut request = create(Ino::ROOT, file, NewNode::Regular);
    if let Request::Create { writeback, .. } = &mut request {
        *writeback = Some(WritebackCreate { ino: Ino(ino), time: fs.now });
    }
    request
}

#[test]
fn repeated_number_request_returns_same_numbers() {
    for memory in [CacheState::Replayed, CacheState::Cold] {
        let mut fs = Harness::on(Engine::Local, config());
        let mut one = TestClient::connect(&mut fs, 1);
        let first = one.ask(&mut fs, TAKE);
        assert_eq!(one.again(&mut fs, TAKE), first);
        let mut fs = killed(fs, memory);
        let (requested, mut other) = (one.next, TestClient::connect(&mut fs, 2));
        one.unanswered = Some(requested);
        reclaim(&mut fs, &mut one, &[]);
        one.next = requested;
        assert_eq!(
            take_numbers(one.again(&mut fs, TAKE)),
            take_numbers(first.clone()),
            "the answer was lost"
        );
        (one.next, one.unanswered) = (requested + 1, None);
        let (first, more) = (take_numbers(first), take_numbers(one.ask(&mut fs, TAKE)));
        assert!(more.start >= first.end);
        assert!(take_numbers(other.ask(&mut fs, TAKE)).start >= more.end);
    }
}

#[test]
fn only_directory_gets_number_taken_by_its_client() {
    let mut fs = Harness::on(Engine::Local, config());
    let mut one = TestClient::connect(&mut fs, 1);
    let first = take_numbers(one.ask(&mut fs, TAKE)).start;
    let make = |fs: &Harness, file: &str, new: NewNode, number: u64| {
        let mut request = writeback(fs, file, number);
        if let Request::Create { node, .. } = &mut request {
            *node = new;
        }
        request
    };
    let request = make(&fs, "dir", NewNode::Directory, first);
    match one.ask(&mut fs, request) {
        Ok(Reply::Entry(Entry { attr, .. })) => {
            assert_eq!((attr.ino, attr.kind, attr.nlink), (Ino(first), FileType::Directory, 2));
        }
        other => panic!("{other:?}"),
    }
    let refused =
        [(NewNode::Directory, first), (NewNode::Directory, first + 256), (NewNode::Fifo, first + 1)];
    for (node, number) in refused {
        let request = make(&fs, "other", node, number);
        assert_eq!(one.ask(&mut fs, request), Err(Errno::EINVAL));
    }
    assert_eq!(fs.fsck(), []);
}

/// At whatever I/O the server is killed, a number is used for one file.
#[test]
fn a_number_is_used_once_whatever_the_server_is_killed_at() {
    let prepared = || {
        let mut fs = Harness::on(Engine::Local, config());
        let mut one = TestClient::connect(&mut fs, 1);
        let numbers = take_numbers(one.ask(&mut fs, TAKE));
        (fs.now, fs.count) = (Time::new(2000, 0), 0);
        (fs, one, numbers)
    };
    let (mut calm, mut one, numbers) = prepared();
    let request = writeback(&calm, "a", numbers.start + 3);
    one.ask(&mut calm, request.clone()).unwrap();
    let ios = calm.count;
    for (crash, memory) in
        (0..=ios).flat_map(|crash| [(crash, CacheState::Replayed), (crash, CacheState::Cold)])
    {
        let (mut fs, mut one, numbers) = prepared();
        fs.fault = Some((crash, harness::Fault::Crash));
        let context = format!("killed at I/O {crash}");
        assert_eq!(crash == ios, one.ask(&mut fs, request.clone()).is_ok(), "{context}");
        let mut fs = killed(fs, memory);
        let requested = one.next;
        one.unanswered = Some(requested);
        reclaim(&mut fs, &mut one, &[]);
        fs.now = Time::new(2001, 0);
        one.next = requested;
        let reply = one.again(&mut fs, request.clone());
        let Ok(Reply::Entry(reported)) = &reply else { panic!("{context}: {reply:?}") };
        assert_eq!(
            (reported.attr.ino, reported.attr.btime),
            (Ino(numbers.start + 3), Time::new(2000, 0)),
            "{context}"
        );
        assert_eq!(one.again(&mut fs, request.clone()).as_ref().map(|_| ()), Ok(()), "{context}");
        (one.next, one.unanswered) = (requested + 1, None);
        let again = writeback(&fs, "b", numbers.start + 3);
        assert_eq!(one.ask(&mut fs, again), Err(Errno::EINVAL), "{context}");
        let mut fs = killed(fs, memory);
        reclaim(&mut fs, &mut one, &[]);
        let again = writeback(&fs, "b", numbers.start + 3);
        assert_eq!(one.ask(&mut fs, again), Err(Errno::EINVAL), "{context}");
        for (file, ino) in [("c", numbers.start), ("d", numbers.end - 1)] {
            let request = writeback(&fs, file, ino);
            assert_eq!(entry(one.ask(&mut fs, request)), Ino(ino), "{context}");
        }
        assert_eq!(fs.fsck(), [], "{context}");
    }
}

#[test]
fn numbers_go_with_their_session() {
    let mut fs = Harness::on(Engine::Local, config());
    let mut one = TestClient::connect(&mut fs, 1);
    let numbers = take_numbers(one.ask(&mut fs, TAKE));
    fs.input(Input::Leave { client: one.id });
    fs.run_until_idle();
    assert!(!one.reconnect(&mut fs), "a new session");
    let request = writeback(&fs, "a", numbers.start);
    assert_eq!(one.ask(&mut fs, request), Err(Errno::EINVAL));
    let mut fs = killed(fs, CacheState::Cold);
    reclaim(&mut fs, &mut one, &[]);
    assert!(one.create(&mut fs, Ino::ROOT, "b", NewNode::Regular).0 >= numbers.end);
    assert!(take_numbers(one.ask(&mut fs, TAKE)).start >= numbers.end);
    assert_eq!(fs.fsck(), []);
}

/// A power failure may lose the files and the allocation of their numbers, but the server never
/// allocates these to others.
#[test]
fn numbers_do_not_come_again_after_a_loss_of_power() {
    let mut fs = Harness::on(Engine::Memory, config());
    let mut one = TestClient::connect(&mut fs, 1);
    let numbers = take_numbers(one.ask(&mut fs, TAKE));
    let request = writeback(&fs, "a", numbers.start);
    one.ask(&mut fs, request).unwrap();
    let own = one.create(&mut fs, Ino::ROOT, "own", NewNode::Regular);
    let mut fs = fs.crash();
    reclaim(&mut fs, &mut one, &[]);
    let lost = one.ask(&mut fs, Request::Lookup { dir: Ino::ROOT, name: name("a") });
    assert!(matches!(lost, Ok(Reply::Absent { .. })), "{lost:?}");
    assert!(one.create(&mut fs, Ino::ROOT, "b", NewNode::Regular) > own);
    assert!(take_numbers(one.ask(&mut fs, TAKE)).start > own.0);
    let request = writeback(&fs, "a", numbers.start);
    assert_eq!(entry(one.ask(&mut fs, request)), Ino(numbers.start), "the client may make it again");
    assert_eq!(fs.fsck(), []);
}

/// A removed file that clients have open survives the server until they have released it.
#[test]
fn open_files_without_a_name_survive_a_restart() {
    for memory in [CacheState::Replayed, CacheState::Cold] {
        let mut fs = Harness::on(Engine::Local, config());
        let (mut one, mut other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
        let mut has = Vec::new();
        for file in ["a", "b", "c"] {
            let reply = one.ask(&mut fs, create(Ino::ROOT, file, NewNode::Regular)).unwrap();
            let ino = entry(Ok(reply.clone()));
            let opened = one.open(&mut fs, ino);
            one.ask(
                &mut fs,
                Request::Write { ino, offset: 0, data: file.into(), kill_suid_gid: false, time: None },
            )
            .unwrap();
            one.ask(&mut fs, Request::Unlink { dir: Ino::ROOT, name: name(file), time: None }).unwrap();
            has.push(Held { opened, ..held(&reply, 1, 1) });
        }
        let mut fs = killed(fs, memory);
        assert_eq!(fs.meta.awaited(), [one.id, other.id]);
        // One client reclaims two of them, and has lost the third.
        reclaim(&mut fs, &mut one, &has[..2]);
        assert_eq!(fs.meta.files(), 4, "the other client may have it");
        assert_eq!(fs.meta.awaited(), [other.id]);
        reclaim(&mut fs, &mut other, &[]);
        assert_eq!((fs.meta.files(), fs.meta.awaited()), (3, vec![]));
        let read = one.ask(&mut fs, Request::Read { ino: has[0].ino, offset: 0, size: 9, noatime: false });
        assert_eq!(read, Ok(Reply::Bytes(b"a"[..].into())));
        one.ask(&mut fs, Request::Release { ino: has[0].ino }).unwrap();
        one.ask(&mut fs, Request::Forget { ino: has[0].ino, lookups: 1 }).unwrap();
        assert_eq!(fs.meta.files(), 2);
        expire_all_but(&mut fs, &[&other]);
        assert_eq!(fs.meta.files(), 1);
        assert_eq!(fs.fsck(), []);
    }
}

/// A hold from an answer that the client has received is not counted again when the client reclaims
/// it.
#[test]
fn reclaimed_holds_are_counted_once_after_restart() {
    let mut fs = Harness::on(Engine::Local, config());
    let mut one = TestClient::connect(&mut fs, 1);
    let tmp = one.ask(&mut fs, Request::TmpFile { dir: Ino::ROOT, perm: 0o600, umask: 0 }).unwrap();
    let has = held(&tmp, 1, 1);
    let mut fs = killed(fs, CacheState::Replayed);
    one.unanswered = Some(one.next);
    reclaim(&mut fs, &mut one, &[has]);
    one.unanswered = None;
    one.ask(&mut fs, Request::Release { ino: has.ino }).unwrap();
    one.ask(&mut fs, Request::Forget { ino: has.ino, lookups: 1 }).unwrap();
    tick(&mut fs, 1);
    assert_eq!(fs.meta.files(), 1);
    assert_eq!(fs.fsck(), []);
}

/// A file that never had a name may still get one.
#[test]
fn a_nameless_file_is_named_after_a_restart() {
    for memory in [CacheState::Replayed, CacheState::Cold] {
        let mut fs = Harness::on(Engine::Local, config());
        let mut one = TestClient::connect(&mut fs, 1);
        let tmp = one.ask(&mut fs, Request::TmpFile { dir: Ino::ROOT, perm: 0o600, umask: 0 }).unwrap();
        let gone = one.ask(&mut fs, create(Ino::ROOT, "a", NewNode::Regular)).unwrap();
        one.ask(&mut fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }).unwrap();
        let has = [held(&tmp, 1, 1), held(&gone, 1, 0)];
        // The answer may not have arrived.
        one.ask(&mut fs, Request::Open { ino: has[1].ino, how: open_how(Access::WRITE, true) }).unwrap();
        let mut fs = killed(fs, memory);
        reclaim(&mut fs, &mut one, &has);
        let link = |ino| Request::Link { ino, dir: Ino::ROOT, name: name("b") };
        assert_eq!(one.ask(&mut fs, link(has[1].ino)), Err(Errno::ENOENT), "the file was removed");
        one.ask(&mut fs, link(has[0].ino)).unwrap();
        assert_eq!(fs.fsck(), []);
    }
}

/// After a restart, a client has open what it had opened, and not what it claims.
#[test]
fn reclaiming_an_open_needs_its_token() {
    let mut fs = Harness::on(Engine::Local, config());
    let (mut one, mut liar) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
    let reply = one.ask(&mut fs, create(Ino::ROOT, "a", NewNode::Regular)).unwrap();
    let ino = entry(Ok(reply.clone()));
    let opened = one.open(&mut fs, ino);
    let honest = Held { opened, ..held(&reply, 1, 1) };
    let look = Request::Lookup { dir: Ino::ROOT, name: name("a") };
    let seen = held(&liar.ask(&mut fs, look).unwrap(), 1, 1);
    let read = Request::Read { ino, offset: 0, size: 1, noatime: false };
    for (claim, outcome) in [
        (seen, Err(Errno::EBADF)),
        (Held { opened, ..seen }, Err(Errno::EBADF)),
        (Held { opened: seen.lookup_token, ..seen }, Err(Errno::EBADF)),
    ] {
        fs = killed(fs, CacheState::Replayed);
        reclaim(&mut fs, &mut liar, &[claim]);
        reclaim(&mut fs, &mut one, &[honest]);
        assert_eq!(liar.ask(&mut fs, read.clone()), outcome, "{claim:?}");
        assert_eq!(one.ask(&mut fs, read.clone()), Ok(Reply::Bytes(vec![].into())));
    }
    let opened = liar.open(&mut fs, ino);
    fs = killed(fs, CacheState::Cold);
    reclaim(&mut fs, &mut liar, &[Held { opened, ..seen }]);
    reclaim(&mut fs, &mut one, &[honest]);
    assert_eq!(liar.ask(&mut fs, read), Ok(Reply::Bytes(vec![].into())));
}

/// A client that may read a file cannot write to it, before and after a restart; one that has
/// opened it for writing can until it has closed it.
#[test]
fn client_writes_only_to_files_open_for_writing() {
    let mut fs = Harness::on(Engine::Local, config());
    let mut one = TestClient::connect(&mut fs, 1);
    let reply = one.ask(&mut fs, create(Ino::ROOT, "a", NewNode::Regular)).unwrap();
    let ino = entry(Ok(reply.clone()));
    let truncate = SetAttr { size: Some(0), through_handle: true, ..SetAttr::default() };
    let changes = [
        Request::Write { ino, offset: 0, data: b"x"[..].into(), kill_suid_gid: false, time: None },
        Request::Allocate { ino, offset: 0, length: 9, mode: AllocateMode::empty() },
        Request::Extend { ino, offset: 0, length: 9, from: None, discards: false, acknowledged: false },
        Request::Delegate { ino, access: Access::READ | Access::WRITE },
        Request::SetAttr { ino, set: truncate },
    ];
    let write = StreamIo::write(ino, 0, 1);
    let may_write = |fs: &mut Harness, one: &mut TestClient| {
        let read = Request::Read { ino, offset: 0, size: 1, noatime: false };
        assert!(one.ask(fs, read).is_ok());
        assert_eq!(fs.meta.may_stream(one.id, &StreamIo::read(ino, 0, 1)), Ok(()));
        assert_eq!(one.ask(fs, Request::Delegate { ino, access: Access::READ }), Ok(Reply::Delegated(None)));
        let may = fs.meta.may_stream(one.id, &write).is_ok();
        for change in &changes {
            let result = one.ask(fs, change.clone());
            assert_eq!(result.is_ok(), may, "{change:?}: {result:?}");
            assert!(may || result == Err(Errno::EBADF), "{change:?}: {result:?}");
        }
        may
    };
    let reads = one.open_for(&mut fs, ino, Access::READ);
    assert!(!may_write(&mut fs, &mut one));
    fs = killed(fs, CacheState::Cold);
    reclaim(&mut fs, &mut one, &[Held { opened: reads, ..held(&reply, 1, 1) }]);
    assert!(!may_write(&mut fs, &mut one));

    let writes = one.open_for(&mut fs, ino, Access::WRITE);
    assert!(may_write(&mut fs, &mut one));
    one.ask(&mut fs, Request::Release { ino }).unwrap();
    assert!(may_write(&mut fs, &mut one), "some opens are left, and nobody knows which");
    fs = killed(fs, CacheState::Cold);
    reclaim(&mut fs, &mut one, &[Held { opened: writes, ..held(&reply, 1, 1) }]);
    assert!(may_write(&mut fs, &mut one));
    one.ask(&mut fs, Request::Release { ino }).unwrap();
    one.open_for(&mut fs, ino, Access::READ);
    assert!(!may_write(&mut fs, &mut one));
}

/// Inodes held by a client that never returns are freed when its session ends, and not earlier.
#[test]
fn grace_ends_when_last_old_session_has_reclaimed() {
    let mut fs = Harness::on(Engine::Local, config());
    let (mut one, mut other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
    let ino = one.create(&mut fs, Ino::ROOT, "a", NewNode::Regular);
    one.open(&mut fs, ino);
    one.ask(&mut fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }).unwrap();
    let reply = one.ask(&mut fs, create(Ino::ROOT, "b", NewNode::Regular)).unwrap();
    let b = other.lookup(&mut fs, Ino::ROOT, "b");
    // It has received the answer.
    one.create(&mut fs, Ino::ROOT, "c", NewNode::Regular);
    let mut fs = killed(fs, CacheState::Cold);
    reclaim(&mut fs, &mut other, &[Held { lookups: 1, ..held(&reply, 1, 0) }]);
    // The other client removes a file that the first may have open.
    other.ask(&mut fs, Request::Unlink { dir: Ino::ROOT, name: name("b"), time: None }).unwrap();
    other.ask(&mut fs, Request::Forget { ino: b, lookups: 1 }).unwrap();
    assert_eq!(fs.meta.files(), 4);
    expire_all_but(&mut fs, &[&other]);
    assert_eq!((fs.expired.clone(), fs.meta.files()), (vec![one.id], 2));
    assert!(!one.reconnect(&mut fs));
    // It held `a`, which is gone, and the directory, which is not.
    let root = Held {
        ino: Ino::ROOT,
        location: Location::Table,
        lookups: 1,
        opens: 0,
        lookup_token: 0,
        opened: 0,
        exclusive: false,
    };
    let gone = Held { ino, opens: 1, ..root };
    assert_eq!(
        one.ask(&mut fs, Request::Reclaim { held: vec![root, gone], last: true, again: vec![] }),
        Ok(Reply::Done)
    );
    assert_eq!(one.ask(&mut fs, Request::GetAttr { ino }), Err(Errno::ESTALE));
    one.ask(&mut fs, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    assert_eq!(fs.fsck(), []);
}

/// A client sends nothing while its connection waits for a journal that does not answer.
#[test]
fn session_lasts_while_its_connection_waits_for_the_journal() {
    let mut fs = Harness::on(Engine::Local, config());
    let (mut one, mut other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
    let reply = one.ask(&mut fs, create(Ino::ROOT, "a", NewNode::Regular)).unwrap();
    one.ask(&mut fs, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    let mut fs = killed(fs, CacheState::Replayed);
    tick(&mut fs, 1);
    reclaim(&mut fs, &mut other, &[]);
    reserve_numbers(&mut fs, &mut other);
    fs.lazy = true;
    other.send(&mut fs, &create(Ino::ROOT, "b", NewNode::Regular), false);
    fs.connected.clear();
    fs.input(Input::Connect { client: one.id, leases: true, resumes: true });
    for _ in 0..=2 * SESSION_MS / 1000 {
        fs.uptime_ms += 1000;
        fs.input(Input::Heard { client: other.id });
        fs.input(Input::Tick);
    }
    assert_eq!((fs.connected.clone(), fs.expired.clone()), (vec![], vec![]));
    fs.lazy = false;
    fs.run_until_idle();
    assert_eq!(fs.connected, [one.id]);
    let reclaims = Request::Reclaim { held: vec![held(&reply, 1, 0)], last: true, again: vec![] };
    assert_eq!(one.ask(&mut fs, reclaims), Ok(Reply::Done));
    one.ask(&mut fs, Request::GetAttr { ino: entry(Ok(reply)) }).unwrap();
    expire_all_but(&mut fs, &[&other]);
    assert_eq!(fs.expired, [one.id]);
}

/// A session that its client ends while the connection waits is not reported as begun.
#[test]
fn connection_whose_session_has_ended_is_refused() {
    let mut fs = Harness::with(config());
    let client = TestClient::new(1);
    fs.lazy = true;
    fs.input(Input::Connect { client: client.id, leases: true, resumes: false });
    fs.input(Input::Leave { client: client.id });
    fs.run_until_idle();
    assert_eq!((fs.connected.clone(), fs.refused.clone()), (vec![], vec![(client.id, Errno::ESTALE)]));
}

/// A client that reclaims an open after the end of its session goes on writing.
#[test]
fn writes_after_the_end_of_a_session_are_counted() {
    let mut fs = Harness::on(Engine::Local, config());
    let (mut one, other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
    let made = one.ask(&mut fs, create(Ino::ROOT, "a", NewNode::Regular)).unwrap();
    let ino = entry(Ok(made.clone()));
    let opened = one.open(&mut fs, ino);
    let data = vec![7; harness::STRIP as usize + 1];
    let write =
        |offset| Request::Write { ino, offset, data: data.clone().into(), kill_suid_gid: false, time: None };
    assert_eq!(one.ask(&mut fs, write(0)), Ok(Reply::Streamed));
    assert_eq!(one.ask(&mut fs, write(END)), Ok(Reply::Written(data.len() as u32)));
    expire_all_but(&mut fs, &[&other]);
    assert_eq!(fs.expired, [one.id]);
    // The file is synced, since nobody has it open.
    expire_all_but(&mut fs, &[&other]);
    assert!(!one.reconnect(&mut fs));
    let held = vec![Held { opened, ..held(&made, 1, 1) }];
    assert_eq!(one.ask(&mut fs, Request::Reclaim { held, last: true, again: vec![] }), Ok(Reply::Done));
    assert_eq!(one.ask(&mut fs, write(END)), Ok(Reply::Written(data.len() as u32)));
    one.ask(&mut fs, Request::Release { ino }).unwrap();
    assert_eq!(fs.fsck(), []);
}

/// Clients may use leases from before the restart until these expire, or until the clients know of
/// the restart.
#[test]
fn changes_wait_for_leases_of_the_time_before() {
    let config = || Config { lease_ms: Some(10_000), ..config() };
    let start = || {
        let mut fs = Harness::on(Engine::Local, config());
        let (one, other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
        let mut fs = killed(fs, CacheState::Replayed);
        tick(&mut fs, 1000);
        (fs, one, other)
    };
    let (mut fs, mut one, mut other) = start();
    reclaim(&mut fs, &mut one, &[]);
    let make = create(Ino::ROOT, "a", NewNode::Regular);
    let id = one.send(&mut fs, &make, false);
    fs.run_until_idle();
    assert!(!fs.answers.contains_key(&id));
    let looked = one.ask(&mut fs, Request::Lookup { dir: Ino::ROOT, name: name("a") });
    assert!(matches!(looked, Ok(Reply::Absent { .. })), "reads continue");
    other.reconnect(&mut fs);
    assert_eq!(other.ask(&mut fs, Request::GetAttr { ino: Ino::ROOT }), Err(Errno::EAGAIN));
    assert_eq!(
        other.ask(&mut fs, Request::Reclaim { held: vec![], last: false, again: vec![] }),
        Ok(Reply::Done)
    );
    assert!(!fs.answers.contains_key(&id));
    assert_eq!(
        other.ask(&mut fs, Request::Reclaim { held: vec![], last: true, again: vec![] }),
        Ok(Reply::Done)
    );
    assert!(fs.answers[&id].is_ok());
    // No other client returns: the longest lease expires.
    let (mut fs, mut one, _) = start();
    reclaim(&mut fs, &mut one, &[]);
    let id = one.send(&mut fs, &make, false);
    for _ in 0..10 {
        tick(&mut fs, 1000);
        assert!(!fs.answers.contains_key(&id));
    }
    tick(&mut fs, 2000);
    assert!(fs.answers[&id].is_ok());
    assert_eq!(fs.fsck(), []);
}

/// A client's hints may be arbitrarily old: what it holds is found at its current location, after
/// any number of restarts.
#[test]
fn moved_inode_is_found() {
    for memory in [CacheState::Replayed, CacheState::Cold] {
        let mut fs = Harness::on(Engine::Local, Config { cache_bytes: 0, ..config() });
        let (mut one, mut other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
        let mut has = Vec::new();
        let sub = other.create(&mut fs, Ino::ROOT, "sub", NewNode::Directory);
        for file in ["renamed", "twice", "linked", "exchanged", "stays", "dir"] {
            let node = if file == "dir" { NewNode::Directory } else { NewNode::Regular };
            let reply = one.ask(&mut fs, create(Ino::ROOT, file, node)).unwrap();
            has.push(held(&reply, 1, 0));
        }
        has[0].opens = 1;
        one.open(&mut fs, has[0].ino);
        let tmp = one.ask(&mut fs, Request::TmpFile { dir: Ino::ROOT, perm: 0o600, umask: 0 }).unwrap();
        has.push(held(&tmp, 1, 1));
        one.ask(&mut fs, Request::Link { ino: has[6].ino, dir: sub, name: name("tmp") }).unwrap();
        has[6].lookups = 2;
        let mut rename = |fs: &mut Harness, from_dir, from: &str, to_dir, to: &str, flags| {
            let (from, to) = (name(from), name(to));
            other.ask(fs, Request::Rename { from_dir, from, to_dir, to, flags, time: None }).unwrap();
        };
        let plain = RenameFlags::empty();
        rename(&mut fs, Ino::ROOT, "renamed", sub, "b", plain);
        rename(&mut fs, Ino::ROOT, "twice", sub, "c", plain);
        fs.checkpoint();
        rename(&mut fs, sub, "c", Ino::ROOT, "d", plain);
        rename(&mut fs, Ino::ROOT, "dir", sub, "dir", plain);
        other.create(&mut fs, sub, "e", NewNode::Regular);
        let mut rename = |fs: &mut Harness, from_dir, from: &str, to_dir, to: &str, flags| {
            let (from, to) = (name(from), name(to));
            other.ask(fs, Request::Rename { from_dir, from, to_dir, to, flags, time: None }).unwrap();
        };
        rename(&mut fs, Ino::ROOT, "exchanged", sub, "e", RenameFlags::EXCHANGE);
        let linked = other.lookup(&mut fs, Ino::ROOT, "linked");
        other.ask(&mut fs, Request::Link { ino: linked, dir: sub, name: name("f") }).unwrap();
        for _ in 0..3 {
            fs = killed(fs, memory);
            reclaim(&mut fs, &mut one, &has);
            reclaim(&mut fs, &mut other, &[]);
            for held in &has {
                let attr = one.ask(&mut fs, Request::GetAttr { ino: held.ino });
                assert!(matches!(attr, Ok(Reply::Attr(attr)) if attr.ino == held.ino), "{held:?}: {attr:?}");
            }
            fs.checkpoint();
        }
        // Locations of inodes that no client holds need not be remembered.
        expire_all_but(&mut fs, &[]);
        assert_eq!(fs.fsck(), []);
        assert_eq!(fs.disk.store().scan(ObjectId::SESSIONS, std::ops::Bound::Unbounded, 9).unwrap(), []);
    }
}

/// A client that has reclaimed may move an inode and forget it, while another that knows the inode
/// has not reclaimed yet.
#[test]
fn moved_inode_is_found_after_others_forget_it() {
    for memory in [CacheState::Replayed, CacheState::Cold] {
        for closes in [false, true] {
            let mut fs = Harness::on(Engine::Local, Config { cache_bytes: 0, ..config() });
            let (mut one, mut other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
            let made = one.ask(&mut fs, create(Ino::ROOT, "a", NewNode::Regular)).unwrap();
            let has = [held(&made, 1, 0)];
            let ino = has[0].ino;
            // The server knows that the client has the answer.
            one.create(&mut fs, Ino::ROOT, "next", NewNode::Regular);
            let sub = other.create(&mut fs, Ino::ROOT, "sub", NewNode::Directory);
            let (from, to, flags) = (name("a"), name("b"), RenameFlags::empty());
            let rename = Request::Rename { from_dir: Ino::ROOT, from, to_dir: sub, to, flags, time: None };
            other.ask(&mut fs, rename).unwrap();
            let found = other.ask(&mut fs, Request::Lookup { dir: sub, name: name("b") }).unwrap();
            let how = Request::Open { ino, how: open_how(Access::READ, false) };
            let Ok(Reply::Opened(opened)) = other.ask(&mut fs, how) else { panic!("it is not opened") };
            fs = killed(fs, memory);
            let others = Held { opened: opened.reclaim_token, ..held(&found, 1, u32::from(closes)) };
            reclaim(&mut fs, &mut other, &[others]);
            let released = if closes { vec![ino] } else { vec![] };
            other.ask(&mut fs, Request::ForgetAll { inodes: vec![(ino, 1)], released }).unwrap();
            fs.checkpoint();
            reclaim(&mut fs, &mut one, &has);
            let attr = one.ask(&mut fs, Request::GetAttr { ino });
            assert!(matches!(attr, Ok(Reply::Attr(attr)) if attr.ino == ino), "{attr:?}");
        }
    }
}

/// Whatever a client claims, other clients find what they hold.
#[test]
fn wrong_hints_do_no_harm() {
    for memory in [CacheState::Replayed, CacheState::Cold] {
        for (liar_first, looks) in [(true, true), (true, false), (false, true)] {
            let cache_bytes = if looks { 0 } else { usize::MAX };
            let mut fs = Harness::on(Engine::Local, Config { cache_bytes, ..config() });
            let (mut one, mut liar) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
            let (dir, file, full, mut has) = prepare(&mut fs, &mut one);
            has.push(held(
                &one.ask(&mut fs, Request::Link { ino: file, dir: full, name: name("l") }).unwrap(),
                1,
                0,
            ));
            fs = killed(fs, memory);
            if !liar_first {
                reclaim(&mut fs, &mut one, &has);
            }
            let lies = |ino: u64| {
                let locations = [
                    Location::Dentry { dir: Ino(ino), hash: 0 },
                    Location::Table,
                    Location::Orphan,
                    Location::Dentry { dir: Ino::ROOT, hash: 0 },
                    Location::Dentry { dir, hash: u64::MAX },
                    Location::Dentry { dir: Ino(1 << 40), hash: 7 },
                ];
                locations.map(|location| Held {
                    exclusive: false,
                    ino: Ino(ino),
                    location,
                    lookups: u64::MAX,
                    opens: u32::MAX,
                    lookup_token: 7,
                    opened: 7,
                })
            };
            let held: Vec<Held> = (0..50).flat_map(lies).collect();
            reclaim(&mut fs, &mut liar, &held);
            for ino in (0..50).filter(|_| looks) {
                let attr = liar.ask(&mut fs, Request::GetAttr { ino: Ino(ino) });
                assert!(ino < 10 || attr == Err(Errno::ESTALE));
            }
            if liar_first {
                reclaim(&mut fs, &mut one, &has);
            }
            for held in &has {
                let attr = one.ask(&mut fs, Request::GetAttr { ino: held.ino });
                assert!(matches!(attr, Ok(Reply::Attr(attr)) if attr.ino == held.ino), "{held:?}: {attr:?}");
            }
            one.lookup(&mut fs, dir, "file");
            // No client knows new inodes yet.
            let made: Vec<Ino> = (0..60)
                .map(|number| one.create(&mut fs, dir, &number.to_string(), NewNode::Regular))
                .collect();
            for ino in &made {
                one.open(&mut fs, *ino);
            }
            for ino in 0..80 {
                liar.ask(&mut fs, Request::Forget { ino: Ino(ino), lookups: u64::MAX }).unwrap();
                liar.ask(&mut fs, Request::Release { ino: Ino(ino) }).unwrap();
            }
            expire_all_but(&mut fs, &[&one]);
            for (number, ino) in made.iter().enumerate() {
                one.ask(&mut fs, Request::Unlink { dir, name: name(&number.to_string()), time: None })
                    .unwrap();
                one.ask(&mut fs, Request::Read { ino: *ino, offset: 0, size: 1, noatime: false }).unwrap();
            }
            expire_all_but(&mut fs, &[]);
            assert_eq!(fs.meta.files(), 1 + 6);
            assert_eq!(fs.fsck(), []);
        }
    }
}

/// An embedded mount of a server's store: the server's clients are gone.
#[test]
fn without_sessions_there_is_nothing_to_wait_for() {
    let mut fs = Harness::on(Engine::Local, config());
    let mut one = TestClient::connect(&mut fs, 1);
    let ino = one.create(&mut fs, Ino::ROOT, "a", NewNode::Regular);
    one.open(&mut fs, ino);
    one.ask(&mut fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }).unwrap();
    fs.config = harness::config();
    let mut fs = killed(fs, CacheState::Cold);
    assert_eq!((fs.meta.files(), fs.meta.awaited()), (1, vec![]));
    assert_eq!(fs.fsck(), []);
    assert_eq!(fs.disk.store().scan(ObjectId::SESSIONS, std::ops::Bound::Unbounded, 9).unwrap(), []);
}

// ---- Random operations

/// Executes one operation after another on a file of its own; each must succeed.
#[derive(Debug, Default)]
struct Lane {
    held: Option<Held>,
    /// In the client's directory; renames use the first one.
    names: Vec<Name>,
    bytes: Vec<u8>,
    /// The unanswered request.
    requested: Option<(u64, Request)>,
}

/// A client with several lanes.
struct Actor {
    id: ClientId,
    next: u64,
    dir: Option<Held>,
    lanes: Vec<Lane>,
}

impl Lane {
    /// The next request.
    fn decide(&self, rng: &mut fastrand::Rng, dir: Ino, fresh: Name) -> Request {
        let Some(Held { ino, lookups, opens, .. }) = self.held else {
            let open = Some(open_how(Access::WRITE, false));
            let (name, node) = (fresh, NewNode::Regular);
            return Request::Create {
                dir,
                name,
                node,
                perm: 0o600,
                umask: 0,
                open,
                exclusive: true,
                writeback: None,
            };
        };
        let last = self.names.last().cloned();
        match (rng.u8(0..8), last) {
            (7, _) => Request::Fsync { ino },
            (0 | 1, Some(_)) if self.bytes.len() < 60 => Request::Write {
                ino,
                offset: END,
                data: vec![rng.u8(1..); 5].into(),
                kill_suid_gid: false,
                time: None,
            },
            (2, Some(from)) => Request::Rename {
                from_dir: dir,
                from,
                to_dir: dir,
                to: fresh,
                flags: RenameFlags::empty(),
                time: None,
            },
            (3, Some(_)) if self.names.len() < 3 => Request::Link { ino, dir, name: fresh },
            (4, Some(_)) => {
                let name = [b"user.".as_slice(), &fresh].concat().into();
                Request::SetXattr {
                    ino,
                    name,
                    value: [1; 4].into(),
                    mode: XattrMode::Create,
                    kill_sgid: false,
                }
            }
            (5, Some(name)) => Request::Unlink { dir, name, time: None },
            (_, Some(_)) => Request::Read { ino, offset: 0, size: 100, noatime: false },
            (0..4, None) if opens > 0 => Request::Read { ino, offset: 0, size: 100, noatime: false },
            (_, None) if opens > 0 => Request::Release { ino },
            (_, None) => Request::Forget { ino, lookups },
        }
    }

    fn answered(&mut self, reply: Result<Reply, Errno>, context: &str) {
        let (_, request) = self.requested.take().unwrap();
        let reply = reply.unwrap_or_else(|errno| panic!("{context}: {request:?}: {errno}"));
        match (request, reply) {
            (Request::Create { name, .. }, reply @ Reply::Created(..)) => {
                self.held = Some(held(&reply, 1, 1));
                self.names.push(name);
            }
            (Request::Write { data, .. }, Reply::Done) => self.bytes.extend(data),
            (Request::Rename { to, .. }, Reply::Done) => *self.names.last_mut().unwrap() = to,
            (Request::Link { name, .. }, Reply::Entry(entry)) => {
                let held = self.held.as_mut().unwrap();
                (held.location, held.lookups) = (entry.location, held.lookups + 1);
                self.names.push(name);
            }
            (Request::Unlink { .. }, Reply::Done) => drop(self.names.pop()),
            (Request::SetXattr { .. } | Request::Fsync { .. }, Reply::Done) => {}
            (Request::Read { .. }, Reply::Bytes(bytes)) => assert_eq!(bytes, self.bytes, "{context}"),
            (Request::Release { .. }, Reply::Done) => self.held.as_mut().unwrap().opens = 0,
            (Request::Forget { .. }, Reply::Done) => (self.held, self.bytes) = (None, Vec::new()),
            (request, reply) => panic!("{context}: {request:?}: {reply:?}"),
        }
    }
}

impl Actor {
    fn send(&self, fs: &mut Harness, id: u64, request: &Request) {
        let unanswered = self.lanes.iter().filter_map(|lane| lane.requested.as_ref().map(|(id, _)| *id));
        let below = RequestId(unanswered.min().unwrap_or(id).min(id));
        let (from, caller, request) = (self.id, ROOT_CALLER, request.clone());
        fs.input(Input::Request { from, id: RequestId(id), below, follows: Vec::new(), caller, request });
    }

    /// Takes the answers that have arrived.
    fn look(&mut self, fs: &mut Harness, context: &str) {
        for lane in &mut self.lanes {
            let answer = lane.requested.as_ref().and_then(|(id, _)| fs.answers.remove(id));
            if let Some(reply) = answer {
                lane.answered(reply, context);
            }
        }
    }

    /// Sends one more request, or repeats one.
    fn act(&mut self, fs: &mut Harness, rng: &mut fastrand::Rng) {
        let (at, dir) = (rng.usize(..self.lanes.len()), self.dir.unwrap().ino);
        if self.lanes[at].requested.is_none() {
            self.next += 1;
            let request = self.lanes[at].decide(rng, dir, name(&format!("n{}", self.next)));
            self.lanes[at].requested = Some((self.next, request));
        } else if rng.u8(0..4) > 0 {
            return;
        }
        let (id, request) = self.lanes[at].requested.clone().unwrap();
        self.send(fs, id, &request);
    }

    /// Reclaims after a restart, and repeats unanswered requests.
    fn resume(&mut self, fs: &mut Harness) {
        fs.input(Input::Connect { client: self.id, leases: true, resumes: false });
        let held: Vec<Held> =
            self.dir.into_iter().chain(self.lanes.iter().filter_map(|lane| lane.held)).collect();
        self.next += 1;
        self.send(fs, self.next, &Request::Reclaim { held, last: true, again: vec![] });
        for lane in &self.lanes {
            if let Some((id, request)) = &lane.requested {
                self.send(fs, *id, request);
            }
        }
    }
}

/// Otherwise a crash would undo what a client has seen.
#[test]
fn with_sync_changes_are_invisible_until_durable() {
    let mut fs = Harness::with(Config { acknowledge: Acknowledge::Durable, ..config() });
    let (mut changer, mut other) = (TestClient::connect(&mut fs, 1), TestClient::connect(&mut fs, 2));
    let old = changer.create(&mut fs, Ino::ROOT, "old", NewNode::Regular);
    let unannounced = changer.create(&mut fs, Ino::ROOT, "quiet", NewNode::Regular);
    fs.run_until_idle();
    fs.lazy = true;
    let lookup = |file| Request::Lookup { dir: Ino::ROOT, name: name(file) };
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let list = Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus: false };
    for (change, requested) in [
        (Request::SetAttr { ino: old, set }, [Request::GetAttr { ino: old }, lookup("old")]),
        (create(Ino::ROOT, "new", NewNode::Regular), [lookup("new"), list]),
        (
            Request::Unlink { dir: Ino::ROOT, name: name("old"), time: None },
            [lookup("old"), Request::Unlink { dir: Ino::ROOT, name: name("old"), time: None }],
        ),
    ] {
        let changed = changer.send(&mut fs, &change, false);
        let reported = requested.map(|request| other.send(&mut fs, &request, false));
        let about_others = [lookup("quiet"), Request::GetAttr { ino: unannounced }];
        let about_others = about_others.map(|request| other.send(&mut fs, &request, false));
        assert!(about_others.iter().all(|id| fs.answers.contains_key(id)), "{change:?} is not in their way");
        assert!([changed].iter().chain(&reported).all(|id| !fs.answers.contains_key(id)), "{change:?}");
        while fs.run_one() {}
        assert!([changed].iter().chain(&reported).all(|id| fs.answers.contains_key(id)), "{change:?}");
        assert!(fs.answers[&changed].is_ok());
    }
}

/// Clients send many requests at a time, I/O completes in any order, and the server is killed
/// repeatedly. Each request succeeds, which it would not if an earlier one had been executed twice
/// or not at all.
#[test]
fn each_request_is_executed_exactly_once() {
    let durable = Config { acknowledge: Acknowledge::Durable, ..config() };
    let small = |config: Config| Config { cache_bytes: 0, ..config };
    for (engine, config, seeds) in [
        (Engine::Local, Config { journal_capacity: (1 << 20) + (256 << 10), ..config() }, 6),
        (Engine::Memory, durable.clone(), 40),
        (Engine::Memory, small(durable), 40),
    ] {
        for seed in 0..seeds {
            run_actors(Harness::on(engine, config.clone()), seed, &format!("{engine:?}, seed {seed}"));
        }
    }
}

fn run_actors(mut fs: Harness, seed: u64, context: &str) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut actors: Vec<Actor> = Vec::new();
    for number in 1..=3 {
        let mut client = TestClient::connect(&mut fs, number);
        let dir =
            client.ask(&mut fs, create(Ino::ROOT, &format!("dir{number}"), NewNode::Directory)).unwrap();
        let lanes = (0..5).map(|_| Lane::default()).collect();
        actors.push(Actor { id: client.id, next: client.next, dir: Some(held(&dir, 1, 0)), lanes });
    }
    for _life in 0..8 {
        fs.shuffle = Some(rng.fork());
        fs.fault = Some((fs.count + rng.u64(1..60), harness::Fault::Crash));
        while !fs.is_dead() {
            fs.queued = if rng.bool() { 0 } else { rng.usize(0..2) };
            let at = rng.usize(..actors.len());
            actors[at].act(&mut fs, &mut rng);
            fs.queued = 0;
            match rng.u8(0..12) {
                0 => fs.input(Input::Tick),
                1 => fs.checkpoint(),
                2..8 => drop(fs.run_one()),
                _ => fs.input(Input::Heard { client: actors[at].id }),
            }
            actors[at].look(&mut fs, context);
        }
        // Messages sent before the crash have arrived or are lost.
        for actor in &mut actors {
            if rng.bool() {
                actor.look(&mut fs, context);
            }
        }
        fs = fs.crash();
        for actor in &mut actors {
            actor.resume(&mut fs);
        }
    }
    fs.run_until_idle();
    let mut other = TestClient::connect(&mut fs, 9);
    let mut files = 1;
    for (actor, number) in actors.iter_mut().zip(1..) {
        actor.look(&mut fs, context);
        assert!(actor.lanes.iter().all(|lane| lane.requested.is_none()), "{context}: all is answered");
        let dir = other.lookup(&mut fs, Ino::ROOT, &format!("dir{number}"));
        let mut there = 0;
        for lane in &actor.lanes {
            files += usize::from(lane.held.is_some());
            for name in &lane.names {
                let ino = other.lookup(&mut fs, dir, std::str::from_utf8(name).unwrap());
                assert_eq!(Some(ino), lane.held.map(|held| held.ino), "{context}");
                other.open(&mut fs, ino);
                let read = other.ask(&mut fs, Request::Read { ino, offset: 0, size: 100, noatime: false });
                assert_eq!(read, Ok(Reply::Bytes(lane.bytes.clone().into())), "{context}");
                there += 1;
            }
        }
        files += 1;
        let list = Request::ReadDir { dir, after: 0, limit: 1000, plus: false };
        let Ok(Reply::Listing { entries, .. }) = other.ask(&mut fs, list) else { panic!("{context}") };
        assert_eq!(entries.len(), there, "{context}");
    }
    tick(&mut fs, 1);
    assert_eq!(fs.meta.files(), files as u64, "{context}: nothing else is there");
    let named: usize =
        actors.iter().flat_map(|actor| &actor.lanes).filter(|lane| !lane.names.is_empty()).count();
    expire_all_but(&mut fs, &[]);
    assert_eq!(fs.meta.files(), (1 + actors.len() + named) as u64, "{context}: nameless files are freed");
    assert_eq!(fs.fsck(), [], "{context}");
}

/// A client that was asked for a caller's groups and has vanished.
#[test]
fn a_client_that_owes_an_answer_expires() {
    let fs = &mut Harness::with(config());
    let mut client = TestClient::connect(fs, 1);
    let dir = client.create(fs, Ino::ROOT, "dir", NewNode::Directory);
    let set = SetAttr { perm: Some(0o070), gid: Some(5), ..SetAttr::default() };
    client.ask(fs, Request::SetAttr { ino: dir, set }).unwrap();
    fs.shuffle = Some(fastrand::Rng::with_seed(0));
    client.next += 1;
    fs.input(Input::Request {
        from: client.id,
        id: RequestId(client.next),
        below: RequestId(client.next),
        follows: Vec::new(),
        caller: harness::user(9),
        request: Request::Lookup { dir, name: name("a") },
    });
    assert!(matches!(fs.waiting[..], [(_, Io::Groups { .. })]), "{:?}", fs.waiting);
    fs.waiting.clear();
    fs.shuffle = None;
    expire_all_but(fs, &[]);
    tick(fs, 1);
    assert_eq!(fs.expired, [client.id]);
    assert!(!client.reconnect(fs));
}

/// The server does not wait for a client that leaves.
#[test]
fn client_that_leaves_holds_nothing() {
    let fs = &mut Harness::with(config());
    let mut client = TestClient::connect(fs, 1);
    let ino = client.create(fs, Ino::ROOT, "a", NewNode::Regular);
    client.open(fs, ino);
    client.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name("a"), time: None }).unwrap();
    fs.input(Input::Leave { client: client.id });
    assert_eq!(fs.meta.files(), 1);
    assert!(!client.reconnect(fs));
    // It leaves or vanishes while a request is in progress.
    for leaves in [true, false] {
        fs.lazy = true;
        let id = client.send(fs, &create(Ino::ROOT, &leaves.to_string(), NewNode::Regular), false);
        if leaves {
            fs.input(Input::Leave { client: client.id });
        } else {
            fs.uptime_ms += u64::from(2 * SESSION_MS);
            fs.input(Input::Tick);
        }
        assert_eq!((fs.expired.len(), fs.answers.contains_key(&id)), (0, false));
        fs.run_until_idle();
        tick(fs, 1);
        fs.lazy = false;
        assert_eq!(fs.expired.pop(), Some(client.id));
        assert!(!client.reconnect(fs));
    }
}
