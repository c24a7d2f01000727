//! Heartbeats: each rank sends its load to all others (sevilla 4.1), and retains the last of each.

use alloc::collections::BTreeMap;

use espalier_proto::Rank;
use serde::{Deserialize, Serialize};

use super::counters::{Milli, Popularity};

/// Ticks between heartbeats.
pub(super) const HEARTBEAT_TICKS: u64 = 2;
/// A rank is silent if its last heartbeat is older than this, in milliseconds.
const SILENT_MS: u64 = 3 * HEARTBEAT_TICKS * 1000;

/// The load of a rank (sevilla Table 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLoad {
    /// Counts of the directories that the rank serves.
    pub auth: Popularity,
    /// The same with those of misrouted requests, and of requests of other ranks.
    pub all: Popularity,
    /// Use of the machine's processors and memory by the process, in percent of all.
    pub cpu: Milli,
    pub mem: Milli,
    /// Mean number of requests that an arriving request finds waiting.
    pub queue: Milli,
    /// Requests of clients per second.
    pub requests: Milli,
}

/// The load of a rank as another one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLoad {
    pub rank: Rank,
    pub load: RankLoad,
    /// Age of the heartbeat in milliseconds; 0 of the rank itself. `None`: there was none.
    pub age_ms: Option<u64>,
}

impl KnownLoad {
    /// True if no heartbeat has come for six seconds.
    pub fn is_silent(&self) -> bool {
        self.age_ms.is_none_or(|age| age > SILENT_MS)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    /// As in [`RankLoad`], as reported by the driver.
    pub(super) cpu: Milli,
    pub(super) mem: Milli,
    /// Means of the last completed period.
    pub(super) queue: Milli,
    pub(super) requests: Milli,
    /// The current period: its beginning, the requests that have arrived, and the sum of the
    /// numbers of waiting requests that they have found.
    since_ms: u64,
    arrived: u64,
    found: u64,
    /// The last heartbeat of each rank and the time when it came.
    heard: BTreeMap<Rank, (RankLoad, u64)>,
}

impl Heartbeats {
    /// A request arrives and finds others waiting.
    pub(crate) fn arrived(&mut self, waiting: usize) {
        self.arrived += 1;
        self.found += waiting as u64;
    }

    /// Ends a period. `waiting`: requests that wait at present.
    pub(super) fn end_period(&mut self, now_ms: u64, waiting: usize) {
        self.requests = Milli::ratio(self.arrived.saturating_mul(1000), now_ms - self.since_ms);
        self.queue = match self.arrived {
            0 => Milli::ratio(waiting as u64, 1),
            arrived => Milli::ratio(self.found, arrived),
        };
        (self.since_ms, self.arrived, self.found) = (now_ms, 0, 0);
    }

    pub(super) fn heard(&mut self, rank: Rank, load: RankLoad, now_ms: u64) {
        self.heard.insert(rank, (load, now_ms));
    }

    pub(super) fn known(&self, rank: Rank, now_ms: u64) -> KnownLoad {
        match self.heard.get(&rank) {
            Some((load, at)) => KnownLoad { rank, load: *load, age_ms: Some(now_ms.saturating_sub(*at)) },
            None => KnownLoad { rank, load: RankLoad::default(), age_ms: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_a_rate_and_a_mean_queue() {
        let mut heartbeats = Heartbeats::default();
        heartbeats.end_period(10_000, 0);
        [0, 1, 2, 5].into_iter().for_each(|waiting| heartbeats.arrived(waiting));
        heartbeats.end_period(12_000, 9);
        assert_eq!((heartbeats.requests, heartbeats.queue), (Milli(2000), Milli(2000)));
        heartbeats.end_period(14_000, 9);
        assert_eq!((heartbeats.requests, heartbeats.queue), (Milli(0), Milli(9000)));
        heartbeats.arrived(1);
        heartbeats.end_period(14_000, 0);
        assert_eq!(heartbeats.requests, Milli(0));
    }

    #[test]
    fn a_rank_is_silent_without_heartbeats() {
        let (mut heartbeats, rank) = (Heartbeats::default(), Rank(3));
        assert!(heartbeats.known(rank, 0).is_silent());
        heartbeats.heard(rank, RankLoad { cpu: Milli(7), ..RankLoad::default() }, 1000);
        let known = heartbeats.known(rank, 7000);
        assert_eq!((known.age_ms, known.load.cpu, known.is_silent()), (Some(6000), Milli(7), false));
        assert!(heartbeats.known(rank, 7001).is_silent());
    }
}
