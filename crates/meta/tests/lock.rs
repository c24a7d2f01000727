//! File locks with lost connections and a server that is killed: no two callers believe to hold
//! conflicting locks, no request waits for a free lock, and no client holds a lock that it does not
//! know of.

use std::collections::{HashMap, VecDeque};

use crate::harness::{self, Engine, Harness, ROOT_CALLER, name, open_how};
use espalier_client::Link;
use espalier_meta::{Acknowledge, Config, Input};
use espalier_proto::*;

const SESSION_MS: u32 = 60_000;
const CLIENTS: usize = 3;
const BYTES: usize = 6;
/// Per client: two processes, and an open file description.
const OWNERS: usize = 3;
const END: Welcome = Welcome {
    incarnation: 0,
    window: 1024,
    session_ms: SESSION_MS,
    rank: Rank(0),
    root: Ino::ROOT,
    servers: ServerMap::NONE,
    data_pool: None,
};

fn config() -> Config {
    Config { session_ms: Some(SESSION_MS), acknowledge: Acknowledge::Written, ..harness::config() }
}

fn owner(number: usize) -> LockOwner {
    LockOwner { flock: number == 2, number: number as u64 }
}

/// An owner has one call at a time; call numbers encode owners.
fn owner_of(call: u64) -> usize {
    call as usize % OWNERS
}

/// A client: its link, and what a frontend knows besides.
struct LockClient {
    link: Link,
    /// Messages in transit; `None`: no connection.
    connection: Option<(VecDeque<FromClient>, VecDeque<FromServer>)>,
    calls: HashMap<RequestId, (u64, Request, bool)>,
    waits: HashMap<u64, Request>,
    /// The locks that its callers believe to hold.
    bytes: [[Option<LockKind>; BYTES]; OWNERS],
    file: Option<Ino>,
    opened: bool,
}

struct LockWorld {
    fs: Harness,
    incarnation: u64,
    peers: Vec<LockClient>,
    random: fastrand::Rng,
    calls: u64,
    /// Result of the last lock test.
    in_the_way: Option<bool>,
    /// Number of granted waits, interrupted calls, and lost sessions.
    seen: [u32; 3],
}

impl LockWorld {
    fn new(seed: u64) -> Self {
        let peer = |_| LockClient {
            link: Link::default(),
            connection: None,
            calls: HashMap::new(),
            waits: HashMap::new(),
            bytes: Default::default(),
            file: None,
            opened: false,
        };
        let fs = Harness::on(Engine::Local, config());
        let (peers, random) = ((0..CLIENTS).map(peer).collect(), fastrand::Rng::with_seed(seed));
        let mut world = Self { fs, incarnation: 1, peers, random, calls: 0, in_the_way: None, seen: [0; 3] };
        for at in 0..CLIENTS {
            world.connect(at);
            let (dir, file) = (Ino::ROOT, name("file"));
            let (node, open) = (NewNode::Regular, Some(open_how(Access::READ | Access::WRITE, false)));
            let request = Request::Create {
                dir,
                name: file,
                node,
                perm: 0o644,
                umask: 0,
                open,
                exclusive: false,
                writeback: None,
            };
            world.ask(at, request);
            world.run_until_idle();
            assert!(world.peers[at].opened);
        }
        world
    }

    fn id(at: usize) -> ClientId {
        ClientId(100 + at as u64)
    }

    // ---- Connections

    fn connect(&mut self, at: usize) {
        let client = Self::id(at);
        self.fs.connected.clear();
        let resumes = self.peers[at].link.incarnation().is_some();
        self.input(Input::Connect { client, leases: true, resumes });
        if self.fs.connected.is_empty() {
            let peer = &mut self.peers[at];
            for id in peer.link.ended().lost {
                peer.calls.remove(&id);
            }
            self.input(Input::Connect { client, leases: true, resumes: false });
        }
        assert_eq!(self.fs.connected, [client]);
        let welcome = Welcome { incarnation: self.incarnation, ..END };
        let peer = &mut self.peers[at];
        let mut out = Vec::new();
        peer.link.connected(&welcome, &[].into(), &mut out);
        peer.connection = Some((out.into(), VecDeque::new()));
    }

    fn disconnect(&mut self, at: usize) {
        self.peers[at].connection = None;
        self.peers[at].link.disconnected();
    }

    fn kill_server(&mut self) {
        let fs = std::mem::replace(&mut self.fs, Harness::with(config()));
        let now = fs.uptime_ms;
        self.fs = fs.crash();
        self.fs.uptime_ms = now;
        self.incarnation += 1;
        (0..CLIENTS).for_each(|at| self.disconnect(at));
    }

    /// Silences a client until its session has ended.
    fn silence(&mut self, at: usize) {
        self.disconnect(at);
        for _ in 0..=SESSION_MS / 1000 + 1 {
            for other in (0..CLIENTS).filter(|other| *other != at) {
                self.input(Input::Heard { client: Self::id(other) });
            }
            self.fs.uptime_ms += 1000;
            self.input(Input::Tick);
        }
        self.peers[at].bytes = Default::default();
        self.seen[2] += 1;
    }

    // ---- The server's side

    fn input(&mut self, input: Input) {
        self.fs.input(input);
        self.fs.run_until_idle();
        for (to, number) in std::mem::take(&mut self.fs.answered) {
            let result = self.fs.answers.remove(&number).unwrap();
            let id = RequestId(number & u64::from(u32::MAX));
            let (announced, touched) = (false, Touched::default());
            self.deliver(to, FromServer::Reply { id, lease_ms: 0, announced, touched, result });
        }
        for (to, wait) in std::mem::take(&mut self.fs.locked) {
            self.deliver(to, FromServer::Locked { wait });
        }
    }

    fn deliver(&mut self, to: ClientId, message: FromServer) {
        if let Some((_, in_)) = &mut self.peers[to.0 as usize - 100].connection {
            in_.push_back(message);
        }
    }

    /// Has the server take a client's next message. Requests of different clients get different
    /// numbers.
    fn serve(&mut self, at: usize) -> bool {
        let from = Self::id(at);
        let number = |id: RequestId| RequestId((at as u64 + 1) << 32 | id.0);
        let message = self.peers[at].connection.as_mut().and_then(|(out, _)| out.pop_front());
        match message {
            None => return false,
            Some(FromClient::Request { id, below, request, .. }) => {
                assert_eq!(request.check(), Ok(()));
                let (id, below, caller) = (number(id), number(below), ROOT_CALLER);
                self.input(Input::Request { from, id, below, follows: Vec::new(), caller, request });
            }
            Some(FromClient::Cancel { id }) => self.input(Input::Cancel { from, id: number(id) }),
            Some(other) => panic!("{other:?}"),
        }
        true
    }

    // ---- The client's side, as in frontends

    fn ask(&mut self, at: usize, request: Request) {
        let peer = &mut self.peers[at];
        let mut out = Vec::new();
        let call = if let Request::Lock { wait: Some(wait), .. } = request { wait } else { self.calls };
        let id = peer.link.ask(ROOT_CALLER, request.clone(), &mut out);
        peer.calls.insert(id, (call, request, false));
        self.send(at, out);
    }

    fn send(&mut self, at: usize, messages: Vec<FromClient>) {
        if let Some((out, _)) = &mut self.peers[at].connection {
            out.extend(messages);
        }
    }

    /// Has a client take the server's next message.
    fn hear(&mut self, at: usize) -> bool {
        let peer = &mut self.peers[at];
        let message = peer.connection.as_mut().and_then(|(_, in_)| in_.pop_front());
        let mut out = Vec::new();
        match message {
            None => return false,
            Some(FromServer::Reply { id, result, .. }) => {
                let call = peer.calls.remove(&id);
                let over = peer.link.answered(id, &result, call.is_some(), &mut out);
                let waited =
                    over.and_then(|wait| peer.waits.remove(&wait)).map(|request| (0, request, false));
                if let Some((call, request, interrupted)) = call.or(waited) {
                    if result == Ok(Reply::Waits) {
                        if interrupted {
                            peer.link.stop_waiting(call, &mut out);
                        }
                        peer.waits.insert(call, request);
                    } else {
                        self.answered(at, &request, result);
                    }
                }
            }
            Some(FromServer::Locked { wait }) => {
                peer.link.locked(wait);
                if let Some(request) = peer.waits.remove(&wait) {
                    self.seen[0] += 1;
                    self.answered(at, &request, Ok(Reply::Done));
                }
            }
            Some(other) => panic!("{other:?}"),
        }
        self.send(at, out);
        true
    }

    fn interrupt(&mut self, at: usize, owner: usize) {
        let peer = &mut self.peers[at];
        let mut out = Vec::new();
        let is_of = |call: u64| owner_of(call) == owner;
        if let Some((id, it)) = peer.calls.iter_mut().find(|(_, (call, ..))| is_of(*call)) {
            it.2 = true;
            let id = *id;
            if !peer.link.cancel(id, &mut out) {
                peer.calls.remove(&id);
            }
        } else if let Some(wait) = peer.waits.keys().copied().find(|wait| is_of(*wait))
            && !peer.link.stop_waiting(wait, &mut out)
        {
            peer.waits.remove(&wait);
        }
        self.send(at, out);
    }

    fn answered(&mut self, at: usize, request: &Request, result: Result<Reply, Errno>) {
        let peer = &mut self.peers[at];
        match (request, result) {
            (_, Ok(Reply::Created(entry, _))) => (peer.file, peer.opened) = (Some(entry.attr.ino), true),
            (Request::Lock { lock, .. }, Ok(Reply::Done)) => {
                let number = lock.owner.number as usize;
                peer.bytes[number][range(lock)].fill(Some(lock.kind));
                self.check(at, number);
            }
            (Request::Lock { .. }, Err(errno)) => {
                self.seen[1] += u32::from(errno == Errno::EINTR);
                let usual = [Errno::EAGAIN, Errno::EINTR, Errno::EDEADLK];
                assert!(usual.contains(&errno), "{errno:?}");
            }
            (Request::Unlock { .. }, Ok(Reply::Done) | Err(Errno::EINTR)) => {}
            (Request::TestLock { .. }, Ok(Reply::InTheWay(other))) => self.in_the_way = Some(other.is_some()),
            (request, other) => panic!("{request:?}: {other:?}"),
        }
    }

    // ---- The callers

    fn is_idle(&self, at: usize, owner: usize) -> bool {
        let peer = &self.peers[at];
        let mut calls = peer.calls.values().map(|(call, ..)| *call).chain(peer.waits.keys().copied());
        calls.all(|call| owner_of(call) != owner)
    }

    fn begin(&mut self, at: usize, number: usize) {
        if !self.is_idle(at, number) {
            return;
        }
        self.calls = (self.calls / OWNERS as u64 + 1) * OWNERS as u64 + number as u64;
        let (a, b) = (self.random.u64(..BYTES as u64), self.random.u64(..BYTES as u64));
        let owner = owner(number);
        let (first, last) = if owner.flock { (0, u64::MAX) } else { (a.min(b), a.max(b)) };
        let kind = if self.random.bool() { LockKind::Shared } else { LockKind::Exclusive };
        let lock = Lock { owner, kind, first, last, pid: 1 };
        let ino = self.peers[at].file.unwrap();
        let bytes = &mut self.peers[at].bytes[number][range(&lock)];
        if self.random.u8(..3) == 0 {
            bytes.fill(None);
            return self.ask(at, Request::Unlock { ino, owner, first, last });
        }
        for byte in bytes {
            // The lock may be released before the answer arrives.
            match (*byte, kind) {
                (Some(held), _) if owner.flock && held != kind => *byte = None,
                (Some(_), LockKind::Shared) => *byte = Some(LockKind::Shared),
                _ => {}
            }
        }
        let wait = (self.random.u8(..4) > 0).then_some(self.calls);
        self.ask(at, Request::Lock { ino, lock, wait });
    }

    fn check(&self, at: usize, number: usize) {
        let mine = &self.peers[at].bytes[number];
        for (other, peer) in self.peers.iter().enumerate() {
            for (owner, theirs) in peer.bytes.iter().enumerate() {
                if (other, owner) == (at, number) || (owner == 2) != (number == 2) {
                    continue;
                }
                for (mine, theirs) in mine.iter().zip(theirs) {
                    let exclusive = [mine, theirs].contains(&&Some(LockKind::Exclusive));
                    let both = mine.is_some() && theirs.is_some();
                    assert!(!(both && exclusive), "{at}/{number} and {other}/{owner}");
                }
            }
        }
    }

    /// True if any caller has a byte locked.
    fn is_locked(&mut self, at: usize, flock: bool, byte: u64) -> bool {
        let owner = LockOwner { flock, number: 77 };
        let (first, last) = if flock { (0, u64::MAX) } else { (byte, byte) };
        let lock = Lock { owner, kind: LockKind::Exclusive, first, last, pid: 0 };
        let ino = self.peers[at].file.unwrap();
        self.ask(at, Request::TestLock { ino, lock });
        self.run_until_idle();
        self.in_the_way.take().unwrap()
    }

    /// Compares the server's locks with what callers believe to hold.
    fn check_known(&mut self, seed: u64) {
        for (flock, byte) in [false, true].into_iter().flat_map(|flock| (0..BYTES).map(move |at| (flock, at)))
        {
            let owners = if flock { 2..3 } else { 0..2 };
            let mut all = self.peers.iter().flat_map(|peer| &peer.bytes[owners.clone()]);
            let is_accepted = all.any(|bytes| bytes[byte].is_some());
            let is_locked = self.is_locked(0, flock, byte as u64);
            assert_eq!(is_locked, is_accepted, "seed {seed}: flock {flock}, byte {byte}");
        }
    }

    /// Delivers all messages in transit.
    fn run_until_idle(&mut self) {
        while (0..CLIENTS).any(|at| self.serve(at) || self.hear(at)) {}
    }
}

fn range(lock: &Lock) -> std::ops::Range<usize> {
    lock.first as usize..(lock.last.min(BYTES as u64 - 1) + 1) as usize
}

#[test]
fn locks_are_exclusive_and_every_waiter_is_granted() {
    let mut seen = [0; 3];
    for seed in 0..400 {
        let mut world = LockWorld::new(seed);
        for _ in 0..300 {
            let (at, owner) = (world.random.usize(..CLIENTS), world.random.usize(..OWNERS));
            match world.random.u32(..1000) {
                0..250 => world.begin(at, owner),
                250..290 => world.interrupt(at, owner),
                290..600 => drop(world.serve(at)),
                600..930 => drop(world.hear(at)),
                930..950 => world.disconnect(at),
                950..985 if world.peers[at].connection.is_none() => world.connect(at),
                985..995 => world.kill_server(),
                995..997 => world.silence(at),
                _ => {}
            }
        }
        for at in (0..CLIENTS).filter(|at| world.peers[*at].connection.is_none()).collect::<Vec<_>>() {
            world.connect(at);
        }
        world.run_until_idle();
        // A client whose session has ended at the server does not know of it yet.
        if world.seen[2] == 0 {
            world.check_known(seed);
        }
        // All clients reconnect and release their locks; each waiting request is granted.
        for _ in 0..CLIENTS * OWNERS + 1 {
            for at in (0..CLIENTS).filter(|at| world.peers[*at].connection.is_none()).collect::<Vec<_>>() {
                world.connect(at);
            }
            world.run_until_idle();
            for (at, number) in (0..CLIENTS).flat_map(|at| (0..OWNERS).map(move |owner| (at, owner))) {
                if world.is_idle(at, number) {
                    world.calls = (world.calls / OWNERS as u64 + 1) * OWNERS as u64 + number as u64;
                    world.peers[at].bytes[number] = Default::default();
                    let ino = world.peers[at].file.unwrap();
                    let request = Request::Unlock { ino, owner: owner(number), first: 0, last: u64::MAX };
                    world.ask(at, request);
                }
            }
            world.run_until_idle();
        }
        for at in 0..CLIENTS {
            let peer = &world.peers[at];
            assert!(peer.calls.is_empty() && peer.waits.is_empty(), "seed {seed}: {:?}", peer.waits);
            let lock = Lock {
                owner: LockOwner { flock: false, number: 77 },
                kind: LockKind::Exclusive,
                first: 0,
                last: u64::MAX,
                pid: 0,
            };
            let ino = peer.file.unwrap();
            world.fs.answers.clear();
            let id = (at as u64 + 1) << 32 | 1 << 31;
            world.fs.input(Input::Request {
                from: LockWorld::id(at),
                id: RequestId(id),
                below: RequestId(id),
                follows: Vec::new(),
                caller: ROOT_CALLER,
                request: Request::TestLock { ino, lock },
            });
            assert_eq!(world.fs.answers[&id], Ok(Reply::InTheWay(None)), "seed {seed}");
        }
        (0..3).for_each(|at| seen[at] += world.seen[at]);
    }
    assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
}
