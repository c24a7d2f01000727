//! The engine of a simulated store: a disk, or objects.

use std::path::Path;
use std::sync::Arc;

use espalier_meta::Config;
use espalier_proto::Time;
use espalier_store::{
    Engine, FormatOptions, Journal, MemoryEngine, MemoryStore, MigrationState, ObjectOptions, ObjectStore,
    RankLease, SimFile, Store, StoreError, Superblock, Uuid, break_lease, format_objects, read_superblock,
    superblock,
};
use serde::Deserialize;

use super::{Loss, StorageError, TERM};

/// The name of stores in errors.
const NAME: &str = "a simulated store";

/// The kind of a store's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    Disk,
    Objects,
}

/// The contents of a store, whether it is open or not.
#[derive(Clone)]
pub(super) enum Medium {
    Disk {
        store: Arc<MemoryStore>,
        file: Arc<SimFile>,
    },
    /// Objects, through the connection of a server's process.
    Objects(Arc<MemoryEngine>),
}

/// A fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    Full,
    /// All changes fail after this number of them.
    FailsAfter(u64),
}

/// Identity and parameters of a rank's store. Equal ranks of all runs have the same, so that a run
/// is a function of its seed.
///
/// # Errors
/// None is expected.
pub(super) fn identity(config: &Config) -> Result<Superblock, StorageError> {
    Ok(superblock::new(Path::new(NAME), &options(config, MigrationState::None))?)
}

fn options(config: &Config, migration: MigrationState) -> FormatOptions {
    FormatOptions {
        journal_bytes: config.journal_capacity,
        hash_key: Some(config.hash_key),
        uuid: Some(Uuid::from_u128(1)),
        rank: config.rank,
        migration,
        ..FormatOptions::default()
    }
}

impl Medium {
    /// A store without records.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn format(
        kind: StoreKind,
        config: &Config,
        tag: u64,
        migration: MigrationState,
    ) -> Result<Self, StorageError> {
        match kind {
            StoreKind::Disk => {
                let bytes = Journal::<SimFile>::file_bytes(config.journal_capacity);
                let file = Arc::new(SimFile::new(usize::try_from(bytes).unwrap_or(usize::MAX)));
                Journal::create(Arc::clone(&file), config.journal_capacity, tag)?;
                let store = Arc::new(MemoryStore::new());
                store.set_migration(migration)?;
                Ok(Self::Disk { store, file })
            }
            StoreKind::Objects => {
                let engine = Arc::new(MemoryEngine::new());
                format_objects(&engine, NAME, &options(config, migration))?;
                Ok(Self::Objects(engine))
            }
        }
    }

    /// Opens the store, and the journal, which the caller replays.
    ///
    /// # Errors
    /// The store is damaged; another process has its objects.
    pub fn open(&self, superblock: &Superblock) -> Result<(Arc<dyn Store>, Journal), StorageError> {
        match self {
            Self::Disk { store, file } => {
                Ok((Arc::clone(store) as _, Journal::open(Arc::clone(file))?.erase()))
            }
            Self::Objects(engine) => {
                let lease = RankLease::acquire_for(engine, superblock.rank, TERM)?;
                let (store, journal) =
                    ObjectStore::open(engine, superblock, lease, ObjectOptions::default())?;
                Ok((Arc::new(store), journal.erase()))
            }
        }
    }

    /// What a new process finds after a crash of the one that had the store open. Objects lose
    /// nothing.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn after_crash(&self, loss: Loss, superblock: &Superblock) -> Result<Self, StorageError> {
        Ok(match self {
            Self::Disk { store, file } => {
                let (store, file) = match loss {
                    Loss::Process => (store.reopen(), file.reopen()),
                    Loss::Power(seed) => (store.crash(), file.crash(seed)),
                };
                file.fail_after(u64::MAX);
                Self::Disk { store: Arc::new(store), file: Arc::new(file) }
            }
            Self::Objects(engine) => {
                let (ended, next) = (engine.address(), engine.client());
                next.fence(&ended).map_err(StoreError::from)?;
                break_lease(&next, superblock.rank, &[ended]).map_err(StoreError::from)?;
                Self::Objects(Arc::new(next))
            }
        })
    }

    /// The state in the superblock.
    ///
    /// # Errors
    /// None is expected of memory.
    pub fn migration(&self) -> Result<MigrationState, StorageError> {
        Ok(match self {
            Self::Disk { store, .. } => store.migration()?,
            // A process that has ended reads nothing.
            Self::Objects(engine) => read_superblock(&engine.client(), NAME)?.migration,
        })
    }

    /// Sets the time of later changes.
    pub fn set_now(&self, now: Time) {
        match self {
            Self::Disk { store, .. } => store.set_now(now),
            Self::Objects(engine) => engine.set_now(now),
        }
    }

    /// Sets or ends a fault.
    pub fn set_fault(&self, fault: Option<StoreFault>) {
        let (is_full, fails_after) = match fault {
            None => (false, None),
            Some(StoreFault::Full) => (true, None),
            Some(StoreFault::FailsAfter(changes)) => (false, Some(changes)),
        };
        match self {
            Self::Disk { store, file } => {
                store.set_full(is_full);
                store.fail_after(fails_after);
                file.fail_after(fails_after.unwrap_or(u64::MAX));
            }
            Self::Objects(engine) => {
                engine.set_full(is_full);
                engine.fail_after(fails_after);
            }
        }
    }
}
