use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use espalier_proto::Time;
use espalier_store::stamp;
use rustix::time::{ClockId, clock_gettime};

/// Openings through which kernels write to streams by themselves, of all mounts of this process.
static KERNEL_WRITERS: AtomicU32 = AtomicU32::new(0);

/// The present, for the times of inodes: in order with those of streams, whoever writes to them.
pub fn now() -> Time {
    // The kernel does not say when it writes.
    if KERNEL_WRITERS.load(Ordering::Relaxed) > 0 { stamp::raise() } else { stamp::now() }
}

/// A kernel may write to a stream by itself from now on. Each call is matched by one of [`kernel_stops_writing`].
pub fn kernel_writes() {
    KERNEL_WRITERS.fetch_add(1, Ordering::Relaxed);
    stamp::raise();
}

pub fn kernel_stops_writing() {
    KERNEL_WRITERS.fetch_sub(1, Ordering::Relaxed);
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
