//! A file system in a RADOS pool that the servers of a cluster share: makes it, and opens the
//! stores of its ranks over one connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_meta::Format;
use espalier_meta::failover::ClusterMap;
use espalier_proto::{ClientId, ClusterId, DataPool, Rank};
use espalier_standby::{Follow, FollowedState, Follower};
use espalier_store::engine::PoolId;
use espalier_store::{
    Engine, EngineFailure, FormatOptions, LocalOptions, ObjectOptions, ObjectStore, Rados, RankLease,
    Superblock, break_lease, format_joining, format_objects, read_superblock,
};

use crate::error::Error;
use crate::location::{OpenedStore, StoreLocation};
use crate::serve::{RankStores, add_to_cluster_map, create_cluster_map, read_cluster_map};
use crate::volume::{MkfsOptions, OpenOptions, Volume, format_of, write_first_checkpoint};

/// Term of the lock of a rank's store. Servers are replaced earlier, by the cluster map.
const TERM: Duration = Duration::from_secs(15);

/// A connection to a file system that servers share.
pub struct SharedStore {
    engine: Arc<Rados>,
    superblock: Superblock,
    name: PathBuf,
}

impl SharedStore {
    /// # Errors
    /// There is no file system; the cluster cannot be reached.
    pub fn connect(location: &StoreLocation) -> Result<Self, Error> {
        let engine = connect(location)?;
        let name = location.name();
        let superblock = read_superblock(engine.as_ref(), &name.to_string_lossy())?;
        superblock.check_present(&name)?;
        Ok(Self { engine, superblock, name })
    }

    /// The file system at a location, if servers share it; `None`: it has no cluster map.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn find(location: &StoreLocation) -> Result<Option<Self>, Error> {
        if location.directory().is_some() {
            return Ok(None);
        }
        let shared = Self::connect(location)?;
        match shared.cluster_map() {
            Ok(_) => Ok(Some(shared)),
            Err(Error::Engine(error)) if error.is(&EngineFailure::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Which server has which rank.
    ///
    /// # Errors
    /// The cluster cannot be reached.
    pub fn cluster_map(&self) -> Result<ClusterMap, Error> {
        read_cluster_map(self.engine.as_ref()).map(|(_, map)| map)
    }

    pub fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as Arc<dyn Engine>
    }

    pub fn cluster(&self) -> ClusterId {
        ClusterId(self.superblock.uuid.into_bytes())
    }

    /// The pool with the bytes of big files, if it is one of its own.
    pub fn data_pool(&self) -> Option<DataPool> {
        let PoolId { name, number } = self.superblock.data_pool.clone()?;
        let (namespace, client) = (self.engine.namespace(), ClientId(0));
        Some(DataPool { name, number, namespace, client })
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Opens the store of a rank; its journal is not replayed.
    pub(crate) fn open(&self, rank: Rank, options: &LocalOptions) -> Result<OpenedStore, Error> {
        self.open_leased(RankLease::acquire(&self.engine, rank, TERM)?, options)
    }

    fn open_leased(&self, lease: RankLease<Rados>, options: &LocalOptions) -> Result<OpenedStore, Error> {
        let LocalOptions { read_only, cache_bytes, .. } = *options;
        let superblock = Superblock { rank: lease.rank(), ..self.superblock.clone() };
        let options = ObjectOptions { read_only, cache_bytes };
        let (store, journal) = ObjectStore::open(&self.engine, &superblock, lease, options)?;
        Ok(OpenedStore { superblock, store: Box::new(store), journal: journal.erase() })
    }

    /// All ranks, also those that have joined.
    pub(crate) fn ranks(&self) -> Result<impl Iterator<Item = Rank> + use<>, Error> {
        let map = self.cluster_map()?;
        Ok((0..map.ranks.len() as u16).map(Rank))
    }

    /// Opens the stores of all ranks.
    pub(crate) fn open_all(&self, options: &OpenOptions) -> Result<Vec<Volume>, Error> {
        self.ranks()?.map(|rank| Volume::open_rank(self, rank, options.clone(), None)).collect()
    }
}

/// The stores as servers open them.
pub struct ServedStores {
    pub shared: SharedStore,
    pub options: OpenOptions,
}

impl RankStores for ServedStores {
    fn open(&self, rank: Rank, followed: Option<FollowedState>) -> Result<Volume, Error> {
        Volume::open_rank(&self.shared, rank, self.options.clone(), followed)
    }

    fn follow(&self, rank: Rank) -> Option<Box<dyn Follow>> {
        let superblock = Superblock { rank, ..self.shared.superblock.clone() };
        let (config, cache_bytes) = self.options.for_following(&superblock);
        let engine = Arc::clone(&self.shared.engine);
        Some(Box::new(Follower::new(engine, superblock, config, cache_bytes)))
    }

    fn fence(&self, rank: Rank, clients: &[String]) -> Result<(), Error> {
        clients.iter().try_for_each(|client| self.shared.engine.fence(client))?;
        Ok(break_lease(self.shared.engine.as_ref(), rank, clients)?)
    }
}

fn connect(location: &StoreLocation) -> Result<Arc<Rados>, Error> {
    match location {
        StoreLocation::Rados(address) => Ok(Arc::new(Rados::connect(address)?)),
        StoreLocation::Directory(_) => {
            Err(Error::Option("servers share a store rados:POOL or rados:POOL/NAMESPACE"))
        }
    }
}

/// Creates an empty file system with this number of ranks, for servers that share it.
///
/// # Errors
/// The namespace is not empty; the cluster cannot be reached.
pub fn mkfs_shared(location: &StoreLocation, ranks: u16, options: &MkfsOptions) -> Result<(), Error> {
    let format = FormatOptions { ranks, ..format_of(location, options)? };
    let engine = connect(location)?;
    format_objects(&engine, &location.name().to_string_lossy(), &format)?;
    let shared = SharedStore::connect(location)?;
    for rank in (0..ranks).map(Rank) {
        let opened = shared.open(rank, &LocalOptions::default())?;
        write_first_checkpoint(opened.store.as_ref(), rank, options)?;
    }
    create_cluster_map(engine.as_ref(), ranks)
}

/// Adds a rank to a file system that servers share, which may be in use; returns its number.
///
/// # Errors
/// There is no file system; another rank has been added at the same time.
pub fn add_shared_rank(location: &StoreLocation) -> Result<Rank, Error> {
    let shared = SharedStore::connect(location)?;
    let count = || read_cluster_map(shared.engine.as_ref()).map(|(_, map)| map.ranks.len());
    let ranks = count()?;
    let rank = Rank(u16::try_from(ranks).map_err(|_| Error::Option("there are at most 65535 ranks"))?);
    let lease = RankLease::acquire(&shared.engine, rank, TERM)?;
    if count()? != ranks {
        return Err(Error::OtherRanks);
    }
    format_joining(&shared.engine, &shared.superblock, rank)?;
    let opened = shared.open_leased(lease, &LocalOptions::default())?;
    opened.store.stage(Format::nothing(rank))?;
    opened.store.publish()?;
    add_to_cluster_map(shared.engine.as_ref(), rank)?;
    Ok(rank)
}
