//! Configuration of a machine.

use espalier_policy::Policy;
use espalier_proto::Rank;

use crate::journal::Acknowledge;
use crate::striping::Striping;

/// When reading a file updates its access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    Never,
    /// If it is not newer than the last change, or older than a day.
    Relative,
    Always,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// The file system's secret.
    pub hash_key: [u8; 16],
    /// Largest stuffed file, in bytes.
    pub strip_bytes: u32,
    pub acknowledge: Acknowledge,
    /// Clients may acknowledge changes in directories that only they use before this server has
    /// applied them. False if callers asked for durability of every change (`sync`).
    pub writeback: bool,
    pub read_only: bool,
    pub atime: Atime,
    /// Listings do not update the access times of directories.
    pub nodiratime: bool,
    /// Watermarks of commit coalescing, low and high, in operations. With a high watermark of 1
    /// each change has a commit of its own, as in the paper's baseline (carns III.C).
    pub watermarks: (usize, usize),
    /// Capacity of the journal in bytes.
    pub journal_capacity: u64,
    /// Approximate bound of the cache in bytes. Changed records stay beyond it until a checkpoint
    /// has written them.
    pub cache_bytes: usize,
    /// Free space in the store, in bytes, below which nothing is added.
    pub reserve: u64,
    /// Time in milliseconds after which a silent client's session expires. `None`: there is one
    /// client, which ends with the machine, and no sessions.
    pub session_ms: Option<u32>,
    /// Term of a lease in milliseconds. `None`: the only client may cache indefinitely.
    pub lease_ms: Option<u32>,
    /// Maximum number of leases held at any time; each takes about 150 bytes.
    pub most_leases: usize,
    /// The distribution of files over data servers, if there are any.
    pub striping: Option<Striping>,
    /// The bytes of streams are in a pool that clients may read and write without this server.
    pub data_pool: bool,
    /// The policy where a directory sets none.
    pub policy: Policy,
    /// Number of names that a step of a split of a directory moves, about.
    pub split_names: u64,
    /// The rank of this server, and the number of ranks.
    pub rank: Rank,
    pub ranks: u16,
}

impl Config {
    /// Low and high, the best ones in carns IV.A.1.
    pub const WATERMARKS: (usize, usize) = (1, 8);
    pub const SPLIT_NAMES: u64 = 2048;

    pub fn new(hash_key: [u8; 16], strip_bytes: u32, journal_capacity: u64) -> Self {
        let (acknowledge, read_only, atime) = (Acknowledge::Volatile, false, Atime::Relative);
        // A checkpoint writes at most what the journal contains, and merging tables takes as much
        // again.
        let reserve = 2 * journal_capacity;
        let cache_bytes = usize::MAX;
        Self {
            hash_key,
            strip_bytes,
            acknowledge,
            writeback: true,
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
            data_pool: false,
            policy: Policy::NONE,
            split_names: Self::SPLIT_NAMES,
            rank: Rank(0),
            ranks: 1,
        }
    }
}
