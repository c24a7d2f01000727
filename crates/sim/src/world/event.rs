//! What happens in a world.

use espalier_meta::IoId;

use crate::faults::FaultKind;
use crate::message::Message;
use crate::observe::Node;
use crate::time::Nanos;
use crate::world::client::ClientJob;
use crate::world::data::{DataDiskJob, DataJob};
use crate::world::fabric::WireId;
use crate::world::job::Job;
use crate::world::server::DiskJob;

/// What happens. `start`: of the node; what was meant for an earlier one comes to nothing.
#[derive(Debug)]
pub enum Event {
    Arrives {
        wire: WireId,
        to: Node,
        message: Message,
    },
    /// What comes to a node before a payload that is announced.
    Handshake {
        node: Node,
    },
    /// A connection of the node's is broken.
    Lost {
        node: Node,
        wire: WireId,
    },
    /// A node tries again to reach another.
    Reach {
        node: Node,
        start: u64,
        other: Node,
    },
    /// A processor of the machine on which all nodes run is done with what was given to it at `since`.
    Worked {
        since: Nanos,
        event: Box<Event>,
    },
    /// A server's processor is done with what has come at `since`.
    Served {
        node: Node,
        start: u64,
        since: Nanos,
        job: Job,
    },
    /// It has turned away from a connection, and has nothing else to do yet.
    Turned {
        node: Node,
        start: u64,
        since: Nanos,
    },
    /// A server's disk is, too.
    Stored {
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
    /// What the machine has asked for only to be asked again.
    Paused {
        node: Node,
        start: u64,
        id: IoId,
    },
    Tick {
        node: Node,
        start: u64,
    },
    /// A client's processor is done with what has come at `since`.
    Prepared {
        client: u32,
        job: ClientJob,
        since: Nanos,
    },
    /// A process goes on.
    Resume {
        client: u32,
        process: u32,
    },
    /// A process does not want to wait for a call any longer.
    Interrupt {
        client: u32,
        call: u64,
    },
    Fault(FaultKind),
    /// What a fault has done ends.
    Mend(Mend),
    Sample,
    /// All has ended: what is left is brought to its end, step by step.
    Drain,
}

/// The end of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mend {
    /// A server begins again.
    Start(Node),
    Join,
    OnTime(Node),
    Disk(Node),
    Speed(Node),
    /// A server has the watermarks of the scenario again.
    Watermarks(Node),
}
