//! Persistent storage on a local disk, and its in-memory counterpart.
//!
//! - **Tables**: ordered maps of objects. A checkpoint changes them: any number of [`Store::stage`]
//!   calls, then [`Store::publish`], which makes all staged changes durable atomically.
//! - **Byte streams**: the contents of big files, each durable after [`Store::stream_sync`].
//! - **The journal** ([`Journal`]): a ring of frames that makes changes durable before a checkpoint
//!   contains them.
//! - **The superblock** ([`superblock`]): identity and parameters of the store.
//! - **Migration** ([`Migrator`]): moves all of these to another store, while they are used.
//!
//! [`stamp`] provides inode times that are ordered consistently with the times of streams.
//!
//! [`LocalStore`] stores them in a local directory; [`MemoryStore`] and [`SimFile`] in memory, with
//! simulated loss of power.
#![deny(unsafe_code)]

mod datafile;
mod empty;
pub mod engine;
mod error;
mod journal;
mod local;
mod memory;
mod migrate;
mod object;
mod rados;
pub mod stamp;
mod store;
pub mod superblock;

pub use datafile::Datafiles;
pub use engine::{Engine, EngineError, EngineFailure, MemoryEngine};
pub use error::StoreError;
pub use journal::{BlockFile, Journal, JournalEpoch, JournalError, RealFile, SimFile, SyncHandle};
pub use local::{
    Holder, LocalOptions, LocalStore, Mended, Salvage, is_locked, is_open, mend, new_journal, replace_journal,
};
pub use memory::MemoryStore;
pub use migrate::{
    MigrationMachine, MigrationProgress, MigrationStart, MigrationStep, Migrator, MovableStore, StartError,
    StepOutcome,
};
pub use object::{
    DataPoolError, FollowedStore, LeaseHolder, ObjectFile, ObjectOptions, ObjectStore, RankLease,
    SharedStreams, TablesVersion, break_lease, format_joining, format_objects, lease_holder, pools_of,
    read_superblock, replace_objects_journal,
};
pub use rados::{Rados, RadosAddress, RadosError};
pub use store::{Pairs, PoolContent, Record, RecordKey, Records, Store, StorePool};
pub use uuid::Uuid;

pub use superblock::{FormatError, FormatOptions, MigrationState, Superblock, SuperblockError};

pub use espalier_proto::{SeekWhat, StreamStat};
