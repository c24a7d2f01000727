//! A store in a directory of this machine's disk.

mod lock;
mod streams;
mod tables;

use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use espalier_proto::{AllocateMode, Ino, ObjectId, SeekWhat, StreamStat, TableWrite, Time};

use crate::error::StoreError;
use crate::journal::{Journal, RealFile};
use crate::{Pair, Record, Space, Store, sync_dir};
pub(crate) use lock::Lock;
pub use lock::is_locked;
use streams::Streams;
use tables::Tables;

pub struct LocalStore {
    path: PathBuf,
    tables: Tables,
    streams: Streams,
    read_only: bool,
    /// Held as long as the store is open.
    _lock: Lock,
}

impl LocalStore {
    /// Makes the empty tables and the places for streams.
    pub(crate) fn format(dir: &Path) -> Result<(), StoreError> {
        Tables::open(&dir.join("tables"))?;
        Streams::format(&dir.join("streams"))?;
        sync_dir(dir)
    }

    /// Opens a store that is not in use, and its journal, which is still to be replayed.
    pub fn open(dir: &Path, read_only: bool) -> Result<(Self, Journal<RealFile>), StoreError> {
        let lock = Lock::take(dir)?;
        let tables = dir.join("tables");
        if !tables.is_dir() {
            return Err(StoreError::Corrupt { what: format!("{} is missing", tables.display()) });
        }
        let journal = Journal::open(RealFile::open(&dir.join("journal"), read_only)?).map_err(Box::new)?;
        let store = Self {
            path: dir.into(),
            tables: Tables::open(&tables)?,
            streams: Streams::open(dir.join("streams"))?,
            read_only,
            _lock: lock,
        };
        Ok((store, journal))
    }

    fn writable(&self) -> Result<(), StoreError> {
        if self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }
}

impl Store for LocalStore {
    fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.tables.get(object, key)
    }

    fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Vec<Pair>, StoreError> {
        self.tables.scan(object, from, limit)
    }

    fn records(&self) -> Box<dyn Iterator<Item = Result<Record, StoreError>> + '_> {
        Box::new(self.tables.records())
    }

    fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError> {
        self.writable()?;
        self.tables.stage(writes);
        Ok(())
    }

    fn publish(&self) -> Result<(), StoreError> {
        self.writable()?;
        self.tables.publish()
    }

    fn maintain(&self) -> Result<bool, StoreError> {
        self.writable()?;
        self.tables.maintain()
    }

    fn stream_create(&self, ino: Ino) -> Result<(), StoreError> {
        self.writable()?;
        self.streams.create(ino)
    }

    fn stream_settle(&self, ino: Ino) -> Result<(), StoreError> {
        self.streams.settle(ino)
    }

    fn new_streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.streams.new_streams()
    }

    fn streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.streams.all()
    }

    fn stream_read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        self.streams.read(ino, offset, buffer)
    }

    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.writable()?;
        self.streams.write(ino, offset, data)
    }

    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        self.streams.stat(ino)
    }

    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        self.writable()?;
        self.streams.truncate(ino, size)
    }

    fn stream_allocate(&self, ino: Ino, offset: u64, length: u64, mode: AllocateMode) -> Result<(), StoreError> {
        self.writable()?;
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
        self.writable()?;
        self.streams.copy((from, from_offset), (to, to_offset), length)
    }

    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        self.writable()?;
        self.streams.set_mtime(ino, mtime)
    }

    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError> {
        self.streams.sync(ino)
    }

    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError> {
        self.writable()?;
        self.streams.remove(ino)
    }

    fn stream_file(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError> {
        self.streams.file(ino).map(Some)
    }

    fn space(&self) -> Result<Space, StoreError> {
        let stat = rustix::fs::statvfs(&self.path)
            .map_err(|error| StoreError::io("measure the space of", &self.path)(error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { total: bytes(stat.f_blocks), free: bytes(stat.f_bfree), available: bytes(stat.f_bavail) })
    }
}
