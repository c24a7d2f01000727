//! Checks of a policy before its use: decisions in typical situations.

use std::fmt;

use crate::engine::{BalancerEngine, MoveLimits, root_counters};
use crate::snapshot::{FragmentMetrics, MetricsSnapshot, PopularityCounters, RankMetrics};

/// How load is distributed in a situation.
#[derive(Clone, Copy)]
enum LoadShape {
    Idle,
    OneBusy,
    AllBusy,
}

/// A failure of a policy in one of the situations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFault {
    /// Number of ranks, the one that decides, and which ones have load.
    pub situation: String,
    pub error: String,
    /// The text cannot be loaded, so the policy decides in no situation.
    pub is_of_text: bool,
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.situation, self.error)
    }
}

/// Number of ranks up to which each of them decides in a check; in larger clusters some do.
const RANKS_CHECKED: u16 = 16;

/// Runs the policy as the ranks of clusters of these sizes, idle and loaded, twice in a row; then
/// in turn with the others, to find one that moves most of the load at each tick. Returns each
/// failure once, with the first situation. `out_of_time` as for [`BalancerEngine::decide`], for
/// all decisions together.
pub fn check_policy(
    engine: &BalancerEngine,
    sizes: &[u16],
    out_of_time: impl Fn() -> bool + Clone + 'static,
) -> Vec<PolicyFault> {
    let mut faults: Vec<PolicyFault> = Vec::new();
    for &ranks in sizes {
        for whoami in (0..ranks).step_by(ranks.div_ceil(RANKS_CHECKED).into()).chain(ranks.checked_sub(1)) {
            for (shape, shown) in [
                (LoadShape::Idle, "all idle"),
                (LoadShape::OneBusy, "it has all load"),
                (LoadShape::AllBusy, "all have load"),
            ] {
                let mut snapshot = situation(ranks, whoami, shape);
                for _ in 0..2 {
                    let plan = engine.decide(&snapshot, out_of_time.clone());
                    snapshot.state = plan.state;
                    let reason = plan.holds_still.as_ref().filter(|_| plan.is_failure());
                    let Some(error) = reason.map(ToString::to_string) else { continue };
                    if faults.iter().all(|fault| fault.error != error) {
                        let situation = format!("rank {whoami} of {ranks}, {shown}");
                        let is_of_text = plan.is_failure_of_text();
                        faults.push(PolicyFault { situation, error, is_of_text });
                    }
                }
            }
        }
    }
    let restless =
        sizes.iter().filter(|_| faults.is_empty()).find_map(|ranks| restless(engine, *ranks, &out_of_time));
    faults.extend(restless);
    faults
}

/// Number of ticks under the same load, and the part of a cluster's load that is moved at each of
/// them by a policy that never comes to rest.
const TICKS: u32 = 8;
const RESTLESS_PART: f64 = 0.5;
/// Time between two ticks in ms.
const TICK_MS: u64 = 10_000;

/// Finds a policy that picks most of the cluster's load to move at each tick, although the load
/// stays the same: all ranks decide on what the moves before have left, without limits.
fn restless(
    engine: &BalancerEngine,
    ranks: u16,
    out_of_time: &(impl Fn() -> bool + Clone + 'static),
) -> Option<PolicyFault> {
    // No fragment has a time of its last move, so that none dwells.
    let free =
        MoveLimits { moves_per_window: usize::MAX, cost_per_move: 0.0, cost_per_entry: 0.0, ..engine.limits };
    let engine = BalancerEngine { limits: free, ..engine.clone() };
    if ranks < 2 {
        return None;
    }
    for (shape, shown) in [(LoadShape::OneBusy, "one has all load"), (LoadShape::AllBusy, "all have load")] {
        let mut snapshots: Vec<_> =
            (0..ranks).map(|rank| leaves(situation(ranks, rank, shape), rank)).collect();
        let mut least = f64::INFINITY;
        for tick in 1..=TICKS {
            least = least.min(part_moved(&engine, &mut snapshots, u64::from(tick) * TICK_MS, out_of_time));
        }
        if least >= RESTLESS_PART {
            let situation = format!("{ranks} ranks, {shown}, which stays the same");
            let error =
                format!("it moves {:.0} % of the load or more at each of {TICKS} ticks", least * 100.0);
            return Some(PolicyFault { situation, error, is_of_text: false });
        }
    }
    None
}

/// The situation of a rank with directories that are not below one another. Only rank 0 has load if
/// one rank has all.
fn leaves(mut snapshot: MetricsSnapshot, rank: u16) -> MetricsSnapshot {
    snapshot.fragments.remove(0);
    snapshot.fragments.iter_mut().for_each(|fragment| fragment.parent = None);
    if snapshot.ranks.iter().filter(|metrics| !metrics.auth.is_zero()).count() == 1 && rank > 0 {
        snapshot.fragments.clear();
    }
    snapshot
}

/// A tick of all ranks. Returns the part of the load that they pick to move; what relieves them
/// moves.
fn part_moved(
    engine: &BalancerEngine,
    snapshots: &mut [MetricsSnapshot],
    now_ms: u64,
    out_of_time: &(impl Fn() -> bool + Clone + 'static),
) -> f64 {
    let metrics: Vec<RankMetrics> = snapshots.iter().map(|snapshot| measured(snapshot, now_ms)).collect();
    let [mut picked, mut all] = [0.0; 2];
    let mut moved = Vec::new();
    for snapshot in snapshots.iter_mut() {
        (snapshot.now_ms, snapshot.seed) = (now_ms, now_ms);
        snapshot.ranks.clone_from(&metrics);
        let plan = engine.decide(snapshot, out_of_time.clone());
        snapshot.state = plan.state;
        all += plan.metaload;
        picked += plan.targets.iter().map(|target| target.picked).sum::<f64>();
        for planned in plan.moves {
            moved.push((planned.to, std::mem::take(&mut snapshot.fragments[planned.fragment])));
        }
        snapshot.fragments.retain(|fragment| !fragment.counters.is_zero());
    }
    for (to, fragment) in moved {
        snapshots[usize::from(to)].fragments.push(fragment);
    }
    if all > 0.0 { picked / all } else { 0.0 }
}

/// The metrics of a rank with these fragments.
fn measured(snapshot: &MetricsSnapshot, now_ms: u64) -> RankMetrics {
    let all = root_counters(snapshot);
    let part = all.inode_writes / BUSY.inode_writes;
    metrics(snapshot.whoami, now_ms, part, all)
}

fn metrics(rank: u16, at_ms: u64, part: f64, all: PopularityCounters) -> RankMetrics {
    RankMetrics { rank, at_ms, cpu: 60.0 * part, mem: 30.0, q: 4.0 * part, req: 500.0 * part, auth: all, all }
}

fn situation(ranks: u16, whoami: u16, shape: LoadShape) -> MetricsSnapshot {
    let of_rank = |rank: u16| {
        let part = match shape {
            LoadShape::Idle => 0.0,
            LoadShape::OneBusy => f64::from(u8::from(rank == whoami)),
            LoadShape::AllBusy => 1.0 + 0.3 * f64::from(rank),
        };
        metrics(rank, 0, part, counters(part))
    };
    let ranks: Vec<RankMetrics> = (0..ranks).map(of_rank).collect();
    let own = ranks[usize::from(whoami)].auth;
    let share = |parts: f64| {
        let [inode_reads, inode_writes, readdirs, fetches, stores] = own.array().map(|count| count / parts);
        PopularityCounters { inode_reads, inode_writes, readdirs, fetches, stores }
    };
    let mut fragments =
        vec![FragmentMetrics { name: "/".into(), counters: own, entries: 8000, ..Default::default() }];
    fragments.extend((0..8).map(|n| FragmentMetrics {
        name: format!("/directory{n}"),
        parent: Some(0),
        counters: share(8.0),
        entries: 1000,
        ..Default::default()
    }));
    MetricsSnapshot { whoami, ranks, fragments, ..Default::default() }
}

/// Operations on a rank with load 1.
const BUSY: PopularityCounters = PopularityCounters {
    inode_reads: 400.0,
    inode_writes: 800.0,
    readdirs: 20.0,
    fetches: 40.0,
    stores: 10.0,
};

fn counters(part: f64) -> PopularityCounters {
    let [inode_reads, inode_writes, readdirs, fetches, stores] = BUSY.array().map(|count| count * part);
    PopularityCounters { inode_reads, inode_writes, readdirs, fetches, stores }
}
