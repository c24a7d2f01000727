//! The order of a migration's steps.
//!
//! The superblocks of both stores decide at any time where the file system is: in the source until
//! its superblock names the destination, and in the destination from then on. So a migration that
//! is interrupted anywhere can be repeated from the superblocks.

use crate::{MigrationState, Superblock};

/// The next step of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStep {
    /// Determine the amount of work.
    Measure,
    /// Make the records of the tables equal.
    CopyRecords,
    /// Make the streams equal.
    CopyStreams,
    /// Copy what has changed meanwhile.
    CatchUp,
    /// Compare everything.
    Verify,
    /// Let a checkpoint of the source end.
    Wait,
    /// Pause the source, copy the rest, and record in its superblock that it has moved.
    Switch,
    /// Record in the destination's superblock that it is complete.
    Finish,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    Done,
    /// Changes were copied again: their bytes, or as many as take the same time.
    CaughtUp(u64),
    /// The switch is not possible at the moment: nothing has changed.
    NotYet,
}

/// The beginning of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationStart {
    /// Make the destination.
    Format,
    /// The destination is an incomplete copy: continue.
    Resume,
    /// Everything is copied, and the source has moved: record that the destination is complete.
    Finish,
    /// The migration has ended.
    Ended,
}

/// Why a migration cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("source and destination are the same store")]
    Same,
    #[error("the file system of {from} has moved to {to}")]
    Moved { from: String, to: String },
    #[error("{0} is an incomplete copy of another store itself")]
    Incoming(String),
    #[error(
        "{0} is a store already: name an empty directory or namespace, or use --force to replace it, which loses its files"
    )]
    Exists(String),
    #[error("{from} has moved to {to}, but {to} is another file system or none: it was replaced since")]
    Lost { from: String, to: String },
    #[error(
        "the file system of {from} has moved to {to} and on from there, and {to} is an incomplete copy of {origin}: run `espalier migrate {origin} {to}` to complete it"
    )]
    MovedOn { from: String, to: String, origin: String },
}

/// A migration in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationMachine {
    /// `None`: it has ended.
    step: Option<MigrationStep>,
    is_verified: bool,
    /// Number of times that changes were copied since the last long step.
    rounds: u32,
}

/// Bytes of changes that the pause of a switch may copy.
const FEW: u64 = 16 << 20;
/// Rounds of catching up after which the switch is tried anyway.
const ROUNDS: u32 = 8;

impl MigrationStart {
    /// How to migrate the store `from` to `to`. `force`: replaces another store there.
    ///
    /// # Errors
    /// The message of each error states the remedy.
    pub fn decide(
        (from, source): (&str, &Superblock),
        (to, destination): (&str, Option<&Superblock>),
        force: bool,
    ) -> Result<Self, StartError> {
        if from == to {
            return Err(StartError::Same);
        }
        let same = destination.filter(|destination| destination.uuid == source.uuid);
        match &source.migration {
            MigrationState::Incoming { .. } => Err(StartError::Incoming(from.into())),
            MigrationState::Moved { to: other } if other != to => {
                Err(StartError::Moved { from: from.into(), to: other.clone() })
            }
            MigrationState::Moved { .. } => match same.map(|same| &same.migration) {
                Some(MigrationState::Incoming { from: origin }) if origin == from => Ok(Self::Finish),
                Some(MigrationState::Incoming { from: origin }) => {
                    let (from, to) = (from.into(), to.into());
                    Err(StartError::MovedOn { from, to, origin: origin.clone() })
                }
                // It may have moved on from there.
                Some(MigrationState::None | MigrationState::Moved { .. }) => Ok(Self::Ended),
                None => Err(StartError::Lost { from: from.into(), to: to.into() }),
            },
            MigrationState::None => {
                let is_copy = |same: &Superblock| {
                    matches!(&same.migration, MigrationState::Incoming { from: origin } if origin == from)
                        && same.journal_bytes == source.journal_bytes
                        && same.rank == source.rank
                };
                match destination {
                    None => Ok(Self::Format),
                    Some(_) if same.is_some_and(is_copy) => Ok(Self::Resume),
                    Some(_) if force => Ok(Self::Format),
                    Some(_) => Err(StartError::Exists(to.into())),
                }
            }
        }
    }
}

impl Default for MigrationMachine {
    fn default() -> Self {
        Self { step: Some(MigrationStep::Measure), is_verified: false, rounds: 0 }
    }
}

impl MigrationMachine {
    /// The step to carry out; `None` at the end.
    pub fn step(&self) -> Option<MigrationStep> {
        self.step
    }

    /// The step was carried out.
    pub fn done(&mut self, outcome: StepOutcome) {
        use MigrationStep::{CatchUp, CopyRecords, CopyStreams, Finish, Measure, Switch, Verify, Wait};
        let Some(step) = self.step else { return };
        let next = match (step, outcome) {
            (Measure, _) => CopyRecords,
            (CopyRecords, _) => CopyStreams,
            (CopyStreams | Wait, _) => CatchUp,
            (CatchUp, StepOutcome::CaughtUp(changes)) if changes > FEW && self.rounds < ROUNDS => CatchUp,
            (CatchUp, _) if self.is_verified => Switch,
            (CatchUp, _) => Verify,
            (Verify, _) => CatchUp,
            (Switch, StepOutcome::NotYet) => Wait,
            (Switch, _) => Finish,
            (Finish, _) => {
                self.step = None;
                return;
            }
        };
        self.is_verified |= step == Verify;
        self.rounds = if step == CatchUp && next == CatchUp { self.rounds + 1 } else { 0 };
        self.step = Some(next);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{FormatOptions, superblock};

    fn superblock(migration: MigrationState) -> Superblock {
        let options = FormatOptions { migration, ..FormatOptions::default() };
        superblock::new(Path::new("test"), &options).unwrap()
    }

    #[test]
    fn superblocks_decide_how_a_migration_begins() {
        let incoming = |from: &str| MigrationState::Incoming { from: from.into() };
        let moved = |to: &str| MigrationState::Moved { to: to.into() };
        let whole = superblock(MigrationState::None);
        let foreign = superblock(MigrationState::None);
        let with = |migration| Superblock { migration, ..whole.clone() };
        let decide = |source: &Superblock, destination: Option<&Superblock>, force| {
            MigrationStart::decide(("a", source), ("b", destination), force)
        };
        assert_eq!(decide(&whole, None, false), Ok(MigrationStart::Format));
        assert_eq!(decide(&whole, Some(&with(incoming("a"))), false), Ok(MigrationStart::Resume));
        for other in [&foreign, &whole, &with(incoming("c")), &with(moved("a"))] {
            assert_eq!(decide(&whole, Some(other), false), Err(StartError::Exists("b".into())));
            assert_eq!(decide(&whole, Some(other), true), Ok(MigrationStart::Format));
        }
        let gone = with(moved("b"));
        assert_eq!(decide(&gone, Some(&with(incoming("a"))), true), Ok(MigrationStart::Finish));
        assert_eq!(decide(&gone, Some(&whole), true), Ok(MigrationStart::Ended));
        let lost = StartError::Lost { from: "a".into(), to: "b".into() };
        assert_eq!(decide(&gone, Some(&foreign), true), Err(lost.clone()));
        assert_eq!(decide(&gone, None, true), Err(lost));
        let elsewhere = StartError::Moved { from: "a".into(), to: "c".into() };
        assert_eq!(decide(&with(moved("c")), None, true), Err(elsewhere));
        assert_eq!(decide(&with(incoming("z")), None, true), Err(StartError::Incoming("a".into())));
        let same = MigrationStart::decide(("a", &whole), ("a", Some(&whole)), true);
        assert_eq!(same, Err(StartError::Same));
    }

    #[test]
    fn a_way_back_that_was_interrupted_is_not_completed_by_the_first_migration() {
        // From a to b, from b to c, and from c back to b, which was interrupted.
        let moved = |to: &str| MigrationState::Moved { to: to.into() };
        let c = superblock(MigrationState::None);
        let a = Superblock { migration: moved("b"), ..c.clone() };
        let b = Superblock { migration: MigrationState::Incoming { from: "c".into() }, ..c.clone() };
        let refused = MigrationStart::decide(("a", &a), ("b", Some(&b)), true);
        let moved_on = StartError::MovedOn { from: "a".into(), to: "b".into(), origin: "c".into() };
        assert_eq!(refused, Err(moved_on));
        let resumed = MigrationStart::decide(("c", &c), ("b", Some(&b)), false);
        assert_eq!(resumed, Ok(MigrationStart::Resume));
    }

    #[test]
    fn a_switch_follows_a_comparison_and_few_changes() {
        use MigrationStep::{CatchUp, CopyRecords, CopyStreams, Finish, Measure, Switch, Verify, Wait};
        let mut machine = MigrationMachine::default();
        let mut outcomes = vec![
            (Measure, StepOutcome::Done),
            (CopyRecords, StepOutcome::Done),
            (CopyStreams, StepOutcome::Done),
            (CatchUp, StepOutcome::CaughtUp(FEW + 1)),
            (CatchUp, StepOutcome::CaughtUp(FEW)),
            (Verify, StepOutcome::Done),
        ];
        outcomes.extend([(CatchUp, StepOutcome::CaughtUp(u64::MAX)); ROUNDS as usize + 1]);
        outcomes.extend([
            (Switch, StepOutcome::NotYet),
            (Wait, StepOutcome::Done),
            (CatchUp, StepOutcome::CaughtUp(0)),
            (Switch, StepOutcome::Done),
            (Finish, StepOutcome::Done),
        ]);
        for (step, outcome) in outcomes {
            assert_eq!(machine.step(), Some(step));
            machine.done(outcome);
        }
        assert_eq!(machine.step(), None);
    }
}
