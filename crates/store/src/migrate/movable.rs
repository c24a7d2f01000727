//! A store that can be replaced while it is used.

use std::fs::File;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use espalier_proto::{
    AllocateMode, ClientId, END, Ino, ObjectId, SeekWhat, Space, StreamStat, TableWrite, Time,
};

use super::changes::{ChangeLog, StreamChange};
use crate::store::{Pairs, Record, RecordKey, Records, Store, StorePool};
use crate::{MigrationState, StoreError};

/// Records that [`Store::records`] reads at a time.
const BATCH: usize = 512;

/// A store whose place can change. While it is being copied, its changes are noted.
pub struct MovableStore {
    place: RwLock<Place>,
    /// Writes are staged and not published.
    is_staged: AtomicBool,
}

pub(super) struct Place {
    pub store: Arc<dyn Store>,
    pub changes: Option<Arc<ChangeLog>>,
    /// Two stores may claim the file system: nothing is answered from either.
    pub is_undecided: bool,
}

impl MovableStore {
    pub fn new(store: impl Into<Arc<dyn Store>>) -> Self {
        let place = Place { store: store.into(), changes: None, is_undecided: false };
        Self { place: RwLock::new(place), is_staged: AtomicBool::new(false) }
    }

    fn place(&self) -> RwLockReadGuard<'_, Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the operations in progress; later ones wait until the guard is dropped.
    pub(super) fn pause(&self) -> RwLockWriteGuard<'_, Place> {
        self.place.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_staged(&self) -> bool {
        self.is_staged.load(Ordering::Acquire)
    }

    fn read<T>(&self, call: impl FnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let place = self.place();
        if place.is_undecided {
            return Err(StoreError::Undecided);
        }
        call(place.store.as_ref())
    }

    /// Executes a change of a stream, and notes it even if it fails.
    fn change<T>(
        &self,
        ino: Ino,
        change: impl FnOnce(&dyn Store) -> Result<StreamChange, StoreError>,
        call: impl FnOnce(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let place = self.place();
        if place.is_undecided {
            return Err(StoreError::Undecided);
        }
        let store = place.store.as_ref();
        let Some(changes) = &place.changes else { return call(store) };
        let change = change(store)?;
        let done = call(store);
        changes.note_stream(ino, change);
        done
    }
}

/// A change of size, times or existence.
fn attributes(_: &dyn Store) -> Result<StreamChange, StoreError> {
    Ok(StreamChange::NONE)
}

fn everything(_: &dyn Store) -> Result<StreamChange, StoreError> {
    Ok(StreamChange::WHOLE)
}

/// The change of a write. An append is anywhere behind the present end.
fn written(store: &dyn Store, ino: Ino, offset: u64, length: u64) -> Result<StreamChange, StoreError> {
    match offset {
        END => Ok(StreamChange::tail(store.stream_stat(ino)?.size)),
        _ => Ok(StreamChange::range(offset..offset.saturating_add(length))),
    }
}

impl Store for MovableStore {
    fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(|store| store.get(object, key))
    }

    fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Pairs, StoreError> {
        self.read(|store| store.scan(object, from, limit))
    }

    fn records(&self) -> Records<'_> {
        let mut batch = Vec::new().into_iter();
        let mut after = None;
        let mut is_last = false;
        Box::new(std::iter::from_fn(move || {
            if batch.len() == 0 && !is_last {
                match self.records_after(after.as_ref(), BATCH) {
                    Ok(found) => {
                        is_last = found.len() < BATCH;
                        after = found.last().map(|(object, key, _)| (*object, key.clone()));
                        batch = found.into_iter();
                    }
                    Err(error) => {
                        is_last = true;
                        return Some(Err(error));
                    }
                }
            }
            batch.next().map(Ok)
        }))
    }

    fn records_after(&self, after: Option<&RecordKey>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.read(|store| store.records_after(after, limit))
    }

    fn migration(&self) -> Result<MigrationState, StoreError> {
        self.read(|store| store.migration())
    }

    fn set_migration(&self, migration: MigrationState) -> Result<(), StoreError> {
        self.read(|store| store.set_migration(migration))
    }

    fn is_held(&self) -> bool {
        let place = self.place();
        !place.is_undecided && place.store.is_held()
    }

    fn verify(&self) -> Result<(), StoreError> {
        self.read(|store| store.verify())
    }

    fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError> {
        let place = self.place();
        if place.is_undecided {
            return Err(StoreError::Undecided);
        }
        self.is_staged.store(true, Ordering::Release);
        let Some(changes) = &place.changes else { return place.store.stage(writes) };
        let keys: Vec<_> = writes.iter().map(|write| (write.object, write.key.clone())).collect();
        let done = place.store.stage(writes);
        changes.note_records(keys);
        done
    }

    fn publish(&self) -> Result<(), StoreError> {
        self.read(|store| {
            store.publish()?;
            self.is_staged.store(false, Ordering::Release);
            Ok(())
        })
    }

    fn maintain(&self) -> Result<bool, StoreError> {
        self.read(|store| store.maintain())
    }

    fn stream_create(&self, ino: Ino) -> Result<(), StoreError> {
        self.change(ino, attributes, |store| store.stream_create(ino))
    }

    fn stream_finalise(&self, ino: Ino) -> Result<(), StoreError> {
        self.change(ino, attributes, |store| store.stream_finalise(ino))
    }

    fn new_streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.read(|store| store.new_streams())
    }

    fn stream_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        self.read(|store| store.stream_read(ino, offset, buf))
    }

    fn stream_read_cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<(usize, bool), StoreError> {
        self.read(|store| store.stream_read_cached(ino, offset, buf))
    }

    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let change = |store: &dyn Store| written(store, ino, offset, data.len() as u64);
        self.change(ino, change, |store| store.stream_write(ino, offset, data))
    }

    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        self.read(|store| store.stream_stat(ino))
    }

    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        self.change(ino, everything, |store| store.stream_truncate(ino, size))
    }

    fn stream_allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError> {
        let change = |store: &dyn Store| written(store, ino, offset, length);
        self.change(ino, change, |store| store.stream_allocate(ino, offset, length, mode))
    }

    fn stream_seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError> {
        self.read(|store| store.stream_seek(ino, offset, what))
    }

    fn stream_copy(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, StoreError> {
        let change = |store: &dyn Store| written(store, to, to_offset, length);
        self.change(to, change, |store| store.stream_copy(from, from_offset, to, to_offset, length))
    }

    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        self.change(ino, attributes, |store| store.stream_set_mtime(ino, mtime))
    }

    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError> {
        self.read(|store| store.stream_sync(ino))
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.read(|store| store.sync_all())
    }

    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError> {
        self.change(ino, everything, |store| store.stream_remove(ino))
    }

    fn sync_new_streams(&self) -> Result<(), StoreError> {
        self.read(|store| store.sync_new_streams())
    }

    fn sync_removed_streams(&self) -> Result<(), StoreError> {
        self.read(|store| store.sync_removed_streams())
    }

    fn fence_clients(&self, clients: &[ClientId]) -> Result<(), StoreError> {
        self.read(|store| store.fence_clients(clients))
    }

    /// None while the store is being copied: its users' changes would not be noted.
    fn stream_file(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError> {
        let place = self.place();
        if place.changes.is_some() || place.is_undecided {
            return Ok(None);
        }
        place.store.stream_file(ino)
    }

    fn streams(&self) -> Result<Vec<Ino>, StoreError> {
        self.read(|store| store.streams())
    }

    fn space(&self) -> Result<Space, StoreError> {
        self.read(|store| store.space())
    }

    fn free_for_metadata(&self) -> Result<u64, StoreError> {
        self.read(|store| store.free_for_metadata())
    }

    fn pools(&self) -> Vec<StorePool> {
        self.place().store.pools()
    }
}
