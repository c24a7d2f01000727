//! Requests to data servers, and their replies.

use alloc::vec::Vec;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Capability, ClientId, Errno, Ino, RangeOp, RequestId, Space, StreamStat, Time};

/// An operation on datafiles, which are named by the inode number of their file. A datafile that
/// was never written reads as empty. All operations are idempotent, since a client repeats them
/// after a lost connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataRequest {
    /// An operation on a range of the datafile; a copy needs a second file and is refused. A reply
    /// to a read that is shorter than requested means that the datafile ends there.
    Range {
        ino: Ino,
        op: RangeOp,
        data: Bytes,
    },
    Stat {
        inos: Vec<Ino>,
    },
    /// Replace the datafile's contents by these bytes, followed by zeros up to `size`. The datafile
    /// is provisional until it is finalised. `sync`: durably.
    Fill {
        ino: Ino,
        data: Bytes,
        size: u64,
        mtime: Time,
        sync: bool,
    },
    /// Finalise the datafile: the event that gives it to the file is durable. `durable`: as in
    /// `Admit`.
    Finalise {
        ino: Ino,
        durable: u64,
    },
    /// `by`: the request, to the file's metadata server, that caused the truncation. The data
    /// server executes it once, even if a restarted metadata server repeats it.
    Truncate {
        ino: Ino,
        size: u64,
        by: Option<(ClientId, RequestId)>,
    },
    /// Set the mtime of an existing datafile.
    SetMtime {
        ino: Ino,
        mtime: Time,
    },
    Sync {
        ino: Ino,
    },
    /// Make all datafiles durable.
    SyncAll,
    /// Remove the datafile durably.
    Remove {
        ino: Ino,
    },
    /// List the provisional datafiles: filled, or made by a write under a capability whose layout
    /// may not be durable, and not finalised. The reply waits until no request is in progress of a
    /// session that an earlier `Admit` ended.
    New,
    Space,
    /// Ends all sessions of the metadata server with numbers below `below`, except those listed.
    /// The reply waits until no request of an ended session is in progress. The data server serves
    /// no client of that metadata server before its first `Admit`. `durable`: sequence number up to
    /// which the metadata server's events are durable; earlier requests may have reported a higher
    /// one.
    Admit {
        below: u64,
        live: Vec<u64>,
        durable: u64,
    },
    /// Make empty datafiles (batch create, carns III.A) with mtime 0: their files' mtime applies.
    /// The sender allows no other request for them meanwhile.
    Precreate {
        inos: Vec<Ino>,
    },
    /// Remove datafiles durably. The sender allows no other request for them meanwhile.
    Discard {
        inos: Vec<Ino>,
    },
    /// As `Precreate` of one datafile, if absent. `sync`: durable if other writes are; otherwise
    /// its loss is invisible, since an absent datafile reads as empty.
    Create {
        ino: Ino,
        sync: bool,
    },
}

/// The reply to a [`DataRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataReply {
    Done,
    Bytes(Bytes),
    /// Reply to `Seek`: the offset, or `None` if there is none before the datafile's end.
    Found(Option<u64>),
    Stats(Vec<StreamStat>),
    Inos(Vec<Ino>),
    Space(Space),
    /// The capability belongs to a session that has ended, or to a metadata server that has
    /// restarted or has not sent `Admit` yet. The client requests a new capability.
    Stale,
}

/// Message to a data server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToData {
    /// Unique among the unanswered requests of the connection.
    pub id: RequestId,
    pub request: DataRequest,
    /// Capability of a client; metadata servers need none.
    pub capability: Option<Capability>,
}

impl ToData {
    /// As [`FromClient::announced`](crate::FromClient::announced). False between servers.
    pub fn announced(&self) -> bool {
        self.capability.is_some_and(|capability| capability.announced)
    }
}

/// Message from a data server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromData {
    pub id: RequestId,
    /// Not transmitted: follows from the capability of the request.
    #[serde(skip)]
    pub announced: bool,
    pub result: Result<DataReply, Errno>,
}

impl DataRequest {
    /// Most inodes in one `Stat`, `Precreate` or `Discard`.
    pub const MAX_INODES: usize = 4096;
    /// Most sessions in one `Admit`.
    pub const MAX_SESSIONS: usize = 20_000;

    pub fn read(ino: Ino, offset: u64, size: u32) -> Self {
        Self::Range { ino, op: RangeOp::Read { offset, size }, data: Bytes::new() }
    }

    pub fn write(ino: Ino, offset: u64, data: Bytes) -> Self {
        Self::Range { ino, op: RangeOp::write(offset, &data), data }
    }

    /// An operation without data to write.
    pub fn range(ino: Ino, op: RangeOp) -> Self {
        Self::Range { ino, op, data: Bytes::new() }
    }

    /// Checks the limits of a request.
    ///
    /// # Errors
    /// `EINVAL` for values out of range, `EOPNOTSUPP` for an unknown mode.
    pub fn check(&self) -> Result<(), Errno> {
        let fits = match self {
            // The end of a datafile is not the end of its file.
            Self::Range { op, .. } if op.is_append() || op.source().is_some() => false,
            Self::Range { op, data, .. } => return op.check(data),
            Self::Fill { data, .. } => data.len() <= RangeOp::MAX_BYTES,
            Self::Admit { live, .. } => live.len() <= Self::MAX_SESSIONS,
            Self::Stat { inos } | Self::Precreate { inos } | Self::Discard { inos } => {
                inos.len() <= Self::MAX_INODES
            }
            _ => true,
        };
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Bytes of data that the request or its reply transfers.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Range { op, data, .. } => op.bytes(data),
            Self::Fill { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// The data to write.
    pub fn payload(&mut self) -> Option<&mut Bytes> {
        match self {
            Self::Range { data, .. } | Self::Fill { data, .. } => Some(data),
            _ => None,
        }
    }
}
