//! Several clients of one server: each request is done once, whatever is lost, and what a client had ends with its session.
#![allow(clippy::unwrap_used)]

mod harness;

use espalier_meta::{Acknowledge, Config, Connected, Input, Io};
use espalier_proto::*;
use harness::{Engine, Harness, ROOT_CALLER, name, open_how};

const SESSION_MS: u32 = 60_000;

fn config() -> Config {
    Config { session_ms: Some(SESSION_MS), acknowledge: Acknowledge::Written, ..harness::config() }
}

/// A client, which numbers its requests and never takes an answer that is not to the last.
struct Client {
    id: ClientId,
    next: u64,
}

impl Client {
    /// Requests of different clients have different numbers, so that the harness can tell them apart.
    fn new(number: u64) -> Self {
        Self { id: ClientId(100 + number), next: number << 32 }
    }

    fn connect(fs: &mut Harness, number: u64) -> Self {
        let client = Self::new(number);
        client.reconnect(fs);
        client
    }

    /// Whether the session goes on.
    fn reconnect(&self, fs: &mut Harness) -> bool {
        fs.connected.clear();
        fs.input(Input::Connect { client: self.id });
        fs.settle();
        let [Connected { client, resumed }] = fs.connected[..] else { panic!("{:?}", fs.connected) };
        assert_eq!(client, self.id);
        resumed
    }

    /// Sends a request: a new one, or the last one again.
    fn send(&mut self, fs: &mut Harness, request: &Request, again: bool) -> u64 {
        self.next += u64::from(!again);
        fs.now.nanos += 1;
        fs.input(Input::Request {
            from: self.id,
            id: RequestId(self.next),
            below: RequestId(self.next),
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

    fn open(&mut self, fs: &mut Harness, ino: Ino) {
        self.ask(fs, Request::Open { ino, how: open_how(Access::READ, false) }).unwrap();
    }
}

fn wait(fs: &mut Harness, id: u64) -> Result<Reply, Errno> {
    while !fs.answers.contains_key(&id) && !fs.is_dead() && fs.settle_one() {}
    if fs.is_dead() { Err(Errno::EIO) } else { fs.answers.remove(&id).expect("an answer") }
}

fn entry(reply: Result<Reply, Errno>) -> Ino {
    match reply.unwrap() {
        Reply::Entry(entry) | Reply::Created(entry, _) => entry.attr.ino,
        other => panic!("{other:?}"),
    }
}

fn create(dir: Ino, file: &str, node: NewNode) -> Request {
    Request::Create { dir, name: name(file), node, perm: 0o644, umask: 0, open: None, exclusive: true }
}

fn tick(fs: &mut Harness, ms: u64) {
    fs.uptime_ms += ms;
    fs.input(Input::Tick);
    fs.settle();
}

/// Nothing is heard of any client until all sessions have ended, but of these.
fn expire_all_but(fs: &mut Harness, clients: &[&Client]) {
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
    let mut stranger = Client::new(1);
    assert_eq!(stranger.ask(fs, Request::GetAttr { ino: Ino::ROOT }), Err(Errno::ESTALE));
    assert_eq!(stranger.ask(fs, create(Ino::ROOT, "a", NewNode::Regular)), Err(Errno::ESTALE));
    assert!(!stranger.reconnect(fs));
    assert!(stranger.reconnect(fs));
    stranger.create(fs, Ino::ROOT, "a", NewNode::Regular);
    assert_eq!(stranger.ask(fs, Request::Sweep), Err(Errno::EINVAL));
}

#[test]
fn a_request_that_comes_twice_is_done_once() {
    let fs = &mut Harness::with(config());
    let mut client = Client::connect(fs, 1);
    let make = create(Ino::ROOT, "a", NewNode::Regular);
    let first = client.ask(fs, make.clone());
    assert_eq!(client.again(fs, make.clone()), first);
    let ino = entry(first);
    let remove = Request::Unlink { dir: Ino::ROOT, name: name("a") };
    assert_eq!(client.ask(fs, remove.clone()), Ok(Reply::Done));
    assert_eq!(client.again(fs, remove.clone()), Ok(Reply::Done));
    assert_eq!(client.ask(fs, remove), Err(Errno::ENOENT));
    // Twice counted, it would stay.
    let forget = Request::Forget { ino, lookups: 1 };
    assert_eq!(client.ask(fs, forget.clone()), Ok(Reply::Done));
    assert_eq!(client.again(fs, forget), Ok(Reply::Done));
    assert_eq!(fs.meta.files(), 1);
}

#[test]
fn a_listing_that_is_asked_for_twice_counts_once() {
    let fs = &mut Harness::with(config());
    let mut client = Client::connect(fs, 1);
    let ino = client.create(fs, Ino::ROOT, "a", NewNode::Regular);
    let list = Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus: true };
    let first = client.ask(fs, list.clone());
    assert_eq!(client.again(fs, list), first);
    client.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name("a") }).unwrap();
    tick(fs, 1);
    assert_eq!(fs.meta.files(), 2);
    client.ask(fs, Request::Forget { ino, lookups: 2 }).unwrap();
    assert_eq!(fs.meta.files(), 1);
}

#[test]
fn a_request_that_comes_again_while_it_runs_is_answered_once() {
    let fs = &mut Harness::with(config());
    let mut client = Client::connect(fs, 1);
    fs.lazy = true;
    let make = create(Ino::ROOT, "a", NewNode::Regular);
    let id = client.send(fs, &make, false);
    assert_eq!(client.send(fs, &make, true), id);
    assert!(!fs.answers.contains_key(&id), "it is not written");
    fs.settle();
    assert!(matches!(fs.answers[&id], Ok(Reply::Entry(_))));
    assert_eq!(fs.answered.iter().filter(|answered| **answered == (client.id, id)).count(), 1);
    // An old copy of a request whose answer has come.
    client.ask(fs, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    let old = Input::Request {
        from: client.id,
        id: RequestId(id),
        below: RequestId(id),
        caller: ROOT_CALLER,
        request: Request::Unlink { dir: Ino::ROOT, name: name("a") },
    };
    fs.input(old);
    client.lookup(fs, Ino::ROOT, "a");
}

#[test]
fn what_an_expired_client_held_is_released() {
    let fs = &mut Harness::with(config());
    let (mut one, mut other) = (Client::connect(fs, 1), Client::connect(fs, 2));
    for number in 0..300 {
        let file = format!("file{number}");
        let ino = one.create(fs, Ino::ROOT, &file, NewNode::Regular);
        one.open(fs, ino);
        one.open(fs, ino);
        if number == 7 {
            assert_eq!(other.lookup(fs, Ino::ROOT, &file), ino);
            other.open(fs, ino);
        }
        one.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name(&file) }).unwrap();
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
fn a_client_cannot_release_what_it_does_not_have() {
    let fs = &mut Harness::with(config());
    let (mut one, mut other) = (Client::connect(fs, 1), Client::connect(fs, 2));
    let ino = one.create(fs, Ino::ROOT, "a", NewNode::Regular);
    one.open(fs, ino);
    one.ask(fs, Request::Unlink { dir: Ino::ROOT, name: name("a") }).unwrap();
    for _ in 0..3 {
        assert_eq!(other.ask(fs, Request::Release { ino }), Ok(Reply::Done));
        assert_eq!(other.ask(fs, Request::Forget { ino, lookups: u64::MAX }), Ok(Reply::Done));
    }
    one.ask(fs, Request::GetAttr { ino }).unwrap();
    one.ask(fs, Request::Forget { ino, lookups: u64::MAX }).unwrap();
    one.ask(fs, Request::Read { ino, offset: 0, size: 10 }).unwrap();
    one.ask(fs, Request::Release { ino }).unwrap();
    assert_eq!(fs.meta.files(), 1);
}

/// A client that never says which answers it has is stopped, and others are served.
#[test]
fn what_is_kept_of_a_client_is_bounded() {
    let fs = &mut Harness::with(config());
    let (one, mut other) = (Client::connect(fs, 1), Client::connect(fs, 2));
    let mut refused = 0;
    for number in 1..=1100 {
        fs.input(Input::Request {
            from: one.id,
            id: RequestId(number),
            below: RequestId(0),
            caller: ROOT_CALLER,
            request: Request::GetAttr { ino: Ino::ROOT },
        });
        refused += usize::from(fs.answers[&number] == Err(Errno::EAGAIN));
    }
    assert_eq!(refused, 1100 - 1024);
    other.create(fs, Ino::ROOT, "a", NewNode::Regular);
    for number in 3..=25_000 {
        fs.input(Input::Connect { client: ClientId(1000 + number) });
    }
    assert!(!fs.refused.is_empty());
    assert!(fs.refused.iter().all(|(_, errno)| *errno == Errno::ENFILE));
    expire_all_but(fs, &[&other]);
    assert!(!Client::new(9).reconnect(fs), "there is room again");
}

/// Whoever has been answered has what it was told, also if the server's process is killed.
#[test]
fn what_is_acknowledged_survives_the_process() {
    let mut fs = Harness::on(Engine::Local, config());
    let (mut one, mut other) = (Client::connect(&mut fs, 1), Client::connect(&mut fs, 2));
    fs.lazy = true;
    let made = one.send(&mut fs, &create(Ino::ROOT, "a", NewNode::Regular), false);
    let seen = other.send(&mut fs, &Request::Lookup { dir: Ino::ROOT, name: name("a") }, false);
    assert!(!fs.answers.contains_key(&made) && !fs.answers.contains_key(&seen), "it may vanish");
    let frames = fs.waiting.iter().filter(|(_, io)| matches!(io, Io::Journal { .. })).count();
    assert_eq!(frames, 1);
    assert!(matches!(fs.waiting[0].1, Io::Journal { sync: false, .. }), "no sync is waited for");
    fs.settle_one();
    assert!(fs.answers[&made].is_ok() && fs.answers[&seen].is_ok());
    fs.lazy = false;
    let asked = fs.count;
    other.ask(&mut fs, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    assert_eq!(fs.count, asked, "what tells of no change waits for nothing");
    fs.lazy = true;
    one.send(&mut fs, &create(Ino::ROOT, "b", NewNode::Regular), false);
    let mut fs = fs.crash();
    let mut one = Client::connect(&mut fs, 3);
    one.lookup(&mut fs, Ino::ROOT, "a");
    let lost = one.ask(&mut fs, Request::Lookup { dir: Ino::ROOT, name: name("b") });
    assert!(matches!(lost, Ok(Reply::Absent { .. })), "{lost:?}");
    assert_eq!(fs.fsck(), []);
}

#[test]
fn requests_that_come_together_share_a_frame() {
    let fs = &mut Harness::with(config());
    let mut client = Client::connect(fs, 1);
    fs.lazy = true;
    let mut ids = Vec::new();
    for number in 0..10 {
        fs.queued = 9 - number;
        client.next += 1;
        fs.input(Input::Request {
            from: client.id,
            id: RequestId(client.next),
            below: RequestId(0),
            caller: ROOT_CALLER,
            request: create(Ino::ROOT, &number.to_string(), NewNode::Regular),
        });
        ids.push(client.next);
    }
    assert_eq!(fs.waiting.len(), 1);
    fs.settle_one();
    assert!(ids.iter().all(|id| fs.answers[id].is_ok()));
    let order: Vec<u64> = fs.answered.iter().map(|(_, id)| *id).collect();
    assert_eq!(order, ids);
}
