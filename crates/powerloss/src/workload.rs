//! What is done to a file system while its disk is recorded. Each workload says what it begins and what it has been told
//! is durable.

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
type Workload = fn(&Place, Rng) -> Result<()>;

pub const ALL: [(&str, Workload); 6] = [
    ("small", small::run),
    ("history", history::run),
    ("checkpoints", history::run_long),
    ("big", big::run),
    ("sync", history::run_synchronous),
    ("database", database::run),
];

/// Where a workload works, and where it says what it claims.
pub struct Place {
    dir: PathBuf,
    marks: PathBuf,
}

impl Place {
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
    // One that is not for itself, but for what follows a recovery; and one of clusters.
    let workload = workload.or(match name {
        "again" => Some(again::run),
        "striped" => Some(small::run_striped),
        _ => None,
    });
    workload.context("there is no such workload")?(
        &Place { dir: dir.into(), marks: marks.into() },
        Rng::with_seed(seed),
    )
}
