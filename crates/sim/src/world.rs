//! A run: all nodes of a scenario, in virtual time.

mod balance;
mod breaking;
mod client;
mod config;
mod data;
mod data_calls;
mod end;
mod event;
mod fabric;
pub(crate) mod failover;
mod growth;
mod job;
mod line;
mod migration;
mod pages;
mod removal;
mod server;
mod spans;
mod switches;
mod ttl_cache;

use std::collections::BTreeMap;
use std::path::PathBuf;

use espalier_balancer::BalancerPolicy;
use espalier_meta::LoadReport;
use espalier_proto::{LayoutError, Rank, ServerId};
use espalier_store::StoreError;

use crate::balancer::BalancerMove;
use crate::faults::Faults;
use crate::message::Message;
use crate::network::Network;
use crate::node::NodeNumbers;
use crate::observe::{Arrival, Mutator, Node, Observer};
use crate::process::Program;
use crate::random::Seed;
use crate::report::{self, FragmentReport, Report, ServerReport, Summary, Used};
use crate::scenario::{Scenario, ScenarioError};
use crate::series::Series;
use crate::source::{Started, Workload};
use crate::storage::StorageError;
use crate::time::Nanos;
use crate::trace::{Replay, TraceError};
pub use client::FIRST as FIRST_CLIENT;
pub use client::PoolCounts;
use client::{Reached, SimClient};
use config::{config, striping};
use data::DataServer;
use end::RunStage;
use event::SimEvent;
use fabric::{Fabric, WireId};
use failover::FailoverCluster;
use migration::Migrations;
use server::{Setup, SimServer};
pub use spans::Tracing;
pub use ttl_cache::TtlCache;

/// A run. See the module description.
pub struct World<'o> {
    scenario: Scenario,
    seed: Seed,
    numbers: NodeNumbers,
    fabric: Fabric<'o>,
    /// The metadata services, by node.
    servers: Vec<SimServer>,
    /// The servers, if they fail over.
    failover: Option<FailoverCluster>,
    /// The policy that ranks balance their load by.
    balancer: Option<BalancerPolicy>,
    data: Vec<DataServer>,
    clients: Vec<SimClient>,
    pool_counts: PoolCounts,
    faults: Faults,
    crews: Vec<RunningProcesses>,
    replays: Vec<(PathBuf, Replay)>,
    stage: RunStage,
    /// The server that is leaving, by its place in the scenario, and since when.
    leaving: Option<(usize, Nanos)>,
    migrations: Migrations,
    events: u64,
    summary: Summary,
    series: Series,
    /// Number of faults by kind.
    broken: BTreeMap<&'static str, u64>,
    /// End of all processes, and the accounts of servers at that time.
    worked: Option<(Nanos, Vec<Used>)>,
    /// Differences between clients' and servers' records at the end.
    differences: Vec<String>,
}

/// The processes of a workload.
#[derive(Clone, Debug, Default)]
struct RunningProcesses {
    /// Number of running processes.
    left: usize,
    /// Processes that wait at the barrier.
    waiting: Vec<(u32, u32)>,
}

/// Why a run did not end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("[cluster] data: {0}")]
    Layout(#[from] LayoutError),
    #[error("at {at}, server {} cannot start: {cause}", node.0)]
    Start { at: Nanos, node: Node, cause: StorageError },
    #[error("at {at}, a migration: {cause}")]
    Migration { at: Nanos, cause: StorageError },
    #[error("{} after the end of all processes the run is not at rest: {}", .after, .waits.join("; "))]
    NotIdle { after: Nanos, waits: Vec<String> },
    #[error("processes have not ended at {at}: {}", .waits.join("; "))]
    Endless { at: Nanos, waits: Vec<String> },
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub now: Nanos,
    /// Number of processes that have ended.
    pub ended: usize,
    pub processes: usize,
    /// Number of completed operations.
    pub operations: u64,
    /// The run is complete.
    pub is_over: bool,
}

impl<'o> World<'o> {
    /// A world with the scenario's workloads, at its start.
    ///
    /// # Errors
    /// [`RunError::Scenario`], [`RunError::Trace`]
    pub fn new(
        scenario: &Scenario,
        observer: &'o mut dyn Observer,
        mutator: &'o mut dyn Mutator,
    ) -> Result<Self, RunError> {
        let mut world = Self::empty(scenario, observer, mutator)?;
        let mut first = 0;
        for (number, workload) in scenario.workload.iter().enumerate() {
            first += world.add_workload(workload, number as u32, first)?;
        }
        Ok(world)
    }

    /// As [`Self::new`], without processes: [`Self::add_processes`] adds them.
    ///
    /// # Errors
    /// [`RunError::Scenario`]
    pub fn empty(
        scenario: &Scenario,
        observer: &'o mut dyn Observer,
        mutator: &'o mut dyn Mutator,
    ) -> Result<Self, RunError> {
        let (seed, cluster) = (Seed(scenario.seed), &scenario.cluster);
        let nodes = scenario.nodes() as usize;
        let network = Network::new(scenario.network(), nodes, seed.random("network", 0));
        let fabric =
            Fabric::new(scenario.cost_model()?, network, scenario.processors(), nodes, observer, mutator);
        let striping = striping(cluster)?;
        let numbers = NodeNumbers::of(cluster);
        let start_error = |node| move |cause| RunError::Start { at: Nanos::ZERO, node, cause };
        let server = |node: u32| {
            let node = Node(node);
            let rank = numbers.rank_of(node).unwrap_or_default().0;
            let setup = Setup { node, config: config(scenario, rank, striping.clone()), scenario, seed };
            SimServer::new(setup).map_err(start_error(node))
        };
        let servers = (0..numbers.services()).map(server).collect::<Result<_, _>>()?;
        let failover = (numbers.processes > 0).then(|| FailoverCluster::new(scenario, seed));
        let failover = failover.transpose().map_err(start_error(numbers.process(0)))?;
        let first = numbers.first_client().0;
        let data = |number: u16| {
            let node = Node(numbers.first_data().0 + u32::from(number));
            let failed = |cause: StoreError| RunError::Start { at: Nanos::ZERO, node, cause: cause.into() };
            DataServer::new(node, scenario, seed).map_err(failed)
        };
        let client = |index| SimClient::new(index, Node(first + index), scenario, seed);
        Ok(Self {
            seed,
            numbers,
            fabric,
            servers,
            failover,
            balancer: scenario.balancer.policy(&scenario.dir)?,
            data: (0..cluster.data).map(data).collect::<Result<_, _>>()?,
            clients: (0..cluster.clients).map(client).collect(),
            pool_counts: PoolCounts::default(),
            faults: Faults::new(&scenario.faults, seed),
            crews: Vec::new(),
            replays: Vec::new(),
            stage: RunStage::Begins,
            leaving: None,
            migrations: Migrations::new(&cluster.migration_step, seed),
            events: 0,
            summary: Summary::default(),
            series: Series::new(first as usize, cluster.clients as usize),
            broken: BTreeMap::new(),
            worked: None,
            differences: Vec::new(),
            scenario: scenario.clone(),
        })
    }

    fn add_workload(&mut self, workload: &Workload, number: u32, first: u32) -> Result<u32, RunError> {
        let (clients, dir) = (self.scenario.cluster.clients, &self.scenario.dir);
        let Started { crews, replays } = workload.start(number, first, clients, dir)?;
        let count = crews.iter().map(|crew| crew.len() as u32).sum();
        let program = |(client, process)| (client, Box::new(process) as Box<dyn Program>);
        crews.into_iter().for_each(|crew| self.add_processes(crew.into_iter().map(program).collect()));
        self.replays.extend(replays);
        Ok(count)
    }

    /// Adds processes that meet at barriers, each on the client with the given number, which must
    /// exist.
    pub fn add_processes(&mut self, processes: Vec<(u32, Box<dyn Program>)>) {
        let number = self.crews.len() as u32;
        self.crews.push(RunningProcesses { left: processes.len(), waiting: Vec::new() });
        let count = self.clients.len();
        for (client, process) in processes {
            let client = &mut self.clients[client as usize % count];
            let random =
                self.seed.random("process", u64::from(client.index) << 32 | client.slots.len() as u64);
            client.add(process, number, random);
        }
    }

    /// Makes clients keep all inodes that replies have named, since the processes use their
    /// numbers. Must precede the run.
    pub fn keep_lookups(&mut self) {
        let ranks = self.scenario.cluster.first_ranks();
        self.clients.iter_mut().for_each(|client| client.keep_lookups(ranks));
    }

    /// Number of first pages of directories that were fetched ahead and read.
    pub fn pages_read_ahead(&self) -> u64 {
        self.clients.iter().map(|client| client.walk_counts().read).sum()
    }

    /// Operations of clients on the data pool.
    pub fn pool_counts(&self) -> PoolCounts {
        self.pool_counts
    }

    /// Processes at most `events` events. After an error only [`Self::report`] is valid.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn advance(&mut self, events: u64) -> Result<Progress, RunError> {
        if self.stage == RunStage::Begins {
            self.begin()?;
        }
        for _ in 0..events {
            if self.stage == RunStage::Over {
                break;
            }
            // Cannot happen: ticks repeat forever.
            let Some((at, event)) = self.fabric.queue.pop() else { break };
            self.fabric.now = at;
            self.events += 1;
            self.happen(event)?;
        }
        Ok(self.progress())
    }

    /// Executes the run to its end.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn run(&mut self) -> Result<Report, RunError> {
        while !self.advance(1 << 20)?.is_over {}
        Ok(self.report())
    }

    pub fn progress(&self) -> Progress {
        let processes = self.clients.iter().map(|client| client.slots.len()).sum();
        let left: usize = self.crews.iter().map(|crew| crew.left).sum();
        let operations = self.summary.operations();
        Progress {
            now: self.fabric.now,
            ended: processes - left,
            processes,
            operations,
            is_over: self.stage == RunStage::Over,
        }
    }

    fn begin(&mut self) -> Result<(), RunError> {
        self.stage = RunStage::Works;
        for server in &mut self.data {
            server.begin(&mut self.fabric);
        }
        if self.failover.is_none() {
            let first = self.scenario.cluster.first_ranks();
            (0..first).try_for_each(|rank| self.begin_server(Node(rank.into())))?;
            for (rank, at) in (first..).zip(&self.scenario.cluster.joins) {
                self.fabric.queue.add(*at, SimEvent::Join { rank: Rank(rank) });
            }
            for (number, leave) in self.scenario.cluster.leaves.iter().enumerate() {
                self.fabric.queue.add(leave.at, SimEvent::Leave { number });
            }
            for (number, migration) in self.scenario.cluster.migrations.iter().enumerate() {
                self.fabric.queue.add(migration.at, SimEvent::Migrate { number });
            }
        }
        for process in 0..self.numbers.processes {
            self.start_process(process);
        }
        for client in &mut self.clients {
            client.begin(&mut self.fabric);
        }
        self.begin_balancer();
        for (at, kind) in self.faults.first() {
            self.fabric.queue.add(at, SimEvent::Fault(kind));
        }
        self.fabric.after(self.scenario.output.series, SimEvent::Sample);
        if self.crews.iter().all(|crew| crew.left == 0) {
            self.fabric.after(Nanos::ZERO, SimEvent::Drain);
        }
        Ok(())
    }

    fn begin_server(&mut self, node: Node) -> Result<(), RunError> {
        let begun = self.servers[node.0 as usize].begin(&mut self.fabric);
        begun.map_err(|cause| RunError::Start { at: self.fabric.now, node, cause })
    }

    fn client_at(&mut self, node: Node) -> Option<usize> {
        let index = self.numbers.client_of(node)? as usize;
        Some(index).filter(|index| self.clients[*index].is_up)
    }

    fn data_at(&mut self, node: Node) -> Option<&mut DataServer> {
        let place = (node.0 as usize).checked_sub(self.servers.len())?;
        self.data.get_mut(place)
    }

    /// Calls `action` with a data server that has not restarted since `start`.
    fn at_data(&mut self, node: Node, start: u64, action: impl FnOnce(&mut DataServer, &mut Fabric<'o>)) {
        let found =
            (node.0 as usize).checked_sub(self.servers.len()).and_then(|place| self.data.get_mut(place));
        if let Some(server) = found.filter(|server| server.start == start && server.is_up()) {
            action(server, &mut self.fabric);
        }
    }

    /// Calls `action` with a metadata server that has not restarted since `start`.
    fn at_server(&mut self, node: Node, start: u64, action: impl FnOnce(&mut SimServer, &mut Fabric<'o>)) {
        let found = self.servers.get_mut(node.0 as usize);
        if let Some(server) = found.filter(|server| server.start == start && server.is_up()) {
            action(server, &mut self.fabric);
        }
    }

    /// The server of an event, if servers fail over.
    fn process_of(&self, event: &SimEvent) -> Option<u32> {
        match event {
            SimEvent::Process { process, .. } => Some(*process),
            SimEvent::Arrives { to: node, .. }
            | SimEvent::Lost { node, .. }
            | SimEvent::Reach { node, .. }
            | SimEvent::Served { node, .. }
            | SimEvent::Turned { node, .. }
            | SimEvent::Stored { node, .. }
            | SimEvent::StoredLate { node, .. }
            | SimEvent::Paused { node, .. }
            | SimEvent::Tick { node, .. } => self.numbers.process_of(*node),
            _ => None,
        }
    }

    /// Delays the event of a paused server, and the answer of a store that is out of reach or whose
    /// OSD has failed.
    fn delay(&mut self, event: SimEvent) -> Option<SimEvent> {
        let Some(process) = self.process_of(&event) else { return Some(event) };
        if let Some(cluster) = self.failover.as_mut().filter(|cluster| cluster.is_paused(process)) {
            cluster.defer(process, event);
            return None;
        }
        let (SimEvent::Stored { node, start, job, .. } | SimEvent::StoredLate { node, start, job, .. }) =
            &event
        else {
            return Some(event);
        };
        if let Some(until) = self.store_reached(process) {
            self.fabric.queue.add(until, event);
            return None;
        }
        let server =
            Some(&self.servers[node.0 as usize]).filter(|server| server.start == *start && server.is_up());
        let object = server.and_then(|server| server.object_of(job));
        let Some(until) = object.and_then(|object| self.osd_answers(process, &object)) else {
            return Some(event);
        };
        let (until, event) = match event {
            // Requests to other objects go on.
            SimEvent::Stored { node, start, since, job } => {
                self.at_server(node, start, |server, fabric| server.begin_next(fabric, since));
                let (until, job) = self.limit(job, until);
                (until, SimEvent::StoredLate { node, start, since, job })
            }
            event => (until, event),
        };
        self.fabric.queue.add(until, event);
        None
    }

    fn happen(&mut self, event: SimEvent) -> Result<(), RunError> {
        let Some(event) = self.delay(event) else { return Ok(()) };
        match event {
            SimEvent::Arrives { wire, to, message } => self.arrives(wire, to, message),
            SimEvent::Handshake { node } => {
                if let Some(client) = self.client_at(node) {
                    self.clients[client].shakes_hands(&mut self.fabric);
                }
            }
            SimEvent::Lost { node, wire } => match self.client_at(node) {
                Some(client) => self.clients[client].lost(&mut self.fabric, wire),
                None => {
                    if let (Some(process), None) = (self.numbers.process_of(node), self.numbers.rank_of(node))
                    {
                        self.lost_by_process(process, wire);
                    } else if let Some(server) = self.servers.get_mut(node.0 as usize) {
                        server.lost(&mut self.fabric, wire);
                    } else if let Some(server) = self.data.get_mut(node.0 as usize - self.servers.len()) {
                        server.lost(&mut self.fabric, wire);
                    }
                }
            },
            SimEvent::Reach { node, start, other } => match self.client_at(node) {
                Some(client) => match other.0.checked_sub(self.numbers.first_data().0) {
                    None => {
                        self.refer_client(client, Rank(other.0 as u16));
                        self.clients[client].reach(&mut self.fabric, Rank(other.0 as u16));
                    }
                    Some(server) => {
                        self.clients[client].reach_data(&mut self.fabric, ServerId(server as u16))
                    }
                },
                None => self.at_server(node, start, |server, fabric| server.reach(fabric, other)),
            },
            SimEvent::Served { node, start, since, job } => {
                self.at_server(node, start, |server, fabric| server.served(fabric, since, job));
            }
            SimEvent::Turned { node, start, since } => match self.client_at(node) {
                Some(client) => self.clients[client].rest(&mut self.fabric, since),
                None => self.at_server(node, start, |server, fabric| server.rest(fabric, since)),
            },
            SimEvent::Stored { node, start, since, job } => {
                self.at_server(node, start, |server, fabric| server.stored(fabric, since, job));
            }
            SimEvent::StoredLate { node, start, since, job } => {
                self.at_server(node, start, |server, fabric| server.stored_late(fabric, since, job));
            }
            SimEvent::DataServed { node, start, since, job } => {
                self.at_data(node, start, |server, fabric| server.served(fabric, since, job));
            }
            SimEvent::DataStored { node, start, since, job } => {
                self.at_data(node, start, |server, fabric| server.stored(fabric, since, job));
            }
            SimEvent::Paused { node, start, id } => {
                self.at_server(node, start, |server, fabric| server.paused(fabric, id));
            }
            SimEvent::Tick { node, start } => match self.client_at(node) {
                Some(client) => {
                    self.clients[client].tick(&mut self.fabric);
                    self.after_client(client);
                }
                None => self.at_server(node, start, |server, fabric| server.tick(fabric)),
            },
            SimEvent::Worked { since, event } => {
                self.fabric.worked(since);
                self.happen(*event)?;
            }
            SimEvent::Prepared { client, job, since } => {
                self.clients[client as usize].prepared(&mut self.fabric, job, since);
                self.after_client(client as usize);
            }
            SimEvent::Interrupt { client, call } => {
                self.clients[client as usize].interrupt(&mut self.fabric, call);
                self.after_client(client as usize);
            }
            SimEvent::Resume { client, process } => {
                self.clients[client as usize].resume(&mut self.fabric, process);
                self.after_client(client as usize);
            }
            SimEvent::Follow { client, number } => {
                self.clients[client as usize].follow(&mut self.fabric, number);
            }
            SimEvent::Process { process, start, event } => self.process_event(process, start, event),
            SimEvent::StoreRequest { process, start, request } => {
                self.store_request(process, start, request);
            }
            SimEvent::LateWrites => self.apply_late_writes(),
            SimEvent::OpenPool { client } => self.open_pool(client),
            SimEvent::PoolRequest { client, request } => self.pool_request(client, request),
            SimEvent::PoolReplied { client, request, result } => {
                self.clients[client as usize].pool_replied(&mut self.fabric, request, result);
                self.after_client(client as usize);
            }
            SimEvent::StartProcess { process } => self.start_process(process),
            SimEvent::SetBalancer => self.set_balancer(),
            SimEvent::Join { rank } => self.join(rank)?,
            SimEvent::Hear { node, ranks } => {
                self.servers[node.0 as usize].hear_of_ranks(&mut self.fabric, ranks);
            }
            SimEvent::Leave { number } => self.remove_server(number)?,
            SimEvent::Migrate { number } => self.begin_migration(number)?,
            SimEvent::MigrationStep { number, start } => self.migration_step(number, start)?,
            SimEvent::HearOfHosts { node } => {
                self.servers[node.0 as usize].hear_of_hosts(&mut self.fabric);
            }
            SimEvent::Fault(kind) => self.fault(kind)?,
            SimEvent::Mend(mend) => self.mend(mend)?,
            SimEvent::Sample => {
                if self.stage == RunStage::Works {
                    self.sample();
                    self.fabric.after(self.scenario.output.series, SimEvent::Sample);
                }
            }
            SimEvent::Drain => self.drain()?,
        }
        Ok(())
    }

    fn arrives(&mut self, wire: WireId, to: Node, message: Message) {
        let Some(from) = self.fabric.other(wire, to) else { return };
        self.fabric.observer.arrived(self.fabric.now, from, to, &message);
        let message = match self.fabric.mutator.arrives(from, to, message) {
            Arrival::Taken(message) => message,
            Arrival::Swallowed => return,
            Arrival::Answered(answer) => return self.fabric.send(wire, to, answer),
        };
        if let Some(client) = self.client_at(to) {
            self.clients[client].arrives(&mut self.fabric, wire, from, message);
            self.after_client(client);
        } else if let (Some(process), None) = (self.numbers.process_of(to), self.numbers.rank_of(to)) {
            self.arrives_at_process(process, wire, message);
        } else if let Some(server) = self.servers.get_mut(to.0 as usize) {
            server.arrives(&mut self.fabric, wire, from, message);
        } else if let Some(server) = self.data.get_mut(to.0 as usize - self.servers.len()) {
            server.arrives(&mut self.fabric, wire, message);
        }
    }

    /// Handles barriers and ends of a client's processes.
    fn after_client(&mut self, index: usize) {
        let client = &mut self.clients[index];
        for (process, done) in client.done.drain(..) {
            self.fabric.observer.finished(client.index, process, &done);
            self.summary.add(&done);
            self.series.ended(client.index, done.ended - done.begun, done.result.is_err());
        }
        for (process, reached) in std::mem::take(&mut client.reached) {
            let crew = &mut self.crews[client.slots[process as usize].workload as usize];
            match reached {
                Reached::Barrier => crew.waiting.push((client.index, process)),
                Reached::End => {
                    crew.left -= 1;
                    // The process may have been waiting at the barrier.
                    crew.waiting.retain(|waiting| *waiting != (client.index, process));
                }
            }
            if crew.waiting.len() == crew.left {
                for (client, process) in crew.waiting.drain(..) {
                    self.fabric.after(Nanos::ZERO, SimEvent::Resume { client, process });
                }
            }
            if reached == Reached::End && self.crews.iter().all(|crew| crew.left == 0) {
                self.fabric.after(Nanos::ZERO, SimEvent::Drain);
            }
        }
    }

    fn sample(&mut self) {
        let now = self.fabric.now;
        let metadata = self.servers.iter().map(|server| (server.is_up(), server.used(now)));
        let data = self.data.iter().map(|server| (server.is_up(), server.used(now)));
        self.series.step(now, metadata.chain(data), &self.fabric.sent);
    }

    fn used(&self) -> Vec<Used> {
        let now = self.fabric.now;
        let metadata = self.servers.iter().map(|server| server.used(now));
        metadata.chain(self.data.iter().map(|server| server.used(now))).collect()
    }

    /// The replays of traces, with their files.
    pub fn replays(&self) -> &[(PathBuf, Replay)] {
        &self.replays
    }

    /// Differences between clients' and servers' records when all processes had ended and nothing
    /// was pending.
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// Entries of partitioned directories on each metadata server.
    pub fn fragment_entries(&self) -> Vec<u64> {
        self.servers.iter().map(|server| server.meta().map_or(0, |meta| meta.fragment_entries())).collect()
    }

    /// Series so far.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// The loads that a metadata server knows, with at most `most` of its directories. `None`: it
    /// is down, or there is none of this rank.
    pub fn load_report(&self, rank: Rank, most: usize) -> Option<LoadReport> {
        Some(self.servers.get(usize::from(rank.0))?.meta()?.load_report(most))
    }

    /// The moves that balancers have decided so far.
    pub fn balancer_moves(&self) -> &[BalancerMove] {
        &self.fabric.decisions.moves
    }

    /// Counts of all ranks since their servers' last start.
    fn fragment_counts(&self) -> FragmentReport {
        let counts = self.servers.iter().filter_map(|server| Some(server.meta()?.figures().fragment_counts));
        counts.fold(FragmentReport::default(), |mut sum, counts| {
            sum.splits += counts.splits;
            sum.splits_by_rate += counts.splits_by_rate;
            sum.merges += counts.merges;
            sum.moves += counts.moves;
            sum.names_moved += counts.names_moved;
            sum.misrouted += counts.misrouted;
            sum.forwarded += counts.forwarded;
            sum
        })
    }

    /// Report so far.
    pub fn report(&self) -> Report {
        let (worked, used) = self.worked.clone().unwrap_or_else(|| (self.fabric.now, self.used()));
        let server = |(number, used): (usize, &Used)| {
            let role = if number < self.servers.len() { "metadata" } else { "data" };
            ServerReport::new(number as u32, role, worked, used)
        };
        let servers = used.iter().enumerate().map(server);
        let (servers, lawless): (Vec<_>, Vec<_>) = servers.unzip();
        Report {
            seed: self.scenario.seed,
            fingerprint: format!("{:016x}", self.fabric.fingerprint),
            worked_s: worked.as_secs_f64(),
            total_s: self.fabric.now.as_secs_f64(),
            events: self.events,
            operations: self.summary.report(worked.as_secs_f64()),
            servers,
            messages: report::messages(&self.fabric.sent),
            message_bytes: self.fabric.bytes,
            faults: self.broken.clone(),
            fragments: self.fragment_counts(),
            balancer: self.balancer.as_ref().map(|_| self.fabric.decisions.report.clone()),
            lawless: lawless.into_iter().flatten().collect(),
        }
    }
}
