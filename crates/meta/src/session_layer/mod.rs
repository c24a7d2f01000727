//! The session layer of a metadata server: turns clients' messages into inputs of the machine, and
//! its decisions into messages, in the order in which they must be sent. It enforces each client's
//! [`Rights`].
//!
//! A driver passes in received messages ([`SessionLayer::take`]) and completed I/O
//! ([`SessionLayer::input`]), then carries out what [`SessionLayer::route`] returns. The driver
//! owns the connections: at most one per client.

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
    Accesses, ClientId, Errno, FromClient, FromServer, Ino, Layout, Name, Rank, Reply, Request, RequestId,
    StreamIo, Touched,
};

use crate::machine::Meta;
use crate::outbox::{Answered, Input, Io, IoDone, IoId, Now, Outbox, Waiting};
use crate::rank::PeerMessage;
use crate::striping::DataLocation;

/// Inodes recalled per message.
const RECALLS: usize = 512;

/// A metadata machine with its clients' sessions. See the module's description.
#[derive(Debug)]
pub struct SessionLayer {
    meta: Meta,
    /// The machine's decisions that [`Self::route`] has not returned yet.
    out: Outbox,
    routed: Routed,
    /// Connected clients.
    attached: BTreeSet<ClientId>,
    /// Requests that wait for their caller's groups, each with the process id of the caller.
    groups: BTreeMap<(ClientId, RequestId), (IoId, u32)>,
    /// Stream requests whose layout or permission is not known yet.
    unplaced: BTreeMap<(ClientId, RequestId), StreamRequest>,
    /// Requests whose answers are announced if they have payloads.
    announced: BTreeSet<(ClientId, RequestId)>,
    /// Restricted clients whose sessions are about to start or resume.
    entering: BTreeMap<ClientId, Entering>,
}

/// A client that is about to be restricted to a subtree.
#[derive(Debug)]
struct Entering {
    path: Box<[Name]>,
    /// It has asked for a new session, which ends if the directory cannot be entered.
    is_new: bool,
    /// It has a session, and the lookup of the directory is in progress.
    is_connected: bool,
}

/// Actions for the driver.
#[derive(Debug, Default)]
pub struct Routed {
    /// As in [`Outbox::waiting`].
    pub waiting: Vec<(ClientId, RequestId, Waiting)>,
    /// Results of [`SessionLayer::connect`]. On success the driver welcomes and attaches the
    /// client, whose root is this inode; otherwise it refuses the client.
    pub connected: Vec<(ClientId, Result<Ino, Refused>)>,
    /// Ended sessions; nothing more is sent to these clients.
    pub ended: Vec<ClientId>,
    /// Messages to clients, in this order. The driver may drop those to clients that are not
    /// connected.
    ///
    /// The driver fills in free space ([`Reply::StatFs`]) and seals capabilities
    /// ([`Reply::Delegated`]).
    pub send: Vec<(ClientId, FromServer)>,
    /// Messages to other ranks, in this order. The driver may drop those to unreachable ranks.
    pub peers: Vec<(Rank, PeerMessage)>,
    /// As in [`Outbox::warnings`].
    pub warnings: Vec<String>,
    /// Stream requests to execute. Each ends with [`SessionLayer::end_stream`].
    pub streams: Vec<StreamRequest>,
    /// I/O to do. Each ends with an [`Input::Done`]. Contains no [`Io::Groups`].
    pub io: Vec<(IoId, Io)>,
}

/// A client's request on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRequest {
    pub of: (ClientId, RequestId),
    pub io: StreamIo,
    /// The layout of a striped file.
    pub layout: Option<Arc<Layout>>,
    /// The bytes to write.
    pub data: Bytes,
}

/// Why a client gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The client's session has ended. The client drops its state, then connects again for a new
    /// session.
    Ended,
    /// As in [`Outbox::refused`].
    Session(Errno),
    /// The subtree that it is restricted to cannot be entered.
    Subtree(Errno),
}

/// The session of a client that is restricted to a subtree has ended: the client must connect
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrestricted;

impl fmt::Display for Unrestricted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the session of a client that is restricted to a subtree has ended")
    }
}

impl core::error::Error for Unrestricted {}

impl SessionLayer {
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

    /// Starts or resumes a client's session; the result appears in [`Routed::connected`]. `leases`:
    /// as in [`Input::Connect`]. A client's subtree is looked up each time.
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
            self.entering.entry(client).or_insert(Entering { path, is_new: !resumes, is_connected: false });
        }
        self.input(now, Input::Connect { client, leases, resumes });
        self.input(now, Input::Accesses { client, accesses });
    }

    /// Attaches a connected client, and sends it outstanding recalls and group queries. A new
    /// connection replaces an old one.
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

    /// Detaches a client that cannot be reached. Its requests continue.
    pub fn detach(&mut self, client: ClientId) {
        self.attached.remove(&client);
    }

    /// Handles a client's message. Returns false if the message is a request that will not be
    /// answered, as a late duplicate.
    ///
    /// # Errors
    /// The driver must take nothing more from this connection.
    pub fn take(
        &mut self,
        now: Now,
        client: ClientId,
        rights: &Rights,
        message: FromClient,
    ) -> Result<bool, Unrestricted> {
        let mut is_answered = true;
        match message {
            FromClient::Request { id, below, follows, announced, caller, request } => {
                if rights.subtree.is_some() && self.meta.root_of(client).is_none() {
                    return Err(Unrestricted);
                }
                self.announced.extend(announced.then_some((client, id)));
                if let Err(refusal) = rights.check(&request) {
                    self.answer((client, id), Err(refusal));
                } else if follows.len() > Request::MAX_FOLLOWED {
                    self.answer((client, id), Err(Errno::EINVAL));
                } else {
                    let caller = rights.caller(caller);
                    self.input(now, Input::Request { from: client, id, below, follows, caller, request });
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
                    let is_known = !matches!(self.meta.place_of(&io), DataLocation::Unknown);
                    if is_known && !io.op.is_change() { self.begin(stream) } else { self.place(now, stream) }
                } else {
                    is_answered = false;
                }
            }
            FromClient::Cancel { id } => self.input(now, Input::Cancel { from: client, id }),
            FromClient::Revoked { number } => self.input(now, Input::Revoked { client, number }),
            FromClient::Blocked { number } => self.input(now, Input::Blocked { client, number }),
            FromClient::Clock { time } if !rights.read_only => self.meta.note_change_time(now.time, time),
            FromClient::Clock { .. } => {}
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

    /// Records that a client is alive. The driver calls it after a batch of messages of the client,
    /// or only for a sign of life.
    pub fn heard(&mut self, now: Now, client: ClientId) {
        // Produces no action.
        self.meta.heard(now, client);
    }

    /// Passes the machine an input that comes from no client.
    pub fn input(&mut self, now: Now, input: Input) {
        self.meta.on(now, input, &mut self.out);
        // Handles the results that concern this layer, and their consequences.
        loop {
            if let Some((of, found)) = self.out.placed.pop() {
                self.placed(of, found);
            } else if let Some(connected) = self.out.connected.pop() {
                self.connected(now, connected);
            } else if let Some((client, entered)) = self.out.entered.pop() {
                self.entered(now, client, entered);
            } else {
                break;
            }
        }
    }

    /// Completes a stream request, or fails it.
    pub fn end_stream(&mut self, of: (ClientId, RequestId), result: Result<Reply, Errno>) {
        if self.meta.end_stream(of, &result) {
            self.answer(of, result);
        }
    }

    /// Returns the pending actions as messages.
    pub fn route(&mut self) -> Routed {
        let mut routed = core::mem::take(&mut self.routed);
        let out = &mut self.out;
        routed.waiting.append(&mut out.waiting);
        routed.peers.append(&mut out.peers);
        routed.warnings.append(&mut out.warnings);
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
        self.send_recalls(send);
        for client in core::mem::take(&mut self.out.expired) {
            self.groups.retain(|(of, _), _| *of != client);
            self.announced.retain(|(of, _)| *of != client);
            self.attached.remove(&client);
            routed.ended.push(client);
        }
        for (io, operation) in self.out.io.drain(..) {
            if let Io::Groups { of: (client, id), pid } = operation {
                self.groups.insert((client, id), (io, pid));
                send.push((client, FromServer::AskGroups { id, pid }));
            } else {
                routed.io.push((io, operation));
            }
        }
        routed
    }

    /// Sends recalls and change notifications to the clients that know the inodes.
    fn send_recalls(&mut self, send: &mut Vec<(ClientId, FromServer)>) {
        let (recalls, changed) =
            (core::mem::take(&mut self.out.recalls), core::mem::take(&mut self.out.changed));
        if recalls.is_empty() && changed.is_empty() {
            return;
        }
        for client in self.attached.iter().copied() {
            let knows = |ino| self.meta.knows(client, ino);
            let mut recalled: Vec<_> = recalls.iter().filter(|recall| knows(recall.ino)).cloned().collect();
            if self.meta.root_of(client).is_some() {
                // Names outside its subtree are not disclosed to it.
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

    /// Answers a request without the machine.
    fn answer(&mut self, (to, id): (ClientId, RequestId), result: Result<Reply, Errno>) {
        let (announced, touched) = (self.announced.remove(&(to, id)), Touched::default());
        self.routed.send.push((to, FromServer::Reply { id, lease_ms: 0, announced, touched, result }));
    }

    // ---- Sessions

    fn connected(&mut self, now: Now, client: ClientId) {
        let Some(entering) = self.entering.get_mut(&client) else {
            return self.routed.connected.push((client, Ok(Ino::ROOT)));
        };
        // A connection may arrive while the lookup for an earlier one is in progress.
        if !core::mem::replace(&mut entering.is_connected, true) {
            let path = entering.path.clone();
            self.meta.on(now, Input::Enter { client, path }, &mut self.out);
        }
    }

    fn entered(&mut self, now: Now, client: ClientId, entered: Result<(), Errno>) {
        if let Some(Entering { is_connected: true, is_new, .. }) = self.entering.remove(&client) {
            let root = self.meta.root_of(client).unwrap_or(Ino::ROOT);
            self.routed.connected.push((client, entered.map(|()| root).map_err(Refused::Subtree)));
            if entered.is_err() && is_new {
                self.meta.on(now, Input::Leave { client }, &mut self.out);
            }
        }
    }

    // ---- Streams

    /// Asks the machine whether a stream request is allowed and where the bytes are.
    fn place(&mut self, now: Now, stream: StreamRequest) {
        let (of, io) = (stream.of, stream.io);
        self.unplaced.insert(of, stream);
        self.input(now, Input::Place { of, io });
    }

    /// Continues a stream request with the machine's verdict. Its client may have closed the file
    /// meanwhile.
    fn placed(&mut self, of: (ClientId, RequestId), allowed: Result<(), Errno>) {
        let Some(stream) = self.unplaced.remove(&of) else { return };
        match allowed.and_then(|()| self.meta.may_stream(of.0, &stream.io)) {
            Ok(()) => self.begin(stream),
            Err(errno) => self.end_stream(of, Err(errno)),
        }
    }

    /// Starts a stream request where its bytes are.
    fn begin(&mut self, stream: StreamRequest) {
        match self.meta.place_of(&stream.io) {
            // The client does not know that a power failure has undone the unstuffing.
            DataLocation::Inode => self.end_stream(stream.of, Ok(Reply::Stuffed)),
            DataLocation::Store => self.routed.streams.push(stream),
            DataLocation::Servers(layout) => {
                self.routed.streams.push(StreamRequest { layout: Some(layout), ..stream });
            }
            DataLocation::Unknown => self.end_stream(stream.of, Err(Errno::ESTALE)),
        }
    }
}
