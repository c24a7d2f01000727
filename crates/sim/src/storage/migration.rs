//! Migration of a simulated store beside its users: the program's own [`Migrator`], of which each
//! step is carried out at one instant.

use std::sync::Arc;

use espalier_meta::Config;
use espalier_store::{
    MigrationMachine, MigrationProgress, MigrationStart, MigrationState, MigrationStep, Migrator, Store,
    StoreError, Superblock,
};

use super::medium::{Medium, StoreFault, StoreKind};
use super::{Loss, Storage, StorageError};

/// A store under the name that superblocks have for it.
#[derive(Clone)]
pub(super) struct NamedMedium {
    pub name: String,
    pub medium: Medium,
}

/// A migration that was begun and has not ended.
pub(super) struct UnfinishedMigration {
    /// The destination, and after the switch the source.
    other: NamedMedium,
    /// `None`: it was interrupted.
    run: Option<MigrationRun>,
}

struct MigrationRun {
    machine: MigrationMachine,
    migrator: Migrator<'static>,
}

/// How a step of a migration deviates.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepDeviation {
    pub fault: Option<StoreFault>,
    /// A mutant records that the destination is complete before the source is marked.
    pub completes_early: bool,
}

/// The stores of a file system after a crash.
pub(super) struct FoundStores {
    pub present: NamedMedium,
    pub unfinished: Option<UnfinishedMigration>,
}

impl NamedMedium {
    fn superblock(&self, of: &Superblock) -> Result<Superblock, StorageError> {
        Ok(Superblock { migration: self.medium.migration()?, ..of.clone() })
    }

    fn is_present(&self) -> Result<bool, StorageError> {
        Ok(self.medium.migration()? == MigrationState::None)
    }

    fn after_crash(&self, loss: Loss, superblock: &Superblock) -> Result<Self, StorageError> {
        Ok(Self { name: self.name.clone(), medium: self.medium.after_crash(loss, superblock)? })
    }
}

/// Records that a destination is complete.
fn complete(destination: &Medium, superblock: &Superblock) -> Result<(), StorageError> {
    Ok(destination.open(superblock)?.0.set_migration(MigrationState::None)?)
}

impl Storage {
    /// Begins the migration to the store of this name, or begins it again. Returns true if it has
    /// ended.
    ///
    /// # Errors
    /// The stores' superblocks do not allow it; the store is damaged.
    pub fn begin_migration(
        &mut self,
        to: &str,
        kind: StoreKind,
        config: &Config,
    ) -> Result<bool, StorageError> {
        if self.own.name == to {
            // The last step of a migration whose source has moved.
            self.store.set_migration(MigrationState::None)?;
            self.former.extend(self.unfinished.take().map(|unfinished| unfinished.other));
            self.check_present()?;
            return Ok(true);
        }
        let found = self.unfinished.take().map(|unfinished| unfinished.other);
        let found_superblock = found.as_ref().map(|found| found.superblock(&self.superblock)).transpose()?;
        let source = Superblock { migration: self.store.migration()?, ..self.superblock.clone() };
        let from = (self.own.name.as_str(), &source);
        let start = MigrationStart::decide(from, (to, found_superblock.as_ref()), false)?;
        let other = match found {
            Some(found) if start == MigrationStart::Resume => found,
            _ => {
                let from = MigrationState::Incoming { from: self.own.name.clone() };
                let medium = Medium::format(kind, config, self.superblock.tag_of(config.rank), from)?;
                NamedMedium { name: to.into(), medium }
            }
        };
        // The stores that an earlier attempt had open are closed.
        let other = other.after_crash(Loss::Process, &self.superblock)?;
        let opened = other.medium.open(&self.superblock)?;
        let parts = (Arc::clone(&self.store), Arc::clone(&self.journal));
        let progress = Arc::new(MigrationProgress::default());
        let migrator = Migrator::new(parts, opened, to.into(), progress, Vec::new);
        let run = Some(MigrationRun { machine: MigrationMachine::default(), migrator });
        self.unfinished = Some(UnfinishedMigration { other, run });
        Ok(false)
    }

    /// The next step of the migration that runs.
    pub fn migration_step(&self) -> Option<MigrationStep> {
        self.unfinished.as_ref()?.run.as_ref()?.machine.step()
    }

    /// Carries out the next step of the migration. After an error it can be begun again.
    ///
    /// # Errors
    /// Those of the migration, or of the deviation. [`StorageError::TwoStores`]: source and
    /// destination can both be opened.
    pub fn migrate(&mut self, deviation: StepDeviation) -> Result<(), StorageError> {
        let Some(UnfinishedMigration { other, run: Some(run) }) = &mut self.unfinished else { return Ok(()) };
        let Some(step) = run.machine.step() else { return Ok(()) };
        if let (MigrationStep::Switch, true, Medium::Disk { store, .. }) =
            (step, deviation.completes_early, &other.medium)
        {
            store.set_migration(MigrationState::None)?;
        }
        let faulty = if step == MigrationStep::Finish { &self.own.medium } else { &other.medium };
        faulty.set_fault(deviation.fault);
        let done = run.migrator.carry_out(step);
        faulty.set_fault(None);
        let failed = match done {
            Ok(outcome) => {
                run.machine.done(outcome);
                if (step, run.machine.step()) == (MigrationStep::Switch, Some(MigrationStep::Finish)) {
                    std::mem::swap(&mut self.own, other);
                }
                let has_ended = run.machine.step().is_none();
                let ended = self.unfinished.take_if(|_| has_ended);
                self.former.extend(ended.map(|unfinished| unfinished.other));
                None
            }
            Err(error) => {
                if let Some(unfinished) = &mut self.unfinished {
                    unfinished.run = None;
                }
                Some(error)
            }
        };
        self.check_present()?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The end of the process interrupts the next step, after this number of the destination's
    /// changes.
    ///
    /// # Errors
    /// The copy is wrong, or both stores can be opened.
    pub fn interrupt_migration(&mut self, after: u64) -> Result<(), StorageError> {
        let fault = Some(StoreFault::FailsAfter(after));
        match self.migrate(StepDeviation { fault, completes_early: false }) {
            Err(error) if error.is_of_migration() => Err(error),
            _ => Ok(()),
        }
    }

    /// Never more than one store can be opened.
    fn check_present(&self) -> Result<(), StorageError> {
        let other = self.unfinished.as_ref().map(|unfinished| &unfinished.other);
        let mut present = 0;
        for medium in [&self.own].into_iter().chain(other).chain(&self.former) {
            present += u32::from(medium.is_present()?);
        }
        if present > 1 { Err(StorageError::TwoStores) } else { Ok(()) }
    }

    /// The stores after a crash. If neither can be opened the same command is run again, which
    /// completes the destination.
    ///
    /// # Errors
    /// [`StorageError::TwoStores`]
    pub(super) fn found_after(&self, loss: Loss) -> Result<FoundStores, StorageError> {
        let superblock = &self.superblock;
        let own = self.own.after_crash(loss, superblock)?;
        let other = match &self.unfinished {
            Some(unfinished) => unfinished.other.after_crash(loss, superblock)?,
            None => return Ok(FoundStores { present: own, unfinished: None }),
        };
        let (present, other) = match (own.is_present()?, other.is_present()?) {
            (true, true) => return Err(StorageError::TwoStores),
            (true, false) => (own, other),
            (false, true) => (other, own),
            (false, false) => {
                // Own and other store have changed places if the switch was carried out.
                let is_source = matches!(own.medium.migration()?, MigrationState::Moved { .. });
                let (source, destination) = if is_source { (own, other) } else { (other, own) };
                let (from, to) = (source.superblock(superblock)?, destination.superblock(superblock)?);
                let start =
                    MigrationStart::decide((&source.name, &from), (&destination.name, Some(&to)), false)?;
                if start != MigrationStart::Finish {
                    return Err(StorageError::NoStore);
                }
                complete(&destination.medium, superblock)?;
                // Another process opens it.
                (destination.after_crash(Loss::Process, superblock)?, source)
            }
        };
        let unfinished = Some(UnfinishedMigration { other, run: None });
        Ok(FoundStores { present, unfinished })
    }
}

impl StorageError {
    /// True if a migration is wrong, and no fault of a store.
    pub fn is_of_migration(&self) -> bool {
        matches!(
            self,
            Self::TwoStores | Self::NoStore | Self::Migration(_) | Self::Store(StoreError::DifferentCopy(_))
        )
    }
}
