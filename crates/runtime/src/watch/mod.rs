//! Statistics: counts and durations of operations, reported on request.
//!
//! An operation carries a [`Span`]. At its end the duration is counted in a histogram of its kind.
//! The histograms are sharded to reduce contention. Counts by process and directory exist only
//! while a viewer requests them.

mod histogram;
mod http;
mod prometheus;
mod report;
mod span;
mod top_table;
mod viewer;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use espalier_meta::IoKind;
pub(crate) use espalier_proto::Kind;
use histogram::{Histogram, HistogramCounts};
pub use http::MetricsAddress;
pub(crate) use http::MetricsServer;
pub(crate) use prometheus::exposition;
pub(crate) use report::MachineFigures;
pub use report::{
    CacheFigures, CheckpointFigures, ClientFigures, DataFigures, Figures, FragmentFigures, IoFigures,
    JournalFigures, OperationFigures, RankFigures, Split, TrashFigures,
};
pub use report::{DirectoryFigures, ProcessFigures, Top};
pub(crate) use span::{CriticalSection, Span, Stage};
use viewer::{Viewer, ViewerCounts};

/// Maximum number of slow operations that are logged per period; the rest is counted.
const SLOW_LOGGED: u64 = 10;
/// In seconds.
const SLOW_PERIOD: u64 = 10;
/// Each shard takes 32 KiB.
const SHARDS: usize = 64;
/// Maximum number of concurrent viewers.
const VIEWERS: usize = 8;

/// The statistics of one mount.
#[derive(Debug)]
pub(crate) struct Watch {
    began: Instant,
    /// Number of threads that serve requests.
    threads: usize,
    shards: Box<[Shard]>,
    io: [Histogram; IoKind::ALL.len()],
    slow: Slow,
    checkpoint: Mutex<CheckpointFigures>,
    has_viewers: AtomicBool,
    viewers: Mutex<Vec<Viewer>>,
}

/// The counts of some of the threads.
#[derive(Debug)]
struct Shard([Measure; Kind::ALL.len()]);

impl Default for Shard {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Measure::default()))
    }
}

/// The counts of one kind of operation.
#[derive(Debug, Default)]
struct Measure {
    latency: Histogram,
    /// Time spent in other stages than [`Stage::Work`]: queue, journal, disk.
    waited: [AtomicU64; 3],
    errors: AtomicU64,
}

const WAITS: [Stage; 3] = [Stage::Queue, Stage::Journal, Stage::Disk];

#[derive(Debug)]
struct Slow {
    /// Threshold in nanoseconds from which on an operation is slow; the maximum disables logging.
    from: u64,
    count: AtomicU64,
    /// In the present period.
    recent: AtomicU64,
    ticks: AtomicU64,
}

/// Snapshot of the counts.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    kinds: Vec<KindTotals>,
    io: Vec<HistogramCounts>,
}

#[derive(Clone, Debug, Default)]
struct KindTotals {
    latency: HistogramCounts,
    waited: [u64; 3],
    errors: u64,
}

impl Watch {
    /// `slow`: the duration from which on operations are logged; `None`: never.
    pub(crate) fn new(threads: usize, slow: Option<Duration>) -> Self {
        let from = slow.map_or(u64::MAX, |slow| u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX));
        let zero = AtomicU64::default;
        Self {
            began: Instant::now(),
            threads,
            shards: (0..threads.clamp(1, SHARDS)).map(|_| Shard::default()).collect(),
            io: Default::default(),
            slow: Slow { from, count: zero(), recent: zero(), ticks: zero() },
            checkpoint: Mutex::default(),
            has_viewers: AtomicBool::new(false),
            viewers: Mutex::default(),
        }
    }

    /// Counts an operation at its end; returns true if it is slow and should be logged.
    pub(crate) fn record(&self, span: &Span, failed: bool) -> bool {
        let total = span.total();
        let measure = &self.shard().0[span.kind as usize];
        measure.latency.record(total);
        for (waited, stage) in measure.waited.iter().zip(WAITS) {
            let nanos = span.spent[stage as usize];
            if nanos > 0 {
                waited.fetch_add(nanos, Relaxed);
            }
        }
        if failed {
            measure.errors.fetch_add(1, Relaxed);
        }
        if self.has_viewers() {
            self.record_for_viewers(span, total, failed);
        }
        if total < self.slow.from {
            return false;
        }
        self.slow.count.fetch_add(1, Relaxed);
        self.slow.recent.fetch_add(1, Relaxed) < SLOW_LOGGED
    }

    pub(crate) fn record_io(&self, kind: IoKind, took: Duration) {
        self.io[kind as usize].record(took.as_nanos() as u64);
    }

    pub(crate) fn record_checkpoint(&self, took: Duration, records: u64, done: bool) {
        let mut all = lock(&self.checkpoint);
        if done {
            all.done += 1;
            all.records += records;
            (all.last_seconds, all.last_records) = (took.as_secs_f64(), records);
        } else {
            all.failed += 1;
        }
    }

    /// Called once per second: reports the number of slow operations that were not logged.
    pub(crate) fn tick(&self) {
        if !(self.slow.ticks.fetch_add(1, Relaxed) + 1).is_multiple_of(SLOW_PERIOD) {
            return;
        }
        let more = self.slow.recent.swap(0, Relaxed).saturating_sub(SLOW_LOGGED);
        if more > 0 {
            tracing::warn!(operations = more, seconds = SLOW_PERIOD, "more slow operations, not logged");
        }
    }

    /// True if operations are counted by process and directory.
    pub(crate) fn has_viewers(&self) -> bool {
        self.has_viewers.load(Relaxed)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut kinds = vec![KindTotals::default(); Kind::ALL.len()];
        for shard in &self.shards {
            for (sum, measure) in kinds.iter_mut().zip(&shard.0) {
                measure.latency.add_to(&mut sum.latency);
                for (sum, waited) in sum.waited.iter_mut().zip(&measure.waited) {
                    *sum += waited.load(Relaxed);
                }
                sum.errors += measure.errors.load(Relaxed);
            }
        }
        let mut io = vec![HistogramCounts::default(); self.io.len()];
        for (sum, histogram) in io.iter_mut().zip(&self.io) {
            histogram.add_to(sum);
        }
        Totals { kinds, io }
    }

    fn shard(&self) -> &Shard {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Relaxed);
        }
        &self.shards[THREAD.with(|thread| *thread) % self.shards.len()]
    }

    fn record_for_viewers(&self, span: &Span, total: u64, failed: bool) {
        let mut viewers = lock(&self.viewers);
        viewers.retain(|viewer| viewer.expires > span.mark());
        self.has_viewers.store(!viewers.is_empty(), Relaxed);
        for viewer in viewers.iter_mut() {
            viewer.add(span, total, failed);
        }
    }

    /// The counts for a viewer since its last call, initially none. `None`: too many viewers.
    fn look(&self, id: u64, lasting: Duration) -> Option<ViewerCounts> {
        let (totals, now) = (self.totals(), Instant::now());
        let mut viewers = lock(&self.viewers);
        viewers.retain(|viewer| viewer.expires > now);
        let at = match viewers.iter().position(|viewer| viewer.id == id) {
            Some(at) => at,
            None if viewers.len() == VIEWERS => return None,
            None => {
                viewers.push(Viewer::new(id, now, totals.clone()));
                viewers.len() - 1
            }
        };
        self.has_viewers.store(true, Relaxed);
        Some(viewers[at].look(totals, now, lasting))
    }
}

impl Totals {
    fn since(&self, before: &Self) -> Self {
        let kinds = self.kinds.iter().zip(&before.kinds).map(|(now, before)| KindTotals {
            latency: now.latency.since(&before.latency),
            waited: std::array::from_fn(|at| now.waited[at].saturating_sub(before.waited[at])),
            errors: now.errors.saturating_sub(before.errors),
        });
        let io = self.io.iter().zip(&before.io).map(|(now, before)| now.since(before));
        Self { kinds: kinds.collect(), io: io.collect() }
    }

    fn kinds(&self) -> impl Iterator<Item = (Kind, &KindTotals)> {
        Kind::ALL.iter().copied().zip(&self.kinds)
    }

    fn io(&self) -> impl Iterator<Item = (IoKind, &HistogramCounts)> {
        IoKind::ALL.into_iter().zip(&self.io)
    }
}

impl KindTotals {
    /// Seconds by [`Stage`].
    fn seconds(&self) -> [f64; 4] {
        let [queue, journal, disk] = self.waited;
        let work = self.latency.nanos.saturating_sub(queue + journal + disk);
        [queue, work, journal, disk].map(|nanos| nanos as f64 / 1e9)
    }
}

/// Counters are consistent at any time, even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
