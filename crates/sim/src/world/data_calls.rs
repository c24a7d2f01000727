//! Requests of a node to data servers, in rounds: a round ends when all its requests are answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use espalier_client::{DataEvent as DataLinkEvent, DataLink, Striped, StripedStep, Work};
use espalier_proto::{
    Capability, ClientId, ClusterId, DataReply, DataRequest, Errno, FromData, Hello, Ino, Layout, Reply,
    ServerId, Service, ToData,
};

use crate::message::Message;
use crate::observe::Node;
use crate::time::Nanos;
use crate::world::fabric::{Fabric, WireId};
use crate::world::line::Line;

use espalier_timeline::{Id, NodeId};

/// The requesting node.
#[derive(Clone, Copy, Debug)]
pub enum DataClient {
    /// A metadata server and its incarnation.
    Server(ServerId, u64),
    Client(ClientId),
}

/// See the module description. `P`: purpose of a round.
#[derive(Debug)]
pub struct DataCalls<P> {
    own: Node,
    place: NodeId,
    /// The first data server.
    first: Node,
    lines: BTreeMap<ServerId, DataLine>,
    lists_provisional: bool,
    rounds: BTreeMap<u64, DataRound<P>>,
    next_round: u64,
    /// Continuing sessions of clients, as in [`DataRequest::Admit`].
    sessions: (u64, Vec<u64>),
}

#[derive(Debug)]
struct DataLine {
    line: Line,
    /// Requests by round and index.
    link: DataLink<(u64, usize)>,
}

#[derive(Debug)]
struct DataRound<P> {
    purpose: P,
    data_requests: Vec<(ServerId, DataRequest)>,
    replies: Vec<Option<Result<DataReply, Errno>>>,
    /// For a stream operation: its further rounds.
    striped: Option<(Striped, Option<Capability>)>,
    /// Waiting operations, if traced.
    causes: Vec<Id>,
}

/// Result of a round.
#[derive(Debug)]
pub enum DataCallEvent<P> {
    /// All requests are answered.
    Replies {
        purpose: P,
        data_requests: Vec<(ServerId, DataRequest)>,
        replies: Vec<Result<DataReply, Errno>>,
    },
    /// The stream operation is complete; `None`: its capability is stale.
    Streamed { purpose: P, result: Option<Result<Reply, Errno>> },
    /// A data server was reached for the first time, with its provisional datafiles.
    New(ServerId, Vec<Ino>),
}

/// Interval for repeating a failed request for provisional datafiles.
const AGAIN: Nanos = Nanos(1_000_000_000);

impl<P> DataCalls<P> {
    /// `lists_provisional`: as in [`DataLink::new`].
    pub fn new((own, place): (Node, NodeId), first: Node, lists_provisional: bool) -> Self {
        let (lines, rounds) = (BTreeMap::new(), BTreeMap::new());
        Self { own, place, first, lines, lists_provisional, rounds, next_round: 0, sessions: (0, Vec::new()) }
    }

    fn line(&mut self, server: ServerId) -> &mut DataLine {
        let new = || DataLine { line: Line::default(), link: DataLink::new(self.lists_provisional) };
        self.lines.entry(server).or_insert_with(new)
    }

    fn node(&self, server: ServerId) -> Node {
        Node(self.first.0 + u32::from(server.0))
    }

    /// Connects to a data server, unless connected.
    pub fn reach(&mut self, fabric: &mut Fabric<'_>, data_client: DataClient, server: ServerId) {
        let node = self.node(server);
        let own = self.own;
        let line = &mut self.line(server).line;
        if line.wire.is_none() {
            let (service, client, incarnation) = match data_client {
                DataClient::Server(number, start) => {
                    (Service::Data(server), ClientId(number.0.into()), Some(start))
                }
                DataClient::Client(client) => (Service::Delegated(server), client, None),
            };
            let hello = Hello { cluster: ClusterId::ANY, service, client, incarnation };
            line.begin(fabric.connect(own, node, hello));
        }
    }

    pub fn is_reached(&self, server: ServerId) -> bool {
        self.lines.get(&server).is_some_and(|line| line.link.is_connected())
    }

    /// If the connection was to a data server: the server, and the pause before a new attempt.
    pub fn lost(&mut self, wire: WireId) -> Option<(Node, Nanos)> {
        let (server, line) = self.lines.iter_mut().find(|(_, line)| line.line.wire == Some(wire))?;
        line.line.lose(wire);
        line.link.disconnected();
        let pause = line.line.pause();
        let server = *server;
        Some((self.node(server), pause))
    }

    /// A data server has accepted the connection.
    pub fn welcomed(&mut self, fabric: &mut Fabric<'_>, data_client: DataClient, from: Node, wire: WireId) {
        let server = ServerId(u16::try_from(from.0 - self.first.0).unwrap_or(u16::MAX));
        let Some(line) = self.lines.get_mut(&server).filter(|line| line.line.wire == Some(wire)) else {
            return;
        };
        line.line.opened(wire);
        let (admit, mut out) =
            (matches!(data_client, DataClient::Server(..)).then(|| self.sessions.clone()), Vec::new());
        line.link.connected(admit, |_| true, &mut out);
        send(fabric, self.own, wire, out);
    }

    pub fn received(
        &mut self,
        fabric: &mut Fabric<'_>,
        from: Node,
        wire: WireId,
        message: FromData,
    ) -> Option<DataCallEvent<P>> {
        let server = ServerId(u16::try_from(from.0 - self.first.0).unwrap_or(u16::MAX));
        let line = self.lines.get_mut(&server).filter(|line| line.line.wire == Some(wire))?;
        let (number, mut out) = (message.id.0, Vec::new());
        let reached = line.link.received(message, &mut out);
        send(fabric, self.own, wire, out);
        match reached {
            DataLinkEvent::Answer((round, place), result) => {
                fabric.end_span(self.place, Id { from: self.place, to: NodeId::Data(server.0), number });
                self.rounds.get_mut(&round)?.replies[place] = Some(result);
                self.end_round(fabric, round)
            }
            DataLinkEvent::New(inos) => Some(DataCallEvent::New(server, inos)),
            DataLinkEvent::NoNew(_) => {
                fabric.cut(wire, AGAIN);
                None
            }
            DataLinkEvent::Nothing => None,
        }
    }

    /// Sends requests. The result follows later, or at once if there are none.
    pub fn ask(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        data_requests: Vec<(ServerId, DataRequest)>,
        causes: Vec<Id>,
    ) -> Option<DataCallEvent<P>> {
        self.begin_round(fabric, purpose, data_requests, None, causes)
    }

    /// Informs all data servers of the continuing sessions.
    pub fn admit(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        below: u64,
        live: Vec<u64>,
    ) -> Option<DataCallEvent<P>> {
        self.sessions = (below, live.clone());
        let request = DataRequest::Admit { below, live, durable: 0 };
        let data_requests = self.lines.keys().map(|server| (*server, request.clone())).collect();
        self.ask(fabric, purpose, data_requests, Vec::new())
    }

    /// Starts an operation on a striped file.
    pub fn stream(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        layout: Arc<Layout>,
        (work, data): (impl Into<Work>, Bytes),
        capability: Option<Capability>,
        causes: Vec<Id>,
    ) -> Option<DataCallEvent<P>> {
        let (striped, step) = Striped::start(layout, work, data);
        self.advance(fabric, purpose, (striped, capability), step, causes)
    }

    fn advance(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        striped: (Striped, Option<Capability>),
        step: StripedStep,
        causes: Vec<Id>,
    ) -> Option<DataCallEvent<P>> {
        match step {
            StripedStep::Ask(data_requests) => {
                self.begin_round(fabric, purpose, data_requests, Some(striped), causes)
            }
            StripedStep::Done(result) => Some(DataCallEvent::Streamed { purpose, result: Some(result) }),
        }
    }

    fn begin_round(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        data_requests: Vec<(ServerId, DataRequest)>,
        striped: Option<(Striped, Option<Capability>)>,
        causes: Vec<Id>,
    ) -> Option<DataCallEvent<P>> {
        self.next_round += 1;
        let round = self.next_round;
        let capability = striped.as_ref().and_then(|(_, capability)| *capability);
        for (place, (server, request)) in data_requests.iter().enumerate() {
            let (from, own) = (self.place, self.own);
            let (line, mut out) = (self.line(*server), Vec::new());
            let id = line.link.ask(request.clone(), capability, (round, place), &mut out);
            let data_requests = Id { from, to: NodeId::Data(server.0), number: id.0 };
            fabric.begin_span(from, data_requests, request.name(), || causes.clone());
            if let Some(wire) = line.line.wire {
                send(fabric, own, wire, out);
            }
        }
        let replies = data_requests.iter().map(|_| None).collect();
        self.rounds.insert(round, DataRound { purpose, data_requests, replies, striped, causes });
        self.end_round(fabric, round)
    }

    /// The result of the round if it is complete.
    fn end_round(&mut self, fabric: &mut Fabric<'_>, number: u64) -> Option<DataCallEvent<P>> {
        let replies = &mut self.rounds.get_mut(&number)?.replies;
        if replies.iter().any(Option::is_none) {
            return None;
        }
        let DataRound { purpose, data_requests, replies, striped, causes } = self.rounds.remove(&number)?;
        let replies: Vec<_> = replies.into_iter().flatten().collect();
        match striped {
            None => Some(DataCallEvent::Replies { purpose, data_requests, replies }),
            Some(_) if replies.contains(&Ok(DataReply::Stale)) => {
                Some(DataCallEvent::Streamed { purpose, result: None })
            }
            Some((mut striped, capability)) => {
                let step = striped.advance(replies);
                self.advance(fabric, purpose, (striped, capability), step, causes)
            }
        }
    }

    /// Data servers with unanswered requests.
    pub fn awaited(&self) -> Vec<ServerId> {
        let awaited = self.rounds.values().flat_map(|round| {
            let data_requests = round.data_requests.iter().zip(&round.replies);
            data_requests.filter(|(_, reply)| reply.is_none()).map(|((server, _), _)| *server)
        });
        awaited.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

fn send(fabric: &mut Fabric<'_>, own: Node, wire: WireId, messages: Vec<ToData>) {
    for message in messages {
        fabric.send(wire, own, Message::ToData(message));
    }
}
