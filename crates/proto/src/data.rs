//! What a data server is asked, and what it answers.

use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    AllocateMode, Capability, ClientId, Errno, Ino, Pieces, RequestId, SeekWhat, Space, StreamStat, Time,
    pieces_of,
};

/// Something to be done with datafiles, which are named by their files. One that was never written is empty. All of it may be done
/// twice, as it is when a connection is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataRequest {
    /// Fewer bytes than `size`: the datafile ends there.
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
    /// Several pieces, as in [`write_list`](crate::write_list).
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
    /// The next data or hole in the datafile.
    Seek {
        ino: Ino,
        offset: u64,
        what: SeekWhat,
    },
    Stat {
        inos: Vec<Ino>,
    },
    /// Makes the datafile hold just these bytes, then zeros up to `size`; it is a new one until it is settled. `sync`: durably.
    Fill {
        ino: Ino,
        data: Bytes,
        size: u64,
        mtime: Time,
        sync: bool,
    },
    /// The file is known, durably, to have this datafile. `durable`: as in `Admit`.
    Settle {
        ino: Ino,
        durable: u64,
    },
    /// `by`: whose request it is for, of that file's metadata server: for that it is not done again, though a server that was started anew
    /// asks for it once more.
    Truncate {
        ino: Ino,
        size: u64,
        by: Option<(ClientId, RequestId)>,
    },
    /// Of a datafile that is there.
    SetMtime {
        ino: Ino,
        mtime: Time,
    },
    Sync {
        ino: Ino,
    },
    /// Makes all datafiles durable.
    SyncAll,
    /// Answered when that is durable.
    Remove {
        ino: Ino,
    },
    /// The datafiles that were filled, or made by a client's write when that might turn out not to be wanted, and never settled. Answered
    /// when nothing is under way any more of the sessions that an earlier `Admit` has ended.
    New,
    Space,
    /// Of the sessions that the metadata server counts, those below that number have ended, but for these: answered when nothing is
    /// under way of any that has. Before this has come no client of that server is served. `durable`: so far the journal of the metadata
    /// server is, at least; more may be known from an earlier request.
    Admit {
        below: u64,
        live: Vec<u64>,
        durable: u64,
    },
    /// Makes empty datafiles (carns III.A's batch create), whose time of change is the beginning of time: theirs is that of their
    /// files. Nobody does anything else with them meanwhile.
    Precreate {
        inos: Vec<Ino>,
    },
    /// Removes datafiles with which nobody does anything else meanwhile. Answered when that is durable.
    Discard {
        inos: Vec<Ino>,
    },
    /// As `Precreate` of one, unless it is there. `sync`: it is durable if other writes are; else nobody would miss it, for a datafile that
    /// was never written to reads like none.
    Create {
        ino: Ino,
        sync: bool,
    },
}

/// The answer to a [`DataRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataReply {
    Done,
    Bytes(Bytes),
    /// `Seek`: where; `None`: nowhere before the datafile's end.
    Found(Option<u64>),
    Stats(Vec<StreamStat>),
    Inos(Vec<Ino>),
    Space(Space),
    /// The capability is of a session that has ended, or of a metadata server that has been started anew, or not been heard of yet:
    /// it has to be asked for another.
    Stale,
}

/// To a data server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToData {
    /// Unique among unanswered requests.
    pub id: RequestId,
    pub request: DataRequest,
    /// Of a client: metadata servers need none.
    pub capability: Option<Capability>,
}

impl ToData {
    /// As [`FromClient::announced`](crate::FromClient::announced). What servers say to each other is not.
    pub fn announced(&self) -> bool {
        self.capability.is_some_and(|capability| capability.announced)
    }
}

/// From a data server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromData {
    pub id: RequestId,
    /// Not sent: as the capability says by which it was asked.
    #[serde(skip)]
    pub announced: bool,
    pub result: Result<DataReply, Errno>,
}

impl DataRequest {
    /// In one `Stat`, `Precreate` or `Discard`.
    pub const MAX_INODES: usize = 4096;
    /// In one `Admit`.
    pub const MAX_SESSIONS: usize = 20_000;
    /// In one read or write: as much as a client can ask of a file at once.
    const MAX_BYTES: usize = 1 << 20;

    /// Whether anybody asks this that means well.
    ///
    /// # Errors
    /// `EINVAL` for what is out of all bounds, `EOPNOTSUPP` for an unknown mode.
    pub fn check(&self) -> Result<(), Errno> {
        let fits = match self {
            Self::Read { size, .. } => *size as usize <= Self::MAX_BYTES,
            // Where a datafile ends is not where its file ends.
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

    /// What it is called where operations are traced.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } | Self::WriteList { .. } => "write",
            Self::Allocate { .. } => "allocate",
            Self::Seek { .. } => "seek",
            Self::Stat { .. } => "stat",
            Self::Fill { .. } => "fill",
            Self::Settle { .. } => "settle",
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

    /// Bytes that go with it, to the server or back.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Read { size, .. } => *size as usize,
            Self::Write { data, .. } | Self::WriteList { data, .. } | Self::Fill { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// Which datafile it writes to, what, and where, if it is a write.
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
