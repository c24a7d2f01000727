//! Clusters whose servers share a store and fail over.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use espalier_meta::failover::ClusterMap;
use espalier_proto::Rank;
use espalier_runtime::{
    LoadOptions, MkfsOptions, OpenOptions, RadosAccess, ServedStores, SharedRanks, SharedStore,
    StoreLocation, add_shared_rank, is_in_cluster, mkfs_shared,
};

use crate::serve::Config;

/// True if the store of a server's configuration is shared by all servers.
pub(crate) fn is_shared(store: &str) -> bool {
    is_in_cluster(Path::new(store))
}

/// Where a shared store is. The environment's `CEPH_CONF` names the configuration of Ceph.
pub(crate) fn locate(store: &str) -> Result<StoreLocation> {
    if !is_shared(store) {
        bail!("servers share a store rados:POOL or rados:POOL/NAMESPACE, unlike {store}");
    }
    Ok(StoreLocation::parse(Path::new(store), &RadosAccess::default())?)
}

/// Makes the stores of a new cluster.
pub(crate) fn create(store: &str, ranks: u16, options: &MkfsOptions) -> Result<()> {
    Ok(mkfs_shared(&locate(store)?, ranks, options)?)
}

/// Adds a rank, which one of the cluster's servers takes.
pub(crate) fn add_rank(store: &str) -> Result<Rank> {
    Ok(add_shared_rank(&locate(store)?)?)
}

/// The ranks that a server may serve. `base`: the directory of its configuration.
pub(crate) fn ranks(config: &Config, store: &str, open: OpenOptions, base: &Path) -> Result<SharedRanks> {
    let shared = SharedStore::connect(&locate(store)?)?;
    let (engine, cluster, data_pool) = (shared.engine(), shared.cluster(), shared.data_pool());
    let stores = Arc::new(ServedStores { shared, options: open });
    let (number, address, dir) = (config.number, config.address.clone(), base.into());
    let standby_replay = config.standby_replay;
    Ok(SharedRanks { engine, stores, cluster, data_pool, number, address, standby_replay, dir })
}

/// Checks or repairs the stores of a stopped cluster.
pub(crate) fn fsck(store: &str, is_repair: bool) -> Result<u8> {
    let location = locate(store)?;
    match is_repair {
        true => crate::fsck::repair_shared(&location),
        false => crate::fsck::check_shared(&SharedStore::connect(&location)?),
    }
}

/// Dumps the stores of a stopped cluster.
pub(crate) fn dump(store: &str, to: &Path, resume: bool) -> Result<ExitCode> {
    crate::copy::dump_shared(&SharedStore::connect(&locate(store)?)?, to, resume)
}

/// Loads a dump of a cluster with as many ranks into the stores of a stopped cluster.
pub(crate) fn load(from: &Path, store: &str, options: &LoadOptions, verify: bool) -> Result<ExitCode> {
    crate::copy::load_shared(from, &locate(store)?, options, verify)
}

/// Shows which server has which rank.
pub(crate) fn print_ranks(map: &ClusterMap) {
    for (rank, entry) in map.ranks.iter().enumerate() {
        let holder = entry.holder.and_then(|holder| map.server(holder));
        match holder {
            Some(server) => println!(
                "rank {rank}  server-{}  {}  {}",
                server.number,
                server.address,
                if entry.serving { "serving" } else { "starting" }
            ),
            None => println!("rank {rank}  no server"),
        }
    }
}
