//! Splits (wu 3.4): a fragment that has grown past its capacity gives half of its hashes to a new
//! fragment at the next server of its directory's list. Each fragment splits on its own.
//!
//! A split moves names in steps, from the highest hash down, and other operations run between two
//! steps. A step is a transaction of the fragment's rank with the new fragment's, the directory's
//! home and the ranks of inodes whose names move. The fragment is frozen while the others prepare.
//! An inode stays at its rank, and its name becomes a remote dentry: files that are made after the
//! split lie with their names again. A directory splits only once per server, so few files are
//! moved away from their names.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem::take;
use core::ops::RangeInclusive;

use espalier_policy::Policy;
use espalier_proto::{
    Caller, Errno, FragmentMap, Ino, LAST_CURSOR, Rank, Reply, Request, RequestId, is_split_off, next_number,
};

use super::new_fragment;
use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::rank::{Edit, FragmentName, PeerAnswer, Question};
use crate::record::{Body, Inode};
use crate::state::Target;
use crate::step::{Step, Stop, Wait};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

/// The directory records of this rank that should split.
#[derive(Debug, Default)]
pub(crate) struct DueSplits {
    due: BTreeSet<Ino>,
    /// Those whose split has failed; they become due again with the next tick.
    failed: BTreeSet<Ino>,
    running: BTreeSet<Ino>,
    /// Those that were running at the last tick.
    slow: BTreeSet<Ino>,
    /// Directory records that may split soon, and the uptime in ms from which on no leases on the
    /// absence of names in them are granted. A split can revoke only leases on names that exist.
    near: BTreeMap<Ino, u64>,
    pub(crate) uptime_ms: u64,
    pub(crate) counts: FragmentCounts,
}

/// Counts since the start that concern partitioned directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCounts {
    /// Fragments that have been split off completely.
    pub splits: u64,
    /// Steps of splits that failed; they are tried again.
    pub failed_splits: u64,
    /// Names that have moved to new fragments.
    pub names_moved: u64,
    /// Requests of clients for names that another fragment has, because their map is outdated or
    /// they have none yet.
    pub misrouted: u64,
}

impl DueSplits {
    /// Number of directory records that are splitting, or about to.
    pub(crate) fn unfinished(&self) -> usize {
        self.due.len() + self.failed.len() + self.running.len()
    }
}

/// Whether a directory record splits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outlook {
    Stays,
    /// It is half full.
    Near,
    Due,
}

/// Time in ms within which a reply that grants a lease leaves.
const LATEST_GRANT_MS: u64 = 1_000;

/// Maximum number of splits that a rank runs at a time.
const MOST_SPLITS: usize = 8;
/// Maximum size in bytes of the names that a step moves: they are in one message and one event.
const MOST_BYTES: usize = 256 << 10;
/// Size of a name with its inode in a message, in bytes, besides the name's length.
const NAME_BYTES: usize = 24;

impl Meta {
    /// Examines a directory that has grown, or whose policy has changed.
    pub(crate) fn note_growth(&mut self, dir: Ino) {
        if self.config.ranks == 1 {
            return;
        }
        let Some(cached) = self.state.inodes.get(&dir) else { return };
        match self.outlook(&cached.inode) {
            Outlook::Stays => drop(self.splits.near.remove(&dir)),
            Outlook::Near => drop(self.splits.near.entry(dir).or_insert(self.splits.uptime_ms)),
            Outlook::Due => {
                self.splits.near.entry(dir).or_insert(self.splits.uptime_ms);
                self.splits.due.insert(dir);
            }
        }
    }

    /// Whether a directory record splits, or continues to: it has passed its capacity, or its
    /// directory is to be spread over more servers (wu 3.4, hints).
    fn outlook(&self, inode: &Inode) -> Outlook {
        let Body::Directory(directory) = &inode.body else { return Outlook::Stays };
        let (number, hashes) = (inode.fragment().unwrap_or_default().into(), inode.hashes());
        if inode.nlink == 0 || !is_split_off(number, &hashes) {
            return Outlook::Stays;
        }
        let next = match inode.partition() {
            None => Some(1),
            Some(_) => next_number(number, &hashes),
        };
        // It is ceding hashes.
        let Some(next) = next else { return Outlook::Due };
        let capacity =
            self.setting(inode, Policy::dir_split).map_or(u64::MAX, |capacity| capacity.get().into());
        if next >= self.config.ranks.into() {
            Outlook::Stays
        } else if next < self.wanted_servers(inode) || directory.entries > capacity {
            Outlook::Due
        } else if directory.entries > capacity / 2 {
            Outlook::Near
        } else {
            Outlook::Stays
        }
    }

    /// True if leases on the absence of names in a directory record may be granted.
    pub(crate) fn may_lease_absence(&self, dir: Ino) -> bool {
        !self.splits.near.contains_key(&dir)
    }

    /// True if no client has a lease on the absence of a name in a directory record.
    fn may_split(&self, dir: Ino) -> bool {
        let is_new = || self.state.inodes.get(&dir).is_some_and(|cached| cached.names_are_new);
        self.config.lease_ms.is_none_or(|term| {
            let since = self.splits.near.get(&dir).copied().unwrap_or(self.splits.uptime_ms);
            is_new() || since + u64::from(term) + LATEST_GRANT_MS <= self.splits.uptime_ms
        })
    }

    fn wanted_servers(&self, inode: &Inode) -> usize {
        self.setting(inode, Policy::dir_servers).map_or(1, |servers| servers.get().into())
    }

    /// Starts the splits that are due.
    pub(crate) fn start_splits(&mut self, now: Now, out: &mut Outbox) {
        if self.sessions.in_grace() || self.draining || self.config.read_only {
            return;
        }
        while self.splits.running.len() < MOST_SPLITS
            && let Some(dir) = self.splits.due.iter().copied().find(|dir| self.may_split(*dir))
        {
            self.splits.due.remove(&dir);
            if self.splits.running.insert(dir) {
                let (request, number) = (Request::Split { dir }, RequestId(0));
                self.run(now, Task::new(INTERNAL_CLIENT, number, Caller::SERVER, request), None, out);
            }
        }
    }

    pub(crate) fn split_ended(&mut self, dir: Ino, result: &Result<Reply, Errno>) {
        self.splits.running.remove(&dir);
        self.splits.slow.remove(&dir);
        match result {
            Ok(_) => self.note_growth(dir),
            // The directory has been removed.
            Err(Errno::ESTALE) => drop(self.splits.near.remove(&dir)),
            Err(_) => {
                self.splits.counts.failed_splits += 1;
                self.splits.failed.insert(dir);
            }
        }
    }

    /// Called with each tick: failed splits become due again, and those that wait long for another
    /// rank are withdrawn.
    pub(crate) fn retry_splits(&mut self, out: &mut Outbox) {
        let failed = take(&mut self.splits.failed);
        self.splits.due.extend(failed);
        let slow = core::mem::replace(&mut self.splits.slow, self.splits.running.clone());
        let stuck = self.tasks.iter().filter_map(|(number, task)| match task.request {
            Request::Split { dir } if slow.contains(&dir) => Some((*number, dir)),
            _ => None,
        });
        for (number, dir) in stuck.collect::<Vec<_>>() {
            if self.ranks.stop_waiting(|waiting| *waiting == number).is_some()
                && let Some(mut task) = self.tasks.remove(&number)
            {
                self.give_back(&mut task, out);
                self.split_ended(dir, &Err(Errno::EAGAIN));
            }
        }
    }

    /// Takes a step of a split: moves the names with the highest hashes that the new fragment
    /// lacks. An empty directory that is not partitioned yet gets all the fragments that its policy
    /// wants at once (pre-distribution).
    pub(crate) fn split(&mut self, cx: &mut Cx<'_>, fragment: Ino) -> Step<Reply> {
        self.growable()?;
        let inode = self.state.dir_even_if_locked(fragment)?;
        if self.outlook(inode) != Outlook::Due {
            return Ok(Reply::Done);
        }
        let (inode, number) = (inode.clone(), inode.fragment().unwrap_or_default().into());
        let dir = self.state.whole_dir(fragment)?;
        let map = match inode.fragment_map() {
            Some(map) => map.clone(),
            None if dir == fragment => FragmentMap::new(dir, self.config.ranks),
            None => self.query_map(cx, dir)?,
        };
        // The map and the fragment disagree; a later attempt may find that they agree.
        let child = map.next_split(number).ok_or(Errno::EBUSY)?;
        let is_new = map.version() == 0 && !inode.has_entries();
        let end = if is_new { self.wanted_servers(&inode).min(map.servers()) } else { 0 };
        let children: Vec<usize> = (child..end.max(child + 1)).collect();
        let inos = self.new_fragments(cx, &map, &children)?;

        let mut new_map = map.clone();
        let mut names = Vec::new();
        for (child, ino) in children.iter().zip(&inos) {
            let to_cede = map.to_cede(*child);
            let mut first = *to_cede.start();
            if !is_new {
                (first, names) = self.names_to_cede(cx, &inode, to_cede)?;
            }
            new_map.cede(*child, *ino, first);
        }
        let is_done = |child: &&usize| new_map.to_cede(**child).is_empty();
        let (splits, moved) = (children.iter().filter(is_done).count(), names.len());
        let (own, others) = edits((&inode, dir), (&map, &new_map), &children, names);
        self.revoke_edits(cx, &own)?;
        self.freeze(cx, fragment)?;
        self.prepare_edits(cx, &others)?;
        self.unfreeze(cx.coordinator());
        self.commit_edits(cx, own)?;
        self.splits.counts.splits += splits as u64;
        self.splits.counts.names_moved += moved as u64;
        Ok(Reply::Done)
    }

    /// The names with the highest hashes in a range, as many as a step of a split moves, and the
    /// lowest hash of the range that they fill.
    fn names_to_cede(
        &self,
        cx: &Cx<'_>,
        inode: &Inode,
        range: RangeInclusive<u64>,
    ) -> Step<(u64, Vec<FragmentName>)> {
        let Body::Directory(directory) = &inode.body else { return Err(Errno::EIO.into()) };
        let (start, end) = (*range.start(), *range.end());
        // Hashes are uniform.
        let all = inode.hashes();
        let per_name = ((*all.end()).min(LAST_CURSOR) - all.start()) / directory.entries.max(1);
        let mut first = end.saturating_sub(per_name.saturating_mul(self.config.split_names)).max(start);
        if first - start < per_name {
            first = start;
        }
        loop {
            let names = self.names_in(cx, inode.ino, first..=end)?;
            let bytes: usize = names.iter().map(|name| name.name.len() + NAME_BYTES).sum();
            if bytes <= MOST_BYTES || first == end {
                return Ok((first, names));
            }
            first += (end - first).div_ceil(2);
        }
    }

    /// The inode numbers of fragments, which are allocated for new ones. Existing ones must have
    /// carried out the step before, before this rank's fragment is frozen.
    fn new_fragments(&mut self, cx: &mut Cx<'_>, map: &FragmentMap, children: &[usize]) -> Step<Vec<Ino>> {
        let mut inos = Vec::with_capacity(children.len());
        let mut waiting = None;
        for child in children {
            if let Some(ino) = map.ino(*child) {
                self.query_entries(cx, ino)?;
                inos.push(ino);
                continue;
            }
            let rank = map.rank(*child).ok_or(Errno::EIO)?;
            match self.query_rank(cx, rank, Question::NewNumber) {
                Ok(PeerAnswer::Number { ino }) => inos.push(ino),
                Ok(_) => return Err(Errno::EIO.into()),
                Err(Stop::Wait(Wait::Peers)) => waiting = Some(Stop::Wait(Wait::Peers)),
                Err(stop) => return Err(stop),
            }
        }
        waiting.map_or(Ok(inos), Err)
    }

    /// Allocates an inode number for another rank, which makes an inode here later.
    pub(crate) fn answer_new_number(&mut self) -> Step<PeerAnswer> {
        self.growable()?;
        let ino = self.new_ino()?;
        // A restarted machine continues above all numbers that it may have allocated.
        self.state.next_ino += 1;
        Ok(PeerAnswer::Number { ino })
    }

    /// The names of a directory record with hashes in a range; loads them.
    fn names_in(&self, cx: &Cx<'_>, dir: Ino, range: RangeInclusive<u64>) -> Step<Vec<FragmentName>> {
        let mut names = Vec::new();
        let mut after = range.start().saturating_sub(1);
        loop {
            let found = self.entries_after(cx, dir, after)?;
            let Some(last) = found.last().map(|(slot, _)| slot.hash) else { return Ok(names) };
            for (slot, target) in found {
                let (ino, kind) = match target {
                    Target::Primary(ino) => (ino, self.state.inode(ino)?.kind),
                    Target::Remote(ino, kind) => (ino, kind),
                    Target::Absent => continue,
                };
                if !range.contains(&slot.hash) {
                    return Ok(names);
                }
                names.push(FragmentName { name: slot.name, ino, kind });
            }
            after = last;
        }
    }
}

/// The edits of a split at the fragment's rank and at others.
fn edits(
    (inode, dir): (&Inode, Ino),
    (old, new): (&FragmentMap, &FragmentMap),
    children: &[usize],
    names: Vec<FragmentName>,
) -> (Vec<Edit>, Vec<Edit>) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for (child, ino) in children.iter().filter_map(|child| Some((*child, new.ino(*child)?))) {
        if old.ino(child).is_none() {
            let fragment = new_fragment(inode, ino, dir, child as u16, &new.hashes(child));
            others.push(Edit::Make { inode: Box::new(fragment) });
        }
    }
    let set_map = Edit::SetMap { dir, map: new.clone(), after: old.version() };
    if dir == inode.ino {
        own.push(set_map)
    } else {
        others.push(set_map)
    }
    // With several new fragments the directory is empty, and no other rank need know of it.
    if let [child] = children
        && let Some(to) = new.ino(*child)
    {
        let first = *new.hashes(*child).start();
        let mut by_rank: BTreeMap<Rank, Vec<Ino>> = BTreeMap::new();
        for name in names.iter().filter(|name| name.ino.rank() != inode.ino.rank()) {
            by_rank.entry(name.ino.rank()).or_default().push(name.ino);
        }
        let moves = |inodes| Edit::MoveNames { from: inode.ino, to, inodes };
        others.extend(by_rank.into_values().map(moves));
        others.push(Edit::AcceptNames { fragment: to, first, names: names.clone() });
        own.push(Edit::CedeNames { fragment: inode.ino, to, first, names });
    }
    (own, others)
}
