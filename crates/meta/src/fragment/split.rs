//! Splits (wu 3.4): a fragment that has grown past its capacity gives half of its hashes to a new
//! fragment at the next server of its directory's list. Each fragment splits on its own.
//!
//! A split is a transaction of the fragment's rank with the new fragment's, the directory's home
//! and the ranks of inodes whose names move. The fragment is frozen while the others prepare. An
//! inode stays at its rank, and its name becomes a remote dentry: files that are made after the
//! split lie with their names again. A directory splits only once per server, so few files are
//! moved away from their names.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem::take;
use core::ops::RangeInclusive;

use espalier_policy::Policy;
use espalier_proto::{Caller, Errno, FragmentMap, Ino, Rank, Reply, Request, RequestId};

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
    is_running: bool,
}

impl Meta {
    /// Examines a directory that has grown, or whose policy has changed.
    pub(crate) fn note_growth(&mut self, dir: Ino) {
        if self.config.ranks > 1
            && self.state.inodes.get(&dir).is_some_and(|cached| self.should_split(&cached.inode))
        {
            self.splits.due.insert(dir);
        }
    }

    /// True if a directory record should split: it has passed its capacity, or its directory is to
    /// be spread over more servers (wu 3.4, hints).
    fn should_split(&self, inode: &Inode) -> bool {
        let Body::Directory(directory) = &inode.body else { return false };
        let child = match (inode.fragment(), inode.fragment_map()) {
            (Some((number, depth)), _) => usize::from(number) | 1 << depth,
            (None, Some(map)) => 1 << map.depth(0),
            (None, None) => 1,
        };
        let is_full = || {
            let capacity = self.setting(inode, Policy::dir_split);
            capacity.is_some_and(|capacity| directory.entries > capacity.get().into())
        };
        inode.nlink > 0
            && child < self.config.ranks.into()
            && (child < self.wanted_servers(inode) || is_full())
    }

    fn wanted_servers(&self, inode: &Inode) -> usize {
        self.setting(inode, Policy::dir_servers).map_or(1, |servers| servers.get().into())
    }

    /// Starts a split that is due, unless one is running.
    pub(crate) fn start_split(&mut self, now: Now, out: &mut Outbox) {
        if self.splits.is_running || self.sessions.in_grace() || self.draining || self.config.read_only {
            return;
        }
        let Some(dir) = self.splits.due.pop_first() else { return };
        self.splits.is_running = true;
        let request = Request::Split { dir };
        self.run(now, Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, request), None, out);
    }

    pub(crate) fn split_ended(&mut self, dir: Ino, result: &Result<Reply, Errno>) {
        self.splits.is_running = false;
        match result {
            Ok(_) => self.note_growth(dir),
            // The directory has been removed.
            Err(Errno::ESTALE) => {}
            Err(_) => drop(self.splits.failed.insert(dir)),
        }
    }

    pub(crate) fn retry_splits(&mut self) {
        let failed = take(&mut self.splits.failed);
        self.splits.due.extend(failed);
    }

    /// Splits a directory record once. An empty directory that is not partitioned yet gets all the
    /// fragments that its policy wants at once (pre-distribution).
    pub(crate) fn split(&mut self, cx: &mut Cx<'_>, fragment: Ino) -> Step<Reply> {
        self.growable()?;
        let inode = self.state.dir_even_if_locked(fragment)?;
        if !self.should_split(inode) {
            return Ok(Reply::Done);
        }
        let (inode, number) = (inode.clone(), inode.fragment().map_or(0, |(number, _)| number.into()));
        let dir = self.state.whole_dir(fragment)?;
        let map = match inode.fragment_map() {
            Some(map) => map.clone(),
            None if dir == fragment => FragmentMap::new(dir, self.config.ranks),
            None => self.query_map(cx, dir)?,
        };
        let is_new = map.version() == 0 && !inode.has_entries();
        let Some(child) = map.next_split(number) else { return Ok(Reply::Done) };
        let end = if is_new { self.wanted_servers(&inode).min(map.servers()) } else { 0 };
        let children: Vec<usize> = (child..end.max(child + 1)).collect();
        let numbers = self.new_numbers(cx, &map, &children)?;

        let mut new_map = map.clone();
        children.iter().zip(&numbers).for_each(|(child, ino)| new_map.set(*child, Some(*ino)));
        let names = if is_new { Vec::new() } else { self.names_in(cx, fragment, new_map.hashes(child))? };
        let (own, others) = edits((&inode, dir), (&map, &new_map), &numbers, names);
        self.revoke_edits(cx, &own)?;
        self.freeze(cx, fragment)?;
        self.prepare_edits(cx, &others)?;
        self.unfreeze(cx.coordinator());
        self.commit_edits(cx, own)?;
        Ok(Reply::Done)
    }

    /// The inode numbers of new fragments.
    fn new_numbers(&mut self, cx: &mut Cx<'_>, map: &FragmentMap, children: &[usize]) -> Step<Vec<Ino>> {
        let mut numbers = Vec::with_capacity(children.len());
        let mut waiting = None;
        for child in children {
            let rank = map.rank(*child).ok_or(Errno::EIO)?;
            match self.query_rank(cx, rank, Question::NewNumber) {
                Ok(PeerAnswer::Number { ino }) => numbers.push(ino),
                Ok(_) => return Err(Errno::EIO.into()),
                Err(Stop::Wait(Wait::Peers)) => waiting = Some(Stop::Wait(Wait::Peers)),
                Err(stop) => return Err(stop),
            }
        }
        waiting.map_or(Ok(numbers), Err)
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
    numbers: &[Ino],
    names: Vec<FragmentName>,
) -> (Vec<Edit>, Vec<Edit>) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let is_new = |(number, ino): &(usize, Ino)| *number > 0 && numbers.contains(ino);
    for (number, ino) in new.fragments().filter(is_new) {
        let fragment = new_fragment(inode, ino, dir, number as u16, new.depth(number) as u8);
        others.push(Edit::Make { inode: Box::new(fragment) });
    }
    let set_map = Edit::SetMap { dir, map: new.clone(), after: old.version() };
    if dir == inode.ino {
        own.push(set_map)
    } else {
        others.push(set_map)
    }
    if names.is_empty() && dir == inode.ino {
        return (own, others);
    }
    if let Some(to) = numbers.first().copied() {
        let mut by_rank: BTreeMap<Rank, Vec<Ino>> = BTreeMap::new();
        for name in names.iter().filter(|name| name.ino.rank() != inode.ino.rank()) {
            by_rank.entry(name.ino.rank()).or_default().push(name.ino);
        }
        let moves = |inodes| Edit::MoveNames { from: inode.ino, to, inodes };
        others.extend(by_rank.into_values().map(moves));
        if !names.is_empty() {
            others.push(Edit::AcceptNames { fragment: to, names: names.clone() });
        }
        own.push(Edit::CedeNames { fragment: inode.ino, to, names });
    }
    (own, others)
}
