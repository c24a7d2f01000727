//! What a metadata server and its clients say to each other: messages become inputs of the machine, and what it decides becomes
//! messages, in the order in which they must go. Clients are kept to their [`Rights`] here.
//!
//! A driver gives it what has come ([`Front::take`]) and what it has done ([`Front::input`]); then it does what
//! [`Front::route`] says. It has the connections: one at a time of each client.

mod rights;
mod subtree;

pub use rights::Rights;
pub use subtree::Subtree;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;
use espalier_proto::{
    Accesses, ClientId, Errno, FromClient, FromServer, Ino, Layout, Name, Rank, Reply, RequestId, StreamIo,
    Touched,
};

use crate::machine::Meta;
use crate::outbox::{Answered, Input, Io, IoDone, IoId, Now, Outbox, Waiting};
use crate::rank::PeerMessage;
use crate::striping::Place;

/// Inodes that are recalled with one message.
const RECALLS: usize = 512;

/// A metadata server's machine, with its clients. See the module's description.
#[derive(Debug)]
pub struct Front {
    meta: Meta,
    /// What the machine has decided and [`Self::route`] has not told.
    out: Outbox,
    routed: Routed,
    /// Clients that are connected.
    attached: BTreeSet<ClientId>,
    /// Requests that wait to be told their callers' groups, and of which processes.
    groups: BTreeMap<(ClientId, RequestId), (IoId, u32)>,
    /// What is to be done with files of which it is not known yet where the bytes are, or whether that may be done.
    unplaced: BTreeMap<(ClientId, RequestId), StreamRequest>,
    /// Requests whose answers are to be announced, if they have payloads.
    announced: BTreeSet<(ClientId, RequestId)>,
    /// Restricted clients whose sessions are about to begin or to go on.
    entering: BTreeMap<ClientId, Entering>,
}

/// A client that is to be restricted to a directory.
#[derive(Debug)]
struct Entering {
    path: Box<[Name]>,
    /// It has a session, and the directory is looked for.
    is_connected: bool,
}

/// What a driver is to do.
#[derive(Debug, Default)]
pub struct Routed {
    /// As in [`Outbox::waiting`].
    pub waiting: Vec<(ClientId, RequestId, Waiting)>,
    /// What has come of [`Front::connect`]: the client is to be welcomed, and attached, and this directory is its root; or it is to be refused.
    pub connected: Vec<(ClientId, Result<Ino, Refused>)>,
    /// Sessions that have ended: nothing goes to these clients any more.
    pub ended: Vec<ClientId>,
    /// To clients, in this order. What is said to one that is not connected may be dropped.
    ///
    /// The driver completes what tells of space ([`Reply::StatFs`]), and seals capabilities ([`Reply::Delegated`]).
    pub send: Vec<(ClientId, FromServer)>,
    /// To other ranks, in this order. What is said to one that cannot be reached may be dropped.
    pub peers: Vec<(Rank, PeerMessage)>,
    /// As in [`Outbox::remarks`].
    pub remarks: Vec<String>,
    /// Each ends with [`Front::end_stream`].
    pub streams: Vec<StreamRequest>,
    /// Each ends with an [`Input::Done`]. There are no [`Io::Groups`] among them.
    pub io: Vec<(IoId, Io)>,
}

/// Something that a client wants to be done with a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRequest {
    pub of: (ClientId, RequestId),
    pub io: StreamIo,
    /// Of the file, if it is a striped one.
    pub layout: Option<Arc<Layout>>,
    /// To be written.
    pub data: Bytes,
}

/// Why a client gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The session that it had has ended. It is to connect again for a new one, when it has given up what it had.
    Ended,
    /// As in [`Outbox::refused`].
    Session(Errno),
    /// The directory to which it is restricted cannot be entered.
    Subtree(Errno),
}

/// The session of a client that is restricted to a subtree has ended: it is to connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrestricted;

impl fmt::Display for Unrestricted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the session of a client that is restricted to a subtree has ended")
    }
}

impl core::error::Error for Unrestricted {}

impl Front {
    pub fn new(meta: Meta) -> Self {
        Self {
            meta,
            out: Outbox::default(),
            routed: Routed::default(),
            attached: BTreeSet::new(),
            groups: BTreeMap::new(),
            unplaced: BTreeMap::new(),
            announced: BTreeSet::new(),
            entering: BTreeMap::new(),
        }
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Begins a client's session, or goes on with it: answered in [`Routed::connected`]. `leases`: as in [`Input::Connect`].
    /// The directory to which it is restricted is looked for each time.
    pub fn connect(
        &mut self,
        now: Now,
        client: ClientId,
        (leases, resumes): (bool, bool),
        accesses: Accesses,
        rights: &Rights,
    ) {
        if let Some(subtree) = &rights.subtree {
            let path = subtree.path().into();
            self.entering.entry(client).or_insert(Entering { path, is_connected: false });
        }
        self.input(now, Input::Connect { client, leases, resumes });
        self.input(now, Input::Accesses { client, accesses });
    }

    /// From now on the client is reached: by a new connection, if it was before.
    pub fn attach(&mut self, client: ClientId) {
        self.attached.insert(client);
        let recalls: Vec<_> = self.meta.to_be_recalled(client).collect();
        let messages = recalls.chunks(RECALLS).map(|recalls| (client, FromServer::Recall(recalls.to_vec())));
        self.routed.send.extend(messages);
        let waiting = self.groups.range((client, RequestId(0))..=(client, RequestId(u64::MAX)));
        let ask =
            |(&(to, id), &(_, pid)): (&(ClientId, RequestId), &_)| (to, FromServer::AskGroups { id, pid });
        self.routed.send.extend(waiting.map(ask));
    }

    /// The client is not reached any more. What is under way goes on.
    pub fn detach(&mut self, client: ClientId) {
        self.attached.remove(&client);
    }

    /// Takes what a client says. Returns whether an answer will come, if it is a request: to an old copy none does.
    ///
    /// # Errors
    /// Nothing is to be taken from this connection any more.
    pub fn take(
        &mut self,
        now: Now,
        client: ClientId,
        rights: &Rights,
        message: FromClient,
    ) -> Result<bool, Unrestricted> {
        let mut is_answered = true;
        match message {
            FromClient::Request { id, below, announced, caller, request } => {
                if rights.subtree.is_some() && self.meta.root_of(client).is_none() {
                    return Err(Unrestricted);
                }
                self.announced.extend(announced.then_some((client, id)));
                if let Err(refusal) = rights.check(&request) {
                    self.answer((client, id), Err(refusal));
                } else {
                    let caller = rights.caller(caller);
                    self.input(now, Input::Request { from: client, id, below, caller, request });
                    let last = self.out.replies.last().map(|last| (last.to, last.id));
                    is_answered = last == Some((client, id)) || self.meta.is_under_way(client, id);
                }
                if !is_answered {
                    self.announced.remove(&(client, id));
                }
            }
            FromClient::Stream { id, below, announced, io, data } => {
                let allowed = rights.check_stream(&io, &data);
                if let Err(refusal) = allowed.and_then(|()| self.meta.may_stream(client, &io)) {
                    self.answer((client, id), Err(refusal));
                } else if self.meta.begin_stream(now, (client, id), below, &mut self.out) {
                    self.announced.extend(announced.then_some((client, id)));
                    let stream = StreamRequest { of: (client, id), io, layout: None, data };
                    let is_known = !matches!(self.meta.place_of(&io), Place::Unknown);
                    if is_known && !io.is_change() { self.begin(stream) } else { self.place(now, stream) }
                } else {
                    is_answered = false;
                }
            }
            FromClient::Cancel { id } => self.input(now, Input::Cancel { from: client, id }),
            FromClient::Revoked { number } => self.input(now, Input::Revoked { client, number }),
            FromClient::Blocked { number } => self.input(now, Input::Blocked { client, number }),
            FromClient::Goodbye => self.input(now, Input::Leave { client }),
            FromClient::Groups { id, groups } => {
                if let Some((io, _)) = self.groups.remove(&(client, id)) {
                    let result = Ok(IoDone::Groups(rights.groups(groups)));
                    self.input(now, Input::Done { id: io, result });
                }
            }
        }
        Ok(is_answered)
    }

    /// The client is there. Comes after all that it has said together, and alone when it has only shown that it is alive.
    pub fn heard(&mut self, now: Now, client: ClientId) {
        // Nothing follows from it.
        self.meta.heard(now, client);
    }

    /// Takes what no client has said.
    pub fn input(&mut self, now: Now, input: Input) {
        self.meta.on(now, input, &mut self.out);
        // What it calls for inside, and what comes of that.
        loop {
            if let Some((of, found)) = self.out.placed.pop() {
                self.placed(of, found);
            } else if let Some(connected) = self.out.connected.pop() {
                self.connected(now, connected);
            } else if let Some((client, entered)) = self.out.entered.pop() {
                self.entered(client, entered);
            } else {
                break;
            }
        }
    }

    /// Something has been done with a stream, or given up.
    pub fn end_stream(&mut self, of: (ClientId, RequestId), result: Result<Reply, Errno>) {
        if self.meta.end_stream(of, &result) {
            self.answer(of, result);
        }
    }

    /// What is to be done now, in messages.
    pub fn route(&mut self) -> Routed {
        let mut routed = core::mem::take(&mut self.routed);
        let out = &mut self.out;
        routed.waiting.append(&mut out.waiting);
        routed.peers.append(&mut out.peers);
        routed.remarks.append(&mut out.remarks);
        for (client, errno) in out.refused.drain(..) {
            self.entering.remove(&client);
            let refused = if errno == Errno::ESTALE { Refused::Ended } else { Refused::Session(errno) };
            routed.connected.push((client, Err(refused)));
        }
        let send = &mut routed.send;
        send.extend(out.replies.drain(..).map(|Answered { to, id, result, lease_ms, touched }| {
            let announced = self.announced.remove(&(to, id));
            (to, FromServer::Reply { id, lease_ms, announced, touched, result })
        }));
        send.extend(out.locked.drain(..).map(|(client, wait)| (client, FromServer::Locked { wait })));
        send.extend(out.revocations.drain(..).map(|revocation| {
            (revocation.client, FromServer::Revoke { number: revocation.number, lease: revocation.lease })
        }));
        self.tell_those_who_know(send);
        for client in core::mem::take(&mut self.out.expired) {
            self.groups.retain(|(of, _), _| *of != client);
            self.announced.retain(|(of, _)| *of != client);
            self.attached.remove(&client);
            routed.ended.push(client);
        }
        for (io, asked) in self.out.io.drain(..) {
            if let Io::Groups { of: (client, id), pid } = asked {
                self.groups.insert((client, id), (io, pid));
                send.push((client, FromServer::AskGroups { id, pid }));
            } else {
                routed.io.push((io, asked));
            }
        }
        routed
    }

    /// Recalls and changes are for those who know the inodes.
    fn tell_those_who_know(&mut self, send: &mut Vec<(ClientId, FromServer)>) {
        let (recalls, changed) =
            (core::mem::take(&mut self.out.recalls), core::mem::take(&mut self.out.changed));
        if recalls.is_empty() && changed.is_empty() {
            return;
        }
        for client in self.attached.iter().copied() {
            let knows = |ino| self.meta.knows(client, ino);
            let mut recalled: Vec<_> = recalls.iter().filter(|recall| knows(recall.ino)).cloned().collect();
            if self.meta.root_of(client).is_some() {
                // Names elsewhere are not for it.
                for recall in recalled.iter_mut().filter(|recall| !recall.dir.is_some_and(knows)) {
                    (recall.dir, recall.name) = (None, None);
                }
            }
            if !recalled.is_empty() {
                send.push((client, FromServer::Recall(recalled)));
            }
            let seen: Vec<_> = changed.iter().copied().filter(|ino| knows(*ino)).collect();
            if !seen.is_empty() {
                send.push((client, FromServer::Changed(seen)));
            }
        }
    }

    /// An answer that the machine has no part in.
    fn answer(&mut self, (to, id): (ClientId, RequestId), result: Result<Reply, Errno>) {
        let (announced, touched) = (self.announced.remove(&(to, id)), Touched::default());
        self.routed.send.push((to, FromServer::Reply { id, lease_ms: 0, announced, touched, result }));
    }

    // ---- Sessions

    fn connected(&mut self, now: Now, client: ClientId) {
        let Some(entering) = self.entering.get_mut(&client) else {
            return self.routed.connected.push((client, Ok(Ino::ROOT)));
        };
        // A connection may come while the directory is looked for on behalf of one before.
        if !core::mem::replace(&mut entering.is_connected, true) {
            let path = entering.path.clone();
            self.meta.on(now, Input::Enter { client, path }, &mut self.out);
        }
    }

    fn entered(&mut self, client: ClientId, entered: Result<(), Errno>) {
        if let Some(Entering { is_connected: true, .. }) = self.entering.remove(&client) {
            let root = self.meta.root_of(client).unwrap_or(Ino::ROOT);
            self.routed.connected.push((client, entered.map(|()| root).map_err(Refused::Subtree)));
        }
    }

    // ---- Streams

    /// Asks whether something may be done with a stream.
    fn place(&mut self, now: Now, stream: StreamRequest) {
        let (of, io, length) = (stream.of, stream.io, stream.data.len() as u64);
        self.unplaced.insert(of, stream);
        self.input(now, Input::Place { of, io, length });
    }

    /// It may, or may not. Its client may have closed the file meanwhile.
    fn placed(&mut self, of: (ClientId, RequestId), allowed: Result<(), Errno>) {
        let Some(stream) = self.unplaced.remove(&of) else { return };
        match allowed.and_then(|()| self.meta.may_stream(of.0, &stream.io)) {
            Ok(()) => self.begin(stream),
            Err(errno) => self.end_stream(of, Err(errno)),
        }
    }

    /// Says where the bytes are with which something is to be done.
    fn begin(&mut self, stream: StreamRequest) {
        match self.meta.place_of(&stream.io) {
            // The client does not know what a loss of power has undone.
            Place::Inode => self.end_stream(stream.of, Ok(Reply::Stuffed)),
            Place::Store => self.routed.streams.push(stream),
            Place::Servers(layout) => {
                self.routed.streams.push(StreamRequest { layout: Some(layout), ..stream });
            }
            Place::Unknown => self.end_stream(stream.of, Err(Errno::ESTALE)),
        }
    }
}
