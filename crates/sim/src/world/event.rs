//! Events of a world.

use espalier_meta::IoId;
use espalier_proto::{Errno, Rank, Reply};

use crate::faults::FaultKind;
use crate::message::Message;
use crate::observe::Node;
use crate::time::Nanos;
use crate::world::client::{ClientJob, PoolRequest};
use crate::world::data::{DataDiskJob, DataJob};
use crate::world::fabric::WireId;
use crate::world::failover::{ProcessEvent, StoreRequest};
use crate::world::job::ProcessorJob;
use crate::world::server::DiskJob;

/// An event. `start`: incarnation of the node; events for an earlier incarnation are ignored.
#[derive(Debug)]
pub enum SimEvent {
    Arrives {
        wire: WireId,
        to: Node,
        message: Message,
    },
    /// Announcement or grant of a payload arrives.
    Handshake {
        node: Node,
    },
    /// A connection of the node is broken.
    Lost {
        node: Node,
        wire: WireId,
    },
    /// A node tries to connect again.
    Reach {
        node: Node,
        start: u64,
        other: Node,
    },
    /// A processor shared by all nodes has finished work that was queued at `since`.
    Worked {
        since: Nanos,
        event: Box<SimEvent>,
    },
    /// A server's processor has finished a job that arrived at `since`.
    Served {
        node: Node,
        start: u64,
        since: Nanos,
        job: ProcessorJob,
    },
    /// A server's processor has paid for its turns and is idle.
    Turned {
        node: Node,
        start: u64,
        since: Nanos,
    },
    /// A server's disk has finished a request that arrived at `since`.
    Stored {
        node: Node,
        start: u64,
        since: Nanos,
        job: DiskJob,
    },
    /// As `Stored`, after the failure of an OSD: the disk has begun later requests meanwhile.
    StoredLate {
        node: Node,
        start: u64,
        since: Nanos,
        job: DiskJob,
    },
    DataServed {
        node: Node,
        start: u64,
        since: Nanos,
        job: DataJob,
    },
    DataStored {
        node: Node,
        start: u64,
        since: Nanos,
        job: DataDiskJob,
    },
    /// A pause requested by the machine has ended.
    Paused {
        node: Node,
        start: u64,
        id: IoId,
    },
    Tick {
        node: Node,
        start: u64,
    },
    /// A client's processor has finished work that arrived at `since`.
    Prepared {
        client: u32,
        job: ClientJob,
        since: Nanos,
    },
    /// A process continues.
    Resume {
        client: u32,
        process: u32,
    },
    /// A process interrupts a call.
    Interrupt {
        client: u32,
        call: u64,
    },
    /// A client has another server report the addresses of servers.
    Follow {
        client: u32,
        number: usize,
    },
    /// An event of a server's process. `start`: number of its starts.
    Process {
        process: u32,
        start: u64,
        event: ProcessEvent,
    },
    /// A request reaches the shared store, also while its process is paused.
    StoreRequest {
        process: u32,
        start: u64,
        request: StoreRequest,
    },
    /// Writes to the shared store that have exceeded their time limit take effect.
    LateWrites,
    /// A client opens the data pool of the shared store.
    OpenPool {
        client: u32,
    },
    /// A client's request reaches the data pool.
    PoolRequest {
        client: u32,
        request: PoolRequest,
    },
    /// The reply of the data pool; `None`: the client is fenced.
    PoolReplied {
        client: u32,
        request: PoolRequest,
        result: Option<Result<Reply, Errno>>,
    },
    /// A server's process starts.
    StartProcess {
        process: u32,
    },
    /// A rank joins the cluster.
    Join {
        rank: Rank,
    },
    /// A server hears of the ranks that have joined.
    Hear {
        node: Node,
        ranks: u16,
    },
    /// A metadata server leaves, by its place in the scenario: the next step of that.
    Leave {
        number: usize,
    },
    /// A migration begins, by its place in the scenario, or begins again.
    Migrate {
        number: usize,
    },
    /// The next step of a migration is carried out. `start`: of its server.
    MigrationStep {
        number: usize,
        start: u64,
    },
    /// A server reads the addresses of all ranks in its configuration.
    HearOfHosts {
        node: Node,
    },
    /// The policy of the balancers is set, if it is not yet.
    SetBalancer,
    Fault(FaultKind),
    /// A fault ends.
    Mend(Mend),
    Sample,
    /// Next step of the end of the run.
    Drain,
}

/// The end of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mend {
    /// A server restarts.
    Start(Node),
    Join,
    /// A server's process continues, if it still runs.
    Resume {
        process: u32,
        start: u64,
    },
    OnTime(Node),
    Disk(Node),
    Speed(Node),
    /// A server's watermarks return to the scenario's values.
    Watermarks(Node),
}
