//! Usage deltas between ranks (docs/usage.md).
//!
//! A change of usage in a directory of another rank is owed to that rank as a delta. Once a second,
//! deltas are numbered and sent, and sent again until the other rank acknowledges that it has
//! counted them durably. Both sides journal their position, so each delta is counted once, whatever
//! is lost or duplicated.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;

use espalier_proto::{Errno, Ino, Limit, ObjectId, Rank, TableWrite};
use serde::{Deserialize, Serialize};

use super::message::PeerMessage;
use crate::event::Event;
use crate::machine::Meta;
use crate::record::{Corrupt, decode, encode};
use crate::session::KeptKey;
use crate::snapshot::Changed;
use crate::state::{State, Track};
use crate::step::Step;
use crate::usage::{Limits, Usage};

/// Maximum number of directories per message.
const MOST_TOLD: usize = 1000;
/// Maximum number of remembered directories of another rank with quotas above them.
const MOST_LIMITS: usize = 100_000;

/// The exchange of usage deltas with one other rank; a record of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Number of deltas sent to the other rank.
    pub told: u64,
    /// Number of the other rank's deltas counted here.
    pub heard: u64,
    /// The last deltas sent, which the other rank has not acknowledged.
    pub unanswered: Vec<(Ino, Usage)>,
    /// Deltas to send next; none is zero.
    pub owed: BTreeMap<Ino, Usage>,
    /// Quotas above directories of the other rank, as of the last change that it has counted, and
    /// whether they have been read since. Empty after a restart.
    #[serde(skip)]
    limits: BTreeMap<Ino, (Limits, Cell<bool>)>,
    #[serde(skip)]
    track: Track,
}

impl State {
    /// Adds a gain and a loss to what is owed for a directory at another rank.
    pub(crate) fn owe(&mut self, dir: Ino, gain: Usage, loss: Usage) {
        let owed = &mut self.touch_tally(dir.rank()).owed;
        let sum = owed.get(&dir).copied().unwrap_or_default().plus(gain).minus(loss);
        if sum == Usage::default() {
            owed.remove(&dir);
        } else {
            owed.insert(dir, sum);
        }
    }

    /// The known quotas above a directory at another rank, with what that rank has not counted yet
    /// added to their usage.
    pub(crate) fn limits_elsewhere(&self, dir: Ino) -> Option<Limits> {
        let tally = self.tallies.get(&dir.rank())?;
        let (limits, looked_at) = tally.limits.get(&dir)?;
        looked_at.set(true);
        let told = tally.unanswered.iter().filter(|(told, _)| *told == dir).map(|(_, usage)| *usage);
        let more = told.chain(tally.owed.get(&dir).copied()).fold(Usage::default(), Usage::plus);
        let add = |limit: Option<Limit>, more: u64| {
            limit.map(|it| Limit { used: it.used.saturating_add_signed(more as i64), ..it })
        };
        Some(Limits { files: add(limits.files, more.inodes()), bytes: add(limits.bytes, more.bytes) })
    }

    /// Numbers the next deltas for a rank.
    pub(crate) fn apply_told(&mut self, to: Rank) {
        let tally = self.touch_tally(to);
        while tally.unanswered.len() < MOST_TOLD
            && let Some(first) = tally.owed.pop_first()
        {
            tally.unanswered.push(first);
            tally.told += 1;
        }
    }

    /// Counts the next delta of another rank. `None`: its directory is gone.
    pub(crate) fn apply_heard(&mut self, from: Rank, change: Option<(Ino, Usage)>) -> Step<()> {
        if let Some((dir, change)) = change {
            self.load_above(dir)?;
            self.count(dir, change, Usage::default());
        }
        self.touch_tally(from).heard += 1;
        Ok(())
    }

    /// Drops the deltas that a rank has counted.
    pub(crate) fn apply_counted(&mut self, by: Rank) {
        self.touch_tally(by).unanswered.clear();
    }

    /// Prepares the record for a change: encodes it first if the current snapshot needs its old
    /// state.
    fn touch_tally(&mut self, rank: Rank) -> &mut Tally {
        let epoch = self.epoch;
        let was = self.tallies.get(&rank).map_or(0, |tally| tally.track.epoch);
        if was != epoch {
            if was != 0 {
                self.encode_tally(rank);
            }
            self.changed.push_back(Changed::Tally(rank));
        }
        let tally = self.tallies.entry(rank).or_default();
        tally.track.epoch = epoch;
        tally
    }

    /// Adds the record to the current snapshot, if it belongs there and is not in it yet.
    pub(crate) fn encode_tally(&mut self, rank: Rank) {
        let was = self.epoch - 1;
        let Some(tally) = self.tallies.get_mut(&rank).filter(|tally| tally.track.epoch == was) else {
            return;
        };
        tally.track = Track { epoch: 0, written: was, stored: true };
        let (key, value) = (KeptKey::Tally(rank).to_bytes(), Some(encode(tally)));
        self.snapshot.writes.push(TableWrite { object: ObjectId::SESSIONS, key, value });
    }

    pub(crate) fn loaded_tally(&mut self, rank: Rank, value: &[u8]) -> Result<(), Corrupt> {
        self.tallies.insert(rank, Tally { track: Track::STORED, ..decode(value)? });
        Ok(())
    }
}

impl Meta {
    /// Sends usage deltas to other ranks, resends unacknowledged ones, and asks for the quotas in
    /// use.
    pub(crate) fn tell_usage(&mut self) {
        if self.state.tallies.is_empty() || self.writable().is_err() {
            return;
        }
        for to in self.state.tallies.keys().copied().collect::<Vec<_>>() {
            let tally = self.state.tallies.get(&to);
            if tally.is_some_and(|tally| tally.unanswered.is_empty() && !tally.owed.is_empty()) {
                // Needs no load, so it cannot fail to find a record.
                let _ = self.append(&Event::Told { to });
            }
            let Some(tally) = self.state.tallies.get(&to) else { continue };
            let changes = tally.unanswered.clone();
            let looked_at = tally.limits.iter().filter(|(_, (_, looked_at))| looked_at.take());
            let about: Vec<Ino> = looked_at.map(|(dir, _)| *dir).take(MOST_TOLD).collect();
            if !changes.is_empty() || !about.is_empty() {
                self.tell_rank_when_durable(to, PeerMessage::Usage { last: tally.told, changes, about });
            }
        }
    }

    /// Counts deltas one after another, and resumes where an earlier run has stopped. Then sends
    /// the acknowledgement with the quotas above.
    pub(super) fn count_told(
        &mut self,
        from: Rank,
        last: u64,
        changes: &[(Ino, Usage)],
        about: &[Ino],
    ) -> Step<()> {
        let before = last.checked_sub(changes.len() as u64).ok_or(Errno::EINVAL)?;
        loop {
            let heard = self.state.tallies.get(&from).map_or(0, |tally| tally.heard);
            let done = heard.checked_sub(before).ok_or(Errno::EINVAL)?;
            let Some((dir, change)) = changes.get(done as usize) else { break };
            self.writable()?;
            self.state.load_above(*dir)?;
            self.append(&Event::Heard { from, change: Some((*dir, *change)) })?;
        }
        for dir in about {
            self.state.load_above(*dir)?;
        }
        let dirs = changes.iter().map(|(dir, _)| dir).chain(about);
        let limits = dirs.filter_map(|dir| Some((*dir, self.state.limits_below(*dir).ok()?))).collect();
        self.tell_rank_when_durable(from, PeerMessage::Counted { last, limits });
        Ok(())
    }

    /// Skips the next delta of a rank, whose directory is gone. Returns false if there is none:
    /// then a directory that the rank has asked about is gone.
    pub(super) fn skip_gone(&mut self, from: Rank, last: u64) -> bool {
        let heard = self.state.tallies.get(&from).map_or(0, |tally| tally.heard);
        heard < last && self.append(&Event::Heard { from, change: None }).is_ok()
    }

    /// Handles another rank's acknowledgement of all deltas up to `last`.
    pub(crate) fn usage_counted(&mut self, by: Rank, last: u64, limits: Vec<(Ino, Limits)>) {
        let Some(tally) = self.state.tallies.get_mut(&by).filter(|tally| tally.told == last) else { return };
        for (dir, limits) in limits {
            if limits == Limits::default() {
                tally.limits.remove(&dir);
            } else {
                if tally.limits.len() == MOST_LIMITS {
                    // Many may no longer exist. The others are reported again.
                    tally.limits.clear();
                }
                tally.limits.insert(dir, (limits, Cell::new(false)));
            }
        }
        if !tally.unanswered.is_empty() {
            let _ = self.append(&Event::Counted { by });
        }
    }

    /// Number of directories at other ranks with deltas that those have not acknowledged.
    pub fn untold_usage(&self) -> usize {
        self.state.tallies.values().map(|tally| tally.unanswered.len() + tally.owed.len()).sum()
    }
}
