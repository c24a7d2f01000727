//! Tracked tables: the records of one kind that are in memory, and which of them the next
//! checkpoint must write.
//!
//! A checkpoint writes a snapshot, that is all records as of one position of the journal, in pieces
//! while operations continue. The changes between two snapshots are an epoch. A record that changes
//! before its piece of the snapshot is written is encoded just before the change.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::Hash;
use core::ops::{Deref, DerefMut};

use espalier_proto::{ObjectId, TableWrite};
use hashbrown::hash_map::Entry;

use crate::record::Corrupt;
use crate::snapshot::UnwrittenChanges;
use crate::state::FxMap;

/// Tracks whether a checkpoint must write a record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Track {
    /// Epoch of the last change; 0: unchanged since it was written or loaded.
    pub epoch: u32,
    /// Epoch of the checkpoint that writes the record or its removal; 0: it was loaded.
    pub written: u32,
    /// The store may have the record, so removing it needs a write.
    pub stored: bool,
}

impl Track {
    pub(crate) const STORED: Self = Self { epoch: 0, written: 0, stored: true };

    /// True if the store durably has what is in memory. `published`: epoch of the last checkpoint.
    pub(crate) fn is_clean(self, published: u32) -> bool {
        self.epoch == 0 && self.written <= published
    }
}

/// The interface of a record to change tracking.
pub(crate) trait Tracked {
    type Key: Clone;
    /// Other records that the encoding depends on.
    type Context;

    fn track(&mut self) -> &mut Track;

    /// Size as far as the bound on the cache does not count it per record, in bytes.
    fn bytes(&self) -> usize {
        0
    }

    /// Approximate memory that a change takes until a checkpoint has written it, in bytes.
    fn dirty_bytes(&self) -> usize;

    /// Adds the record to a snapshot.
    fn write(&mut self, key: &Self::Key, context: &mut Self::Context, writes: &mut Vec<TableWrite>);
}

/// A kind of record with a key of its own, independent of other kinds.
pub(crate) trait Record: Sized {
    type Key: Copy + Eq + Hash + Ord;

    /// The object of the record, and its key there.
    fn place(key: Self::Key) -> (ObjectId, Vec<u8>);

    /// `None`: an empty record, which is not stored.
    fn encode(&self) -> Option<Vec<u8>>;

    fn decode(value: &[u8]) -> Result<Self, Corrupt>;

    /// Size as far as the bounds on the cache and on unwritten changes do not count it per record,
    /// in bytes.
    fn bytes(&self) -> usize {
        0
    }
}

/// A record and its track.
#[derive(Debug)]
pub(crate) struct Stored<R> {
    record: R,
    track: Track,
}

impl<R> Stored<R> {
    /// See [`Track::is_clean`].
    pub(crate) fn is_clean(&self, published: u32) -> bool {
        self.track.is_clean(published)
    }
}

impl<R> Deref for Stored<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.record
    }
}

impl<R> DerefMut for Stored<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.record
    }
}

impl<R: Record> Tracked for Stored<R> {
    type Key = R::Key;
    type Context = ();

    fn track(&mut self) -> &mut Track {
        &mut self.track
    }

    fn bytes(&self) -> usize {
        self.record.bytes()
    }

    fn dirty_bytes(&self) -> usize {
        self.record.bytes()
    }

    fn write(&mut self, key: &R::Key, (): &mut (), writes: &mut Vec<TableWrite>) {
        let value = self.record.encode();
        let was_stored = core::mem::replace(&mut self.track.stored, value.is_some());
        if was_stored || value.is_some() {
            let (object, key) = R::place(*key);
            writes.push(TableWrite { object, key, value });
        }
    }
}

/// Selects records for [`RecordTable::write`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Select {
    /// Those that the current snapshot lacks, until it has this number of writes.
    Missing(usize),
    /// For audits: those that [`UnwrittenChanges::counts_as_written`].
    Written,
}

/// The changed records of one kind, and the size of all that are in memory.
#[derive(Debug)]
pub(crate) struct Tracker<K> {
    /// Keys of changed records, each with the epoch of the change.
    changed: VecDeque<(u32, K)>,
    /// Sum of [`Record::bytes`].
    bytes: usize,
}

impl<K> Default for Tracker<K> {
    fn default() -> Self {
        Self { changed: VecDeque::new(), bytes: 0 }
    }
}

impl<K: Clone> Tracker<K> {
    /// Prepares a change of a record: encodes it first if the current snapshot needs its old state.
    pub(crate) fn touch<R: Tracked<Key = K>>(
        &mut self,
        key: &K,
        record: &mut R,
        context: &mut R::Context,
        changes: &mut UnwrittenChanges,
    ) {
        if record.track().epoch != changes.epoch() {
            changes.encode(key, record, context);
            record.track().epoch = changes.epoch();
            changes.note(record.dirty_bytes());
            self.changed.push_back((changes.epoch(), key.clone()));
        }
    }

    fn change<R: Record<Key = K>, T>(
        &mut self,
        key: &K,
        stored: &mut Stored<R>,
        changes: &mut UnwrittenChanges,
        change: impl FnOnce(&mut R) -> T,
    ) -> T {
        self.touch(key, stored, &mut (), changes);
        let before = stored.record.bytes();
        let result = change(&mut stored.record);
        let after = stored.record.bytes();
        changes.note(after.saturating_sub(before));
        self.bytes = self.bytes + after - before;
        result
    }

    /// The next record that the current snapshot may lack.
    pub(crate) fn pop(&mut self, changes: &UnwrittenChanges) -> Option<K> {
        self.changed.pop_front_if(|(epoch, _)| *epoch < changes.epoch()).map(|(_, key)| key)
    }
}

/// The records of one kind that are in memory.
#[derive(Debug)]
pub(crate) struct RecordTable<R: Tracked> {
    records: FxMap<R::Key, R>,
    tracker: Tracker<R::Key>,
}

impl<R: Tracked> Default for RecordTable<R> {
    fn default() -> Self {
        Self { records: FxMap::default(), tracker: Tracker::default() }
    }
}

impl<R: Tracked<Key: Eq + Hash + Ord>> RecordTable<R> {
    pub(crate) fn get(&self, key: &R::Key) -> Option<&R> {
        self.records.get(key)
    }

    /// For changes of what the store does not have.
    pub(crate) fn untracked(&mut self, key: &R::Key) -> Option<&mut R> {
        self.records.get_mut(key)
    }

    pub(crate) fn contains_key(&self, key: &R::Key) -> bool {
        self.records.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// The records in ascending order of their keys.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = (&R::Key, &R)> {
        let mut records: Vec<(&R::Key, &R)> = self.records.iter().collect();
        records.sort_unstable_by_key(|record| record.0);
        records.into_iter()
    }

    /// Sum of [`Tracked::bytes`].
    pub(crate) fn bytes(&self) -> usize {
        self.tracker.bytes
    }

    /// Prepares a change or removal of a record: encodes it first if the current snapshot needs its
    /// old state.
    pub(crate) fn touch(
        &mut self,
        key: &R::Key,
        context: &mut R::Context,
        changes: &mut UnwrittenChanges,
    ) -> Option<&mut R> {
        let record = self.records.get_mut(key)?;
        self.tracker.touch(key, record, context, changes);
        Some(record)
    }

    /// Adds a record: one of the store, or a new one, which is touched then.
    pub(crate) fn put(&mut self, key: R::Key, record: R) {
        self.tracker.bytes += record.bytes();
        self.records.insert(key, record);
    }

    /// Drops a record from memory.
    pub(crate) fn evict(&mut self, key: &R::Key) -> Option<R> {
        let record = self.records.remove(key)?;
        self.tracker.bytes -= record.bytes();
        Some(record)
    }

    /// Drops the records from memory that the store durably has.
    pub(crate) fn evict_clean(&mut self, published: u32) {
        self.records.retain(|_, record| {
            let is_clean = record.track().is_clean(published);
            if is_clean {
                self.tracker.bytes -= record.bytes();
            }
            !is_clean
        });
    }

    /// Encodes records into [`UnwrittenChanges::writes`].
    pub(crate) fn write(&mut self, select: Select, context: &mut R::Context, changes: &mut UnwrittenChanges) {
        match select {
            Select::Missing(limit) => {
                while changes.writes.len() < limit
                    && let Some(key) = self.tracker.pop(changes)
                {
                    if let Some(record) = self.records.get_mut(&key) {
                        changes.encode(&key, record, context);
                    }
                }
            }
            Select::Written => {
                for (key, record) in &mut self.records {
                    if changes.counts_as_written(*record.track()) {
                        record.write(key, context, &mut changes.writes);
                    }
                }
            }
        }
    }
}

impl<R: Record> RecordTable<Stored<R>> {
    /// Changes a record, if there is one.
    pub(crate) fn change<T>(
        &mut self,
        key: R::Key,
        changes: &mut UnwrittenChanges,
        change: impl FnOnce(&mut R) -> T,
    ) -> Option<T> {
        let stored = self.records.get_mut(&key)?;
        Some(self.tracker.change(&key, stored, changes, change))
    }

    /// Changes a record that may be new: then it is `new()` before.
    pub(crate) fn change_or_insert<T>(
        &mut self,
        key: R::Key,
        changes: &mut UnwrittenChanges,
        new: impl FnOnce() -> R,
        change: impl FnOnce(&mut R) -> T,
    ) -> T {
        let stored = self.records.entry(key).or_insert_with(|| {
            let record = new();
            self.tracker.bytes += record.bytes();
            Stored { record, track: Track::default() }
        });
        self.tracker.change(&key, stored, changes, change)
    }

    /// Adds a record, unless there is one.
    pub(crate) fn insert(&mut self, key: R::Key, record: R, changes: &mut UnwrittenChanges) {
        self.change_or_insert(key, changes, || record, |_| ());
    }

    /// Removes a record, also from the store with the next checkpoint.
    pub(crate) fn remove(&mut self, key: R::Key, changes: &mut UnwrittenChanges) -> Option<R> {
        let mut stored = self.evict(&key)?;
        changes.encode(&key, &mut stored, &mut ());
        if stored.track.stored {
            changes.erase(R::place(key));
        }
        Some(stored.record)
    }

    /// Takes in a record of the store. A record in memory is newer and stays.
    pub(crate) fn load(&mut self, key: R::Key, value: &[u8]) -> Result<(), Corrupt> {
        if let Entry::Vacant(entry) = self.records.entry(key) {
            let record = R::decode(value)?;
            self.tracker.bytes += record.bytes();
            entry.insert(Stored { record, track: Track::STORED });
        }
        Ok(())
    }
}
