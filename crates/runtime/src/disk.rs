//! Executes the state machines' I/O on the store and its journal.

use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use espalier_meta::{Io, IoDone, Load, StreamCall, StreamDone};
use espalier_proto::{Errno, Ino, Reply, Space, StreamIo};
use espalier_store::{Journal, JournalError, MovableStore, Store, StoreError, StorePool};

use crate::caller::groups;
use crate::flush_behind::Writeback;
use crate::namespace::SyncPoint;
use crate::tracer::{Layer, Steps};

/// Pause between two steps of background work, which limits its share of the processor.
const REST: Duration = Duration::from_millis(2);

/// Delay before an event that no caller waits for is written to the journal.
pub(crate) const WRITE_DELAY: Duration = Duration::from_millis(10);

/// A store and its journal.
pub struct Disk {
    pub store: Arc<MovableStore>,
    /// Each change of a stream is made durable.
    pub sync: bool,
    pub journal: Arc<Mutex<Journal>>,
    writeback: Writeback,
    /// Present if the store is that of a namespace that is synced.
    sync_point: OnceLock<Arc<SyncPoint>>,
}

/// A read of a stream in progress.
#[derive(Debug, Default)]
pub struct Reading {
    buffer: Vec<u8>,
    read: usize,
    is_whole: bool,
}

impl Disk {
    pub fn new(store: Box<dyn Store>, journal: Journal, sync: bool) -> Self {
        let (store, journal) = (Arc::new(MovableStore::new(store)), Arc::new(Mutex::new(journal)));
        Self { store, sync, journal, writeback: Writeback::default(), sync_point: OnceLock::new() }
    }

    /// Lends the tables to a sync after checkpoints.
    pub fn lend_to(&self, sync_point: Arc<SyncPoint>) {
        let _ = self.sync_point.set(sync_point);
    }

    pub fn sync_point(&self) -> Option<&SyncPoint> {
        self.sync_point.get().map(|sync_point| &**sync_point)
    }

    /// Executes one I/O. Errors are logged here, where the details are known.
    pub fn execute(&self, io: Io, steps: Steps<'_>) -> Result<IoDone, Errno> {
        let name = io.name();
        if !self.store.is_held() {
            return Err(logged(StoreError::LeaseOver));
        }
        match io {
            Io::Load(wanted) => steps.step(Layer::Store, name, || load(self.store.as_ref(), &wanted)),
            Io::Groups { pid, .. } => Ok(IoDone::Groups(groups(pid))),
            Io::Stream(call, layouts) if layouts.is_empty() => {
                steps.step(Layer::Store, name, || self.stream_call(call)).map(IoDone::Stream).map_err(logged)
            }
            // The inode remains an orphan.
            Io::Stream(StreamCall::Remove { .. }, _) => Err(Errno::ENODEV),
            Io::Stream(..) => {
                tracing::error!("a file is stored on data servers, which only a server can reach");
                Err(Errno::ENODEV)
            }
            Io::Journal { frame, sync } => {
                if sync {
                    // An event may refer to a new stream.
                    self.store.sync_new_streams().map_err(logged)?;
                }
                self.append(frame, sync, steps).map_err(|error| not_written(&error))
            }
            Io::Sync => {
                self.store.sync_new_streams().map_err(logged)?;
                // Other threads may append during the sync.
                let handle = self.journal().sync_handle();
                let synced = steps.step(Layer::Disk, name, || handle.sync());
                synced.map(|_| IoDone::Synced).map_err(|error| not_written(&error))
            }
            Io::Stage { writes } => {
                let staged = steps.step(Layer::Store, name, || self.store.stage(writes.to_vec()));
                staged.map(|()| IoDone::Staged).map_err(logged)
            }
            Io::Publish { trim } => {
                // Trimming would lose the events that repeat the removals.
                self.store.sync_removed_streams().map_err(logged)?;
                // The tables may refer to streams whose events are not durable yet.
                self.store.sync_new_streams().map_err(logged)?;
                steps.step(Layer::Disk, name, || self.store.publish()).map_err(logged)?;
                if let Some(sync_point) = self.sync_point() {
                    sync_point.lend();
                }
                let mut journal = self.journal();
                journal.trim(trim);
                Ok(IoDone::Published { used: journal.used() })
            }
            // An embedded mount has neither data servers nor a balancer.
            Io::Admit { .. } | Io::Decide(_) => Err(Errno::EIO),
            Io::Yield => {
                std::thread::yield_now();
                Ok(IoDone::Paused)
            }
            Io::Rest => {
                std::thread::sleep(REST);
                Ok(IoDone::Paused)
            }
            Io::WriteDelay => {
                std::thread::sleep(WRITE_DELAY);
                Ok(IoDone::Paused)
            }
        }
    }

    fn append(&self, frame: Vec<u8>, sync: bool, steps: Steps<'_>) -> Result<IoDone, JournalError> {
        let mut journal = self.journal();
        let end = match frame.is_empty() {
            true => journal.position(),
            false => steps.step(Layer::Store, "journal append", || journal.append(&frame))?,
        };
        if sync {
            steps.step(Layer::Disk, "journal sync", || journal.sync())?;
        }
        Ok(IoDone::Journaled { end, used: journal.used(), frame })
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, Journal> {
        // Every method leaves the journal consistent, even after a panic.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stream_call(&self, call: StreamCall) -> Result<StreamDone, StoreError> {
        let store = &self.store;
        match call {
            StreamCall::Stat(inos) | StreamCall::TryStat(inos) => {
                let stats = inos.into_iter().map(|ino| store.stream_stat(ino)).collect::<Result<_, _>>()?;
                return Ok(StreamDone::Stats(stats));
            }
            StreamCall::Measure(files) => {
                let stats =
                    files.into_iter().map(|(ino, _)| store.stream_stat(ino)).collect::<Result<_, _>>()?;
                return Ok(StreamDone::Stats(stats));
            }
            StreamCall::Fill { ino, bytes, size, mtime, sync, .. } => {
                store.stream_create(ino)?;
                store.stream_truncate(ino, 0)?;
                store.stream_write(ino, 0, &bytes)?;
                store.stream_truncate(ino, size)?;
                store.stream_set_mtime(ino, mtime)?;
                if sync || self.sync {
                    store.stream_sync(ino)?;
                }
            }
            StreamCall::Write { ino, offset, bytes } => {
                store.stream_write(ino, offset, &bytes).and_then(|()| self.changed(ino))?;
            }
            StreamCall::Finalise { ino, .. } => store.stream_finalise(ino)?,
            StreamCall::Truncate { ino, size, .. } => {
                store.stream_truncate(ino, size).and_then(|()| self.changed(ino))?;
            }
            StreamCall::SetMtime { ino, mtime } => {
                store.stream_set_mtime(ino, mtime).and_then(|()| self.changed(ino))?;
            }
            StreamCall::Sync { ino } => store.stream_sync(ino)?,
            StreamCall::Remove { ino } => store.stream_remove(ino)?,
            StreamCall::SyncStore => store.sync_all()?,
            // For data servers only.
            StreamCall::Precreate | StreamCall::Discard | StreamCall::SyncServers => {}
        }
        Ok(StreamDone::Done)
    }

    /// Reads into the thread's buffer.
    pub fn read_stream<'a>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Errno> {
        let size = size as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let read = self.store.stream_read(ino, offset, &mut buffer[..size]).map_err(logged)?;
        Ok(&buffer[..read])
    }

    /// Reads what the page cache has; returns true if that is everything.
    pub fn read_cached(&self, ino: Ino, offset: u64, size: u32, reading: &mut Reading) -> bool {
        reading.buffer.resize(size as usize, 0);
        // On an error the read is repeated from the disk.
        let read = self.store.stream_read_cached(ino, offset, &mut reading.buffer).unwrap_or_default();
        (reading.read, reading.is_whole) = read;
        reading.is_whole
    }

    /// Reads the rest from the disk and returns the bytes.
    pub fn read_rest(&self, ino: Ino, offset: u64, size: u32, reading: Reading) -> Result<Vec<u8>, Errno> {
        let Reading { mut buffer, mut read, is_whole } = reading;
        if !is_whole {
            buffer.resize(size as usize, 0);
            let rest = offset.saturating_add(read as u64);
            read += self.store.stream_read(ino, rest, &mut buffer[read..]).map_err(logged)?;
        }
        buffer.truncate(read);
        Ok(buffer)
    }

    /// Executes stream I/O. `data`: the bytes to write.
    pub fn stream_io(&self, io: StreamIo, data: &[u8]) -> Result<Reply, Errno> {
        let StreamIo { ino, op, .. } = io;
        let done = self.store.stream_io(ino, op, data);
        let done =
            done.and_then(|reply| if op.is_change() { self.changed(ino).map(|()| reply) } else { Ok(reply) });
        done.map_err(logged)
    }

    /// Flush-behind after a write of `length` bytes at `offset`: returns the range that is being
    /// written out.
    pub fn follow(&self, ino: Ino, offset: u64, length: u64) -> Option<Range<u64>> {
        if self.sync {
            return None;
        }
        self.writeback.follow(offset, length, || self.stream_file(ino))
    }

    /// Makes a change durable if the option `sync` requires it.
    fn changed(&self, ino: Ino) -> Result<(), StoreError> {
        if self.sync { self.store.stream_sync(ino) } else { Ok(()) }
    }

    /// The file of a stream, for passthrough.
    pub fn stream_file(&self, ino: Ino) -> Option<Arc<File>> {
        self.store.stream_file(ino).map_err(logged).ok().flatten()
    }

    /// Space for the bytes of big files.
    pub fn space(&self) -> Result<Space, Errno> {
        self.store.space().map_err(logged)
    }

    pub fn pools(&self) -> Vec<StorePool> {
        self.store.pools()
    }

    /// Space for the tables and the journal.
    pub fn free_space(&self) -> Result<u64, StoreError> {
        self.store.free_for_metadata()
    }

    /// One step of table maintenance; returns true if there is more to do.
    pub fn maintain(&self) -> bool {
        self.store.maintain().unwrap_or_else(|error| {
            tracing::warn!(%error, "maintenance of the tables failed and will be retried");
            false
        })
    }
}

fn not_written(error: &JournalError) -> Errno {
    tracing::error!(%error, "the journal cannot be written: the file system is read-only until mounted again");
    Errno::EIO
}

/// Reads the records of a load.
pub fn load(store: &dyn Store, load: &Load) -> Result<IoDone, Errno> {
    espalier_standby::load(store, load).map_err(logged)
}

/// The error number of a store error; errors other than the caller's are logged.
pub fn logged(error: StoreError) -> Errno {
    let errno = error.errno();
    if matches!(errno, Errno::EIO | Errno::ENOSPC) && !matches!(error, StoreError::Failed { .. }) {
        tracing::error!(%error, "the store failed");
    } else {
        tracing::debug!(%error, "the store rejected an operation");
    }
    errno
}
