//! Formatting and recovery: builds a machine from the tables of the last checkpoint and the
//! journal's events after it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use espalier_proto::{Errno, FileType, Ino, ObjectId, Position, Rank, TableWrite, Time};

use crate::config::Config;
use crate::counts::InodeCounts;
use crate::event::Event;
use crate::journal::HeldOutput;
use crate::machine::Meta;
use crate::numbers::InodeNumbers;
use crate::outbox::IoDone;
use crate::provisional::ProvisionalStreams;
use crate::record::{Body, Directory, InoRecord, Inode, Rare, Super, encode};
use crate::state::{Location, SAME_HASH, State, Trashed};
use crate::step::{Load, Step, Stop, StreamCall, Wait};

/// The first checkpoint of a new file system: an empty root directory.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub time: Time,
    pub uid: u32,
    pub gid: u32,
    pub perm: u32,
}

impl Format {
    /// The empty root directory.
    pub fn root(&self) -> TableWrite {
        let root = Inode {
            ino: Ino::ROOT,
            kind: FileType::Directory,
            perm: self.perm,
            uid: self.uid,
            gid: self.gid,
            nlink: 2,
            rdev: 0,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            btime: self.time,
            body: Body::Directory(Directory::empty(Ino::ROOT)),
            acl: None,
            default_acl: None,
            has_xattrs: false,
            rare: Rare::default(),
        };
        let (object, key) = InoRecord::Inode.place(Ino::ROOT);
        TableWrite { object, key, value: Some(encode(&root)) }
    }

    pub fn writes(&self) -> Vec<TableWrite> {
        self.writes_within(Ino::ROOT.0 + 1..u64::MAX)
    }

    /// As [`Self::writes`], for a file system that allocates only these inode numbers.
    pub fn writes_within(&self, inos: Range<u64>) -> Vec<TableWrite> {
        let first = Super {
            next_ino: inos.start,
            end_ino: inos.end,
            counts: InodeCounts { files: 1, ..InodeCounts::default() },
            ..Super::default()
        };
        let value = Some(first.encode());
        Vec::from([self.root(), TableWrite { object: ObjectId::SUPER, key: Vec::new(), value }])
    }

    /// The first checkpoint of a rank other than 0: no inodes.
    pub fn nothing(rank: Rank) -> Vec<TableWrite> {
        let next_ino = Ino::none_of(rank).0 + 1;
        let first = Super { next_ino, end_ino: u64::MAX, ..Super::default() };
        Vec::from([TableWrite { object: ObjectId::SUPER, key: Vec::new(), value: Some(first.encode()) }])
    }
}

/// Why a store cannot be recovered. Nothing has been changed.
#[derive(Debug, PartialEq, Eq)]
pub enum RecoveryError {
    /// A table cannot be read.
    Read(Errno),
    /// The damage, and its place.
    Corrupt(String),
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(errno) => write!(f, "the tables cannot be read: {errno}"),
            Self::Corrupt(message) => write!(f, "{message}; run `espalier fsck --repair`"),
        }
    }
}

impl core::error::Error for RecoveryError {}

/// A recovery in progress: first the tables, then each frame of the journal in order, then
/// [`Self::finish`].
#[derive(Debug)]
pub struct Recovery {
    config: Config,
    state: State,
    /// Size-dirty files, with their locations in the tables.
    size_dirty: Vec<(Ino, Option<(Ino, u64)>)>,
    /// Number of replayed events.
    pub events: u64,
    /// Events after this number are ignored.
    pub until: u64,
    /// Streams removed before a replayed event, whose removal may not be durable.
    removed: Vec<Ino>,
}

impl Recovery {
    /// Starts from the tables. `super_value`: the record under [`ObjectId::SUPER`] and the empty
    /// key; `orphans`, `sessions`: all records of [`ObjectId::ORPHANS`] and [`ObjectId::SESSIONS`].
    /// Returns the journal position to start from.
    pub fn begin(
        config: Config,
        super_value: &[u8],
        orphans: &[(Vec<u8>, Vec<u8>)],
        sessions: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(Self, Position), RecoveryError> {
        let damaged = |message: &str| RecoveryError::Corrupt(message.into());
        let record =
            Super::parse(super_value).ok_or_else(|| damaged("the super record of the tables is damaged"))?;
        let mut state = State::new(config.hash_key);
        state.sequence = record.sequence;
        state.numbers = InodeNumbers::new(record.next_ino, record.end_ino, record.pool);
        (state.counts, state.moves) = (record.counts, record.moves);
        state.provisional = ProvisionalStreams::new(record.provisional, record.striped);
        for (key, value) in orphans {
            let loaded = state.loaded(ObjectId::ORPHANS, key, Some(value));
            loaded.map_err(|_| damaged("the record of an orphan is damaged"))?;
        }
        for (key, value) in sessions {
            let loaded = state.loaded(ObjectId::SESSIONS, key, Some(value));
            loaded.map_err(|_| damaged("the record of a session is damaged"))?;
        }
        for (ino, _) in &record.size_dirty {
            state.size_dirty.mark(*ino, 0);
        }
        let (events, until, removed) = (0, u64::MAX, Vec::new());
        let recovery = Self { config, state, size_dirty: record.size_dirty, events, until, removed };
        Ok((recovery, Position(record.journal)))
    }

    /// Replays a frame; skips events that the tables already contain. `fetch` reads the tables.
    pub fn frame(
        &mut self,
        frame: &[u8],
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
    ) -> Result<(), RecoveryError> {
        let damaged = || RecoveryError::Corrupt("a frame of the journal cannot be decoded".into());
        let Some((first, mut rest)) = frame.split_first_chunk::<8>() else {
            return if frame.is_empty() { Ok(()) } else { Err(damaged()) };
        };
        let mut sequence = u64::from_le_bytes(*first);
        while !rest.is_empty() {
            let (event, after) = Event::decode(rest).map_err(|_| damaged())?;
            rest = after;
            if sequence > self.until {
                return Ok(());
            }
            if sequence > self.state.sequence {
                if sequence != self.state.sequence + 1 {
                    let after = self.state.sequence;
                    let message =
                        alloc::format!("the journal continues with event {sequence} after event {after}");
                    return Err(RecoveryError::Corrupt(message));
                }
                self.replay(&event, fetch)?;
                self.events += 1;
            }
            sequence += 1;
        }
        Ok(())
    }

    fn replay(
        &mut self,
        event: &Event,
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
    ) -> Result<(), RecoveryError> {
        let mut removed = None;
        self.loading(fetch, |state| {
            let purged = if let Event::Purge { ino } = event { state.inodes.get(ino) } else { None };
            // Data servers acknowledge removals when these are durable.
            let here = |inode: &Inode| inode.is_streamed() && inode.layout().is_none();
            removed = purged.filter(|cached| here(&cached.inode)).map(|cached| cached.inode.ino);
            state.apply(event)
        })?;
        self.removed.extend(removed);
        Ok(())
    }

    /// Repeats `attempt` until everything that it needs is in memory.
    fn loading(
        &mut self,
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
        mut attempt: impl FnMut(&mut State) -> Step<()>,
    ) -> Result<(), RecoveryError> {
        let mut last = None;
        loop {
            let load = match attempt(&mut self.state) {
                Ok(()) => return Ok(()),
                Err(Stop::Wait(Wait::Load(load))) if last.as_ref() != Some(&load) => load,
                Err(stop) => {
                    let sequence = self.state.sequence + 1;
                    let message =
                        alloc::format!("event {sequence} of the journal does not fit the tables ({stop:?})");
                    return Err(RecoveryError::Corrupt(message));
                }
            };
            self.load(&load, fetch)?;
            last = Some(load);
        }
    }

    fn load(
        &mut self,
        load: &Load,
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
    ) -> Result<(), RecoveryError> {
        let done = fetch(load).map_err(RecoveryError::Read)?;
        let loaded = match (load, done) {
            (Load::Record { object, key }, IoDone::Record(value)) => {
                self.state.loaded(*object, key, value.as_deref())
            }
            (Load::Dentries { dir, from, limit }, IoDone::Dentries(pairs)) => {
                self.state.loaded_dentries(*dir, *from, *limit, &pairs)
            }
            _ => return Err(RecoveryError::Read(Errno::EIO)),
        };
        loaded.map_err(|_| {
            RecoveryError::Corrupt(alloc::format!("a record of the tables is damaged ({load:?})"))
        })
    }

    /// After the last frame: the size-dirty files, whose streams must be measured.
    pub fn size_dirty(&self) -> Vec<Ino> {
        self.state.size_dirty.inos().collect()
    }

    /// For a repair, which counts again: drops size-dirty files whose records are lost.
    pub fn forget_lost(&mut self, fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>) {
        for ino in self.size_dirty() {
            if self.load_size_dirty(ino, fetch).is_err() {
                self.state.size_dirty.remove(ino);
            }
        }
    }

    /// Loads what is needed to set a size-dirty file's counted size to its stream's size.
    fn load_size_dirty(
        &mut self,
        ino: Ino,
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
    ) -> Result<(), RecoveryError> {
        if !self.state.inodes.contains_key(&ino) {
            let place = self.size_dirty.iter().find(|(size_dirty, _)| *size_dirty == ino);
            if let Some((_, Some((dir, hash)))) = place {
                self.load(&Load::Dentries { dir: *dir, from: *hash, limit: SAME_HASH }, fetch)?;
            }
        }
        self.loading(fetch, |state| state.load_parents(ino).map(drop))
    }

    /// Returns the machine, and the stream calls to make before it is used. Purges orphans, since
    /// their users are gone; orphaned directories with entries are removed trees, which are freed
    /// in the background. `end`, `used`: of the journal. `new_streams`: the provisional streams.
    /// `sizes`: of the streams of [`Self::size_dirty`].
    pub fn finish(
        mut self,
        end: Position,
        used: u64,
        new_streams: &[Ino],
        sizes: &[(Ino, u64)],
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
    ) -> Result<(Meta, Vec<StreamCall>), RecoveryError> {
        let provisional = self.state.provisional.take_in_store();
        let finalise = |ino: &Ino| match provisional.contains(ino) {
            true => StreamCall::Finalise { ino: *ino, durable: self.state.sequence },
            false => StreamCall::Remove { ino: *ino },
        };
        let removed = self.removed.iter().map(|ino| StreamCall::Remove { ino: *ino });
        let calls = new_streams.iter().map(finalise).chain(removed).collect();
        let has_root = self.config.rank == Ino::ROOT.rank();
        let (object, key) = InoRecord::Inode.place(Ino::ROOT);
        if has_root && !self.state.inodes.contains_key(&Ino::ROOT) {
            self.load(&Load::Record { object, key }, fetch)?;
        }
        if has_root && !self.state.inodes.get(&Ino::ROOT).is_some_and(|cached| cached.inode.is_dir()) {
            return Err(RecoveryError::Corrupt("the tables have no root directory".into()));
        }
        let orphans = self.state.inodes.sorted().filter(|(_, cached)| cached.location == Location::Orphan);
        let (full, orphans): (Vec<_>, Vec<_>) = orphans.partition(|(_, cached)| cached.inode.has_entries());
        let trash = full.iter().map(|(dir, _)| Trashed { dir: **dir, after: 0 }).collect();
        let orphans: Vec<(Ino, bool)> =
            orphans.iter().map(|(ino, cached)| (**ino, cached.inode.is_streamed())).collect();
        self.state.trash = trash;
        for (ino, _) in sizes {
            self.load_size_dirty(*ino, fetch)?;
        }
        self.state.numbers.restart();
        let mut meta = Meta::with_state(self.config, self.state, end, used);
        meta.recover_striped();
        for (ino, size) in sizes {
            meta.count_left_over(*ino, *size);
        }
        meta.recover_transactions();
        if !meta.recover_sessions(&orphans) && !meta.config.read_only {
            for (ino, streamed) in orphans {
                meta.purge_left_over(ino, streamed);
            }
        }
        Ok((meta, calls))
    }
}

impl Meta {
    /// Counts the size of a stream that may have changed before the crash.
    fn count_left_over(&mut self, ino: Ino, size: u64) {
        let counted = self.state.inode(ino).ok().filter(|inode| inode.layout().is_none());
        if counted.is_some_and(|inode| inode.counted_bytes() != size) {
            let event = Event::Count { ino, size };
            // Everything needed is loaded.
            let _ = if self.config.read_only { self.state.apply(&event) } else { self.append(&event) };
        }
    }

    pub(crate) fn purge_left_over(&mut self, ino: Ino, streamed: bool) {
        if self.state.cached(ino).is_err() {
            // It may be about to get a name at another rank.
            return;
        }
        if streamed {
            // Its `Unlink` is in the journal on disk, so the next flush releases it.
            self.journal.hold(self.state.sequence, HeldOutput::RemoveStream(ino));
        } else if self.state.apply(&Event::Purge { ino }).is_ok() {
            self.journal.append(self.state.sequence, &Event::Purge { ino });
        }
    }
}
