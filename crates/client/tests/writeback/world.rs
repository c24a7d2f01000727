//! A client's state machine and a scripted server.

use std::collections::BTreeMap;

use espalier_client::{
    Actions, Answer, Cache, Call, DataOperation, FrontendEvent, IncomingCall, Sessions, Users,
};
use espalier_proto::{
    Access, Attr, Caller, Dirent, Entry, Errno, FileType, FromClient, FromServer, Held, Ino, Lease, Location,
    Name, NewNode, OpenHow, Opened, Rank, Reply, Request, RequestId, RevocationId, ServerId, ServerMap, Time,
    Touched, Welcome,
};

pub const RANK: Rank = Rank(0);
pub const DIR: Ino = Ino(10);
pub const FIRST: u64 = 1000;
pub const TERM: u32 = 10_000;
pub const STRIP: u32 = 100;

/// A client's state machine and a scripted server.
pub struct ClientWorld {
    pub sessions: Sessions<u64>,
    pub now: u64,
    pub calls: u64,
    /// Term of the leases that the server grants, in ms.
    pub term: u32,
    /// Unanswered requests.
    pub sent: Vec<(RequestId, Caller, Request)>,
    /// Requests that follow others, with these.
    pub follows: BTreeMap<RequestId, Vec<RequestId>>,
    /// Unanswered writes to streams at the metadata server.
    pub streams: Vec<Streamed>,
    pub revoked: Vec<u64>,
    pub held: Vec<Held>,
    /// Times reported to servers.
    pub clocks: Vec<(Rank, Time)>,
    pub frontend: Vec<FrontendEvent<u64>>,
    /// Requests to data servers.
    pub data: Vec<DataOperation>,
}

/// A write to a stream.
pub struct Streamed {
    pub id: RequestId,
    /// Offset and length of each piece.
    pub pieces: Vec<(u64, usize)>,
    pub acknowledged: bool,
    pub bytes: Vec<u8>,
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

pub fn attr(ino: Ino, kind: FileType, size: u64) -> Attr {
    Attr { size, nlink: 1, ..Attr::new(ino, kind, 0o755, Time::new(1, 0)) }
}

pub fn entry(attr: Attr, sole_holder: bool) -> Entry {
    let (cacheable, name_leased, attr_leased, location) = (true, true, true, Location::Table);
    Entry { attr, cacheable, name_leased, attr_leased, sole_holder, location, reclaim_token: 1 }
}

pub fn make(file: &str, node: NewNode) -> Request {
    let (perm, umask, open, exclusive, writeback) = (0o666, 0o022, None, true, None);
    Request::Create { dir: DIR, name: name(file), node, perm, umask, open, exclusive, writeback }
}

pub fn create(file: &str, open: bool) -> Request {
    let how = OpenHow { access: Access::WRITE, ..OpenHow::default() };
    let (node, perm, umask, exclusive, writeback) = (NewNode::Regular, 0o666, 0o022, true, None);
    Request::Create {
        dir: DIR,
        name: name(file),
        node,
        perm,
        umask,
        open: open.then_some(how),
        exclusive,
        writeback,
    }
}

pub fn unlink(file: &str) -> Request {
    Request::Unlink { dir: DIR, name: name(file), time: None }
}

pub fn lookup(file: &str) -> Request {
    Request::Lookup { dir: DIR, name: name(file) }
}

pub fn write(ino: u64, offset: u64, data: &'static [u8]) -> Call<'static> {
    Call::write(Ino(ino), offset, data.into(), false)
}

pub fn user(uid: u32, gid: u32) -> Caller {
    Caller { uid, gid, pid: 77, groups: None }
}

pub fn numbers() -> Reply {
    let (first, time) = (Ino(FIRST), Time::new(500, 0));
    Reply::Numbers { first, count: 256, time, strip: STRIP, accesses: true }
}

impl ClientWorld {
    /// A client with an exclusive lease on a directory that it has listed and that contains one
    /// file.
    pub fn new() -> Self {
        Self::of(true)
    }

    /// `is_checked`: a kernel checks permissions.
    pub fn of(is_checked: bool) -> Self {
        Self::without_numbers(is_checked).with_numbers()
    }

    /// A client of two ranks.
    pub fn of_two_ranks() -> Self {
        Self::without_numbers_of(2, true).with_numbers()
    }

    fn with_numbers(self) -> Self {
        let mut world = self;
        // A client that makes a change under leases requests inode numbers.
        world.call(make("fifo", NewNode::Fifo));
        let (id, ..) = world.last();
        let touched = Touched { attrs: vec![attr(DIR, FileType::Directory, 2)], ..Touched::default() };
        let fifo = entry(attr(Ino(12), FileType::Fifo, 0), true);
        world.reply(id, Touched { exclusive: Some(DIR), ..touched }, Ok(Reply::Entry(fifo)));
        let (id, _, request) = world.last();
        assert_eq!(request, Request::TakeNumbers { rank: RANK, count: 256 });
        world.reply(id, Touched::default(), Ok(numbers()));
        world.frontend.clear();
        world
    }

    pub fn without_numbers(is_checked: bool) -> Self {
        Self::without_numbers_of(1, is_checked)
    }

    fn without_numbers_of(ranks: usize, is_checked: bool) -> Self {
        let sessions = Sessions::new(Cache::new(1000, Users::Report), ranks, is_checked);
        let (sent, follows, streams, revoked, held, clocks, frontend, data) = Default::default();
        let (now, calls, term) = (100, 0, TERM);
        let mut world = Self {
            sessions,
            now,
            calls,
            term,
            sent,
            follows,
            streams,
            revoked,
            held,
            clocks,
            frontend,
            data,
        };
        for rank in 0..ranks {
            world.connect_to(Rank(rank as u16), 1, true);
        }
        // A lookup of its name makes the directory known.
        let root = Request::Lookup { dir: Ino::ROOT, name: name("dir") };
        world.call(root);
        let (id, ..) = world.last();
        let dir = entry(attr(DIR, FileType::Directory, 1), true);
        world.reply(id, Touched::default(), Ok(Reply::Entry(dir)));
        world.list();
        world
    }

    pub fn list(&mut self) {
        self.call(Request::ReadDir { dir: DIR, after: 0, limit: 10, plus: true });
        let (id, ..) = self.last();
        self.reply_listing(id);
    }

    pub fn reply_listing(&mut self, id: RequestId) {
        let old = entry(attr(Ino(11), FileType::Regular, 0), true);
        let dirent = Dirent {
            name: name("old"),
            ino: Ino(11),
            kind: FileType::Regular,
            cursor: 7,
            entry: Some(old),
            remote: None,
        };
        let listing = Reply::Listing { entries: vec![dirent], parent: Ino::ROOT, end: true, until: u64::MAX };
        self.reply(id, Touched { exclusive: Some(DIR), ..Touched::default() }, Ok(listing));
    }

    pub fn connect(&mut self, incarnation: u64, resumed: bool) {
        self.connect_to(RANK, incarnation, resumed);
    }

    fn connect_to(&mut self, rank: Rank, incarnation: u64, resumed: bool) {
        let servers = ServerMap { data: vec![(ServerId(0), String::new())], ..ServerMap::NONE };
        let (window, session_ms, root) = (1024, 60_000, Ino::ROOT);
        let welcome = Welcome { incarnation, window, session_ms, rank, root, servers, data_pool: None };
        let mut actions = Actions::default();
        self.sessions.disconnected(rank);
        self.sent.clear();
        if !resumed {
            self.sessions.ended(self.now, rank, &mut actions);
        }
        self.sessions.connected(self.now, rank, &welcome, &mut actions);
        self.take(actions);
        for reclaim in self
            .sent
            .extract_if(.., |(_, _, request)| matches!(request, Request::Reclaim { .. }))
            .collect::<Vec<_>>()
        {
            let Request::Reclaim { held, .. } = reclaim.2 else { continue };
            self.held.extend(held);
            self.reply(reclaim.0, Touched::default(), Ok(Reply::Done));
        }
    }

    pub fn take(&mut self, actions: Actions<u64>) {
        for (rank, message) in actions.send {
            match message {
                FromClient::Request { id, follows, caller, request, .. } => {
                    self.sent.push((id, caller, request));
                    self.follows.insert(id, follows);
                }
                FromClient::Stream { id, io, data, .. } if io.op.is_write() => {
                    io.check(&data).expect("a valid write");
                    let list = io.op.pieces(&data).expect("a list of pieces");
                    let bytes = list.iter().flat_map(|(_, piece)| *piece).copied().collect();
                    let pieces = list.iter().map(|(offset, piece)| (*offset, piece.len())).collect();
                    self.streams.push(Streamed { id, pieces, acknowledged: io.acknowledged, bytes });
                }
                FromClient::Revoked { number } => self.revoked.push(number.0),
                FromClient::Clock { time } => self.clocks.push((rank, time)),
                _ => {}
            }
        }
        self.frontend.extend(actions.frontend);
        self.data.extend(actions.data);
    }

    pub fn call_as(&mut self, caller: Caller, call: Call<'static>) -> u64 {
        self.calls += 1;
        let mut actions = Actions::default();
        if let Some((result, lease_ms)) = self.sessions.answer(self.now, &caller, &call) {
            self.frontend.push(FrontendEvent::Answer { ticket: self.calls, result, lease_ms });
        } else {
            let incoming = IncomingCall { call_id: self.calls, caller, call, ticket: self.calls };
            self.sessions.call(self.now, incoming, &mut actions);
        }
        self.take(actions);
        self.calls
    }

    pub fn call(&mut self, request: Request) -> u64 {
        self.call_as(user(0, 0), Call::Request(request))
    }

    pub fn last(&self) -> (RequestId, Caller, Request) {
        self.sent.last().cloned().expect("a request was sent")
    }

    pub fn reply(&mut self, id: RequestId, touched: Touched, result: Result<Reply, Errno>) {
        self.sent.retain(|(sent, ..)| *sent != id);
        let mut actions = Actions::default();
        self.sessions.received(
            self.now,
            RANK,
            FromServer::Reply { id, lease_ms: self.term, announced: false, touched, result },
            &mut actions,
        );
        self.take(actions);
    }

    /// The server applies a create.
    pub fn made(&mut self, id: RequestId, ino: u64, entries: u64) {
        let how = Opened { reclaim_token: 3, ..Opened::default() };
        let made = Attr { perm: 0o644, ..attr(Ino(ino), FileType::Regular, 0) };
        let touched = Touched { attrs: vec![attr(DIR, FileType::Directory, entries)], ..Touched::default() };
        let touched = Touched { exclusive: Some(DIR), ..touched };
        self.reply(id, touched, Ok(Reply::Created(entry(made, true), how)));
    }

    /// The answer to a call, if it has been answered.
    pub fn answer(&mut self, call: u64) -> Option<Result<Answer, Errno>> {
        let is_match = |actions: &mut FrontendEvent<u64>| matches!(actions, FrontendEvent::Answer { ticket, .. } if *ticket == call);
        match self.frontend.extract_if(.., is_match).next()? {
            FrontendEvent::Answer { result, .. } => Some(result),
            _ => None,
        }
    }

    pub fn is_answered(&mut self, request: Request) -> bool {
        let call = self.call(request);
        self.answer(call).is_some()
    }

    /// Makes a write; returns whether it is answered at once.
    pub fn is_written(&mut self, write: Call<'static>) -> bool {
        let call = self.call_as(user(0, 0), write);
        matches!(self.answer(call), Some(Ok(Answer::Written(_))))
    }

    /// The last request, if it is a write.
    pub fn last_write(&self) -> Option<(RequestId, u64, Option<Time>)> {
        match self.sent.last()? {
            (id, _, Request::Write { offset, time, .. }) => Some((*id, *offset, *time)),
            _ => None,
        }
    }

    pub fn size_of_dir(&mut self) -> Option<u64> {
        self.size_of(DIR)
    }

    pub fn size_of(&mut self, ino: Ino) -> Option<u64> {
        let call = self.call(Request::GetAttr { ino });
        match self.answer(call)? {
            Ok(Answer::Attr(attr)) => Some(attr.size),
            other => panic!("{other:?}"),
        }
    }

    /// The machine's timer ticks.
    pub fn tick(&mut self) {
        let mut actions = Actions::default();
        self.sessions.tick(self.now, |_| false, &mut actions);
        self.take(actions);
    }

    pub fn revoke(&mut self, number: u64) {
        self.revoke_lease(number, Lease::Exclusive { dir: DIR });
    }

    /// The server revokes the lease, and the frontend gives it up at once.
    pub fn revoke_inode(&mut self, number: u64, ino: Ino) {
        self.revoke_lease(number, Lease::Inode { ino });
        let mut actions = Actions::default();
        self.sessions.revoked(RANK, RevocationId(number), &mut actions);
        self.take(actions);
    }

    pub fn revoke_data(&mut self, number: u64, ino: Ino) {
        self.revoke_lease(number, Lease::Data { ino });
    }

    pub fn revoke_unannounced(&mut self, number: u64, ino: Ino) {
        self.revoke_lease(number, Lease::Unannounced { ino });
    }

    fn revoke_lease(&mut self, number: u64, lease: Lease) {
        let number = RevocationId(number);
        let mut actions = Actions::default();
        self.sessions.received(self.now, RANK, FromServer::Revoke { number, lease }, &mut actions);
        self.take(actions);
    }
}
