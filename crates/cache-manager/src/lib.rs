//! A key-value cache whose size a Lua policy manages (sevilla, 5.3).
//!
//! The policy's `when()` says whether to trim the cache now, its `howmuch()` sets
//! `servers[whoami]["cachesize"]` to the number of entries that stay; the least recently used ones
//! go. It runs in the sandbox of `espalier-balancer` and sees the size of the cache and, as
//! `timeseries()`, its recent accesses. If it fails, nothing is evicted.
//!
//! ```
//! use espalier_cache_manager::{ManagedCache, policies};
//!
//! let mut cache = ManagedCache::new("lru", &policies::lru(2));
//! for key in 0..5 {
//!     cache.insert(0, key, "value");
//! }
//! assert_eq!(cache.manage(1000, || false), Ok(3));
//! assert_eq!(cache.get(1000, 4), Some(&"value"));
//! assert_eq!(cache.get(1000, 1), None);
//! ```
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};

use espalier_balancer::mlua::Table;
use espalier_balancer::{Sandbox, SavedState, ScriptBudget, ScriptError};

pub mod policies;
mod replay;
pub mod trace;

pub use replay::{ReplayReport, replay, replay_observed};

/// Accesses that a policy sees, at most.
pub const ACCESSES_MAX: usize = 16_384;

/// Keys are numbers, in the order in which they first appear: policies that look for patterns
/// depend on it. Above 2^53, neighbours look the same to a policy.
pub type CacheKey = u64;

struct CachedValue<V> {
    value: V,
    last_used: u64,
}

/// A cache in memory.
pub struct ManagedCache<V> {
    name: String,
    policy: String,
    budget: ScriptBudget,
    state: SavedState,
    entries: HashMap<CacheKey, CachedValue<V>>,
    /// Keys by their last use, the oldest first.
    by_use: BTreeMap<u64, CacheKey>,
    uses: u64,
    /// Times in seconds, and keys.
    accesses: VecDeque<(f64, f64)>,
}

impl<V> ManagedCache<V> {
    /// `name` begins errors of the policy.
    pub fn new(name: &str, policy: &str) -> Self {
        Self {
            name: name.to_owned(),
            policy: policy.to_owned(),
            budget: ScriptBudget::default(),
            state: SavedState::default(),
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            accesses: VecDeque::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key. A hit is an access.
    pub fn get(&mut self, now_ms: u64, key: CacheKey) -> Option<&V> {
        let entry = self.entries.get_mut(&key)?;
        self.uses += 1;
        self.by_use.remove(&entry.last_used);
        self.by_use.insert(self.uses, key);
        entry.last_used = self.uses;
        record(&mut self.accesses, now_ms, key);
        Some(&entry.value)
    }

    /// Adds or replaces a value, which is an access.
    pub fn insert(&mut self, now_ms: u64, key: CacheKey, value: V) {
        self.uses += 1;
        if let Some(old) = self.entries.insert(key, CachedValue { value, last_used: self.uses }) {
            self.by_use.remove(&old.last_used);
        }
        self.by_use.insert(self.uses, key);
        record(&mut self.accesses, now_ms, key);
    }

    /// Runs the policy, which the thesis does once a second. Returns the number of evicted entries.
    /// `out_of_time` is the host's clock.
    ///
    /// # Errors
    /// The policy fails, or its result is not usable: nothing is evicted, and its state stays.
    pub fn manage(
        &mut self,
        now_ms: u64,
        out_of_time: impl Fn() -> bool + 'static,
    ) -> Result<usize, ScriptError> {
        let sandbox = Sandbox::new(&self.budget, self.state, now_ms, out_of_time)?;
        let size = self.decide(&sandbox)?;
        self.state = sandbox.state()?;
        let excess = size.map_or(0, |size| self.len().saturating_sub(size));
        for _ in 0..excess {
            if let Some((_, key)) = self.by_use.pop_first() {
                self.entries.remove(&key);
            }
        }
        if excess > 0 {
            self.accesses.retain(|(_, key)| self.entries.contains_key(&(*key as CacheKey)));
        }
        Ok(excess)
    }

    /// The number of entries that the policy lets stay, if it applies.
    fn decide(&mut self, sandbox: &Sandbox) -> Result<Option<usize>, ScriptError> {
        let environment = sandbox.environment();
        let explain = |error| sandbox.explain(error);
        let server = sandbox.lua().create_table_from([("cachesize", self.len())]).map_err(explain)?;
        let servers = sandbox.lua().create_sequence_from([&server]).map_err(explain)?;
        environment.raw_set("whoami", 1).map_err(explain)?;
        environment.raw_set("servers", servers).map_err(explain)?;
        sandbox.set_time_series(self.accesses.make_contiguous())?;
        sandbox.run(&self.name, &self.policy)?;
        if !sandbox.when()? {
            return Ok(None);
        }
        sandbox.call::<()>(&sandbox.hook("howmuch")?, ())?;
        entries_to_keep(&server).map(Some)
    }
}

fn entries_to_keep(server: &Table) -> Result<usize, ScriptError> {
    let size: Option<f64> = server.raw_get("cachesize").ok();
    let size = size.filter(|size| size.is_finite() && *size >= 0.0);
    let invalid = || ScriptError::Invalid("howmuch sets cachesize to no number of entries".into());
    size.map(|size| size as usize).ok_or_else(invalid)
}

fn record(accesses: &mut VecDeque<(f64, f64)>, now_ms: u64, key: CacheKey) {
    if accesses.len() == ACCESSES_MAX {
        accesses.pop_front();
    }
    accesses.push_back((now_ms as f64 / 1000.0, key as f64));
}
