//! One stream: its bytes in objects of 4 MiB, and its size, times and chunks as a key of the first.
//! If the bytes have a pool of their own, that key is in an object without bytes.

use std::ops::Range;

use espalier_proto::{Errno, Ino, SeekWhat, StreamStat, Time};

use super::names::Names;
use super::{CHUNK_BYTES, Piece, pieces, wait_all};
use crate::StoreError;
use crate::engine::{Engine, EngineError, EngineFailure, ObjectOp, Pending, Version};

/// Key of the first object.
const KEY: &[u8] = b"stream";
/// Ranges of chunks that are recorded at most; more are joined, with the gaps between them.
const RUNS: usize = 1024;
/// Chunks that are recorded ahead of a sequential writer, so that few writes change the record.
const AHEAD: u64 = 16;

/// A stream that is open.
#[derive(Default)]
pub(super) struct Stream {
    pub exists: bool,
    pub size: u64,
    pub mtime: Time,
    /// Chunks that may have bytes: disjoint, ascending, not adjacent.
    chunks: Vec<Range<u64>>,
    /// Writes in flight.
    writes: Vec<Pending<Version>>,
    /// Why a write failed; the next sync returns it.
    failed: Option<EngineError>,
    /// The stored record is out of date.
    is_changed: bool,
    /// Objects may have bytes after the stream's end, from a writer that crashed.
    may_exceed: bool,
}

/// Where a stream is.
pub(super) struct StreamPlace<'a, E> {
    /// Has the record.
    pub engine: &'a E,
    /// The pool of the bytes, if it is another one.
    pub data: Option<&'a E>,
    pub names: Names,
    pub ino: Ino,
}

impl<E: Engine> StreamPlace<'_, E> {
    fn object(&self, chunk: u64) -> String {
        self.names.stream(self.ino, chunk)
    }

    /// The engine of the bytes.
    fn bytes(&self) -> &E {
        self.data.unwrap_or(self.engine)
    }

    fn submit(&self, chunk: u64, op: ObjectOp) -> Pending<Version> {
        self.bytes().submit(&self.object(chunk), vec![op])
    }

    /// Chunks whose objects also have the record, and remain as long as the stream.
    fn with_record(&self) -> u64 {
        u64::from(self.data.is_none())
    }
}

impl Stream {
    /// Reads a stream's record.
    pub fn load<E: Engine>(at: &StreamPlace<'_, E>) -> Result<Self, StoreError> {
        let name = at.object(0);
        let found = match at.engine.values(&name, &[KEY]) {
            Err(error) if error.is(&EngineFailure::Missing) => return Ok(Self::default()),
            outcome => outcome?,
        };
        let stream = found.first().and_then(|(_, value)| Self::decode(value));
        stream.ok_or_else(|| StoreError::corrupt(format!("the object {name} has no valid stream record")))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![1];
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.mtime.secs.to_le_bytes());
        bytes.extend(self.mtime.nanos.to_le_bytes());
        for run in &self.chunks {
            bytes.extend([run.start, run.end].map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (size, rest) = bytes.strip_prefix(&[1])?.split_first_chunk()?;
        let (secs, rest) = rest.split_first_chunk()?;
        let (nanos, rest) = rest.split_first_chunk()?;
        let mtime = Time::new(i64::from_le_bytes(*secs), u32::from_le_bytes(*nanos));
        let (runs, rest) = rest.as_chunks::<16>();
        let run = |run: &[u8; 16]| {
            let [start, end] =
                [0, 8].map(|at| run[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
            start..end
        };
        let chunks: Vec<_> = runs.iter().map(run).collect();
        let is_valid = rest.is_empty() && chunks.iter().all(|run| run.start < run.end);
        let size = u64::from_le_bytes(*size);
        is_valid.then_some(Self { exists: true, size, mtime, chunks, may_exceed: true, ..Self::default() })
    }

    /// Begins to store the record.
    fn submit_record<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Pending<Version> {
        self.is_changed = false;
        let pairs = vec![(KEY.to_vec(), self.encode())];
        at.engine.submit(&at.object(0), vec![ObjectOp::SetKeys(pairs)])
    }

    fn store_record<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<(), StoreError> {
        let stored = self.submit_record(at).wait();
        self.is_changed |= stored.is_err();
        Ok(stored.map(drop)?)
    }

    /// Makes an empty stream, durably.
    pub fn create<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<(), StoreError> {
        let made = Self { mtime: at.engine.now(), ..Self::default() };
        *self = made;
        self.store_record(at)?;
        self.exists = true;
        Ok(())
    }

    pub fn stat(&self) -> StreamStat {
        let Self { exists, size, mtime, .. } = *self;
        let bytes =
            |run: &Range<u64>| (run.end * CHUNK_BYTES).min(size).saturating_sub(run.start * CHUNK_BYTES);
        let blocks = self.chunks.iter().map(bytes).sum::<u64>().div_ceil(512);
        StreamStat { exists, size, blocks, mtime, ..StreamStat::default() }
    }

    pub fn read<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, StoreError> {
        let length = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..length];
        self.wait_for_writes();
        let request = |piece: Piece| {
            let read = self
                .has(piece.chunk)
                .then(|| at.bytes().submit_read(&at.object(piece.chunk), piece.start as u64, piece.length));
            (piece, read)
        };
        let reads: Vec<_> = pieces(offset, length).map(request).collect();
        for (Piece { length, at, .. }, read) in reads {
            let bytes = match read.map(Pending::wait) {
                Some(Err(error)) if !error.is(&EngineFailure::Missing) => return Err(error.into()),
                Some(Ok(read)) => read.bytes,
                _ => Vec::new(),
            };
            let (copied, zeros) = buf[at..at + length].split_at_mut(bytes.len().min(length));
            copied.copy_from_slice(&bytes[..copied.len()]);
            zeros.fill(0);
        }
        Ok(length)
    }

    pub fn write<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), StoreError> {
        if data.is_empty() {
            return Ok(());
        }
        self.cut_excess(at)?;
        let end = offset + data.len() as u64;
        self.record_chunks(at, offset / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES))?;
        for Piece { chunk, start, length, at: from } in pieces(offset, data.len()) {
            let write = ObjectOp::Write { offset: start as u64, bytes: data[from..from + length].to_vec() };
            self.writes.push(at.submit(chunk, write));
        }
        self.size = self.size.max(end);
        self.changed(at.engine.now());
        self.collect_writes();
        Ok(())
    }

    pub fn truncate<E: Engine>(&mut self, at: &StreamPlace<'_, E>, size: u64) -> Result<(), StoreError> {
        self.cut_excess(at)?;
        if size < self.size {
            self.wait_for_writes();
            let before = std::mem::replace(&mut self.size, size);
            if let Err(error) = self.store_record(at).and_then(|()| self.cut(at)) {
                self.size = before;
                return Err(error);
            }
        }
        self.size = size;
        self.changed(at.engine.now());
        Ok(())
    }

    /// Makes a range read as zeros. The stream keeps its size.
    pub fn zero<E: Engine>(&mut self, at: &StreamPlace<'_, E>, range: Range<u64>) -> Result<(), StoreError> {
        self.cut_excess(at)?;
        let mut offset = range.start;
        let end = range.end.min(self.size);
        while offset < end {
            let chunk = offset / CHUNK_BYTES;
            let length = (CHUNK_BYTES - offset % CHUNK_BYTES).min(end - offset);
            if self.has(chunk) {
                let zero = ObjectOp::Zero { offset: offset % CHUNK_BYTES, length };
                self.writes.push(at.submit(chunk, zero));
                offset += length;
            } else {
                let next = self.chunks.iter().map(|run| run.start).find(|start| *start > chunk);
                offset = next.map_or(end, |next| next * CHUNK_BYTES);
            }
        }
        self.changed(at.engine.now());
        Ok(())
    }

    /// The next data or hole; holes are whole chunks.
    pub fn seek(&self, offset: u64, what: SeekWhat) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let chunk = offset / CHUNK_BYTES;
        let run = self.chunks.iter().find(|run| run.end > chunk);
        let found = match (what, run) {
            (SeekWhat::Data, run) => {
                run?.start.checked_mul(CHUNK_BYTES).filter(|start| *start < self.size)?
            }
            (SeekWhat::Hole, Some(run)) if run.contains(&chunk) => (run.end * CHUNK_BYTES).min(self.size),
            (SeekWhat::Hole, _) => offset,
        };
        Some(found.max(offset))
    }

    pub fn set_mtime(&mut self, mtime: Time) {
        self.mtime = mtime;
        self.is_changed = true;
    }

    /// Makes bytes, size and times durable.
    pub fn sync<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<(), StoreError> {
        self.wait_for_writes();
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        if self.is_changed { self.store_record(at) } else { Ok(()) }
    }

    /// Begins to store the size and the times, whose bytes may still be in flight.
    pub fn submit_changes<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Option<Pending<Version>> {
        self.is_changed.then(|| self.submit_record(at))
    }

    /// Removes all bytes, and begins to remove the record.
    pub fn remove<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<Pending<Version>, StoreError> {
        self.wait_for_writes();
        let chunks = self.chunks.iter().cloned().flatten();
        remove_chunks(at, chunks.filter(|chunk| *chunk >= at.with_record()))?;
        *self = Self::default();
        Ok(at.engine.submit(&at.object(0), vec![ObjectOp::Remove]))
    }

    /// True if all changes are stored.
    pub fn is_clean(&self) -> bool {
        self.writes.is_empty() && self.failed.is_none() && !self.is_changed
    }

    fn changed(&mut self, now: Time) {
        self.mtime = now;
        self.is_changed = true;
    }

    fn has(&self, chunk: u64) -> bool {
        self.chunks.iter().any(|run| run.contains(&chunk))
    }

    fn wait_for_writes(&mut self) {
        for write in self.writes.drain(..) {
            if let Err(error) = write.wait() {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Takes the outcomes of the writes that are complete.
    fn collect_writes(&mut self) {
        let complete = |write: Pending<Version>| match write.try_wait() {
            Ok(outcome) => {
                if let Err(error) = outcome {
                    self.failed.get_or_insert(error);
                }
                None
            }
            Err(pending) => Some(pending),
        };
        self.writes = std::mem::take(&mut self.writes).into_iter().filter_map(complete).collect();
    }

    /// Records chunks before their objects are made: no crash leaves objects that nothing refers
    /// to.
    fn record_chunks<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        mut wanted: Range<u64>,
    ) -> Result<(), StoreError> {
        if wanted.clone().all(|chunk| self.has(chunk)) {
            return Ok(());
        }
        // A sequential writer has filled the chunks before.
        let is_sequential = wanted.start > 0 && self.has(wanted.start - 1);
        if is_sequential {
            wanted.end += AHEAD.min(wanted.start);
        }
        let before = self.chunks.clone();
        insert(&mut self.chunks, wanted);
        self.store_record(at).inspect_err(|_| self.chunks = before)
    }

    /// Removes what a crashed writer left after the end, once.
    fn cut_excess<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<(), StoreError> {
        if self.may_exceed {
            self.cut(at)?;
            self.may_exceed = false;
        }
        Ok(())
    }

    /// Removes all bytes after the end.
    fn cut<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<(), StoreError> {
        let (last, rest) = (self.size / CHUNK_BYTES, self.size % CHUNK_BYTES);
        let first_removed = if rest == 0 { last.max(at.with_record()) } else { last + 1 };
        if self.has(last) && last < first_removed {
            at.submit(last, ObjectOp::Truncate(rest)).wait()?;
        }
        let beyond: Vec<u64> =
            self.chunks.iter().cloned().flatten().filter(|chunk| *chunk >= first_removed).collect();
        if !beyond.is_empty() {
            remove_chunks(at, beyond.into_iter())?;
            self.chunks.iter_mut().for_each(|run| run.end = run.end.min(first_removed));
            self.chunks.retain(|run| run.start < run.end);
            self.is_changed = true;
        }
        Ok(())
    }
}

fn remove_chunks<E: Engine>(
    at: &StreamPlace<'_, E>,
    chunks: impl Iterator<Item = u64>,
) -> Result<(), StoreError> {
    let remove = |chunk| at.submit(chunk, ObjectOp::Remove);
    for removal in chunks.map(remove).collect::<Vec<_>>() {
        match removal.wait() {
            Err(error) if !error.is(&EngineFailure::Missing) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Adds a range to disjoint ascending ranges. Too many are joined at the narrowest gap.
fn insert(runs: &mut Vec<Range<u64>>, new: Range<u64>) {
    let from = runs.partition_point(|run| run.end < new.start);
    let to = runs.partition_point(|run| run.start <= new.end);
    let joined = runs.drain(from..to).fold(new, |new, run| new.start.min(run.start)..new.end.max(run.end));
    runs.insert(from, joined);
    if runs.len() > RUNS {
        let gap = |at: &usize| runs[at + 1].start - runs[*at].end;
        if let Some(at) = (0..runs.len() - 1).min_by_key(gap) {
            runs[at].end = runs.remove(at + 1).end;
        }
    }
}

/// Checks that the end fits the signed offsets of system calls.
pub(super) fn end_of(offset: u64, length: u64) -> Result<u64, StoreError> {
    let end = offset.checked_add(length).filter(|&end| i64::try_from(end).is_ok());
    end.ok_or(StoreError::Refused(Errno::EFBIG))
}

/// Waits for records that were submitted.
pub(super) fn wait_for_records(records: Vec<Pending<Version>>) -> Result<(), StoreError> {
    wait_all(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined() {
        let mut runs = Vec::new();
        for run in [5..6, 1..2, 9..12, 2..3, 6..9] {
            insert(&mut runs, run);
        }
        assert_eq!(runs, [1..3, 5..12]);
        insert(&mut runs, 0..20);
        assert!(runs.len() == 1 && runs[0] == (0..20), "{runs:?}");
    }

    #[test]
    fn ranges_are_bounded() {
        let mut runs = Vec::new();
        (0..2 * RUNS as u64).for_each(|n| insert(&mut runs, 3 * n..3 * n + 1));
        assert_eq!(runs.len(), RUNS);
        assert!((0..2 * RUNS as u64).all(|n| runs.iter().any(|run| run.contains(&(3 * n)))));
    }
}
