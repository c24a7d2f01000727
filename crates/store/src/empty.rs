//! Datafiles that were made and that nobody has written to: each is a line in the journal, which many share, and later a record of the tables.
//! A file below is made by the first write. (PVFS's data servers do the same with their database and their byte streams.)

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use espalier_proto::{Ino, ObjectId, Position, TableWrite};

use crate::{BlockFile, Journal, JournalError, Store, StoreError, SyncHandle};

/// Which datafiles were made. What was made stays noted once it is written to, until it is removed.
pub(crate) struct Made<F: BlockFile> {
    log: Mutex<Log<F>>,
    handle: SyncHandle<F>,
}

struct Log<F: BlockFile> {
    journal: Journal<F>,
    /// What the tables do not say yet: those that were made, and those (`false`) that were removed.
    changed: BTreeMap<Ino, bool>,
}

/// Of the tables: up to where of the journal they know.
const POSITION: &[u8] = b"journal";
/// What a frame says of the numbers that follow, of eight bytes each.
const MADE: u8 = b'+';
const REMOVED: u8 = b'-';

impl<F: BlockFile> Made<F> {
    /// `journal`: of that store, and not replayed yet.
    pub fn open(store: &impl Store, mut journal: Journal<F>) -> Result<Self, StoreError> {
        let position = store.get(ObjectId::SUPER, POSITION)?;
        let from = position.map_or(Some(0), |bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        let from = from.ok_or_else(|| StoreError::corrupt("the position in the journal is none"))?;
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
            return Err(StoreError::corrupt("the journal is not one of datafiles"));
        }
        journal.forget_torn()?;
        Ok(Self { handle: journal.sync_handle(), log: Mutex::new(Log { journal, changed }) })
    }

    pub fn has(&self, store: &impl Store, ino: Ino) -> Result<bool, StoreError> {
        if let Some(made) = self.log().changed.get(&ino) {
            return Ok(*made);
        }
        let (object, key) = record(ino);
        Ok(store.get(object, &key)?.is_some())
    }

    /// All of them, ascending.
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

    /// They are there, or (`made` is false) gone. It is not durable before [`Self::sync`].
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
            // What was appended since the last checkpoint must be that much.
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

    /// Makes all that was noted durable: of those that call this at a time one syncs for the others.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.handle.sync().map(drop).map_err(StoreError::from)
    }

    /// Moves what the journal says into the tables.
    pub fn checkpoint(&self, store: &impl Store) -> Result<(), StoreError> {
        self.log().checkpoint(store)
    }

    /// The journal's file.
    pub fn with_file<T>(&self, of: impl FnOnce(&F) -> T) -> T {
        of(self.log().journal.file())
    }

    fn log(&self) -> MutexGuard<'_, Log<F>> {
        // It is whole between any two statements.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: BlockFile> Log<F> {
    /// Moves what the journal says into the tables.
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

/// Where the tables say that a datafile was made.
fn record(ino: Ino) -> (ObjectId, Vec<u8>) {
    let mut key = vec![b'e'];
    key.extend_from_slice(&ino.0.to_be_bytes());
    (ObjectId::inodes(ino), key)
}
