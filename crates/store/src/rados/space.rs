use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use espalier_proto::Space;
use serde::Deserialize;

use crate::engine::{EngineError, EngineFailure};

pub(super) const COMMAND: &CStr = c"{\"prefix\": \"df\", \"format\": \"json\"}";
/// A query of the monitors is expensive, and their figures are seconds old.
const VALID: Duration = Duration::from_secs(5);
/// Reported where the monitors have no figures, as without a manager daemon.
const UNKNOWN_BYTES: u64 = 1 << 50;

/// Size and free space of a pool, as last reported by the monitors.
pub(super) struct SpaceCache {
    pool: String,
    last: Mutex<Option<(Instant, Space)>>,
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

#[derive(Default, Deserialize)]
struct PoolStats {
    /// Bytes before replication.
    stored: u64,
    max_avail: u64,
}

impl SpaceCache {
    pub fn new(pool: String) -> Self {
        Self { pool, last: Mutex::default() }
    }

    pub fn get(&self, query: impl FnOnce() -> Result<Vec<u8>, EngineError>) -> Result<Space, EngineError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, space)) = *last
            && at.elapsed() < VALID
        {
            return Ok(space);
        }
        let space = self.parse(&query()?).ok_or_else(|| {
            let unknown = EngineFailure::Invalid("the monitors' figures are not understood");
            EngineError::new("measure", &self.pool, unknown)
        })?;
        *last = Some((Instant::now(), space));
        Ok(space)
    }

    fn parse(&self, reply: &[u8]) -> Option<Space> {
        let usage: ClusterUsage = serde_json::from_slice(reply).ok()?;
        // Without figures, the monitors leave pools out.
        let pool = usage.pools.into_iter().find(|pool| pool.name == self.pool);
        let PoolStats { stored, max_avail } = pool.map(|pool| pool.stats).unwrap_or_default();
        let is_known = stored > 0 || max_avail > 0;
        let free = if is_known { max_avail } else { UNKNOWN_BYTES };
        Some(Space { total: stored.saturating_add(free), free, available: free, files: 0, files_free: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_pool_are_found() {
        let cache = SpaceCache::new("b".into());
        let figures = |stored: u64, free: u64| {
            let pool = |name: &str| {
                format!(
                    "{{\"name\": \"{name}\", \"id\": 1, \"stats\": {{\"stored\": {stored}, \"max_avail\": {free}}}}}"
                )
            };
            format!("{{\"stats\": {{}}, \"pools\": [{}, {}]}}", pool("a"), pool("b"))
        };
        let space = cache.parse(figures(10, 90).as_bytes()).expect("figures");
        assert_eq!((space.total, space.available), (100, 90));
        assert_eq!(cache.parse(figures(100, 0).as_bytes()).expect("figures").available, 0);
        assert_eq!(cache.parse(figures(0, 0).as_bytes()).expect("figures").available, UNKNOWN_BYTES);
        assert_eq!(cache.parse(b"{\"pools\": []}").expect("figures").available, UNKNOWN_BYTES);
        assert!(cache.parse(b"{\"pools\": [1]}").is_none() && cache.parse(b"nonsense").is_none());
    }
}
