//! A connection that a node opens, and reopens when it is lost.

use crate::time::Nanos;
use crate::world::fabric::WireId;

/// Pause before reconnecting: initial and maximal.
const FIRST_PAUSE: Nanos = Nanos(20_000_000);
const LONGEST_PAUSE: Nanos = Nanos(1_000_000_000);

/// See the module description.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// The connection, open or being opened.
    pub wire: Option<WireId>,
    /// The connection is usable.
    pub up: bool,
    pause: Nanos,
}

impl Line {
    /// The pause before the next attempt.
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

    /// Handles the loss of a connection. Returns true if it was this one.
    pub fn lose(&mut self, wire: WireId) -> bool {
        let is_connected = self.wire == Some(wire);
        if is_connected {
            (self.wire, self.up) = (None, false);
        }
        is_connected
    }
}
