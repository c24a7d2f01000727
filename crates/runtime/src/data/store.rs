//! What a data server keeps: a store of its own, of which it uses the streams.

use std::path::{Path, PathBuf};

use espalier_proto::{DataReply, DataRequest, Errno, Ino, ServerId, Time};
use espalier_store::{FormatOptions, LocalOptions, LocalStore, Store, StoreError, Superblock, superblock};

use crate::disk::logged;
use crate::error::Error;

/// A data server's store.
pub struct DataStore {
    number: ServerId,
    store: LocalStore,
    path: PathBuf,
    /// What is written is durable when it is answered.
    sync: bool,
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
        Ok(Self { number, store, path: dir.into(), sync })
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
        self.carry_out(request).map_err(logged)
    }

    fn carry_out(&self, request: DataRequest) -> Result<DataReply, StoreError> {
        let store = &self.store;
        match request {
            DataRequest::Read { ino, offset, size } => {
                let mut bytes = vec![0; size as usize];
                let read = store.stream_read(ino, offset, &mut bytes)?;
                bytes.truncate(read);
                return Ok(DataReply::Bytes(bytes));
            }
            DataRequest::Seek { ino, offset, what } => {
                return Ok(DataReply::Found(store.stream_seek(ino, offset, what)?));
            }
            DataRequest::Stat { inos } => {
                let stats = inos.into_iter().map(|ino| store.stream_stat(ino)).collect::<Result<_, _>>()?;
                return Ok(DataReply::Stats(stats));
            }
            DataRequest::New => return Ok(DataReply::Inos(store.new_streams()?)),
            DataRequest::Space => return Ok(DataReply::Space(store.space()?)),
            DataRequest::Write { ino, offset, data } => {
                store.stream_write(ino, offset, &data)?;
                self.changed(ino)?;
            }
            DataRequest::Allocate { ino, offset, length, mode } => {
                store.stream_allocate(ino, offset, length, mode)?;
                self.changed(ino)?;
            }
            DataRequest::Truncate { ino, size } => {
                store.stream_truncate(ino, size)?;
                self.changed(ino)?;
            }
            // One that is not there has no time, nor bytes.
            DataRequest::SetMtime { ino, .. } if store.stream_stat(ino)?.ctime == Time::default() => {}
            DataRequest::SetMtime { ino, mtime } => {
                store.stream_set_mtime(ino, mtime)?;
                self.changed(ino)?;
            }
            // What an earlier attempt has left would count.
            DataRequest::Fill { ino, size: 0, .. } => store.stream_remove(ino)?,
            DataRequest::Fill { ino, data, size, mtime, sync } => {
                store.stream_create(ino)?;
                store.stream_write(ino, 0, &data)?;
                store.stream_truncate(ino, size)?;
                store.stream_set_mtime(ino, mtime)?;
                if sync || self.sync {
                    store.stream_sync(ino)?;
                }
            }
            DataRequest::Settle { ino } => store.stream_settle(ino)?,
            DataRequest::Sync { ino } => store.stream_sync(ino)?,
            DataRequest::Remove { ino } => store.stream_remove(ino)?,
            // The machine's own.
            DataRequest::Admit { .. } => {}
        }
        Ok(DataReply::Done)
    }

    fn changed(&self, ino: Ino) -> Result<(), StoreError> {
        if self.sync { self.store.stream_sync(ino) } else { Ok(()) }
    }
}
