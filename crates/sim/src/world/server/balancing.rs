//! Runs the balancing policy for a metadata machine, and sets it there.

use espalier_balancer::{BalancerEngine, BalancerPolicy, MovePlan};
use espalier_meta::{BalancerDecision, DecisionRequest, Input, Verdict};
use espalier_rank_balancer::{decision, snapshot};

use crate::world::balance::ADMINISTRATOR;
use crate::world::fabric::Fabric;
use crate::world::server::SimServer;

/// Number of directories whose paths explanations can have.
const MOST_PATHS: usize = 1000;

impl SimServer {
    /// Runs the policy for the machine.
    pub(super) fn decide(&self, fabric: &mut Fabric<'_>, request: &DecisionRequest) -> BalancerDecision {
        if !fabric.observer.lets_balance() {
            return BalancerDecision {
                verdict: Verdict::Holds("the run is examined".into()),
                held_back: String::new(),
                saved: request.saved.clone(),
            };
        }
        let policy = BalancerPolicy::new(request.policy.name.as_str(), &request.policy.text);
        let engine = BalancerEngine { limits: self.limits, ..BalancerEngine::new(policy) };
        let mut snapshot = snapshot(request);
        fabric.mutator.balances(&mut snapshot);
        let mut plan = engine.decide(&snapshot, || false);
        if !plan.moves.is_empty() {
            self.name_directories(request, &mut plan);
        }
        fabric.decisions.add(fabric.now, &plan);
        fabric.observer.balanced(fabric.now, request, &plan);
        decision(request, &plan)
    }

    /// Names the fragments of a plan by their paths, as far as the rank knows these.
    fn name_directories(&self, request: &DecisionRequest, plan: &mut MovePlan) {
        let Some(report) = self.meta().map(|meta| meta.load_report(MOST_PATHS)) else { return };
        for planned in &mut plan.moves {
            let ino = request.candidates[planned.fragment].ino;
            let dir = report.directories.iter().find(|dir| dir.ino == ino);
            if let Some(path) = dir.and_then(|dir| dir.path.clone()) {
                planned.name = path;
            }
        }
    }

    /// The root's rank has answered the administrator.
    pub(super) fn administered(&mut self, fabric: &mut Fabric<'_>, is_set: bool) {
        fabric.decisions.is_set |= is_set;
        let now = self.now(fabric, 0);
        if let Some(session_layer) = &mut self.session_layer {
            session_layer.input(now, Input::Leave { client: ADMINISTRATOR });
        }
    }
}
