//! A histogram of durations in buckets of bounded relative width: four per power of two.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// From 256 ns to 18 minutes; longer durations count in the last bucket.
const BUCKETS: usize = 128;
/// Shorter durations are not distinguished.
const UNIT_BITS: u32 = 8;

/// Counters that many threads update concurrently.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub(crate) fn record(&self, nanos: u64) {
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    pub(crate) fn add_to(&self, sum: &mut HistogramCounts) {
        for (sum, count) in sum.buckets.iter_mut().zip(&self.buckets) {
            *sum += count.load(Relaxed);
        }
        sum.nanos += self.nanos.load(Relaxed);
    }
}

/// The counts of one or several histograms at some time.
#[derive(Clone, Debug)]
pub(crate) struct HistogramCounts {
    buckets: [u64; BUCKETS],
    pub nanos: u64,
}

impl Default for HistogramCounts {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], nanos: 0 }
    }
}

impl HistogramCounts {
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The counts since an earlier snapshot.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (now, before) in since.buckets.iter_mut().zip(&before.buckets) {
            *now = now.saturating_sub(*before);
        }
        since.nanos = since.nanos.saturating_sub(before.nanos);
        since
    }

    /// An upper bound of the given quantile (0 to 1); at most a quarter above it.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = (self.count() as f64 * share).ceil() as u64;
        let mut below = 0;
        let reached = self.buckets.iter().position(|count| {
            below += count;
            below >= rank.max(1)
        });
        Duration::from_nanos(reached.map_or(0, end))
    }

    /// Counts between powers of four from 1 us to 17 s, as (upper bound in seconds, count). The
    /// last bound is infinite.
    pub(crate) fn coarse(&self) -> Vec<(f64, u64)> {
        let mut rest = self.buckets.iter().copied().enumerate().peekable();
        let mut coarse: Vec<_> = (10..=34)
            .step_by(2)
            .map(|bits| {
                let mut count = 0;
                while let Some((_, more)) = rest.next_if(|(at, _)| end(*at) <= 1 << bits) {
                    count += more;
                }
                ((1u64 << bits) as f64 / 1e9, count)
            })
            .collect();
        coarse.push((f64::INFINITY, rest.map(|(_, count)| count).sum()));
        coarse
    }
}

fn bucket(nanos: u64) -> usize {
    let units = nanos >> UNIT_BITS;
    if units < 4 {
        return units as usize;
    }
    let exponent = units.ilog2();
    let quarter = (units >> (exponent - 2)) as usize & 3;
    ((exponent as usize - 1) * 4 + quarter).min(BUCKETS - 1)
}

/// The upper bound of a bucket, in nanoseconds.
fn end(bucket: usize) -> u64 {
    let next = bucket as u64 + 1;
    let units = if next < 4 { next } else { (4 + next % 4) << (next / 4 - 1) };
    units << UNIT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_on_each_other() {
        assert_eq!(bucket(0), 0);
        for at in 0..BUCKETS - 1 {
            assert_eq!((bucket(end(at) - 1), bucket(end(at))), (at, at + 1));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        // A bucket is at most a quarter wide, relative to its lower bound.
        assert!((4..BUCKETS).all(|at| end(at) * 4 <= end(at - 1) * 5));
    }

    #[test]
    fn quantiles_are_where_the_times_are() {
        let histogram = Histogram::default();
        for _ in 0..98 {
            histogram.record(10_000);
        }
        histogram.record(5_000_000);
        histogram.record(5_000_000);
        let mut all = HistogramCounts::default();
        histogram.add_to(&mut all);
        assert_eq!((all.count(), all.nanos), (100, 98 * 10_000 + 10_000_000));
        let near = |share, nanos| {
            let quantile = all.quantile(share).as_nanos();
            (nanos..=nanos * 5 / 4).contains(&quantile)
        };
        assert!(near(0.5, 10_000) && near(0.98, 10_000) && near(0.99, 5_000_000), "{all:?}");
        assert_eq!(all.since(&all).count(), 0);
        assert_eq!(all.since(&all).quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn coarse_counts_add_up() {
        let histogram = Histogram::default();
        for nanos in [500, 1_023, 1_024, 60_000_000_000] {
            histogram.record(nanos);
        }
        let mut all = HistogramCounts::default();
        histogram.add_to(&mut all);
        let coarse = all.coarse();
        assert_eq!((coarse[0], coarse[1].1, coarse.len()), ((1.024e-6, 2), 1, 14));
        assert_eq!(coarse.last(), Some(&(f64::INFINITY, 1)));
    }
}
