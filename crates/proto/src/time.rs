use serde::{Deserialize, Serialize};

/// A moment of the wall clock, as POSIX `struct timespec` has it. `nanos` is in 0..1_000_000_000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z; negative before it.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

impl Time {
    /// `nanos` beyond a second are cut to the last nanosecond of it.
    pub const fn new(secs: i64, nanos: u32) -> Self {
        Self { secs, nanos: if nanos < 1_000_000_000 { nanos } else { 999_999_999 } }
    }

    /// So many milliseconds later.
    pub fn later(self, ms: u64) -> Self {
        let nanos = u64::from(self.nanos) + ms % 1000 * 1_000_000;
        let secs = ms / 1000 + nanos / 1_000_000_000;
        Self { secs: self.secs.saturating_add_unsigned(secs), nanos: (nanos % 1_000_000_000) as u32 }
    }
}
