use serde::{Deserialize, Serialize};

/// A point in wall-clock time, as POSIX `struct timespec`. `nanos` is in 0..1_000_000_000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z; negative before it.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

impl Time {
    /// Clamps `nanos` to the last nanosecond of the second.
    pub const fn new(secs: i64, nanos: u32) -> Self {
        Self { secs, nanos: if nanos < 1_000_000_000 { nanos } else { 999_999_999 } }
    }

    /// True if an access at `now` updates this access time under `relatime`: it is not later than
    /// the last change, or it is at least a day old.
    pub fn is_old_access(self, changed: Self, now: Self) -> bool {
        const DAY: i64 = 24 * 60 * 60;
        self <= changed || now.secs.saturating_sub(self.secs) >= DAY
    }

    /// The next nanosecond.
    pub fn next(self) -> Self {
        match self.nanos {
            0..999_999_999 => Self { nanos: self.nanos + 1, ..self },
            _ => Self { secs: self.secs.saturating_add(1), nanos: 0 },
        }
    }

    /// The time `ms` milliseconds later.
    pub fn later(self, ms: u64) -> Self {
        let nanos = u64::from(self.nanos) + ms % 1000 * 1_000_000;
        let secs = ms / 1000 + nanos / 1_000_000_000;
        Self { secs: self.secs.saturating_add_unsigned(secs), nanos: (nanos % 1_000_000_000) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_time_is_later() {
        assert_eq!(Time::new(-1, 5).next(), Time::new(-1, 6));
        assert_eq!(Time::new(-1, 999_999_999).next(), Time::new(0, 0));
    }

    #[test]
    fn access_is_recorded_after_change_or_a_day() {
        const NOW: Time = Time::new(1_000_000, 0);
        let before = |secs| Time::new(NOW.secs - secs, 0);
        assert!(before(10).is_old_access(before(10), NOW) && before(10).is_old_access(before(9), NOW));
        assert!(!before(10).is_old_access(before(11), NOW));
        assert!(before(86_400).is_old_access(before(90_000), NOW));
        assert!(!before(86_399).is_old_access(before(90_000), NOW));
        assert!(!Time::new(i64::MAX, 0).is_old_access(NOW, NOW), "no overflow");
        let first = Time::new(i64::MIN, 0);
        assert!(first.is_old_access(first, NOW) && Time::new(i64::MIN, 1).is_old_access(first, NOW));
    }
}
