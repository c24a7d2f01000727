//! The tables in memory: records loaded from the store, with the changes since the last checkpoint
//! (`snapshot.rs`). Clean records that have not been used recently are evicted when memory is short
//! (`evict.rs`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell as Mutable;

pub(crate) use espalier_proto::Location;
use espalier_proto::{Errno, Ino, Name, ObjectId, Rank, name_key};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::contents::StuffedBytes;
use crate::counts::InodeCounts;
use crate::evict::Clock;
use crate::fragment::RecordedMoves;
use crate::numbers::InodeNumbers;
use crate::provisional::ProvisionalStreams;
use crate::rank::{FreedNumbers, Relocation, TransactionLocks, TransactionState, UsageDeltas};
use crate::record::{Body, InoRecord, Inode, Referent, Slot, Xattrs};
use crate::session::{Moved, PersistedSession, Reclaimed};
use crate::size_dirty::SizeDirtyFiles;
use crate::snapshot::UnwrittenChanges;
use crate::step::{Load, Step, Stop, Wait};
use crate::table::{RecordTable, Stored, Track, Tracker};

pub(crate) type FxMap<K, V> = HashMap<K, V, FxBuildHasher>;

#[derive(Debug)]
pub(crate) struct Cached {
    pub inode: Inode,
    pub location: Location,
    /// Lookups by replies that clients have not forgotten.
    pub lookups: u64,
    pub opens: u32,
    /// It never had a name (`O_TMPFILE`), so it may be given one.
    pub nameless: bool,
    /// Used since the eviction clock last passed.
    pub used: Mutable<bool>,
    /// For a directory: no reply that may be cached has reported a name in it as absent.
    pub names_are_new: bool,
    /// The store has a record of its place, possibly outdated.
    pub is_placed: bool,
    pub track: Track,
}

/// The location and lookups of an inode that clients know and that is not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownInode {
    pub location: Location,
    pub lookups: u64,
}

impl Cached {
    pub(crate) fn new(inode: Inode, location: Location, track: Track) -> Self {
        let (used, names_are_new) = (Mutable::new(false), false);
        let is_placed = track.stored && location != Location::Orphan && inode.ino != Ino::ROOT;
        Self { inode, location, lookups: 0, opens: 0, nameless: false, used, names_are_new, is_placed, track }
    }

    pub(crate) fn in_use(&self) -> bool {
        self.lookups > 0 || self.opens > 0
    }

    /// The location reported to clients: `Orphan` only if it never had a name.
    pub(crate) fn reported_location(&self) -> Location {
        if self.location == Location::Orphan && !self.nameless { Location::Table } else { self.location }
    }
}

/// The target of a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Primary(Ino),
    Remote(Referent),
    /// Known not to exist.
    Absent,
}

impl Target {
    pub(crate) fn ino(self) -> Option<Ino> {
        match self {
            Self::Primary(ino) | Self::Remote(Referent { ino, .. }) => Some(ino),
            Self::Absent => None,
        }
    }

    /// The inode, if it is at another rank than `own`.
    pub(crate) fn at_other_rank(self, own: Rank) -> Option<Referent> {
        if let Self::Remote(referent) = self {
            Some(referent).filter(|referent| referent.at != own)
        } else {
            None
        }
    }
}

/// A removed directory whose entries remain to be freed. It is an orphan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trashed {
    pub dir: Ino,
    /// Cursor of the last entry freed.
    pub after: u64,
}

/// A dentry in memory. A primary dentry uses only `track.stored`; the inode's own track covers the
/// rest.
#[derive(Debug)]
pub(crate) struct Cell {
    pub target: Target,
    pub track: Track,
}

/// The entries of a directory that are in memory.
#[derive(Debug, Default)]
pub(crate) struct Fragment {
    pub cells: BTreeMap<Slot, Cell>,
    /// All entries are in memory: other names do not exist.
    pub complete: bool,
    /// All entries with hashes below this are in memory.
    pub loaded_to: u64,
    /// Some entries may be no-metafile files.
    pub has_no_metafile_entries: bool,
}

impl Fragment {
    /// The dentry of a name, which is added if there is none.
    fn cell(&mut self, slot: Slot, target: Target, clock: &mut Clock) -> &mut Cell {
        self.cells.entry(slot).or_insert_with_key(|slot| {
            clock.cell_added(slot);
            Cell { target, track: Track::default() }
        })
    }
}

#[derive(Debug)]
pub(crate) struct State {
    /// The file system's secret.
    pub secret: [u8; 16],
    /// The key of the hashes of names.
    pub name_key: [u8; 16],
    /// Boxed, which keeps the map small when it grows.
    pub inodes: RecordTable<Box<Cached>>,
    /// Inodes that clients know and that are not in `inodes`.
    pub known: FxMap<Ino, KnownInode>,
    pub fragments: FxMap<Ino, Fragment>,
    pub strips: RecordTable<Stored<StuffedBytes>>,
    pub xattrs: RecordTable<Stored<Xattrs>>,
    pub numbers: InodeNumbers,
    pub counts: InodeCounts,
    pub moves: RecordedMoves,
    /// Where inodes are whose home this rank is, if they are at other ranks.
    pub relocations: RecordTable<Stored<Relocation>>,
    /// Inodes of other homes that have been removed here, by home.
    pub freed: RecordTable<Stored<FreedNumbers>>,
    /// Sequence number of the last event applied.
    pub sequence: u64,
    pub provisional: ProvisionalStreams,
    pub size_dirty: SizeDirtyFiles,
    /// Removed directories with entries; the last is freed first.
    pub trash: Vec<Trashed>,
    pub sessions: RecordTable<Stored<PersistedSession>>,
    pub transactions: RecordTable<Stored<TransactionState>>,
    /// Locks of prepared transactions; `None` while an event is applied.
    pub locks: Option<Box<TransactionLocks>>,
    /// Exchange of usage deltas, by rank.
    pub usage_deltas: RecordTable<Stored<UsageDeltas>>,
    pub reclaimed: Reclaimed,
    pub moved: RecordTable<Stored<Moved>>,
    pub changes: UnwrittenChanges,
    /// Changed remote dentries.
    pub remotes: Tracker<(Ino, Slot)>,
    pub clock: Clock,
}

impl State {
    pub(crate) fn new(secret: [u8; 16]) -> Self {
        Self {
            secret,
            name_key: name_key(&secret),
            inodes: RecordTable::default(),
            known: FxMap::default(),
            fragments: FxMap::default(),
            strips: RecordTable::default(),
            xattrs: RecordTable::default(),
            numbers: InodeNumbers::new(Ino::ROOT.0 + 1, u64::MAX, Vec::new()),
            counts: InodeCounts::default(),
            moves: RecordedMoves::default(),
            relocations: RecordTable::default(),
            freed: RecordTable::default(),
            sequence: 0,
            provisional: ProvisionalStreams::default(),
            size_dirty: SizeDirtyFiles::default(),
            trash: Vec::new(),
            sessions: RecordTable::default(),
            transactions: RecordTable::default(),
            locks: None,
            usage_deltas: RecordTable::default(),
            reclaimed: Reclaimed::default(),
            moved: RecordTable::default(),
            changes: UnwrittenChanges::default(),
            remotes: Tracker::default(),
            clock: Clock::default(),
        }
    }

    pub(crate) fn slot(&self, name: &Name) -> Slot {
        Slot::new(&self.name_key, name.clone())
    }

    // ---- Reading

    /// The inode that a dentry or a client names. Waits for its load.
    ///
    /// # Errors
    /// `ESTALE`, after a load, if the tables do not have it either.
    pub(crate) fn cached(&self, ino: Ino) -> Step<&Cached> {
        if let Some(locks) = &self.locks {
            locks.check_whole(ino)?;
        }
        let Some(cached) = self.inodes.get(&ino) else { return Err(self.wait_inode(ino)) };
        cached.used.set(true);
        if let (true, Location::Dentry { dir, .. }) = (cached.inode.has_no_metafile(), cached.location) {
            // The attributes of a no-metafile file derive from its directory.
            self.dir_even_if_locked(dir)?;
        }
        Ok(cached)
    }

    fn wait_inode(&self, ino: Ino) -> Stop {
        match self.known.get(&ino) {
            Some(KnownInode { location: Location::Dentry { dir, hash }, .. }) => {
                Stop::Wait(Wait::Load(Load::Dentries { dir: *dir, from: *hash, limit: SAME_HASH }))
            }
            Some(_) => wait_record(InoRecord::Inode, ino),
            None => match self.reclaimed.hint(ino) {
                Some((dir, hash)) => {
                    Stop::Wait(Wait::Hint(ino, Load::Dentries { dir, from: hash, limit: SAME_HASH }))
                }
                None if self.is_home_of(ino) => self.missing(ino, wait_record(InoRecord::Inode, ino)),
                None => wait_record(InoRecord::Place, ino),
            },
        }
    }

    pub(crate) fn inode(&self, ino: Ino) -> Step<&Inode> {
        self.cached(ino).map(|cached| &cached.inode)
    }

    /// A directory. An unknown one is found by the record of its place.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else. [`Stop::Misrouted`]: the record has ceded all names to another.
    pub(crate) fn dir(&self, ino: Ino) -> Step<&Inode> {
        if let Some(locks) = &self.locks {
            locks.check(ino)?;
        }
        let inode = self.dir_even_if_locked(ino)?;
        if inode.is_retired() { Err(Stop::Misrouted(ino)) } else { Ok(inode) }
    }

    /// As [`Self::dir`], for callers that do not depend on the directory's location.
    pub(crate) fn dir_even_if_locked(&self, ino: Ino) -> Step<&Inode> {
        let Some(cached) = self.inodes.get(&ino) else {
            let is_found = ino == Ino::ROOT || self.known.contains_key(&ino);
            return Err(if is_found { self.wait_inode(ino) } else { wait_record(InoRecord::Place, ino) });
        };
        cached.used.set(true);
        let inode = &cached.inode;
        if inode.is_dir() { Ok(inode) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// Ensures that [`Self::cached`] finds an inode that no client knows, by the record of its
    /// place. Waits for a prepared transaction that creates the inode.
    pub(crate) fn locate(&self, ino: Ino) -> Step<()> {
        if let Some(locks) = &self.locks {
            locks.check(ino)?;
        }
        let is_found = ino == Ino::ROOT || self.inodes.contains_key(&ino) || self.known.contains_key(&ino);
        if is_found { Ok(()) } else { Err(self.missing(ino, wait_record(InoRecord::Place, ino))) }
    }

    /// The target of a name.
    pub(crate) fn target(&self, dir: Ino, slot: &Slot) -> Step<Target> {
        if let Some(locks) = &self.locks {
            locks.check_name(dir, slot)?;
        }
        self.check_hash(dir, slot.hash)?;
        let fragment = self.fragments.get(&dir);
        if let Some(cell) = fragment.and_then(|fragment| fragment.cells.get(slot)) {
            return Ok(cell.target);
        }
        if fragment.is_some_and(|fragment| fragment.complete) {
            return Ok(Target::Absent);
        }
        // A small directory is loaded completely, which also shows the names that do not exist.
        let untouched = fragment.is_none_or(|fragment| fragment.loaded_to == 0);
        let load = match &self.dir(dir)?.body {
            Body::Directory(directory) if untouched && directory.entries <= SMALL_DIRECTORY as u64 => {
                Load::Dentries { dir, from: 0, limit: 2 * SMALL_DIRECTORY }
            }
            _ => Load::Record { object: ObjectId::fragment(dir, 0), key: slot.key() },
        };
        Err(Stop::Wait(Wait::Load(load)))
    }

    /// The dentry in the last checkpoint that contains an inode, if it is unchanged since.
    pub(crate) fn unchanged_dentry(&self, ino: Ino) -> Option<(Ino, u64)> {
        let cached = self.inodes.get(&ino)?;
        match cached.location {
            Location::Dentry { dir, hash } if cached.track.epoch != self.changes.epoch() => Some((dir, hash)),
            _ => None,
        }
    }

    /// Adds an inode: one of the store, or a new one, which is touched then.
    pub(crate) fn add_inode(&mut self, cached: Cached) {
        let ino = cached.inode.ino;
        self.clock.inodes.push_back(ino);
        self.clock.added += 1;
        self.inodes.put(ino, Box::new(cached));
    }

    // ---- Writing: each `touch` precedes the change itself

    /// Prepares a change, move or removal of an inode: encodes its record first if the current
    /// snapshot needs its old state.
    pub(crate) fn touch_inode(&mut self, ino: Ino) -> Option<&mut Cached> {
        self.inodes.touch(&ino, &mut self.fragments, &mut self.changes).map(Box::as_mut)
    }

    /// Adds a primary dentry for an inode that is in no dentry. The name must be free.
    pub(crate) fn put_primary(&mut self, dir: Ino, slot: Slot, ino: Ino) {
        self.set_location(ino, Location::Dentry { dir, hash: slot.hash });
        let target = Target::Primary(ino);
        let cell = self.fragments.entry(dir).or_default().cell(slot, target, &mut self.clock);
        cell.target = target;
        cell.track.epoch = 0;
    }

    /// Adds a remote dentry, which replaces an existing one.
    pub(crate) fn put_remote(&mut self, dir: Ino, slot: Slot, referent: Referent) {
        let Self { fragments, clock, remotes, changes, .. } = self;
        clock.loose.push_back((dir, slot.hash));
        let target = Target::Remote(referent);
        let cell = fragments.entry(dir).or_default().cell(slot.clone(), target, clock);
        remotes.touch(&(dir, slot), cell, &mut (), changes);
        cell.target = target;
    }

    /// Removes a name. The inode of a primary dentry must have been touched, and must move or be
    /// removed.
    pub(crate) fn erase_cell(&mut self, dir: Ino, slot: &Slot) {
        let fragment = self.fragments.entry(dir).or_default();
        let Some(cell) = fragment.cells.get_mut(slot) else { return };
        if let Target::Remote(..) = cell.target {
            self.changes.encode(&(dir, slot.clone()), cell, &mut ());
        }
        if cell.track.stored {
            self.changes.erase_name(dir, slot);
            cell.track = Track { written: self.changes.epoch(), ..Track::default() };
        }
        if cell.track.written > self.changes.published() {
            // Until the checkpoint is durable, the store has the name: remember that it was
            // removed.
            cell.target = Target::Absent;
            cell.track = Track { written: cell.track.written, ..Track::default() };
        } else {
            fragment.cells.remove(slot);
            self.clock.cell_removed(slot);
        }
    }

    /// Moves an inode to another location.
    pub(crate) fn set_location(&mut self, ino: Ino, location: Location) {
        self.leave_location(ino);
        let Some(cached) = self.touch_inode(ino) else { return };
        cached.location = location;
        cached.track.stored = false;
        if location == Location::Orphan && core::mem::take(&mut cached.is_placed) {
            self.changes.erase_inode(ino, InoRecord::Place.place(ino));
        }
    }

    /// Removes the inode's record from the inode or orphan table. There, `track.stored` refers to
    /// this record; for an inode in a dentry, it says whether the stored place is up to date.
    fn leave_location(&mut self, ino: Ino) {
        let Some(cached) = self.touch_inode(ino).filter(|cached| cached.track.stored) else { return };
        let place = match cached.location {
            Location::Dentry { .. } => return,
            Location::Table => InoRecord::Inode.place(ino),
            Location::Orphan => (ObjectId::ORPHANS, orphan_key(ino)),
        };
        self.changes.erase_inode(ino, place);
    }

    /// Removes an inode with its contents and attributes.
    pub(crate) fn drop_inode(&mut self, ino: Ino) {
        self.leave_location(ino);
        let Some(cached) = self.inodes.evict(&ino) else { return };
        if cached.is_placed {
            self.changes.erase_inode(ino, InoRecord::Place.place(ino));
        }
        let has_strip = matches!(cached.inode.body, Body::Stuffed { stored: 1.., .. });
        if self.strips.remove(ino, &mut self.changes).is_none() && has_strip {
            self.changes.erase(InoRecord::Strip.place(ino));
        }
        if self.xattrs.remove(ino, &mut self.changes).is_none() && cached.inode.has_xattrs {
            self.changes.erase(InoRecord::Xattrs.place(ino));
        }
        if let Some(fragment) = self.fragments.remove(&ino) {
            fragment.cells.keys().for_each(|slot| self.clock.cell_removed(slot));
        }
    }

    pub(crate) fn insert_inode(&mut self, inode: Inode, location: Location) {
        let ino = inode.ino;
        self.numbers.note_used(ino.0 + 1);
        if inode.is_dir() {
            self.fragments.insert(ino, Fragment { complete: true, ..Fragment::default() });
        }
        self.add_inode(Cached { names_are_new: true, ..Cached::new(inode, location, Track::default()) });
        self.touch_inode(ino);
    }
}

/// In the record of an inode's place, instead of a directory: the inode is in the inode table.
pub(crate) const NO_DIR: Ino = Ino(0);
/// Directories of at most this many entries are loaded completely.
const SMALL_DIRECTORY: usize = 256;
/// More names of one hash than a directory ever has.
pub(crate) const SAME_HASH: usize = 4;
/// Approximate memory that a changed inode or removed name takes until a checkpoint has written it,
/// in bytes.
pub(crate) const DIRTY_INODE: usize = 256;

pub(crate) fn orphan_key(ino: Ino) -> Vec<u8> {
    ino.0.to_be_bytes().to_vec()
}

pub(crate) fn wait_record(record: InoRecord, ino: Ino) -> Stop {
    let (object, key) = record.place(ino);
    Stop::Wait(Wait::Load(Load::Record { object, key }))
}
