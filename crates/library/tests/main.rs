//! What programs meet besides what calls do (`library.rs`, `ranks.rs`): data servers, deep trees, silence, races, tracing.
#![allow(clippy::unwrap_used)]

mod common;
mod data;
mod deep;
mod quiet;
mod race;
mod trace;
