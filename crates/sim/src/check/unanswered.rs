//! Results that callers do not get: of failed or abandoned calls; and the inodes of numbers in
//! replies that were not checked.

use std::collections::BTreeSet;

use espalier_client::Answer;
use espalier_proto::{ClientId, Errno, Ino};

use super::outcome::Observed;
use super::search::{Over, PartId, Search, World};
use super::tree::Tree;
use super::{Checker, MANY_WORLDS};
use crate::Nanos;

/// Effect of a call whose caller does not get the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    Nothing,
    /// Unknown.
    Either,
}

impl Checker {
    /// A call whose caller does not get the result has no effect after `at`.
    pub fn over(&mut self, at: Nanos, client: ClientId, call_id: u64, fate: Fate) {
        for id in self.unanswered_parts.remove(&(client, call_id)).into_iter().flatten() {
            let Some(part) = self.pending.get_mut(&id).filter(|part| !part.is_answered) else { continue };
            // Data servers change data too, and are not tracked.
            if part.action.written().is_some() || part.action.empties() {
                continue;
            }
            let is_done = fate == Fate::Done && part.action.shows();
            part.over = Some(Over { at, is_done });
            if fate == Fate::Nothing && self.worlds.iter().any(|world| !world.is_done(id)) {
                self.worlds.retain(|world| !world.is_done(id));
                self.pending.remove(&id);
            }
        }
    }

    /// Keeps the worlds in which these changed inodes are known. Returns false if there are none.
    pub(super) fn knows(&mut self, changed: &[Ino]) -> bool {
        let knows = |world: &World| {
            let tree = Tree { base: &self.base, changes: world.changes.clone() };
            changed.iter().all(|ino| tree.numbered(*ino).is_some())
        };
        let is_known = self.worlds.iter().any(knows);
        if is_known {
            self.worlds.retain(knows);
        }
        is_known
    }

    /// True if some world knows the number.
    pub(super) fn is_known(&self, ino: Ino) -> bool {
        self.worlds.iter().any(|world| self.tree(world).numbered(ino).is_some())
    }

    /// Learns the inode of an unknown number from a reply that may be stale.
    pub(super) fn learn(&mut self, id: PartId, observed: &Observed<'_>) {
        let logged = self.durability.as_ref().map(|durability| &durability.calls);
        let mut search = Search::new(&self.base, &self.pending, logged, self.strip, id, observed);
        let found: BTreeSet<World> = self.worlds.iter().flat_map(|world| search.explained(world)).collect();
        if search.is_bounded() && found.len() < MANY_WORLDS {
            self.worlds.extend(found);
        }
        let worlds = std::mem::take(&mut self.worlds).into_iter();
        self.worlds = worlds.map(|world| world.without(id)).collect();
    }
}

/// True if a reply contains such a number.
pub fn reports_number(result: &Result<Answer, Errno>, mut is_one: impl FnMut(Ino) -> bool) -> bool {
    match result {
        Ok(Answer::Entry(entry) | Answer::Unmeasured(entry)) => is_one(entry.attr.ino),
        Ok(Answer::Listing { entries, .. }) => entries.iter().any(|entry| is_one(entry.ino)),
        _ => false,
    }
}
