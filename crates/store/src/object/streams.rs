//! The streams of a rank.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use espalier_proto::{AllocateMode, END, Errno, Ino, SeekWhat, StreamStat, Time};

use super::names::Names;
use super::open::OpenStreams;
use super::stream::{Stream, StreamPlace, end_of};
use crate::StoreError;
use crate::engine::{Engine, EngineFailure, KEYS_MAX, ObjectOp, Pending, Version};

/// Bytes that one call copies at most.
const COPY_BYTES: u64 = 16 << 20;

pub(super) struct Streams<E> {
    engine: Arc<E>,
    /// The pool of the bytes, if it is another one. Its streams are shared with clients.
    data: Option<Arc<E>>,
    names: Names,
    open: OpenStreams<Ino>,
    /// Streams whose removal is not complete. It is repeated if it fails, unless the stream is made
    /// again.
    removals: Mutex<BTreeMap<Ino, Option<StreamRemoval>>>,
}

/// The end of a stream's removal in progress: of the first object, and of the record that the
/// stream is provisional.
type StreamRemoval = [Pending<Version>; 2];

impl<E: Engine> Streams<E> {
    pub fn new(engine: Arc<E>, data: Option<Arc<E>>, names: Names) -> Self {
        Self { engine, data, names, open: OpenStreams::default(), removals: Mutex::default() }
    }

    /// Makes an empty, provisional stream. It is registered before it is made, so a crash leaves no
    /// stream that is not.
    pub fn create(&self, ino: Ino) -> Result<(), StoreError> {
        self.with(ino, |stream, at| {
            if stream.exists(at)? {
                return Ok(());
            }
            self.removals().remove(&ino);
            let register = ObjectOp::SetKeys(vec![(key(ino), vec![1])]);
            self.engine.apply(&self.names.provisional(), vec![register])?;
            stream.create(at)
        })
    }

    pub fn finalise(&self, ino: Ino) -> Result<(), StoreError> {
        self.unregister(ino).wait().map(drop).or_else(|error| match error.failure {
            EngineFailure::Missing => Ok(()),
            _ => Err(error.into()),
        })
    }

    fn unregister(&self, ino: Ino) -> Pending<Version> {
        self.engine.submit(&self.names.provisional(), vec![ObjectOp::RemoveKeys(vec![key(ino)])])
    }

    pub fn provisional(&self) -> Result<Vec<Ino>, StoreError> {
        let mut found = Vec::new();
        let mut from = Bound::Unbounded;
        loop {
            let begin = from.as_ref().map(Vec::as_slice);
            let page = match self.engine.page(&self.names.provisional(), begin, KEYS_MAX) {
                Err(error) if error.is(&EngineFailure::Missing) => return Ok(found),
                outcome => outcome?,
            };
            let number = |key: &[u8]| Some(Ino(u64::from_be_bytes(key.try_into().ok()?)));
            found.extend(page.pairs.iter().filter_map(|(key, _)| number(key)));
            match page.pairs.last().filter(|_| page.more) {
                Some((last, _)) => from = Bound::Excluded(last.clone()),
                None => return Ok(found),
            }
        }
    }

    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        self.place(ino).read(offset, buf, || self.with(ino, Stream::size))
    }

    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        if offset != END {
            end_of(offset, data.len() as u64)?;
        }
        self.change(ino, |stream, at| {
            let offset = if offset == END { stream.size(at)? } else { offset };
            stream.write(at, offset, data)
        })
    }

    pub fn stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        self.with(ino, Stream::stat)
    }

    pub fn truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        end_of(size, 0)?;
        self.change(ino, |stream, at| stream.truncate(at, size))
    }

    /// Space cannot be reserved, only given back or zeroed.
    pub fn allocate(&self, ino: Ino, offset: u64, length: u64, mode: AllocateMode) -> Result<(), StoreError> {
        let end = end_of(offset, length)?;
        let keeps_size = mode.contains(AllocateMode::KEEP_SIZE);
        let what = mode - AllocateMode::KEEP_SIZE;
        let is_punch = what == AllocateMode::PUNCH_HOLE && keeps_size;
        if !is_punch && what != AllocateMode::ZERO_RANGE {
            return Err(StoreError::Refused(Errno::EOPNOTSUPP));
        }
        self.change(ino, |stream, at| {
            stream.zero(at, offset..end)?;
            if !keeps_size && end > stream.size(at)? { stream.truncate(at, end) } else { Ok(()) }
        })
    }

    pub fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError> {
        self.with(ino, |stream, at| stream.seek(at, offset, what))
    }

    pub fn copy(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, StoreError> {
        let length = length.min(self.stat(from)?.size.saturating_sub(from_offset)).min(COPY_BYTES);
        if from == to && from_offset.abs_diff(to_offset) < length {
            return Err(StoreError::Refused(Errno::EINVAL));
        }
        let mut buf = vec![0; length as usize];
        let read = self.read(from, from_offset, &mut buf)?;
        if read > 0 {
            self.write(to, to_offset, &buf[..read])?;
        }
        Ok(read as u64)
    }

    pub fn set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        self.change(ino, |stream, at| stream.set_mtime(at, mtime))
    }

    pub fn sync(&self, ino: Ino) -> Result<(), StoreError> {
        self.with(ino, |stream, _| stream.sync())
    }

    pub fn sync_all(&self) -> Result<(), StoreError> {
        self.open.names().into_iter().try_for_each(|ino| self.sync(ino))
    }

    pub fn remove(&self, ino: Ino) -> Result<(), StoreError> {
        self.with(ino, |stream, at| {
            let removal = [stream.remove(at)?, self.unregister(ino)];
            self.removals().insert(ino, Some(removal));
            Ok(())
        })
    }

    /// Waits for all removals. The next call repeats those that have failed.
    pub fn sync_removed(&self) -> Result<(), StoreError> {
        let inos: Vec<Ino> = self.removals().keys().copied().collect();
        let ends = inos.into_iter().map(|ino| self.end_removal(ino)).collect::<Vec<_>>();
        ends.into_iter().collect()
    }

    fn end_removal(&self, ino: Ino) -> Result<(), StoreError> {
        let removal = match self.removals().get_mut(&ino) {
            // It was made again meanwhile.
            None => return Ok(()),
            Some(removal) => removal.take(),
        };
        let Some(removal) = removal else {
            // It has failed before.
            let is_due = |streams: &Self| streams.removals().contains_key(&ino);
            let repeat = |stream: &mut Stream, at: &StreamPlace<'_, E>| match is_due(self) {
                true => Ok(Some([stream.remove(at)?, self.unregister(ino)])),
                false => Ok(None),
            };
            return self.with(ino, repeat)?.map_or(Ok(()), |removal| self.wait_for_removal(ino, removal));
        };
        self.wait_for_removal(ino, removal)
    }

    fn wait_for_removal(&self, ino: Ino, removal: StreamRemoval) -> Result<(), StoreError> {
        let done = removal.map(|part| match part.wait() {
            Err(error) if !error.is(&EngineFailure::Missing) => Err(StoreError::from(error)),
            _ => Ok(()),
        });
        done.into_iter().collect::<Result<(), _>>()?;
        let mut removals = self.removals();
        if removals.get(&ino).is_some_and(Option::is_none) {
            removals.remove(&ino);
        }
        Ok(())
    }

    fn removals(&self) -> MutexGuard<'_, BTreeMap<Ino, Option<StreamRemoval>>> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn list(&self) -> Result<Vec<Ino>, StoreError> {
        let names = self.bytes().list(&self.names.streams())?;
        let mut found: Vec<Ino> = names.iter().filter_map(|name| self.names.stream_of(name)).collect();
        found.sort_unstable();
        Ok(found)
    }

    fn place(&self, ino: Ino) -> StreamPlace<'_, E> {
        StreamPlace { engine: self.bytes(), names: self.names, ino, shared: self.data.is_some() }
    }

    /// The engine of the bytes.
    fn bytes(&self) -> &E {
        self.data.as_deref().unwrap_or(&self.engine)
    }

    /// Changes a stream, which is made if absent.
    fn change<T>(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut Stream, &StreamPlace<'_, E>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with(ino, |stream, at| {
            self.removals().remove(&ino);
            stream.create(at)?;
            change(stream, at)
        })
    }

    fn with<T>(
        &self,
        ino: Ino,
        of: impl FnOnce(&mut Stream, &StreamPlace<'_, E>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.open.with(ino, |stream| of(stream, &self.place(ino)))
    }
}

fn key(ino: Ino) -> Vec<u8> {
    ino.0.to_be_bytes().to_vec()
}
