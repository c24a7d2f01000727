//! The metadata machine of a server, and who is connected to it.
//!
//! The thread that has received a batch of messages runs the machine for it, does the I/O that follows, and sends what is
//! answered. Only what takes as long as a disk's sync goes to the background, for others share the thread.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use espalier_client::Answer;
use espalier_meta::{Answered, Connected, Input, Io, IoDone, IoId, Meta, Now, Outbox};
use espalier_net::{NetError, Sender};
use espalier_proto::{
    ClientId, Errno, FromClient, FromServer, Ino, Layout, Rank, Reply, RequestId, StreamIo, Touched,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use super::delegate::Sealer;
use super::peers::Link;
use super::rights::Rights;
use super::striped::{Striped, Striping};
use super::subtree::{self, Subtree};
use crate::capability::Holder;
use crate::clock;
use crate::data::Striper;
use crate::disk::Disk;
use crate::errands::{Background, Errands};
use crate::watch::{Kind, MachineFigures, Span, Stage, Turn, Watch, exposition};

/// A server's machine. See the module's description.
pub struct Server {
    inner: Mutex<Inner>,
    pub errands: Errands,
    pub(super) striped: Option<Striped>,
    /// Of capabilities; `None`: clients do not talk to data servers.
    pub(super) sealer: Option<Sealer>,
}

pub(super) struct Inner {
    pub(super) meta: Meta,
    pub(super) peers: HashMap<ClientId, Peer>,
    /// Of requests that have not been answered.
    spans: HashMap<(ClientId, RequestId), Span>,
    /// Of requests that wait to be told their callers' groups.
    groups: HashMap<(ClientId, RequestId), (IoId, u32)>,
    /// Clients whose sessions are about to begin.
    connecting: HashMap<ClientId, oneshot::Sender<Result<bool, Errno>>>,
    /// What clients have asked to be done with striped files.
    pub(super) striping: HashMap<(ClientId, RequestId), Striping>,
    /// What the machine has asked to be done with striped files.
    pub(super) asking: HashMap<IoId, Striping>,
    /// Those of which it is not known yet where the bytes are.
    pub(super) unplaced: Vec<(Ino, Stream)>,
    /// Clients that are about to be restricted.
    entering: HashMap<ClientId, oneshot::Sender<Result<(), Errno>>>,
    /// Other ranks that are connected.
    pub(super) ranks: BTreeMap<Rank, Link>,
    pub(super) next_connection: u64,
}

/// A connected client.
pub(super) struct Peer {
    connection: u64,
    pub(super) holder: Holder,
    pub(super) sender: Sender<FromServer>,
}

/// What a connection knows of its client.
#[derive(Clone, Debug)]
pub struct Origin {
    pub client: ClientId,
    pub rights: Arc<Rights>,
    /// Tells one connection of the client from the next.
    pub connection: u64,
}

pub(super) type Locked<'a> = MutexGuard<'a, Inner>;

/// What follows from inputs.
pub(super) struct Work {
    out: Outbox,
    pub(super) send: Vec<(ClientId, FromServer)>,
    pub(super) streams: Vec<Stream>,
    turn: Turn,
}

/// Something to be done with a stream, for a request.
pub(super) struct Stream {
    pub of: (ClientId, RequestId),
    pub io: StreamIo,
    /// Of the file, if it is a striped one.
    pub layout: Option<Arc<Layout>>,
    pub data: Vec<u8>,
    pub span: Span,
}

impl Server {
    /// `striper`: of the data servers, if there are any, and where to run what is done with them.
    pub fn new(
        meta: Meta,
        disk: Arc<Disk>,
        watch: Watch,
        striper: Option<(Striper, Handle)>,
        sealer: Option<Sealer>,
    ) -> (Arc<Self>, Background) {
        let (errands, background) = Errands::new(disk, watch);
        let inner = Inner {
            meta,
            peers: HashMap::new(),
            spans: HashMap::new(),
            groups: HashMap::new(),
            connecting: HashMap::new(),
            striping: HashMap::new(),
            asking: HashMap::new(),
            unplaced: Vec::new(),
            entering: HashMap::new(),
            ranks: BTreeMap::new(),
            next_connection: 0,
        };
        let server = Arc::new_cyclic(|server| {
            let striped = striper.map(|(striper, runtime)| Striped::new(striper, runtime, server));
            Self { inner: Mutex::new(inner), errands, striped, sealer }
        });
        (server, background)
    }

    /// Begins a client's session, or goes on with it: then `true` comes. The machine may refuse it.
    pub fn connect(&self, client: ClientId, leases: bool) -> oneshot::Receiver<Result<bool, Errno>> {
        let (tell, told) = oneshot::channel();
        if let Ok((mut inner, turn)) = self.turn() {
            let mut work = Work::new(turn);
            inner.connecting.insert(client, tell);
            self.input(&mut inner, &mut work, 0, Input::Connect { client, leases });
            self.settle(inner, work);
        }
        told
    }

    /// Restricts a client to a subtree. It is looked for at each connection.
    pub fn restrict(&self, client: ClientId, subtree: &Subtree) -> oneshot::Receiver<Result<(), Errno>> {
        let (tell, told) = oneshot::channel();
        if let Ok((mut inner, turn)) = self.turn() {
            let mut work = Work::new(turn);
            inner.entering.insert(client, tell);
            self.input(&mut inner, &mut work, 0, Input::Enter { client, path: subtree.path().into() });
            self.settle(inner, work);
        }
        told
    }

    /// From now on the client is reached by this connection; the number of it.
    pub fn attach(&self, client: ClientId, holder: Holder, sender: Sender<FromServer>) -> u64 {
        let Ok(mut inner) = self.lock() else { return 0 };
        inner.next_connection += 1;
        let connection = inner.next_connection;
        let waiting: Vec<_> = inner
            .groups
            .iter()
            .filter(|((of, _), _)| *of == client)
            .map(|((_, id), (_, pid))| FromServer::AskGroups { id: *id, pid: *pid })
            .collect();
        let old = inner.peers.insert(client, Peer { connection, holder, sender: sender.clone() });
        drop(inner);
        if let Some(old) = old {
            old.sender.end();
        }
        for ask in waiting {
            tell(&sender, ask);
        }
        connection
    }

    /// A connection has ended.
    pub fn detach(&self, origin: &Origin) {
        if let Ok(mut inner) = self.lock()
            && inner.peers.get(&origin.client).is_some_and(|peer| peer.connection == origin.connection)
        {
            inner.peers.remove(&origin.client);
            // What is still under way is answered to the next connection, and not counted.
            inner.spans.retain(|(client, _), _| *client != origin.client);
        }
    }

    /// Clients that are connected.
    pub fn connections(&self) -> usize {
        self.lock().map_or(0, |inner| inner.peers.len())
    }

    /// Takes what has come from a client.
    ///
    /// # Errors
    /// Why nothing is taken from it any more.
    pub fn received(&self, origin: &Origin, batch: &mut Vec<FromClient>) -> Result<(), &'static str> {
        let client = origin.client;
        let Ok((mut inner, turn)) = self.turn() else { return Err("the server has failed") };
        let mut work = Work::new(turn);
        let mut left = batch.len();
        for message in batch.drain(..) {
            left -= 1;
            match message {
                FromClient::Request { id, below, caller, mut request } => {
                    if let Some(root) = inner.meta.root_of(client) {
                        subtree::take(root, &mut request);
                    } else if origin.rights.subtree.is_some() {
                        return Err("the session of a client that is restricted to a subtree has ended");
                    }
                    if let Err(refusal) = origin.rights.check(&request) {
                        work.send.push((client, plain(id, Err(refusal))));
                        continue;
                    }
                    let (kind, ino) = Kind::of_request(&request);
                    let caller = origin.rights.caller(caller);
                    inner.spans.insert((client, id), Span::start(kind, caller.pid, ino, turn));
                    let input = Input::Request { from: client, id, below, caller, request };
                    self.input(&mut inner, &mut work, left, input);
                    // A copy of what has been answered, for instance, will not be.
                    let is_answered =
                        work.out.replies.last().is_some_and(|last| (last.to, last.id) == (client, id));
                    if !is_answered && !inner.meta.is_under_way(client, id) {
                        inner.spans.remove(&(client, id));
                    }
                }
                FromClient::Stream { id, below, io, data } => {
                    let allowed = origin.rights.check_stream(&io, &data);
                    if let Err(refusal) = allowed.and_then(|()| inner.meta.may_stream(client, &io)) {
                        work.send.push((client, plain(id, Err(refusal))));
                        continue;
                    }
                    if !inner.meta.begin_stream(now(left), (client, id), below, &mut work.out) {
                        continue;
                    }
                    let (kind, ino) = Kind::of_stream(&io);
                    let span = Span::start(kind, 0, ino, turn);
                    let stream = Stream { of: (client, id), io, layout: None, data, span };
                    self.place(&mut inner, &mut work, stream);
                }
                FromClient::Cancel { id } => {
                    self.give_up(&mut inner, &mut work, (client, id));
                    self.input(&mut inner, &mut work, left, Input::Cancel { from: client, id });
                }
                FromClient::Revoked { number } => {
                    self.input(&mut inner, &mut work, left, Input::Revoked { client, number });
                }
                FromClient::Goodbye => self.input(&mut inner, &mut work, left, Input::Leave { client }),
                FromClient::Groups { id, groups } => {
                    if let Some((io, _)) = inner.groups.remove(&(client, id)) {
                        let input =
                            Input::Done { id: io, result: Ok(IoDone::Groups(origin.rights.groups(groups))) };
                        self.input(&mut inner, &mut work, left, input);
                    }
                }
            }
        }
        // What came last may not have been for the machine, which waits for the end of the batch to flush.
        self.input(&mut inner, &mut work, 0, Input::Heard { client });
        self.settle(inner, work);
        Ok(())
    }

    /// Comes once a second: tells the time and the space left.
    pub fn tick(&self) {
        self.measure_space();
        match self.errands.disk.free_space() {
            Ok(free) => self.feed(Input::Space { free }),
            Err(error) => tracing::warn!(%error, "the store does not tell its free space"),
        }
        self.feed(Input::Tick);
        self.errands.watch.tick();
    }

    /// Does what is to be done in the background, until [`Errands::stop`].
    pub fn run_background(&self, background: Background) {
        self.errands.run(background, |id, result| self.feed(Input::Done { id, result }));
    }

    /// Writes everything out; until that is done, or has failed for good, or the time is over.
    pub fn drain(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            self.feed(Input::Drain);
            match self.lock() {
                Err(_) => return false,
                Ok(inner) if inner.meta.is_quiet() => return inner.meta.broken().is_none(),
                Ok(_) if Instant::now() > deadline => return false,
                Ok(_) => {}
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Inodes in use, and what is wrong, if anything is.
    pub fn state(&self) -> (u64, Option<Errno>) {
        self.lock().map_or((0, Some(Errno::EIO)), |inner| (inner.meta.files(), inner.meta.failure()))
    }

    pub fn figures(&self) -> MachineFigures {
        let Ok(inner) = self.lock() else { return MachineFigures::default() };
        let now = Instant::now();
        let longest = inner.spans.values().map(|span| now.saturating_duration_since(span.mark())).max();
        MachineFigures::of(&inner.meta, inner.spans.len(), longest.unwrap_or_default())
    }

    /// What the server has done since its start, for Prometheus.
    pub fn exposition(&self) -> String {
        let (totals, (files, broken)) = (self.errands.watch.totals(), self.state());
        let figures = self.errands.watch.figures(&totals, self.figures());
        exposition(totals, figures, files, broken.is_some())
    }

    pub fn path_of(&self, ino: Ino) -> Option<String> {
        let path = self.lock().ok()?.meta.path_of(ino)?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }

    pub(super) fn feed(&self, input: Input) {
        self.with_machine(|_| [input]);
    }

    /// Gives the machine what comes of having it.
    pub(super) fn with_machine<I>(&self, inputs: impl FnOnce(&mut Inner) -> I)
    where
        I: IntoIterator<Item = Input, IntoIter: ExactSizeIterator>,
    {
        let Ok((mut inner, turn)) = self.turn() else { return };
        let mut work = Work::new(turn);
        let inputs = inputs(&mut inner).into_iter();
        let mut left = inputs.len();
        for input in inputs {
            left -= 1;
            self.input(&mut inner, &mut work, left, input);
        }
        self.settle(inner, work);
    }

    fn turn(&self) -> Result<(Locked<'_>, Turn), Errno> {
        let asked = Instant::now();
        let inner = self.lock()?;
        Ok((inner, Turn { asked, began: Instant::now() }))
    }

    /// Fails after a thread has panicked while it held the machine: what it holds cannot be trusted any more.
    pub(super) fn lock(&self) -> Result<Locked<'_>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }

    /// `queued`: inputs that will follow before any I/O is done.
    pub(super) fn input(&self, inner: &mut Inner, work: &mut Work, queued: usize, input: Input) {
        inner.meta.on(now(queued), input, &mut work.out);
    }

    /// Does all that follows, and what follows from that, until nothing is left to do.
    fn settle<'a>(&'a self, mut inner: Locked<'a>, mut work: Work) {
        loop {
            self.route(&mut inner, &mut work);
            let io = std::mem::take(&mut work.out.io);
            // In the order in which the machine has decided: a lease must be told of before it is revoked.
            let senders = queue(&inner, work.send.drain(..));
            let ranks = inner.tell_ranks(work.out.peers.drain(..));
            drop(inner);
            // It fails with the connection, of which its own task hears.
            for sender in senders {
                let _ = sender.flush();
            }
            for sender in ranks {
                let _ = sender.flush();
            }
            if !work.streams.is_empty() {
                block_in_place(|| work.streams.drain(..).for_each(|stream| self.stream(stream)));
            }
            let done: Vec<_> = io.into_iter().filter_map(|(id, io)| self.execute(id, io)).collect();
            if done.is_empty() {
                return;
            }
            let Ok(locked) = self.turn() else { return };
            (inner, work.turn) = locked;
            let mut left = done.len();
            for (id, result) in done {
                left -= 1;
                self.input(&mut inner, &mut work, left, Input::Done { id, result });
            }
        }
    }

    /// Puts what the machine has decided into messages.
    fn route(&self, inner: &mut Inner, work: &mut Work) {
        let out = &mut work.out;
        for (client, id, waiting) in out.waiting.drain(..) {
            if let Some(span) = inner.spans.get_mut(&(client, id)) {
                span.resume(work.turn);
                span.turn_to(Stage::from(waiting), Instant::now());
            }
        }
        for Answered { to, id, result, lease_ms, touched } in std::mem::take(&mut out.replies) {
            if let Some(mut span) = inner.spans.remove(&(to, id)) {
                span.resume(work.turn);
                span.turn_to(Stage::Work, Instant::now());
                self.errands.watch.record(&span, result.is_err());
            }
            if matches!(result, Ok(Reply::StatFs(_))) && self.measure_then(to, id, lease_ms, &result) {
                continue;
            }
            let result = result.and_then(|reply| match reply {
                Reply::Delegated(given) => Ok(Reply::Delegated(self.sealed(inner, to, given))),
                reply => self.complete(reply),
            });
            work.send.push((to, FromServer::Reply { id, lease_ms, touched, result }));
        }
        let out = &mut work.out;
        for (ino, found) in std::mem::take(&mut out.placed) {
            self.placed(inner, work, ino, found);
        }
        let out = &mut work.out;
        let locked = out.locked.drain(..).map(|(client, wait)| (client, FromServer::Locked { wait }));
        work.send.extend(locked);
        for revocation in out.revocations.drain(..) {
            let message = FromServer::Revoke { number: revocation.number, lease: revocation.lease };
            work.send.push((revocation.client, message));
        }
        let (recalls, changed) = (std::mem::take(&mut out.recalls), std::mem::take(&mut out.changed));
        let is_told = !recalls.is_empty() || !changed.is_empty();
        for client in inner.peers.keys().copied().filter(|_| is_told) {
            let knows = |ino| inner.meta.knows(client, ino);
            let recalled: Vec<_> = recalls.iter().filter(|recall| knows(recall.ino)).cloned().collect();
            if !recalled.is_empty() {
                work.send.push((client, FromServer::Recall(recalled)));
            }
            let seen: Vec<_> = changed.iter().filter(|ino| knows(**ino)).copied().collect();
            if !seen.is_empty() {
                work.send.push((client, FromServer::Changed(seen)));
            }
        }
        for (client, message) in &mut work.send {
            if let Some(root) = inner.meta.root_of(*client) {
                subtree::give(&inner.meta, *client, root, message);
            }
        }
        for (client, entered) in out.entered.drain(..) {
            if let Some(tell) = inner.entering.remove(&client) {
                let _ = tell.send(entered);
            }
        }
        for Connected { client, resumed } in out.connected.drain(..) {
            if let Some(tell) = inner.connecting.remove(&client) {
                let _ = tell.send(Ok(resumed));
            }
        }
        for (client, errno) in out.refused.drain(..) {
            if let Some(tell) = inner.connecting.remove(&client) {
                let _ = tell.send(Err(errno));
            }
        }
        for client in out.expired.drain(..) {
            tracing::info!(
                client = client.0,
                "a session has ended: its client has left, or has not been heard of"
            );
            inner.groups.retain(|(of, _), _| *of != client);
            if let Some(peer) = inner.peers.remove(&client) {
                peer.sender.end();
            }
        }
        for (id, io) in &out.io {
            if let Io::Groups { of: (client, request), pid } = io {
                inner.groups.insert((*client, *request), (*id, *pid));
                work.send.push((*client, FromServer::AskGroups { id: *request, pid: *pid }));
            }
        }
        out.io.retain(|(_, io)| !matches!(io, Io::Groups { .. }));
    }

    /// Adds what the machine does not know.
    pub(super) fn complete(&self, reply: Reply) -> Result<Reply, Errno> {
        match reply {
            Reply::StatFs(mut capacity) => {
                capacity.space = self.errands.disk.space()?;
                self.add_space(&mut capacity.space);
                Ok(Reply::StatFs(capacity))
            }
            reply => Ok(reply),
        }
    }

    fn execute(&self, id: IoId, io: Io) -> Option<(IoId, Result<IoDone, Errno>)> {
        match io {
            // Answers wait for it, and it only goes to the page cache.
            Io::Journal { sync: false, .. } => Some((id, self.errands.timed(io))),
            Io::Journal { sync: true, .. } | Io::Sync => {
                self.errands.put_off(id, io);
                None
            }
            Io::Admit { below, live } => {
                self.admit(id, below, live);
                None
            }
            Io::Stream(call, layouts) if !layouts.is_empty() => self.ask_data_servers(id, call, layouts),
            // It may take as long as the disk likes.
            io @ Io::Stream(..) => block_in_place(|| self.errands.execute(id, io)),
            io => self.errands.execute(id, io),
        }
    }

    fn stream(&self, Stream { of, io, layout, data, mut span }: Stream) {
        let disk = &self.errands.disk;
        span.turn_to(Stage::Disk, Instant::now());
        if let Some(layout) = layout {
            return self.stripe(of, &layout, io, data, span);
        }
        let result = match io {
            StreamIo::Read { ino, offset, size } => {
                let mut buffer = Vec::new();
                disk.read_stream(ino, offset, size, &mut buffer).map(|read| read.len()).map(|read| {
                    buffer.truncate(read);
                    Reply::Bytes(buffer)
                })
            }
            io => disk.stream_io(io, &data).and_then(|answer| match answer {
                Answer::Written(written) => Ok(Reply::Written(written)),
                Answer::Offset(offset) => Ok(Reply::Offset(offset)),
                Answer::Done => Ok(Reply::Done),
                _ => Err(Errno::EIO),
            }),
        };
        self.streamed(of, span, result);
    }

    pub(super) fn streamed(
        &self,
        (client, id): (ClientId, RequestId),
        mut span: Span,
        result: Result<Reply, Errno>,
    ) {
        span.turn_to(Stage::Work, Instant::now());
        self.errands.watch.record(&span, result.is_err());
        let Ok(mut inner) = self.lock() else { return };
        let told = inner.meta.end_stream((client, id), &result);
        let sender = inner.peers.get(&client).filter(|_| told).map(|peer| peer.sender.clone());
        drop(inner);
        if let Some(sender) = sender {
            tell(&sender, plain(id, result));
        }
    }
}

impl Work {
    fn new(turn: Turn) -> Self {
        Self { out: Outbox::default(), send: Vec::new(), streams: Vec::new(), turn }
    }
}

/// `queued`: as in [`Now`].
fn now(queued: usize) -> Now {
    Now { time: clock::now(), uptime_ms: clock::uptime_ms(), queued }
}

/// An answer that the machine has no part in.
pub(super) fn plain(id: RequestId, result: Result<Reply, Errno>) -> FromServer {
    FromServer::Reply { id, lease_ms: 0, touched: Touched::default(), result }
}

/// What a connection does not take any more the client asks for again when it has another.
pub(super) fn tell(sender: &Sender<FromServer>, message: FromServer) {
    if let Err(error) = sender.send(message) {
        tracing::debug!(%error, "a message to a client was not sent");
    }
}

/// Queues messages for those who are connected; others are told when they are, or need not know. Returns the connections that
/// have something to send.
fn queue(inner: &Inner, messages: impl Iterator<Item = (ClientId, FromServer)>) -> Vec<Sender<FromServer>> {
    let mut clients: Vec<ClientId> = Vec::new();
    for (client, message) in messages {
        let Some(peer) = inner.peers.get(&client) else { continue };
        let id = if let FromServer::Reply { id, .. } = &message { Some(*id) } else { None };
        match (peer.sender.queue(message), id) {
            (Err(NetError::TooLong { .. }), Some(id)) => {
                let _ = peer.sender.queue(plain(id, Err(Errno::E2BIG)));
            }
            (Err(error), _) => {
                tracing::debug!(%error, client = client.0, "a message to a client was not sent")
            }
            (Ok(()), _) => {}
        }
        if !clients.contains(&client) {
            clients.push(client);
        }
    }
    clients.iter().filter_map(|client| inner.peers.get(client)).map(|peer| peer.sender.clone()).collect()
}
