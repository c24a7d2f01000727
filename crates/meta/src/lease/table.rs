//! The lease table: which client may cache what, and until when (Gray and Cheriton, 1989). It knows
//! nothing of the other tables; an inode that is evicted stays leased.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use espalier_proto::{ClientId, FileType, Ino, Lease, Name, RevocationId};
use smallvec::SmallVec;

use super::contention::Contention;
use super::dependents::Dependents;
use crate::outbox::Revocation;
use crate::state::FxMap;
use crate::trash::INTERNAL_CLIENT;

/// The item of a lease (docs/leases.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeaseKey {
    Inode(Ino),
    /// The listing, size, link count and times of a directory, which each change of its names
    /// changes.
    Contents(Ino),
    /// The names of a directory with this hash, nearly always one. If there are two, giving up the
    /// lease on one ends the lease on the other without notice: the other may be stale for the rest
    /// of its term.
    Name {
        dir: Ino,
        hash: u64,
    },
    /// The right to acknowledge changes in a directory before the server does.
    Exclusive(Ino),
    /// The bytes of a file that others may write to.
    Data(Ino),
    /// The permission to write to a file without announcing it.
    Unannounced(Ino),
}

impl LeaseKey {
    pub(crate) fn as_inode(self) -> Option<Ino> {
        if let Self::Inode(ino) = self { Some(ino) } else { None }
    }

    /// The inode that a change of this item changes.
    pub(crate) fn changed_inode(self) -> Option<Ino> {
        match self {
            Self::Inode(ino) | Self::Contents(ino) => Some(ino),
            Self::Name { .. } | Self::Exclusive(_) | Self::Data(_) | Self::Unannounced(_) => None,
        }
    }

    /// The keys of all that a reply with attributes of an inode exposes. `kind`: its type.
    pub(crate) fn of_attributes(ino: Ino, kind: FileType) -> SmallVec<[Self; 2]> {
        let mut keys = SmallVec::from_iter([Self::Inode(ino)]);
        if kind == FileType::Directory {
            keys.push(Self::Contents(ino));
        }
        keys
    }

    /// The lease in a revocation. `name`: the name of a [`LeaseKey::Name`].
    fn lease(self, name: Option<&Name>) -> Lease {
        match (self, name) {
            (Self::Name { dir, .. }, Some(name)) => Lease::Name { dir, name: name.clone() },
            (Self::Inode(ino) | Self::Name { dir: ino, .. }, _) => Lease::Inode { ino },
            (Self::Contents(dir), _) => Lease::Contents { dir },
            (Self::Exclusive(dir), _) => Lease::Exclusive { dir },
            (Self::Data(ino), _) => Lease::Data { ino },
            (Self::Unannounced(ino), _) => Lease::Unannounced { ino },
        }
    }
}

/// Generation of prepared grants: grows whenever one becomes void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(u64);

/// A client that has, had, or is about to have a lease.
#[derive(Debug)]
struct LeaseHolder {
    client: ClientId,
    /// End of the lease in milliseconds of the server's uptime, as all times here. 0: it has not
    /// begun, or was given up.
    until: u64,
    unacknowledged: Option<Unacknowledged>,
    /// Grants that were prepared before are void.
    void_before: Epoch,
}

/// A holder's revocation that it has not acknowledged.
#[derive(Debug)]
struct Unacknowledged {
    number: RevocationId,
    /// Only for a lease on a file's bytes: it was granted again since.
    is_granted_again: bool,
}

/// A revocation that was sent and is not acknowledged.
#[derive(Debug)]
struct SentRevocation {
    revocation: Revocation,
    key: LeaseKey,
    at: u64,
    progress: RevocationProgress,
}

/// The client's last report about a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RevocationProgress {
    Sent,
    /// A pending call of the client has locked the directory.
    Blocked,
    /// The calls that blocked it have been refused.
    Unblocked,
}

/// Statistics of the lease table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseCounts {
    pub given: u64,
    pub revoked: u64,
    pub expired: u64,
    /// Revocations that were not acknowledged within the lease's term.
    pub unanswered: u64,
    /// Times that an operation waited for other clients to give up leases.
    pub waits: u64,
}

#[derive(Debug)]
pub(crate) struct Leases {
    term_ms: u64,
    most: usize,
    /// Most keys have one holder.
    holders: FxMap<LeaseKey, SmallVec<[LeaseHolder; 1]>>,
    dependents: Dependents,
    /// The names that were absent when leases on them were prepared, by directory and hash.
    absent: BTreeMap<(Ino, u64), Name>,
    /// Each holder once, roughly in the order in which their leases end.
    order: VecDeque<(u64, LeaseKey, ClientId)>,
    /// Grant barriers: number of operations about to change the key. No lease is granted on it
    /// meanwhile.
    barriers: FxMap<LeaseKey, u32>,
    /// Operations blocked on other clients' leases.
    waiting: FxMap<LeaseKey, Vec<(ClientId, u64)>>,
    /// Revocations that were sent and are not acknowledged.
    revocations: FxMap<RevocationId, SentRevocation>,
    last_revocation: RevocationId,
    epoch: Epoch,
    /// Clients whose leases were dropped, until the last of these leases would have expired.
    gone: FxMap<ClientId, u64>,
    /// Clients that take no leases.
    abstainers: BTreeSet<ClientId>,
    /// Processes of clients with a refused operation that they have not repeated yet.
    refused: BTreeSet<(ClientId, u32)>,
    names: Contention,
    inodes: Contention,
    /// Contents of directories.
    contents: Contention,
    /// Revocations to send.
    pub outgoing: Vec<Revocation>,
    pub counts: LeaseCounts,
}

impl Leases {
    /// Time by which a lease lasts longer at the server than at its holder, whose clock may be
    /// slower; milliseconds.
    pub(crate) const MARGIN_MS: u64 = 1_000;
    /// Bound on the callers that may have a refused call to repeat; no further calls are refused.
    const MOST_REFUSED: usize = 4096;
    /// Time after which an unacknowledged revocation is sent again, since it may have been lost
    /// with its connection; milliseconds.
    const AGAIN_MS: u64 = 2_000;

    /// `term_ms` is the term of a lease; `most` bounds the leases held at any time.
    pub(crate) fn new(term_ms: u32, most: usize) -> Self {
        Self {
            term_ms: u64::from(term_ms),
            most,
            holders: FxMap::default(),
            dependents: Dependents::default(),
            absent: BTreeMap::new(),
            order: VecDeque::new(),
            barriers: FxMap::default(),
            waiting: FxMap::default(),
            revocations: FxMap::default(),
            last_revocation: RevocationId(0),
            epoch: Epoch(1),
            gone: FxMap::default(),
            abstainers: BTreeSet::new(),
            refused: BTreeSet::new(),
            names: Contention::default(),
            inodes: Contention::default(),
            contents: Contention::default(),
            outgoing: Vec::new(),
            counts: LeaseCounts::default(),
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.order.len()
    }

    // ---- Granting

    pub(crate) fn want(&mut self, client: ClientId, wanted: bool) {
        if wanted {
            self.abstainers.remove(&client);
        } else {
            self.abstainers.insert(client);
        }
    }

    /// True if a client may have leases at all.
    pub(crate) fn are_for(&self, client: ClientId) -> bool {
        client != INTERNAL_CLIENT && !self.abstainers.contains(&client)
    }

    /// True if a lease may be granted to an operation that itself holds the grant barriers `own`.
    pub(crate) fn may_give(&self, key: LeaseKey, own: &[LeaseKey], now: u64) -> bool {
        let is_contended = match key {
            LeaseKey::Inode(ino) => self.inodes.is_hot(ino, now),
            LeaseKey::Contents(dir) => self.contents.is_hot(dir, now),
            LeaseKey::Name { dir, .. } => self.names.is_hot(dir, now),
            // No exclusive lease is granted on a directory that others know, and each reader of new
            // bytes gets a lease on them.
            LeaseKey::Exclusive(_) | LeaseKey::Data(_) | LeaseKey::Unannounced(_) => false,
        };
        self.is_free(key, own) && !is_contended
    }

    /// As [`Self::may_give`], but ignores contention.
    pub(crate) fn is_free(&self, key: LeaseKey, own: &[LeaseKey]) -> bool {
        let barriers =
            if self.barriers.is_empty() { 0 } else { self.barriers.get(&key).copied().unwrap_or(0) };
        barriers <= u32::from(own.contains(&key)) && self.order.len() < self.most
    }

    /// Prepares grants to a client by a reply that has yet to leave. Returns the generation, for
    /// [`Self::finish_grant`].
    pub(crate) fn prepare_grant(&mut self, client: ClientId, keys: &[LeaseKey], now: u64) -> Epoch {
        // Each new holder expires up to two others, which bounds the work of each call.
        self.expire(now, 2 * keys.len());
        for key in keys {
            let holders = self.holders.entry(*key).or_default();
            if !holders.iter().any(|holder| holder.client == client) {
                holders.push(LeaseHolder { client, until: 0, unacknowledged: None, void_before: self.epoch });
                self.order.push_back((now + self.lasting_ms(), *key, client));
            }
        }
        self.epoch
    }

    /// Records that the attributes of `file`, on which a grant is prepared, derive from `dir`.
    pub(crate) fn inherits(&mut self, file: Ino, dir: Ino) {
        self.dependents.add(file, dir);
    }

    /// Records the name of a [`LeaseKey::Name`] that does not exist: revocations contain it.
    pub(crate) fn note_absent(&mut self, dir: Ino, hash: u64, name: &Name) {
        self.absent.insert((dir, hash), name.clone());
    }

    /// Records that a name exists.
    pub(crate) fn note_present(&mut self, dir: Ino, hash: u64) {
        if !self.absent.is_empty() {
            self.absent.remove(&(dir, hash));
        }
    }

    /// The absent names of a directory record on which there may be leases, except those with
    /// hashes in `rest`.
    pub(crate) fn absent_outside(&self, record: Ino, rest: &RangeInclusive<u64>) -> Vec<(u64, Name)> {
        let names = self.absent.range((record, 0)..=(record, u64::MAX));
        let names = names.filter(|((_, hash), _)| !rest.contains(hash));
        names.map(|((_, hash), name)| (*hash, name.clone())).collect()
    }

    /// Grants prepared leases as the reply leaves. Returns false if something in the reply has
    /// changed since.
    pub(crate) fn finish_grant(
        &mut self,
        client: ClientId,
        keys: &[LeaseKey],
        epoch: Epoch,
        now: u64,
    ) -> bool {
        let until = now + self.lasting_ms();
        let mut granted = true;
        for key in keys {
            let holder = self.holders.get_mut(key);
            let holder = holder.and_then(|all| all.iter_mut().find(|holder| holder.client == client));
            match holder.filter(|holder| holder.void_before <= epoch) {
                // A holder with a pending revocation gets no new lease: its acknowledgement would
                // end the new one too.
                Some(holder) if holder.unacknowledged.is_none() => holder.until = until,
                // Bytes are the exception: the client receives the revocation before this lease.
                Some(LeaseHolder { until: end, unacknowledged: Some(sent), .. })
                    if matches!(key, LeaseKey::Data(_)) =>
                {
                    *end = until;
                    sent.is_granted_again = true;
                }
                _ => granted = false,
            }
        }
        if granted {
            self.counts.given += keys.len() as u64;
            self.gone.remove(&client);
        }
        granted
    }

    /// True if a client has a lease, even one that is being revoked.
    pub(crate) fn is_held_by(&self, client: ClientId, key: LeaseKey) -> bool {
        let mut holders = self.holders.get(&key).into_iter().flatten();
        holders.any(|holder| holder.client == client && holder.until > 0)
    }

    /// Directories on which a client may have an exclusive lease.
    pub(crate) fn exclusive(&self) -> Vec<Ino> {
        let dir = |key: &LeaseKey| if let LeaseKey::Exclusive(dir) = key { Some(*dir) } else { None };
        self.holders.keys().filter_map(dir).collect()
    }

    // ---- Revoking

    /// Revokes other clients' leases on `key` before `client` changes it. Returns true if another
    /// client still holds one.
    pub(crate) fn revoke(&mut self, client: ClientId, key: LeaseKey, name: Option<&Name>, now: u64) -> bool {
        let Some(holders) = self.holders.get_mut(&key) else { return false };
        self.epoch.0 += 1;
        let (mut is_held, revoked) = (false, self.counts.revoked);
        for holder in holders {
            holder.void_before = self.epoch;
            if holder.client == client {
                continue;
            }
            if now >= holder.until || self.gone.contains_key(&holder.client) {
                end(holder, &mut self.revocations, &mut self.counts);
                continue;
            }
            is_held = true;
            if let Some(sent) = &holder.unacknowledged {
                if !sent.is_granted_again {
                    continue;
                }
                // The new revocation's acknowledgement covers both leases.
                self.revocations.remove(&sent.number);
            }
            self.last_revocation.0 += 1;
            self.counts.revoked += 1;
            let (client, number) = (holder.client, self.last_revocation);
            holder.unacknowledged = Some(Unacknowledged { number, is_granted_again: false });
            let lease = key.lease(name);
            let revocation = Revocation { client, number, lease };
            self.outgoing.push(revocation.clone());
            let progress = RevocationProgress::Sent;
            self.revocations.insert(number, SentRevocation { revocation, key, at: now, progress });
        }
        match key {
            _ if self.counts.revoked == revoked => {}
            // A participant revokes names also from the client that renames: no contention.
            _ if client == INTERNAL_CLIENT => {}
            LeaseKey::Inode(ino) => self.inodes.note(ino, now),
            LeaseKey::Contents(dir) => self.contents.note(dir, now),
            LeaseKey::Name { dir, .. } => self.names.note(dir, now),
            // Never contended: no exclusive lease is granted on a directory that others know, and
            // each reader of new bytes gets a lease on them.
            LeaseKey::Exclusive(_) | LeaseKey::Data(_) | LeaseKey::Unannounced(_) => {}
        }
        is_held
    }

    /// Revokes all leases on no-metafile files of `dir`, including those of the client that changes
    /// it: its reply does not list these files. Returns one of the keys that are still held.
    pub(crate) fn revoke_dependents(&mut self, dir: Ino, now: u64) -> Option<LeaseKey> {
        let keys = self.dependents.of(dir).into_iter().map(LeaseKey::Inode);
        keys.filter(|key| self.revoke(INTERNAL_CLIENT, *key, None, now)).last()
    }

    /// Asks a client that writes to a file silently to announce its writes. The request is sent
    /// once.
    pub(crate) fn revoke_unannounced(&mut self, by: ClientId, client: ClientId, ino: Ino, now: u64) {
        let (key, until) = (LeaseKey::Unannounced(ino), now + self.lasting_ms());
        self.prepare_grant(client, &[key], now);
        let holders = self.holders.get_mut(&key).into_iter().flatten();
        for holder in holders.filter(|holder| holder.client == client && holder.until == 0) {
            holder.until = until;
        }
        self.revoke(by, key, None, now);
    }

    /// The file whose writes a client must announce according to this revocation; `None` for other
    /// revocations.
    pub(crate) fn unannounced_file(&mut self, client: ClientId, number: RevocationId) -> Option<Ino> {
        match self.sent(client, number)?.key {
            LeaseKey::Unannounced(ino) => Some(ino),
            _ => None,
        }
    }

    /// True if another client has not acknowledged a revocation of a file's bytes.
    pub(crate) fn is_data_awaited(&self, client: ClientId, ino: Ino) -> bool {
        let mut holders = self.holders.get(&LeaseKey::Data(ino)).into_iter().flatten();
        holders.any(|holder| holder.client != client && holder.unacknowledged.is_some())
    }

    /// True if a client may write to a file without announcing it, since no other client has a
    /// lease on its bytes. Voids other clients' prepared grants on them.
    pub(crate) fn may_write_unannounced(&mut self, client: ClientId, ino: Ino) -> bool {
        let mut sent = self.holders.get(&LeaseKey::Unannounced(ino)).into_iter().flatten();
        if sent.any(|holder| holder.client == client && holder.unacknowledged.is_some()) {
            return false;
        }
        self.epoch.0 += 1;
        let mut is_cached = false;
        for holder in self.holders.get_mut(&LeaseKey::Data(ino)).into_iter().flatten() {
            if holder.client != client {
                holder.void_before = self.epoch;
                is_cached |= holder.until > 0;
            }
        }
        !is_cached
    }

    pub(crate) fn lasting_ms(&self) -> u64 {
        self.term_ms + Self::MARGIN_MS
    }

    /// Sets a grant barrier on `key` until [`Self::lift_barriers`], so that an operation that has
    /// waited does not face new leases.
    pub(crate) fn raise_barrier(&mut self, barriers: &mut Vec<LeaseKey>, key: LeaseKey) {
        if !barriers.contains(&key) {
            barriers.push(key);
            *self.barriers.entry(key).or_default() += 1;
        }
    }

    pub(crate) fn lift_barriers(&mut self, barriers: &mut Vec<LeaseKey>) {
        for key in barriers.drain(..) {
            if let Some(count) = self.barriers.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.barriers.remove(&key);
                }
            }
        }
    }

    /// Blocks a client's operation on other clients' leases.
    pub(crate) fn wait(&mut self, key: LeaseKey, client: ClientId, task: u64) {
        self.counts.waits += 1;
        self.waiting.entry(key).or_default().push((client, task));
    }

    /// Removes the blocked operation that `is_target` selects.
    pub(crate) fn stop_waiting(&mut self, is_target: impl Fn(&u64) -> bool) -> Option<u64> {
        let found = self.waiting.iter().find_map(|(key, tasks)| {
            let (at, (_, task)) = tasks.iter().enumerate().find(|(_, (_, task))| is_target(task))?;
            Some((*key, at, *task))
        });
        let (key, at, task) = found?;
        if let Some(tasks) = self.waiting.get_mut(&key) {
            tasks.swap_remove(at);
        }
        Some(task)
    }

    /// A client reports that one of its calls has locked the directory of a revoked name. Returns
    /// the directory.
    pub(crate) fn revocation_blocked(&mut self, client: ClientId, number: RevocationId) -> Option<Ino> {
        let sent = self.sent(client, number)?;
        let LeaseKey::Name { dir, .. } = sent.key else { return None };
        if sent.progress == RevocationProgress::Sent {
            sent.progress = RevocationProgress::Blocked;
        }
        Some(dir)
    }

    /// Takes operations of a client out of the table that have locked `dir` and wait for clients
    /// which are blocked, too. Leaves those of processes that have not repeated a refused operation
    /// yet. `locker`: the process whose operation has locked a directory, if it may be refused.
    pub(crate) fn refuse_waiting(
        &mut self,
        client: ClientId,
        dir: Ino,
        locker: impl Fn(u64, Ino) -> Option<u32>,
    ) -> Vec<u64> {
        let waiting: Vec<(ClientId, u64)> = self.waiting.values().flatten().copied().collect();
        let is_blocked = |sent: &SentRevocation| match sent.key {
            LeaseKey::Name { dir, .. } if sent.progress == RevocationProgress::Blocked => {
                let locks =
                    |(of, task): &(_, u64)| *of == sent.revocation.client && locker(*task, dir).is_some();
                waiting.iter().any(locks)
            }
            _ => false,
        };
        let mut refused = Vec::new();
        for (key, tasks) in &mut self.waiting {
            let others = self.holders.get(key).into_iter().flatten().filter(|other| other.client != client);
            let awaited = others.filter_map(|holder| holder.unacknowledged.as_ref());
            let mut awaited = awaited.filter_map(|sent| self.revocations.get(&sent.number));
            if !awaited.any(is_blocked) {
                continue;
            }
            let is_refused = |(of, task): &mut (ClientId, u64)| {
                let has_room = self.refused.len() < Self::MOST_REFUSED;
                let locker = locker(*task, dir).filter(|_| has_room && *of == client);
                locker.is_some_and(|pid| self.refused.insert((client, pid)))
            };
            refused.extend(tasks.extract_if(.., is_refused).map(|(_, task)| task));
        }
        self.waiting.retain(|_, tasks| !tasks.is_empty());
        if !refused.is_empty() {
            let of_dir = |sent: &&mut SentRevocation| {
                let is_in_dir = matches!(sent.key, LeaseKey::Name { dir: of, .. } if of == dir);
                is_in_dir && sent.revocation.client == client
            };
            let unblocked = self.revocations.values_mut().filter(of_dir);
            unblocked.for_each(|sent| sent.progress = RevocationProgress::Unblocked);
        }
        refused
    }

    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    pub(crate) fn may_refuse_again(&mut self, client: ClientId, pid: u32) {
        self.refused.remove(&(client, pid));
    }

    /// A revocation that this client has not acknowledged.
    fn sent(&mut self, client: ClientId, number: RevocationId) -> Option<&mut SentRevocation> {
        self.revocations.get_mut(&number).filter(|sent| sent.revocation.client == client)
    }

    /// Handles a client's acknowledgement of a revocation. Returns the operations to resume.
    pub(crate) fn revoked(&mut self, client: ClientId, number: RevocationId) -> Vec<u64> {
        let Some(&mut SentRevocation { key, .. }) = self.sent(client, number) else { return Vec::new() };
        self.revocations.remove(&number);
        for holder in self.holders.get_mut(&key).into_iter().flatten() {
            if let Some(sent) = holder.unacknowledged.take_if(|sent| sent.number == number)
                && !sent.is_granted_again
            {
                holder.until = 0;
            }
        }
        self.waiters_to_resume(key)
    }

    /// Removes and returns the operations blocked on `key` that no other holder blocks.
    fn waiters_to_resume(&mut self, key: LeaseKey) -> Vec<u64> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let Some(tasks) = self.waiting.get_mut(&key) else { return Vec::new() };
        let holders = self.holders.get(&key).map_or(&[][..], |holders| holders);
        let is_ready = |(client, _): &mut (ClientId, u64)| {
            !holders.iter().any(|holder| holder.unacknowledged.is_some() && holder.client != *client)
        };
        let ready = tasks.extract_if(.., is_ready).map(|(_, task)| task).collect();
        if tasks.is_empty() {
            self.waiting.remove(&key);
        }
        ready
    }

    /// Drops all leases of a client. Returns the operations to resume.
    pub(crate) fn drop_client(&mut self, client: ClientId, now: u64) -> Vec<u64> {
        self.gone.insert(client, now + self.lasting_ms());
        self.abstainers.remove(&client);
        self.refused.retain(|(refused, _)| *refused != client);
        self.lapse(now)
    }

    /// Expires leases and resends unacknowledged revocations. Returns the operations to resume.
    pub(crate) fn tick(&mut self, now: u64) -> Vec<u64> {
        self.gone.retain(|_, until| now < *until);
        self.expire(now, usize::MAX);
        for sent in self.revocations.values_mut().filter(|sent| now >= sent.at + Self::AGAIN_MS) {
            sent.at = now;
            self.outgoing.push(sent.revocation.clone());
        }
        self.lapse(now)
    }

    /// Ends leases that operations are blocked on and that have expired, or whose client is gone.
    fn lapse(&mut self, now: u64) -> Vec<u64> {
        let mut ready = Vec::new();
        let keys: Vec<LeaseKey> = self.waiting.keys().copied().collect();
        for key in keys {
            let is_over = |holder: &&mut LeaseHolder| {
                holder.unacknowledged.is_some()
                    && (now >= holder.until || self.gone.contains_key(&holder.client))
            };
            for holder in self.holders.get_mut(&key).into_iter().flatten().filter(is_over) {
                end(holder, &mut self.revocations, &mut self.counts);
            }
            ready.append(&mut self.waiters_to_resume(key));
        }
        ready
    }

    /// Removes up to `limit` holders whose leases have expired.
    fn expire(&mut self, now: u64, limit: usize) {
        for _ in 0..limit {
            let Some((due, key, client)) = self.order.front().copied() else { return };
            if now < due {
                return;
            }
            self.order.pop_front();
            let Some(holders) = self.holders.get_mut(&key) else { continue };
            let Some(at) = holders.iter().position(|holder| holder.client == client) else { continue };
            let until = holders[at].until;
            if now < until {
                // The lease was renewed.
                self.order.push_back((until, key, client));
                continue;
            }
            let mut holder = holders.swap_remove(at);
            if holders.is_empty() {
                self.holders.remove(&key);
                key.as_inode().inspect(|ino| self.dependents.remove(*ino));
                if let LeaseKey::Name { dir, hash } = key {
                    self.note_present(dir, hash);
                }
            }
            end(&mut holder, &mut self.revocations, &mut self.counts);
        }
    }
}

/// Ends a lease that has expired, or whose client is gone.
fn end(
    holder: &mut LeaseHolder,
    revocations: &mut FxMap<RevocationId, SentRevocation>,
    counts: &mut LeaseCounts,
) {
    counts.expired += u64::from(holder.until != 0);
    if let Some(sent) = holder.unacknowledged.take() {
        counts.unanswered += 1;
        revocations.remove(&sent.number);
    }
    holder.until = 0;
}

#[cfg(test)]
mod tests;
