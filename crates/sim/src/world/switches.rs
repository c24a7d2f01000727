//! Cost of switching a processor to a connection. With one turn the node takes all messages that
//! have arrived on it. The cost is paid after the batch, so that no reply waits for it.

use rustc_hash::FxHashMap;

use crate::model::Work;
use crate::random::Random;
use crate::time::Nanos;
use crate::world::fabric::{Fabric, WireId};

/// The turns of a node.
#[derive(Debug, Default)]
pub struct SwitchCosts {
    lines: FxHashMap<WireId, ConnectionSwitches>,
    /// Unpaid cost of turns.
    owed: Nanos,
}

/// A connection.
#[derive(Debug, Default)]
struct ConnectionSwitches {
    /// Time of the last turn.
    switched: Option<Nanos>,
    /// Number of waiting messages.
    waiting: usize,
}

impl SwitchCosts {
    /// The cost to pay before a message that arrived on a connection at such a time: if it needs a
    /// new turn, the unpaid cost of earlier turns.
    pub fn cost_of(
        &mut self,
        fabric: &Fabric<'_>,
        work: Work,
        (wire, reached): (WireId, Nanos),
        random: &mut Random,
    ) -> Nanos {
        if fabric.model.is_free(work) {
            return Nanos::ZERO;
        }
        let line = self.lines.entry(wire).or_default();
        if line.switched.is_some_and(|switched| reached <= switched) {
            return Nanos::ZERO;
        }
        line.switched = Some(fabric.now);
        std::mem::replace(&mut self.owed, fabric.model.cost(work).sample(random))
    }

    pub fn owes(&self) -> bool {
        self.owed > Nanos::ZERO
    }

    /// Takes the unpaid cost, to pay it when idle.
    pub fn take_owed(&mut self) -> Nanos {
        std::mem::take(&mut self.owed)
    }

    pub fn reached(&mut self, wire: WireId) {
        self.lines.entry(wire).or_default().waiting += 1;
    }

    /// A message is done. Returns the number of waiting messages, if counted.
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
