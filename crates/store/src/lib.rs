//! What is on the disk: tables of records, byte streams of big files, the journal, the superblock.
//!
//! A store keeps *objects*: ordered maps of keys to values ([`ObjectId`]), and byte streams named by inode number.
//! Checkpoints are staged in pieces and published at once; the tables have no log of their own, for the journal is it.

mod error;
pub mod journal;
mod local;
pub mod superblock;

use std::fs::File;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use espalier_proto::{AllocateMode, Ino, ObjectId, SeekWhat, StreamStat, TableWrite, Time};

pub use error::{FormatError, JournalError, StoreError, SuperblockError};
pub use journal::{BlockFile, Journal, RealFile, SimFile};
pub use local::{LocalStore, is_locked};
pub use superblock::{FormatOptions, Superblock};

/// A key of an object and its value.
pub type Pair = (Vec<u8>, Vec<u8>);
/// An object, a key of it and its value.
pub type Record = (ObjectId, Vec<u8>, Vec<u8>);

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
    /// What those without privileges can use of what is free.
    pub available: u64,
}

/// An engine that keeps objects. Every method may be called from several threads at once.
pub trait Store: Send + Sync + 'static {
    fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Up to `limit` pairs of an object, ascending, from a key on.
    fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Vec<Pair>, StoreError>;

    /// All records, ordered by object and key.
    fn records(&self) -> Box<dyn Iterator<Item = Result<Record, StoreError>> + '_>;

    /// Adds to the checkpoint under way. Of several writes of one key the last holds.
    fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError>;

    /// Makes all that is staged durable, at once. After an error it may be called again.
    fn publish(&self) -> Result<(), StoreError>;

    /// A piece of background upkeep; whether there is more to do.
    fn maintain(&self) -> Result<bool, StoreError>;

    /// Makes an empty stream, in place of one that may be there. It is new until it is settled.
    fn stream_create(&self, ino: Ino) -> Result<(), StoreError>;
    fn stream_settle(&self, ino: Ino) -> Result<(), StoreError>;
    /// Streams that are not settled.
    fn new_streams(&self) -> Result<Vec<Ino>, StoreError>;
    /// All streams.
    fn streams(&self) -> Result<Vec<Ino>, StoreError>;
    /// Bytes read: fewer than the buffer takes only at the end. A stream that is not there is empty.
    fn stream_read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError>;
    /// Writes all of it.
    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError>;
    /// Zeros, if it is not there.
    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError>;
    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError>;
    fn stream_allocate(&self, ino: Ino, offset: u64, length: u64, mode: AllocateMode) -> Result<(), StoreError>;
    /// `None`: there is none from there on.
    fn stream_seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError>;
    /// Bytes copied; fewer than asked for at the end.
    fn stream_copy(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, length: u64)
    -> Result<u64, StoreError>;
    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError>;
    /// Makes its bytes, and that it is there, durable.
    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError>;
    /// It need not be there.
    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError>;
    /// The file behind a stream, where the engine has one.
    fn stream_file(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError>;

    fn space(&self) -> Result<Space, StoreError>;
}

/// Makes what a directory says of its entries durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(StoreError::io("sync", path))
}
