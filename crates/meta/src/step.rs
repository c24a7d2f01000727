//! Steps of operations. An operation is straight-line code that may start over: it returns
//! with `?` when it must wait, and runs again from its first line when that has arrived. Invariant:
//! nothing is changed before the last `?` of a run (`machine/commit.rs`).

use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{ClientId, Errno, Ino, ObjectId, Rank, RequestId, StreamStat, Time};

use crate::lease::LeaseKey;
use crate::machine::Staged;
use crate::rank::Age;

/// The result of an operation, or of a part of one.
pub(crate) type Step<T> = Result<T, Stop>;

/// Why an operation stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Wait(Wait),
    /// The run has made a change that is not the operation's last one: the operation starts over at
    /// once.
    Again(Staged),
    Fail(Errno),
    /// Another fragment of this directory record's directory has the name that the request names.
    Misrouted(Ino),
    /// The inode is at another rank: at this one, or this one is its home and knows.
    Relocated(Ino, Rank),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Fail(errno)
    }
}

/// The event that resumes an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The load of a record.
    Load(Load),
    /// The load of an inode from the place that a client has given as a hint.
    Hint(Ino, Load),
    /// The end of the grace period: clients that have not reclaimed may use leases from before the
    /// restart.
    Grace,
    /// The supplementary groups of the caller.
    Groups,
    /// A call on the byte stream of a file.
    Stream(StreamCall),
    /// Another operation that unstuffs the file.
    Filling(Ino),
    /// Durability of everything so far.
    Durable,
    /// The write of everything so far to the journal's file.
    Written,
    /// The lock on a file's end.
    End(Ino),
    /// Space in the journal.
    Room,
    /// Other inputs, which are processed between two steps.
    Others,
    /// Other clients' leases.
    Lease(LeaseKey),
    /// A short pause between two steps of background work.
    While,
    /// Answers of other ranks.
    Peers,
    /// A transaction that holds a lock.
    Locked(Age),
}

/// A read from the tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    Record {
        object: ObjectId,
        key: Vec<u8>,
    },
    /// Up to `limit` dentries of a directory, from a hash on.
    Dentries {
        dir: Ino,
        from: u64,
        limit: usize,
    },
}

/// A call on byte streams. A stream that was never written is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamCall {
    Stat(Vec<Ino>),
    /// As `Stat`, but fails with `EAGAIN` instead of waiting for an unreachable data server.
    TryStat(Vec<Ino>),
    /// As `Stat`, of files with their counted sizes, which distinguish calls for one file.
    Measure(Vec<(Ino, u64)>),
    /// The stream is provisional until it is finalised: the store lists provisional streams, so
    /// recovery finds those that no file came to use.
    Fill {
        ino: Ino,
        version: u64,
        bytes: Bytes,
        size: u64,
        mtime: Time,
        sync: bool,
        clean: bool,
    },
    Write {
        ino: Ino,
        offset: u64,
        bytes: Bytes,
    },
    /// Finalises a stream: the file durably has it. `durable`: the last durable event.
    Finalise {
        ino: Ino,
        durable: u64,
    },
    /// `by`: the request that truncates; data servers execute it once.
    Truncate {
        ino: Ino,
        size: u64,
        by: Option<(ClientId, RequestId)>,
    },
    SetMtime {
        ino: Ino,
        mtime: Time,
    },
    Sync {
        ino: Ino,
    },
    /// Makes all streams in the store durable.
    SyncStore,
    /// Makes all datafiles durable, on the data servers that the layout names.
    SyncServers,
    Remove {
        ino: Ino,
    },
    /// Makes the datafiles that the layouts name, empty.
    Precreate,
    /// Removes these datafiles, durably.
    Discard,
}

impl StreamCall {
    /// True if the call makes the file's stream if there is none.
    pub(crate) fn makes(&self, stream: Ino) -> bool {
        matches!(self, Self::Fill { ino, .. } | Self::Write { ino, .. } | Self::Truncate { ino, .. } if *ino == stream)
    }

    /// Name of the call in traces.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Stat(_) | Self::TryStat(_) | Self::Measure(_) => "stream stat",
            Self::Fill { .. } => "stream fill",
            Self::Write { .. } => "stream write",
            Self::Finalise { .. } => "stream settle",
            Self::Truncate { .. } => "stream truncate",
            Self::SetMtime { .. } => "stream set times",
            Self::Sync { .. } | Self::SyncStore | Self::SyncServers => "stream sync",
            Self::Remove { .. } => "stream remove",
            Self::Precreate => "precreate",
            Self::Discard => "discard",
        }
    }
}

/// The result of a [`StreamCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamDone {
    Stats(Vec<StreamStat>),
    Done,
}
