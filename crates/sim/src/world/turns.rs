//! When a node turns to a connection: with one turn it takes all that has come on it by then.

use rustc_hash::FxHashMap;

use crate::model::Work;
use crate::random::Random;
use crate::time::Nanos;
use crate::world::fabric::{Fabric, WireId};

/// When a node has last turned to each of its connections.
#[derive(Debug, Default)]
pub struct Turns(FxHashMap<WireId, Nanos>);

impl Turns {
    /// What it costs to turn to a connection, if a node does so to deal with what came on it at such a time.
    pub fn cost(
        &mut self,
        fabric: &Fabric<'_>,
        work: Work,
        (wire, came): (WireId, Nanos),
        random: &mut Random,
    ) -> Nanos {
        if fabric.model.is_free(work) || self.0.get(&wire).is_some_and(|turned| came <= *turned) {
            return Nanos::ZERO;
        }
        self.0.insert(wire, fabric.now);
        fabric.model.cost(work).sample(random)
    }

    pub fn lost(&mut self, wire: WireId) {
        self.0.remove(&wire);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
