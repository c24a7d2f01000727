//! The phases of mdtest, as in `espalier bench`: each process has a tree of directories (`-u`) that
//! contains its items. Files are written at creation (`-w`).

use serde::Deserialize;

use super::Op;
use super::create::{after_barrier, begin};
use super::script::{ScriptStep, make_file, read_file, script};
use super::workload::{Member, range};
use crate::Bytes;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MdTest {
    /// Number of directories, and of files, per process.
    files: u64,
    /// File size.
    bytes: Bytes,
    /// Subdirectories of each directory of the tree (`-b`).
    branch: u64,
    /// Levels of subdirectories (`-z`).
    depth: u32,
}

impl Default for MdTest {
    fn default() -> Self {
        Self { files: 1000, bytes: Bytes(8192), branch: 4, depth: 2 }
    }
}

/// Most directories of a tree.
const MOST: u64 = 1 << 20;

impl MdTest {
    pub(super) fn check(&self) -> Result<(), String> {
        range("files", self.files, 1, 1 << 32)?;
        range("bytes", self.bytes.0, 0, 1 << 40)?;
        range("branch", self.branch, 1, MOST)?;
        let levels = (0..=self.depth).map(|level| self.branch.checked_pow(level));
        let count = levels.take(64).try_fold(0u64, |sum, level| sum.checked_add(level?));
        if self.depth > 62 || count.is_none_or(|count| count > MOST) {
            return Err(format!("`branch` and `depth` make a tree of at most {MOST} directories"));
        }
        Ok(())
    }

    pub(super) fn script(&self, member: &Member) -> impl Iterator<Item = ScriptStep> + use<> {
        let Self { files, bytes, .. } = *self;
        let tree = self.tree(&format!("{}.tree", member.own()));
        let dirs = tree.clone();
        let each = move |kind: &'static str| {
            let tree = tree.clone();
            (0..files).map(move |number| format!("{}/{kind}{number}", tree[number as usize % tree.len()]))
        };
        begin(member)
            .chain(dirs.clone().into_iter().map(|dir| Op::mkdir(dir).into()))
            .chain(after_barrier(each("dir").map(Op::mkdir)))
            .chain(after_barrier(each("dir").map(Op::stat)))
            .chain(after_barrier(each("dir").map(Op::rmdir)))
            .chain(script([ScriptStep::Barrier]))
            .chain(each("file").flat_map(move |path| make_file(path, bytes.0, 1 << 20)))
            .chain(after_barrier(each("file").map(Op::stat)))
            .chain(script([ScriptStep::Barrier]))
            .chain(each("file").flat_map(move |path| read_file(path, bytes.0.clamp(1, 1 << 20))))
            .chain(after_barrier(each("file").map(Op::unlink)))
            .chain(after_barrier(dirs.into_iter().rev().map(Op::rmdir)))
    }

    /// The directories of a tree, parents first.
    fn tree(&self, root: &str) -> Vec<String> {
        let mut all = vec![root.to_string()];
        let mut parents = 0..1;
        for _ in 0..self.depth {
            let begin = all.len();
            for parent in parents {
                for child in 0..self.branch {
                    all.push(format!("{}/{child}", all[parent]));
                }
            }
            parents = begin..all.len();
        }
        all
    }
}
