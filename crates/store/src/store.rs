use std::fs::File;
use std::ops::Bound;
use std::sync::Arc;

use espalier_proto::{
    AllocateMode, ClientId, Errno, Ino, ObjectId, RangeOp, Reply, SeekWhat, Space, StreamStat, TableWrite,
    Time,
};
use serde::{Deserialize, Serialize};

use crate::{MigrationState, StoreError};

/// Object and key.
pub type RecordKey = (ObjectId, Vec<u8>);

/// Object, key and value.
pub type Record = (ObjectId, Vec<u8>, Vec<u8>);

/// Keys and values of one object.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// An iterator over records.
pub type Records<'a> = Box<dyn Iterator<Item = Result<Record, StoreError>> + Send + 'a>;

/// An engine for tables and byte streams. All methods may be called concurrently.
///
/// # Errors
/// All methods return [`StoreError::Io`] or [`StoreError::Corrupt`] for faults of the underlying
/// storage; methods that change something also return [`StoreError::ReadOnly`] or
/// [`StoreError::NoSpace`].
pub trait Store: Send + Sync + 'static {
    /// The value of a key. Sees staged changes.
    fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// At most `limit` keys and values of one object, ascending. Sees staged changes.
    fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Pairs, StoreError>;

    /// All records, ordered by object and key. Changes that are staged during the iteration may be
    /// among them or not. An error ends the iteration.
    fn records(&self) -> Records<'_>;

    /// At most `limit` records after a key, in the order of [`Self::records`]: fewer at the end.
    /// Sees staged changes.
    fn records_after(&self, after: Option<&RecordKey>, limit: usize) -> Result<Vec<Record>, StoreError>;

    /// The store's part in a migration, as in its superblock.
    fn migration(&self) -> Result<MigrationState, StoreError>;

    /// Replaces [`Self::migration`], durably and atomically. After an error either may be recorded.
    fn set_migration(&self, migration: MigrationState) -> Result<(), StoreError>;

    /// False if another process may serve the store by now: nothing must be answered from it.
    fn is_held(&self) -> bool {
        true
    }

    /// Reads all tables and verifies their checksums, if the engine has any of its own.
    fn verify(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Adds writes to the current checkpoint. [`Self::publish`] makes them durable.
    fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError>;

    /// Makes all staged writes durable atomically. After an error they are all still staged and the
    /// call may be repeated; after any error but [`StoreError::NoSpace`] the engine may refuse
    /// until it is reopened.
    fn publish(&self) -> Result<(), StoreError>;

    /// Does one unit of background maintenance. Returns true if more remains.
    fn maintain(&self) -> Result<bool, StoreError>;

    /// Makes an empty, provisional stream; [`Self::stream_finalise`] finalises it. An existing
    /// stream is unchanged.
    fn stream_create(&self, ino: Ino) -> Result<(), StoreError>;

    /// Finalises a provisional stream, durably. No effect if it is finalised or absent.
    fn stream_finalise(&self, ino: Ino) -> Result<(), StoreError>;

    /// The provisional streams: created and not finalised, ascending.
    fn new_streams(&self) -> Result<Vec<Ino>, StoreError>;

    /// Reads until `buf` is full or the stream ends; returns the number of bytes. An absent stream
    /// reads as empty.
    fn stream_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError>;

    /// As [`Self::stream_read`], but without waiting for a disk. Returns the number of bytes, and
    /// true if the read is complete.
    fn stream_read_cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<(usize, bool), StoreError>;

    /// Writes all of `data`; at [`END`](espalier_proto::END), appends it atomically. An absent
    /// stream is made, and is not provisional.
    ///
    /// # Errors
    /// `EFBIG` beyond the engine's offset range.
    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Size, allocated space and times; zeros for an absent stream.
    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError>;

    /// Truncates the stream to `size` bytes, or extends it by a hole.
    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError>;

    /// As `fallocate(2)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a mode that the engine does not support.
    fn stream_allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError>;

    /// The next data or hole at or after `offset`; `None` if there is none before the stream's end.
    fn stream_seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError>;

    /// Copies bytes between streams, or between disjoint ranges of one. Returns the number copied:
    /// less than `length` at the end of the source, or where one call would take too long.
    fn stream_copy(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, StoreError>;

    /// Executes an operation on a stream. `data`: the bytes to write.
    ///
    /// # Errors
    /// As the methods above; `ENXIO` if a search finds nothing, `EINVAL` for an invalid list.
    fn stream_io(&self, ino: Ino, op: RangeOp, data: &[u8]) -> Result<Reply, StoreError> {
        Ok(match op {
            RangeOp::Read { offset, size } => {
                let mut bytes = vec![0; size as usize];
                let read = self.stream_read(ino, offset, &mut bytes)?;
                bytes.truncate(read);
                Reply::Bytes(bytes.into())
            }
            RangeOp::Write { .. } | RangeOp::WriteList { .. } => {
                for (offset, piece) in op.pieces(data).map_err(StoreError::Refused)? {
                    self.stream_write(ino, offset, piece)?;
                }
                Reply::Written(data.len() as u32)
            }
            RangeOp::Allocate { offset, length, mode } => {
                self.stream_allocate(ino, offset, length, mode)?;
                Reply::Done
            }
            RangeOp::Seek { offset, what } => {
                let found = self.stream_seek(ino, offset, what)?;
                Reply::Offset(found.ok_or(StoreError::Refused(Errno::ENXIO))?)
            }
            RangeOp::Copy { from, from_offset, offset, length } => {
                Reply::Written(self.stream_copy(from, from_offset, ino, offset, length)? as u32)
            }
        })
    }

    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError>;

    /// Makes the stream's data, times and existence durable.
    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError>;

    /// As [`Self::stream_sync`] for all streams.
    fn sync_all(&self) -> Result<(), StoreError>;

    /// Removes a stream; no effect if it is absent. A power failure before
    /// [`Self::sync_removed_streams`] may bring it back.
    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError>;

    /// Makes the existence of all created streams durable, not their contents.
    fn sync_new_streams(&self) -> Result<(), StoreError>;

    /// Makes all removals of streams durable.
    fn sync_removed_streams(&self) -> Result<(), StoreError>;

    /// The file that holds a stream, made if absent; `None` if the engine has no files.
    fn stream_file(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError>;

    /// All streams, provisional ones included, ascending.
    fn streams(&self) -> Result<Vec<Ino>, StoreError>;

    /// Excludes clients from the pool in which they write streams themselves. None of their
    /// operations takes effect after the return.
    fn fence_clients(&self, _: &[ClientId]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Size and free space where the bytes of big files are.
    fn space(&self) -> Result<Space, StoreError>;

    /// Free bytes where the rest is.
    fn free_for_metadata(&self) -> Result<u64, StoreError> {
        self.space().map(|space| space.available)
    }

    /// The pools of a store in a cluster, without waiting for it.
    fn pools(&self) -> Vec<StorePool> {
        Vec::new()
    }
}

/// A pool of a store, as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorePool {
    pub name: String,
    pub content: PoolContent,
    /// Free bytes; `None`: not reported yet.
    pub free: Option<u64>,
}

/// The part of a store that a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolContent {
    Everything,
    Metadata,
    BigFiles,
}
