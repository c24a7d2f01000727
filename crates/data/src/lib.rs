//! The data server's state machine: accepts requests on datafiles, schedules their I/O, and
//! replies.
//!
//! Invariants:
//! - An earlier request never overwrites a later one: a repeated request never runs twice at a
//!   time, and a restarted metadata server is served only after its predecessor's requests are
//!   done.
//! - Requests that replace a whole datafile run exclusively on it, in order of arrival; a client's
//!   request truncates it once (`truncated.rs`).
//! - A removal is answered when it is durable, many of them by one sync; datafiles are created in
//!   batches.
//! - Nothing is done for a client session that has ended (`sessions.rs`).
//!
//! `no_std` on purpose: the compiler then refuses a file, a socket, a clock or a thread here.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod sessions;
#[cfg(test)]
mod tests;
mod truncated;

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use espalier_proto::{
    Capability, ClientId, DataReply, DataRequest, Errno, FromData, Ino, RequestId, ServerId, ToData,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use sessions::{ClientSession, SessionTable};
use truncated::{Truncated, Truncation};

type FxMap<K, V> = HashMap<K, V, FxBuildHasher>;

/// Names an I/O that the machine has requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoId(pub u64);

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    /// A metadata server, which may request anything.
    Server(ServerId),
    /// A client, which may request what its capability allows.
    Client(ClientId),
}

#[derive(Debug)]
pub enum Input {
    /// A peer has connected. Requests from its earlier connections are dropped. `incarnation`
    /// distinguishes its starts.
    Connect {
        from: Requester,
        incarnation: u64,
        connection: u64,
    },
    /// A connection has ended.
    Disconnect {
        from: Requester,
        connection: u64,
    },
    /// `connection`: where to reply. The seal of its capability is valid.
    Request {
        from: Requester,
        connection: u64,
        message: ToData,
    },
    Done {
        id: IoId,
        result: Result<DataReply, Errno>,
    },
}

/// I/O for the driver, which reports its end with [`Input::Done`].
#[derive(Debug, PartialEq, Eq)]
pub enum Io {
    Request(DataRequest),
    /// A write. A missing datafile is created and listed as new.
    WriteNew(DataRequest),
    /// Creates empty datafiles, durable together.
    Create(Vec<Ino>),
    /// Makes all removals so far durable.
    SyncRemoved,
}

/// An output of the machine.
#[derive(Debug, Default)]
pub struct Outbox {
    pub io: Vec<(IoId, Io)>,
    /// By connection number. A lost connection needs no reply: its peer repeats the request.
    pub replies: Vec<(u64, FromData)>,
}

/// Key of a request: sender, incarnation, number.
type RequestKey = (Requester, u64, RequestId);

/// A connected peer.
#[derive(Debug)]
struct ConnectedPeer {
    incarnation: u64,
    connection: u64,
    /// Requests of earlier incarnations under way, and those that wait for their end.
    old: usize,
    deferred: VecDeque<ToData>,
}

/// A request without a reply yet.
#[derive(Debug)]
struct UnderWay {
    /// The connection to reply on.
    connection: u64,
    /// For a client: the capability that allows it.
    capability: Option<Capability>,
}

impl UnderWay {
    /// For a client: its session.
    fn session(&self) -> Option<ClientSession> {
        self.capability.as_ref().map(ClientSession::of)
    }
}

/// The data server's machine. See the crate's documentation.
#[derive(Debug, Default)]
pub struct Data {
    peers: FxMap<Requester, ConnectedPeer>,
    under_way: FxMap<RequestKey, UnderWay>,
    sessions: SessionTable,
    /// Answered when no request of an ended session is under way.
    admissions: Vec<RequestKey>,
    /// Metadata servers that ask for the new datafiles; answered when no ended session can add to
    /// them.
    listings: Vec<RequestKey>,
    running: FxMap<IoId, Running>,
    files: FxMap<Ino, DatafileQueue>,
    truncated: Truncated,
    next_io: u64,
    /// Waiting for the batch under way.
    to_create: VecDeque<(RequestKey, Ino)>,
    creates: bool,
    /// Removed, not durable yet.
    removed: VecDeque<RequestKey>,
    /// A sync of removals is under way.
    syncs_removed: bool,
    /// Each creation and removal is committed by itself, as in the paper's baseline (carns III.C).
    individually: bool,
}

#[derive(Debug)]
enum Running {
    Request(RequestKey, Option<(Ino, Use)>),
    Truncation(RequestKey, Truncation),
    Create(Vec<(RequestKey, Ino)>),
    /// Runs exclusively until the datafile is removed; its reply waits for the sync.
    Removal(RequestKey, Ino),
    SyncRemoved(Vec<RequestKey>),
}

/// A request's use of a datafile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Shared,
    Exclusive,
}

/// Requests under way on a datafile, and those that wait.
#[derive(Debug, Default)]
struct DatafileQueue {
    running: usize,
    individually: bool,
    waiting: VecDeque<(RequestKey, Use, DataRequest)>,
}

impl DatafileQueue {
    fn takes(&self, how: Use) -> bool {
        !self.individually && (how == Use::Shared || self.running == 0)
    }
}

impl Data {
    /// `individually`: each creation and removal is committed by itself; otherwise they share
    /// syncs.
    pub fn new(individually: bool) -> Self {
        Self { individually, ..Self::default() }
    }

    /// Changes the setting of [`Self::new`].
    pub fn set_individual(&mut self, individually: bool) {
        self.individually = individually;
    }

    /// Processes one input. Its immediate effects are in `out` on return.
    pub fn on(&mut self, input: Input, out: &mut Outbox) {
        match input {
            Input::Connect { from, incarnation, connection } => {
                let is_old = |(of, when, _): &&RequestKey| *of == from && *when != incarnation;
                let old = self.under_way.keys().filter(is_old).count();
                self.peers
                    .insert(from, ConnectedPeer { incarnation, connection, old, deferred: VecDeque::new() });
                if let Requester::Server(server) = from {
                    self.sessions.begin(server, incarnation);
                }
            }
            Input::Disconnect { from, connection } => {
                if self.peers.get(&from).is_some_and(|peer| peer.connection == connection) {
                    self.peers.remove(&from);
                }
            }
            Input::Request { from, connection, message } => {
                let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.connection == connection)
                else {
                    return;
                };
                if peer.old == 0 {
                    let incarnation = peer.incarnation;
                    self.begin((from, incarnation), connection, message, out);
                } else {
                    peer.deferred.push_back(message);
                }
            }
            Input::Done { id, result } => match self.running.remove(&id) {
                Some(Running::Request(key, used)) => {
                    self.answer(key, result, out);
                    if let Some((ino, how)) = used {
                        self.leave(ino, how, out);
                    }
                }
                Some(Running::Truncation(key, truncation)) => {
                    if result.is_ok() {
                        self.truncated.done(truncation);
                    }
                    self.answer(key, result, out);
                    self.leave(truncation.0, Use::Exclusive, out);
                }
                Some(Running::Create(created)) => {
                    self.creates = false;
                    for (key, ino) in created {
                        self.answer(key, result.clone(), out);
                        self.leave(ino, Use::Exclusive, out);
                    }
                    self.create(out);
                }
                Some(Running::Removal(key, ino)) => {
                    match result {
                        Ok(_) => self.removed.push_back(key),
                        Err(_) => self.answer(key, result, out),
                    }
                    self.leave(ino, Use::Exclusive, out);
                    self.sync_removed(out);
                }
                Some(Running::SyncRemoved(removals)) => {
                    self.syncs_removed = false;
                    for key in removals {
                        self.answer(key, result.clone(), out);
                    }
                    self.sync_removed(out);
                }
                None => {}
            },
        }
    }

    fn begin(
        &mut self,
        (from, incarnation): (Requester, u64),
        connection: u64,
        message: ToData,
        out: &mut Outbox,
    ) {
        let ToData { id, request, capability } = message;
        let key = (from, incarnation, id);
        if let Some(under_way) = self.under_way.get_mut(&key) {
            under_way.connection = connection;
            return;
        }
        let is_client = matches!(from, Requester::Client(_));
        let capability = capability.filter(|_| is_client);
        let session = capability.as_ref().map(ClientSession::of);
        self.under_way.insert(key, UnderWay { connection, capability });
        let may = !is_client || capability.is_some_and(|capability| capability.permits(&request));
        match request.check() {
            Err(errno) => self.answer(key, Err(errno), out),
            Ok(()) if !may => self.answer(key, Err(Errno::EACCES), out),
            Ok(()) if session.is_some_and(|session| !self.sessions.has(session)) => {
                self.answer(key, Ok(DataReply::Stale), out);
            }
            Ok(()) => self.take(key, request, out),
        }
    }

    /// A metadata server's report of its sessions; answered when no request of ended ones is under
    /// way.
    fn admit(&mut self, key: RequestKey, (below, live): (u64, Vec<u64>), out: &mut Outbox) {
        if let Requester::Server(server) = key.0 {
            self.sessions.admit(server, below, live);
        }
        self.admissions.push(key);
        self.answer_admissions(out);
    }

    fn answer_admissions(&mut self, out: &mut Outbox) {
        for key in core::mem::take(&mut self.admissions) {
            let of = |session: &ClientSession| Requester::Server(session.server) == key.0;
            let mut sessions = self.under_way.values().filter_map(UnderWay::session);
            if sessions.any(|session| of(&session) && !self.sessions.has(session)) {
                self.admissions.push(key);
            } else {
                self.answer(key, Ok(DataReply::Done), out);
            }
        }
        for key in core::mem::take(&mut self.listings) {
            self.list_new(key, out);
        }
    }

    fn list_new(&mut self, key: RequestKey, out: &mut Outbox) {
        if self.admissions.iter().any(|(from, ..)| *from == key.0) {
            self.listings.push(key);
        } else {
            self.run(Running::Request(key, None), Io::Request(DataRequest::New), out);
        }
    }

    /// The requests that an I/O serves, with the connections to reply on.
    pub fn requests_of(&self, io: IoId) -> Vec<(u64, RequestId)> {
        let keys = match self.running.get(&io) {
            Some(Running::Request(key, _) | Running::Truncation(key, _) | Running::Removal(key, _)) => {
                vec![*key]
            }
            Some(Running::Create(created)) => created.iter().map(|(key, _)| *key).collect(),
            Some(Running::SyncRemoved(_)) | None => Vec::new(),
        };
        let address = |key: &RequestKey| Some((self.under_way.get(key)?.connection, key.2));
        keys.iter().filter_map(address).collect()
    }

    /// Requests without a reply yet.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    fn take(&mut self, key: RequestKey, request: DataRequest, out: &mut Outbox) {
        if let (
            Requester::Server(server),
            DataRequest::Admit { durable, .. } | DataRequest::Finalise { durable, .. },
        ) = (key.0, &request)
        {
            self.sessions.committed(server, *durable);
        }
        match request {
            DataRequest::Admit { below, live, .. } => return self.admit(key, (below, live), out),
            DataRequest::New => return self.list_new(key, out),
            _ => {}
        }
        let Some((ino, how)) = used(&request) else {
            return self.run(Running::Request(key, None), Io::Request(request), out);
        };
        let file = self.files.entry(ino).or_default();
        if file.waiting.is_empty() && file.takes(how) {
            self.enter(key, (ino, how), request, out);
        } else {
            file.waiting.push_back((key, how, request));
        }
    }

    fn enter(&mut self, key: RequestKey, (ino, how): (Ino, Use), request: DataRequest, out: &mut Outbox) {
        let file = self.files.entry(ino).or_default();
        file.running += 1;
        file.individually = how == Use::Exclusive;
        let running = match request {
            DataRequest::Create { sync: true, .. } => {
                self.to_create.push_back((key, ino));
                return self.create(out);
            }
            DataRequest::Remove { .. } => Running::Removal(key, ino),
            DataRequest::Truncate { by: Some((client, id)), .. } => {
                let truncation = (ino, client, id);
                if self.truncated.is_done(truncation) {
                    self.answer(key, Ok(DataReply::Done), out);
                    return self.leave(ino, how, out);
                }
                Running::Truncation(key, truncation)
            }
            _ => Running::Request(key, Some((ino, how))),
        };
        let io = match request {
            DataRequest::Range { op, .. } if op.is_write() && self.is_young(&key) => Io::WriteNew(request),
            request => Io::Request(request),
        };
        self.run(running, io, out);
    }

    /// True if what the request creates may belong to no file.
    fn is_young(&self, key: &RequestKey) -> bool {
        let capability = self.under_way.get(key).and_then(|under_way| under_way.capability.as_ref());
        capability.is_some_and(|capability| self.sessions.is_young(capability))
    }

    /// A request on a datafile has ended: starts those that waited for it.
    fn leave(&mut self, ino: Ino, how: Use, out: &mut Outbox) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.running -= 1;
        if how == Use::Exclusive {
            file.individually = false;
        }
        while let Some(file) = self.files.get_mut(&ino)
            && file.waiting.front().is_some_and(|(_, how, _)| file.takes(*how))
            && let Some((key, how, request)) = file.waiting.pop_front()
        {
            self.enter(key, (ino, how), request, out);
        }
        if self.files.get(&ino).is_some_and(|file| file.running == 0) {
            self.files.remove(&ino);
        }
    }

    fn create(&mut self, out: &mut Outbox) {
        if !self.creates && !self.to_create.is_empty() {
            self.creates = true;
            let most = if self.individually { 1 } else { DataRequest::MAX_INODES };
            let count = self.to_create.len().min(most);
            let created: Vec<_> = self.to_create.drain(..count).collect();
            let inos = created.iter().map(|(_, ino)| *ino).collect();
            self.run(Running::Create(created), Io::Create(inos), out);
        }
    }

    fn sync_removed(&mut self, out: &mut Outbox) {
        if !self.syncs_removed && !self.removed.is_empty() {
            self.syncs_removed = true;
            let count = if self.individually { 1 } else { self.removed.len() };
            let removals = self.removed.drain(..count).collect();
            self.run(Running::SyncRemoved(removals), Io::SyncRemoved, out);
        }
    }

    fn run(&mut self, running: Running, io: Io, out: &mut Outbox) {
        self.next_io += 1;
        let id = IoId(self.next_io);
        self.running.insert(id, running);
        out.io.push((id, io));
    }

    fn answer(&mut self, key: RequestKey, result: Result<DataReply, Errno>, out: &mut Outbox) {
        let Some(UnderWay { connection, capability }) = self.under_way.remove(&key) else { return };
        let announced = capability.is_some_and(|capability| capability.announced);
        out.replies.push((connection, FromData { id: key.2, announced, result }));
        if capability.is_some() && !self.admissions.is_empty() {
            self.answer_admissions(out);
        }
        let (from, incarnation, _) = key;
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.incarnation != incarnation) else {
            return;
        };
        peer.old = peer.old.saturating_sub(1);
        if peer.old == 0 {
            let (now, connection) = (peer.incarnation, peer.connection);
            for message in core::mem::take(&mut peer.deferred) {
                self.begin((from, now), connection, message, out);
            }
        }
    }
}

/// The datafile that a request uses, and how; `None` if it may run beside anything.
fn used(request: &DataRequest) -> Option<(Ino, Use)> {
    match request {
        DataRequest::Range { ino, .. } | DataRequest::Sync { ino } => Some((*ino, Use::Shared)),
        DataRequest::Fill { ino, .. }
        | DataRequest::Finalise { ino, .. }
        | DataRequest::Truncate { ino, .. }
        | DataRequest::SetMtime { ino, .. }
        | DataRequest::Create { ino, .. }
        | DataRequest::Remove { ino } => Some((*ino, Use::Exclusive)),
        DataRequest::Stat { .. }
        | DataRequest::Precreate { .. }
        | DataRequest::Discard { .. }
        | DataRequest::New
        | DataRequest::SyncAll
        | DataRequest::Space
        | DataRequest::Admit { .. } => None,
    }
}
