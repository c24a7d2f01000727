//! Searches for orders of pending actions that explain a reply: which of them were executed before,
//! and in which order.
//!
//! Only actions on which the reply depends, directly or through others, are considered; all other
//! orders are equivalent to one where the remaining actions are executed later (Mazurkiewicz
//! traces). Reads are never ordered; instead, their possible outcomes are recorded before each
//! change that affects them.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::Ino;

use super::action::Action;
use super::durable::{self, ChangeLog, Logged};
use super::outcome::{ExpectedOutcome, Observed};
use super::permit::CallerCreds;
use super::tree::{Base, Changes, Strips, Tree, TreeRecord};
use crate::Nanos;

/// An action: the number of its call, and its index in the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartId(pub u64, pub u32);

pub struct PendingAction {
    pub action: Action,
    pub creds: CallerCreds,
    /// The reply was or will be delivered.
    pub is_answered: bool,
    /// While the action was pending, there were too many changes to examine all orders: it may have
    /// read between two changes for which this was not recorded.
    pub is_blurred: bool,
    /// The rank has lost power meanwhile, and may have acknowledged the action just before.
    pub may_be_lost: bool,
    pub since: Nanos,
    pub over: Option<Over>,
}

/// End of a call whose caller does not get the result; it has no effect afterwards.
#[derive(Clone, Copy, Debug)]
pub struct Over {
    pub at: Nanos,
    /// The call was executed before.
    pub is_done: bool,
}

/// A possible tree, with the outcomes of executed actions whose replies are outstanding.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct World {
    pub changes: Changes,
    done: BTreeMap<PartId, ExpectedOutcome>,
    /// Outcomes that pending actions without an effect would have had at some earlier time.
    seen: BTreeMap<PartId, BTreeSet<ExpectedOutcome>>,
    /// Changes since the worlds diverged, recorded if losses of power must be explained. The last
    /// field, so that worlds which differ only in it sort next to each other.
    pub log: ChangeLog,
}

impl World {
    /// True if both worlds are equal except for their history.
    pub fn is_as(&self, other: &Self) -> bool {
        (&self.changes, &self.done, &self.seen) == (&other.changes, &other.done, &other.seen)
    }

    pub fn is_done(&self, id: PartId) -> bool {
        self.done.contains_key(&id)
    }

    pub fn with(&self, changes: Changes) -> Self {
        Self { changes, log: self.log.clone(), done: self.done.clone(), seen: self.seen.clone() }
    }

    /// An action is finished: it was executed, or never will be.
    pub fn forget(&mut self, id: PartId) {
        self.done.remove(&id);
        self.seen.remove(&id);
    }

    /// An executed action is undone.
    pub fn undo(&mut self, id: PartId) {
        self.done.remove(&id);
    }

    /// The results of these actions will not be delivered.
    pub fn unanswered(mut self, ids: &[PartId]) -> Self {
        for id in ids {
            self.seen.remove(id);
            self.done.entry(*id).and_modify(|outcome| *outcome = ExpectedOutcome::Unknown);
        }
        self
    }

    /// Drops the contents of a file and all actions on them.
    pub fn forgetting(mut self, base: &Base, ino: Ino, pending: &BTreeMap<PartId, PendingAction>) -> Self {
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

    /// The reply to an action was checked.
    pub fn without(mut self, id: PartId) -> Self {
        self.done.remove(&id);
        self.seen.remove(&id);
        self
    }
}

/// Merges worlds that are equal except for `seen` and their history. This accepts more replies, and
/// never rejects a right one except after losses of power.
pub fn blurred(worlds: BTreeSet<World>) -> BTreeSet<World> {
    let mut retained: Vec<World> = Vec::new();
    for world in worlds {
        match retained.last_mut().filter(|last| (&last.changes, &last.done) == (&world.changes, &world.done))
        {
            Some(last) => {
                for (id, outcomes) in world.seen {
                    last.seen.entry(id).or_default().extend(outcomes);
                }
            }
            None => retained.push(world),
        }
    }
    retained.into_iter().collect()
}

/// The file whose contents differ most among the worlds.
pub fn most_uncertain(worlds: &BTreeSet<World>) -> Option<Ino> {
    let mut ways: BTreeMap<Ino, BTreeSet<&Strips>> = BTreeMap::new();
    for record in worlds.iter().flat_map(|world| world.changes.values().flatten()) {
        if let TreeRecord::Inode(inode) = record
            && let Some(ino) = inode.ino
        {
            ways.entry(ino).or_default().insert(&inode.strips);
        }
    }
    ways.into_iter().filter(|(_, ways)| ways.len() > 1).max_by_key(|(_, ways)| ways.len()).map(|(ino, _)| ino)
}

/// Largest number of pending changes for which all orders are examined.
const MOST_AT_ONCE: usize = 6;
/// Most worlds examined for one reply.
const MOST_STEPS: usize = 3000;

pub struct Search<'a> {
    base: &'a Base,
    pending: &'a BTreeMap<PartId, PendingAction>,
    /// Changes that logs refer to, if there are logs.
    logged: Option<&'a BTreeMap<PartId, Logged>>,
    strip: u64,
    id: PartId,
    observed: &'a Observed<'a>,
    /// Actions on which the reply may depend.
    before: Vec<PartId>,
    /// All orders are examined, not only those that affect the reply.
    pub is_exact: bool,
    steps: usize,
    /// Outcomes that would have been possible.
    pub possible: BTreeSet<String>,
}

impl<'a> Search<'a> {
    pub fn new(
        base: &'a Base,
        pending: &'a BTreeMap<PartId, PendingAction>,
        logged: Option<&'a BTreeMap<PartId, Logged>>,
        strip: u64,
        id: PartId,
        observed: &'a Observed<'a>,
    ) -> Self {
        // Also actions that only affect the replies of others.
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
        let is_change = |other: &PartId| *other != id && !pending[other].action.only_reports();
        let before: Vec<PartId> = linked.into_iter().filter(is_change).collect();
        let is_exact = before.len() <= MOST_AT_ONCE;
        Self {
            base,
            pending,
            logged,
            strip,
            id,
            observed,
            before,
            is_exact,
            steps: 0,
            possible: BTreeSet::new(),
        }
    }

    /// False if there were too many orders to examine all.
    pub fn is_bounded(&self) -> bool {
        self.steps < MOST_STEPS
    }

    /// The worlds that may result from `world` if the reply is right.
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
                found.extend(self.is_known(&world, &outcome));
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

    /// Executes the checked action. Returns true if all further actions may as well be executed
    /// later.
    fn ends(&mut self, world: &World, found: &mut BTreeSet<World>) -> bool {
        let mut is_enough = false;
        // A learnt number may instead belong to an inode that was made later.
        let is_as_before =
            |explained: &World| (&explained.changes, &explained.done) == (&world.changes, &world.done);
        for outcome in world.seen.get(&self.id).into_iter().flatten() {
            let explained = self.is_known(world, outcome);
            is_enough |= explained.as_ref().is_some_and(is_as_before);
            found.extend(explained);
        }
        let (next, outcome) = self.perform(world, self.id);
        if self.observed.splits {
            let seen = world.seen.get(&self.id).into_iter().flatten().chain([&outcome]);
            let instants: Vec<_> = seen.filter_map(ExpectedOutcome::listing).cloned().collect();
            if instants.len() > 1 {
                let explained = self.is_known(world, &ExpectedOutcome::Listings(instants));
                is_enough |= explained.as_ref().is_some_and(is_as_before);
                found.extend(explained);
            }
        }
        match next {
            Some(next) => {
                let next = self.record(world, next, self.id);
                found.extend(self.is_known(&next, &outcome));
                is_enough && self.observed.result.is_err()
            }
            None => {
                let explained = self.is_known(world, &outcome);
                is_enough |= explained.as_ref().is_some_and(is_as_before);
                found.extend(explained);
                is_enough && (self.observed.result.is_err() || self.observed.action.is_read())
            }
        }
    }

    /// True if each action of the order affects a later one, the reply, or another pending reader
    /// between the two.
    fn matters(&self, order: &[PartId]) -> bool {
        let action = |id: &PartId| &self.pending[id].action;
        let target = self.observed.action;
        let is_between = |one: &Action, other: &Action| {
            let mut lookers =
                self.pending.iter().filter(|(id, part)| part.is_answered && !order.contains(id));
            lookers.any(|(_, part)| part.action.conflicts(one) && part.action.conflicts(other))
        };
        (0..order.len()).all(|at| {
            let this = action(&order[at]);
            let mut later = order[at + 1..].iter().map(action).chain([target]);
            later.any(|later| {
                later.conflicts(this) || (self.is_exact && !later.only_reports() && is_between(this, later))
            })
        })
    }

    fn is_known(&mut self, world: &World, outcome: &ExpectedOutcome) -> Option<World> {
        let mut tree = Tree { base: self.base, changes: world.changes.clone() };
        if self.observed.is(outcome, &mut tree) {
            let observed = world.with(tree.changes);
            // In that world, the action was executed earlier, in a valid order.
            return if world.is_done(self.id) { Some(observed) } else { self.in_time(observed, self.id) };
        }
        if self.possible.len() < super::violation::MAX_LISTED {
            self.possible.insert(super::violation::shortened(outcome));
        }
        None
    }

    /// The world after an action; `None` if the action changes nothing.
    fn carry_out(&self, world: &World, id: PartId) -> Option<World> {
        let (next, outcome) = self.perform(world, id);
        let mut next = self.in_time(self.record(world, next?, id), id)?;
        next.seen.remove(&id);
        next.done.insert(id, if self.pending[&id].is_answered { outcome } else { ExpectedOutcome::Unknown });
        Some(next)
    }

    /// Excludes actions that ended before action `id` was requested and were not executed. `None`:
    /// one of them was certainly executed, so the world is impossible.
    fn in_time(&self, mut world: World, id: PartId) -> Option<World> {
        let PendingAction { action, since, .. } = &self.pending[&id];
        for (other, part) in self.pending {
            let over = part.over.filter(|over| over.at < *since && !world.is_done(*other));
            let Some(over) = over.filter(|_| part.action.conflicts(action)) else { continue };
            if over.is_done {
                return None;
            }
            world.seen.remove(other);
            world.done.insert(*other, ExpectedOutcome::Unknown);
        }
        Some(world)
    }

    /// The world after a change, if it differs, and the outcome.
    fn perform(&self, world: &World, id: PartId) -> (Option<World>, ExpectedOutcome) {
        let PendingAction { action, creds, .. } = &self.pending[&id];
        let mut tree = Tree { base: self.base, changes: world.changes.clone() };
        let outcome = tree.attempt(action, creds, id.0, self.strip);
        if tree.changes == world.changes {
            return (None, outcome);
        }
        let mut next = world.with(tree.changes);
        if let Some(logged) = self.logged {
            durable::append(&mut next.log, logged, id, outcome.clone());
        }
        (Some(next), outcome)
    }

    /// Records the outcomes that other pending actions affected by the change would have had before
    /// it.
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
