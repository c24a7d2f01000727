//! What ranks say to each other.

use alloc::vec::Vec;

use espalier_proto::{Caller, ClientId, Errno, FileType, Ino, Name, Rank, Time};
use serde::{Deserialize, Serialize};

use super::edit::Edit;
use crate::usage::{Limits, Usage};

/// Names what one rank wants of others, for good: no two of its incarnations use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionId {
    /// The sequence number of an event that was durable before: tells incarnations apart.
    pub began: u64,
    pub number: u64,
    /// The coordinator.
    pub rank: Rank,
}

/// Tells what was prepared for a transaction from what a late copy of the question has had prepared once more: the sequence
/// number of the event.
pub type Vote = u64;

/// How old a transaction is: the smaller, the older. One that is tried again keeps its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Age {
    pub since: Time,
    pub id: TransactionId,
}

/// From one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Answered by `Answer`. The same id with a `Prepare` goes to each rank that takes part.
    Ask {
        id: TransactionId,
        caller: Caller,
        question: Question,
    },
    Answer {
        id: TransactionId,
        answer: Answer,
    },
    /// What becomes of what was prepared: what has this vote is to be done, which `Finished` answers; or nothing is.
    Finish {
        id: TransactionId,
        vote: Option<Vote>,
    },
    /// It is done, durably.
    Finished {
        id: TransactionId,
    },
    /// What becomes of this? Answered by `Finish`, when it is known.
    Inquire {
        id: TransactionId,
        vote: Vote,
    },
    /// This has come to directories of the other rank's, as differences: the changes up to this number. Answered by `Counted`, when
    /// it is counted there, durably. `about`: directories that bound what is made here.
    Usage {
        last: u64,
        changes: Vec<(Ino, Usage)>,
        about: Vec<Ino>,
    },
    /// These clients have ended their sessions, the last ones that have: said when a connection begins, for the other may have been away then.
    Left {
        clients: Vec<ClientId>,
    },
    /// With the quotas above the directories that it was about, as far as they are known at once.
    Counted {
        last: u64,
        limits: Vec<(Ino, Limits)>,
    },
}

/// An answer names no more directories: it must fit into a message, whatever there is.
pub(crate) const MAX_DIRS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// What does a name stand for, which the caller wants to replace?
    Look { dir: Ino, name: Name },
    /// Which directories is one in, with itself, as far as they are at that rank? The first [`MAX_DIRS`].
    Above { dir: Ino },
    /// Which directory is one, or which have names of a file? The [`MAX_DIRS`] with the smallest numbers above this.
    Dirs { ino: Ino, after: Ino },
    /// Can this be done, and will it be, when that is decided?
    Prepare {
        edits: Vec<Edit>,
        /// That of all changes.
        time: Time,
        /// When the operation was first tried.
        since: Time,
    },
}

impl Question {
    /// What it is called where operations are traced.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Look { .. } => "look",
            Self::Above { .. } => "above",
            Self::Dirs { .. } => "dirs",
            Self::Prepare { .. } => "prepare",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// `sticky`: what the name stands for must be the caller's own.
    Found {
        target: Option<(Ino, FileType)>,
        sticky: bool,
    },
    /// `next`: the directory that the last of them is in: at another rank, or there are more.
    Above {
        dirs: Vec<Ino>,
        next: Option<Ino>,
    },
    Dirs {
        dirs: Vec<Ino>,
    },
    /// It is prepared, durably. `named`: the inode that gets its first name, or another.
    Ready {
        vote: Vote,
        named: Option<(Ino, FileType)>,
    },
    /// An older transaction is in the way.
    Busy,
    /// Things are not as the coordinator has seen them.
    Changed,
    Refused(Errno),
}
