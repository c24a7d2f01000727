//! The metadata server's state machine.
//!
//! [`Meta::on`] processes one input at a time (a request, completed I/O, a tick of the clock) and
//! puts the resulting actions into an [`Outbox`]; it never blocks. Operations are in `ops`, one
//! file each. They decide on an [`Event`], which is appended to the journal and applied to the
//! tables in memory ([`apply`](State)).
//!
//! `no_std` on purpose: the compiler refuses a file, a socket, a clock or a thread here.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod acl;
mod apply;
mod balancing;
mod by_client;
mod cause;
mod check;
mod checkpoint;
mod config;
mod contents;
mod counts;
mod decouple;
mod event;
mod evict;
pub mod failover;
mod fan_out;
mod figures;
mod fragment;
mod io;
mod journal;
mod lease;
mod load;
mod lock;
mod machine;
mod metrics;
mod no_metafile;
mod numbers;
mod ops;
mod outbox;
mod permission;
mod pool;
mod progress;
mod provisional;
mod rank;
mod record;
mod recount;
mod recovery;
mod relayout;
mod repair;
mod session;
mod session_layer;
mod size_dirty;
mod snapshot;
mod state;
mod step;
mod striping;
mod table;
mod task;
mod trash;
mod uncommitted;
mod unstuff;
mod usage;
mod wait;

pub use balancing::{
    BalancerCommand, BalancerDecision, BalancerEvent, BalancerLogEntry, BalancerReport, BalancerStatus,
    DecidedMove, DecisionRequest, LOGGED_MS, MoveCandidate, RecentMove, StoredPolicy, Verdict,
};
pub use cause::Cause;
pub use check::{Check, Finding};
pub use checkpoint::CheckpointWhen;
pub use config::{Atime, Config};
pub use counts::InodeCounts;
pub use decouple::{DECOUPLE, Decouple, Decoupled, MERGE, MergeBatch, MergeEnd, MergeRecord};
pub use event::{Change, Event};
pub use figures::Figures;
pub use fragment::{FragmentCounts, MoveScope, PullCounts, RecordedMoves};
pub use journal::Acknowledge;
pub use machine::Meta;
pub use metrics::{DirectoryLoad, KnownLoad, LoadReport, Milli, Popularity, RankLoad};
pub use no_metafile::NoMetafile;
pub use outbox::{Answered, Input, Io, IoDone, IoId, IoKind, Now, Outbox, Revocation, Waiting};
pub use rank::{Edit, PeerAnswer, PeerMessage, Question, Relocation, TransactionId, Vote, WholeFile};
pub use record::{
    Body, Corrupt, Dentry, Directory, InoRecord, Inode, Partition, PastTransfer, Rare, Referent, Slot,
    SplitCause, Super, TransferKind, decode, encode,
};
pub use recovery::{Format, Recovery, RecoveryError};
pub use relayout::relayout;
pub use repair::{Repair, Repaired};
pub use session::{CompletedOutcome, Holding, is_sound_record};
pub use session_layer::{Refused, Rights, Routed, SessionLayer, StreamRequest, Subtree, Unrestricted};
pub use step::{Load, StreamCall, StreamDone};
pub use striping::{DataLocation, Layouts, Striping};
pub use usage::{Quota, QuotaLimits, Usage};
