//! Balancers of metadata servers: the table `[balancer]` of a scenario, and what balancers did.

use std::path::Path;

use espalier_balancer::{BalancerPolicy, MoveLimits};
use serde::{Deserialize, Serialize};

use crate::scenario::ScenarioError;
use crate::time::Nanos;

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// The table `[balancer]`. Without a policy no rank balances.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalancerSettings {
    /// A shipped policy, or a Lua file.
    pub policy: Option<String>,
    /// The text of a policy, instead of `policy`.
    pub script: Option<String>,
    /// Interval between two decisions of a rank.
    pub every: Nanos,
    /// Time at which the policy is set; ranks decide for the first time within some three seconds.
    pub from: Nanos,
    /// The limits have the names of [`MoveLimits`].
    pub moves: usize,
    pub window: Nanos,
    pub dwell: Nanos,
    pub heartbeat: Nanos,
    pub cost_per_move: f64,
    pub cost_per_entry: f64,
}

impl Default for BalancerSettings {
    fn default() -> Self {
        let limits = MoveLimits::default();
        Self {
            policy: None,
            script: None,
            every: Nanos::from_millis(10_000),
            from: Nanos::ZERO,
            moves: limits.moves_per_window,
            window: Nanos::from_millis(limits.window_ms),
            dwell: Nanos::from_millis(limits.dwell_ms),
            heartbeat: Nanos::from_millis(limits.heartbeat_ms),
            cost_per_move: limits.cost_per_move,
            cost_per_entry: limits.cost_per_entry,
        }
    }
}

impl BalancerSettings {
    pub fn is_on(&self) -> bool {
        self.policy.is_some() || self.script.is_some()
    }

    /// Checks the ranges and combinations of values.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        let is_cost = |cost: f64| (0.0..=1e9).contains(&cost);
        let checks = [
            (self.policy.is_none() || self.script.is_none(), "policy", "left out with `script`"),
            (
                self.every > Nanos::ZERO && self.every.0.is_multiple_of(SECOND),
                "every",
                "a number of seconds, 1 at least",
            ),
            (is_cost(self.cost_per_move), "cost_per_move", "0 to 10^9"),
            (is_cost(self.cost_per_entry), "cost_per_entry", "0 to 10^9"),
        ];
        match checks.into_iter().find(|(fits, ..)| !fits) {
            Some((_, key, wanted)) => Err(ScenarioError::Bad {
                key: format!("[balancer] {key}"),
                wanted: format!("it is {wanted}"),
            }),
            None => Ok(()),
        }
    }

    /// The policy; `None` if there is none. `dir`: the scenario's directory, to which file names
    /// are relative.
    ///
    /// # Errors
    /// [`ScenarioError::Read`]: the policy is not shipped, and no file.
    pub fn policy(&self, dir: &Path) -> Result<Option<BalancerPolicy>, ScenarioError> {
        let name = match (&self.policy, &self.script) {
            (None, None) => return Ok(None),
            (_, Some(script)) => return Ok(Some(BalancerPolicy::new("script", script))),
            (Some(name), None) => name,
        };
        if let Some(shipped) = BalancerPolicy::shipped(name) {
            return Ok(Some(shipped));
        }
        let path = dir.join(name);
        let text = std::fs::read_to_string(&path).map_err(|cause| ScenarioError::Read { path, cause })?;
        Ok(Some(BalancerPolicy::new(name.as_str(), &text)))
    }

    pub fn limits(&self) -> MoveLimits {
        MoveLimits {
            moves_per_window: self.moves,
            window_ms: self.window.as_millis(),
            dwell_ms: self.dwell.as_millis(),
            heartbeat_ms: self.heartbeat.as_millis(),
            cost_per_move: self.cost_per_move,
            cost_per_entry: self.cost_per_entry,
        }
    }
}

/// A move that a rank's balancer has decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BalancerMove {
    /// Seconds since the start of the run.
    pub time: f64,
    pub from: u16,
    pub to: u16,
    /// Path of the directory, or its inode number.
    pub directory: String,
    /// The numbers that it was decided by.
    pub reason: String,
}

/// Summary of all balancers of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BalancerReport {
    pub policy: String,
    pub decisions: u64,
    pub moves: u64,
    /// Decisions in which the policy failed, so that nothing moved, and the last such error.
    pub failures: u64,
    pub error: Option<String>,
}
