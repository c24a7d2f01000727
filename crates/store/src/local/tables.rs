use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use espalier_proto::{ObjectId, TableWrite};
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, InternalValue, SeqNo,
    SequenceNumberCounter, Table,
};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

use super::check;
use crate::StoreError;
use crate::error::Context;
use crate::store::{Pairs, Record, RecordKey, Records};

const OBJECT_BYTES: usize = 13;
const OPEN_TABLES: usize = 256;
/// Target size of a table in bytes; small, so that one compaction round is short.
const TABLE_BYTES: u64 = 16 << 20;
/// Number of tombstones that justifies rewriting the tables if they are a quarter of all records.
const TOMBSTONES: u64 = 1000;

/// The records: a log-structured merge tree without a log of its own. A tree key is an object id
/// followed by a key of the object.
///
/// The tree panics on some kinds of damage. This module converts these panics to
/// [`StoreError::Corrupt`].
pub(super) struct Tables {
    tree: AnyTree,
    seqno: SequenceNumberCounter,
    path: PathBuf,
    /// Held by staging and publishing, so a checkpoint is never split.
    staging: Mutex<()>,
    compacting: Mutex<()>,
    /// The disk has failed. A file may then seem written without being so; only reopening the store
    /// shows the truth.
    failed: AtomicBool,
    /// Temporary directory for the tree of a read-only store.
    _shadow: Option<TempDir>,
}

impl Tables {
    /// Makes an empty, durable tree.
    pub(super) fn create(path: &Path) -> Result<(), StoreError> {
        let (seqno, visible) = Default::default();
        guarded(path, || config(path, 0, seqno, visible).open())?;
        let parent = path.parent().unwrap_or(path);
        std::fs::File::open(parent).and_then(|dir| dir.sync_all()).context("sync", parent)
    }

    pub(super) fn open(path: PathBuf, read_only: bool, cache_bytes: u64) -> Result<Self, StoreError> {
        check::tables(&path)?;
        let shadow = if read_only { Some(shadow(&path)?) } else { None };
        if !read_only {
            remove_leftovers(&path)?;
        }
        let (seqno, visible) = <(SequenceNumberCounter, SequenceNumberCounter)>::default();
        let place = shadow.as_ref().map_or(path.as_path(), TempDir::path);
        let config = config(place, cache_bytes, seqno.clone(), visible.clone());
        let tree = guarded(&path, || config.open())?;
        let highest = guarded(&path, || Ok(tree.get_highest_persisted_seqno()))?;
        let next = highest.map_or(1, |highest| highest + 1);
        seqno.set(next);
        visible.set(next);
        let (staging, compacting, failed) = Default::default();
        Ok(Self { tree, seqno, path, staging, compacting, failed, _shadow: shadow })
    }

    pub(super) fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let key = full_key(object, key);
        let value = self.guarded(|| self.tree.get(&key, SeqNo::MAX))?;
        Ok(value.map(|value| value.to_vec()))
    }

    pub(super) fn scan(
        &self,
        object: ObjectId,
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Pairs, StoreError> {
        let from = match from {
            Bound::Included(key) => Bound::Included(full_key(object, key)),
            Bound::Excluded(key) => Bound::Excluded(full_key(object, key)),
            Bound::Unbounded => Bound::Included(full_key(object, b"")),
        };
        let range = (from, end_of(object));
        self.guarded(|| {
            let mut found = Vec::new();
            for pair in self.tree.range(range, SeqNo::MAX, None).take(limit) {
                let (key, value) = pair.into_inner()?;
                found.push((key[OBJECT_BYTES..].to_vec(), value.to_vec()));
            }
            Ok(found)
        })
    }

    pub(super) fn records(&self) -> Records<'_> {
        // Excludes publishing, so the tree version that the sequence number belongs to still
        // exists.
        let whole = lock(&self.staging);
        let pairs = self.guarded(|| Ok(self.tree.iter(self.seqno.get(), None)));
        drop(whole);
        let mut pairs = match pairs {
            Ok(pairs) => pairs,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let mut failed = false;
        Box::new(std::iter::from_fn(move || {
            if failed {
                return None;
            }
            let pair = self.guarded(|| pairs.next().map(Guard::into_inner).transpose());
            let record = pair.and_then(|pair| pair.map(|(key, value)| parse(&key, &value)).transpose());
            failed = record.is_err();
            record.transpose()
        }))
    }

    pub(super) fn records_after(
        &self,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |(object, key)| Bound::Excluded(full_key(*object, key)));
        let found = self.guarded(|| {
            let pairs = self.tree.range::<Vec<u8>, _>((from, Bound::Unbounded), SeqNo::MAX, None);
            pairs.take(limit).map(Guard::into_inner).collect::<lsm_tree::Result<Vec<_>>>()
        })?;
        found.into_iter().map(|(key, value)| parse(&key, &value)).collect()
    }

    pub(super) fn stage(&self, writes: Vec<TableWrite>) -> Result<(), StoreError> {
        let _whole = lock(&self.staging);
        self.guarded(|| {
            for TableWrite { object, key, value } in writes {
                let (key, seqno) = (full_key(object, &key), self.seqno.next());
                let _sizes = match value {
                    Some(value) => self.tree.insert(key, value, seqno),
                    None => self.tree.remove(key, seqno),
                };
            }
            Ok(())
        })
    }

    pub(super) fn publish(&self) -> Result<(), StoreError> {
        let _whole = lock(&self.staging);
        let flushed = self.written(&self.compacting, || {
            let flushing = self.tree.get_flush_lock();
            self.tree.rotate_memtable();
            // All memtables become one run of tables; the tree adds the run to its version
            // atomically.
            self.tree.flush(&flushing, self.seqno.get())
        });
        flushed.map(drop)
    }

    /// Adds a version of a record that was read from another tree.
    pub(super) fn restore(&self, value: InternalValue) {
        let (key, seqno) = (value.key.user_key, value.key.seqno);
        let _sizes = match value.key.value_type.is_tombstone() {
            true => self.tree.remove(key, seqno),
            false => self.tree.insert(key, value.value, seqno),
        };
    }

    /// Publishes the restored records. `next` is greater than all their sequence numbers.
    pub(super) fn publish_as_of(&self, next: SeqNo) -> Result<(), StoreError> {
        self.seqno.set(next);
        self.publish()
    }

    /// Ids of the tables in use.
    pub(super) fn ids(&self) -> Result<BTreeSet<u64>, StoreError> {
        self.guarded(|| Ok(self.tree.current_version().iter_tables().map(Table::id).collect()))
    }

    /// Reads every table completely and verifies its checksum.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        let tables: Vec<Table> =
            self.guarded(|| Ok(self.tree.current_version().iter_tables().cloned().collect()))?;
        for table in tables {
            let path = self.path.join(check::TABLES).join(table.id().to_string());
            // A table is at most a few times `TABLE_BYTES` long.
            let bytes = std::fs::read(&path).context("read", &path)?;
            if xxh3_128(&bytes) != table.checksum().into_u128() {
                return Err(StoreError::corrupt(format!("{} is damaged", path.display())));
            }
        }
        Ok(())
    }

    pub(super) fn maintain(&self) -> Result<bool, StoreError> {
        let _one = lock(&self.compacting);
        let strategy = Arc::new(Leveled::default().with_table_target_size(TABLE_BYTES));
        self.written(&self.staging, || {
            let before = self.tree.current_version().id();
            self.tree.compact(strategy, self.seqno.get())?;
            if self.tree.current_version().id() != before {
                return Ok(true);
            }
            // A level keeps tombstones until it is merged with the next one, which may never
            // happen.
            let removed = self.tree.tombstone_count();
            if removed > TOMBSTONES && removed * 4 > self.tree.approximate_len() as u64 {
                self.tree.major_compact(TABLE_BYTES, self.seqno.get())?;
            }
            Ok(false)
        })
    }

    /// Calls the tree to write tables. `other`: the lock of the other operation that writes tables.
    fn written<T>(
        &self,
        other: &Mutex<()>,
        write: impl FnOnce() -> lsm_tree::Result<T>,
    ) -> Result<T, StoreError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(StoreError::Failed { path: self.path.clone() });
        }
        let written = self.guarded(write);
        match &written {
            Err(StoreError::NoSpace { .. }) if !is_held(other) => self.remove_unused(),
            Err(StoreError::Io { .. }) => self.failed.store(true, Ordering::Release),
            _ => {}
        }
        written
    }

    /// Removes tables of failed writes, which may fill the disk. Tables that are being written look
    /// alike, so no writer may be active.
    fn remove_unused(&self) {
        let removed = self.guarded(|| {
            let version = self.tree.current_version();
            let used: HashSet<u64> = version.iter_tables().map(Table::id).collect();
            for entry in std::fs::read_dir(self.path.join(check::TABLES))? {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
                if id.is_some_and(|id| !used.contains(&id)) {
                    std::fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        });
        if let Err(error) = removed {
            tracing::warn!(%error, "unused tables remain until the store is reopened");
        }
    }

    fn guarded<T>(&self, body: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, StoreError> {
        guarded(&self.path, body)
    }
}

fn config(
    path: &Path,
    cache_bytes: u64,
    seqno: SequenceNumberCounter,
    visible: SequenceNumberCounter,
) -> Config {
    let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    Config::new(path, seqno, visible)
        .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
        .use_descriptor_table(Some(Arc::new(DescriptorTable::new(OPEN_TABLES))))
        .filter_policy(FilterPolicy::all(bloom))
}

/// Opening a tree deletes leftover files. A read-only open uses a directory of links to the tables
/// instead.
fn shadow(path: &Path) -> Result<TempDir, StoreError> {
    let shadow = TempDir::with_prefix("espalier-").context("make a directory in", &std::env::temp_dir())?;
    let (from, to) = (path.join(check::TABLES), shadow.path().join(check::TABLES));
    std::fs::create_dir(&to).context("create", &to)?;
    let absolute = from.canonicalize().context("find", &from)?;
    for entry in std::fs::read_dir(&from).context("read", &from)? {
        let name = entry.context("read", &from)?.file_name();
        std::os::unix::fs::symlink(absolute.join(&name), to.join(&name)).context("link", &to)?;
    }
    for entry in std::fs::read_dir(path).context("read", path)? {
        let name = entry.context("read", path)?.file_name();
        if name != check::TABLES {
            std::fs::copy(path.join(&name), shadow.path().join(&name)).context("copy", path)?;
        }
    }
    Ok(shadow)
}

/// Removes temporary files of a killed process; the tree removes the rest.
fn remove_leftovers(path: &Path) -> Result<(), StoreError> {
    for entry in std::fs::read_dir(path).context("read", path)? {
        let entry = entry.context("read", path)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".tmp") {
            std::fs::remove_file(entry.path()).context("remove", &entry.path())?;
        }
    }
    Ok(())
}

/// Calls the tree and converts panics to errors.
pub(super) fn guarded<T>(path: &Path, body: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, StoreError> {
    // A panic leaves poisoned locks in the tree, which panic again, so a half-changed tree is never
    // used.
    let outcome = catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        StoreError::corrupt(format!("the tables in {} cannot be used: {text}", path.display()))
    })?;
    outcome.map_err(|error| match error {
        lsm_tree::Error::Io(cause) if cause.raw_os_error().is_some() => {
            StoreError::io("use the tables in", path, cause)
        }
        error => StoreError::corrupt(format!("the tables in {}: {error}", path.display())),
    })
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if another thread holds `mutex`. The caller holds the other of the two locks.
fn is_held(mutex: &Mutex<()>) -> bool {
    matches!(mutex.try_lock(), Err(TryLockError::WouldBlock))
}

fn full_key(object: ObjectId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(OBJECT_BYTES + key.len());
    full.extend(object.to_bytes());
    full.extend(key);
    full
}

/// Exclusive upper bound of an object's keys.
fn end_of(object: ObjectId) -> Bound<Vec<u8>> {
    let mut end = object.to_bytes().to_vec();
    // The id is a big-endian number of fixed size: the bound is the next id.
    for byte in end.iter_mut().rev() {
        let (sum, overflow) = byte.overflowing_add(1);
        *byte = sum;
        if !overflow {
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

fn parse(key: &[u8], value: &[u8]) -> Result<Record, StoreError> {
    let unknown = || StoreError::corrupt(format!("a record has the key {}", key.escape_ascii()));
    let (object, key) = key.split_first_chunk::<OBJECT_BYTES>().ok_or_else(unknown)?;
    let object = ObjectId::from_bytes(*object).ok_or_else(unknown)?;
    Ok((object, key.to_vec(), value.to_vec()))
}
