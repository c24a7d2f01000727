//! Time of a decision over many fragments: `cargo run --release --example tick`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use espalier_balancer::{
    BalancerEngine, BalancerPolicy, FragmentMetrics, MetricsSnapshot, MovePlan, PopularityCounters,
    RankMetrics,
};

const FRAGMENTS: u32 = 100_000;
const RANKS: u16 = 16;
const RUNS: usize = 11;

/// Fragments in directories of `per_directory`; each has load.
fn snapshot(per_directory: u32) -> MetricsSnapshot {
    let counters = |inode_writes: f64| PopularityCounters {
        inode_reads: 2.0 * inode_writes,
        inode_writes,
        readdirs: 1.0,
        fetches: 1.0,
        stores: 1.0,
    };
    let load = |n: u32| f64::from(n % 97 + 1);
    let directories = FRAGMENTS.div_ceil(per_directory + 1);
    let mut fragments: Vec<FragmentMetrics> = (0..directories)
        .map(|n| FragmentMetrics { name: format!("/{n}"), entries: 1000, ..Default::default() })
        .collect();
    for n in directories..FRAGMENTS {
        let parent = n % directories;
        let counters = counters(load(n));
        fragments[parent as usize].counters.add(&counters);
        let name = format!("/{parent}#{n}");
        fragments.push(FragmentMetrics {
            name,
            parent: Some(parent),
            counters,
            entries: 10,
            ..Default::default()
        });
    }
    let mut total = PopularityCounters::default();
    fragments[..directories as usize].iter().for_each(|fragment| total.add(&fragment.counters));
    let metrics = |rank: u16| {
        let all = if rank == 0 { total } else { PopularityCounters::default() };
        RankMetrics { rank, cpu: 90.0, req: 5000.0, auth: all, all, ..Default::default() }
    };
    MetricsSnapshot { ranks: (0..RANKS).map(metrics).collect(), fragments, ..Default::default() }
}

/// Median time of a decision.
fn time(engine: &BalancerEngine, snapshot: &MetricsSnapshot) -> (Duration, MovePlan) {
    let mut runs: Vec<(Duration, MovePlan)> = (0..RUNS)
        .map(|_| {
            let begin = Instant::now();
            let plan = engine.decide(snapshot, || false);
            (begin.elapsed(), plan)
        })
        .collect();
    runs.sort_by_key(|(time, _)| *time);
    runs.swap_remove(RUNS / 2)
}

fn main() {
    println!("{FRAGMENTS} fragments with load, {RANKS} ranks, median of {RUNS}");
    for per_directory in [10, 1000, FRAGMENTS - 1] {
        let snapshot = snapshot(per_directory);
        for policy in BalancerPolicy::all_shipped() {
            let (time, plan) = time(&BalancerEngine::new(policy), &snapshot);
            assert!(!plan.is_failure(), "{plan}");
            let (name, ms, moves) = (&plan.balancer, time.as_secs_f64() * 1e3, plan.moves.len());
            println!("{per_directory:>6} a directory  {name:<26}{ms:>8.1} ms  {moves} moves");
        }
    }
}
