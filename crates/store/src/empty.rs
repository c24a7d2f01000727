//! The set of datafiles that exist. The journal has one entry for each datafile made or removed; a
//! checkpoint moves the entries to the tables. The first write to a datafile makes its file. PVFS's
//! data servers likewise combine a database with byte streams.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use espalier_proto::{Ino, ObjectId, Position, TableWrite};

use crate::{BlockFile, Journal, JournalError, Store, StoreError, SyncHandle};

/// The datafiles that were made and not removed, including those never written to.
pub(crate) struct Made<F: BlockFile> {
    log: Mutex<DatafileLog<F>>,
    handle: SyncHandle<F>,
}

struct DatafileLog<F: BlockFile> {
    journal: Journal<F>,
    /// Changes that the tables lack: true for a datafile that was made, false for one that was
    /// removed.
    changed: BTreeMap<Ino, bool>,
}

/// Table key of the journal position up to which the tables are complete.
const POSITION: &[u8] = b"journal";
/// First byte of a frame: the operation on the inode numbers that follow, 8 bytes each.
const MADE: u8 = b'+';
const REMOVED: u8 = b'-';

impl<F: BlockFile> Made<F> {
    /// Opens the set. `journal` is the store's journal, not yet replayed.
    pub fn open(store: &impl Store, mut journal: Journal<F>) -> Result<Self, StoreError> {
        let position = store.get(ObjectId::SUPER, POSITION)?;
        let from = position.map_or(Some(0), |bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        let from = from.ok_or_else(|| StoreError::corrupt("the recorded journal position is invalid"))?;
        let (mut changed, mut is_whole) = (BTreeMap::new(), true);
        journal.replay(Position(from), |_, frame| match frame.split_first() {
            Some((kind @ (&MADE | &REMOVED), numbers)) => {
                let (numbers, rest) = numbers.as_chunks();
                changed
                    .extend(numbers.iter().map(|number| (Ino(u64::from_le_bytes(*number)), *kind == MADE)));
                is_whole &= rest.is_empty();
            }
            _ => is_whole = false,
        })?;
        if !is_whole {
            return Err(StoreError::corrupt("the journal is not that of a data server"));
        }
        journal.forget_torn()?;
        Ok(Self { handle: journal.sync_handle(), log: Mutex::new(DatafileLog { journal, changed }) })
    }

    pub fn has(&self, store: &impl Store, ino: Ino) -> Result<bool, StoreError> {
        if let Some(made) = self.log().changed.get(&ino) {
            return Ok(*made);
        }
        let (object, key) = record(ino);
        Ok(store.get(object, &key)?.is_some())
    }

    /// All existing datafiles, ascending.
    pub fn all(&self, store: &impl Store) -> Result<Vec<Ino>, StoreError> {
        let log = self.log();
        let mut all = BTreeMap::new();
        for stored in store.records() {
            let (object, key, _) = stored?;
            let number = key.split_first_chunk().filter(|(kind, _)| *kind == b"e");
            let number = number.and_then(|(_, number)| Some(u64::from_be_bytes(number.try_into().ok()?)));
            all.extend(number.filter(|_| object != ObjectId::SUPER).map(|number| (Ino(number), true)));
        }
        all.extend(log.changed.iter().map(|(ino, made)| (*ino, *made)));
        Ok(all.into_iter().filter_map(|(ino, made)| made.then_some(ino)).collect())
    }

    /// Records `inos` as made or, if `made` is false, removed. Durable after [`Self::sync`].
    pub fn note(&self, store: &impl Store, inos: &[Ino], made: bool) -> Result<(), StoreError> {
        if inos.is_empty() {
            return Ok(());
        }
        let kind = if made { MADE } else { REMOVED };
        let mut frame = Vec::with_capacity(1 + 8 * inos.len());
        frame.push(kind);
        inos.iter().for_each(|ino| frame.extend_from_slice(&ino.0.to_le_bytes()));
        let mut log = self.log();
        if log.journal.used() > log.journal.capacity() / 2 {
            log.checkpoint(store)?;
        }
        match log.journal.append(&frame) {
            // The frames since the last checkpoint fill the journal.
            Err(JournalError::Full { .. }) => {
                log.checkpoint(store)?;
                log.journal.append(&frame)?;
            }
            appended => drop(appended?),
        }
        log.changed.extend(inos.iter().map(|ino| (*ino, made)));
        drop(log);
        Ok(())
    }

    /// Makes all recorded changes durable. Concurrent callers share one sync.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.handle.sync().map(drop).map_err(StoreError::from)
    }

    /// Writes the journal's contents to the tables and trims the journal.
    pub fn checkpoint(&self, store: &impl Store) -> Result<(), StoreError> {
        self.log().checkpoint(store)
    }

    /// Calls `of` with the journal's file.
    pub fn with_file<T>(&self, of: impl FnOnce(&F) -> T) -> T {
        of(self.log().journal.file())
    }

    fn log(&self) -> MutexGuard<'_, DatafileLog<F>> {
        // Every statement leaves the log consistent, so poisoning is ignored.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: BlockFile> DatafileLog<F> {
    /// Writes the journal's contents to the tables and trims the journal.
    fn checkpoint(&mut self, store: &impl Store) -> Result<(), StoreError> {
        let position = self.journal.sync()?;
        let write = |(ino, made): (&Ino, &bool)| {
            let (object, key) = record(*ino);
            TableWrite { object, key, value: made.then(Vec::new) }
        };
        let mut writes: Vec<_> = self.changed.iter().map(write).collect();
        let value = Some(position.0.to_le_bytes().to_vec());
        writes.push(TableWrite { object: ObjectId::SUPER, key: POSITION.to_vec(), value });
        store.stage(writes)?;
        store.publish()?;
        self.journal.trim(position);
        self.changed.clear();
        while store.maintain()? {}
        Ok(())
    }
}

/// Object and key of the record that a datafile exists.
fn record(ino: Ino) -> (ObjectId, Vec<u8>) {
    let mut key = vec![b'e'];
    key.extend_from_slice(&ino.0.to_be_bytes());
    (ObjectId::inodes(ino), key)
}
