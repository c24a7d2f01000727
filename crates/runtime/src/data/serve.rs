//! The driver of a data server's machine. Threads execute the requests, since they may wait for the
//! disk; requests on one file run concurrently where the machine permits it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use espalier_data::{Data, Input, Io, IoId, Outbox, Requester};
use espalier_net::{Connection, Incoming, NetError, Reason, Refusal, SealKey, Sender};
use espalier_proto::{
    Capability, DataReply, DataRequest, Errno, FromData, RequestId, ServerId, ToData, Welcome,
};

use super::store::DataStore;
use crate::capability::Holder;
use crate::tracer::{Id, Layer, NodeId, Tracer, place_of};
use crate::watch::{CriticalSection, DataFigures, IoKind, MachineFigures, Span, Stage, Watch, exposition};

/// A data server. See the module's documentation.
pub struct DataServer {
    pub store: DataStore,
    /// Key of the capabilities; `None`: clients are not served.
    key: Option<SealKey>,
    inner: Mutex<Inner>,
    next_connection: AtomicU64,
    pub watch: Watch,
    pub tracer: Arc<Tracer>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

#[derive(Default)]
struct Inner {
    machine: Data,
    peers: HashMap<u64, Peer>,
}

/// A connected peer.
struct Peer {
    requester: Requester,
    /// The peer's place in traces.
    place: NodeId,
    sender: Sender<FromData>,
    /// Unanswered requests.
    under_way: HashMap<RequestId, UnderWay>,
    /// Payload bytes of these requests.
    bytes: usize,
}

struct UnderWay {
    bytes: usize,
    writes: bool,
    span: Span,
}

/// Size of the output queue, in bytes, above which nothing more is received from the peer.
const UNREAD: usize = 16 << 20;
/// Maximum number of unanswered requests of a peer, and of their bytes, above which nothing more is
/// received. This project's clients stay below these limits.
const UNDER_WAY: usize = 256;
const BYTES_UNDER_WAY: usize = 16 << 20;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

impl Peer {
    fn takes_more(&self) -> bool {
        let is_full = self.under_way.len() >= UNDER_WAY || self.bytes >= BYTES_UNDER_WAY;
        !is_full && self.sender.unread() <= UNREAD
    }
}

impl DataServer {
    /// `key`: the metadata servers' key; without it no clients are served. `threads`: number of
    /// threads that serve requests.
    pub fn new(store: DataStore, key: Option<SealKey>, threads: usize) -> Self {
        let tracer = Tracer::new(NodeId::Data(store.number().0));
        let inner = Inner { machine: Data::new(store.commits_individually()), ..Inner::default() };
        Self {
            tracer,
            store,
            key,
            inner: Mutex::new(inner),
            next_connection: AtomicU64::new(1),
            watch: Watch::new(threads, None),
            read_bytes: AtomicU64::default(),
            written_bytes: AtomicU64::default(),
        }
    }

    /// Sets [`DataStore::individually`].
    pub fn set_individual(&self, individually: bool) {
        if let Ok(mut inner) = self.inner.lock() {
            inner.machine.set_individual(individually);
        }
    }

    /// Number of connected peers.
    pub fn connections(&self) -> usize {
        self.inner.lock().map_or(0, |inner| inner.peers.len())
    }

    /// Activity and state of the server.
    pub fn figures(&self) -> MachineFigures {
        let now = Instant::now();
        let Ok(inner) = self.inner.lock() else { return MachineFigures::default() };
        let spans =
            || inner.peers.values().flat_map(|peer| peer.under_way.values()).map(|requested| &requested.span);
        let longest = spans().map(|span| now.saturating_duration_since(span.mark())).max();
        let read_bytes = self.read_bytes.load(Ordering::Relaxed);
        let written_bytes = self.written_bytes.load(Ordering::Relaxed);
        MachineFigures {
            waiting: spans().count(),
            longest_wait: longest.unwrap_or_default(),
            data: DataFigures { read_bytes, written_bytes },
            ..MachineFigures::default()
        }
    }

    /// The statistics for Prometheus.
    pub fn exposition(&self) -> String {
        let totals = self.watch.totals();
        let figures = self.watch.figures(&totals, self.figures());
        exposition(totals, figures, 0, self.inner.is_poisoned())
    }

    /// Serves a metadata server as long as the connection lasts.
    ///
    /// # Errors
    /// Why the connection has ended.
    pub async fn serve_server(
        self: &Arc<Self>,
        incoming: Incoming,
        welcome: Welcome,
    ) -> Result<(), NetError> {
        let hello = incoming.hello().clone();
        let Ok(number) = u16::try_from(hello.client.0) else {
            incoming.refuse(Refusal::new(Reason::Malformed, "no server has such a number")).await;
            return Ok(());
        };
        let connection = incoming.welcome(welcome).await?;
        tracing::info!(server = number, "a metadata server has connected");
        let requester = Requester::Server(ServerId(number));
        self.converse(
            (requester, NodeId::Rank(number)),
            hello.incarnation.unwrap_or_default(),
            connection,
            |_| true,
        )
        .await
    }

    /// Serves a client as far as its capabilities permit.
    ///
    /// # Errors
    /// As [`Self::serve_server`].
    pub async fn serve_client(
        self: &Arc<Self>,
        incoming: Incoming,
        welcome: Welcome,
    ) -> Result<(), NetError> {
        let Some(key) = self.key.clone() else {
            let text = "this data server takes no clients: its configuration has no data_key";
            incoming.refuse(Refusal::new(Reason::Service, text)).await;
            return Ok(());
        };
        let (client, identity) = (incoming.hello().client, incoming.identity());
        let holder = Holder::new(identity, client);
        let requester = Requester::Client(holder.number(&self.store.superblock().hash_key));
        let connection = incoming.welcome(welcome).await?;
        let is_good = move |capability: &Capability| holder.has(capability, &key);
        self.converse((requester, place_of(client)), 0, connection, is_good).await
    }

    /// `is_good`: true for a capability that is sealed and the peer's own.
    async fn converse(
        self: &Arc<Self>,
        (requester, place): (Requester, NodeId),
        incarnation: u64,
        connection: Connection<ToData, FromData>,
        is_good: impl Fn(&Capability) -> bool,
    ) -> Result<(), NetError> {
        let Connection { mut receiver, sender } = connection;
        let number = self.next_connection.fetch_add(1, Ordering::Relaxed);
        self.attach(number, (requester, place), sender.clone());
        self.input([Input::Connect { from: requester, incarnation, connection: number }]);
        let mut batch = Vec::new();
        let ended = 'connection: loop {
            if let Err(error) = receiver.next(&mut batch).await {
                break Err(error);
            }
            let mut waiting = VecDeque::new();
            for message in batch.drain(..) {
                if message.capability.as_ref().is_none_or(&is_good) {
                    waiting.push_back(message);
                } else {
                    tracing::warn!(
                        ?requester,
                        "a capability was refused: it is another client's, or has an invalid seal"
                    );
                    let (id, announced, result) = (message.id, false, Err(Errno::EACCES));
                    let _ = sender.send(FromData { id, announced, result });
                }
            }
            while !waiting.is_empty() {
                let Some(taken) = self.take(number, &mut waiting) else {
                    // The peer has reconnected.
                    break 'connection Ok(());
                };
                let request = |message| Input::Request { from: requester, connection: number, message };
                self.input(taken.into_iter().map(request));
                if !waiting.is_empty() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        sender.end();
        self.input([Input::Disconnect { from: requester, connection: number }]);
        if let Ok(mut inner) = self.inner.lock() {
            inner.peers.remove(&number);
        }
        ended
    }

    /// Registers a connected peer; replaces its earlier connection.
    fn attach(&self, number: u64, (requester, place): (Requester, NodeId), sender: Sender<FromData>) {
        let Ok(mut inner) = self.inner.lock() else { return };
        inner.peers.retain(|_, peer| {
            if peer.requester == requester {
                peer.sender.end();
            }
            peer.requester != requester
        });
        inner.peers.insert(number, Peer { requester, place, sender, under_way: HashMap::new(), bytes: 0 });
    }

    /// Takes requests from the queue, up to the limit. `None`: the peer is disconnected.
    fn take(&self, number: u64, waiting: &mut VecDeque<ToData>) -> Option<Vec<ToData>> {
        let mut inner = self.inner.lock().ok()?;
        let peer = inner.peers.get_mut(&number)?;
        let (mut taken, now) = (Vec::new(), Instant::now());
        while peer.takes_more()
            && let Some(message) = waiting.pop_front()
        {
            let bytes = message.request.bytes();
            let writes = match message.request {
                DataRequest::Range { op, .. } => op.is_write(),
                ref request => matches!(request, DataRequest::Fill { .. }),
            };
            let served = self.tracer.served(peer.place, message.id.0);
            self.tracer.begin(served, message.request.name(), Vec::new);
            let (kind, ino) = (message.request.kind(), message.request.ino());
            let mut span =
                Span::start(kind, Span::NO_PROCESS, ino, CriticalSection { requested: now, began: now });
            // Until a thread executes it.
            span.enter_stage(Stage::Queue, now);
            if peer.under_way.insert(message.id, UnderWay { bytes, writes, span }).is_none() {
                peer.bytes += bytes;
            }
            taken.push(message);
        }
        Some(taken)
    }

    fn input(self: &Arc<Self>, inputs: impl IntoIterator<Item = Input>) {
        // After a panic under the lock the machine is unreliable, and no request is answered.
        if let Ok(inner) = self.inner.lock() {
            self.input_to(inner, inputs);
        }
    }

    fn input_to(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, inputs: impl IntoIterator<Item = Input>) {
        let mut out = Outbox::default();
        inputs.into_iter().for_each(|input| inner.machine.on(input, &mut out));
        let mut senders = Vec::new();
        for (connection, reply) in out.replies {
            let Some(peer) = inner.peers.get_mut(&connection) else { continue };
            self.tracer.end(self.tracer.served(peer.place, reply.id.0));
            if let Some(requested) = peer.under_way.remove(&reply.id) {
                peer.bytes = peer.bytes.saturating_sub(requested.bytes);
                self.count(requested, &reply.result);
            }
            if peer.sender.queue(reply).is_ok() {
                senders.push((connection, peer.sender.clone()));
            }
        }
        let mut causes = self.tracer.causes(&out.io, |(id, _)| self.causes_of(&inner, *id)).into_iter();
        drop(inner);
        senders.sort_unstable_by_key(|(connection, _)| *connection);
        senders.dedup_by_key(|(connection, _)| *connection);
        for (_, sender) in senders {
            // The flush fails with the connection, whose task handles that.
            let _ = sender.flush();
        }
        for (id, io) in out.io {
            let (server, causes) = (Arc::clone(self), causes.next().unwrap_or_default());
            tokio::task::spawn_blocking(move || server.work(id, io, &causes));
        }
    }

    /// The requests that wait for an I/O.
    fn causes_of(&self, inner: &Inner, id: IoId) -> Vec<Id> {
        let requested = |(connection, request): (u64, RequestId)| {
            Some(self.tracer.served(inner.peers.get(&connection)?.place, request.0))
        };
        inner.machine.requests_of(id).into_iter().filter_map(requested).collect()
    }

    fn work(self: &Arc<Self>, id: IoId, io: Io, causes: &[Id]) {
        let (began, steps) = (Instant::now(), self.tracer.steps(causes));
        let result = match io {
            Io::Request(request) => {
                let kind = request.name();
                steps.step(Layer::Store, kind, || self.store.execute(request))
            }
            Io::WriteNew(request) => steps.step(Layer::Store, "write", || self.store.write_new(request)),
            Io::Create(inos) => steps.step(Layer::Store, "create", || self.store.create(&inos)),
            Io::SyncRemoved => steps.step(Layer::Disk, "sync removed", || self.store.sync_removed()),
        };
        self.watch.record_io(IoKind::Stream, began.elapsed());
        let Ok(mut inner) = self.inner.lock() else { return };
        for (connection, request) in inner.machine.requests_of(id) {
            if let Some(peer) = inner.peers.get_mut(&connection)
                && let Some(requested) = peer.under_way.get_mut(&request)
            {
                requested.span.enter_stage(Stage::Disk, began);
            }
        }
        self.input_to(inner, [Input::Done { id, result }]);
    }

    /// Counts an answered request.
    fn count(&self, requested: UnderWay, result: &Result<DataReply, Errno>) {
        let UnderWay { bytes, writes, mut span } = requested;
        span.enter_stage(Stage::Work, Instant::now());
        self.watch.record(&span, result.is_err());
        match result {
            Ok(DataReply::Bytes(read)) => self.read_bytes.fetch_add(read.len() as u64, Ordering::Relaxed),
            Ok(DataReply::Done) if writes => self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed),
            _ => 0,
        };
    }
}
