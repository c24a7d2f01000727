//! The session layer: what clients are sent, in which order, and which of their messages are
//! accepted.

use crate::harness::{self, DataServers, Engine, STRIP, TestDisk, name, open_how};
use espalier_meta::*;
use espalier_proto::*;

const ONE: ClientId = ClientId(100);
const OTHER: ClientId = ClientId(101);

fn config() -> Config {
    Config { acknowledge: Acknowledge::Written, ..harness::config() }
}

/// A server without a network.
struct TestServer {
    session_layer: SessionLayer,
    disk: TestDisk,
    data: DataServers,
    config: Config,
    next: u64,
    uptime_ms: u64,
    connected: Vec<(ClientId, Result<Ino, Refused>)>,
    ended: Vec<ClientId>,
    said: Vec<(ClientId, FromServer)>,
    streams: Vec<StreamRequest>,
    /// I/O that is delayed.
    stuck: fn(&Io) -> bool,
    waiting: Vec<(IoId, Io)>,
}

impl TestServer {
    fn new(config: Config) -> Self {
        let config = Config { session_ms: Some(60_000), lease_ms: Some(10_000), ..config };
        let mut disk = TestDisk::new(Engine::Memory, &config);
        let session_layer = SessionLayer::new(disk.recover(&config));
        Self {
            session_layer,
            disk,
            data: DataServers::new(4),
            config,
            next: 0,
            uptime_ms: 0,
            connected: Vec::new(),
            ended: Vec::new(),
            said: Vec::new(),
            streams: Vec::new(),
            stuck: |_| false,
            waiting: Vec::new(),
        }
    }

    /// Ends the process, and restarts the server.
    fn restart(&mut self) {
        self.disk.sync_journal();
        self.session_layer = SessionLayer::new(self.disk.recover(&self.config));
        self.said.clear();
    }

    /// Writes everything to the tables.
    fn checkpoint(&mut self) {
        for _ in 0..100 {
            self.session_layer.input(self.now(), Input::Tick);
            self.run_until_idle();
        }
    }

    fn now(&self) -> Now {
        Now { time: Time::new(1000, 0), uptime_ms: self.uptime_ms, queued: 0 }
    }

    fn run_until_idle(&mut self) {
        loop {
            let routed = self.session_layer.route();
            self.connected.extend(routed.connected);
            self.ended.extend(routed.ended);
            self.said.extend(routed.send);
            self.streams.extend(routed.streams);
            if routed.io.is_empty() {
                return;
            }
            for (id, io) in routed.io {
                if (self.stuck)(&io) {
                    self.waiting.push((id, io));
                } else {
                    self.perform(id, io);
                }
            }
        }
    }

    fn perform(&mut self, id: IoId, io: Io) {
        let result = match io {
            Io::Stream(call, layouts) if !layouts.is_empty() => self.data.call(&call, &layouts),
            io => self.disk.execute(io),
        };
        self.session_layer.input(self.now(), Input::Done { id, result });
    }

    fn connect(&mut self, client: ClientId, rights: &Rights) -> Result<Ino, Refused> {
        self.session_layer.connect(self.now(), client, (true, false), Accesses::All, rights);
        self.run_until_idle();
        let (to, connected) = self.connected.pop().unwrap();
        assert_eq!((to, self.connected.len()), (client, 0));
        if connected.is_ok() {
            self.session_layer.attach(client);
            self.run_until_idle();
        }
        connected
    }

    /// Passes in a message, and returns what the server sends.
    fn take(&mut self, from: ClientId, rights: &Rights, message: FromClient) -> Vec<(ClientId, FromServer)> {
        self.session_layer.take(self.now(), from, rights, message).unwrap();
        self.session_layer.heard(self.now(), from);
        self.run_until_idle();
        std::mem::take(&mut self.said)
    }

    fn request(&mut self, caller: Caller, request: Request) -> FromClient {
        self.next += 1;
        let id = RequestId(self.next);
        FromClient::Request { id, below: id, follows: Vec::new(), announced: false, caller, request }
    }

    fn ask_as(&mut self, from: ClientId, rights: &Rights, request: Request) -> Result<Reply, Errno> {
        let message = self.request(ROOT, request);
        let mut said = self.take(from, rights, message);
        loop {
            let (to, message) = said.remove(0);
            match message {
                FromServer::Reply { result, .. } => return result,
                FromServer::Revoke { number, .. } => {
                    let revoked = FromClient::Revoked { number };
                    said.extend(self.take(to, &Rights::default(), revoked));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn ask(&mut self, from: ClientId, request: Request) -> Result<Reply, Errno> {
        self.ask_as(from, &Rights::default(), request)
    }

    fn make(&mut self, from: ClientId, dir: Ino, file: &str, node: NewNode) -> Ino {
        match self.ask(from, create(dir, file, node)) {
            Ok(Reply::Entry(entry)) => entry.attr.ino,
            other => panic!("{other:?}"),
        }
    }

    fn stream(&mut self, io: StreamIo) -> (RequestId, FromClient) {
        self.next += 1;
        let id = RequestId(self.next);
        (id, FromClient::Stream { id, below: id, announced: false, io, data: Vec::new().into() })
    }
}

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 1, groups: None };

fn create(dir: Ino, file: &str, node: NewNode) -> Request {
    Request::Create {
        dir,
        name: name(file),
        node,
        perm: 0o770,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    }
}

fn lookup(dir: Ino, file: &str) -> Request {
    Request::Lookup { dir, name: name(file) }
}

fn subtree(path: &str) -> Rights {
    Rights { subtree: Some(Subtree::try_from(path.to_string()).unwrap()), ..Rights::default() }
}

/// A caller whose groups matter.
const USER: Caller = Caller { uid: 7, gid: 7, pid: 70, groups: None };

#[test]
fn group_queries_are_resent_after_reconnect() {
    let mut server = TestServer::new(config());
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    let dir = server.make(ONE, Ino::ROOT, "dir", NewNode::Directory);
    let set = SetAttr { gid: Some(1000), ..SetAttr::default() };
    server.ask(ONE, Request::SetAttr { ino: dir, set }).unwrap();
    let message = server.request(USER, create(dir, "file", NewNode::Regular));
    let FromClient::Request { id, .. } = message else { unreachable!() };
    let asks = [(ONE, FromServer::AskGroups { id, pid: 70 })];
    assert_eq!(server.take(ONE, &all, message.clone()), asks);
    assert_eq!(server.session_layer.take(server.now(), ONE, &all, message), Ok(true));
    server.run_until_idle();
    assert_eq!(server.said, [], "a duplicate changes nothing");
    server.session_layer.detach(ONE);
    assert_eq!(server.connect(ONE, &all), Ok(Ino::ROOT));
    assert_eq!(std::mem::take(&mut server.said), asks);
    let squashed = Rights { root_squash: true, ..Rights::default() };
    let reported = server.take(ONE, &squashed, FromClient::Groups { id, groups: [0, 1000].into() });
    assert!(matches!(reported[0].1, FromServer::Reply { result: Ok(Reply::Entry(_)), .. }), "{reported:?}");
    let again = server.take(ONE, &all, FromClient::Groups { id, groups: [0].into() });
    assert_eq!(again, [], "no request needs groups");
}

#[test]
fn forgets_are_resent_over_next_connection() {
    let mut server = TestServer::new(config());
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    server.connect(OTHER, &all).unwrap();
    let ino = server.make(ONE, Ino::ROOT, "fifo", NewNode::Fifo);
    server.make(ONE, Ino::ROOT, "stays", NewNode::Fifo);
    server.ask(OTHER, lookup(Ino::ROOT, "fifo")).unwrap();
    server.ask(OTHER, lookup(Ino::ROOT, "stays")).unwrap();
    server.session_layer.detach(OTHER);
    // It does not report that it has stopped using the inode.
    server.uptime_ms += 50_000;
    let unlink = server.request(ROOT, Request::Unlink { dir: Ino::ROOT, name: name("fifo"), time: None });
    assert!(server.take(ONE, &all, unlink).iter().all(|(to, _)| *to == ONE));
    server.connect(OTHER, &all).unwrap();
    let recall = FromServer::Recall(vec![Recall { ino, dir: None, name: None }]);
    assert_eq!(std::mem::take(&mut server.said), [(OTHER, recall)]);
}

#[test]
fn leaving_client_gets_no_more_messages() {
    let mut server = TestServer::new(config());
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    let dir = server.make(ONE, Ino::ROOT, "dir", NewNode::Directory);
    let message = server.request(USER, create(dir, "file", NewNode::Regular));
    assert_eq!(server.take(ONE, &all, message).len(), 1);
    server.uptime_ms = 61_000;
    for _ in 0..2 {
        server.session_layer.input(server.now(), Input::Tick);
        server.run_until_idle();
    }
    assert_eq!(server.ended, [ONE]);
    server.said.clear();
    server.session_layer.attach(ONE);
    server.run_until_idle();
    assert_eq!(server.said, []);
}

#[test]
fn grant_precedes_revocation_and_revocation_precedes_change() {
    let mut server = TestServer::new(config());
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    server.connect(OTHER, &all).unwrap();
    server.connect(ClientId(102), &all).unwrap();
    server.make(ONE, Ino::ROOT, "file", NewNode::Regular);
    server.ask(OTHER, lookup(Ino::ROOT, "file")).unwrap();
    let unlink = server.request(ROOT, Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None });
    let reported = server.take(ONE, &all, unlink);
    let numbers: Vec<RevocationId> = reported
        .iter()
        .map(|(to, message)| match message {
            FromServer::Revoke { number, .. } if *to == OTHER => *number,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(!numbers.is_empty());
    let mut reported = Vec::new();
    for number in numbers {
        assert_eq!(reported, [], "all leases are revoked first");
        reported = server.take(OTHER, &all, FromClient::Revoked { number });
    }
    let (replies, others): (Vec<_>, Vec<_>) =
        reported.into_iter().partition(|(_, message)| matches!(message, FromServer::Reply { .. }));
    assert!(matches!(replies[..], [(ONE, FromServer::Reply { result: Ok(_), .. })]), "{replies:?}");
    // It has lost its last name: the clients that know it are recalled, and no others.
    assert!(
        matches!(others[..], [(ONE, FromServer::Recall(_)), (OTHER, FromServer::Recall(_))]),
        "{others:?}"
    );
}

#[test]
fn read_only_client_is_refused_changes() {
    let mut server = TestServer::new(config());
    let reader = Rights { read_only: true, ..Rights::default() };
    server.connect(ONE, &reader).unwrap();
    let creation = create(Ino::ROOT, "file", NewNode::Regular);
    assert_eq!(server.ask_as(ONE, &reader, creation.clone()), Err(Errno::EROFS));
    let (_, write) = server.stream(StreamIo::write(Ino(2), 0, 0));
    let reported = server.take(ONE, &reader, write);
    assert!(matches!(reported[0].1, FromServer::Reply { result: Err(Errno::EROFS), .. }), "{reported:?}");
    server.ask(ONE, creation).unwrap();
}

#[test]
fn restricted_client_sees_nothing_above_its_root() {
    let mut server = TestServer::new(config());
    let guest = subtree("/projects/a");
    server.connect(ONE, &Rights::default()).unwrap();
    assert_eq!(server.connect(OTHER, &guest), Err(Refused::Subtree(Errno::ENOENT)));
    // It leaves no session behind, which others would wait for.
    assert_eq!(server.session_layer.meta().figures().sessions, 1);
    let projects = server.make(ONE, Ino::ROOT, "projects", NewNode::Directory);
    let root = server.make(ONE, projects, "a", NewNode::Directory);
    let inside = server.make(ONE, root, "inside", NewNode::Directory);
    assert_eq!(server.connect(OTHER, &guest), Ok(root));
    // Its session exists already.
    assert_eq!(server.connect(OTHER, &guest), Ok(root));
    server.ask_as(OTHER, &guest, lookup(root, "inside")).unwrap();
    for dir in [root, inside] {
        let list = Request::ReadDir { dir, after: 0, limit: 10, plus: false };
        let listing = server.ask_as(OTHER, &guest, list);
        assert!(matches!(listing, Ok(Reply::Listing { parent, .. }) if parent == root), "{listing:?}");
    }
    for ino in [Ino::ROOT, projects] {
        assert_eq!(server.ask_as(OTHER, &guest, Request::GetAttr { ino }), Err(Errno::ESTALE));
    }
}

#[test]
fn restricted_client_stays_restricted_after_its_session() {
    let mut server = TestServer::new(config());
    let guest = subtree("/a");
    server.connect(ONE, &Rights::default()).unwrap();
    server.make(ONE, Ino::ROOT, "a", NewNode::Directory);
    server.connect(OTHER, &guest).unwrap();
    server.take(OTHER, &guest, FromClient::Goodbye);
    let message = server.request(ROOT, Request::GetAttr { ino: Ino::ROOT });
    assert_eq!(server.session_layer.take(server.now(), OTHER, &guest, message.clone()), Err(Unrestricted));
    server.session_layer.connect(server.now(), OTHER, (true, true), Accesses::All, &guest);
    server.run_until_idle();
    assert_eq!(server.connected.pop(), Some((OTHER, Err(Refused::Ended))));
    // A session has started, and its directory is still being looked up.
    server.checkpoint();
    server.restart();
    server.stuck = |io| matches!(io, Io::Load(_));
    server.session_layer.connect(server.now(), OTHER, (true, false), Accesses::All, &guest);
    server.run_until_idle();
    server.session_layer.connect(server.now(), OTHER, (true, false), Accesses::All, &guest);
    server.run_until_idle();
    assert_eq!((server.connected.len(), server.waiting.len()), (0, 1));
    assert_eq!(server.session_layer.take(server.now(), OTHER, &guest, message), Err(Unrestricted));
    server.stuck = |_| false;
    let (id, io) = server.waiting.remove(0);
    server.perform(id, io);
    server.run_until_idle();
    assert!(matches!(server.connected[..], [(OTHER, Ok(_))]));
}

#[test]
fn where_bytes_are_is_found_out_before_anything_is_done_with_them() {
    let servers: Vec<_> = (0..4).map(ServerId).collect();
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, servers, 3).unwrap();
    let mut server = TestServer::new(Config { striping: Some(striping), ..config() });
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    let (dir, how) = (Ino::ROOT, open_how(Access::READ | Access::WRITE, false));
    let (node, file) = (NewNode::Regular, name("file"));
    let made = Request::Create {
        dir,
        name: file,
        node,
        perm: 0o600,
        umask: 0,
        open: Some(how),
        exclusive: true,
        writeback: None,
    };
    let made = server.ask(ONE, made);
    let Ok(Reply::Created(entry, _)) = made else { panic!("{made:?}") };
    let ino = entry.attr.ino;
    let read = StreamIo::read(ino, 0, 10);
    let write = Request::Write {
        ino,
        offset: 0,
        data: vec![1; STRIP as usize].into(),
        kill_suid_gid: false,
        time: None,
    };
    server.ask(ONE, write).unwrap();
    let set = SetAttr { size: Some(100), ..SetAttr::default() };
    server.ask(ONE, Request::SetAttr { ino, set }).unwrap();
    // Files that are written to are loaded at a restart.
    server.ask(ONE, Request::Release { ino }).unwrap();
    server.checkpoint();
    let how = open_how(Access::READ, false);
    let opened = server.ask(ONE, Request::Open { ino, how });
    let Ok(Reply::Opened(opened)) = opened else { panic!("{opened:?}") };
    let (_, message) = server.stream(read);
    assert_eq!(server.take(ONE, &all, message), []);
    let first = server.streams.pop().unwrap();
    assert!(first.io == read && first.layout.is_some(), "{first:?}");

    server.make(ONE, dir, "other", NewNode::Regular);
    // A restarted server has none of this in memory.
    server.checkpoint();
    server.restart();
    server.connect(ONE, &all).unwrap();
    let held = Held {
        ino,
        location: entry.location,
        lookups: 1,
        opens: 1,
        lookup_token: entry.reclaim_token,
        opened: opened.reclaim_token,
        exclusive: false,
    };
    server.ask(ONE, Request::Reclaim { held: vec![held], last: true, again: vec![] }).unwrap();
    server.stuck = |io| matches!(io, Io::Load(_));
    let (id, message) = server.stream(read);
    assert_eq!(server.take(ONE, &all, message.clone()), []);
    assert_eq!((server.streams.len(), server.waiting.len()), (0, 1));
    let (id_io, io) = server.waiting.remove(0);
    server.stuck = |_| false;
    server.perform(id_io, io);
    server.run_until_idle();
    let then = server.streams.pop().unwrap();
    assert_eq!(then, StreamRequest { of: (ONE, id), ..first });
    assert_eq!(server.session_layer.take(server.now(), ONE, &all, message), Ok(false), "it is in progress");
    server.session_layer.end_stream((ONE, id), Ok(Reply::Bytes(vec![1; 10].into())));
    server.run_until_idle();
    let said = &server.said[..];
    assert!(
        matches!(said, [(ONE, FromServer::Reply { id: of, result: Ok(_), .. })] if *of == id),
        "{said:?}"
    );
}

/// After a power failure, a file that a client writes to may have no stream.
#[test]
fn stream_operation_on_stuffed_file_is_returned() {
    let mut server = TestServer::new(config());
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    let ino = server.make(ONE, Ino::ROOT, "file", NewNode::Regular);
    let how = open_how(Access::READ | Access::WRITE, false);
    server.ask(ONE, Request::Open { ino, how }).unwrap();
    let (id, message) = server.stream(StreamIo::write(ino, 0, 0));
    let said = server.take(ONE, &all, message);
    assert!(
        matches!(&said[..], [(ONE, FromServer::Reply { id: of, result: Ok(Reply::Stuffed), .. })] if *of == id),
        "{said:?}"
    );
    let set = SetAttr { size: Some(100), ..SetAttr::default() };
    server.ask(ONE, Request::SetAttr { ino, set }).unwrap();
    let (_, message) = server.stream(StreamIo::write(ino, 0, 0));
    assert_eq!((server.take(ONE, &all, message), server.streams.len()), (vec![], 1));
}

#[test]
fn request_follows_a_bounded_number_of_others() {
    let mut server = TestServer::new(config());
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    for (count, expected) in
        [(Request::MAX_FOLLOWED, Ok(())), (Request::MAX_FOLLOWED + 1, Err(Errno::EINVAL))]
    {
        let mut message = server.request(ROOT, Request::GetAttr { ino: Ino::ROOT });
        let FromClient::Request { follows, .. } = &mut message else { unreachable!() };
        *follows = vec![RequestId(0); count];
        let said = server.take(ONE, &all, message);
        let [(ONE, FromServer::Reply { result, .. })] = &said[..] else { panic!("{said:?}") };
        assert_eq!(result.clone().map(drop), expected);
    }
}

fn announced(mut message: FromClient) -> FromClient {
    if let FromClient::Request { announced, .. } | FromClient::Stream { announced, .. } = &mut message {
        *announced = true;
    }
    message
}

#[test]
fn answers_are_announced_as_their_requests_say() {
    let mut server = TestServer::new(config());
    let all = Rights::default();
    server.connect(ONE, &all).unwrap();
    let ino = server.make(ONE, Ino::ROOT, "file", NewNode::Regular);
    let how = open_how(Access::READ | Access::WRITE, false);
    server.ask(ONE, Request::Open { ino, how }).unwrap();
    let is_announced = |said: &[(ClientId, FromServer)]| match said {
        [(ONE, reply)] => reply.announced(),
        other => panic!("{other:?}"),
    };
    let read = Request::Read { ino, offset: 0, size: 10, noatime: false };
    let plain = server.request(ROOT, read.clone());
    assert!(!is_announced(&server.take(ONE, &all, plain)));
    let message = announced(server.request(ROOT, read));
    assert!(is_announced(&server.take(ONE, &all, message)));
    let set = SetAttr { size: Some(STRIP + 1), ..SetAttr::default() };
    server.ask(ONE, Request::SetAttr { ino, set }).unwrap();
    for wanted in [false, true] {
        let (id, message) = server.stream(StreamIo::read(ino, 0, 10));
        let message = if wanted { announced(message) } else { message };
        assert_eq!(server.take(ONE, &all, message), []);
        server.session_layer.end_stream((ONE, id), Ok(Reply::Bytes(vec![0; 10].into())));
        server.run_until_idle();
        assert_eq!(is_announced(&std::mem::take(&mut server.said)), wanted);
    }
}

// ---- Writes to streams

/// A big file of 100 bytes that a client has open for writing.
fn big_file(server: &mut TestServer) -> Ino {
    server.connect(ONE, &Rights::default()).unwrap();
    let ino = server.make(ONE, Ino::ROOT, "big", NewNode::Regular);
    server.ask(ONE, Request::Open { ino, how: open_how(Access::WRITE, false) }).unwrap();
    let set = SetAttr { size: Some(100), ..SetAttr::default() };
    server.ask(ONE, Request::SetAttr { ino, set }).unwrap();
    ino
}

impl TestServer {
    /// Writes ten bytes. Returns the answer if there is one already.
    fn write(&mut self, ino: Ino, offset: u64) -> (RequestId, Option<Result<Reply, Errno>>) {
        let (id, mut message) = self.stream(StreamIo::write(ino, offset, 10));
        if let FromClient::Stream { data, .. } = &mut message {
            *data = vec![1; 10].into();
        }
        let said = self.take(ONE, &Rights::default(), message);
        (id, answer_to(id, said))
    }

    /// Executes delayed I/O.
    fn advance(&mut self) {
        self.stuck = |_| false;
        for (id, io) in std::mem::take(&mut self.waiting) {
            self.perform(id, io);
        }
        self.run_until_idle();
    }

    fn limit(&mut self, max_bytes: &str) {
        let (name, value) = (b"user.espalier.quota.max_bytes"[..].into(), max_bytes.as_bytes().into());
        let set = Request::SetXattr { ino: Ino::ROOT, name, value, mode: XattrMode::Any, kill_sgid: false };
        self.ask(ONE, set).unwrap();
    }
}

fn answer_to(id: RequestId, said: Vec<(ClientId, FromServer)>) -> Option<Result<Reply, Errno>> {
    said.into_iter().find_map(|(_, message)| match message {
        FromServer::Reply { id: of, result, .. } if of == id => Some(result),
        _ => None,
    })
}

#[test]
fn quota_bounds_stream_writes() {
    let mut server = TestServer::new(config());
    let ino = big_file(&mut server);
    server.limit("150");
    assert_eq!(server.write(ino, 141).1, Some(Err(Errno::EDQUOT)));
    assert_eq!(server.streams.len(), 0);
    assert_eq!((server.write(ino, 140).1, server.streams.len()), (None, 1));
}

#[test]
fn a_write_to_a_stream_takes_a_programs_capabilities_away_first() {
    let mut server = TestServer::new(config());
    let ino = big_file(&mut server);
    let (name, value) = (b"security.capability"[..].into(), b"some".to_vec().into());
    let set = Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false };
    server.ask(ONE, set).unwrap();
    assert_eq!((server.write(ino, 0).1, server.streams.len()), (None, 1));
    let get = Request::GetXattr { ino, name: b"security.capability"[..].into() };
    assert_eq!(server.ask(ONE, get), Err(Errno::ENODATA));
}

/// Changes that accompany a write are durable before the write is acknowledged.
#[test]
fn stream_write_waits_for_its_metadata() {
    for is_closed in [false, true] {
        let mut server = TestServer::new(Config { acknowledge: Acknowledge::Durable, ..config() });
        let ino = big_file(&mut server);
        server.limit("150");
        server.stuck = |io| matches!(io, Io::Journal { .. } | Io::Sync);
        assert_eq!((server.write(ino, 120).1, server.streams.len()), (None, 0));
        // This write changes nothing else.
        assert_eq!((server.write(ino, 110).1, server.streams.len()), (None, 1));
        if is_closed {
            let release = server.request(ROOT, Request::Release { ino });
            server.take(ONE, &Rights::default(), release);
        }
        server.advance();
        assert_eq!(server.streams.len(), if is_closed { 1 } else { 2 });
    }
}

#[test]
fn a_write_to_a_stream_that_waits_for_room_can_be_interrupted() {
    let mut server = TestServer::new(Config { journal_capacity: 1 << 20, ..config() });
    let ino = big_file(&mut server);
    server.limit("1000000");
    server.stuck = |io| matches!(io, Io::Stage { .. });
    let (mut begun, mut offset) = (0, 100);
    let id = loop {
        let (id, answer) = server.write(ino, offset);
        assert_eq!(answer, None);
        if server.streams.len() == begun {
            break id;
        }
        (begun, offset) = (begun + 1, offset + 1);
        assert!(begun < 100_000, "the journal never fills");
    };
    let said = server.take(ONE, &Rights::default(), FromClient::Cancel { id });
    assert_eq!(answer_to(id, said), Some(Err(Errno::EINTR)));
    server.advance();
    assert_eq!(server.streams.len(), begun);
}
