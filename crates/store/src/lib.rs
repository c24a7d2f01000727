//! All of the disk, and its twin in memory.
//!
//! - **Tables**: ordered maps of objects. They change by checkpoints: [`Store::stage`] as often as needed, then
//!   [`Store::publish`], which makes all of it durable, or nothing.
//! - **Byte streams**: the contents of big files, each durable after [`Store::stream_sync`].
//! - **The journal** ([`Journal`]): a ring of frames in which changes are durable before a checkpoint has them.
//! - **The superblock** ([`superblock`]): what the store is, and how it was made.
//!
//! [`stamp`] gives the times of inodes that are kept in order with those of streams.
//!
//! [`LocalStore`] keeps them in a directory of this machine; [`MemoryStore`] and [`SimFile`] keep them in memory and can
//! lose power.
#![forbid(unsafe_code)]

mod datafile;
mod empty;
mod error;
mod journal;
mod local;
mod memory;
pub mod stamp;
mod store;
pub mod superblock;

pub use datafile::Datafiles;
pub use error::StoreError;
pub use journal::{BlockFile, Journal, JournalError, RealFile, SimFile, SyncHandle};
pub use local::{
    Holder, LocalOptions, LocalStore, Mended, Salvage, is_locked, is_open, mend, new_journal, replace_journal,
};
pub use memory::MemoryStore;
pub use store::{Pairs, Record, Records, Store};
pub use superblock::{FormatError, FormatOptions, Superblock, SuperblockError};

pub use espalier_proto::{SeekWhat, StreamStat};
