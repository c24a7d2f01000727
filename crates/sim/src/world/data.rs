//! A data server node: its machine, processor, disk and connections.

use std::collections::BTreeMap;

use espalier_data::{Data, Input, Io, IoId, Outbox, Requester};
use espalier_proto::{DataRequest, Errno, Hello, Ino, ServerId, ServerMap, Service, ToData, Welcome};
use espalier_store::{Datafiles, MemoryStore, SimFile, StoreError};
use espalier_timeline::{Id, Layer, NodeId};
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::disk::{DiskModel, DiskRequest};
use crate::message::Message;
use crate::model::Work;
use crate::observe::Node;
use crate::random::{Random, Seed};
use crate::report::Used;
use crate::scenario::{Durability, Scenario};
use crate::station::{Arrived, Station};
use crate::storage::Loss;
use crate::time::Nanos;
use crate::world::event::SimEvent;
use crate::world::fabric::{Fabric, WireId};
use crate::world::spans::place_of;

/// Most unanswered requests of a peer.
const WINDOW: u32 = 1024;
/// Bytes on disk for a new datafile.
const NOTE: usize = 48;

/// A request to serve.
#[derive(Debug)]
pub struct DataJob {
    connection: u64,
    message: ToData,
}

/// Work of the disk.
pub type DataDiskJob = (IoId, Io);

/// See the module description.
pub struct DataServer {
    pub node: Node,
    place: NodeId,
    pub start: u64,
    clock: Clock,
    pub disk: DiskModel,
    files: Datafiles<MemoryStore, SimFile>,
    /// Number of datafiles.
    count: u64,
    /// Changes are durable before they are acknowledged.
    sync: bool,
    /// Each removal and each creation is synced separately.
    individually: bool,
    machine: Option<Data>,
    pub cpu: Station<DataJob>,
    pub device: Station<DataDiskJob>,
    random: Random,
    /// Connections by number: their peers.
    peers: BTreeMap<u64, (WireId, Requester)>,
    numbers: FxHashMap<WireId, u64>,
    next_connection: u64,
    out: Outbox,
}

impl DataServer {
    /// # Errors
    /// None is expected of memory.
    pub fn new(node: Node, scenario: &Scenario, seed: Seed) -> Result<Self, StoreError> {
        let number = u64::from(node.0);
        let sync = scenario.cluster.durability == Durability::Durable;
        Ok(Self {
            node,
            place: NodeId::Data(u16::try_from(node.0).unwrap_or(u16::MAX) - scenario.cluster.ranks),
            start: 0,
            clock: Clock::new(&scenario.clock, &mut seed.random("clock", number)),
            disk: DiskModel::new(&scenario.disk, seed.random("disk", number)),
            files: Datafiles::in_memory(sync)?,
            count: 0,
            sync,
            individually: scenario.cluster.high_watermark <= 1,
            machine: None,
            cpu: Station::new(scenario.cluster.cores),
            device: Station::new(1),
            random: seed.random("server", number),
            peers: BTreeMap::new(),
            numbers: FxHashMap::default(),
            next_connection: 0,
            out: Outbox::default(),
        })
    }

    pub fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    /// True if nothing is pending.
    pub fn is_idle(&self) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.under_way() == 0)
            && self.cpu.is_idle()
            && self.device.is_idle()
    }

    pub fn used(&self, now: Nanos) -> Used {
        let (cpu, disk) = (self.cpu.load(now), self.device.load(now));
        Used { cores: self.cpu.servers(), cpu, disk, entries: self.count }
    }

    /// The datafiles with their sizes in bytes.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn datafiles(&self) -> Result<Vec<(Ino, u64)>, StoreError> {
        self.files.all()
    }

    pub fn begin(&mut self, fabric: &mut Fabric<'_>) {
        self.machine = Some(Data::new(self.individually));
        self.start += 1;
        fabric.revive(self.node);
        fabric.observer.began(fabric.now, self.node, self.start);
    }

    /// Changes the configuration of a running or stopped server.
    pub fn set_individual(&mut self, individually: bool) {
        self.individually = individually;
        if let Some(machine) = &mut self.machine {
            machine.set_individual(individually);
        }
    }

    /// # Errors
    /// The journal is invalid.
    pub fn crash(&mut self, fabric: &mut Fabric<'_>, loss: Loss) -> Result<(), StoreError> {
        self.machine = None;
        let power = match loss {
            Loss::Process => None,
            Loss::Power(seed) => Some(seed),
        };
        self.files = self.files.crash(power)?;
        self.count = self.datafiles()?.len() as u64;
        self.cpu.clear(fabric.now);
        self.device.clear(fabric.now);
        self.peers.clear();
        self.numbers.clear();
        self.start += 1;
        fabric.observer.crashed(fabric.now, self.node, loss, None);
        fabric.drop_node(self.node, loss != Loss::Process);
        Ok(())
    }

    pub fn lost(&mut self, fabric: &mut Fabric<'_>, wire: WireId) {
        let connection = self.numbers.remove(&wire);
        if let Some((connection, (_, from))) =
            connection.and_then(|number| Some((number, self.peers.remove(&number)?)))
        {
            self.input(fabric, Input::Disconnect { from, connection });
        }
    }

    pub fn arrives(&mut self, fabric: &mut Fabric<'_>, wire: WireId, message: Message) {
        if self.machine.is_none() {
            return fabric.close(wire, self.node);
        }
        match message {
            Message::Hello(hello) => self.greet(fabric, wire, &hello),
            Message::ToData(message) => {
                let Some(&connection) = self.numbers.get(&wire) else { return };
                if let Some(served) = self.served_to(connection, message.id.0) {
                    fabric.begin_span(self.place, served, message.request.name(), Vec::new);
                }
                if let Some(arrived) = self.cpu.arrive(fabric.now, DataJob { connection, message }) {
                    self.serve(fabric, arrived);
                }
            }
            _ => {}
        }
    }

    fn greet(&mut self, fabric: &mut Fabric<'_>, wire: WireId, hello: &Hello) {
        let from = match hello.service {
            Service::Data(_) => {
                Requester::Server(ServerId(u16::try_from(hello.client.0).unwrap_or(u16::MAX)))
            }
            Service::Delegated(_) => Requester::Client(hello.client),
            Service::Metadata { .. } | Service::Peer { .. } | Service::Addresses => {
                return fabric.send(wire, self.node, Message::Refused);
            }
        };
        // Close the peer's earlier connections.
        let old: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, (_, of))| *of == from)
            .map(|(number, (wire, _))| (*number, *wire))
            .collect();
        for (number, wire) in old {
            self.peers.remove(&number);
            self.numbers.remove(&wire);
            fabric.close(wire, self.node);
        }
        self.next_connection += 1;
        let (connection, incarnation) = (self.next_connection, hello.incarnation.unwrap_or_default());
        self.peers.insert(connection, (wire, from));
        self.numbers.insert(wire, connection);
        let (rank, servers) = (espalier_proto::Rank(0), ServerMap::NONE);
        let welcome = Welcome {
            incarnation: self.start,
            window: WINDOW,
            session_ms: u32::MAX,
            rank,
            root: Ino::ROOT,
            servers,
            data_pool: None,
        };
        fabric.send(wire, self.node, Message::Welcome(Box::new(welcome)));
        self.input(fabric, Input::Connect { from, incarnation, connection });
    }

    fn serve(&mut self, fabric: &mut Fabric<'_>, Arrived { at: since, job }: Arrived<DataJob>) {
        let time = fabric.model.cost(Work::Data).sample(&mut self.random);
        fabric.after(time, SimEvent::DataServed { node: self.node, start: self.start, since, job });
    }

    /// The service of a request ends.
    pub fn served(
        &mut self,
        fabric: &mut Fabric<'_>,
        since: Nanos,
        DataJob { connection, message }: DataJob,
    ) {
        if let Some(next) = self.cpu.leave(fabric.now, since) {
            self.serve(fabric, next);
        }
        if let Some((_, from)) = self.peers.get(&connection) {
            let from = *from;
            self.input(fabric, Input::Request { from, connection, message });
        }
    }

    fn input(&mut self, fabric: &mut Fabric<'_>, input: Input) {
        let Some(machine) = &mut self.machine else { return };
        machine.on(input, &mut self.out);
        for (connection, reply) in std::mem::take(&mut self.out.replies) {
            if let Some(served) = self.served_to(connection, reply.id.0) {
                fabric.end_span(self.place, served);
            }
            if let Some((wire, _)) = self.peers.get(&connection) {
                fabric.send(*wire, self.node, Message::FromData(reply));
            }
        }
        for job in std::mem::take(&mut self.out.io) {
            if let Some(arrived) = self.device.arrive(fabric.now, job) {
                self.start_storing(fabric, arrived);
            }
        }
    }

    /// Trace id of a request on a connection.
    fn served_to(&self, connection: u64, number: u64) -> Option<Id> {
        let from = match self.peers.get(&connection)?.1 {
            Requester::Server(ServerId(rank)) => NodeId::Rank(rank),
            Requester::Client(client) => place_of(client),
        };
        Some(Id { from, to: self.place, number })
    }

    /// Traces a completed disk operation.
    fn trace_stored(&self, fabric: &mut Fabric<'_>, since: Nanos, id: IoId, io: &Io) {
        let kind = match io {
            Io::Request(request) => request.name(),
            Io::WriteNew(request) => request.name(),
            Io::Create(_) => "create",
            Io::SyncRemoved => "sync removed",
        };
        let requests = self.machine.as_ref().map(|machine| machine.requests_of(id)).unwrap_or_default();
        let request_id =
            |(connection, request): (u64, espalier_proto::RequestId)| self.served_to(connection, request.0);
        let causes = requests.into_iter().filter_map(request_id).collect();
        fabric.add_span(self.place, (Layer::Store, kind), causes, since);
    }

    fn start_storing(&mut self, fabric: &mut Fabric<'_>, Arrived { at: since, job }: Arrived<DataDiskJob>) {
        let access = match &job.1 {
            Io::SyncRemoved
            | Io::Request(
                DataRequest::Sync { .. }
                | DataRequest::SyncAll
                | DataRequest::Finalise { .. }
                | DataRequest::Discard { .. },
            ) => DiskRequest::Sync(0),
            Io::Request(request @ DataRequest::Fill { sync: true, .. }) => DiskRequest::Sync(request.bytes()),
            Io::Create(inos) if self.sync => DiskRequest::Sync(NOTE * inos.len()),
            Io::Create(inos) => DiskRequest::Transfer(NOTE * inos.len()),
            Io::Request(DataRequest::Create { .. }) => DiskRequest::Transfer(NOTE),
            Io::Request(request) | Io::WriteNew(request) if self.sync && changes(request) => {
                DiskRequest::Sync(request.bytes())
            }
            Io::Request(request) | Io::WriteNew(request) => DiskRequest::Transfer(request.bytes()),
        };
        let time = self.disk.time(access);
        fabric.after(time, SimEvent::DataStored { node: self.node, start: self.start, since, job });
    }

    /// The disk has completed an operation.
    pub fn stored(&mut self, fabric: &mut Fabric<'_>, since: Nanos, (id, io): DataDiskJob) {
        if let Some(next) = self.device.leave(fabric.now, since) {
            self.start_storing(fabric, next);
        }
        self.trace_stored(fabric, since, id, &io);
        self.files.store().set_now(self.clock.time(fabric.now));
        let touched = touched(&io);
        let before = self.count_of(&touched);
        let result = match io {
            _ if self.disk.fails => Err(StoreError::Refused(Errno::EIO)),
            Io::SyncRemoved => self.files.sync_removed(),
            Io::Create(inos) => self.files.create(&inos, true),
            Io::WriteNew(request) => self.files.write_new(request),
            Io::Request(request) => self.files.carry_out(request),
        };
        self.count = self.count + self.count_of(&touched) - before;
        let result = result.map_err(|error| error.errno());
        self.input(fabric, Input::Done { id, result });
    }

    /// Number of the given datafiles that exist.
    fn count_of(&self, inos: &[Ino]) -> u64 {
        let is_there = |ino: &&Ino| self.files.has(**ino).unwrap_or(false);
        inos.iter().filter(is_there).count() as u64
    }
}

/// Datafiles that an I/O may make or remove.
fn touched(io: &Io) -> Vec<Ino> {
    match io {
        Io::Create(inos) | Io::Request(DataRequest::Precreate { inos } | DataRequest::Discard { inos }) => {
            inos.clone()
        }
        Io::WriteNew(DataRequest::Range { ino, op, .. })
        | Io::Request(DataRequest::Range { ino, op, .. })
            if op.is_change() =>
        {
            vec![*ino]
        }
        Io::Request(
            DataRequest::Truncate { ino, .. }
            | DataRequest::Fill { ino, .. }
            | DataRequest::Create { ino, .. }
            | DataRequest::Remove { ino },
        ) => vec![*ino],
        Io::Request(_) | Io::WriteNew(_) | Io::SyncRemoved => Vec::new(),
    }
}

/// True if a request changes data or times of a datafile.
fn changes(request: &DataRequest) -> bool {
    match request {
        DataRequest::Range { op, .. } => op.is_change(),
        DataRequest::Truncate { .. }
        | DataRequest::SetMtime { .. }
        | DataRequest::Precreate { .. }
        | DataRequest::Fill { size: 1.., .. } => true,
        _ => false,
    }
}
