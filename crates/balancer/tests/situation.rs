//! Snapshots made by hand.

use espalier_balancer::{
    BalancerEngine, BalancerPolicy, FragmentMetrics, HoldReason, MetricsSnapshot, MovePlan,
    PopularityCounters, RankMetrics, ScriptError,
};

pub(crate) fn writes(inode_writes: f64) -> PopularityCounters {
    PopularityCounters { inode_writes, ..Default::default() }
}

/// Ranks with these loads, as inode writes; the first decides. It has one directory, whose
/// fragments have `parts` of its load.
pub(crate) fn cluster(loads: &[f64], parts: &[f64]) -> MetricsSnapshot {
    let metrics = |(rank, load): (u16, &f64)| RankMetrics {
        rank,
        at_ms: 100_000,
        cpu: 90.0,
        mem: 40.0,
        req: 1000.0,
        auth: writes(*load),
        all: writes(*load),
        ..Default::default()
    };
    let mut fragments =
        vec![FragmentMetrics { name: "/d".into(), counters: writes(loads[0]), ..Default::default() }];
    let part = |(n, load): (usize, &f64)| FragmentMetrics {
        name: format!("/d#{n}"),
        parent: Some(0),
        counters: writes(*load),
        entries: 100,
        ..Default::default()
    };
    fragments.extend(parts.iter().enumerate().map(part));
    MetricsSnapshot {
        now_ms: 100_000,
        ranks: (0..).zip(loads).map(metrics).collect(),
        fragments,
        ..Default::default()
    }
}

/// A rank with load 800 in eight equal fragments, and `ranks - 1` idle ones.
pub(crate) fn one_busy(ranks: usize) -> MetricsSnapshot {
    let mut loads = vec![0.0; ranks];
    loads[0] = 800.0;
    cluster(&loads, &[100.0; 8])
}

/// The same cluster as rank `whoami` sees it, with its own load in eight equal fragments.
pub(crate) fn seen_by(whoami: u16, loads: &[f64]) -> MetricsSnapshot {
    let own = loads[usize::from(whoami)];
    let mut snapshot = cluster(loads, &[own / 8.0; 8]);
    snapshot.whoami = whoami;
    snapshot.fragments[0].counters = writes(own);
    snapshot
}

pub(crate) fn engine(text: &str) -> BalancerEngine {
    BalancerEngine::new(BalancerPolicy::new("test.lua", text))
}

pub(crate) fn shipped(name: &str) -> BalancerEngine {
    BalancerEngine::new(BalancerPolicy::shipped(name).unwrap())
}

pub(crate) fn decide(engine: &BalancerEngine, snapshot: &MetricsSnapshot) -> MovePlan {
    let plan = engine.decide(snapshot, || false);
    assert_eq!(plan.moves.is_empty(), plan.holds_still.is_some(), "{plan}");
    plan
}

/// A policy that always sends half to the next rank, with some text before.
pub(crate) fn half_to_next(text: &str) -> String {
    format!(
        "function metaload() return IWR end\nfunction mdsload(i) return MDSs[i].all end\n\
         function when() return true end\nfunction where() targets[whoami + 1] = authmetaload / 2 end\n\
         howmuch = {{ \"half\" }}\n{text}"
    )
}

/// Rank and number of fragments of each target.
pub(crate) fn destinations(plan: &MovePlan) -> Vec<(u16, usize)> {
    let count = |rank| plan.moves.iter().filter(|planned| planned.to == rank).count();
    plan.targets.iter().map(|target| (target.rank, count(target.rank))).collect()
}

/// The hook that failed, and how.
pub(crate) fn failure(plan: &MovePlan) -> (&str, &ScriptError) {
    match &plan.holds_still {
        Some(HoldReason::Script { hook, error }) => (hook, error),
        _ => panic!("it did not fail: {plan}"),
    }
}
