//! The datafiles of a data server: one byte stream of the store for each datafile that has data.

use espalier_proto::{DataReply, DataRequest, Ino, RangeOp, Reply, StreamStat};

use crate::empty::Made;
use crate::error::StoreError;
use crate::store::Store;
use crate::{BlockFile, Journal, MemoryStore, SimFile};

/// The datafiles of a data server. The data of each is a stream; empty datafiles are recorded in
/// the journal (`empty.rs`).
pub struct Datafiles<S, F: BlockFile> {
    store: S,
    made: Made<F>,
    /// A write is durable before it is acknowledged.
    sync: bool,
}

/// Capacity of an in-memory journal in bytes: several times the largest request that makes
/// datafiles.
const JOURNAL_BYTES: u64 = 256 << 10;
const TAG: u64 = 1;

impl Datafiles<MemoryStore, SimFile> {
    /// A data server without datafiles, in memory. `sync`: as for [`Self::open`].
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn in_memory(sync: bool) -> Result<Self, StoreError> {
        let bytes = usize::try_from(Journal::<SimFile>::file_bytes(JOURNAL_BYTES)).unwrap_or(usize::MAX);
        Self::open(MemoryStore::new(), Journal::create(SimFile::new(bytes), JOURNAL_BYTES, TAG)?, sync)
    }

    /// Calls `of` with the journal's file.
    pub fn with_journal<T>(&self, of: impl FnOnce(&SimFile) -> T) -> T {
        self.made.with_file(of)
    }

    /// The datafiles as a restart finds them: after a crash of the process, or after a loss of
    /// power if `power` holds the seed that selects which journal writes survive.
    ///
    /// # Errors
    /// As [`Self::in_memory`].
    pub fn crash(&self, power: Option<u64>) -> Result<Self, StoreError> {
        let (store, file) = match power {
            None => (self.store.reopen(), self.made.with_file(SimFile::reopen)),
            Some(seed) => (self.store.crash(), self.made.with_file(|file| file.crash(seed))),
        };
        Self::open(store, Journal::open(file)?, self.sync)
    }
}

impl<S: Store, F: BlockFile> Datafiles<S, F> {
    /// Opens the datafiles. `journal` is the store's journal, not yet replayed. `sync`: writes are
    /// durable before they are acknowledged.
    ///
    /// # Errors
    /// Those of the store and of the journal.
    pub fn open(store: S, journal: Journal<F>, sync: bool) -> Result<Self, StoreError> {
        Ok(Self { made: Made::open(&store, journal)?, store, sync })
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    /// Lists all datafiles with their sizes in bytes.
    ///
    /// # Errors
    /// Those of the store.
    pub fn all(&self) -> Result<Vec<(Ino, u64)>, StoreError> {
        let mut inos = self.store.streams()?;
        inos.append(&mut self.made.all(&self.store)?);
        inos.sort_unstable();
        inos.dedup();
        let size = |ino| Ok((ino, self.store.stream_stat(ino)?.size));
        inos.into_iter().map(size).collect()
    }

    /// Writes the journal's contents to the tables and trims the journal.
    ///
    /// # Errors
    /// Those of the store.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.made.checkpoint(&self.store)
    }

    /// True if the datafile exists.
    ///
    /// # Errors
    /// Those of the store.
    pub fn has(&self, ino: Ino) -> Result<bool, StoreError> {
        Ok(self.stat(ino)?.exists)
    }

    /// Makes those of `inos` that do not exist, empty. One write serves all; with `sync`, if writes
    /// are durable, one sync does.
    ///
    /// # Errors
    /// Those of the store.
    pub fn create(&self, inos: &[Ino], sync: bool) -> Result<DataReply, StoreError> {
        let mut absent = Vec::with_capacity(inos.len());
        for ino in inos {
            if !self.has(*ino)? {
                absent.push(*ino);
            }
        }
        self.made.note(&self.store, &absent, true)?;
        if sync && self.sync {
            // A datafile that existed before may not be durable yet.
            self.made.sync()?;
        }
        Ok(DataReply::Done)
    }

    /// Makes all removals durable.
    ///
    /// # Errors
    /// Those of the store.
    pub fn sync_removed(&self) -> Result<DataReply, StoreError> {
        self.store.sync_removed_streams()?;
        self.made.sync()?;
        Ok(DataReply::Done)
    }

    /// Executes a write; a datafile that it makes is provisional.
    ///
    /// # Errors
    /// Those of the store.
    pub fn write_new(&self, request: DataRequest) -> Result<DataReply, StoreError> {
        if let DataRequest::Range { ino, .. } = request {
            self.store.stream_create(ino)?;
        }
        self.carry_out(request)
    }

    /// Executes a request.
    ///
    /// # Errors
    /// Those of the store.
    pub fn carry_out(&self, request: DataRequest) -> Result<DataReply, StoreError> {
        let (store, sync) = (&self.store, self.sync);
        let changed = |ino| if sync { store.stream_sync(ino) } else { Ok(()) };
        match request {
            DataRequest::Range { ino, op: RangeOp::Seek { offset, what }, .. } => {
                return Ok(DataReply::Found(store.stream_seek(ino, offset, what)?));
            }
            DataRequest::Range { ino, op, data } => {
                let reply = store.stream_io(ino, op, &data)?;
                if op.is_change() {
                    changed(ino)?;
                }
                if let Reply::Bytes(bytes) = reply {
                    return Ok(DataReply::Bytes(bytes));
                }
            }
            DataRequest::Stat { inos } => {
                let stats = inos.into_iter().map(|ino| self.stat(ino)).collect::<Result<_, _>>()?;
                return Ok(DataReply::Stats(stats));
            }
            DataRequest::New => return Ok(DataReply::Inos(store.new_streams()?)),
            DataRequest::Space => return Ok(DataReply::Space(store.space()?)),
            DataRequest::Truncate { ino, size, .. } => {
                store.stream_truncate(ino, size)?;
                changed(ino)?;
            }
            DataRequest::Precreate { inos } => return self.create(&inos, true),
            DataRequest::Create { ino, sync } => return self.create(&[ino], sync),
            DataRequest::Discard { inos } => {
                self.remove(&inos)?;
                return self.sync_removed();
            }
            // An absent datafile has neither a time nor data.
            DataRequest::SetMtime { ino, .. } if !self.has(ino)? => {}
            DataRequest::SetMtime { ino, mtime } => {
                store.stream_set_mtime(ino, mtime)?;
                changed(ino)?;
            }
            // Removes what an earlier attempt left.
            DataRequest::Fill { ino, size: 0, .. } => store.stream_remove(ino)?,
            DataRequest::Fill { ino, data, size, mtime, sync: sync_it } => {
                store.stream_create(ino)?;
                store.stream_truncate(ino, 0)?;
                store.stream_write(ino, 0, &data)?;
                store.stream_truncate(ino, size)?;
                store.stream_set_mtime(ino, mtime)?;
                if sync_it || sync {
                    store.stream_sync(ino)?;
                }
            }
            DataRequest::Finalise { ino, .. } => store.stream_finalise(ino)?,
            DataRequest::Sync { ino } => {
                store.stream_sync(ino)?;
                self.made.sync()?;
            }
            DataRequest::SyncAll => {
                store.sync_all()?;
                self.made.sync()?;
            }
            DataRequest::Remove { ino } => self.remove(&[ino])?,
            // `data::Machine` handles these requests.
            DataRequest::Admit { .. } => {}
        }
        Ok(DataReply::Done)
    }

    fn remove(&self, inos: &[Ino]) -> Result<(), StoreError> {
        inos.iter().try_for_each(|ino| self.store.stream_remove(*ino))?;
        let mut noted = Vec::new();
        for ino in inos {
            if self.made.has(&self.store, *ino)? {
                noted.push(*ino);
            }
        }
        self.made.note(&self.store, &noted, false)
    }

    fn stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        let stat = self.store.stream_stat(ino)?;
        Ok(StreamStat { exists: stat.exists || self.made.has(&self.store, ino)?, ..stat })
    }
}
