//! The tables in memory: what is loaded of the store, with the changes since the last checkpoint (`snapshot.rs`). What has not
//! been used lately and needs no writing is given up when memory is short (`evict.rs`).

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::cell::Cell as Mutable;

pub(crate) use espalier_proto::Home;
use espalier_proto::{ClientId, Errno, FileType, Ino, Name, ObjectId, Rank, TableWrite};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::evict::Clock;
use crate::pool::Batch;
use crate::rank::{Locks, Tally, Transaction, TransactionId};
use crate::record::{Body, InoRecord, Inode, Slot, Xattrs};
use crate::session::{Kept, Reclaimed};
use crate::snapshot::{Changed, Snapshot, encode_strip, encode_xattrs};
use crate::step::{Load, Step, Stop, Wait};

pub(crate) type Map<K, V> = HashMap<K, V, FxBuildHasher>;

#[derive(Debug)]
pub(crate) struct Cached {
    pub inode: Inode,
    pub home: Home,
    /// How often replies have named it to clients that have not forgotten it.
    pub lookups: u64,
    pub opens: u32,
    /// Without a name because it never had one (`O_TMPFILE`): it may be given one.
    pub nameless: bool,
    /// Looked at since eviction last came by.
    pub used: Mutable<bool>,
    /// Of a directory: no client has been told that a name is not in it.
    pub names_are_new: bool,
    /// The store has a record of its place, up to date or not.
    pub is_placed: bool,
    pub track: Track,
}

/// What is kept of an inode that a client knows by its number and that is not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub home: Home,
    pub lookups: u64,
}

/// A streamed file that may have another size than is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// The sequence number of the event that says so. When it is durable, recovery is sure to look at the size.
    pub since: u64,
    /// That is the event by which it came to have datafiles, and more than its strip.
    pub outgrew: bool,
    /// The tick at which it was last opened for writing, closed or synced.
    pub used: u64,
    /// Since nobody had it open, it may have been opened for writing.
    pub written: bool,
    /// Its size has not been asked for since the machine was recovered.
    pub unmeasured: bool,
    /// Its stream was made durable when it was idle, and is to be looked at once more: before, a data server may have lost what was not.
    pub synced: bool,
    /// Its stream is being synced because it was idle: that may take long where a data server is down.
    pub syncing: bool,
}

impl Watched {
    pub(crate) fn new(since: u64) -> Self {
        let (outgrew, unmeasured, synced, syncing) = (false, false, false, false);
        Self { since, outgrew, used: 0, written: true, unmeasured, synced, syncing }
    }
}

impl Cached {
    pub(crate) fn new(inode: Inode, home: Home, track: Track) -> Self {
        let (used, names_are_new) = (Mutable::new(false), false);
        let is_placed = track.stored && home != Home::Orphan && inode.ino != Ino::ROOT;
        Self { inode, home, lookups: 0, opens: 0, nameless: false, used, names_are_new, is_placed, track }
    }

    pub(crate) fn in_use(&self) -> bool {
        self.lookups > 0 || self.opens > 0
    }

    /// Where clients are told that it lies: without a name only if it never had one.
    pub(crate) fn told_home(&self) -> Home {
        if self.home == Home::Orphan && !self.nameless { Home::Table } else { self.home }
    }
}

/// Whether a record must be written by a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Track {
    /// The epoch of checkpoints in which it last changed; 0: not since it was written or loaded.
    pub epoch: u32,
    /// The epoch whose checkpoint writes it, or its removal, if it has been handed to one; 0: it was loaded.
    pub written: u32,
    /// The store may have it, so that removing it needs a write.
    pub stored: bool,
}

impl Track {
    pub(crate) const STORED: Self = Self { epoch: 0, written: 0, stored: true };

    /// The store has what is in memory, durably. `published`: the epoch of the last checkpoint.
    pub(crate) fn is_clean(self, published: u32) -> bool {
        self.epoch == 0 && self.written <= published
    }
}

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Primary(Ino),
    Remote(Ino, FileType),
    /// Known not to be there.
    Absent,
}

impl Target {
    pub(crate) fn ino(self) -> Option<Ino> {
        match self {
            Self::Primary(ino) | Self::Remote(ino, _) => Some(ino),
            Self::Absent => None,
        }
    }
}

/// A directory that was removed with all below it, as far as that is still to be freed. It lies among the orphans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trashed {
    pub dir: Ino,
    /// The cursor of the last entry that is gone.
    pub after: u64,
}

/// A dentry in memory. Of a primary one only `track.stored` is used: its inode's record is its record.
#[derive(Debug)]
pub(crate) struct Cell {
    pub target: Target,
    pub track: Track,
}

/// A directory's entries, as far as they are in memory.
#[derive(Debug, Default)]
pub(crate) struct Fragment {
    pub cells: BTreeMap<Slot, Cell>,
    /// All entries are in memory: what is not here does not exist.
    pub complete: bool,
    /// All entries with hashes below this are in memory.
    pub loaded_to: u64,
    /// Some of them may be bare files.
    pub has_bare: bool,
}

/// The bytes of a stuffed file.
#[derive(Debug, Default)]
pub(crate) struct Strip {
    pub bytes: Vec<u8>,
    /// The sequence number of the event that last changed it; 0: not since it was loaded.
    pub version: u64,
    /// That of the event before which the file was empty; 0: it was not empty when this was loaded or made.
    pub first: u64,
    pub track: Track,
}

#[derive(Debug, Default)]
pub(crate) struct XattrCell {
    pub list: Xattrs,
    pub track: Track,
}

impl XattrCell {
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<Box<[u8]>>()).sum()
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub hash_key: [u8; 16],
    /// Boxed, so that the map is small when it grows.
    pub inodes: Map<Ino, Box<Cached>>,
    /// Inodes that clients know and that are not in `inodes`.
    pub known: Map<Ino, Known>,
    pub fragments: Map<Ino, Fragment>,
    pub strips: Map<Ino, Strip>,
    pub xattrs: Map<Ino, XattrCell>,
    pub next_ino: u64,
    /// Numbers below may have been given out, though nothing may tell of that any more (`numbers.rs`); 0: nobody cares.
    pub reserved: u64,
    /// Numbers below `next_ino` that are set aside (`pool.rs`).
    pub pool: Vec<Batch>,
    pub files: u64,
    /// Inodes that are immutable or append-only.
    pub protected: u64,
    /// The sequence number of the last event applied.
    pub sequence: u64,
    /// Files that have been unstuffed, whose streams the store may still hold for new ([`StreamCall::Settle`]).
    ///
    /// [`StreamCall::Settle`]: crate::StreamCall::Settle
    pub unsettled: BTreeSet<Ino>,
    /// As `unsettled`, of files on data servers; `None`: there never were such.
    pub striped: Option<BTreeSet<Ino>>,
    /// Streamed files that may have another size than is counted: their writers, the kernel among them, need not say. They
    /// stay in memory.
    pub watched: BTreeMap<Ino, Watched>,
    /// What was removed with entries in it; the last is freed first.
    pub trash: Vec<Trashed>,
    pub sessions: BTreeMap<ClientId, Kept>,
    pub transactions: BTreeMap<TransactionId, Transaction>,
    /// What these have locked; nothing while an event is applied.
    pub locks: Option<Box<Locks>>,
    /// With each other rank.
    pub tallies: BTreeMap<Rank, Tally>,
    pub reclaimed: Reclaimed,
    /// The current epoch: grows with every checkpoint.
    pub epoch: u32,
    /// The epoch of the last checkpoint that is durable.
    pub published: u32,
    pub changed: VecDeque<Changed>,
    /// Keys to be removed by the next checkpoint, before its changed records are put.
    pub erased: Vec<TableWrite>,
    /// Names that went, each with the epoch whose checkpoint tells the store.
    pub gone: VecDeque<(u32, Ino, Slot)>,
    /// Inodes whose own records or places went, until the checkpoint of that epoch has removed them from the store.
    pub outdated: Map<Ino, u32>,
    pub snapshot: Snapshot,
    /// Bytes of records, about, that have changed in this epoch.
    pub dirty: usize,
    /// Bytes of files that have been made from others in this epoch, and that the journal does not hold.
    pub cloned: u64,
    pub clock: Clock,
}

impl State {
    pub(crate) fn new(hash_key: [u8; 16]) -> Self {
        Self {
            hash_key,
            inodes: Map::default(),
            known: Map::default(),
            fragments: Map::default(),
            strips: Map::default(),
            xattrs: Map::default(),
            next_ino: Ino::ROOT.0 + 1,
            reserved: 0,
            pool: Vec::new(),
            files: 0,
            protected: 0,
            sequence: 0,
            unsettled: BTreeSet::new(),
            striped: None,
            watched: BTreeMap::new(),
            trash: Vec::new(),
            sessions: BTreeMap::new(),
            transactions: BTreeMap::new(),
            locks: None,
            tallies: BTreeMap::new(),
            reclaimed: Reclaimed::default(),
            epoch: 1,
            published: 0,
            changed: VecDeque::new(),
            erased: Vec::new(),
            gone: VecDeque::new(),
            outdated: Map::default(),
            snapshot: Snapshot::default(),
            dirty: 0,
            cloned: 0,
            clock: Clock::default(),
        }
    }

    pub(crate) fn slot(&self, name: &Name) -> Slot {
        Slot::new(&self.hash_key, name.clone())
    }

    // ---- Looking

    /// An inode that a dentry or a client names. One that the tables do not have either is stale.
    pub(crate) fn cached(&self, ino: Ino) -> Step<&Cached> {
        if let Some(locks) = &self.locks {
            locks.check_whole(ino)?;
        }
        let Some(cached) = self.inodes.get(&ino) else { return Err(self.wait_inode(ino)) };
        cached.used.set(true);
        if let (true, Home::Dentry { dir, .. }) = (cached.inode.is_bare(), cached.home) {
            // Its owner is its directory's.
            self.dir_even_if_locked(dir)?;
        }
        Ok(cached)
    }

    fn wait_inode(&self, ino: Ino) -> Stop {
        match self.known.get(&ino) {
            Some(Known { home: Home::Dentry { dir, hash }, .. }) => {
                Stop::Wait(Wait::Load(Load::Dentries { dir: *dir, from: *hash, limit: SAME_HASH }))
            }
            Some(_) => wait_record(InoRecord::Inode, ino),
            None => match self.reclaimed.hint(ino) {
                Some((dir, hash)) => {
                    Stop::Wait(Wait::Hint(ino, Load::Dentries { dir, from: hash, limit: SAME_HASH }))
                }
                None => wait_record(InoRecord::Inode, ino),
            },
        }
    }

    pub(crate) fn inode(&self, ino: Ino) -> Step<&Inode> {
        self.cached(ino).map(|cached| &cached.inode)
    }

    /// A directory; `ENOTDIR` for anything else. One that no client knows is found by the record of its place.
    pub(crate) fn dir(&self, ino: Ino) -> Step<&Inode> {
        if let Some(locks) = &self.locks {
            locks.check(ino)?;
        }
        self.dir_even_if_locked(ino)
    }

    /// For what does not depend on where it lies.
    pub(crate) fn dir_even_if_locked(&self, ino: Ino) -> Step<&Inode> {
        let Some(cached) = self.inodes.get(&ino) else {
            let is_found = ino == Ino::ROOT || self.known.contains_key(&ino);
            return Err(if is_found { self.wait_inode(ino) } else { wait_record(InoRecord::Place, ino) });
        };
        cached.used.set(true);
        let inode = &cached.inode;
        if inode.is_dir() { Ok(inode) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// Makes sure that [`Self::cached`] finds an inode that no client need know, by the record of its place.
    pub(crate) fn locate(&self, ino: Ino) -> Step<()> {
        let is_found = ino == Ino::ROOT || self.inodes.contains_key(&ino) || self.known.contains_key(&ino);
        if is_found { Ok(()) } else { Err(wait_record(InoRecord::Place, ino)) }
    }

    /// What a name stands for.
    pub(crate) fn target(&self, dir: Ino, slot: &Slot) -> Step<Target> {
        if let Some(locks) = &self.locks {
            locks.check_name(dir, slot)?;
        }
        let fragment = self.fragments.get(&dir);
        if let Some(cell) = fragment.and_then(|fragment| fragment.cells.get(slot)) {
            return Ok(cell.target);
        }
        if fragment.is_some_and(|fragment| fragment.complete) {
            return Ok(Target::Absent);
        }
        // A small directory is loaded whole: then it is known what is not there, too.
        let untouched = fragment.is_none_or(|fragment| fragment.loaded_to == 0);
        let load = match &self.dir(dir)?.body {
            Body::Directory(directory) if untouched && directory.entries <= SMALL_DIRECTORY as u64 => {
                Load::Dentries { dir, from: 0, limit: 2 * SMALL_DIRECTORY }
            }
            _ => Load::Record { object: ObjectId::fragment(dir, 0), key: slot.key() },
        };
        Err(Stop::Wait(Wait::Load(load)))
    }

    /// The bytes that are kept of a stuffed file.
    pub(crate) fn strip(&self, ino: Ino) -> Step<&[u8]> {
        match (&self.inode(ino)?.body, self.strips.get(&ino)) {
            (_, Some(strip)) => Ok(&strip.bytes),
            (Body::Stuffed { stored: 1.., .. }, None) => Err(wait_record(InoRecord::Strip, ino)),
            _ => Ok(&[]),
        }
    }

    pub(crate) fn xattr_list(&self, ino: Ino) -> Step<&Xattrs> {
        match (self.inode(ino)?.has_xattrs, self.xattrs.get(&ino)) {
            (_, Some(cell)) => Ok(&cell.list),
            (true, None) => Err(wait_record(InoRecord::Xattrs, ino)),
            (false, None) => {
                static NONE: Xattrs = Xattrs::new();
                Ok(&NONE)
            }
        }
    }

    /// The dentry of the last checkpoint that an inode lies in, if it has not changed since.
    pub(crate) fn unchanged_dentry(&self, ino: Ino) -> Option<(Ino, u64)> {
        let cached = self.inodes.get(&ino)?;
        match cached.home {
            Home::Dentry { dir, hash } if cached.track.epoch != self.epoch => Some((dir, hash)),
            _ => None,
        }
    }

    pub(crate) fn add_inode(&mut self, cached: Cached) {
        let ino = cached.inode.ino;
        self.clock.inodes.push_back(ino);
        self.clock.added += 1;
        self.inodes.insert(ino, Box::new(cached));
    }

    // ---- Changing: each `touch` comes before the change itself

    /// The inode is about to change, to move, or to go.
    pub(crate) fn touch_inode(&mut self, ino: Ino) -> Option<&mut Cached> {
        let epoch = self.epoch;
        let cached = self.inodes.get(&ino)?;
        if cached.track.epoch != epoch {
            if cached.track.epoch != 0 {
                self.encode_inode(ino);
            }
            self.changed.push_back(Changed::Inode(ino));
            self.dirty += DIRTY_INODE;
        }
        let cached = self.inodes.get_mut(&ino)?;
        cached.track.epoch = epoch;
        Some(cached)
    }

    /// Changes the bytes of a stuffed file. They are in memory, or there are none.
    pub(crate) fn change_strip(&mut self, ino: Ino, change: impl FnOnce(&mut Vec<u8>)) {
        let (epoch, version) = (self.epoch, self.sequence);
        let strip = self.strips.entry(ino).or_insert_with(|| {
            let body = self.inodes.get(&ino).map(|cached| &cached.inode.body);
            let was_empty = matches!(body, Some(Body::Stuffed { size: 0, .. }));
            Strip { first: if was_empty { version } else { 0 }, ..Strip::default() }
        });
        let before = strip.bytes.capacity();
        if strip.track.epoch != epoch {
            if strip.track.epoch != 0 {
                encode_strip(ino, strip, epoch, &mut self.snapshot.writes);
            }
            self.changed.push_back(Changed::Strip(ino));
            self.dirty += before;
            strip.track.epoch = epoch;
        }
        strip.version = version;
        change(&mut strip.bytes);
        let grown = strip.bytes.capacity().saturating_sub(before);
        self.dirty += grown;
        self.clock.bytes += grown;
    }

    /// A new stuffed file gets all its bytes from another.
    pub(crate) fn put_clone(&mut self, ino: Ino, bytes: Vec<u8>) {
        self.cloned += bytes.len() as u64;
        self.change_strip(ino, |strip| *strip = bytes);
        if let Some(strip) = self.strips.get_mut(&ino) {
            strip.first = strip.version;
        }
    }

    /// The bytes of a stuffed file go.
    pub(crate) fn drop_strip(&mut self, ino: Ino) {
        // The store has it if the inode says so or a checkpoint wrote it.
        self.change_strip(ino, |_| ());
        if let Some(strip) = self.strips.remove(&ino) {
            self.clock.bytes = self.clock.bytes.saturating_sub(strip.bytes.capacity());
            self.erase_record(InoRecord::Strip, ino, strip.track.stored);
        }
    }

    /// Changes the extended attributes of an inode. They are in memory, or there are none.
    pub(crate) fn change_xattrs<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Xattrs) -> R) -> R {
        let epoch = self.epoch;
        let cell = self.xattrs.entry(ino).or_default();
        if cell.track.epoch != epoch {
            if cell.track.epoch != 0 {
                encode_xattrs(ino, cell, epoch, &mut self.snapshot.writes);
            }
            self.changed.push_back(Changed::Xattrs(ino));
            cell.track.epoch = epoch;
        }
        let before = cell.bytes();
        let result = change(&mut cell.list);
        let after = cell.bytes();
        self.dirty += after;
        self.clock.bytes = (self.clock.bytes + after).saturating_sub(before);
        result
    }

    pub(crate) fn drop_xattrs(&mut self, ino: Ino) {
        self.change_xattrs(ino, |_| ());
        if let Some(cell) = self.xattrs.remove(&ino) {
            self.clock.bytes = self.clock.bytes.saturating_sub(cell.bytes());
            self.erase_record(InoRecord::Xattrs, ino, cell.track.stored);
        }
    }

    /// An unloaded record that the store has goes.
    pub(crate) fn erase_record(&mut self, record: InoRecord, ino: Ino, stored: bool) {
        if stored {
            let (object, key) = record.place(ino);
            self.erased.push(TableWrite { object, key, value: None });
        }
    }

    /// Gives an inode without a home in a dentry one: the name must be free.
    pub(crate) fn put_primary(&mut self, dir: Ino, slot: Slot, ino: Ino) {
        self.move_home(ino, Home::Dentry { dir, hash: slot.hash });
        self.put_cell(dir, slot, Target::Primary(ino));
    }

    /// A name for an inode that lies elsewhere. It replaces what is there.
    pub(crate) fn put_remote(&mut self, dir: Ino, slot: Slot, ino: Ino, kind: FileType) {
        let epoch = self.epoch;
        // A remote dentry is rare enough to be encoded anew whenever it is replaced.
        self.encode_remote(dir, &slot);
        self.changed.push_back(Changed::Remote(dir, slot.clone()));
        self.clock.loose.push_back((dir, slot.hash));
        self.dirty += DIRTY_INODE;
        self.put_cell(dir, slot, Target::Remote(ino, kind)).track.epoch = epoch;
    }

    fn put_cell(&mut self, dir: Ino, slot: Slot, target: Target) -> &mut Cell {
        let cells = &mut self.fragments.entry(dir).or_default().cells;
        let cell = cells.entry(slot).or_insert_with_key(|slot| {
            self.clock.cell_added(slot);
            Cell { target, track: Track::default() }
        });
        cell.target = target;
        cell.track.epoch = 0;
        cell
    }

    /// A name goes. A primary dentry's inode must have been touched before, and must get another home or go.
    pub(crate) fn erase_cell(&mut self, dir: Ino, slot: &Slot) {
        self.encode_remote(dir, slot);
        let fragment = self.fragments.entry(dir).or_default();
        let Some(cell) = fragment.cells.get_mut(slot) else { return };
        if cell.track.stored {
            let object = ObjectId::fragment(dir, 0);
            self.erased.push(TableWrite { object, key: slot.key(), value: None });
            self.gone.push_back((self.epoch, dir, slot.clone()));
            self.dirty += DIRTY_INODE;
            cell.track = Track { written: self.epoch, ..Track::default() };
        }
        if cell.track.written > self.published {
            // The store has the name until a checkpoint is done: remember that it went.
            cell.target = Target::Absent;
            cell.track = Track { written: cell.track.written, ..Track::default() };
        } else {
            fragment.cells.remove(slot);
            self.clock.cell_removed(slot);
        }
    }

    /// The inode, which must have been touched, lies elsewhere from now on.
    pub(crate) fn move_home(&mut self, ino: Ino, home: Home) {
        self.leave_home(ino);
        let Some(cached) = self.inodes.get_mut(&ino) else { return };
        cached.home = home;
        cached.track.stored = false;
        if home == Home::Orphan && core::mem::take(&mut cached.is_placed) {
            self.erase_place(ino);
        }
    }

    fn erase_place(&mut self, ino: Ino) {
        self.erase_record(InoRecord::Place, ino, true);
        self.outdated.insert(ino, self.epoch);
    }

    /// Removes the record from a home that is its own. `track.stored` of an inode speaks of such homes only; of one in a
    /// dentry, it says whether the place that the store has is up to date.
    fn leave_home(&mut self, ino: Ino) {
        let Some(cached) = self.inodes.get_mut(&ino) else { return };
        if cached.track.stored {
            if !matches!(cached.home, Home::Dentry { .. }) {
                self.outdated.insert(ino, self.epoch);
            }
            match cached.home {
                Home::Dentry { .. } => {}
                Home::Table => self.erase_record(InoRecord::Inode, ino, true),
                Home::Orphan => self.erased.push(TableWrite {
                    object: ObjectId::ORPHANS,
                    key: orphan_key(ino),
                    value: None,
                }),
            }
        }
    }

    /// The inode, which must have been touched, ceases to be, with all that belongs to it.
    pub(crate) fn drop_inode(&mut self, ino: Ino) {
        self.leave_home(ino);
        let Some(cached) = self.inodes.remove(&ino) else { return };
        if cached.is_placed {
            self.erase_place(ino);
        }
        if self.strips.contains_key(&ino) {
            self.drop_strip(ino);
        } else {
            self.erase_record(
                InoRecord::Strip,
                ino,
                matches!(cached.inode.body, Body::Stuffed { stored: 1.., .. }),
            );
        }
        if self.xattrs.contains_key(&ino) {
            self.drop_xattrs(ino);
        } else {
            self.erase_record(InoRecord::Xattrs, ino, cached.inode.has_xattrs);
        }
        if let Some(fragment) = self.fragments.remove(&ino) {
            fragment.cells.keys().for_each(|slot| self.clock.cell_removed(slot));
        }
    }

    pub(crate) fn insert_inode(&mut self, inode: Inode, home: Home) {
        let ino = inode.ino;
        self.next_ino = self.next_ino.max(ino.0 + 1);
        if inode.is_dir() {
            self.fragments.insert(ino, Fragment { complete: true, ..Fragment::default() });
        }
        let track = Track { epoch: self.epoch, ..Track::default() };
        self.add_inode(Cached { names_are_new: true, ..Cached::new(inode, home, track) });
        self.changed.push_back(Changed::Inode(ino));
        self.dirty += DIRTY_INODE;
    }
}

/// In the record of an inode's place, instead of a directory: it lies in the inode table.
pub(crate) const NO_DIR: Ino = Ino(0);
/// Directories of at most so many entries are loaded whole.
const SMALL_DIRECTORY: usize = 256;
/// More names of one hash than a directory will ever have.
pub(crate) const SAME_HASH: usize = 4;
/// What a changed inode, or a name that went, takes of memory until a checkpoint has written it; about, in bytes.
const DIRTY_INODE: usize = 256;

pub(crate) fn orphan_key(ino: Ino) -> Vec<u8> {
    ino.0.to_be_bytes().to_vec()
}

fn wait_record(record: InoRecord, ino: Ino) -> Stop {
    let (object, key) = record.place(ino);
    Stop::Wait(Wait::Load(Load::Record { object, key }))
}
