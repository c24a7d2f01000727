//! Reads and writes of big files in the data pool of the metadata servers' store.

use std::sync::Arc;

use espalier_client::{
    Actions, Answer, Cache, Call, DataOperation, DataOutcome, FrontendEvent, IncomingCall, Interrupt,
    Sessions, Users, Work,
};
use espalier_proto::{
    Access, Caller, Capability, Delegation, END, Errno, FromClient, FromServer, Ino, OpenHow, Opened,
    RangeOp, Rank, Reads, Reply, Request, RequestId, SeekWhat, ServerId, ServerMap, StreamIo, Touched,
    Welcome,
};

const NEAR: Rank = Rank(0);
const FILE: Ino = Ino(7);

/// A client that has a big file open.
struct PoolClient {
    sessions: Sessions<u64>,
    data: Vec<DataOperation>,
    /// Requests and stream requests to the server that were sent.
    requests: Vec<(RequestId, Request)>,
    streams: Vec<(RequestId, StreamIo)>,
    answers: Vec<(u64, Result<Answer, Errno>)>,
    calls: u64,
}

impl PoolClient {
    fn new(is_usable: bool) -> Self {
        let sessions = Sessions::new(Cache::new(1000, Users::AtOnce), 1, true);
        let (data, requests, streams, answers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut client = Self { sessions, data, requests, streams, answers, calls: 0 };
        client.sessions.set_data_pool(is_usable);
        client.connect(1);
        let (access, reads) = (Access::READ | Access::WRITE, Reads::Client);
        let how = OpenHow { access, reads, ..OpenHow::default() };
        client.call(Call::Request(Request::Open { ino: FILE, how }));
        let opened = Opened {
            streamed: true,
            accessed: false,
            limited: false,
            shared: false,
            announced: false,
            reclaim_token: 1,
        };
        client.reply(Ok(Reply::Opened(opened)));
        client.answers.clear();
        client.requests.clear();
        client
    }

    fn connect(&mut self, incarnation: u64) {
        let (window, session_ms, rank, root, servers) = (64, 60_000, NEAR, Ino::ROOT, ServerMap::NONE);
        let welcome = Welcome { incarnation, window, session_ms, rank, root, servers, data_pool: None };
        self.with(|sessions, actions| sessions.connected(0, NEAR, &welcome, actions));
    }

    /// The server has restarted, and the client reclaims what it holds.
    fn restart(&mut self, incarnation: u64) {
        self.sessions.disconnected(NEAR);
        self.requests.clear();
        self.connect(incarnation);
        let is_reclaim = |request: &Request| matches!(request, Request::Reclaim { .. });
        assert!(self.requests.iter().any(|(_, request)| is_reclaim(request)));
        while let Some(at) = self.requests.iter().position(|(_, request)| is_reclaim(request)) {
            let (id, _) = self.requests.remove(at);
            self.reply_to(id, Ok(Reply::Done));
        }
    }

    fn with(&mut self, input: impl FnOnce(&mut Sessions<u64>, &mut Actions<u64>)) {
        let mut actions = Actions::default();
        input(&mut self.sessions, &mut actions);
        self.data.append(&mut actions.data);
        for (_, message) in actions.send {
            match message {
                FromClient::Request { id, request, .. } => self.requests.push((id, request)),
                FromClient::Stream { id, io, .. } => self.streams.push((id, io)),
                _ => {}
            }
        }
        for event in actions.frontend {
            if let FrontendEvent::Answer { ticket, result, .. } = event {
                self.answers.push((ticket, result));
            }
        }
    }

    fn call(&mut self, call: Call<'static>) -> u64 {
        self.calls += 1;
        let (call_id, caller, ticket) = (self.calls, Caller::SERVER, self.calls);
        let incoming = IncomingCall { call_id, caller, call, ticket };
        self.with(|sessions, actions| sessions.call(0, incoming, actions));
        self.calls
    }

    fn write(&mut self, offset: u64) -> u64 {
        self.call(Call::write(FILE, offset, vec![1; 10].into(), false))
    }

    fn read(&mut self) -> u64 {
        self.call(Call::read(FILE, 1, 10, false))
    }

    /// Replies to the last request.
    fn reply(&mut self, result: Result<Reply, Errno>) {
        let (id, _) = self.requests.pop().expect("a request");
        self.reply_to(id, result);
    }

    fn reply_to(&mut self, id: RequestId, result: Result<Reply, Errno>) {
        let (lease_ms, announced, touched) = (0, false, Touched::default());
        let reply = FromServer::Reply { id, lease_ms, announced, touched, result };
        self.with(|sessions, actions| sessions.received(0, NEAR, reply, actions));
    }

    /// The server grants what the last request asks for.
    fn grant(&mut self, limited: bool) {
        let Some((id, Request::Delegate { ino: FILE, access })) = self.requests.pop() else {
            panic!("{:?}", self.requests)
        };
        self.reply_to(id, Ok(Reply::Delegated(Some(Box::new(delegation(access, limited))))));
    }

    fn complete(&mut self, outcome: DataOutcome) {
        let DataOperation { number, .. } = self.data.remove(0);
        self.with(|sessions, actions| sessions.data_completed(0, number, outcome, actions));
    }

    fn is_written(&mut self, call: u64) -> bool {
        let is_one = |(ticket, result): &(u64, Result<Answer, Errno>)| {
            *ticket == call && matches!(result, Ok(Answer::Written(10)))
        };
        self.answers.iter().any(is_one)
    }
}

fn delegation(access: Access, limited: bool) -> Delegation {
    let (server, incarnation, session, since, announced, seal) = (ServerId(0), 1, 1, 0, false, [0; 32]);
    let capability = Capability { ino: FILE, access, server, incarnation, session, since, announced, seal };
    Delegation { layout: None, capability, limited }
}

fn written() -> DataOutcome {
    DataOutcome::Done(Ok(Reply::Written(10)))
}

#[test]
fn reads_and_writes_go_to_the_data_pool() {
    let mut client = PoolClient::new(true);
    let write = client.write(5);
    client.grant(false);
    let [DataOperation { work: Work::Stream(io), data, delegation, .. }] = &client.data[..] else {
        panic!("{:?}", client.data)
    };
    assert_eq!((io.ino, io.op), (FILE, RangeOp::write(5, &[1; 10])));
    assert_eq!((data.len(), delegation.layout.is_none()), (10, true));
    client.complete(written());
    assert!(client.is_written(write));
    // The right to write does not include reading.
    client.read();
    let asked = client.requests.last().map(|(_, request)| request.clone());
    assert_eq!(asked, Some(Request::Delegate { ino: FILE, access: Access::READ | Access::WRITE }));
    client.grant(false);
    assert_eq!(client.data.len(), 1);
    client.complete(DataOutcome::Done(Ok(Reply::Bytes(vec![1; 10].into()))));
    client.write(0);
    client.read();
    assert_eq!((client.data.len(), client.requests.len()), (2, 0));
}

#[test]
fn server_executes_all_other_operations() {
    let mut client = PoolClient::new(true);
    client.write(0);
    client.grant(false);
    client.complete(written());
    client.read();
    client.grant(false);
    client.complete(DataOutcome::Done(Ok(Reply::Bytes(vec![1; 10].into()))));
    client.call(Call::range(FILE, RangeOp::Seek { offset: 0, what: SeekWhat::Hole }, false));
    assert!(matches!(client.streams[..], [(_, StreamIo { op: RangeOp::Seek { .. }, .. })]));
    let copy = RangeOp::Copy { from: FILE, from_offset: 0, offset: 50, length: 10 };
    client.call(Call::range(FILE, copy, false));
    assert!(matches!(client.streams[..], [_, (_, StreamIo { op: RangeOp::Copy { .. }, .. })]));
    client.write(END);
    assert!(matches!(client.requests[..], [(_, Request::Write { offset: END, .. })]));
    assert!(client.data.is_empty());
}

#[test]
fn quota_is_asked_before_each_write() {
    let mut client = PoolClient::new(true);
    let write = client.write(0);
    client.grant(true);
    assert!(client.data.is_empty());
    assert!(matches!(client.requests[..], [(_, Request::Extend { ino: FILE, length: 10, .. })]));
    client.reply(Ok(Reply::Granted));
    client.complete(written());
    assert!(client.is_written(write));
}

#[test]
fn client_without_the_pool_asks_the_server() {
    let mut client = PoolClient::new(false);
    client.write(0);
    assert!(client.requests.is_empty() && client.streams.len() == 1);
    // It loses access while it asks for a delegation.
    let mut client = PoolClient::new(true);
    client.write(0);
    client.sessions.set_data_pool(false);
    client.grant(false);
    assert!(client.data.is_empty() && client.streams.len() == 1, "{:?}", client.data);
    client.sessions.set_data_pool(true);
    client.write(20);
    client.grant(false);
    assert_eq!(client.data.len(), 1);
}

/// The server may have ended the session and fenced the earlier address before the later one was
/// registered.
#[test]
fn delegations_end_with_the_address() {
    let mut client = PoolClient::new(true);
    client.write(0);
    client.grant(false);
    client.complete(written());
    client.sessions.set_data_pool(true);
    client.write(0);
    client.sessions.set_data_pool(true);
    client.grant(false);
    assert!(client.data.is_empty(), "it was requested under an earlier address");
    client.grant(false);
    assert_eq!(client.data.len(), 1);
}

#[test]
fn fenced_client_gets_another_delegation() {
    let mut client = PoolClient::new(true);
    let write = client.write(0);
    client.grant(false);
    client.sessions.set_data_pool(true);
    client.complete(DataOutcome::Stale);
    assert!(client.data.is_empty() && !client.is_written(write));
    client.grant(false);
    client.complete(written());
    assert!(client.is_written(write));
}

#[test]
fn restart_ends_delegations_but_not_operations() {
    let mut client = PoolClient::new(true);
    let write = client.write(0);
    client.grant(false);
    client.restart(2);
    client.complete(written());
    assert!(client.is_written(write), "others may have written to the same place since");
    client.write(0);
    assert!(client.data.is_empty());
    client.grant(false);
    assert_eq!(client.data.len(), 1);
}

#[test]
fn delegations_outlast_connections() {
    let mut client = PoolClient::new(true);
    client.write(0);
    client.grant(false);
    client.complete(written());
    client.sessions.disconnected(NEAR);
    client.write(0);
    client.connect(1);
    client.write(0);
    assert_eq!(client.data.len(), 2);
}

#[test]
fn end_of_session_fails_operations_and_ends_delegations() {
    let mut client = PoolClient::new(true);
    let write = client.write(0);
    client.grant(false);
    client.sessions.disconnected(NEAR);
    client.with(|sessions, actions| sessions.ended(0, NEAR, actions));
    assert!(matches!(client.answers[..], [(ticket, Err(Errno::EIO))] if ticket == write));
    client.data.clear();
    client.connect(1);
    client.write(0);
    assert!(client.data.is_empty());
}

#[test]
fn close_waits_for_an_abandoned_operation() {
    let mut client = PoolClient::new(true);
    let write = client.write(0);
    client.grant(false);
    client.with(|sessions, actions| {
        assert_eq!(sessions.interrupt(write, |_| true, |_| false, actions), Interrupt::Heard);
    });
    assert!(matches!(client.answers[..], [(ticket, Err(Errno::EINTR))] if ticket == write));
    client.call(Call::Release { ino: FILE });
    client.with(|sessions, actions| sessions.tick(1, |_| false, actions));
    assert!(client.requests.is_empty());
    let held: Arc<()> = client.data.remove(0).held;
    client.with(|sessions, actions| sessions.tick(2, |_| false, actions));
    assert!(client.requests.is_empty());
    drop(held);
    client.with(|sessions, actions| sessions.tick(3, |_| false, actions));
    assert!(matches!(client.requests[..], [(_, Request::Release { ino: FILE })]));
}
