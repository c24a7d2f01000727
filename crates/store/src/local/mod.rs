//! A store in a local directory.

mod check;
mod files;
mod lock;
mod mend;
mod salvage;
mod streams;
mod tables;

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use espalier_proto::{AllocateMode, Ino, ObjectId, SeekWhat, Space, StreamStat, TableWrite, Time};

pub(crate) use lock::StoreLock;
pub use lock::{Holder, is_locked, is_open};
pub(crate) use mend::{JOURNAL_NEW, TABLES_NEW};
pub use mend::{Mended, mend, new_journal, replace_journal};
pub use salvage::Salvage;
use streams::Streams;
use tables::Tables;

use crate::error::Context;
use crate::store::{Pairs, Record, RecordKey, Records, Store};
use crate::{Journal, JournalError, MigrationState, RealFile, StoreError, Superblock, superblock};

pub(crate) const JOURNAL: &str = "journal";
const TABLES: &str = "tables";
const STREAMS: &str = "streams";

/// Options for opening a store.
#[derive(Clone, Copy, Debug)]
pub struct LocalOptions {
    /// Do not write. Several processes may open the store read-only at once.
    pub read_only: bool,
    /// Cache for table blocks, in bytes.
    pub cache_bytes: u64,
    /// Maximum number of open stream files.
    pub open_files: usize,
    /// Open the destination of an incomplete migration, too.
    pub incoming: bool,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { read_only: false, cache_bytes: 64 << 20, open_files: 1024, incoming: false }
    }
}

/// A store in a directory, locked until dropped.
pub struct LocalStore {
    superblock: Superblock,
    tables: Tables,
    streams: Streams,
    path: PathBuf,
    read_only: bool,
    _lock: Option<StoreLock>,
}

impl LocalStore {
    /// Opens a store and its journal, which the caller replays.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Superblock`]; [`StoreError::Journal`] and
    /// [`StoreError::Corrupt`] if the store is damaged.
    pub fn open(dir: &Path, read_only: bool) -> Result<(Self, Journal<RealFile>), StoreError> {
        Self::open_with(dir, LocalOptions { read_only, ..LocalOptions::default() })
    }

    /// As [`Self::open`], with all options.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(dir: &Path, options: LocalOptions) -> Result<(Self, Journal<RealFile>), StoreError> {
        let LocalOptions { read_only, cache_bytes, open_files, incoming } = options;
        // Before taking the lock, which would make a file in a directory that is not a store.
        superblock::read(dir)?;
        let lock = if read_only { StoreLock::share(dir)? } else { Some(StoreLock::take(dir)?) };
        let superblock = superblock::read(dir)?;
        if !(incoming && matches!(superblock.migration, MigrationState::Incoming { .. })) {
            superblock.check_present(dir)?;
        }
        let journal = open_journal(&dir.join(JOURNAL), read_only, superblock.tag())?;
        if !read_only && let Err(error) = superblock::write_copy(dir, &superblock) {
            tracing::warn!(%error, "cannot update the copy of the superblock");
        }
        let tables = Tables::open(dir.join(TABLES), read_only, cache_bytes)?;
        let streams = Streams::open(dir.join(STREAMS), read_only, open_files)?;
        let store = Self { superblock, tables, streams, path: dir.into(), read_only, _lock: lock };
        Ok((store, journal))
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        if self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }
}

fn open_journal(path: &Path, read_only: bool, tag: u64) -> Result<Journal<RealFile>, StoreError> {
    let file = match File::options().read(true).write(!read_only).open(path) {
        Ok(file) => RealFile(file),
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            return Err(StoreError::corrupt(format!("{} is missing", path.display())));
        }
        Err(cause) => return Err(StoreError::io("open", path, cause)),
    };
    let journal = if read_only { Journal::open_read_only(file)? } else { Journal::open(file)? };
    if journal.tag() == tag { Ok(journal) } else { Err(JournalError::Foreign.into()) }
}

/// Makes the empty tables of a new store.
pub(crate) fn create_tables(dir: &Path) -> Result<(), StoreError> {
    Tables::create(&dir.join(TABLES))
}

/// Makes the stream directories of a new store.
pub(crate) fn create_streams(dir: &Path) -> Result<(), StoreError> {
    Streams::create(&dir.join(STREAMS))
}

impl Store for LocalStore {
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
        Ok(superblock::read(&self.path)?.migration)
    }

    fn set_migration(&self, migration: MigrationState) -> Result<(), StoreError> {
        self.check_writable()?;
        Ok(superblock::write(&self.path, &Superblock { migration, ..superblock::read(&self.path)? })?)
    }

    fn verify(&self) -> Result<(), StoreError> {
        self.tables.verify()
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
        if self.read_only { Ok(false) } else { self.tables.maintain() }
    }

    fn stream_create(&self, ino: Ino) -> Result<(), StoreError> {
        self.streams.make(ino)
    }

    fn stream_finalise(&self, ino: Ino) -> Result<(), StoreError> {
        self.streams.finalise(ino)
    }

    fn new_streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.streams.list_new()
    }

    fn stream_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        self.streams.read(ino, offset, buf)
    }

    fn stream_read_cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<(usize, bool), StoreError> {
        self.streams.read_cached(ino, offset, buf)
    }

    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.streams.write(ino, offset, data)
    }

    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        self.streams.stat(ino)
    }

    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        self.streams.truncate(ino, size)
    }

    fn stream_allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError> {
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
        self.streams.copy(from, from_offset, to, to_offset, length)
    }

    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        self.streams.set_mtime(ino, mtime)
    }

    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError> {
        self.streams.sync(ino)
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        if self.read_only {
            return Ok(());
        }
        let synced = File::open(&self.path).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
        synced.context("sync", &self.path)
    }

    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError> {
        self.streams.remove(ino)
    }

    fn sync_new_streams(&self) -> Result<(), StoreError> {
        if self.read_only { Ok(()) } else { self.streams.sync_new() }
    }

    fn sync_removed_streams(&self) -> Result<(), StoreError> {
        if self.read_only { Ok(()) } else { self.streams.sync_removed() }
    }

    fn stream_file(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError> {
        self.streams.file(ino)
    }

    fn streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.streams.list()
    }

    fn space(&self) -> Result<Space, StoreError> {
        let stat = rustix::fs::statvfs(&self.path).context("measure", &self.path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space {
            total: bytes(stat.f_blocks),
            free: bytes(stat.f_bfree),
            available: bytes(stat.f_bavail),
            files: stat.f_files,
            files_free: stat.f_favail,
        })
    }
}
