//! Checkpoints: the changed records go to the store's tables in pieces, become durable all at once, and then the
//! journal before them is trimmed.

use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Errno, ObjectId, Position, TableWrite};

use crate::io::Purpose;
use crate::machine::Meta;
use crate::outbox::{Io, Now, Outbox};
use crate::record::Super;
use crate::state::State;

#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    /// What it is of, if one is under way.
    goal: Option<Goal>,
    /// What the store is taking; all of it has been taken when there is none.
    piece: Option<Arc<[TableWrite]>>,
    /// Why the store could not do the last step; until it has done it.
    failure: Option<Errno>,
    /// The store is to be asked for the step again.
    again: bool,
}

/// What a checkpoint is of.
#[derive(Clone, Debug)]
struct Goal {
    sequence: u64,
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
        if self.goal.is_some() || (!state.has_changes() && used == 0) {
            return None;
        }
        state.begin_snapshot();
        let (next_ino, files, sequence) = (state.next_ino.max(state.reserved), state.files, state.sequence);
        let unsettled = state.unsettled.iter().copied().collect();
        let watched = state.watched_places();
        let striped = state.striped.as_ref().map(|inos| inos.iter().copied().collect());
        let pool = state.pool.clone();
        let protected = state.protected;
        let record =
            Super { next_ino, files, protected, sequence, journal: end.0, unsettled, watched, striped, pool };
        self.goal = Some(Goal { sequence, trim: end, record, complete: false });
        self.next_piece(state)
    }

    fn next_piece(&mut self, state: &mut State) -> Option<Io> {
        let goal = self.goal.as_mut()?;
        let mut writes: Vec<TableWrite> = state.next_writes(Self::PIECE);
        if writes.is_empty() && !goal.complete {
            goal.complete = true;
            let value = Some(goal.record.encode());
            writes.push(TableWrite { object: ObjectId::SUPER, key: Vec::new(), value });
        }
        self.piece = (!writes.is_empty()).then(|| writes.into());
        self.step()
    }

    /// What the store is to do now.
    fn step(&self) -> Option<Io> {
        let goal = self.goal.as_ref()?;
        Some(match &self.piece {
            Some(writes) => Io::Stage { writes: Arc::clone(writes) },
            None => Io::Publish { trim: goal.trim },
        })
    }

    /// The store has taken a piece.
    pub(crate) fn staged(&mut self, state: &mut State) -> Option<Io> {
        self.failure = None;
        self.next_piece(state)
    }

    /// The store has made it durable. Returns the sequence number up to which it has.
    pub(crate) fn published(&mut self) -> Option<u64> {
        self.failure = None;
        self.goal.take().map(|goal| goal.sequence)
    }

    /// The store could not do the last step.
    pub(crate) fn failed(&mut self, errno: Errno) {
        (self.failure, self.again) = (Some(errno), true);
    }

    /// Tries once more what failed.
    pub(crate) fn retry(&mut self) -> Option<Io> {
        if core::mem::take(&mut self.again) { self.step() } else { None }
    }

    /// One is under way, as far as the store lets it.
    pub(crate) fn is_running(&self) -> bool {
        self.goal.is_some() && self.failure.is_none()
    }

    pub(crate) fn failure(&self) -> Option<Errno> {
        self.failure
    }

    /// Nothing is under way, or not before the next try.
    pub(crate) fn is_quiet(&self) -> bool {
        self.goal.is_none() || self.again
    }
}

impl Meta {
    pub(crate) fn is_checkpoint_running(&self) -> bool {
        self.checkpoint.is_running()
    }

    /// Why nothing can be changed any more, or what has been changed stays in the journal for now.
    pub fn failure(&self) -> Option<Errno> {
        self.journal.broken.or(self.checkpoint.failure())
    }

    pub(crate) fn start_checkpoint(&mut self, out: &mut Outbox) {
        if self.config.read_only || self.journal.broken.is_some() {
            return;
        }
        if let Some(io) = self.checkpoint.begin(&mut self.state, self.journal.end, self.journal.used) {
            self.ask_checkpoint(io, out);
        }
    }

    pub(crate) fn ask_checkpoint(&mut self, io: Io, out: &mut Outbox) {
        let purpose = if matches!(io, Io::Publish { .. }) { Purpose::Publish } else { Purpose::Stage };
        self.ask(purpose, io, out);
    }

    /// A checkpoint is done, or cannot go on for now. `used`: bytes of the journal in use.
    pub(crate) fn done_checkpoint(&mut self, now: Now, used: Result<u64, Errno>, out: &mut Outbox) {
        match used {
            Ok(used) => {
                if let Some(sequence) = self.checkpoint.published() {
                    self.state.snapshot_published();
                    let held = self.journal.checkpointed(sequence, used);
                    self.let_go(now, held, out);
                }
            }
            Err(errno) => self.checkpoint.failed(errno),
        }
        self.sweep_due = true;
        self.resume_roomless(now, out);
    }
}
