//! When a node turns to a connection: with one turn it takes all that has come on it by then. What that costs it does when it has dealt with
//! that, for nobody waits for it: it has answered, and turns away, to something else or to sleep.

use rustc_hash::FxHashMap;

use crate::model::Work;
use crate::random::Random;
use crate::time::Nanos;
use crate::world::fabric::{Fabric, WireId};

/// When a node has last turned to each of its connections.
#[derive(Debug, Default)]
pub struct Turns {
    turned: FxHashMap<WireId, Nanos>,
    /// What has come on each and waits.
    waiting: FxHashMap<WireId, usize>,
    /// What is still to be done for turns.
    owed: Nanos,
}

impl Turns {
    /// What a node is to do first that deals with what came on a connection at such a time: if it turns to that, what it
    /// owes for other turns.
    pub fn turn(
        &mut self,
        fabric: &Fabric<'_>,
        work: Work,
        (wire, came): (WireId, Nanos),
        random: &mut Random,
    ) -> Nanos {
        if fabric.model.is_free(work) || self.turned.get(&wire).is_some_and(|turned| came <= *turned) {
            return Nanos::ZERO;
        }
        self.turned.insert(wire, fabric.now);
        std::mem::replace(&mut self.owed, fabric.model.cost(work).sample(random))
    }

    pub fn owes(&self) -> bool {
        self.owed > Nanos::ZERO
    }

    /// What a node is to do that has nothing else to do.
    pub fn take_owed(&mut self) -> Nanos {
        std::mem::take(&mut self.owed)
    }

    pub fn came(&mut self, wire: WireId) {
        *self.waiting.entry(wire).or_default() += 1;
    }

    /// What came on it is dealt with: how much is left.
    pub fn dealt(&mut self, wire: WireId) -> usize {
        let Some(waiting) = self.waiting.get_mut(&wire) else { return 0 };
        *waiting -= 1;
        let left = *waiting;
        if left == 0 {
            self.waiting.remove(&wire);
        }
        left
    }

    pub fn lost(&mut self, wire: WireId) {
        self.turned.remove(&wire);
        self.waiting.remove(&wire);
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
