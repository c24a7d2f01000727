//! Ranks that join a running cluster.

use espalier_proto::Rank;
use rand::Rng;

use crate::observe::Node;
use crate::time::Nanos;
use crate::world::event::SimEvent;
use crate::world::{RunError, World};

/// Time within which all servers hear of a rank.
const SPREAD: Nanos = Nanos(1_000_000_000);

impl World<'_> {
    /// Starts the server of a rank that joins. The others hear of it at different times.
    pub(super) fn join(&mut self, rank: Rank) -> Result<(), RunError> {
        let mut random = self.seed.random("join", rank.0.into());
        for node in (0..u32::from(rank.0)).map(Node) {
            let ranks = rank.0 + 1;
            self.fabric.after(Nanos(random.random_range(0..SPREAD.0)), SimEvent::Hear { node, ranks });
        }
        let node = Node(rank.0.into());
        let server = &self.servers[node.0 as usize];
        // The end of a disk failure starts it, too.
        if server.is_up() || server.disk.fails { Ok(()) } else { self.begin_server(node) }
    }
}
