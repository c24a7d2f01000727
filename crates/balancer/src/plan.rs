//! Outputs of a decision: moves with the numbers that they were decided by, or why nothing moves.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hooks::SCRIPT;
use crate::sandbox::{SavedState, ScriptError};
use crate::selector::FragmentSelector;

/// A rank's load: `MDSs[i]["load"]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLoad {
    pub rank: u16,
    pub load: f64,
}

/// A load that the policy sends to a rank, and what was picked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetPlan {
    pub rank: u16,
    /// The load that the policy gave, in the unit of [`RankLoad::load`].
    pub amount: f64,
    /// The same as metadata load of fragments.
    pub metaload: f64,
    /// Metadata load of all fragments that the selectors picked.
    pub picked: f64,
}

/// A fragment that moves, as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// Index into [`MetricsSnapshot::fragments`](crate::MetricsSnapshot::fragments).
    pub fragment: usize,
    pub name: String,
    pub to: u16,
    /// Number of directories in it, at least 1.
    pub directories: u64,
    pub selector: FragmentSelector,
    /// Metadata load of the fragment.
    pub metaload: f64,
    /// Loads before and after the move, as modelled with the moves before it in the plan.
    pub from_load: [f64; 2],
    pub to_load: [f64; 2],
    /// Requests that the busier of both ranks is relieved of until the fragment may move again.
    pub gain: f64,
    /// Requests that ranks could serve instead of moving the fragment.
    pub cost: f64,
}

/// Numbers of fragments that do not move, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Fragments that moved less than the dwell time ago.
    pub dwelling: usize,
    /// Fragments that are more popular than the target and have no fragments below.
    pub too_hot: usize,
    /// Fragments whose modelled gain does not exceed the modelled cost.
    pub unprofitable: usize,
    /// Fragments beyond the moves of the window.
    pub over_budget: usize,
    /// Target ranks without a recent heartbeat.
    pub unreachable: usize,
}

impl PassedOver {
    /// A phrase for each reason.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        let counts = [
            (self.dwelling, "moved too recently"),
            (self.too_hot, "more popular than the target and not divisible"),
            (self.unprofitable, "gain less than the move costs"),
            (self.over_budget, "beyond the moves of the window"),
            (self.unreachable, "for ranks without a recent heartbeat"),
        ];
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}"))
    }
}

/// Why nothing moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum HoldReason {
    /// The inputs are invalid.
    Snapshot { error: String },
    /// The policy failed.
    Script { hook: String, error: ScriptError },
    /// `when` returned false.
    When,
    /// `where` set no targets.
    NoTargets,
    /// The rank's fragments have no load.
    NoLoad,
    /// No picked fragment may move, or none was picked: see [`MovePlan::passed_over`].
    NoMoves,
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot { error } => write!(f, "the metrics are invalid: {error}"),
            Self::Script { hook, error } => write!(f, "the policy fails in {hook}: {error}"),
            Self::When => f.write_str("`when` does not apply"),
            Self::NoTargets => f.write_str("`where` names no targets"),
            Self::NoLoad => f.write_str("this rank's fragments have no load"),
            Self::NoMoves => f.write_str("no fragment may move"),
        }
    }
}

/// The result of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MovePlan {
    pub balancer: String,
    pub now_ms: u64,
    /// The rank that decides, and whose fragments move.
    pub rank: u16,
    /// In order of the ranks. Empty if the policy failed before.
    pub loads: Vec<RankLoad>,
    /// Metadata load of the rank's fragments.
    pub metaload: f64,
    pub targets: Vec<TargetPlan>,
    /// Empty exactly if `holds_still` has a reason.
    pub moves: Vec<PlannedMove>,
    pub passed_over: PassedOver,
    pub holds_still: Option<HoldReason>,
    /// The next decision's [`MetricsSnapshot::state`](crate::MetricsSnapshot::state).
    pub state: SavedState,
}

impl MovePlan {
    /// The moves that the engine's limits hold back, as a phrase; empty if there are none. Most
    /// decisions pass over fragments that gain too little; these count only if nothing moves.
    pub fn held_back(&self) -> String {
        let PassedOver { dwelling, unprofitable, over_budget, .. } = self.passed_over;
        let unprofitable = if self.moves.is_empty() { unprofitable } else { 0 };
        let limits = PassedOver { dwelling, unprofitable, over_budget, ..PassedOver::default() };
        limits.reasons().collect::<Vec<_>>().join(", ")
    }

    /// True if someone has to correct the policy or the metrics: to be logged as an error.
    pub fn is_failure(&self) -> bool {
        matches!(self.holds_still, Some(HoldReason::Snapshot { .. } | HoldReason::Script { .. }))
    }

    /// True if the policy's text cannot be loaded.
    pub(crate) fn is_failure_of_text(&self) -> bool {
        matches!(&self.holds_still, Some(HoldReason::Script { hook, .. }) if hook == SCRIPT)
    }
}

impl fmt::Display for MovePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holds_still {
            Some(reason) => write!(f, "{}: rank {} holds still: {reason}", self.balancer, self.rank)?,
            None => write!(f, "{}: rank {} moves {}", self.balancer, self.rank, self.moves.len())?,
        }
        for RankLoad { rank, load } in &self.loads {
            write!(f, "\n  load of rank {rank}: {load:.1}")?;
        }
        for target in &self.targets {
            let TargetPlan { rank, amount, metaload, picked } = target;
            write!(f, "\n  to rank {rank}: load {amount:.1}, which is metadata load {metaload:.1} ")?;
            write!(f, "of {:.1}; picked {picked:.1}", self.metaload)?;
        }
        for planned in &self.moves {
            write!(f, "\n  {planned}")?;
        }
        self.passed_over.reasons().try_for_each(|reason| write!(f, "\n  passed over: {reason}"))
    }
}

impl PlannedMove {
    /// The numbers that it was decided by.
    pub fn reason(&self) -> String {
        let ([from_before, from_after], [to_before, to_after]) = (self.from_load, self.to_load);
        let below = match self.directories {
            ..=1 => String::new(),
            directories => format!(" of {directories} directories"),
        };
        format!(
            "metadata load {:.1}{below}, picked by {}; loads {from_before:.1} -> {from_after:.1} here and \
             {to_before:.1} -> {to_after:.1} there; saves {:.0} requests for {:.0}",
            self.metaload,
            self.selector.name(),
            self.gain,
            self.cost
        )
    }
}

impl fmt::Display for PlannedMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "move fragment {} {} to rank {}: {}", self.fragment, self.name, self.to, self.reason())
    }
}
