use std::time::{SystemTime, UNIX_EPOCH};

use espalier_proto::Time;
use rustix::time::{ClockId, clock_gettime};

/// The wall clock.
pub fn now() -> Time {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Time::new(since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => Time::new(-(before.duration().as_secs() as i64), 0),
    }
}

/// Milliseconds of a clock that nobody sets, to within a few.
pub fn uptime_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Tells one start of a server from the next: nanoseconds of the wall clock.
pub fn incarnation() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
}
