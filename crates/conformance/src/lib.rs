//! POSIX tests that run on any directory of any file system, through system calls only.
//!
//! Nothing here knows Espalier: a case that fails on ext4 is a wrong case. `cases` holds the tests, one file
//! per subject and one table of all; `model` drives random operations against a reference in memory; `race` has threads do
//! things at the same time and looks for an order that explains what they saw; in `pieces` they share a big file, and in `follow` they
//! read what one of them writes.

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

pub use dir::{Dir, Limits};
pub use process::{Failure, Outcome};
