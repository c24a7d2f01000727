//! `fsck` of usage: recomputes the usage below each directory.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{FileType, Ino, Rank};

use crate::rank::{UsageDeltas, uncounted};
use crate::record::{Body, Inode};
use crate::state::FxMap;
use crate::usage::Usage;

#[derive(Debug)]
pub(crate) struct Recount {
    /// The rank whose records follow.
    rank: Rank,
    dirs: FxMap<Ino, DirUsage>,
    /// Files in the inode table.
    files: FxMap<Ino, FileUsage>,
    /// Names of these files.
    remotes: Vec<RemoteName>,
}

#[derive(Debug, Default)]
struct DirUsage {
    /// The usage in its record.
    recorded: Usage,
    /// The usage of its own entries, without what is below them.
    within: Usage,
    below: Usage,
    /// The directory that counts it: the one that contains it, or its parent at another rank.
    above: Option<Ino>,
}

/// The name of a file in an inode table.
#[derive(Debug)]
struct RemoteName {
    ino: Ino,
    dir: Ino,
    /// The file is at the rank of the name.
    is_local: bool,
}

#[derive(Debug)]
struct FileUsage {
    weight: Usage,
    names: Vec<(Ino, u32)>,
}

impl Recount {
    pub(crate) fn new(rank: Rank) -> Self {
        Self { rank, dirs: FxMap::default(), files: FxMap::default(), remotes: Vec::new() }
    }

    /// Adds an inode that is in its only name's dentry.
    pub(crate) fn primary(&mut self, dir: Ino, inode: &Inode) {
        let within = &mut self.dirs.entry(dir).or_default().within;
        if inode.is_dir() {
            within.dirs += 1;
            self.dirs.entry(inode.ino).or_default().above = Some(dir);
        } else {
            *within = within.plus(inode.weight());
        }
    }

    pub(crate) fn remote(&mut self, dir: Ino, ino: Ino) {
        self.remotes.push(RemoteName { ino, dir, is_local: true });
    }

    /// Adds a name whose inode is at another rank.
    pub(crate) fn remote_rank_entry(&mut self, dir: Ino, ino: Ino, kind: FileType) {
        if kind == FileType::Directory {
            self.dirs.entry(dir).or_default().within.dirs += 1;
        } else {
            self.remotes.push(RemoteName { ino, dir, is_local: false });
        }
    }

    /// Adds another rank's records.
    pub(crate) fn add(&mut self, other: Self) {
        self.dirs.extend(other.dirs);
        self.files.extend(other.files);
        self.remotes.extend(other.remotes);
    }

    /// Subtracts usage deltas that have not been counted. Keys: the rank that has sent them, and
    /// the receiver.
    pub(crate) fn leave_out(&mut self, usage_deltas: &BTreeMap<(Rank, Rank), UsageDeltas>) {
        for (dir, usage) in uncounted(usage_deltas) {
            if let Some(dir) = self.dirs.get_mut(&dir) {
                dir.within = dir.within.minus(usage);
            }
        }
    }

    /// Adds an inode, wherever it is.
    pub(crate) fn inode(&mut self, inode: &Inode, in_table: bool) {
        match &inode.body {
            Body::Directory(directory) => {
                let dir = self.dirs.entry(inode.ino).or_default();
                dir.recorded = directory.usage;
                if in_table && inode.ino != Ino::ROOT {
                    dir.above = Some(directory.parent);
                }
            }
            _ if in_table => {
                let mut names = inode.rare.names.as_deref().cloned().unwrap_or_default();
                names.retain(|(dir, _)| dir.rank() == self.rank);
                names.sort_unstable();
                self.files.insert(inode.ino, FileUsage { weight: inode.weight(), names });
            }
            _ => {}
        }
    }

    /// The findings, in no order.
    pub(crate) fn finish(mut self) -> Vec<(Ino, String)> {
        let mut found = Vec::new();
        let mut names: FxMap<Ino, BTreeMap<Ino, u32>> = FxMap::default();
        for RemoteName { ino, dir, is_local } in core::mem::take(&mut self.remotes) {
            if is_local {
                *names.entry(ino).or_default().entry(dir).or_default() += 1;
            }
            if let Some(file) = self.files.get(&ino) {
                let within = &mut self.dirs.entry(dir).or_default().within;
                *within = within.plus(file.weight);
            }
        }
        for (ino, file) in &self.files {
            let there: Vec<_> = names.remove(ino).unwrap_or_default().into_iter().collect();
            if there != file.names {
                found.push((*ino, format!("has names in {there:?}, but records {:?}", file.names)));
            }
        }
        self.sum_up();
        for (ino, dir) in &self.dirs {
            if dir.recorded != dir.below {
                found.push((
                    *ino,
                    format!("counts {:?} below it, and there is {:?}", dir.recorded, dir.below),
                ));
            }
        }
        found
    }

    fn sum_up(&mut self) {
        let inos: Vec<Ino> = self.dirs.keys().copied().collect();
        for ino in inos {
            let Some(within) = self.dirs.get(&ino).map(|dir| dir.within) else { continue };
            let mut above = Some(ino);
            // More steps than directories mean a cycle.
            for _ in 0..=self.dirs.len() {
                let Some(dir) = above.and_then(|ino| self.dirs.get_mut(&ino)) else { break };
                dir.below = dir.below.plus(within);
                above = dir.above;
            }
        }
    }
}
