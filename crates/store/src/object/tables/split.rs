//! Splitting of shards before they become too large for an object.
//!
//! The keys of the new shards are copied, the head then refers to them, and the old shard's copies
//! are removed. A crash before the change of the head leaves objects that the next split replaces;
//! one after it leaves keys that the next opening removes.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{Batch, Tables, TablesState, by_shard, lost};
use crate::StoreError;
use crate::engine::{Engine, EngineFailure, KEYS_MAX, ObjectOp};
use crate::object::head::{HeadChange, Shard};
use crate::object::wait_all;
use crate::store::Pairs;

/// Ceph warns at 200,000 keys or 1 GiB in an object.
const KEYS: u64 = 100_000;
const BYTES: u64 = 256 << 20;
/// Share of these that a shard has after a split.
const SPLIT: u64 = 2;

/// A shard with the changes that it is about to get.
struct Growing {
    first: Vec<u8>,
    shard: Shard,
    /// Size of each value that is set, by key.
    set: BTreeMap<Vec<u8>, u64>,
}

impl<E: Engine> Tables<E> {
    /// Splits the shards that the staged changes would make too large.
    pub(super) fn make_room(&self) -> Result<(), StoreError> {
        // Splitting locks the state for writing.
        let growing = growing(&self.state());
        growing.iter().try_for_each(|growing| self.split(growing))
    }

    /// Splits a shard, or finds that it has fewer keys than was assumed.
    fn split(&self, growing: &Growing) -> Result<(), StoreError> {
        let pieces = self.divide(growing)?;
        let mut next = self.state().next_shard;
        let mut change = HeadChange::default();
        let mut shards = Vec::new();
        for (first, mut shard) in pieces {
            if first == growing.first {
                shard.id = growing.shard.id;
            } else {
                shard.id = next;
                next += 1;
            }
            change.shard(&first, shard);
            shards.push((first, shard));
        }
        for (at, (first, shard)) in shards.iter().enumerate().skip(1) {
            let end = shards.get(at + 1).map(|(first, _)| first.as_slice());
            self.copy(growing, (first, end), *shard)?;
        }
        if shards.len() > 1 {
            change.next_shard(next);
            change.untrimmed(growing.shard.id);
        }
        self.head.change(change)?;
        let mut state = self.state_mut();
        let is_split = shards.len() > 1;
        state.next_shard = next;
        state.shards.extend(shards);
        drop(state);
        if is_split { self.trim(growing.shard.id) } else { Ok(()) }
    }

    /// First keys of the pieces of a shard, with the stored keys of each.
    fn divide(&self, growing: &Growing) -> Result<Vec<(Vec<u8>, Shard)>, StoreError> {
        let mut pieces = vec![(growing.first.clone(), Shard::default())];
        let (mut keys, mut bytes) = (0, 0);
        let mut add = |key: &[u8], size: u64, is_stored: bool| {
            if keys >= KEYS / SPLIT || bytes >= BYTES / SPLIT {
                (keys, bytes) = (0, 0);
                pieces.push((key.to_vec(), Shard::default()));
            }
            keys += 1;
            bytes += size;
            if let Some((_, shard)) = pieces.last_mut().filter(|_| is_stored) {
                shard.keys += 1;
                shard.bytes += size;
            }
        };
        let mut incoming = growing.set.iter().peekable();
        self.for_each_page(growing, Bound::Included(&growing.first), None, |stored| {
            for (key, value) in stored {
                while let Some((new, size)) = incoming.next_if(|(new, _)| **new < key) {
                    add(new, *size, false);
                }
                incoming.next_if(|(new, _)| **new == key);
                add(&key, (key.len() + value.len()) as u64, true);
            }
            Ok(())
        })?;
        incoming.for_each(|(new, size)| add(new, *size, false));
        Ok(pieces)
    }

    /// Copies the keys of a range to a new shard.
    fn copy(
        &self,
        growing: &Growing,
        (first, end): (&[u8], Option<&[u8]>),
        shard: Shard,
    ) -> Result<(), StoreError> {
        let name = self.names.shard(shard.id);
        // An earlier split may have been interrupted.
        match self.engine.apply(&name, vec![ObjectOp::Remove]) {
            Err(error) if !error.is(&EngineFailure::Missing) => return Err(error.into()),
            _ => {}
        }
        let mut pending = vec![self.engine.submit(&name, vec![ObjectOp::CreateExclusive])];
        if shard.keys > 0 {
            self.for_each_page(growing, Bound::Included(first), end, |stored| {
                let batch = Batch { set: stored, ..Batch::default() };
                pending.push(batch.submit(self.engine.as_ref(), &name));
                Ok(())
            })?;
        }
        wait_all(pending)
    }

    /// Removes the keys that the shard's successors have.
    pub(super) fn trim(&self, shard: u64) -> Result<(), StoreError> {
        let end = {
            let state = self.state();
            let first =
                state.shards.iter().find(|(_, found)| found.id == shard).map(|(first, _)| first.clone());
            first.and_then(|first| state.successor(&first).map(<[u8]>::to_vec))
        };
        let name = self.names.shard(shard);
        let mut from = end.map(Bound::Included);
        while let Some(begin) = from {
            let begin = begin.as_ref().map(Vec::as_slice);
            let page = self.engine.page(&name, begin, KEYS_MAX).map_err(|error| lost(&name, error))?;
            let keys: Vec<Vec<u8>> = page.pairs.into_iter().map(|(key, _)| key).collect();
            from = keys.last().filter(|_| page.more).map(|last| Bound::Excluded(last.clone()));
            if !keys.is_empty() {
                self.engine.apply(&name, vec![ObjectOp::RemoveKeys(keys)])?;
            }
        }
        let mut change = HeadChange::default();
        change.trimmed(shard);
        Ok(self.head.change(change)?)
    }

    /// Calls `visit` with the stored pairs of a shard from a key on, as they are stored.
    fn for_each_page(
        &self,
        growing: &Growing,
        from: Bound<&[u8]>,
        end: Option<&[u8]>,
        mut visit: impl FnMut(Pairs) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let successor = self.state().successor(&growing.first).map(<[u8]>::to_vec);
        let end = end.or(successor.as_deref());
        let name = self.names.shard(growing.shard.id);
        let mut from = from.map(<[u8]>::to_vec);
        loop {
            let begin = from.as_ref().map(Vec::as_slice);
            let mut page = self.engine.page(&name, begin, PAGE_KEYS).map_err(|error| lost(&name, error))?;
            let total = page.pairs.len();
            page.pairs.retain(|(key, _)| end.is_none_or(|end| key.as_slice() < end));
            let is_last = !page.more || page.pairs.len() < total;
            let last = page.pairs.last().map(|(key, _)| key.clone());
            if !page.pairs.is_empty() {
                visit(page.pairs)?;
            }
            match last.filter(|_| !is_last) {
                Some(last) => from = Bound::Excluded(last),
                None => return Ok(()),
            }
        }
    }
}

/// Keys that are copied with one write.
const PAGE_KEYS: usize = 1024;

/// The shards that the staged changes would make too large.
fn growing(state: &TablesState) -> Vec<Growing> {
    let mut growing = Vec::new();
    for (first, changes) in by_shard(state) {
        let shard = state.shard(&first).1;
        let set = changes
            .iter()
            .filter_map(|(key, value)| Some(((*key).clone(), (key.len() + value.as_ref()?.len()) as u64)));
        let set: BTreeMap<Vec<u8>, u64> = set.collect();
        let bytes: u64 = set.values().sum();
        if shard.keys + set.len() as u64 > KEYS || shard.bytes + bytes > BYTES {
            growing.push(Growing { first, shard, set });
        }
    }
    growing
}
