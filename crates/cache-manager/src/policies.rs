//! The cache policies of the thesis, as Lua texts.

/// Never evicts: ParSplice without cache management.
pub const UNLIMITED: &str = include_str!("../policies/unlimited.lua");

/// Keeps what belongs to the current group of accesses (Fig. 5.15).
pub const FANS: &str = include_str!("../policies/fans.lua");

/// At most `entries` (sevilla, 5.3.2).
pub fn lru(entries: usize) -> String {
    format!("local ENTRIES = {entries}\n{}", include_str!("../policies/lru.lua"))
}

/// At most `entries` from the moment on when there have been more than `burst` (Fig. 5.16).
pub fn multi_policy(entries: usize, burst: usize) -> String {
    format!("local ENTRIES, BURST = {entries}, {burst}\n{}", include_str!("../policies/multi-policy.lua"))
}
