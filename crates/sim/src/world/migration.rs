//! Migrations of a mounted store: the steps in virtual time, their faults, and what is run again
//! after an interruption.

use espalier_store::MigrationStep;
use rand::Rng;

use crate::dist::Distribution;
use crate::random::{Random, Seed};
use crate::scenario::Migration;
use crate::storage::{StepDeviation, StorageError, StoreFault};
use crate::time::Nanos;
use crate::world::end::RunStage;
use crate::world::event::SimEvent;
use crate::world::{RunError, World};

/// The server of the only store.
const SERVER: usize = 0;
/// Pause before a migration that failed or was interrupted is run again.
const RETRY: Nanos = Nanos(500_000_000);
/// Pause before the next attempt to switch.
const WAIT: Nanos = Nanos(20_000_000);
/// Largest number of the destination's changes after which a step fails or is interrupted.
const CHANGES: u64 = 40;

/// The migrations of a run.
pub(super) struct Migrations {
    random: Random,
    step_time: Distribution,
    /// Place in the scenario of the one that was begun and has not ended.
    current: Option<usize>,
    /// The server's start in which its steps run.
    runs_in: Option<u64>,
    /// Time until which the destination fails.
    fails_until: Nanos,
    ended: u64,
}

impl Migrations {
    pub fn new(step_time: &Distribution, seed: Seed) -> Self {
        Self {
            random: seed.random("migrations", 0),
            step_time: step_time.clone(),
            current: None,
            runs_in: None,
            fails_until: Nanos::ZERO,
            ended: 0,
        }
    }

    pub fn is_under_way(&self) -> bool {
        self.current.is_some()
    }

    fn fault(&mut self, now: Nanos) -> Option<StoreFault> {
        if now >= self.fails_until {
            return None;
        }
        let after = self.random.random_range(0..CHANGES);
        Some(if self.random.random() { StoreFault::Full } else { StoreFault::FailsAfter(after) })
    }
}

impl World<'_> {
    /// Number of migrations that have ended.
    pub fn migrations(&self) -> u64 {
        self.migrations.ended
    }

    /// Destinations of migrations fail for a while.
    pub(super) fn fail_destination(&mut self, lasts: Nanos) {
        self.migrations.fails_until = self.fabric.now + lasts;
    }

    /// Begins a migration, or begins it again.
    pub(super) fn begin_migration(&mut self, number: usize) -> Result<(), RunError> {
        let is_new = self.migrations.current.is_none();
        if is_new && self.stage != RunStage::Works {
            return Ok(());
        }
        let server = &mut self.servers[SERVER];
        let is_possible = self.migrations.current.is_none_or(|current| current == number)
            && self.migrations.runs_in.is_none_or(|start| start != server.start)
            && server.is_up()
            && !server.disk.fails;
        let (config, start) = (server.config.clone(), server.start);
        let Some(storage) = server.storage.as_mut().filter(|_| is_possible) else {
            self.fabric.after(RETRY, SimEvent::Migrate { number });
            return Ok(());
        };
        self.migrations.current = Some(number);
        storage.notes_changes = self.fabric.mutator.notes_changes();
        let Migration { to, .. } = self.scenario.cluster.migrations[number];
        match storage.begin_migration(&format!("store {}", number + 1), to, &config) {
            Ok(true) => self.end_migration(),
            Ok(false) => {
                self.migrations.runs_in = Some(start);
                self.await_step(number, start);
            }
            Err(error) => return self.repeat_migration(number, error),
        }
        Ok(())
    }

    /// The next step takes a while, and is carried out then.
    fn await_step(&mut self, number: usize, start: u64) {
        let next = self.servers[SERVER].storage.as_ref().and_then(|storage| storage.migration_step());
        let time = match next {
            Some(MigrationStep::Wait) => WAIT,
            _ => self.migrations.step_time.sample(&mut self.migrations.random),
        };
        self.fabric.after(time, SimEvent::MigrationStep { number, start });
    }

    /// A step of a migration is carried out.
    pub(super) fn migration_step(&mut self, number: usize, start: u64) -> Result<(), RunError> {
        let server = &mut self.servers[SERVER];
        if server.start != start || self.migrations.runs_in != Some(start) {
            // The process has ended meanwhile.
            return self.begin_migration(number);
        }
        let deviation = StepDeviation {
            fault: self.migrations.fault(self.fabric.now),
            completes_early: self.fabric.mutator.completes_early(),
        };
        let now = server.clock.time(self.fabric.now);
        let Some(storage) = server.storage.as_mut().filter(|_| !server.disk.fails) else {
            // The server restarts when its disk is repaired.
            self.fabric.after(RETRY, SimEvent::MigrationStep { number, start });
            return Ok(());
        };
        storage.set_now(now);
        match storage.migrate(deviation) {
            Ok(()) if storage.migration_step().is_none() => self.end_migration(),
            Ok(()) => self.await_step(number, start),
            Err(error) => return self.repeat_migration(number, error),
        }
        Ok(())
    }

    fn end_migration(&mut self) {
        (self.migrations.current, self.migrations.runs_in) = (None, None);
        self.migrations.ended += 1;
    }

    /// After a fault the same migration is run again.
    fn repeat_migration(&mut self, number: usize, cause: StorageError) -> Result<(), RunError> {
        if cause.is_of_migration() {
            return Err(RunError::Migration { at: self.fabric.now, cause });
        }
        self.migrations.runs_in = None;
        self.fabric.after(RETRY, SimEvent::Migrate { number });
        Ok(())
    }

    /// The end of a server's process interrupts a step of a migration anywhere.
    pub(super) fn interrupt_migration(&mut self, node: usize) -> Result<(), RunError> {
        let server = &mut self.servers[node];
        if self.migrations.runs_in != Some(server.start) {
            return Ok(());
        }
        let after = self.migrations.random.random_range(0..CHANGES);
        let storage = server.storage.as_mut().filter(|_| !server.disk.fails);
        let interrupted = storage.map_or(Ok(()), |storage| storage.interrupt_migration(after));
        interrupted.map_err(|cause| RunError::Migration { at: self.fabric.now, cause })
    }
}
