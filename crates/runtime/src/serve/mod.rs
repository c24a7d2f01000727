//! A server process: a metadata server, a data server, or both.

mod access;
mod connection;
mod delegate;
mod machine;
mod peers;
mod streams;
mod striped;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, RecvTimeoutError, channel};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use espalier_net::{Acceptor, Limits, SealKey, Security};
use espalier_proto::{ClusterId, Errno, Ino, ServerId, ServerMap};
use espalier_store::Superblock;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};

use crate::background_work::Background;
use crate::control::{self, Status, StatusSource};
use crate::data::{DataRequester, DataServer, DataServers, DataStore, Striper};
use crate::error::Error;
use crate::tracer::{NodeId, Tracer};
use crate::volume::Volume;
use crate::watch::{MachineFigures, MetricsAddress, MetricsServer, Watch};
pub use access::Access;
use connection::{Gate, Metadata, accept};
use delegate::Sealer;
use machine::Server;
use peers::Peers;

/// Settings that can change while the server runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub access: Access,
    /// Low and high watermark of commit coalescing (carns III.C).
    pub watermarks: (usize, usize),
    /// For new connections: as in [`Limits`].
    pub eager_bytes: u32,
}

/// Reads the settings from the configuration; `None` if that fails, and nothing changes.
pub type ReadSettings = Arc<dyn Fn() -> Option<Settings> + Send + Sync>;

/// Options of a server process.
#[derive(Clone)]
pub struct ServeOptions {
    pub listen: SocketAddr,
    pub security: Security,
    pub limits: Limits,
    pub max_connections: usize,
    /// Number of threads that serve requests.
    pub threads: usize,
    pub metrics: Option<MetricsAddress>,
    /// Duration from which on an operation is logged as slow; `None`: never.
    pub slow: Option<Duration>,
    /// Time limit for writing out at shutdown.
    pub drain: Duration,
    /// Called on `SIGHUP`.
    pub read_settings: Option<ReadSettings>,
}

/// The metadata service of a server.
pub struct MetaRole {
    pub volume: Volume,
    /// Path of the store.
    pub store: PathBuf,
    pub access: Access,
    /// Session timeout in ms.
    pub session_ms: u32,
    /// Addresses of all metadata servers by rank, as `HOST:PORT`; empty for a single one.
    pub ranks: Vec<String>,
    /// Addresses of the data servers, as `HOST:PORT`.
    pub data_servers: Vec<(ServerId, String)>,
    /// Key for capabilities; `None`: clients do not access data servers.
    pub data_key: Option<SealKey>,
}

/// The data service of a server.
pub struct DataRole {
    pub store: DataStore,
    /// The metadata servers' key for capabilities; `None`: no clients are served.
    pub data_key: Option<SealKey>,
}

/// Serves until the process gets a signal to end. `ready` is called with the address when clients
/// may connect.
///
/// # Errors
/// The server cannot start, or could not write everything out.
pub fn serve(
    meta: Option<MetaRole>,
    data: Option<DataRole>,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let ServeOptions { listen, security, limits, max_connections, threads, .. } = options.clone();
    let runtimes = start_runtimes(threads)?;
    let runtime = runtimes[0].handle().clone();
    let metrics = options.metrics.as_ref().map(MetricsServer::bind).transpose()?;
    let (listener, address) = bind(&runtime, listen)?;
    let url = format!("espalier://{address}/");
    let incarnation = crate::clock::incarnation();
    let tree = meta.map(|role| MetadataService::new(role, &options, &runtime, incarnation)).transpose()?;
    let (metadata, mut tree) = tree.unzip();
    let data = data.map(|DataRole { store, data_key }| Arc::new(DataServer::new(store, data_key, threads)));
    let data_control = data.as_ref().and_then(|data| control::Listener::of_store(data.store.path()));
    let gate = Arc::new(Gate {
        meta: metadata,
        data: data.clone(),
        acceptor: Acceptor::new(security, limits),
        incarnation,
        max_connections,
        workers: runtimes.iter().map(|runtime| runtime.handle().clone()).collect(),
        open: AtomicUsize::new(0),
        handshakes: Gate::turnstile(),
    });
    let background = tree.as_mut().and_then(|tree| tree.background.take());
    let peers = tree.as_mut().and_then(|tree| tree.peers.take());
    let tree_served = tree.as_ref().map(|tree| {
        let (server, superblock) = (Arc::clone(&tree.server), tree.superblock.clone());
        Served { server, superblock, url: url.clone() }
    });
    let data_served = data.map(|server| DataServed { server, url });
    std::thread::scope(|scope| {
        let (stop_clock, stopped) = channel::<()>();
        if let (Some(MetadataService { server, .. }), Some(background)) = (&tree, background) {
            scope.spawn(|| server.run_background(background));
            scope.spawn(move || tick_until(server, &stopped));
            server.reach_data_servers();
            if let Some(peers) = peers {
                peers.reach(server, &runtime);
            }
        }
        if let Some(metrics) = &metrics {
            let (tree, data) = (tree_served.as_ref(), data_served.as_ref());
            scope.spawn(move || expose(metrics, tree, data));
        }
        let mut listeners = Vec::new();
        if let (Some(MetadataService { control: Some(control), superblock, .. }), Some(served)) =
            (&tree, &tree_served)
        {
            let answer = |words: &[&str]| control::answer(superblock, served, words);
            listeners.push((control, scope.spawn(move || control.serve(answer))));
        }
        if let (Some(control), Some(served)) = (&data_control, &data_served) {
            let superblock = served.server.store.superblock();
            let answer = |words: &[&str]| control::answer(superblock, served, words);
            listeners.push((control, scope.spawn(move || control.serve(answer))));
        }
        let accepting = runtime.spawn(accept(Arc::clone(&gate), listener));
        ready(address);
        runtime.block_on(stop_signal(|| reload(&gate, options.read_settings.as_ref())));
        accepting.abort();
        // Pending requests are answered; clients repeat later ones at the next server process.
        let drained = tree.as_ref().is_none_or(|tree| tree.server.drain(options.drain));
        for runtime in runtimes {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
        drop(stop_clock);
        if let Some(tree) = &tree {
            tree.server.background_work.stop();
        }
        for (control, listener) in listeners {
            control.stop();
            let _ = listener.join();
        }
        if let Some(metrics) = &metrics {
            metrics.stop();
        }
        let failure = tree.as_ref().and_then(|tree| tree.server.state().1);
        if drained { Ok(()) } else { Err(Error::Unwritten(failure.unwrap_or(Errno::EIO))) }
    })
}

/// One runtime per thread: in a shared runtime, a thread that finds work wakes another one.
fn start_runtimes(threads: usize) -> Result<Vec<Runtime>, Error> {
    (0..threads.max(1))
        .map(|_| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build())
        .collect::<Result<_, _>>()
        .map_err(|source| Error::Io { context: "cannot start threads".to_string(), source })
}

fn bind(runtime: &Handle, listen: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let listener = runtime.block_on(TcpListener::bind(listen)).map_err(|source| {
        let context = format!("cannot listen on {listen}: is another server running there?");
        Error::Io { context, source }
    })?;
    let address = listener.local_addr().map_err(|source| {
        let context = "the listening socket has no address".to_string();
        Error::Io { context, source }
    })?;
    Ok((listener, address))
}

fn reload(gate: &Gate, read: Option<&ReadSettings>) {
    let Some(settings) = read.and_then(|read| read()) else { return };
    gate.set(settings);
    tracing::info!("clients, watermarks and eager_bytes are as the configuration says");
}

/// Ticks every second until the other end of `stopped` is dropped.
fn tick_until(server: &Server, stopped: &mpsc::Receiver<()>) {
    server.tick();
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
        server.tick();
    }
}

/// Serves the metrics of the process's services until stopped.
fn expose(metrics: &MetricsServer, tree: Option<&Served>, data: Option<&DataServed>) {
    let of_tree = || tree.map(|served| served.server.exposition());
    let of_data = || data.map(|served| served.server.exposition());
    metrics.serve(|path| match path {
        "/metrics" => of_tree().or_else(of_data),
        "/metrics/data" => of_data(),
        _ => None,
    });
}

/// A running metadata service.
struct MetadataService {
    server: Arc<Server>,
    background: Option<Background>,
    /// Set until the ranks are connected.
    peers: Option<Peers>,
    control: Option<control::Listener>,
    superblock: Superblock,
}

impl MetadataService {
    fn new(
        role: MetaRole,
        options: &ServeOptions,
        runtime: &Handle,
        incarnation: u64,
    ) -> Result<(Metadata, Self), Error> {
        let MetaRole { volume, store, access, session_ms, ranks, data_servers, data_key } = role;
        // Data servers identify metadata servers by rank.
        let number = ServerId(volume.superblock.rank.0);
        let sealer = data_key.map(|key| Sealer { key, number, incarnation });
        let data = if sealer.is_some() { data_servers.clone() } else { Vec::new() };
        let servers = ServerMap { ranks, data };
        let named = servers.ranks.len().max(1);
        if named != usize::from(volume.superblock.ranks) {
            return Err(Error::Ranks { path: store, ranks: volume.superblock.ranks, named });
        }
        let tracer = Tracer::new(NodeId::Rank(volume.superblock.rank.0));
        let striper = if data_servers.is_empty() {
            volume.require_whole(&store)?;
            None
        } else {
            let (security, limits) = (options.security.clone(), options.limits.clone());
            let requester = DataRequester::Server { number, incarnation };
            let servers = DataServers::new(data_servers, security, limits, requester, Arc::clone(&tracer));
            Some(Striper::new(servers))
        };
        let Volume { disk, meta, superblock, .. } = volume;
        let watch = Watch::new(options.threads, options.slow);
        let (server, background) = Server::new(meta, disk, watch, tracer, striper, sealer, runtime.clone());
        let cluster = ClusterId(superblock.uuid.into_bytes());
        let secret = superblock.hash_key;
        let control = control::Listener::of_store(&store);
        let Superblock { rank, ranks, .. } = superblock;
        let peers = Peers {
            own: rank,
            addresses: servers.ranks.clone(),
            cluster,
            incarnation,
            security: options.security.clone(),
            limits: options.limits.clone(),
        };
        let metadata = Metadata {
            server: Arc::clone(&server),
            cluster,
            rank,
            ranks,
            session_ms,
            servers,
            access: RwLock::new(Arc::new(access)),
            secret,
        };
        let (background, peers) = (Some(background), Some(peers));
        Ok((metadata, Self { server, background, peers, control, superblock }))
    }
}

/// Waits for a signal that ends the process. `reload` is called on each `SIGHUP`.
async fn stop_signal(reload: impl Fn()) {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        tracing::warn!("cannot handle signals: only a kill will end this server");
        return std::future::pending().await;
    };
    loop {
        tokio::select! {
            _ = interrupt.recv() => return,
            _ = terminate.recv() => return,
            _ = hangup.recv() => reload(),
        }
    }
}

/// Answers status queries of a metadata server.
struct Served {
    server: Arc<Server>,
    superblock: Superblock,
    url: String,
}

impl StatusSource for Served {
    fn state(&self) -> (u64, Option<Errno>) {
        self.server.state()
    }

    fn figures(&self) -> MachineFigures {
        self.server.figures()
    }

    fn watch(&self) -> &Watch {
        &self.server.background_work.watch
    }

    fn tracer(&self) -> &Tracer {
        &self.server.background_work.tracer
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.server.path_of(ino)
    }

    fn complete(&self, status: &mut Status) {
        status.url = Some(self.url.clone());
        status.clients = Some(self.server.connections());
        status.ranks = self.server.ranks_status(&self.superblock);
    }
}

/// Answers status queries of a data server.
struct DataServed {
    server: Arc<DataServer>,
    url: String,
}

impl StatusSource for DataServed {
    fn state(&self) -> (u64, Option<Errno>) {
        (0, None)
    }

    fn figures(&self) -> MachineFigures {
        self.server.figures()
    }

    fn watch(&self) -> &Watch {
        &self.server.watch
    }

    fn tracer(&self) -> &Tracer {
        &self.server.tracer
    }

    fn path_of(&self, _: Ino) -> Option<String> {
        None
    }

    fn complete(&self, status: &mut Status) {
        status.url = Some(self.url.clone());
        status.clients = Some(self.server.connections());
    }
}
