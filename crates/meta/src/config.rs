//! How a machine is to behave.

use espalier_policy::Policy;
use espalier_proto::Rank;

use crate::journal::Acknowledge;
use crate::striping::Striping;

/// When reading a file changes its access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    Never,
    /// If it is not newer than the last change, or older than a day.
    Relative,
    Always,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// The file system's secret for hashing names.
    pub hash_key: [u8; 16],
    /// Files of at most so many bytes are stuffed.
    pub strip_bytes: u32,
    pub acknowledge: Acknowledge,
    pub read_only: bool,
    pub atime: Atime,
    /// Listings do not change the access times of directories.
    pub nodiratime: bool,
    /// Commit coalescing's watermarks, low and high, in operations; a high one of 1: each
    /// change is committed by itself, as in the paper's baseline.
    pub watermarks: (usize, usize),
    /// Bytes.
    pub journal_capacity: u64,
    /// What the cache may take, about, in bytes. What has changed is kept beyond that until a checkpoint has written it.
    pub cache_bytes: usize,
    /// With less free space in the store than this many bytes, nothing is added any more.
    pub reserve: u64,
    /// Clients have sessions, and lose them when nothing has been heard of them for so many milliseconds. `None`: there is one
    /// client, which ends with the machine.
    pub session_ms: Option<u32>,
    /// For how many milliseconds clients may cache what they are told, unless it is revoked. `None`: the only client may do so
    /// for ever.
    pub lease_ms: Option<u32>,
    /// So many leases are given at any time; each takes about 150 bytes.
    pub most_leases: usize,
    /// How files are distributed over data servers, if there are any.
    pub striping: Option<Striping>,
    /// What is wanted of files where their directories say nothing.
    pub policy: Policy,
    /// Which of the servers that share the tree this is, and how many there are.
    pub rank: Rank,
    pub ranks: u16,
}

impl Config {
    /// Low and high, as carns IV.A.1 found them best.
    pub const WATERMARKS: (usize, usize) = (1, 8);

    pub fn new(hash_key: [u8; 16], strip_bytes: u32, journal_capacity: u64) -> Self {
        let (acknowledge, read_only, atime) = (Acknowledge::Volatile, false, Atime::Relative);
        // A checkpoint writes at most what the journal holds, and merging tables takes as much again.
        let reserve = 2 * journal_capacity;
        let cache_bytes = usize::MAX;
        Self {
            hash_key,
            strip_bytes,
            acknowledge,
            read_only,
            atime,
            nodiratime: false,
            watermarks: Self::WATERMARKS,
            journal_capacity,
            cache_bytes,
            reserve,
            session_ms: None,
            lease_ms: None,
            most_leases: 1 << 20,
            striping: None,
            policy: Policy::NONE,
            rank: Rank(0),
            ranks: 1,
        }
    }
}
