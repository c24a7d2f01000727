//! The tables: a log-structured merge tree without a log of its own, for the journal is the log.
//!
//! `stage` fills the tree's memory table and `publish` writes that to disk, which `lsm-tree` does atomically. If a
//! publish fails, what is staged stays in memory and is part of the next one.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use espalier_proto::{ObjectId, ObjectKind, TableWrite};
use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, SeqNo, SequenceNumberCounter};

use crate::error::StoreError;
use crate::{Pair, Record};

const OBJECT_BYTES: usize = 13;
const CACHE_BYTES: u64 = 64 << 20;
const OPEN_FILES: usize = 256;
/// Of one file of the tree.
const TABLE_BYTES: u64 = 64 << 20;

pub(super) struct Tables {
    tree: AnyTree,
    seqno: SequenceNumberCounter,
    visible: SequenceNumberCounter,
    /// One flush or compaction at a time.
    upkeep: Mutex<()>,
}

impl Tables {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let (seqno, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let config = Config::new(path, seqno.clone(), visible.clone())
            .use_cache(Arc::new(Cache::with_capacity_bytes(CACHE_BYTES)))
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(OPEN_FILES))));
        let tree = guarded(|| config.open())?;
        let next = tree.get_highest_seqno().map_or(0, |seqno| seqno + 1);
        seqno.set(next);
        visible.set(next);
        Ok(Self { tree, seqno, visible, upkeep: Mutex::new(()) })
    }

    pub(super) fn get(&self, object: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = guarded(|| self.tree.get(full_key(object, key), SeqNo::MAX))?;
        Ok(value.map(|value| value.to_vec()))
    }

    pub(super) fn scan(&self, object: ObjectId, from: Bound<&[u8]>, limit: usize) -> Result<Vec<Pair>, StoreError> {
        let start = match from {
            Bound::Included(key) => Bound::Included(full_key(object, key)),
            Bound::Excluded(key) => Bound::Excluded(full_key(object, key)),
            Bound::Unbounded => Bound::Included(full_key(object, &[])),
        };
        let end = match next_object(object) {
            Some(next) => Bound::Excluded(next.to_vec()),
            None => Bound::Unbounded,
        };
        guarded(|| {
            let pairs = self.tree.range::<Vec<u8>, _>((start, end), SeqNo::MAX, None).take(limit);
            let pairs = pairs.map(|guard| {
                let (key, value) = guard.into_inner()?;
                Ok((key[OBJECT_BYTES..].to_vec(), value.to_vec()))
            });
            pairs.collect()
        })
    }

    pub(super) fn records(&self) -> impl Iterator<Item = Result<Record, StoreError>> + '_ {
        let mut pairs = self.tree.iter(SeqNo::MAX, None);
        let mut failed = false;
        std::iter::from_fn(move || {
            if failed {
                return None;
            }
            let next = guarded(|| pairs.next().map(|guard| guard.into_inner()).transpose());
            failed = next.is_err();
            next.map(|pair| pair.map(|(key, value)| Ok((parse_object(&key)?, key[OBJECT_BYTES..].to_vec(), value.to_vec()))))
                .map_or_else(|error| Some(Err(error)), |record| record)
        })
    }

    pub(super) fn stage(&self, writes: Vec<TableWrite>) {
        // Of several writes of one key the last must win, so each has a number of its own.
        for TableWrite { object, key, value } in writes {
            let seqno = self.seqno.next();
            let key = full_key(object, &key);
            match value {
                Some(value) => self.tree.insert(key, value, seqno),
                None => self.tree.remove(key, seqno),
            };
            self.visible.fetch_max(seqno + 1);
        }
    }

    pub(super) fn publish(&self) -> Result<(), StoreError> {
        let _upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        guarded(|| {
            let lock = self.tree.get_flush_lock();
            self.tree.rotate_memtable();
            self.tree.flush(&lock, self.seqno.get())
        })?;
        Ok(())
    }

    pub(super) fn maintain(&self) -> Result<bool, StoreError> {
        let _upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.tree.current_version().id();
        let strategy = Arc::new(Leveled::default().with_table_target_size(TABLE_BYTES));
        // No older versions are ever read, so all may go.
        guarded(|| self.tree.compact(strategy, self.seqno.get()))?;
        Ok(self.tree.current_version().id() != before)
    }
}

fn full_key(object: ObjectId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(OBJECT_BYTES + key.len());
    full.extend_from_slice(&object.to_bytes());
    full.extend_from_slice(key);
    full
}

/// The first key behind all keys of an object.
fn next_object(object: ObjectId) -> Option<[u8; OBJECT_BYTES]> {
    let mut bytes = object.to_bytes();
    let last = bytes.iter().rposition(|byte| *byte != u8::MAX)?;
    bytes[last] += 1;
    bytes[last + 1..].fill(0);
    Some(bytes)
}

fn parse_object(key: &[u8]) -> Result<ObjectId, StoreError> {
    let damaged = || StoreError::Corrupt { what: "a key of the tables is too short or of no known kind".into() };
    let (head, part) = (key.get(..9).ok_or_else(damaged)?, key.get(9..OBJECT_BYTES).ok_or_else(damaged)?);
    let kind = match head[0] {
        0 => ObjectKind::Super,
        1 => ObjectKind::Fragment,
        2 => ObjectKind::Inodes,
        3 => ObjectKind::Orphans,
        _ => return Err(damaged()),
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Ok(ObjectId { kind, id: number(&head[1..]), part: number(part) as u32 })
}

/// Damaged files can make the tree panic; to its user that is an error like any other.
fn guarded<T>(work: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(lsm_tree::Error::Io(source))) => Err(StoreError::Io { what: "read or write", path: "tables".into(), source }),
        Ok(Err(error)) => Err(StoreError::Corrupt { what: format!("the tables cannot be read back ({error:?})") }),
        Err(_) => Err(StoreError::Corrupt { what: "the tables cannot be understood".into() }),
    }
}
