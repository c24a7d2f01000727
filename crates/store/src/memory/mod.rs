//! A store in memory, for tests and the simulator.

mod stream;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use espalier_proto::{
    AllocateMode, END, Errno, Ino, ObjectId, SeekWhat, Space, StreamStat, TableWrite, Time,
};

use crate::store::{Pairs, Record, RecordKey, Records, Store};
use crate::{MigrationState, StoreError};
use stream::StreamBytes;

const TOTAL_BYTES: u64 = 1 << 40;

/// A store in memory that can lose power.
///
/// It has no clock: changes of streams are stamped with the time last given to [`Self::set_now`].
#[derive(Default)]
pub struct MemoryStore(Mutex<MemoryState>);

#[derive(Clone, Default)]
struct MemoryState {
    published: BTreeMap<RecordKey, Vec<u8>>,
    staged: BTreeMap<RecordKey, Option<Vec<u8>>>,
    streams: BTreeMap<Ino, MemoryStream>,
    now: Time,
    full: bool,
    /// Number of changes that still succeed; `None`: none fails.
    left: Option<u64>,
    migration: MigrationState,
}

#[derive(Clone, Default)]
struct MemoryStream {
    live: StreamBytes,
    /// Contents at the last sync; `None`: the stream's existence is not durable.
    durable: Option<StreamBytes>,
    new: bool,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// The store after a power failure: without unpublished changes, each stream as last synced.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut state = self.state().clone();
        state.staged.clear();
        (state.full, state.left) = (false, None);
        state.streams.retain(|_, stream| match &stream.durable {
            Some(durable) => {
                stream.live = durable.clone();
                true
            }
            None => false,
        });
        Self(Mutex::new(state))
    }

    /// The store after a crash of the process: without unpublished changes.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let mut state = self.state().clone();
        state.staged.clear();
        state.left = None;
        Self(Mutex::new(state))
    }

    /// Sets the time of later changes.
    pub fn set_now(&self, now: Time) {
        self.state().now = now;
    }

    /// Makes all later allocations fail with `NoSpace`, or succeed again.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// After `changes` more, all changes fail; `None`: none fails.
    pub fn fail_after(&self, changes: Option<u64>) {
        self.state().left = changes;
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for one change.
    fn changed_state(&self) -> Result<MutexGuard<'_, MemoryState>, StoreError> {
        let mut state = self.state();
        match &mut state.left {
            Some(0) => Err(StoreError::Io {
                operation: "change",
                path: "memory".into(),
                cause: io::Error::other("the store in memory fails"),
            }),
            left => {
                *left = left.map(|left| left - 1);
                Ok(state)
            }
        }
    }

    fn change<T>(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut StreamBytes) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.changed_state()?;
        state.check_space()?;
        let now = state.now;
        let stream = state.streams.entry(ino).or_default();
        let done = change(&mut stream.live)?;
        stream.live.mtime = now;
        Ok(done)
    }
}

impl MemoryState {
    fn check_space(&self) -> Result<(), StoreError> {
        if self.full { Err(StoreError::NoSpace { path: "memory".into() }) } else { Ok(()) }
    }

    /// At most `limit` records from a key on, staged ones included; of one object, or of all.
    fn range(&self, from: Bound<RecordKey>, of: Option<ObjectId>, limit: usize) -> Vec<(RecordKey, Vec<u8>)> {
        let wanted = |key: &RecordKey| of.is_none_or(|object| key.0 == object);
        let range = (from, Bound::Unbounded);
        let mut published = self.published.range(range.clone()).take_while(|(key, _)| wanted(key)).peekable();
        let mut staged = self.staged.range(range).take_while(|(key, _)| wanted(key)).peekable();
        let mut found = Vec::new();
        while found.len() < limit {
            let take_staged = match (published.peek(), staged.peek()) {
                (None, None) => break,
                (Some((old, _)), Some((new, _))) => {
                    let take_staged = new <= old;
                    if new == old {
                        published.next();
                    }
                    take_staged
                }
                (None, Some(_)) => true,
                (Some(_), None) => false,
            };
            if take_staged {
                let changed = staged.next().and_then(|(key, value)| Some((key.clone(), value.clone()?)));
                found.extend(changed);
            } else {
                found.extend(published.next().map(|(key, value)| (key.clone(), value.clone())));
            }
        }
        found
    }

    fn stream(&self, ino: Ino) -> Option<&StreamBytes> {
        self.streams.get(&ino).map(|stream| &stream.live)
    }
}

impl Store for MemoryStore {
    fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let (state, key) = (self.state(), (object, key.to_vec()));
        Ok(match state.staged.get(&key) {
            Some(staged) => staged.clone(),
            None => state.published.get(&key).cloned(),
        })
    }

    fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Pairs, StoreError> {
        let from = match from {
            Bound::Unbounded => Bound::Included((object, Vec::new())),
            from => from.map(|key| (object, key.to_vec())),
        };
        let found = self.state().range(from, Some(object), limit);
        Ok(found.into_iter().map(|((_, key), value)| (key, value)).collect())
    }

    fn records(&self) -> Records<'_> {
        let found = self.state().range(Bound::Unbounded, None, usize::MAX);
        Box::new(found.into_iter().map(|((object, key), value)| Ok((object, key, value))))
    }

    fn records_after(&self, after: Option<&RecordKey>, limit: usize) -> Result<Vec<Record>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        let found = self.state().range(from, None, limit);
        Ok(found.into_iter().map(|((object, key), value)| (object, key, value)).collect())
    }

    fn migration(&self) -> Result<MigrationState, StoreError> {
        Ok(self.state().migration.clone())
    }

    fn set_migration(&self, migration: MigrationState) -> Result<(), StoreError> {
        self.changed_state()?.migration = migration;
        Ok(())
    }

    fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError> {
        let writes = writes.into_iter().map(|TableWrite { object, key, value }| ((object, key), value));
        self.changed_state()?.staged.extend(writes);
        Ok(())
    }

    fn publish(&self) -> Result<(), StoreError> {
        let mut state = self.changed_state()?;
        state.check_space()?;
        for (key, value) in std::mem::take(&mut state.staged) {
            match value {
                Some(value) => state.published.insert(key, value),
                None => state.published.remove(&key),
            };
        }
        Ok(())
    }

    fn maintain(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn stream_create(&self, ino: Ino) -> Result<(), StoreError> {
        let found = self.state().streams.contains_key(&ino);
        self.change(ino, |_| Ok(()))?;
        if !found && let Some(stream) = self.state().streams.get_mut(&ino) {
            stream.new = true;
        }
        Ok(())
    }

    fn stream_finalise(&self, ino: Ino) -> Result<(), StoreError> {
        if let Some(stream) = self.changed_state()?.streams.get_mut(&ino)
            && std::mem::take(&mut stream.new)
        {
            // The stream's existence becomes durable, its bytes do not.
            stream.durable.get_or_insert_default();
        }
        Ok(())
    }

    fn new_streams(&self) -> Result<Vec<Ino>, StoreError> {
        Ok(self.state().streams.iter().filter(|(_, stream)| stream.new).map(|(&ino, _)| ino).collect())
    }

    fn stream_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        Ok(self.state().stream(ino).map_or(0, |bytes| bytes.read(offset, buf)))
    }

    fn stream_read_cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<(usize, bool), StoreError> {
        Ok((self.stream_read(ino, offset, buf)?, true))
    }

    fn stream_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.change(ino, |bytes| bytes.write(if offset == END { bytes.stat().size } else { offset }, data))
    }

    fn stream_stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        Ok(self.state().stream(ino).map(StreamBytes::stat).unwrap_or_default())
    }

    fn stream_truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        self.change(ino, |bytes| bytes.truncate(size))
    }

    fn stream_allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError> {
        self.change(ino, |bytes| bytes.allocate(offset, length, mode))
    }

    fn stream_seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError> {
        Ok(self.state().stream(ino).and_then(|bytes| bytes.seek(offset, what)))
    }

    fn stream_copy(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, StoreError> {
        let size = self.stream_stat(from)?.size;
        let length = length.min(size.saturating_sub(from_offset));
        if from == to && from_offset.abs_diff(to_offset) < length {
            return Err(StoreError::Refused(Errno::EINVAL));
        }
        let mut buf = vec![0; length as usize];
        let read = self.stream_read(from, from_offset, &mut buf)?;
        if read > 0 {
            self.stream_write(to, to_offset, &buf[..read])?;
        }
        Ok(read as u64)
    }

    fn stream_set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        self.change(ino, |_| Ok(()))?;
        if let Some(stream) = self.state().streams.get_mut(&ino) {
            stream.live.mtime = mtime;
        }
        Ok(())
    }

    fn stream_sync(&self, ino: Ino) -> Result<(), StoreError> {
        if let Some(stream) = self.changed_state()?.streams.get_mut(&ino) {
            stream.durable = Some(stream.live.clone());
        }
        Ok(())
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        for stream in self.changed_state()?.streams.values_mut() {
            stream.durable = Some(stream.live.clone());
        }
        Ok(())
    }

    fn stream_remove(&self, ino: Ino) -> Result<(), StoreError> {
        self.changed_state()?.streams.remove(&ino);
        Ok(())
    }

    fn sync_new_streams(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn sync_removed_streams(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn stream_file(&self, _: Ino) -> Result<Option<Arc<File>>, StoreError> {
        Ok(None)
    }

    fn streams(&self) -> Result<Vec<Ino>, StoreError> {
        Ok(self.state().streams.keys().copied().collect())
    }

    fn space(&self) -> Result<Space, StoreError> {
        let state = self.state();
        let used: u64 = state.streams.values().map(|stream| stream.live.stat().blocks * 512).sum();
        let free = if state.full { 0 } else { TOTAL_BYTES.saturating_sub(used) };
        Ok(Space { total: TOTAL_BYTES, free, available: free, files: 0, files_free: 0 })
    }
}
