//! Programmable load balancing (Mantle; sevilla, chapters 4 and 5.1): Malacology's interface of
//! that name (docs/malacology.md).
//!
//! A policy is a Lua file that says when a rank sheds load, where to and how much of it
//! ([`BalancerPolicy`]). A host gives the metrics of its ranks ([`MetricsSnapshot`]) and gets the
//! fragments to move, each with the numbers that it was decided by ([`MovePlan`]):
//!
//! ```
//! use espalier_balancer::{BalancerEngine, BalancerPolicy, MetricsSnapshot};
//!
//! let policy = BalancerPolicy::shipped("greedy-spill").expect("it is shipped");
//! let engine = BalancerEngine::new(policy);
//! let snapshot: MetricsSnapshot = serde_json::from_str(
//!     r#"{"now_ms": 0, "whoami": 0, "fragments": [],
//!         "ranks": [{"rank": 0, "at_ms": 0}, {"rank": 1, "at_ms": 0}]}"#,
//! )?;
//! let plan = engine.decide(&snapshot, || false);
//! assert!(plan.moves.is_empty());
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! Policies are not trusted. They run in a [`Sandbox`], and the engine's [`MoveLimits`] hold for
//! all of them. There is no I/O, clock or thread: time comes as an argument. docs/balancing.md
//! teaches to write a policy.
#![forbid(unsafe_code)]

mod check;
mod engine;
mod hooks;
mod listing;
mod plan;
mod policy;
mod sandbox;
mod selector;
mod snapshot;
mod walk;

/// [`Sandbox`] has types of it.
pub use mlua;

pub use check::{PolicyFault, check_policy};
pub use engine::{BalancerEngine, MoveLimits};
pub use plan::{HoldReason, MovePlan, PassedOver, PlannedMove, RankLoad, TargetPlan};
pub use policy::BalancerPolicy;
pub use sandbox::{SCRIPT_BYTES_MAX, Sandbox, SavedState, ScriptBudget, ScriptError};
pub use selector::{FragmentSelection, FragmentSelector, closest};
pub use snapshot::{
    FragmentMetrics, MetricsSnapshot, PopularityCounters, RANKS_MAX, RankMetrics, SnapshotError,
};
