//! Redo records: the changes of a checkpoint, before they are applied to several objects.
//!
//! Two slots of objects alternate, so a record that the head refers to is never overwritten.

use xxhash_rust::xxh3::Xxh3;

use super::Staged;
use crate::StoreError;
use crate::engine::{Engine, ObjectOp};
use crate::object::head::Redo;
use crate::object::names::Names;
use crate::object::{CHUNK_BYTES, wait_all};

/// Length that marks a removal.
const REMOVED: u32 = u32::MAX;

/// Writes a durable redo record.
pub fn write(
    engine: &impl Engine,
    names: Names,
    checkpoint: u64,
    staged: &Staged,
) -> Result<Redo, StoreError> {
    let mut record = Redo { checkpoint, parts: 0, checksum: 0 };
    let mut hash = Xxh3::with_seed(checkpoint);
    let (mut pending, mut part) = (Vec::new(), Vec::new());
    let mut changes = staged.iter().peekable();
    while let Some((key, value)) = changes.next() {
        part.extend((key.len() as u32).to_le_bytes());
        part.extend(value.as_ref().map_or(REMOVED, |value| value.len() as u32).to_le_bytes());
        part.extend(key);
        part.extend(value.iter().flatten());
        if part.len() as u64 >= CHUNK_BYTES || changes.peek().is_none() {
            hash.update(&part);
            let bytes = std::mem::take(&mut part);
            pending
                .push(engine.submit(&names.redo(checkpoint, record.parts), vec![ObjectOp::WriteFull(bytes)]));
            record.parts += 1;
        }
    }
    wait_all(pending)?;
    record.checksum = hash.digest();
    Ok(record)
}

/// Reads a redo record.
pub fn read(engine: &impl Engine, names: Names, record: Redo) -> Result<Staged, StoreError> {
    let damaged = || StoreError::corrupt("the redo record of the last checkpoint is damaged");
    let mut hash = Xxh3::with_seed(record.checkpoint);
    let mut staged = Staged::new();
    for part in 0..record.parts {
        let name = names.redo(record.checkpoint, part);
        // A part may exceed a chunk by one change.
        let size = engine.stat(&name).map_err(|_| damaged())?.size;
        let bytes = engine.read(&name, 0, usize::try_from(size).map_err(|_| damaged())?)?;
        hash.update(&bytes);
        parse(&bytes, &mut staged).ok_or_else(damaged)?;
    }
    if hash.digest() == record.checksum { Ok(staged) } else { Err(damaged()) }
}

fn parse(mut bytes: &[u8], staged: &mut Staged) -> Option<()> {
    let word = |bytes: &mut &[u8]| {
        let (word, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_le_bytes(*word))
    };
    while !bytes.is_empty() {
        let (key_length, value_length) = (word(&mut bytes)?, word(&mut bytes)?);
        let (key, rest) = bytes.split_at_checked(key_length as usize)?;
        let length = if value_length == REMOVED { 0 } else { value_length as usize };
        let (value, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        staged.insert(key.to_vec(), (value_length != REMOVED).then(|| value.to_vec()));
    }
    Some(())
}

/// Removes the parts of a record that the head does not refer to. Parts that stay are overwritten.
pub fn remove(engine: &impl Engine, names: Names, record: Redo) {
    for part in 0..record.parts {
        drop(engine.submit(&names.redo(record.checkpoint, part), vec![ObjectOp::Remove]));
    }
}
