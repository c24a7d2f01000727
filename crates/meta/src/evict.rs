//! Eviction: keeps the cache within its bound by dropping records that have not been used recently
//! and are durable in the store.
//!
//! Inodes are evicted by the clock algorithm: one that was used since the hand last passed stays
//! for another round. Its dentry, bytes and extended attributes are evicted with it. If clients
//! know its number, its location stays in memory; if there are too many of those, clients are asked
//! to forget it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Ino, Name};

use crate::record::Slot;
use crate::state::{Cached, Cell, KnownInode, Location, State, Target};
use espalier_proto::Recall;

/// The eviction order, and the size of the cache.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// All inodes in memory, and some that are gone.
    pub inodes: VecDeque<Ino>,
    /// Positions of dentries without an inode in memory (remote or negative), and some that are
    /// gone.
    pub loose: VecDeque<(Ino, u64)>,
    /// Inodes added since the hand last moved.
    pub added: usize,
    /// Dentries in memory.
    pub cells: usize,
    /// Number of dentries evicted so far.
    pub dropped: u64,
    /// Size of names, in bytes.
    pub bytes: usize,
}

/// Approximate memory per item, with its share of maps and allocator, in bytes.
const INODE: usize = size_of::<Cached>() + 64;
const CELL: usize = (size_of::<Slot>() + size_of::<Cell>()) * 3 / 2;
const KNOWN: usize = (size_of::<Ino>() + size_of::<KnownInode>()) * 3 / 2;
const STRIP: usize = 128;
/// The allocator's overhead per name, in bytes.
const NAME: usize = 24;

impl Clock {
    pub(crate) fn cell_added(&mut self, slot: &Slot) {
        self.cells += 1;
        self.bytes += slot.name.len() + NAME;
    }

    pub(crate) fn cell_removed(&mut self, slot: &Slot) {
        self.cells = self.cells.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(slot.name.len() + NAME);
    }
}

impl State {
    /// Approximate size of the cache in bytes.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.inodes.len() * INODE
            + self.clock.cells * CELL
            + (self.known.len() + self.reclaimed.len() + self.moved.len() + self.relocations.len()) * KNOWN
            + (self.strips.len() + self.xattrs.len()) * STRIP
            + self.strips.bytes()
            + self.xattrs.bytes()
            + self.clock.bytes
    }

    /// Evicts until the cache takes at most `bound` bytes, or the hand has moved a few steps and
    /// some more per added inode: an operation pays for what it has loaded.
    pub(crate) fn shrink(&mut self, bound: usize, recalls: &mut Vec<Recall>) {
        let steps = STEPS + 3 * core::mem::take(&mut self.clock.added);
        self.forget_gone(steps);
        self.shrink_relocations();
        for _ in 0..steps {
            if self.cache_bytes() <= bound {
                break;
            }
            if let Some((dir, hash)) = self.clock.loose.pop_front() {
                self.evict_loose(dir, hash);
            }
            let Some(ino) = self.clock.inodes.pop_front() else { break };
            self.evict_inode(ino, bound, recalls);
        }
        // Removed inodes leave stale entries in the queue.
        if self.clock.inodes.len() > 2 * self.inodes.len() + SLACK {
            let Self { clock, inodes, .. } = self;
            clock.inodes.retain(|ino| inodes.contains_key(ino));
        }
        if self.clock.loose.len() > 2 * self.clock.cells + SLACK {
            let mut loose = core::mem::take(&mut self.clock.loose);
            loose.make_contiguous().sort_unstable();
            let mut last = None;
            loose.retain(|place| {
                last.replace(*place) != Some(*place) && self.loose_cells(place.0, place.1).next().is_some()
            });
            self.clock.loose = loose;
        }
    }

    /// Forgets removed names that a checkpoint has removed from the store.
    fn forget_gone(&mut self, limit: usize) {
        for _ in 0..limit {
            let Some((dir, slot)) = self.changes.pop_gone() else { return };
            let Some(fragment) = self.fragments.get_mut(&dir) else { continue };
            let is_gone = |cell: &Cell| {
                cell.target == Target::Absent
                    && cell.track.is_clean(self.changes.published())
                    && !cell.track.stored
            };
            if fragment.cells.get(&slot).is_some_and(is_gone) {
                fragment.cells.remove(&slot);
                self.clock.cell_removed(&slot);
            }
        }
    }

    /// The dentries with this hash that have no inode in memory of their own.
    fn loose_cells(&self, dir: Ino, hash: u64) -> impl Iterator<Item = (&Slot, &Cell)> {
        let from = Slot { hash, name: Name::lowest() };
        let cells = self.fragments.get(&dir).map(|fragment| fragment.cells.range(from..));
        let here = cells.into_iter().flatten().take_while(move |(slot, _)| slot.hash == hash);
        here.filter(|(_, cell)| !matches!(cell.target, Target::Primary(_)))
    }

    fn evict_loose(&mut self, dir: Ino, hash: u64) {
        let (clean, dirty): (Vec<_>, Vec<_>) = self
            .loose_cells(dir, hash)
            .map(|(slot, cell)| (slot.clone(), cell.track))
            .partition(|(_, track)| track.is_clean(self.changes.published()));
        for (slot, _) in clean {
            self.drop_cell(dir, &slot);
        }
        if !dirty.is_empty() {
            self.clock.loose.push_back((dir, hash));
        }
    }

    fn evict_inode(&mut self, ino: Ino, bound: usize, recalls: &mut Vec<Recall>) {
        let Some(cached) = self.inodes.get(&ino) else { return };
        if cached.used.replace(false) || !self.is_evictable(ino, cached) {
            return self.clock.inodes.push_back(ino);
        }
        let (location, lookups, is_dir) = (cached.location, cached.lookups, cached.inode.is_dir());
        self.inodes.evict(&ino);
        self.strips.evict(&ino);
        self.xattrs.evict(&ino);
        if is_dir {
            self.fragments.remove(&ino);
        }
        let slot = match location {
            Location::Dentry { dir, hash } => self.primary_slot(dir, hash, ino).map(|slot| (dir, slot)),
            _ => None,
        };
        if let Some((dir, slot)) = &slot {
            self.drop_cell(*dir, slot);
        }
        if lookups > 0 {
            self.known.insert(ino, KnownInode { location, lookups });
            // A directory may be a working directory, which the kernel cannot forget without harm.
            if self.known.len() * KNOWN > bound / 4 && !is_dir {
                let (dir, name) = slot.map(|(dir, slot)| (dir, slot.name)).unzip();
                recalls.push(Recall { ino, dir, name });
            }
        }
    }

    fn is_evictable(&self, ino: Ino, cached: &Cached) -> bool {
        let published = self.changes.published();
        ino != Ino::ROOT
            && cached.track.is_clean(published)
            && cached.opens == 0
            && !(cached.inode.is_streamed() && self.size_dirty.contains(ino))
            && cached.location != Location::Orphan
            && self.strips.get(&ino).is_none_or(|strip| strip.is_clean(published))
            && self.xattrs.get(&ino).is_none_or(|xattrs| xattrs.is_clean(published))
            && self.fragments.get(&ino).is_none_or(|fragment| fragment.cells.is_empty())
    }

    /// Evicts a dentry. Its directory's entries are then incomplete, unless it was a negative
    /// dentry.
    fn drop_cell(&mut self, dir: Ino, slot: &Slot) {
        let Some(fragment) = self.fragments.get_mut(&dir) else { return };
        let Some(cell) = fragment.cells.remove(slot) else { return };
        if cell.target != Target::Absent {
            (fragment.complete, fragment.loaded_to) = (false, 0);
            self.clock.dropped += 1;
        }
        if fragment.cells.is_empty() && !self.inodes.contains_key(&dir) {
            self.fragments.remove(&dir);
        }
        self.clock.cell_removed(slot);
    }
}

const STEPS: usize = 32;
/// Number of stale entries that the clock's queues may have.
const SLACK: usize = 1024;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use espalier_proto::{FileType, Rank};

    use super::*;
    use crate::record::Referent;

    /// Otherwise each input would scan the whole queue.
    #[test]
    fn places_of_names_that_are_gone_leave_the_clock() {
        let mut state = State::new([0; 16]);
        let slot = state.slot(&Name::new(b"here").unwrap());
        state.put_remote(
            Ino::ROOT,
            slot.clone(),
            Referent { ino: Ino(2), kind: FileType::Regular, at: Rank(0) },
        );
        for dir in 2..=2 * SLACK as u64 {
            state.clock.loose.push_back((Ino(dir), dir));
            state.clock.loose.push_back((Ino::ROOT, slot.hash));
        }
        state.shrink(usize::MAX, &mut Vec::new());
        assert_eq!(state.clock.loose, [(Ino::ROOT, slot.hash)]);
    }
}
