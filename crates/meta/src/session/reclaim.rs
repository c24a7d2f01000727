//! Reclaimed inodes: what clients hold after a restart
//! ([`Request::Reclaim`](espalier_proto::Request)).
//!
//! Reclaiming loads nothing: the client supplies each inode's location as a hint. A hint is only a
//! place to look; the inode found there must match. `Event::Moved` records an inode that moves
//! while clients know it, until all have forgotten it, so older hints are ignored.

use alloc::vec::Vec;

use espalier_proto::{Held, Ino, ObjectId};
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::machine::Meta;
use crate::record::{Corrupt, decode, encode};
use crate::session::PersistedKey;
use crate::state::{FxMap, Location, State};
use crate::table::Record;

/// A place in a directory: its inode number and the hash of a name.
type DentryHint = (Ino, u64);

#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    /// Holds on inodes that are not in memory.
    unseen: FxMap<Ino, Unseen>,
    /// Further hints for these inodes, where clients disagree.
    others: FxMap<Ino, Vec<DentryHint>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Unseen {
    hint: Option<DentryHint>,
    lookups: u64,
    opens: u32,
}

/// The location of an inode that clients know and that has moved.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Moved(Location);

impl Record for Moved {
    type Key = Ino;

    fn place(ino: Ino) -> (ObjectId, Vec<u8>) {
        PersistedKey::Moved(ino).place()
    }

    fn encode(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        decode(value)
    }
}

impl Reclaimed {
    pub(crate) fn len(&self) -> usize {
        self.unseen.len()
    }

    /// Lookups and opens of an inode that is not in memory.
    pub(super) fn count(&self, ino: Ino) -> (u64, u32) {
        self.unseen.get(&ino).map_or((0, 0), |unseen| (unseen.lookups, unseen.opens))
    }

    /// The place to look for an inode first.
    pub(crate) fn hint(&self, ino: Ino) -> Option<DentryHint> {
        self.unseen.get(&ino)?.hint
    }

    /// Drops a hint that was wrong, and takes the next one.
    pub(crate) fn forget_hint(&mut self, ino: Ino) {
        if let Some(unseen) = self.unseen.get_mut(&ino) {
            unseen.hint = self.others.get_mut(&ino).and_then(Vec::pop);
        }
    }

    /// Takes the lookups and opens of an inode that enters memory.
    pub(crate) fn found(&mut self, ino: Ino) -> (u64, u32) {
        if self.unseen.is_empty() {
            return (0, 0);
        }
        self.others.remove(&ino);
        self.unseen.remove(&ino).map_or((0, 0), |unseen| (unseen.lookups, unseen.opens))
    }

    /// Subtracts from the holds on an inode that is not in memory. Returns true if none is left.
    pub(crate) fn give_up(&mut self, ino: Ino, lookups: u64, opens: u32) -> bool {
        let Some(unseen) = self.unseen.get_mut(&ino) else { return false };
        unseen.lookups = unseen.lookups.saturating_sub(lookups);
        unseen.opens = unseen.opens.saturating_sub(opens);
        let is_last = unseen.lookups == 0 && unseen.opens == 0;
        if is_last {
            self.unseen.remove(&ino);
            self.others.remove(&ino);
        }
        is_last
    }
}

impl State {
    /// Adds a client's reclaimed hold.
    pub(crate) fn reclaim(&mut self, held: Held) {
        let Held { ino, location, lookups, opens, .. } = held;
        if let Some(cached) = self.inodes.untracked(&ino) {
            cached.lookups = cached.lookups.saturating_add(lookups);
            cached.opens = cached.opens.saturating_add(opens);
            // Replies report an orphan location only for an inode that never had a name.
            cached.nameless |= (cached.location, location) == (Location::Orphan, Location::Orphan);
            return;
        }
        let location = self.moved.get(&ino).map_or(location, |moved| moved.0);
        let hint = if let Location::Dentry { dir, hash } = location { Some((dir, hash)) } else { None };
        let unseen = self.reclaimed.unseen.entry(ino).or_insert(Unseen { hint, ..Unseen::default() });
        unseen.lookups = unseen.lookups.saturating_add(lookups);
        unseen.opens = unseen.opens.saturating_add(opens);
        if unseen.hint.is_none() {
            unseen.hint = hint;
        } else if let Some(place) = hint.filter(|_| unseen.hint != hint) {
            let others = self.reclaimed.others.entry(ino).or_default();
            if !others.contains(&place) {
                others.push(place);
            }
        }
    }

    /// True if any client holds an inode.
    fn is_held(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|cached| cached.in_use())
            || self.known.get(&ino).is_some_and(|known| known.lookups > 0)
            || self.reclaimed.unseen.contains_key(&ino)
    }

    // ---- Moved inodes

    pub(crate) fn apply_moved(&mut self, ino: Ino, location: Location) {
        self.moved.change_or_insert(ino, &mut self.changes, || Moved(location), |moved| moved.0 = location);
    }

    /// Forgets that an inode has moved: no client knows its old location.
    pub(crate) fn forget_moved(&mut self, ino: Ino) {
        self.moved.remove(ino, &mut self.changes);
    }

    /// Forgets moved inodes that no client holds, at the end of the grace period.
    pub(crate) fn forget_unheld_moves(&mut self) {
        let moved: Vec<Ino> = self.moved.sorted().map(|(ino, _)| *ino).collect();
        for ino in moved {
            if !self.is_held(ino) {
                self.forget_moved(ino);
            }
        }
    }
}

impl Meta {
    /// Forgets that an inode has moved, once no client holds it. Does nothing during the grace
    /// period.
    pub(crate) fn forget_moved(&mut self, ino: Ino) {
        if !self.sessions.in_grace() {
            self.state.forget_moved(ino);
        }
    }

    /// The inodes that clients know and that an event is about to move.
    pub(crate) fn moved_by(&self, event: &Event) -> [Option<Ino>; 2] {
        let state = &self.state;
        let named =
            |dir: &Ino, name| state.target(*dir, &state.slot(name)).ok().and_then(|target| target.ino());
        let moved = match event {
            Event::Link { ino, .. } | Event::MergeLink { ino, .. } => [Some(*ino), None],
            Event::Rename { from_dir, from, .. } => [named(from_dir, from), None],
            Event::Exchange { from_dir, from, to_dir, to, .. } => [named(from_dir, from), named(to_dir, to)],
            _ => [None; 2],
        };
        moved.map(|ino| {
            let cached = state.inodes.get(&ino?)?;
            // Clients that have not reclaimed may hold it.
            let is_known = cached.in_use() || self.sessions.in_grace();
            let moves = is_known && cached.location != Location::Table;
            ino.filter(|_| moves)
        })
    }
}
