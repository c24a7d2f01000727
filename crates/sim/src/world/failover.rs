//! Servers that share a store and fail over: the driver of [`Failover`] in virtual time.
//!
//! A server's process can be killed, paused and restarted. While it is paused its events wait; it
//! then goes on with what it knew. Requests that it has sent to the store are carried out meanwhile
//! or later: only fencing stops them.
//!
//! The store is the program's own: an [`ObjectStore`](espalier_store::ObjectStore) for each rank
//! and the cluster map, over an engine in memory. The engine completes each request at once, and
//! the driver delays it, so that no thread waits for it.

mod liveness;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use espalier_meta::failover::{
    Action, Failover, Input, InstanceId, ServerEntry, ServerState, StopReason, Timing,
};
use espalier_proto::{Ino, Rank, ServerMap, Time, Welcome};
use espalier_standby::{Follow, Follower};
use espalier_store::{Engine, MemoryEngine, Superblock};

use crate::clock::Clock;
use crate::disk::{DiskModel, DiskRequest};
use crate::message::Message;
use crate::node::NodeNumbers;
use crate::observe::{FailoverEvent, FailoverStep, Node};
use crate::random::Seed;
use crate::scenario::Scenario;
use crate::storage::{FailedOsds, LostFrames, Storage, StorageError};
use crate::time::Nanos;
use crate::world::World;
use crate::world::event::SimEvent;
use crate::world::fabric::WireId;
use crate::world::server::{Route, Started};
use liveness::Watched;
use store::SharedStore;
pub use store::StoreRequest;

/// Interval of a process's ticks.
const TICK: Nanos = Nanos(25_000_000);
/// Interval of looks at a rank that is handed over.
const POLL: Nanos = Nanos(2_000_000);
/// Time for a checkpoint before a rank is handed over, while it is still served.
const CHECKPOINT: Nanos = Nanos(5_000_000_000);
/// Limit of writing out.
const DRAIN: Nanos = Nanos(30_000_000_000);
/// Time after which a process that has ended by itself is started again.
const RESTART: Nanos = Nanos(1_000_000_000);
/// Interval of looks for the time to start a standby.
const STANDBY: Nanos = Nanos(100_000_000);
/// Interval of a standby's looks at a journal.
const FOLLOW: Nanos = Nanos(1_000_000_000);
/// Bytes that are read when a rank is opened.
const OPENED_BYTES: usize = 1 << 20;

/// An event of a process.
#[derive(Debug)]
pub enum ProcessEvent {
    Tick,
    Input(Input),
    /// The store of a rank is read.
    Open {
        rank: Rank,
        incarnation: u64,
    },
    /// The next look at a rank that is handed over since then.
    Close {
        rank: Rank,
        since: Nanos,
        is_closed: bool,
    },
    /// The next look at the journal of a rank that is followed.
    Follow(Rank),
    /// The next attempt to reach another process.
    Watch(InstanceId),
}

/// All servers of a cluster, and their store.
pub struct FailoverCluster {
    store: SharedStore,
    processes: Vec<SimProcess>,
    /// The last of the servers start when the others hold all ranks.
    standbys: u32,
    instances: u64,
    /// Time until which nobody reaches the store.
    down_until: Nanos,
}

/// A server, whose process may run or not.
struct SimProcess {
    clock: Clock,
    /// Latencies of the store.
    latency: DiskModel,
    /// Number of starts and ends.
    start: u64,
    running: Option<RunningProcess>,
    is_paused: bool,
    /// Events that wait for the end of a pause.
    deferred: Vec<SimEvent>,
    /// Time until which the store is out of reach.
    cut_until: Nanos,
    /// Time between a hand-over and the next start.
    restarts_after: Nanos,
}

/// A process.
struct RunningProcess {
    machine: Failover,
    instance: InstanceId,
    engine: Arc<MemoryEngine>,
    /// Waits for the store's answer about the cluster map; inputs wait meanwhile.
    is_waiting: bool,
    inputs: VecDeque<Input>,
    version: u64,
    published: ServerMap,
    /// Connections to peers that get all addresses.
    followers: Vec<WireId>,
    watched: BTreeMap<InstanceId, Watched>,
    /// Ranks whose journals the process follows.
    follows: BTreeMap<Rank, Box<Follower<MemoryEngine>>>,
}

impl FailoverCluster {
    /// A cluster with an empty file system.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn new(scenario: &Scenario, seed: Seed) -> Result<Self, StorageError> {
        let cluster = &scenario.cluster;
        let process = |number: u16| {
            let number = u64::from(number);
            SimProcess {
                clock: Clock::new(&scenario.clock, &mut seed.random("clock", number)),
                latency: DiskModel::new(&scenario.disk, seed.random("store", number)),
                start: 0,
                running: None,
                is_paused: false,
                deferred: Vec::new(),
                cut_until: Nanos::ZERO,
                restarts_after: RESTART,
            }
        };
        Ok(Self {
            store: SharedStore::new(scenario, seed)?,
            processes: (0..cluster.servers).map(process).collect(),
            standbys: cluster.standbys.into(),
            instances: 0,
            down_until: Nanos::ZERO,
        })
    }

    pub fn is_paused(&self, process: u32) -> bool {
        self.processes[process as usize].is_paused
    }

    /// Keeps an event until the end of a pause.
    pub fn defer(&mut self, process: u32, event: SimEvent) {
        self.processes[process as usize].deferred.push(event);
    }

    /// The data pool under a new address, if the store has one.
    pub fn open_data_pool(&self) -> Option<MemoryEngine> {
        self.store.open_data_pool()
    }

    /// The time at which a client's request to an object is carried out, if that is later.
    pub fn pool_reached(&self, now: Nanos, object: &str) -> Option<Nanos> {
        let until = self.store.answers_from(object).max(self.down_until);
        (until > now).then_some(until)
    }

    /// Clients' requests to objects on these OSDs exceed their time limit.
    pub fn set_time_out(&self, osds: Option<FailedOsds>) {
        self.store.set_time_out(osds);
    }

    /// Sets the time of a change that a client makes.
    pub fn set_now(&self, now: Time) {
        self.store.set_now(now);
    }

    /// The process if it has not ended since `start`.
    fn running(&mut self, process: u32, start: u64) -> Option<&mut RunningProcess> {
        let process = self.processes.get_mut(process as usize).filter(|process| process.start == start)?;
        process.running.as_mut()
    }
}

/// The object that is read first to open a rank.
fn head(rank: Rank) -> String {
    format!("{rank}.head")
}

fn of_map(map: &ServerMap, numbers: NodeNumbers) -> Vec<Option<Route>> {
    let route = |(rank, (address, incarnation)): (u16, (&String, &u64))| {
        let node = numbers.service(address.parse().ok()?, Rank(rank));
        Some(Route { node, incarnation: *incarnation })
    };
    (0..).zip(map.ranks.iter().zip(&map.incarnations)).map(route).collect()
}

impl World<'_> {
    /// Starts the process of a server, unless it runs.
    pub(super) fn start_process(&mut self, process: u32) {
        let (now, servers) = (self.fabric.now, u64::from(self.numbers.processes));
        let Some(cluster) = &mut self.failover else { return };
        let is_standby = process >= self.numbers.processes - cluster.standbys;
        let slot = &mut cluster.processes[process as usize];
        if slot.running.is_some() {
            return;
        }
        if is_standby && slot.start == 0 && !cluster.store.are_served() {
            return self.fabric.after(STANDBY, SimEvent::StartProcess { process });
        }
        cluster.instances += 1;
        let instance = InstanceId(cluster.instances * servers + u64::from(process));
        let engine = cluster.store.connect();
        let own = ServerEntry {
            instance,
            number: process as u16,
            address: process.to_string(),
            store_client: engine.address(),
            state: ServerState::Standby,
            standby_replay: self.scenario.cluster.standby_replay,
            heartbeat: 0,
        };
        slot.start += 1;
        slot.running = Some(RunningProcess {
            machine: Failover::new(Timing::DEFAULT, own),
            instance,
            engine,
            is_waiting: false,
            inputs: VecDeque::new(),
            version: 0,
            published: ServerMap::NONE,
            followers: Vec::new(),
            watched: BTreeMap::new(),
            follows: BTreeMap::new(),
        });
        let start = slot.start;
        self.fabric.revive(self.numbers.process(process));
        self.fabric.observer.failover(now, &FailoverEvent::Started { process });
        self.fabric.after(Nanos::ZERO, SimEvent::Process { process, start, event: ProcessEvent::Tick });
    }

    /// Ends a process. `is_killed`: what it does is interrupted.
    fn end_process(&mut self, process: u32, is_killed: bool, restarts_after: Nanos) {
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        slot.running = None;
        slot.start += 1;
        slot.is_paused = false;
        slot.deferred.clear();
        for rank in (0..self.scenario.cluster.ranks).map(Rank) {
            let service = self.numbers.service(process, rank);
            self.servers[service.0 as usize].end_shared(&mut self.fabric, is_killed);
        }
        self.fabric.drop_node(self.numbers.process(process), false);
        self.fabric.after(restarts_after, SimEvent::StartProcess { process });
    }

    /// Kills a process, if it runs.
    pub(super) fn kill_process(&mut self, process: u32, restarts_after: Nanos) {
        let runs = |cluster: &FailoverCluster| cluster.processes[process as usize].running.is_some();
        if self.failover.as_ref().is_some_and(runs) {
            self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Killed { process });
            self.end_process(process, true, restarts_after);
        }
    }

    /// Pauses a process, if it runs. Returns the number of its start.
    pub(super) fn pause_process(&mut self, process: u32) -> Option<u64> {
        let slot = &mut self.failover.as_mut()?.processes[process as usize];
        if slot.running.is_none() || std::mem::replace(&mut slot.is_paused, true) {
            return None;
        }
        self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Paused { process });
        Some(slot.start)
    }

    /// A paused process goes on, unless it was killed.
    pub(super) fn resume_process(&mut self, process: u32, start: u64) {
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        if slot.start == start && std::mem::take(&mut slot.is_paused) {
            self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Resumed { process });
            for event in std::mem::take(&mut slot.deferred) {
                self.fabric.after(Nanos::ZERO, event);
            }
        }
    }

    /// Has a process hand its ranks over and end.
    pub(super) fn drain_process(&mut self, process: u32, restarts_after: Nanos) {
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        if slot.running.is_some() {
            slot.restarts_after = restarts_after;
            self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Drained { process });
            let (start, event) = (slot.start, ProcessEvent::Input(Input::Drain));
            self.fabric.after(Nanos::ZERO, SimEvent::Process { process, start, event });
        }
    }

    /// A process does not reach the store for a while; `None`: no process does.
    pub(super) fn cut_store(&mut self, process: Option<usize>, lasts: Nanos) {
        let until = self.fabric.now + lasts;
        let Some(cluster) = &mut self.failover else { return };
        self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Disturbed);
        if process.is_none() {
            cluster.down_until = until.max(cluster.down_until);
        }
        for slot in
            cluster.processes.iter_mut().enumerate().filter(|(at, _)| process.is_none_or(|it| it == *at))
        {
            slot.1.cut_until = until.max(slot.1.cut_until);
        }
    }

    /// The store is slow for a process.
    pub(super) fn slow_store(&mut self, process: usize, slowness: f64) {
        let Some(cluster) = &mut self.failover else { return };
        self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Disturbed);
        cluster.processes[process].latency.slowness = slowness;
        for rank in (0..self.scenario.cluster.ranks).map(Rank) {
            let service = self.numbers.service(process as u32, rank);
            self.servers[service.0 as usize].disk.slowness = slowness;
        }
    }

    /// The time at which a request of a node gets through to the store, if that is later.
    pub(super) fn store_reached(&self, process: u32) -> Option<Nanos> {
        let until = self.failover.as_ref()?.processes[process as usize].cut_until;
        (until > self.fabric.now).then_some(until)
    }

    pub(super) fn process_event(&mut self, process: u32, start: u64, event: ProcessEvent) {
        let Some(cluster) = &mut self.failover else { return };
        if cluster.running(process, start).is_none() {
            return;
        }
        match event {
            ProcessEvent::Tick => {
                let next = cluster.processes[process as usize].clock.real(TICK);
                self.fabric.after(next, SimEvent::Process { process, start, event: ProcessEvent::Tick });
                let ranks = (0..self.scenario.cluster.ranks).map(Rank);
                let mut services = ranks.map(|rank| self.numbers.service(process, rank));
                let is_broken = services.any(|service| self.servers[service.0 as usize].is_broken());
                self.process_input(process, start, if is_broken { Input::Broken } else { Input::Tick });
            }
            ProcessEvent::Input(input) => self.process_input(process, start, input),
            ProcessEvent::Open { rank, incarnation } => match self.object_reached(process, &head(rank)) {
                Some(until) => {
                    let (at, event) = match self.over_limit(until, false) {
                        Some((end, _)) => (end, ProcessEvent::Input(Input::Opened { rank, done: false })),
                        None => (until, event),
                    };
                    self.fabric.queue.add(at, SimEvent::Process { process, start, event });
                }
                None => self.open_rank(process, start, rank, incarnation),
            },
            ProcessEvent::Follow(rank) => match self.store_reached(process) {
                Some(until) => self.fabric.queue.add(until, SimEvent::Process { process, start, event }),
                None => self.look_at_journal(process, start, rank),
            },
            ProcessEvent::Close { rank, since, is_closed } => {
                self.close_rank(process, start, rank, since, is_closed);
            }
            ProcessEvent::Watch(instance) => self.watch_process(process, instance),
        }
    }

    fn process_input(&mut self, process: u32, start: u64, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let Some(cluster) = &mut self.failover else { return };
            let now = cluster.processes[process as usize].clock.shown(self.fabric.now).as_millis();
            let Some(running) = cluster.running(process, start) else { return };
            let is_answer = matches!(input, Input::Looked(_) | Input::Swapped(_) | Input::Refused);
            if running.is_waiting && !is_answer {
                running.inputs.push_back(input);
                return;
            }
            running.is_waiting = false;
            let actions = running.machine.on(now, input);
            running.is_waiting =
                actions.iter().any(|action| matches!(action, Action::Look | Action::Swap { .. }));
            let lease = match running.machine.served_until() {
                0 if self.fabric.mutator.skips(FailoverStep::Stop) => u64::MAX,
                until => until,
            };
            for rank in (0..self.scenario.cluster.ranks).map(Rank) {
                let service = self.numbers.service(process, rank);
                self.servers[service.0 as usize].set_lease(lease);
            }
            self.publish(process, start);
            for action in actions {
                self.act(process, start, action);
            }
            let running = self.failover.as_mut().and_then(|cluster| cluster.running(process, start));
            next = running.filter(|running| !running.is_waiting).and_then(|it| it.inputs.pop_front());
        }
    }

    fn act(&mut self, process: u32, start: u64, action: Action) {
        let now = self.fabric.now;
        let Some(cluster) = &mut self.failover else { return };
        match action {
            Action::Look => self.ask_store(process, start, StoreRequest::Look),
            Action::Swap { version, map } => {
                self.ask_store(process, start, StoreRequest::Swap { version, map });
            }
            Action::Fence { rank, clients } => {
                self.ask_store(process, start, StoreRequest::Fence { rank, clients });
            }
            Action::Open { rank, incarnation } => {
                let latency = &mut cluster.processes[process as usize].latency;
                let time = latency.time(DiskRequest::Transfer(OPENED_BYTES));
                let event = ProcessEvent::Open { rank, incarnation };
                self.fabric.after(time, SimEvent::Process { process, start, event });
            }
            Action::Follow { rank } => {
                let service = &self.servers[self.numbers.service(process, rank).0 as usize];
                let (config, superblock) = (service.config.clone(), cluster.store.superblock());
                let superblock = Superblock { rank, ..superblock.clone() };
                let Some(running) = cluster.running(process, start) else { return };
                let follower = Follower::new(Arc::clone(&running.engine), superblock, config, 1 << 20);
                running.follows.insert(rank, Box::new(follower));
                let event = ProcessEvent::Follow(rank);
                self.fabric.after(Nanos::ZERO, SimEvent::Process { process, start, event });
            }
            Action::Unfollow { rank } => {
                if let Some(running) = cluster.running(process, start) {
                    running.follows.remove(&rank);
                }
            }
            Action::Close { rank } => {
                let event = ProcessEvent::Close { rank, since: now, is_closed: false };
                self.fabric.after(Nanos::ZERO, SimEvent::Process { process, start, event });
            }
            Action::Stop(_) if self.fabric.mutator.skips(FailoverStep::Stop) => {}
            Action::Stop(reason) => self.leave_cluster(process, Some(reason), RESTART),
            Action::Leave => {
                let restarts_after = cluster.processes[process as usize].restarts_after;
                self.leave_cluster(process, None, restarts_after);
            }
        }
    }

    fn leave_cluster(&mut self, process: u32, why: Option<StopReason>, restarts_after: Nanos) {
        self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Ended { process, why });
        self.end_process(process, false, restarts_after);
    }

    /// Publishes changes of the map.
    fn publish(&mut self, process: u32, start: u64) {
        let Some(cluster) = &mut self.failover else { return };
        let Some(running) = cluster.running(process, start) else { return };
        let Some((version, map)) = running.machine.map().filter(|(version, _)| *version != running.version)
        else {
            return;
        };
        running.version = version;
        let (map, servers) = (map.clone(), map.addresses(version));
        let before = std::mem::replace(&mut running.published, servers.clone());
        // Heartbeats change the version only.
        let has_changed = servers.ranks != before.ranks
            || servers.incarnations != before.incarnations
            || servers.meta != before.meta;
        let followers = running.followers.clone();
        self.watch_processes(process, start, &map);
        if has_changed {
            let node = self.numbers.process(process);
            for wire in followers {
                self.fabric.send(wire, node, Message::Addresses(servers.clone()));
            }
            let routes = of_map(&servers, self.numbers);
            for rank in (0..self.scenario.cluster.ranks).map(Rank) {
                let service = self.numbers.service(process, rank);
                self.servers[service.0 as usize].rerouted(&mut self.fabric, &routes, &servers);
            }
        }
    }

    /// A standby reads what was written to a journal since its last look.
    fn look_at_journal(&mut self, process: u32, start: u64, rank: Rank) {
        let Some(cluster) = &mut self.failover else { return };
        let Some(running) = cluster.running(process, start) else { return };
        let Some(follower) = running.follows.get_mut(&rank) else { return };
        // After an error, such as a store that is being changed, the next look begins again.
        let delay = if follower.look().unwrap_or(false) { Nanos::ZERO } else { FOLLOW };
        let event = ProcessEvent::Follow(rank);
        self.fabric.after(delay, SimEvent::Process { process, start, event });
    }

    /// Opens the store of a rank and serves it.
    fn open_rank(&mut self, process: u32, start: u64, rank: Rank, incarnation: u64) {
        let Some(cluster) = &mut self.failover else { return };
        let superblock = cluster.store.superblock().clone();
        let Some(running) = cluster.running(process, start) else { return };
        let (servers, lease) = (running.published.clone(), running.machine.served_until());
        let followed = running.follows.remove(&rank).and_then(|follower| follower.end());
        let service = &mut self.servers[self.numbers.service(process, rank).0 as usize];
        let mutator = &self.fabric.mutator;
        let lost = match (mutator.skips(FailoverStep::Replay), mutator.skips(FailoverStep::ReplayRest)) {
            (true, _) => LostFrames::Last,
            (false, true) => LostFrames::Unfollowed,
            (false, false) => LostFrames::None,
        };
        running.engine.set_now(service.clock.time(self.fabric.now));
        let opened = Storage::open_shared(&running.engine, &superblock, rank).and_then(|mut storage| {
            let (meta, is_followed) = storage.recover_followed(&service.config, followed, lost)?;
            Ok((storage, meta, is_followed))
        });
        let done = opened.is_ok();
        match opened {
            Ok((storage, meta, is_followed)) => {
                let event = FailoverEvent::Opened { process, rank, is_followed };
                self.fabric.observer.failover(self.fabric.now, &event);
                let routes = of_map(&servers, self.numbers);
                let started = Started { storage, meta, incarnation, lease, routes, servers };
                service.begin_shared(&mut self.fabric, started);
            }
            Err(cause) => {
                let event = FailoverEvent::NotOpened { process, rank, cause: cause.to_string() };
                self.fabric.observer.failover(self.fabric.now, &event);
            }
        }
        self.process_input(process, start, Input::Opened { rank, done });
    }

    /// Hands a rank over: writes everything out, mostly while the rank is still served, then closes
    /// the store.
    fn close_rank(&mut self, process: u32, start: u64, rank: Rank, since: Nanos, mut is_closed: bool) {
        let passed = self.fabric.now - since;
        let service = &mut self.servers[self.numbers.service(process, rank).0 as usize];
        let is_drained = service.drain(&mut self.fabric);
        if is_closed && (is_drained || passed > DRAIN) {
            service.end_shared(&mut self.fabric, false);
            let running = self.failover.as_mut().and_then(|cluster| cluster.running(process, start));
            // The next holder must fence this process, whose writes may still take effect.
            let input = match running.is_some_and(|running| running.engine.has_unknown_writes()) {
                true => Input::Broken,
                false => Input::Closed { rank },
            };
            return self.process_input(process, start, input);
        }
        if !is_closed && (is_drained || passed > CHECKPOINT) {
            service.close(&mut self.fabric);
            is_closed = true;
        }
        let event = ProcessEvent::Close { rank, since, is_closed };
        self.fabric.after(POLL, SimEvent::Process { process, start, event });
    }

    /// A message arrives at a process.
    pub(super) fn arrives_at_process(&mut self, process: u32, wire: WireId, message: Message) {
        let node = self.numbers.process(process);
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        let Some(running) = &mut slot.running else {
            // Nothing listens there.
            if matches!(message, Message::Hello(_)) {
                self.fabric.send(wire, node, Message::Refused);
            }
            return;
        };
        match message {
            Message::Hello(_) => {
                running.followers.push(wire);
                let welcome = Welcome {
                    incarnation: running.instance.0,
                    window: 1,
                    session_ms: u32::MAX,
                    rank: Rank(0),
                    root: Ino::ROOT,
                    servers: running.published.clone(),
                    data_pool: None,
                };
                self.fabric.send(wire, node, Message::Welcome(Box::new(welcome)));
            }
            Message::Welcome(welcome) => {
                self.process_answers(process, wire, Some(InstanceId(welcome.incarnation)))
            }
            Message::Refused => self.process_answers(process, wire, None),
            _ => {}
        }
    }

    /// Number of the service that serves a rank, or would do so.
    pub(super) fn serving(&self, rank: Rank) -> Node {
        let services = (0..self.numbers.processes.max(1)).map(|process| self.numbers.service(process, rank));
        let newest = services.filter(|node| self.servers[node.0 as usize].is_up());
        let incarnation = |node: &Node| self.servers[node.0 as usize].incarnation;
        newest.max_by_key(incarnation).unwrap_or(self.numbers.service(0, rank))
    }
}
