//! A shared log with CORFU's interface (append, read, fill, trim), stored in a directory of any
//! file system that all its clients mount, and sequencers that migrate between hosts (sevilla,
//! chapter 5.2).
//!
//! Decisions are pure: [`LogCall`] decides the steps of an append, [`Sequencer`] hands out numbers
//! within its limits, [`claim`] decides who may take a sequencer over, [`plan_moves`] which
//! sequencers move. The rest carries out: [`LogDirectory`] on files, [`SharedLog`] for clients,
//! [`SequencerHost`] for hosts of sequencers. docs/shared-log.md describes formats and guarantees.
#![forbid(unsafe_code)]

mod balance;
mod call;
mod client;
mod directory;
mod host;
pub mod policies;
mod sequencer;
mod wire;

use std::io;
use std::path::PathBuf;

pub use balance::{HostLoad, SequencerLoad, plan_moves};
pub use call::{LogCall, LogStep, SealState, SlotState};
pub use client::{LogOptions, NumberSource, SharedLog};
pub use directory::{LogDirectory, LogEntry};
pub use host::{HostOptions, HostRecord, SequencerHost, live_hosts};
pub use sequencer::{
    ClaimDecision, EpochHolder, EpochRecord, HolderState, LeaseLimits, Sequencer, SequencerExpired,
    TakenNumbers, claim,
};

/// Largest payload of an entry, in bytes.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Most numbers that are taken at a time.
pub const NUMBERS_MAX: u64 = 1 << 20;

/// Why an operation on a log fails.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("{}: not a valid record of a shared log", .0.display())]
    Damaged(PathBuf),
    #[error("an entry of {0} bytes: at most {ENTRY_BYTES_MAX} are allowed")]
    TooLong(usize),
    #[error("{0} numbers at a time: at most {NUMBERS_MAX} are allowed")]
    TooMany(u64),
    #[error("position {0} is at or beyond the end of the log")]
    BeyondTail(u64),
    /// A trim passed the position while the entry was written: readers may have seen it or not.
    #[error("position {0} was trimmed while it was written")]
    Trimmed(u64),
    #[error("no sequencer answers within {0} ms: start a host, or seal the log if its holder hangs")]
    NoSequencer(u64),
    #[error("there is no host {0}")]
    NoHost(String),
    #[error("`{0}` cannot be the name of a log or a host: letters, digits, `-`, `_` and `.` only")]
    Name(String),
}
