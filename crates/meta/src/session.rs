//! Sessions: what a server knows of each of its clients. While one lasts, a request that is sent again is done once, and
//! what the client knows and has open stays; when nothing has been heard of the client for a while, all that is given up.
//!
//! An embedded machine ([`Config::session_ms`](crate::Config) is `None`) has none of this: its client ends with it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{
    Caller, ClientId, Errno, Ino, ObjectId, Reply, Request, RequestId, StreamIo, TableWrite,
};

use crate::event::Event;
use crate::journal::Held;
use crate::machine::Meta;
use crate::outbox::{Answered, Connected, Now, Outbox};
use crate::record::{Corrupt, decode, encode};
use crate::snapshot::Changed;
use crate::state::{Map, State, Track};
use crate::task::Task;
use crate::trash::ITSELF;

/// Sessions at a time.
const MAX_SESSIONS: usize = 20_000;
/// Requests of a client that may be unanswered, or whose answers it may not have acknowledged.
const WINDOW: usize = 1024;
/// What the answers that are kept for a client may take, about, in bytes.
const WINDOW_BYTES: usize = 1 << 20;
/// Inodes of expired sessions that are released at a time: bounds how long operations wait behind it.
const RELEASE: usize = 128;

/// What the machine knows of its clients and forgets when it ends.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    clients: Map<ClientId, Session>,
    /// What is still to be released of what expired sessions held.
    abandoned: VecDeque<(Ino, Hold)>,
    /// That is under way.
    releasing: bool,
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
    /// A request of a client comes. Whether it is to be run now: it may have been, or the client may have no session. What it
    /// releases it must have.
    pub(crate) fn admit(
        &mut self,
        now: Now,
        (from, id): (ClientId, RequestId),
        below: RequestId,
        request: &mut Request,
        out: &mut Outbox,
    ) -> bool {
        let mut tell = |result| out.replies.push(Answered { to: from, id, result, lease_ms: 0 });
        let Some(session) = self.sessions.clients.get_mut(&from) else {
            tell(Err(Errno::ESTALE));
            return false;
        };
        session.heard_ms = Some(now.uptime_ms);
        session.acknowledge(below);
        if id < session.below {
            // A copy that was long under way: nobody waits for it any more.
            return false;
        }
        let full = session.requests.len() >= WINDOW || session.bytes >= WINDOW_BYTES;
        match session.requests.get_mut(&id) {
            Some(Progress::Running) => return false,
            Some(Progress::Answered(result)) => {
                tell(result.clone());
                return false;
            }
            Some(progress @ Progress::Told(_)) => {
                let told = core::mem::replace(progress, Progress::Running);
                if let Progress::Told(inos) = told {
                    self.abandon(from, inos.into_iter().map(|ino| (ino, Hold { lookups: 1, opens: 0 })));
                }
            }
            None if full => {
                tell(Err(Errno::EAGAIN));
                return false;
            }
            None => drop(session.requests.insert(id, Progress::Running)),
        }
        self.claim((from, id), request, out)
    }

    /// Takes from a client what a request of it is going to release. If that is nothing, it is answered.
    fn claim(&mut self, (from, id): (ClientId, RequestId), request: &mut Request, out: &mut Outbox) -> bool {
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
            // The machine asks this of itself alone.
            Request::Sweep => Err(Errno::EINVAL),
            _ => return true,
        };
        self.answer(from, id, result, out);
        false
    }

    /// An operation has come to its end: notes what its answer gives to the client.
    pub(crate) fn note(&mut self, task: &Task, result: &Result<Reply, Errno>) {
        let mut given = Vec::new();
        each_given(&task.request, result, |ino, hold| given.push((ino, hold)));
        match self.sessions.clients.get_mut(&task.from) {
            Some(session) => given.into_iter().for_each(|(ino, hold)| session.hold(ino, hold)),
            None if task.from == ITSELF => {}
            // Its session has expired meanwhile.
            None => self.sessions.abandoned.extend(given),
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
            session.heard_ms = Some(now.uptime_ms);
            return out.connected.push(Connected { client, resumed: true });
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
        if let Some(Held::Session(client, result)) = self.journal.hold_written(Held::Session(client, Ok(())))
        {
            self.connected(client, result, out);
        }
    }

    /// A new session is in the journal, or cannot get there.
    pub(crate) fn connected(&mut self, client: ClientId, result: Result<(), Errno>, out: &mut Outbox) {
        match result {
            Ok(()) => out.connected.push(Connected { client, resumed: false }),
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
        if let Some(session) = self.sessions.clients.remove(&client) {
            self.sessions.abandoned.extend(session.held);
            self.journal_session(client, false);
            if !self.sessions.releasing {
                self.release_abandoned(now, out);
            }
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

    fn journal_session(&mut self, client: ClientId, begins: bool) {
        if !self.config.read_only {
            // It needs nothing that would have to be loaded.
            let _ = self.append(&Event::Session { client, begins });
        }
    }

    /// Ends the sessions of which nothing has been heard for too long.
    pub(crate) fn expire(&mut self, now: Now, out: &mut Outbox) {
        let Some(limit) = self.config.session_ms else { return };
        let mut expired: Vec<ClientId> = Vec::new();
        for (client, session) in &mut self.sessions.clients {
            let heard = *session.heard_ms.get_or_insert(now.uptime_ms);
            if now.uptime_ms.saturating_sub(heard) > limit.into() {
                expired.push(*client);
            }
        }
        expired.sort_unstable();
        for client in expired {
            if let Some(session) = self.sessions.clients.remove(&client) {
                self.sessions.abandoned.extend(session.held);
            }
            self.journal_session(client, false);
            out.expired.push(client);
        }
        if !self.sessions.releasing {
            self.release_abandoned(now, out);
        }
    }

    /// What a client does not have after all, though it was counted.
    fn abandon(&mut self, client: ClientId, given: impl Iterator<Item = (Ino, Hold)>) {
        let Some(session) = self.sessions.clients.get_mut(&client) else { return };
        for (ino, hold) in given {
            self.sessions.abandoned.push_back((ino, session.let_go(ino, hold)));
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

    /// After recovery: takes up the sessions that there were.
    pub(crate) fn recover_sessions(&mut self) {
        let clients: Vec<ClientId> = self.state.sessions.keys().copied().collect();
        for client in clients {
            if self.config.session_ms.is_some() {
                self.sessions.clients.insert(client, Session::default());
            } else {
                self.journal_session(client, false);
            }
        }
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
            self.erased.push(TableWrite { object: ObjectId::SESSIONS, key: key(client), value: None });
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
        let value = Some(encode(&()));
        self.snapshot.writes.push(TableWrite { object: ObjectId::SESSIONS, key: key(client), value });
    }

    pub(crate) fn loaded_session(&mut self, key: &[u8], value: &[u8]) -> Result<(), Corrupt> {
        let client = client(key).ok_or(Corrupt)?;
        let () = decode(value)?;
        self.sessions.insert(client, Kept { track: Track::STORED });
        Ok(())
    }

    /// An inode is open so many times less.
    fn close(&mut self, ino: Ino, opens: u32) {
        if let Some(cached) = self.inodes.get_mut(&ino) {
            cached.opens = cached.opens.saturating_sub(opens);
        }
    }
}

fn key(client: ClientId) -> Vec<u8> {
    client.0.to_be_bytes().to_vec()
}

fn client(key: &[u8]) -> Option<ClientId> {
    Some(ClientId(u64::from_be_bytes(key.try_into().ok()?)))
}

/// Whether a record of [`ObjectId::SESSIONS`] is sound.
pub fn is_session(key: &[u8], value: &[u8]) -> bool {
    client(key).is_some() && decode::<()>(value).is_ok()
}
