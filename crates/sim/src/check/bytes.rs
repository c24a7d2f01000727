//! Which bytes of files can be checked. Those of a file of several strips are read and changed strip by strip, and lie on data servers
//! perhaps, where less is promised of what goes on at the same time.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::Ino;

use super::action::{Action, Extents};
use crate::Nanos;

/// See the module's description.
pub struct Bytes {
    /// Strips lie on several servers.
    pub scattered: bool,
    pub extents: Extents,
    /// When the bytes of a file of several strips were last changed by a call that is over.
    changed: BTreeMap<Ino, Nanos>,
    /// Nothing was changed since these were made durable.
    durable: BTreeSet<Ino>,
    /// What is in these may be anything.
    lost: BTreeSet<Ino>,
    /// When a file that is not known was last emptied on being opened by its name, perhaps.
    emptied: Nanos,
}

impl Bytes {
    pub fn new(scattered: bool) -> Self {
        Self {
            scattered,
            extents: Extents::new(),
            changed: BTreeMap::new(),
            durable: BTreeSet::new(),
            lost: BTreeSet::new(),
            emptied: Nanos::ZERO,
        }
    }

    fn is_big(&self, ino: Ino) -> bool {
        self.extents.get(&ino).is_some_and(|extent| *extent > 1)
    }

    /// A call is made. `others`: what else is under way.
    pub fn begin<'a>(&mut self, actions: &[Action], others: impl Iterator<Item = &'a Action> + Clone) {
        let is_append = |action: &Action| matches!(action, Action::Append { .. });
        for action in actions {
            let Some(ino) = action.written() else { continue };
            self.durable.remove(&ino);
            let mut meanwhile = others.clone().filter(|other| other.written() == Some(ino));
            // Where an append goes is decided before it is written, and others can write there then.
            let is_overwritten = meanwhile.any(|other| is_append(action) != is_append(other));
            if self.scattered && self.is_big(ino) && is_overwritten {
                self.lost.insert(ino);
            }
        }
    }

    /// A call is over that has changed what it was about. `told`: the inode that was opened by its name.
    pub fn end<'a>(
        &mut self,
        now: Nanos,
        since: Nanos,
        action: &Action,
        told: Option<Ino>,
        mut others: impl Iterator<Item = &'a Action>,
    ) {
        if let Some(ino) = action.written().filter(|ino| self.is_big(*ino)) {
            self.changed.insert(ino, now);
        }
        if !(self.scattered && empties_unknown(action)) {
            return;
        }
        self.emptied = now;
        if let Some(ino) = told.filter(|ino| self.is_big(*ino)) {
            let is_changed = self.changed.get(&ino).is_some_and(|at| *at >= since);
            if is_changed || others.any(|other| other.written() == Some(ino)) {
                self.lost.insert(ino);
            }
            self.changed.insert(ino, now);
        }
    }

    /// An `fsync` that began then has been answered. `others`: what is under way.
    pub fn synced<'a>(&mut self, ino: Ino, since: Nanos, mut others: impl Iterator<Item = &'a Action>) {
        let is_changed = self.changed.get(&ino).is_some_and(|at| *at >= since)
            || others.any(|other| other.written() == Some(ino) || empties_unknown(other));
        if !is_changed {
            self.durable.insert(ino);
        }
    }

    /// A server has lost power: what was not made durable in big files may be anything.
    pub fn lose_power(&mut self) {
        let big: Vec<Ino> = self.extents.keys().copied().filter(|ino| self.is_big(*ino)).collect();
        self.lost.extend(big.into_iter().filter(|ino| !self.durable.contains(ino)));
    }

    /// What is in a file may be anything, if it is big.
    pub fn lose(&mut self, ino: Ino) {
        if self.is_big(ino) {
            self.lost.insert(ino);
        }
    }

    /// Files whose size is not that of one instant since then.
    pub fn loose<'a>(&self, since: Nanos, under_way: impl Iterator<Item = &'a Action>) -> BTreeSet<Ino> {
        let changed = self.changed.iter().filter(|(_, at)| **at >= since).map(|(ino, _)| *ino);
        let changing = under_way.filter_map(Action::written).filter(|ino| self.is_big(*ino));
        changed.chain(changing).chain(self.lost.iter().copied()).collect()
    }

    /// What was read since then cannot be checked: an append is at one place, but its bytes are not all there at once.
    pub fn is_unchecked<'a>(
        &self,
        action: &Action,
        since: Nanos,
        loose: &BTreeSet<Ino>,
        mut under_way: impl Iterator<Item = &'a Action>,
    ) -> bool {
        let Action::Read { ino, .. } = action else { return false };
        let is_append = |other: &Action| matches!(other, Action::Append { ino: at, .. } if at == ino);
        let is_emptied = self.scattered && self.is_big(*ino) && self.emptied >= since;
        let mut hides = |other: &Action| {
            (is_append(other) && loose.contains(ino))
                || (self.scattered && self.is_big(*ino) && empties_unknown(other))
        };
        self.lost.contains(ino) || is_emptied || under_way.any(&mut hides)
    }
}

/// Whether it may empty a file that is there already, strip by strip.
fn empties_unknown(action: &Action) -> bool {
    matches!(action, Action::Create { open: Some(true), exclusive: false, .. })
}
