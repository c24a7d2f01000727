//! Snapshots: what a checkpoint writes, that is the tables as of one position of the journal, in
//! pieces, while operations continue. A record that changes before its piece is written is encoded
//! just before the change (`table.rs`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Ino, Name, ObjectId, TableWrite};

use crate::record::{Dentry, InoRecord, Slot, encode, encode_primary};
use crate::state::{Cached, Cell, DIRTY_INODE, Fragment, FxMap, Location, NO_DIR, State, Target, orphan_key};
use crate::table::{Select, Track, Tracked};

/// The changes since the last snapshot, and the current snapshot.
#[derive(Debug)]
pub(crate) struct UnwrittenChanges {
    /// The current epoch; grows with every checkpoint.
    epoch: u32,
    /// Epoch of the last durable checkpoint.
    published: u32,
    /// A record has changed in this epoch.
    any: bool,
    /// Approximate size of the records changed in this epoch, in bytes.
    dirty: usize,
    /// Removals by the next checkpoint, which precede its other writes.
    erased: Vec<TableWrite>,
    /// Writes of the current snapshot that the store has not been given.
    pub writes: Vec<TableWrite>,
    /// Bytes of files cloned in this epoch, which the journal does not contain.
    pub cloned: u64,
    /// Removed names, each with the epoch of the checkpoint that removes it from the store.
    gone: VecDeque<(u32, Ino, Slot)>,
    /// Inodes whose own record or place was removed, until the checkpoint of that epoch has removed
    /// it from the store.
    outdated: FxMap<Ino, u32>,
}

impl Default for UnwrittenChanges {
    fn default() -> Self {
        Self {
            epoch: 1,
            published: 0,
            any: false,
            dirty: 0,
            erased: Vec::new(),
            writes: Vec::new(),
            cloned: 0,
            gone: VecDeque::new(),
            outdated: FxMap::default(),
        }
    }
}

impl UnwrittenChanges {
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn published(&self) -> u32 {
        self.published
    }

    pub(crate) fn dirty(&self) -> usize {
        self.dirty
    }

    /// True if there is anything to write.
    pub(crate) fn has_any(&self) -> bool {
        self.any || !self.erased.is_empty()
    }

    /// Records that a record has changed, which takes this much memory.
    pub(crate) fn note(&mut self, bytes: usize) {
        self.any = true;
        self.dirty += bytes;
    }

    /// For audits: true if the store has a record as it is in memory, unless a change was not
    /// marked, or a checkpoint has left it out.
    pub(crate) fn counts_as_written(&self, track: Track) -> bool {
        track.epoch + 1 < self.epoch && track.written <= self.published
    }

    /// Removes a record from the store with the next checkpoint.
    pub(crate) fn erase(&mut self, (object, key): (ObjectId, Vec<u8>)) {
        self.erased.push(TableWrite { object, key, value: None });
    }

    /// Removes an inode's own record or place.
    pub(crate) fn erase_inode(&mut self, ino: Ino, place: (ObjectId, Vec<u8>)) {
        self.erase(place);
        self.outdated.insert(ino, self.epoch);
    }

    /// True if the store may have a removed record or place of an inode.
    pub(crate) fn is_outdated(&self, ino: Ino) -> bool {
        self.outdated.contains_key(&ino)
    }

    pub(crate) fn erase_name(&mut self, dir: Ino, slot: &Slot) {
        self.erase((ObjectId::fragment(dir, 0), slot.key()));
        self.gone.push_back((self.epoch, dir, slot.clone()));
        self.note(DIRTY_INODE);
    }

    /// The next removed name that a durable checkpoint has removed from the store.
    pub(crate) fn pop_gone(&mut self) -> Option<(Ino, Slot)> {
        let published = self.published;
        let gone = self.gone.pop_front_if(|(epoch, ..)| *epoch <= published);
        gone.map(|(_, dir, slot)| (dir, slot))
    }

    /// Fixes the current state as the one that [`State::next_writes`] returns.
    pub(crate) fn begin_snapshot(&mut self) {
        self.epoch += 1;
        (self.any, self.dirty, self.cloned) = (false, 0, 0);
        self.writes = core::mem::take(&mut self.erased);
    }

    /// Records that the last snapshot is durable.
    pub(crate) fn publish(&mut self) {
        let published = self.epoch - 1;
        self.published = published;
        self.outdated.retain(|_, epoch| *epoch > published);
    }

    /// Adds a record to the current snapshot, if it belongs there and is not in it yet.
    pub(crate) fn encode<R: Tracked>(&mut self, key: &R::Key, record: &mut R, context: &mut R::Context) {
        let track = record.track();
        if track.epoch != 0 && track.epoch != self.epoch {
            (track.epoch, track.written) = (0, self.epoch - 1);
            record.write(key, context, &mut self.writes);
        }
    }
}

impl State {
    /// Encodes the next piece of the snapshot, of at least `records` records. Empty at the end.
    pub(crate) fn next_writes(&mut self, records: usize) -> Vec<TableWrite> {
        // Records that are gone, or were encoded when they changed, do not count: only the end
        // returns nothing.
        self.write_tables(Select::Missing(records));
        core::mem::take(&mut self.changes.writes)
    }

    /// The records that [`UnwrittenChanges::counts_as_written`].
    pub(crate) fn written_records(&mut self) -> Vec<TableWrite> {
        let snapshot = core::mem::take(&mut self.changes.writes);
        self.write_tables(Select::Written);
        core::mem::replace(&mut self.changes.writes, snapshot)
    }

    fn write_tables(&mut self, select: Select) {
        let changes = &mut self.changes;
        self.inodes.write(select, &mut self.fragments, changes);
        self.strips.write(select, &mut (), changes);
        self.xattrs.write(select, &mut (), changes);
        self.sessions.write(select, &mut (), changes);
        self.transactions.write(select, &mut (), changes);
        self.usage_deltas.write(select, &mut (), changes);
        self.moved.write(select, &mut (), changes);
        self.relocations.write(select, &mut (), changes);
        self.freed.write(select, &mut (), changes);
        self.write_remotes(select);
    }

    fn write_remotes(&mut self, select: Select) {
        let changes = &mut self.changes;
        match select {
            Select::Missing(limit) => {
                while changes.writes.len() < limit
                    && let Some(key) = self.remotes.pop(changes)
                {
                    let fragment = self.fragments.get_mut(&key.0);
                    if let Some(cell) = fragment.and_then(|fragment| fragment.cells.get_mut(&key.1)) {
                        changes.encode(&key, cell, &mut ());
                    }
                }
            }
            Select::Written => {
                for (dir, fragment) in &mut self.fragments {
                    for (slot, cell) in &mut fragment.cells {
                        if changes.counts_as_written(cell.track) {
                            cell.write(&(*dir, slot.clone()), &mut (), &mut changes.writes);
                        }
                    }
                }
            }
        }
    }
}

impl Tracked for Box<Cached> {
    type Key = Ino;
    /// The directories, of which one names the inode.
    type Context = FxMap<Ino, Fragment>;

    fn track(&mut self) -> &mut Track {
        &mut self.track
    }

    fn dirty_bytes(&self) -> usize {
        DIRTY_INODE
    }

    fn write(&mut self, ino: &Ino, fragments: &mut FxMap<Ino, Fragment>, writes: &mut Vec<TableWrite>) {
        let (object, key, value) = match self.location {
            Location::Dentry { dir, hash } => {
                let Some(fragment) = fragments.get_mut(&dir) else { return };
                let from = Slot { hash, name: Name::lowest() };
                let mut cells = fragment.cells.range_mut(from..);
                let Some((slot, cell)) = cells.find(|(_, cell)| cell.target == Target::Primary(*ino)) else {
                    return;
                };
                cell.track.stored = true;
                write_place(self, (dir, hash), writes);
                (ObjectId::fragment(dir, 0), slot.key(), encode_primary(&self.inode))
            }
            Location::Table => {
                write_place(self, (NO_DIR, 0), writes);
                let (object, key) = InoRecord::Inode.place(*ino);
                (object, key, encode(&self.inode))
            }
            Location::Orphan => {
                self.track.stored = true;
                (ObjectId::ORPHANS, orphan_key(*ino), encode(&self.inode))
            }
        };
        writes.push(TableWrite { object, key, value: Some(value) });
    }
}

/// Remote dentries. They are not in a table, since a directory has its dentries in order.
impl Tracked for Cell {
    type Key = (Ino, Slot);
    type Context = ();

    fn track(&mut self) -> &mut Track {
        &mut self.track
    }

    fn dirty_bytes(&self) -> usize {
        DIRTY_INODE
    }

    fn write(&mut self, (dir, slot): &(Ino, Slot), (): &mut (), writes: &mut Vec<TableWrite>) {
        if let Target::Remote(referent) = self.target {
            self.track.stored = true;
            let (object, value) = (ObjectId::fragment(*dir, 0), encode(&Dentry::Remote(referent)));
            writes.push(TableWrite { object, key: slot.key(), value: Some(value) });
        }
    }
}

/// Adds the place of an inode to a snapshot, unless the store has it.
fn write_place(cached: &mut Cached, place: (Ino, u64), writes: &mut Vec<TableWrite>) {
    let ino = cached.inode.ino;
    if !core::mem::replace(&mut cached.track.stored, true) && ino != Ino::ROOT {
        cached.is_placed = true;
        let (object, key) = InoRecord::Place.place(ino);
        writes.push(TableWrite { object, key, value: Some(encode(&place)) });
    }
}
