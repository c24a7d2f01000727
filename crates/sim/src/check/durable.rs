//! What a loss of power may take: of the changes that a rank coordinates, those that are not durable, with all that came after them.
//! Every way in which that can be is looked at; answers that come later tell which it was.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::{Ino, Rank};

use super::action::Action;
use super::bytes::Bytes;
use super::outcome::{Outcome, Stat};
use super::permit::Who;
use super::search::{PartId, World};
use super::tree::{self, Base, Node, Tree};
use super::violation::shortened;
use crate::Nanos;
use crate::storage::Left;

/// A change that some world knows of.
pub struct Logged {
    pub action: Action,
    pub who: Who,
    pub rank: Rank,
    pub since: Nanos,
    /// When it was answered.
    pub until: Option<Nanos>,
}

/// Changes in the order in which they were made, with what they came to.
pub type Log = Vec<(PartId, Outcome)>;

/// Remembers changes until they are durable.
pub struct Durability {
    /// A change is durable so long after it was answered.
    within: Nanos,
    /// The tree with all changes that are durable.
    anchor: Base,
    /// Changes since then that all worlds have in common; each world has those after them.
    common: Log,
    pub calls: BTreeMap<PartId, Logged>,
    /// What was answered before then is durable at a rank.
    synced: BTreeMap<Rank, Nanos>,
    /// Not all orders of the changes are known in which the worlds may have come about.
    pub is_blurred: bool,
}

/// In more ways than this a loss of power is not looked at.
const MOST_WAYS: usize = 300;

impl Durability {
    /// `anchor`: the tree as it is in the beginning.
    pub fn new(within: Nanos, anchor: Base) -> Self {
        let (calls, synced) = (BTreeMap::new(), BTreeMap::new());
        Self { within, anchor, common: Log::new(), calls, synced, is_blurred: false }
    }

    /// An `fsync` has been answered that was asked for at that time.
    pub fn synced(&mut self, rank: Rank, since: Nanos) {
        let synced = self.synced.entry(rank).or_default();
        *synced = since.max(*synced);
    }

    /// A server has answered a call of these parts.
    pub fn answered(&mut self, parts: &[PartId], now: Nanos) {
        for id in parts {
            self.calls.entry(*id).and_modify(|logged| logged.until = Some(now));
        }
    }

    /// What is answered may be lost.
    pub fn tells_early(&self) -> bool {
        self.within > Nanos::ZERO
    }

    fn is_durable(&self, id: PartId, now: Nanos) -> bool {
        let Some(logged) = self.calls.get(&id) else { return true };
        let synced = self.synced.get(&logged.rank).copied().unwrap_or_default();
        logged.until.is_some_and(|until| until < synced || until + self.within < now)
    }

    /// Forgets what all worlds agree on and what is durable.
    pub fn settle(&mut self, base: &Base, worlds: &mut [World], strip: u64, now: Nanos) {
        let Some((first, others)) = worlds.split_first() else { return };
        let is_common = |at: &usize| others.iter().all(|world| world.log.get(*at) == first.log.get(*at));
        let count = (0..first.log.len()).take_while(is_common).count();
        self.common.extend(first.log[..count].iter().cloned());
        worlds.iter_mut().for_each(|world| drop(world.log.drain(..count)));
        let told = Tree { base, changes: worlds[0].changes.clone() };
        let count = self.common.iter().take_while(|(id, _)| self.is_durable(*id, now)).count();
        for (id, _) in self.common.drain(..count).collect::<Vec<_>>() {
            let Some(logged) = self.calls.remove(&id) else { continue };
            let mut tree = Tree::like(&self.anchor);
            replay(&mut tree, &told, id, &logged, strip);
            let mut changes = tree.changes;
            tree::settle(&mut self.anchor, std::iter::once(&mut changes));
        }
        self.is_blurred &= !self.common.is_empty() || worlds.iter().any(|world| !world.log.is_empty());
    }

    /// The worlds that there may be after a loss of power, and the base that they differ from. `None`: there are too many.
    pub fn lose_power(
        &mut self,
        rank: Rank,
        when: (Nanos, Left),
        bytes: &Bytes,
        (base, worlds): (&Base, &BTreeSet<World>),
        strip: u64,
    ) -> Option<(Base, BTreeSet<World>)> {
        let mut found = BTreeSet::new();
        for world in worlds {
            let log: Log = self.common.iter().chain(&world.log).cloned().collect();
            for lost in self.ways(&log, rank, when, bytes)? {
                found.extend(self.without((base, bytes), world, &log, &lost, strip));
                if found.len() > MOST_WAYS {
                    return None;
                }
            }
        }
        self.common.clear();
        Some((self.anchor.clone(), found))
    }

    /// Which changes may be lost together: what was answered before the first lost frame was written is not, and what was asked for
    /// after the last one that is left is.
    fn ways(
        &self,
        log: &Log,
        rank: Rank,
        (now, left): (Nanos, Left),
        bytes: &Bytes,
    ) -> Option<Vec<BTreeSet<PartId>>> {
        let of_rank = log.iter().filter_map(|(id, outcome)| Some((*id, outcome, self.calls.get(id)?)));
        let of_rank: Vec<_> = of_rank.filter(|(_, _, logged)| logged.rank == rank).collect();
        let mut ways: Vec<BTreeSet<PartId>> = vec![BTreeSet::new()];
        for (id, outcome, logged) in &of_rank {
            // It may have failed.
            let may_be_none = matches!(outcome, Outcome::OrGone(_)) || !bytes.is_journaled(&logged.action);
            let is_kept = self.is_durable(*id, now) || logged.until.is_some_and(|until| until < left.lost);
            let is_lost = logged.since > left.until && !may_be_none;
            let mut next = Vec::new();
            for lost in ways {
                let follows = lost.iter().filter_map(|id| self.calls.get(id)).any(|before| {
                    before.until.is_some_and(|until| until < logged.since)
                        || before.action.conflicts(&logged.action)
                });
                if !follows && !is_lost {
                    next.push(lost.clone());
                }
                if !is_kept {
                    next.push(lost.into_iter().chain([*id]).collect());
                }
            }
            ways = next;
            if ways.len() > MOST_WAYS {
                return None;
            }
        }
        Some(ways)
    }

    /// What was done to the bytes of a file is not looked at any more.
    pub fn forget(&mut self, ino: Ino) {
        self.calls.retain(|_, logged| logged.action.written() != Some(ino));
    }

    /// The last changes that a rank has made, with what must have become of them, for people.
    pub fn told(&self, worlds: &BTreeSet<World>, rank: Rank, (now, left): (Nanos, Left)) -> Vec<String> {
        let log = self.common.iter().chain(worlds.iter().next().into_iter().flat_map(|world| &world.log));
        let line = |(id, outcome): &(PartId, Outcome)| {
            let Logged { action, rank: of, since, until, .. } = self.calls.get(id)?;
            let until = until.map_or("...".into(), |until| until.to_string());
            let (action, outcome) = (shortened(action), shortened(outcome));
            let durable = if self.is_durable(*id, now) { ", durable" } else { "" };
            (*of == rank).then(|| format!("{since} to {until}{durable}: {action}: {outcome}"))
        };
        let mut lines = vec![format!(
            "Of the journal is left what was written until {}, and lost from {} on.",
            left.until, left.lost
        )];
        lines.extend(log.filter_map(line));
        lines
    }

    /// A world in which some changes have not been made; `None`: then others could not have come to what they came to.
    fn without(
        &self,
        (base, bytes): (&Base, &Bytes),
        world: &World,
        log: &Log,
        lost: &BTreeSet<PartId>,
        strip: u64,
    ) -> Option<World> {
        let told = Tree { base, changes: world.changes.clone() };
        let mut tree = Tree::like(&self.anchor);
        // Of what was made long ago the number may have been told since, and what was lost earlier may have been used.
        let logged: BTreeSet<u64> = log.iter().map(|(id, _)| id.0).collect();
        for (ino, node) in told.numbers() {
            let is_made_later = logged.contains(&node.call) && told.inode(node.again()).is_none();
            if !is_made_later && !keep_number(&mut tree, &told, ino, node) {
                return None;
            }
        }
        let mut kept = Log::new();
        // But for the sizes of files that nobody looks at.
        let sized = |outcome: Outcome| match outcome.of_open().clone() {
            Outcome::Stat(stat) => Outcome::Stat(Stat { size: size(&told, bytes, &stat), ..stat }),
            Outcome::Named(stat) => Outcome::Named(Stat { size: size(&told, bytes, &stat), ..stat }),
            outcome => outcome,
        };
        for (id, outcome) in log.iter().filter(|(id, _)| !lost.contains(id)) {
            if let Some(logged) = self.calls.get(id) {
                let again = replay(&mut tree, &told, *id, logged, strip);
                // Of what was lost before it is known only what it is like in the end.
                let is_of_gone = matches!(outcome, Outcome::OrGone(_));
                if !is_of_gone && sized(again) != sized(outcome.clone()) {
                    return None;
                }
            }
            kept.push((*id, outcome.clone()));
        }
        // What numbers were told stand for stays so; what was lost is gone, and no other inode gets its number.
        for (ino, node) in told.numbers() {
            if !keep_number(&mut tree, &told, ino, node) {
                return None;
            }
        }
        // What is lost may have been seen, so that its number is told later. What its call makes now is another inode.
        for id in lost {
            let mut node = Node::of(id.0);
            while let Some(inode) = told.inode(node) {
                keep_gone(&mut tree, node, inode);
                node = node.again();
            }
        }
        let mut after = world.with(tree.changes);
        after.log = kept;
        lost.iter().for_each(|id| after.undo(*id));
        Some(after)
    }
}

/// A number stands for what it stood for, if only for something that is gone. `false`: it cannot.
fn keep_number(tree: &mut Tree<'_>, told: &Tree<'_>, ino: Ino, node: Node) -> bool {
    if let Some(inode) = told.inode(node) {
        keep_gone(tree, node, inode);
    }
    tree.bind(ino, node)
}

/// A node is that of something that is gone, unless it is there.
fn keep_gone(tree: &mut Tree<'_>, node: Node, like: &tree::Inode) {
    if tree.inode(node).is_none() {
        tree.insert(node, tree::Inode { names: 0, ino: None, ..like.clone() });
    }
}

fn size(told: &Tree<'_>, bytes: &Bytes, stat: &Stat) -> u64 {
    let ino = told.inode(stat.node).and_then(|inode| inode.ino);
    if ino.is_some_and(|ino| bytes.is_lost(ino)) { 0 } else { stat.size }
}

/// Makes a change once more, and tells which number an inode has that it makes. `told`: a tree that knows it.
fn replay(tree: &mut Tree<'_>, told: &Tree<'_>, id: PartId, logged: &Logged, strip: u64) -> Outcome {
    let mut node = tree.new_node(id.0);
    // What was lost before, whether anybody was told its number or not.
    while let Some(next) = told.inode(node.again()) {
        let lost = told.inode(node);
        keep_gone(tree, node, lost.unwrap_or(next));
        if let Some(ino) = lost.and_then(|inode| inode.ino) {
            let _ = tree.bind(ino, node);
        }
        node = node.again();
    }
    let outcome = tree.attempt(&logged.action, &logged.who, id.0, strip);
    let is_new = tree.inode(node).is_some_and(|inode| inode.ino.is_none());
    if let (true, Some(ino)) = (is_new, told.inode(node).and_then(|inode| inode.ino)) {
        // Nobody else can have it: all numbers are from one tree.
        let _ = tree.bind(ino, node);
    }
    outcome
}

/// Adds a change to the end of a log, and moves it before those whose order to it does not matter: so logs that come to the same are
/// the same.
pub fn append(log: &mut Log, calls: &BTreeMap<PartId, Logged>, id: PartId, outcome: Outcome) {
    let Some(new) = calls.get(&id) else { return };
    let mut place = log.len();
    for (at, (other, _)) in log.iter().enumerate().rev() {
        if calls.get(other).is_none_or(|other| other.action.conflicts(&new.action)) {
            break;
        }
        if *other > id {
            place = at;
        }
    }
    log.insert(place, (id, outcome));
}
