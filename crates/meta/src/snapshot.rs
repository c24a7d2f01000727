//! Snapshots: what a checkpoint writes, that is the tables as of one position of the journal, in
//! pieces, while operations continue. A record that changes before its piece is written is encoded
//! just before the change ([`State::touch_inode`] and its like).

use alloc::vec::Vec;

use espalier_proto::{Ino, Name, ObjectId, TableWrite};

use crate::record::{Dentry, InoRecord, Slot, encode, encode_primary};
use crate::state::{Cached, Cell, DIRTY_INODE, Location, NO_DIR, State, Target, orphan_key};
use crate::table::{Track, Tracked};

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
}

impl Default for UnwrittenChanges {
    fn default() -> Self {
        let (erased, writes) = (Vec::new(), Vec::new());
        Self { epoch: 1, published: 0, any: false, dirty: 0, erased, writes, cloned: 0 }
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

    /// True if a record has changed or was removed in this epoch.
    pub(crate) fn has_any(&self) -> bool {
        self.any || !self.erased.is_empty()
    }

    /// Records that a record has changed, which takes this much memory.
    pub(crate) fn note(&mut self, bytes: usize) {
        self.any = true;
        self.dirty += bytes;
    }

    /// Removes a record from the store with the next checkpoint.
    pub(crate) fn erase(&mut self, (object, key): (ObjectId, Vec<u8>)) {
        self.erased.push(TableWrite { object, key, value: None });
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
    /// True if there is anything to write.
    pub(crate) fn has_changes(&self) -> bool {
        self.changes.has_any() || !self.changed.is_empty()
    }

    /// Fixes the current state as the one that [`Self::next_writes`] returns.
    pub(crate) fn begin_snapshot(&mut self) {
        let changes = &mut self.changes;
        changes.epoch += 1;
        (changes.any, changes.dirty, changes.cloned) = (false, 0, 0);
        changes.writes = core::mem::take(&mut changes.erased);
        self.snapshot = core::mem::take(&mut self.changed);
    }

    /// Records that the last snapshot is durable.
    pub(crate) fn snapshot_published(&mut self) {
        let published = self.changes.epoch - 1;
        self.changes.published = published;
        self.outdated.retain(|_, epoch| *epoch > published);
    }

    /// Encodes the next piece of the snapshot, of at least `records` records. Empty at the end.
    pub(crate) fn next_writes(&mut self, records: usize) -> Vec<TableWrite> {
        // Records that are gone, or were encoded when they changed, do not count: only the end
        // returns nothing.
        while self.changes.writes.len() < records
            && let Some(ino) = self.snapshot.pop_front()
        {
            let was = self.changes.epoch() - 1;
            if self.inodes.get(&ino).is_some_and(|cached| cached.track.epoch == was) {
                self.encode_inode(ino);
            }
        }
        while self.changes.writes.len() < records
            && let Some(key) = self.remotes.pop(&self.changes)
        {
            let fragment = self.fragments.get_mut(&key.0);
            if let Some(cell) = fragment.and_then(|fragment| fragment.cells.get_mut(&key.1)) {
                self.changes.encode(&key, cell, &mut ());
            }
        }
        let Self { changes, strips, xattrs, sessions, transactions, usage_deltas, moved, .. } = self;
        strips.write_changed(records, &mut (), changes);
        xattrs.write_changed(records, &mut (), changes);
        moved.write_changed(records, &mut (), changes);
        usage_deltas.write_changed(records, &mut (), changes);
        transactions.write_changed(records, &mut (), changes);
        sessions.write_changed(records, &mut (), changes);
        core::mem::take(&mut changes.writes)
    }

    /// Adds the inode's record to the current snapshot.
    pub(crate) fn encode_inode(&mut self, ino: Ino) {
        let Some(cached) = self.inodes.get_mut(&ino) else { return };
        (cached.track.epoch, cached.track.written) = (0, self.changes.epoch() - 1);
        let (object, key, value) = match cached.location {
            Location::Dentry { dir, hash } => {
                let Some(fragment) = self.fragments.get_mut(&dir) else { return };
                let from = Slot { hash, name: Name::lowest() };
                let mut cells = fragment.cells.range_mut(from..);
                let Some((slot, cell)) = cells.find(|(_, cell)| cell.target == Target::Primary(ino)) else {
                    return;
                };
                cell.track.stored = true;
                place_inode(cached, (dir, hash), &mut self.changes.writes);
                (ObjectId::fragment(dir, 0), slot.key(), encode_primary(&cached.inode))
            }
            Location::Table => {
                place_inode(cached, (NO_DIR, 0), &mut self.changes.writes);
                let (object, key) = InoRecord::Inode.place(ino);
                (object, key, encode(&cached.inode))
            }
            Location::Orphan => {
                cached.track.stored = true;
                (ObjectId::ORPHANS, orphan_key(ino), encode(&cached.inode))
            }
        };
        self.changes.writes.push(TableWrite { object, key, value: Some(value) });
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
        if let Target::Remote(ino, kind) = self.target {
            self.track.stored = true;
            let (object, value) = (ObjectId::fragment(*dir, 0), encode(&Dentry::Remote { ino, kind }));
            writes.push(TableWrite { object, key: slot.key(), value: Some(value) });
        }
    }
}

/// Adds an inode's place to the current snapshot, unless the store has it.
fn place_inode(cached: &mut Cached, place: (Ino, u64), writes: &mut Vec<TableWrite>) {
    let ino = cached.inode.ino;
    if !core::mem::replace(&mut cached.track.stored, true) && ino != Ino::ROOT {
        cached.is_placed = true;
        let (object, key) = InoRecord::Place.place(ino);
        writes.push(TableWrite { object, key, value: Some(encode(&place)) });
    }
}
