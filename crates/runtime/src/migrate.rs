//! Moves a file system to another store.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use espalier_proto::Ino;
use espalier_store::{
    FormatOptions, Journal, LocalOptions, MigrationMachine, MigrationProgress, MigrationStart,
    MigrationState, MigrationStep, Migrator, MovableStore, Store, Superblock,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::location::{OpenedStore, StoreLocation, is_in_cluster};

/// Pause before the next attempt to switch.
const WAIT: Duration = Duration::from_millis(20);

/// A migration that runs, or has ended, as other threads see it.
#[derive(Debug, Default)]
pub struct MigrationRun {
    /// The destination's name.
    to: String,
    progress: Arc<MigrationProgress>,
    state: Mutex<RunState>,
}

#[derive(Debug, Default)]
struct RunState {
    step: Option<MigrationStep>,
    /// Files that delay the switch.
    unseen: usize,
    outcome: Option<Result<(), String>>,
}

/// The status of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationStatus {
    /// The destination's name.
    pub to: String,
    /// The present step, in words.
    pub step: String,
    /// Bytes that were copied or compared, and all; 0 while that is being determined.
    pub done: u64,
    pub total: u64,
    pub ended: bool,
    pub error: Option<String>,
}

impl MigrationRun {
    pub fn new(destination: &StoreLocation) -> Self {
        let to = destination.full_name().to_string_lossy().into_owned();
        Self { to, ..Self::default() }
    }

    pub fn status(&self) -> MigrationStatus {
        let state = self.state();
        let (done, total) = self.progress.bytes();
        let (ended, error) = match &state.outcome {
            Some(outcome) => (true, outcome.clone().err()),
            None => (false, None),
        };
        let step = match state.step {
            None | Some(MigrationStep::Measure) => "measuring".into(),
            Some(MigrationStep::CopyRecords) => "copying metadata and small files".into(),
            Some(MigrationStep::CopyStreams) => "copying big files".into(),
            Some(MigrationStep::Verify) => "comparing".into(),
            Some(MigrationStep::CatchUp | MigrationStep::Wait) if state.unseen > 0 => {
                format!("waiting until {} big files are closed", state.unseen)
            }
            Some(MigrationStep::CatchUp | MigrationStep::Wait) => "copying changes".into(),
            Some(MigrationStep::Switch | MigrationStep::Finish) => "switching".into(),
        };
        MigrationStatus { to: self.to.clone(), step, done, total, ended, error }
    }

    /// Stops it soon, unless the switch has happened.
    pub fn stop(&self) {
        self.progress.stop();
    }

    /// Runs a migration, and notes its outcome.
    pub(crate) fn run(&self, migrate: impl FnOnce(&Self) -> Result<(), Error>) {
        let outcome = migrate(self).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            format!("{error}{}", source.unwrap_or_default())
        });
        self.state().outcome = Some(outcome);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().outcome.is_some()
    }

    /// True if the file system is at the destination.
    pub(crate) fn has_switched(&self) -> bool {
        self.state().step == Some(MigrationStep::Finish)
    }

    pub(crate) fn to(&self) -> &str {
        &self.to
    }

    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a store is migrated to.
#[derive(Clone, Debug)]
pub struct MigrationDestination {
    pub location: StoreLocation,
    /// Replace another store there.
    pub force: bool,
    /// As [`MkfsOptions::data_pool`](crate::MkfsOptions::data_pool).
    pub data_pool: Option<String>,
}

/// An open store to migrate.
pub(crate) struct MigrationSource<'a> {
    pub name: &'a Path,
    /// Minor number of the device of its mount.
    pub device: Option<u32>,
    pub superblock: &'a Superblock,
    pub store: &'a Arc<MovableStore>,
    pub journal: &'a Arc<Mutex<Journal>>,
}

/// Migrates a store that is open; it is at the destination afterwards. `unseen`: files whose
/// changes the store does not see.
pub(crate) fn migrate_open(
    source: &MigrationSource<'_>,
    destination: &MigrationDestination,
    run: &MigrationRun,
    unseen: impl Fn() -> Vec<Ino>,
) -> Result<(), Error> {
    let MigrationSource { name, device, superblock, store, journal } = *source;
    let to = &destination.location;
    check(name, superblock, to)?;
    if to.directory().is_some() && depends(&to.full_name(), name, device) {
        return Err(Error::Option(
            "the destination is inside the source or its mount, or has the source in it: name a directory outside of both",
        ));
    }
    // Fails now if the source cannot be marked at the end.
    store.set_migration(store.migration()?)?;
    let Some(opened) = prepare((name, superblock), destination)? else { return Ok(()) };
    let to = to.full_name().to_string_lossy().into_owned();
    let counted = || {
        let unseen = unseen();
        run.state().unseen = unseen.len();
        unseen
    };
    let mut machine = MigrationMachine::default();
    let (parts, opened) = ((Arc::clone(store), Arc::clone(journal)), (opened.store, opened.journal));
    let mut migrator = Migrator::new(parts, opened, to, Arc::clone(&run.progress), counted);
    while let Some(step) = machine.step() {
        run.state().step = Some(step);
        if step == MigrationStep::Wait {
            std::thread::sleep(WAIT);
        }
        let began = Instant::now();
        let outcome = migrator.carry_out(step)?;
        tracing::info!(?step, ?outcome, ms = began.elapsed().as_millis() as u64, "migration");
        machine.done(outcome);
    }
    Ok(())
}

/// Migrates a store that no process has open.
///
/// # Errors
/// Errors of both stores. The migration can be repeated.
pub fn migrate_stopped(source: &StoreLocation, destination: &MigrationDestination, run: &MigrationRun) {
    run.run(|run| {
        let (name, superblock) = (source.full_name(), source.superblock()?);
        if matches!(superblock.migration, MigrationState::None) {
            let OpenedStore { superblock, store, journal } = source.open(LocalOptions::default())?;
            let (store, journal) = (Arc::new(MovableStore::new(store)), Arc::new(Mutex::new(journal)));
            let (name, device, superblock) = (&*name, None, &superblock);
            let source = MigrationSource { name, device, superblock, store: &store, journal: &journal };
            return migrate_open(&source, destination, run, Vec::new);
        }
        prepare((&name, &superblock), destination).map(drop)
    });
}

/// Refuses stores that cannot be migrated by themselves.
fn check(name: &Path, superblock: &Superblock, destination: &StoreLocation) -> Result<(), Error> {
    if superblock.ranks > 1 && (destination.directory().is_none() || is_in_cluster(name)) {
        return Err(Error::Option(
            "the store of one of several metadata servers can be migrated between directories only: see docs/migrate.md",
        ));
    }
    if name.join("namespace").is_file() {
        return Err(Error::Option("the store of a decoupled namespace cannot be migrated: merge it"));
    }
    Ok(())
}

/// True if the directory `to` is within the store `from` or its mount, or the store within it: a
/// pause of the source would block the destination, or the removal of one store remove both.
fn depends(to: &Path, from: &Path, device: Option<u32>) -> bool {
    let existing = to.ancestors().find_map(|ancestor| ancestor.metadata().ok());
    let number = existing.map(|existing| existing.dev());
    let is_on_mount = number
        .is_some_and(|number| rustix::fs::major(number) == 0 && Some(rustix::fs::minor(number)) == device);
    is_on_mount || to != from && (to.starts_with(from) || from.starts_with(to))
}

/// Makes the destination, or opens the incomplete one. `None`: the migration has ended.
fn prepare(
    (name, superblock): (&Path, &Superblock),
    destination: &MigrationDestination,
) -> Result<Option<OpenedStore>, Error> {
    let MigrationDestination { location, force, data_pool } = destination;
    let (from, to) = (name.to_string_lossy(), location.full_name());
    let found = location.find_superblock()?;
    let start = MigrationStart::decide((&from, superblock), (&to.to_string_lossy(), found.as_ref()), *force)?;
    if let Some(found) = found.filter(|_| start != MigrationStart::Format) {
        location.check_data_pool(&found, data_pool.as_deref())?;
    }
    let open = || location.open(LocalOptions { incoming: true, ..LocalOptions::default() });
    match start {
        MigrationStart::Format => {
            let Superblock { label, strip_bytes, journal_bytes, hash_key, uuid, rank, ranks, .. } =
                superblock.clone();
            location.format(&FormatOptions {
                label,
                strip_bytes,
                journal_bytes,
                force: *force,
                hash_key: Some(hash_key),
                uuid: Some(uuid),
                rank,
                ranks,
                migration: MigrationState::Incoming { from: from.into_owned() },
                data_pool: data_pool.clone(),
            })?;
            open().map(Some)
        }
        MigrationStart::Resume => open().map(Some),
        MigrationStart::Finish => {
            open()?.store.set_migration(MigrationState::None)?;
            Ok(None)
        }
        MigrationStart::Ended => Ok(None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_does_not_depend_on_its_source() {
        let work = tempfile::tempdir().unwrap();
        let dir = |name: &str| work.path().join(name);
        std::fs::create_dir(dir("data")).unwrap();
        assert!(depends(&dir("data/new/b"), &dir("data"), None));
        assert!(depends(&dir("data"), &dir("data/streams/a"), None));
        assert!(!depends(&dir("data2/b"), &dir("data"), None));
        assert!(!depends(&dir("data"), Path::new("rados:pool/data"), None));
        // A file system without a block device, as a mount is.
        let number = Path::new("/proc").metadata().unwrap().dev();
        let device = Some(rustix::fs::minor(number));
        assert!(depends(Path::new("/proc/absent/b"), &dir("data"), device));
        assert!(!depends(Path::new("/proc/absent/b"), &dir("data"), device.map(|minor| minor + 1)));
    }
}
