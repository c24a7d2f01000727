//! An operation is straight-line code that may start over: it leaves early with `?` when it cannot go on yet, and is
//! run again from its first line when what it waits for has come. Nothing is changed before its last `?`.

use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{ClientId, Errno, Ino, ObjectId, RequestId, StreamStat, Time};

use crate::lease::Key;
use crate::rank::Age;

/// The outcome of an operation, or of a part of one.
pub(crate) type Step<T> = Result<T, Stop>;

/// Why an operation cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Wait(Wait),
    Fail(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Fail(errno)
    }
}

/// What an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A record of the tables to be in memory.
    Load(Load),
    /// An inode, which a client says lies there.
    Hint(Ino, Load),
    /// Clients that have not said yet what they have, and may use what they were told before the server began again.
    Grace,
    /// The caller's supplementary groups.
    Groups,
    /// The byte stream of a file.
    Stream(StreamCall),
    /// Another operation, which moves a file's bytes out.
    Filling(Ino),
    /// Everything so far to be durable.
    Durable,
    /// Everything so far to be in the journal's file.
    Written,
    /// Others to be done with changing where a file ends.
    End(Ino),
    /// Room in the journal.
    Room,
    /// Others, who are let in between two steps.
    Others,
    /// Others to give up what they may cache.
    Lease(Key),
    /// A while, as what nobody waits for does between two steps.
    While,
    /// What other ranks have been asked.
    Peers,
    /// A transaction that has locked what it wants.
    Locked(Age),
}

/// What to read from the tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    Record {
        object: ObjectId,
        key: Vec<u8>,
    },
    /// Up to `limit` dentries of a directory from a hash on.
    Dentries {
        dir: Ino,
        from: u64,
        limit: usize,
    },
}

/// What to do with byte streams. A stream that was never written is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamCall {
    Stat(Vec<Ino>),
    /// As `Stat`, for who can do without: fails with `EAGAIN` rather than wait for a data server that cannot be reached.
    Glance(Vec<Ino>),
    /// As `Stat`, of files for which so many bytes are counted: that tells calls for one file apart.
    Measure(Vec<(Ino, u64)>),
    /// Makes the stream hold just these bytes, then zeros up to `size`. `version` tells calls for one file apart;
    /// `sync`: they must be durable when it returns, for they were durable where they come from. `clean`: data servers have nothing of
    /// it, so that only those are asked that get bytes.
    ///
    /// The stream is a new one until it is settled: the store can list new streams, so that those that nothing came of
    /// are found after a crash.
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
    /// The file is known, durably, to have this stream. `durable`: so far the journal is.
    Settle {
        ino: Ino,
        durable: u64,
    },
    /// `by`: whose request it is for; data servers do not do it again for that.
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
    /// Makes all datafiles of the data servers durable that the layout names.
    SyncServers,
    Remove {
        ino: Ino,
    },
    /// Makes the datafiles that the layouts name which go with it, empty.
    Precreate,
    /// Removes those datafiles, durably.
    Discard,
}

impl StreamCall {
    /// Whether it makes the file's stream if there is none.
    pub(crate) fn makes(&self, stream: Ino) -> bool {
        matches!(self, Self::Fill { ino, .. } | Self::Write { ino, .. } | Self::Truncate { ino, .. } if *ino == stream)
    }

    /// What it is called where operations are traced.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Stat(_) | Self::Glance(_) | Self::Measure(_) => "stream stat",
            Self::Fill { .. } => "stream fill",
            Self::Write { .. } => "stream write",
            Self::Settle { .. } => "stream settle",
            Self::Truncate { .. } => "stream truncate",
            Self::SetMtime { .. } => "stream set times",
            Self::Sync { .. } | Self::SyncStore | Self::SyncServers => "stream sync",
            Self::Remove { .. } => "stream remove",
            Self::Precreate => "precreate",
            Self::Discard => "discard",
        }
    }
}

/// What a [`StreamCall`] gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamDone {
    Stats(Vec<StreamStat>),
    Done,
}
