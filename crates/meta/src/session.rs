//! Sessions: what a server knows of each of its clients. While one lasts, a request that is sent again is done once, and
//! what the client knows and has open stays; when nothing has been heard of the client for a while, all that is given up.
//!
//! An embedded machine ([`Config::session_ms`](crate::Config) is `None`) has none of this: its client ends with it.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{
    Caller, ClientId, Errno, Held as HeldByClient, Home, Ino, ObjectId, Reply, Request, RequestId, StreamIo,
    TableWrite,
};

use crate::completed::Outcome;
use crate::event::Event;
use crate::journal::Held;
use crate::lease::Promise;
use crate::machine::Meta;
use crate::outbox::{Answered, Connected, Now, Outbox};
use crate::record::{Corrupt, decode, encode};
use crate::snapshot::Changed;
use crate::state::{Map, State, Track};
use crate::task::Task;
use crate::trash::ITSELF;

/// Sessions at a time.
const MAX_SESSIONS: usize = 20_000;
/// So far may the number of a request be beyond that of the first whose answer the client has not acknowledged.
const WINDOW: u64 = 1024;
/// With those that tell what the client has.
const MAX_REQUESTS: u64 = 16 * WINDOW;
/// What the answers that are kept for a client may take, about, in bytes.
const WINDOW_BYTES: usize = 1 << 20;
/// Inodes of expired sessions that are released at a time: bounds how long operations wait behind it.
const RELEASE: usize = 128;
/// What a client can say that it has of one inode: so much that sums of it do not overflow.
const MAX_LOOKUPS: u64 = 1 << 40;
const MAX_OPENS: u32 = 1 << 17;
/// Inodes without a name that are kept for clients that may have them.
const MAX_UNCLAIMED: usize = 100_000;
/// Beyond a lease's time: clients may have been told late.
const LEASE_MARGIN_MS: u64 = 1000;

/// What the machine knows of its clients and forgets when it ends.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    clients: Map<ClientId, Session>,
    /// What is still to be released of what expired sessions held.
    abandoned: VecDeque<(Ino, Hold)>,
    /// That is under way.
    releasing: bool,
    /// Sessions that were there when the machine began, and have not said all that they have.
    awaited: usize,
    /// When the machine began, as far as it has been told.
    began_ms: Option<u64>,
    /// Whatever clients were told before the machine began they no longer use.
    leases_over: bool,
    /// What has no name, and nobody that has said so has it: to be freed when all have said what they have.
    unclaimed: BTreeSet<Ino>,
}

#[derive(Debug, Default)]
struct Session {
    /// When it was last heard of; `None`: not since the machine started.
    heard_ms: Option<u64>,
    /// It has the answers to all requests before this one.
    below: RequestId,
    requests: BTreeMap<RequestId, Progress>,
    /// What the answers that are kept take.
    bytes: usize,
    held: Map<Ino, Hold>,
    /// The client has gone.
    left: bool,
    /// It has not said all that it has since the machine began.
    awaited: bool,
    /// What answers gave that were journaled before the machine began, and that the client may not have got.
    reserved: BTreeMap<RequestId, (Ino, Hold)>,
}

/// What has become of a request.
#[derive(Debug)]
enum Progress {
    Running,
    Answered(Result<Reply, Errno>),
    /// Its answer told much and changed nothing: it can be executed again. These were then counted as known.
    Told(Vec<Ino>),
}

/// What a client has of an inode: its share of what [`Cached`](crate::state::Cached) counts.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    lookups: u64,
    opens: u32,
}

impl Session {
    fn hold(&mut self, ino: Ino, hold: Hold) {
        let held = self.held.entry(ino).or_default();
        held.lookups = held.lookups.saturating_add(hold.lookups);
        held.opens = held.opens.saturating_add(hold.opens);
    }

    /// Takes away as much of what it has of an inode, or what there is.
    fn let_go(&mut self, ino: Ino, wanted: Hold) -> Hold {
        let Some(held) = self.held.get_mut(&ino) else { return Hold::default() };
        let taken = Hold { lookups: wanted.lookups.min(held.lookups), opens: wanted.opens.min(held.opens) };
        held.lookups -= taken.lookups;
        held.opens -= taken.opens;
        if held.lookups == 0 && held.opens == 0 {
            self.held.remove(&ino);
        }
        taken
    }

    fn is_busy(&self) -> bool {
        self.requests.values().any(|progress| matches!(progress, Progress::Running))
    }

    /// The client has these answers.
    fn acknowledge(&mut self, below: RequestId) {
        self.below = self.below.max(below);
        while let Some(first) = self.requests.first_entry()
            && *first.key() < self.below
            && !matches!(first.get(), Progress::Running)
        {
            if let Progress::Answered(result) = first.remove() {
                self.bytes -= weight(&result);
            }
        }
    }
}

impl Meta {
    /// A request of a client comes: it is run, unless it has been before. What it releases the client must have.
    pub(crate) fn admit(&mut self, now: Now, mut task: Task, below: RequestId, out: &mut Outbox) {
        let (from, id) = (task.from, task.id);
        let mut tell =
            |result| out.replies.push(Answered { to: from, id, result, lease_ms: 0, touched: Vec::new() });
        let Some(session) = self.sessions.clients.get_mut(&from) else { return tell(Err(Errno::ESTALE)) };
        (session.heard_ms, session.left) = (Some(now.uptime_ms), false);
        if session.awaited && !matches!(task.request, Request::Reclaim { .. }) {
            // It has not said what it has, and what it asks may be about.
            return tell(Err(Errno::EAGAIN));
        }
        session.acknowledge(below);
        if id < session.below {
            // A copy that was long under way: nobody waits for it any more.
            return;
        }
        let is_full = session.bytes >= WINDOW_BYTES
            || match task.request {
                // It comes before older requests, and there may be many.
                Request::Reclaim { .. } => session.requests.len() as u64 >= MAX_REQUESTS,
                _ => id.0 - session.below.0 >= WINDOW,
            };
        match session.requests.get_mut(&id) {
            Some(Progress::Running) => return,
            Some(Progress::Answered(result)) => return tell(result.clone()),
            Some(progress @ Progress::Told(_)) => {
                if let Progress::Told(inos) = core::mem::replace(progress, Progress::Running) {
                    for ino in inos {
                        let told = session.let_go(ino, Hold { lookups: 1, opens: 0 });
                        self.sessions.abandoned.push_back((ino, told));
                    }
                }
            }
            None if is_full => return tell(Err(Errno::EAGAIN)),
            None => drop(session.requests.insert(id, Progress::Running)),
        }
        while let Some(first) = session.reserved.first_entry()
            && *first.key() < session.below
        {
            let (ino, hold) = first.remove();
            let unwanted = session.let_go(ino, hold);
            self.sessions.abandoned.push_back((ino, unwanted));
        }
        let kept = self.state.sessions.get(&from).and_then(|kept| kept.completed.get(&id));
        task.again = kept.cloned().map(Box::new);
        if task.again.is_some() || self.claim(now, (from, id), &mut task.request, out) {
            self.run(now, task, None, out);
        }
    }

    /// Takes from a client what a request of it is going to release. If that is nothing, it is answered, as are requests about
    /// the session itself.
    fn claim(
        &mut self,
        now: Now,
        (from, id): (ClientId, RequestId),
        request: &mut Request,
        out: &mut Outbox,
    ) -> bool {
        let Some(session) = self.sessions.clients.get_mut(&from) else { return false };
        let result = match request {
            Request::Forget { ino, lookups } => {
                *lookups = session.let_go(*ino, Hold { lookups: *lookups, opens: 0 }).lookups;
                if *lookups > 0 { return true } else { Ok(Reply::Done) }
            }
            Request::ForgetAll { inodes } => {
                for (ino, lookups) in inodes.iter_mut() {
                    *lookups = session.let_go(*ino, Hold { lookups: *lookups, opens: 0 }).lookups;
                }
                return true;
            }
            Request::Release { ino } => {
                let taken = session.let_go(*ino, Hold { lookups: 0, opens: 1 });
                if taken.opens > 0 { return true } else { Ok(Reply::Done) }
            }
            Request::Reclaim { held, last } => self.reclaim(now, from, held, *last, out),
            // The machine asks this of itself alone.
            Request::Sweep => Err(Errno::EINVAL),
            _ => return true,
        };
        self.answer(now, (from, id), result, &Promise::default(), out);
        false
    }

    /// An operation has come to its end: notes what its answer gives to the client, and if it has changed anything, in the
    /// journal, that it has been done.
    pub(crate) fn note(&mut self, task: &Task, result: &Result<Reply, Errno>) {
        let Some(session) = self.sessions.clients.get_mut(&task.from) else { return };
        if task.again.is_some() {
            if let Some((ino, hold)) = session.reserved.remove(&task.id)
                && result.is_err()
            {
                let unwanted = session.let_go(ino, hold);
                self.sessions.abandoned.push_back((ino, unwanted));
            }
            return;
        }
        each_given(&task.request, result, |ino, hold| session.hold(ino, hold));
        if task.changed && !self.config.read_only {
            let home = |ino: &Ino| self.state.inodes.get(ino).map(|cached| cached.home);
            let home = if let Request::Open { ino, .. } = &task.request { home(ino) } else { None };
            let (client, id, below) = (task.from, task.id, session.below);
            if let Some(outcome) = Outcome::of(&task.request, result, home) {
                // It needs nothing that would have to be loaded.
                let _ = self.append(&Event::Completed { client, id, below, outcome });
            }
        }
    }

    /// An answer leaves: it is kept until the client has it. Whether there is anybody to be told.
    pub(crate) fn remember(
        &mut self,
        (to, id): (ClientId, RequestId),
        result: &Result<Reply, Errno>,
    ) -> bool {
        let Some(session) = self.sessions.clients.get_mut(&to) else { return false };
        let Some(progress) = session.requests.get_mut(&id) else { return false };
        *progress = match result {
            Ok(Reply::Bytes(_)) => Progress::Told(Vec::new()),
            Ok(Reply::Listing { entries, .. }) => {
                let told = entries.iter().filter(|entry| entry.entry.is_some());
                Progress::Told(told.map(|entry| entry.ino).collect())
            }
            _ => {
                session.bytes += weight(result);
                Progress::Answered(result.clone())
            }
        };
        session.acknowledge(session.below);
        true
    }

    // ---- Beginning and ending

    pub(crate) fn connect(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        if self.config.session_ms.is_none() {
            return;
        }
        if let Some(session) = self.sessions.clients.get_mut(&client) {
            (session.heard_ms, session.left) = (Some(now.uptime_ms), false);
            return self.connect_when_written(client, true, out);
        }
        if client == ITSELF {
            return out.refused.push((client, Errno::EINVAL));
        }
        if self.sessions.clients.len() >= MAX_SESSIONS {
            return out.refused.push((client, Errno::ENFILE));
        }
        if self.journal.broken.is_some() {
            return out.refused.push((client, Errno::EIO));
        }
        let session = Session { heard_ms: Some(now.uptime_ms), ..Session::default() };
        self.sessions.clients.insert(client, session);
        self.journal_session(client, true);
        self.connect_when_written(client, false, out);
    }

    fn connect_when_written(&mut self, client: ClientId, resumed: bool, out: &mut Outbox) {
        let held = Held::Session(client, Ok(resumed));
        if let Some(Held::Session(client, result)) = self.journal.hold_written(held) {
            self.connected(client, result, out);
        }
    }

    /// A session is in the journal, or cannot get there.
    pub(crate) fn connected(&mut self, client: ClientId, result: Result<bool, Errno>, out: &mut Outbox) {
        match result {
            Ok(resumed) => out.connected.push(Connected { client, resumed }),
            Err(errno) => out.refused.push((client, errno)),
        }
    }

    pub(crate) fn heard(&mut self, now: Now, client: ClientId) {
        if let Some(session) = self.sessions.clients.get_mut(&client) {
            session.heard_ms = Some(now.uptime_ms);
        }
    }

    /// A client goes, and needs nothing any more of what it holds.
    pub(crate) fn leave(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        if let Some(session) = self.sessions.clients.get_mut(&client) {
            if session.is_busy() {
                // As soon as that is done: its outcome would be nobody's.
                session.left = true;
            } else {
                self.end_session(now, client, out);
                self.release_abandoned_soon(now, out);
            }
        }
    }

    fn end_session(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        let Some(session) = self.sessions.clients.remove(&client) else { return };
        self.sessions.abandoned.extend(session.held);
        self.journal_session(client, false);
        self.drop_leases(now, client, out);
        if session.awaited {
            self.await_no_more(now, out);
        }
    }

    /// Whether a client may do this with streams: it must have the files open.
    ///
    /// # Errors
    /// `EBADF` if it has not.
    pub fn may_stream(&self, client: ClientId, io: &StreamIo) -> Result<(), Errno> {
        let held = self.sessions.clients.get(&client).map(|session| &session.held);
        let is_open = |ino| held.and_then(|held| held.get(&ino)).is_some_and(|hold: &Hold| hold.opens > 0);
        let all_open = match *io {
            StreamIo::Read { ino, .. }
            | StreamIo::Write { ino, .. }
            | StreamIo::Allocate { ino, .. }
            | StreamIo::Seek { ino, .. } => is_open(ino),
            StreamIo::Copy { from, to, .. } => is_open(from) && is_open(to),
        };
        if all_open { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// How often a client has an inode open, as far as answers have been given.
    pub(crate) fn opens_of(&self, client: ClientId, ino: Ino) -> u32 {
        let session = self.sessions.clients.get(&client);
        session.and_then(|session| session.held.get(&ino)).map_or(0, |hold| hold.opens)
    }

    fn journal_session(&mut self, client: ClientId, begins: bool) {
        if !self.config.read_only {
            // It needs nothing that would have to be loaded.
            let _ = self.append(&Event::Session { client, begins });
        }
    }

    /// Ends the sessions of which nothing has been heard for too long.
    pub(crate) fn expire(&mut self, now: Now, out: &mut Outbox) {
        let Some(limit) = self.config.session_ms else { return };
        self.wait_for_leases(now, out);
        let mut expired: Vec<ClientId> = Vec::new();
        for (client, session) in &mut self.sessions.clients {
            let heard = *session.heard_ms.get_or_insert(now.uptime_ms);
            let is_late = session.left || now.uptime_ms.saturating_sub(heard) > limit.into();
            // What is under way ends first: its outcome would be nobody's.
            if is_late && !session.is_busy() {
                expired.push(*client);
            }
        }
        expired.sort_unstable();
        for client in expired {
            self.end_session(now, client, out);
            out.expired.push(client);
        }
        self.release_abandoned_soon(now, out);
    }

    fn release_abandoned_soon(&mut self, now: Now, out: &mut Outbox) {
        if !self.sessions.releasing {
            self.release_abandoned(now, out);
        }
    }

    /// Releases some of what was abandoned, as if the client had.
    pub(crate) fn release_abandoned(&mut self, now: Now, out: &mut Outbox) {
        let count = self.sessions.abandoned.len().min(RELEASE);
        for (ino, Hold { lookups, opens }) in self.sessions.abandoned.drain(..count).collect::<Vec<_>>() {
            if lookups > 0 {
                let request = Request::Forget { ino, lookups };
                self.run(now, Task::new(ITSELF, RequestId(0), Caller::SERVER, request), None, out);
            }
            if opens > 0 {
                // The last one counts what was written.
                self.state.close(ino, opens - 1);
                let request = Request::Release { ino };
                self.run(now, Task::new(ITSELF, RequestId(0), Caller::SERVER, request), None, out);
            }
        }
        self.sessions.releasing = !self.sessions.abandoned.is_empty();
        if self.sessions.releasing {
            self.rest_abandoned(out);
        }
    }

    // ---- After a restart

    /// Takes up the sessions that there were. Whether any are awaited: then `orphans` may be theirs.
    pub(crate) fn recover_sessions(&mut self, orphans: &[(Ino, bool)]) -> bool {
        let clients: Vec<ClientId> = self.state.sessions.keys().copied().collect();
        let Some(_) = self.config.session_ms else {
            clients.into_iter().for_each(|client| self.journal_session(client, false));
            self.state.settle_unheld();
            return false;
        };
        self.sessions.leases_over = self.config.lease_ms.is_none();
        self.sessions.awaited = clients.len();
        for client in clients {
            let mut session = Session { awaited: true, ..Session::default() };
            let kept =
                self.state.sessions.get(&client).map(|kept| kept.completed.clone()).unwrap_or_default();
            for (id, outcome) in kept {
                if let Outcome::Given { ino, home, named, opened } = outcome {
                    let hold = Hold { lookups: named.is_some().into(), opens: opened.into() };
                    session.hold(ino, hold);
                    session.reserved.insert(id, (ino, hold));
                    self.state.reclaim(hold.of(ino, home));
                }
            }
            self.sessions.clients.insert(client, session);
        }
        if self.sessions.in_grace() {
            self.sessions.unclaimed.extend(orphans.iter().map(|(ino, _)| *ino));
        }
        self.sessions.in_grace()
    }

    /// A client says what it has. One whose session has ended may find that some of it is still there.
    fn reclaim(
        &mut self,
        now: Now,
        client: ClientId,
        held: &[HeldByClient],
        last: bool,
        out: &mut Outbox,
    ) -> Result<Reply, Errno> {
        let session = self.sessions.clients.get_mut(&client).ok_or(Errno::ESTALE)?;
        // What there has never been nobody can have.
        let next_ino = self.state.next_ino;
        for held in held.iter().filter(|held| held.ino.0 < next_ino) {
            let has = session.held.get(&held.ino).copied().unwrap_or_default();
            let hold = Hold {
                lookups: held.lookups.min(MAX_LOOKUPS.saturating_sub(has.lookups)),
                opens: held.opens.min(MAX_OPENS.saturating_sub(has.opens)),
            };
            if hold.lookups > 0 || hold.opens > 0 {
                session.hold(held.ino, hold);
                self.state.reclaim(hold.of(held.ino, held.home));
            }
        }
        if last && core::mem::take(&mut session.awaited) {
            self.await_no_more(now, out);
        }
        Ok(Reply::Done)
    }

    /// A session has ended, or has said all that it has. The last of these ends the grace.
    fn await_no_more(&mut self, now: Now, out: &mut Outbox) {
        self.sessions.awaited -= 1;
        if self.sessions.in_grace() {
            return;
        }
        for ino in core::mem::take(&mut self.sessions.unclaimed) {
            let Some(cached) = self.state.inodes.get(&ino) else { continue };
            let is_needed = cached.inode.nlink > 0 || cached.inode.has_entries() || cached.in_use();
            if !is_needed && !self.config.read_only && self.journal.broken.is_none() {
                self.purge_left_over(ino, cached.inode.is_streamed());
            }
        }
        self.state.settle_unheld();
        self.sweep_due = true;
        self.resume_roomless(now, out);
    }

    /// Ends the wait for what clients may use without asking, if it is time.
    fn wait_for_leases(&mut self, now: Now, out: &mut Outbox) {
        let began = *self.sessions.began_ms.get_or_insert(now.uptime_ms);
        let lease = u64::from(self.config.lease_ms.unwrap_or(0)) + LEASE_MARGIN_MS;
        if self.sessions.awaited > 0 && !self.sessions.leases_over && now.uptime_ms - began > lease {
            self.sessions.leases_over = true;
            self.resume_roomless(now, out);
        }
    }

    /// Clients that have not said yet what they have, since the machine began. Until then, or until their sessions end, what
    /// they may have is not freed.
    pub fn awaited(&self) -> Vec<ClientId> {
        let clients = self.sessions.clients.iter().filter(|(_, session)| session.awaited);
        let mut awaited: Vec<ClientId> = clients.map(|(client, _)| *client).collect();
        awaited.sort_unstable();
        awaited
    }
}

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn awaited(&self) -> usize {
        self.awaited
    }

    pub(crate) fn in_grace(&self) -> bool {
        self.awaited > 0
    }

    /// Changes must wait: clients may use what they were told, or too much would be kept for them.
    pub(crate) fn must_wait(&self) -> bool {
        self.awaited > 0 && (!self.leases_over || self.unclaimed.len() >= MAX_UNCLAIMED)
    }

    /// Whether an inode without a name must be kept for now, for those who have not said what they have.
    pub(crate) fn keep_for_others(&mut self, ino: Ino) -> bool {
        if self.awaited > 0 {
            self.unclaimed.insert(ino);
        }
        self.awaited > 0
    }
}

impl Hold {
    fn of(self, ino: Ino, home: Home) -> HeldByClient {
        HeldByClient { ino, home, lookups: self.lookups, opens: self.opens }
    }
}

/// What an answer gives to the client that gets it.
fn each_given(request: &Request, result: &Result<Reply, Errno>, mut give: impl FnMut(Ino, Hold)) {
    match (request, result) {
        (_, Ok(Reply::Entry(entry))) => give(entry.attr.ino, Hold { lookups: 1, opens: 0 }),
        (_, Ok(Reply::Created(entry, _))) => give(entry.attr.ino, Hold { lookups: 1, opens: 1 }),
        (_, Ok(Reply::Listing { entries, .. })) => {
            for entry in entries.iter().filter(|entry| entry.entry.is_some()) {
                give(entry.ino, Hold { lookups: 1, opens: 0 });
            }
        }
        // A release that has failed gives back what was taken for it.
        (Request::Open { ino, .. }, Ok(_)) | (Request::Release { ino }, Err(_)) => {
            give(*ino, Hold { lookups: 0, opens: 1 });
        }
        _ => {}
    }
}

/// What an answer takes of memory, about, in bytes.
fn weight(result: &Result<Reply, Errno>) -> usize {
    let more = match result {
        Ok(Reply::Copied(copied)) => {
            let left: usize = copied.left.iter().map(Vec::len).sum();
            let made: usize = copied.made.iter().map(|(_, name)| name.len() + 64).sum();
            left + made
        }
        Ok(Reply::Removed { name, .. }) => name.len(),
        _ => 0,
    };
    size_of::<Progress>() + more
}

// ---- What lasts

/// What is kept of a session when the machine ends.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// What requests of it have come to that changed something, and whose answers it may not have.
    pub completed: BTreeMap<RequestId, Outcome>,
    pub track: Track,
}

impl State {
    pub(crate) fn apply_session(&mut self, client: ClientId, begins: bool) {
        if begins {
            self.sessions.entry(client).or_default();
            self.touch_session(client);
        } else if self.touch_session(client).is_some()
            && let Some(kept) = self.sessions.remove(&client)
            && kept.track.stored
        {
            let key = KeptKey::Session(client).to_bytes();
            self.erased.push(TableWrite { object: ObjectId::SESSIONS, key, value: None });
        }
    }

    pub(crate) fn apply_completed(
        &mut self,
        client: ClientId,
        id: RequestId,
        below: RequestId,
        outcome: &Outcome,
    ) {
        if let Some(kept) = self.touch_session(client) {
            while let Some(first) = kept.completed.first_entry()
                && *first.key() < below
            {
                first.remove();
            }
            kept.completed.insert(id, outcome.clone());
        }
    }

    /// The record is about to change, or to go.
    fn touch_session(&mut self, client: ClientId) -> Option<&mut Kept> {
        let epoch = self.epoch;
        let was = self.sessions.get(&client)?.track.epoch;
        if was != epoch {
            if was != 0 {
                self.encode_session(client);
            }
            self.changed.push_back(Changed::Session(client));
        }
        let kept = self.sessions.get_mut(&client)?;
        kept.track.epoch = epoch;
        Some(kept)
    }

    /// Adds the record, as it is, to the snapshot under way.
    pub(crate) fn encode_session(&mut self, client: ClientId) {
        let Some(kept) = self.sessions.get_mut(&client) else { return };
        kept.track = Track { epoch: 0, written: self.epoch - 1, stored: true };
        let (key, value) = (KeptKey::Session(client).to_bytes(), Some(encode(&kept.completed)));
        self.snapshot.writes.push(TableWrite { object: ObjectId::SESSIONS, key, value });
    }

    /// Takes in a record of [`ObjectId::SESSIONS`].
    pub(crate) fn loaded_kept(&mut self, key: &[u8], value: &[u8]) -> Result<(), Corrupt> {
        match KeptKey::from_bytes(key).ok_or(Corrupt)? {
            KeptKey::Session(client) => {
                let kept = Kept { completed: decode(value)?, track: Track::STORED };
                self.sessions.insert(client, kept);
                Ok(())
            }
            KeptKey::Moved(ino) => self.loaded_moved(ino, value),
        }
    }

    /// An inode is open so many times less.
    fn close(&mut self, ino: Ino, opens: u32) {
        if let Some(cached) = self.inodes.get_mut(&ino) {
            cached.opens = cached.opens.saturating_sub(opens);
        } else {
            self.reclaimed.give_up(ino, 0, opens);
        }
    }
}

/// The keys of [`ObjectId::SESSIONS`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeptKey {
    /// What is kept of a session.
    Session(ClientId),
    /// Where a file lies now that clients know by another place.
    Moved(Ino),
}

impl KeptKey {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let (tag, number) = match self {
            Self::Session(client) => (b's', client.0),
            Self::Moved(ino) => (b'm', ino.0),
        };
        let mut key = Vec::with_capacity(9);
        key.push(tag);
        key.extend_from_slice(&number.to_be_bytes());
        key
    }

    fn from_bytes(key: &[u8]) -> Option<Self> {
        let (tag, number) = key.split_first()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        match tag {
            b's' => Some(Self::Session(ClientId(number))),
            b'm' => Some(Self::Moved(Ino(number))),
            _ => None,
        }
    }
}

/// Whether a record of [`ObjectId::SESSIONS`] is sound.
pub fn is_kept(key: &[u8], value: &[u8]) -> bool {
    match KeptKey::from_bytes(key) {
        Some(KeptKey::Session(_)) => decode::<BTreeMap<RequestId, Outcome>>(value).is_ok(),
        Some(KeptKey::Moved(_)) => decode::<Home>(value).is_ok(),
        None => false,
    }
}
