//! What a node asks data servers. What goes together is a round, which ends when all have answered; what has not been answered is asked
//! again over the next connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use espalier_client::{Striped, Turn, Work};
use espalier_proto::{
    Capability, ClientId, ClusterId, DataReply, DataRequest, Errno, FromData, Hello, Ino, Layout, Reply,
    RequestId, ServerId, Service, ToData,
};

use crate::message::Message;
use crate::observe::Node;
use crate::time::Nanos;
use crate::world::fabric::{Fabric, WireId};
use crate::world::line::Line;

use espalier_timeline::{Id, Place};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub enum Asker {
    /// A metadata server; its number, and which of its starts it is.
    Server(ServerId, u64),
    Client(ClientId),
}

/// See the module's description. `P`: on whose behalf something is asked.
#[derive(Debug)]
pub struct Asking<P> {
    own: Node,
    place: Place,
    /// The first data server.
    first: Node,
    lines: BTreeMap<ServerId, DataLine>,
    rounds: BTreeMap<u64, Round<P>>,
    next_round: u64,
    /// Which clients' sessions go on, as in [`DataRequest::Admit`].
    sessions: (u64, Vec<u64>),
}

#[derive(Debug, Default)]
struct DataLine {
    line: Line,
    /// It has told which datafiles it has that were never settled.
    known: bool,
    next: u64,
    unanswered: BTreeMap<u64, Pending>,
}

/// A request that has not been answered.
#[derive(Debug)]
struct Pending {
    request: DataRequest,
    capability: Option<Capability>,
    round: u64,
    place: usize,
}

#[derive(Debug)]
struct Round<P> {
    purpose: P,
    asked: Vec<(ServerId, DataRequest)>,
    replies: Vec<Option<Result<DataReply, Errno>>>,
    /// Of a stream: how it goes on.
    striped: Option<(Striped, Option<Capability>)>,
    /// The operations that wait for it, if somebody traces.
    causes: Vec<Id>,
}

/// What has come of asking.
#[derive(Debug)]
pub enum Came<P> {
    /// All have answered.
    Replies { purpose: P, asked: Vec<(ServerId, DataRequest)>, replies: Vec<Result<DataReply, Errno>> },
    /// What was to be done with a stream is done; or a capability is out of date (`None`).
    Streamed { purpose: P, result: Option<Result<Reply, Errno>> },
    /// A server has been reached for the first time.
    New(ServerId, Vec<Ino>),
}

/// Of requests with which a metadata server begins; nothing else has these numbers.
const NEW: RequestId = RequestId(0);
const ADMIT: RequestId = RequestId(1);

/// A server that does not say what it has is asked again after that.
const AGAIN: Nanos = Nanos(1_000_000_000);

impl<P> Asking<P> {
    pub fn new((own, place): (Node, Place), first: Node) -> Self {
        let (lines, rounds) = (BTreeMap::new(), BTreeMap::new());
        Self { own, place, first, lines, rounds, next_round: 0, sessions: (0, Vec::new()) }
    }

    fn node(&self, server: ServerId) -> Node {
        Node(self.first.0 + u32::from(server.0))
    }

    /// Tries to reach a data server, unless it is reached already.
    pub fn reach(&mut self, fabric: &mut Fabric<'_>, asker: Asker, server: ServerId) {
        let node = self.node(server);
        let line = &mut self.lines.entry(server).or_default().line;
        if line.wire.is_none() {
            let (service, client, incarnation) = match asker {
                Asker::Server(number, start) => {
                    (Service::Data(server), ClientId(number.0.into()), Some(start))
                }
                Asker::Client(client) => (Service::Delegated(server), client, None),
            };
            let hello = Hello { cluster: ClusterId::ANY, service, client, incarnation };
            line.begin(fabric.connect(self.own, node, hello));
        }
    }

    pub fn is_reached(&self, server: ServerId) -> bool {
        self.lines.get(&server).is_some_and(|line| line.line.up && line.known)
    }

    /// If it was a connection to a data server: that one, and after how long it is to be tried again.
    pub fn lost(&mut self, wire: WireId) -> Option<(Node, Nanos)> {
        let (server, line) = self.lines.iter_mut().find(|(_, line)| line.line.wire == Some(wire))?;
        line.line.lose(wire);
        let pause = line.line.pause();
        let server = *server;
        Some((self.node(server), pause))
    }

    /// A data server has answered the first message.
    pub fn welcomed(&mut self, fabric: &mut Fabric<'_>, asker: Asker, from: Node, wire: WireId) {
        let server = ServerId(u16::try_from(from.0 - self.first.0).unwrap_or(u16::MAX));
        let Some(line) = self.lines.get_mut(&server).filter(|line| line.line.wire == Some(wire)) else {
            return;
        };
        line.line.opened(wire);
        if let Asker::Server(..) = asker {
            let (below, live) = self.sessions.clone();
            let mut begin = vec![(ADMIT, DataRequest::Admit { below, live })];
            if !line.known {
                begin.push((NEW, DataRequest::New));
            }
            for (id, request) in begin {
                fabric.send(wire, self.own, Message::ToData(ToData { id, request, capability: None }));
            }
        } else {
            line.known = true;
        }
        if line.known {
            line.ask_again(fabric, self.own, wire);
        }
    }

    pub fn received(
        &mut self,
        fabric: &mut Fabric<'_>,
        from: Node,
        wire: WireId,
        message: FromData,
    ) -> Option<Came<P>> {
        let server = ServerId(u16::try_from(from.0 - self.first.0).unwrap_or(u16::MAX));
        let line = self.lines.get_mut(&server).filter(|line| line.line.wire == Some(wire))?;
        if message.id == ADMIT {
            return None;
        }
        if message.id == NEW {
            let Ok(DataReply::Inos(inos)) = message.result else {
                fabric.cut(wire, AGAIN);
                return None;
            };
            line.known = true;
            line.ask_again(fabric, self.own, wire);
            return Some(Came::New(server, inos));
        }
        let Pending { round, place, .. } = line.unanswered.remove(&message.id.0)?;
        let to = Place::Data(server.0);
        fabric.end_span(self.place, Id { from: self.place, to, number: message.id.0 });
        self.rounds.get_mut(&round)?.replies[place] = Some(message.result);
        self.end_round(fabric, round)
    }

    /// Asks servers. What comes of it follows; at once if nobody is asked.
    pub fn ask(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        asked: Vec<(ServerId, DataRequest)>,
        causes: Vec<Id>,
    ) -> Option<Came<P>> {
        self.begin_round(fabric, purpose, asked, None, causes)
    }

    /// Tells all servers which clients' sessions go on.
    pub fn admit(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        below: u64,
        live: Vec<u64>,
    ) -> Option<Came<P>> {
        self.sessions = (below, live.clone());
        let request = DataRequest::Admit { below, live };
        let asked = self.lines.keys().map(|server| (*server, request.clone())).collect();
        self.ask(fabric, purpose, asked, Vec::new())
    }

    /// Has something done with a striped file.
    pub fn stream(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        layout: Arc<Layout>,
        (work, data): (impl Into<Work>, Vec<u8>),
        capability: Option<Capability>,
        causes: Vec<Id>,
    ) -> Option<Came<P>> {
        let (striped, turn) = Striped::start(layout, work, data);
        self.go_on(fabric, purpose, (striped, capability), turn, causes)
    }

    fn go_on(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        striped: (Striped, Option<Capability>),
        turn: Turn,
        causes: Vec<Id>,
    ) -> Option<Came<P>> {
        match turn {
            Turn::Ask(asked) => self.begin_round(fabric, purpose, asked, Some(striped), causes),
            Turn::Done(result) => Some(Came::Streamed { purpose, result: Some(result) }),
        }
    }

    fn begin_round(
        &mut self,
        fabric: &mut Fabric<'_>,
        purpose: P,
        asked: Vec<(ServerId, DataRequest)>,
        striped: Option<(Striped, Option<Capability>)>,
        causes: Vec<Id>,
    ) -> Option<Came<P>> {
        self.next_round += 1;
        let round = self.next_round;
        let capability = striped.as_ref().and_then(|(_, capability)| *capability);
        for (place, (server, request)) in asked.iter().enumerate() {
            let line = self.lines.entry(*server).or_default();
            line.next = (line.next + 1).max(ADMIT.0 + 1);
            let asked = Id { from: self.place, to: Place::Data(server.0), number: line.next };
            fabric.begin_span(self.place, asked, request.name(), || causes.clone());
            line.unanswered.insert(line.next, Pending { request: request.clone(), capability, round, place });
            if let Some(wire) = line.line.wire.filter(|_| line.line.up && line.known) {
                let (id, request) = (RequestId(line.next), request.clone());
                fabric.send(wire, self.own, Message::ToData(ToData { id, request, capability }));
            }
        }
        let replies = asked.iter().map(|_| None).collect();
        self.rounds.insert(round, Round { purpose, asked, replies, striped, causes });
        self.end_round(fabric, round)
    }

    /// If all have answered.
    fn end_round(&mut self, fabric: &mut Fabric<'_>, number: u64) -> Option<Came<P>> {
        let replies = &mut self.rounds.get_mut(&number)?.replies;
        if replies.iter().any(Option::is_none) {
            return None;
        }
        let Round { purpose, asked, replies, striped, causes } = self.rounds.remove(&number)?;
        let replies: Vec<_> = replies.into_iter().flatten().collect();
        match striped {
            None => Some(Came::Replies { purpose, asked, replies }),
            Some(_) if replies.contains(&Ok(DataReply::Stale)) => {
                Some(Came::Streamed { purpose, result: None })
            }
            Some((mut striped, capability)) => {
                let turn = striped.go_on(replies);
                self.go_on(fabric, purpose, (striped, capability), turn, causes)
            }
        }
    }

    /// Servers that have not answered.
    pub fn awaited(&self) -> Vec<ServerId> {
        let awaited = self.lines.iter().filter(|(_, line)| !line.unanswered.is_empty());
        awaited.map(|(server, _)| *server).collect()
    }
}

impl DataLine {
    fn ask_again(&self, fabric: &mut Fabric<'_>, own: Node, wire: WireId) {
        for (id, Pending { request, capability, .. }) in &self.unanswered {
            let (id, request, capability) = (RequestId(*id), request.clone(), *capability);
            fabric.send(wire, own, Message::ToData(ToData { id, request, capability }));
        }
    }
}
