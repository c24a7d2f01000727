//! Use of the machine by this process, which metadata servers report to each other.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use espalier_meta::{Input, Milli};
use rustix::time::{ClockId, clock_gettime};

/// Measures the use of processors between calls, and of memory.
pub struct ResourceMeter {
    /// Time and processor time of the last call.
    last: Mutex<(Instant, Duration)>,
    processors: usize,
}

impl ResourceMeter {
    pub fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { last: Mutex::new((Instant::now(), processor_time())), processors }
    }

    /// The use since the last call, in percent of the processors that this process may use, and of
    /// the machine's memory.
    pub fn sample(&self) -> Input {
        let (now, used) = (Instant::now(), processor_time());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *last, (now, used));
        let available = now.saturating_duration_since(since).as_secs_f64() * self.processors as f64;
        let cpu = percent(used.saturating_sub(before).as_secs_f64(), available);
        Input::Resources { cpu, mem: memory().unwrap_or_default() }
    }
}

/// In thousandths of a percent.
fn percent(used: f64, available: f64) -> Milli {
    Milli(if available > 0.0 { (used / available * 100_000.0) as u64 } else { 0 })
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Resident memory of this process; `None` if it is unknown.
fn memory() -> Option<Milli> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    let machine = rustix::system::sysinfo();
    let total = machine.totalram as f64 * f64::from(machine.mem_unit);
    Some(percent(pages as f64 * rustix::param::page_size() as f64, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_memory_of_the_process_are_seen() {
        let meter = ResourceMeter::new();
        let idle = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let Input::Resources { cpu: before, mem } = meter.sample() else { panic!("no resources") };
        assert!(mem > Milli(0) && mem < Milli(100_000), "{mem:?}");
        let began = processor_time();
        while processor_time() - began < Duration::from_millis(100) {
            std::hint::black_box(idle);
        }
        let Input::Resources { cpu, .. } = meter.sample() else { panic!("no resources") };
        assert!(cpu > Milli(0) && cpu <= Milli(100_500), "{cpu:?} after {before:?}");
    }

    #[test]
    fn percent_of_nothing_is_none() {
        assert_eq!([percent(1.0, 4.0), percent(1.0, 0.0)], [Milli(25_000), Milli(0)]);
    }
}
