//! Usage deltas between ranks (docs/usage.md).
//!
//! A change of usage in a directory of another rank is owed to that rank as a delta. Once a second,
//! deltas are numbered and sent, and sent again until the other rank acknowledges that it has
//! counted them durably. Both sides journal their position, so each delta is counted once, whatever
//! is lost or duplicated.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::Cell;

use espalier_proto::{Errno, Ino, Limit, ObjectId, Rank};
use serde::{Deserialize, Serialize};

use super::message::PeerMessage;
use crate::event::Event;
use crate::machine::Meta;
use crate::record::{Corrupt, decode, encode};
use crate::session::PersistedKey;
use crate::state::State;
use crate::step::Step;
use crate::table::Record;
use crate::usage::{QuotaLimits, Usage};

/// Maximum number of directories per message.
const MAX_DIRS_SENT: usize = 1000;
/// Maximum number of remembered directories of another rank with quotas above them.
const MOST_LIMITS: usize = 100_000;

/// The exchange of usage deltas with one other rank; a record of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct UsageDeltas {
    /// Number of deltas sent to the other rank.
    pub sent: u64,
    /// Number of the other rank's deltas counted here.
    pub heard: u64,
    /// The last deltas sent, which the other rank has not acknowledged.
    pub unanswered: Vec<(Ino, Usage)>,
    /// Deltas to send next; none is zero.
    pub owed: BTreeMap<Ino, Usage>,
    /// Quotas above directories of the other rank, as of the last change that it has counted, and
    /// whether they have been read since. Empty after a restart.
    #[serde(skip)]
    limits: BTreeMap<Ino, (QuotaLimits, Cell<bool>)>,
}

impl Record for UsageDeltas {
    type Key = Rank;

    fn place(rank: Rank) -> (ObjectId, Vec<u8>) {
        PersistedKey::UsageDeltas(rank).place()
    }

    fn encode(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        decode(value)
    }
}

/// The changes of usage that no rank has counted yet. Keys: the rank that stores the deltas, and
/// the one that counts them.
pub(crate) fn uncounted(all: &BTreeMap<(Rank, Rank), UsageDeltas>) -> impl Iterator<Item = (Ino, Usage)> {
    all.iter().flat_map(|((by, to), deltas)| {
        let heard = all.get(&(*to, *by)).map_or(0, |its| its.heard);
        let unheard = deltas.sent.saturating_sub(heard).min(deltas.unanswered.len() as u64) as usize;
        let unheard = deltas.unanswered.iter().rev().take(unheard).copied();
        unheard.chain(deltas.owed.iter().map(|(dir, usage)| (*dir, *usage)))
    })
}

/// Makes the positions of each two ranks agree, if records are lost: no rank then waits for a delta
/// that the other does not have. Returns the keys that have changed.
pub(crate) fn reconcile(all: &mut BTreeMap<(Rank, Rank), UsageDeltas>) -> Vec<(Rank, Rank)> {
    let pairs: BTreeSet<(Rank, Rank)> = all.keys().flat_map(|(by, to)| [(*by, *to), (*to, *by)]).collect();
    let mut changed = BTreeSet::new();
    for (by, to) in pairs {
        let heard = all.get(&(to, by)).map_or(0, |its| its.heard);
        let (sent, known) = all.get(&(by, to)).map_or((0, 0), |its| (its.sent, its.unanswered.len() as u64));
        if (sent.saturating_sub(known)..=sent).contains(&heard) {
            continue;
        }
        let agreed = sent.max(heard);
        let deltas = all.entry((by, to)).or_default();
        (deltas.sent, deltas.unanswered) = (agreed, Vec::new());
        all.entry((to, by)).or_default().heard = agreed;
        changed.extend([(by, to), (to, by)]);
    }
    changed.into_iter().collect()
}

impl State {
    /// Adds a gain and a loss to what is owed for a directory at another rank.
    pub(crate) fn owe(&mut self, dir: Ino, gain: Usage, loss: Usage) {
        self.change_deltas(dir.rank(), |deltas| {
            let sum = deltas.owed.get(&dir).copied().unwrap_or_default().plus(gain).minus(loss);
            if sum == Usage::default() {
                deltas.owed.remove(&dir);
            } else {
                deltas.owed.insert(dir, sum);
            }
        });
    }

    /// The known quotas above a directory at another rank, with what that rank has not counted yet
    /// added to their usage.
    pub(crate) fn remote_limits(&self, dir: Ino) -> Option<QuotaLimits> {
        let deltas = self.usage_deltas.get(&dir.rank())?;
        let (limits, looked_at) = deltas.limits.get(&dir)?;
        looked_at.set(true);
        let sent = deltas.unanswered.iter().filter(|(sent_dir, _)| *sent_dir == dir).map(|(_, usage)| *usage);
        let more = sent.chain(deltas.owed.get(&dir).copied()).fold(Usage::default(), Usage::plus);
        let add = |limit: Option<Limit>, more: u64| {
            limit.map(|it| Limit { used: it.used.saturating_add_signed(more as i64), ..it })
        };
        Some(QuotaLimits { files: add(limits.files, more.inodes()), bytes: add(limits.bytes, more.bytes) })
    }

    /// Numbers the next deltas for a rank.
    pub(crate) fn apply_usage_sent(&mut self, to: Rank) {
        self.change_deltas(to, |deltas| {
            while deltas.unanswered.len() < MAX_DIRS_SENT
                && let Some(first) = deltas.owed.pop_first()
            {
                deltas.unanswered.push(first);
                deltas.sent += 1;
            }
        });
    }

    /// Counts the next delta of another rank. `None`: its directory is gone.
    pub(crate) fn apply_heard(&mut self, from: Rank, change: Option<(Ino, Usage)>) {
        if let Some((dir, change)) = change {
            self.count(dir, change, Usage::default());
        }
        self.change_deltas(from, |deltas| deltas.heard += 1);
    }

    /// Drops the deltas that a rank has counted.
    pub(crate) fn apply_counted(&mut self, by: Rank) {
        self.change_deltas(by, |deltas| deltas.unanswered.clear());
    }

    fn change_deltas(&mut self, rank: Rank, change: impl FnOnce(&mut UsageDeltas)) {
        self.usage_deltas.change_or_insert(rank, &mut self.changes, UsageDeltas::default, change);
    }
}

impl Meta {
    /// Sends usage deltas to other ranks, resends unacknowledged ones, and asks for the quotas in
    /// use.
    pub(crate) fn send_usage(&mut self) {
        if self.writable().is_err() {
            return;
        }
        let ranks: Vec<Rank> = self.state.usage_deltas.sorted().map(|(rank, _)| *rank).collect();
        for to in ranks {
            let deltas = self.state.usage_deltas.get(&to);
            if deltas.is_some_and(|deltas| deltas.unanswered.is_empty() && !deltas.owed.is_empty()) {
                self.append_loaded(&Event::UsageSent { to });
            }
            let Some(deltas) = self.state.usage_deltas.get(&to) else { continue };
            let changes = deltas.unanswered.clone();
            let looked_at = deltas.limits.iter().filter(|(_, (_, looked_at))| looked_at.take());
            let about: Vec<Ino> = looked_at.map(|(dir, _)| *dir).take(MAX_DIRS_SENT).collect();
            if !changes.is_empty() || !about.is_empty() {
                self.send_to_rank_when_durable(to, PeerMessage::Usage { last: deltas.sent, changes, about });
            }
        }
    }

    /// Counts deltas one after another, and resumes where an earlier run has stopped. Then sends
    /// the acknowledgement with the quotas above.
    pub(super) fn count_received(
        &mut self,
        from: Rank,
        last: u64,
        changes: &[(Ino, Usage)],
        about: &[Ino],
    ) -> Step<()> {
        let before = last.checked_sub(changes.len() as u64).ok_or(Errno::EINVAL)?;
        loop {
            let heard = self.state.usage_deltas.get(&from).map_or(0, |deltas| deltas.heard);
            let done = heard.checked_sub(before).ok_or(Errno::EINVAL)?;
            let Some((dir, change)) = changes.get(done as usize) else { break };
            self.writable()?;
            if let Some(locks) = &self.state.locks {
                // The transaction that makes it may have been carried out at the other rank first.
                locks.check(*dir)?;
            }
            self.state.load_above(*dir)?;
            self.append(&Event::UsageReceived { from, change: Some((*dir, *change)) })?;
        }
        for dir in about {
            self.state.load_above(*dir)?;
        }
        let dirs = changes.iter().map(|(dir, _)| dir).chain(about);
        let limits = dirs.filter_map(|dir| Some((*dir, self.state.limits_below(*dir).ok()?))).collect();
        self.send_to_rank_when_durable(from, PeerMessage::Counted { last, limits });
        Ok(())
    }

    /// Skips the next delta of a rank, whose directory is gone. Returns false if there is none:
    /// then a directory that the rank has asked about is gone.
    pub(super) fn skip_gone(&mut self, from: Rank, last: u64) -> bool {
        let heard = self.state.usage_deltas.get(&from).map_or(0, |deltas| deltas.heard);
        if heard < last {
            self.append_loaded(&Event::UsageReceived { from, change: None });
        }
        heard < last
    }

    /// Handles another rank's acknowledgement of all deltas up to `last`.
    pub(crate) fn usage_counted(&mut self, by: Rank, last: u64, limits: Vec<(Ino, QuotaLimits)>) {
        let Some(deltas) = self.state.usage_deltas.untracked(&by).filter(|deltas| deltas.sent == last) else {
            return;
        };
        for (dir, limits) in limits {
            if limits == QuotaLimits::default() {
                deltas.limits.remove(&dir);
            } else {
                if deltas.limits.len() == MOST_LIMITS {
                    // Many may have been removed. The others are reported again.
                    deltas.limits.clear();
                }
                deltas.limits.insert(dir, (limits, Cell::new(false)));
            }
        }
        if !deltas.unanswered.is_empty() {
            self.append_loaded(&Event::Counted { by });
        }
    }

    /// Number of directories at other ranks with deltas that those have not acknowledged.
    pub fn unsent_usage(&self) -> usize {
        let deltas = self.state.usage_deltas.sorted();
        deltas.map(|(_, deltas)| deltas.unanswered.len() + deltas.owed.len()).sum()
    }
}
