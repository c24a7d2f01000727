//! Quota check (docs/usage.md): successful calls exceed no quota, and refused calls would have
//! exceeded one.
//!
//! The check does not search for orders, since usage depends on all other calls. Concurrent calls
//! may come before or after the checked one, which gives bounds of the usage. If the bounds are
//! unknown, every reply is accepted.

use std::collections::{BTreeMap, VecDeque};

use espalier_proto::{Errno, Ino, Name, NewNode, RenameFlags, XattrMode};

use super::action::Action;
use super::bytes::FileBytes;
use super::outcome::ExpectedOutcome;
use super::tree::{ModelInode, ModelNode, Tree};
use crate::Nanos;

pub const MAX_FILES: &[u8] = b"user.espalier.quota.max_files";
pub const MAX_BYTES: &[u8] = b"user.espalier.quota.max_bytes";
pub const ALL: [&[u8]; 2] = [MAX_FILES, MAX_BYTES];

/// Time within which ranks have exchanged usage deltas and the quotas of parent directories.
pub const LATE: Nanos = Nanos(20_000_000_000);

/// Limits of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quota {
    pub files: Option<u64>,
    pub bytes: Option<u64>,
}

pub fn is_limit(name: &[u8]) -> bool {
    ALL.contains(&name)
}

impl Quota {
    pub fn get(&mut self, name: &[u8]) -> &mut Option<u64> {
        if *name == *MAX_FILES { &mut self.files } else { &mut self.bytes }
    }
}

/// Number of files and directories, and of bytes. `None`: unknown.
#[derive(Clone, Copy, Debug)]
struct Weight {
    files: Option<u64>,
    bytes: Option<u64>,
}

impl Weight {
    const NONE: Self = Self { files: Some(0), bytes: Some(0) };

    fn plus(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Self { files: sum(self.files, other.files), bytes: sum(self.bytes, other.bytes) }
    }

    /// Upper bound of the change of usage by an action.
    fn of(action: &Action) -> Self {
        let some = |files, bytes| Self { files: Some(files), bytes };
        match action {
            Action::Create { open: Some(true), exclusive: false, .. } => some(1, None),
            Action::Create { node: NewNode::Symlink(target), .. } => some(1, Some(target.len() as u64)),
            Action::Create { .. } | Action::RmDir { .. } => some(1, Some(0)),
            Action::Link { .. } | Action::Unlink { .. } => some(1, None),
            Action::Rename { from, to, .. } if from.0 == to.0 => some(1, None),
            Action::Rename { .. } => Self { files: None, bytes: None },
            Action::Write { .. } | Action::Append { .. } | Action::Truncate { .. } => some(0, None),
            _ => Self::NONE,
        }
    }
}

/// A call that changes or may change usage.
struct UsageChange {
    number: u64,
    actions: Vec<Action>,
    until: Option<Nanos>,
}

/// Consecutive calls in one directory, each after a long rest, with no other calls: with each,
/// ranks learn the quotas of one rank further up the path.
#[derive(Clone, Copy)]
struct Streak {
    dir: Ino,
    count: usize,
    last: Nanos,
}

/// Usage below a directory after a call, and its limit.
#[derive(Debug)]
struct Demand {
    is_bytes: bool,
    /// `None`: unknown.
    total: Option<u64>,
    limit: u64,
    /// Number of changes of rank on the path up to the directory.
    switches: usize,
}

/// See the module description.
pub struct Quotas {
    /// There are several ranks, which learn usage at other ranks with delay.
    late: bool,
    splits: bool,
    /// Some call may have set a limit.
    is_limited: bool,
    recent: VecDeque<UsageChange>,
    streak: Option<Streak>,
    /// Time of the last reply to a change.
    ended: Nanos,
}

/// A call to check.
struct Case<'a> {
    since: Nanos,
    actions: &'a [Action],
    strip: u64,
    bytes: &'a FileBytes,
}

impl Quotas {
    /// `late`: there are several ranks. `splits`: directories may be partitioned; then the rank of
    /// each fragment learns the quotas above on its own.
    pub fn new(late: bool, splits: bool) -> Self {
        Self { late, splits, is_limited: false, recent: VecDeque::new(), streak: None, ended: Nanos::ZERO }
    }

    pub fn begin(&mut self, number: u64, actions: &[Action]) {
        let sets = |action: &Action| matches!(action, Action::SetXattr { name, .. } if is_limit(name));
        self.is_limited |= actions.iter().any(sets);
        if actions.iter().any(is_change) {
            self.recent.push_back(UsageChange { number, actions: actions.to_vec(), until: None });
        }
    }

    /// A rank has restarted and does not know the quotas of other ranks yet.
    pub fn began(&mut self) {
        self.streak = None;
    }

    /// A call is answered. `oldest`: start of the oldest pending call.
    pub fn end(&mut self, number: u64, now: Nanos, result: Result<(), Errno>, oldest: Nanos) {
        let Some(change) = self.recent.iter_mut().find(|change| change.number == number) else { return };
        change.until = Some(now);
        let is_late = |since: Nanos| since + LATE <= now;
        if let ([Action::Create { dir, .. }], Ok(()) | Err(Errno::EDQUOT)) = (&change.actions[..], result) {
            let before = self.streak.filter(|it| it.dir == *dir && is_late(it.last)).map(|it| it.count);
            let count = before.map_or(usize::from(is_late(self.ended)), |count| count + 1);
            self.streak = Some(Streak { dir: *dir, count, last: now });
        } else if result.is_ok() {
            self.streak = None;
        }
        self.ended = now;
        // A refused call has changed nothing.
        let is_done = result.is_ok();
        self.recent.retain(|it| (is_done || it.number != number) && it.until.is_none_or(|at| at >= oldest));
    }

    /// True if the reply is possible. `is_refused`: the call failed with `EDQUOT`. `trees`: the
    /// possible trees before the call.
    pub fn allow<'a>(
        &self,
        (number, since): (u64, Nanos),
        is_refused: bool,
        strip: u64,
        bytes: &FileBytes,
        trees: impl Iterator<Item = Tree<'a>>,
    ) -> bool {
        let actions = self.recent.iter().find(|it| it.number == number).map(|it| &it.actions[..]);
        if !self.is_limited || actions.is_none() {
            return !is_refused;
        }
        let case = Case { since, actions: actions.unwrap_or_default(), strip, bytes };
        let others = self.recent.iter().filter(|it| it.number != number);
        let others = others.filter(|it| it.until.is_none_or(|at| at >= since));
        let (over, under_way): (Vec<&UsageChange>, Vec<&UsageChange>) =
            others.partition(|it| it.until.is_some());
        let under_way: Vec<&Action> = under_way.into_iter().flat_map(|it| &it.actions).collect();
        let others = || over.iter().flat_map(|it| &it.actions).chain(under_way.iter().copied());
        let meets = |other: &Action| case.actions.iter().any(|action| action.conflicts(other));
        // Lower bound: the last of the answered, successful calls had room for all of them.
        let less = under_way.iter().fold(Weight::NONE, |sum, action| sum.plus(Weight::of(action)));
        let more = others().fold(Weight::NONE, |sum, action| sum.plus(Weight::of(action)));
        let known = if self.late { self.known(&case) } else { usize::MAX };
        // A file that may lose its last name meanwhile counts nowhere, so no quota applies to it.
        let may_lose_name = case.actions.iter().any(grows) && others().any(takes_name);
        let is_unknown =
            more.files.is_none() || may_lose_name || others().any(|it| sets_limit(it) || meets(it));
        if is_unknown || known == 0 || (self.late && others().next().is_some()) {
            return true;
        }
        let mut is_any = false;
        for tree in trees {
            is_any = true;
            let Some((demands, switches)) = demands(&tree, &case) else { return true };
            let is_known = |it: &Demand| it.switches < known;
            let of = |it: &Demand, weight: Weight| if it.is_bytes { weight.bytes } else { weight.files };
            let exceeds = |it: &Demand| Some(it.total?.saturating_sub(of(it, less)?) > it.limit);
            let may_exceed = |it: &Demand| Some(it.total? + of(it, more)? > it.limit);
            let is_right = if is_refused {
                // Freed space may not be known further up the path yet.
                switches >= known || demands.iter().any(|it| may_exceed(it) != Some(false))
            } else {
                !demands.iter().any(|it| is_known(it) && exceeds(it) == Some(true))
            };
            if is_right {
                return true;
            }
        }
        !is_any
    }

    /// Number of ranks up the path whose quotas are known.
    fn known(&self, case: &Case<'_>) -> usize {
        match (case.actions, self.streak) {
            ([Action::Create { dir, .. }], Some(streak))
                if !self.splits && streak.dir == *dir && streak.last + LATE <= case.since =>
            {
                streak.count
            }
            _ => 0,
        }
    }
}

/// The value of a limit as `getxattr` returns it.
pub fn encoded(inode: &ModelInode, name: &[u8]) -> ExpectedOutcome {
    match *{ inode.quota }.get(name) {
        Some(limit) => ExpectedOutcome::Bytes(limit.to_string().into_bytes()),
        None => ExpectedOutcome::fails([Errno::ENODATA]),
    }
}

impl Tree<'_> {
    /// Sets or removes a limit.
    pub fn limit(
        &mut self,
        node: ModelNode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> ExpectedOutcome {
        let Some(inode) = self.inode(node).filter(|inode| inode.is_dir()) else {
            return ExpectedOutcome::fails([Errno::EPERM]);
        };
        let is_there = { inode.quota }.get(name).is_some();
        match mode {
            XattrMode::Create if is_there => return ExpectedOutcome::fails([Errno::EEXIST]),
            XattrMode::Replace if !is_there => return ExpectedOutcome::fails([Errno::ENODATA]),
            _ => {}
        }
        let number = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        self.change(node, |inode| *inode.quota.get(name) = number.filter(|limit| *limit > 0));
        ExpectedOutcome::Done
    }
}

fn sets_limit(action: &Action) -> bool {
    matches!(action, Action::SetXattr { name, .. } | Action::RemoveXattr { name, .. } if is_limit(name))
}

fn grows(action: &Action) -> bool {
    matches!(action, Action::Write { .. } | Action::Append { .. } | Action::Truncate { .. })
}

fn takes_name(action: &Action) -> bool {
    matches!(action, Action::Unlink { .. } | Action::Rename { .. })
}

fn is_change(action: &Action) -> bool {
    let weight = Weight::of(action);
    sets_limit(action) || weight.files != Some(0) || weight.bytes != Some(0)
}

/// The demand of a call for each directory with a limit whose usage grows, and the number of
/// changes of rank on the path to the top. `None`: unknown.
fn demands(tree: &Tree<'_>, case: &Case<'_>) -> Option<(Vec<Demand>, usize)> {
    let below = Below::of(tree, case.strip, case.bytes);
    let (mut gains, mut losses) = (Vec::new(), Vec::new());
    let weigh = |node: ModelNode| below.weight(tree, node);
    let entry = |dir: &Ino, name: &Name| {
        let dir = tree.numbered(*dir)?;
        Some((dir, tree.name(dir, name)?))
    };
    match case.actions {
        [Action::Create { dir, name, node, .. }] if entry(dir, name).is_none() => {
            let bytes = if let NewNode::Symlink(target) = node { target.len() as u64 } else { 0 };
            gains.push((tree.numbered(*dir)?, Weight { files: Some(1), bytes: Some(bytes) }));
        }
        [Action::Link { ino, dir, name }] if entry(dir, name).is_none() => {
            gains.push((tree.numbered(*dir)?, weigh(tree.numbered(*ino)?)));
        }
        [Action::Rename { from, to, flags }] => {
            let (from_dir, moved) = entry(&from.0, &from.1)?;
            let to_dir = tree.numbered(to.0)?;
            let target = tree.name(to_dir, &to.1);
            if target == Some(moved) {
                return Some((Vec::new(), 0));
            }
            gains.push((to_dir, weigh(moved)));
            losses.push((from_dir, weigh(moved)));
            losses.extend(target.map(|target| (to_dir, weigh(target))));
            if flags.contains(RenameFlags::EXCHANGE) {
                gains.extend(target.map(|target| (from_dir, weigh(target))));
            }
        }
        [Action::Write { ino, at: 0, from, data }] => {
            below.grow(tree, *ino, |_| (from + data.len()) as u64, case, &mut gains)?;
        }
        [Action::Append { ino, data }] => {
            below.grow(tree, *ino, |size| size + data.len() as u64, case, &mut gains)?;
        }
        [Action::Truncate { ino, at: 0, size, .. }, Action::SetAttr { .. }] => {
            below.grow(tree, *ino, |_| *size, case, &mut gains)?;
        }
        [Action::Write { .. } | Action::Truncate { .. }, ..] => return None,
        _ => {}
    }
    let switches_to = |top| gains.iter().map(|(at, _)| switches(tree, *at, top)).max().unwrap_or(0);
    let mut demands = Vec::new();
    for (dir, inode) in below.limited(tree) {
        let total = |all: &[(ModelNode, Weight)]| {
            let there = all.iter().filter(|(at, _)| tree.is_below(*at, dir));
            there.fold(Weight::NONE, |sum, (_, weight)| sum.plus(*weight))
        };
        let (gain, loss, now) = (total(&gains), total(&losses), below.usage(dir));
        let switches = switches_to(dir);
        for (is_bytes, gain, loss, now, limit) in [
            (false, gain.files, loss.files, now.files, inode.files),
            (true, gain.bytes, loss.bytes, now.bytes, inode.bytes),
        ] {
            let is_less = matches!((gain, loss), (Some(gain), Some(loss)) if gain <= loss);
            if let (Some(limit), false) = (limit, is_less) {
                let total = (|| Some(now? + (gain? - loss?)))();
                demands.push(Demand { is_bytes, total, limit, switches });
            }
        }
    }
    let switches = switches_to(ModelNode::ROOT);
    Some((demands, switches))
}

/// Number of changes of rank on the path from a directory up to another.
fn switches(tree: &Tree<'_>, mut dir: ModelNode, top: ModelNode) -> usize {
    let rank = |node: ModelNode| tree.inode(node).and_then(|inode| inode.ino).map(Ino::rank);
    let mut count = 0;
    while dir != top
        && let Some(inode) = tree.inode(dir)
        && dir != ModelNode::ROOT
    {
        count += usize::from(rank(dir) != rank(inode.parent));
        dir = inode.parent;
    }
    count
}

/// All names, and the usage below directories.
struct Below {
    usages: BTreeMap<ModelNode, Weight>,
    names: BTreeMap<ModelNode, Vec<ModelNode>>,
    files: BTreeMap<ModelNode, Weight>,
}

impl Below {
    fn of(tree: &Tree<'_>, strip: u64, bytes: &FileBytes) -> Self {
        let mut all = Self { usages: BTreeMap::new(), names: BTreeMap::new(), files: BTreeMap::new() };
        all.add(tree, ModelNode::ROOT, strip, bytes);
        all
    }

    fn add(&mut self, tree: &Tree<'_>, dir: ModelNode, strip: u64, bytes: &FileBytes) -> Weight {
        let mut sum = Weight::NONE;
        for node in tree.names(dir).into_values() {
            let Some(inode) = tree.inode(node) else { continue };
            let weight = if inode.is_dir() {
                self.add(tree, node, strip, bytes).plus(Weight { files: Some(1), bytes: Some(0) })
            } else {
                // Sizes of files that clients write to directly are less certain.
                let is_known = inode.ino.is_none_or(|ino| !bytes.is_big(ino) && !bytes.is_lost(ino));
                self.names.entry(node).or_default().push(dir);
                let weight = Weight { files: Some(1), bytes: is_known.then(|| inode.size(strip)) };
                self.files.insert(node, weight);
                weight
            };
            sum = sum.plus(weight);
        }
        self.usages.insert(dir, sum);
        sum
    }

    fn usage(&self, dir: ModelNode) -> Weight {
        self.usages.get(&dir).copied().unwrap_or(Weight::NONE)
    }

    /// The contribution of one name of a node.
    fn weight(&self, tree: &Tree<'_>, node: ModelNode) -> Weight {
        let one = Weight { files: Some(1), bytes: Some(0) };
        match tree.inode(node) {
            Some(inode) if inode.is_dir() => self.usage(node).plus(one),
            _ => self.files.get(&node).copied().unwrap_or(Weight { files: Some(1), bytes: None }),
        }
    }

    fn limited(&self, tree: &Tree<'_>) -> Vec<(ModelNode, Quota)> {
        let quota = |dir: &ModelNode| Some((*dir, tree.inode(*dir)?.quota));
        self.usages.keys().filter_map(quota).filter(|(_, quota)| *quota != Quota::default()).collect()
    }

    /// Adds the demand of a file that grows to a given size.
    fn grow(
        &self,
        tree: &Tree<'_>,
        ino: Ino,
        new: impl Fn(u64) -> u64,
        case: &Case<'_>,
        gains: &mut Vec<(ModelNode, Weight)>,
    ) -> Option<()> {
        let (node, strip) = (tree.numbered(ino)?, case.strip);
        let size = tree.inode(node)?.size(strip);
        let growth = new(size).saturating_sub(size);
        if case.bytes.is_big(ino) || case.bytes.is_lost(ino) || new(size) > strip {
            return None;
        }
        let gain = Weight { files: Some(0), bytes: Some(growth) };
        gains.extend(self.names.get(&node).into_iter().flatten().map(|dir| (*dir, gain)));
        Some(())
    }
}
