//! Operations in sequence with few syncs: the state found must be the one after some operation.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::Result;
use fastrand::Rng;

use super::WorkDir;
use crate::history::HistoryOp;
use crate::marks::{HISTORY, Mark, Marks, SeededBytes};

/// Most files stay below a strip, since bytes of larger ones are not ordered.
const MAX_BYTES: usize = 24_000;
/// The kernel splits a write that does not begin at a page.
const PAGE: u64 = 4096;
/// Suffix of the names of links.
const LINK: &str = "-link";

pub fn run(place: &WorkDir, rng: Rng) -> Result<()> {
    HistoryWalk::new(place, rng)?.steps(400, Some(40))
}

/// Enough changes for many checkpoints of a journal of 4 MiB.
pub fn run_long(place: &WorkDir, rng: Rng) -> Result<()> {
    HistoryWalk::new(place, rng)?.steps(4000, Some(200))
}

/// On a mount with `sync`: every operation that has returned is durable.
pub fn run_synchronous(place: &WorkDir, mut rng: Rng) -> Result<()> {
    HistoryWalk::new(place, rng.fork())?.steps(150, None)?;
    super::big::run_synchronous(place, rng)
}

struct HistoryWalk<'a> {
    place: &'a WorkDir,
    marks: Marks,
    rng: Rng,
    files: BTreeSet<String>,
    dirs: Vec<String>,
}

impl<'a> HistoryWalk<'a> {
    fn new(place: &'a WorkDir, rng: Rng) -> Result<Self> {
        Ok(Self { place, marks: place.marks()?, rng, files: BTreeSet::new(), dirs: Vec::new() })
    }

    /// Executes some operations, and syncs after about every `sync`th; with `None` each is durable.
    fn steps(&mut self, count: usize, sync: Option<usize>) -> Result<()> {
        for _ in 0..count {
            for op in self.choose() {
                self.marks.say(&Mark::Do(op.clone()))?;
                self.execute(&op)?;
                if sync.is_none() {
                    self.marks.say(&Mark::Synced)?;
                }
            }
            if sync.is_some_and(|sync| self.rng.usize(..sync) == 0) {
                // A sync makes everything before it durable.
                File::open(&self.place.dir)?.sync_all()?;
                self.marks.say(&Mark::Synced)?;
            }
        }
        Ok(())
    }

    fn choose(&mut self) -> Vec<HistoryOp> {
        let known = (!self.files.is_empty())
            .then(|| self.files.iter().nth(self.rng.usize(..self.files.len())).cloned())
            .flatten();
        let name = self.name();
        let bytes = SeededBytes::new(self.rng.u64(1..), 0, self.rng.usize(1..MAX_BYTES));
        match (self.rng.u8(..10), known) {
            (0, _) if self.dirs.len() < 8 => {
                let path = format!("{HISTORY}d{}", self.dirs.len());
                self.dirs.push(path.clone());
                vec![HistoryOp::MkDir(path)]
            }
            // Not for links: renaming one name of a file over another does nothing.
            (1 | 2, Some(from)) if from != name && !is_link(&from) => {
                self.files.remove(&from);
                self.files.insert(name.clone());
                vec![HistoryOp::Rename(from, name)]
            }
            (3 | 4, Some(path)) => {
                self.files.remove(&path);
                vec![HistoryOp::Unlink(path)]
            }
            (5, Some(from)) if self.files.insert(format!("{name}{LINK}")) => {
                vec![HistoryOp::Link(from, format!("{name}{LINK}"))]
            }
            (6, Some(path)) => vec![HistoryOp::Truncate(path, self.rng.usize(..2 * MAX_BYTES))],
            (7 | 8, Some(path)) => {
                vec![HistoryOp::Write(path, SeededBytes { offset: PAGE * self.rng.u64(..6), ..bytes })]
            }
            _ if self.files.insert(name.clone()) => {
                vec![HistoryOp::Create(name.clone()), HistoryOp::Write(name, bytes)]
            }
            _ => vec![HistoryOp::Write(name, bytes)],
        }
    }

    fn name(&mut self) -> String {
        let number = self.rng.u8(..60);
        match self.rng.choice(&self.dirs) {
            Some(dir) => format!("{dir}/f{number}"),
            None => format!("{HISTORY}f{number}"),
        }
    }

    fn execute(&self, op: &HistoryOp) -> Result<()> {
        let path = |path: &str| self.place.path(path);
        let open = |name: &str| File::options().write(true).open(path(name));
        match op {
            HistoryOp::MkDir(name) => fs::create_dir(path(name))?,
            HistoryOp::Create(name) => drop(File::create_new(path(name))?),
            HistoryOp::Write(name, bytes) => open(name)?.write_all_at(&bytes.make(), bytes.offset)?,
            HistoryOp::Truncate(name, size) => open(name)?.set_len(*size as u64)?,
            HistoryOp::Rename(from, to) => fs::rename(path(from), path(to))?,
            HistoryOp::Link(from, to) => fs::hard_link(path(from), path(to))?,
            HistoryOp::Unlink(name) => fs::remove_file(path(name))?,
        }
        Ok(())
    }
}

fn is_link(name: &str) -> bool {
    name.ends_with(LINK)
}
