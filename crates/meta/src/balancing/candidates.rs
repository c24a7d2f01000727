//! The candidates of a decision: the hottest directory records, with the subtrees that they are in.
//! A subtree ends where names are at another rank or pinned.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Rank, is_split_off};

use super::RecentMove;
use crate::fragment::MoveScope;
use crate::machine::{Cx, Meta};
use crate::metrics::Popularity;
use crate::rank::{PeerAnswer, Question};
use crate::record::{Body, Inode};
use crate::step::{Step, Stop};

/// Maximum number of directory records in a decision without those above them: the hottest ones.
const MAX_CANDIDATES: usize = 4096;
/// The same with those above them.
const MAX_RECORDS: usize = 2 * MAX_CANDIDATES;

/// A directory record that may move, or a subtree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveCandidate {
    /// The record, or the root of the subtree.
    pub ino: Ino,
    pub scope: MoveScope,
    /// Index of the smallest subtree that contains it, which comes before.
    pub parent: Option<u32>,
    /// Counts of all that moves, and its number of entries.
    pub popularity: Popularity,
    pub entries: u64,
    /// Number of directory records in it that are in the decision.
    pub directories: u64,
    /// Time of its last move.
    pub moved_ms: Option<u64>,
}

/// Records of a decision, each with the record of this rank that has its directory's name; `None`:
/// that is at another rank, or not known.
pub(super) type Parents = BTreeMap<Ino, Option<Ino>>;

/// A record while subtrees are summed.
struct SubtreeNode {
    own: Popularity,
    entries: u64,
    moved_ms: Option<u64>,
    children: Vec<Ino>,
    is_root: bool,
}

impl Meta {
    /// The hottest records with all those above them. The set stays the same while other ranks are
    /// asked about directories whose inodes they have; ranks that are silent are not asked.
    pub(super) fn parents(&mut self, cx: &mut Cx<'_>) -> Step<Parents> {
        let mut known = self.balancing.gathered.take().unwrap_or_default();
        if known.is_empty() {
            let hottest = self.hottest_records(MAX_CANDIDATES).into_iter().map(|(ino, _)| (ino, None));
            known = hottest.collect();
        }
        let mut unresolved: Vec<Ino> = known.keys().copied().collect();
        let result = loop {
            match self.resolve(cx, &unresolved, &mut known) {
                Ok(above) if above.is_empty() => break Ok(known.clone()),
                Ok(above) => unresolved = above,
                Err(stop) => break Err(stop),
            }
        };
        // Starts over with the records that it began with, when an answer has come.
        self.balancing.gathered = Some(known);
        result
    }

    /// Finds the parents of records. Returns the parents that were not known before.
    fn resolve(&mut self, cx: &mut Cx<'_>, records: &[Ino], known: &mut Parents) -> Step<Vec<Ino>> {
        let mut by_rank: BTreeMap<Rank, (Vec<Ino>, Vec<Ino>)> = BTreeMap::new();
        for record in records {
            let Ok(dir) = self.state.whole_dir(*record) else { continue };
            let (of_rank, dirs) = by_rank.entry(dir.rank()).or_default();
            of_rank.push(*record);
            dirs.push(dir);
        }
        let mut above = Vec::new();
        for (rank, (records, dirs)) in by_rank {
            for (record, parent) in records.into_iter().zip(self.query_parents(cx, rank, dirs)?) {
                let parent = parent.filter(|parent| self.is_record(*parent));
                known.insert(record, parent);
                if let Some(parent) = parent
                    && known.len() < MAX_RECORDS
                    && !known.contains_key(&parent)
                {
                    known.insert(parent, None);
                    above.push(parent);
                }
            }
        }
        Ok(above)
    }

    /// True if a number is that of a directory record of this rank in memory.
    fn is_record(&self, ino: Ino) -> bool {
        let cached = self.state.inodes.get(&ino).filter(|_| ino.rank() == self.config.rank);
        cached.is_some_and(|cached| cached.inode.is_dir())
    }

    fn query_parents(&mut self, cx: &mut Cx<'_>, rank: Rank, dirs: Vec<Ino>) -> Step<Vec<Option<Ino>>> {
        let is_silent = self.known_loads().iter().any(|known| known.rank == rank && known.is_silent());
        let answer = match rank {
            rank if rank == self.config.rank => self.answer_parents(&dirs)?,
            _ if is_silent => PeerAnswer::Parents { parents: Vec::new() },
            rank => self.query_rank(cx, rank, Question::Parents { dirs })?,
        };
        if let PeerAnswer::Parents { parents } = answer { Ok(parents) } else { Err(Errno::EIO.into()) }
    }

    /// Answers another rank that asks which records have the names of directories of this rank.
    pub(crate) fn answer_parents(&self, dirs: &[Ino]) -> Step<PeerAnswer> {
        let parent = |dir: &Ino| match self.state.dir_even_if_locked(*dir) {
            Ok(Inode { body: Body::Directory(directory), .. }) => {
                Ok(Some(directory.parent).filter(|parent| parent != dir))
            }
            Ok(_) | Err(Stop::Fail(_)) => Ok(None),
            Err(stop) => Err(stop),
        };
        Ok(PeerAnswer::Parents { parents: dirs.iter().map(parent).collect::<Step<_>>()? })
    }

    /// The candidates, each subtree before those in it: records that may move, without those that
    /// are pinned or about to cede names.
    pub(super) fn candidates(
        &self,
        now_ms: u64,
        recent: &[RecentMove],
        parents: &Parents,
    ) -> Vec<MoveCandidate> {
        let mut by_dir: BTreeMap<Ino, Vec<&RecentMove>> = BTreeMap::new();
        for moved in recent {
            by_dir.entry(moved.dir).or_default().push(moved);
        }
        let node = |ino: &Ino| {
            let inode = &self.state.inodes.get(ino)?.inode;
            if !inode.is_dir() || !self.may_balance(inode) {
                return None;
            }
            let dir = self.state.whole_dir(*ino).ok()?;
            // Every path leads through the root: while its rank is down, nobody could turn the
            // balancer off. CephFS does not export it either.
            if dir == Ino::ROOT {
                return None;
            }
            let hashes = inode.hashes();
            // The names of a directory that has moved are at another rank, its counters decay here.
            // The lowest hash of a fragment that arrives comes last, and the log knows it by that.
            if hashes.is_empty() || !is_split_off(inode.fragment().unwrap_or(0).into(), &hashes) {
                return None;
            }
            let of_dir = by_dir.get(&dir).into_iter().flatten();
            let moves = of_dir.filter(|moved| hashes.contains(&moved.first));
            let moved_ms = moves.map(|moved| moved.at_ms(now_ms)).max();
            let (own, entries) = (self.popularity_of(*ino), inode.entries());
            Some((*ino, SubtreeNode { own, entries, moved_ms, children: Vec::new(), is_root: true }))
        };
        let mut nodes: BTreeMap<Ino, SubtreeNode> = parents.keys().filter_map(node).collect();
        for (ino, parent) in parents {
            if let Some(parent) = parent
                && nodes.contains_key(ino)
                && let Some(above) = nodes.get_mut(parent)
            {
                above.children.push(*ino);
                nodes.entry(*ino).and_modify(|node| node.is_root = false);
            }
        }
        let mut found = Vec::new();
        for root in nodes.iter().filter(|(_, node)| node.is_root).map(|(ino, _)| *ino) {
            add_subtree(&nodes, root, &mut found);
        }
        found
    }
}

/// Adds the candidates of a subtree: itself, the names of each record in it that has records below,
/// and the subtrees below.
fn add_subtree(nodes: &BTreeMap<Ino, SubtreeNode>, root: Ino, found: &mut Vec<MoveCandidate>) {
    let begin = found.len();
    let mut to_visit = Vec::from([(root, None)]);
    while let Some((ino, parent)) = to_visit.pop() {
        let Some(node) = nodes.get(&ino) else { continue };
        let at = found.len() as u32;
        let candidate = |scope, parent| MoveCandidate {
            ino,
            scope,
            parent,
            popularity: node.own,
            entries: node.entries,
            directories: 1,
            moved_ms: node.moved_ms,
        };
        found.push(candidate(MoveScope::Subtree, parent));
        if !node.children.is_empty() {
            found.push(candidate(MoveScope::Names, Some(at)));
        }
        to_visit.extend(node.children.iter().map(|child| (*child, Some(at))));
    }
    for at in (begin..found.len()).rev() {
        let MoveCandidate { popularity, entries, directories, scope, parent, .. } = found[at];
        // A subtree has been counted with the names of its root.
        if let (Some(parent), MoveScope::Subtree) = (parent, scope) {
            let above = &mut found[parent as usize];
            above.popularity += popularity;
            above.entries += entries;
            above.directories += directories;
        }
    }
}
