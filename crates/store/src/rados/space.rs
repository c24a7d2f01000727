use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use espalier_proto::Space;
use serde::Deserialize;

use crate::engine::{EngineError, EngineFailure};

pub(super) const COMMAND: &CStr = c"{\"prefix\": \"df\", \"format\": \"json\"}";
/// A query of the monitors is expensive, and their figures are seconds old.
const VALID: Duration = Duration::from_secs(5);
/// Reported where the monitors have no figures, as without a manager daemon.
const UNKNOWN_BYTES: u64 = 1 << 50;

/// Sizes and free space of all pools, as last reported by the monitors.
#[derive(Default)]
pub(super) struct SpaceCache(Mutex<Option<LastReport>>);

struct LastReport {
    at: Instant,
    pools: Vec<PoolUsage>,
}

#[derive(Deserialize)]
struct ClusterUsage {
    pools: Vec<PoolUsage>,
}

#[derive(Deserialize)]
struct PoolUsage {
    name: String,
    stats: PoolStats,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct PoolStats {
    /// Bytes before replication.
    stored: u64,
    max_avail: u64,
}

impl SpaceCache {
    /// The space of a pool; an old report is replaced by that of `query`.
    pub fn get(
        &self,
        pool: &str,
        query: impl FnOnce() -> Result<Vec<u8>, EngineError>,
    ) -> Result<Space, EngineError> {
        let last = self.last().as_ref().filter(|last| last.at.elapsed() < VALID).map(|last| last.space(pool));
        // Not locked, since it may take long.
        let space = match last {
            Some(space) => space,
            None => {
                let pools = parse(&query()?).ok_or_else(|| {
                    let unknown = EngineFailure::Invalid("the monitors' figures are not understood");
                    EngineError::new("measure", pool, unknown)
                })?;
                self.last().insert(LastReport { at: Instant::now(), pools }).space(pool)
            }
        };
        Ok(space.unwrap_or(Space {
            total: UNKNOWN_BYTES,
            free: UNKNOWN_BYTES,
            available: UNKNOWN_BYTES,
            files: 0,
            files_free: 0,
        }))
    }

    /// The space of a pool in the last report.
    pub fn known(&self, pool: &str) -> Option<Space> {
        self.last().as_ref().and_then(|last| last.space(pool))
    }

    fn last(&self) -> MutexGuard<'_, Option<LastReport>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(reply: &[u8]) -> Option<Vec<PoolUsage>> {
    serde_json::from_slice(reply).ok().map(|ClusterUsage { pools }| pools)
}

impl LastReport {
    /// The space of a pool. Without figures, the monitors leave pools out, or report zeros.
    fn space(&self, name: &str) -> Option<Space> {
        let PoolStats { stored, max_avail: free } = self.pools.iter().find(|pool| pool.name == name)?.stats;
        let is_known = stored > 0 || free > 0;
        let total = stored.saturating_add(free);
        is_known.then_some(Space { total, free, available: free, files: 0, files_free: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(pools: &[(&str, u64, u64)]) -> Vec<u8> {
        let pool = |(name, stored, free): &(&str, u64, u64)| {
            format!(
                "{{\"name\": \"{name}\", \"id\": 1, \"stats\": {{\"stored\": {stored}, \"max_avail\": {free}}}}}"
            )
        };
        let pools: Vec<_> = pools.iter().map(pool).collect();
        format!("{{\"stats\": {{}}, \"pools\": [{}]}}", pools.join(", ")).into_bytes()
    }

    #[test]
    fn figures_of_each_pool_are_found() {
        let cache = SpaceCache::default();
        assert_eq!(cache.known("b"), None);
        let reply = figures(&[("a", 1, 2), ("b", 10, 90), ("full", 100, 0), ("empty", 0, 0)]);
        let of = |pool| cache.get(pool, || Ok(reply.clone())).expect("figures");
        assert_eq!((of("b").total, of("b").available), (100, 90));
        assert_eq!((of("full").total, of("full").available), (100, 0));
        assert_eq!((of("empty").available, of("absent").available), (UNKNOWN_BYTES, UNKNOWN_BYTES));
        assert_eq!(cache.known("a").map(|space| space.free), Some(2));
        assert_eq!((cache.known("empty"), cache.known("absent")), (None, None));
    }

    #[test]
    fn malformed_figures_are_an_error() {
        for reply in ["{\"pools\": [1]}", "nonsense"] {
            let cache = SpaceCache::default();
            assert!(cache.get("a", || Ok(reply.into())).is_err(), "{reply}");
        }
    }
}
