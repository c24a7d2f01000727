use bytes::Bytes;
use espalier_proto::{Access, Capability, RangeOp, StreamStat, write_list};

use super::*;

const SERVER: ServerId = ServerId(1);
const A: Requester = Requester::Server(SERVER);
const CLIENT: Requester = Requester::Client(ClientId(77));
const FILE: Ino = Ino(9);

struct TestServer {
    data: Data,
    out: Outbox,
}

impl TestServer {
    fn new() -> Self {
        let mut server = Self { data: Data::default(), out: Outbox::default() };
        server.connect(1, 1);
        server
    }

    fn connect(&mut self, incarnation: u64, connection: u64) {
        self.data.on(Input::Connect { from: A, incarnation, connection }, &mut self.out);
    }

    fn ask(&mut self, connection: u64, id: u64, request: DataRequest) {
        let message = ToData { id: RequestId(id), request, capability: None };
        self.data.on(Input::Request { from: A, connection, message }, &mut self.out);
    }

    /// A client sends a request over connection 9.
    fn ask_with(&mut self, capability: Capability, id: u64, request: DataRequest) {
        let message = ToData { id: RequestId(id), request, capability: Some(capability) };
        self.data.on(Input::Request { from: CLIENT, connection: 9, message }, &mut self.out);
    }

    fn admit(&mut self, id: u64, below: u64, live: &[u64]) {
        self.ask(1, id, DataRequest::Admit { below, live: live.into(), durable: 0 });
    }

    /// The results of the client's requests.
    fn replies(&mut self) -> Vec<Result<DataReply, Errno>> {
        let of_client = self.out.replies.drain(..).filter(|(connection, _)| *connection == 9);
        of_client.map(|(_, reply)| reply.result).collect()
    }

    /// Executes the machine's first I/O and returns it.
    fn work(&mut self) -> Io {
        let (id, io) = self.out.io.remove(0);
        self.data.on(Input::Done { id, result: Ok(DataReply::Done) }, &mut self.out);
        io
    }

    /// Answered requests with their connections.
    fn answered(&mut self) -> Vec<(u64, u64)> {
        self.out.replies.drain(..).map(|(connection, reply)| (connection, reply.id.0)).collect()
    }
}

fn write(byte: u8) -> DataRequest {
    DataRequest::write(FILE, 0, vec![byte].into())
}

#[test]
fn repeated_request_does_not_run_concurrently() {
    let mut server = TestServer::new();
    server.ask(1, 1, write(1));
    server.connect(1, 2);
    server.ask(1, 2, write(2));
    server.ask(2, 1, write(1));
    assert_eq!(server.out.io.len(), 1, "and what comes by the old connection is not listened to");
    server.work();
    assert_eq!(server.answered(), [(2, 1)], "by the connection that it has now");
    server.ask(2, 1, write(1));
    assert_eq!(server.out.io.len(), 1, "what was answered is done again");
}

#[test]
fn datafile_replacements_run_exclusively_and_in_order() {
    let mut server = TestServer::new();
    server.ask(1, 1, write(1));
    server.ask(1, 2, write(2));
    assert_eq!(server.out.io.len(), 2, "writes do not wait for each other");
    server.ask(1, 3, DataRequest::Truncate { ino: FILE, size: 0, by: None });
    server.ask(1, 4, write(4));
    server.ask(1, 5, DataRequest::Stat { inos: vec![FILE] });
    server.ask(1, 6, DataRequest::write(Ino(8), 0, vec![].into()));
    assert_eq!(server.out.io.len(), 4, "a stat, and another file, wait for nothing");
    server.work();
    assert_eq!(server.out.io.len(), 3);
    server.work();
    let last = &server.out.io.last().expect("what has waited").1;
    assert_eq!(*last, Io::Request(DataRequest::Truncate { ino: FILE, size: 0, by: None }));
    while !server.out.io.is_empty() {
        server.work();
    }
    assert_eq!(server.answered().last(), Some(&(1, 4)));
    assert!(server.data.files.is_empty() && server.data.under_way() == 0);
}

#[test]
fn a_truncation_is_done_once_for_a_request() {
    let mut server = TestServer::new();
    let truncation = |client, request| DataRequest::Truncate {
        ino: FILE,
        size: 0,
        by: Some((ClientId(client), RequestId(request))),
    };
    let mut done = |id, fails: bool, request| {
        server.ask(1, id, request);
        let runs = server.out.io.pop();
        if let Some((id, _)) = &runs {
            let id = *id;
            let result = if fails { Err(Errno::EIO) } else { Ok(DataReply::Done) };
            server.data.on(Input::Done { id, result }, &mut server.out);
        }
        assert_eq!(server.answered(), [(1, id)]);
        runs.is_some()
    };
    assert!(done(1, true, truncation(1, 5)));
    assert!(done(2, false, truncation(1, 5)), "it has failed before");
    assert!(done(3, false, write(1)));
    // The metadata server has restarted, and its client repeats the request.
    assert!(!done(4, false, truncation(1, 5)));
    assert!(done(5, false, truncation(1, 6)) && done(6, false, truncation(2, 5)));
    assert!(!done(7, false, truncation(1, 5)), "others may have been asked for since");
    let of_itself = || DataRequest::Truncate { ino: FILE, size: 0, by: None };
    assert!(done(8, false, of_itself()) && done(9, false, of_itself()));
    assert!(server.data.files.is_empty() && server.data.under_way() == 0);
    // In order: later requests go on.
    for (id, request) in [write(1), truncation(1, 5), write(2)].into_iter().enumerate() {
        server.ask(1, 10 + id as u64, request);
    }
    server.work();
    server.work();
    assert_eq!(server.answered(), [(1, 10), (1, 11), (1, 12)]);
    assert!(server.data.files.is_empty() && server.data.under_way() == 0);
}

#[test]
fn removals_are_answered_when_they_are_durable() {
    let mut server = TestServer::new();
    for id in 1..=3 {
        server.ask(1, id, DataRequest::Remove { ino: Ino(id) });
    }
    server.work();
    assert!(server.answered().is_empty());
    server.work();
    server.work();
    assert_eq!(server.work(), Io::SyncRemoved);
    assert_eq!(server.answered(), [(1, 1)], "of the others that sync knew nothing");
    assert_eq!(server.work(), Io::SyncRemoved);
    assert_eq!(server.answered(), [(1, 2), (1, 3)]);
    assert!(server.out.io.is_empty());
}

#[test]
fn datafiles_that_are_made_share_a_write() {
    let mut server = TestServer::new();
    for id in 1..=3 {
        server.ask(1, id, DataRequest::Create { ino: Ino(id), sync: true });
    }
    server.ask(1, 4, DataRequest::write(Ino(3), 0, vec![].into()));
    assert_eq!(server.work(), Io::Create(vec![Ino(1)]));
    assert_eq!(server.answered(), [(1, 1)]);
    assert_eq!(server.data.requests_of(server.out.io[0].0).len(), 2);
    assert_eq!(server.work(), Io::Create(vec![Ino(2), Ino(3)]));
    assert_eq!(server.answered(), [(1, 2), (1, 3)]);
    server.work();
    assert_eq!(server.answered(), [(1, 4)], "what came for one of them later has waited");
    assert!(server.out.io.is_empty() && server.data.under_way() == 0);

    // A request that need not be durable does not wait for those that must be.
    server.ask(1, 5, DataRequest::Create { ino: Ino(4), sync: true });
    server.ask(1, 6, DataRequest::Create { ino: Ino(5), sync: false });
    assert_eq!(
        server.out.io.pop().map(|(_, io)| io),
        Some(Io::Request(DataRequest::Create { ino: Ino(5), sync: false }))
    );
    assert_eq!(server.work(), Io::Create(vec![Ino(4)]));
    let mut server = TestServer::new();

    server.data.individually = true;
    (5..=7).for_each(|id| server.ask(1, id, DataRequest::Create { ino: Ino(id), sync: true }));
    (5..=7).for_each(|id| assert_eq!(server.work(), Io::Create(vec![Ino(id)])));
    assert!(server.out.io.is_empty());
}

#[test]
fn failed_datafile_creation_is_reported_and_blocks_nothing() {
    let mut server = TestServer::new();
    server.ask(1, 1, DataRequest::Create { ino: FILE, sync: true });
    server.ask(1, 2, DataRequest::Create { ino: Ino(8), sync: true });
    server.ask(1, 3, write(3));
    let (id, _) = server.out.io.remove(0);
    server.data.on(Input::Done { id, result: Err(Errno::ENOSPC) }, &mut server.out);
    assert_eq!(server.out.replies.pop().map(|(_, reply)| reply.result), Some(Err(Errno::ENOSPC)));
    while !server.out.io.is_empty() {
        server.work();
    }
    assert_eq!(server.answered(), [(1, 3), (1, 2)]);
}

#[test]
fn failed_removal_is_reported_and_blocks_nothing() {
    let mut server = TestServer::new();
    server.ask(1, 1, DataRequest::Remove { ino: FILE });
    server.ask(1, 2, write(2));
    let (id, _) = server.out.io.remove(0);
    server.data.on(Input::Done { id, result: Err(Errno::EIO) }, &mut server.out);
    assert_eq!(server.out.replies.pop().map(|(_, reply)| reply.result), Some(Err(Errno::EIO)));
    server.work();
    assert_eq!(server.answered(), [(1, 2)]);
}

#[test]
fn malformed_requests_are_refused() {
    let mut server = TestServer::new();
    server.ask(1, 1, DataRequest::write(FILE, espalier_proto::END, vec![1].into()));
    server.ask(1, 2, DataRequest::Stat { inos: vec![FILE; DataRequest::MAX_INODES + 1] });
    assert!(server.out.io.is_empty());
    assert!(server.out.replies.iter().all(|(_, reply)| reply.result == Err(Errno::EINVAL)));
    server.ask(1, 3, DataRequest::Stat { inos: vec![FILE] });
    let (id, _) = server.out.io.remove(0);
    let stats = DataReply::Stats(vec![StreamStat::default()]);
    server.data.on(Input::Done { id, result: Ok(stats.clone()) }, &mut server.out);
    assert_eq!(server.out.replies.pop().map(|(_, reply)| reply.result), Some(Ok(stats)));
}

/// The write of an earlier incarnation would overwrite the next one's.
#[test]
fn requests_from_before_a_restart_are_done_first() {
    let mut server = TestServer::new();
    server.ask(1, 1, write(1));
    server.ask(1, 2, DataRequest::Remove { ino: FILE });
    server.connect(2, 2);
    server.ask(2, 1, write(2));
    server.ask(2, 2, DataRequest::New);
    assert_eq!(server.out.io.len(), 1);
    for expected in [write(1), DataRequest::Remove { ino: FILE }] {
        assert_eq!(server.work(), Io::Request(expected));
    }
    assert_eq!(server.work(), Io::SyncRemoved);
    assert_eq!(server.work(), Io::Request(write(2)));
    assert_eq!(server.work(), Io::Request(DataRequest::New));
    assert_eq!(server.answered().last(), Some(&(2, 2)));
}

/// A capability that incarnation 1 of the server grants to a session.
fn capability(session: u64) -> Capability {
    let access = Access::READ | Access::WRITE;
    let (since, announced, seal) = (0, false, [0; 32]);
    Capability { ino: FILE, access, server: SERVER, incarnation: 1, session, since, announced, seal }
}

fn with_client() -> TestServer {
    let mut server = TestServer::new();
    server.data.on(Input::Connect { from: CLIENT, incarnation: 0, connection: 9 }, &mut server.out);
    server
}

const STALE: Result<DataReply, Errno> = Ok(DataReply::Stale);
const DONE: Result<DataReply, Errno> = Ok(DataReply::Done);

#[test]
fn capabilities_limit_clients() {
    let mut server = with_client();
    server.admit(1, 1, &[]);
    let read_only = Capability { access: Access::READ, ..capability(1) };
    server.ask_with(read_only, 1, DataRequest::read(FILE, 0, 1));
    server.ask_with(read_only, 2, DataRequest::Stat { inos: vec![FILE] });
    server.ask_with(capability(1), 3, write(1));
    assert_eq!(server.out.io.len(), 3);
    server.replies();
    server.ask_with(read_only, 4, write(1));
    server.ask_with(capability(1), 5, DataRequest::write(Ino(8), 0, vec![1].into()));
    server.ask_with(capability(1), 6, DataRequest::Stat { inos: vec![FILE, Ino(8)] });
    for (id, request) in [
        DataRequest::Truncate { ino: FILE, size: 0, by: None },
        DataRequest::Create { ino: FILE, sync: true },
        DataRequest::Remove { ino: FILE },
        DataRequest::Sync { ino: FILE },
        DataRequest::Precreate { inos: vec![FILE] },
        DataRequest::Discard { inos: vec![FILE] },
        DataRequest::New,
        DataRequest::Admit { below: 1, live: vec![], durable: 0 },
    ]
    .into_iter()
    .enumerate()
    {
        server.ask_with(capability(1), 7 + id as u64, request);
    }
    let message = ToData { id: RequestId(20), request: write(1), capability: None };
    server.data.on(Input::Request { from: CLIENT, connection: 9, message }, &mut server.out);
    assert_eq!(server.out.io.len(), 3);
    assert_eq!(server.replies(), vec![Err(Errno::EACCES); 12]);
    let of_datafiles = Capability { access: Access::EXEC, ..capability(1) };
    server.ask_with(of_datafiles, 21, write(1));
    assert_eq!(server.replies(), [Err(Errno::EACCES)]);
    server.ask_with(of_datafiles, 22, DataRequest::Create { ino: FILE, sync: true });
    assert_eq!(server.out.io.len(), 3, "it waits until nothing else is done with the file");
    assert_eq!(server.replies(), []);
}

#[test]
fn ended_session_is_refused() {
    let mut server = with_client();
    server.ask_with(capability(1), 1, write(1));
    assert_eq!(server.replies(), [STALE], "of that server nothing has been heard");
    server.admit(1, 1, &[]);
    server.ask_with(capability(1), 2, write(1));
    server.ask_with(capability(2), 3, write(2));
    server.ask(1, 5, DataRequest::Truncate { ino: FILE, size: 0, by: None });
    server.ask_with(capability(1), 4, write(3));
    assert_eq!(server.answered(), [(1, 1)]);
    server.admit(6, 3, &[2]);
    server.ask_with(capability(1), 5, write(1));
    assert_eq!(server.replies(), [STALE]);
    server.ask_with(capability(3), 6, write(3));
    assert_eq!(server.replies(), [], "one that is newer waits for the truncation");
    let mut order = Vec::new();
    while !server.out.io.is_empty() {
        server.work();
        order.extend(server.answered().into_iter().map(|(_, id)| id));
    }
    assert_eq!(order, [2, 3, 5, 4, 6, 6], "the end of a session is the end of what it has asked");
    // A late copy does not revive it.
    server.admit(7, 2, &[1]);
    server.admit(8, 3, &[1, 2]);
    server.ask_with(capability(1), 7, write(1));
    server.ask_with(capability(2), 8, write(1));
    assert_eq!(server.replies(), [STALE]);
}

#[test]
fn restarted_metadata_server_rejects_old_capabilities() {
    let mut server = with_client();
    server.admit(1, 1, &[]);
    server.ask_with(capability(1), 1, write(1));
    server.connect(2, 2);
    server.ask_with(capability(1), 2, write(1));
    let next = Capability { incarnation: 2, ..capability(1) };
    server.ask_with(next, 3, write(1));
    assert_eq!(server.replies(), [STALE, STALE], "it has not said anything yet");
    server.ask(2, 1, DataRequest::Admit { below: 1, live: vec![], durable: 0 });
    assert_eq!(server.answered(), [], "what the old one let a client do is under way");
    server.ask_with(next, 4, write(1));
    server.work();
    assert_eq!(server.answered(), [(9, 1), (2, 1)]);
    server.work();
    assert_eq!(server.replies(), [DONE]);
}

#[test]
fn datafiles_of_provisional_files_are_listed_as_new() {
    let mut server = with_client();
    server.admit(1, 1, &[]);
    let young = Capability { since: 5, ..capability(1) };
    let how = |server: &mut TestServer, capability, id| {
        server.ask_with(capability, id, write(1));
        matches!(
            server.work(),
            Io::WriteNew(DataRequest::Range { ino: FILE, op: RangeOp::Write { offset: 0, .. }, .. })
        )
    };
    assert!(!how(&mut server, capability(1), 1));
    assert!(how(&mut server, young, 2));
    server.ask(1, 2, DataRequest::Finalise { ino: Ino(8), durable: 4 });
    server.work();
    assert!(how(&mut server, young, 3));
    server.ask(1, 3, DataRequest::Finalise { ino: FILE, durable: 5 });
    server.work();
    server.ask(1, 4, DataRequest::Finalise { ino: FILE, durable: 3 });
    server.work();
    assert!(!how(&mut server, young, 4), "it would stay on the list");
    // A restarted server is notified first.
    let mut server = with_client();
    server.ask(1, 1, DataRequest::Admit { below: 1, live: vec![], durable: 5 });
    assert!(!how(&mut server, young, 1));
    let young = Capability { since: 6, ..young };
    assert!(how(&mut server, young, 2));
    let (op, data) = RangeOp::list(&[(0, vec![1].into())]).expect("one write");
    server.ask_with(young, 3, DataRequest::Range { ino: FILE, op, data });
    assert!(matches!(server.work(), Io::WriteNew(DataRequest::Range { op: RangeOp::WriteList { .. }, .. })));
}

#[test]
fn lists_are_looked_at_before_anything_is_done() {
    let mut server = with_client();
    server.admit(1, 1, &[]);
    let (op, data) = RangeOp::list(&[(0, vec![1, 2].into())]).expect("one write");
    let lists = [data.slice(..data.len() - 1), Bytes::new(), write_list(&[])];
    for (id, data) in (1..).zip(lists) {
        server.ask_with(capability(1), id, DataRequest::Range { ino: FILE, op, data });
        assert_eq!(server.replies(), [Err(Errno::EINVAL)]);
    }
    server.ask_with(capability(1), 9, DataRequest::Range { ino: Ino(8), op, data });
    assert_eq!(server.replies(), [Err(Errno::EACCES)], "it is of another file");
}

#[test]
fn new_datafiles_are_listed_when_no_old_session_adds_to_them() {
    let mut server = with_client();
    server.admit(1, 1, &[]);
    server.answered();
    let young = Capability { since: 5, ..capability(1) };
    server.ask_with(young, 1, write(1));
    server.ask_with(young, 2, write(2));
    server.connect(2, 2);
    server.ask(2, 1, DataRequest::Admit { below: 1, live: vec![], durable: 7 });
    server.ask(2, 0, DataRequest::New);
    for _ in 0..2 {
        assert!(matches!(server.work(), Io::WriteNew(_)), "the file that this server knows of is another");
    }
    assert_eq!(server.answered(), [(9, 1), (9, 2), (2, 1)]);
    assert_eq!(server.work(), Io::Request(DataRequest::New));
    assert_eq!(server.answered(), [(2, 0)]);
}

#[test]
fn requests_repeated_after_reconnect_do_not_run_concurrently() {
    let mut server = with_client();
    server.admit(1, 1, &[]);
    server.ask_with(capability(1), 1, write(1));
    server.data.on(Input::Disconnect { from: CLIENT, connection: 9 }, &mut server.out);
    server.ask_with(capability(1), 2, write(2));
    server.data.on(Input::Connect { from: CLIENT, incarnation: 0, connection: 9 }, &mut server.out);
    server.ask_with(capability(1), 1, write(1));
    assert_eq!(server.out.io.len(), 1);
    server.replies();
    server.work();
    assert_eq!(server.replies(), [DONE]);
    server.data.on(Input::Disconnect { from: CLIENT, connection: 9 }, &mut server.out);
    assert_eq!(server.data.peers.len(), 1, "who is gone takes no room");
}

#[test]
fn answers_are_announced_as_capabilities_say() {
    let mut server = with_client();
    server.admit(1, 1, &[]);
    for announced in [false, true] {
        server.out.replies.clear();
        server.ask_with(Capability { announced, ..capability(1) }, 1, write(1));
        server.work();
        assert!(server.out.replies.iter().all(|(_, reply)| reply.announced == announced));
        assert_eq!(server.replies(), [DONE]);
    }
}
