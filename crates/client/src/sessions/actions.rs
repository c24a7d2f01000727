//! Actions for the driver after an input: messages to servers, and notifications of the frontend.

use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{
    Delegation, Errno, FromClient, Ino, Lease, Name, Rank, Recall, Reply, RequestId, RevocationId,
};

use super::Waiter;
use crate::{Answer, Work};

/// Actions for the driver; each list is in order.
#[derive(Debug)]
pub struct Actions<T> {
    /// Messages to send first. Without a connection they are dropped; the next connection repeats
    /// them if necessary.
    pub send: Vec<(Rank, FromClient)>,
    pub frontend: Vec<FrontendEvent<T>>,
    /// Operations on data servers or in the data pool;
    /// [`Sessions::data_completed`](super::Sessions::data_completed) takes the outcome.
    pub data: Vec<DataOperation>,
    /// Numbers of abandoned operations of `data`.
    pub abandoned: Vec<u64>,
    /// Finished write-behind operations, by number, with their errors.
    pub(super) over: Vec<(u64, Option<Errno>)>,
    /// Directories of which a first page was fetched ahead, or could not be.
    pub(super) fetched: Vec<Ino>,
}

/// Notifications of the frontend.
#[derive(Debug)]
pub enum FrontendEvent<T> {
    /// Answers a call; `lease_ms`: how long the answer may be cached.
    Answer { ticket: T, result: Result<Answer, Errno>, lease_ms: u64 },
    /// Revokes a lease. The frontend drops what it covers, then calls
    /// [`Sessions::revoked`](super::Sessions::revoked). `is_own`: a pending rename of this frontend
    /// waits for the revocation, and looks the name up before it is answered.
    Revoke { rank: Rank, number: RevocationId, lease: Lease, is_own: bool },
    /// Invalidates everything cached of these names and inodes.
    Distrust { names: Vec<(Ino, Name)>, inos: Vec<Ino> },
    /// Invalidates all cached names.
    DistrustNames,
    /// Asks callers to forget these inodes. `removed`: former names of removed directories.
    Recall { recalls: Vec<Recall>, removed: Vec<(Ino, Name)> },
    /// The attributes or contents of these inodes have changed.
    Changed(Vec<Ino>),
    /// A file has lost its set-id bits; the call that removed them waits for the invalidation of
    /// its attributes.
    PrivilegesRemoved(Ino),
    /// Requests the supplementary groups of a process;
    /// [`Sessions::groups`](super::Sessions::groups) takes them.
    Groups { rank: Rank, id: RequestId, pid: u32 },
    /// A server has dropped this client's locks on this many files because its session expired.
    Unlocked(usize),
    /// An acknowledged operation has failed: on a name in a directory, or on a file's bytes.
    Failed { dir: Ino, ino: Ino, name: Option<Name>, errno: Errno },
}

/// An operation on data servers or in the data pool.
#[derive(Debug)]
pub struct DataOperation {
    pub number: u64,
    /// Without a layout, `work` is a [`Work::Stream`] with a read or a write, in the data pool.
    pub delegation: Arc<Delegation>,
    pub work: Work,
    /// The bytes to write.
    pub data: Bytes,
    /// The driver holds this as long as a request of the operation may be executed, even after the
    /// call was abandoned.
    pub held: Arc<()>,
}

/// The outcome of an operation on data servers or in the data pool.
#[derive(Debug)]
pub enum DataOutcome {
    Done(Result<Reply, Errno>),
    /// The data servers refuse the capability, or this client is fenced in the data pool: get
    /// another. The requests may have been executed in part.
    Stale,
}

/// The effect of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// No such call.
    Unknown,
    /// The call ends as soon as possible.
    Heard,
    /// The caller survives, so the call continues: as on other file systems, a signal interrupts
    /// only a wait for a file lock.
    Survived,
}

impl<T> Default for Actions<T> {
    fn default() -> Self {
        Self {
            send: Vec::new(),
            frontend: Vec::new(),
            data: Vec::new(),
            abandoned: Vec::new(),
            over: Vec::new(),
            fetched: Vec::new(),
        }
    }
}

impl<T> Actions<T> {
    pub(super) fn answer(&mut self, waiter: Waiter<T>, result: Result<Answer, Errno>) {
        self.answer_leased(waiter, result, 0);
    }

    pub(super) fn answer_leased(&mut self, waiter: Waiter<T>, result: Result<Answer, Errno>, lease_ms: u64) {
        match waiter {
            Waiter::Frontend(ticket) => {
                self.frontend.push(FrontendEvent::Answer { ticket, result, lease_ms })
            }
            Waiter::Acknowledged(number) => self.over.push((number, result.err())),
            Waiter::Ahead(dir) => self.fetched.push(dir),
        }
    }
}
