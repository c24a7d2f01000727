//! The driver of [`Failover`]: reads and writes the cluster map, fences, opens and closes ranks.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use espalier_meta::failover::{
    Action, ClusterMap, Failover, Input, InstanceId, RankEntry, ServerEntry, ServerState, StopReason,
    Swapped, Timing,
};
use espalier_proto::{ClusterId, DataPool, Errno, Rank};
use espalier_standby::{Follow, FollowedState};
use espalier_store::{Engine, EngineError, EngineFailure};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::following::{FollowStatus, Following};
use super::liveness::Liveness;
use super::ranks::{RankService, RankStarter};
use super::served::Served;
use super::term::LeaseEnd;
use crate::clock::lease_ms;
use crate::control::{self, Status};
use crate::error::Error;
use crate::volume::Volume;

/// The object with the cluster map, among those of rank 0.
const OBJECT: &str = "0.cluster-map";
const TICK: Duration = Duration::from_millis(25);
/// Time beyond the limit of writing out, for the other steps of leaving.
const LEAVE: Duration = Duration::from_secs(10);

/// The stores of all ranks, shared by the servers of a cluster.
pub trait RankStores: Send + Sync {
    /// Opens the store of a rank. `followed`: what this server has followed of it.
    ///
    /// # Errors
    /// The rank is given back, and tried again later.
    fn open(&self, rank: Rank, followed: Option<FollowedState>) -> Result<Volume, Error>;

    /// Follows the journal of a rank that another server serves; `None`: that is not possible.
    fn follow(&self, _rank: Rank) -> Option<Box<dyn Follow>> {
        None
    }

    /// Excludes these clients of the store, earlier holders of the rank: on return, none of their
    /// writes takes effect.
    ///
    /// # Errors
    /// The rank is not opened before this succeeds.
    fn fence(&self, rank: Rank, clients: &[String]) -> Result<(), Error>;
}

/// Ranks whose stores all servers of a cluster share.
pub struct SharedRanks {
    pub engine: Arc<dyn Engine>,
    pub stores: Arc<dyn RankStores>,
    pub cluster: ClusterId,
    /// The pool with the bytes of big files, if it is one of its own.
    pub data_pool: Option<DataPool>,
    /// Number of the server in the cluster.
    pub number: u16,
    /// Address for clients and other servers, as `HOST:PORT`; `None`: the bound one.
    pub address: Option<String>,
    /// As a standby, follow the journals of ranks that others serve.
    pub standby_replay: bool,
    /// Directory of the server's control socket.
    pub dir: PathBuf,
}

/// Makes the cluster map of a new cluster.
///
/// # Errors
/// There is one already; the store fails.
pub fn create_cluster_map(engine: &dyn Engine, ranks: u16) -> Result<(), Error> {
    engine.write_if(OBJECT, encode(&ClusterMap::new(ranks))?, None)?;
    Ok(())
}

/// The cluster map and its version.
///
/// # Errors
/// There is none; the store fails.
pub fn read_cluster_map(engine: &dyn Engine) -> Result<(u64, ClusterMap), Error> {
    let read = engine.read_versioned(OBJECT)?;
    Ok((read.version, serde_json::from_slice(&read.bytes).map_err(damaged)?))
}

/// Adds a rank, whose store exists, to the cluster map: the next free server serves it.
///
/// # Errors
/// The map has other ranks by now; the store fails.
pub fn add_to_cluster_map(engine: &dyn Engine, rank: Rank) -> Result<(), Error> {
    loop {
        let (version, mut map) = read_cluster_map(engine)?;
        if map.ranks.len() != usize::from(rank.0) {
            return Err(Error::OtherRanks);
        }
        map.ranks.push(RankEntry::default());
        match engine.write_if(OBJECT, encode(&map)?, Some(version)) {
            Ok(_) => return Ok(()),
            // A server has renewed its lease meanwhile.
            Err(error) if error.is(&EngineFailure::Guard) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn encode(map: &ClusterMap) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(map).map_err(damaged)
}

fn damaged(cause: serde_json::Error) -> Error {
    Error::Io { context: "the cluster map is damaged".into(), source: cause.into() }
}

/// The cluster as a server knows it.
pub struct Known {
    instance: InstanceId,
    map: Mutex<(u64, ClusterMap)>,
    starter: Arc<RankStarter>,
    follows: Mutex<BTreeMap<Rank, Following>>,
}

impl Known {
    fn follows(&self) -> MutexGuard<'_, BTreeMap<Rank, Following>> {
        self.follows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The status of a server that shares its store with others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub pid: u32,
    pub url: String,
    pub instance: InstanceId,
    /// Version of the cluster map.
    pub version: u64,
    pub map: ClusterMap,
    /// Ranks that the server serves.
    pub ranks: Vec<Status>,
    /// Ranks whose journals the server follows.
    pub follows: Vec<FollowStatus>,
}

/// The status of the server with this directory.
///
/// # Errors
/// No such server runs, or another user's does.
pub fn status_of_server(dir: &Path) -> Result<ClusterStatus, Error> {
    control::ask(dir, "cluster").map_err(|source| {
        let context =
            format!("cannot ask the server of {}: does it run, and by the same user?", dir.display());
        Error::Io { context, source }
    })
}

pub(super) fn answer(known: &Known, url: &str) -> serde_json::Result<String> {
    let (version, map) = known.map.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let status = |metadata| {
        let served = Served { metadata, url: url.into() };
        control::status(&served.metadata.superblock, &served)
    };
    let ranks = known.starter.table.all().into_iter().map(status).collect();
    let (pid, url, instance) = (std::process::id(), url.into(), known.instance);
    let follows = known.follows().iter().map(|(rank, following)| following.status(*rank)).collect();
    serde_json::to_string(&ClusterStatus { pid, url, instance, version, map, ranks, follows })
}

enum DriverEvent {
    Input(Input),
    Opened(Rank, Box<Result<RankService, Error>>),
    Closed(Rank),
}

/// The running driver.
pub(super) struct Coordinator {
    messages: mpsc::Sender<DriverEvent>,
    known: Arc<Known>,
    ended: oneshot::Receiver<Result<(), StopReason>>,
}

impl Coordinator {
    /// Joins the cluster in the background.
    pub(super) fn start(
        shared: SharedRanks,
        starter: RankStarter,
        incarnation: u64,
        address: SocketAddr,
    ) -> Self {
        let SharedRanks { engine, stores, number, address: advertised, standby_replay, .. } = shared;
        let (instance, store_client) = (InstanceId(incarnation), engine.address());
        let address = advertised.unwrap_or_else(|| address.to_string());
        let (state, heartbeat) = (ServerState::Standby, 0);
        let own = ServerEntry { instance, number, address, store_client, state, standby_replay, heartbeat };
        let (messages, received) = mpsc::channel();
        let starter = Arc::new(starter);
        let (map, follows, of_known) = (Mutex::default(), Mutex::default(), Arc::clone(&starter));
        let known = Arc::new(Known { instance, map, starter: of_known, follows });
        let liveness = Liveness::new(instance, &starter, {
            let messages = messages.clone();
            move |instance| {
                let _ = messages.send(DriverEvent::Input(Input::Ended(instance)));
            }
        });
        let driver = Driver {
            machine: Failover::new(Timing::DEFAULT, own),
            engine,
            stores,
            starter,
            lease: LeaseEnd::default(),
            messages: messages.clone(),
            services: BTreeMap::new(),
            liveness,
            known: Arc::clone(&known),
        };
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            // The other end may be gone at the end of the process.
            let _ = end.send(driver.run(&received));
        });
        Self { messages, known, ended }
    }

    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known)
    }

    /// Runs until the signal, then hands all ranks over; or until another server has taken over.
    pub(super) fn run(
        self,
        runtime: &Handle,
        signal: impl Future<Output = ()>,
        limit: Duration,
    ) -> Result<(), Error> {
        let Self { messages, mut ended, .. } = self;
        let (is_draining, ended) = runtime.block_on(async {
            tokio::select! {
                () = signal => {
                    let _ = messages.send(DriverEvent::Input(Input::Drain));
                    (true, tokio::time::timeout(limit + LEAVE, ended).await.ok())
                }
                ended = &mut ended => (false, Some(ended)),
            }
        });
        let outcome = match ended {
            Some(Ok(Ok(()))) => Ok(()),
            // Its ranks are taken over when the process has ended.
            Some(Ok(Err(StopReason::Broken))) if is_draining => Ok(()),
            Some(Ok(Err(StopReason::Removed))) => Err(Error::Removed),
            Some(Ok(Err(StopReason::Fenced))) => Err(Error::Fenced),
            Some(Ok(Err(StopReason::Broken))) => Err(Error::BrokenJournal),
            // The thread has panicked, or the time is over.
            Some(Err(_)) | None => Err(Error::Unwritten(Errno::EIO)),
        };
        outcome.inspect_err(|error| tracing::error!("{error}"))
    }
}

struct Driver {
    machine: Failover,
    engine: Arc<dyn Engine>,
    stores: Arc<dyn RankStores>,
    starter: Arc<RankStarter>,
    lease: LeaseEnd,
    messages: mpsc::Sender<DriverEvent>,
    services: BTreeMap<Rank, RankService>,
    liveness: Liveness,
    known: Arc<Known>,
}

impl Driver {
    /// Runs until this server has left the cluster, or must stop.
    fn run(mut self, received: &mpsc::Receiver<DriverEvent>) -> Result<(), StopReason> {
        let outcome = self.coordinate(received);
        std::mem::take(&mut self.services).into_values().for_each(RankService::abandon);
        self.known.follows().clear();
        outcome
    }

    fn coordinate(&mut self, received: &mpsc::Receiver<DriverEvent>) -> Result<(), StopReason> {
        let mut own = VecDeque::new();
        loop {
            let message = match own.pop_front() {
                Some(message) => message,
                None => match received.recv_timeout(TICK) {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        let is_broken = self.services.values().any(RankService::is_broken);
                        DriverEvent::Input(if is_broken { self.broken() } else { Input::Tick })
                    }
                },
            };
            let input = self.input(message);
            let actions = self.machine.on(lease_ms(), input);
            self.lease.set(self.machine.served_until());
            self.publish();
            for action in actions {
                match action {
                    Action::Look => own.push_back(DriverEvent::Input(self.look())),
                    Action::Swap { version, map } => {
                        own.push_back(DriverEvent::Input(self.swap(version, &map)))
                    }
                    Action::Fence { rank, clients } => self.fence(rank, clients),
                    Action::Open { rank, incarnation } => self.open(rank, incarnation),
                    Action::Follow { rank } => self.follow(rank),
                    Action::Unfollow { rank } => drop(self.known.follows().remove(&rank)),
                    Action::Close { rank } => self.close(rank),
                    Action::Stop(reason) => return Err(reason),
                    Action::Leave => return Ok(()),
                }
            }
        }
    }

    fn input(&mut self, message: DriverEvent) -> Input {
        match message {
            DriverEvent::Input(input) => input,
            DriverEvent::Opened(rank, opened) => {
                let done = opened.is_ok();
                match *opened {
                    Ok(service) => drop(self.services.insert(rank, service)),
                    Err(error) => tracing::error!(%rank, %error, "cannot open a rank: it is given back"),
                }
                Input::Opened { rank, done }
            }
            // The next holder must fence this server, whose writes may still take effect.
            DriverEvent::Closed(rank) if self.engine.has_unknown_writes() => {
                tracing::warn!(%rank, "writes to the store were not answered in time: giving up all ranks");
                Input::Broken
            }
            DriverEvent::Closed(rank) => Input::Closed { rank },
        }
    }

    fn look(&self) -> Input {
        match read_cluster_map(&*self.engine) {
            Ok((version, map)) => Input::Looked(Some((version, map))),
            Err(error) if is_fenced(&error) => Input::Refused,
            Err(error) => {
                tracing::warn!(%error, "cannot read the cluster map");
                Input::Looked(None)
            }
        }
    }

    /// The journal of a rank has failed. If another server has taken over, that is the reason.
    fn broken(&self) -> Input {
        let is_known = |map: &ClusterMap| map.server(self.known.instance).is_some();
        match self.look() {
            Input::Looked(Some((_, map))) if is_known(&map) => Input::Broken,
            Input::Looked(None) => Input::Broken,
            other => other,
        }
    }

    fn swap(&self, version: u64, map: &ClusterMap) -> Input {
        let swapped = encode(map).and_then(|bytes| Ok(self.engine.write_if(OBJECT, bytes, Some(version))?));
        match swapped {
            Ok(version) => Input::Swapped(Swapped::Done { version }),
            Err(error) if is_fenced(&error) => Input::Refused,
            Err(error) => {
                tracing::debug!(%error, "the cluster map was not replaced");
                Input::Swapped(Swapped::Unknown)
            }
        }
    }

    /// Publishes changes of the map.
    fn publish(&mut self) {
        let Some((version, map)) = self.machine.map() else { return };
        let mut known = self.known.map.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 == version {
            return;
        }
        *known = (version, map.clone());
        drop(known);
        self.liveness.update(map);
        let mut servers = map.addresses(version);
        if self.starter.data_key.is_some() {
            servers.data.clone_from(&self.starter.data_servers);
        }
        let has_changed = self.starter.table.addresses.send_if_modified(|published| {
            // Heartbeats change the version only.
            let before = std::mem::replace(published, servers);
            published.ranks != before.ranks
                || published.incarnations != before.incarnations
                || published.meta != before.meta
        });
        if has_changed {
            self.starter.table.announce_ranks();
        }
    }

    fn fence(&self, rank: Rank, clients: Vec<String>) {
        let (stores, messages) = (Arc::clone(&self.stores), self.messages.clone());
        std::thread::spawn(move || {
            let fenced = stores.fence(rank, &clients);
            let done = fenced.is_ok();
            match fenced {
                Ok(()) => tracing::info!(%rank, ?clients, "fenced the earlier servers of a rank"),
                Err(error) => tracing::error!(%rank, %error, "cannot fence the earlier servers of a rank"),
            }
            let _ = messages.send(DriverEvent::Input(Input::Fenced { rank, done }));
        });
    }

    fn follow(&self, rank: Rank) {
        if let Some(follower) = self.stores.follow(rank) {
            tracing::info!(%rank, "following the journal of a rank");
            self.known.follows().insert(rank, Following::start(follower, rank));
        }
    }

    fn open(&self, rank: Rank, incarnation: u64) {
        let (stores, starter) = (Arc::clone(&self.stores), Arc::clone(&self.starter));
        let (messages, lease) = (self.messages.clone(), self.lease.clone());
        let following = self.known.follows().remove(&rank);
        std::thread::spawn(move || {
            let began = Instant::now();
            let followed = following.and_then(Following::end);
            let opened = stores.open(rank, followed).and_then(|volume| {
                let (events, tail, warm) = (volume.replayed, volume.replayed_tail, volume.is_warm);
                let path = format!("rank {rank}");
                let service = starter.start(volume, Path::new(&path), incarnation, Some(lease))?;
                let ms = began.elapsed().as_millis();
                tracing::info!(
                    %rank, incarnation, events, tail, warm, ms, "serving a rank: replayed its journal"
                );
                Ok(service)
            });
            let _ = messages.send(DriverEvent::Opened(rank, Box::new(opened)));
        });
    }

    fn close(&mut self, rank: Rank) {
        let (service, messages) = (self.services.remove(&rank), self.messages.clone());
        let limit = self.starter.options.drain;
        std::thread::spawn(move || {
            if service.is_some_and(|service| !service.hand_over(limit)) {
                tracing::warn!(%rank, "not everything was written out: the next server replays the journal");
            }
            let _ = messages.send(DriverEvent::Closed(rank));
        });
    }
}

fn is_fenced(error: &Error) -> bool {
    matches!(error, Error::Engine(EngineError { failure: EngineFailure::Fenced, .. }))
}
