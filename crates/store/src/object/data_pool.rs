//! The data pool: another pool of the cluster, which has the bytes of big files. It may be
//! erasure-coded, so its objects have no keys. One of them names the store that has the namespace.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::names::Names;
use crate::engine::{Engine, EngineError, EngineFailure, ObjectOp, PoolId, VersionedBytes};
use crate::superblock::FormatError;
use crate::{PoolContent, StoreError, StorePool, Superblock};

/// Object that names the store.
const OWNER: &str = "owner";

/// Why a pool cannot have, or does not have, the bytes of a store's big files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataPoolError {
    #[error(
        "there is no pool {0}: make one with `ceph osd pool create {0} erasure`, or name a replicated one"
    )]
    Absent(String),
    #[error("the pool {0} refuses overwrites: run `ceph osd pool set {0} allow_ec_overwrites true`")]
    NoOverwrites(String),
    #[error("the pool {0} is that of the metadata, and has the bytes of big files without --data-pool")]
    Same(String),
    #[error("this namespace of the pool {pool} has the big files of {store}: name another pool")]
    Taken { pool: String, store: String },
    #[error("there is no pool {0}, which has the bytes of the big files: rename it back, or restore it")]
    Lost(String),
    #[error(
        "the pool {pool} has number {found}, and that with the bytes of the big files had {expected}: rename that one back"
    )]
    Replaced { pool: String, found: i64, expected: i64 },
    #[error(
        "the pool {0} does not have the big files of this store: they were removed, or belong to another store"
    )]
    Foreign(String),
}

/// Contents of [`OWNER`].
#[derive(Serialize, Deserialize)]
struct Owner {
    /// The store's name for users.
    store: String,
    uuid: Uuid,
    /// Number of the pool with the metadata, which is in the namespace with the same name.
    metadata_pool: i64,
}

fn owner(data: &impl Engine) -> Result<Option<Owner>, EngineError> {
    let read = match data.read_versioned(OWNER) {
        Err(error) if error.is(&EngineFailure::Missing) => VersionedBytes::default(),
        outcome => outcome?,
    };
    Ok(serde_json::from_slice(&read.bytes).ok())
}

/// Opens the data pool of a store, if it has one.
pub(super) fn open<E: Engine>(engine: &E, superblock: &Superblock) -> Result<Option<E>, StoreError> {
    let Some(PoolId { name, number: expected }) = superblock.data_pool.clone() else { return Ok(None) };
    let data = match engine.other_pool(&name) {
        Err(error) if error.is(&EngineFailure::Missing) => return Err(DataPoolError::Lost(name).into()),
        outcome => outcome?,
    };
    let found = data.pool().number;
    if found != expected {
        return Err(DataPoolError::Replaced { pool: name, found, expected }.into());
    }
    let is_ours = |owner: Owner| owner.uuid == superblock.uuid && owner.metadata_pool == engine.pool().number;
    if owner(&data)?.is_some_and(is_ours) { Ok(Some(data)) } else { Err(DataPoolError::Foreign(name).into()) }
}

/// Opens the pool that a new store is to have.
pub(super) fn choose<E: Engine>(engine: &E, name: &str) -> Result<E, FormatError> {
    let data = match engine.other_pool(name) {
        Err(error) if error.is(&EngineFailure::Missing) => {
            return Err(DataPoolError::Absent(name.into()).into());
        }
        outcome => outcome.map_err(StoreError::from)?,
    };
    if data.pool() == engine.pool() { Err(DataPoolError::Same(name.into()).into()) } else { Ok(data) }
}

/// Checks that no other store has the namespace. True if it has bytes of an earlier store of ours.
pub(super) fn is_used(engine: &impl Engine, data: &impl Engine) -> Result<bool, FormatError> {
    let PoolId { name: pool, .. } = data.pool();
    match owner(data).map_err(StoreError::from)? {
        Some(owner) if owner.metadata_pool != engine.pool().number => {
            return Err(DataPoolError::Taken { pool, store: owner.store }.into());
        }
        _ => {}
    }
    let mut found = data.list("").map_err(StoreError::from)?;
    found.retain(|name| name != OWNER);
    match found.iter().all(|name| is_content(name)) {
        true => Ok(!found.is_empty()),
        false => Err(FormatError::NotEmpty(format!("this namespace of the pool {pool}").into())),
    }
}

/// Names the new store as that which has the namespace.
pub(super) fn claim(
    engine: &impl Engine,
    data: &impl Engine,
    name: &str,
    superblock: &Superblock,
) -> Result<(), FormatError> {
    let Superblock { uuid, .. } = *superblock;
    let owner = Owner { store: name.into(), uuid, metadata_pool: engine.pool().number };
    let text = serde_json::to_vec(&owner).unwrap_or_default();
    data.apply(OWNER, vec![ObjectOp::WriteFull(text.clone())]).map_err(StoreError::from)?;
    match data.apply(OWNER, vec![ObjectOp::Write { offset: 0, bytes: text }]) {
        Err(error) if error.is(&EngineFailure::Unsupported) => {
            release(data)?;
            Err(DataPoolError::NoOverwrites(data.pool().name).into())
        }
        outcome => Ok(outcome.map(drop).map_err(StoreError::from)?),
    }
}

/// Undoes [`claim`]. A store that has the namespace cannot be opened afterwards.
pub(super) fn release(data: &impl Engine) -> Result<(), FormatError> {
    super::format::remove(data, vec![OWNER.into()])
}

/// Removes the bytes of an earlier store.
pub(super) fn clear(data: &impl Engine) -> Result<(), FormatError> {
    release(data)?;
    let mut found = data.list("").map_err(StoreError::from)?;
    found.retain(|name| is_content(name));
    super::format::remove(data, found)
}

/// True for the name of an object that a store makes in its data pool.
fn is_content(name: &str) -> bool {
    Names::is_of_stream(name) || Names::is_of_client(name)
}

/// The data pool of the store that is replaced, if it is still there and not that of another store.
pub(super) fn earlier<E: Engine>(engine: &E, superblock: &Superblock) -> Result<Option<E>, StoreError> {
    let Some(pool) = &superblock.data_pool else { return Ok(None) };
    let data = match engine.other_pool(&pool.name) {
        Err(error) if error.is(&EngineFailure::Missing) => return Ok(None),
        outcome => outcome?,
    };
    let is_ours = |owner: Owner| owner.metadata_pool == engine.pool().number;
    let is_ours = data.pool() == *pool && owner(&data)?.is_none_or(is_ours);
    Ok(is_ours.then_some(data))
}

/// The pools of an open store.
pub(super) fn pools<E: Engine>(engine: &E, data: Option<&E>) -> Vec<StorePool> {
    let content = if data.is_some() { PoolContent::Metadata } else { PoolContent::Everything };
    let data = data.map(|data| (data, PoolContent::BigFiles));
    let pool = |(pool, content): (&E, PoolContent)| StorePool {
        name: pool.pool().name,
        content,
        free: pool.known_space().map(|space| space.available),
    };
    [(engine, content)].into_iter().chain(data).map(pool).collect()
}

/// The pools of a store that is not open. Waits for the cluster.
///
/// # Errors
/// Those of the engine; [`StoreError::DataPool`].
pub fn pools_of<E: Engine>(engine: &E, superblock: &Superblock) -> Result<Vec<StorePool>, StoreError> {
    let data = open(engine, superblock)?;
    engine.space()?;
    Ok(pools(engine, data.as_ref()))
}
