//! Makes records and streams of a copy equal to those of a store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use espalier_proto::{Ino, SeekWhat, TableWrite};

use super::changes::{CHUNK_BYTES, StreamChange};
use crate::StoreError;
use crate::store::{Record, RecordKey, Store};

/// Records that are read at a time: at most 32 MiB.
pub(super) const BATCH: usize = 512;
/// Unit in which bytes are compared. Units of zeros become holes.
const BLOCK_BYTES: usize = 4096;

pub(super) fn key_of(record: &Record) -> RecordKey {
    (record.0, record.1.clone())
}

pub(super) fn size_of(record: &Record) -> u64 {
    (record.1.len() + record.2.len()) as u64
}

/// The changes that make the copy's records after one key and up to another equal to `records`,
/// which are all that the store has there.
pub(super) fn differences(
    records: Vec<Record>,
    copy: &dyn Store,
    after: Option<&RecordKey>,
    end: Option<&RecordKey>,
) -> Result<Vec<TableWrite>, StoreError> {
    let mut changes: BTreeMap<RecordKey, Option<Vec<u8>>> =
        records.into_iter().map(|(object, key, value)| ((object, key), Some(value))).collect();
    let mut after = after.cloned();
    loop {
        let found = copy.records_after(after.as_ref(), BATCH)?;
        let is_last = found.len() < BATCH;
        after = found.last().map(key_of);
        for (object, key, value) in found {
            let key = (object, key);
            if end.is_some_and(|end| key > *end) {
                return Ok(changes.into_iter().map(write).collect());
            }
            match changes.get(&key) {
                Some(Some(wanted)) if *wanted == value => drop(changes.remove(&key)),
                Some(_) => {}
                None => drop(changes.insert(key, None)),
            }
        }
        if is_last {
            return Ok(changes.into_iter().map(write).collect());
        }
    }
}

pub(super) fn write((key, value): (RecordKey, Option<Vec<u8>>)) -> TableWrite {
    TableWrite { object: key.0, key: key.1, value }
}

/// Copies a stream, or the part of it that has changed, where the copy differs. `provisional`: the
/// provisional streams of the store. `progress` gets the bytes that were compared. Returns the part
/// that is equal in both.
pub(super) fn copy_stream(
    (store, copy): (&dyn Store, &dyn Store),
    ino: Ino,
    change: &StreamChange,
    provisional: &BTreeSet<Ino>,
    mut progress: impl FnMut(u64) -> Result<(), StoreError>,
) -> Result<StreamChange, StoreError> {
    let mut part = change.clone();
    let (stat, mut there) = (store.stream_stat(ino)?, copy.stream_stat(ino)?);
    let is_provisional = provisional.contains(&ino);
    // A final stream cannot become provisional.
    let is_outdated = there.exists && is_provisional && !copy.new_streams()?.contains(&ino);
    if there.exists && (!stat.exists || is_outdated) {
        copy.stream_remove(ino)?;
        there = Default::default();
    }
    if !stat.exists {
        return Ok(part);
    }
    if !there.exists {
        copy.stream_create(ino)?;
    }
    if there.size != stat.size {
        copy.stream_truncate(ino, stat.size)?;
    }
    if there.size < stat.size {
        part.merge(StreamChange::tail(there.size));
    }
    let (mut new, mut old) = (vec![0; CHUNK_BYTES as usize], vec![0; CHUNK_BYTES as usize]);
    let mut offset = part.next(0);
    while offset < stat.size {
        let data = next_data((store, copy), ino, offset)?.unwrap_or(stat.size);
        if data > offset {
            progress(data - offset)?;
            offset = part.next(data);
            continue;
        }
        let length = (stat.size - offset).min(CHUNK_BYTES) as usize;
        read(store, ino, offset, &mut new[..length])?;
        read(copy, ino, offset, &mut old[..length])?;
        for Range { start, end } in differing(&new[..length], &old[..length]) {
            copy.stream_write(ino, offset + start as u64, &new[start..end])?;
        }
        progress(length as u64)?;
        offset = part.next(offset + length as u64);
    }
    copy.stream_set_mtime(ino, stat.mtime)?;
    if !is_provisional {
        copy.stream_finalise(ino)?;
    }
    Ok(part)
}

/// True if the copy of a stream has the same size and time, and in this part the same bytes.
pub(super) fn is_equal(
    (store, copy): (&dyn Store, &dyn Store),
    ino: Ino,
    part: &StreamChange,
    progress: impl FnMut(u64) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let (stat, there) = (store.stream_stat(ino)?, copy.stream_stat(ino)?);
    let have_equal_size = (stat.exists, stat.size, stat.mtime) == (there.exists, there.size, there.mtime);
    Ok(have_equal_size && different_chunk((store, copy), ino, part, progress)?.is_none())
}

/// Offset of the first chunk of a part of a stream in which the copy has other bytes.
pub(super) fn different_chunk(
    (store, copy): (&dyn Store, &dyn Store),
    ino: Ino,
    part: &StreamChange,
    mut progress: impl FnMut(u64) -> Result<(), StoreError>,
) -> Result<Option<u64>, StoreError> {
    let size = store.stream_stat(ino)?.size;
    let (mut new, mut old) = (vec![0; CHUNK_BYTES as usize], vec![0; CHUNK_BYTES as usize]);
    let mut offset = part.next(0);
    while offset < size {
        let data = next_data((store, copy), ino, offset)?.unwrap_or(size);
        if data > offset {
            progress(data - offset)?;
            offset = part.next(data);
            continue;
        }
        let length = (size - offset).min(CHUNK_BYTES) as usize;
        read(store, ino, offset, &mut new[..length])?;
        read(copy, ino, offset, &mut old[..length])?;
        if new[..length] != old[..length] {
            return Ok(Some(offset));
        }
        progress(length as u64)?;
        offset = part.next(offset + length as u64);
    }
    Ok(None)
}

/// The first chunk at or after `offset` in which either stream has data.
fn next_data(
    (store, copy): (&dyn Store, &dyn Store),
    ino: Ino,
    offset: u64,
) -> Result<Option<u64>, StoreError> {
    let next = |store: &dyn Store| store.stream_seek(ino, offset, SeekWhat::Data);
    let first = [next(store)?, next(copy)?].into_iter().flatten().min();
    Ok(first.map(|data| data / CHUNK_BYTES * CHUNK_BYTES).map(|chunk| chunk.max(offset)))
}

/// Reads a part of a stream, and zeros behind its end.
fn read(store: &dyn Store, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
    let found = store.stream_read(ino, offset, buf)?;
    buf[found..].fill(0);
    Ok(())
}

/// Ranges of blocks that differ. Both slices have the same length.
fn differing(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (block, (new, old)) in new.chunks(BLOCK_BYTES).zip(old.chunks(BLOCK_BYTES)).enumerate() {
        let start = block * BLOCK_BYTES;
        match ranges.last_mut() {
            _ if new == old => {}
            Some(last) if last.end == start => last.end = start + new.len(),
            _ => ranges.push(start..start + new.len()),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_blocks_are_written_at_once() {
        let old = vec![0; 5 * BLOCK_BYTES + 3];
        let mut new = old.clone();
        assert_eq!(differing(&new, &old), []);
        new[BLOCK_BYTES] = 1;
        new[3 * BLOCK_BYTES - 1] = 1;
        new[5 * BLOCK_BYTES + 2] = 1;
        let (first, last) = (BLOCK_BYTES..3 * BLOCK_BYTES, 5 * BLOCK_BYTES..new.len());
        assert_eq!(differing(&new, &old), [first, last]);
    }
}
