//! Balancers of the ranks: sets the scenario's policy, and collects what it decides.

use espalier_balancer::MovePlan;
use espalier_meta::{BalancerCommand, Input, StoredPolicy, encode};
use espalier_proto::{Caller, ClientId, Ino, Request, RequestId, Time, XattrMode};

use crate::balancer::{BalancerMove, BalancerReport};
use crate::time::Nanos;
use crate::world::World;
use crate::world::end::RunStage;
use crate::world::event::SimEvent;

/// The client that sets the policy. It has no node.
pub const ADMINISTRATOR: ClientId = ClientId(99);
/// The attribute of the root that sets the policy.
const ATTRIBUTE: &[u8] = b"user.espalier.balancer";
/// Interval between attempts to set the policy.
const RETRY: Nanos = Nanos(1_000_000_000);

/// Decisions of all balancers of a run.
#[derive(Debug, Default)]
pub struct Decisions {
    /// The root's rank has the policy.
    pub is_set: bool,
    pub report: BalancerReport,
    pub moves: Vec<BalancerMove>,
}

impl Decisions {
    pub fn add(&mut self, now: Nanos, plan: &MovePlan) {
        self.report.decisions += 1;
        self.report.moves += plan.moves.len() as u64;
        if plan.is_failure() {
            self.report.failures += 1;
            self.report.error = plan.holds_still.as_ref().map(ToString::to_string);
        }
        self.moves.extend(plan.moves.iter().map(|planned| BalancerMove {
            time: now.as_secs_f64(),
            from: plan.rank,
            to: planned.to,
            directory: planned.name.clone(),
            reason: planned.reason(),
        }));
    }
}

impl World<'_> {
    /// Sets the policy at the root's rank, unless that has it.
    pub(super) fn set_balancer(&mut self) {
        let (Some(policy), false) = (&self.balancer, self.fabric.decisions.is_set) else { return };
        if self.stage != RunStage::Works {
            return;
        }
        let every_s = u32::try_from(self.scenario.balancer.every.as_millis() / 1000).unwrap_or(u32::MAX);
        let command = BalancerCommand::Set(StoredPolicy {
            version: 1,
            name: policy.name().into(),
            text: policy.text().into(),
            every_s,
            who: "the scenario".into(),
            why: "its [balancer]".into(),
            time: Time::default(),
        });
        let (name, value) = (ATTRIBUTE.into(), encode(&command).into());
        let request =
            Request::SetXattr { ino: Ino::ROOT, name, value, mode: XattrMode::Any, kill_sgid: false };
        let root = Ino::ROOT.rank();
        if let Some(server) = self.servers.iter_mut().find(|server| server.rank == root && server.is_up()) {
            let id = RequestId(self.events);
            server.input(
                &mut self.fabric,
                Input::Connect { client: ADMINISTRATOR, leases: false, resumes: false },
            );
            let (from, below, caller) = (ADMINISTRATOR, id, Caller::SERVER);
            server.input(
                &mut self.fabric,
                Input::Request { from, id, below, follows: Vec::new(), caller, request },
            );
        }
        self.fabric.after(RETRY, SimEvent::SetBalancer);
    }

    /// The policy that the scenario's ranks are given.
    pub(super) fn begin_balancer(&mut self) {
        if let Some(policy) = &self.balancer {
            self.fabric.decisions.report.policy = policy.name().into();
            self.fabric.after(self.scenario.balancer.from, SimEvent::SetBalancer);
        }
    }
}
