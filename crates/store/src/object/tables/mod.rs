//! The records: one ordered map, divided by key ranges into *shards*, an object each.
//!
//! A record's key is an object id followed by a key of the object. Its value is preceded by a byte,
//! since objects store no empty values.
//!
//! A checkpoint that fits one compound write is applied with it. Any other is written to a redo
//! record first; the head then refers to the record, and the checkpoint is published. Its changes
//! are applied to the shards in any order, and the reference is removed. After a crash they are
//! staged, and applied before the next checkpoint begins: opening the tables does not wait for it.

mod cache;
mod redo;
mod split;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use espalier_proto::{ObjectId, TableWrite};

use cache::ReadCache;

use super::head::{Head, HeadChange, Redo, Shard};
use super::names::Names;
use super::{ObjectOptions, TablesVersion, wait_all};
use crate::StoreError;
use crate::engine::{Engine, EngineFailure, KEYS_MAX, KeyPage, ObjectOp, Pending, Version};
use crate::store::{Pairs, Record, RecordKey, Records};

const OBJECT_BYTES: usize = 13;
/// Precedes each value.
const PRESENT: u8 = 1;
/// Bytes of keys and values in one compound write; a single value may be larger.
const BATCH_BYTES: usize = 4 << 20;
/// Keys that a scan requests at once at most.
const SCAN_KEYS: usize = 4096;
/// Records that a lookup fetches.
const READ_AHEAD: usize = 16;

/// Changes by full key; `None` removes.
type Staged = BTreeMap<Vec<u8>, Option<Vec<u8>>>;
type StagedChange<'a> = (&'a Vec<u8>, &'a Option<Vec<u8>>);

pub(super) struct Tables<E> {
    engine: Arc<E>,
    names: Names,
    head: Head<E>,
    state: RwLock<TablesState>,
    /// Locked after `state`. Invalidated while that is locked for writing, so no read in progress
    /// brings back what was replaced.
    cache: Mutex<ReadCache>,
    /// Held by staging and publishing, so a checkpoint is never split.
    staging: Mutex<Staging>,
}

struct Staging {
    /// Number of the last redo record.
    last: u64,
    /// The redo record that the head referred to at the opening. Its changes are staged, and no
    /// others.
    unfinished: Option<Redo>,
    /// A complete redo record to which the head refers or not: its change has failed.
    unconfirmed: Option<Redo>,
}

struct TablesState {
    staged: Staged,
    shards: BTreeMap<Vec<u8>, Shard>,
    next_shard: u64,
}

impl TablesState {
    /// The shard of a key, and its first key.
    fn shard(&self, key: &[u8]) -> (&[u8], Shard) {
        let mut before = self.shards.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        // The first shard begins with the empty key.
        before.next_back().map_or((&[], Shard::default()), |(first, shard)| (first, *shard))
    }

    /// First key of the shard after the one that begins with `first`.
    fn successor(&self, first: &[u8]) -> Option<&[u8]> {
        let mut after = self.shards.range::<[u8], _>((Bound::Excluded(first), Bound::Unbounded));
        after.next().map(|(first, _)| first.as_slice())
    }
}

impl<E: Engine> Tables<E> {
    /// Makes empty, durable tables.
    pub fn create(engine: &E, names: Names) -> Result<(), StoreError> {
        Head::create(engine, names)
    }

    /// Opens the tables. A checkpoint that was published and not completely applied is staged.
    pub fn open(engine: &Arc<E>, names: Names, options: ObjectOptions) -> Result<Self, StoreError> {
        let ObjectOptions { read_only, cache_bytes } = options;
        let (head, found) = Head::open(engine, names, read_only)?;
        let staged = match found.redo {
            Some(record) => redo::read(engine.as_ref(), names, record)?,
            None => Staged::new(),
        };
        let state = TablesState { staged, shards: found.shards, next_shard: found.next_shard };
        let tables = Self {
            engine: Arc::clone(engine),
            names,
            head,
            state: RwLock::new(state),
            cache: Mutex::new(ReadCache::new(usize::try_from(cache_bytes).unwrap_or(usize::MAX))),
            staging: Mutex::new(Staging {
                last: found.redo.map_or(0, |record| record.checkpoint),
                unfinished: found.redo,
                unconfirmed: None,
            }),
        };
        if !read_only {
            for shard in found.untrimmed {
                tables.trim(shard)?;
            }
        }
        Ok(tables)
    }

    /// Reads the version that the tables have now.
    pub fn version(&self) -> Result<TablesVersion, StoreError> {
        let first = self.state().shard(&full_key(ObjectId::SUPER, b"")).1;
        let [head, first] =
            [self.names.head(), self.names.shard(first.id)].map(|name| self.engine.submit_read(&name, 0, 1));
        Ok(TablesVersion { head: head.wait()?.version, first: first.wait()?.version })
    }

    pub fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let key = full_key(object, key);
        let state = self.state();
        if let Some(staged) = state.staged.get(&key) {
            return Ok(staged.clone());
        }
        if let Some(known) = self.cache().get(&key) {
            return Ok(known);
        }
        let (first, shard) = state.shard(&key);
        let successor = state.successor(first);
        let found = self.shard_page(shard, b"", Bound::Included(&key), successor, READ_AHEAD)?;
        let value = found.pairs.first().filter(|(found, _)| *found == key).map(|(_, value)| value.clone());
        let last = found.pairs.last().filter(|_| found.more).map(|(last, _)| Bound::Included(last.clone()));
        let end =
            last.unwrap_or_else(|| successor.map_or(Bound::Unbounded, |end| Bound::Excluded(end.into())));
        self.cache().insert(key, end, found.pairs);
        Ok(value)
    }

    /// At most `limit` records of a shard whose keys start with `prefix`, from a key on and before
    /// `end`; with `more` if others may follow the last of them there.
    fn shard_page(
        &self,
        shard: Shard,
        prefix: &[u8],
        from: Bound<&[u8]>,
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        let name = self.names.shard(shard.id);
        let mut page =
            self.engine.page_of_prefix(&name, prefix, from, limit).map_err(|error| lost(&name, error))?;
        let total = page.pairs.len();
        // Keys of the successor may be left from an unfinished split.
        page.pairs.retain(|(key, _)| end.is_none_or(|end| key.as_slice() < end));
        page.more &= page.pairs.len() == total && total > 0;
        for (_, value) in &mut page.pairs {
            *value = plain(&name, std::mem::take(value))?;
        }
        Ok(page)
    }

    pub fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Pairs, StoreError> {
        let from = match from {
            Bound::Included(key) => Bound::Included(full_key(object, key)),
            Bound::Excluded(key) => Bound::Excluded(full_key(object, key)),
            Bound::Unbounded => Bound::Included(full_key(object, b"")),
        };
        let state = self.state();
        let prefix = full_key(object, b"");
        let mut found = self.range(&state, from, &prefix, end_of(object).as_deref(), limit)?;
        found.iter_mut().for_each(|(key, _)| drop(key.drain(..OBJECT_BYTES)));
        Ok(found)
    }

    /// At most `limit` records from a key on and before `end`, which all start with `prefix`. They
    /// include staged ones.
    fn range(
        &self,
        state: &TablesState,
        mut from: Bound<Vec<u8>>,
        prefix: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Pairs, StoreError> {
        let mut found = Vec::new();
        while found.len() < limit {
            let wanted = (limit - found.len()).min(SCAN_KEYS);
            let page = self.stored(state, &from, prefix, end, wanted)?;
            let last = page.pairs.last().filter(|_| page.more).map(|(key, _)| key.clone());
            let upto = match (&last, end) {
                (Some(last), _) => Bound::Included(last.as_slice()),
                (None, Some(end)) => Bound::Excluded(end),
                (None, None) => Bound::Unbounded,
            };
            merge(page.pairs, &state.staged, (from.as_ref().map(Vec::as_slice), upto), &mut found);
            match last {
                Some(last) => from = Bound::Excluded(last),
                None => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// The next stored records, of one shard, from a key on and before `end`, which all start with
    /// `prefix`; with `more` if others may follow the last of them. The prefix makes the store stop
    /// there: it would fill the page with the records that follow, the bytes of small files among
    /// them.
    fn stored(
        &self,
        state: &TablesState,
        from: &Bound<Vec<u8>>,
        prefix: &[u8],
        end: Option<&[u8]>,
        wanted: usize,
    ) -> Result<KeyPage, StoreError> {
        let (Bound::Included(key) | Bound::Excluded(key)) = from else { return Ok(KeyPage::default()) };
        let mut shard = state.shard(key);
        let mut begin = from.as_ref().map(Vec::as_slice);
        loop {
            let (first, place) = shard;
            let successor = state.successor(first).filter(|next| end.is_none_or(|end| *next < end));
            let mut page = self.shard_page(place, prefix, begin, successor.or(end), wanted)?;
            let Some(next) = successor else { return Ok(page) };
            if !page.pairs.is_empty() {
                page.more = true;
                return Ok(page);
            }
            shard = state.shard(next);
            begin = Bound::Included(next);
        }
    }

    pub fn records(&self) -> Records<'_> {
        let mut from = Some(Bound::Included(Vec::new()));
        let mut page = Vec::new().into_iter();
        Box::new(std::iter::from_fn(move || {
            if page.len() == 0 {
                let found = match self.range(&self.state(), from.take()?, b"", None, SCAN_KEYS) {
                    Ok(found) => found,
                    Err(error) => return Some(Err(error)),
                };
                from = found.last().map(|(key, _)| Bound::Excluded(key.clone()));
                page = found.into_iter();
            }
            page.next().map(|(key, value)| record(&key, value))
        }))
    }

    pub fn records_after(&self, after: Option<&RecordKey>, limit: usize) -> Result<Vec<Record>, StoreError> {
        let first = || Bound::Included(Vec::new());
        let from = after.map_or_else(first, |(object, key)| Bound::Excluded(full_key(*object, key)));
        let found = self.range(&self.state(), from, b"", None, limit)?;
        found.into_iter().map(|(key, value)| record(&key, value)).collect()
    }

    pub fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError> {
        let mut staging = self.staging();
        self.finish_last(&mut staging)?;
        let writes = writes.into_iter().map(|write| (full_key(write.object, &write.key), write.value));
        self.state_mut().staged.extend(writes);
        Ok(())
    }

    /// Applies the checkpoint that was not completely applied when the tables were opened.
    fn finish_last(&self, staging: &mut Staging) -> Result<(), StoreError> {
        if staging.unfinished.is_some() {
            self.finish(staging.unfinished)?;
            staging.unfinished = None;
        }
        Ok(())
    }

    pub fn publish(&self) -> Result<(), StoreError> {
        let mut staging = self.staging();
        self.finish_last(&mut staging)?;
        if self.state().staged.is_empty() {
            return Ok(());
        }
        // The slot of the record before must not be overwritten while the head may refer to it.
        self.refer_to(&mut staging)?;
        self.make_room()?;
        let record = match self.fits_one_write() {
            true => None,
            false => {
                let number = staging.last + 1;
                let record = redo::write(self.engine.as_ref(), self.names, number, &self.state().staged)?;
                (staging.last, staging.unconfirmed) = (number, Some(record));
                self.refer_to(&mut staging)?;
                Some(record)
            }
        };
        self.finish(record)
    }

    /// Makes the head refer to the redo record that was written last, unless it does.
    fn refer_to(&self, staging: &mut Staging) -> Result<(), StoreError> {
        if let Some(record) = staging.unconfirmed {
            let mut change = HeadChange::default();
            change.redo(record);
            self.head.change(change)?;
            staging.unconfirmed = None;
        }
        Ok(())
    }

    /// Applies the staged changes. `record`: the redo record that has them.
    fn finish(&self, record: Option<Redo>) -> Result<(), StoreError> {
        let state = self.state();
        let mut change = HeadChange::default();
        let mut pending = Vec::new();
        let mut grown = Vec::new();
        for (first, changes) in by_shard(&state) {
            let mut shard = state.shard(&first).1;
            for batch in divide(&changes).into_iter().map(Batch::of) {
                shard.keys += batch.set.len() as u64;
                shard.bytes += batch.bytes as u64;
                pending.push(batch.submit(self.engine.as_ref(), &self.names.shard(shard.id)));
            }
            change.shard(&first, shard);
            grown.push((first, shard));
        }
        wait_all(pending)?;
        drop(state);
        if record.is_some() {
            change.redone();
        }
        self.head.change(change)?;
        let mut state = self.state_mut();
        let mut cache = self.cache();
        std::mem::take(&mut state.staged).keys().for_each(|key| cache.invalidate(key));
        drop(cache);
        state.shards.extend(grown);
        drop(state);
        if let Some(record) = record {
            redo::remove(self.engine.as_ref(), self.names, record);
        }
        Ok(())
    }

    /// True if the checkpoint is one compound write to one shard.
    fn fits_one_write(&self) -> bool {
        let state = self.state();
        if state.staged.len() > KEYS_MAX {
            return false;
        }
        let shards = by_shard(&state);
        shards.len() == 1 && shards.iter().all(|(_, changes)| divide(changes).len() == 1)
    }

    fn state(&self) -> RwLockReadGuard<'_, TablesState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, TablesState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache(&self) -> MutexGuard<'_, ReadCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes of one shard that fit one compound write.
#[derive(Default)]
struct Batch {
    set: Pairs,
    remove: Vec<Vec<u8>>,
    bytes: usize,
}

impl Batch {
    fn of(changes: &[StagedChange<'_>]) -> Self {
        let mut batch = Self::default();
        for (key, value) in changes {
            batch.bytes += size_of_change(key, value);
            match value {
                Some(value) => batch.set.push(((*key).clone(), marked(value))),
                None => batch.remove.push((*key).clone()),
            }
        }
        batch
    }

    fn submit(self, engine: &impl Engine, shard: &str) -> Pending<Version> {
        engine.submit(shard, vec![ObjectOp::SetKeys(self.set), ObjectOp::RemoveKeys(self.remove)])
    }
}

fn size_of_change(key: &[u8], value: &Option<Vec<u8>>) -> usize {
    key.len() + value.as_ref().map_or(0, Vec::len)
}

/// The staged changes by shard, each with the shard's first key.
fn by_shard(state: &TablesState) -> Vec<(Vec<u8>, Vec<StagedChange<'_>>)> {
    let mut shards: Vec<(Vec<u8>, Vec<_>)> = Vec::new();
    let mut end: Option<&[u8]> = None;
    for change in &state.staged {
        let is_same = !shards.is_empty() && end.is_none_or(|end| change.0.as_slice() < end);
        match shards.last_mut().filter(|_| is_same) {
            Some((_, changes)) => changes.push(change),
            None => {
                let first = state.shard(change.0).0;
                end = state.successor(first);
                shards.push((first.to_vec(), vec![change]));
            }
        }
    }
    shards
}

/// Divides changes of one shard so that each part fits one compound write.
fn divide<'a, 'b>(mut changes: &'a [StagedChange<'b>]) -> Vec<&'a [StagedChange<'b>]> {
    let mut parts = Vec::new();
    while !changes.is_empty() {
        let mut bytes = 0;
        let fits = |(key, value): &&StagedChange<'_>| {
            bytes += size_of_change(key, value);
            bytes <= BATCH_BYTES
        };
        let count = changes.iter().take(KEYS_MAX).take_while(fits).count().max(1);
        let (part, rest) = changes.split_at(count);
        parts.push(part);
        changes = rest;
    }
    parts
}

/// Merges stored records with the staged changes of a range.
fn merge(stored: Pairs, staged: &Staged, range: (Bound<&[u8]>, Bound<&[u8]>), found: &mut Pairs) {
    let is_empty = match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
            from >= to
        }
        _ => false,
    };
    if is_empty {
        return;
    }
    let mut staged = staged.range::<[u8], _>(range).peekable();
    for (key, value) in stored {
        while let Some((new, change)) = staged.next_if(|(new, _)| **new < key) {
            found.extend(change.clone().map(|value| (new.clone(), value)));
        }
        match staged.next_if(|(new, _)| **new == key) {
            Some((_, change)) => found.extend(change.clone().map(|value| (key, value))),
            None => found.push((key, value)),
        }
    }
    for (new, change) in staged {
        found.extend(change.clone().map(|value| (new.clone(), value)));
    }
}

fn full_key(object: ObjectId, key: &[u8]) -> Vec<u8> {
    [&object.to_bytes(), key].concat()
}

/// The key after all keys of an object; `None` for the last object.
fn end_of(object: ObjectId) -> Option<Vec<u8>> {
    let mut end = object.to_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

fn marked(value: &[u8]) -> Vec<u8> {
    [&[PRESENT], value].concat()
}

/// A value as it was staged.
fn plain(shard: &str, mut value: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    if value.first() != Some(&PRESENT) {
        return Err(StoreError::corrupt(format!("the object {shard} has an invalid value")));
    }
    value.remove(0);
    Ok(value)
}

fn record(key: &[u8], value: Vec<u8>) -> Result<Record, StoreError> {
    let split = key.split_first_chunk().and_then(|(object, key)| Some((ObjectId::from_bytes(*object)?, key)));
    let (object, key) = split.ok_or_else(|| StoreError::corrupt("the tables have an invalid key"))?;
    Ok((object, key.to_vec(), value))
}

/// A shard exists until the store is removed.
fn lost(shard: &str, error: crate::EngineError) -> StoreError {
    match error.failure {
        EngineFailure::Missing => StoreError::corrupt(format!("the object {shard} is missing")),
        _ => error.into(),
    }
}
