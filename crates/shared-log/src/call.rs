//! The steps of an append, and of a query for the tail, as a state machine.
//!
//! Invariant: when a call is done at position `p`, each query that begins later returns a tail
//! above `p`. The check for a newer epoch *after* the entry is in its slot gives that: a sequencer
//! that takes over looks for the last entry after its epoch exists (seal), so it finds the entry,
//! or the check finds the epoch.

use crate::sequencer::TakenNumbers;

/// The next step of a [`LogCall`], for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// Take `count` numbers, none below `floor`, from the current sequencer.
    Take { count: u64, floor: u64 },
    /// Write the entry to this position, if that is free.
    Place { position: u64 },
    /// Find out whether an epoch above this one exists.
    CheckSeal { epoch: u64 },
    /// The position of the entry, or the tail.
    Done(u64),
}

/// Result of [`LogStep::Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// The entry has been written.
    Written,
    /// The position had been written or filled before.
    Occupied,
}

/// Result of [`LogStep::CheckSeal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealState {
    /// There is no newer epoch.
    Open,
    /// There is one, whose numbers begin with `begin` if that is known.
    Sealed { begin: Option<u64> },
}

#[derive(Clone, Copy, Debug)]
enum CallPhase {
    Take { count: u64, floor: u64 },
    Place { epoch: u64, position: u64 },
    Check { epoch: u64, value: u64 },
    Done(u64),
}

/// An append or a query for the tail. The driver carries out [`LogCall::step`] and reports the
/// result with the method of its kind, until [`LogStep::Done`].
#[derive(Clone, Copy, Debug)]
pub struct LogCall {
    phase: CallPhase,
    /// Position of the entry in the log.
    written: Option<u64>,
    is_append: bool,
}

impl LogCall {
    pub fn append() -> Self {
        Self { phase: CallPhase::Take { count: 1, floor: 0 }, written: None, is_append: true }
    }

    /// A query for the position after the last entry.
    pub fn tail() -> Self {
        Self { phase: CallPhase::Take { count: 0, floor: 0 }, written: None, is_append: false }
    }

    pub fn step(&self) -> LogStep {
        match self.phase {
            CallPhase::Take { count, floor } => LogStep::Take { count, floor },
            CallPhase::Place { position, .. } => LogStep::Place { position },
            CallPhase::Check { epoch, .. } => LogStep::CheckSeal { epoch },
            CallPhase::Done(value) => LogStep::Done(value),
        }
    }

    /// After [`LogStep::Take`].
    pub fn taken(&mut self, taken: TakenNumbers) {
        let TakenNumbers { epoch, first } = taken;
        self.phase = match self.written {
            Some(position) => CallPhase::Check { epoch, value: position },
            None if self.is_append => CallPhase::Place { epoch, position: first },
            None => CallPhase::Check { epoch, value: first },
        };
    }

    /// After [`LogStep::Place`].
    pub fn placed(&mut self, state: SlotState) {
        let CallPhase::Place { epoch, position } = self.phase else { return };
        self.phase = match state {
            SlotState::Written => {
                self.written = Some(position);
                CallPhase::Check { epoch, value: position }
            }
            SlotState::Occupied => CallPhase::Take { count: 1, floor: position + 1 },
        };
    }

    /// After [`LogStep::CheckSeal`].
    pub fn checked(&mut self, state: SealState) {
        let CallPhase::Check { value, .. } = self.phase else { return };
        self.phase = match (state, self.written) {
            (SealState::Open, _) => CallPhase::Done(value),
            (SealState::Sealed { begin: Some(begin) }, Some(position)) if begin > position => {
                CallPhase::Done(position)
            }
            // The current sequencer may be below the entry: raise it before acknowledging.
            (SealState::Sealed { .. }, Some(position)) => CallPhase::Take { count: 0, floor: position + 1 },
            (SealState::Sealed { .. }, None) => CallPhase::Take { count: 0, floor: 0 },
        };
    }
}
