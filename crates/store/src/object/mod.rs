//! A store in the objects of an [`Engine`], shared by all ranks of a file system.

mod data_pool;
mod file;
mod format;
mod head;
mod lease;
mod names;
mod open;
mod shared;
mod stream;
mod streams;
mod tables;

use std::fs::File;
use std::ops::Bound;
use std::sync::Arc;

use espalier_proto::{AllocateMode, ClientId, Ino, ObjectId, SeekWhat, Space, StreamStat, TableWrite, Time};

pub use data_pool::{DataPoolError, pools_of};
pub use file::ObjectFile;
pub use format::{format_joining, format_objects, read_superblock, replace_objects_journal};
pub use lease::{LeaseHolder, RankLease, break_lease, lease_holder};
use names::Names;
pub use shared::SharedStreams;
use streams::Streams;
use tables::Tables;

use crate::engine::{Engine, Pending, Version};
use crate::store::{Pairs, Record, RecordKey, Records, Store, StorePool};
use crate::{Journal, JournalError, MigrationState, StoreError, Superblock};

/// Size of an object of the journal or of a stream.
const CHUNK_BYTES: u64 = 4 << 20;

/// Options for opening a store.
#[derive(Clone, Copy, Debug)]
pub struct ObjectOptions {
    /// Do not write.
    pub read_only: bool,
    /// Cache for records, in bytes.
    pub cache_bytes: u64,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self { read_only: false, cache_bytes: 64 << 20 }
    }
}

/// The store of one rank in a namespace.
pub struct ObjectStore<E: Engine> {
    engine: Arc<E>,
    /// The pool of the streams' bytes, if it is another one.
    data: Option<Arc<E>>,
    tables: Tables<E>,
    streams: Streams<E>,
    /// `None`: another process writes the store.
    lease: Option<RankLease<E>>,
    read_only: bool,
}

/// Version of a rank's tables: changes with each checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablesVersion {
    head: Version,
    /// Of the shard with the super record, which each checkpoint writes.
    first: Version,
}

/// A store that another process writes, and its journal.
pub struct FollowedStore<E: Engine> {
    pub store: ObjectStore<E>,
    pub journal: Journal<ObjectFile<E>>,
    /// Reads are consistent while the tables have this version.
    pub version: TablesVersion,
}

impl<E: Engine> ObjectStore<E> {
    /// Opens the store of the rank of a lease, and its journal, which the caller replays. The lease
    /// is released when the store is dropped.
    ///
    /// # Errors
    /// [`StoreError::Engine`]; [`StoreError::Corrupt`] and [`StoreError::Journal`] if the store is
    /// damaged; [`StoreError::DataPool`].
    pub fn open(
        engine: &Arc<E>,
        superblock: &Superblock,
        lease: RankLease<E>,
        options: ObjectOptions,
    ) -> Result<(Self, Journal<ObjectFile<E>>), StoreError> {
        let read_only = options.read_only;
        let data = data_pool::open(engine.as_ref(), superblock)?.map(Arc::new);
        let names = Names(lease.rank());
        let length = Journal::<ObjectFile<E>>::file_bytes(superblock.journal_bytes);
        let file = ObjectFile::new(Arc::clone(engine), names, length, false);
        let journal = if read_only { Journal::open_read_only(file)? } else { Journal::open(file)? };
        if journal.tag() != superblock.tag_of(lease.rank()) {
            return Err(JournalError::Foreign.into());
        }
        let tables = Tables::open(engine, names, options)?;
        let streams = Streams::new(Arc::clone(engine), data.clone(), names);
        let lease = Some(lease);
        Ok((Self { engine: Arc::clone(engine), data, tables, streams, lease, read_only }, journal))
    }

    /// Opens the store of a rank and its journal for reading, while another process writes them.
    /// `None`: a checkpoint has been published meanwhile.
    ///
    /// # Errors
    /// As [`Self::open`]; also because of a concurrent checkpoint.
    pub fn follow(
        engine: &Arc<E>,
        superblock: &Superblock,
        cache_bytes: u64,
    ) -> Result<Option<FollowedStore<E>>, StoreError> {
        let names = Names(superblock.rank);
        let length = Journal::<ObjectFile<E>>::file_bytes(superblock.journal_bytes);
        let journal = Journal::open_read_only(ObjectFile::followed(Arc::clone(engine), names, length))?;
        if journal.tag() != superblock.tag_of(superblock.rank) {
            return Err(JournalError::Foreign.into());
        }
        let before = engine.submit_read(&names.head(), 0, 1).wait()?.version;
        let options = ObjectOptions { read_only: true, cache_bytes };
        let tables = Tables::open(engine, names, options)?;
        let version = tables.version()?;
        // No bytes of streams are read.
        let streams = Streams::new(Arc::clone(engine), None, names);
        let engine = Arc::clone(engine);
        let store = Self { engine, data: None, tables, streams, lease: None, read_only: true };
        Ok((version.head == before).then_some(FollowedStore { store, journal, version }))
    }

    /// Reads the version that the tables have now.
    ///
    /// # Errors
    /// [`StoreError::Engine`].
    pub fn tables_version(&self) -> Result<TablesVersion, StoreError> {
        self.tables.version()
    }

    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly);
        }
        if self.is_held() { Ok(()) } else { Err(StoreError::LeaseOver) }
    }
}

/// A part of a range that lies in one chunk.
struct Piece {
    chunk: u64,
    /// Offset in the chunk.
    start: usize,
    length: usize,
    /// Offset in the range.
    at: usize,
}

/// Splits a range at the boundaries of chunks.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = offset + at as u64;
        let start = from % CHUNK_BYTES;
        let piece = (length - at).min((CHUNK_BYTES - start) as usize);
        let found = Piece { chunk: from / CHUNK_BYTES, start: start as usize, length: piece, at };
        at += piece;
        (piece > 0).then_some(found)
    })
}

/// Waits for all operations; returns the first error.
fn wait_all(pending: impl IntoIterator<Item = Pending<Version>>) -> Result<(), StoreError> {
    let mut outcome = Ok(());
    for operation in pending {
        let done = operation.wait().map(drop).map_err(StoreError::from);
        if outcome.is_ok() {
            outcome = done;
        }
    }
    outcome
}

impl<E: Engine> Store for ObjectStore<E> {
    fn is_held(&self) -> bool {
        self.lease.as_ref().is_some_and(RankLease::is_held)
    }

    fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.tables.get(object, key)
    }

    fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Pairs, StoreError> {
        self.tables.scan(object, from, limit)
    }

    fn records(&self) -> Records<'_> {
        self.tables.records()
    }

    fn records_after(&self, after: Option<&RecordKey>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.tables.records_after(after, limit)
    }

    fn migration(&self) -> Result<MigrationState, StoreError> {
        Ok(read_superblock(self.engine.as_ref(), names::SUPERBLOCK)?.migration)
    }

    fn set_migration(&self, migration: MigrationState) -> Result<(), StoreError> {
        self.check_writable()?;
        format::set_migration(self.engine.as_ref(), migration)
    }

    fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError> {
        self.check_writable()?;
        self.tables.stage(writes)
    }

    fn publish(&self) -> Result<(), StoreError> {
        self.check_writable()?;
        self.tables.publish()
    }

    fn maintain(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn stream_create(&self, ino: Ino) -> Result<(), StoreError> {
        self.check_writable()?;
        self.streams.create(ino)
    }

    fn stream_finalise(&self, ino: Ino) -> Result<(), StoreError> {
        self.check_writable()?;
        self.streams.finalise(ino)
    }

    fn new_streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.streams.provisional()
    }

    fn stream_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        self.streams.read(ino, offset, buf)
    }

    /// Every read waits for the cluster.
    fn stream_read_cached(&self, _: Ino, _: u64, _: &mut [u8]) -> Result<(usize, bool), StoreError> {
        Ok((0, false))
    }

    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.check_writable()?;
        self.streams.write(ino, offset, data)
    }

    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        self.streams.stat(ino)
    }

    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        self.check_writable()?;
        self.streams.truncate(ino, size)
    }

    fn stream_allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError> {
        self.check_writable()?;
        self.streams.allocate(ino, offset, length, mode)
    }

    fn stream_seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError> {
        self.streams.seek(ino, offset, what)
    }

    fn stream_copy(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, StoreError> {
        self.check_writable()?;
        self.streams.copy(from, from_offset, to, to_offset, length)
    }

    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        self.check_writable()?;
        self.streams.set_mtime(ino, mtime)
    }

    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError> {
        self.streams.sync(ino)
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.streams.sync_all()
    }

    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError> {
        self.check_writable()?;
        self.streams.remove(ino)
    }

    /// Streams are durable when they are made, as are their sizes and times when they are written.
    fn sync_new_streams(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn sync_removed_streams(&self) -> Result<(), StoreError> {
        self.streams.sync_removed()
    }

    fn stream_file(&self, _: Ino) -> Result<Option<Arc<File>>, StoreError> {
        Ok(None)
    }

    fn streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.streams.list()
    }

    fn fence_clients(&self, clients: &[ClientId]) -> Result<(), StoreError> {
        self.data.as_deref().map_or(Ok(()), |data| shared::fence(data, clients))
    }

    fn space(&self) -> Result<Space, StoreError> {
        Ok(self.data.as_ref().unwrap_or(&self.engine).space()?)
    }

    fn free_for_metadata(&self) -> Result<u64, StoreError> {
        Ok(self.engine.space()?.available)
    }

    fn pools(&self) -> Vec<StorePool> {
        data_pool::pools(self.engine.as_ref(), self.data.as_deref())
    }
}
