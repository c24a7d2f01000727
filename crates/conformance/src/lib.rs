//! POSIX tests for any directory of any file system, by system calls only.
//!
//! The tests do not know Espalier: a case that fails on ext4 is wrong. `cases` contains the cases,
//! one file per subject, and their list; `model` compares random operations with an in-memory
//! reference; `race` runs concurrent operations and searches for an order that explains their
//! results; in `pieces` threads share a big file, and in `follow` they read what one of them
//! writes.

mod dir;
mod macros;
mod map;
mod process;
mod sys;

pub mod cases;
pub mod follow;
pub mod model;
pub mod pieces;
pub mod race;
pub mod runner;

pub use dir::{Dir, ResourceLimits};
pub use process::{CaseResult, Failure};
