//! When a node turns to a connection: with one turn it takes all that has come on it by then. What that costs it does when it has dealt with
//! that, for nobody waits for it: it has answered, and turns away, to something else or to sleep.

use rustc_hash::FxHashMap;

use crate::model::Work;
use crate::random::Random;
use crate::time::Nanos;
use crate::world::fabric::{Fabric, WireId};

/// A node's turns.
#[derive(Debug, Default)]
pub struct Turns {
    lines: FxHashMap<WireId, Line>,
    /// What is still to be done for them.
    owed: Nanos,
}

/// A connection.
#[derive(Debug, Default)]
struct Line {
    /// When the node has last turned to it.
    turned: Option<Nanos>,
    /// What has come on it and waits.
    waiting: usize,
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
        if fabric.model.is_free(work) {
            return Nanos::ZERO;
        }
        let line = self.lines.entry(wire).or_default();
        if line.turned.is_some_and(|turned| came <= turned) {
            return Nanos::ZERO;
        }
        line.turned = Some(fabric.now);
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
        self.lines.entry(wire).or_default().waiting += 1;
    }

    /// What came on it is dealt with: how much is left, where that is counted.
    pub fn dealt(&mut self, wire: WireId) -> usize {
        let Some(line) = self.lines.get_mut(&wire) else { return 0 };
        line.waiting = line.waiting.saturating_sub(1);
        line.waiting
    }

    pub fn lost(&mut self, wire: WireId) {
        self.lines.remove(&wire);
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
