//! The journal's file: striped over objects of 4 MiB, with several writes in flight.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::names::Names;
use super::{CHUNK_BYTES, Piece, pieces};
use crate::engine::{Engine, EngineError, EngineFailure, ObjectOp, Pending, Version, VersionedBytes};
use crate::journal::BlockFile;

/// Chunks that a sequential reader requests ahead.
const READ_AHEAD: u64 = 3;

/// A file of fixed size in objects. Writes are submitted; [`BlockFile::sync_data`] waits for them.
/// Ranges that were never written read as zeros.
pub struct ObjectFile<E> {
    engine: Arc<E>,
    names: Names,
    length: u64,
    /// Another process writes the file: reads return what it has now, no more than is asked for.
    is_followed: bool,
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    writes: Vec<Pending<Version>>,
    /// Reason why a write failed; the next sync returns it.
    failed: Option<EngineError>,
    /// The chunk that was read last, and those requested after it.
    cached: Option<(u64, Vec<u8>)>,
    ahead: Vec<(u64, Pending<VersionedBytes>)>,
    /// Every chunk is known to be absent or zeros.
    is_blank: bool,
}

impl<E: Engine> ObjectFile<E> {
    pub(crate) fn new(engine: Arc<E>, names: Names, length: u64, is_blank: bool) -> Self {
        let state = Mutex::new(FileState { is_blank, ..FileState::default() });
        Self { engine, names, length, is_followed: false, state }
    }

    /// A file that another process writes, for reading.
    pub(crate) fn followed(engine: Arc<E>, names: Names, length: u64) -> Self {
        Self { is_followed: true, ..Self::new(engine, names, length, false) }
    }

    /// Reads a range as it is now.
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let request = |Piece { chunk, start, length, at }| {
            (at, self.engine.submit_read(&self.names.journal(chunk), start as u64, length))
        };
        let requested: Vec<_> = pieces(offset, buf.len()).map(request).collect();
        buf.fill(0);
        for (at, pending) in requested {
            match pending.wait() {
                Err(error) if error.is(&EngineFailure::Missing) => {}
                outcome => {
                    let read = outcome.map_err(to_io)?.bytes;
                    buf[at..at + read.len()].copy_from_slice(&read);
                }
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, chunk: u64) -> Pending<VersionedBytes> {
        self.engine.submit_read(&self.names.journal(chunk), 0, CHUNK_BYTES as usize)
    }

    /// The bytes of a chunk; absent ones are left out at its end.
    fn chunk<'a>(&self, state: &'a mut FileState, chunk: u64) -> io::Result<&'a [u8]> {
        if state.cached.as_ref().is_none_or(|(cached, _)| *cached != chunk) {
            let requested = state.ahead.iter().position(|(ahead, _)| *ahead == chunk);
            let pending = requested.map_or_else(|| self.request(chunk), |at| state.ahead.swap_remove(at).1);
            let last = self.length.div_ceil(CHUNK_BYTES);
            state.ahead.retain(|(ahead, _)| *ahead > chunk);
            for next in (chunk + 1..last).take(READ_AHEAD as usize) {
                if requested.is_some() && !state.ahead.iter().any(|(ahead, _)| *ahead == next) {
                    state.ahead.push((next, self.request(next)));
                }
            }
            let read = match pending.wait() {
                Err(error) if error.is(&EngineFailure::Missing) => VersionedBytes::default(),
                outcome => outcome.map_err(to_io)?,
            };
            if requested.is_none() && chunk + 1 < last {
                state.ahead.push((chunk + 1, self.request(chunk + 1)));
            }
            state.cached = Some((chunk, read.bytes));
        }
        Ok(state.cached.as_ref().map_or(&[], |(_, bytes)| bytes))
    }
}

impl FileState {
    /// Waits for all writes. The first error is retained until it is returned.
    fn wait(&mut self) {
        for write in self.writes.drain(..) {
            if let Err(error) = write.wait() {
                self.failed.get_or_insert(error);
            }
        }
    }
}

impl<E: Engine> BlockFile for ObjectFile<E> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.is_followed {
            return self.read_now(offset, buf);
        }
        let mut state = self.state();
        for Piece { chunk, start, length, at } in pieces(offset, buf.len()) {
            let bytes = self.chunk(&mut state, chunk)?;
            let found = bytes.get(start..).unwrap_or_default();
            let found = &found[..found.len().min(length)];
            let (copied, zeros) = buf[at..at + length].split_at_mut(found.len());
            copied.copy_from_slice(found);
            zeros.fill(0);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut state = self.state();
        if state.is_blank && data.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        state.is_blank = false;
        (state.cached, state.ahead) = Default::default();
        for Piece { chunk, start, length, at } in pieces(offset, data.len()) {
            let bytes = data[at..at + length].to_vec();
            let write = ObjectOp::Write { offset: start as u64, bytes };
            state.writes.push(self.engine.submit(&self.names.journal(chunk), vec![write]));
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.wait();
        state.failed.take().map_or(Ok(()), |error| Err(to_io(error)))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.length)
    }
}

fn to_io(error: EngineError) -> io::Error {
    let kind = match error.failure {
        EngineFailure::Full => io::ErrorKind::StorageFull,
        EngineFailure::TimedOut => io::ErrorKind::TimedOut,
        EngineFailure::Denied => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
