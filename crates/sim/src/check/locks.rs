//! Checks advisory locks (docs/locks.md): no two holders of conflicting locks, and no refusal
//! without a possible conflict.
//!
//! Locks need no search for orders. A process holds a lock from the reply until it makes a further
//! request. A process may hold a lock from its request until it has certainly released it.

use std::collections::{BTreeMap, BTreeSet};

use espalier_client::{Answer, Call};
use espalier_proto::{ClientId, Errno, Ino, Lock, LockKind, LockOwner, LockRanges, Rank, Request};

use super::violation::{Violation, shortened};
use crate::Nanos;

type LockHolder = (ClientId, LockOwner);

/// Ranges of a file that an owner holds according to replies.
struct Belief {
    ranges: LockRanges,
    /// Time of the last reply that granted a lock.
    since: Nanos,
}

/// A lock that an owner may hold.
struct Possible {
    call: (ClientId, u64),
    ino: Ino,
    holder: LockHolder,
    lock: Lock,
    until: Option<Nanos>,
}

/// See the module description.
pub struct LockChecker {
    /// Time of silence after which a server may have ended a client's session, reduced by the error
    /// of clocks.
    session: Nanos,
    beliefs: BTreeMap<(Ino, LockHolder), Belief>,
    possible: Vec<Possible>,
    pending_requests: BTreeMap<(ClientId, u64), (Nanos, Request)>,
    heard: BTreeMap<(ClientId, Rank), Nanos>,
    /// Clients whose session with a rank has ended. They are not notified of the loss of their
    /// locks.
    strangers: BTreeSet<(ClientId, Rank)>,
}

impl LockChecker {
    pub fn new(session: Nanos) -> Self {
        Self {
            session: Nanos(session.0 / 100 * 97),
            beliefs: BTreeMap::new(),
            possible: Vec::new(),
            pending_requests: BTreeMap::new(),
            heard: BTreeMap::new(),
            strangers: BTreeSet::new(),
        }
    }

    pub fn invoked(&mut self, now: Nanos, client: ClientId, call_id: u64, call: &Call<'_>) {
        let Call::Request(request) = call else { return };
        match request {
            Request::Lock { ino, lock, .. } => {
                let holder = (client, lock.owner);
                let call = (client, call_id);
                self.possible.push(Possible { call, ino: *ino, holder, lock: *lock, until: None });
                match (lock.owner.flock, lock.kind) {
                    // A conversion releases the old lock before it takes the new one.
                    (true, _) => self.believe(now, *ino, holder, None, (0, u64::MAX)),
                    (false, LockKind::Shared) => self.weaken(now, *ino, holder, (lock.first, lock.last)),
                    (false, LockKind::Exclusive) => {}
                }
            }
            Request::Unlock { ino, owner, first, last } => {
                self.believe(now, *ino, (client, *owner), None, (*first, *last));
            }
            Request::TestLock { .. } => {}
            _ => return,
        }
        self.pending_requests.insert((client, call_id), (now, request.clone()));
    }

    /// # Errors
    /// A description, if the reply is impossible.
    pub fn answered(
        &mut self,
        now: Nanos,
        client: ClientId,
        call_id: u64,
        result: &Result<Answer, Errno>,
    ) -> Result<(), Box<Violation>> {
        let Some((since, request)) = self.pending_requests.remove(&(client, call_id)) else { return Ok(()) };
        let why = match (&request, result) {
            (Request::Lock { ino, lock, .. }, Ok(_)) => {
                let holder = (client, lock.owner);
                self.release(now, (client, call_id), *ino, holder, (lock.first, lock.last));
                self.believe(now, *ino, holder, Some(lock.kind), (lock.first, lock.last));
                self.in_the_way(now, now, *ino, holder, lock)
            }
            (Request::Lock { ino, lock, wait }, Err(errno)) => {
                if !matches!(*errno, Errno::EINTR | Errno::EIO) {
                    self.possible.retain(|it| it.call != (client, call_id));
                }
                let is_refused = *errno == Errno::EAGAIN && wait.is_none();
                let may_be = !is_refused || self.may_be_in_the_way(since, *ino, (client, lock.owner), lock);
                (!may_be).then(|| "No other owner can hold the conflicting lock".into())
            }
            (Request::Unlock { ino, owner, first, last }, Ok(_)) => {
                self.release(now, (client, call_id), *ino, (client, *owner), (*first, *last));
                None
            }
            (Request::TestLock { ino, lock }, Ok(Answer::InTheWay(None))) => {
                self.in_the_way(now, since, *ino, (client, lock.owner), lock)
            }
            (Request::TestLock { ino, lock }, Ok(Answer::InTheWay(Some(_)))) => {
                let may_be = self.may_be_in_the_way(since, *ino, (client, lock.owner), lock);
                (!may_be).then(|| "No other owner can hold the conflicting lock".into())
            }
            _ => None,
        };
        let oldest = self.pending_requests.values().map(|(since, _)| *since).min().unwrap_or(now);
        self.possible.retain(|it| it.until.is_none_or(|until| until >= oldest));
        let Some(why) = why else { return Ok(()) };
        Err(Box::new(Violation {
            at: now,
            client,
            number: 0,
            since,
            call: shortened(&request),
            answer: shortened(result),
            possible: vec![why],
            related: Vec::new(),
        }))
    }

    /// A server has received a message of a client.
    pub fn heard(&mut self, now: Nanos, client: ClientId, rank: Rank) {
        if self.is_cut_off(now, client, rank) {
            self.forget(|holder, of| holder == client && of == rank);
        }
        self.heard.insert((client, rank), now);
    }

    pub fn session_lost(&mut self, client: ClientId, rank: Rank) {
        self.strangers.insert((client, rank));
        self.forget(|holder, of| holder == client && of == rank);
    }

    /// A client has crashed.
    pub fn lost(&mut self, client: ClientId) {
        self.forget(|holder, _| holder == client);
        self.pending_requests.retain(|(of, _), _| *of != client);
    }

    fn forget(&mut self, is_lost: impl Fn(ClientId, Rank) -> bool) {
        self.beliefs.retain(|(ino, (client, _)), _| !is_lost(*client, ino.rank()));
    }

    /// True if the client's session may have ended without its knowledge.
    fn is_cut_off(&self, now: Nanos, client: ClientId, rank: Rank) -> bool {
        let heard = self.heard.get(&(client, rank)).copied().unwrap_or(now);
        heard + self.session <= now || self.strangers.contains(&(client, rank))
    }

    fn believe(
        &mut self,
        now: Nanos,
        ino: Ino,
        holder: LockHolder,
        kind: Option<LockKind>,
        part: (u64, u64),
    ) {
        let none = || Belief { ranges: LockRanges::default(), since: now };
        let belief = self.beliefs.entry((ino, holder)).or_insert_with(none);
        belief.ranges.set(kind, part.0, part.1);
        if kind.is_some() {
            belief.since = now;
        }
        if belief.ranges.is_empty() {
            self.beliefs.remove(&(ino, holder));
        }
    }

    /// Converts exclusive locks in the range to shared ones.
    fn weaken(&mut self, now: Nanos, ino: Ino, holder: LockHolder, (first, last): (u64, u64)) {
        let Some(belief) = self.beliefs.get(&(ino, holder)) else { return };
        let there = belief.ranges.iter().filter(|it| it.first <= last && first <= it.last);
        let parts: Vec<_> = there.map(|it| (it.first.max(first), it.last.min(last))).collect();
        let since = belief.since;
        for part in parts {
            self.believe(now, ino, holder, Some(LockKind::Shared), part);
        }
        self.beliefs.entry((ino, holder)).and_modify(|belief| belief.since = since);
    }

    /// Ends the possible locks of a holder in the range, except those of call `by`.
    fn release(&mut self, now: Nanos, by: (ClientId, u64), ino: Ino, holder: LockHolder, part: (u64, u64)) {
        let is_there = |it: &&mut Possible| {
            let is_covered = part.0 <= it.lock.first && it.lock.last <= part.1;
            it.call != by && (it.ino, it.holder) == (ino, holder) && it.until.is_none() && is_covered
        };
        self.possible.iter_mut().filter(is_there).for_each(|it| it.until = Some(now));
    }

    /// Describes a holder of a conflicting lock since `since`, if any.
    fn in_the_way(
        &self,
        now: Nanos,
        since: Nanos,
        ino: Ino,
        holder: LockHolder,
        lock: &Lock,
    ) -> Option<String> {
        let of_file = self
            .beliefs
            .iter()
            .filter(|((of, other), _)| *of == ino && *other != holder && other.1.flock == lock.owner.flock);
        let mut old = of_file.filter(|(_, belief)| belief.since <= since);
        let (other, range) = old.find_map(|((_, other), belief)| {
            Some((*other, belief.ranges.conflict(lock.kind, lock.first, lock.last)?))
        })?;
        let is_cut_off = [other.0, holder.0].into_iter().any(|it| self.is_cut_off(now, it, ino.rank()));
        (!is_cut_off).then(|| format!("Client {} holds {range:?} by its {:?}", other.0.0, other.1))
    }

    fn may_be_in_the_way(&self, since: Nanos, ino: Ino, holder: LockHolder, lock: &Lock) -> bool {
        self.possible.iter().any(|it| {
            let is_there = it.lock.first <= lock.last && lock.first <= it.lock.last;
            let excludes = lock.kind == LockKind::Exclusive || it.lock.kind == LockKind::Exclusive;
            let is_of_other = it.holder != holder && it.lock.owner.flock == lock.owner.flock;
            it.ino == ino
                && is_of_other
                && is_there
                && excludes
                && it.until.is_none_or(|until| until >= since)
        })
    }
}
