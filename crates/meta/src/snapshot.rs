//! Snapshots: what a checkpoint writes, that is the tables as of one position of the journal, in
//! pieces, while operations continue. A record that changes before its piece is written is encoded
//! just before the change ([`State::touch_inode`] and its like).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino, Name, ObjectId, Rank, TableWrite};

use crate::rank::TransactionId;
use crate::record::{Dentry, InoRecord, Slot, encode, encode_primary};
use crate::state::{Cached, Location, NO_DIR, State, Strip, Target, Track, XattrCell, orphan_key};

/// A record that has changed since the last checkpoint.
#[derive(Debug)]
pub(crate) enum Changed {
    Inode(Ino),
    Remote(Ino, Slot),
    Strip(Ino),
    Xattrs(Ino),
    Session(ClientId),
    Moved(Ino),
    TransactionRecord(TransactionId),
    UsageDeltas(Rank),
}

/// The snapshot of the current checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Records to encode, except those that were encoded when they changed.
    pub changed: VecDeque<Changed>,
    /// Encoded records for the store.
    pub writes: Vec<TableWrite>,
}

impl State {
    /// True if there is anything to write.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changed.is_empty() || !self.erased.is_empty()
    }

    /// Fixes the current state as the one that [`Self::next_writes`] returns.
    pub(crate) fn begin_snapshot(&mut self) {
        self.epoch += 1;
        (self.dirty, self.cloned) = (0, 0);
        self.snapshot = Snapshot {
            changed: core::mem::take(&mut self.changed),
            writes: core::mem::take(&mut self.erased),
        };
    }

    /// Records that the last snapshot is durable.
    pub(crate) fn snapshot_published(&mut self) {
        self.published = self.epoch - 1;
        let published = self.published;
        self.outdated.retain(|_, epoch| *epoch > published);
    }

    /// Encodes the next piece of the snapshot, of at least `records` records. Empty at the end.
    pub(crate) fn next_writes(&mut self, records: usize) -> Vec<TableWrite> {
        // Records that are gone, or were encoded when they changed, do not count: only the end
        // returns nothing.
        while self.snapshot.writes.len() < records
            && let Some(changed) = self.snapshot.changed.pop_front()
        {
            let was = self.epoch - 1;
            match changed {
                Changed::Inode(ino) => {
                    if self.inodes.get(&ino).is_some_and(|cached| cached.track.epoch == was) {
                        self.encode_inode(ino);
                    }
                }
                Changed::Remote(dir, slot) => self.encode_remote(dir, &slot),
                Changed::Moved(ino) => self.encode_moved(ino),
                Changed::UsageDeltas(rank) => self.encode_deltas(rank),
                Changed::TransactionRecord(id) => {
                    if self.transactions.get(&id).is_some_and(|it| it.track.epoch == was) {
                        self.encode_transaction(id);
                    }
                }
                Changed::Session(client) => {
                    if self.sessions.get(&client).is_some_and(|persisted| persisted.track.epoch == was) {
                        self.encode_session(client);
                    }
                }
                Changed::Strip(ino) => {
                    if let Some(strip) = self.strips.get_mut(&ino).filter(|strip| strip.track.epoch == was) {
                        encode_strip(ino, strip, self.epoch, &mut self.snapshot.writes);
                    }
                }
                Changed::Xattrs(ino) => {
                    if let Some(cell) = self.xattrs.get_mut(&ino).filter(|cell| cell.track.epoch == was) {
                        encode_xattrs(ino, cell, self.epoch, &mut self.snapshot.writes);
                    }
                }
            }
        }
        core::mem::take(&mut self.snapshot.writes)
    }

    /// Adds the inode's record to the current snapshot.
    pub(crate) fn encode_inode(&mut self, ino: Ino) {
        let Some(cached) = self.inodes.get_mut(&ino) else { return };
        (cached.track.epoch, cached.track.written) = (0, self.epoch - 1);
        let (object, key, value) = match cached.location {
            Location::Dentry { dir, hash } => {
                let Some(fragment) = self.fragments.get_mut(&dir) else { return };
                let from = Slot { hash, name: Name::lowest() };
                let mut cells = fragment.cells.range_mut(from..);
                let Some((slot, cell)) = cells.find(|(_, cell)| cell.target == Target::Primary(ino)) else {
                    return;
                };
                cell.track.stored = true;
                place_inode(cached, (dir, hash), &mut self.snapshot.writes);
                (ObjectId::fragment(dir, 0), slot.key(), encode_primary(&cached.inode))
            }
            Location::Table => {
                place_inode(cached, (NO_DIR, 0), &mut self.snapshot.writes);
                let (object, key) = InoRecord::Inode.place(ino);
                (object, key, encode(&cached.inode))
            }
            Location::Orphan => {
                cached.track.stored = true;
                (ObjectId::ORPHANS, orphan_key(ino), encode(&cached.inode))
            }
        };
        self.snapshot.writes.push(TableWrite { object, key, value: Some(value) });
    }

    /// Adds a remote dentry to the current snapshot, if it belongs there and is not in it yet.
    pub(crate) fn encode_remote(&mut self, dir: Ino, slot: &Slot) {
        let was = self.epoch - 1;
        let Some(cell) = self.fragments.get_mut(&dir).and_then(|fragment| fragment.cells.get_mut(slot))
        else {
            return;
        };
        if let Target::Remote(ino, kind) = cell.target
            && cell.track.epoch == was
            && was != 0
        {
            cell.track = Track { epoch: 0, written: was, stored: true };
            let value = Some(encode(&Dentry::Remote { ino, kind }));
            self.snapshot.writes.push(TableWrite {
                object: ObjectId::fragment(dir, 0),
                key: slot.key(),
                value,
            });
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

/// Adds a strip to the current snapshot, which was begun with `epoch`.
pub(crate) fn encode_strip(ino: Ino, strip: &mut Strip, epoch: u32, writes: &mut Vec<TableWrite>) {
    let value = (!strip.bytes.is_empty()).then(|| strip.bytes.clone());
    encode_by_ino(InoRecord::Strip, ino, &mut strip.track, epoch, value, writes);
}

pub(crate) fn encode_xattrs(ino: Ino, cell: &mut XattrCell, epoch: u32, writes: &mut Vec<TableWrite>) {
    let value = (!cell.list.is_empty()).then(|| encode(&cell.list));
    encode_by_ino(InoRecord::Xattrs, ino, &mut cell.track, epoch, value, writes);
}

fn encode_by_ino(
    record: InoRecord,
    ino: Ino,
    track: &mut Track,
    epoch: u32,
    value: Option<Vec<u8>>,
    writes: &mut Vec<TableWrite>,
) {
    let (object, key) = record.place(ino);
    let was = *track;
    *track = Track { epoch: 0, written: epoch - 1, stored: value.is_some() };
    if was.stored || value.is_some() {
        writes.push(TableWrite { object, key, value });
    }
}
