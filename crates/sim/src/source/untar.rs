//! Unpacking of an archive of a source tree, by each process, with the system calls of GNU tar as
//! shown by strace. The archive is read from another file system.

use std::rc::Rc;

use espalier_proto::{SetAttr, SetTime, Time};
use rand::Rng;
use rand_distr::{Distribution, LogNormal};
use serde::Deserialize;

use super::create::begin;
use super::script::{FILE, ScriptStep, write};
use super::workload::{Member, range};
use super::{Op, OpenFlags, Target};
use crate::{Bytes, Seed};

/// Buffer size of tar in bytes.
const PIECE: u64 = 10_240;
/// Time of the archive.
const MTIME: Time = Time::new(1_000_000_000, 0);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Untar {
    /// Number of files in each process's archive.
    files: u32,
    /// Mean number of files per directory.
    files_per_directory: u32,
    /// Median file size. Sizes have a log-normal distribution, approximately like Linux's sources.
    median: Bytes,
    /// Standard deviation of the natural logarithm of the sizes.
    sigma: f64,
    /// Fraction of files that are symbolic links.
    links: f64,
    /// Archives with the same number contain the same tree.
    tree: u64,
}

impl Default for Untar {
    fn default() -> Self {
        Self { files: 1000, files_per_directory: 15, median: Bytes(5000), sigma: 1.4, links: 0.001, tree: 1 }
    }
}

#[derive(Clone, Copy, Debug)]
enum Leaf {
    File { bytes: u64 },
    Link,
}

/// Contents of an archive.
#[derive(Debug)]
struct ArchiveTree {
    /// Parent of each directory but the first; parents come first.
    parents: Vec<usize>,
    /// Files and links with the index of their directory.
    leaves: Vec<(usize, Leaf)>,
}

impl Untar {
    pub(super) fn check(&self) -> Result<(), String> {
        range("files", u64::from(self.files), 1, 1 << 24)?;
        range("files_per_directory", u64::from(self.files_per_directory), 1, 1 << 24)?;
        range("median", self.median.0, 1, 1 << 30)?;
        if !(0.0..=3.0).contains(&self.sigma) {
            return Err("`sigma` is 0 to 3".into());
        }
        if !(0.0..=1.0).contains(&self.links) {
            return Err("`links` is 0 to 1".into());
        }
        Ok(())
    }

    /// Directories near the root have more subdirectories: a tree of 75,000 files is about 10 deep.
    fn tree(&self) -> ArchiveTree {
        const MOST_BYTES: f64 = 1e9;
        let mut random = Seed(self.tree).random("tree", 0);
        let sizes = LogNormal::new((self.median.0 as f64).ln(), self.sigma).ok();
        let size = |random: &mut _| {
            sizes.map_or(self.median.0, |sizes| sizes.sample(random).clamp(0.0, MOST_BYTES) as u64)
        };
        let dirs = self.files.div_ceil(self.files_per_directory) as usize;
        let parents = (0..dirs).map(|dir| if dir == 0 { 0 } else { random.random_range(0..dir) }).collect();
        let mut leaves: Vec<_> = (0..self.files)
            .map(|_| {
                let is_link = random.random_bool(self.links);
                let leaf = if is_link { Leaf::Link } else { Leaf::File { bytes: size(&mut random) } };
                (random.random_range(0..dirs), leaf)
            })
            .collect();
        leaves.sort_by_key(|(dir, _)| *dir);
        ArchiveTree { parents, leaves }
    }

    pub(super) fn script(&self, member: &Member) -> impl Iterator<Item = ScriptStep> + use<> {
        let (tree, is_root) = (Rc::new(self.tree()), member.crew.is_root);
        let mut dirs: Vec<String> = Vec::with_capacity(tree.parents.len());
        for (number, parent) in tree.parents.iter().enumerate() {
            let path = if number == 0 { member.own() } else { format!("{}/d{number}", dirs[*parent]) };
            dirs.push(path);
        }
        let (dirs, all) = (Rc::new(dirs), Rc::clone(&tree));
        let made = (0..dirs.len()).flat_map({
            let dirs = Rc::clone(&dirs);
            move |number| unpack_directory(&all, &dirs, number, is_root)
        });
        begin(member)
            .chain(made)
            .chain((0..dirs.len()).rev().flat_map(move |dir| finish_directory(&dirs[dir], is_root)))
    }
}

/// Unpacks a directory without its subdirectories.
fn unpack_directory(tree: &ArchiveTree, dirs: &[String], number: usize, is_root: bool) -> Vec<ScriptStep> {
    let begin = tree.leaves.partition_point(|(dir, _)| *dir < number);
    let end = tree.leaves.partition_point(|(dir, _)| *dir <= number);
    let mut steps = vec![Op::MkDir { path: dirs[number].clone().into(), mode: 0o700 }.into()];
    for (at, (_, leaf)) in tree.leaves[begin..end].iter().enumerate() {
        match leaf {
            Leaf::File { bytes } => {
                steps.extend(unpack_file(format!("{}/f{at}", dirs[number]), *bytes, is_root))
            }
            Leaf::Link => {
                let path: Vec<u8> = format!("{}/l{at}", dirs[number]).into();
                let target = Target::Link(path.clone());
                steps.push(Op::Symlink { target: b"f0".into(), path }.into());
                steps.extend(attributes(is_root, target).map(ScriptStep::Do));
            }
        }
    }
    steps
}

fn unpack_file(path: String, bytes: u64, is_root: bool) -> impl Iterator<Item = ScriptStep> {
    let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
    let open = Op::Open { file: FILE, path: path.into(), flags, mode: 0o600 };
    std::iter::once(open)
        .chain(write(FILE, bytes, PIECE))
        .chain(attributes(is_root, Target::File(FILE)))
        .chain([chmod(Target::File(FILE), 0o644), Op::Close { file: FILE }])
        .map(ScriptStep::Do)
}

/// Sets the times of a directory after all its entries are made.
fn finish_directory(path: &str, is_root: bool) -> impl Iterator<Item = ScriptStep> + use<> {
    let chmod = chmod(Target::Path(path.into()), 0o755);
    attributes(is_root, Target::Link(path.into())).chain([chmod]).map(ScriptStep::Do)
}

/// Only the superuser can change owners.
fn attributes(is_root: bool, target: Target) -> impl Iterator<Item = Op> {
    let times = SetAttr { mtime: Some(SetTime::To(MTIME)), ..SetAttr::default() };
    let owner = SetAttr { uid: Some(0), gid: Some(0), ..SetAttr::default() };
    let owner = is_root.then(|| Op::SetAttr { target: target.clone(), set: owner });
    std::iter::once(Op::SetAttr { target, set: times }).chain(owner)
}

fn chmod(target: Target, perm: u32) -> Op {
    Op::SetAttr { target, set: SetAttr { perm: Some(perm), ..SetAttr::default() } }
}
