//! Changes of a store that its copy may lack.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use espalier_proto::Ino;

use crate::store::RecordKey;

/// Unit in which changes of streams are noted, in bytes.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// Most chunks of one change that are noted one by one.
const CHUNKS: u64 = 1024;

/// Changes since the migration began. They are noted after they are made: a copy that begins
/// after a change was taken from here contains it.
#[derive(Default)]
pub struct ChangeLog(Mutex<ChangeSet>);

/// Records and streams to copy again.
#[derive(Debug, Default)]
pub(super) struct ChangeSet {
    pub records: BTreeSet<RecordKey>,
    pub streams: BTreeMap<Ino, StreamChange>,
    scan: Scan,
}

/// Records that a scan has not reached yet need not be noted.
#[derive(Debug, Default)]
enum Scan {
    /// Every change is noted.
    #[default]
    Everything,
    /// Changes of keys up to this one are noted.
    UpTo(Option<RecordKey>),
}

/// The part of a stream to copy again. Size and time always are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamChange {
    pub whole: bool,
    /// Offset from which on everything is copied.
    pub tail: u64,
    /// Numbers of chunks.
    pub chunks: BTreeSet<u64>,
}

impl StreamChange {
    pub const NONE: Self = Self { whole: false, tail: u64::MAX, chunks: BTreeSet::new() };
    pub const WHOLE: Self = Self { whole: true, tail: u64::MAX, chunks: BTreeSet::new() };

    pub fn range(bytes: Range<u64>) -> Self {
        let chunks = bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES);
        if chunks.end - chunks.start > CHUNKS {
            return Self::WHOLE;
        }
        Self { chunks: chunks.collect(), ..Self::NONE }
    }

    pub fn tail(from: u64) -> Self {
        Self { tail: from, ..Self::NONE }
    }

    /// The first chunk of the change that begins at `offset`, or the next one; `u64::MAX` or far
    /// behind the end of any stream if there is none.
    pub fn next(&self, offset: u64) -> u64 {
        if self.whole {
            return offset;
        }
        let listed = self.chunks.range(offset / CHUNK_BYTES..).next();
        let listed = listed.map_or(u64::MAX, |chunk| chunk * CHUNK_BYTES);
        listed.min(self.tail / CHUNK_BYTES * CHUNK_BYTES).max(offset)
    }

    pub fn merge(&mut self, other: Self) {
        self.whole |= other.whole;
        self.tail = self.tail.min(other.tail);
        self.chunks.extend(other.chunks);
    }
}

impl ChangeLog {
    fn set(&self) -> MutexGuard<'_, ChangeSet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_records(&self, keys: impl IntoIterator<Item = RecordKey>) {
        let mut set = self.set();
        let ChangeSet { records, scan, .. } = &mut *set;
        records.extend(keys.into_iter().filter(|key| match scan {
            Scan::Everything => true,
            Scan::UpTo(end) => end.as_ref().is_some_and(|end| key <= end),
        }));
    }

    pub(super) fn note_stream(&self, ino: Ino, change: StreamChange) {
        self.set().streams.entry(ino).or_insert(StreamChange::NONE).merge(change);
    }

    /// Nothing is copied yet.
    pub(super) fn begin_scan(&self) {
        self.set().scan = Scan::UpTo(None);
    }

    /// The next records are about to be read.
    pub(super) fn begin_batch(&self) {
        self.set().scan = Scan::Everything;
    }

    /// Records up to `end` were read; all of them if there is none.
    pub(super) fn end_batch(&self, end: Option<&RecordKey>) {
        let mut set = self.set();
        if let Some(end) = end {
            let mut unread = set.records.split_off(end);
            set.records.extend(unread.take(end));
            set.scan = Scan::UpTo(Some(end.clone()));
        }
    }

    /// Number of records and streams.
    pub(super) fn len(&self) -> usize {
        let set = self.set();
        set.records.len() + set.streams.len()
    }

    pub(super) fn take_records(&self) -> BTreeSet<RecordKey> {
        std::mem::take(&mut self.set().records)
    }

    pub(super) fn take_streams(&self) -> BTreeMap<Ino, StreamChange> {
        std::mem::take(&mut self.set().streams)
    }

    pub(super) fn has_record(&self, key: &RecordKey) -> bool {
        self.set().records.contains(key)
    }

    pub(super) fn has_stream(&self, ino: Ino) -> bool {
        self.set().streams.contains_key(&ino)
    }

    /// True if the chunk of a stream that begins at `offset` is to be copied.
    pub(super) fn has_chunk(&self, ino: Ino, offset: u64) -> bool {
        self.set().streams.get(&ino).is_some_and(|change| change.next(offset) == offset)
    }
}

#[cfg(test)]
mod tests {
    use espalier_proto::ObjectId;

    use super::*;

    #[test]
    fn records_beyond_the_scan_are_not_noted() {
        let key = |name: u8| (ObjectId::fragment(Ino(1), 0), vec![name]);
        let changes = ChangeLog::default();
        changes.begin_scan();
        changes.note_records([key(5)]);
        assert_eq!(changes.len(), 0, "the scan will read it");
        changes.begin_batch();
        changes.note_records([key(2), key(9)]);
        changes.end_batch(Some(&key(4)));
        assert_eq!(changes.take_records(), BTreeSet::from([key(2)]));
        changes.note_records([key(4), key(5)]);
        assert_eq!(changes.take_records(), BTreeSet::from([key(4)]));
        changes.begin_batch();
        changes.end_batch(None);
        changes.note_records([key(250)]);
        assert_eq!(changes.len(), 1);
    }

    #[test]
    fn changes_of_streams_cover_their_chunks() {
        let mut change = StreamChange::range(CHUNK_BYTES - 1..CHUNK_BYTES + 1);
        change.merge(StreamChange::tail(5 * CHUNK_BYTES + 7));
        let next: Vec<u64> = (0..8).map(|chunk| change.next(chunk * CHUNK_BYTES) / CHUNK_BYTES).collect();
        assert_eq!(next, [0, 1, 5, 5, 5, 5, 6, 7]);
        assert!(StreamChange::range(0..u64::MAX / 2).whole);
        assert!(StreamChange::NONE.next(0) >= u64::MAX - CHUNK_BYTES);
        assert_eq!(StreamChange::WHOLE.next(0), 0);
    }
}
