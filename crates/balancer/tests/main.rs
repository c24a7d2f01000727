//! Tests of balancing policies and of the engine's limits.
#![allow(clippy::unwrap_used)]

mod hostile;
mod limits;
mod listings;
mod policies;
mod selectors;
mod situation;
mod snapshots;
