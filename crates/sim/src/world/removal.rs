//! Metadata servers that leave a running cluster (`espalier cluster remove`): another one takes
//! over their ranks, with their stores. Both stop, after they have written everything out, and
//! start again; from then on they run and fail as one.

use espalier_proto::Rank;
use rand::Rng;

use crate::node::Node;
use crate::random::Random;
use crate::scenario::Leave;
use crate::storage::Loss;
use crate::time::Nanos;
use crate::world::end::RunStage;
use crate::world::event::{Mend, SimEvent};
use crate::world::server::host_of;
use crate::world::{RunError, World};

/// Interval of checks whether servers have written everything out, and whether an earlier removal
/// has ended.
const LOOK: Nanos = Nanos(50_000_000);
/// Time limit for that; a server with a failing disk cannot write.
const STOPS: Nanos = Nanos(5_000_000_000);
/// Longest time in which stores move and servers start.
const MOVES: Nanos = Nanos(300_000_000);
/// Time within which all servers hear of the new addresses.
const SPREAD: Nanos = Nanos(1_000_000_000);

impl World<'_> {
    /// The nodes that are part of the same server as a metadata service.
    pub(super) fn nodes_with(&self, node: usize) -> Vec<usize> {
        let hosts = &self.fabric.hosts;
        if node >= self.servers.len() {
            return vec![node];
        }
        (0..self.servers.len()).filter(|other| hosts[*other] == hosts[node]).collect()
    }

    /// Begins or continues the removal of a server.
    pub(super) fn remove_server(&mut self, number: usize) -> Result<(), RunError> {
        let Leave { server, to, .. } = self.scenario.cluster.leaves[number];
        let now = self.fabric.now;
        let since = match self.leaving {
            None if self.stage != RunStage::Works => return Ok(()),
            None => now,
            Some((earlier, since)) if earlier == number => since,
            Some(_) => {
                self.fabric.after(LOOK, SimEvent::Leave { number });
                return Ok(());
            }
        };
        self.leaving = Some((number, since));
        let moves = self.nodes_with(server.into());
        let stop: Vec<usize> = moves.iter().copied().chain(self.nodes_with(to.into())).collect();
        let is_hasty = self.fabric.mutator.copies_stores();
        if !is_hasty && !self.have_stopped(&stop) && now - since < STOPS {
            self.fabric.after(LOOK, SimEvent::Leave { number });
            return Ok(());
        }
        self.leaving = None;
        let mut random = self.seed.random("leave", number as u64);
        // Only what runs starts again. A server that is down starts as after any crash.
        let pause = Nanos(random.random_range(0..MOVES.0));
        for node in stop.into_iter().filter(|node| self.servers[*node].is_up()).collect::<Vec<_>>() {
            let is_old = is_hasty && moves.contains(&node);
            let loss = if is_old { Loss::Power(random.random()) } else { Loss::Process };
            let ended = self.servers[node].end(&mut self.fabric, loss, Loss::Process);
            let node = Node(node as u32);
            let replay = ended.map_err(|cause| RunError::Start { at: now, node, cause })?;
            self.fabric.after(pause + replay, SimEvent::Mend(Mend::Start(node)));
        }
        let (host, clock) = (Node(to.into()), self.servers[usize::from(to)].clock.clone());
        for node in moves {
            self.fabric.hosts[node] = host;
            self.servers[node].clock = clock.clone();
        }
        self.spread_hosts(to.into(), &mut random);
        Ok(())
    }

    /// Has servers write everything out and answer nothing. Returns true if they have.
    fn have_stopped(&mut self, nodes: &[usize]) -> bool {
        let mut are_idle = true;
        for node in nodes {
            let server = &mut self.servers[*node];
            if server.is_up() {
                server.close(&mut self.fabric);
                are_idle &= server.drain(&mut self.fabric);
            }
        }
        are_idle
    }

    /// All servers hear of the addresses: the one that has taken over at once.
    fn spread_hosts(&mut self, to: usize, random: &mut Random) {
        let with_it = self.nodes_with(to);
        for node in 0..self.servers.len() {
            let others = Nanos(random.random_range(0..SPREAD.0));
            let delay = if with_it.contains(&node) { Nanos::ZERO } else { others };
            self.fabric.after(delay, SimEvent::HearOfHosts { node: Node(node as u32) });
        }
    }

    /// A client that does not find a rank learns its address from another server: real clients have
    /// connections to all.
    pub(super) fn refer_client(&mut self, client: usize, rank: Rank) {
        let others = self.servers.iter().filter(|server| server.rank != rank && server.is_up());
        let mut found = others.filter(|server| host_of(&server.servers, rank).is_some());
        if let Some(server) = found.next() {
            self.clients[client].learn_hosts(&server.servers);
        }
    }
}
