//! A sequence of operations, and the check which of its states a directory has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::SplitAsciiWhitespace;

use anyhow::{Context, Result, bail, ensure};

use crate::marks::{HISTORY, SeededBytes, next};

/// An operation on paths relative to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryOp {
    MkDir(String),
    Create(String),
    Write(String, SeededBytes),
    Truncate(String, usize),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
}

impl HistoryOp {
    pub(crate) fn parse(words: &mut SplitAsciiWhitespace<'_>) -> Result<Self> {
        let (kind, path) = (next(words)?, next(words)?.to_owned());
        Ok(match kind {
            "mkdir" => Self::MkDir(path),
            "create" => Self::Create(path),
            "write" => Self::Write(path, SeededBytes::parse(words)?),
            "truncate" => Self::Truncate(path, next(words)?.parse()?),
            "rename" => Self::Rename(path, next(words)?.into()),
            "link" => Self::Link(path, next(words)?.into()),
            "unlink" => Self::Unlink(path),
            other => bail!("there are no operations `{other}`"),
        })
    }
}

impl fmt::Display for HistoryOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MkDir(path) => write!(f, "mkdir {path}"),
            Self::Create(path) => write!(f, "create {path}"),
            Self::Write(path, bytes) => write!(f, "write {path} {bytes}"),
            Self::Truncate(path, size) => write!(f, "truncate {path} {size}"),
            Self::Rename(from, to) => write!(f, "rename {from} {to}"),
            Self::Link(from, to) => write!(f, "link {from} {to}"),
            Self::Unlink(path) => write!(f, "unlink {path}"),
        }
    }
}

/// A tree of paths: each a directory, or the number of a file.
#[derive(Default)]
struct PathTree {
    paths: BTreeMap<String, Option<usize>>,
    files: Vec<Vec<u8>>,
}

#[derive(Default)]
pub struct History {
    ops: Vec<HistoryOp>,
    /// This many operations are known to be durable.
    durable: usize,
}

impl History {
    pub fn begun(&mut self, op: HistoryOp) {
        self.ops.push(op);
    }

    pub fn synced(&mut self) {
        self.durable = self.ops.len();
    }

    /// The number of operations after which the history has the directory's state.
    pub fn check(&self, dir: &Path) -> Result<Option<(usize, usize)>> {
        if self.ops.is_empty() {
            return Ok(None);
        }
        let mut found = BTreeMap::new();
        snapshot(dir, "", &mut found)?;
        let mut tree = PathTree::default();
        let mut differ: BTreeSet<String> = found.keys().cloned().collect();
        let mut best = (0, differ.clone());
        let mut last = differ.is_empty().then_some(0);
        for (at, op) in self.ops.iter().enumerate() {
            for path in tree.apply(op)? {
                let same = tree.get(&path) == found.get(&path).map(Option::as_deref);
                if same {
                    differ.remove(&path)
                } else {
                    differ.insert(path)
                };
            }
            if differ.is_empty() {
                last = Some(at + 1);
            }
            if at + 1 >= self.durable && (best.0 < self.durable || differ.len() < best.1.len()) {
                best = (at + 1, differ.clone());
            }
        }
        let (ops, durable) = (self.ops.len(), self.durable);
        ensure!(
            last.is_some_and(|last| last >= durable),
            "the history has {ops} operations, {durable} of them durable; the state is that after {last:?}, and most like \
             that after {}, except {:?}",
            best.0,
            best.1.iter().take(5).collect::<Vec<_>>()
        );
        Ok(last.map(|last| (last, ops)))
    }
}

impl PathTree {
    /// The entry at a path: a directory, or a file's bytes.
    fn get(&self, path: &str) -> Option<Option<&[u8]>> {
        self.paths.get(path).map(|file| file.map(|file| self.files[file].as_slice()))
    }

    /// Executes an operation. Returns the paths that have changed.
    fn apply(&mut self, op: &HistoryOp) -> Result<Vec<String>> {
        match op {
            HistoryOp::MkDir(path) => drop(self.paths.insert(path.clone(), None)),
            HistoryOp::Create(path) => {
                self.paths.insert(path.clone(), Some(self.files.len()));
                self.files.push(Vec::new());
            }
            HistoryOp::Write(path, bytes) => {
                let file = self.file(path)?;
                let (from, to) = (bytes.offset as usize, bytes.offset as usize + bytes.length);
                let contents = &mut self.files[file];
                contents.resize(contents.len().max(to), 0);
                contents[from..to].copy_from_slice(&bytes.make());
                return Ok(self.names(file));
            }
            HistoryOp::Truncate(path, size) => {
                let file = self.file(path)?;
                self.files[file].resize(*size, 0);
                return Ok(self.names(file));
            }
            HistoryOp::Rename(from, to) => {
                let file = self.file(from)?;
                self.paths.remove(from);
                self.paths.insert(to.clone(), Some(file));
                return Ok(vec![from.clone(), to.clone()]);
            }
            HistoryOp::Link(from, to) => drop(self.paths.insert(to.clone(), Some(self.file(from)?))),
            HistoryOp::Unlink(path) => drop(self.paths.remove(path)),
        }
        let (HistoryOp::MkDir(path)
        | HistoryOp::Create(path)
        | HistoryOp::Link(_, path)
        | HistoryOp::Unlink(path)) = op
        else {
            return Ok(Vec::new());
        };
        Ok(vec![path.clone()])
    }

    fn file(&self, path: &str) -> Result<usize> {
        self.paths.get(path).copied().flatten().with_context(|| format!("the history has no file {path}"))
    }

    fn names(&self, file: usize) -> Vec<String> {
        let names = self.paths.iter().filter(|(_, found)| **found == Some(file));
        names.map(|(path, _)| path.clone()).collect()
    }
}

/// Everything of a history below a directory.
fn snapshot(dir: &Path, prefix: &str, found: &mut BTreeMap<String, Option<Vec<u8>>>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if prefix.is_empty() && !name.starts_with(HISTORY) {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            snapshot(&entry.path(), &format!("{path}/"), found)?;
            found.insert(path, None);
        } else {
            found.insert(path, Some(std::fs::read(entry.path())?));
        }
    }
    Ok(())
}
