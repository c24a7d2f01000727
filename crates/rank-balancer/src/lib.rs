//! Runs a cluster's balancing policy on the metrics of a metadata machine: what a driver does with
//! [`Io::Decide`](espalier_meta::Io::Decide). No I/O, clock or thread.
#![forbid(unsafe_code)]

use espalier_balancer::{
    BalancerEngine, BalancerPolicy, FragmentMetrics, MetricsSnapshot, MovePlan, PlannedMove,
    PopularityCounters, RankLoad, RankMetrics, SavedState,
};
use espalier_meta::{
    BalancerDecision, DecidedMove, DecisionRequest, KnownLoad, MoveCandidate, Popularity, Verdict,
};
use espalier_proto::Rank;

/// Share of the busiest rank's load below which a rank counts as idle. Ranks always have a little
/// load: parts of others' transactions, and attributes of the directories above.
const IDLE_SHARE: f64 = 0.02;

/// Time in ms that is added to the machine's clock, which may have just started: a rank without a
/// heartbeat has been silent for that long.
const PAST_MS: u64 = 3_600_000;

/// Number of ranks whose loads a reason to hold still includes.
const RANKS_SHOWN: usize = 8;

/// Decides what a rank moves. `out_of_time`: as for [`BalancerEngine::decide`].
pub fn decide(request: &DecisionRequest, out_of_time: impl Fn() -> bool + 'static) -> BalancerDecision {
    let policy = BalancerPolicy::new(request.policy.name.as_str(), &request.policy.text);
    decision(request, &BalancerEngine::new(policy).decide(&snapshot(request), out_of_time))
}

/// A plan as the machine carries it out.
pub fn decision(request: &DecisionRequest, plan: &MovePlan) -> BalancerDecision {
    let moved = |planned: &PlannedMove| {
        let candidate = request.candidates.get(planned.fragment)?;
        let (ino, scope) = (candidate.ino, candidate.scope);
        Some(DecidedMove { ino, scope, to: Rank(planned.to), why: planned.reason() })
    };
    let verdict = match &plan.holds_still {
        Some(reason) if plan.is_failure() => Verdict::Fails(reason.to_string()),
        Some(reason) => Verdict::Holds(format!("{reason}{}{}", passed_over(plan), loads(plan))),
        None => Verdict::Moves(plan.moves.iter().filter_map(moved).collect()),
    };
    let saved = serde_json::to_vec(&plan.state).unwrap_or_default();
    BalancerDecision { verdict, held_back: plan.held_back(), saved }
}

fn passed_over(plan: &MovePlan) -> String {
    let reasons: Vec<_> = plan.passed_over.reasons().collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) }
}

fn loads(plan: &MovePlan) -> String {
    let shown = |it: &RankLoad| format!("rank {} {:.1}", it.rank, it.load);
    let shown: Vec<_> = plan.loads.iter().take(RANKS_SHOWN).map(shown).collect();
    if shown.is_empty() { String::new() } else { format!("; loads: {}", shown.join(", ")) }
}

/// The inputs of a decision as the engine takes them. Fragments are named by their inodes.
pub fn snapshot(request: &DecisionRequest) -> MetricsSnapshot {
    let now_ms = request.now_ms + PAST_MS;
    let busiest = request.loads.iter().map(|known| known.load.all.load()).fold(0.0, f64::max);
    let ranks = request.loads.iter().map(|known| rank_metrics(known, now_ms, busiest * IDLE_SHARE));
    let fragment = |candidate: &MoveCandidate| FragmentMetrics {
        name: format!("inode {}", candidate.ino),
        parent: candidate.parent,
        counters: counters(&candidate.popularity),
        entries: candidate.entries,
        directories: candidate.directories,
        moved_ms: candidate.moved_ms.map(|at| at + PAST_MS),
    };
    MetricsSnapshot {
        now_ms,
        whoami: request.rank.0,
        ranks: ranks.collect(),
        fragments: request.candidates.iter().map(fragment).collect(),
        foreign: foreign(request),
        recent_moves_ms: request.recent_moves_ms.iter().map(|at| at + PAST_MS).collect(),
        time_series: Vec::new(),
        // Empty at first.
        state: serde_json::from_slice(&request.saved).unwrap_or(SavedState::default()),
        seed: request.now_ms,
    }
}

/// Operations that the deciding rank has counted for directories of other ranks.
fn foreign(request: &DecisionRequest) -> PopularityCounters {
    let own = request.loads.iter().find(|known| known.rank == request.rank);
    own.map_or_else(PopularityCounters::default, |KnownLoad { load, .. }| {
        counters(&load.all).less(&counters(&load.auth))
    })
}

fn rank_metrics(known: &KnownLoad, now_ms: u64, idle: f64) -> RankMetrics {
    let KnownLoad { rank, load, age_ms } = known;
    let measured = RankMetrics {
        rank: rank.0,
        at_ms: age_ms.map_or(0, |age| now_ms.saturating_sub(age)),
        cpu: load.cpu.get(),
        mem: load.mem.get(),
        ..RankMetrics::default()
    };
    if load.all.load() < idle {
        return measured;
    }
    RankMetrics {
        q: load.queue.get(),
        req: load.requests.get(),
        auth: counters(&load.auth),
        all: counters(&load.all),
        ..measured
    }
}

fn counters(of: &Popularity) -> PopularityCounters {
    let [inode_reads, inode_writes, readdirs, fetches, stores] = of.counts();
    PopularityCounters { inode_reads, inode_writes, readdirs, fetches, stores }
}

#[cfg(test)]
mod tests {
    use espalier_meta::{Milli, MoveScope, StoredPolicy};
    use espalier_proto::Ino;

    use super::*;

    /// Rank 0 of three decides; it has all load except `other` at rank 1.
    fn request(text: &str, other: u64) -> DecisionRequest {
        let own = Popularity { iwr: Milli(400_000), ..Popularity::default() };
        let load = |rank: u16, iwr: u64| {
            let auth = Popularity { iwr: Milli(iwr), ..Popularity::default() };
            let requests = Milli(if rank == 0 { 500_000 } else { 1000 });
            let load = espalier_meta::RankLoad { auth, all: auth, requests, ..Default::default() };
            KnownLoad { rank: Rank(rank), load, age_ms: Some(0) }
        };
        let candidate = |ino| MoveCandidate {
            ino: Ino(ino),
            scope: MoveScope::Subtree,
            parent: None,
            popularity: own,
            entries: 10,
            directories: 1,
            moved_ms: None,
        };
        DecisionRequest {
            now_ms: 1_000_000,
            rank: Rank(0),
            policy: StoredPolicy { name: "test".into(), text: text.into(), ..StoredPolicy::default() }.into(),
            loads: vec![load(0, 1_200_000), load(1, other), load(2, 0)],
            candidates: vec![candidate(7), candidate(8), candidate(9)],
            recent_moves_ms: vec![],
            saved: vec![],
        }
    }

    fn greedy(other: u64) -> Verdict {
        let policy = BalancerPolicy::shipped("greedy-spill").expect("it is shipped");
        decide(&request(policy.text(), other), || false).verdict
    }

    #[test]
    fn a_rank_with_little_load_counts_as_idle() {
        let Verdict::Moves(moves) = greedy(20_000) else { panic!() };
        assert!(moves.iter().all(|it| it.to == Rank(1) && it.why.contains("metadata load 400.0")));
        assert!(!moves.is_empty());
        let Verdict::Holds(why) = greedy(30_000) else { panic!() };
        assert_eq!(why, "`when` does not apply; loads: rank 0 1200.0, rank 1 30.0, rank 2 0.0");
    }

    #[test]
    fn a_rank_knows_its_load_by_directories_of_others() {
        let text = "function metaload() return IWR end \
            function when() WRstate(allmetaload - authmetaload) return false end function where() end";
        let mut request = request(text, 0);
        assert_eq!(decide(&request, || false).saved, b"0.0");
        request.loads[0].load.all.iwr = Milli(1_500_000);
        assert_eq!(decide(&request, || false).saved, b"300.0");
    }

    #[test]
    fn state_passes_to_the_next_decision_and_time_stops_a_policy() {
        let text = "function when() WRstate(RDstate() + 1) return RDstate() == 2 end \
            function where() targets[3] = 1000 end";
        let first = decide(&request(text, 0), || false);
        assert!(matches!(first.verdict, Verdict::Holds(_)));
        let next = DecisionRequest { saved: first.saved, ..request(text, 0) };
        let second = decide(&next, || false);
        assert!(matches!(&second.verdict, Verdict::Moves(moves) if moves[0].to == Rank(2)));
        let endless = "function when() while true do end end function where() end";
        let Verdict::Fails(why) = decide(&request(endless, 0), || true).verdict else { panic!() };
        assert_eq!(why, "the policy fails in when: it is out of time");
    }
}
