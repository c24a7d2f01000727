//! Storage of a simulated metadata server: a store and a journal in memory, with the crash
//! behaviour of a disk.

use std::collections::VecDeque;
use std::ops::Bound;

use espalier_meta::{
    Check, Config, Format, Io, IoDone, Load, Meta, Recovery, RecoveryError, StreamCall, StreamDone, Super,
};
use espalier_proto::{Errno, Ino, ObjectId, Position, Rank, Reply, Space, StreamIo, Time, pieces_of};
use espalier_store::{Journal, JournalError, MemoryStore, SimFile, Store, StoreError};

use crate::disk::DiskRequest;
use crate::time::Nanos;

/// See the module description.
pub struct Storage {
    pub store: MemoryStore,
    journal: Journal<SimFile>,
    /// Bytes appended to the journal since its last sync, and staged since the last publish.
    unsynced: usize,
    staged: usize,
    /// Frames that are not durable, preceded by the last durable one.
    appended: VecDeque<Appended>,
}

/// A frame in the journal.
struct Appended {
    /// Sequence number of its first event.
    first: u64,
    end: Position,
    when: Nanos,
}

/// Remains of the appended frames after a crash, in the journal or in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Frames appended up to this time survive.
    pub until: Nanos,
    /// Frames appended from this time on are lost.
    pub lost: Nanos,
}

/// The kind of a server's crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process ends: all writes survive.
    Process,
    /// Loss of power: unsynced journal writes are lost or torn, depending on the number.
    Power(u64),
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    #[error("the tables have no first record")]
    Empty,
}

/// Approximate size on disk of a record, or of a run of dentries, in bytes.
const RECORD: usize = 4096;
const DENTRIES: usize = 64 << 10;
const TAG: u64 = 1;

impl Storage {
    /// An empty file system, or another rank's part of one.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn format(config: &Config, time: Time) -> Result<Self, StorageError> {
        let bytes =
            usize::try_from(Journal::<SimFile>::file_bytes(config.journal_capacity)).unwrap_or(usize::MAX);
        let journal = Journal::create(SimFile::new(bytes), config.journal_capacity, TAG)?;
        let store = MemoryStore::new();
        let format = Format { time, uid: 0, gid: 0, perm: 0o777 };
        let first = if config.rank == Rank(0) { format.writes() } else { Format::nothing(config.rank) };
        store.stage(first)?;
        store.publish()?;
        let appended = [Appended { first: 0, end: Position(0), when: Nanos::ZERO }].into();
        Ok(Self { store, journal, unsynced: 0, staged: 0, appended })
    }

    /// The storage after a crash, and the remains of the journal.
    ///
    /// # Errors
    /// The journal is invalid.
    pub fn crash(&self, loss: Loss) -> Result<(Self, Left), StorageError> {
        let (store, file) = match loss {
            Loss::Process => (self.store.reopen(), self.journal.file().reopen()),
            Loss::Power(seed) => (self.store.crash(), self.journal.file().crash(seed)),
        };
        file.fail_after(u64::MAX);
        let journal = Journal::open(file)?;
        let mut found = Self { store, journal, unsynced: 0, staged: 0, appended: VecDeque::new() };
        let tables = Super::parse(&found.first_record()?).ok_or(StorageError::Empty)?;
        let end = found.journal.replay(Position(tables.journal), |_, _| ())?;
        let left = self.left(end, tables.sequence);
        found.appended.push_back(Appended { first: 0, end, when: left.until });
        Ok((found, left))
    }

    /// Recovers the metadata machine.
    ///
    /// # Errors
    /// [`StorageError`]
    pub fn recover(&mut self, config: &Config) -> Result<Meta, StorageError> {
        let store = &self.store;
        let orphans = store.scan(ObjectId::ORPHANS, Bound::Unbounded, usize::MAX)?;
        let sessions = store.scan(ObjectId::SESSIONS, Bound::Unbounded, usize::MAX)?;
        let (mut recovery, from) =
            Recovery::begin(config.clone(), &self.first_record()?, &orphans, &sessions)?;
        let mut fetch = |wanted: &Load| load(store, wanted);
        let mut failed = None;
        self.journal.replay(from, |_, frame| {
            if failed.is_none() {
                failed = recovery.frame(frame, &mut fetch).err();
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        self.journal.forget_torn()?;
        let new_streams = store.new_streams()?;
        let size = |ino| Ok::<_, StoreError>((ino, store.stream_stat(ino)?.size));
        let sizes = recovery.size_dirty().into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
        let (end, used) = (self.journal.position(), self.journal.used());
        let (meta, calls) = recovery.finish(end, used, &new_streams, &sizes, &mut fetch)?;
        for call in calls {
            stream_call(store, call)?;
        }
        Ok(meta)
    }

    fn first_record(&self) -> Result<Vec<u8>, StorageError> {
        self.store.get(ObjectId::SUPER, b"")?.ok_or(StorageError::Empty)
    }

    /// Remains of appended frames if the journal ends at `end` and the tables contain the events up
    /// to `sequence`.
    fn left(&self, end: Position, sequence: u64) -> Left {
        let mut left = Left { until: Nanos::ZERO, lost: Nanos::NEVER };
        for (at, frame) in self.appended.iter().enumerate() {
            let is_in_tables = self.appended.get(at + 1).is_some_and(|next| next.first <= sequence + 1);
            let is_whole = frame.end <= end || is_in_tables;
            if is_whole || frame.first <= sequence {
                left.until = frame.when;
            }
            if !is_whole {
                left.lost = left.lost.min(frame.when);
            }
        }
        left
    }

    /// Makes all writes fail, or succeed again.
    pub fn fail(&self, fails: bool) {
        self.journal.file().fail_after(if fails { 0 } else { u64::MAX });
    }

    /// The disk request of an I/O.
    pub fn access(&self, io: &Io) -> DiskRequest {
        match io {
            Io::Journal { frame, .. } => DiskRequest::Sync(self.unsynced + frame.len()),
            Io::Sync => DiskRequest::Sync(self.unsynced),
            Io::Publish { .. } => DiskRequest::Sync(self.staged),
            Io::Stage { writes } => {
                let bytes = |write: &espalier_proto::TableWrite| {
                    write.key.len() + write.value.as_ref().map_or(0, Vec::len)
                };
                DiskRequest::Transfer(writes.iter().map(bytes).sum())
            }
            Io::Load(Load::Dentries { .. }) => DiskRequest::Transfer(DENTRIES),
            Io::Stream(StreamCall::Fill { bytes, sync: true, .. }, _) => DiskRequest::Sync(bytes.len()),
            Io::Stream(StreamCall::Fill { bytes, .. }, _) => DiskRequest::Transfer(bytes.len()),
            Io::Stream(StreamCall::Write { bytes, .. }, _) => DiskRequest::Transfer(bytes.len()),
            Io::Stream(StreamCall::Sync { .. } | StreamCall::SyncStore, _) => DiskRequest::Sync(0),
            _ => DiskRequest::Transfer(RECORD),
        }
    }

    /// The disk request of a recovery.
    pub fn to_replay(&self) -> DiskRequest {
        DiskRequest::Transfer(
            usize::try_from(self.journal.capacity().min(self.journal.used() + 4096)).unwrap_or(0),
        )
    }

    /// Executes an I/O of the machine that concerns only this store.
    ///
    /// # Errors
    /// As returned to the machine.
    pub fn execute(&mut self, io: Io, now: Nanos) -> Result<IoDone, Errno> {
        match io {
            Io::Load(wanted) => load(&self.store, &wanted),
            Io::Stream(call, _) => {
                stream_call(&self.store, call).map(IoDone::Stream).map_err(|error| error.errno())
            }
            Io::Journal { frame, sync } => {
                let done = self.append(frame, now)?;
                if sync {
                    self.sync()?;
                }
                Ok(done)
            }
            Io::Sync => self.sync().map(|()| IoDone::Synced),
            Io::Stage { writes } => {
                if let DiskRequest::Transfer(bytes) = self.access(&Io::Stage { writes: writes.clone() }) {
                    self.staged += bytes;
                }
                self.store.stage(writes.to_vec()).map(|()| IoDone::Staged).map_err(|error| error.errno())
            }
            Io::Publish { trim } => {
                self.store.publish().map_err(|error| error.errno())?;
                self.staged = 0;
                self.journal.trim(trim);
                Ok(IoDone::Published { used: self.journal.used() })
            }
            Io::Yield | Io::Rest | Io::WriteDelay => Ok(IoDone::Paused),
            // These do not concern a store.
            Io::Groups { .. } | Io::Admit { .. } => Err(Errno::EIO),
        }
    }

    /// Appends a frame to the journal, not durably.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn append(&mut self, frame: Vec<u8>, now: Nanos) -> Result<IoDone, Errno> {
        let end = if frame.is_empty() {
            self.journal.position()
        } else {
            self.journal.append(&frame).map_err(|_| Errno::EIO)?
        };
        self.unsynced += frame.len();
        let first = frame.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        self.appended.push_back(Appended { first, end, when: now });
        let durable = self.journal.durable();
        while self.appended.get(1).is_some_and(|frame| frame.end <= durable) {
            self.appended.pop_front();
        }
        Ok(IoDone::Journaled { end, used: self.journal.used(), frame })
    }

    /// Makes the journal durable.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn sync(&mut self) -> Result<(), Errno> {
        self.unsynced = 0;
        self.journal.sync().map(drop).map_err(|_| Errno::EIO)
    }

    /// Executes a client's stream operation.
    ///
    /// # Errors
    /// As returned to the client.
    pub fn stream(&self, io: StreamIo, data: &[u8]) -> Result<Reply, Errno> {
        let store = &self.store;
        let done = match io {
            StreamIo::Read { ino, offset, size } => {
                let mut bytes = vec![0; size as usize];
                store.stream_read(ino, offset, &mut bytes).map(|read| {
                    bytes.truncate(read);
                    Reply::Bytes(bytes.into())
                })
            }
            StreamIo::Write { ino, offset, .. } => {
                store.stream_write(ino, offset, data).map(|()| Reply::Written(data.len() as u32))
            }
            StreamIo::WriteList { ino, .. } => pieces_of(data)?
                .into_iter()
                .try_for_each(|(offset, piece)| store.stream_write(ino, offset, piece))
                .map(|()| Reply::Written(data.len() as u32)),
            StreamIo::Allocate { ino, offset, length, mode } => {
                store.stream_allocate(ino, offset, length, mode).map(|()| Reply::Done)
            }
            StreamIo::Seek { ino, offset, what } => {
                return match store.stream_seek(ino, offset, what) {
                    Ok(found) => found.map(Reply::Offset).ok_or(Errno::ENXIO),
                    Err(error) => Err(error.errno()),
                };
            }
            StreamIo::Copy { from, from_offset, to, to_offset, length } => store
                .stream_copy(from, from_offset, to, to_offset, length)
                .map(|copied| Reply::Written(copied as u32)),
        };
        done.map_err(|error| error.errno())
    }

    pub fn space(&self) -> Space {
        self.store.space().unwrap_or_default()
    }

    /// Attributes of a file's stream.
    pub fn stream_stat(&self, ino: Ino) -> Result<espalier_proto::StreamStat, Errno> {
        self.store.stream_stat(ino).map_err(|error| error.errno())
    }

    /// Runs `fsck` on the tables and streams.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn check(&self, config: &Config) -> Result<Check, StorageError> {
        let mut check = Check::new(config.hash_key);
        for record in self.store.records() {
            let (object, key, value) = record?;
            check.record(object, &key, &value);
        }
        for ino in self.store.streams()? {
            check.stream(ino, self.store.stream_stat(ino)?.size);
        }
        Ok(check)
    }
}

fn load(store: &MemoryStore, wanted: &Load) -> Result<IoDone, Errno> {
    let done = match wanted {
        Load::Record { object, key } => store.get(*object, key).map(IoDone::Record),
        Load::Dentries { dir, from, limit } => {
            let object = ObjectId::fragment(*dir, 0);
            store.scan(object, Bound::Included(&from.to_be_bytes()), *limit).map(IoDone::Dentries)
        }
    };
    done.map_err(|error| error.errno())
}

fn stream_call(store: &MemoryStore, call: StreamCall) -> Result<StreamDone, StoreError> {
    let stats = |inos: &mut dyn Iterator<Item = Ino>| {
        inos.map(|ino| store.stream_stat(ino)).collect::<Result<_, _>>().map(StreamDone::Stats)
    };
    match call {
        StreamCall::Stat(inos) | StreamCall::TryStat(inos) => return stats(&mut inos.into_iter()),
        StreamCall::Measure(files) => return stats(&mut files.into_iter().map(|(ino, _)| ino)),
        StreamCall::Fill { ino, bytes, size, mtime, sync, .. } => {
            store.stream_create(ino)?;
            store.stream_truncate(ino, 0)?;
            store.stream_write(ino, 0, &bytes)?;
            store.stream_truncate(ino, size)?;
            store.stream_set_mtime(ino, mtime)?;
            if sync {
                store.stream_sync(ino)?;
            }
        }
        StreamCall::Write { ino, offset, bytes } => store.stream_write(ino, offset, &bytes)?,
        StreamCall::Truncate { ino, size, .. } => store.stream_truncate(ino, size)?,
        StreamCall::SetMtime { ino, mtime } => store.stream_set_mtime(ino, mtime)?,
        StreamCall::Sync { ino } => store.stream_sync(ino)?,
        StreamCall::Finalise { ino, .. } => store.stream_finalise(ino)?,
        StreamCall::Remove { ino } => store.stream_remove(ino)?,
        StreamCall::SyncStore => store.sync_all()?,
        // These concern only data servers.
        StreamCall::Precreate | StreamCall::Discard | StreamCall::SyncServers => {}
    }
    Ok(StreamDone::Done)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use espalier_meta::{Input, Now, Outbox};
    use espalier_proto::{Caller, ClientId, Name, NewNode, Request, RequestId};

    use super::*;

    fn config() -> Config {
        Config { reserve: 0, ..Config::new([7; 16], 64, 2 << 20) }
    }

    /// Passes an input to the machine and executes all resulting I/O.
    fn input(meta: &mut Meta, storage: &mut Storage, input: Input) -> Vec<Result<Reply, Errno>> {
        let mut out = Outbox::default();
        let now = Now { time: Time::new(1, 0), uptime_ms: 1, queued: 0 };
        meta.on(now, input, &mut out);
        while let Some((id, io)) = out.io.pop() {
            // Virtual time does not pass here.
            if let Io::WriteDelay = io {
                continue;
            }
            let result = storage.execute(io, Nanos::ZERO);
            meta.on(now, Input::Done { id, result }, &mut out);
        }
        out.replies.into_iter().map(|reply| reply.result).collect()
    }

    fn ask(meta: &mut Meta, storage: &mut Storage, id: u64, request: Request) -> Result<Reply, Errno> {
        let caller = Caller { uid: 0, gid: 0, pid: 1, groups: None };
        let (from, id) = (ClientId(1), RequestId(id));
        let mut replies = input(meta, storage, Input::Request { from, id, below: id, caller, request });
        replies.pop().unwrap()
    }

    fn mkdir(name: &str) -> Request {
        let (node, perm, umask, open, exclusive) = (NewNode::Directory, 0o755, 0, None, true);
        Request::Create {
            dir: Ino::ROOT,
            name: Name::new(name.as_bytes()).unwrap(),
            node,
            perm,
            umask,
            open,
            exclusive,
            writeback: None,
        }
    }

    fn lookup(name: &str) -> Request {
        Request::Lookup { dir: Ino::ROOT, name: Name::new(name.as_bytes()).unwrap() }
    }

    #[test]
    fn crash_loses_exactly_undurable_changes() {
        let config = config();
        let mut storage = Storage::format(&config, Time::new(1, 0)).unwrap();
        let mut meta = storage.recover(&config).unwrap();
        ask(&mut meta, &mut storage, 1, mkdir("kept")).unwrap();
        input(&mut meta, &mut storage, Input::Tick);
        ask(&mut meta, &mut storage, 2, mkdir("open")).unwrap();
        // In memory only.
        let mut storage = storage.crash(Loss::Process).unwrap().0;
        let mut meta = storage.recover(&config).unwrap();
        assert!(matches!(ask(&mut meta, &mut storage, 3, lookup("kept")), Ok(Reply::Entry(_))));
        assert!(matches!(ask(&mut meta, &mut storage, 4, lookup("open")), Ok(Reply::Absent { .. })));
        for _ in 0..3 {
            input(&mut meta, &mut storage, Input::Drain);
        }
        assert!(meta.is_idle());
        assert_eq!(storage.check(&config).unwrap().finish(), []);
    }

    #[test]
    fn synced_bytes_survive_loss_of_power() {
        const ALL: Left = Left { until: Nanos(7), lost: Nanos::NEVER };
        let config = config();
        for seed in 0..20 {
            let mut storage = Storage::format(&config, Time::new(1, 0)).unwrap();
            let mut meta = storage.recover(&config).unwrap();
            ask(&mut meta, &mut storage, 1, mkdir("kept")).unwrap();
            input(&mut meta, &mut storage, Input::Tick);
            storage.append(b"no frame of the machine's".to_vec(), Nanos(7)).unwrap();
            assert_eq!(storage.access(&Io::Sync), DiskRequest::Sync(25));
            let (mut storage, left) = storage.crash(Loss::Power(seed)).unwrap();
            assert!(left == ALL || left == Left { until: Nanos::ZERO, lost: Nanos(7) });
            // The frame is either intact, and fails to decode, or lost.
            if let Ok(mut meta) = storage.recover(&config) {
                assert_ne!(left, ALL);
                assert!(matches!(ask(&mut meta, &mut storage, 3, lookup("kept")), Ok(Reply::Entry(_))));
            }
        }
    }

    #[test]
    fn failed_disk_writes_nothing() {
        let config = config();
        let mut storage = Storage::format(&config, Time::new(1, 0)).unwrap();
        storage.fail(true);
        assert!(matches!(storage.append(vec![0; 16], Nanos::ZERO), Err(Errno::EIO)));
        storage.fail(false);
        assert!(storage.append(vec![0; 16], Nanos::ZERO).is_ok());
    }
}
