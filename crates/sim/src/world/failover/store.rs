//! The store that servers share: objects in memory, with the cluster map among them.

use std::sync::Arc;

use espalier_meta::failover::{ClusterMap, Input, Swapped};
use espalier_proto::{Rank, Time};
use espalier_store::engine::{MemoryPoolKind, ObjectOp};
use espalier_store::{
    Engine, EngineFailure, FormatOptions, MemoryEngine, StoreError, Superblock, break_lease, format_objects,
};
use rand::Rng;

use crate::disk::DiskRequest;
use crate::observe::{FailoverEvent, FailoverStep};
use crate::random::{Random, Seed};
use crate::scenario::Scenario;
use crate::storage::{FailedOsds, OSDS, Storage, StorageError, osd_of};
use crate::time::Nanos;
use crate::world::World;
use crate::world::config::config;
use crate::world::event::SimEvent;
use crate::world::server::DiskJob;

use super::ProcessEvent;

/// The pool of the bytes of big files, if they have one.
const DATA_POOL: &str = "data";
/// The object with the cluster map.
const OBJECT: &str = "0.cluster-map";

/// Time limit of a request.
const LIMIT: Nanos = Nanos(30_000_000_000);

/// A request of a process to the store.
#[derive(Debug)]
pub enum StoreRequest {
    /// Read the cluster map.
    Look,
    /// Replace the cluster map of this version.
    Swap { version: u64, map: ClusterMap },
    /// Fence these earlier holders of a rank.
    Fence { rank: Rank, clients: Vec<String> },
}

/// See the module description.
pub struct SharedStore {
    engine: MemoryEngine,
    superblock: Superblock,
    random: Random,
    /// Time from which on the objects of each OSD are served.
    down_until: [Nanos; OSDS],
}

impl SharedStore {
    /// The store of an empty file system.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn new(scenario: &Scenario, seed: Seed) -> Result<Self, StorageError> {
        let ranks = scenario.cluster.ranks;
        let engine = Arc::new(MemoryEngine::new());
        let time = Time::new(0, 0);
        engine.set_now(time);
        let journal_bytes = scenario.cluster.journal.0;
        let data_pool = scenario.cluster.data_pool.then(|| DATA_POOL.into());
        engine.add_pool(DATA_POOL, MemoryPoolKind::ErasureCoded);
        let options = FormatOptions { journal_bytes, ranks, data_pool, ..FormatOptions::default() };
        let superblock = format_objects(&engine, "the shared store", &options)?;
        for rank in 0..ranks {
            let storage = Storage::open_shared(&engine, &superblock, Rank(rank))?;
            storage.format_shared(&config(scenario, rank, None), time)?;
        }
        let map = postcard::to_allocvec(&ClusterMap::new(ranks)).map_err(|_| StorageError::Empty)?;
        engine.write_if(OBJECT, map, None).map_err(StoreError::from)?;
        let (engine, random) = (engine.client(), seed.random("shared store", 0));
        Ok(Self { engine, superblock, random, down_until: [Nanos::ZERO; OSDS] })
    }

    /// The connection of a new process.
    pub fn connect(&self) -> Arc<MemoryEngine> {
        Arc::new(self.engine.client())
    }

    /// The data pool under a new address, if there is one.
    pub fn open_data_pool(&self) -> Option<MemoryEngine> {
        self.superblock.data_pool.as_ref()?;
        self.engine.client().other_pool(DATA_POOL).ok()
    }

    /// The time from which on an object is served.
    pub fn answers_from(&self, object: &str) -> Nanos {
        self.down_until[osd_of(object)]
    }

    pub fn set_time_out(&self, osds: Option<FailedOsds>) {
        self.engine.set_time_out(osds.map(FailedOsds::into_time_out));
    }

    pub fn set_now(&self, now: Time) {
        self.engine.set_now(now);
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    fn map(&self) -> ClusterMap {
        self.engine.read_versioned(OBJECT).ok().and_then(|read| decode(&read.bytes)).unwrap_or_default()
    }

    /// True if every rank has a server that answers.
    pub fn are_served(&self) -> bool {
        self.map().ranks.iter().all(|rank| rank.serving)
    }
}

fn decode(bytes: &[u8]) -> Option<ClusterMap> {
    postcard::from_bytes(bytes).ok()
}

fn look(engine: &MemoryEngine) -> Input {
    match engine.read_versioned(OBJECT) {
        Ok(read) => Input::Looked(decode(&read.bytes).map(|map| (read.version, map))),
        Err(error) if error.is(&EngineFailure::Fenced) => Input::Refused,
        Err(_) => Input::Looked(None),
    }
}

impl World<'_> {
    /// An OSD fails, and its objects are served again later.
    pub(in crate::world) fn fail_osd(&mut self, osd: usize, lasts: Nanos) {
        let until = self.fabric.now + lasts;
        let Some(cluster) = &mut self.failover else { return };
        self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Disturbed);
        let down_until = &mut cluster.store.down_until[osd % OSDS];
        *down_until = until.max(*down_until);
    }

    /// The time at which the OSD of an object answers, if that is later.
    pub(in crate::world) fn osd_answers(&mut self, process: u32, object: &str) -> Option<Nanos> {
        let now = self.fabric.now;
        let until = self.failover.as_ref()?.store.down_until[osd_of(object)];
        if until <= now {
            return None;
        }
        self.fabric.observer.failover(now, &FailoverEvent::Stalled { process, object });
        Some(until)
    }

    /// A request waits for an OSD until then. One that would exceed its time limit ends earlier.
    pub(in crate::world) fn limit(&mut self, job: DiskJob, until: Nanos) -> (Nanos, DiskJob) {
        match self.over_limit(until, true) {
            Some((end, osds)) => (end, DiskJob::OverLimit(Box::new(job), osds)),
            None => (until, job),
        }
    }

    /// The end of a request's time limit if that is earlier than `until`, and the OSDs that do not
    /// answer until then.
    pub(in crate::world) fn over_limit(
        &mut self,
        until: Nanos,
        may_be_late: bool,
    ) -> Option<(Nanos, FailedOsds)> {
        let end = self.fabric.now + LIMIT;
        let store = &mut self.failover.as_mut().filter(|_| until > end)?.store;
        let failed = store.down_until.map(|down_until| down_until > end);
        let seed = store.random.random();
        self.fabric.queue.add(until, SimEvent::LateWrites);
        Some((end, FailedOsds { failed, seed, may_be_late }))
    }

    /// OSDs answer again.
    pub(in crate::world) fn apply_late_writes(&mut self) {
        if let Some(cluster) = &self.failover {
            cluster.store.engine.apply_late();
        }
    }

    /// The time at which a request to an object is carried out, if that is later.
    pub(super) fn object_reached(&mut self, process: u32, object: &str) -> Option<Nanos> {
        self.store_reached(process).or_else(|| self.osd_answers(process, object))
    }

    /// A process sends a request to the store.
    pub(super) fn ask_store(&mut self, process: u32, start: u64, request: StoreRequest) {
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        let time = slot.latency.time(DiskRequest::Transfer(0));
        self.fabric.after(time, SimEvent::StoreRequest { process, start, request });
    }

    /// A request reaches the store. A process that was cut off may not get the answer.
    pub(in crate::world) fn store_request(&mut self, process: u32, start: u64, request: StoreRequest) {
        let object = match &request {
            StoreRequest::Look | StoreRequest::Swap { .. } => OBJECT.into(),
            StoreRequest::Fence { rank, .. } => format!("{rank}.lock"),
        };
        if let Some(until) = self.object_reached(process, &object) {
            let Some((end, _)) = self.over_limit(until, false) else {
                return self.fabric.queue.add(until, SimEvent::StoreRequest { process, start, request });
            };
            let input = self.not_answered(process, start, request);
            let event = ProcessEvent::Input(input);
            return self.fabric.queue.add(end, SimEvent::Process { process, start, event });
        }
        let running = self.failover.as_mut().and_then(|cluster| cluster.running(process, start));
        let Some(engine) = running.map(|running| Arc::clone(&running.engine)) else { return };
        let (now, is_swap) = (self.fabric.now, matches!(request, StoreRequest::Swap { .. }));
        let input = match request {
            StoreRequest::Look => look(&engine),
            StoreRequest::Swap { version, map } => self.swap(&engine, version, &map),
            StoreRequest::Fence { rank, clients } => {
                Input::Fenced { rank, done: self.fence(&engine, rank, &clients) }
            }
        };
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        // The request may have waited for longer than its process.
        let is_lost = slot.cut_until > crate::Nanos::ZERO
            && now == slot.cut_until
            && cluster.store.random.random::<bool>();
        let input = match (is_lost, is_swap, input) {
            (true, true, Input::Swapped(_)) => Input::Swapped(Swapped::Unknown),
            (true, false, Input::Looked(_)) => Input::Looked(None),
            (_, _, input) => input,
        };
        let time = slot.latency.time(DiskRequest::Sync(0));
        self.fabric.after(time, SimEvent::Process { process, start, event: ProcessEvent::Input(input) });
    }

    /// The outcome of a request that exceeds its time limit. The map may be replaced nevertheless.
    fn not_answered(&mut self, process: u32, start: u64, request: StoreRequest) -> Input {
        let Some(cluster) = &mut self.failover else { return Input::Tick };
        let takes_effect = cluster.store.random.random::<bool>();
        let running = cluster.running(process, start).filter(|_| takes_effect);
        let engine = running.map(|running| Arc::clone(&running.engine));
        match (request, engine) {
            (StoreRequest::Look, _) => Input::Looked(None),
            (StoreRequest::Fence { rank, .. }, _) => Input::Fenced { rank, done: false },
            (StoreRequest::Swap { version, map }, Some(engine)) => match self.swap(&engine, version, &map) {
                Input::Refused => Input::Refused,
                _ => Input::Swapped(Swapped::Unknown),
            },
            (StoreRequest::Swap { .. }, None) => Input::Swapped(Swapped::Unknown),
        }
    }

    fn swap(&mut self, engine: &MemoryEngine, version: u64, map: &ClusterMap) -> Input {
        let Some(cluster) = &self.failover else { return Input::Tick };
        let before = cluster.store.map();
        let Ok(bytes) = postcard::to_allocvec(map) else { return Input::Swapped(Swapped::Unknown) };
        let swapped = match self.fabric.mutator.skips(FailoverStep::Guard) {
            true => engine.apply(OBJECT, vec![ObjectOp::WriteFull(bytes)]),
            false => engine.write_if(OBJECT, bytes, Some(version)),
        };
        match swapped {
            Ok(version) => {
                let event = FailoverEvent::Swapped { before: &before, after: map };
                self.fabric.observer.failover(self.fabric.now, &event);
                Input::Swapped(Swapped::Done { version })
            }
            Err(error) if error.is(&EngineFailure::Fenced) => Input::Refused,
            Err(_) => Input::Swapped(Swapped::Unknown),
        }
    }

    /// Fences earlier holders of a rank, and breaks their lock.
    fn fence(&self, engine: &MemoryEngine, rank: Rank, clients: &[String]) -> bool {
        if !self.fabric.mutator.skips(FailoverStep::Fence) {
            let fenced = clients.iter().try_for_each(|client| engine.fence(client));
            return fenced.and_then(|()| break_lease(engine, rank, clients)).is_ok();
        }
        // The next holder of the lock would fence the one that the lock's object names.
        let unnamed = vec![ObjectOp::WriteFull(Vec::new())];
        break_lease(engine, rank, clients)
            .and_then(|()| engine.apply(&format!("{rank}.lock"), unnamed))
            .is_ok()
    }
}
