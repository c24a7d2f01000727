//! A server process: a metadata server, a data server, or both.

mod access;
mod balancing;
mod connection;
mod delegate;
mod failover;
mod following;
mod liveness;
mod machine;
mod peers;
mod ranks;
mod served;
mod streams;
mod striped;
mod term;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use espalier_net::{Acceptor, Limits, SealKey, Security};
use espalier_proto::{Errno, Rank, ServerId, ServerMap};
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};

use crate::control;
use crate::data::{DataServer, DataStore};
use crate::error::Error;
use crate::volume::Volume;
use crate::watch::{MetricsAddress, MetricsServer};
pub use access::Access;
use connection::{Gate, accept};
pub use failover::{
    ClusterStatus, RankStores, SharedRanks, add_to_cluster_map, create_cluster_map, read_cluster_map,
    status_of_server,
};
pub use following::FollowStatus;
use ranks::{RankService, RankStarter, RankTable, check_stores};
use served::{DataServed, answer_of_ranks, expose};

/// Settings that can change while the server runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub access: Access,
    /// Low and high watermark of commit coalescing (carns III.C).
    pub watermarks: (usize, usize),
    /// For new connections: as in [`Limits`].
    pub eager_bytes: u32,
    /// As in [`RankSource::Own`]; those that have connected stay.
    pub ranks: Vec<String>,
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
    pub source: RankSource,
    pub access: Access,
    /// Session timeout in ms.
    pub session_ms: u32,
    /// Addresses of the data servers, as `HOST:PORT`.
    pub data_servers: Vec<(ServerId, String)>,
    /// Key for capabilities; `None`: clients do not access data servers.
    pub data_key: Option<SealKey>,
}

/// Where a server gets its ranks from.
pub enum RankSource {
    /// Stores of its own, at least one. `ranks`: addresses of all metadata servers by rank, as
    /// `HOST:PORT`; empty for a single one.
    Own { stores: Vec<OwnStore>, ranks: Vec<String> },
    /// A store that servers share: they fail over.
    Shared(SharedRanks),
}

/// The store of a rank.
pub struct OwnStore {
    pub volume: Volume,
    pub path: PathBuf,
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
    let metrics = options.metrics.as_ref().map(MetricsServer::bind).transpose()?.map(Arc::new);
    let (listener, address) = bind(&runtime, listen)?;
    let url = format!("espalier://{address}/");
    let incarnation = crate::clock::incarnation();
    let service = match meta {
        Some(role) => Some(MetadataService::start(role, &options, &runtime, incarnation, address)?),
        None => None,
    };
    let data = data.map(|DataRole { store, data_key }| Arc::new(DataServer::new(store, data_key, threads)));
    let table = service.as_ref().map(|service| Arc::clone(&service.table));
    let gate = Arc::new(Gate {
        meta: table.clone(),
        data: data.clone(),
        acceptor: Acceptor::new(security, limits),
        incarnation,
        max_connections,
        workers: runtimes.iter().map(|runtime| runtime.handle().clone()).collect(),
        open: AtomicUsize::new(0),
        handshakes: Gate::turnstile(),
    });
    let mut helpers = Helpers::default();
    if let Some(metrics) = metrics {
        helpers.metrics(metrics, table.clone(), data.clone());
    }
    if let (Some(service), Some(table)) = (&service, &table) {
        for (rank, control) in &service.controls {
            let (status, table, rank, url) = (service.status(&url), Arc::clone(table), *rank, url.clone());
            helpers.control(control.clone(), move |words| match words {
                ["cluster"] => status(),
                words => answer_of_ranks(&table, rank, &url, words),
            });
        }
    }
    if let Some(server) = data {
        let control = control::Listener::of_store(server.store.path()).map(Arc::new);
        let served = DataServed { server, url };
        helpers
            .control(control, move |words| control::answer(served.server.store.superblock(), &served, words));
    }
    let accepting = runtime.spawn(accept(Arc::clone(&gate), listener));
    ready(address);
    let reload = || reload(&gate, options.read_settings.as_ref());
    let outcome = match service {
        Some(service) => service.run(&runtime, stop_signal(reload), options.drain, || accepting.abort()),
        None => {
            runtime.block_on(stop_signal(reload));
            accepting.abort();
            Ok(Vec::new())
        }
    };
    for runtime in runtimes {
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
    helpers.stop();
    outcome.map(|left| left.into_iter().for_each(RankService::stop))
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
    tracing::info!("clients, watermarks, eager_bytes and ranks are as the configuration says");
}

/// The metadata service of a process.
struct MetadataService {
    table: Arc<RankTable>,
    /// Of the store of each rank, or of the server if it shares a store.
    controls: Vec<(Option<Rank>, Option<Arc<control::Listener>>)>,
    ranks: ServedRanks,
}

enum ServedRanks {
    Own(Vec<RankService>),
    Shared(failover::Coordinator),
}

impl MetadataService {
    fn start(
        role: MetaRole,
        options: &ServeOptions,
        runtime: &Handle,
        incarnation: u64,
        address: SocketAddr,
    ) -> Result<Self, Error> {
        let MetaRole { source, access, session_ms, data_servers, data_key } = role;
        let data = if data_key.is_some() { data_servers.clone() } else { Vec::new() };
        let starter = |table| {
            let (options, runtime) = (options.clone(), runtime.clone());
            RankStarter { table, options, data_servers, data_key, runtime }
        };
        match source {
            RankSource::Own { stores, ranks } => {
                let (cluster, paths) = check_stores(&stores, ranks.len())?;
                let servers = ServerMap { ranks, data, ..ServerMap::NONE };
                let table = RankTable::new(cluster, session_ms, servers, access, Some(paths), None);
                let starter = starter(Arc::clone(&table));
                let (mut controls, mut services) = (Vec::new(), Vec::new());
                for OwnStore { volume, path } in stores {
                    let control = control::Listener::of_store(&path).map(Arc::new);
                    controls.push((Some(volume.superblock.rank), control));
                    services.push(starter.start(volume, &path, incarnation, None)?);
                }
                Ok(Self { table, controls, ranks: ServedRanks::Own(services) })
            }
            RankSource::Shared(shared) => {
                let data_pool = shared.data_pool.clone();
                let servers = ServerMap::NONE;
                let table = RankTable::new(shared.cluster, session_ms, servers, access, None, data_pool);
                let control = control::Listener::of_store(&shared.dir).map(Arc::new);
                let starter = starter(Arc::clone(&table));
                let coordinator = failover::Coordinator::start(shared, starter, incarnation, address);
                let controls = vec![(None, control)];
                Ok(Self { table, controls, ranks: ServedRanks::Shared(coordinator) })
            }
        }
    }

    /// Answers queries about the cluster.
    fn status(&self, url: &str) -> impl Fn() -> serde_json::Result<String> + Send + use<> {
        let known = match &self.ranks {
            ServedRanks::Own(_) => None,
            ServedRanks::Shared(coordinator) => Some(coordinator.known()),
        };
        let url = url.to_string();
        move || match &known {
            Some(known) => failover::answer(known, &url),
            None => control::refused("this server has a store of its own"),
        }
    }

    /// Runs until the process gets a signal to end, or must end, and writes everything out.
    /// Returns the ranks that are still open. `refuse`: accepts no more connections.
    fn run(
        self,
        runtime: &Handle,
        signal: impl Future<Output = ()>,
        limit: Duration,
        refuse: impl FnOnce(),
    ) -> Result<Vec<RankService>, Error> {
        match self.ranks {
            ServedRanks::Own(services) => {
                runtime.block_on(signal);
                refuse();
                // Pending requests are answered; clients repeat later ones at the next process.
                let (drained, unwritten): (Vec<_>, Vec<_>) =
                    services.into_iter().partition(|service| service.drain(limit));
                let Some(failed) = unwritten.first() else { return Ok(drained) };
                let failure = failed.failure().unwrap_or(Errno::EIO);
                drained.into_iter().chain(unwritten).for_each(RankService::stop);
                Err(Error::Unwritten(failure))
            }
            ServedRanks::Shared(coordinator) => coordinator.run(runtime, signal, limit).map(|()| Vec::new()),
        }
    }
}

/// Threads that answer queries about a server.
#[derive(Default)]
struct Helpers {
    metrics: Option<Arc<MetricsServer>>,
    controls: Vec<(Arc<control::Listener>, std::thread::JoinHandle<()>)>,
}

impl Helpers {
    fn metrics(
        &mut self,
        metrics: Arc<MetricsServer>,
        table: Option<Arc<RankTable>>,
        data: Option<Arc<DataServer>>,
    ) {
        self.metrics = Some(Arc::clone(&metrics));
        std::thread::spawn(move || expose(&metrics, table.as_deref(), data.as_deref()));
    }

    fn control(
        &mut self,
        listener: Option<Arc<control::Listener>>,
        answer: impl Fn(&[&str]) -> serde_json::Result<String> + Send + 'static,
    ) {
        let Some(listener) = listener else { return };
        let serving = Arc::clone(&listener);
        self.controls.push((listener, std::thread::spawn(move || serving.serve(answer))));
    }

    fn stop(self) {
        for (listener, thread) in self.controls {
            listener.stop();
            let _ = thread.join();
        }
        if let Some(metrics) = self.metrics {
            metrics.stop();
        }
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
