//! Requests to data servers, and their replies.

use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    AllocateMode, Capability, ClientId, Errno, Ino, Pieces, RequestId, SeekWhat, Space, StreamStat, Time,
    pieces_of,
};

/// An operation on datafiles, which are named by the inode number of their file. A datafile that
/// was never written reads as empty. All operations are idempotent, since a client repeats them
/// after a lost connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataRequest {
    /// A reply shorter than `size` means that the datafile ends there.
    Read {
        ino: Ino,
        offset: u64,
        size: u32,
    },
    Write {
        ino: Ino,
        offset: u64,
        data: Bytes,
    },
    /// Several pieces, encoded by [`write_list`](crate::write_list).
    WriteList {
        ino: Ino,
        data: Bytes,
    },
    Allocate {
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    },
    /// Find the next data or hole in the datafile.
    Seek {
        ino: Ino,
        offset: u64,
        what: SeekWhat,
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
    /// Most bytes in one read or write; equals the limit of a client's request.
    const MAX_BYTES: usize = 1 << 20;

    /// Checks the limits of a request.
    ///
    /// # Errors
    /// `EINVAL` for values out of range, `EOPNOTSUPP` for an unknown mode.
    pub fn check(&self) -> Result<(), Errno> {
        let fits = match self {
            Self::Read { size, .. } => *size as usize <= Self::MAX_BYTES,
            // Appends are invalid: the end of a datafile is not the end of its file.
            Self::Write { offset, data, .. } => data.len() <= Self::MAX_BYTES && *offset != crate::END,
            Self::WriteList { data, .. } => data.len() <= Self::MAX_BYTES && pieces_of(data).is_ok(),
            Self::Fill { data, .. } => data.len() <= Self::MAX_BYTES,
            Self::Admit { live, .. } => live.len() <= Self::MAX_SESSIONS,
            Self::Stat { inos } | Self::Precreate { inos } | Self::Discard { inos } => {
                inos.len() <= Self::MAX_INODES
            }
            Self::Allocate { mode, .. } if AllocateMode::from_bits(mode.bits()).is_none() => {
                return Err(Errno::EOPNOTSUPP);
            }
            _ => true,
        };
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Name of the operation in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } | Self::WriteList { .. } => "write",
            Self::Allocate { .. } => "allocate",
            Self::Seek { .. } => "seek",
            Self::Stat { .. } => "stat",
            Self::Fill { .. } => "fill",
            Self::Finalise { .. } => "finalise",
            Self::Truncate { .. } => "truncate",
            Self::SetMtime { .. } => "set times",
            Self::Sync { .. } => "sync",
            Self::SyncAll => "sync all",
            Self::Remove { .. } => "remove",
            Self::New => "list new",
            Self::Space => "space",
            Self::Admit { .. } => "admit sessions",
            Self::Precreate { .. } => "precreate",
            Self::Discard { .. } => "discard",
            Self::Create { .. } => "create",
        }
    }

    /// Bytes of data that the request or its reply transfers.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Read { size, .. } => *size as usize,
            Self::Write { data, .. } | Self::WriteList { data, .. } | Self::Fill { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// Inode and pieces of a write; `None` for other requests.
    ///
    /// # Errors
    /// As [`pieces_of`].
    pub fn written(&self) -> Result<Option<(Ino, Pieces<'_>)>, Errno> {
        match self {
            Self::Write { ino, offset, data } => Ok(Some((*ino, vec![(*offset, &data[..])]))),
            Self::WriteList { ino, data } => pieces_of(data).map(|pieces| Some((*ino, pieces))),
            _ => Ok(None),
        }
    }
}
