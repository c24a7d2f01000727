//! Policies for sequencers, as Lua texts.

/// Sends sequencers to the least loaded host. `share`: part of the load that moves, the migration
/// unit (sevilla, 5.2.3), 0.5 for half of it, 1 for all. `ticks`: decisions for which a host must
/// be overloaded before it sends anything, and rests afterwards (back-off, 5.2.4).
pub fn sequencers(share: f64, ticks: u32) -> String {
    format!("local SHARE, TICKS = {share}, {ticks}\n{}", include_str!("../policies/sequencers.lua"))
}
