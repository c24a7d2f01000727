//! Which bytes of files can be checked. Those of a file of several strips are read and changed strip by strip, and lie on data servers
//! perhaps, where less is promised of what goes on at the same time.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::Ino;

use super::action::{Action, Extents};
use super::usage;
use crate::Nanos;

/// See the module's description.
pub struct Bytes {
    /// Strips lie on several servers.
    pub scattered: bool,
    /// Small files are as those of several strips, ...
    unstuffed: bool,
    /// ... or these are.
    born: BTreeSet<Ino>,
    pub extents: Extents,
    /// When the bytes of a file of several strips were last changed by a call that is over.
    changed: BTreeMap<Ino, Nanos>,
    /// Nothing was changed since these were made durable.
    durable: BTreeSet<Ino>,
    /// What is in these may be anything: nobody looks.
    lost: BTreeSet<Ino>,
    /// Since this was last asked.
    newly_lost: Vec<Ino>,
    /// When a file that is not known was last emptied on being opened by its name, perhaps.
    emptied: Nanos,
}

impl Bytes {
    pub fn new(scattered: bool, unstuffed: bool) -> Self {
        Self {
            scattered,
            unstuffed,
            born: BTreeSet::new(),
            extents: Extents::new(),
            changed: BTreeMap::new(),
            durable: BTreeSet::new(),
            lost: BTreeSet::new(),
            newly_lost: Vec::new(),
            emptied: Nanos::ZERO,
        }
    }

    /// A file may not be with its inode since it was made.
    pub fn bear(&mut self, ino: Ino) {
        self.born.insert(ino);
    }

    /// Clients may write to it by themselves.
    pub fn is_big(&self, ino: Ino) -> bool {
        self.unstuffed || self.born.contains(&ino) || self.extents.get(&ino).is_some_and(|extent| *extent > 1)
    }

    /// Whether a change, if it is one, leaves something in the journal.
    pub fn is_journaled(&self, action: &Action) -> bool {
        !action.written().is_some_and(|ino| self.is_big(ino)) && !action.empties()
    }

    /// A call is made. `others`: what else is under way.
    pub fn begin<'a>(&mut self, actions: &[Action], others: impl Iterator<Item = &'a Action> + Clone) {
        let is_append = |action: &Action| matches!(action, Action::Append { .. });
        for action in actions {
            let Some(ino) = action.written() else { continue };
            self.durable.remove(&ino);
            let meanwhile = others.clone().filter(|other| other.written() == Some(ino));
            // Where an append goes is decided before it is written, and others can write there then.
            let is_overwritten = meanwhile.clone().any(|other| is_append(action) != is_append(other));
            // A truncation takes all strips that there are when it is made.
            let cut = meanwhile.filter_map(|other| match other {
                Action::Truncate { at, .. } => Some(*at),
                _ => None,
            });
            let is_beyond = match action {
                Action::Write { at, .. } | Action::Truncate { at, .. } => {
                    cut.max().is_some_and(|last| *at > last)
                }
                _ => false,
            };
            if is_overwritten || is_beyond {
                self.lose_big(ino);
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
        if let (true, Some(ino)) = (action.empties(), told) {
            self.durable.remove(&ino);
        }
        if !(self.scattered && action.empties()) {
            return;
        }
        self.emptied = now;
        if let Some(ino) = told.filter(|ino| self.is_big(*ino)) {
            let is_changed = self.changed.get(&ino).is_some_and(|at| *at >= since);
            if is_changed || others.any(|other| other.written() == Some(ino)) {
                self.lose(ino);
            }
            self.changed.insert(ino, now);
        }
    }

    /// An `fsync` that began then has been answered. `others`: what is under way.
    pub fn synced<'a>(&mut self, ino: Ino, since: Nanos, mut others: impl Iterator<Item = &'a Action>) {
        let is_changed = self.changed.get(&ino).is_some_and(|at| *at >= since)
            || others.any(|other| other.written() == Some(ino) || other.empties());
        if !is_changed {
            self.durable.insert(ino);
        }
    }

    /// A server has lost power: what was not made durable in big files may be anything. `under_way`: may have been carried out.
    pub fn lose_power<'a>(&mut self, mut under_way: impl Iterator<Item = &'a Action>) {
        if under_way.any(Action::empties) {
            // Which file that was nobody knows.
            self.durable.clear();
        }
        let big: Vec<Ino> = self.extents.keys().copied().filter(|ino| self.is_big(*ino)).collect();
        for ino in big.into_iter().filter(|ino| !self.durable.contains(ino)).collect::<Vec<_>>() {
            self.lose(ino);
        }
    }

    /// What is in a file may be anything, if it is big.
    pub fn lose_big(&mut self, ino: Ino) {
        if self.is_big(ino) {
            self.lose(ino);
        }
    }

    /// What is in a file may be anything.
    pub fn lose(&mut self, ino: Ino) {
        if self.lost.insert(ino) {
            self.newly_lost.push(ino);
        }
    }

    pub fn take_newly_lost(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.newly_lost)
    }

    pub fn is_lost(&self, ino: Ino) -> bool {
        self.lost.contains(&ino)
    }

    /// Whether it is about what nobody looks at.
    pub fn is_of_lost(&self, action: &Action) -> bool {
        let read = if let Action::Read { ino, .. } = action { Some(*ino) } else { None };
        action.written().or(read).is_some_and(|ino| self.is_lost(ino))
    }

    /// Files whose size is not that of one instant since then. Which file was emptied that was opened by its name need not be known yet.
    pub fn loose<'a>(
        &self,
        since: Nanos,
        mut under_way: impl Iterator<Item = &'a Action> + Clone,
    ) -> BTreeSet<Ino> {
        let changed = self.changed.iter().filter(|(_, at)| **at >= since).map(|(ino, _)| *ino);
        let changing = under_way.clone().filter_map(Action::written);
        let any_is_emptied = self.scattered && (self.emptied >= since || under_way.any(Action::empties));
        let emptied = self.extents.keys().copied().filter(|_| any_is_emptied);
        let big = changing.chain(emptied).filter(|ino| self.is_big(*ino));
        changed.chain(big).chain(self.lost.iter().copied()).collect()
    }

    /// What was read since then cannot be checked, nor sums of what nobody looks at: an append is at one place, but its bytes are not all there at once.
    pub fn is_unchecked<'a>(
        &self,
        action: &Action,
        since: Nanos,
        loose: &BTreeSet<Ino>,
        mut under_way: impl Iterator<Item = &'a Action>,
    ) -> bool {
        if let Action::GetXattr { name, .. } = action {
            return **name == *usage::BYTES && !self.lost.is_empty();
        }
        let Action::Read { ino, .. } = action else { return false };
        let is_append = |other: &Action| matches!(other, Action::Append { ino: at, .. } if at == ino);
        let is_emptied = self.scattered && self.is_big(*ino) && self.emptied >= since;
        let mut hides = |other: &Action| {
            (is_append(other) && loose.contains(ino))
                || (self.scattered && self.is_big(*ino) && other.empties())
        };
        is_emptied || under_way.any(&mut hides)
    }
}
