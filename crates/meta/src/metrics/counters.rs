//! Popularity counters of directories (sevilla 2.1, Table 4.2), with an exponential decay.
//!
//! A counter is the sum of its events, each weighted by 2^(-age / half-life). Counters are stored
//! without decay: an event adds the weight 2^((time - base) / half-life), and a value is divided by
//! the present weight. A tick moves the base to the present.

use alloc::vec::Vec;

use espalier_proto::Ino;
use serde::{Deserialize, Serialize};

use crate::state::FxMap;

/// Time in milliseconds in which a counter halves, as in CephFS; sevilla gives none.
pub(super) const HALF_LIFE_MS: u64 = 5000;
/// A constant rate of one event per second makes a counter this large: the half-life in seconds,
/// divided by ln 2.
const SECONDS_PER_RATE: f32 = HALF_LIFE_MS as f32 / 1000.0 / core::f32::consts::LN_2;
/// The lowest rate that a limit of requests can have, in requests per second.
pub(crate) const MIN_RATE: u64 = 1;
/// Maximum number of directories with counters; each takes about 40 bytes.
pub(super) const MAX_DIRECTORIES: usize = 1 << 16;
/// Counters of a directory are dropped when their sum is below this.
const NEGLIGIBLE: f32 = 0.01;
/// Maximum exponent of a weight, which keeps sums finite.
const MAX_HALF_LIVES: u64 = 32;

/// A number in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Milli(pub u64);

impl Milli {
    /// `sum / number`; 0 of nothing.
    pub(super) fn ratio(sum: u64, number: u64) -> Self {
        Self(sum.saturating_mul(1000).checked_div(number).unwrap_or(0))
    }

    pub fn get(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

/// Kinds of events, in the order of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    InodeRead,
    InodeWrite,
    ReadDir,
    Fetch,
    Store,
}

/// Counters by [`Activity`], each in units of the weight at the base.
pub(super) type Weighted = [f32; 5];

/// Decayed counts of a directory, a subtree or a rank (sevilla Table 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Popularity {
    /// Operations that changed nothing, without listings.
    pub ird: Milli,
    /// Operations that changed something.
    pub iwr: Milli,
    /// Pages of listings.
    pub readdir: Milli,
    /// Records loaded from the store.
    pub fetch: Milli,
    /// Records written to the store by checkpoints.
    pub store: Milli,
}

impl Popularity {
    /// By kind, in the order of the fields.
    pub fn counts(&self) -> [f64; 5] {
        [self.ird, self.iwr, self.readdir, self.fetch, self.store].map(Milli::get)
    }

    /// Requests per second, if their rate has been constant for some half-lives.
    pub fn requests_per_second(&self) -> u64 {
        (self.ird.0 + self.iwr.0 + self.readdir.0) / (1000.0 * SECONDS_PER_RATE) as u64
    }

    /// The metadata load as CephFS weights it (sevilla 4.2.2): IRD + 2 IWR + READDIR + 2 FETCH +
    /// 4 STORE.
    pub fn load(&self) -> f64 {
        let counts = [self.ird, self.iwr, self.readdir, self.fetch, self.store];
        let weighted = counts.iter().zip(LOAD).map(|(count, weight)| count.0.saturating_mul(weight.into()));
        Milli(weighted.fold(0, u64::saturating_add)).get()
    }
}

impl core::ops::AddAssign for Popularity {
    fn add_assign(&mut self, other: Self) {
        self.ird.0 += other.ird.0;
        self.iwr.0 += other.iwr.0;
        self.readdir.0 += other.readdir.0;
        self.fetch.0 += other.fetch.0;
        self.store.0 += other.store.0;
    }
}

/// Weights in a metadata load, by [`Activity`].
const LOAD: [u8; 5] = [1, 2, 1, 2, 4];

pub(super) fn load_of(counters: &Weighted) -> f32 {
    counters.iter().zip(LOAD).map(|(count, weight)| count * f32::from(weight)).sum()
}

pub(super) fn add(sum: &mut Weighted, counters: &Weighted) {
    sum.iter_mut().zip(counters).for_each(|(sum, count)| *sum += count);
}

#[derive(Debug)]
pub(crate) struct Counters {
    now_ms: u64,
    base_ms: u64,
    /// The weight of an event at `now_ms`.
    weight: f32,
    pub(super) directories: FxMap<Ino, Weighted>,
    /// All events in this rank's directories, also in those that have no counters.
    pub(super) served: Weighted,
    /// Misrouted requests, and requests of other ranks.
    pub(super) for_others: Weighted,
}

impl Default for Counters {
    fn default() -> Self {
        let (directories, none) = (FxMap::default(), Weighted::default());
        Self { now_ms: 0, base_ms: 0, weight: 1.0, directories, served: none, for_others: none }
    }
}

impl Counters {
    /// Sets the time, in milliseconds of a monotonic clock. Time that goes backwards stands still.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        if now_ms > self.now_ms {
            self.now_ms = now_ms;
            self.weight = power_of_two(now_ms - self.base_ms);
            if now_ms - self.base_ms >= MAX_HALF_LIVES * HALF_LIFE_MS {
                self.rebase();
            }
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Counts events of a directory; `None`: of no particular one.
    pub(super) fn count(&mut self, dir: Option<Ino>, activity: Activity, events: usize) {
        let added = self.weight * events as f32;
        self.served[activity as usize] += added;
        let Some(dir) = dir.filter(|_| events > 0) else { return };
        let may_insert = self.directories.len() < MAX_DIRECTORIES;
        if let Some(counters) = self.directories.get_mut(&dir) {
            counters[activity as usize] += added;
        } else if may_insert {
            let mut counters = Weighted::default();
            counters[activity as usize] = added;
            self.directories.insert(dir, counters);
        }
    }

    pub(super) fn count_for_others(&mut self, activity: Activity) {
        self.for_others[activity as usize] += self.weight;
    }

    /// Drops counters that have decayed to nothing. While there is no space for new ones, drops the
    /// smallest, until a quarter of the space is free.
    pub(super) fn tick(&mut self) {
        self.rebase();
        let (mut least, is_full) = (NEGLIGIBLE, self.directories.len() >= MAX_DIRECTORIES);
        self.drop_below(least);
        while is_full && self.directories.len() > MAX_DIRECTORIES / 4 * 3 {
            least *= 2.0;
            self.drop_below(least);
        }
    }

    /// The directories with this many requests per second, or more.
    pub(crate) fn faster_than(&self, rate: u64) -> Vec<(Ino, u64)> {
        let rate_of = |counters| self.popularity(counters).requests_per_second();
        let rates = self.directories.iter().map(|(dir, counters)| (*dir, rate_of(counters)));
        rates.filter(|(_, found)| *found >= rate).collect()
    }

    /// Divides a directory's counters: `parts` records have its names from now on.
    pub(crate) fn divide(&mut self, dir: Ino, parts: usize) {
        if let Some(counters) = self.directories.get_mut(&dir) {
            counters.iter_mut().for_each(|count| *count /= parts as f32);
        }
    }

    fn drop_below(&mut self, least: f32) {
        self.directories.retain(|_, counters| counters.iter().sum::<f32>() >= least);
    }

    fn rebase(&mut self) {
        let factor = 1.0 / self.weight;
        let all = self.directories.values_mut().chain([&mut self.served, &mut self.for_others]);
        all.flatten().for_each(|count| *count *= factor);
        (self.base_ms, self.weight) = (self.now_ms, 1.0);
    }

    /// The present values.
    pub(super) fn popularity(&self, counters: &Weighted) -> Popularity {
        let [ird, iwr, readdir, fetch, store] =
            counters.map(|count| Milli((count / self.weight * 1000.0 + 0.5) as u64));
        Popularity { ird, iwr, readdir, fetch, store }
    }
}

/// 2^(`ms` / half-life), with an error of at most 0.02 %.
fn power_of_two(ms: u64) -> f32 {
    let (whole, rest) = (ms / HALF_LIFE_MS, ms % HALF_LIFE_MS);
    let x = rest as f32 / HALF_LIFE_MS as f32;
    // Exact at both ends of [0, 1].
    let fraction = 1.0 + x * (0.695_425 + x * (0.226_305 + x * 0.078_27));
    // Larger exponents have the same effect: everything has decayed.
    let exponent = whole.min(MAX_HALF_LIVES * 2) as u32;
    fraction * f32::from_bits((127 + exponent) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);

    fn value(counters: &Counters, dir: Ino) -> f64 {
        let zero = Weighted::default();
        counters.popularity(counters.directories.get(&dir).unwrap_or(&zero)).ird.get()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= b * 0.001 + 0.001
    }

    #[test]
    fn counts_halve_in_each_half_life() {
        let mut counters = Counters::default();
        counters.advance(123_456);
        counters.count(Some(DIR), Activity::InodeRead, 1024);
        for (at, expected) in [(0, 1024.0), (2500, 724.077), (5000, 512.0), (12_500, 181.019), (50_000, 1.0)]
        {
            counters.advance(123_456 + at);
            assert!(close(value(&counters, DIR), expected), "{} after {at} ms", value(&counters, DIR));
        }
    }

    #[test]
    fn ticks_do_not_change_values() {
        let (mut ticked, mut unticked) = (Counters::default(), Counters::default());
        for second in 1..=20 {
            for counters in [&mut ticked, &mut unticked] {
                counters.advance(second * 1000);
                counters.count(Some(DIR), Activity::InodeRead, 100);
            }
            ticked.tick();
        }
        assert!(close(value(&ticked, DIR), value(&unticked, DIR)));
        // 100 a second, for long: 100 / (1 - 2^(-1/5)).
        assert!(close(value(&ticked, DIR), 772.5 * (1.0 - 1.0 / 16.0)), "{}", value(&ticked, DIR));
    }

    #[test]
    fn the_weights_error_is_small() {
        for ms in 0..20_000 {
            let exact = (ms as f64 / HALF_LIFE_MS as f64).exp2();
            assert!((f64::from(power_of_two(ms)) / exact - 1.0).abs() < 2e-4, "{ms}");
        }
    }

    #[test]
    fn a_leap_of_time_leaves_nothing() {
        let mut counters = Counters::default();
        counters.count(Some(DIR), Activity::InodeRead, 1_000_000);
        counters.advance(u64::MAX / 2);
        counters.tick();
        assert!(counters.directories.is_empty());
        counters.count(Some(DIR), Activity::InodeRead, 3);
        assert!(close(value(&counters, DIR), 3.0));
        counters.advance(5);
        assert!(close(value(&counters, DIR), 3.0));
    }

    #[test]
    fn counters_that_have_decayed_to_nothing_are_dropped() {
        let mut counters = Counters::default();
        (0..1000).for_each(|dir| counters.count(Some(Ino(dir)), Activity::Store, 1));
        for second in 1..60 {
            counters.advance(second * 1000);
            counters.tick();
            assert_eq!(counters.directories.is_empty(), second >= 34, "after {second} s");
        }
    }

    #[test]
    fn memory_is_bounded_and_the_hottest_stay() {
        let mut counters = Counters::default();
        for round in 0..3 {
            for dir in 0..2 * MAX_DIRECTORIES as u64 {
                counters.count(Some(Ino(dir)), Activity::InodeRead, 1 + usize::from(dir % 100 == 0) * 99);
            }
            assert!(counters.directories.len() <= MAX_DIRECTORIES);
            counters.advance(round * 1000);
            counters.tick();
            assert!(counters.directories.len() <= MAX_DIRECTORIES / 4 * 3);
        }
        assert!((0..MAX_DIRECTORIES as u64).step_by(100).all(|dir| value(&counters, Ino(dir)) > 99.0));
    }

    #[test]
    fn load_weighs_counts_as_cephfs_does() {
        let [ird, iwr, readdir, fetch, store] = [1000, 2000, 3000, 4000, 5000].map(Milli);
        let popularity = Popularity { ird, iwr, readdir, fetch, store };
        assert!(close(popularity.load(), 1.0 + 4.0 + 3.0 + 8.0 + 20.0));
        assert!(close(load_of(&[1.0, 2.0, 3.0, 4.0, 5.0]).into(), 36.0));
    }
}
