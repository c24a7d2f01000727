//! Messages between ranks: requests and their answers, the steps of two-phase commit, usage deltas,
//! freed inode numbers, forwarded requests, and heartbeats.

use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{
    Caller, ClientId, Errno, FileType, FragmentMap, Ino, Name, Rank, Request, RequestId, Time,
};
use serde::{Deserialize, Serialize};

use super::edit::Edit;
use super::location::WholeFile;
use crate::balancing::{BalancerEvent, BalancerStatus, RecentMove, StoredPolicy};
use crate::fragment::MoveScope;
use crate::metrics::{DirectoryLoad, Popularity, RankLoad};
use crate::record::{Referent, SplitCause};
use crate::usage::{QuotaLimits, Usage};

/// Identifies a request or transaction. Never reused, not even by another incarnation of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionId {
    /// Sequence number of a durable event of the coordinator's incarnation; distinguishes
    /// incarnations.
    pub began: u64,
    pub number: u64,
    /// The coordinator.
    pub rank: Rank,
}

/// Identifies a prepared part: the sequence number of its event. Distinguishes it from a part that
/// a duplicate request has prepared again.
pub type Vote = u64;

/// Age of a transaction; smaller is older. A transaction that is retried keeps its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Age {
    pub since: Time,
    pub id: TransactionId,
}

/// A message from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// A request; answered by `PeerAnswer`. A `Prepare` has the same id at all participants.
    Ask {
        id: TransactionId,
        caller: Caller,
        question: Question,
    },
    Answer {
        id: TransactionId,
        answer: PeerAnswer,
    },
    /// The decision on a prepared part: commit the part with this vote (answered by `Finished`), or
    /// abort.
    Finish {
        id: TransactionId,
        vote: Option<Vote>,
    },
    /// The participant has carried out the decision durably.
    Finished {
        id: TransactionId,
    },
    /// Asks the coordinator for its decision. Answered by `Finish` once it is known.
    Inquire {
        id: TransactionId,
        vote: Vote,
    },
    /// Usage deltas of the receiver's directories, up to number `last`. Answered by `Counted` when
    /// the receiver has counted them durably. `about`: directories whose quotas the sender asks
    /// for.
    Usage {
        last: u64,
        changes: Vec<(Ino, Usage)>,
        about: Vec<Ino>,
    },
    /// The clients that most recently ended their sessions. Sent when a connection begins, since
    /// the receiver may have been down.
    Left {
        clients: Vec<ClientId>,
    },
    /// The receiver has counted the deltas. Includes the quotas above the directories concerned,
    /// where they are in memory.
    Counted {
        last: u64,
        limits: Vec<(Ino, QuotaLimits)>,
    },
    /// Inodes whose home is the receiver have been removed at the sender. Answered by
    /// `FreedAcknowledged` when the receiver has durably dropped its relocation records.
    Freed {
        inodes: Vec<Ino>,
    },
    /// The receiver of `Freed` has dropped its records of these inodes.
    FreedAcknowledged {
        inodes: Vec<Ino>,
    },
    /// A client's request for a name that the sender does not have. The receiver executes it under
    /// this number and replies to the client, if the client has a session there. May be lost: then
    /// the client sends it. `below`: as in [`FromClient::Request`](espalier_proto::FromClient), of
    /// the session with the rank that has forwarded the request first; 0: not known. `time`: the
    /// latest time of a change that the sender knows.
    Forward {
        client: ClientId,
        id: RequestId,
        below: RequestId,
        caller: Caller,
        request: Request,
        time: Time,
    },
    /// The sender's load, and its version of the balancing policy, every other second. May be lost.
    Heartbeat {
        load: RankLoad,
        policy: u64,
    },
}

/// Maximum number of directories in an answer, which bounds its size.
pub(crate) const MAX_DIRS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Request the entry of a name that the caller is about to replace.
    Look { dir: Ino, name: Name },
    /// The ancestors of a directory, itself included, as far as they are at that rank; at most
    /// [`MAX_DIRS`].
    Above { dir: Ino },
    /// The directory itself, or the directories that contain names of a file: those with the
    /// smallest numbers above `after`, at most [`MAX_DIRS`].
    Dirs { ino: Ino, after: Ino },
    /// The fragment map of a directory.
    Map { dir: Ino },
    /// The number of entries of a fragment, and its popularity.
    Entries { dir: Ino },
    /// The hottest directories, at most this many.
    Hottest { most: u32 },
    /// Allocate the number of an inode that a later `Prepare` makes.
    NewNumber,
    /// Move a fragment from that rank to another one.
    MoveFragment { fragment: Ino, to: Rank, scope: MoveScope },
    /// The records that directories of that rank have at rank `of`.
    Records { dirs: Vec<Ino>, of: Rank },
    /// The records that have the names of directories of that rank.
    Parents { dirs: Vec<Ino> },
    /// The balancing policy, unless it has this version, and the recent moves.
    Balancer { known: u64 },
    /// Record these events of the sender's balancer, which has this version of the policy.
    RecordBalancing { version: u64, events: Vec<BalancerEvent> },
    /// The state of that rank's balancer.
    BalancerStatus,
    /// Which of these files of that rank may move to the sender, where each has its only name, in
    /// `dir`.
    Movable { dir: Ino, names: Vec<(Name, Ino)> },
    /// Checks and prepares these edits.
    Prepare {
        edits: Vec<Edit>,
        /// Time of all changes.
        time: Time,
        /// Time of the operation's first attempt.
        since: Time,
    },
}

impl Question {
    /// True if it does not count as load.
    pub(super) fn is_about_load(&self) -> bool {
        matches!(
            self,
            Self::Hottest { .. }
                | Self::Parents { .. }
                | Self::Balancer { .. }
                | Self::RecordBalancing { .. }
                | Self::BalancerStatus
        )
    }

    /// Name of the question in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Look { .. } => "look",
            Self::Above { .. } => "above",
            Self::Dirs { .. } => "dirs",
            Self::Map { .. } => "map",
            Self::Entries { .. } => "entries",
            Self::Hottest { .. } => "hottest",
            Self::NewNumber => "new number",
            Self::MoveFragment { .. } => "move fragment",
            Self::Records { .. } => "records",
            Self::Parents { .. } => "parents",
            Self::Balancer { .. } => "balancer",
            Self::RecordBalancing { .. } => "record balancing",
            Self::BalancerStatus => "balancer status",
            Self::Movable { .. } => "movable",
            Self::Prepare { .. } => "prepare",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerAnswer {
    /// `sticky`: the caller must own the inode, since the directory is sticky.
    Found {
        /// The directory; of a fragment, the directory that it belongs to.
        dir: Ino,
        target: Option<Referent>,
        sticky: bool,
    },
    /// `next`: the parent of the last directory, if it is at another rank or the list is truncated.
    Above {
        dirs: Vec<Ino>,
        next: Option<Ino>,
    },
    Dirs {
        dirs: Vec<Ino>,
    },
    /// In the order of the question; `None`: the directory has been removed.
    Parents {
        parents: Vec<Option<Ino>>,
    },
    Map {
        map: FragmentMap,
    },
    Entries {
        entries: u64,
        popularity: Popularity,
        cause: Option<SplitCause>,
    },
    Hottest {
        directories: Vec<DirectoryLoad>,
    },
    Number {
        ino: Ino,
    },
    /// The fragment moves from now on.
    Moves,
    /// The version of the policy, and the policy itself unless the asker has it; `None`, version 0:
    /// there has never been one.
    Balancer {
        version: u64,
        policy: Option<Arc<StoredPolicy>>,
        recent: Vec<RecentMove>,
    },
    Recorded,
    BalancerStatus {
        status: BalancerStatus,
    },
    /// Another fragment of this directory has the name.
    Misrouted {
        dir: Ino,
    },
    /// The files that may move, as many as fit a transaction.
    Movable {
        inodes: Vec<Ino>,
    },
    /// An inode is not at this rank: it is at the rank `at`, or that one is its home and knows.
    Relocated {
        ino: Ino,
        at: Rank,
    },
    /// The part is durably prepared. `named`: the inode that is made or linked. `files`: those that
    /// the part gives away.
    Ready {
        vote: Vote,
        named: Option<(Ino, FileType)>,
        files: Vec<WholeFile>,
    },
    /// An older transaction holds a lock.
    Busy,
    /// The state of this rank does not match the request.
    Changed,
    Refused(Errno),
}
