//! The head of a rank's tables: the shard map, and the redo record of an unfinished checkpoint.
//!
//! All changes are compound writes to one object, each conditional on the *epoch*: the number of
//! openings for writing. A process that another one has replaced therefore changes nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::names::Names;
use crate::StoreError;
use crate::engine::{Engine, EngineError, EngineFailure, KEYS_MAX, ObjectOp};

const EPOCH: &[u8] = b"epoch";
const REDO: &[u8] = b"redo";
const NEXT_SHARD: &[u8] = b"next";
/// First byte of the key of a shard: its first key follows.
const SHARD: u8 = b's';
/// First byte of the key of a shard that may have keys of its successor: its number follows.
const UNTRIMMED: u8 = b'u';

/// A range of the records, in one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shard {
    pub id: u64,
    /// Upper bounds of the number of keys, and of their bytes with those of the values.
    pub keys: u64,
    pub bytes: u64,
}

/// A complete redo record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redo {
    pub checkpoint: u64,
    pub parts: u32,
    pub checksum: u64,
}

/// The head as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeadState {
    pub epoch: u64,
    /// By first key. The first shard's is empty.
    pub shards: BTreeMap<Vec<u8>, Shard>,
    pub next_shard: u64,
    pub redo: Option<Redo>,
    /// First keys of shards that may have keys of their successors.
    pub untrimmed: Vec<u64>,
}

/// A change of the head.
#[derive(Default)]
pub(super) struct HeadChange {
    set: Vec<(Vec<u8>, Vec<u8>)>,
    remove: Vec<Vec<u8>>,
}

impl HeadChange {
    pub fn shard(&mut self, first: &[u8], shard: Shard) {
        let value = numbers(&[shard.id, shard.keys, shard.bytes]);
        self.set.push(([&[SHARD], first].concat(), value));
    }

    pub fn next_shard(&mut self, next: u64) {
        self.set.push((NEXT_SHARD.to_vec(), numbers(&[next])));
    }

    pub fn redo(&mut self, redo: Redo) {
        let Redo { checkpoint, parts, checksum } = redo;
        self.set.push((REDO.to_vec(), numbers(&[checkpoint, parts.into(), checksum])));
    }

    pub fn redone(&mut self) {
        self.remove.push(REDO.to_vec());
    }

    pub fn untrimmed(&mut self, shard: u64) {
        self.set.push((untrimmed(shard), vec![1]));
    }

    pub fn trimmed(&mut self, shard: u64) {
        self.remove.push(untrimmed(shard));
    }
}

pub(super) struct Head<E> {
    engine: Arc<E>,
    object: String,
    epoch: u64,
}

impl<E: Engine> Head<E> {
    /// Makes the head of empty tables with one shard.
    pub fn create(engine: &E, names: Names) -> Result<(), StoreError> {
        let mut change = HeadChange::default();
        change.shard(b"", Shard::default());
        change.next_shard(1);
        change.set.push((EPOCH.to_vec(), numbers(&[0])));
        let ops = vec![ObjectOp::CreateExclusive, ObjectOp::SetKeys(change.set)];
        engine.apply(&names.shard(0), vec![ObjectOp::CreateExclusive])?;
        engine.apply(&names.head(), ops)?;
        Ok(())
    }

    /// Reads the head. A writer begins an epoch.
    pub fn open(engine: &Arc<E>, names: Names, read_only: bool) -> Result<(Self, HeadState), StoreError> {
        let mut state = read(engine.as_ref(), &names.head())?;
        if !read_only {
            let next = numbers(&[state.epoch + 1]);
            let ops = vec![compare(state.epoch), ObjectOp::SetKeys(vec![(EPOCH.to_vec(), next)])];
            engine.apply(&names.head(), ops)?;
            state.epoch += 1;
        }
        Ok((Self { engine: Arc::clone(engine), object: names.head(), epoch: state.epoch }, state))
    }

    /// Changes the head atomically.
    pub fn change(&self, change: HeadChange) -> Result<(), EngineError> {
        let HeadChange { set, remove } = change;
        let ops = vec![compare(self.epoch), ObjectOp::SetKeys(set), ObjectOp::RemoveKeys(remove)];
        self.engine.apply(&self.object, ops).map(drop)
    }
}

fn compare(epoch: u64) -> ObjectOp {
    ObjectOp::Compare { key: EPOCH.to_vec(), value: numbers(&[epoch]) }
}

fn read(engine: &impl Engine, object: &str) -> Result<HeadState, StoreError> {
    let mut state = HeadState::default();
    let mut from = Bound::Unbounded;
    let (mut has_epoch, mut more) = (false, true);
    while more {
        let page = match engine.page(object, from.as_ref().map(Vec::as_slice), KEYS_MAX) {
            Err(error) if error.is(&EngineFailure::Missing) => {
                return Err(StoreError::corrupt(format!("the object {object} is missing")));
            }
            outcome => outcome?,
        };
        from = page.pairs.last().map_or(Bound::Unbounded, |(key, _)| Bound::Excluded(key.clone()));
        more = page.more && from != Bound::Unbounded;
        for (key, value) in page.pairs {
            has_epoch |= key == EPOCH;
            let damaged = || StoreError::corrupt(format!("the object {object} has an invalid entry"));
            state.set(&key, &value).ok_or_else(damaged)?;
        }
    }
    if !has_epoch || !state.shards.contains_key(&b""[..]) {
        return Err(StoreError::corrupt(format!("the object {object} is incomplete")));
    }
    Ok(state)
}

impl HeadState {
    /// Takes one entry; `None` if it is invalid.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            EPOCH => [self.epoch] = parse(value)?,
            NEXT_SHARD => [self.next_shard] = parse(value)?,
            REDO => {
                let [checkpoint, parts, checksum] = parse(value)?;
                let parts = parts.try_into().ok()?;
                self.redo = Some(Redo { checkpoint, parts, checksum });
            }
            [SHARD, first @ ..] => {
                let [id, keys, bytes] = parse(value)?;
                self.shards.insert(first.to_vec(), Shard { id, keys, bytes });
            }
            [UNTRIMMED, shard @ ..] => {
                let [shard] = parse(shard)?;
                self.untrimmed.push(shard);
            }
            _ => return None,
        }
        Some(())
    }
}

fn untrimmed(shard: u64) -> Vec<u8> {
    [&[UNTRIMMED][..], &numbers(&[shard])].concat()
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn parse<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let numbers: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if rest.is_empty() { numbers.try_into().ok() } else { None }
}
