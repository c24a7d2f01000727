//! Report of the load, of all ranks and of the hottest directories, for `espalier balancer
//! metrics`.

use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Rank};
use serde::{Deserialize, Serialize};

use super::Popularity;
use super::counters::{Weighted, add, load_of};
use super::heartbeat::KnownLoad;
use crate::machine::{Cx, Meta};
use crate::rank::{PeerAnswer, Question};
use crate::record::{Body, encode};
use crate::state::FxMap;
use crate::step::{Step, Stop, Wait};

/// The load of a directory or fragment at one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryLoad {
    pub rank: Rank,
    /// The record that is counted, and its directory, as programs see it.
    pub ino: Ino,
    pub dir: Ino,
    /// Its path, or its directory's. `None`: part of it is not in memory, or at another rank.
    pub path: Option<String>,
    pub entries: u64,
    pub own: Popularity,
    /// Counts of the directory and all below it that has counters at this rank.
    pub subtree: Popularity,
}

/// The input of a balancer (sevilla Table 4.2). The attribute `user.espalier.load` of the root has
/// it in the encoding of [`encode`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// By rank.
    pub ranks: Vec<KnownLoad>,
    /// The directories with the highest loads of their own, highest first.
    pub directories: Vec<DirectoryLoad>,
}

/// Number of directories in the report of a cluster.
const SHOWN: u32 = 64;
/// Maximum number of directories of one rank in a report.
const MAX_SHOWN: usize = 1000;
/// Maximum size in bytes of an extended attribute's value, as on Linux.
const MAX_VALUE: usize = 65536;

impl Meta {
    /// The loads of all ranks: this rank's own, and the last heartbeats of the others.
    pub fn known_loads(&self) -> Vec<KnownLoad> {
        let now_ms = self.metrics.counters.now_ms();
        let known = |rank| match rank {
            rank if rank == self.config.rank => KnownLoad { rank, load: self.own_load(), age_ms: Some(0) },
            rank => self.metrics.heartbeats.known(rank, now_ms),
        };
        (0..self.config.ranks).map(|rank| known(Rank(rank))).collect()
    }

    /// The loads of all ranks, and `most` of the hottest directories of this one. Takes about 0.4
    /// microseconds for each directory with counters.
    pub fn load_report(&self, most: usize) -> LoadReport {
        LoadReport { ranks: self.known_loads(), directories: self.hottest(most) }
    }

    /// The decayed counts of a directory without what is below it.
    pub(crate) fn popularity_of(&self, dir: Ino) -> Popularity {
        let counters = &self.metrics.counters;
        counters.directories.get(&dir).map(|own| counters.popularity(own)).unwrap_or_default()
    }

    /// The directory records of this rank with the highest loads of their own, highest first.
    pub(crate) fn hottest_records(&self, most: usize) -> Vec<(Ino, Popularity)> {
        if most == 0 {
            return Vec::new();
        }
        let counters = self.metrics.counters.directories.iter();
        let mut hottest: Vec<(f32, Ino)> = counters.map(|(dir, own)| (load_of(own), *dir)).collect();
        let by_load = |a: &(f32, Ino), b: &(f32, Ino)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        // A removed directory may have counters until these have decayed.
        let enough = most.saturating_mul(2);
        if enough < hottest.len() {
            hottest.select_nth_unstable_by(enough, by_load);
            hottest.truncate(enough);
        }
        hottest.retain(|(_, dir)| self.state.inodes.contains_key(dir));
        hottest.sort_unstable_by(by_load);
        hottest.truncate(most);
        hottest.into_iter().map(|(_, ino)| (ino, self.popularity_of(ino))).collect()
    }

    fn hottest(&self, most: usize) -> Vec<DirectoryLoad> {
        let (counters, hottest) = (&self.metrics.counters, self.hottest_records(most.min(MAX_SHOWN)));
        if hottest.is_empty() {
            return Vec::new();
        }
        let sums = Sums::of(self);
        let shown = hottest.into_iter().map(|(ino, own)| DirectoryLoad {
            rank: self.config.rank,
            ino,
            dir: self.state.whole_dir(ino).unwrap_or(ino),
            path: self.shown_path(ino),
            entries: self.directory(ino).map_or(0, |(_, entries)| entries),
            own,
            subtree: counters.popularity(&sums.get(ino)),
        });
        shown.collect()
    }

    /// The path of a directory or of a fragment of it, if all of it is in memory at this rank.
    pub(crate) fn shown_path(&self, dir: Ino) -> Option<String> {
        let path = self.path_of(self.state.whole_dir(dir).ok()?)?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }

    /// The parent and the number of entries of a directory in memory.
    fn directory(&self, dir: Ino) -> Option<(Ino, u64)> {
        match &self.state.inodes.get(&dir)?.inode.body {
            Body::Directory(directory) => Some((directory.parent, directory.entries)),
            _ => None,
        }
    }

    /// Answers another rank that asks for the hottest directories.
    pub(crate) fn answer_hottest(&self, most: u32) -> PeerAnswer {
        PeerAnswer::Hottest { directories: self.hottest(most as usize) }
    }

    /// The load of the whole cluster as an extended attribute of the root. Silent ranks are not
    /// asked for their directories.
    ///
    /// # Errors
    /// `ENODATA`: it is not the root. `EPERM`: the caller is not the superuser, and might see paths
    /// that it may not read.
    pub(crate) fn show_load(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Vec<u8>> {
        if ino != Ino::ROOT {
            return Err(Errno::ENODATA.into());
        }
        if !cx.caller.is_superuser() {
            return Err(Errno::EPERM.into());
        }
        let (ranks, mut waits) = (self.known_loads(), false);
        let mut directories = Vec::new();
        for KnownLoad { rank, .. } in ranks.iter().filter(|known| !known.is_silent()) {
            if *rank == self.config.rank {
                directories.extend(self.hottest(SHOWN as usize));
                continue;
            }
            match self.query_rank(cx, *rank, Question::Hottest { most: SHOWN }) {
                Ok(PeerAnswer::Hottest { directories: theirs }) => directories.extend(theirs),
                Ok(_) => return Err(Errno::EIO.into()),
                // The other ranks answer meanwhile.
                Err(Stop::Wait(Wait::Peers)) => waits = true,
                Err(stop) => return Err(stop),
            }
        }
        if waits {
            return Err(Stop::Wait(Wait::Peers));
        }
        Ok(LoadReport { ranks, directories }.encoded(SHOWN as usize))
    }
}

/// The counts of directories with those of all directories below them, as far as their parents are
/// in memory at this rank.
struct Sums {
    nodes: Vec<SumNode>,
    /// Index of each directory's node.
    of: FxMap<Ino, usize>,
}

struct SumNode {
    dir: Ino,
    parent: Option<usize>,
    sum: Weighted,
    /// Number of children that are not added yet.
    children: u32,
}

impl Sums {
    /// Visits each directory once, after those below it.
    fn of(meta: &Meta) -> Self {
        let own = &meta.metrics.counters.directories;
        let node =
            |(dir, sum): (&Ino, &Weighted)| SumNode { dir: *dir, parent: None, sum: *sum, children: 0 };
        let nodes: Vec<SumNode> = own.iter().map(node).collect();
        let of = nodes.iter().enumerate().map(|(at, node)| (node.dir, at)).collect();
        let mut sums = Self { nodes, of };
        let mut at = 0;
        while at < sums.nodes.len() {
            let parent = sums.parent(meta, sums.nodes[at].dir);
            sums.nodes[at].parent = parent;
            if let Some(parent) = parent {
                sums.nodes[parent].children += 1;
            }
            at += 1;
        }
        let mut ready: Vec<usize> = (0..at).filter(|at| sums.nodes[*at].children == 0).collect();
        while let Some(at) = ready.pop() {
            let SumNode { parent: Some(parent), sum, .. } = sums.nodes[at] else { continue };
            let parent_node = &mut sums.nodes[parent];
            add(&mut parent_node.sum, &sum);
            parent_node.children -= 1;
            if parent_node.children == 0 {
                ready.push(parent);
            }
        }
        sums
    }

    /// The node of a directory's parent, which may be new. `None`: the parent is not here.
    fn parent(&mut self, meta: &Meta, dir: Ino) -> Option<usize> {
        let (parent, _) = meta.directory(dir).filter(|(parent, _)| *parent != dir)?;
        if let Some(at) = self.of.get(&parent) {
            return Some(*at);
        }
        meta.state.inodes.get(&parent)?;
        self.nodes.push(SumNode { dir: parent, parent: None, sum: Weighted::default(), children: 0 });
        self.of.insert(parent, self.nodes.len() - 1);
        Some(self.nodes.len() - 1)
    }

    fn get(&self, dir: Ino) -> Weighted {
        self.of.get(&dir).map(|at| self.nodes[*at].sum).unwrap_or_default()
    }
}

impl LoadReport {
    /// Joins the reports of several ranks: the newest load of each, and the `most` hottest
    /// directories.
    pub fn join(reports: impl IntoIterator<Item = Self>, most: usize) -> Self {
        let mut joined = Self { ranks: Vec::new(), directories: Vec::new() };
        for report in reports {
            joined.ranks.extend(report.ranks);
            joined.directories.extend(report.directories);
        }
        let age = |known: &KnownLoad| known.age_ms.unwrap_or(u64::MAX);
        joined.ranks.sort_by_key(|known| (known.rank, age(known)));
        joined.ranks.dedup_by_key(|known| known.rank);
        joined.sort(most);
        joined
    }

    fn sort(&mut self, most: usize) {
        self.directories.sort_by(|a, b| b.own.load().total_cmp(&a.own.load()).then(a.ino.cmp(&b.ino)));
        self.directories.truncate(most);
    }

    /// Encoded with as many directories as fit in an extended attribute.
    fn encoded(mut self, most: usize) -> Vec<u8> {
        self.sort(most);
        loop {
            let value = encode(&self);
            if value.len() <= MAX_VALUE || self.directories.pop().is_none() {
                return value;
            }
        }
    }
}
