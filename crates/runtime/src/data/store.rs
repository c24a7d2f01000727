//! What a data server keeps: a store of its own, of which it uses the streams.

use std::path::{Path, PathBuf};

use espalier_proto::{DataReply, DataRequest, Errno, Ino, ServerId};
use espalier_store::{
    FormatOptions, LocalOptions, LocalStore, Store, StoreError, Superblock, carry_out, superblock,
};

use crate::disk::logged;
use crate::error::Error;

/// A data server's store.
pub struct DataStore {
    number: ServerId,
    store: LocalStore,
    path: PathBuf,
    /// What is written is durable when it is answered.
    sync: bool,
    /// And each removal by itself.
    alone: bool,
}

/// Its journal is never used: the smallest will do.
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

impl DataStore {
    /// # Errors
    /// Those of stores; and it is one of something else.
    pub fn open(dir: &Path, number: ServerId, sync: bool) -> Result<Self, Error> {
        if superblock::read(dir)?.label != label(number) {
            return Err(Error::NoDataStore { path: dir.into(), number });
        }
        let (store, _) = LocalStore::open_with(dir, LocalOptions::default())?;
        Ok(Self { number, store, path: dir.into(), sync, alone: false })
    }

    /// Each removal is made durable by itself, and not many by one sync.
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
        let size = |ino| Ok((ino, self.store.stream_stat(ino)?.size));
        self.store.streams()?.into_iter().map(size).collect()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn superblock(&self) -> &Superblock {
        self.store.superblock()
    }

    /// # Errors
    /// Those of the store. What goes wrong is logged here.
    pub fn sync_removed(&self) -> Result<DataReply, Errno> {
        self.store.sync_removed_streams().map(|()| DataReply::Done).map_err(logged)
    }

    /// Does what is asked.
    ///
    /// # Errors
    /// Those of the store. What goes wrong is logged here.
    pub fn execute(&self, request: DataRequest) -> Result<DataReply, Errno> {
        carry_out(&self.store, request, self.sync).map_err(logged)
    }
}
