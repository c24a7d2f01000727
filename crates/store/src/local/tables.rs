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
use crate::store::{Pairs, Record, Records};

const OBJECT_BYTES: usize = 13;
const OPEN_TABLES: usize = 256;
/// Small, so that one round of compaction is short.
const TABLE_BYTES: u64 = 16 << 20;
/// Removed records that are worth rewriting the tables for, if they are a fourth of all.
const TOMBSTONES: u64 = 1000;

/// The records: a log-structured merge tree without a log of its own. Keys are an object's id and a key of the object.
///
/// The tree panics on some damage. No panic leaves this module: it becomes [`StoreError::Corrupt`].
pub(super) struct Tables {
    tree: AnyTree,
    seqno: SequenceNumberCounter,
    path: PathBuf,
    /// Held while something is staged or published, so that a checkpoint is never cut in two.
    staging: Mutex<()>,
    compacting: Mutex<()>,
    /// Set when the disk has failed. A file may then look written that is not, and only opening the store again tells.
    failed: AtomicBool,
    /// Where the tree of a store open for reading only works.
    _shadow: Option<TempDir>,
}

impl Tables {
    /// Makes an empty tree, durable.
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
        // Nothing is published meanwhile, so the version of the tree that the number belongs to is still there.
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
            // All memtables become one run of tables, which the tree adds to its version atomically.
            self.tree.flush(&flushing, self.seqno.get())
        });
        flushed.map(drop)
    }

    /// Adds a version of a record as another tree had it.
    pub(super) fn restore(&self, value: InternalValue) {
        let (key, seqno) = (value.key.user_key, value.key.seqno);
        let _sizes = match value.key.value_type.is_tombstone() {
            true => self.tree.remove(key, seqno),
            false => self.tree.insert(key, value.value, seqno),
        };
    }

    /// Makes what was restored durable. `next`: more than any number among that.
    pub(super) fn publish_as_of(&self, next: SeqNo) -> Result<(), StoreError> {
        self.seqno.set(next);
        self.publish()
    }

    /// The tables in use.
    pub(super) fn ids(&self) -> Result<BTreeSet<u64>, StoreError> {
        self.guarded(|| Ok(self.tree.current_version().iter_tables().map(Table::id).collect()))
    }

    /// Reads every table whole, and compares it with its checksum.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        let tables: Vec<Table> =
            self.guarded(|| Ok(self.tree.current_version().iter_tables().cloned().collect()))?;
        for table in tables {
            let path = self.path.join(check::TABLES).join(table.id().to_string());
            // A table has a few times `TABLE_BYTES` at most.
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
            // Levels hold on to what was removed until they are merged with the next, which may never come.
            let removed = self.tree.tombstone_count();
            if removed > TOMBSTONES && removed * 4 > self.tree.approximate_len() as u64 {
                self.tree.major_compact(TABLE_BYTES, self.seqno.get())?;
            }
            Ok(false)
        })
    }

    /// Writes tables. `other`: what others hold who write some.
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

    /// Removes tables that were written in vain, for the disk may be full of them. Those that are just being written look
    /// the same, so this is for when nobody writes any.
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
            tracing::warn!(%error, "unused tables stay until the store is opened again");
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

/// Opening a tree removes what is left over in its directory. To write nothing, open one whose tables are links.
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

/// Removes temporary files of a process that was killed; the tree removes all else.
fn remove_leftovers(path: &Path) -> Result<(), StoreError> {
    for entry in std::fs::read_dir(path).context("read", path)? {
        let entry = entry.context("read", path)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".tmp") {
            std::fs::remove_file(entry.path()).context("remove", &entry.path())?;
        }
    }
    Ok(())
}

/// Calls the tree.
pub(super) fn guarded<T>(path: &Path, body: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, StoreError> {
    // What a panic leaves behind in the tree are poisoned locks, which panic again: it is never used half changed.
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

/// Whether another thread has it now. The caller has the other of the two.
fn is_held(mutex: &Mutex<()>) -> bool {
    matches!(mutex.try_lock(), Err(TryLockError::WouldBlock))
}

fn full_key(object: ObjectId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(OBJECT_BYTES + key.len());
    full.extend(object.to_bytes());
    full.extend(key);
    full
}

/// What no key of the object reaches.
fn end_of(object: ObjectId) -> Bound<Vec<u8>> {
    let mut end = object.to_bytes().to_vec();
    // The id is a number of fixed size, big endian: one more is the next id.
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
