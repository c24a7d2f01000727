//! What a client's sessions have done: by servers, and by the door.

use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{Delegation, Errno, FromClient, Ino, Lease, Name, Rank, Recall, RequestId};

use super::Waiter;
use crate::{Answer, Work};

/// What is to be done, each list in its order.
#[derive(Debug)]
pub struct Told<T> {
    /// To be sent first. What cannot be, for want of a connection, is dropped: it is said again when there is one, if need be.
    pub send: Vec<(Rank, FromClient)>,
    pub door: Vec<ForDoor<T>>,
    /// Data servers are to be asked: [`Sessions::data_came`](super::Sessions::data_came) follows.
    pub data: Vec<DataAsk>,
    /// Nobody waits any more for what data servers were asked under these numbers.
    pub abandoned: Vec<u64>,
    /// What has come of writes that callers were told of before.
    pub(super) over: Vec<(u64, Option<Errno>)>,
}

/// What a door is told.
#[derive(Debug)]
pub enum ForDoor<T> {
    /// A call is answered, with what may be cached for so many milliseconds.
    Answer { ticket: T, result: Result<Answer, Errno>, lease_ms: u64 },
    /// What the lease is for may be cached no longer: [`Sessions::revoked`](super::Sessions::revoked) follows when it is not. `is_own`: a
    /// pending rename of this frontend waits for it, and looks the name up before it is answered.
    Revoke { rank: Rank, number: u64, lease: Lease, is_own: bool },
    /// Nothing of these names and inodes may be cached any longer.
    Distrust { names: Vec<(Ino, Name)>, inos: Vec<Ino> },
    /// No name may be cached any longer.
    DistrustNames,
    /// Callers need not know these inodes any longer. `removed`: names of those that are directories and have none any more.
    Recall { recalls: Vec<Recall>, removed: Vec<(Ino, Name)> },
    /// These have other attributes than callers have been told.
    Changed(Vec<Ino>),
    /// The supplementary groups of a process are asked for: [`Sessions::groups`](super::Sessions::groups) follows.
    Groups { rank: Rank, id: RequestId, pid: u32 },
    /// A server has given up this client's locks on so many files, for it had not heard of it for too long.
    Unlocked(usize),
    /// A change of which a caller was told could not be done: of a name in a directory, or else of a file's bytes.
    Failed { dir: Ino, ino: Ino, name: Option<Name>, errno: Errno },
}

/// Something that data servers are to do.
#[derive(Debug)]
pub struct DataAsk {
    pub number: u64,
    pub delegation: Arc<Delegation>,
    pub work: Work,
    /// What is to be written.
    pub data: Bytes,
    /// To be dropped when nothing of it will be done any more, also when nobody waits for it.
    pub held: Arc<()>,
}

/// What becomes of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// There is no such call.
    Unknown,
    /// The call waits no longer than it must.
    Heard,
    /// The caller goes on living, and programs do not expect that files fail because of that: as on other file systems, only what waits
    /// for a lock on a file is interrupted.
    Survived,
}

impl<T> Default for Told<T> {
    fn default() -> Self {
        Self { send: Vec::new(), door: Vec::new(), data: Vec::new(), abandoned: Vec::new(), over: Vec::new() }
    }
}

impl<T> Told<T> {
    pub(super) fn answer(&mut self, waiter: Waiter<T>, result: Result<Answer, Errno>) {
        self.answer_leased(waiter, result, 0);
    }

    pub(super) fn answer_leased(&mut self, waiter: Waiter<T>, result: Result<Answer, Errno>, lease_ms: u64) {
        match waiter {
            Waiter::Door(ticket) => self.door.push(ForDoor::Answer { ticket, result, lease_ms }),
            Waiter::Nobody(number) => self.over.push((number, result.err())),
        }
    }
}
