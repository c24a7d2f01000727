//! Enumerates the possible losses at a loss of power: changes that are not durable at the rank that
//! coordinates them, with all dependents. Later replies decide between the possibilities.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::{Ino, Rank};

use super::action::Action;
use super::bytes::FileBytes;
use super::outcome::{ExpectedOutcome, Stat};
use super::permit::CallerCreds;
use super::search::{PartId, World};
use super::tree::{self, Base, ModelNode, Tree};
use super::violation::shortened;
use crate::Nanos;
use crate::storage::Left;

/// A change that is in the log of some world.
pub struct Logged {
    pub action: Action,
    pub creds: CallerCreds,
    pub rank: Rank,
    pub since: Nanos,
    /// Time of the reply.
    pub until: Option<Nanos>,
}

/// Changes in execution order, with their outcomes.
pub type ChangeLog = Vec<(PartId, ExpectedOutcome)>;

/// Keeps changes until they are durable.
pub struct Durability {
    /// Time after which an answered change is durable.
    within: Nanos,
    /// The tree with all durable changes.
    anchor: Base,
    /// Later changes that are common to all worlds; each world's log follows.
    common: ChangeLog,
    pub calls: BTreeMap<PartId, Logged>,
    /// For each rank: changes answered before this time are durable.
    synced: BTreeMap<Rank, Nanos>,
    /// Some orders of changes that lead to the worlds were dropped.
    pub is_blurred: bool,
}

/// Most combinations of lost changes that are examined.
const MOST_WAYS: usize = 300;

impl Durability {
    /// `anchor`: the initial tree.
    pub fn new(within: Nanos, anchor: Base) -> Self {
        let (calls, synced) = (BTreeMap::new(), BTreeMap::new());
        Self { within, anchor, common: ChangeLog::new(), calls, synced, is_blurred: false }
    }

    /// An `fsync` that was called at `since` is answered.
    pub fn synced(&mut self, rank: Rank, since: Nanos) {
        let synced = self.synced.entry(rank).or_default();
        *synced = since.max(*synced);
    }

    /// A server has answered a call with these actions.
    pub fn answered(&mut self, parts: &[PartId], now: Nanos) {
        for id in parts {
            self.calls.entry(*id).and_modify(|logged| logged.until = Some(now));
        }
    }

    /// True if acknowledged changes may be lost.
    pub fn uses_writeback(&self) -> bool {
        self.within > Nanos::ZERO
    }

    fn is_durable(&self, id: PartId, now: Nanos) -> bool {
        let Some(logged) = self.calls.get(&id) else { return true };
        let synced = self.synced.get(&logged.rank).copied().unwrap_or_default();
        logged.until.is_some_and(|until| until < synced || until + self.within < now)
    }

    /// Drops changes that are common to all worlds and durable.
    pub fn fold_into_base(&mut self, base: &Base, worlds: &mut [World], strip: u64, now: Nanos) {
        let Some((first, others)) = worlds.split_first() else { return };
        let is_common = |at: &usize| others.iter().all(|world| world.log.get(*at) == first.log.get(*at));
        let count = (0..first.log.len()).take_while(is_common).count();
        self.common.extend(first.log[..count].iter().cloned());
        worlds.iter_mut().for_each(|world| drop(world.log.drain(..count)));
        let observed = Tree { base, changes: worlds[0].changes.clone() };
        let count = self.common.iter().take_while(|(id, _)| self.is_durable(*id, now)).count();
        for (id, _) in self.common.drain(..count).collect::<Vec<_>>() {
            let Some(logged) = self.calls.remove(&id) else { continue };
            let mut tree = Tree::like(&self.anchor);
            replay(&mut tree, &observed, id, &logged, strip);
            let mut changes = tree.changes;
            tree::fold_into_base(&mut self.anchor, std::iter::once(&mut changes));
        }
        self.is_blurred &= !self.common.is_empty() || worlds.iter().any(|world| !world.log.is_empty());
    }

    /// The worlds that are possible after a loss of power, and their base. `None`: too many.
    pub fn lose_power(
        &mut self,
        rank: Rank,
        when: (Nanos, Left),
        bytes: &FileBytes,
        (base, worlds): (&Base, &BTreeSet<World>),
        strip: u64,
    ) -> Option<(Base, BTreeSet<World>)> {
        let mut found = BTreeSet::new();
        for world in worlds {
            let log: ChangeLog = self.common.iter().chain(&world.log).cloned().collect();
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

    /// The sets of changes that may be lost together. Changes answered before the first lost frame
    /// was written survive; changes requested after the last surviving frame are lost.
    fn ways(
        &self,
        log: &ChangeLog,
        rank: Rank,
        (now, left): (Nanos, Left),
        bytes: &FileBytes,
    ) -> Option<Vec<BTreeSet<PartId>>> {
        let of_rank = log.iter().filter_map(|(id, outcome)| Some((*id, outcome, self.calls.get(id)?)));
        let of_rank: Vec<_> = of_rank.filter(|(_, _, logged)| logged.rank == rank).collect();
        let mut ways: Vec<BTreeSet<PartId>> = vec![BTreeSet::new()];
        for (id, outcome, logged) in &of_rank {
            // The action may have failed.
            let may_be_none =
                matches!(outcome, ExpectedOutcome::OrGone(_)) || !bytes.is_journaled(&logged.action);
            let is_sound_record =
                self.is_durable(*id, now) || logged.until.is_some_and(|until| until < left.lost);
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
                if !is_sound_record {
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

    /// Drops changes of a file's data and ends its checks.
    pub fn forget(&mut self, ino: Ino) {
        self.calls.retain(|_, logged| logged.action.written() != Some(ino));
    }

    /// The last changes of a rank and their outcomes, for a report.
    pub fn observed(&self, worlds: &BTreeSet<World>, rank: Rank, (now, left): (Nanos, Left)) -> Vec<String> {
        let log = self.common.iter().chain(worlds.iter().next().into_iter().flat_map(|world| &world.log));
        let line = |(id, outcome): &(PartId, ExpectedOutcome)| {
            let Logged { action, rank: of, since, until, .. } = self.calls.get(id)?;
            let until = until.map_or("...".into(), |until| until.to_string());
            let (action, outcome) = (shortened(action), shortened(outcome));
            let durable = if self.is_durable(*id, now) { ", durable" } else { "" };
            (*of == rank).then(|| format!("{since} to {until}{durable}: {action}: {outcome}"))
        };
        let mut lines = vec![format!(
            "Journal frames written until {} survive; frames from {} on are lost.",
            left.until, left.lost
        )];
        lines.extend(log.filter_map(line));
        lines
    }

    /// The world without some changes; `None` if the remaining changes cannot have had their
    /// outcomes then.
    fn without(
        &self,
        (base, bytes): (&Base, &FileBytes),
        world: &World,
        log: &ChangeLog,
        lost: &BTreeSet<PartId>,
        strip: u64,
    ) -> Option<World> {
        let observed = Tree { base, changes: world.changes.clone() };
        let mut tree = Tree::like(&self.anchor);
        // The number of an older inode may be known since then, and the number of a lost one may
        // have been used.
        let logged: BTreeSet<u64> = log.iter().map(|(id, _)| id.0).collect();
        for (ino, node) in observed.numbers() {
            let is_made_later = logged.contains(&node.call) && observed.inode(node.again()).is_none();
            if !is_made_later && !bind_number(&mut tree, &observed, ino, node) {
                return None;
            }
        }
        let mut retained = ChangeLog::new();
        // Ignores sizes of files that are not checked.
        let sized = |outcome: ExpectedOutcome| match outcome.of_open().clone() {
            ExpectedOutcome::Stat(stat) => {
                ExpectedOutcome::Stat(Stat { size: size(&observed, bytes, &stat), ..stat })
            }
            ExpectedOutcome::Named(stat) => {
                ExpectedOutcome::Named(Stat { size: size(&observed, bytes, &stat), ..stat })
            }
            outcome => outcome,
        };
        for (id, outcome) in log.iter().filter(|(id, _)| !lost.contains(id)) {
            if let Some(logged) = self.calls.get(id) {
                let again = replay(&mut tree, &observed, *id, logged, strip);
                // For such an outcome only the final state is known.
                let is_of_gone = matches!(outcome, ExpectedOutcome::OrGone(_));
                if !is_of_gone && sized(again) != sized(outcome.clone()) {
                    return None;
                }
            }
            retained.push((*id, outcome.clone()));
        }
        // Known numbers keep their inodes: the number of a lost inode is never assigned to another.
        for (ino, node) in observed.numbers() {
            if !bind_number(&mut tree, &observed, ino, node) {
                return None;
            }
        }
        // A lost inode may have been seen, so its number may be known later. A repetition of its
        // call makes a different inode.
        for id in lost {
            let mut node = ModelNode::of(id.0);
            while let Some(inode) = observed.inode(node) {
                bind_removed(&mut tree, node, inode);
                node = node.again();
            }
        }
        let mut after = world.with(tree.changes);
        after.log = retained;
        lost.iter().for_each(|id| after.undo(*id));
        Some(after)
    }
}

/// Binds a number to its inode, even if that is removed. Returns false if it is impossible.
fn bind_number(tree: &mut Tree<'_>, observed: &Tree<'_>, ino: Ino, node: ModelNode) -> bool {
    if let Some(inode) = observed.inode(node) {
        bind_removed(tree, node, inode);
    }
    tree.bind(ino, node)
}

/// Inserts a node as removed, unless it exists.
fn bind_removed(tree: &mut Tree<'_>, node: ModelNode, like: &tree::ModelInode) {
    if tree.inode(node).is_none() {
        tree.insert(node, tree::ModelInode { names: 0, ino: None, ..like.clone() });
    }
}

fn size(observed: &Tree<'_>, bytes: &FileBytes, stat: &Stat) -> u64 {
    let ino = observed.inode(stat.node).and_then(|inode| inode.ino);
    if ino.is_some_and(|ino| bytes.is_lost(ino)) { 0 } else { stat.size }
}

/// Repeats a change and binds the number of an inode that it makes. `observed`: a tree that knows
/// the number.
fn replay(
    tree: &mut Tree<'_>,
    observed: &Tree<'_>,
    id: PartId,
    logged: &Logged,
    strip: u64,
) -> ExpectedOutcome {
    let mut node = tree.new_node(id.0);
    // Skip the inodes that this call made before and that were lost.
    while let Some(next) = observed.inode(node.again()) {
        let lost = observed.inode(node);
        bind_removed(tree, node, lost.unwrap_or(next));
        if let Some(ino) = lost.and_then(|inode| inode.ino) {
            let _ = tree.bind(ino, node);
        }
        node = node.again();
    }
    let outcome = tree.attempt(&logged.action, &logged.creds, id.0, strip);
    let is_new = tree.inode(node).is_some_and(|inode| inode.ino.is_none());
    if let (true, Some(ino)) = (is_new, observed.inode(node).and_then(|inode| inode.ino)) {
        // Cannot fail: all numbers come from one tree.
        let _ = tree.bind(ino, node);
    }
    outcome
}

/// Appends a change to a log, and moves it before later calls that it does not conflict with, so
/// that equivalent logs are equal.
pub fn append(log: &mut ChangeLog, calls: &BTreeMap<PartId, Logged>, id: PartId, outcome: ExpectedOutcome) {
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
