//! The driver of a server's metadata machine, and its connected clients.
//!
//! The thread that has received a batch of messages runs the machine for it, executes the resulting
//! I/O, and sends the replies. Only I/O that may wait for the disk runs in the background, since
//! others share the thread.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use espalier_meta::{
    Cause, Input, Io, IoDone, IoId, LoadReport, Meta, Now, Refused, Rights, Routed, SessionLayer,
};
use espalier_net::{Identity, NetError, Sender};
use espalier_proto::{
    Accesses, ClientId, Errno, FromClient, FromServer, Ino, Rank, Reply, RequestId, Touched,
};
use espalier_store::Store;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use super::access::Access;
use super::connection::Ended;
use super::delegate::Sealer;
use super::peers::PeerConnection;
use super::streams::UnderWay;
use super::striped::Striping;
use super::term::ServeTerm;
use crate::background_work::{Background, BackgroundWork};
use crate::capability::Holder;
use crate::clock;
use crate::data::Striper;
use crate::disk::Disk;
use crate::tracer::{Id, NodeId, Tracer};
use crate::watch::{CriticalSection, Kind, MachineFigures, Span, Stage, Watch, exposition};

/// The driver of a metadata machine. See the module's documentation.
pub struct Server {
    inner: Mutex<Inner>,
    pub background_work: BackgroundWork,
    /// Access to the data servers, if there are any.
    pub(super) striper: Option<Striper>,
    /// Runs background tasks.
    pub(super) runtime: Handle,
    pub(super) own_handle: Weak<Self>,
    pub(super) sealer: Sealer,
    pub(super) term: Arc<ServeTerm>,
}

/// The needs of a machine's driver besides the machine and its disk.
pub struct Equipment {
    pub watch: Watch,
    pub tracer: Arc<Tracer>,
    pub striper: Option<Striper>,
    pub sealer: Sealer,
    pub runtime: Handle,
    pub term: ServeTerm,
}

pub(super) struct Inner {
    pub(super) session_layer: SessionLayer,
    pub(super) peers: HashMap<ClientId, Peer>,
    /// Operations of unanswered requests.
    spans: HashMap<(ClientId, RequestId), Span>,
    /// Clients that wait for the start of their sessions.
    connecting: HashMap<ClientId, oneshot::Sender<Result<Ino, Refused>>>,
    /// Clients' operations on striped files.
    pub(super) striping: HashMap<(ClientId, RequestId), Striping>,
    /// The machine's own operations on striped files.
    pub(super) asking: HashMap<IoId, Striping>,
    /// Connected ranks.
    pub(super) ranks: BTreeMap<Rank, PeerConnection>,
    pub(super) next_connection: u64,
    term: Arc<ServeTerm>,
}

/// A connected client.
pub(super) struct Peer {
    connection: u64,
    pub(super) guest: Guest,
    pub(super) sender: Sender<FromServer>,
    pub(super) under_way: Arc<UnderWay>,
}

/// The identity of a connecting client.
pub struct Guest {
    pub identity: Option<Identity>,
    pub holder: Holder,
    pub rights: Rights,
    /// The client's place in traces.
    pub place: NodeId,
}

/// A connection's view of its client.
#[derive(Clone, Debug)]
pub struct Origin {
    pub client: ClientId,
    pub rights: Arc<Rights>,
    /// Distinguishes successive connections of the client.
    pub connection: u64,
    pub under_way: Arc<UnderWay>,
}

pub(super) type Locked<'a> = MutexGuard<'a, Inner>;

impl Server {
    pub fn new(meta: Meta, disk: Arc<Disk>, equipment: Equipment) -> (Arc<Self>, Background) {
        let Equipment { watch, tracer, striper, sealer, runtime, term } = equipment;
        let term = Arc::new(term);
        let (background_work, background) = BackgroundWork::new(disk, watch, tracer);
        let inner = Inner {
            session_layer: SessionLayer::new(meta),
            peers: HashMap::new(),
            spans: HashMap::new(),
            connecting: HashMap::new(),
            striping: HashMap::new(),
            asking: HashMap::new(),
            ranks: BTreeMap::new(),
            next_connection: 0,
            term: Arc::clone(&term),
        };
        let inner = Mutex::new(inner);
        let server = Arc::new_cyclic(|own_handle| Self {
            inner,
            background_work,
            striper,
            sealer,
            runtime,
            own_handle: own_handle.clone(),
            term,
        });
        (server, background)
    }

    /// Starts or resumes a client's session; returns the client's root directory. The machine may
    /// refuse it.
    pub fn connect(
        &self,
        client: ClientId,
        (leases, resumes): (bool, bool),
        accesses: Accesses,
        rights: &Rights,
    ) -> oneshot::Receiver<Result<Ino, Refused>> {
        let (decide, decision) = oneshot::channel();
        if let Ok((mut inner, section)) = self.enter() {
            inner.connecting.insert(client, decide);
            inner.session_layer.connect(now(0), client, (leases, resumes), accesses, rights);
            self.carry_out(inner, section);
        }
        decision
    }

    /// Makes this connection the client's present one.
    ///
    /// # Errors
    /// The server has failed.
    pub fn attach(
        &self,
        client: ClientId,
        guest: Guest,
        sender: Sender<FromServer>,
    ) -> Result<Origin, Errno> {
        let (mut inner, section) = self.enter()?;
        inner.next_connection += 1;
        let (connection, rights) = (inner.next_connection, Arc::new(guest.rights.clone()));
        let under_way = Arc::<UnderWay>::default();
        let peer = Peer { connection, guest, sender, under_way: Arc::clone(&under_way) };
        if let Some(old) = inner.peers.insert(client, peer) {
            old.sender.end();
        }
        inner.session_layer.attach(client);
        self.carry_out(inner, section);
        Ok(Origin { client, rights, connection, under_way })
    }

    /// Handles the end of a connection.
    pub fn detach(&self, origin: &Origin) {
        if let Ok(mut inner) = self.lock()
            && inner.peers.get(&origin.client).is_some_and(|peer| peer.connection == origin.connection)
        {
            inner.peers.remove(&origin.client);
            inner.session_layer.detach(origin.client);
            // Pending requests are answered over the next connection and not counted.
            inner.spans.retain(|(client, _), _| *client != origin.client);
        }
    }

    /// Enforces the access rights: a client with changed rights must reconnect, and the session of
    /// a client without access ends. `only`: restricts this to one client.
    pub fn enforce(&self, access: &Access, only: Option<ClientId>) {
        let Ok((mut inner, section)) = self.enter() else { return };
        let affected: Vec<_> = inner
            .peers
            .iter()
            .filter(|(client, _)| only.is_none_or(|only| only == **client))
            .map(|(client, peer)| (*client, access.of(peer.guest.identity.as_ref()), &peer.guest.rights))
            .filter(|(_, may, rights)| may.as_ref() != Ok(rights))
            .map(|(client, may, _)| (client, may.is_err()))
            .collect();
        for (client, is_refused) in affected {
            if let Some(peer) = inner.peers.remove(&client) {
                peer.sender.end();
            }
            inner.session_layer.detach(client);
            inner.spans.retain(|(of, _), _| *of != client);
            if is_refused {
                tracing::warn!(client = client.0, "a client has lost its access: its session ends");
                inner.session_layer.input(now(0), Input::Leave { client });
            }
        }
        self.carry_out(inner, section);
    }

    /// Number of connected clients.
    pub fn connections(&self) -> usize {
        self.lock().map_or(0, |inner| inner.peers.len())
    }

    /// Processes messages of a client; an empty batch is a sign of life.
    ///
    /// # Errors
    /// Why nothing more is received from the client.
    pub fn received(&self, origin: &Origin, batch: impl ExactSizeIterator<Item = FromClient>) -> Ended {
        if self.term.is_over() {
            return Err("this server may not answer for the rank".into());
        }
        let client = origin.client;
        let (mut inner, section) = self.enter().map_err(|_| "the server has failed")?;
        if inner.peers.get(&client).is_none_or(|peer| peer.connection != origin.connection) {
            return Err("the client has another connection, or has lost its access".into());
        }
        // A batch is small: all its messages get the same time.
        let (mut now, mut taken) = (now(batch.len()), Ok(()));
        for message in batch {
            now.queued -= 1;
            let mut request = None;
            match &message {
                FromClient::Request { id, caller, request: requested, .. } => {
                    let kind = requested.kind();
                    self.begin_span(&inner, (client, *id), kind);
                    let span = Span::start(kind, caller.pid, requested.charged_inode(), section);
                    inner.spans.insert((client, *id), span);
                    request = Some(*id);
                }
                FromClient::Stream { id, io, .. } => {
                    self.begin_span(&inner, (client, *id), io.op.kind());
                }
                FromClient::Cancel { id } => self.give_up(&mut inner, (client, *id)),
                _ => {}
            }
            match (inner.session_layer.take(now, client, &origin.rights, message), request) {
                (Ok(false), Some(id)) => drop(inner.spans.remove(&(client, id))),
                (Ok(_), _) => {}
                (Err(unrestricted), _) => taken = Err(unrestricted.into()),
            }
        }
        inner.session_layer.heard(now, client);
        self.carry_out(inner, section);
        taken
    }

    /// Called once per second: reports the time and the free space to the machine.
    pub fn tick(&self) {
        if self.term.is_over() {
            self.end_connections();
        }
        self.measure_space();
        match self.background_work.disk.free_space() {
            Ok(free) => self.feed(Input::Space { free }),
            Err(error) => tracing::warn!(%error, "cannot determine the free space of the store"),
        }
        self.give_up_try_stats();
        self.feed(self.background_work.resources.sample());
        self.feed(Input::Tick);
        self.background_work.watch.tick();
    }

    /// Ends all connections: this server may not answer.
    pub fn end_connections(&self) {
        let Ok(inner) = self.lock() else { return };
        inner.peers.values().for_each(|peer| peer.sender.end());
        inner.end_ranks();
    }

    /// Runs background work until [`BackgroundWork::stop`].
    pub fn run_background(&self, background: Background) {
        self.background_work.run(background, |id, result| self.feed(Input::Done { id, result }));
    }

    /// Writes everything out, until done, failed or timed out. Returns true on success.
    pub fn drain(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            self.feed(Input::Drain);
            match self.lock() {
                Err(_) => return false,
                Ok(inner) if inner.session_layer.meta().is_idle() => {
                    return inner.session_layer.meta().broken().is_none();
                }
                Ok(_) if Instant::now() > deadline => return false,
                Ok(_) => {}
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Number of inodes in use, and the failure of the machine, if any.
    pub fn state(&self) -> (u64, Option<Errno>) {
        self.lock().map_or((0, Some(Errno::EIO)), |inner| {
            (inner.session_layer.meta().files(), inner.session_layer.meta().failure())
        })
    }

    pub fn figures(&self) -> MachineFigures {
        let Ok(inner) = self.lock() else { return MachineFigures::default() };
        let now = Instant::now();
        let longest = inner.spans.values().map(|span| now.saturating_duration_since(span.mark())).max();
        MachineFigures::of(inner.session_layer.meta(), inner.spans.len(), longest.unwrap_or_default())
    }

    /// True if the journal has failed, or the lease of the store is over.
    pub fn is_broken(&self) -> bool {
        let is_held = self.background_work.disk.store.is_held();
        !is_held || self.lock().map_or(true, |inner| inner.session_layer.meta().broken().is_some())
    }

    /// The loads of all ranks, and of at most this many directories of this one.
    pub fn load(&self, most: usize) -> Option<LoadReport> {
        Some(self.lock().ok()?.session_layer.meta().load_report(most))
    }

    /// The server's statistics for Prometheus.
    pub fn exposition(&self) -> String {
        let (totals, (files, broken)) = (self.background_work.watch.totals(), self.state());
        let figures = self.background_work.watch.figures(&totals, self.figures());
        exposition(totals, figures, files, broken.is_some())
    }

    pub fn path_of(&self, ino: Ino) -> Option<String> {
        let path = self.lock().ok()?.session_layer.meta().path_of(ino)?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }

    pub(super) fn feed(&self, input: Input) {
        self.with_machine(|_| [input]);
    }

    /// Runs the machine on `inputs` and executes the results.
    pub(super) fn with_machine<I>(&self, inputs: impl FnOnce(&mut Inner) -> I)
    where
        I: IntoIterator<Item = Input, IntoIter: ExactSizeIterator>,
    {
        let Ok((mut inner, section)) = self.enter() else { return };
        let inputs = inputs(&mut inner).into_iter();
        let mut left = inputs.len();
        for input in inputs {
            left -= 1;
            inner.session_layer.input(now(left), input);
        }
        self.carry_out(inner, section);
    }

    pub(super) fn enter(&self) -> Result<(Locked<'_>, CriticalSection), Errno> {
        let requested = Instant::now();
        let inner = self.lock()?;
        Ok((inner, CriticalSection { requested, began: Instant::now() }))
    }

    /// Fails after a panic under the lock: the machine's state is unreliable then.
    pub(super) fn lock(&self) -> Result<Locked<'_>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }

    /// Executes all results, and the results of these, until nothing is left.
    pub(super) fn carry_out<'a>(&'a self, mut inner: Locked<'a>, mut section: CriticalSection) {
        loop {
            let Routed { waiting, connected, ended, send, peers, warnings, streams, io } =
                inner.session_layer.route();
            if inner.session_layer.meta().broken().is_some() {
                self.term.fail();
            }
            for (client, id, waiting) in waiting {
                if let Some(span) = inner.spans.get_mut(&(client, id)) {
                    span.resume(section);
                    span.enter_stage(Stage::from(waiting), Instant::now());
                }
            }
            for (client, connected) in connected {
                if let Some(decide) = inner.connecting.remove(&client) {
                    let _ = decide.send(connected);
                }
            }
            for remark in warnings {
                tracing::warn!("{remark}");
            }
            for client in ended {
                tracing::info!(
                    client = client.0,
                    "a session has ended: its client has disconnected, or has timed out"
                );
                if let Some(peer) = inner.peers.remove(&client) {
                    peer.sender.end();
                }
            }
            // In the machine's order: a lease must be granted before it is revoked.
            let mut senders = Vec::new();
            for (client, message) in send {
                if let Some(message) = self.ready(&mut inner, section, client, message) {
                    inner.queue(client, message, &mut senders);
                }
            }
            self.trace_questions(&inner, &peers);
            let ranks = inner.send_to_ranks(peers.into_iter());
            let causes = self.background_work.tracer.causes(&io, |(id, _)| self.causes_of(&inner, *id));
            let jobs: Vec<_> = streams.into_iter().map(|stream| inner.job(stream, section)).collect();
            drop(inner);
            // The flush fails with the connection, whose task handles that.
            for (_, sender) in senders {
                let _ = sender.flush();
            }
            for sender in ranks {
                let _ = sender.flush();
            }
            self.do_streams(jobs);
            let mut causes = causes.into_iter();
            let execute = |(id, io)| self.execute(id, io, causes.next().unwrap_or_default());
            let done: Vec<_> = io.into_iter().filter_map(execute).collect();
            if done.is_empty() {
                return;
            }
            let Ok(locked) = self.enter() else { return };
            (inner, section) = locked;
            let mut left = done.len();
            for (id, result) in done {
                left -= 1;
                inner.session_layer.input(now(left), Input::Done { id, result });
            }
        }
    }

    /// Completes a message with data from outside the machine; `None`: it is sent later.
    fn ready(
        &self,
        inner: &mut Inner,
        section: CriticalSection,
        to: ClientId,
        message: FromServer,
    ) -> Option<FromServer> {
        let FromServer::Reply { id, lease_ms, announced, touched, result } = message else {
            return Some(message);
        };
        if let Some(served) = self.id_of(inner, (to, id)) {
            self.background_work.tracer.end(served);
        }
        if let Some(mut span) = inner.spans.remove(&(to, id)) {
            span.resume(section);
            span.enter_stage(Stage::Work, Instant::now());
            self.background_work.watch.record(&span, result.is_err());
        }
        if matches!(result, Ok(Reply::StatFs(_))) && self.measure_then(to, id, lease_ms, &result) {
            return None;
        }
        let result = result.and_then(|mut reply| {
            self.seal(inner, to, &mut reply);
            self.complete(reply)
        });
        Some(FromServer::Reply { id, lease_ms, announced, touched, result })
    }

    /// Completes a reply with data from outside the machine.
    pub(super) fn complete(&self, reply: Reply) -> Result<Reply, Errno> {
        match reply {
            Reply::StatFs(mut capacity) => {
                capacity.space = self.background_work.disk.space()?;
                self.add_space(&mut capacity.space);
                Ok(Reply::StatFs(capacity))
            }
            reply => Ok(reply),
        }
    }

    fn execute(&self, id: IoId, io: Io, causes: Vec<Id>) -> Option<(IoId, Result<IoDone, Errno>)> {
        match io {
            // Replies wait for it, and it only writes to the page cache.
            Io::Journal { sync: false, .. } => Some((id, self.background_work.timed(io, &causes))),
            Io::Journal { sync: true, .. } | Io::Sync => {
                self.background_work.put_off(id, io, causes);
                None
            }
            Io::Admit { below, live, ending } => {
                self.admit(id, (below, live), ending);
                None
            }
            Io::Decide(request) => self.decide(id, request),
            Io::Stream(call, layouts) if !layouts.is_empty() => {
                self.ask_data_servers(id, call, layouts, causes)
            }
            // Stream I/O may wait for the disk.
            io @ Io::Stream(..) => block_in_place(|| self.background_work.execute(id, io, causes)),
            io => self.background_work.execute(id, io, causes),
        }
    }

    // ---- Tracing

    /// The identifier of a client's request in traces; `None`: tracing is off, or the client is
    /// disconnected.
    pub(super) fn id_of(&self, inner: &Inner, (client, id): (ClientId, RequestId)) -> Option<Id> {
        let tracer = &self.background_work.tracer;
        let peer = if tracer.is_on() { inner.peers.get(&client) } else { None };
        peer.map(|peer| tracer.served(peer.guest.place, id.0))
    }

    fn begin_span(&self, inner: &Inner, of: (ClientId, RequestId), kind: Kind) {
        if let Some(id) = self.id_of(inner, of) {
            self.background_work.tracer.begin(id, kind.name(), Vec::new);
        }
    }

    pub(super) fn id_of_cause(&self, inner: &Inner, cause: Cause) -> Option<Id> {
        match cause {
            Cause::Request(client, id) => self.id_of(inner, (client, id)),
            Cause::Question(rank, id) => {
                Some(self.background_work.tracer.served(NodeId::Rank(rank.0), id.number))
            }
        }
    }

    fn causes_of(&self, inner: &Inner, id: IoId) -> Vec<Id> {
        let causes = inner.session_layer.meta().causes_of(id).into_iter();
        causes.filter_map(|cause| self.id_of_cause(inner, cause)).collect()
    }
}

/// `queued`: as in [`Now`].
pub(super) fn now(queued: usize) -> Now {
    Now { time: clock::now(), uptime_ms: clock::uptime_ms(), queued }
}

impl Inner {
    /// Queues a message for a client. A disconnected client gets it after its next connection, or
    /// does not need it. Collects the connections to flush.
    fn queue(
        &self,
        client: ClientId,
        message: FromServer,
        senders: &mut Vec<(ClientId, Sender<FromServer>)>,
    ) {
        let Some(sender) = self.sender_to(client) else { return };
        let id = if let FromServer::Reply { id, .. } = &message { Some(*id) } else { None };
        match (sender.queue(message), id) {
            (Err(NetError::TooLong { .. }), Some(id)) => {
                let (announced, touched, result) = (false, Touched::default(), Err(Errno::E2BIG));
                let _ = sender.queue(FromServer::Reply { id, lease_ms: 0, announced, touched, result });
            }
            // The client repeats the request over its next connection.
            (Err(error), _) => {
                tracing::debug!(%error, client = client.0, "cannot send a message to a client")
            }
            (Ok(()), _) => {}
        }
        if senders.iter().all(|(of, _)| *of != client) {
            senders.push((client, sender));
        }
    }

    /// The connection to a client. Past the term it is ended: the client misses a message, which
    /// it gets over a later connection.
    pub(super) fn sender_to(&self, client: ClientId) -> Option<Sender<FromServer>> {
        let sender = self.peers.get(&client)?.sender.clone();
        if self.term.is_over() {
            sender.end();
            return None;
        }
        Some(sender)
    }

    /// True if messages to other ranks may be sent.
    pub(super) fn may_send(&self) -> bool {
        !self.term.is_over()
    }
}
