//! The disk below a machine: a store and a journal, which lose what is not durable when they crash.

use std::ops::Bound;
use std::path::Path;

use espalier_meta::{
    Check, Config, Finding, Format, Io, IoDone, Load, Meta, Recovery, StreamCall, StreamDone,
};
use espalier_proto::*;
use espalier_store::{
    FormatOptions, Journal, LocalStore, MemoryStore, RealFile, Store, StoreError, superblock,
};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A crash is a power failure: of streams and the journal, only what was synced is left.
    Memory,
    /// A crash is the end of the process: what was written is left.
    Local,
}

pub enum TestDisk {
    Memory(MemoryStore, Frames),
    Local(Box<(LocalStore, Journal<RealFile>)>, TempDir),
}

/// A journal in memory.
#[derive(Clone, Default)]
pub struct Frames {
    /// Each with the position after it.
    frames: Vec<(u64, Vec<u8>)>,
    /// Number of synced frames.
    synced: usize,
    end: u64,
}

impl TestDisk {
    /// An empty file system.
    pub fn new(engine: Engine, config: &Config) -> Self {
        let disk = match engine {
            Engine::Memory => Self::Memory(MemoryStore::new(), Frames::default()),
            Engine::Local => {
                // In memory if possible: no test needs a real sync.
                let fast = Path::new("/dev/shm");
                let dir = if fast.is_dir() { TempDir::new_in(fast) } else { TempDir::new() }.unwrap();
                let options = FormatOptions {
                    journal_bytes: config.journal_capacity,
                    hash_key: Some(config.hash_key),
                    ..FormatOptions::default()
                };
                superblock::format(dir.path(), &options).unwrap();
                Self::Local(Box::new(LocalStore::open(dir.path(), false).unwrap()), dir)
            }
        };
        let format = Format { time: Time::new(1, 0), uid: 0, gid: 0, perm: 0o755 };
        let is_first = config.rank == Rank(0);
        disk.store().stage(if is_first { format.writes() } else { Format::nothing(config.rank) }).unwrap();
        disk.store().publish().unwrap();
        disk
    }

    pub fn store(&self) -> &dyn Store {
        match self {
            Self::Memory(store, _) => store,
            Self::Local(local, _) => &local.0,
        }
    }

    /// Syncs the journal: a crash is then only the end of the process.
    pub fn sync_journal(&mut self) {
        self.sync();
    }

    /// The disk after a crash.
    #[must_use]
    pub fn crash(self) -> Self {
        match self {
            Self::Memory(store, mut journal) => {
                journal.frames.truncate(journal.synced);
                Self::Memory(store.crash(), journal)
            }
            Self::Local(local, dir) => {
                drop(local);
                Self::Local(Box::new(LocalStore::open(dir.path(), false).unwrap()), dir)
            }
        }
    }

    /// Recovers a machine from the disk.
    pub fn recover(&mut self, config: &Config) -> Meta {
        let first = self.store().get(ObjectId::SUPER, b"").unwrap().unwrap();
        let orphans = self.store().scan(ObjectId::ORPHANS, Bound::Unbounded, usize::MAX).unwrap();
        let sessions = self.store().scan(ObjectId::SESSIONS, Bound::Unbounded, usize::MAX).unwrap();
        let (mut recovery, from) = Recovery::begin(config.clone(), &first, &orphans, &sessions).unwrap();
        let (end, used) = match self {
            Self::Memory(store, journal) => {
                for (end, frame) in &journal.frames {
                    if *end > from.0 {
                        recovery.frame(frame, &mut |wanted| load(store, wanted)).unwrap();
                    }
                }
                (Position(journal.end), journal.used())
            }
            Self::Local(local, _) => {
                let (store, journal) = &mut **local;
                let replay =
                    |_, frame: &[u8]| recovery.frame(frame, &mut |wanted| load(store, wanted)).unwrap();
                journal.replay(from, replay).unwrap();
                journal.forget_torn().unwrap();
                (journal.position(), journal.used())
            }
        };
        let new_streams = self.store().new_streams().unwrap();
        let size = |ino| (ino, self.store().stream_stat(ino).unwrap().size);
        let sizes: Vec<_> = recovery.size_dirty().into_iter().map(size).collect();
        let fetch = &mut |wanted: &Load| load(self.store(), wanted);
        let (meta, calls) = recovery.finish(end, used, &new_streams, &sizes, fetch).unwrap();
        for call in calls {
            stream(self.store(), call).unwrap();
        }
        meta
    }

    pub fn execute(&mut self, io: Io) -> Result<IoDone, Errno> {
        match io {
            Io::Load(wanted) => load(self.store(), &wanted),
            Io::Groups { pid, .. } => Ok(IoDone::Groups([pid + 1000].into())),
            Io::Stream(call, _) => stream(self.store(), call).map(IoDone::Stream).map_err(|e| e.errno()),
            Io::Stage { writes } => {
                self.store().stage(writes.to_vec()).map(|()| IoDone::Staged).map_err(|e| e.errno())
            }
            Io::Publish { trim } => {
                self.store().publish().map_err(|e| e.errno())?;
                Ok(IoDone::Published { used: self.trim(trim) })
            }
            Io::Journal { frame, sync } => Ok(self.append(frame, sync)),
            Io::Sync => {
                self.sync();
                Ok(IoDone::Synced)
            }
            Io::Yield | Io::Rest | Io::WriteDelay => Ok(IoDone::Paused),
            Io::Admit { .. } => Ok(IoDone::Admitted),
            Io::Decide(_) => unreachable!("tests decide"),
        }
    }

    fn sync(&mut self) {
        match self {
            Self::Memory(_, journal) => journal.synced = journal.frames.len(),
            Self::Local(local, _) => drop(local.1.sync().unwrap()),
        }
    }

    fn append(&mut self, frame: Vec<u8>, sync: bool) -> IoDone {
        match self {
            Self::Memory(_, journal) => {
                journal.end += frame.len() as u64 + 8;
                journal.frames.push((journal.end, frame.clone()));
                if sync {
                    journal.synced = journal.frames.len();
                }
                IoDone::Journaled { end: Position(journal.end), used: journal.used(), frame }
            }
            Self::Local(local, _) => {
                let journal = &mut local.1;
                let end = if frame.is_empty() { journal.position() } else { journal.append(&frame).unwrap() };
                if sync {
                    journal.sync().unwrap();
                }
                IoDone::Journaled { end, used: journal.used(), frame }
            }
        }
    }

    fn trim(&mut self, to: Position) -> u64 {
        match self {
            Self::Memory(_, journal) => {
                let old = journal.frames.partition_point(|(end, _)| *end <= to.0);
                journal.frames.drain(..old);
                journal.synced = journal.synced.saturating_sub(old);
                journal.used()
            }
            Self::Local(local, _) => {
                local.1.trim(to);
                local.1.used()
            }
        }
    }

    /// The frames of the journal, in memory, since the last checkpoint.
    pub fn frames(&self) -> Vec<&[u8]> {
        match self {
            Self::Memory(_, journal) => journal.frames.iter().map(|(_, frame)| &frame[..]).collect(),
            Self::Local(..) => Vec::new(),
        }
    }

    /// Loses the journal.
    pub fn forget_journal(&mut self) {
        if let Self::Memory(_, journal) = self {
            journal.frames.clear();
            journal.synced = 0;
        }
    }

    /// `fsck` findings in the tables.
    pub fn check(&self, config: &Config) -> Vec<Finding> {
        self.checked(config).finish()
    }

    /// An unfinished check, which may become part of one of all ranks.
    pub fn checked(&self, config: &Config) -> Check {
        let mut check = Check::new(config.hash_key, config.rank);
        for record in self.store().records() {
            let (object, key, value) = record.unwrap();
            check.record(object, &key, &value);
        }
        for ino in self.store().streams().unwrap() {
            check.stream(ino, self.store().stream_stat(ino).unwrap().size);
        }
        check
    }
}

impl Frames {
    fn used(&self) -> u64 {
        self.frames.iter().map(|(_, frame)| frame.len() as u64 + 8).sum()
    }
}

fn load(store: &dyn Store, wanted: &Load) -> Result<IoDone, Errno> {
    let done = match wanted {
        Load::Record { object, key } => store.get(*object, key).map(IoDone::Record),
        Load::Dentries { dir, from, limit } => {
            let object = ObjectId::fragment(*dir, 0);
            store.scan(object, Bound::Included(&from.to_be_bytes()), *limit).map(IoDone::Dentries)
        }
    };
    done.map_err(|error| error.errno())
}

fn stream(store: &dyn Store, call: StreamCall) -> Result<StreamDone, StoreError> {
    match call {
        StreamCall::Stat(inos) | StreamCall::TryStat(inos) => {
            let stats = inos.into_iter().map(|ino| store.stream_stat(ino)).collect::<Result<_, _>>()?;
            return Ok(StreamDone::Stats(stats));
        }
        StreamCall::Measure(files) => {
            let stats = files.into_iter().map(|(ino, _)| store.stream_stat(ino)).collect::<Result<_, _>>()?;
            return Ok(StreamDone::Stats(stats));
        }
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
        // Only data servers execute these.
        StreamCall::Precreate | StreamCall::Discard | StreamCall::SyncServers => {}
    }
    Ok(StreamDone::Done)
}
