//! Workloads for a file system whose disk is recorded. Each marks the operations that it begins and
//! those that are durable.

mod again;
mod big;
mod database;
mod history;
mod small;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fastrand::Rng;

use crate::marks::Marks;

/// A workload, by its name.
type Workload = fn(&WorkDir, Rng) -> Result<()>;

pub const ALL: [(&str, Workload); 6] = [
    ("small", small::run),
    ("history", history::run),
    ("checkpoints", history::run_long),
    ("big", big::run),
    ("sync", history::run_synchronous),
    ("database", database::run),
];

/// A workload's directory, and the output of its marks.
pub struct WorkDir {
    dir: PathBuf,
    marks: PathBuf,
}

impl WorkDir {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn marks(&self) -> Result<Marks> {
        Marks::open(&self.marks)
    }
}

/// Runs a workload.
pub fn run(name: &str, dir: &Path, marks: &Path, seed: u64) -> Result<()> {
    let workload = ALL.iter().find(|(known, _)| *known == name).map(|(_, workload)| *workload);
    // One is used only after a recovery, and one needs clusters.
    let workload = workload.or(match name {
        "again" => Some(again::run),
        "striped" => Some(small::run_striped),
        _ => None,
    });
    workload.context("there is no such workload")?(
        &WorkDir { dir: dir.into(), marks: marks.into() },
        Rng::with_seed(seed),
    )
}
