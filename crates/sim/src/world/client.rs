//! A client node: its sessions and its processes.

mod data;
mod data_pool;
mod leaving;
mod routes;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use espalier_client::{
    Actions, Answer, Cache, Call, FrontendEvent, IncomingCall, Sessions, Users, WalkCounts,
};
use espalier_proto::{
    Accesses, Caller, ClientId, ClusterId, Errno, FromClient, FromServer, Hello, Ino, Layout, Lease, Rank,
    ServerId, ServerMap, Service, Welcome,
};
use espalier_timeline::{Id, NodeId};

use rand::Rng;

use crate::clock::Clock;
use crate::disk::DiskModel;
use crate::message::Message;
use crate::model::Work;
use crate::node::NodeNumbers;
use crate::observe::Node;
use crate::process::{Act, Program};
use crate::random::{Random, Seed};
use crate::scenario::{Caching, Scenario};
use crate::source::Done;
use crate::station::{Arrived, Station};
use crate::storage::Loss;
use crate::time::Nanos;
use crate::world::data_calls::{DataCalls, DataClient};
use crate::world::event::SimEvent;
use crate::world::fabric::{Fabric, WireId};
use crate::world::line::Line;
use crate::world::pages::Pages;
use crate::world::server::host_of;
use crate::world::spans::place_of;
use crate::world::switches::SwitchCosts;
use crate::world::ttl_cache::TtlCache;
use data_pool::DirectAccess;
pub use data_pool::{PoolCounts, PoolRequest};
use routes::{Resolved, Routes};

/// Number of the first client; smaller numbers are reserved for the machines.
pub const FIRST: u64 = 100;
/// Number of cached records.
const CACHED: usize = 65_536;
/// Interval of a client's ticks.
const TICK: Nanos = Nanos(500_000_000);

/// The caller of a call: process and number.
#[derive(Clone, Copy, Debug)]
pub struct CallTicket {
    process: u32,
    call: u64,
}

/// A request to data servers: its number in the sessions, and a token that marks it as pending.
type DataTicket = (u64, Arc<()>);

/// Work of a client's processor.
#[derive(Debug)]
pub enum ClientJob {
    /// A reply is delivered to a process.
    Process(u32),
    Message(WireId, Node, Box<Message>),
    /// Announcement or grant of a payload.
    Handshake,
}

/// A process of a client.
pub struct ProcessSlot {
    process: Box<dyn Program>,
    random: Random,
    /// Index of its workload in the scenario.
    pub workload: u32,
    /// The reply that the process gets when the processor is done.
    answer: Option<Result<Answer, Errno>>,
    has_ended: bool,
}

/// The progress of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    Barrier,
    End,
}

/// See the module description.
pub struct SimClient {
    pub node: Node,
    numbers: NodeNumbers,
    /// The servers of ranks, if they fail over.
    routes: Option<Routes>,
    /// The servers of ranks, if they have stores of their own.
    servers: ServerMap,
    /// Index, from 0.
    pub index: u32,
    pub id: ClientId,
    clock: Clock,
    sessions: Sessions<CallTicket>,
    actions: Actions<CallTicket>,
    lines: BTreeMap<Rank, Line>,
    /// Requests to data servers, with their numbers in the sessions.
    data_calls: DataCalls<DataTicket>,
    /// The data pool of the servers' store, if the client uses it itself.
    direct: Option<DirectAccess>,
    pub slots: Vec<ProcessSlot>,
    calls: u64,
    cpu: Station<ClientJob>,
    switches: SwitchCosts,
    random: Random,
    leases: bool,
    /// Cache with a fixed term, if the client has no leases.
    ttl_cache: Option<TtlCache>,
    /// Page cache of the kernel, if simulated.
    pages: Option<Pages>,
    /// Pending calls whose replies may be cached.
    called: BTreeMap<u64, Call<'static>>,
    /// Interval of keep-alive messages in ticks.
    alive_ticks: u64,
    ticks: u64,
    pub is_up: bool,
    /// The client is ending its sessions.
    pub leaves: bool,
    /// Processes ready to run, with their replies.
    ready: VecDeque<(u32, Option<Result<Answer, Errno>>)>,
    /// Barriers and ends that processes have reached since the last query, with completed
    /// operations.
    pub reached: Vec<(u32, Reached)>,
    pub done: Vec<(u32, Done)>,
}

impl SimClient {
    pub fn new(index: u32, node: Node, scenario: &Scenario, seed: Seed) -> Self {
        let number = u64::from(node.0);
        let numbers = NodeNumbers::of(&scenario.cluster);
        let session = scenario.cluster.session;
        let id = ClientId(FIRST + u64::from(index));
        let mut sessions =
            Sessions::new(Cache::new(CACHED, Users::AtOnce), scenario.cluster.first_ranks().into(), true);
        if !scenario.cluster.writeback {
            sessions.wait_for_servers();
        }
        Self {
            node,
            numbers,
            routes: (numbers.processes > 0).then(|| Routes::new(numbers)),
            servers: ServerMap::NONE,
            index,
            id,
            clock: Clock::new(&scenario.clock, &mut seed.random("clock", number)),
            sessions,
            actions: Actions::default(),
            lines: BTreeMap::new(),
            data_calls: DataCalls::new((node, place_of(id)), numbers.first_data(), false),
            direct: scenario.cluster.is_direct(index).then(|| {
                DirectAccess::new(DiskModel::new(&scenario.disk, seed.random("client's store", number)))
            }),
            slots: Vec::new(),
            calls: 0,
            cpu: Station::new(1),
            switches: SwitchCosts::default(),
            random: seed.random("client", number),
            leases: scenario.cluster.cache == Caching::Leases,
            ttl_cache: TtlCache::of(scenario.cluster.cache),
            pages: None,
            called: BTreeMap::new(),
            alive_ticks: (session.0 / 6 / TICK.0).max(1),
            ticks: 0,
            is_up: true,
            leaves: false,
            ready: VecDeque::new(),
            reached: Vec::new(),
            done: Vec::new(),
        }
    }

    pub fn add(&mut self, process: Box<dyn Program>, workload: u32, random: Random) -> u32 {
        self.slots.push(ProcessSlot { process, random, workload, answer: None, has_ended: false });
        (self.slots.len() - 1) as u32
    }

    /// Keeps all inodes that replies have named, as a kernel that caches them and their data. Every
    /// other client does not check permissions.
    pub fn keep_lookups(&mut self, ranks: u16) {
        let is_checked = self.index.is_multiple_of(2);
        self.sessions = Sessions::new(Cache::new(CACHED, Users::Report), ranks.into(), is_checked);
        self.pages = self.leases.then(Pages::default);
    }

    pub fn walk_counts(&self) -> WalkCounts {
        self.sessions.walk_counts()
    }

    pub fn begin(&mut self, fabric: &mut Fabric<'_>) {
        // Spread the ticks of clients.
        let first = Nanos(self.random.random_range(0..TICK.0));
        fabric.after(first, SimEvent::Tick { node: self.node, start: 0 });
        if let Some(routes) = &mut self.routes {
            routes.begin(fabric, self.node);
        }
        if self.direct.is_some() {
            fabric.after(Nanos::ZERO, SimEvent::OpenPool { client: self.index });
        }
        for process in 0..self.slots.len() as u32 {
            fabric.after(Nanos::ZERO, SimEvent::Resume { client: self.index, process });
        }
    }

    /// The client crashes with its processes.
    pub fn crash(&mut self, fabric: &mut Fabric<'_>) {
        self.is_up = false;
        self.lines.clear();
        for (process, slot) in self.slots.iter_mut().enumerate() {
            if !std::mem::replace(&mut slot.has_ended, true) {
                self.reached.push((process as u32, Reached::End));
            }
        }
        fabric.observer.crashed(fabric.now, self.node, Loss::Process, None);
        if self.sessions.unanswered_changes() > 0 {
            fabric.observer.forgot();
        }
        fabric.drop_node(self.node, true);
    }

    /// Milliseconds of a monotonic clock.
    fn now(&self, fabric: &Fabric<'_>) -> u64 {
        self.clock.shown(fabric.now).as_millis()
    }

    // ---- Tracing

    fn place(&self) -> NodeId {
        place_of(self.id)
    }

    fn called(&self, call: u64) -> Id {
        Id { from: self.place(), to: self.place(), number: call }
    }

    fn request_id(&self, rank: Rank, number: u64) -> Id {
        Id { from: self.place(), to: NodeId::Rank(rank.0), number }
    }

    fn trace_sent(&self, fabric: &mut Fabric<'_>, rank: Rank, message: &FromClient) {
        if let (true, Some((id, kind))) = (fabric.traces(), message.asks()) {
            let call = self.sessions.call_of(rank, id).map(|call| self.called(call));
            let id = self.request_id(rank, id.0);
            fabric.begin_span(self.place(), id, kind.name(), || call.into_iter().collect());
        }
    }

    // ---- Processes

    /// Continues a process.
    pub fn resume(&mut self, fabric: &mut Fabric<'_>, process: u32) {
        if let Some(slot) = self.slots.get_mut(process as usize).filter(|slot| !slot.has_ended) {
            let answer = slot.answer.take();
            self.ready.push_back((process, answer));
            self.advance(fabric);
        }
    }

    /// Runs processes until all of them wait.
    fn advance(&mut self, fabric: &mut Fabric<'_>) {
        loop {
            while let Some((process, answer)) = self.ready.pop_front() {
                self.step(fabric, process, answer);
            }
            self.carry_out(fabric);
            if self.ready.is_empty() {
                return;
            }
        }
    }

    fn step(&mut self, fabric: &mut Fabric<'_>, process: u32, answer: Option<Result<Answer, Errno>>) {
        let slot = &mut self.slots[process as usize];
        let act = slot.process.step(fabric.now, &mut slot.random, answer);
        self.done.extend(slot.process.take_finished().into_iter().map(|done| (process, done)));
        match act {
            Act::Call(caller, call) => self.call(fabric, process, caller, call),
            Act::CallFor(caller, call, patience) => {
                let event = SimEvent::Interrupt { client: self.index, call: self.calls + 1 };
                fabric.after(patience, event);
                self.call(fabric, process, caller, call);
            }
            Act::Forget => {
                self.sessions.cache().distrust();
                self.ttl_cache.iter_mut().for_each(TtlCache::forget);
                self.pages.iter_mut().for_each(Pages::drop_all);
                self.ready.push_back((process, None));
            }
            Act::Pause(time) => fabric.after(time, SimEvent::Resume { client: self.index, process }),
            Act::Barrier(_) => self.reached.push((process, Reached::Barrier)),
            Act::End => {
                self.slots[process as usize].has_ended = true;
                self.reached.push((process, Reached::End));
            }
        }
    }

    fn call(&mut self, fabric: &mut Fabric<'_>, process: u32, caller: Caller, call: Call<'static>) {
        self.calls += 1;
        let now = self.now(fabric);
        let ticket = CallTicket { process, call: self.calls };
        fabric.observer.invoked(fabric.now, self.index, ticket.call, &caller, &call);
        fabric.begin_span(self.place(), self.called(ticket.call), call.kind().name(), Vec::new);
        let shown = self.clock.shown(fabric.now);
        if let Some(retained) = self.pages.as_ref().and_then(|pages| pages.answer(&call)) {
            let result = Ok(retained);
            self.end_call(fabric, ticket, &result, 0);
            return self.ready.push_back((process, Some(result)));
        }
        let known = self.sessions.answer(now, &caller, &call);
        let ttl_cache = || Some((Ok(self.ttl_cache.as_ref()?.answer(shown, &call)?), 0));
        let known = known.or_else(ttl_cache);
        if let Some(pages) = &mut self.pages {
            pages.called(ticket.call, &call);
        }
        if let Some((result, lease_ms)) = known {
            if let Some(pages) = &mut self.pages {
                pages.answered(ticket.call, &call, &result, lease_ms);
            }
            self.end_call(fabric, ticket, &result, 0);
            return self.ready.push_back((process, Some(result)));
        }
        if self.ttl_cache.is_some() || self.pages.is_some() {
            self.called.insert(ticket.call, call.clone());
        }
        let incoming = IncomingCall { call_id: ticket.call, caller, call, ticket };
        self.sessions.call(now, incoming, &mut self.actions);
    }

    /// Interrupts a call that waits for a lock.
    pub fn interrupt(&mut self, fabric: &mut Fabric<'_>, call: u64) {
        if self.is_up {
            self.sessions.interrupt(call, |_| false, |_| false, &mut self.actions);
            self.advance(fabric);
        }
    }

    /// `lease_ms`: term of the reply's leases.
    fn end_call(
        &mut self,
        fabric: &mut Fabric<'_>,
        ticket: CallTicket,
        result: &Result<Answer, Errno>,
        lease_ms: u64,
    ) {
        if let Some(call) = self.called.remove(&ticket.call) {
            if let Some(ttl_cache) = &mut self.ttl_cache {
                ttl_cache.learn(self.clock.shown(fabric.now), &call, result);
            }
            if let Some(pages) = &mut self.pages {
                pages.answered(ticket.call, &call, result, lease_ms);
            }
        }
        if self.sessions.is_acknowledged(ticket.call) {
            fabric.observer.acknowledged_writeback(self.index, ticket.call);
        }
        fabric.observer.answered(fabric.now, self.index, ticket.call, result);
        fabric.end_span(self.place(), self.called(ticket.call));
    }

    fn answered(
        &mut self,
        fabric: &mut Fabric<'_>,
        ticket: CallTicket,
        result: Result<Answer, Errno>,
        lease_ms: u64,
    ) {
        self.end_call(fabric, ticket, &result, lease_ms);
        if fabric.model.is_free(Work::Client) && fabric.model.is_free(Work::ClientWake) {
            return self.ready.push_back((ticket.process, Some(result)));
        }
        self.slots[ticket.process as usize].answer = Some(result);
        self.give(fabric, ClientJob::Process(ticket.process));
    }

    /// Queues work for the processor.
    fn give(&mut self, fabric: &mut Fabric<'_>, job: ClientJob) {
        let idle = self.cpu.idle(fabric.now);
        if let Some(arrived) = self.cpu.arrive(fabric.now, job) {
            self.prepare(fabric, arrived, idle);
        }
    }

    /// `idle`: idle time of the processor before.
    fn prepare(
        &mut self,
        fabric: &mut Fabric<'_>,
        Arrived { at: since, job }: Arrived<ClientJob>,
        idle: Nanos,
    ) {
        let work = match job {
            ClientJob::Process(_) => Work::Client,
            ClientJob::Message(..) | ClientJob::Handshake => Work::ClientMessage,
        };
        let mut time = fabric.model.cost(work).sample(&mut self.random)
            + fabric.model.wake(Work::ClientWake, idle, &mut self.random);
        if let ClientJob::Message(wire, ..) = job {
            time += self.switches.cost_of(fabric, Work::ClientTurn, (wire, since), &mut self.random);
        }
        fabric.work(time, SimEvent::Prepared { client: self.index, job, since });
    }

    pub fn prepared(&mut self, fabric: &mut Fabric<'_>, job: ClientJob, since: Nanos) {
        let rests = self.switches.owes() && !self.cpu.has_waiting();
        if !rests {
            self.prepare_next(fabric, since);
        }
        match job {
            ClientJob::Process(process) => self.resume(fabric, process),
            ClientJob::Message(wire, from, message) if self.is_up => {
                self.take(fabric, wire, from, *message);
            }
            ClientJob::Message(..) | ClientJob::Handshake => {}
        }
        if rests {
            self.rest(fabric, since);
        }
    }

    fn prepare_next(&mut self, fabric: &mut Fabric<'_>, since: Nanos) {
        if let Some(next) = self.cpu.leave(fabric.now, since) {
            self.prepare(fabric, next, Nanos::ZERO);
        }
    }

    /// The processor has finished work that arrived at `since`: continues with the next, after
    /// paying for its turns.
    pub fn rest(&mut self, fabric: &mut Fabric<'_>, since: Nanos) {
        if self.cpu.has_waiting() || !self.switches.owes() {
            return self.prepare_next(fabric, since);
        }
        let owed = self.switches.take_owed();
        fabric.work(owed, SimEvent::Turned { node: self.node, start: 0, since });
    }

    pub fn shakes_hands(&mut self, fabric: &mut Fabric<'_>) {
        self.give(fabric, ClientJob::Handshake);
    }

    // ---- Sessions

    /// Executes the actions that the sessions request.
    fn carry_out(&mut self, fabric: &mut Fabric<'_>) {
        loop {
            for (rank, message) in std::mem::take(&mut self.actions.send) {
                self.trace_sent(fabric, rank, &message);
                if let Some(wire) = self.lines.get(&rank).filter(|line| line.up).and_then(|line| line.wire) {
                    let id = message.asks().map(|(id, _)| id);
                    let call = id.and_then(|id| {
                        self.sessions.call_of(rank, id).or_else(|| self.sessions.pending_call_of(rank, id))
                    });
                    if let Some(call) = call {
                        fabric.observer.requested(self.index, call, rank, &message);
                    }
                    fabric.send(wire, self.node, Message::FromClient(message));
                }
            }
            for ask in std::mem::take(&mut self.actions.data) {
                self.ask_data_servers(fabric, ask);
            }
            if self.actions.frontend.is_empty() && self.actions.send.is_empty() {
                break;
            }
            for event in std::mem::take(&mut self.actions.frontend) {
                match event {
                    FrontendEvent::Answer { ticket, result, lease_ms } => {
                        self.answered(fabric, ticket, result, lease_ms);
                    }
                    // The simulated processes cache nothing.
                    FrontendEvent::Revoke { rank, number, lease, .. } => {
                        if let Lease::Inode { ino } | Lease::Data { ino } = lease {
                            self.drop_pages(&[ino]);
                        }
                        self.sessions.revoked(rank, number, &mut self.actions)
                    }
                    FrontendEvent::Groups { rank, id, .. } => {
                        self.sessions.groups(rank, id, [].into(), &mut self.actions);
                    }
                    FrontendEvent::Distrust { inos, .. } | FrontendEvent::Changed(inos) => {
                        self.drop_pages(&inos)
                    }
                    FrontendEvent::DistrustNames
                    | FrontendEvent::PrivilegesRemoved(_)
                    | FrontendEvent::Recall { .. }
                    | FrontendEvent::Unlocked(_)
                    | FrontendEvent::Failed { .. } => {}
                }
            }
        }
        self.connect_needed(fabric);
    }

    fn drop_pages(&mut self, inos: &[Ino]) {
        if let Some(pages) = &mut self.pages {
            inos.iter().for_each(|ino| pages.drop(*ino));
        }
    }

    /// Connects to ranks that are needed for the first time.
    fn connect_needed(&mut self, fabric: &mut Fabric<'_>) {
        if !self.leaves && self.sessions.needed().len() > self.lines.len() {
            let new: Vec<Rank> =
                self.sessions.needed().filter(|rank| !self.lines.contains_key(rank)).collect();
            for rank in new {
                self.reach(fabric, rank);
            }
        }
    }

    /// Connects to a metadata server, unless connected.
    pub fn reach(&mut self, fabric: &mut Fabric<'_>, rank: Rank) {
        let line = self.lines.entry(rank).or_default();
        if line.wire.is_none() && self.is_up {
            let (to, host) = match self.routes.as_mut().map(|routes| routes.resolve(rank)) {
                None => {
                    let first = Node(rank.0.into());
                    (first, host_of(&self.servers, rank).unwrap_or(first))
                }
                Some(Resolved::At(node)) => (node, node),
                Some(Resolved::Nowhere) => {
                    let (pause, other) = (line.pause(), Node(rank.0.into()));
                    return fabric.after(pause, SimEvent::Reach { node: self.node, start: 0, other });
                }
            };
            let (cluster, client) = (ClusterId::ANY, self.id);
            let service =
                Service::Metadata { leases: self.leases, accesses: Accesses::All, rank: Some(rank) };
            let incarnation = self.sessions.incarnation(rank);
            let hello = Hello { cluster, service, client, incarnation };
            line.begin(fabric.connect_at(self.node, (to, host), hello));
        }
    }

    /// Connects to a data server.
    pub fn reach_data(&mut self, fabric: &mut Fabric<'_>, server: ServerId) {
        if self.is_up && !self.leaves {
            self.data_calls.reach(fabric, DataClient::Client(self.id), server);
        }
    }

    pub fn lost(&mut self, fabric: &mut Fabric<'_>, wire: WireId) {
        self.switches.lost(wire);
        if let Some((other, pause)) = self.data_calls.lost(wire) {
            return fabric.after(pause, SimEvent::Reach { node: self.node, start: 0, other });
        }
        if let Some((number, pause)) = self.routes.as_mut().and_then(|routes| routes.lost(wire)) {
            return fabric.after(pause, SimEvent::Follow { client: self.index, number });
        }
        for (rank, line) in &mut self.lines {
            if line.lose(wire) {
                self.sessions.disconnected(*rank);
                let other = Node(rank.0.into());
                fabric.after(line.pause(), SimEvent::Reach { node: self.node, start: 0, other });
                return;
            }
        }
    }

    pub fn arrives(&mut self, fabric: &mut Fabric<'_>, wire: WireId, from: Node, message: Message) {
        if fabric.model.is_free(Work::ClientMessage) && fabric.model.is_free(Work::ClientTurn) {
            self.take(fabric, wire, from, message);
        } else {
            self.give(fabric, ClientJob::Message(wire, from, Box::new(message)));
        }
    }

    fn take(&mut self, fabric: &mut Fabric<'_>, wire: WireId, from: Node, message: Message) {
        match message {
            Message::FromData(message) => {
                if let Some(reached) = self.data_calls.received(fabric, from, wire, message) {
                    self.reached_data(fabric, reached);
                    self.advance(fabric);
                }
                return;
            }
            Message::Addresses(servers) => return self.rerouted(fabric, &servers),
            Message::Welcome(welcome) if self.routes.as_mut().is_some_and(|routes| routes.opened(wire)) => {
                return self.rerouted(fabric, &welcome.servers);
            }
            Message::Welcome(_) if self.numbers.rank_of(from).is_none() => {
                return self.data_calls.welcomed(fabric, DataClient::Client(self.id), from, wire);
            }
            Message::Refused if self.numbers.rank_of(from).is_none() => {
                return fabric.cut(wire, Nanos::ZERO);
            }
            _ => {}
        }
        let rank = self.numbers.rank_of(from).unwrap_or_default();
        let Some(line) = self.lines.get_mut(&rank).filter(|line| line.wire == Some(wire)) else { return };
        match message {
            Message::Welcome(welcome) => {
                line.opened(wire);
                self.welcomed(fabric, rank, &welcome);
            }
            Message::Refused => fabric.cut(wire, Nanos::ZERO),
            Message::Ended => {
                let now = self.now(fabric);
                self.sessions.ended(now, rank, &mut self.actions);
                fabric.cut(wire, Nanos::ZERO);
                self.advance(fabric);
            }
            Message::FromServer(message) => {
                if let FromServer::Reply { id, .. } = &message {
                    fabric.end_span(self.place(), self.request_id(rank, id.0));
                }
                if let FromServer::Servers(servers) = &message {
                    self.learn_hosts(servers);
                }
                let now = self.now(fabric);
                self.sessions.received(now, rank, message, &mut self.actions);
                self.advance(fabric);
            }
            _ => {}
        }
    }

    fn welcomed(&mut self, fabric: &mut Fabric<'_>, rank: Rank, welcome: &Welcome) {
        let now = self.now(fabric);
        if let Some(routes) = &mut self.routes {
            routes.connected(rank, welcome.incarnation);
        }
        self.rerouted(fabric, &welcome.servers);
        self.sessions.connected(now, rank, welcome, &mut self.actions);
        self.advance(fabric);
        if self.leaves {
            self.say_goodbye(fabric, rank);
        }
    }

    pub fn tick(&mut self, fabric: &mut Fabric<'_>) {
        self.ticks += 1;
        let now = self.now(fabric);
        let shown = self.clock.shown(fabric.now);
        if let Some(routes) = &mut self.routes {
            routes.tick(fabric, self.node);
        }
        self.ttl_cache.iter_mut().for_each(|ttl_cache| ttl_cache.tick(shown));
        let is_stuck =
            |layout: &Layout| !layout.servers().iter().all(|server| self.data_calls.is_reached(*server));
        self.sessions.tick(now, is_stuck, &mut self.actions);
        if self.ticks.is_multiple_of(self.alive_ticks) {
            for wire in self.lines.values().filter(|line| line.up).filter_map(|line| line.wire) {
                fabric.send(wire, self.node, Message::Alive);
            }
        }
        self.advance(fabric);
        if self.leaves {
            self.leave(fabric);
        }
        fabric.after(self.clock.real(TICK), SimEvent::Tick { node: self.node, start: 0 });
    }
}
