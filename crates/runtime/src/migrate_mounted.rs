//! Migrations of a mounted store, which the process of the mount carries out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use espalier_store::{MigrationState, Store, Superblock};
use serde::{Deserialize, Serialize};

use crate::calls::Calls;
use crate::control::ask;
use crate::error::Error;
use crate::frontend::FuseFrontend;
use crate::location::{RadosAccess, StoreLocation};
use crate::migrate::{MigrationDestination, MigrationRun, MigrationSource, MigrationStatus, migrate_open};
use crate::node::Node;

/// A request to migrate the store of a mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MigrationRequest {
    /// Names of both stores, as of [`StoreLocation::full_name`].
    pub from: PathBuf,
    pub to: PathBuf,
    /// How to connect to the cluster of the destination.
    pub conf: Option<PathBuf>,
    pub user: Option<String>,
    /// Replace a store at the destination.
    pub force: bool,
    /// The pool for the bytes of big files at the destination.
    pub data_pool: Option<String>,
}

/// Asks the mount of a store to migrate it. `None`: no mount answers.
///
/// # Errors
/// The mount refuses.
pub fn request_migration(request: &MigrationRequest) -> Result<Option<MigrationStatus>, Error> {
    let text = serde_json::to_string(request).map_err(|error| failed(error.into()))?;
    // Words of a question are separated by blanks, which JSON has only within strings.
    let question = format!("migrate {}", text.replace(' ', "\\u0020"));
    match ask(&request.from, &question) {
        Err(error) if is_unmounted(&error) => Ok(None),
        outcome => outcome.map_err(failed),
    }
}

/// The last migration of the store that was mounted as `from`, if its mount answers.
///
/// # Errors
/// The mount does not answer in time.
pub fn migration_of(from: &Path) -> Result<Option<MigrationStatus>, Error> {
    match ask(from, "migration") {
        Err(error) if is_unmounted(&error) => Ok(None),
        outcome => outcome.map_err(failed),
    }
}

/// Stops the migration of a mount.
///
/// # Errors
/// As [`migration_of`].
pub fn stop_migration(from: &Path) -> Result<Option<MigrationStatus>, Error> {
    match ask(from, "migration stop") {
        Err(error) if is_unmounted(&error) => Ok(None),
        outcome => outcome.map_err(failed),
    }
}

fn is_unmounted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn failed(source: io::Error) -> Error {
    Error::Io { context: "the mount does not migrate its store".into(), source }
}

/// The store of a mount.
pub(crate) struct MountedStore {
    superblock: Superblock,
    node: Arc<Node<FuseFrontend>>,
    /// Minor number of the device of the mount.
    device: Option<u32>,
    state: Arc<Mutex<MountedState>>,
}

struct MountedState {
    /// The present store.
    name: PathBuf,
    has_moved: bool,
    run: Option<Arc<MigrationRun>>,
    thread: Option<JoinHandle<()>>,
    /// Receives the names of further stores; `None` after the unmount.
    moved: Option<Sender<PathBuf>>,
}

impl MountedStore {
    pub fn new(
        name: &Path,
        superblock: Superblock,
        node: Arc<Node<FuseFrontend>>,
        device: Option<u32>,
        moved: Sender<PathBuf>,
    ) -> Self {
        let moved = Some(moved);
        let state = MountedState { name: name.into(), has_moved: false, run: None, thread: None, moved };
        Self { superblock, node, device, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, MountedState> {
        lock(&self.state)
    }

    /// The present store, if it is not the mounted one.
    pub fn moved_to(&self) -> Option<String> {
        let state = self.state();
        state.has_moved.then(|| state.name.to_string_lossy().into_owned())
    }

    pub fn migration(&self) -> Option<MigrationStatus> {
        self.state().run.as_ref().map(|run| run.status())
    }

    pub fn stop(&self) {
        if let Some(run) = &self.state().run {
            run.stop();
        }
    }

    /// Starts a migration. Does nothing if it runs or has ended.
    pub fn migrate(&self, request: &MigrationRequest) -> Result<(), String> {
        let access = RadosAccess { conf: request.conf.clone(), user: request.user.clone() };
        let destination = StoreLocation::parse(&request.to, &access).map_err(|error| error.to_string())?;
        let mut state = self.state();
        if state.moved.is_none() {
            return Err("it is being unmounted".into());
        }
        if let Some(run) = state.run.as_ref().filter(|run| !run.has_ended()) {
            return match Path::new(run.to()) == request.to {
                true => Ok(()),
                false => Err(format!("it is being migrated to {}", run.to())),
            };
        }
        if state.has_moved && state.name == request.to {
            let run = MigrationRun::new(&destination);
            run.run(|_| self.complete());
            state.run = Some(Arc::new(run));
            return Ok(());
        }
        if state.name != request.from {
            return Err(format!("it has moved to {}", state.name.display()));
        }
        let run = Arc::new(MigrationRun::new(&destination));
        let MigrationRequest { force, data_pool, .. } = request.clone();
        let destination = MigrationDestination { location: destination, force, data_pool };
        if let Some(thread) = state.thread.take() {
            let _ = thread.join();
        }
        let (shared, node) = (Arc::clone(&self.state), Arc::clone(&self.node));
        let (superblock, device) = (self.superblock.clone(), self.device);
        let started = Arc::clone(&run);
        let migrate =
            move || started.run(|run| migrate(&shared, &node, (&superblock, device), &destination, run));
        let thread = std::thread::Builder::new().name("migration".into()).spawn(migrate);
        state.thread = Some(thread.map_err(|error| error.to_string())?);
        state.run = Some(run);
        Ok(())
    }

    /// Repeats the last step of a migration whose source has moved.
    fn complete(&self) -> Result<(), Error> {
        let store = &self.node.background_work.disk.store;
        match store.migration()? {
            MigrationState::Incoming { .. } => Ok(store.set_migration(MigrationState::None)?),
            MigrationState::None | MigrationState::Moved { .. } => Ok(()),
        }
    }

    /// Ends a migration at unmount; it can be continued later.
    pub fn close(&self) {
        let mut state = self.state();
        state.moved = None;
        if let Some(run) = &state.run {
            run.stop();
        }
        let thread = state.thread.take();
        drop(state);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn migrate(
    state: &Mutex<MountedState>,
    node: &Node<FuseFrontend>,
    (superblock, device): (&Superblock, Option<u32>),
    destination: &MigrationDestination,
    run: &MigrationRun,
) -> Result<(), Error> {
    let disk = &node.background_work.disk;
    let name = lock(state).name.clone();
    let (store, journal) = (&disk.store, &disk.journal);
    let source = MigrationSource { name: &name, device, superblock, store, journal };
    let migrated = migrate_open(&source, destination, run, || node.frontend().passed_through());
    // Also after an error in the last step.
    if run.has_switched() {
        let mut state = lock(state);
        state.name = destination.location.full_name();
        state.has_moved = true;
        tracing::warn!(from = %name.display(), to = %state.name.display(), "the file system has moved");
        if let Some(moved) = &state.moved {
            let _ = moved.send(state.name.clone());
        }
    }
    migrated
}

fn lock(state: &Mutex<MountedState>) -> MutexGuard<'_, MountedState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
