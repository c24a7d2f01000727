//! Checkpoints: write the changed records to the store's tables in pieces, make them durable
//! atomically, and then trim the journal before them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Errno, ObjectId, Position, TableWrite};

use crate::io::Purpose;
use crate::machine::Meta;
use crate::outbox::{Io, Now, Outbox};
use crate::record::Super;
use crate::state::State;

/// Whether a checkpoint is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointWhen {
    /// If anything has changed since the last one.
    Changed,
    Always,
}

#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    /// The checkpoint in progress, if any.
    goal: Option<Goal>,
    /// The piece that the store is writing; `None` once all are written.
    piece: Option<Arc<[TableWrite]>>,
    /// Error of the store's last step, until a step succeeds.
    failure: Option<Errno>,
    /// The failed step is to be retried.
    again: bool,
}

/// The extent of a checkpoint.
#[derive(Clone, Debug)]
struct Goal {
    sequence: u64,
    trim: Position,
    record: Super,
    /// The super record, which is the last, has been handed out.
    complete: bool,
}

impl Checkpoint {
    /// Records encoded per step; bounds how long operations wait for it.
    const PIECE: usize = 256;

    /// Starts a checkpoint if it is due and none is in progress. `end`: end of the journal; `used`:
    /// bytes in use before it.
    pub(crate) fn begin(
        &mut self,
        when: CheckpointWhen,
        state: &mut State,
        (end, used): (Position, u64),
    ) -> Option<Io> {
        let has_any = state.changes.has_any() || used > 0;
        if self.goal.is_some() || when == CheckpointWhen::Changed && !has_any {
            return None;
        }
        state.changes.begin_snapshot();
        let provisional = &state.provisional;
        let sequence = state.sequence;
        let record = Super {
            next_ino: state.numbers.next_after_restart(),
            end_ino: state.numbers.end(),
            counts: state.counts,
            moves: state.moves.clone(),
            sequence,
            journal: end.0,
            provisional: provisional.in_store().collect(),
            size_dirty: state.size_dirty_places(),
            striped: provisional.on_servers().map(|inos| inos.iter().copied().collect()),
            pool: state.numbers.pool().to_vec(),
        };
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

    /// The store's next step.
    fn step(&self) -> Option<Io> {
        let goal = self.goal.as_ref()?;
        Some(match &self.piece {
            Some(writes) => Io::Stage { writes: Arc::clone(writes) },
            None => Io::Publish { trim: goal.trim },
        })
    }

    /// Continues after the store has taken a piece.
    pub(crate) fn staged(&mut self, state: &mut State) -> Option<Io> {
        self.failure = None;
        self.next_piece(state)
    }

    /// Completes the checkpoint. Returns the sequence number up to which it is durable.
    pub(crate) fn published(&mut self) -> Option<u64> {
        self.failure = None;
        self.goal.take().map(|goal| goal.sequence)
    }

    /// Records that the store's last step has failed.
    pub(crate) fn failed(&mut self, errno: Errno) {
        (self.failure, self.again) = (Some(errno), true);
    }

    /// Retries a failed step.
    pub(crate) fn retry(&mut self) -> Option<Io> {
        if core::mem::take(&mut self.again) { self.step() } else { None }
    }

    /// True if a checkpoint is in progress and has not failed.
    pub(crate) fn is_running(&self) -> bool {
        self.goal.is_some() && self.failure.is_none()
    }

    pub(crate) fn failure(&self) -> Option<Errno> {
        self.failure
    }

    /// True if no checkpoint is in progress, or it waits for a retry.
    pub(crate) fn is_idle(&self) -> bool {
        self.goal.is_none() || self.again
    }
}

impl Meta {
    /// For audits: the records that the store must have, since they are in memory and no checkpoint
    /// is going to write them.
    pub fn written_records(&mut self) -> Vec<TableWrite> {
        self.state.written_records()
    }

    pub(crate) fn is_checkpoint_running(&self) -> bool {
        self.checkpoint.is_running()
    }

    /// The error because of which changes are refused, or stay in the journal for now.
    pub fn failure(&self) -> Option<Errno> {
        self.journal.broken.or(self.checkpoint.failure())
    }

    pub(crate) fn start_checkpoint(&mut self, when: CheckpointWhen, out: &mut Outbox) {
        if self.config.read_only || self.journal.broken.is_some() {
            return;
        }
        let journal = (self.journal.end, self.journal.used);
        if let Some(io) = self.checkpoint.begin(when, &mut self.state, journal) {
            self.ask_checkpoint(io, out);
        }
    }

    pub(crate) fn ask_checkpoint(&mut self, io: Io, out: &mut Outbox) {
        if let Io::Stage { writes } = &io {
            self.count_stored(writes);
        }
        let purpose = if matches!(io, Io::Publish { .. }) { Purpose::Publish } else { Purpose::Stage };
        self.ask(purpose, io, out);
    }

    /// Completes a checkpoint, or records its failure. `used`: bytes of the journal in use.
    pub(crate) fn done_checkpoint(&mut self, now: Now, used: Result<u64, Errno>, out: &mut Outbox) {
        match used {
            Ok(used) => {
                if let Some(sequence) = self.checkpoint.published() {
                    self.state.changes.publish();
                    let held = self.journal.checkpointed(sequence, used);
                    self.release_held(now, held, out);
                }
            }
            Err(errno) => self.checkpoint.failed(errno),
        }
        self.sweep_due = true;
        self.resume_waiting_for_space(now, out);
    }
}
