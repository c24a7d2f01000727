//! What a data server keeps: a store of its own, of which it uses the streams, and for what is empty the journal and the tables.

use std::path::{Path, PathBuf};

use espalier_proto::{DataReply, DataRequest, Errno, Ino, ServerId};
use espalier_store::{
    Datafiles, FormatOptions, LocalOptions, LocalStore, RealFile, Store, StoreError, Superblock, superblock,
};

use crate::behind::Writeback;
use crate::disk::logged;
use crate::error::Error;

/// A data server's store.
pub struct DataStore {
    number: ServerId,
    files: Datafiles<LocalStore, RealFile>,
    path: PathBuf,
    /// What is written is durable when it is answered.
    sync: bool,
    writeback: Writeback,
    /// Datafiles are made, and their removals made durable, each by itself.
    alone: bool,
}

/// Some 40,000 datafiles that are made one by one go by before the tables are written.
const JOURNAL_BYTES: u64 = 4 << 20;

/// Makes the empty store of the data server with that number.
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

/// By which the store of a data server is told from others.
fn label(number: ServerId) -> String {
    format!("data-{number}")
}

/// Whether it was made by [`mkfs_data`].
pub(crate) fn is_data_store(superblock: &Superblock) -> bool {
    let number = superblock.label.strip_prefix("data-").and_then(|number| number.parse().ok());
    superblock.journal_bytes == JOURNAL_BYTES
        && number.is_some_and(|number| superblock.label == label(ServerId(number)))
}

impl DataStore {
    /// # Errors
    /// Those of stores; and it is one of something else.
    pub fn open(dir: &Path, number: ServerId, sync: bool) -> Result<Self, Error> {
        if superblock::read(dir)?.label != label(number) {
            return Err(Error::NoDataStore { path: dir.into(), number });
        }
        let (store, journal) = LocalStore::open_with(dir, LocalOptions::default())?;
        let (files, writeback) = (Datafiles::open(store, journal, sync)?, Writeback::default());
        Ok(Self { number, files, path: dir.into(), sync, writeback, alone: false })
    }

    /// Each datafile is made, and each removal made durable, by itself, and not many by one sync.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    pub(crate) fn commits_alone(&self) -> bool {
        self.alone
    }

    pub fn number(&self) -> ServerId {
        self.number
    }

    /// All datafiles, and their sizes.
    ///
    /// # Errors
    /// Those of the store.
    pub fn datafiles(&self) -> Result<Vec<(Ino, u64)>, StoreError> {
        self.files.all()
    }

    /// All that it holds, in tables and streams.
    ///
    /// # Errors
    /// Those of the store.
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
    /// Those of the store. What goes wrong is logged here.
    pub fn sync_removed(&self) -> Result<DataReply, Errno> {
        self.files.sync_removed().map_err(logged)
    }

    /// Makes empty datafiles, durable where writes are.
    ///
    /// # Errors
    /// As [`Self::sync_removed`].
    pub fn create(&self, inos: &[Ino]) -> Result<DataReply, Errno> {
        self.files.create(inos, true).map_err(logged)
    }

    /// Writes, and lists the datafile as new if it is not there yet.
    ///
    /// # Errors
    /// As [`Self::sync_removed`].
    pub fn write_new(&self, request: DataRequest) -> Result<DataReply, Errno> {
        self.follow(request, |request| self.files.write_new(request))
    }

    /// Does what is asked.
    ///
    /// # Errors
    /// Those of the store. What goes wrong is logged here.
    pub fn execute(&self, request: DataRequest) -> Result<DataReply, Errno> {
        self.follow(request, |request| self.files.carry_out(request))
    }

    /// Does what is asked. What a writer has left behind is written out.
    fn follow(
        &self,
        request: DataRequest,
        execute: impl FnOnce(DataRequest) -> Result<DataReply, StoreError>,
    ) -> Result<DataReply, Errno> {
        let asked = request.clone();
        let done = execute(request).map_err(logged)?;
        if let Some((ino, pieces)) = asked.written()?.filter(|_| !self.sync) {
            let file = || self.files.store().stream_file(ino).map_err(logged).ok().flatten();
            for (offset, piece) in pieces {
                self.writeback.follow(offset, piece.len() as u64, file);
            }
        }
        Ok(done)
    }
}
