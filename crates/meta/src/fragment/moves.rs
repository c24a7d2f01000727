//! Names and files that move between ranks, as far as events have recorded it.

use alloc::collections::BTreeSet;

use espalier_proto::Ino;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedMoves {
    /// Directory records that have begun to cede names to another.
    ceding: BTreeSet<Ino>,
    /// Inodes may be at another rank than that of their number: inodes of this home at another, or
    /// others here.
    has_relocated: bool,
    /// Directory records that may have names of files at other ranks, which are to move here.
    pulling: BTreeSet<Ino>,
}

impl RecordedMoves {
    pub(crate) fn new(
        ceding: impl Iterator<Item = Ino>,
        has_relocated: bool,
        pulling: impl Iterator<Item = Ino>,
    ) -> Self {
        Self { ceding: ceding.collect(), has_relocated, pulling: pulling.collect() }
    }

    pub(crate) fn ceding(&self) -> &BTreeSet<Ino> {
        &self.ceding
    }

    pub(crate) fn has_relocated(&self) -> bool {
        self.has_relocated
    }

    pub(crate) fn pulling(&self) -> &BTreeSet<Ino> {
        &self.pulling
    }

    pub(crate) fn note_ceded(&mut self, dir: Ino, is_done: bool) {
        if is_done {
            self.ceding.remove(&dir);
        } else {
            self.ceding.insert(dir);
        }
    }

    pub(crate) fn note_relocated(&mut self) {
        self.has_relocated = true;
    }

    pub(crate) fn begin_pull(&mut self, dir: Ino) {
        self.pulling.insert(dir);
    }

    pub(crate) fn end_pull(&mut self, dir: Ino) {
        self.pulling.remove(&dir);
    }
}
