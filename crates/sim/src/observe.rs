//! Who looks on at a run, and who spoils it.

use espalier_client::{Answer, Call};
use espalier_meta::{Io, IoDone};
use espalier_proto::{Caller, ClientId, Errno, FromClient, Rank, Reply, RequestId};
use espalier_timeline::Log;

use crate::message::Message;
use crate::source::Done;
use crate::storage::{Left, Loss};
use crate::time::Nanos;

/// A node of a run: metadata servers have the first numbers, then data servers, then clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

/// Is told what happens in a run.
pub trait Observer {
    /// A client's process has called. Its answer comes under the same number, unless the client ends first.
    fn invoked(&mut self, _now: Nanos, _client: u32, _call: u64, _caller: &Caller, _what: &Call<'_>) {}

    fn answered(&mut self, _now: Nanos, _client: u32, _call: u64, _result: &Result<Answer, Errno>) {}

    /// The next answer is told before a server has answered: a [`Self::replied`] to what the call asks comes later.
    fn told_early(&mut self, _client: u32, _call: u64) {}

    /// Data servers have done what was told early, or could not do it, and the client has heard of it.
    fn written_behind(&mut self, _now: Nanos, _client: u32, _call: u64, _fails: bool) {}

    /// A client's call asks a metadata server, perhaps once more.
    fn asked(&mut self, _client: u32, _call: u64, _rank: Rank, _message: &FromClient) {}

    /// A metadata server has answered a request, whether or not the client hears of it.
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

    /// A server has ended, or a client; of the latter nothing comes any more. `left`: of a metadata server's journal.
    fn crashed(&mut self, _now: Nanos, _node: Node, _loss: Loss, _left: Option<Left>) {}

    /// A client has ended that had told its processes of changes which no server has answered.
    fn forgot(&mut self) {}

    /// A server has begun again.
    fn began(&mut self, _now: Nanos, _node: Node) {}

    /// Where the spans of operations are to be written, if they are.
    fn spans(&mut self) -> Option<&mut Log> {
        None
    }

    /// A message has come.
    fn arrived(&mut self, _now: Nanos, _from: Node, _to: Node, _message: &Message) {}

    /// A message is on its way.
    fn sent(&mut self, _now: Nanos, _from: Node, _to: Node, _message: &Message) {}
}

/// Sees nothing.
impl Observer for () {}

/// What becomes of a message that arrives.
#[derive(Debug)]
pub enum Arrival {
    Taken(Message),
    Swallowed,
    /// It is swallowed, and this is said to who has sent it.
    Answered(Message),
}

/// Does what drivers and machines must not do, to see that it is found out.
pub trait Saboteur {
    fn arrives(&mut self, _from: Node, _to: Node, message: Message) -> Arrival {
        Arrival::Taken(message)
    }

    /// A metadata server is to do an I/O. If something is returned, that is its answer, and it is not done.
    fn io(&mut self, _node: Node, _io: &mut Io) -> Option<Result<IoDone, Errno>> {
        None
    }
}

/// Spoils nothing.
impl Saboteur for () {}
