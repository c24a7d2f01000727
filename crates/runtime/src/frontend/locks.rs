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
const CLOSING: Duration = Duration::from_millis(100);

/// Lock owners by opening.
#[derive(Default)]
pub(super) struct Lockers(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    owners: HashMap<u64, Vec<LockOwner>>,
    /// Openings that a process has just closed, with locks that may be of the opening and not of
    /// that process: `flock` and open-file-description locks end with the last user of an opening.
    closing: HashMap<u64, (Ino, Instant)>,
    /// Files of which such an opening was released.
    closed: Vec<(Ino, Instant)>,
    /// Failed attempts that may precede a release.
    tries: Vec<(LockAttempt, fuse::Reply)>,
}

/// A lock request that does not wait.
pub(super) struct LockAttempt {
    /// Number of the kernel's request.
    pub unique: u64,
    pub ino: Ino,
    pub lock: Lock,
    /// When it failed first.
    pub failed: Option<Instant>,
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
    pub(super) fn closing(&self, calls: &impl Calls<Self>, ino: Ino, handle: u64, process: LockOwner) {
        let Some(owners) = self.lockers.lock().owners.get(&handle).cloned() else { return };
        if owners.iter().any(|owner| *owner != process && calls.has_locks(ino, *owner)) {
            self.lockers.lock().closing.insert(handle, (ino, Instant::now()));
        }
    }

    /// An opening is released. The kernel has reported the closes of all processes; `flock` and
    /// open-file-description locks remain to be released.
    pub(super) fn closed(&self, calls: &impl Calls<Self>, ino: Ino, handle: u64) {
        let Some(owners) = self.lockers.lock().owners.remove(&handle) else { return };
        for owner in owners {
            if calls.has_locks(ino, owner) {
                calls.unlock(ino, owner);
            }
        }
        let tries: Vec<_> = {
            let mut inner = self.lockers.lock();
            if inner.closing.remove(&handle).is_some() {
                inner.closed.push((ino, Instant::now()));
            }
            inner.tries.extract_if(.., |(attempt, _)| attempt.ino == ino).collect()
        };
        for (attempt, reply) in tries {
            attempt.repeat(calls, reply, true);
        }
    }

    /// Handles a failed attempt. The kernel reports a release after `close` has returned, so a lock
    /// of an opening that was closed earlier must not make the attempt fail.
    pub(super) fn failed_attempt(
        &self,
        calls: &impl Calls<Self>,
        reply: fuse::Reply,
        mut attempt: LockAttempt,
    ) {
        let failed = *attempt.failed.get_or_insert_with(Instant::now);
        let mut inner = self.lockers.lock();
        inner.closing.retain(|_, (_, since)| since.elapsed() < CLOSING);
        inner.closed.retain(|(_, at)| at.elapsed() < CLOSING);
        let is_late = failed.elapsed() > CLOSING;
        if !is_late && inner.closing.values().any(|(ino, _)| *ino == attempt.ino) {
            inner.tries.push((attempt, reply));
        } else if !is_late && inner.closed.iter().any(|(ino, _)| *ino == attempt.ino) {
            drop(inner);
            attempt.repeat(calls, reply, false);
        } else {
            reply.error(Errno::EAGAIN.raw());
        }
    }

    /// Fails attempts that have waited long enough.
    pub(super) fn give_up_attempts(&self) {
        let is_late = |attempt: &LockAttempt| attempt.failed.is_none_or(|at| at.elapsed() > CLOSING);
        let mut inner = self.lockers.lock();
        for (_, reply) in inner.tries.extract_if(.., |(attempt, _)| is_late(attempt)) {
            reply.error(Errno::EAGAIN.raw());
        }
    }

    /// Ends an attempt whose caller got a signal. Returns false if it does not wait here.
    pub(super) fn interrupt_attempt(&self, unique: u64) -> bool {
        let mut inner = self.lockers.lock();
        let Some(at) = inner.tries.iter().position(|(attempt, _)| attempt.unique == unique) else {
            return false;
        };
        let (_, reply) = inner.tries.swap_remove(at);
        reply.error(Errno::EINTR.raw());
        true
    }
}

impl LockAttempt {
    /// `may_fail_again`: the attempt may wait for another release.
    fn repeat(self, calls: &impl Calls<FuseFrontend>, reply: fuse::Reply, may_fail_again: bool) {
        let unique = self.unique;
        let call = Call::Request(Request::Lock { ino: self.ino, lock: self.lock, wait: None });
        let form = if may_fail_again { Form::LockAttempt(self) } else { Form::Plain };
        calls.call(unique, Caller::SERVER, call, Ticket { reply, form, begun: None });
    }
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
