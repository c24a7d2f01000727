//! Balancing of sequencers: the balancer's engine on metrics of hosts and sequencers.

use espalier_balancer::{
    BalancerEngine, FragmentMetrics, MetricsSnapshot, MovePlan, PopularityCounters, RankMetrics, SavedState,
};

/// The load of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostLoad {
    /// Time of the measurement in milliseconds.
    pub at_ms: u64,
    /// Requests for numbers a second.
    pub requests: f64,
}

/// The load of a sequencer at the host that decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequencerLoad {
    pub log: String,
    /// Requests for numbers a second.
    pub requests: f64,
    /// Time at which it was handed over to this host.
    pub moved_ms: Option<u64>,
}

/// Decides for host `whoami`, an index into `hosts`. The plan's `fragment` is an index into
/// `sequencers`, and its `to` one into `hosts`. Policies see a host as a rank with `req`, and a
/// sequencer as a fragment with `IRD`, in requests a second.
pub fn plan_moves(
    engine: &BalancerEngine,
    now_ms: u64,
    whoami: u16,
    hosts: &[HostLoad],
    sequencers: &[SequencerLoad],
    state: SavedState,
    out_of_time: impl Fn() -> bool + 'static,
) -> MovePlan {
    let reads = |requests| PopularityCounters { inode_reads: requests, ..PopularityCounters::default() };
    let rank = |(rank, host): (usize, &HostLoad)| RankMetrics {
        rank: u16::try_from(rank).unwrap_or(u16::MAX),
        at_ms: host.at_ms,
        req: host.requests,
        auth: reads(host.requests),
        all: reads(host.requests),
        ..RankMetrics::default()
    };
    let fragment = |sequencer: &SequencerLoad| FragmentMetrics {
        name: sequencer.log.clone(),
        counters: reads(sequencer.requests),
        moved_ms: sequencer.moved_ms,
        ..FragmentMetrics::default()
    };
    let snapshot = MetricsSnapshot {
        now_ms,
        whoami,
        ranks: hosts.iter().enumerate().map(rank).collect(),
        fragments: sequencers.iter().map(fragment).collect(),
        state,
        seed: now_ms,
        ..MetricsSnapshot::default()
    };
    engine.decide(&snapshot, out_of_time)
}
