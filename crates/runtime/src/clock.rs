//! The clocks of the process: times for inodes, uptime, incarnations of servers, and leases of
//! ranks. The machines read none of them; drivers pass the time in.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use espalier_proto::Time;
use espalier_store::stamp;
use rustix::time::{ClockId, clock_gettime};

/// Number of passthrough openings for writing, of all mounts of this process.
static KERNEL_WRITERS: AtomicU32 = AtomicU32::new(0);

/// The present time for inodes, ordered with the times of streams.
pub fn now() -> Time {
    // The kernel does not report passthrough writes.
    if KERNEL_WRITERS.load(Ordering::Relaxed) > 0 { stamp::raise() } else { stamp::now() }
}

/// A kernel may write to a stream from here on. [`kernel_stops_writing`] ends this.
pub fn kernel_writes() {
    KERNEL_WRITERS.fetch_add(1, Ordering::Relaxed);
    stamp::raise();
}

pub fn kernel_stops_writing() {
    KERNEL_WRITERS.fetch_sub(1, Ordering::Relaxed);
}

/// Milliseconds of a monotonic clock with coarse resolution.
pub fn uptime_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// The incarnation of a server: nanoseconds of the wall clock at its start.
pub fn incarnation() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
}

/// Milliseconds of the clock for leases of ranks: monotonic, and runs while the machine sleeps.
pub fn lease_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
