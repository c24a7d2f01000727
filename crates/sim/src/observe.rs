//! Interfaces of observers and of mutants.

use espalier_balancer::{MetricsSnapshot, MovePlan};
use espalier_client::{Answer, Call};
use espalier_meta::failover::{ClusterMap, StopReason};
use espalier_meta::{DecisionRequest, Io, IoDone};
use espalier_proto::{Caller, ClientId, Errno, FromClient, Rank, Reply, RequestId};
use espalier_timeline::Log;

use crate::message::Message;
pub use crate::node::Node;
use crate::source::Done;
use crate::storage::{Left, Loss};
use crate::time::Nanos;

/// Receives the events of a run.
pub trait Observer {
    /// A client's process has made a call. The reply has the same number, unless the client crashes
    /// first.
    fn invoked(&mut self, _now: Nanos, _client: u32, _call: u64, _caller: &Caller, _what: &Call<'_>) {}

    fn answered(&mut self, _now: Nanos, _client: u32, _call: u64, _result: &Result<Answer, Errno>) {}

    /// The next reply precedes the server's (write-back): a [`Self::replied`] for the call's
    /// request follows later.
    fn acknowledged_writeback(&mut self, _client: u32, _call: u64) {}

    /// Data servers have executed a write-back write, or failed, and the client has received their
    /// reply.
    fn write_behind_completed(&mut self, _now: Nanos, _client: u32, _call: u64, _fails: bool) {}

    /// A client sends a request for a call to a metadata server, possibly again.
    fn requested(&mut self, _client: u32, _call: u64, _rank: Rank, _message: &FromClient) {}

    /// A metadata server has replied to a request, whether or not the client receives it.
    fn replied(
        &mut self,
        _now: Nanos,
        _rank: Rank,
        _client: ClientId,
        _id: RequestId,
        _result: &Result<Reply, Errno>,
    ) {
    }

    /// An operation of a client's process has ended.
    fn finished(&mut self, _client: u32, _process: u32, _done: &Done) {}

    /// A server or client has crashed; a crashed client does not return. `left`: remains of a
    /// metadata server's journal.
    fn crashed(&mut self, _now: Nanos, _node: Node, _loss: Loss, _left: Option<Left>) {}

    /// A client has crashed with pending write-back operations.
    fn forgot(&mut self) {}

    /// A server has restarted. `incarnation`: increases with each holder of a rank.
    fn began(&mut self, _now: Nanos, _node: Node, _incarnation: u64) {}

    /// An event of failover.
    fn failover(&mut self, _now: Nanos, _event: &FailoverEvent<'_>) {}

    /// False if balancers hold still, since the run examines what is known only at rest.
    fn lets_balance(&self) -> bool {
        true
    }

    /// The balancer of a rank has decided. The plan's fragments are candidates of the request.
    fn balanced(&mut self, _now: Nanos, _request: &DecisionRequest, _plan: &MovePlan) {}

    /// Log for the spans of operations, if they are recorded.
    fn spans(&mut self) -> Option<&mut Log> {
        None
    }

    /// A message has arrived.
    fn arrived(&mut self, _now: Nanos, _from: Node, _to: Node, _message: &Message) {}

    /// A message is sent.
    fn sent(&mut self, _now: Nanos, _from: Node, _to: Node, _message: &Message) {}
}

/// An event of failover. Servers are named by number.
#[derive(Debug)]
pub enum FailoverEvent<'a> {
    /// A process has started.
    Started { process: u32 },
    /// A process was killed.
    Killed { process: u32 },
    /// A process is paused.
    Paused { process: u32 },
    /// A process continues after a pause.
    Resumed { process: u32 },
    /// A process was asked to hand over its ranks.
    Drained { process: u32 },
    /// A process ends by itself.
    Ended { process: u32, why: Option<StopReason> },
    /// A process cannot reach the store, the store is slow or down, or the network is partitioned.
    Disturbed,
    /// The cluster map has changed.
    Swapped { before: &'a ClusterMap, after: &'a ClusterMap },
    /// A service has written a frame to its rank's journal.
    Wrote { node: Node },
    /// A process has opened the store of a rank. `is_followed`: it had followed its journal.
    Opened { process: u32, rank: Rank, is_followed: bool },
    /// A request of a process to an object waits, since the object's OSD has failed.
    Stalled { process: u32, object: &'a str },
    /// A process could not open the store of a rank.
    NotOpened { process: u32, rank: Rank, cause: String },
}

/// A step of failover that a mutant can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverStep {
    /// Past its lease a server answers nothing.
    EndTerm,
    /// The earlier holders of a rank are fenced before its store is opened.
    Fence,
    /// The cluster map is replaced only if it still has the version that the server has read.
    Guard,
    /// A server that was removed from the cluster map, or fenced, ends.
    Stop,
    /// The journal is replayed to its end.
    Replay,
    /// A warm standby replays what it has not followed.
    ReplayRest,
}

/// Ignores all events.
impl Observer for () {}

/// Handling of a message that arrives.
#[derive(Debug)]
pub enum Arrival {
    Taken(Message),
    Swallowed,
    /// Drops the message and returns this reply to its sender.
    Answered(Message),
}

/// A mutant: makes drivers or machines misbehave, to test that checks detect it.
pub trait Mutator {
    fn arrives(&mut self, _from: Node, _to: Node, message: Message) -> Arrival {
        Arrival::Taken(message)
    }

    /// A metadata server requests an I/O. A returned value is its result; the I/O is not executed
    /// then.
    fn io(&mut self, _node: Node, _io: &mut Io) -> Option<Result<IoDone, Errno>> {
        None
    }

    /// The balancer of a rank is about to decide on this.
    fn balances(&mut self, _snapshot: &mut MetricsSnapshot) {}

    /// False if fragments are not frozen while other ranks prepare a change of them.
    fn freezes_fragments(&self) -> bool {
        true
    }

    /// True if the stores of a server that leaves are copied before it has written everything out.
    fn copies_stores(&self) -> bool {
        false
    }

    /// False if changes of a store are not noted while it is migrated.
    fn notes_changes(&self) -> bool {
        true
    }

    /// True if the destination of a migration is complete before the source is marked.
    fn completes_early(&self) -> bool {
        false
    }

    /// True if a step of failover is left out.
    fn skips(&self, _step: FailoverStep) -> bool {
        false
    }
}

/// Changes nothing.
impl Mutator for () {}
