//! Splits and merges by requests: a fragment that stays popular splits whatever its size, and one
//! that is not popular may merge (sevilla 2.1; docs/directories.md).
//!
//! The rate of a fragment is that of its popularity counters, so it follows the requests of the
//! last seconds. All of this is volatile, as the counters are.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_policy::Policy;
use espalier_proto::Ino;

use crate::machine::Meta;
use crate::metrics::{MIN_RATE, Popularity};
use crate::record::Inode;

/// Number of ticks in a row after which a fragment splits that gets too many requests.
const HOT_TICKS: u8 = 5;
/// Interval in ticks between looks for fragments that get few requests.
const COLD_TICKS: u64 = 8;

/// Fragments that get more requests than `dir_split_rate`.
#[derive(Debug, Default)]
pub(super) struct HotFragments(BTreeMap<Ino, HotFragment>);

#[derive(Clone, Copy, Debug)]
struct HotFragment {
    /// Number of ticks in a row at which it was above the limit.
    ticks: u8,
    /// Requests per second at the last tick.
    rate: u64,
}

impl HotFragments {
    pub(super) fn remove(&mut self, fragment: Ino) {
        self.0.remove(&fragment);
    }
}

impl Meta {
    /// Once a second: finds the fragments that have become due to split or merge.
    pub(crate) fn tick_rates(&mut self) {
        if self.config.ranks == 1 {
            return;
        }
        let busy = self.metrics.counters.faster_than(MIN_RATE);
        let hot = |(fragment, rate): (Ino, u64)| {
            let limit = self.split_rate(&self.state.inodes.get(&fragment)?.inode)?;
            let ticks = self.transfers.hot.0.get(&fragment).map_or(0, |hot| hot.ticks);
            (rate > limit).then(|| (fragment, HotFragment { ticks: ticks.saturating_add(1), rate }))
        };
        let hot: BTreeMap<Ino, HotFragment> = busy.into_iter().filter_map(hot).collect();
        let is_due = |(_, hot): &(&Ino, &HotFragment)| hot.ticks >= HOT_TICKS;
        let mut due: Vec<Ino> = hot.iter().filter(is_due).map(|(fragment, _)| *fragment).collect();
        self.transfers.hot = HotFragments(hot);
        if self.state.counts.partitions > 0 && self.ticks.is_multiple_of(COLD_TICKS) {
            due.extend(self.cold_fragments());
        }
        due.into_iter().for_each(|fragment| self.note_growth(fragment));
    }

    /// Fragments with counters that may merge once they get few requests.
    fn cold_fragments(&self) -> Vec<Ino> {
        let is_cold = |fragment: &Ino| {
            let Some(cached) = self.state.inodes.get(fragment) else { return false };
            let limit = self.merge_rate(&cached.inode);
            cached.inode.fragment().is_some() && limit.is_some_and(|limit| self.rate_of(*fragment) < limit)
        };
        self.metrics
            .counters
            .faster_than(0)
            .into_iter()
            .map(|(fragment, _)| fragment)
            .filter(is_cold)
            .collect()
    }

    /// The requests per second that a record of a directory gets.
    fn rate_of(&self, record: Ino) -> u64 {
        self.popularity_of(record).requests_per_second()
    }

    /// The rate and the limit, if a fragment has been above the limit for long enough to split.
    pub(super) fn excessive_rate(&self, inode: &Inode) -> Option<(u64, u64)> {
        let HotFragment { ticks, rate } = *self.transfers.hot.0.get(&inode.ino)?;
        let limit = self.split_rate(inode)?;
        (ticks >= HOT_TICKS && rate > limit).then_some((rate, limit))
    }

    /// True if a fragment gets few enough requests to merge.
    pub(super) fn is_cold(&self, inode: &Inode) -> bool {
        self.merge_rate(inode).is_none_or(|limit| self.rate_of(inode.ino) < limit)
    }

    /// True if the record that a fragment would merge into does not get so many requests that it
    /// would soon split again.
    pub(super) fn has_room_for(&self, inode: &Inode, other: &Popularity) -> bool {
        let together = self.rate_of(inode.ino).saturating_add(other.requests_per_second());
        self.split_rate(inode).is_none_or(|limit| together <= limit / 2)
    }

    fn split_rate(&self, inode: &Inode) -> Option<u64> {
        self.setting(inode, Policy::dir_split_rate).map(|rate| rate.get().into())
    }

    /// The rate from which on a fragment does not merge.
    fn merge_rate(&self, inode: &Inode) -> Option<u64> {
        let own = self.setting(inode, Policy::dir_merge_rate).map(|rate| u64::from(rate.get()));
        own.or_else(|| Some((self.split_rate(inode)? / 4).max(1)))
    }
}
