//! Storage of a simulated metadata server: a store and a journal on a disk of its own, which may
//! lose power, or in objects that servers share.

mod medium;
mod migration;
mod osds;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use espalier_meta::{
    Check, Config, Format, Io, IoDone, Load, Meta, RecoveryError, StreamCall, StreamDone, Super,
};
use espalier_proto::{Errno, Ino, ObjectId, Position, Rank, Reply, Space, StreamIo, TableWrite, Time};
use espalier_standby::{BegunRecovery, FollowError, FollowedState};
use espalier_store::{
    FormatError, Journal, JournalError, MemoryEngine, MigrationState, MovableStore, StartError, Store,
    StoreError, Superblock,
};

use crate::disk::DiskRequest;
use crate::time::Nanos;
use medium::Medium;
pub use medium::{StoreFault, StoreKind};
pub use migration::StepDeviation;
use migration::{FoundStores, NamedMedium, UnfinishedMigration};
pub use osds::{FailedOsds, OSDS, osd_of};

/// See the module description.
pub struct Storage {
    superblock: Superblock,
    store: Arc<MovableStore>,
    journal: Arc<Mutex<Journal>>,
    own: NamedMedium,
    unfinished: Option<UnfinishedMigration>,
    /// Sources of migrations that have ended.
    former: Vec<NamedMedium>,
    /// False for a mutant that does not note changes while the store is migrated.
    pub notes_changes: bool,
    /// Requests to the store exceed their time limit.
    times_out: Cell<bool>,
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

/// Frames that a mutant does not replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostFrames {
    None,
    Last,
    /// Those that a standby has not followed, if it has followed others.
    Unfollowed,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    #[error(transparent)]
    Begin(#[from] FollowError),
    #[error("the tables have no first record")]
    Empty,
    #[error(transparent)]
    Migration(#[from] StartError),
    #[error("source and destination of a migration can both be opened")]
    TwoStores,
    #[error("neither source nor destination of a migration can be opened")]
    NoStore,
}

/// Approximate size on disk of a record, or of a run of dentries, in bytes.
const RECORD: usize = 4096;
const DENTRIES: usize = 64 << 10;
/// Name of the first store of a rank.
const FIRST: &str = "store 0";
/// Term of the lock of a shared store. It does not end by itself: the next holder breaks it, after
/// it has fenced the earlier ones.
const TERM: Duration = Duration::from_secs(1 << 30);
/// Largest number of operations on objects that a server has carried out of a checkpoint's end when
/// it is killed.
pub const STEPS: u64 = 12;

impl Storage {
    /// An empty file system, or another rank's part of one.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn format(config: &Config, time: Time) -> Result<Self, StorageError> {
        let superblock = medium::identity(config)?;
        let tag = superblock.tag_of(config.rank);
        let medium = Medium::format(StoreKind::Disk, config, tag, MigrationState::None)?;
        let mut storage = Self::open(NamedMedium { name: FIRST.into(), medium }, superblock)?;
        storage.store.stage(first_records(config, time))?;
        storage.store.publish()?;
        storage.appended.push_back(Appended { first: 0, end: Position(0), when: Nanos::ZERO });
        Ok(storage)
    }

    /// Opens a store; its journal is not replayed.
    fn open(own: NamedMedium, superblock: Superblock) -> Result<Self, StorageError> {
        let (store, journal) = own.medium.open(&superblock)?;
        Ok(Self {
            superblock,
            store: Arc::new(MovableStore::new(store)),
            journal: Arc::new(Mutex::new(journal)),
            own,
            unfinished: None,
            former: Vec::new(),
            notes_changes: true,
            times_out: Cell::new(false),
            unsynced: 0,
            staged: 0,
            appended: VecDeque::new(),
        })
    }

    /// Opens the store of a rank that servers share; its journal is not replayed.
    ///
    /// # Errors
    /// Another server has the rank's lock, or has fenced this one; the store is damaged.
    pub fn open_shared(
        engine: &Arc<MemoryEngine>,
        superblock: &Superblock,
        rank: Rank,
    ) -> Result<Self, StorageError> {
        let superblock = Superblock { rank, ..superblock.clone() };
        let medium = Medium::Objects(Arc::clone(engine));
        Self::open(NamedMedium { name: "the shared store".into(), medium }, superblock)
    }

    /// Writes the first records of a rank of an empty file system.
    ///
    /// # Errors
    /// As [`Self::open_shared`].
    pub fn format_shared(&self, config: &Config, time: Time) -> Result<(), StorageError> {
        self.store.stage(first_records(config, time))?;
        Ok(self.store.publish()?)
    }

    /// The storage after a crash, and the remains of the journal. Objects lose nothing. A migration
    /// that was interrupted in its last steps is completed.
    ///
    /// # Errors
    /// The journal is invalid; [`StorageError::TwoStores`].
    pub fn crash(&self, loss: Loss) -> Result<(Self, Left), StorageError> {
        let FoundStores { present, unfinished } = self.found_after(loss)?;
        let mut found = Self::open(present, self.superblock.clone())?;
        (found.unfinished, found.former) = (unfinished, self.former.clone());
        found.notes_changes = self.notes_changes;
        let tables = Super::parse(&found.first_record()?).ok_or(StorageError::Empty)?;
        let end = found.journal().replay(Position(tables.journal), |_, _| ())?;
        let left = self.left(end, tables.sequence);
        found.appended.push_back(Appended { first: 0, end, when: left.until });
        Ok((found, left))
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store as the users have it.
    fn used(&self) -> &dyn Store {
        match &self.own.medium {
            Medium::Disk { store, .. } if !self.notes_changes => store.as_ref(),
            _ => self.store.as_ref(),
        }
    }

    /// Ends the process that has opened shared objects. `steps`: of the end of a checkpoint, if one
    /// is under way, that are carried out; nothing later is.
    pub fn kill(&mut self, steps: Option<u64>) {
        let Medium::Objects(engine) = &self.own.medium else { return };
        if let Some(steps) = steps {
            engine.end_after(steps);
            // The process does not learn the outcome.
            let _ = self.store.publish();
        }
        engine.end_after(0);
    }

    /// Requests to objects on these OSDs exceed their time limit. Returns true if some did before.
    pub fn set_time_out(&self, osds: Option<FailedOsds>) -> bool {
        let Medium::Objects(engine) = &self.own.medium else { return false };
        let is_set = osds.is_some();
        engine.set_time_out(osds.map(FailedOsds::into_time_out));
        self.times_out.replace(is_set)
    }

    /// Sets the time of later changes.
    pub fn set_now(&self, now: Time) {
        self.own.medium.set_now(now);
    }

    fn is_in_objects(&self) -> bool {
        matches!(self.own.medium, Medium::Objects(_))
    }

    /// Recovers the metadata machine. `loses_tail`: a mutant ignores the journal's last frame.
    ///
    /// # Errors
    /// [`StorageError`]
    pub fn recover(&mut self, config: &Config, loses_tail: bool) -> Result<Meta, StorageError> {
        let lost = if loses_tail { LostFrames::Last } else { LostFrames::None };
        self.recover_followed(config, None, lost).map(|(meta, _)| meta)
    }

    /// As [`Self::recover`], with what a standby has followed. Also returns true if that was used.
    ///
    /// # Errors
    /// [`StorageError`]
    pub fn recover_followed(
        &mut self,
        config: &Config,
        followed: Option<FollowedState>,
        lost: LostFrames,
    ) -> Result<(Meta, bool), StorageError> {
        let store = Arc::clone(&self.store);
        let store = store.as_ref();
        let first = self.first_record()?;
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = espalier_standby::begin(store, &journal, first, config.clone(), followed)?;
        let BegunRecovery { mut recovery, rest } = begun;
        let mut fetch = |wanted: &Load| load(store, wanted);
        let (mut failed, mut last) = (None, Vec::new());
        let mut replay = |frame: &[u8]| {
            if failed.is_none() {
                failed = recovery.frame(frame, &mut fetch).err();
            }
        };
        rest.replay(&mut journal, |frame| match lost {
            LostFrames::Last => {
                let before = std::mem::replace(&mut last, frame.to_vec());
                if !before.is_empty() {
                    replay(&before);
                }
            }
            LostFrames::Unfollowed if rest.is_followed() => {}
            LostFrames::Unfollowed | LostFrames::None => replay(frame),
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        journal.forget_torn()?;
        let new_streams = store.new_streams()?;
        let size = |ino| Ok::<_, StoreError>((ino, store.stream_stat(ino)?.size));
        let sizes = recovery.size_dirty().into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
        let (end, used) = (journal.position(), journal.used());
        drop(journal);
        let (meta, calls) = recovery.finish(end, used, &new_streams, &sizes, &mut fetch)?;
        for call in calls {
            self.stream_call(call)?;
        }
        Ok((meta, rest.is_followed()))
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
        if let Medium::Disk { file, .. } = &self.own.medium {
            file.fail_after(if fails { 0 } else { u64::MAX });
        }
    }

    /// The disk request of an I/O.
    pub fn access(&self, io: &Io) -> DiskRequest {
        match io {
            Io::Journal { frame, .. } => DiskRequest::Sync(self.unsynced + frame.len()),
            Io::Sync => DiskRequest::Sync(self.unsynced),
            Io::Publish { .. } => DiskRequest::Sync(self.staged),
            Io::Stage { writes } => {
                let bytes = |write: &TableWrite| write.key.len() + write.value.as_ref().map_or(0, Vec::len);
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
        let journal = self.journal();
        DiskRequest::Transfer(usize::try_from(journal.capacity().min(journal.used() + 4096)).unwrap_or(0))
    }

    /// Executes an I/O of the machine that concerns only this store.
    ///
    /// # Errors
    /// As returned to the machine.
    pub fn execute(&mut self, io: Io, now: Nanos) -> Result<IoDone, Errno> {
        match io {
            Io::Load(wanted) => load(self.store.as_ref(), &wanted),
            Io::Stream(call, _) => self.stream_call(call).map(IoDone::Stream).map_err(|error| error.errno()),
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
                self.used().stage(writes.to_vec()).map(|()| IoDone::Staged).map_err(|error| error.errno())
            }
            Io::Publish { trim } => {
                if self.is_in_objects() {
                    // Trimming would lose the events that repeat the removals.
                    self.store.sync_removed_streams().map_err(|error| error.errno())?;
                    self.store.sync_new_streams().map_err(|error| error.errno())?;
                }
                self.used().publish().map_err(|error| error.errno())?;
                self.staged = 0;
                let mut journal = self.journal();
                journal.trim(trim);
                Ok(IoDone::Published { used: journal.used() })
            }
            Io::Yield | Io::Rest | Io::WriteDelay => Ok(IoDone::Paused),
            // Servers that share a store have no data servers.
            Io::Admit { ending, .. } => {
                self.store.fence_clients(&ending).map(|()| IoDone::Admitted).map_err(|error| error.errno())
            }
            // These do not concern a store.
            Io::Groups { .. } | Io::Decide(_) => Err(Errno::EIO),
        }
    }

    /// Appends a frame to the journal, not durably.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn append(&mut self, frame: Vec<u8>, now: Nanos) -> Result<IoDone, Errno> {
        let mut journal = self.journal();
        let end = if frame.is_empty() {
            journal.position()
        } else {
            journal.append(&frame).map_err(|_| Errno::EIO)?
        };
        let (durable, used) = (journal.durable(), journal.used());
        drop(journal);
        self.unsynced += frame.len();
        let first = frame.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        self.appended.push_back(Appended { first, end, when: now });
        while self.appended.get(1).is_some_and(|frame| frame.end <= durable) {
            self.appended.pop_front();
        }
        Ok(IoDone::Journaled { end, used, frame })
    }

    /// Makes the journal durable.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn sync(&mut self) -> Result<(), Errno> {
        self.unsynced = 0;
        if self.is_in_objects() {
            // An event may refer to a new stream.
            self.store.sync_new_streams().map_err(|error| error.errno())?;
        }
        self.journal().sync().map(drop).map_err(|_| Errno::EIO)
    }

    /// Executes a client's stream operation.
    ///
    /// # Errors
    /// As returned to the client.
    pub fn stream(&self, io: StreamIo, data: &[u8]) -> Result<Reply, Errno> {
        let done = self.used().stream_io(io.ino, io.op, data).map_err(|error| error.errno())?;
        if io.op.is_change() && self.is_in_objects() {
            // Another server may take over at any time.
            self.store.stream_sync(io.ino).map_err(|error| error.errno())?;
        }
        Ok(done)
    }

    fn stream_call(&self, call: StreamCall) -> Result<StreamDone, StoreError> {
        let changed = match &call {
            StreamCall::Fill { ino, .. }
            | StreamCall::Write { ino, .. }
            | StreamCall::Truncate { ino, .. }
            | StreamCall::SetMtime { ino, .. } => Some(*ino).filter(|_| self.is_in_objects()),
            _ => None,
        };
        let done = stream_call(self.used(), call)?;
        changed.map_or(Ok(()), |ino| self.store.stream_sync(ino))?;
        Ok(done)
    }

    pub fn space(&self) -> Space {
        self.store.space().unwrap_or_default()
    }

    /// Free bytes for the tables and the journal.
    pub fn free_for_metadata(&self) -> u64 {
        self.store.free_for_metadata().unwrap_or_default()
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
        let mut check = Check::new(config.hash_key, config.rank);
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

/// The first records of a rank of an empty file system.
fn first_records(config: &Config, time: Time) -> Vec<TableWrite> {
    let format = Format { time, uid: 0, gid: 0, perm: 0o777 };
    if config.rank == Rank(0) { format.writes() } else { Format::nothing(config.rank) }
}

fn load(store: &dyn Store, wanted: &Load) -> Result<IoDone, Errno> {
    espalier_standby::load(store, wanted).map_err(|error| error.errno())
}

fn stream_call(store: &dyn Store, call: StreamCall) -> Result<StreamDone, StoreError> {
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
        let mut replies = input(
            meta,
            storage,
            Input::Request { from, id, below: id, follows: Vec::new(), caller, request },
        );
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
        let mut meta = storage.recover(&config, false).unwrap();
        ask(&mut meta, &mut storage, 1, mkdir("kept")).unwrap();
        input(&mut meta, &mut storage, Input::Tick);
        ask(&mut meta, &mut storage, 2, mkdir("open")).unwrap();
        // In memory only.
        let mut storage = storage.crash(Loss::Process).unwrap().0;
        let mut meta = storage.recover(&config, false).unwrap();
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
            let mut meta = storage.recover(&config, false).unwrap();
            ask(&mut meta, &mut storage, 1, mkdir("kept")).unwrap();
            input(&mut meta, &mut storage, Input::Tick);
            storage.append(b"no frame of the machine's".to_vec(), Nanos(7)).unwrap();
            assert_eq!(storage.access(&Io::Sync), DiskRequest::Sync(25));
            let (mut storage, left) = storage.crash(Loss::Power(seed)).unwrap();
            assert!(left == ALL || left == Left { until: Nanos::ZERO, lost: Nanos(7) });
            // The frame is either intact, and fails to decode, or lost.
            if let Ok(mut meta) = storage.recover(&config, false) {
                assert_ne!(left, ALL);
                assert!(matches!(ask(&mut meta, &mut storage, 3, lookup("kept")), Ok(Reply::Entry(_))));
            }
        }
    }

    #[test]
    fn failed_disk_writes_nothing() {
        let config = config();
        let mut storage = Storage::format(&config, Time::new(1, 0)).unwrap();
        storage.recover(&config, false).unwrap();
        storage.fail(true);
        assert!(matches!(storage.append(vec![0; 16], Nanos::ZERO), Err(Errno::EIO)));
        storage.fail(false);
        assert!(storage.append(vec![0; 16], Nanos::ZERO).is_ok());
    }
}
