//! What doors and those who take their calls know of each other.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use espalier_client::{Answer, Call, Interrupt};
use espalier_proto::{Caller, Errno, Ino, Lease, LockOwner, Name, Recall, Request};

/// Where calls come from and answers go to.
pub trait Door: Sized + Send + Sync + 'static {
    /// What a door needs to answer a call.
    type Ticket: Send;

    /// Whether a kernel has checked that callers may search and list the directories that they ask for.
    fn is_checked(&self) -> bool {
        false
    }

    /// Whether callers are told of changes before servers have made them, where nobody else can see the difference.
    fn is_early(&self) -> bool {
        true
    }

    /// `lease`: how long callers may cache what they are told.
    fn answer(
        &self,
        calls: &impl Calls<Self>,
        ticket: Self::Ticket,
        outcome: Result<Outcome<'_>, Errno>,
        lease: Duration,
    );

    /// Calls `done` when what the lease is for is cached no longer. `is_own`: what
    /// a call through the door changes waits for that.
    /// `blocked`: to be called if that takes long because a call through the door holds a lock.
    fn revoke(
        &self,
        lease: &Lease,
        is_own: bool,
        blocked: impl FnOnce() + Send + 'static,
        done: impl FnOnce() + Send + 'static,
    );

    /// No name may be cached any longer.
    fn distrust_names(&self);

    /// Nothing of these names and inodes may be cached any longer.
    fn distrust(&self, names: Vec<(Ino, Name)>, inos: &[Ino]);

    /// Those who call through the door need not know these inodes any longer. `removed`: names of those that are directories and have
    /// none any more.
    fn recall(&self, recalls: &[Recall], removed: &[(Ino, Name)]);

    /// These have other attributes than those who call through the door have been told.
    fn changed(&self, inos: &[Ino]);

    /// The writer of a growing file has left these bytes behind; callers need not keep copies of them.
    fn left_behind(&self, ino: Ino, bytes: Range<u64>);
}

/// What a door is told of a call.
#[derive(Debug)]
pub enum Outcome<'a> {
    Answer(Answer),
    /// What was read.
    Data(&'a [u8]),
}

/// Who takes a door's calls: the machines of this process, or servers.
pub trait Calls<D: Door>: Send + Sync {
    /// Runs a call. It is answered through the door, now or later. `id`: not 0, and unique among unanswered calls.
    fn call(&self, id: u64, caller: Caller, call: Call<'_>, ticket: D::Ticket);

    /// How many metadata servers there are.
    fn ranks(&self) -> usize;

    /// Tells what callers have forgotten, which has no answer.
    fn forget(&self, requests: impl IntoIterator<Item = Request>);

    /// A signal has come to the caller of a call. `dies`: whether a thread of that number is about to end.
    fn interrupt(&self, id: u64, dies: impl Fn(u32) -> bool) -> Interrupt;

    /// Whether an owner has locked anything of a file, where locks are not the kernel's own business.
    fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool;

    /// Whether it is to unlock a file when it closes it, or to wait for what it was told to be written, or to be told that it could not be.
    fn must_flush(&self, ino: Ino, owner: LockOwner) -> bool;

    /// Unlocks all that an owner has locked of a file. Nobody waits for it.
    fn unlock(&self, ino: Ino, owner: LockOwner);

    /// The file that holds a stream, if it is one of this machine's: for the kernel to read and write itself.
    fn stream_file(&self, ino: Ino) -> Option<Arc<File>>;

    /// The door can let the kernel read and write streams itself.
    fn pass_through(&self);

    /// A file that was said to be passed through could not be.
    fn without_passthrough(&self, ino: Ino);

    /// A kernel opens a directory, which needs nobody's leave: whether it may keep the listing that it is told, and if so, what it has kept
    /// before. [`Self::close_dir`] follows.
    fn open_dir(&self, dir: Ino) -> Option<bool>;

    fn close_dir(&self, dir: Ino);

    fn door(&self) -> &D;
}
