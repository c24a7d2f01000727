//! Locks that servers manage: the kernel's lock requests, and the closes that release locks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use espalier_client::Call;
use espalier_fuse as fuse;
use espalier_proto::{Caller, Errno, Ino, Lock, LockKind, LockOwner, Request};

use super::{Form, FuseFrontend, Ticket};
use crate::calls::Calls;

const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;
/// The kernel's end of an unbounded lock.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Time in which the kernel reports whether a closed opening had other users. Usually less than a
/// millisecond.
const CLOSING: Duration = Duration::from_millis(200);

/// Lock owners by opening.
#[derive(Default)]
pub(super) struct Lockers(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    owners: HashMap<u64, Vec<LockOwner>>,
    /// Openings that a process has just closed, with locks that may be of the opening and not of
    /// that process: `flock` and open-file-description locks end with the last user of an opening.
    closing: HashMap<u64, Instant>,
    /// When such an opening was last released.
    closed: Option<Instant>,
    /// Failed attempts since then that may precede the release.
    tries: Vec<Try>,
}

/// An attempt to acquire a lock.
struct Try {
    since: Instant,
    reply: fuse::Reply,
    unique: u64,
    ino: Ino,
    lock: Lock,
}

impl Lockers {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, handle: u64, owner: LockOwner) {
        let mut inner = self.lock();
        let owners = inner.owners.entry(handle).or_default();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
}

impl FuseFrontend {
    /// The request to the server for a lock request of the kernel. `wait`: the number of a request
    /// that may wait.
    pub(super) fn lock_request(
        &self,
        ino: Ino,
        requested: &fuse::Lock,
        wait: Option<u64>,
    ) -> Result<Request, Errno> {
        let owner = LockOwner { flock: requested.flock, number: requested.owner };
        let first = if requested.flock { 0 } else { requested.start };
        let last = if requested.flock || requested.end >= OFFSET_MAX { u64::MAX } else { requested.end };
        let kind = match requested.kind {
            F_UNLCK => return Ok(Request::Unlock { ino, owner, first, last }),
            F_RDLCK => LockKind::Shared,
            F_WRLCK => LockKind::Exclusive,
            _ => return Err(Errno::EINVAL),
        };
        self.lockers.note(requested.handle, owner);
        Ok(Request::Lock { ino, lock: Lock { owner, kind, first, last, pid: requested.pid }, wait })
    }

    /// A process has closed an opening. Its record locks are released at once.
    pub(super) fn closing(&self, handle: u64, process: LockOwner) {
        let mut inner = self.lockers.lock();
        if inner.owners.get(&handle).is_some_and(|owners| owners.iter().any(|owner| *owner != process)) {
            inner.closing.insert(handle, Instant::now());
        }
    }

    /// An opening is released. The kernel has reported the closes of all processes; `flock` and
    /// open-file-description locks remain to be released.
    pub(super) fn closed(&self, calls: &impl Calls<Self>, ino: Ino, handle: u64) {
        let (owners, tries) = {
            let mut inner = self.lockers.lock();
            let Some(owners) = inner.owners.remove(&handle) else { return };
            if inner.closing.remove(&handle).is_some() {
                inner.closed = Some(Instant::now());
            }
            (owners, std::mem::take(&mut inner.tries))
        };
        for owner in owners {
            if calls.has_locks(ino, owner) {
                calls.unlock(ino, owner);
            }
        }
        for Try { reply, unique, ino, lock, .. } in tries {
            try_lock(calls, reply, Form::TryLock(unique, ino, lock), unique, ino, lock);
        }
    }

    /// Handles a failed attempt. The kernel reports a release after `close` has returned, so a lock
    /// of an opening that was closed earlier must not make the attempt fail.
    pub(super) fn failed_try(
        &self,
        calls: &impl Calls<Self>,
        reply: fuse::Reply,
        (unique, ino, lock): (u64, Ino, Lock),
    ) {
        let mut inner = self.lockers.lock();
        inner.closing.retain(|_, since| since.elapsed() < CLOSING);
        if !inner.closing.is_empty() {
            inner.tries.push(Try { since: Instant::now(), reply, unique, ino, lock });
        } else if inner.closed.is_some_and(|at| at.elapsed() < CLOSING) {
            drop(inner);
            try_lock(calls, reply, Form::Plain, unique, ino, lock);
        } else {
            reply.error(Errno::EAGAIN.raw());
        }
    }

    /// Fails attempts that have waited long enough.
    pub(super) fn give_up_tries(&self) {
        let mut inner = self.lockers.lock();
        for late in inner.tries.extract_if(.., |it| it.since.elapsed() > CLOSING) {
            late.reply.error(Errno::EAGAIN.raw());
        }
    }
}

fn try_lock(
    calls: &impl Calls<FuseFrontend>,
    reply: fuse::Reply,
    form: Form,
    unique: u64,
    ino: Ino,
    lock: Lock,
) {
    let call = Call::Request(Request::Lock { ino, lock, wait: None });
    calls.call(unique, Caller::SERVER, call, Ticket { reply, form, begun: None });
}

/// Replies with the lock that conflicts with a tested one.
pub(super) fn answer_test(reply: fuse::Reply, in_the_way: Option<Lock>) {
    match in_the_way {
        None => reply.lock(0, 0, F_UNLCK, 0),
        Some(Lock { kind, first, last, pid, .. }) => {
            let kind = if kind == LockKind::Exclusive { F_WRLCK } else { F_RDLCK };
            reply.lock(first, last.min(OFFSET_MAX), kind, pid);
        }
    }
}
