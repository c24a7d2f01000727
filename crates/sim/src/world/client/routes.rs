//! What a client knows of servers that fail over: which one has which rank. Two servers report it,
//! and each change.

use espalier_proto::{ClientId, ClusterId, Hello, Rank, ServerMap, Service};

use super::SimClient;
use crate::node::{Node, NodeNumbers};
use crate::time::Nanos;
use crate::world::fabric::{Fabric, WireId};
use crate::world::line::Line;

/// Time limit for reaching a server that reports addresses: another one can do so.
const HANDSHAKE: Nanos = Nanos(2_000_000_000);

/// Where a rank is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    At(Node),
    /// No server has it.
    Nowhere,
}

/// A connection to a server that reports addresses.
#[derive(Clone, Copy, Debug, Default)]
struct Follower {
    line: Line,
    since: Nanos,
    /// Number of servers tried.
    tried: usize,
}

/// A client's connection to a rank: the node that it goes to, and its incarnation.
#[derive(Clone, Copy, Debug, Default)]
struct Connected {
    node: Option<Node>,
    incarnation: Option<u64>,
}

/// See the module description.
#[derive(Debug)]
pub struct Routes {
    numbers: NodeNumbers,
    known: ServerMap,
    connected: Vec<Connected>,
    followers: [Follower; 2],
}

impl Routes {
    pub fn new(numbers: NodeNumbers) -> Self {
        let connected = vec![Connected::default(); numbers.ranks as usize];
        Self { numbers, known: ServerMap::NONE, connected, followers: Default::default() }
    }

    pub fn begin(&mut self, fabric: &mut Fabric<'_>, own: Node) {
        (0..self.followers.len()).for_each(|number| self.follow(fabric, own, number));
    }

    /// Connects to a server that reports addresses, unless connected.
    pub fn follow(&mut self, fabric: &mut Fabric<'_>, own: Node, number: usize) {
        let follower = &mut self.followers[number];
        if follower.line.wire.is_some() {
            return;
        }
        let listed = self.known.meta.iter().filter_map(|address| address.parse().ok());
        let candidates: Vec<u32> = listed.chain(0..self.numbers.processes).collect();
        let process = candidates[(number + follower.tried) % candidates.len()];
        let (cluster, service, client) = (ClusterId::ANY, Service::Addresses, ClientId(own.0.into()));
        let hello = Hello { cluster, service, client, incarnation: None };
        follower.line.begin(fabric.connect(own, self.numbers.process(process), hello));
        follower.since = fabric.now;
    }

    /// A server reports addresses over this connection. Returns false if it is another connection.
    pub fn opened(&mut self, wire: WireId) -> bool {
        let follower = self.followers.iter_mut().find(|follower| follower.line.wire == Some(wire));
        follower.map(|follower| follower.line.opened(wire)).is_some()
    }

    /// If the connection was to a server that reports addresses: the number of the connection, and
    /// the pause before another one.
    pub fn lost(&mut self, wire: WireId) -> Option<(usize, Nanos)> {
        let (number, follower) =
            self.followers.iter_mut().enumerate().find(|(_, follower)| follower.line.wire == Some(wire))?;
        follower.line.lose(wire);
        follower.tried += 1;
        Some((number, follower.line.pause()))
    }

    /// Gives up servers that do not answer.
    pub fn tick(&mut self, fabric: &mut Fabric<'_>, own: Node) {
        for number in 0..self.followers.len() {
            let follower = &mut self.followers[number];
            let is_late = !follower.line.up && fabric.now > follower.since + HANDSHAKE;
            if let Some(wire) = follower.line.wire.filter(|_| is_late) {
                follower.line.lose(wire);
                follower.tried += 1;
                fabric.close(wire, own);
                self.follow(fabric, own, number);
            }
        }
    }

    /// Takes over newer addresses. Returns true if they are newer.
    pub fn learn(&mut self, servers: &ServerMap) -> bool {
        let is_newer = servers.version > self.known.version;
        if is_newer {
            self.known.clone_from(servers);
        }
        is_newer
    }

    fn route(&self, rank: Rank) -> Resolved {
        let address = self.known.ranks.get(usize::from(rank.0));
        match address.and_then(|address| address.parse().ok()) {
            Some(process) => Resolved::At(self.numbers.service(process, rank)),
            None => Resolved::Nowhere,
        }
    }

    /// The node to connect to.
    pub fn resolve(&mut self, rank: Rank) -> Resolved {
        let route = self.route(rank);
        if let Resolved::At(node) = route {
            let (node, incarnation) = (Some(node), None);
            self.connected[usize::from(rank.0)] = Connected { node, incarnation };
        }
        route
    }

    /// A server has accepted the connection.
    pub fn connected(&mut self, rank: Rank, incarnation: u64) {
        self.connected[usize::from(rank.0)].incarnation = Some(incarnation);
    }

    /// True if another server has the rank, or the same one has it anew.
    pub fn has_moved(&self, rank: Rank) -> bool {
        let place = usize::from(rank.0);
        let Connected { node, incarnation } = self.connected[place];
        match (incarnation, self.known.incarnations.get(place)) {
            (Some(connected), Some(newest)) => *newest > connected,
            _ => matches!(self.route(rank), Resolved::At(now) if Some(now) != node),
        }
    }
}

impl SimClient {
    /// Learns which servers have which ranks. Connections to earlier ones end.
    pub(super) fn rerouted(&mut self, fabric: &mut Fabric<'_>, servers: &ServerMap) {
        let Some(routes) = &mut self.routes else { return self.learn_hosts(servers) };
        if !routes.learn(servers) {
            return;
        }
        let moved: Vec<Rank> = self.lines.keys().copied().filter(|rank| routes.has_moved(*rank)).collect();
        for rank in moved {
            let Some(line) = self.lines.get_mut(&rank) else { continue };
            if let Some(wire) = line.wire {
                line.lose(wire);
                fabric.close(wire, self.node);
                self.sessions.disconnected(rank);
            }
            self.reach(fabric, rank);
        }
    }

    /// Learns which servers have taken over ranks, unless the sender has not heard yet that others
    /// have joined.
    pub fn learn_hosts(&mut self, servers: &ServerMap) {
        if servers.ranks.len() >= self.servers.ranks.len() {
            self.servers.clone_from(servers);
        }
    }

    /// Has another server report the addresses of servers.
    pub fn follow(&mut self, fabric: &mut Fabric<'_>, number: usize) {
        if let Some(routes) = self.routes.as_mut().filter(|_| self.is_up) {
            routes.follow(fabric, self.node, number);
        }
    }
}
