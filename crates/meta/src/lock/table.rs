//! The lock table: which owner has locked which range, and which request waits for it. It knows
//! sessions only by their numbers.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno, Ino, Lock, LockKind, LockOwner, LockRanges};

use crate::state::FxMap;

/// Maximum number of a client's locked ranges and waiting requests.
const MAX_LOCKS: usize = 16_384;
/// Maximum number of owners that the deadlock search visits.
const MAX_SEARCH: usize = 256;

/// The locks of all clients.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    files: FxMap<Ino, FileLocks>,
    waits: BTreeMap<WaitId, Wait>,
    clients: FxMap<ClientId, Share>,
    /// Granted requests that had waited; to be reported to their clients.
    pub granted: Vec<(ClientId, u64)>,
}

/// A lock owner of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LockHolder {
    client: ClientId,
    owner: LockOwner,
}

/// A waiting request. The client's number of it comes last, so that the requests of an owner are
/// adjacent.
type WaitId = (LockHolder, u64);

#[derive(Clone, Copy, Debug)]
struct Wait {
    ino: Ino,
    lock: Lock,
}

#[derive(Debug, Default)]
struct FileLocks {
    held: BTreeMap<LockHolder, HeldLock>,
    /// In the order of arrival.
    waiting: VecDeque<WaitId>,
}

#[derive(Debug, Default)]
struct HeldLock {
    ranges: LockRanges,
    pid: u32,
}

/// A client's use of the table.
#[derive(Debug, Default)]
struct Share {
    ranges: usize,
    waits: usize,
    /// Files that it has locked or waits for.
    files: BTreeSet<Ino>,
}

/// The result of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockOutcome {
    Locked,
    Waits,
}

impl FileLocks {
    /// The locks that conflict with `lock`, each with its owner.
    fn in_the_way(&self, of: LockHolder, lock: &Lock) -> impl Iterator<Item = (LockHolder, Lock)> + '_ {
        let Lock { kind, first, last, .. } = *lock;
        let others = self
            .held
            .iter()
            .filter(move |(holder, _)| **holder != of && holder.owner.flock == of.owner.flock);
        others.filter_map(move |(holder, held)| {
            let range = held.ranges.conflict(kind, first, last)?;
            let (kind, first, last) = (range.kind, range.first, range.last);
            Some((*holder, Lock { owner: holder.owner, kind, first, last, pid: held.pid }))
        })
    }
}

impl LockTable {
    /// Requests a lock. `wait`: the number under which the request waits if another lock conflicts.
    /// Repeating a request is harmless.
    ///
    /// # Errors
    /// - `EAGAIN`: another lock conflicts, and the request does not wait.
    /// - `EDEADLK`: the owner of the conflicting lock waits for this owner.
    /// - `ENOLCK`: the client has too many locks. Its locks are unchanged.
    pub(crate) fn lock(
        &mut self,
        client: ClientId,
        ino: Ino,
        lock: Lock,
        wait: Option<u64>,
    ) -> Result<LockOutcome, Errno> {
        let holder = LockHolder { client, owner: lock.owner };
        let waits_already = |table: &Self| wait.is_some_and(|wait| table.waits.contains_key(&(holder, wait)));
        let converts = lock.owner.flock && !self.covers(holder, ino, &lock);
        // A refused conversion keeps the old lock, so the limit is checked before its release.
        let released = if converts { self.ranges_of(holder, ino) } else { 0 };
        let used = self.clients.get(&client).map_or(0, |share| share.ranges + share.waits);
        if !waits_already(self) && used - released + 2 > MAX_LOCKS {
            return Err(Errno::ENOLCK);
        }
        if converts {
            // Converting a `flock` releases the old lock first, as Linux does.
            self.set(holder, ino, None, &lock);
            self.grant(ino);
        }
        if waits_already(self) {
            return Ok(LockOutcome::Waits);
        }
        if self.files.entry(ino).or_default().in_the_way(holder, &lock).next().is_none() {
            self.set(holder, ino, Some(lock.kind), &lock);
            // A downgrade may unblock other requests.
            self.grant(ino);
            return Ok(LockOutcome::Locked);
        }
        let result = match wait {
            None => Err(Errno::EAGAIN),
            Some(_) if !lock.owner.flock && self.is_waited_for(holder, ino, &lock) => Err(Errno::EDEADLK),
            Some(wait) => {
                self.wait(holder, ino, lock, wait);
                Ok(LockOutcome::Waits)
            }
        };
        self.tidy(client, ino);
        result
    }

    fn wait(&mut self, holder: LockHolder, ino: Ino, lock: Lock, wait: u64) {
        self.files.entry(ino).or_default().waiting.push_back((holder, wait));
        self.waits.insert((holder, wait), Wait { ino, lock });
        let share = self.clients.entry(holder.client).or_default();
        share.waits += 1;
        share.files.insert(ino);
    }

    /// Unlocks a range.
    ///
    /// # Errors
    /// `ENOLCK` if splitting a range could exceed the client's bound.
    pub(crate) fn unlock(
        &mut self,
        client: ClientId,
        ino: Ino,
        owner: LockOwner,
        (first, last): (u64, u64),
    ) -> Result<(), Errno> {
        let is_all = (first, last) == (0, u64::MAX);
        if !is_all && self.clients.get(&client).is_some_and(|share| share.ranges + share.waits >= MAX_LOCKS) {
            return Err(Errno::ENOLCK);
        }
        let lock = Lock { owner, kind: LockKind::Shared, first, last, pid: 0 };
        self.set(LockHolder { client, owner }, ino, None, &lock);
        self.grant(ino);
        Ok(())
    }

    /// The first lock that conflicts with `lock`. Its pid is 0 if it belongs to another client.
    pub(crate) fn test(&self, client: ClientId, ino: Ino, lock: &Lock) -> Option<Lock> {
        let holder = LockHolder { client, owner: lock.owner };
        let (other, lock) = self.files.get(&ino)?.in_the_way(holder, lock).next()?;
        let pid = if other.client == client { lock.pid } else { 0 };
        Some(Lock { pid, ..lock })
    }

    /// Cancels a waiting request. Returns true if the lock has been granted meanwhile.
    pub(crate) fn stop_waiting(&mut self, client: ClientId, ino: Ino, lock: &Lock, wait: u64) -> bool {
        let holder = LockHolder { client, owner: lock.owner };
        if self.forget_wait((holder, wait)) {
            self.tidy(client, ino);
            return false;
        }
        self.covers(holder, ino, lock)
    }

    fn forget_wait(&mut self, id: WaitId) -> bool {
        let Some(Wait { ino, .. }) = self.waits.remove(&id) else { return false };
        if let Some(file) = self.files.get_mut(&ino) {
            file.waiting.retain(|waiting| *waiting != id);
        }
        if let Some(share) = self.clients.get_mut(&id.0.client) {
            share.waits -= 1;
        }
        true
    }

    /// Drops the locks and waiting requests of a client that has closed a file for the last time.
    pub(crate) fn close(&mut self, client: ClientId, ino: Ino) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let waits: Vec<_> =
            file.waiting.iter().copied().filter(|(holder, _)| holder.client == client).collect();
        let mut ranges = 0;
        file.held.retain(|holder, held| {
            let stays = holder.client != client;
            ranges += if stays { 0 } else { held.ranges.len() };
            stays
        });
        if let Some(share) = self.clients.get_mut(&client) {
            share.ranges -= ranges;
        }
        for wait in waits {
            self.forget_wait(wait);
        }
        self.grant(ino);
        self.tidy(client, ino);
    }

    /// Drops all locks of a client whose session has ended.
    pub(crate) fn end(&mut self, client: ClientId) {
        let files = self.clients.get_mut(&client).map(|share| core::mem::take(&mut share.files));
        for ino in files.unwrap_or_default() {
            self.close(client, ino);
        }
        self.clients.remove(&client);
    }

    /// Grants what waiting requests can have, in the order of arrival.
    fn grant(&mut self, ino: Ino) {
        let mut at = 0;
        while let Some(id) = self.files.get(&ino).and_then(|file| file.waiting.get(at)).copied() {
            let Some(Wait { lock, .. }) = self.waits.get(&id).copied() else { return };
            let (holder, wait) = id;
            if self.files.get(&ino).is_some_and(|file| file.in_the_way(holder, &lock).next().is_some()) {
                at += 1;
                continue;
            }
            self.forget_wait(id);
            self.set(holder, ino, Some(lock.kind), &lock);
            self.granted.push((holder.client, wait));
            // Other requests of the same owner may conflict with less after this grant.
            at = 0;
        }
    }

    /// Sets or clears (`kind` is `None`) the lock on a holder's range of a file.
    fn set(&mut self, holder: LockHolder, ino: Ino, kind: Option<LockKind>, lock: &Lock) {
        let file = self.files.entry(ino).or_default();
        let held = file.held.entry(holder).or_default();
        let before = held.ranges.len();
        held.ranges.set(kind, lock.first, lock.last);
        if kind.is_some() {
            held.pid = lock.pid;
        }
        let after = held.ranges.len();
        if after == 0 {
            file.held.remove(&holder);
        }
        let share = self.clients.entry(holder.client).or_default();
        share.ranges = share.ranges + after - before;
        share.files.insert(ino);
        self.tidy(holder.client, ino);
    }

    /// Removes empty entries.
    fn tidy(&mut self, client: ClientId, ino: Ino) {
        let Some(file) = self.files.get(&ino) else { return };
        let is_of = |holder: &LockHolder| holder.client == client;
        let is_known = file.held.keys().any(is_of) || file.waiting.iter().any(|(holder, _)| is_of(holder));
        if file.held.is_empty() && file.waiting.is_empty() {
            self.files.remove(&ino);
        }
        if !is_known && let Some(share) = self.clients.get_mut(&client) {
            share.files.remove(&ino);
            if share.files.is_empty() {
                self.clients.remove(&client);
            }
        }
    }

    fn ranges_of(&self, holder: LockHolder, ino: Ino) -> usize {
        let held = self.files.get(&ino).and_then(|file| file.held.get(&holder));
        held.map_or(0, |held| held.ranges.len())
    }

    fn covers(&self, holder: LockHolder, ino: Ino, lock: &Lock) -> bool {
        let held = self.files.get(&ino).and_then(|file| file.held.get(&holder));
        held.is_some_and(|held| held.ranges.covers(lock.kind, lock.first, lock.last))
    }

    /// True if an owner of a conflicting lock waits, directly or indirectly, for `holder`.
    fn is_waited_for(&self, holder: LockHolder, ino: Ino, lock: &Lock) -> bool {
        let blockers = |of: LockHolder, ino: Ino, lock: &Lock| -> Vec<LockHolder> {
            let file = self.files.get(&ino);
            file.map(|file| file.in_the_way(of, lock).map(|(other, _)| other).collect()).unwrap_or_default()
        };
        let mut left = blockers(holder, ino, lock);
        let mut seen = BTreeSet::new();
        while let Some(other) = left.pop() {
            if other == holder {
                return true;
            }
            if seen.len() < MAX_SEARCH && seen.insert(other) {
                for (_, wait) in self.waits.range((other, 0)..=(other, u64::MAX)) {
                    left.extend(blockers(other, wait.ino, &wait.lock));
                }
            }
        }
        false
    }

    /// Number of locked ranges.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.clients.values().map(|share| share.ranges).sum()
    }
}
