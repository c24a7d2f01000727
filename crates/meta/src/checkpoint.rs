//! Checkpoints: the changed records go to the store's tables in pieces, become durable all at once, and then the
//! journal before them is trimmed.

use alloc::vec::Vec;

use espalier_proto::{Errno, ObjectId, Position, TableWrite};

use crate::outbox::Io;
use crate::record::{Super, encode};
use crate::state::State;

#[derive(Debug, Default)]
pub(crate) enum Checkpoint {
    #[default]
    Idle,
    /// Pieces are being handed to the store.
    Staging(Goal),
    /// The store is making them durable.
    Publishing(Goal),
    /// It could not, and will be asked again.
    Failed(Goal, Errno),
}

/// What a checkpoint is of.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub sequence: u64,
    trim: Position,
    record: Super,
    /// The record about the whole file system has been handed out: it is the last.
    complete: bool,
}

impl Checkpoint {
    /// Records encoded at a time: bounds how long operations wait behind it.
    const PIECE: usize = 256;

    /// Begins one, if none is under way and there is something to write or to trim. `end`: where the journal ends;
    /// `used`: how much there is before it.
    pub(crate) fn begin(&mut self, state: &mut State, end: Position, used: u64) -> Option<Io> {
        if !matches!(self, Self::Idle) || (!state.has_changes() && used == 0) {
            return None;
        }
        state.begin_snapshot();
        let (next_ino, files, sequence) = (state.next_ino, state.files, state.sequence);
        let unsettled = state.unsettled.iter().copied().collect();
        let record = Super { next_ino, files, sequence, journal: end.0, unsettled };
        let goal = Goal { sequence, trim: end, record, complete: false };
        Some(self.next_piece(state, goal))
    }

    fn next_piece(&mut self, state: &mut State, mut goal: Goal) -> Io {
        let mut writes: Vec<TableWrite> = state.next_writes(Self::PIECE);
        if writes.is_empty() && goal.complete {
            let trim = goal.trim;
            *self = Self::Publishing(goal);
            return Io::Publish { trim };
        }
        if writes.is_empty() {
            goal.complete = true;
            let value = Some(encode(&goal.record));
            writes.push(TableWrite { object: ObjectId::SUPER, key: Vec::new(), value });
        }
        *self = Self::Staging(goal);
        Io::Stage { writes }
    }

    /// The store has taken a piece.
    pub(crate) fn staged(&mut self, state: &mut State) -> Option<Io> {
        match core::mem::take(self) {
            Self::Staging(goal) => Some(self.next_piece(state, goal)),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The store has made it durable, or not. Returns the sequence number up to which it has.
    pub(crate) fn published(&mut self, result: Result<(), Errno>) -> Option<u64> {
        match (core::mem::take(self), result) {
            (Self::Publishing(goal), Ok(())) => return Some(goal.sequence),
            (Self::Publishing(goal), Err(errno)) => *self = Self::Failed(goal, errno),
            (other, _) => *self = other,
        }
        None
    }

    /// Tries once more what failed.
    pub(crate) fn retry(&mut self) -> Option<Io> {
        match core::mem::take(self) {
            Self::Failed(goal, _) => {
                let trim = goal.trim;
                *self = Self::Publishing(goal);
                Some(Io::Publish { trim })
            }
            other => {
                *self = other;
                None
            }
        }
    }

    pub(crate) fn failure(&self) -> Option<Errno> {
        if let Self::Failed(_, errno) = self { Some(*errno) } else { None }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }
}
