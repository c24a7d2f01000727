//! The log of the balancer: changes of the policy, moves with their reasons, and failures. It lies
//! with the policy, and has the last entries that fit in an extended attribute. Policy and log in
//! the store itself are an example of Malacology's *durability* (docs/malacology.md).

use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Rank, Time};
use serde::{Deserialize, Serialize};

use super::policy::LOG;
use crate::fragment::MoveScope;
use crate::machine::{Cx, Meta};
use crate::rank::PeerAnswer;
use crate::record::encode;
use crate::step::Step;

/// Maximum number of entries, and of their bytes.
const MAX_ENTRIES: usize = 400;
const MAX_BYTES: usize = 48 << 10;
/// Age in ms of the oldest move that is reported to ranks. No dwell time or window is longer.
const RECENT_MS: u64 = 600_000;
/// Age in ms up to which a move stays in the log: dwell time and window of servers.
pub const LOGGED_MS: u64 = 60_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerLogEntry {
    /// Time at the root's rank.
    pub time: Time,
    /// The rank that decided, or that a fragment moves back from.
    pub rank: Rank,
    /// Version and name of the policy.
    pub version: u64,
    pub balancer: String,
    pub event: BalancerEvent,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BalancerEvent {
    /// The policy has changed.
    Set { is_on: bool, every_s: u32, who: String, why: String },
    /// A fragment is to move to another rank.
    Moved {
        dir: Ino,
        /// Its record before the move.
        fragment: Ino,
        /// Its lowest hash.
        first: u64,
        /// The directory's path, if the rank knew it.
        path: Option<String>,
        to: Rank,
        /// What moves with it.
        scope: MoveScope,
        why: String,
        is_undone: bool,
    },
    /// A fragment is to move back.
    Undone { dir: Ino, first: u64, path: Option<String>, to: Rank, who: String },
    /// A rank holds still.
    Failed { error: String },
    /// The engine's limits hold back some of what the policy has a rank move.
    Limited { held_back: String },
}

/// A move in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentMove {
    pub dir: Ino,
    /// The fragment's lowest hash.
    pub first: u64,
    pub from: Rank,
    pub age_ms: u64,
}

impl RecentMove {
    /// Its time on a clock that shows `now_ms`.
    pub(super) fn at_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.age_ms)
    }
}

/// Encodes the entries of the log that fit in an attribute. The oldest are dropped first, and moves
/// that limits depend on last.
pub(super) fn encoded(log: &[BalancerLogEntry], now: Time) -> Vec<u8> {
    let mut rest: Vec<&BalancerLogEntry> = log.iter().collect();
    loop {
        let value = encode(&rest);
        if rest.is_empty() || fits(rest.len(), &value) {
            return value;
        }
        let mut excess = rest.len().div_ceil(8);
        let all_recent = rest.iter().all(|entry| entry.is_recent_move(now));
        rest.retain(|entry| {
            let goes = excess > 0 && (all_recent || !entry.is_recent_move(now));
            excess -= usize::from(goes);
            !goes
        });
    }
}

fn fits(entries: usize, encoded: &[u8]) -> bool {
    entries <= MAX_ENTRIES && encoded.len() <= MAX_BYTES
}

impl BalancerLogEntry {
    /// Age in ms. A clock that was set back makes an entry seem to be new.
    pub(super) fn age_ms(&self, now: Time) -> u64 {
        let millis = |time: Time| i128::from(time.secs) * 1000 + i128::from(time.nanos) / 1_000_000;
        u64::try_from(millis(now) - millis(self.time)).unwrap_or(0)
    }
}

impl BalancerLogEntry {
    /// True of a move that dwell times and windows depend on.
    fn is_recent_move(&self, now: Time) -> bool {
        let is_move = matches!(self.event, BalancerEvent::Moved { .. } | BalancerEvent::Undone { .. });
        is_move && self.age_ms(now) < LOGGED_MS
    }
}

impl Meta {
    /// The log, at the root's rank.
    pub(super) fn log(&self) -> Step<Vec<BalancerLogEntry>> {
        Ok(self.stored(LOG)?.unwrap_or_default())
    }

    pub(super) fn log_with(
        &self,
        entries: impl IntoIterator<Item = BalancerLogEntry>,
    ) -> Step<Vec<BalancerLogEntry>> {
        let mut log = self.log()?;
        log.extend(entries);
        Ok(log)
    }

    /// The moves of the last minutes.
    pub(super) fn recent_moves(&self, now: Time) -> Step<Vec<RecentMove>> {
        let recent = |entry: &BalancerLogEntry| {
            let (dir, first) = match &entry.event {
                BalancerEvent::Moved { dir, first, .. } | BalancerEvent::Undone { dir, first, .. } => {
                    (*dir, *first)
                }
                BalancerEvent::Set { .. } | BalancerEvent::Failed { .. } | BalancerEvent::Limited { .. } => {
                    return None;
                }
            };
            let (from, age_ms) = (entry.rank, entry.age_ms(now));
            (age_ms < RECENT_MS).then_some(RecentMove { dir, first, from, age_ms })
        };
        Ok(self.log()?.iter().filter_map(recent).collect())
    }

    /// Answers a rank that has decided with this version of the policy.
    ///
    /// # Errors
    /// - `ESTALE`: there is a newer version.
    /// - `EBUSY`: the log has no space for further moves.
    pub(crate) fn answer_record(
        &mut self,
        cx: &mut Cx<'_>,
        from: Rank,
        version: u64,
        events: &[BalancerEvent],
    ) -> Step<PeerAnswer> {
        let policy = self.stored_policy()?.filter(|policy| policy.version == version);
        let balancer = policy.ok_or(Errno::ESTALE)?.name;
        let entry = |event: &BalancerEvent| BalancerLogEntry {
            time: cx.now,
            rank: from,
            version,
            balancer: balancer.clone(),
            event: event.clone(),
        };
        let log = self.log_with(events.iter().map(entry).collect::<Vec<_>>())?;
        let recent: Vec<_> = log.iter().filter(|entry| entry.is_recent_move(cx.now)).collect();
        if !fits(recent.len(), &encode(&recent)) {
            return Err(Errno::EBUSY.into());
        }
        self.write_log(cx, &log)?;
        Ok(PeerAnswer::Recorded)
    }
}
