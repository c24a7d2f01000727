//! A metadata server node: its machine, processor, disk and connections.
//!
//! Requests are served in order of arrival. The machine runs at the end of a request's service
//! time, and its output leaves at once, so a reply never reflects requests that the processor has
//! not served.

mod balancing;
mod data;
mod growth;
mod processor;
mod resources;
mod spans;
mod stop;
mod term;

use std::collections::BTreeMap;

use espalier_balancer::MoveLimits;
use espalier_meta::{
    Acknowledge, Config, Input, Io, IoDone, IoId, Layouts, Meta, Now, Refused, Rights, SessionLayer,
    StreamCall, StreamRequest,
};
use espalier_proto::{
    ClientId, ClusterId, Errno, FromServer, Hello, Ino, Rank, Reply, RequestId, ServerId, ServerMap, Service,
    StreamStat, Welcome,
};
use espalier_timeline::{Layer, NodeId};
use rand::Rng;
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::disk::{DiskModel, DiskRequest};
use crate::message::Message;
use crate::model::Work;
use crate::node::NodeNumbers;
use crate::observe::{FailoverEvent, Node};
use crate::random::{Random, Seed};
use crate::report::Used;
use crate::scenario::Scenario;
use crate::station::{Arrived, Station};
use crate::storage::{FailedOsds, Storage, StorageError};
use crate::time::Nanos;
use crate::world::balance::ADMINISTRATOR;
use crate::world::data_calls::{DataCalls, DataClient};
use crate::world::event::SimEvent;
use crate::world::fabric::{Fabric, WireId};
use crate::world::job::ProcessorJob;
use crate::world::line::Line;
use crate::world::switches::SwitchCosts;
pub use growth::host_of;
use term::Term;
pub use term::{Route, Started};

/// Most unanswered requests of a client.
const WINDOW: u32 = 1024;
const TICK: Nanos = Nanos(1_000_000_000);
/// Duration of [`Io::Rest`].
const REST: Nanos = Nanos(2_000_000);
/// Duration of [`Io::WriteDelay`].
const WRITE_DELAY: Nanos = Nanos(10_000_000);

/// Work of the disk.
#[derive(Debug)]
pub enum DiskJob {
    Io(IoId, Io),
    /// A sync of the journal after an append.
    Journal(IoId, IoDone),
    Stream(StreamRequest),
    /// A request that has waited for OSDs up to its time limit.
    OverLimit(Box<DiskJob>, FailedOsds),
}

/// See the module description.
pub struct SimServer {
    pub node: Node,
    numbers: NodeNumbers,
    pub rank: Rank,
    pub config: Config,
    /// Number of starts and ends.
    pub start: u64,
    /// Increases with each holder of the rank.
    pub incarnation: u64,
    pub clock: Clock,
    pub disk: DiskModel,
    /// `None`: the server does not have the rank.
    pub storage: Option<Storage>,
    term: Term,
    /// Frames reach shared objects at the end of a write, not at its start.
    writes_late: bool,
    /// The disk carries out the end of a checkpoint.
    publishes: bool,
    session_layer: Option<SessionLayer>,
    pub cpu: Station<ProcessorJob>,
    pub device: Station<DiskJob>,
    random: Random,
    rights: Rights,
    clients: FxHashMap<ClientId, WireId>,
    wires: FxHashMap<WireId, ClientId>,
    /// Connected clients that are not accepted yet.
    greeted: BTreeMap<ClientId, WireId>,
    /// Connections to other ranks, by rank.
    peers: Vec<Line>,
    /// Nodes of the other ranks, by rank; `None`: no server has the rank.
    routes: Vec<Option<Route>>,
    /// Incarnations of the other ranks at the last attempt to connect to them.
    reached: Vec<u64>,
    /// Server map for clients. Nodes are found by number, so only the number of data servers
    /// matters, and the servers that have taken over ranks.
    pub servers: ServerMap,
    data_calls: DataCalls<Purpose>,
    switches: SwitchCosts,
    /// Limits of the balancer.
    limits: MoveLimits,
    /// Time and busy time of the processor at the last tick.
    measured: (Nanos, u128),
}

/// Purpose of requests to data servers.
#[derive(Debug)]
enum Purpose {
    Io(IoId, StreamCall, Layouts),
    Admit(IoId),
    Stream((ClientId, RequestId)),
}

/// Parameters of a server.
pub struct Setup<'a> {
    pub node: Node,
    pub config: Config,
    pub scenario: &'a Scenario,
    pub seed: Seed,
}

impl SimServer {
    /// A server of an empty file system, or one that may take a rank over.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn new(setup: Setup<'_>) -> Result<Self, StorageError> {
        let Setup { node, config, scenario, seed } = setup;
        let number = u64::from(node.0);
        let numbers = NodeNumbers::of(&scenario.cluster);
        let process = numbers.process_of(node);
        let clock = Clock::new(&scenario.clock, &mut seed.random("clock", process.map_or(number, u64::from)));
        let (rank, ranks) = (config.rank, scenario.cluster.ranks);
        let storage = match process {
            None => Some(Storage::format(&config, clock.time(Nanos::ZERO))?),
            Some(_) => None,
        };
        let fixed = |rank: u16| Some(Route { node: Node(rank.into()), incarnation: 0 });
        let routes = (0..ranks).map(|rank| process.map_or_else(|| fixed(rank), |_| None)).collect();
        Ok(Self {
            node,
            numbers,
            rank,
            start: 0,
            incarnation: 0,
            disk: DiskModel::new(&scenario.disk, seed.random("disk", number)),
            storage,
            term: Term::default(),
            writes_late: false,
            publishes: false,
            routes,
            reached: vec![0; usize::from(ranks)],
            config,
            clock,
            session_layer: None,
            cpu: Station::new(scenario.cluster.cores),
            device: Station::new(1),
            random: seed.random("server", number),
            rights: Rights::default(),
            clients: FxHashMap::default(),
            wires: FxHashMap::default(),
            greeted: BTreeMap::new(),
            peers: vec![Line::default(); usize::from(ranks)],
            servers: ServerMap {
                data: (0..scenario.cluster.data).map(|server| (ServerId(server), String::new())).collect(),
                ..ServerMap::NONE
            },
            data_calls: DataCalls::new((node, NodeId::Rank(rank.0)), numbers.first_data(), true),
            switches: SwitchCosts::default(),
            limits: scenario.balancer.limits(),
            measured: (Nanos::ZERO, 0),
        })
    }

    pub fn meta(&self) -> Option<&Meta> {
        self.session_layer.as_ref().map(SessionLayer::meta)
    }

    pub fn is_up(&self) -> bool {
        self.session_layer.is_some()
    }

    /// Data servers with unanswered requests.
    pub fn awaited(&self) -> Vec<ServerId> {
        self.data_calls.awaited()
    }

    /// Accounts up to `now`.
    pub fn used(&self, now: Nanos) -> Used {
        let entries = self.meta().map_or(0, |meta| meta.files());
        Used { cores: self.cpu.servers(), cpu: self.cpu.load(now), disk: self.device.load(now), entries }
    }

    /// Starts the server from its storage.
    ///
    /// # Errors
    /// The storage is damaged.
    pub fn begin(&mut self, fabric: &mut Fabric<'_>) -> Result<(), StorageError> {
        let Some(storage) = &mut self.storage else { return Ok(()) };
        let meta = storage.recover(&self.config, false)?;
        self.start += 1;
        self.incarnation = self.start;
        self.term = Term::default();
        self.serve(fabric, meta);
        Ok(())
    }

    /// Begins to serve the rank.
    fn serve(&mut self, fabric: &mut Fabric<'_>, mut meta: Meta) {
        if !fabric.mutator.freezes_fragments() {
            meta.never_freeze();
        }
        self.session_layer = Some(SessionLayer::new(meta));
        fabric.revive(self.node);
        fabric.observer.began(fabric.now, self.node, self.incarnation);
        // Spread the ticks of servers.
        let first = Nanos(self.random.random_range(0..TICK.0));
        fabric.after(first, SimEvent::Tick { node: self.node, start: self.start });
        for rank in 0..self.rank.0 {
            self.reach(fabric, Node(rank.into()));
        }
        for server in 0..self.servers.data.len() {
            self.reach(fabric, Node(self.numbers.first_data().0 + server as u32));
        }
    }

    fn data_client(&self) -> DataClient {
        // Data servers identify metadata servers by rank.
        DataClient::Server(ServerId(self.rank.0), self.start)
    }

    /// Connects to a rank with a smaller number or a data server, unless connected. A rank is named
    /// by its first node.
    pub fn reach(&mut self, fabric: &mut Fabric<'_>, other: Node) {
        let Some(to) = self.numbers.rank_of(other) else {
            let server = ServerId((other.0 - self.numbers.first_data().0) as u16);
            return self.data_calls.reach(fabric, self.data_client(), server);
        };
        let place = usize::from(to.0);
        let line = &mut self.peers[place];
        if line.wire.is_some() {
            return;
        }
        let Some(route) = self.routes[place] else {
            let pause = line.pause();
            return fabric.after(pause, SimEvent::Reach { node: self.node, start: self.start, other });
        };
        self.reached[place] = route.incarnation;
        let (cluster, client) = (ClusterId::ANY, ClientId(self.rank.0.into()));
        let (service, incarnation) = (Service::Peer { from: self.rank, to }, Some(self.incarnation));
        let hello = Hello { cluster, service, client, incarnation };
        let host = host_of(&self.servers, to).filter(|_| self.numbers.processes == 0);
        line.begin(fabric.connect_at(self.node, (route.node, host.unwrap_or(route.node)), hello));
    }

    /// A connection is broken.
    pub fn lost(&mut self, fabric: &mut Fabric<'_>, wire: WireId) {
        self.switches.lost(wire);
        if let Some(client) = self.wires.remove(&wire) {
            if self.clients.get(&client) == Some(&wire) {
                self.clients.remove(&client);
                if let Some(session_layer) = &mut self.session_layer {
                    session_layer.detach(client);
                }
            }
            return;
        }
        if let Some((other, pause)) = self.data_calls.lost(wire) {
            return fabric.after(pause, SimEvent::Reach { node: self.node, start: self.start, other });
        }
        let own = usize::from(self.rank.0);
        for (rank, line) in self.peers.iter_mut().enumerate() {
            if line.lose(wire) && rank < own {
                let other = Node(rank as u32);
                fabric.after(line.pause(), SimEvent::Reach { node: self.node, start: self.start, other });
                return;
            }
        }
    }

    pub fn arrives(&mut self, fabric: &mut Fabric<'_>, wire: WireId, from: Node, message: Message) {
        if self.session_layer.is_none() {
            return fabric.close(wire, self.node);
        }
        let job = match message {
            Message::Hello(hello) => ProcessorJob::Hello(wire, hello),
            Message::FromClient(message) => {
                if let (Some(&client), Some((id, kind))) = (self.wires.get(&wire), message.asks()) {
                    fabric.begin_span(self.place(), self.served_to(client, id.0), kind.name(), Vec::new);
                }
                ProcessorJob::Client(wire, message)
            }
            Message::Peer(message) => {
                let other = self.numbers.rank_of(from).unwrap_or_default();
                fabric.trace_peer((self.rank, other), &message, false, || None);
                ProcessorJob::Peer(wire, other, message)
            }
            Message::Alive => {
                if let Some(&client) = self.wires.get(&wire) {
                    self.input(fabric, Input::Heard { client });
                }
                return;
            }
            Message::Welcome(_) if self.numbers.rank_of(from).is_none() => {
                return self.data_calls.welcomed(fabric, self.data_client(), from, wire);
            }
            Message::FromData(message) => {
                if let Some(reached) = self.data_calls.received(fabric, from, wire, message) {
                    self.reached(fabric, reached);
                    self.carry_out(fabric);
                }
                return;
            }
            Message::Welcome(_) => {
                // The connection to the other rank is accepted.
                let rank = self.numbers.rank_of(from).unwrap_or_default();
                let line = &mut self.peers[usize::from(rank.0)];
                if line.wire != Some(wire) {
                    return;
                }
                line.opened(wire);
                return self.input(fabric, Input::PeerConnected { rank });
            }
            // The connection is made again.
            Message::Refused => return fabric.cut(wire, Nanos::ZERO),
            Message::Ended | Message::FromServer(_) | Message::ToData(_) | Message::Addresses(_) => return,
        };
        if !fabric.model.is_free(Work::Append) {
            self.switches.reached(wire);
        }
        self.work(fabric, job);
    }

    /// Executes a served job.
    fn serve_job(&mut self, fabric: &mut Fabric<'_>, job: ProcessorJob) {
        let left = job.wire().map_or(0, |wire| self.switches.dealt(wire));
        let queued = match self.config.acknowledge {
            Acknowledge::Durable => self.cpu.number(),
            // Messages that wait on the connection; not counted if writes cost nothing.
            _ => left,
        };
        let now = self.now(fabric, queued);
        if self.is_over(fabric)
            && let ProcessorJob::Client(wire, _) | ProcessorJob::Hello(wire, _) = job
        {
            return self.turn_away(fabric, wire);
        }
        let Some(session_layer) = &mut self.session_layer else { return };
        match job {
            ProcessorJob::Client(wire, message) => {
                let Some(&client) = self.wires.get(&wire) else { return };
                if session_layer.take(now, client, &self.rights, message).is_err() {
                    fabric.close(wire, self.node);
                }
                session_layer.heard(now, client);
            }
            ProcessorJob::Peer(wire, from, message) => {
                let is_open = |line: &Line| line.up && line.wire == Some(wire);
                if !self.peers.get(usize::from(from.0)).is_some_and(is_open) {
                    return;
                }
                session_layer.input(now, Input::Peer { from, message });
            }
            ProcessorJob::Append(id, result) => session_layer.input(now, Input::Done { id, result }),
            ProcessorJob::Hello(wire, hello) => match hello.service {
                Service::Metadata { leases, accesses, .. } => {
                    self.greeted.insert(hello.client, wire);
                    let resumes = hello.incarnation.is_some();
                    session_layer.connect(now, hello.client, (leases, resumes), accesses, &self.rights);
                }
                Service::Peer { from, .. } if !self.may_connect(from) => {
                    fabric.send(wire, self.node, Message::Refused);
                }
                Service::Peer { from, .. } => {
                    let line = &mut self.peers[usize::from(from.0)];
                    let old = line.wire.replace(wire).filter(|old| *old != wire);
                    line.opened(wire);
                    if let Some(old) = old {
                        fabric.close(old, self.node);
                    }
                    let welcome = self.welcome();
                    fabric.send(wire, self.node, welcome);
                    self.rank_connected(fabric, from);
                    if let Some(session_layer) = &mut self.session_layer {
                        session_layer.input(now, Input::PeerConnected { rank: from });
                    }
                }
                Service::Data(_) | Service::Delegated(_) | Service::Addresses => {
                    fabric.send(wire, self.node, Message::Refused);
                }
            },
        }
        self.carry_out(fabric);
    }

    fn welcome(&self) -> Message {
        Message::Welcome(Box::new(Welcome {
            incarnation: self.incarnation,
            window: WINDOW,
            session_ms: self.config.session_ms.unwrap_or(u32::MAX),
            rank: self.rank,
            root: Ino::ROOT,
            servers: self.servers.clone(),
            data_pool: None,
        }))
    }

    /// `queued`: as in [`Now`].
    fn now(&self, fabric: &Fabric<'_>, queued: usize) -> Now {
        let uptime_ms = self.clock.shown(fabric.now).as_millis();
        Now { time: self.clock.time(fabric.now), uptime_ms, queued }
    }

    /// Passes an input to the machine that does not come from a client.
    pub fn input(&mut self, fabric: &mut Fabric<'_>, input: Input) {
        let now = self.now(fabric, 0);
        if let Some(session_layer) = &mut self.session_layer {
            session_layer.input(now, input);
            self.carry_out(fabric);
        }
    }

    /// A pause that the machine requested has ended.
    pub fn paused(&mut self, fabric: &mut Fabric<'_>, id: IoId) {
        self.input(fabric, Input::Done { id, result: Ok(IoDone::Paused) });
    }

    pub fn tick(&mut self, fabric: &mut Fabric<'_>) {
        if self.is_over(fabric) {
            self.end_connections(fabric);
        }
        let Some(storage) = &self.storage else { return };
        storage.set_now(self.clock.time(fabric.now));
        let free = storage.free_for_metadata();
        self.input(fabric, Input::Space { free });
        let resources = self.resources(fabric.now);
        self.input(fabric, resources);
        self.input(fabric, Input::Tick);
        fabric.after(self.clock.real(TICK), SimEvent::Tick { node: self.node, start: self.start });
    }

    /// Changes the configuration of a running or stopped server.
    pub fn set_watermarks(&mut self, fabric: &mut Fabric<'_>, (low, high): (usize, usize)) {
        self.config.watermarks = (low, high);
        self.input(fabric, Input::Watermarks { low, high });
    }

    // ---- Actions of the machine

    /// Executes the machine's actions and their immediate consequences.
    fn carry_out(&mut self, fabric: &mut Fabric<'_>) {
        loop {
            let Some(session_layer) = &mut self.session_layer else { return };
            let mut routed = session_layer.route();
            let mut goes_on = false;
            if self.is_over(fabric) {
                // The clients miss messages, which they get over later connections.
                goes_on = !routed.send.is_empty() || !routed.connected.is_empty();
                if goes_on || !routed.peers.is_empty() {
                    self.end_connections(fabric);
                }
                (routed.connected, routed.send, routed.peers) = Default::default();
            }
            for (client, connected) in routed.connected {
                let Some(wire) = self.greeted.remove(&client) else { continue };
                match connected {
                    Ok(_) => {
                        self.attach(fabric, client, wire);
                        goes_on = true;
                    }
                    Err(Refused::Ended) => fabric.send(wire, self.node, Message::Ended),
                    Err(_) => fabric.send(wire, self.node, Message::Refused),
                }
            }
            for (client, message) in routed.send {
                if let FromServer::Reply { id, result, .. } = &message {
                    fabric.end_span(self.place(), self.served_to(client, id.0));
                    fabric.observer.replied(fabric.now, self.rank, client, *id, result);
                }
                if let (ADMINISTRATOR, FromServer::Reply { result, .. }) = (client, &message) {
                    // Busy: an earlier attempt was answered while the server went down.
                    self.administered(fabric, matches!(result, Ok(Reply::Done) | Err(Errno::EBUSY)));
                    goes_on = true;
                }
                if let Some(&wire) = self.clients.get(&client) {
                    let message = self.complete(message);
                    fabric.send(wire, self.node, Message::FromServer(message));
                }
            }
            for (rank, message) in routed.peers {
                self.trace_actions(fabric, rank, &message);
                let line = self.peers[usize::from(rank.0)];
                if let Some(wire) = line.wire.filter(|_| line.up) {
                    fabric.send(wire, self.node, Message::Peer(message));
                }
            }
            for client in routed.ended {
                if let Some(wire) = self.clients.remove(&client) {
                    self.wires.remove(&wire);
                    fabric.close(wire, self.node);
                }
            }
            for stream in routed.streams {
                goes_on |= self.stream(fabric, stream);
            }
            let done: Vec<_> = routed.io.into_iter().filter_map(|(id, io)| self.io(fabric, id, io)).collect();
            if done.is_empty() && !goes_on {
                return;
            }
            let mut left = done.len();
            for (id, result) in done {
                left -= 1;
                let now = self.now(fabric, left);
                if let Some(session_layer) = &mut self.session_layer {
                    session_layer.input(now, Input::Done { id, result });
                }
            }
        }
    }

    fn attach(&mut self, fabric: &mut Fabric<'_>, client: ClientId, wire: WireId) {
        // The other end may have closed the connection meanwhile.
        if fabric.other(wire, self.node).is_none() {
            return;
        }
        let welcome = self.welcome();
        fabric.send(wire, self.node, welcome);
        if let Some(old) = self.clients.insert(client, wire) {
            self.wires.remove(&old);
            fabric.close(old, self.node);
        }
        self.wires.insert(wire, client);
        if let Some(session_layer) = &mut self.session_layer {
            session_layer.attach(client);
        }
    }

    /// Starts a client's stream operation. Returns true if it is already complete.
    fn stream(&mut self, fabric: &mut Fabric<'_>, stream: StreamRequest) -> bool {
        let StreamRequest { of, io, layout: Some(layout), data } = stream else {
            self.store(fabric, DiskJob::Stream(stream));
            return false;
        };
        let cause = vec![self.served_to(of.0, of.1.0)];
        let reached = self.data_calls.stream(fabric, Purpose::Stream(of), layout, (io, data), None, cause);
        reached.is_some_and(|reached| {
            self.reached(fabric, reached);
            true
        })
    }

    /// Starts an I/O. Returns its result if it is complete at once.
    fn io(&mut self, fabric: &mut Fabric<'_>, id: IoId, mut io: Io) -> Option<(IoId, Result<IoDone, Errno>)> {
        if let Some(result) = fabric.mutator.io(self.node, &mut io) {
            return Some((id, result));
        }
        match io {
            // The write goes to the page cache, which survives the process.
            io @ Io::Journal { .. } if self.writes_late => self.store(fabric, DiskJob::Io(id, io)),
            Io::Journal { frame, sync: false } => {
                let causes = self.causes_of(fabric, id);
                fabric.add_span(self.place(), (Layer::Store, "journal append"), causes, fabric.now);
                let result = self.append(frame, fabric.now);
                if fabric.model.is_free(Work::Append) {
                    return Some((id, result));
                }
                self.work(fabric, ProcessorJob::Append(id, result));
            }
            Io::Journal { frame, sync: true } => match self.append(frame, fabric.now) {
                Ok(done) => self.store(fabric, DiskJob::Journal(id, done)),
                Err(errno) => return Some((id, Err(errno))),
            },
            Io::Yield | Io::Rest | Io::WriteDelay => {
                let time = match io {
                    Io::Rest => REST,
                    Io::WriteDelay => WRITE_DELAY,
                    _ => Nanos::ZERO,
                };
                fabric.after(time, SimEvent::Paused { node: self.node, start: self.start, id });
            }
            Io::Stream(call, layouts) if !layouts.is_empty() => {
                return self.ask_data_servers(fabric, id, call, layouts);
            }
            Io::Admit { below, live, .. } if !self.config.data_pool => {
                let actions = self.data_calls.admit(fabric, Purpose::Admit(id), below, live);
                return actions.map(|_| (id, Ok(IoDone::Admitted)));
            }
            // Takes no simulated time.
            Io::Decide(request) => {
                let decision = self.decide(fabric, &request);
                return Some((id, Ok(IoDone::Decided(Box::new(decision)))));
            }
            Io::Groups { .. } => return Some((id, Err(Errno::EIO))),
            io => self.store(fabric, DiskJob::Io(id, io)),
        }
        None
    }

    // ---- The disk

    fn append(&mut self, frame: Vec<u8>, now: Nanos) -> Result<IoDone, Errno> {
        self.storage.as_mut().ok_or(Errno::EIO)?.append(frame, now)
    }

    fn store(&mut self, fabric: &mut Fabric<'_>, job: DiskJob) {
        if let Some(arrived) = self.device.arrive(fabric.now, job) {
            self.start_storing(fabric, arrived);
        }
    }

    fn start_storing(&mut self, fabric: &mut Fabric<'_>, Arrived { at: since, job }: Arrived<DiskJob>) {
        let Some(storage) = &self.storage else { return };
        self.publishes = matches!(job, DiskJob::Io(_, Io::Publish { .. }));
        let access = match &job {
            DiskJob::Io(_, io) => storage.access(io),
            DiskJob::Journal(..) => storage.access(&Io::Sync),
            DiskJob::Stream(stream) => DiskRequest::Transfer(stream.io.op.bytes(&stream.data)),
            DiskJob::OverLimit(..) => DiskRequest::Transfer(0),
        };
        let time = self.disk.time(access);
        fabric.after(time, SimEvent::Stored { node: self.node, start: self.start, since, job });
    }

    /// The disk has completed an operation.
    pub fn stored(&mut self, fabric: &mut Fabric<'_>, since: Nanos, job: DiskJob) {
        self.begin_next(fabric, since);
        self.stored_late(fabric, since, job);
    }

    /// The disk begins the next operation.
    pub fn begin_next(&mut self, fabric: &mut Fabric<'_>, since: Nanos) {
        if let Some(next) = self.device.leave(fabric.now, since) {
            self.start_storing(fabric, next);
        }
    }

    /// An operation is complete, after which the disk has begun others.
    pub fn stored_late(&mut self, fabric: &mut Fabric<'_>, since: Nanos, job: DiskJob) {
        self.trace_stored(fabric, since, &job);
        self.publishes = false;
        let job = match job {
            DiskJob::OverLimit(job, osds) => {
                if let Some(storage) = &self.storage {
                    storage.set_time_out(Some(osds));
                }
                *job
            }
            job => job,
        };
        self.carry_out_job(fabric, job);
    }

    fn carry_out_job(&mut self, fabric: &mut Fabric<'_>, job: DiskJob) {
        let Some(storage) = &mut self.storage else { return };
        storage.set_now(self.clock.time(fabric.now));
        let fails = self.disk.fails;
        match job {
            DiskJob::Io(id, io) => {
                let is_frame = matches!(&io, Io::Journal { frame, .. } if !frame.is_empty());
                let result = if fails { Err(Errno::EIO) } else { storage.execute(io, fabric.now) };
                storage.set_time_out(None);
                if is_frame && self.writes_late && result.is_ok() {
                    fabric.observer.failover(fabric.now, &FailoverEvent::Wrote { node: self.node });
                }
                self.input(fabric, Input::Done { id, result });
            }
            DiskJob::Journal(id, done) => {
                // The frame was written before, and it is not known whether it will be durable.
                let is_over = storage.set_time_out(None);
                let result = if is_over { Err(Errno::EIO) } else { storage.sync().map(|()| done) };
                self.input(fabric, Input::Done { id, result });
            }
            DiskJob::OverLimit(..) => {}
            DiskJob::Stream(StreamRequest { of, io, data, .. }) => {
                let result = if fails { Err(Errno::EIO) } else { storage.stream(io, &data) };
                storage.set_time_out(None);
                if let Some(session_layer) = &mut self.session_layer {
                    session_layer.end_stream(of, result);
                }
                self.carry_out(fabric);
            }
        }
    }
}

fn stream_stat(storage: Option<&Storage>, ino: Ino) -> Result<StreamStat, Errno> {
    storage.ok_or(Errno::EIO)?.stream_stat(ino)
}
