//! The search for orders: which calls under way must have been carried out already, and in which order, for an answer to be right.
//!
//! Only those before whose place matters for the answer, or for another one that does: every other order is the same but for calls
//! that could as well be carried out later (the theory is Mazurkiewicz's, of traces). What changes nothing is never put in
//! order: of it is remembered what it may have come to before each change that matters for it.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::Ino;

use super::action::Action;
use super::durable::{self, Log, Logged};
use super::outcome::{Outcome, Told};
use super::permit::Who;
use super::tree::{Base, Changes, Record, Strips, Tree};
use crate::Nanos;

/// An action: of which call, and which of its actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartId(pub u64, pub u32);

pub struct Part {
    pub action: Action,
    pub who: Who,
    /// What became of it has been told, or will be.
    pub is_answered: bool,
    /// While it was under way too much was at once to look at all orders: it may have looked between two changes of which this is not
    /// known any more.
    pub is_blurred: bool,
    /// Its rank has lost power meanwhile, and may have said just before that it was done.
    pub may_be_lost: bool,
    pub since: Nanos,
    pub over: Option<Over>,
}

/// Of a call whose caller is not told what has come of it: nothing more comes of it from then on.
#[derive(Clone, Copy, Debug)]
pub struct Over {
    pub at: Nanos,
    /// It has been carried out by then.
    pub is_done: bool,
}

/// A tree that there may be, with what was carried out and has not been answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct World {
    pub changes: Changes,
    done: BTreeMap<PartId, Outcome>,
    /// What is not done would have come to this, and changed nothing, at some time.
    seen: BTreeMap<PartId, BTreeSet<Outcome>>,
    /// What has been changed since all worlds were the same, if losses of power must be explained. Last, so that worlds that differ in
    /// this alone are next to each other.
    pub log: Log,
}

impl World {
    /// But for how it has come about.
    pub fn is_as(&self, other: &Self) -> bool {
        (&self.changes, &self.done, &self.seen) == (&other.changes, &other.done, &other.seen)
    }

    pub fn is_done(&self, id: PartId) -> bool {
        self.done.contains_key(&id)
    }

    pub fn with(&self, changes: Changes) -> Self {
        Self { changes, log: self.log.clone(), done: self.done.clone(), seen: self.seen.clone() }
    }

    /// An action has been done, or never will be.
    pub fn forget(&mut self, id: PartId) {
        self.done.remove(&id);
        self.seen.remove(&id);
    }

    /// An action has not been done after all.
    pub fn undo(&mut self, id: PartId) {
        self.done.remove(&id);
    }

    /// Nobody will say what became of some actions.
    pub fn unanswered(mut self, ids: &[PartId]) -> Self {
        for id in ids {
            self.seen.remove(id);
            self.done.entry(*id).and_modify(|outcome| *outcome = Outcome::Unknown);
        }
        self
    }

    /// The bytes of a file are forgotten, and what has been done to them.
    pub fn forgetting(mut self, base: &Base, ino: Ino, pending: &BTreeMap<PartId, Part>) -> Self {
        let is_of_it = |id: &PartId| pending.get(id).is_some_and(|part| part.action.written() == Some(ino));
        self.done.retain(|id, _| !is_of_it(id));
        self.log.retain(|(id, _)| !is_of_it(id));
        self.seen.retain(|id, _| !is_of_it(id));
        let mut tree = Tree { base, changes: self.changes };
        if let Some(node) = tree.numbered(ino) {
            tree.change(node, |inode| inode.strips.clear());
        }
        self.changes = tree.changes;
        self
    }

    /// What became of an action has been told.
    pub fn without(mut self, id: PartId) -> Self {
        self.done.remove(&id);
        self.seen.remove(&id);
        self
    }
}

/// Without what tells of worlds that are the same but for how they have come about: more answers are right than without this, and never
/// fewer, but after losses of power.
pub fn blurred(worlds: BTreeSet<World>) -> BTreeSet<World> {
    let mut kept: Vec<World> = Vec::new();
    for world in worlds {
        match kept.last_mut().filter(|last| (&last.changes, &last.done) == (&world.changes, &world.done)) {
            Some(last) => {
                for (id, outcomes) in world.seen {
                    last.seen.entry(id).or_default().extend(outcomes);
                }
            }
            None => kept.push(world),
        }
    }
    kept.into_iter().collect()
}

/// The file whose bytes differ most among the worlds.
pub fn most_uncertain(worlds: &BTreeSet<World>) -> Option<Ino> {
    let mut ways: BTreeMap<Ino, BTreeSet<&Strips>> = BTreeMap::new();
    for record in worlds.iter().flat_map(|world| world.changes.values().flatten()) {
        if let Record::Inode(inode) = record
            && let Some(ino) = inode.ino
        {
            ways.entry(ino).or_default().insert(&inode.strips);
        }
    }
    ways.into_iter().filter(|(_, ways)| ways.len() > 1).max_by_key(|(_, ways)| ways.len()).map(|(ino, _)| ino)
}

/// Among so many changes under way all orders are looked at.
const MOST_AT_ONCE: usize = 6;
/// So many worlds are looked at for one answer.
const MOST_STEPS: usize = 3000;

pub struct Search<'a> {
    base: &'a Base,
    pending: &'a BTreeMap<PartId, Part>,
    /// What logs speak of, if they are kept.
    logged: Option<&'a BTreeMap<PartId, Logged>>,
    strip: u64,
    id: PartId,
    told: &'a Told<'a>,
    /// What may change something that matters for the answer.
    before: Vec<PartId>,
    /// All orders are looked at, not only those that matter for the answer.
    pub is_exact: bool,
    steps: usize,
    /// What could have been answered.
    pub possible: BTreeSet<String>,
}

impl<'a> Search<'a> {
    pub fn new(
        base: &'a Base,
        pending: &'a BTreeMap<PartId, Part>,
        logged: Option<&'a BTreeMap<PartId, Logged>>,
        strip: u64,
        id: PartId,
        told: &'a Told<'a>,
    ) -> Self {
        // Also what matters only for what others are told.
        let mut linked = vec![id];
        let mut at = 0;
        while let Some(part) = linked.get(at).and_then(|id| pending.get(id)) {
            let more = pending
                .iter()
                .filter(|(other, it)| !linked.contains(other) && it.action.conflicts(&part.action));
            let more: Vec<PartId> = more.map(|(id, _)| *id).collect();
            linked.extend(more);
            at += 1;
        }
        let is_change = |other: &PartId| *other != id && !pending[other].action.only_tells();
        let before: Vec<PartId> = linked.into_iter().filter(is_change).collect();
        let is_exact = before.len() <= MOST_AT_ONCE;
        Self { base, pending, logged, strip, id, told, before, is_exact, steps: 0, possible: BTreeSet::new() }
    }

    /// `false`: there were too many orders to look at all.
    pub fn is_bounded(&self) -> bool {
        self.steps < MOST_STEPS
    }

    /// The worlds that a world may have become if the answer is right.
    pub fn explained(&mut self, world: &World) -> BTreeSet<World> {
        let mut found = BTreeSet::new();
        let mut known: BTreeSet<World> = [world.clone()].into();
        let mut left = vec![(world.clone(), Vec::new())];
        while let Some((world, order)) = left.pop() {
            self.steps += 1;
            if !self.is_bounded() {
                return found;
            }
            if let Some(outcome) = world.done.get(&self.id) {
                let outcome = outcome.clone();
                found.extend(self.is_told(&world, &outcome));
                continue;
            }
            if self.matters(&order) && self.ends(&world, &mut found) {
                continue;
            }
            for at in 0..self.before.len() {
                let id = self.before[at];
                if world.done.contains_key(&id) {
                    continue;
                }
                if let Some(next) = self.carry_out(&world, id)
                    && known.insert(next.clone())
                {
                    left.push((next, order.iter().copied().chain([id]).collect()));
                }
            }
        }
        found
    }

    /// Carries out what was answered. `true`: what else may have been carried out before can as well be later.
    fn ends(&mut self, world: &World, found: &mut BTreeSet<World>) -> bool {
        let mut is_enough = false;
        // If a number was learnt, it may be that of another inode, which was made later.
        let is_as_before =
            |explained: &World| (&explained.changes, &explained.done) == (&world.changes, &world.done);
        for outcome in world.seen.get(&self.id).into_iter().flatten() {
            let explained = self.is_told(world, outcome);
            is_enough |= explained.as_ref().is_some_and(is_as_before);
            found.extend(explained);
        }
        let (next, outcome) = self.perform(world, self.id);
        match next {
            Some(next) => {
                let next = self.record(world, next, self.id);
                found.extend(self.is_told(&next, &outcome));
                is_enough && self.told.result.is_err()
            }
            None => {
                let explained = self.is_told(world, &outcome);
                is_enough |= explained.as_ref().is_some_and(is_as_before);
                found.extend(explained);
                is_enough && (self.told.result.is_err() || self.told.action.is_read())
            }
        }
    }

    /// Whether each of some changes matters for one after it, or for the answer; or for what somebody else is told who looks between
    /// the two.
    fn matters(&self, order: &[PartId]) -> bool {
        let action = |id: &PartId| &self.pending[id].action;
        let target = self.told.action;
        let is_between = |one: &Action, other: &Action| {
            let mut lookers =
                self.pending.iter().filter(|(id, part)| part.is_answered && !order.contains(id));
            lookers.any(|(_, part)| part.action.conflicts(one) && part.action.conflicts(other))
        };
        (0..order.len()).all(|at| {
            let this = action(&order[at]);
            let mut later = order[at + 1..].iter().map(action).chain([target]);
            later.any(|later| {
                later.conflicts(this) || (self.is_exact && !later.only_tells() && is_between(this, later))
            })
        })
    }

    fn is_told(&mut self, world: &World, outcome: &Outcome) -> Option<World> {
        let mut tree = Tree { base: self.base, changes: world.changes.clone() };
        if self.told.is(outcome, &mut tree) {
            let told = world.with(tree.changes);
            // In that world it has been carried out before, in due order.
            return if world.is_done(self.id) { Some(told) } else { self.in_time(told, self.id) };
        }
        if self.possible.len() < super::violation::TOLD {
            self.possible.insert(super::violation::shortened(outcome));
        }
        None
    }

    /// A world in which an action is done, too, if that changes anything.
    fn carry_out(&self, world: &World, id: PartId) -> Option<World> {
        let (next, outcome) = self.perform(world, id);
        let mut next = self.in_time(self.record(world, next?, id), id)?;
        next.seen.remove(&id);
        next.done.insert(id, if self.pending[&id].is_answered { outcome } else { Outcome::Unknown });
        Some(next)
    }

    /// What was over when an action was asked for, and has not been carried out before that, never will be. `None`: it has been.
    fn in_time(&self, mut world: World, id: PartId) -> Option<World> {
        let Part { action, since, .. } = &self.pending[&id];
        for (other, part) in self.pending {
            let over = part.over.filter(|over| over.at < *since && !world.is_done(*other));
            let Some(over) = over.filter(|_| part.action.conflicts(action)) else { continue };
            if over.is_done {
                return None;
            }
            world.seen.remove(other);
            world.done.insert(*other, Outcome::Unknown);
        }
        Some(world)
    }

    /// What a change makes of a world, if anything, and what it comes to.
    fn perform(&self, world: &World, id: PartId) -> (Option<World>, Outcome) {
        let Part { action, who, .. } = &self.pending[&id];
        let mut tree = Tree { base: self.base, changes: world.changes.clone() };
        let outcome = tree.attempt(action, who, id.0, self.strip);
        if tree.changes == world.changes {
            return (None, outcome);
        }
        let mut next = world.with(tree.changes);
        if let Some(logged) = self.logged {
            durable::append(&mut next.log, logged, id, outcome.clone());
        }
        (Some(next), outcome)
    }

    /// Before a change: what the others for whom it matters would have come to.
    fn record(&self, before: &World, mut after: World, change: PartId) -> World {
        let action = &self.pending[&change].action;
        for (id, part) in self.pending {
            let is_over = *id == change || !part.is_answered || before.done.contains_key(id);
            if is_over || !part.action.conflicts(action) {
                continue;
            }
            if let (None, outcome) = self.perform(before, *id) {
                after.seen.entry(*id).or_default().insert(outcome);
            }
        }
        after
    }
}
