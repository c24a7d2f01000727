//! The superblock in a namespace, and making a file system there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_proto::Rank;

use super::file::ObjectFile;
use super::lease::RankLease;
use super::names::{Names, SUPERBLOCK};
use super::tables::Tables;
use super::{CHUNK_BYTES, data_pool};
use crate::engine::{Engine, EngineFailure, ObjectOp};
use crate::superblock::{self, FormatError, FormatOptions, Superblock, SuperblockError};
use crate::{BlockFile, Journal, MigrationState, StoreError};

/// Lease while an old file system is removed.
const LOCKED: Duration = Duration::from_secs(30);

/// Reads the superblock of a namespace. `name`: how users name it. Its rank is 0.
///
/// # Errors
/// [`StoreError::Superblock`], whose message states the remedy.
pub fn read_superblock(engine: &impl Engine, name: &str) -> Result<Superblock, StoreError> {
    match engine.read_versioned(SUPERBLOCK) {
        Ok(read) => Ok(superblock::parse(Path::new(name), &read.bytes)?),
        Err(error) if error.is(&EngineFailure::Missing) => {
            Err(SuperblockError::NoStore(PathBuf::from(name)).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Changes the part in a migration.
pub(super) fn set_migration(engine: &impl Engine, migration: MigrationState) -> Result<(), StoreError> {
    let name = Path::new(SUPERBLOCK);
    let read = engine.read_versioned(SUPERBLOCK)?;
    let changed = Superblock { migration, ..superblock::parse(name, &read.bytes)? };
    let text = superblock::text(name, &changed)?;
    engine.write_if(SUPERBLOCK, text.into_bytes(), Some(read.version))?;
    Ok(())
}

/// Replaces the journal of a rank by an empty one. `old` gets the bytes of the old one, and `sync`
/// makes them durable before they are overwritten. The caller holds the rank's lease.
///
/// # Errors
/// Those of the engine, of `old` and of `sync`.
pub fn replace_objects_journal<E: Engine>(
    engine: &Arc<E>,
    superblock: &Superblock,
    rank: Rank,
    old: &mut dyn Write,
    sync: impl FnOnce() -> std::io::Result<()>,
) -> Result<(), StoreError> {
    let failed = |cause| StoreError::Io { operation: "save", path: "the journal".into(), cause };
    let length = Journal::<ObjectFile<E>>::file_bytes(superblock.journal_bytes);
    let file = ObjectFile::new(Arc::clone(engine), Names(rank), length, false);
    let mut offset = 0;
    while offset < length {
        let mut bytes = vec![0; (length - offset).min(CHUNK_BYTES) as usize];
        let copied = file.read_at(offset, &mut bytes).and_then(|()| old.write_all(&bytes));
        copied.map_err(failed)?;
        offset += bytes.len() as u64;
    }
    sync().map_err(failed)?;
    Journal::create(file, superblock.journal_bytes, superblock.tag_of(rank))?;
    Ok(())
}

/// Makes empty stores for all ranks in a namespace. The superblock is written last.
///
/// # Errors
/// The message of each error states the remedy.
pub fn format_objects<E: Engine>(
    engine: &Arc<E>,
    name: &str,
    options: &FormatOptions,
) -> Result<Superblock, FormatError> {
    let data = options.data_pool.as_ref().map(|pool| data_pool::choose(engine.as_ref(), pool)).transpose()?;
    clear(engine, data.as_ref(), name, options.force)?;
    let mut superblock =
        superblock::new(Path::new(name), &FormatOptions { rank: Rank(0), ..options.clone() })?;
    if let Some(data) = &data {
        data_pool::claim(engine.as_ref(), data, name, &superblock)?;
        superblock.data_pool = Some(data.pool());
    }
    for rank in (0..superblock.ranks).map(Rank) {
        create_rank(engine, &superblock, rank).or_else(|error| match error {
            FormatError::Store(StoreError::Engine(error)) if error.is(&EngineFailure::Unsupported) => {
                data.as_ref().map_or(Ok(()), data_pool::release)?;
                remove(engine.as_ref(), engine.list("").map_err(StoreError::from)?)?;
                Err(FormatError::ErasureCoded(name.into()))
            }
            error => Err(error),
        })?;
    }
    let text = superblock::text(Path::new(name), &superblock)?;
    engine.write_if(SUPERBLOCK, text.into_bytes(), None).map_err(StoreError::from)?;
    Ok(superblock)
}

/// Makes the empty store of a rank that is about to join. The caller holds the rank's lease, and no
/// server may know the rank: what is left of an earlier attempt is removed.
///
/// # Errors
/// As [`format_objects`].
pub fn format_joining<E: Engine>(
    engine: &Arc<E>,
    superblock: &Superblock,
    rank: Rank,
) -> Result<(), FormatError> {
    let mut found = engine.list(&format!("{rank}.")).map_err(StoreError::from)?;
    found.retain(|name| *name != Names(rank).lock());
    remove(engine.as_ref(), found)?;
    if let Some(data) = data_pool::open(engine.as_ref(), superblock)? {
        let found = data.list(&Names(rank).streams()).map_err(StoreError::from)?;
        remove(&data, found)?;
    }
    create_rank(engine, superblock, rank)
}

fn create_rank<E: Engine>(engine: &Arc<E>, superblock: &Superblock, rank: Rank) -> Result<(), FormatError> {
    let (names, bytes) = (Names(rank), superblock.journal_bytes);
    Tables::create(engine.as_ref(), names)?;
    let length = Journal::<ObjectFile<E>>::file_bytes(bytes);
    let file = ObjectFile::new(Arc::clone(engine), names, length, true);
    Journal::create(file, bytes, superblock.tag_of(rank)).map_err(StoreError::from)?;
    Ok(())
}

/// Checks that the namespace is empty, also in the data pool; with `force`, removes a file system.
fn clear<E: Engine>(engine: &Arc<E>, data: Option<&E>, name: &str, force: bool) -> Result<(), FormatError> {
    let found = engine.list("").map_err(StoreError::from)?;
    if found.iter().any(|name| !Names::is_ours(name)) {
        return Err(FormatError::NotEmpty(name.into()));
    }
    let has_superblock = found.iter().any(|name| name == SUPERBLOCK);
    let is_data_used = data.map_or(Ok(false), |data| data_pool::is_used(engine.as_ref(), data))?;
    match (found.is_empty() && !is_data_used, force) {
        (true, _) => return Ok(()),
        (false, false) if has_superblock => return Err(FormatError::Exists(name.into())),
        (false, false) => return Err(FormatError::Unfinished(name.into())),
        (false, true) => {}
    }
    // Refused while a process uses one of the ranks.
    let lock = |rank| RankLease::acquire(engine, rank, LOCKED);
    let locks = found.iter().filter_map(|name| Names::rank_of_lock(name)).map(lock);
    let locks = locks.collect::<Result<Vec<_>, _>>()?;
    // Before the superblock, which names the pool. The store cannot be opened from then on.
    if let Ok(earlier) = read_superblock(engine.as_ref(), name) {
        let earlier = data_pool::earlier(engine.as_ref(), &earlier)?;
        earlier.as_ref().map_or(Ok(()), data_pool::clear)?;
    }
    data.map_or(Ok(()), data_pool::clear)?;
    // Without a superblock the rest is no file system.
    let (superblock, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|name| name == SUPERBLOCK);
    remove(engine.as_ref(), superblock)?;
    remove(engine.as_ref(), rest)?;
    drop(locks);
    // Releasing the leases makes their objects again.
    remove(engine.as_ref(), engine.list("").map_err(StoreError::from)?)
}

pub(super) fn remove(engine: &impl Engine, names: Vec<String>) -> Result<(), FormatError> {
    let remove = |name: &String| engine.submit(name, vec![ObjectOp::Remove]);
    let removals: Vec<_> = names.iter().map(remove).collect();
    for removal in removals {
        match removal.wait() {
            Err(error) if !error.is(&EngineFailure::Missing) => return Err(StoreError::from(error).into()),
            _ => {}
        }
    }
    Ok(())
}
