//! State shared by all nodes: time, event queue, and connections.
//!
//! A connection behaves as TCP: messages arrive in order, or not at all when it breaks. Both ends
//! are notified of that later.

use espalier_proto::Hello;

use crate::message::{Message, MessageKind};
use crate::model::{Model, Work};
use crate::network::Network;
use crate::observe::{Mutator, Node, Observer};
use crate::queue::Queue;
use crate::station::{Arrived, Station};
use crate::time::Nanos;
use crate::world::balance::Decisions;
use crate::world::event::SimEvent;

/// See the module description.
pub struct Fabric<'o> {
    pub now: Nanos,
    pub queue: Queue<SimEvent>,
    pub model: Model,
    pub observer: &'o mut dyn Observer,
    pub mutator: &'o mut dyn Mutator,
    pub network: Network,
    /// Processors of the machine that runs all nodes, if it is shared.
    machine: Option<Station<(Nanos, SimEvent)>>,
    wires: Vec<Wire>,
    free: Vec<u32>,
    /// Side of each node in a partition, if there is one.
    pub sides: Vec<bool>,
    /// Nodes without power, which do not answer.
    silent: Vec<bool>,
    /// The server that each node is part of, as its first node. They differ when a server has taken
    /// over ranks of one that has left.
    pub hosts: Vec<Node>,
    /// Number of sent messages by kind.
    pub sent: [u64; MessageKind::ALL.len()],
    pub bytes: u64,
    /// Hash of all sent messages with times and nodes; identifies the run.
    pub fingerprint: u64,
    pub decisions: Decisions,
}

/// Permanent id of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireId {
    index: u32,
    generation: u32,
}

/// A connection.
#[derive(Debug)]
struct Wire {
    generation: u32,
    open: bool,
    /// The connecting node and its peer.
    ends: [Node; 2],
    /// Arrival time of the last message of each end.
    last: [Nanos; 2],
}

impl<'o> Fabric<'o> {
    pub fn new(
        model: Model,
        network: Network,
        processors: Option<usize>,
        nodes: usize,
        observer: &'o mut dyn Observer,
        mutator: &'o mut dyn Mutator,
    ) -> Self {
        Self {
            now: Nanos::ZERO,
            queue: Queue::default(),
            model,
            observer,
            mutator,
            network,
            machine: processors.map(Station::new),
            wires: Vec::new(),
            free: Vec::new(),
            sides: Vec::new(),
            silent: vec![false; nodes],
            hosts: (0..nodes as u32).map(Node).collect(),
            sent: [0; MessageKind::ALL.len()],
            bytes: 0,
            fingerprint: 0,
            decisions: Decisions::default(),
        }
    }

    pub fn after(&mut self, time: Nanos, event: SimEvent) {
        self.queue.add(self.now + time, event);
    }

    /// Occupies a processor for `time`, then delivers `event`. Nodes serialise their own work.
    pub fn work(&mut self, time: Nanos, event: SimEvent) {
        let Some(machine) = self.machine.as_mut().filter(|_| time > Nanos::ZERO) else {
            return self.after(time, event);
        };
        if let Some(arrived) = machine.arrive(self.now, (time, event)) {
            self.begin_work(arrived);
        }
    }

    fn begin_work(&mut self, Arrived { at: since, job: (time, event) }: Arrived<(Nanos, SimEvent)>) {
        self.after(time, SimEvent::Worked { since, event: Box::new(event) });
    }

    /// A shared processor becomes free.
    pub fn worked(&mut self, since: Nanos) {
        let now = self.now;
        if let Some(next) = self.machine.as_mut().and_then(|machine| machine.leave(now, since)) {
            self.begin_work(next);
        }
    }

    /// Opens a connection. The connecting node gets [`SimEvent::Lost`] if it fails.
    pub fn connect(&mut self, from: Node, to: Node, hello: Hello) -> WireId {
        let host = self.hosts[to.0 as usize];
        self.connect_at(from, (to, host), hello)
    }

    /// As [`Self::connect`], to a node of the server `host`: fails if that does not have the node.
    pub fn connect_at(&mut self, from: Node, (to, host): (Node, Node), hello: Hello) -> WireId {
        let index = self.free.pop().unwrap_or_else(|| {
            let wire = Wire { generation: 0, open: false, ends: [from, to], last: [Nanos::ZERO; 2] };
            self.wires.push(wire);
            u32::try_from(self.wires.len() - 1).unwrap_or(u32::MAX)
        });
        let wire = &mut self.wires[index as usize];
        (wire.open, wire.ends, wire.last) = (true, [from, to], [Nanos::ZERO; 2]);
        let id = WireId { index, generation: wire.generation };
        if self.is_reached(from, to) && self.hosts[to.0 as usize] == host {
            self.send(id, from, Message::Hello(hello));
        } else {
            self.cut(id, self.network.timeout);
        }
        id
    }

    fn is_reached(&self, from: Node, to: Node) -> bool {
        let side = |node: Node| self.sides.get(node.0 as usize).copied().unwrap_or_default();
        !self.silent[to.0 as usize] && side(from) == side(to)
    }

    /// Sends a message, unless the connection is broken.
    pub fn send(&mut self, id: WireId, from: Node, message: Message) {
        let Some(wire) = self.wire(id) else { return };
        let end = usize::from(wire.ends[0] != from);
        let to = wire.ends[1 - end];
        self.observer.sent(self.now, from, to, &message);
        let (bytes, number) = message.measure();
        self.sent[message.kind() as usize] += 1;
        self.bytes += bytes as u64;
        for word in [self.now.0, u64::from(from.0) << 32 | u64::from(to.0), number] {
            self.fingerprint = (self.fingerprint.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let mut arrives = self.network.send(self.now, from.0 as usize, to.0 as usize, bytes);
        let payload = message.payload();
        if payload > self.network.eager || payload > 0 && message.announced() {
            self.sent[MessageKind::Handshake as usize] += 2;
            let handshake = self.network.handshake();
            arrives += handshake;
            if !self.model.is_free(Work::ClientMessage) {
                // The announcement arrives at one node, the grant at the other.
                [from, to].into_iter().for_each(|node| self.after(handshake, SimEvent::Handshake { node }));
            }
        }
        let last = &mut self.wires[id.index as usize].last[end];
        *last = arrives.max(*last);
        let at = *last;
        self.queue.add(at, SimEvent::Arrives { wire: id, to, message });
    }

    fn wire(&self, id: WireId) -> Option<&Wire> {
        self.wires.get(id.index as usize).filter(|wire| wire.open && wire.generation == id.generation)
    }

    /// The other end of an intact connection.
    pub fn other(&self, id: WireId, own: Node) -> Option<Node> {
        self.wire(id).map(|wire| if wire.ends[0] == own { wire.ends[1] } else { wire.ends[0] })
    }

    /// Closes a connection; the other end is notified after the time of a message.
    pub fn close(&mut self, id: WireId, by: Node) {
        if let Some(other) = self.other(id, by) {
            let at = self.network.send(self.now, by.0 as usize, other.0 as usize, 0);
            self.release(id);
            self.queue.add(at, SimEvent::Lost { node: other, wire: id });
        }
    }

    /// Breaks a connection; both ends notice after `notice`.
    pub fn cut(&mut self, id: WireId, notice: Nanos) {
        if let Some(ends) = self.wire(id).map(|wire| wire.ends) {
            self.release(id);
            for node in ends {
                self.after(notice, SimEvent::Lost { node, wire: id });
            }
        }
    }

    fn release(&mut self, id: WireId) {
        let wire = &mut self.wires[id.index as usize];
        wire.open = false;
        wire.generation = wire.generation.wrapping_add(1);
        self.free.push(id.index);
    }

    /// All intact connections that satisfy `which`, in a fixed order.
    fn open(&self, which: impl Fn(&[Node; 2]) -> bool) -> Vec<WireId> {
        let wires = self.wires.iter().enumerate().filter(|(_, wire)| wire.open && which(&wire.ends));
        let id = |(index, wire): (usize, &Wire)| WireId {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            generation: wire.generation,
        };
        wires.map(id).collect()
    }

    pub fn all_open(&self) -> Vec<WireId> {
        self.open(|_| true)
    }

    /// A node ends. Its peers notice at once, or by a timeout if it is silent.
    pub fn drop_node(&mut self, node: Node, is_silent: bool) {
        self.silent[node.0 as usize] = is_silent;
        for id in self.open(|ends| ends.contains(&node)) {
            if is_silent {
                self.cut(id, self.network.timeout);
            } else {
                self.close(id, node);
            }
        }
    }

    pub fn revive(&mut self, node: Node) {
        self.silent[node.0 as usize] = false;
    }

    /// Partitions the network by sides.
    pub fn part(&mut self, sides: Vec<bool>) {
        let across = self.open(|ends| sides[ends[0].0 as usize] != sides[ends[1].0 as usize]);
        self.sides = sides;
        for id in across {
            self.cut(id, self.network.timeout);
        }
    }

    pub fn join(&mut self) {
        self.sides = Vec::new();
    }
}
