//! One stream: its bytes in objects of 4 MiB, from which its size follows, so that several clients
//! may write it at once. The first object exists as long as the stream. Which others there may be
//! is recorded in a *head* object before they are made.

use std::ops::Range;

use espalier_proto::{Errno, Ino, SeekWhat, StreamStat, Time};

use super::names::Names;
use super::{CHUNK_BYTES, Piece, pieces};
use crate::StoreError;
use crate::engine::{Engine, EngineError, EngineFailure, ObjectOp, ObjectStat, Pending, Version};

/// Ranges of chunks that are recorded at most; more are joined, with the gaps between them.
const RUNS: usize = 1024;
/// Chunks that are recorded ahead of a sequential writer, so that few writes change the record.
const AHEAD: u64 = 16;
/// Objects that are examined at once, from the last one back, to find the end.
const EXAMINED: usize = 64;

/// Where a stream is.
pub(super) struct StreamPlace<'a, E> {
    pub engine: &'a E,
    pub names: Names,
    pub ino: Ino,
    /// Other clients may write the stream, too.
    pub shared: bool,
}

/// Which objects there may be, and what does not follow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    /// Chunks that may have objects: disjoint, ascending, not adjacent; always the first one.
    chunks: Vec<Range<u64>>,
    /// The size is at least this, also without bytes there.
    size: u64,
    mtime: Option<SetMtime>,
}

/// An mtime that applies unless a write is later than `since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SetMtime {
    mtime: Time,
    since: Time,
}

/// A head as it was read or written.
struct KnownHead {
    head: Head,
    /// `None`: there is no object.
    version: Option<Version>,
    known_at: Time,
}

/// What follows from a stream's head and objects.
#[derive(Clone, Copy)]
struct StreamExtent {
    size: u64,
    mtime: Time,
    /// The first object has bytes.
    has_first: bool,
}

/// A stream that is open.
#[derive(Default)]
pub(super) struct Stream {
    /// The last known head. If the stream is shared, others may have recorded more chunks since.
    head: Option<KnownHead>,
    /// Unless the stream is shared, what is known of it.
    measured: Option<StreamExtent>,
    /// The first object is known to exist.
    exists: bool,
    /// Writes in flight.
    writes: Vec<Pending<Version>>,
    /// Why a write failed; the next sync returns it.
    failed: Option<EngineError>,
}

impl Default for Head {
    fn default() -> Self {
        Self { chunks: vec![Range { start: 0, end: 1 }], size: 0, mtime: None }
    }
}

impl Head {
    fn has(&self, chunk: u64) -> bool {
        self.chunks.iter().any(|run| run.contains(&chunk))
    }

    fn len(&self) -> u64 {
        self.chunks.iter().map(|run| run.end - run.start).sum()
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![1, u8::from(self.mtime.is_some())];
        bytes.extend(self.size.to_le_bytes());
        if let Some(SetMtime { mtime, since }) = self.mtime {
            for time in [mtime, since] {
                bytes.extend(time.secs.to_le_bytes());
                bytes.extend(time.nanos.to_le_bytes());
            }
        }
        for run in &self.chunks {
            bytes.extend([run.start, run.end].map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let ([1, has_mtime], rest) = bytes.split_first_chunk()? else { return None };
        let (size, mut rest) = rest.split_first_chunk()?;
        let mut mtime = None;
        if *has_mtime != 0 {
            let (times, after) = rest.split_at_checked(24)?;
            let [set, since] = [0, 12].map(|at| decode_time(&times[at..]));
            (mtime, rest) = (Some(SetMtime { mtime: set?, since: since? }), after);
        }
        let (runs, rest) = rest.as_chunks::<16>();
        let run = |run: &[u8; 16]| {
            let [start, end] =
                [0, 8].map(|at| run[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
            start..end
        };
        let size = u64::from_le_bytes(*size);
        let head = Self { chunks: runs.iter().map(run).collect(), size, mtime };
        let is_valid = rest.is_empty() && head.chunks.iter().all(|run| run.start < run.end);
        (is_valid && head.has(0)).then_some(head)
    }
}

fn decode_time(bytes: &[u8]) -> Option<Time> {
    let (secs, rest) = bytes.split_first_chunk()?;
    Some(Time::new(i64::from_le_bytes(*secs), u32::from_le_bytes(*rest.first_chunk()?)))
}

impl<E: Engine> StreamPlace<'_, E> {
    fn object(&self, chunk: u64) -> String {
        self.names.stream(self.ino, chunk)
    }

    fn head(&self) -> String {
        self.names.stream_head(self.ino)
    }

    fn read_head(&self) -> Result<KnownHead, StoreError> {
        let (name, known_at) = (self.head(), self.engine.now());
        let found = match self.engine.read_versioned(&name) {
            Err(error) if error.is(&EngineFailure::Missing) => {
                return Ok(KnownHead { head: Head::default(), version: None, known_at });
            }
            outcome => outcome?,
        };
        let head = Head::decode(&found.bytes);
        let head =
            head.ok_or_else(|| StoreError::corrupt(format!("the object {name} is no stream's head")))?;
        Ok(KnownHead { head, version: Some(found.version), known_at })
    }

    /// Reads bytes; fewer at the stream's end. `size`: measures it.
    pub fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        size: impl FnOnce() -> Result<u64, StoreError>,
    ) -> Result<usize, StoreError> {
        let Some(end) = self.read_objects(offset, buf)? else { return Ok(buf.len()) };
        let length = size()?.saturating_sub(offset).min(buf.len() as u64) as usize;
        if length > end {
            // Bytes written before the size was measured must not read as a hole.
            self.read_objects(offset, &mut buf[..length])?;
        }
        Ok(length)
    }

    /// Reads the bytes that objects have; others are zeros. If there are others, because of a hole
    /// or the stream's end, returns where the last bytes of objects end.
    fn read_objects(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, StoreError> {
        if end_of(offset, buf.len() as u64).is_err() {
            return Ok(Some(0));
        }
        let read = |piece: Piece| {
            let name = self.object(piece.chunk);
            (self.engine.submit_read(&name, piece.start as u64, piece.length), piece)
        };
        let (mut are_absent, mut end) = (false, 0);
        for (read, Piece { length, at, .. }) in pieces(offset, buf.len()).map(read).collect::<Vec<_>>() {
            let bytes = match read.wait() {
                Err(error) if error.is(&EngineFailure::Missing) => Vec::new(),
                outcome => outcome?.bytes,
            };
            let (copied, zeros) = buf[at..at + length].split_at_mut(bytes.len().min(length));
            copied.copy_from_slice(&bytes[..copied.len()]);
            zeros.fill(0);
            are_absent |= !zeros.is_empty();
            if !copied.is_empty() {
                end = at + copied.len();
            }
        }
        Ok(are_absent.then_some(end))
    }

    /// Begins to write bytes at a time. Their chunks are recorded, and the first object exists.
    pub fn submit(&self, offset: u64, data: &[u8], now: Time) -> Vec<Pending<Version>> {
        let write = |Piece { chunk, start, length, at }| {
            let write = ObjectOp::Write { offset: start as u64, bytes: data[at..at + length].to_vec() };
            // The stream may have been removed.
            let guard = (chunk == 0).then_some(ObjectOp::AssertExists);
            let ops = guard.into_iter().chain([write, ObjectOp::SetMtime(now)]).collect();
            self.engine.submit(&self.object(chunk), ops)
        };
        pieces(offset, data.len()).map(write).collect()
    }

    /// Sets the length of an object. Returns false if there is none.
    fn resize(&self, chunk: u64, length: u64, now: Time) -> Result<bool, StoreError> {
        let ops = vec![ObjectOp::AssertExists, ObjectOp::Truncate(length), ObjectOp::SetMtime(now)];
        match self.engine.apply(&self.object(chunk), ops) {
            Err(error) if error.is(&EngineFailure::Missing) => Ok(false),
            outcome => Ok(outcome.map(|_| true)?),
        }
    }

    fn remove_chunks(&self, chunks: impl Iterator<Item = u64>) -> Result<(), StoreError> {
        self.remove_objects(chunks.map(|chunk| self.object(chunk)))
    }

    /// Removes objects. An earlier attempt may have removed some.
    fn remove_objects(&self, names: impl IntoIterator<Item = String>) -> Result<(), StoreError> {
        let remove = |name: String| self.engine.submit(&name, vec![ObjectOp::Remove]);
        for removal in names.into_iter().map(remove).collect::<Vec<_>>() {
            match removal.wait() {
                Err(error) if !error.is(&EngineFailure::Missing) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Stream {
    pub fn exists<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<bool, StoreError> {
        if !self.exists {
            self.exists = match at.engine.stat(&at.object(0)) {
                Err(error) if error.is(&EngineFailure::Missing) => false,
                outcome => outcome.map(|_| true)?,
            };
        }
        Ok(self.exists)
    }

    /// Makes an empty stream, durably, if there is none.
    pub fn create<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<(), StoreError> {
        if self.exists {
            return Ok(());
        }
        let ops = vec![ObjectOp::CreateExclusive, ObjectOp::SetMtime(at.engine.now())];
        match at.engine.apply(&at.object(0), ops) {
            Err(error) if !error.is(&EngineFailure::Exists) => return Err(error.into()),
            _ => self.exists = true,
        }
        Ok(())
    }

    /// The head, as it is now.
    fn head<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<&KnownHead, StoreError> {
        let known = self.head.take().filter(|_| !at.shared);
        let known = known.map_or_else(|| at.read_head(), Ok)?;
        Ok(self.head.insert(known))
    }

    /// Changes the head. `change` may be called several times, if others change it, too.
    fn change_head<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        change: impl Fn(&mut Head),
    ) -> Result<(), StoreError> {
        loop {
            let known = self.head.take().map_or_else(|| at.read_head(), Ok)?;
            let KnownHead { mut head, version, known_at } = known;
            change(&mut head);
            match at.engine.write_if(&at.head(), head.encode(), version) {
                Ok(version) => {
                    self.head = Some(KnownHead { head, version: Some(version), known_at });
                    return Ok(());
                }
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Size, mtime and blocks.
    pub fn stat<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<StreamStat, StoreError> {
        let Some(measured) = self.measure(at)? else { return Ok(StreamStat::default()) };
        let StreamExtent { size, mtime, .. } = measured;
        let bytes =
            |run: &Range<u64>| (run.end * CHUNK_BYTES).min(size).saturating_sub(run.start * CHUNK_BYTES);
        let blocks = self.data(at, measured)?.iter().map(bytes).sum::<u64>().div_ceil(512);
        Ok(StreamStat { exists: true, size, blocks, mtime, ..StreamStat::default() })
    }

    /// The size; 0 if there is no stream.
    pub fn size<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<u64, StoreError> {
        Ok(self.measure(at)?.map_or(0, |measured| measured.size))
    }

    /// Examines the recorded objects from the last one back until one has bytes. `None`: there is
    /// no stream.
    fn measure<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<Option<StreamExtent>, StoreError> {
        if self.measured.is_some() {
            return Ok(self.measured);
        }
        self.wait_for_writes();
        let head = self.head(at)?.head.clone();
        let first = at.engine.submit_stat(&at.object(0));
        let (mut end, mut latest) = (0, Time::default());
        let mut others =
            head.chunks.iter().rev().flat_map(|run| run.clone().rev()).filter(|chunk| *chunk > 0);
        while end == 0 {
            let examine = |chunk| (chunk, at.engine.submit_stat(&at.object(chunk)));
            let examined: Vec<_> = others.by_ref().take(EXAMINED).map(examine).collect();
            if examined.is_empty() {
                break;
            }
            for (chunk, stat) in examined {
                match stat.wait() {
                    Err(error) if error.is(&EngineFailure::Missing) => {}
                    outcome => {
                        let found = outcome?;
                        (end, latest) = (end.max(end_in(chunk, found)), latest.max(found.mtime));
                    }
                }
            }
        }
        let first = match first.wait() {
            Err(error) if error.is(&EngineFailure::Missing) => return Ok(None),
            outcome => outcome?,
        };
        let latest = latest.max(first.mtime);
        let set = head.mtime.filter(|set| latest <= set.since);
        let measured = StreamExtent {
            size: end.max(first.size).max(head.size),
            mtime: set.map_or(latest, |set| set.mtime),
            has_first: first.size > 0,
        };
        self.exists = true;
        self.measured = (!at.shared).then_some(measured);
        Ok(Some(measured))
    }

    /// The chunks that may have bytes.
    fn data<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        measured: StreamExtent,
    ) -> Result<Vec<Range<u64>>, StoreError> {
        let mut chunks = self.head(at)?.head.chunks.clone();
        if !measured.has_first {
            chunks[0].start = 1;
            chunks.retain(|run| run.start < run.end);
        }
        Ok(chunks)
    }

    /// Begins to write to a stream that exists.
    pub fn write<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), StoreError> {
        if data.is_empty() {
            return Ok(());
        }
        let (end, now) = (end_of(offset, data.len() as u64)?, at.engine.now());
        self.prepare(at, offset..end, now)?;
        self.writes.extend(at.submit(offset, data, now));
        if let Some(StreamExtent { size, mtime, has_first }) = &mut self.measured {
            (*size, *mtime) = (end.max(*size), now);
            *has_first |= offset < CHUNK_BYTES;
        }
        self.collect_writes();
        Ok(())
    }

    /// Prepares the head for a write to a range that is not empty.
    pub fn prepare<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        range: Range<u64>,
        now: Time,
    ) -> Result<(), StoreError> {
        self.record_chunks(at, range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES))?;
        self.note_write(at, now)
    }

    pub fn truncate<E: Engine>(&mut self, at: &StreamPlace<'_, E>, size: u64) -> Result<(), StoreError> {
        self.wait_for_writes();
        let (last, now) = (size.saturating_sub(1) / CHUNK_BYTES, at.engine.now());
        let head = self.head(at)?.head.clone();
        let beyond = || head.chunks.iter().cloned().flatten().filter(|chunk| *chunk > last);
        self.measured = None;
        at.remove_chunks(beyond())?;
        let is_resized = head.has(last) && at.resize(last, size - last * CHUNK_BYTES, now)?;
        // A client that shares the stream may rely on what is recorded.
        let shrinks = !at.shared && beyond().next().is_some();
        if shrinks || head.size > 0 || head.mtime.is_some() || !is_resized {
            self.change_head(at, |head| {
                if shrinks {
                    head.chunks.iter_mut().for_each(|run| run.end = run.end.min(last + 1));
                    head.chunks.retain(|run| run.start < run.end);
                }
                head.size = if is_resized { 0 } else { size };
                head.mtime = (!is_resized).then_some(SetMtime { mtime: now, since: now });
            })?;
        }
        Ok(())
    }

    /// Makes a range read as zeros. The stream keeps its size.
    pub fn zero<E: Engine>(&mut self, at: &StreamPlace<'_, E>, range: Range<u64>) -> Result<(), StoreError> {
        let Some(measured) = self.measure(at)? else { return Ok(()) };
        let end = range.end.min(measured.size);
        for run in self.data(at, measured)? {
            let within = range.start.max(run.start * CHUNK_BYTES)..end.min(run.end * CHUNK_BYTES);
            let mut offset = within.start;
            while offset < within.end {
                let length = (CHUNK_BYTES - offset % CHUNK_BYTES).min(within.end - offset);
                let zero = ObjectOp::Zero { offset: offset % CHUNK_BYTES, length };
                self.writes.push(at.engine.submit(&at.object(offset / CHUNK_BYTES), vec![zero]));
                offset += length;
            }
        }
        let now = at.engine.now();
        self.store_mtime(at, SetMtime { mtime: now, since: now })
    }

    /// The next data or hole; holes are whole chunks.
    pub fn seek<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        offset: u64,
        what: SeekWhat,
    ) -> Result<Option<u64>, StoreError> {
        let Some(measured) = self.measure(at)?.filter(|measured| offset < measured.size) else {
            return Ok(None);
        };
        let (size, chunks) = (measured.size, self.data(at, measured)?);
        let chunk = offset / CHUNK_BYTES;
        let run = chunks.iter().find(|run| run.end > chunk);
        let found = match (what, run) {
            (SeekWhat::Data, run) => {
                run.and_then(|run| run.start.checked_mul(CHUNK_BYTES)).filter(|start| *start < size)
            }
            (SeekWhat::Hole, Some(run)) if run.contains(&chunk) => Some((run.end * CHUNK_BYTES).min(size)),
            (SeekWhat::Hole, _) => Some(offset),
        };
        Ok(found.map(|found| found.max(offset)))
    }

    pub fn set_mtime<E: Engine>(&mut self, at: &StreamPlace<'_, E>, mtime: Time) -> Result<(), StoreError> {
        let latest = self.measure(at)?.map_or_else(Time::default, |measured| measured.mtime);
        let since = self.head(at)?.head.mtime.map_or(latest, |set| set.since.max(latest));
        self.store_mtime(at, SetMtime { mtime, since })
    }

    fn store_mtime<E: Engine>(&mut self, at: &StreamPlace<'_, E>, set: SetMtime) -> Result<(), StoreError> {
        self.change_head(at, |head| head.mtime = Some(set))?;
        if let Some(StreamExtent { mtime, .. }) = &mut self.measured {
            *mtime = set.mtime;
        }
        Ok(())
    }

    /// Waits until all bytes are durable.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.wait_for_writes();
        self.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Removes all bytes, and begins to remove the first object.
    pub fn remove<E: Engine>(&mut self, at: &StreamPlace<'_, E>) -> Result<Pending<Version>, StoreError> {
        self.wait_for_writes();
        self.measured = None;
        let KnownHead { head, version, .. } = self.head(at)?;
        at.remove_chunks(head.chunks.iter().cloned().flatten().filter(|chunk| *chunk > 0))?;
        if version.is_some() {
            at.remove_objects([at.head()])?;
        }
        *self = Self::default();
        Ok(at.engine.submit(&at.object(0), vec![ObjectOp::Remove]))
    }

    /// True if all writes are complete.
    pub fn is_clean(&self) -> bool {
        self.writes.is_empty() && self.failed.is_none()
    }

    fn wait_for_writes(&mut self) {
        for write in std::mem::take(&mut self.writes) {
            if let Err(error) = write.wait() {
                self.fail(error);
            }
        }
    }

    /// A write has failed: the next sync returns why, and what the bytes are now is unknown.
    fn fail(&mut self, error: EngineError) {
        self.measured = None;
        self.failed.get_or_insert(error);
    }

    /// Takes the outcomes of the writes that are complete.
    fn collect_writes(&mut self) {
        for write in std::mem::take(&mut self.writes) {
            match write.try_wait() {
                Ok(Err(error)) => self.fail(error),
                Ok(Ok(_)) => {}
                Err(pending) => self.writes.push(pending),
            }
        }
    }

    /// Records chunks before their objects are made: no crash leaves objects that nothing refers
    /// to. What is recorded in a shared stream stays recorded, so an older head suffices.
    fn record_chunks<E: Engine>(
        &mut self,
        at: &StreamPlace<'_, E>,
        mut wanted: Range<u64>,
    ) -> Result<(), StoreError> {
        if wanted.end == 1 {
            return Ok(());
        }
        let known = self.head.take().map_or_else(|| at.read_head(), Ok)?;
        let KnownHead { head, .. } = self.head.insert(known);
        if wanted.clone().all(|chunk| head.has(chunk)) {
            return Ok(());
        }
        // A sequential writer has filled the chunks before.
        if wanted.start > 0 && head.has(wanted.start - 1) {
            wanted.end += AHEAD.min(wanted.start);
        }
        self.change_head(at, |head| insert(&mut head.chunks, wanted.clone()))
    }

    /// Keeps the mtime right where the time of the bytes does not suffice: after it was set, and in
    /// a stream with more objects than are examined, there to the second.
    fn note_write<E: Engine>(&mut self, at: &StreamPlace<'_, E>, now: Time) -> Result<(), StoreError> {
        if at.shared && self.head.as_ref().is_some_and(|known| known.known_at.secs != now.secs) {
            // Others may have made the stream longer.
            self.head = Some(at.read_head()?);
        }
        let Some(KnownHead { head, .. }) = &self.head else { return Ok(()) };
        let is_long = head.len() > EXAMINED as u64;
        let is_due = match head.mtime {
            Some(set) => !is_long || set.since.secs != now.secs,
            None => is_long,
        };
        if !is_due {
            return Ok(());
        }
        self.change_head(at, |head| head.mtime = is_long.then_some(SetMtime { mtime: now, since: now }))
    }
}

/// Where the bytes of an object end in the stream; 0 if it has none.
fn end_in(chunk: u64, object: ObjectStat) -> u64 {
    if object.size == 0 { 0 } else { chunk * CHUNK_BYTES + object.size }
}

/// True if another client has changed the head.
fn is_conflict(error: &EngineError) -> bool {
    [EngineFailure::Guard, EngineFailure::Exists, EngineFailure::Missing].iter().any(|one| error.is(one))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use espalier_proto::Rank;

    use super::*;
    use crate::MemoryEngine;

    #[test]
    fn heads_are_decoded() {
        let set = SetMtime { mtime: Time::new(-5, 7), since: Time::new(9, 1) };
        for mtime in [None, Some(set)] {
            let head = Head { chunks: vec![0..3, 9..12], size: 77, mtime };
            assert_eq!(Head::decode(&head.encode()), Some(head));
        }
        for invalid in [&[][..], &[2, 0], &[1, 0], &[1, 1, 5], &[1, 0, 1]] {
            assert_eq!(Head::decode(invalid), None);
        }
    }

    #[test]
    fn write_during_a_read_is_no_hole() {
        let engine = MemoryEngine::new();
        let place = StreamPlace { engine: &engine, names: Names(Rank(0)), ino: Ino(5), shared: true };
        Stream::default().create(&place).unwrap();
        let mut buf = [9; 8];
        let read = place.read(0, &mut buf, || {
            Stream::default().write(&place, 0, b"bytes")?;
            Stream::default().size(&place)
        });
        assert_eq!((read.unwrap(), &buf[..5]), (5, &b"bytes"[..]));
    }

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
