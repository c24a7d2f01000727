//! The interface between frontends and the clients that execute their calls.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use espalier_client::{Answer, Call, Interrupt};
use espalier_proto::{Caller, Errno, Ino, Lease, LockOwner, Name, Recall, Request};

/// A source of calls and receiver of answers.
pub trait Frontend: Sized + Send + Sync + 'static {
    /// Identifies a pending call to the frontend.
    type Ticket: Send;

    /// True if a kernel checks search and read permission of directories.
    fn is_checked(&self) -> bool {
        false
    }

    /// True if a caller requests attributes of a directory only to check permissions.
    fn only_checks(&self, _caller: &Caller) -> bool {
        false
    }

    /// True if calls may be acknowledged before servers have applied them (write-back).
    fn uses_writeback(&self) -> bool {
        true
    }

    /// `lease`: how long callers may cache the answer.
    fn answer(
        &self,
        calls: &impl Calls<Self>,
        ticket: Self::Ticket,
        outcome: Result<CallOutcome<'_>, Errno>,
        lease: Duration,
    );

    /// Drops everything that the lease covers, then calls `done`. `is_own`: a pending rename of
    /// this frontend waits for the revocation. `blocked` is called, maybe repeatedly, while a
    /// pending call of the frontend holds a lock that dropping needs.
    fn revoke(
        &self,
        lease: &Lease,
        is_own: bool,
        blocked: impl Fn() + Send + Sync + 'static,
        done: impl FnOnce() + Send + 'static,
    );

    /// Invalidates all cached names.
    fn distrust_names(&self);

    /// Invalidates everything cached of these names and inodes.
    fn distrust(&self, names: Vec<(Ino, Name)>, inos: &[Ino]);

    /// Asks callers to forget these inodes. `removed`: former names of removed directories.
    fn recall(&self, recalls: &[Recall], removed: &[(Ino, Name)]);

    /// The attributes or contents of these inodes have changed.
    fn changed(&self, inos: &[Ino]);

    /// A file has lost its set-id bits, and the call that removed them continues when this returns.
    fn privileges_removed(&self, ino: Ino);

    /// Flush-behind has begun to write these bytes of a growing file; callers need not cache them.
    fn flushed_behind(&self, ino: Ino, bytes: Range<u64>);
}

/// The result of a call.
#[derive(Debug)]
pub enum CallOutcome<'a> {
    Answer(Answer),
    /// Bytes that were read.
    Data(&'a [u8]),
}

/// Executes the calls of a frontend: the state machines of this process, or a client of servers.
pub trait Calls<D: Frontend>: Send + Sync {
    /// Starts a call, which is answered through the frontend. `id`: unique among unanswered calls,
    /// and not 0.
    fn call(&self, id: u64, caller: Caller, call: Call<'_>, ticket: D::Ticket);

    /// The ranks below this one may have acknowledged changes.
    fn ranks(&self) -> usize;

    /// Processes forget requests, which have no answer.
    fn forget(&self, requests: impl IntoIterator<Item = Request>);

    /// Handles a signal to a call's caller. `dies`: true for a thread that the signal ends.
    fn interrupt(&self, id: u64, dies: impl Fn(u32) -> bool) -> Interrupt;

    /// True if the owner may hold locks on the file that a server manages.
    fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool;

    /// True if a close must release locks, wait for pending writes, or report an error.
    fn must_flush(&self, ino: Ino, owner: LockOwner) -> bool;

    /// Releases all locks of an owner on a file; no caller waits for it.
    fn unlock(&self, ino: Ino, owner: LockOwner);

    /// The local file of a stream, for passthrough.
    fn stream_file(&self, ino: Ino) -> Option<Arc<File>>;

    /// Enables passthrough.
    fn pass_through(&self);

    /// Passthrough could not be set up for this file.
    fn without_passthrough(&self, ino: Ino);

    /// Handles an open of a directory by the kernel. Returns whether its cached listing is valid;
    /// `None`: it may not cache one. [`Self::close_dir`] follows.
    fn open_dir(&self, dir: Ino) -> Option<bool>;

    fn close_dir(&self, dir: Ino);

    fn frontend(&self) -> &D;
}
