//! The ranks that a server serves: each is a metadata service with threads of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use espalier_meta::Input;
use espalier_net::SealKey;
use espalier_proto::{ClusterId, DataPool, Errno, Rank, ServerId, ServerMap};
use espalier_store::{Superblock, superblock};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::access::Access;
use super::connection::Metadata;
use super::delegate::Sealer;
use super::machine::{Equipment, Server};
use super::peers::Peers;
use super::term::{LeaseEnd, ServeTerm};
use super::{OwnStore, ServeOptions, Settings};
use crate::addresses::Addresses;
use crate::data::{DataRequester, DataServers, Striper};
use crate::error::Error;
use crate::tracer::{NodeId, Tracer};
use crate::volume::Volume;
use crate::watch::Watch;

/// Time for a checkpoint before a rank is handed over, while it is still served.
const CHECKPOINT: Duration = Duration::from_secs(5);
/// Time for connections to end before a rank's store is closed.
const DISCONNECT: Duration = Duration::from_secs(2);

/// State shared by all connections to the metadata services of a server.
pub struct RankTable {
    ranks: RwLock<BTreeMap<Rank, Arc<Metadata>>>,
    pub cluster: ClusterId,
    pub session_ms: u32,
    /// Addresses for clients and other servers.
    pub addresses: Arc<Addresses>,
    access: RwLock<Arc<Access>>,
    /// Watermarks that differ from those of the start.
    watermarks: RwLock<Option<(usize, usize)>>,
    /// The stores of this server's ranks, if they are its own; locked while a superblock is
    /// changed.
    own_stores: Option<Mutex<BTreeMap<Rank, PathBuf>>>,
    /// The pool with the bytes of big files, which clients may use themselves.
    pub data_pool: Option<DataPool>,
}

impl RankTable {
    pub fn new(
        cluster: ClusterId,
        session_ms: u32,
        servers: ServerMap,
        access: Access,
        own_stores: Option<BTreeMap<Rank, PathBuf>>,
        data_pool: Option<DataPool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            ranks: RwLock::default(),
            cluster,
            session_ms,
            addresses: Arc::new(Addresses::new(servers)),
            access: RwLock::new(Arc::new(access)),
            watermarks: RwLock::default(),
            own_stores: own_stores.map(Mutex::new),
            data_pool,
        })
    }

    fn ranks(&self) -> RwLockReadGuard<'_, BTreeMap<Rank, Arc<Metadata>>> {
        self.ranks.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service of a rank; `None`: the smallest that this server has.
    pub fn get(&self, rank: Option<Rank>) -> Option<Arc<Metadata>> {
        let ranks = self.ranks();
        let found = rank.map_or_else(|| ranks.values().next(), |rank| ranks.get(&rank));
        found.filter(|metadata| !metadata.server.term.is_over()).cloned()
    }

    /// The services of all ranks.
    pub fn all(&self) -> Vec<Arc<Metadata>> {
        self.ranks().values().cloned().collect()
    }

    pub fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, metadata: Arc<Metadata>) {
        if let Some((low, high)) = *self.watermarks.read().unwrap_or_else(PoisonError::into_inner) {
            metadata.server.feed(Input::Watermarks { low, high });
        }
        let rank = metadata.superblock.rank;
        self.ranks.write().unwrap_or_else(PoisonError::into_inner).insert(rank, metadata);
        self.announce_ranks();
    }

    /// True if another rank may connect to one of this server's.
    pub fn is_peer(&self, from: Rank, to: Rank) -> bool {
        from != to && usize::from(from.0) < self.addresses.borrow().ranks.len()
    }

    /// Notifies the services of the ranks in the cluster map, if servers share a store.
    pub fn announce_ranks(&self) {
        if self.own_stores.is_none() {
            let ranks = self.addresses.borrow().ranks.len() as u16;
            self.all().iter().for_each(|metadata| metadata.server.feed(Input::Ranks { ranks }));
        }
    }

    /// Takes over the addresses of all ranks. One that joins is used when it has connected.
    fn set_ranks(&self, ranks: Vec<String>) -> Result<(), Error> {
        let Some(stores) = &self.own_stores else { return Ok(()) };
        for store in stores.lock().unwrap_or_else(PoisonError::into_inner).values() {
            check_ranks(store, ranks.len())?;
        }
        self.addresses.send_if_modified(|servers| {
            let before = std::mem::replace(&mut servers.ranks, ranks);
            before != servers.ranks
        });
        Ok(())
    }

    /// A rank has connected to one of this server's. If it has just joined, that is recorded before
    /// the rank is used.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn rank_connected(&self, rank: Rank, own: Rank, server: &Server) -> Result<(), Error> {
        let Some(stores) = self.own_stores.as_ref().filter(|_| rank.0 >= server.ranks()) else {
            return Ok(());
        };
        let stores = stores.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = stores.get(&own) else { return Ok(()) };
        let (superblock, ranks) = (superblock::read(store)?, rank.0 + 1);
        if ranks > superblock.ranks {
            superblock::write(store, &Superblock { ranks, ..superblock })?;
        }
        server.feed(Input::Ranks { ranks });
        Ok(())
    }

    fn remove(&self, rank: Rank) {
        self.ranks.write().unwrap_or_else(PoisonError::into_inner).remove(&rank);
    }

    /// Applies settings, also to connected clients.
    pub fn set(&self, Settings { access, watermarks: (low, high), ranks, .. }: Settings) {
        let access = Arc::new(access);
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&access);
        *self.watermarks.write().unwrap_or_else(PoisonError::into_inner) = Some((low, high));
        for metadata in self.all() {
            metadata.server.feed(Input::Watermarks { low, high });
            metadata.server.enforce(&access, None);
        }
        if let Err(error) = self.set_ranks(ranks) {
            tracing::error!("{error}: the metadata servers are unchanged");
        }
    }
}

/// Checks that the stores of a server are of different ranks of one cluster, and that its
/// configuration names at least the ranks that they know of. Returns the cluster, and their paths.
///
/// # Errors
/// [`Error::ForeignRank`], [`Error::Ranks`]; a store cannot be read.
pub fn check_stores(
    stores: &[OwnStore],
    named: usize,
) -> Result<(ClusterId, BTreeMap<Rank, PathBuf>), Error> {
    let mut paths = BTreeMap::new();
    let mut cluster = None;
    for OwnStore { volume, path } in stores {
        check_ranks(path, named)?;
        let Superblock { uuid, rank, .. } = volume.superblock;
        if *cluster.get_or_insert(uuid) != uuid || paths.insert(rank, path.clone()).is_some() {
            return Err(Error::ForeignRank(path.clone()));
        }
    }
    let cluster = cluster.map_or(ClusterId::ANY, |uuid| ClusterId(uuid.into_bytes()));
    Ok((cluster, paths))
}

/// Checks that a configuration names at least the ranks that a store knows of.
///
/// # Errors
/// [`Error::Ranks`]; the store cannot be read.
fn check_ranks(store: &Path, named: usize) -> Result<(), Error> {
    let (Superblock { ranks, .. }, named) = (superblock::read(store)?, named.max(1));
    let path = store.into();
    if named < ranks.into() { Err(Error::Ranks { path, ranks, named }) } else { Ok(()) }
}

/// Starts the services of ranks.
pub struct RankStarter {
    pub table: Arc<RankTable>,
    pub options: ServeOptions,
    pub data_servers: Vec<(ServerId, String)>,
    /// Key for capabilities; `None`: clients do not access data servers.
    pub data_key: Option<SealKey>,
    pub runtime: Handle,
}

/// The running service of a rank.
pub struct RankService {
    metadata: Arc<Metadata>,
    table: Arc<RankTable>,
    threads: Vec<JoinHandle<()>>,
    connecting: Vec<AbortHandle>,
    stop_clock: mpsc::Sender<()>,
}

impl RankStarter {
    /// Serves the rank of a store. `path`: of the store, for messages. `lease`: the end of this
    /// server's lease, if the store is shared.
    pub fn start(
        &self,
        volume: Volume,
        path: &Path,
        incarnation: u64,
        lease: Option<LeaseEnd>,
    ) -> Result<RankService, Error> {
        let ServeOptions { security, limits, threads, slow, .. } = &self.options;
        // Data servers identify metadata servers by rank.
        let number = ServerId(volume.superblock.rank.0);
        let sealer = Sealer { key: self.data_key.clone(), number, incarnation };
        let tracer = Tracer::new(NodeId::Rank(volume.superblock.rank.0));
        let striper = if self.data_servers.is_empty() {
            volume.require_whole(path)?;
            None
        } else {
            let requester = DataRequester::Server { number, incarnation };
            let (servers, tracer) = (self.data_servers.clone(), Arc::clone(&tracer));
            let servers = DataServers::new(servers, security.clone(), limits.clone(), requester, tracer);
            Some(Striper::new(servers))
        };
        let Volume { disk, meta, superblock, .. } = volume;
        let (watch, runtime) = (Watch::new(*threads, *slow), self.runtime.clone());
        let term = ServeTerm::new(lease);
        let equipment = Equipment { watch, tracer, striper, sealer, runtime, term };
        let (server, background) = Server::new(meta, disk, equipment);
        let peers = Peers {
            own: superblock.rank,
            addresses: Arc::clone(&self.table.addresses),
            cluster: self.table.cluster,
            incarnation,
            security: security.clone(),
            limits: limits.clone(),
        };
        let (stop_clock, stopped) = channel();
        let (working, ticking) = (Arc::clone(&server), Arc::clone(&server));
        let threads = vec![
            std::thread::spawn(move || working.run_background(background)),
            std::thread::spawn(move || tick_until(&ticking, &stopped)),
        ];
        server.reach_data_servers();
        let connecting = peers.reach(&server, &self.runtime);
        let metadata = Arc::new(Metadata { server, superblock, incarnation });
        self.table.add(Arc::clone(&metadata));
        Ok(RankService { metadata, table: Arc::clone(&self.table), threads, connecting, stop_clock })
    }
}

impl RankService {
    /// Writes everything out, and returns true on success. Clients stay connected.
    pub fn drain(&self, limit: Duration) -> bool {
        self.metadata.server.drain(limit)
    }

    /// The failure of the machine, if any.
    pub fn failure(&self) -> Option<Errno> {
        self.metadata.server.state().1
    }

    /// True if the rank's journal has failed, or the lease of its store is over.
    pub fn is_broken(&self) -> bool {
        self.metadata.server.is_broken()
    }

    /// Ends the threads and closes the store.
    pub fn stop(self) {
        drop(self.stop_clock);
        self.connecting.iter().for_each(AbortHandle::abort);
        self.metadata.server.background_work.stop();
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Ends everything without writing, since another server may have the rank.
    pub fn abandon(self) {
        self.disconnect();
        self.stop();
    }

    /// Ends all connections, and answers nothing from now on.
    fn disconnect(&self) {
        self.table.remove(self.metadata.superblock.rank);
        self.metadata.server.term.close();
        self.metadata.server.end_connections();
    }

    /// Hands the rank over: writes everything out, mostly while the rank is still served, and
    /// closes the store. Returns true if everything is written.
    pub fn hand_over(self, limit: Duration) -> bool {
        let server = Arc::clone(&self.metadata.server);
        self.drain(CHECKPOINT.min(limit));
        self.disconnect();
        let drained = self.drain(limit);
        self.stop();
        let began = Instant::now();
        while Arc::strong_count(&server) > 1 && began.elapsed() < DISCONNECT {
            std::thread::sleep(Duration::from_millis(1));
        }
        drained
    }
}

/// Ticks every second until the other end of `stopped` is dropped.
fn tick_until(server: &Server, stopped: &mpsc::Receiver<()>) {
    server.tick();
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
        server.tick();
    }
}
