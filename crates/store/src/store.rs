use std::fs::File;
use std::ops::Bound;
use std::sync::Arc;

use espalier_proto::{AllocateMode, Ino, ObjectId, SeekWhat, Space, StreamStat, TableWrite, Time};

use crate::StoreError;

/// An object, a key of it, and the value.
pub type Record = (ObjectId, Vec<u8>, Vec<u8>);

/// Keys and values of one object.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Records one after the other.
pub type Records<'a> = Box<dyn Iterator<Item = Result<Record, StoreError>> + Send + 'a>;

/// An engine that keeps objects and byte streams. All methods may be called by several threads at once.
///
/// # Errors
/// All methods fail with [`StoreError::Io`] or [`StoreError::Corrupt`] if what lies below does, and those that change
/// something with [`StoreError::ReadOnly`] or [`StoreError::NoSpace`].
pub trait Store: Send + Sync + 'static {
    /// The value of a key. What is staged counts, published or not.
    fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// At most `limit` keys and values of one object, ascending. What is staged counts, published or not.
    fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Pairs, StoreError>;

    /// All records, ordered by object and key, as they are at the time of the call. Nothing comes after an error.
    fn records(&self) -> Records<'_>;

    /// Adds to the checkpoint under way. Nothing of it is durable before [`Self::publish`].
    fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError>;

    /// Makes everything staged durable, all at once. After an error all of it is still staged, and this may be called
    /// again; but after any other than [`StoreError::NoSpace`] an engine may refuse until it is opened again.
    fn publish(&self) -> Result<(), StoreError>;

    /// Does a piece of background upkeep. Whether there is more to do.
    fn maintain(&self) -> Result<bool, StoreError>;

    /// Makes an empty stream, listed as new until [`Self::stream_settle`]; one that is there already is left as it is.
    fn stream_create(&self, ino: Ino) -> Result<(), StoreError>;

    /// Takes a stream off the list of new ones, durably. One that is not on it, or absent, is fine.
    fn stream_settle(&self, ino: Ino) -> Result<(), StoreError>;

    /// The streams that were created and never settled, ascending.
    fn new_streams(&self) -> Result<Vec<Ino>, StoreError>;

    /// Reads until `buf` is full or the stream ends. A stream that was never written reads as empty.
    fn stream_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError>;

    /// As [`Self::stream_read`], as far as that takes no waiting for a disk: how many bytes, and whether that is all.
    fn stream_read_cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<(usize, bool), StoreError>;

    /// Writes all of `data`, at [`END`](espalier_proto::END) whole where the stream ends. The stream need not have been created: then it is no new one.
    ///
    /// # Errors
    /// `EFBIG` beyond what the engine can address.
    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Size, use of space, and times; zeros for an absent stream.
    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError>;

    /// Cuts the stream to `size` bytes, or extends it by a hole.
    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError>;

    /// As `fallocate(2)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a mode that the engine does not have.
    fn stream_allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError>;

    /// The next data or hole at `offset` or after it. `None`: there is none before the stream's end.
    fn stream_seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError>;

    /// Copies bytes between streams, or within one if the ranges do not overlap. How many were copied: fewer than
    /// `length` at the end of the source, or where one call would take too long.
    fn stream_copy(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, StoreError>;

    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError>;

    /// Makes the stream durable, with its times and its existence.
    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError>;

    /// Makes all streams durable, as [`Self::stream_sync`] makes one.
    fn sync_all(&self) -> Result<(), StoreError>;

    /// Removes a stream; an absent one is fine. Until [`Self::sync_removed_streams`] it may be back after a power
    /// failure.
    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError>;

    /// Makes it durable that the streams which have been created exist; not what they hold.
    fn sync_new_streams(&self) -> Result<(), StoreError>;

    /// Makes it durable that the streams which have been removed are gone.
    fn sync_removed_streams(&self) -> Result<(), StoreError>;

    /// The file that holds a stream, created if need be; `None` if the engine has no files.
    fn stream_file(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError>;

    /// All streams, new ones too, ascending.
    fn streams(&self) -> Result<Vec<Ino>, StoreError>;

    fn space(&self) -> Result<Space, StoreError>;
}
