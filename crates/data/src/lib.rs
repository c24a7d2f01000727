//! The data server's state machine: takes requests on datafiles, says which of them are done now, and answers. It waits
//! for nothing.
//!
//! It keeps four promises. What was asked earlier does not land on what is asked later: a request that comes again, over a new
//! connection, while it is being done is not done twice at the same time; and a metadata server that was started anew is served
//! when all is done that it asked before. What replaces a datafile as a whole runs alone on it, in the order in which it
//! came; and a client's request truncates it once (`truncated.rs`). A removal is answered when it is durable, many of them by one sync, and
//! datafiles are made many at a time. And of a client's session that has ended nothing is done any more (`sessions.rs`).
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

use sessions::{Session, Sessions};
use truncated::{Truncated, Truncation};

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// Names an I/O that the machine has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoId(pub u64);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asker {
    /// A metadata server, which may ask for everything.
    Server(ServerId),
    /// A client, which may ask for what its capabilities say.
    Client(ClientId),
}

#[derive(Debug)]
pub enum Input {
    /// Somebody has connected. What comes by earlier connections of the same is not listened to any more. `incarnation`: tells one
    /// start of it from the next.
    Connect {
        from: Asker,
        incarnation: u64,
        connection: u64,
    },
    /// A connection has ended.
    Disconnect {
        from: Asker,
        connection: u64,
    },
    /// `connection`: by which the sender is to be answered. Its capability has a good seal.
    Request {
        from: Asker,
        connection: u64,
        message: ToData,
    },
    Done {
        id: IoId,
        result: Result<DataReply, Errno>,
    },
}

/// Something to be done outside of the machine, which then expects a [`Input::Done`] for it.
#[derive(Debug, PartialEq, Eq)]
pub enum Io {
    Request(DataRequest),
    /// A write. The datafile is listed as new if it is not there yet.
    WriteNew(DataRequest),
    /// Make empty datafiles, durable together.
    Create(Vec<Ino>),
    /// Make it durable that what has been removed until now is gone.
    SyncRemoved,
}

/// What the machine wants done.
#[derive(Debug, Default)]
pub struct Outbox {
    pub io: Vec<(IoId, Io)>,
    /// By the number of the connection. One that is gone needs no answer: its client asks again.
    pub replies: Vec<(u64, FromData)>,
}

/// Who asked, in which incarnation, and by which number.
type Asked = (Asker, u64, RequestId);

/// Somebody who has connected.
#[derive(Debug)]
struct Peer {
    incarnation: u64,
    connection: u64,
    /// Requests of earlier incarnations that are under way, and what waits for their end.
    old: usize,
    early: VecDeque<ToData>,
}

/// A request that has not been answered.
#[derive(Debug)]
struct UnderWay {
    /// The connection that waits for it.
    connection: u64,
    /// Of a client: by what it is let.
    capability: Option<Capability>,
}

impl UnderWay {
    /// Of a client: the session on whose behalf it is done.
    fn session(&self) -> Option<Session> {
        self.capability.as_ref().map(Session::of)
    }
}

/// The data server's machine. See the crate's description.
#[derive(Debug, Default)]
pub struct Data {
    peers: Map<Asker, Peer>,
    under_way: Map<Asked, UnderWay>,
    sessions: Sessions,
    /// What is answered when nothing is under way any more of sessions that have ended.
    admissions: Vec<Asked>,
    /// Metadata servers that want to know what datafiles are new, when no client adds to them any more on behalf of such a session.
    listings: Vec<Asked>,
    running: Map<IoId, Running>,
    files: Map<Ino, File>,
    truncated: Truncated,
    next_io: u64,
    /// To be made when those are that are under way.
    to_create: VecDeque<(Asked, Ino)>,
    creates: bool,
    /// Removed, but not durably.
    removed: VecDeque<Asked>,
    /// A sync of them is under way.
    syncs_removed: bool,
    /// Datafiles are made, and their removals made durable, each by itself, as in the paper's baseline (carns III.C).
    alone: bool,
}

#[derive(Debug)]
enum Running {
    Request(Asked, Option<(Ino, Use)>),
    Truncation(Asked, Truncation),
    Create(Vec<(Asked, Ino)>),
    /// A removal runs alone, as long as that takes; its answer waits for the sync.
    Removal(Asked, Ino),
    SyncRemoved(Vec<Asked>),
}

/// How a request uses a datafile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Shared,
    Alone,
}

/// What is being done with a datafile, and what is to be done next.
#[derive(Debug, Default)]
struct File {
    running: usize,
    alone: bool,
    waiting: VecDeque<(Asked, Use, DataRequest)>,
}

impl File {
    fn takes(&self, how: Use) -> bool {
        !self.alone && (how == Use::Shared || self.running == 0)
    }
}

impl Data {
    /// `alone`: each datafile is made, and each removal made durable, by itself; otherwise one sync is for many.
    pub fn new(alone: bool) -> Self {
        Self { alone, ..Self::default() }
    }

    /// As for [`Self::new`], from now on.
    pub fn set_alone(&mut self, alone: bool) {
        self.alone = alone;
    }

    /// Takes one input. Whatever follows from it at once is in `out` on return.
    pub fn on(&mut self, input: Input, out: &mut Outbox) {
        match input {
            Input::Connect { from, incarnation, connection } => {
                let is_old = |(of, when, _): &&Asked| *of == from && *when != incarnation;
                let old = self.under_way.keys().filter(is_old).count();
                self.peers.insert(from, Peer { incarnation, connection, old, early: VecDeque::new() });
                if let Asker::Server(server) = from {
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
                    peer.early.push_back(message);
                }
            }
            Input::Done { id, result } => match self.running.remove(&id) {
                Some(Running::Request(asked, used)) => {
                    self.answer(asked, result, out);
                    if let Some((ino, how)) = used {
                        self.leave(ino, how, out);
                    }
                }
                Some(Running::Truncation(asked, truncation)) => {
                    if result.is_ok() {
                        self.truncated.done(truncation);
                    }
                    self.answer(asked, result, out);
                    self.leave(truncation.0, Use::Alone, out);
                }
                Some(Running::Create(created)) => {
                    self.creates = false;
                    for (asked, ino) in created {
                        self.answer(asked, result.clone(), out);
                        self.leave(ino, Use::Alone, out);
                    }
                    self.create(out);
                }
                Some(Running::Removal(asked, ino)) => {
                    match result {
                        Ok(_) => self.removed.push_back(asked),
                        Err(_) => self.answer(asked, result, out),
                    }
                    self.leave(ino, Use::Alone, out);
                    self.sync_removed(out);
                }
                Some(Running::SyncRemoved(removals)) => {
                    self.syncs_removed = false;
                    for asked in removals {
                        self.answer(asked, result.clone(), out);
                    }
                    self.sync_removed(out);
                }
                None => {}
            },
        }
    }

    fn begin(
        &mut self,
        (from, incarnation): (Asker, u64),
        connection: u64,
        message: ToData,
        out: &mut Outbox,
    ) {
        let ToData { id, request, capability } = message;
        let asked = (from, incarnation, id);
        if let Some(under_way) = self.under_way.get_mut(&asked) {
            under_way.connection = connection;
            return;
        }
        let is_client = matches!(from, Asker::Client(_));
        let capability = capability.filter(|_| is_client);
        let session = capability.as_ref().map(Session::of);
        self.under_way.insert(asked, UnderWay { connection, capability });
        let may = !is_client || capability.is_some_and(|capability| capability.permits(&request));
        match request.check() {
            Err(errno) => self.answer(asked, Err(errno), out),
            Ok(()) if !may => self.answer(asked, Err(Errno::EACCES), out),
            Ok(()) if session.is_some_and(|session| !self.sessions.has(session)) => {
                self.answer(asked, Ok(DataReply::Stale), out);
            }
            Ok(()) => self.take(asked, request, out),
        }
    }

    /// What a metadata server says of its sessions: answered when nothing is done any more for those that have ended.
    fn admit(&mut self, asked: Asked, (below, live): (u64, Vec<u64>), out: &mut Outbox) {
        if let Asker::Server(server) = asked.0 {
            self.sessions.admit(server, below, live);
        }
        self.admissions.push(asked);
        self.answer_admissions(out);
    }

    fn answer_admissions(&mut self, out: &mut Outbox) {
        for asked in core::mem::take(&mut self.admissions) {
            let of = |session: &Session| Asker::Server(session.server) == asked.0;
            let mut sessions = self.under_way.values().filter_map(UnderWay::session);
            if sessions.any(|session| of(&session) && !self.sessions.has(session)) {
                self.admissions.push(asked);
            } else {
                self.answer(asked, Ok(DataReply::Done), out);
            }
        }
        for asked in core::mem::take(&mut self.listings) {
            self.list_new(asked, out);
        }
    }

    fn list_new(&mut self, asked: Asked, out: &mut Outbox) {
        if self.admissions.iter().any(|(from, ..)| *from == asked.0) {
            self.listings.push(asked);
        } else {
            self.run(Running::Request(asked, None), Io::Request(DataRequest::New), out);
        }
    }

    /// The requests that an I/O is done for, and the connections that wait for their answers.
    pub fn requests_of(&self, io: IoId) -> Vec<(u64, RequestId)> {
        let asked = match self.running.get(&io) {
            Some(Running::Request(asked, _) | Running::Truncation(asked, _) | Running::Removal(asked, _)) => {
                vec![*asked]
            }
            Some(Running::Create(created)) => created.iter().map(|(asked, _)| *asked).collect(),
            Some(Running::SyncRemoved(_)) | None => Vec::new(),
        };
        let told = |asked: &Asked| Some((self.under_way.get(asked)?.connection, asked.2));
        asked.iter().filter_map(told).collect()
    }

    /// Requests that have not been answered.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    fn take(&mut self, asked: Asked, request: DataRequest, out: &mut Outbox) {
        if let (
            Asker::Server(server),
            DataRequest::Admit { durable, .. } | DataRequest::Settle { durable, .. },
        ) = (asked.0, &request)
        {
            self.sessions.committed(server, *durable);
        }
        match request {
            DataRequest::Admit { below, live, .. } => return self.admit(asked, (below, live), out),
            DataRequest::New => return self.list_new(asked, out),
            _ => {}
        }
        let Some((ino, how)) = used(&request) else {
            return self.run(Running::Request(asked, None), Io::Request(request), out);
        };
        let file = self.files.entry(ino).or_default();
        if file.waiting.is_empty() && file.takes(how) {
            self.enter(asked, (ino, how), request, out);
        } else {
            file.waiting.push_back((asked, how, request));
        }
    }

    fn enter(&mut self, asked: Asked, (ino, how): (Ino, Use), request: DataRequest, out: &mut Outbox) {
        let file = self.files.entry(ino).or_default();
        file.running += 1;
        file.alone = how == Use::Alone;
        let running = match request {
            DataRequest::Create { sync: true, .. } => {
                self.to_create.push_back((asked, ino));
                return self.create(out);
            }
            DataRequest::Remove { .. } => Running::Removal(asked, ino),
            DataRequest::Truncate { by: Some((client, id)), .. } => {
                let truncation = (ino, client, id);
                if self.truncated.is_done(truncation) {
                    self.answer(asked, Ok(DataReply::Done), out);
                    return self.leave(ino, how, out);
                }
                Running::Truncation(asked, truncation)
            }
            _ => Running::Request(asked, Some((ino, how))),
        };
        let io = match request {
            DataRequest::Write { .. } | DataRequest::WriteList { .. } if self.is_young(&asked) => {
                Io::WriteNew(request)
            }
            request => Io::Request(request),
        };
        self.run(running, io, out);
    }

    /// Whether what it makes may belong to nothing.
    fn is_young(&self, asked: &Asked) -> bool {
        let capability = self.under_way.get(asked).and_then(|under_way| under_way.capability.as_ref());
        capability.is_some_and(|capability| self.sessions.is_young(capability))
    }

    /// A request is done with a datafile: those that have waited for it come next.
    fn leave(&mut self, ino: Ino, how: Use, out: &mut Outbox) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.running -= 1;
        if how == Use::Alone {
            file.alone = false;
        }
        while let Some(file) = self.files.get_mut(&ino)
            && file.waiting.front().is_some_and(|(_, how, _)| file.takes(*how))
            && let Some((asked, how, request)) = file.waiting.pop_front()
        {
            self.enter(asked, (ino, how), request, out);
        }
        if self.files.get(&ino).is_some_and(|file| file.running == 0) {
            self.files.remove(&ino);
        }
    }

    fn create(&mut self, out: &mut Outbox) {
        if !self.creates && !self.to_create.is_empty() {
            self.creates = true;
            let most = if self.alone { 1 } else { DataRequest::MAX_INODES };
            let count = self.to_create.len().min(most);
            let created: Vec<_> = self.to_create.drain(..count).collect();
            let inos = created.iter().map(|(_, ino)| *ino).collect();
            self.run(Running::Create(created), Io::Create(inos), out);
        }
    }

    fn sync_removed(&mut self, out: &mut Outbox) {
        if !self.syncs_removed && !self.removed.is_empty() {
            self.syncs_removed = true;
            let count = if self.alone { 1 } else { self.removed.len() };
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

    fn answer(&mut self, asked: Asked, result: Result<DataReply, Errno>, out: &mut Outbox) {
        let Some(UnderWay { connection, capability }) = self.under_way.remove(&asked) else { return };
        let announced = capability.is_some_and(|capability| capability.announced);
        out.replies.push((connection, FromData { id: asked.2, announced, result }));
        if capability.is_some() && !self.admissions.is_empty() {
            self.answer_admissions(out);
        }
        let (from, incarnation, _) = asked;
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.incarnation != incarnation) else {
            return;
        };
        peer.old = peer.old.saturating_sub(1);
        if peer.old == 0 {
            let (now, connection) = (peer.incarnation, peer.connection);
            for message in core::mem::take(&mut peer.early) {
                self.begin((from, now), connection, message, out);
            }
        }
    }
}

/// The datafile that a request uses, and how; `None`: it does not matter what is done with others meanwhile.
fn used(request: &DataRequest) -> Option<(Ino, Use)> {
    match request {
        DataRequest::Read { ino, .. }
        | DataRequest::Write { ino, .. }
        | DataRequest::WriteList { ino, .. }
        | DataRequest::Allocate { ino, .. }
        | DataRequest::Seek { ino, .. }
        | DataRequest::Sync { ino } => Some((*ino, Use::Shared)),
        DataRequest::Fill { ino, .. }
        | DataRequest::Settle { ino, .. }
        | DataRequest::Truncate { ino, .. }
        | DataRequest::SetMtime { ino, .. }
        | DataRequest::Create { ino, .. }
        | DataRequest::Remove { ino } => Some((*ino, Use::Alone)),
        DataRequest::Stat { .. }
        | DataRequest::Precreate { .. }
        | DataRequest::Discard { .. }
        | DataRequest::New
        | DataRequest::Space
        | DataRequest::Admit { .. } => None,
    }
}
