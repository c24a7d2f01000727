//! Tracks the files whose data can be checked. Files of several strips are read and changed strip
//! by strip, possibly on several data servers, with weaker guarantees under concurrency.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::Ino;

use super::action::{Action, Extents};
use super::usage;
use crate::Nanos;

/// See the module description.
pub struct FileBytes {
    /// Strips are on several data servers.
    pub scattered: bool,
    /// No file is stuffed.
    unstuffed: bool,
    /// Files that may be unstuffed since their creation.
    born: BTreeSet<Ino>,
    pub extents: Extents,
    /// Time of the last reply to a call that changed the data of a file of several strips.
    changed: BTreeMap<Ino, Nanos>,
    /// Files without changes since their data became durable.
    durable: BTreeSet<Ino>,
    /// Files whose contents are unknown; they are not checked.
    lost: BTreeSet<Ino>,
    /// Files added to `lost` since the last query.
    newly_lost: Vec<Ino>,
    /// Time of the last open by name that truncated an unknown file.
    emptied: Nanos,
}

impl FileBytes {
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

    /// Records that a file may be unstuffed since its creation.
    pub fn bear(&mut self, ino: Ino) {
        self.born.insert(ino);
    }

    /// True if clients may write to the file's stream or datafiles.
    pub fn is_big(&self, ino: Ino) -> bool {
        self.unstuffed || self.born.contains(&ino) || self.extents.get(&ino).is_some_and(|extent| *extent > 1)
    }

    /// True if the action, if it changes something, writes an event to the journal.
    pub fn is_journaled(&self, action: &Action) -> bool {
        !action.written().is_some_and(|ino| self.is_big(ino)) && !action.empties()
    }

    /// A call begins. `others`: the actions in progress.
    pub fn begin<'a>(&mut self, actions: &[Action], others: impl Iterator<Item = &'a Action> + Clone) {
        let is_append = |action: &Action| matches!(action, Action::Append { .. });
        for action in actions {
            let Some(ino) = action.written() else { continue };
            self.durable.remove(&ino);
            let meanwhile = others.clone().filter(|other| other.written() == Some(ino));
            // The offset of an append is determined before the data is written, so a concurrent
            // write may go to the same place.
            let is_overwritten = meanwhile.clone().any(|other| is_append(action) != is_append(other));
            // A truncation affects the strips that exist when it begins.
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

    /// A call that has changed something is answered. `observed`: inode that was opened by name.
    pub fn end<'a>(
        &mut self,
        now: Nanos,
        since: Nanos,
        action: &Action,
        observed: Option<Ino>,
        mut others: impl Iterator<Item = &'a Action>,
    ) {
        if let Some(ino) = action.written().filter(|ino| self.is_big(*ino)) {
            self.changed.insert(ino, now);
        }
        if let (true, Some(ino)) = (action.empties(), observed) {
            self.durable.remove(&ino);
        }
        if !(self.scattered && action.empties()) {
            return;
        }
        self.emptied = now;
        if let Some(ino) = observed.filter(|ino| self.is_big(*ino)) {
            let is_changed = self.changed.get(&ino).is_some_and(|at| *at >= since);
            if is_changed || others.any(|other| other.written() == Some(ino)) {
                self.lose(ino);
            }
            self.changed.insert(ino, now);
        }
    }

    /// An `fsync` that began at `since` is answered. `others`: the actions in progress.
    pub fn synced<'a>(&mut self, ino: Ino, since: Nanos, mut others: impl Iterator<Item = &'a Action>) {
        let is_changed = self.changed.get(&ino).is_some_and(|at| *at >= since)
            || others.any(|other| other.written() == Some(ino) || other.empties());
        if !is_changed {
            self.durable.insert(ino);
        }
    }

    /// A server has lost power: contents of big files that were not durable are unknown.
    /// `under_way`: actions that may have been executed.
    pub fn lose_power<'a>(&mut self, mut under_way: impl Iterator<Item = &'a Action>) {
        if under_way.any(Action::empties) {
            // The truncated file is unknown.
            self.durable.clear();
        }
        let big: Vec<Ino> = self.extents.keys().copied().filter(|ino| self.is_big(*ino)).collect();
        for ino in big.into_iter().filter(|ino| !self.durable.contains(ino)).collect::<Vec<_>>() {
            self.lose(ino);
        }
    }

    /// Marks the contents of a file as unknown if it is big.
    pub fn lose_big(&mut self, ino: Ino) {
        if self.is_big(ino) {
            self.lose(ino);
        }
    }

    /// Marks the contents of a file as unknown.
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

    /// True if the action concerns data that is not checked.
    pub fn is_of_lost(&self, action: &Action) -> bool {
        let read = if let Action::Read { ino, .. } = action { Some(*ino) } else { None };
        action.written().or(read).is_some_and(|ino| self.is_lost(ino))
    }

    /// Files whose size may combine several instants since `since`. The number of a file truncated
    /// by name may be unknown.
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

    /// True if a reply cannot be checked: a read during an append (the offset is atomic, the data
    /// is not), and sums that include unknown files.
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
