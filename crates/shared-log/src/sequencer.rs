//! Sequencers, and who may hold one.
//!
//! Each tenure of a holder is an epoch. Its record is created exactly once, names the holder, and
//! ends with the tail if the holder releases it. A successor of a holder that died finds the tail
//! from the entries, after its own epoch exists.

use serde::{Deserialize, Serialize};

/// Limits of a tenure that another process waits for (Malacology's *shared resources*,
/// docs/malacology.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimits {
    /// Numbers that the holder hands out before it releases the sequencer.
    pub quota: u64,
    /// Milliseconds after which it releases the sequencer.
    pub term_ms: u64,
    /// Milliseconds for which it leaves the sequencer to others afterwards.
    pub backoff_ms: u64,
}

impl Default for LeaseLimits {
    fn default() -> Self {
        Self { quota: 1000, term_ms: 250, backoff_ms: 5 }
    }
}

/// Numbers of one epoch: `first` and those after it, as many as were requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenNumbers {
    pub epoch: u64,
    /// The first number; the tail, if the count is 0.
    pub first: u64,
}

/// The quota or the term is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencerExpired;

/// Hands out the positions of a log, in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct Sequencer {
    epoch: u64,
    tail: u64,
    /// Numbers left and the end of the term; a host has no limits.
    limits: Option<(u64, u64)>,
}

impl Sequencer {
    /// `now_ms`: any clock, which [`Sequencer::take`] uses, too.
    pub fn new(epoch: u64, tail: u64, limits: Option<LeaseLimits>, now_ms: u64) -> Self {
        let limits = limits.map(|limits| (limits.quota, now_ms.saturating_add(limits.term_ms)));
        Self { epoch, tail, limits }
    }

    /// Hands out `count` numbers, none below `floor`. A count of 0 only raises the tail to `floor`.
    ///
    /// # Errors
    /// [`SequencerExpired`]: release it.
    pub fn take(&mut self, count: u64, floor: u64, now_ms: u64) -> Result<TakenNumbers, SequencerExpired> {
        if let Some((left, end_ms)) = &mut self.limits {
            if *left < count || now_ms >= *end_ms {
                return Err(SequencerExpired);
            }
            *left -= count;
        }
        let first = self.tail.max(floor);
        self.tail = first.saturating_add(count);
        Ok(TakenNumbers { epoch: self.epoch, first })
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The position after the last number.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Milliseconds until the term ends.
    pub fn left_ms(&self, now_ms: u64) -> Option<u64> {
        self.limits.map(|(_, end_ms)| end_ms.saturating_sub(now_ms))
    }
}

/// The holder of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochHolder {
    /// The host of this name, until it hands the sequencer over.
    Host(String),
    /// A client, for so many milliseconds.
    Lease { term_ms: u64 },
}

/// The record of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochRecord {
    pub epoch: u64,
    pub holder: EpochHolder,
    /// First number of the epoch; `None` until it is recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<u64>,
    /// The tail at the end of the epoch; `None` if the holder has not released it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
}

impl EpochRecord {
    /// The host that holds the sequencer, if the epoch has not ended.
    pub fn holding_host(self) -> Option<String> {
        match self.holder {
            EpochHolder::Host(host) if self.end.is_none() => Some(host),
            _ => None,
        }
    }
}

/// State of the holder of an epoch that has not been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It has its lock.
    Running,
    /// Its lock is free.
    Dead,
    /// The caller deposes it, whatever its state.
    Deposed,
}

/// The next holder of the sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// The caller, if it is first to create this epoch. `begin`: first number, or `None` if it must
    /// be recovered from the entries.
    Claim { epoch: u64, begin: Option<u64> },
    /// The holder of the current epoch.
    Held,
}

/// Decides a claim on the sequencer whose current epoch has this record.
pub fn claim(current: Option<&EpochRecord>, holder: HolderState) -> ClaimDecision {
    let Some(current) = current else { return ClaimDecision::Claim { epoch: 1, begin: None } };
    let epoch = current.epoch + 1;
    match (current.end, holder) {
        (Some(end), _) => ClaimDecision::Claim { epoch, begin: Some(end) },
        (None, HolderState::Running) => ClaimDecision::Held,
        (None, HolderState::Dead | HolderState::Deposed) => ClaimDecision::Claim { epoch, begin: None },
    }
}
