//! The decision engine: the policy proposes, the engine keeps its moves within limits.
//!
//! A decision is a function of its inputs. If anything about the policy is wrong, nothing moves
//! and the saved state stays; there is no other policy to fall back to.

use serde::{Deserialize, Serialize};

use crate::hooks::{HookError, Hooks};
use crate::plan::{HoldReason, MovePlan, PassedOver, PlannedMove, RankLoad, TargetPlan};
use crate::policy::BalancerPolicy;
use crate::sandbox::ScriptBudget;
use crate::snapshot::{MetricsSnapshot, PopularityCounters, RankMetrics};
use crate::walk::{FragmentWalk, PickedFragment};

/// Limits of all policies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MoveLimits {
    /// Most moves that a rank begins in a window.
    pub moves_per_window: usize,
    pub window_ms: u64,
    /// A fragment that has moved stays for so long, and so does everything above and below it.
    pub dwell_ms: u64,
    /// A rank whose last heartbeat is older receives nothing.
    pub heartbeat_ms: u64,
    /// Cost of the move of a directory in requests that could be served instead, as measured
    /// (docs/balancing.md): messages of both ranks, and requests of clients that look for it.
    pub cost_per_move: f64,
    /// Cost of each directory entry that moves, with its file.
    pub cost_per_entry: f64,
}

impl Default for MoveLimits {
    fn default() -> Self {
        Self {
            moves_per_window: 16,
            window_ms: 60_000,
            dwell_ms: 60_000,
            heartbeat_ms: 30_000,
            cost_per_move: 40.0,
            cost_per_entry: 0.5,
        }
    }
}

/// A policy with its limits.
#[derive(Clone, Debug)]
pub struct BalancerEngine {
    pub policy: BalancerPolicy,
    pub limits: MoveLimits,
    pub budget: ScriptBudget,
}

impl BalancerEngine {
    pub fn new(policy: BalancerPolicy) -> Self {
        Self { policy, limits: MoveLimits::default(), budget: ScriptBudget::default() }
    }

    /// Decides what the rank `snapshot.whoami` moves. `out_of_time` is the driver's clock: from the
    /// first `true` on, the policy is stopped.
    pub fn decide(&self, snapshot: &MetricsSnapshot, out_of_time: impl Fn() -> bool + 'static) -> MovePlan {
        let mut plan = MovePlan {
            balancer: self.policy.name().to_owned(),
            now_ms: snapshot.now_ms,
            rank: snapshot.whoami,
            loads: Vec::new(),
            metaload: 0.0,
            targets: Vec::new(),
            moves: Vec::new(),
            passed_over: PassedOver::default(),
            holds_still: None,
            state: snapshot.state,
        };
        plan.holds_still = match snapshot.validate() {
            Err(error) => Some(HoldReason::Snapshot { error: error.to_string() }),
            Ok(()) => {
                self.run(snapshot, out_of_time, &mut plan).unwrap_or_else(|HookError { hook, error }| {
                    plan.moves.clear();
                    Some(HoldReason::Script { hook: hook.to_owned(), error })
                })
            }
        };
        plan
    }

    /// Fills in the plan. Its state changes last, when nothing can fail.
    fn run(
        &self,
        snapshot: &MetricsSnapshot,
        out_of_time: impl Fn() -> bool + 'static,
        plan: &mut MovePlan,
    ) -> Result<Option<HoldReason>, HookError> {
        let mut ranks: Vec<&RankMetrics> = snapshot.ranks.iter().collect();
        ranks.sort_unstable_by_key(|metrics| metrics.rank);
        let hooks = Hooks::load(&self.policy, snapshot, &ranks, &self.budget, out_of_time)?;
        let loads = hooks.rank_loads(&ranks)?;
        let loads = ranks.iter().zip(loads).map(|(metrics, load)| RankLoad { rank: metrics.rank, load });
        plan.loads = loads.collect();
        let is_recent = |moved_ms: u64| snapshot.now_ms < moved_ms.saturating_add(self.limits.dwell_ms);
        let mut walk = FragmentWalk::new(&snapshot.fragments, &hooks, is_recent);
        plan.metaload = walk.root_load()?;
        let foreign = hooks.metaloads([&snapshot.foreign])?[0];
        hooks.set_own(&root_counters(snapshot), plan.metaload, foreign)?;
        let reason = if !hooks.when()? {
            Some(HoldReason::When)
        } else {
            self.fill(snapshot, &ranks, &hooks, &mut walk, plan)?
        };
        plan.state = hooks.state()?;
        Ok(reason)
    }

    /// Decides the moves, if `when` applies.
    fn fill(
        &self,
        snapshot: &MetricsSnapshot,
        ranks: &[&RankMetrics],
        hooks: &Hooks,
        walk: &mut FragmentWalk<'_>,
        plan: &mut MovePlan,
    ) -> Result<Option<HoldReason>, HookError> {
        let targets = hooks.targets(ranks.len())?;
        let selectors = hooks.selectors()?;
        if targets.is_empty() {
            return Ok(Some(HoldReason::NoTargets));
        }
        if plan.metaload == 0.0 {
            return Ok(Some(HoldReason::NoLoad));
        }
        let mut model = MoveModel::new(&self.limits, snapshot, ranks, plan);
        walk.load_min = plan.metaload * self.limits.cost_per_move / model.requests;
        for target in targets {
            let metrics = ranks[target.index];
            if snapshot.now_ms > metrics.at_ms.saturating_add(self.limits.heartbeat_ms) {
                plan.passed_over.unreachable += 1;
                continue;
            }
            let metaload = (target.amount / model.load_per_metaload).min(plan.metaload);
            let picked = walk.pick(metaload, &selectors)?;
            let sum = picked.iter().map(|fragment| fragment.load).sum();
            plan.targets.push(TargetPlan {
                rank: metrics.rank,
                amount: target.amount,
                metaload,
                picked: sum,
            });
            model.consider(picked, target.index, plan);
        }
        walk.count_passed_over(&mut plan.passed_over);
        Ok(plan.moves.is_empty().then_some(HoldReason::NoMoves))
    }
}

/// Counters of everything that the rank owns.
pub(crate) fn root_counters(snapshot: &MetricsSnapshot) -> PopularityCounters {
    let mut sum = PopularityCounters::default();
    let roots = snapshot.fragments.iter().filter(|fragment| fragment.parent.is_none());
    roots.for_each(|fragment| sum.add(&fragment.counters));
    sum
}

/// Models what moves gain and cost, one after the other.
struct MoveModel<'a> {
    limits: &'a MoveLimits,
    snapshot: &'a MetricsSnapshot,
    /// Loads of the ranks after the moves so far.
    loads: Vec<f64>,
    ranks: Vec<u16>,
    own: usize,
    /// Requests of the deciding rank until a moved fragment may move again.
    requests: f64,
    /// The policy's targets are loads of ranks, fragments have metadata loads.
    load_per_metaload: f64,
    moves_left: usize,
}

impl<'a> MoveModel<'a> {
    fn new(
        limits: &'a MoveLimits,
        snapshot: &'a MetricsSnapshot,
        ranks: &[&RankMetrics],
        plan: &MovePlan,
    ) -> Self {
        let loads: Vec<f64> = plan.loads.iter().map(|rank| rank.load).collect();
        let own = ranks.iter().position(|metrics| metrics.rank == plan.rank).unwrap_or_default();
        let scale = loads[own] / plan.metaload;
        let is_in_window = |at_ms: &&u64| snapshot.now_ms < at_ms.saturating_add(limits.window_ms);
        let recent = snapshot.recent_moves_ms.iter().filter(is_in_window).count();
        Self {
            limits,
            snapshot,
            own,
            requests: ranks[own].req * limits.dwell_ms as f64 / 1000.0,
            load_per_metaload: if scale.is_finite() && scale > 0.0 { scale } else { 1.0 },
            moves_left: limits.moves_per_window.saturating_sub(recent),
            ranks: ranks.iter().map(|metrics| metrics.rank).collect(),
            loads,
        }
    }

    /// Adds the picked fragments to the plan that are worth it, the most popular first.
    fn consider(&mut self, mut picked: Vec<PickedFragment>, to: usize, plan: &mut MovePlan) {
        picked.sort_by(|a, b| b.load.total_cmp(&a.load).then(a.index.cmp(&b.index)));
        for PickedFragment { index, load, selector } in picked {
            let fragment = &self.snapshot.fragments[index];
            let moved = load * self.load_per_metaload;
            let (from_load, to_load) = (self.loads[self.own], self.loads[to]);
            let after = [(from_load - moved).max(0.0), to_load + moved];
            let busier = from_load.max(to_load);
            // No number if nothing has load.
            let relief = ((busier - after[0].max(after[1])) / busier).max(0.0);
            let gain = relief * self.requests;
            let directories = fragment.directories.max(1);
            let cost = self.limits.cost_per_move * directories as f64
                + self.limits.cost_per_entry * fragment.entries as f64;
            if gain <= cost {
                plan.passed_over.unprofitable += 1;
                continue;
            }
            if self.moves_left == 0 {
                plan.passed_over.over_budget += 1;
                continue;
            }
            self.moves_left -= 1;
            [self.loads[self.own], self.loads[to]] = after;
            plan.moves.push(PlannedMove {
                fragment: index,
                name: fragment.name.clone(),
                to: self.ranks[to],
                directories,
                selector,
                metaload: load,
                from_load: [from_load, after[0]],
                to_load: [to_load, after[1]],
                gain,
                cost,
            });
        }
    }
}
