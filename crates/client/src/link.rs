//! The client's end of its session with a metadata server.
//! It numbers requests and stores unanswered ones: they are sent again after a lost connection or a
//! restart, and the server executes each exactly once. It also records the inodes and locks that
//! the client must reclaim after a restart.

mod forwarded;
mod outgoing;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{
    Access, Caller, Entry, Errno, FromClient, Held, Ino, Location, Lock, LockOwner, Opened, Reply, Request,
    RequestId, StreamIo, Welcome,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::data_link::UNDER_WAY;
use crate::locks::{HeldLocks, LockRequester, Noted};
use forwarded::Adopted;
use outgoing::OutgoingMessage;

/// The client's end of a session. See the module's documentation.
#[derive(Debug)]
pub struct Link {
    next: u64,
    /// Requests that were sent or wait for the window, by number.
    unanswered: BTreeMap<u64, OutgoingMessage>,
    /// Requests that the server executes after earlier ones, with their numbers.
    follows: BTreeMap<u64, Vec<RequestId>>,
    /// Requests with smaller numbers were sent over this connection, or are in `waiting`.
    sent: u64,
    /// Requests with smaller numbers were sent over some connection of this session, or are in
    /// `unsent`.
    sent_before: u64,
    /// Requests that wait, or have waited over a lost connection, for the limit on `under_way`, and
    /// were never sent.
    unsent: BTreeSet<u64>,
    /// Maximum distance of a sent number from the first unanswered one.
    window: u64,
    /// Bytes of file data in flight over this connection, in requests or expected replies.
    under_way: usize,
    /// Requests that wait for the limit on `under_way`. Requests without file data overtake them,
    /// except those that follow them.
    waiting: VecDeque<u64>,
    connected: bool,
    /// The server incarnation that has received the reclaims, or is receiving them.
    incarnation: Option<u64>,
    /// Numbers of the reclaim requests.
    reclaims: BTreeSet<u64>,
    /// Numbers of repeated requests for locks that are waited for.
    lock_retries: BTreeSet<u64>,
    /// Numbers of requests that restore locks after an interrupted request.
    lowered: BTreeSet<u64>,
    /// Requests that this server has forwarded to others, and that are unanswered.
    forwarded: BTreeSet<u64>,
    /// Requests that other servers have forwarded to this one.
    adopted: BTreeMap<RequestId, Adopted>,
    /// When the present connection began, in ms.
    connected_at: Option<u64>,
    held: HashMap<Ino, Hold, FxBuildHasher>,
    locks: HeldLocks,
    /// Forgotten inodes and closed files of which the server has not been notified.
    forgotten: Vec<(Ino, u64)>,
    released: Vec<Ino>,
    /// `released` contains files that the client has created step by step (carns III.A).
    released_made: bool,
}

/// The lookups and opens of an inode that the server records for the client.
#[derive(Clone, Copy, Debug)]
struct Hold {
    location: Location,
    /// The previous location: a power failure may have undone the move.
    before: Option<Location>,
    lookups: u64,
    opens: u32,
    lookup_token: u64,
    opened: u64,
    /// The file was opened for writing and has been open since; `opened` is the reclaim token for
    /// that.
    writes: bool,
    /// As [`Opened::announced`].
    announced: bool,
}

impl Hold {
    fn at(location: Location) -> Self {
        Self {
            location,
            before: None,
            lookups: 0,
            opens: 0,
            lookup_token: 0,
            opened: 0,
            writes: false,
            announced: false,
        }
    }
}

/// The remains of an ended session.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Inodes to invalidate, with all names.
    pub distrust: Vec<Ino>,
    /// Requests with an unknown outcome, and acknowledged changes that were never sent.
    pub lost: Vec<RequestId>,
    /// Files whose locks are lost; other clients may have locked them since.
    pub unlocked: Vec<Ino>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            next: 1,
            unanswered: BTreeMap::new(),
            follows: BTreeMap::new(),
            sent: 1,
            sent_before: 1,
            unsent: BTreeSet::new(),
            window: 1,
            under_way: 0,
            waiting: VecDeque::new(),
            connected: false,
            incarnation: None,
            reclaims: BTreeSet::new(),
            lock_retries: BTreeSet::new(),
            lowered: BTreeSet::new(),
            forwarded: BTreeSet::new(),
            adopted: BTreeMap::new(),
            connected_at: None,
            held: HashMap::default(),
            locks: HeldLocks::default(),
            forgotten: Vec::new(),
            released: Vec::new(),
            released_made: false,
        }
    }
}

impl Link {
    /// Maximum number of forgotten inodes in a request.
    const FORGOTTEN: usize = 512;
    /// Maximum number of inodes or locks in a reclaim request.
    const RECLAIMED: usize = 1024;

    /// The server incarnation of the session; `None`: no session.
    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Queues a request. Messages that can be sent are appended to `out`.
    pub fn ask(&mut self, caller: Caller, request: Request, out: &mut Vec<FromClient>) -> RequestId {
        self.ask_after(Vec::new(), caller, request, out)
    }

    /// As [`Self::ask`], for a request that the server executes after the unanswered ones in
    /// `follows`.
    pub fn ask_after(
        &mut self,
        follows: Vec<RequestId>,
        caller: Caller,
        mut request: Request,
        out: &mut Vec<FromClient>,
    ) -> RequestId {
        if let Request::ReadDir { limit, .. } = &mut request {
            *limit = (*limit).min(Request::MAX_ENTRIES);
        }
        // The server does not let clients remove the datafiles of a file that it takes for open
        // (carns III.A).
        if self.released_made && matches!(request, Request::Unlink { .. }) {
            self.send_forgets(out);
        }
        if !follows.is_empty() {
            self.follows.insert(self.next, follows);
        }
        self.add(OutgoingMessage::Request(caller, request), out)
    }

    /// As [`Self::ask`], for stream I/O.
    pub fn stream(&mut self, io: StreamIo, data: Bytes, out: &mut Vec<FromClient>) -> RequestId {
        self.add(OutgoingMessage::Stream(io, data), out)
    }

    fn add(&mut self, message: OutgoingMessage, out: &mut Vec<FromClient>) -> RequestId {
        let id = self.next;
        self.next += 1;
        self.unanswered.insert(id, message);
        self.fill(out);
        RequestId(id)
    }

    /// True if the next request is sent immediately, unless it carries data and too much is in
    /// flight.
    pub fn is_ready(&self) -> bool {
        self.connected && self.next < self.first().saturating_add(self.window)
    }

    /// Cancels a request for its caller. Returns true if the server was asked to give up; otherwise
    /// the time of its answer is unknown.
    pub fn cancel(&mut self, id: RequestId, out: &mut Vec<FromClient>) -> bool {
        match self.unanswered.get(&id.0) {
            _ if self.connected && self.adopted.contains_key(&id) => out.push(FromClient::Cancel { id }),
            Some(_) if self.connected => out.push(FromClient::Cancel { id }),
            Some(OutgoingMessage::Request(_, Request::Lock { ino, lock, wait })) => {
                let (ino, lock, wait) = (*ino, *lock, *wait);
                if let Some(wait) = wait {
                    self.ask(Caller::SERVER, Request::StopWaiting { ino, lock, wait }, out);
                }
                self.take_back(ino, &lock, id.0, out);
            }
            _ => {}
        }
        self.connected
    }

    /// Queues the notification that the client has dropped `lookups` references to an inode.
    pub fn forget(&mut self, ino: Ino, lookups: u64, out: &mut Vec<FromClient>) {
        self.forgotten.push((ino, lookups));
        if self.forgotten.len() >= Self::FORGOTTEN {
            self.send_forgets(out);
        }
    }

    /// Queues the notification that a file was closed; no caller waits for it.
    pub fn release(&mut self, ino: Ino, out: &mut Vec<FromClient>) {
        self.released.push(ino);
        if self.released.len() >= Self::FORGOTTEN {
            self.send_forgets(out);
        }
    }

    /// As [`Self::release`], for a file that the client has created step by step.
    pub fn release_made(&mut self, ino: Ino, out: &mut Vec<FromClient>) {
        self.released_made = true;
        self.release(ino, out);
    }

    /// Sends the queued notifications of [`Self::forget`] and [`Self::release`].
    pub fn send_forgets(&mut self, out: &mut Vec<FromClient>) {
        if !(self.forgotten.is_empty() && self.released.is_empty()) {
            let inodes = core::mem::take(&mut self.forgotten);
            let released = core::mem::take(&mut self.released);
            self.released_made = false;
            self.ask(Caller::SERVER, Request::ForgetAll { inodes, released }, out);
        }
    }

    /// Handles a reply. If no caller waits for it, references and openings that it grants are
    /// returned. Returns the wait number of a request for a lock whose wait this reply ends.
    pub fn answered(
        &mut self,
        id: RequestId,
        result: &Result<Reply, Errno>,
        is_waited_for: bool,
        out: &mut Vec<FromClient>,
    ) -> Option<u64> {
        // A repeated request may be answered twice.
        let adopted = self.adopted.remove(&id);
        let adopted = adopted.map(|adopted| OutgoingMessage::Request(adopted.caller, adopted.request));
        let message = adopted.or_else(|| self.unanswered.remove(&id.0))?;
        self.unsent.remove(&id.0);
        self.follows.remove(&id.0);
        self.under_way = self.under_way.saturating_sub(message.bytes());
        self.reclaims.remove(&id.0);
        self.lowered.remove(&id.0);
        let lock_retries = self.lock_retries.remove(&id.0);
        self.account(&message, result);
        let mut lock_outcome = None;
        if let OutgoingMessage::Request(_, request) = &message {
            let requester = match (is_waited_for, lock_retries) {
                (true, _) => LockRequester::Caller,
                (false, true) => LockRequester::Again,
                (false, false) => LockRequester::Abandoned,
            };
            let Noted { over, unwanted } = self.locks.answered(request, result, requester);
            lock_outcome = over;
            if let Some(request) = unwanted {
                self.ask(Caller::SERVER, request, out);
            }
        }
        if !is_waited_for && let Ok(reply) = result {
            self.give_back(&message, reply, out);
        }
        self.fill(out);
        lock_outcome
    }

    // ---- Locks

    /// True if an owner may have locks on a file. An unanswered request counts, even an abandoned
    /// one: its lock may be granted and then returned.
    pub fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        let asks = |message: &OutgoingMessage| match message {
            OutgoingMessage::Request(
                _,
                Request::Lock { ino: of, lock, .. } | Request::StopWaiting { ino: of, lock, .. },
            ) => (*of, lock.owner) == (ino, owner),
            _ => false,
        };
        self.locks.has(ino, owner) || self.unanswered.values().any(asks)
    }

    /// The server has granted the lock with this wait number.
    pub fn locked(&mut self, wait: u64) {
        self.locks.granted(wait);
    }

    /// Stops waiting for a lock. Returns true if [`Self::answered`] will report the outcome;
    /// otherwise the time of the server's answer is unknown.
    pub fn stop_waiting(&mut self, wait: u64, out: &mut Vec<FromClient>) -> bool {
        if let Some((ino, lock)) = self.locks.waits_for(wait) {
            self.ask(Caller::SERVER, Request::StopWaiting { ino, lock, wait }, out);
            if !self.connected {
                self.locks.abandon(wait);
                self.take_back(ino, &lock, self.next, out);
            }
        }
        self.connected
    }

    /// Restores an owner's locks after an abandoned request that may still be granted. `requested`:
    /// the number of that request, or the next number.
    fn take_back(&mut self, ino: Ino, lock: &Lock, requested: u64, out: &mut Vec<FromClient>) {
        let before = self.unanswered.range(..requested).filter_map(|(_, message)| match message {
            OutgoingMessage::Request(_, request) => Some(request),
            OutgoingMessage::Stream(..) => None,
        });
        for request in self.locks.without(ino, lock, before) {
            if matches!(request, Request::Lock { .. }) {
                self.lowered.insert(self.next);
            }
            self.ask(Caller::SERVER, request, out);
        }
    }

    fn give_back(&mut self, message: &OutgoingMessage, reply: &Reply, out: &mut Vec<FromClient>) {
        let opened = match (message, reply) {
            (_, Reply::Created(entry, _)) => Some(entry.attr.ino),
            (_, Reply::Made(made)) => Some(made.ino),
            (
                OutgoingMessage::Request(_, Request::Open { ino, .. }),
                Reply::Opened(_) | Reply::OpenedWhole(..),
            ) => Some(*ino),
            _ => None,
        };
        if let Some(ino) = opened {
            self.ask(Caller::SERVER, Request::Release { ino }, out);
        }
        match reply {
            Reply::Entry(entry) | Reply::Created(entry, _) => self.forget(entry.attr.ino, 1, out),
            Reply::Unmeasured(reply, _) => self.give_back(message, reply, out),
            Reply::Orphaned(ino, _) => {
                self.ask(Caller::SERVER, Request::Purge { ino: *ino, removed: false }, out);
            }
            Reply::Listing { entries, .. } => {
                for entry in entries.iter().filter_map(|dirent| dirent.entry.as_ref()) {
                    self.forget(entry.attr.ino, 1, out);
                }
            }
            _ => {}
        }
    }

    /// Updates the records of what is held, as the server does.
    fn account(&mut self, message: &OutgoingMessage, result: &Result<Reply, Errno>) {
        match message {
            OutgoingMessage::Request(_, Request::ForgetAll { inodes, released }) => {
                for ino in released {
                    self.change(*ino, |hold| hold.opens = hold.opens.saturating_sub(1));
                }
                for (ino, lookups) in inodes {
                    self.change(*ino, |hold| hold.lookups = hold.lookups.saturating_sub(*lookups));
                }
            }
            OutgoingMessage::Request(_, Request::Release { ino }) => {
                self.change(*ino, |hold| hold.opens = hold.opens.saturating_sub(1));
            }
            _ => {}
        }
        match (message, result) {
            (_, Ok(Reply::Entry(entry))) => self.note(entry),
            (OutgoingMessage::Request(_, request), Ok(Reply::Unmeasured(lookup_token, _))) => {
                match &**lookup_token {
                    Reply::Entry(entry) => self.note(entry),
                    Reply::Created(entry, opened) => {
                        self.note(entry);
                        self.note_opened(entry.attr.ino, request, opened);
                    }
                    _ => {}
                }
            }
            (_, Ok(Reply::Made(made))) => {
                let Opened { reclaim_token: opened, announced, .. } = made.opened;
                let hold = Hold::at(Location::Orphan);
                self.held.insert(made.ino, Hold { opens: 1, opened, writes: true, announced, ..hold });
            }
            (OutgoingMessage::Request(_, request), Ok(Reply::Created(entry, opened))) => {
                self.note(entry);
                self.note_opened(entry.attr.ino, request, opened);
            }
            (
                OutgoingMessage::Request(_, request @ Request::Open { ino, .. }),
                Ok(Reply::Opened(opened) | Reply::OpenedWhole(opened, _)),
            ) => {
                self.note_opened(*ino, request, opened);
            }
            (_, Ok(Reply::Listing { entries, .. })) => {
                for entry in entries.iter().filter_map(|dirent| dirent.entry.as_ref()) {
                    self.note(entry);
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, entry: &Entry) {
        let location = entry.location;
        let hold = self.held.entry(entry.attr.ino).or_insert(Hold::at(location));
        if hold.location != location {
            hold.before = Some(hold.location);
        }
        (hold.location, hold.lookup_token) = (location, entry.reclaim_token);
        hold.lookups += 1;
    }

    fn note_opened(&mut self, ino: Ino, request: &Request, opened: &Opened) {
        let to_write = request.opens_for().is_some_and(|access| access.contains(Access::WRITE));
        self.change(ino, |hold| {
            hold.opens += 1;
            hold.announced = opened.announced;
            if to_write || !hold.writes {
                (hold.opened, hold.writes) = (opened.reclaim_token, to_write);
            }
        });
    }

    /// The inodes that the client holds, sorted, with lookup and open counts. `None` while requests
    /// are unanswered or notifications are queued.
    pub fn holdings(&self) -> Option<Vec<(Ino, u64, u32)>> {
        let is_idle = self.connected
            && self.unanswered.is_empty()
            && self.forwarded.is_empty()
            && self.adopted.is_empty()
            && self.forgotten.is_empty()
            && self.released.is_empty();
        is_idle.then(|| {
            let mut held: Vec<_> =
                self.held.iter().map(|(ino, hold)| (*ino, hold.lookups, hold.opens)).collect();
            held.sort_unstable();
            held
        })
    }

    /// True if the client can reclaim openings of this file after a restart.
    pub fn proves_openings(&self, ino: Ino) -> bool {
        self.held.get(&ino).is_some_and(|hold| hold.opened != 0)
    }

    /// Adds openings of which the server has not been notified.
    pub fn opened(&mut self, ino: Ino, opens: u32) {
        self.change(ino, |hold| hold.opens = hold.opens.saturating_add(opens));
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Hold)) {
        if let Some(hold) = self.held.get_mut(&ino) {
            change(hold);
            hold.writes &= hold.opens > 0;
            if hold.lookups == 0 && hold.opens == 0 {
                self.held.remove(&ino);
            }
        }
    }

    /// Handles the end of the session by the server. The outcome of its requests is unknown, except
    /// of those that were never sent; the next session sends these, and reclaims what the client
    /// still has.
    pub fn ended(&mut self) -> Ended {
        if self.incarnation.take().is_none() {
            return Ended::default();
        }
        let mut lost = Vec::new();
        let remaining = self.unanswered.split_off(&self.sent_before);
        for (id, message) in core::mem::replace(&mut self.unanswered, remaining) {
            // Since an acknowledged write, other clients may have written the same bytes.
            if self.unsent.contains(&id) && !message.is_acknowledged() {
                self.unanswered.insert(id, message);
            } else if !self.reclaims.contains(&id) {
                self.unsent.remove(&id);
                lost.push(RequestId(id));
            }
        }
        for id in core::mem::take(&mut self.lowered) {
            self.unanswered.remove(&id);
        }
        self.follows.retain(|id, _| self.unanswered.contains_key(id));
        lost.extend(core::mem::take(&mut self.adopted).into_keys());
        self.forwarded.clear();
        Ended { distrust: self.held.keys().copied().collect(), lost, unlocked: self.locks.lose() }
    }

    /// Handles the server's first message over a new connection. `early`: directories with pending
    /// write-back operations. If the server has restarted, returns the inodes to
    /// invalidate, with all names.
    pub fn connected(
        &mut self,
        welcome: &Welcome,
        early: &BTreeSet<Ino>,
        out: &mut Vec<FromClient>,
    ) -> Option<Vec<Ino>> {
        let mut distrust = None;
        self.connected = true;
        self.window = u64::from(welcome.window).max(1);
        let before = self.incarnation.replace(welcome.incarnation);
        if before != self.incarnation {
            distrust = before.map(|_| self.held.keys().copied().collect());
            for id in core::mem::take(&mut self.reclaims) {
                self.unanswered.remove(&id);
            }
            // A new session has no exclusive leases.
            let none = BTreeSet::new();
            self.reclaim(if before.is_some() { early } else { &none });
        }
        // The notification of a grant may have been lost.
        for id in core::mem::take(&mut self.lock_retries) {
            self.unanswered.remove(&id);
        }
        let stopping: BTreeSet<u64> = self.unanswered.values().filter_map(OutgoingMessage::stops).collect();
        for request in self.locks.ask_again(&stopping) {
            self.unanswered.insert(self.next, OutgoingMessage::Request(Caller::SERVER, request));
            self.lock_retries.insert(self.next);
            self.next += 1;
        }
        // Reclaims precede the requests that depend on them.
        (self.sent, self.under_way) = (self.first(), 0);
        self.waiting.clear();
        let reclaims: Vec<_> = self.reclaims.iter().copied().collect();
        for id in reclaims {
            self.send(id, out);
        }
        self.fill(out);
        // They may have been lost with the server or the connection.
        self.adopted.values_mut().for_each(|adopted| adopted.sent = None);
        self.connected_at = None;
        distrust
    }

    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// Queues the reclaim requests.
    fn reclaim(&mut self, early: &BTreeSet<Ino>) {
        let held: Vec<_> = self
            .held
            .iter()
            .flat_map(|(ino, hold)| {
                let Hold { location, before, lookups, opens, lookup_token, opened, .. } = *hold;
                let exclusive = early.contains(ino);
                let held = Held { ino: *ino, location, lookups, opens, lookup_token, opened, exclusive };
                match before.filter(|before| lookups > 1 && matches!(before, Location::Dentry { .. })) {
                    // One of the lookup replies reported the previous location.
                    Some(location) => {
                        let before = Held { location, lookups: 1, opens: 0, ..held };
                        [Some(Held { lookups: lookups - 1, ..held }), Some(before)]
                    }
                    None => [Some(held), None],
                }
            })
            .flatten()
            .collect();
        for message in self.unanswered.values() {
            if let OutgoingMessage::Request(_, request) = message {
                self.locks.doubt(request);
            }
        }
        let locks = self.locks.all();
        let mut requests: Vec<_> = held
            .chunks(Self::RECLAIMED)
            .map(|held| Request::Reclaim { held: held.to_vec(), last: false, again: Vec::new() })
            .chain(locks.chunks(Self::RECLAIMED).map(|locks| Request::ReclaimLocks { locks: locks.to_vec() }))
            .collect();
        let sent_before = self.unanswered.range(..self.sent_before).map(|(id, _)| *id);
        let again = sent_before.filter(|id| !self.unsent.contains(id)).map(RequestId);
        let again: Vec<_> = again.chain(self.adopted.keys().copied()).collect();
        match requests.last_mut() {
            Some(Request::Reclaim { last, again: none, .. }) => (*last, *none) = (true, again),
            _ => requests.push(Request::Reclaim { held: Vec::new(), last: true, again }),
        }
        for request in requests {
            self.unanswered.insert(self.next, OutgoingMessage::Request(Caller::SERVER, request));
            self.reclaims.insert(self.next);
            self.next += 1;
        }
    }

    fn first(&self) -> u64 {
        let unanswered = self.unanswered.first_key_value().map_or(self.next, |(id, _)| *id);
        self.forwarded.first().map_or(unanswered, |forwarded| unanswered.min(*forwarded))
    }

    /// Sends what the window and the limit on bytes in flight permit.
    fn fill(&mut self, out: &mut Vec<FromClient>) {
        if !self.connected {
            return;
        }
        while let Some(&id) = self.waiting.front()
            && self.takes(id)
        {
            self.waiting.pop_front();
            self.send(id, out);
        }
        let end = self.first().saturating_add(self.window);
        while let Some((&id, message)) = self.unanswered.range(self.sent..end).next() {
            let is_first_time = id >= self.sent_before;
            self.sent = id + 1;
            self.sent_before = self.sent_before.max(self.sent);
            let mut follows = self.follows.get(&id).into_iter().flatten();
            let follows_waiting = follows.any(|leader| self.waiting.contains(&leader.0));
            if follows_waiting || message.bytes() > 0 && !(self.waiting.is_empty() && self.takes(id)) {
                self.waiting.push_back(id);
                if is_first_time {
                    self.unsent.insert(id);
                }
            } else if !self.reclaims.contains(&id) {
                self.send(id, out);
            }
        }
    }

    /// True if the data of this message may be in flight with the rest. A single message always
    /// may.
    fn takes(&self, id: u64) -> bool {
        let bytes = self.unanswered.get(&id).map_or(0, OutgoingMessage::bytes);
        self.under_way == 0 || self.under_way + bytes <= UNDER_WAY
    }

    fn send(&mut self, id: u64, out: &mut Vec<FromClient>) {
        self.unsent.remove(&id);
        let below = RequestId(self.first());
        let message = self.unanswered.get(&id).cloned();
        self.under_way += message.as_ref().map_or(0, OutgoingMessage::bytes);
        let id = RequestId(id);
        let announced = |ino| self.held.get(&ino).is_some_and(|hold| hold.announced);
        out.extend(message.map(|message| match message {
            OutgoingMessage::Request(caller, request) => {
                let announced = request.moves().is_some_and(announced);
                let follows = self.follows.get(&id.0).cloned().unwrap_or_default();
                FromClient::Request { id, below, follows, announced, caller, request }
            }
            OutgoingMessage::Stream(io, data) => {
                FromClient::Stream { id, below, announced: announced(io.ino), io, data }
            }
        }));
    }
}
