//! Checks of a policy before its use: decisions in typical situations.

use std::fmt;

use crate::engine::BalancerEngine;
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
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.situation, self.error)
    }
}

/// Runs the policy as each rank of clusters of one, two and four, idle and loaded, twice in a
/// row. Returns each failure once, with the first situation. `out_of_time` as for
/// [`BalancerEngine::decide`], for all decisions together.
pub fn check_policy(
    engine: &BalancerEngine,
    out_of_time: impl Fn() -> bool + Clone + 'static,
) -> Vec<PolicyFault> {
    let mut faults: Vec<PolicyFault> = Vec::new();
    for ranks in [1, 2, 4] {
        for whoami in 0..ranks {
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
                        faults.push(PolicyFault { situation, error });
                    }
                }
            }
        }
    }
    faults
}

fn situation(ranks: u16, whoami: u16, shape: LoadShape) -> MetricsSnapshot {
    let metrics = |rank: u16| {
        let part = match shape {
            LoadShape::Idle => 0.0,
            LoadShape::OneBusy => f64::from(u8::from(rank == whoami)),
            LoadShape::AllBusy => 1.0 + 0.3 * f64::from(rank),
        };
        let all = counters(part);
        RankMetrics {
            rank,
            at_ms: 0,
            cpu: 60.0 * part,
            mem: 30.0,
            q: 4.0 * part,
            req: 500.0 * part,
            auth: all,
            all,
        }
    };
    let ranks: Vec<RankMetrics> = (0..ranks).map(metrics).collect();
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
        moved_ms: None,
    }));
    MetricsSnapshot { whoami, ranks, fragments, ..Default::default() }
}

fn counters(part: f64) -> PopularityCounters {
    let [inode_reads, inode_writes, readdirs, fetches, stores] =
        [400.0, 800.0, 20.0, 40.0, 10.0].map(|count| count * part);
    PopularityCounters { inode_reads, inode_writes, readdirs, fetches, stores }
}
