//! How a file system begins, and begins again: the tables of the last checkpoint, and the events that followed it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use espalier_proto::{Errno, FileType, Ino, ObjectId, Position, TableWrite, Time};

use crate::event::Event;
use crate::journal::Held;
use crate::machine::{Config, Meta};
use crate::outbox::IoDone;
use crate::record::{Body, InoRecord, Inode, Super, decode, encode};
use crate::state::{Home, State};
use crate::step::{Load, Stop, StreamCall, Wait};

/// The first checkpoint of a new file system: an empty root directory.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub time: Time,
    pub uid: u32,
    pub gid: u32,
    pub perm: u32,
}

impl Format {
    pub fn writes(&self) -> Vec<TableWrite> {
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
            body: Body::Directory { parent: Ino::ROOT, entries: 0 },
            acl: None,
            default_acl: None,
            has_xattrs: false,
        };
        let (object, key) = InoRecord::Inode.place(Ino::ROOT);
        let (next_ino, unsettled) = (Ino::ROOT.0 + 1, Vec::new());
        let first = Super { next_ino, files: 1, sequence: 0, journal: 0, unsettled };
        Vec::from([
            TableWrite { object, key, value: Some(encode(&root)) },
            TableWrite { object: ObjectId::SUPER, key: Vec::new(), value: Some(encode(&first)) },
        ])
    }
}

/// Why a store cannot be brought back. Nothing has been changed.
#[derive(Debug, PartialEq, Eq)]
pub enum RecoveryError {
    /// A table cannot be read.
    Read(Errno),
    /// What, and where.
    Corrupt(String),
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(errno) => write!(f, "the tables cannot be read: {errno}"),
            Self::Corrupt(what) => write!(f, "{what}; run `espalier fsck` on a copy of the store"),
        }
    }
}

impl core::error::Error for RecoveryError {}

/// A recovery under way: first the tables, then every frame of the journal in order, then [`Self::finish`].
#[derive(Debug)]
pub struct Recovery {
    config: Config,
    state: State,
    /// Events replayed.
    pub events: u64,
    /// Streams whose removal came before such an event, but may not be durable.
    removed: Vec<Ino>,
}

impl Recovery {
    /// `super_value`: the record under [`ObjectId::SUPER`] and the empty key; `orphans`: all of those of
    /// [`ObjectId::ORPHANS`]. Returns where to begin in the journal.
    pub fn begin(
        config: Config,
        super_value: &[u8],
        orphans: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(Self, Position), RecoveryError> {
        let damaged = |what: &str| RecoveryError::Corrupt(what.into());
        let record: Super =
            decode(super_value).map_err(|_| damaged("the tables' first record is damaged"))?;
        let mut state = State::new(config.hash_key);
        (state.next_ino, state.files, state.sequence) = (record.next_ino, record.files, record.sequence);
        state.unsettled = record.unsettled.into_iter().collect();
        for (key, value) in orphans {
            let loaded = state.loaded(ObjectId::ORPHANS, key, Some(value));
            loaded.map_err(|_| damaged("the record of an orphan is damaged"))?;
        }
        Ok((Self { config, state, events: 0, removed: Vec::new() }, Position(record.journal)))
    }

    /// Replays a frame. Events that the tables hold already are skipped. `fetch` reads the tables.
    pub fn frame(
        &mut self,
        frame: &[u8],
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
    ) -> Result<(), RecoveryError> {
        let damaged = || RecoveryError::Corrupt("a frame of the journal cannot be understood".into());
        let Some((first, mut rest)) = frame.split_first_chunk::<8>() else {
            return if frame.is_empty() { Ok(()) } else { Err(damaged()) };
        };
        let mut sequence = u64::from_le_bytes(*first);
        while !rest.is_empty() {
            let (event, after) = Event::decode(rest).map_err(|_| damaged())?;
            rest = after;
            if sequence > self.state.sequence {
                if sequence != self.state.sequence + 1 {
                    let after = self.state.sequence;
                    let what =
                        alloc::format!("the journal goes on with event {sequence} after event {after}");
                    return Err(RecoveryError::Corrupt(what));
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
        let mut last = None;
        loop {
            let purged = if let Event::Purge { ino } = event { self.state.inodes.get(ino) } else { None };
            let removed = purged.filter(|cached| cached.inode.is_streamed()).map(|cached| cached.inode.ino);
            let load = match self.state.apply(event) {
                Ok(()) => {
                    self.removed.extend(removed);
                    return Ok(());
                }
                Err(Stop::Wait(Wait::Load(load))) if last.as_ref() != Some(&load) => load,
                Err(stop) => {
                    let sequence = self.state.sequence + 1;
                    let what =
                        alloc::format!("event {sequence} of the journal does not fit the tables ({stop:?})");
                    return Err(RecoveryError::Corrupt(what));
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

    /// The machine, ready, and what is to be done with streams before it is used. Orphans left over are purged, for
    /// whoever used them is gone. `end`, `used`: of the journal. `new_streams`: those that were never settled.
    pub fn finish(
        mut self,
        end: Position,
        used: u64,
        new_streams: &[Ino],
        fetch: &mut dyn FnMut(&Load) -> Result<IoDone, Errno>,
    ) -> Result<(Meta, Vec<StreamCall>), RecoveryError> {
        let unsettled = core::mem::take(&mut self.state.unsettled);
        let settle = |ino: &Ino| match unsettled.contains(ino) {
            true => StreamCall::Settle { ino: *ino },
            false => StreamCall::Remove { ino: *ino },
        };
        let removed = self.removed.iter().map(|ino| StreamCall::Remove { ino: *ino });
        let calls = new_streams.iter().map(settle).chain(removed).collect();
        let (object, key) = InoRecord::Inode.place(Ino::ROOT);
        if !self.state.inodes.contains_key(&Ino::ROOT) {
            self.load(&Load::Record { object, key }, fetch)?;
        }
        if !self.state.inodes.get(&Ino::ROOT).is_some_and(|cached| cached.inode.is_dir()) {
            return Err(RecoveryError::Corrupt("the tables have no root directory".into()));
        }
        let orphans = self.state.inodes.values().filter(|cached| cached.home == Home::Orphan);
        let mut orphans: Vec<(Ino, bool)> =
            orphans.map(|cached| (cached.inode.ino, cached.inode.is_streamed())).collect();
        orphans.sort_unstable();
        let mut meta = Meta::with_state(self.config, self.state, end, used);
        if !meta.config.read_only {
            for (ino, streamed) in orphans {
                meta.purge_left_over(ino, streamed);
            }
        }
        Ok((meta, calls))
    }
}

impl Meta {
    fn purge_left_over(&mut self, ino: Ino, streamed: bool) {
        if streamed {
            // Its Unlink is in the journal on disk, so nothing need be waited for; the next flush lets it go.
            self.journal.hold(self.state.sequence, Held::RemoveStream(ino));
        } else if self.state.apply(&Event::Purge { ino }).is_ok() {
            self.journal.append(self.state.sequence, &Event::Purge { ino });
        }
    }
}
