//! Configurations of the machines.

use espalier_meta::{Acknowledge, Atime, Config, Striping};
use espalier_proto::{Distribution, LayoutError, Rank, ServerId};

use crate::scenario::{Cluster, Durability, Scenario};
use crate::time::Nanos;

/// Configuration of a metadata server's machine.
pub(super) fn config(scenario: &Scenario, rank: u16, striping: Option<Striping>) -> Config {
    let cluster = &scenario.cluster;
    let millis = |time: Nanos| Some(u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
    let strip = u32::try_from(cluster.strip.0).unwrap_or(u32::MAX);
    Config {
        acknowledge: match cluster.durability {
            Durability::Written => Acknowledge::Written,
            Durability::Durable => Acknowledge::Durable,
        },
        // Servers that share a store acknowledge durable changes only, without `sync`.
        writeback: cluster.durability == Durability::Written || cluster.servers > 0,
        watermarks: (cluster.low_watermark, cluster.high_watermark),
        atime: Atime::Relative,
        cache_bytes: usize::try_from(cluster.memory.0).unwrap_or(usize::MAX),
        session_ms: millis(cluster.session),
        lease_ms: millis(cluster.lease),
        striping,
        data_pool: cluster.data_pool,
        policy: scenario.policy.0.clone(),
        rank: Rank(rank),
        ranks: cluster.first_ranks().max(rank + 1),
        split_names: cluster.names_per_step,
        ..Config::new(*b"in virtual time.", strip, cluster.journal.0)
    }
}

/// Striping of files over all data servers, if there are any.
pub(super) fn striping(cluster: &Cluster) -> Result<Option<Striping>, LayoutError> {
    let servers: Vec<_> = (0..cluster.data).map(ServerId).collect();
    if servers.is_empty() {
        return Ok(None);
    }
    let (strip, width) = (cluster.strip.0.max(64), servers.len());
    Striping::new(Distribution::SimpleStripe { strip }, servers, width)
        .map(|striping| Some(striping.delegated()))
}
