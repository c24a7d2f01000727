//! Spans of nodes' work in virtual time, in the format of the runtime's.

use espalier_meta::{Cause, Io, PeerMessage};
use espalier_proto::{ClientId, Rank};
use espalier_timeline::{Id, Layer, Log, NodeId, Span};

use crate::time::Nanos;
use crate::world::fabric::Fabric;

/// The place of a client, by its number at servers.
pub fn place_of(client: ClientId) -> NodeId {
    NodeId::Client(client.0 as u32)
}

/// Trace id, at a metadata server, of a cause.
pub fn id_of(cause: Cause, rank: Rank) -> Id {
    let to = NodeId::Rank(rank.0);
    match cause {
        Cause::Request(client, id) => Id { from: place_of(client), to, number: id.0 },
        Cause::Question(from, id) => Id { from: NodeId::Rank(from.0), to, number: id.number },
    }
}

impl Fabric<'_> {
    pub fn traces(&mut self) -> bool {
        self.observer.spans().is_some()
    }

    /// Begins a span. `causes` is called only if operations are traced.
    pub fn begin_span(
        &mut self,
        place: NodeId,
        id: Id,
        kind: &'static str,
        causes: impl FnOnce() -> Vec<Id>,
    ) {
        let now = self.now;
        if let Some(log) = self.observer.spans() {
            log.begin(place, id, kind, causes(), now.0);
        }
    }

    /// Ends a span.
    pub fn end_span(&mut self, place: NodeId, id: Id) {
        let now = self.now;
        if let Some(log) = self.observer.spans() {
            log.end(place, id, now.0);
        }
    }

    /// Adds a complete span from a given time until now.
    pub fn add_span(
        &mut self,
        place: NodeId,
        (layer, kind): (Layer, &'static str),
        causes: Vec<Id>,
        since: Nanos,
    ) {
        let now = self.now;
        if let Some(log) = self.observer.spans() {
            let (kind, begin, end) = (kind.into(), since.0, now.0);
            log.add(Span { place, layer, kind, id: None, causes, begin, end });
        }
    }

    /// Traces a message between metadata servers. `own`: rank of this server; `is_sent`: it sends
    /// the message. `cause`: the operation that the message belongs to.
    pub fn trace_peer(
        &mut self,
        (own, other): (Rank, Rank),
        message: &PeerMessage,
        is_sent: bool,
        cause: impl FnOnce() -> Option<Id>,
    ) {
        let (own, other) = (NodeId::Rank(own.0), NodeId::Rank(other.0));
        let (request_id, served) =
            (|number| Id { from: own, to: other, number }, |number| Id { from: other, to: own, number });
        match message {
            PeerMessage::Ask { id, question, .. } if is_sent => {
                self.begin_span(own, request_id(id.number), question.name(), || {
                    cause().into_iter().collect()
                });
            }
            PeerMessage::Ask { id, question, .. } => {
                self.begin_span(own, served(id.number), question.name(), Vec::new);
            }
            PeerMessage::Answer { id, .. } if is_sent => self.end_span(own, served(id.number)),
            PeerMessage::Answer { id, .. } => self.end_span(own, request_id(id.number)),
            _ => {}
        }
    }
}

/// Layer and name of a disk I/O in traces.
pub fn layered(io: &Io) -> (Layer, &'static str) {
    let layer = match io {
        Io::Sync | Io::Journal { .. } | Io::Publish { .. } => Layer::Disk,
        _ => Layer::Store,
    };
    (layer, io.name())
}

/// An observer that only keeps spans.
#[derive(Debug)]
pub struct Tracing(pub Log);

impl crate::observe::Observer for Tracing {
    fn spans(&mut self) -> Option<&mut Log> {
        Some(&mut self.0)
    }
}
