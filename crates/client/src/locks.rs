//! The locks that a client has or waits for, as its server records them, so that they can be
//! reclaimed.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Lock, LockKind, LockOwner, LockRanges, Reply, Request};

#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    held: BTreeMap<(Ino, LockOwner), HeldLock>,
    /// By wait number.
    waits: BTreeMap<u64, (Ino, Lock)>,
}

#[derive(Debug, Default)]
struct HeldLock {
    ranges: LockRanges,
    pid: u32,
}

/// The requester of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockRequester {
    /// A caller that waits for the answer.
    Caller,
    /// The link, which has repeated the request.
    Again,
    /// A caller that has stopped waiting.
    Abandoned,
}

/// Consequences of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The wait number whose wait is over.
    pub over: Option<u64>,
    /// A request to cancel a wait that no caller is interested in.
    pub unwanted: Option<Request>,
}

impl HeldLocks {
    pub(crate) fn has(&self, ino: Ino, owner: LockOwner) -> bool {
        self.held.contains_key(&(ino, owner))
    }

    /// Applies the answer to a request.
    pub(crate) fn answered(
        &mut self,
        request: &Request,
        result: &Result<Reply, Errno>,
        requester: LockRequester,
    ) -> Noted {
        let mut noted = Noted::default();
        match (request, result) {
            (Request::Lock { ino, lock, wait: Some(wait) }, Ok(Reply::Waits)) => {
                self.give_up_other(*ino, lock);
                match requester {
                    LockRequester::Caller => drop(self.waits.insert(*wait, (*ino, *lock))),
                    LockRequester::Again => {}
                    LockRequester::Abandoned => {
                        noted.unwanted = Some(Request::StopWaiting { ino: *ino, lock: *lock, wait: *wait });
                    }
                }
            }
            (Request::Lock { ino, lock, wait }, Ok(_)) => {
                noted.over = wait.filter(|wait| self.waits.remove(wait).is_some());
                self.set(*ino, lock, Some(lock.kind));
            }
            (Request::Lock { ino, lock, wait }, Err(errno)) => {
                noted.over = wait.filter(|wait| self.waits.remove(wait).is_some());
                // With `ENOLCK` the server has not changed the old lock.
                if *errno != Errno::ENOLCK {
                    self.give_up_other(*ino, lock);
                }
            }
            (Request::Unlock { ino, owner, first, last }, Ok(_)) => {
                self.unlock(*ino, *owner, (*first, *last));
            }
            (Request::StopWaiting { ino, lock, wait }, result) => {
                noted.over = self.waits.remove(wait).map(|_| *wait);
                if result.is_ok() {
                    self.set(*ino, lock, Some(lock.kind));
                }
            }
            _ => {}
        }
        noted
    }

    /// Applies the grant of the lock with this wait number.
    pub(crate) fn granted(&mut self, wait: u64) {
        if let Some((ino, lock)) = self.waits.remove(&wait) {
            self.set(ino, &lock, Some(lock.kind));
        }
    }

    pub(crate) fn waits_for(&self, wait: u64) -> Option<(Ino, Lock)> {
        self.waits.get(&wait).copied()
    }

    /// The requests that restore an owner's locks to what they were before `lock`. `before`:
    /// unanswered requests that precede it.
    pub(crate) fn without<'a>(
        &self,
        ino: Ino,
        lock: &Lock,
        before: impl Iterator<Item = &'a Request>,
    ) -> Vec<Request> {
        let mut had = LockRanges::default();
        for range in self.held.get(&(ino, lock.owner)).iter().flat_map(|held| held.ranges.iter()) {
            had.set(Some(range.kind), range.first, range.last);
        }
        for request in before {
            match request {
                Request::Unlock { ino: of, owner, first, last } if (*of, *owner) == (ino, lock.owner) => {
                    had.set(None, *first, *last);
                }
                _ => {}
            }
        }
        let (mut requests, owner, mut next) = (Vec::new(), lock.owner, Some(lock.first));
        if had.covers(lock.kind, lock.first, lock.last) {
            return requests;
        }
        if owner.flock {
            // A `flock` request gives up the previous lock first.
            had = LockRanges::default();
        }
        let mut unlock = |first, last| requests.push(Request::Unlock { ino, owner, first, last });
        let mut lowered = Vec::new();
        for range in had.iter().filter(|range| range.first <= lock.last && lock.first <= range.last) {
            let (first, last) = (range.first.max(lock.first), range.last.min(lock.last));
            if let Some(from) = next.filter(|from| *from < first) {
                unlock(from, first - 1);
            }
            if range.kind == LockKind::Shared && lock.kind == LockKind::Exclusive {
                let lock = Lock { kind: LockKind::Shared, first, last, ..*lock };
                lowered.push(Request::Lock { ino, lock, wait: None });
            }
            next = last.checked_add(1);
        }
        if let Some(from) = next.filter(|from| *from <= lock.last) {
            unlock(from, lock.last);
        }
        requests.append(&mut lowered);
        requests
    }

    /// Ends a wait that no caller is interested in.
    pub(crate) fn abandon(&mut self, wait: u64) {
        self.waits.remove(&wait);
    }

    /// Before a reclaim: other clients may have acquired what this unanswered request releases.
    pub(crate) fn doubt(&mut self, request: &Request) {
        match request {
            Request::Lock { ino, lock, .. } if lock.owner.flock => {
                let held = self.held.get(&(*ino, lock.owner));
                if held.is_some_and(|held| !held.ranges.covers(lock.kind, lock.first, lock.last)) {
                    self.set(*ino, lock, None);
                }
            }
            Request::Lock { ino, lock, .. } if lock.kind == LockKind::Shared => {
                let held = self.held.get(&(*ino, lock.owner));
                let ranges: Vec<_> = held.iter().flat_map(|held| held.ranges.iter()).collect();
                for range in ranges {
                    let (first, last) = (range.first.max(lock.first), range.last.min(lock.last));
                    if first <= last {
                        self.set(*ino, &Lock { first, last, ..*lock }, Some(LockKind::Shared));
                    }
                }
            }
            Request::Unlock { ino, owner, first, last } => self.unlock(*ino, *owner, (*first, *last)),
            _ => {}
        }
    }

    /// All locks that are held.
    pub(crate) fn all(&self) -> Vec<(Ino, Lock)> {
        let locks = self.held.iter().flat_map(|((ino, owner), held)| {
            held.ranges.iter().map(|range| {
                let (kind, first, last) = (range.kind, range.first, range.last);
                (*ino, Lock { owner: *owner, kind, first, last, pid: held.pid })
            })
        });
        locks.collect()
    }

    /// Drops all locks; returns the files that were locked.
    pub(crate) fn lose(&mut self) -> Vec<Ino> {
        let mut files: Vec<Ino> = core::mem::take(&mut self.held).into_keys().map(|(ino, _)| ino).collect();
        files.dedup();
        files
    }

    /// Repeats the requests for all locks that are waited for, except those in `stopping`.
    pub(crate) fn ask_again(&self, stopping: &BTreeSet<u64>) -> Vec<Request> {
        let ask = |(wait, (ino, lock)): (&u64, &(Ino, Lock))| Request::Lock {
            ino: *ino,
            lock: *lock,
            wait: Some(*wait),
        };
        self.waits.iter().filter(|(wait, _)| !stopping.contains(wait)).map(ask).collect()
    }

    /// A `flock` conversion releases the old lock before it acquires the new one.
    fn give_up_other(&mut self, ino: Ino, lock: &Lock) {
        if lock.owner.flock {
            self.set(ino, lock, None);
        }
    }

    fn unlock(&mut self, ino: Ino, owner: LockOwner, (first, last): (u64, u64)) {
        self.set(ino, &Lock { owner, kind: LockKind::Shared, first, last, pid: 0 }, None);
    }

    fn set(&mut self, ino: Ino, lock: &Lock, kind: Option<LockKind>) {
        let held = self.held.entry((ino, lock.owner)).or_default();
        held.ranges.set(kind, lock.first, lock.last);
        if kind.is_some() {
            held.pid = lock.pid;
        }
        if held.ranges.is_empty() {
            self.held.remove(&(ino, lock.owner));
        }
    }
}
