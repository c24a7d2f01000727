//! Inputs of a decision: the metrics of all ranks, and the fragments of the rank that decides.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sandbox::SavedState;

/// Most ranks in a snapshot.
pub const RANKS_MAX: usize = 65_536;

/// Largest metric.
const METRIC_MAX: f64 = 1e15;

/// Operations counted on a fragment or a rank, each with exponential decay (sevilla, Table 4.2).
/// Numbers from 0 to 10^15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PopularityCounters {
    #[serde(rename = "IRD")]
    pub inode_reads: f64,
    #[serde(rename = "IWR")]
    pub inode_writes: f64,
    #[serde(rename = "READDIR")]
    pub readdirs: f64,
    #[serde(rename = "FETCH")]
    pub fetches: f64,
    #[serde(rename = "STORE")]
    pub stores: f64,
}

impl PopularityCounters {
    pub(crate) fn array(&self) -> [f64; 5] {
        [self.inode_reads, self.inode_writes, self.readdirs, self.fetches, self.stores]
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.array().iter().all(|count| *count == 0.0)
    }

    pub fn add(&mut self, other: &Self) {
        self.inode_reads += other.inode_reads;
        self.inode_writes += other.inode_writes;
        self.readdirs += other.readdirs;
        self.fetches += other.fetches;
        self.stores += other.stores;
    }

    /// The excess of these counters over others, at least 0.
    #[must_use]
    pub fn less(&self, other: &Self) -> Self {
        let less = |own: f64, other: f64| (own - other).max(0.0);
        Self {
            inode_reads: less(self.inode_reads, other.inode_reads),
            inode_writes: less(self.inode_writes, other.inode_writes),
            readdirs: less(self.readdirs, other.readdirs),
            fetches: less(self.fetches, other.fetches),
            stores: less(self.stores, other.stores),
        }
    }
}

/// A rank's last heartbeat. It carries counters and no loads, so that recorded heartbeats can be
/// replayed with another policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankMetrics {
    pub rank: u16,
    /// Time at which the rank measured this, in milliseconds of the same clock as
    /// [`MetricsSnapshot::now_ms`].
    pub at_ms: u64,
    /// CPU utilisation in percent; above 100 for several processors.
    #[serde(default)]
    pub cpu: f64,
    /// Memory utilisation in percent.
    #[serde(default)]
    pub mem: f64,
    /// Requests in the queue.
    #[serde(default)]
    pub q: f64,
    /// Requests per second.
    #[serde(default)]
    pub req: f64,
    /// Operations on what the rank owns.
    #[serde(default)]
    pub auth: PopularityCounters,
    /// Operations on all subtrees that the rank knows.
    #[serde(default)]
    pub all: PopularityCounters,
}

/// A fragment or subtree that the deciding rank owns and can move as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FragmentMetrics {
    /// Name in explanations, as the host writes it. May be empty.
    #[serde(default)]
    pub name: String,
    /// Index of the fragment above, which moves with this one inside: less than the own index.
    #[serde(default)]
    pub parent: Option<u32>,
    /// Operations here and on the rank's fragments below.
    pub counters: PopularityCounters,
    /// Directory entries here and below.
    #[serde(default)]
    pub entries: u64,
    /// Number of moves that it takes: directories here and below. 0 counts as 1.
    #[serde(default)]
    pub directories: u64,
    /// Time of its last move to this rank.
    #[serde(default)]
    pub moved_ms: Option<u64>,
}

/// Inputs of one decision. As JSON it can be recorded and replayed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSnapshot {
    pub now_ms: u64,
    /// The rank that decides. It is one of `ranks`.
    pub whoami: u16,
    /// All ranks that serve, in any order.
    pub ranks: Vec<RankMetrics>,
    /// Parents before children.
    pub fragments: Vec<FragmentMetrics>,
    /// Operations counted here on subtrees of other ranks.
    #[serde(default)]
    pub foreign: PopularityCounters,
    /// Times and values that the host has recorded: the result of `timeseries()`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub time_series: Vec<(f64, f64)>,
    /// Times at which this rank began its last moves.
    #[serde(default)]
    pub recent_moves_ms: Vec<u64>,
    #[serde(default)]
    pub state: SavedState,
    /// Start of `math.random`.
    #[serde(default)]
    pub seed: u64,
}

/// Why a snapshot cannot be decided on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    #[error("rank {0} decides and has no metrics")]
    NoMetrics(u16),
    #[error("rank {0} is there twice")]
    Twice(u16),
    #[error("more than {RANKS_MAX} ranks or {} fragments", u32::MAX)]
    TooMany,
    #[error("a metric of rank {0} is negative or too large")]
    RankMetric(u16),
    #[error("a metric of fragment {0} is negative or too large")]
    FragmentMetric(usize),
    #[error("the parent of fragment {0} does not come before it")]
    Parent(usize),
    #[error("a count of other ranks' subtrees is negative or too large")]
    Foreign,
    #[error("a time or value of the time series is not finite")]
    TimeSeries,
    #[error("the saved state is not finite")]
    State,
}

impl MetricsSnapshot {
    /// # Errors
    /// Numbers are negative or too large, or references lead nowhere.
    pub fn validate(&self) -> Result<(), SnapshotError> {
        let is_valid = |values: &[f64]| values.iter().all(|value| (0.0..=METRIC_MAX).contains(value));
        if self.ranks.len() > RANKS_MAX || u32::try_from(self.fragments.len()).is_err() {
            return Err(SnapshotError::TooMany);
        }
        let mut ranks: Vec<u16> = self.ranks.iter().map(|metrics| metrics.rank).collect();
        ranks.sort_unstable();
        if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SnapshotError::Twice(twice[0]));
        }
        ranks.binary_search(&self.whoami).map_err(|_| SnapshotError::NoMetrics(self.whoami))?;
        for m in &self.ranks {
            let scalars = [m.cpu, m.mem, m.q, m.req];
            if ![&scalars[..], &m.auth.array(), &m.all.array()].into_iter().all(is_valid) {
                return Err(SnapshotError::RankMetric(m.rank));
            }
        }
        for (index, fragment) in self.fragments.iter().enumerate() {
            if !is_valid(&fragment.counters.array()) {
                return Err(SnapshotError::FragmentMetric(index));
            }
            if fragment.parent.is_some_and(|parent| parent as usize >= index) {
                return Err(SnapshotError::Parent(index));
            }
        }
        if !is_valid(&self.foreign.array()) {
            return Err(SnapshotError::Foreign);
        }
        if !self.time_series.iter().all(|(at, value)| at.is_finite() && value.is_finite()) {
            return Err(SnapshotError::TimeSeries);
        }
        match self.state {
            SavedState::Number(number) if !number.is_finite() => Err(SnapshotError::State),
            _ => Ok(()),
        }
    }
}
