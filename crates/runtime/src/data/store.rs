//! The store of a data server: datafiles are streams; empty datafiles are in the journal and the
//! tables.

use std::path::{Path, PathBuf};

use espalier_proto::{DataReply, DataRequest, Errno, Ino, ServerId};
use espalier_store::{
    Datafiles, FormatOptions, LocalOptions, LocalStore, RealFile, Store, StoreError, Superblock, superblock,
};

use crate::disk::logged;
use crate::error::Error;
use crate::flush_behind::Writeback;

/// A data server's store.
pub struct DataStore {
    number: ServerId,
    files: Datafiles<LocalStore, RealFile>,
    path: PathBuf,
    /// Writes are durable when they are answered.
    sync: bool,
    writeback: Writeback,
    /// Creates and removals are made durable one by one.
    individually: bool,
}

/// Journal size in bytes: enough for 40,000 creates of single datafiles between two checkpoints.
const JOURNAL_BYTES: u64 = 4 << 20;

/// Creates an empty store for the data server with this number.
///
/// # Errors
/// As `espalier mkfs`.
pub fn mkfs_data(dir: &Path, number: ServerId) -> Result<Superblock, Error> {
    let label = label(number);
    Ok(superblock::format(
        dir,
        &FormatOptions { label, journal_bytes: JOURNAL_BYTES, ..FormatOptions::default() },
    )?)
}

/// The label that identifies the store of a data server.
fn label(number: ServerId) -> String {
    format!("data-{number}")
}

/// True for a store of [`mkfs_data`].
pub(crate) fn is_data_store(superblock: &Superblock) -> bool {
    let number = superblock.label.strip_prefix("data-").and_then(|number| number.parse().ok());
    superblock.journal_bytes == JOURNAL_BYTES
        && number.is_some_and(|number| superblock.label == label(ServerId(number)))
}

impl DataStore {
    /// # Errors
    /// Errors of the store; it belongs to another server.
    pub fn open(dir: &Path, number: ServerId, sync: bool) -> Result<Self, Error> {
        if superblock::read(dir)?.label != label(number) {
            return Err(Error::NoDataStore { path: dir.into(), number });
        }
        let (store, journal) = LocalStore::open_with(dir, LocalOptions::default())?;
        let (files, writeback) = (Datafiles::open(store, journal, sync)?, Writeback::default());
        Ok(Self { number, files, path: dir.into(), sync, writeback, individually: false })
    }

    /// Makes creates and removals durable one by one, instead of many per sync.
    #[must_use]
    pub fn individually(self) -> Self {
        Self { individually: true, ..self }
    }

    pub(crate) fn commits_individually(&self) -> bool {
        self.individually
    }

    pub fn number(&self) -> ServerId {
        self.number
    }

    /// All datafiles with their sizes.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn datafiles(&self) -> Result<Vec<(Ino, u64)>, StoreError> {
        self.files.all()
    }

    /// The store, after a checkpoint: all contents are in its tables and streams.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn tables(&self) -> Result<&LocalStore, StoreError> {
        self.files.checkpoint()?;
        Ok(self.files.store())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn superblock(&self) -> &Superblock {
        self.files.store().superblock()
    }

    /// # Errors
    /// Errors of the store, which are logged here.
    pub fn sync_removed(&self) -> Result<DataReply, Errno> {
        self.files.sync_removed().map_err(logged)
    }

    /// Creates empty datafiles, durably if writes are.
    ///
    /// # Errors
    /// As [`Self::sync_removed`].
    pub fn create(&self, inos: &[Ino]) -> Result<DataReply, Errno> {
        self.files.create(inos, true).map_err(logged)
    }

    /// Writes; if the datafile does not exist yet, it becomes provisional.
    ///
    /// # Errors
    /// As [`Self::sync_removed`].
    pub fn write_new(&self, request: DataRequest) -> Result<DataReply, Errno> {
        self.follow(request, |request| self.files.write_new(request))
    }

    /// Executes a request.
    ///
    /// # Errors
    /// Errors of the store, which are logged here.
    pub fn execute(&self, request: DataRequest) -> Result<DataReply, Errno> {
        self.follow(request, |request| self.files.carry_out(request))
    }

    /// Executes a request, with flush-behind for sequential writes.
    fn follow(
        &self,
        request: DataRequest,
        execute: impl FnOnce(DataRequest) -> Result<DataReply, StoreError>,
    ) -> Result<DataReply, Errno> {
        let requested = request.clone();
        let done = execute(request).map_err(logged)?;
        if let DataRequest::Range { ino, op, data } = requested
            && !self.sync
        {
            let file = || self.files.store().stream_file(ino).map_err(logged).ok().flatten();
            for (offset, piece) in op.pieces(&data)? {
                self.writeback.follow(offset, piece.len() as u64, file);
            }
        }
        Ok(done)
    }
}
