//! A connection that a node makes to another, and makes again when it is lost.

use crate::time::Nanos;
use crate::world::fabric::WireId;

/// After how long a connection is tried again: first, and at most.
const FIRST_PAUSE: Nanos = Nanos(20_000_000);
const LONGEST_PAUSE: Nanos = Nanos(1_000_000_000);

/// See the module's description.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// It is there, or under way.
    pub wire: Option<WireId>,
    /// It can be used.
    pub up: bool,
    pause: Nanos,
}

impl Line {
    /// After how long it is to be tried again.
    pub fn pause(&mut self) -> Nanos {
        let pause = self.pause.max(FIRST_PAUSE);
        self.pause = Nanos((pause.0 * 2).min(LONGEST_PAUSE.0));
        pause
    }

    pub fn begin(&mut self, wire: WireId) {
        (self.wire, self.up) = (Some(wire), false);
    }

    pub fn opened(&mut self, wire: WireId) {
        (self.wire, self.up, self.pause) = (Some(wire), true, Nanos::ZERO);
    }

    /// Whether it was this one.
    pub fn lose(&mut self, wire: WireId) -> bool {
        let is_it = self.wire == Some(wire);
        if is_it {
            (self.wire, self.up) = (None, false);
        }
        is_it
    }
}
