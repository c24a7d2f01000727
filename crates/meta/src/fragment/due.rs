//! Decides which directory records cede names, and when: splits of those that have grown past their
//! capacity (wu 3.4) or get too many requests, merges of those that have shrunk, and moves to other
//! ranks, by request or because the directory is pinned to one (sevilla 2.4.2).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use espalier_policy::{Pin, Policy};
use espalier_proto::{
    Caller, Errno, Ino, Rank, Reply, Request, RequestId, is_split_off, is_unsplit, next_number,
};

use super::rate::HotFragments;
use super::subtree::{MoveScope, RequestedMove};
use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::rank::{PeerAnswer, Question};
use crate::record::{Body, Inode, SplitCause};
use crate::step::{Step, Stop, Wait};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

/// The directory records of this rank that should cede names.
#[derive(Debug, Default)]
pub(crate) struct DueTransfers {
    due: BTreeSet<Ino>,
    /// Those of which the last step has failed.
    failed: BTreeMap<Ino, Retry>,
    running: BTreeSet<Ino>,
    /// Those that were running at the last tick.
    slow: BTreeSet<Ino>,
    /// The fragment whose merge has just been refused, since the other one has no room: it stays
    /// until it has shrunk further.
    pub(super) refused: Option<Ino>,
    /// Requested moves.
    pub(super) moves: BTreeMap<Ino, RequestedMove>,
    pub(super) hot: HotFragments,
    pub(crate) counts: FragmentCounts,
}

/// The next try of a failed step. Steps freeze their directory while they wait for other ranks, so
/// they are tried less and less often while one is down.
#[derive(Clone, Copy, Debug)]
struct Retry {
    /// Tick at which the directory becomes due; `None`: it is, or the step runs.
    at_tick: Option<u64>,
    /// Ticks until then.
    pause: u64,
}

/// Counts since the start that concern partitioned directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCounts {
    /// Fragments that have been split off completely.
    pub splits: u64,
    /// Those of them that have split off because another got too many requests.
    pub splits_by_rate: u64,
    /// Fragments that have merged into others.
    pub merges: u64,
    /// Fragments that have moved to other ranks.
    pub moves: u64,
    /// Steps of splits, merges and moves that failed; they are tried again.
    pub failed_steps: u64,
    /// Names that have been ceded to other records.
    pub names_moved: u64,
    /// Requests of clients for names that another fragment has, because their map is outdated or
    /// they have none yet.
    pub misrouted: u64,
    /// Those of them that were forwarded to the rank that has the name.
    pub forwarded: u64,
}

impl DueTransfers {
    /// Number of directory records that are ceding names, or about to.
    pub(crate) fn unfinished(&self) -> usize {
        let paused = self.failed.values().filter(|retry| retry.at_tick.is_some());
        self.due.len() + paused.count() + self.running.len()
    }

    fn is_known(&self, dir: Ino) -> bool {
        let is_paused = self.failed.get(&dir).is_some_and(|retry| retry.at_tick.is_some());
        is_paused || self.due.contains(&dir) || self.running.contains(&dir)
    }
}

/// The prospect that a directory record cedes names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outlook {
    Stays,
    Due(Reason),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// It has begun to.
    Begun,
    /// It is at another rank than it should be.
    Move(Rank),
    Split(SplitCause),
    /// It has few entries, and gets few requests.
    Merge,
}

/// Maximum number of transfers that a rank runs at a time.
const MOST_TRANSFERS: usize = 8;
/// Maximum number of ticks between two tries of a failing step: it is frozen for two of them.
const LONGEST_PAUSE: u64 = 64;

impl Meta {
    /// Examines a directory that has grown, or whose policy has changed.
    pub(crate) fn note_growth(&mut self, dir: Ino) {
        if self.config.ranks == 1 {
            return;
        }
        let Some(cached) = self.state.inodes.get(&dir) else { return };
        match self.outlook(&cached.inode) {
            Outlook::Stays => drop(self.transfers.moves.remove(&dir)),
            // One that has failed pauses, also in a directory that goes on growing.
            Outlook::Due(_) if self.transfers.is_known(dir) => {}
            Outlook::Due(_) => drop(self.transfers.due.insert(dir)),
        }
    }

    /// Takes note of ranks that have joined the cluster: fragments that were inseparable because
    /// the next server did not exist may split (wu 3.4), and pins may name these ranks. Directories
    /// that are not in memory are examined when they next grow.
    pub(crate) fn ranks_joined(&mut self, ranks: u16) {
        if ranks <= self.config.ranks {
            return;
        }
        self.config.ranks = ranks;
        let dirs = self.state.inodes.sorted().filter(|(_, cached)| cached.inode.is_dir());
        for dir in dirs.map(|(ino, _)| *ino).collect::<Vec<_>>() {
            self.note_growth(dir);
        }
    }

    /// Examines a fragment that has shrunk; seldom, since it asks other ranks whether it can merge.
    pub(crate) fn note_shrinkage(&mut self, dir: Ino) {
        if self.state.counts.partitions == 0 {
            return;
        }
        let Some(cached) = self.state.inodes.get(&dir) else { return };
        let Body::Directory(directory) = &cached.inode.body else { return };
        let is_time = directory.entries == 0 || directory.entries.is_power_of_two();
        if is_time && cached.inode.fragment().is_some_and(|number| number > 0) {
            self.note_growth(dir);
        }
    }

    /// Returns if a directory record cedes names, as far as it knows itself.
    pub(super) fn outlook(&self, inode: &Inode) -> Outlook {
        let Body::Directory(directory) = &inode.body else { return Outlook::Stays };
        let (number, hashes) = (inode.fragment().unwrap_or_default().into(), inode.hashes());
        // A merge finds all names of a decoupled directory at one server.
        if inode.nlink == 0 || inode.decoupled().is_some() || self.state.is_known_blocked(inode.ino) {
            return Outlook::Stays;
        }
        if self.state.moves.ceding().contains(&inode.ino) {
            return Outlook::Due(Reason::Begun);
        }
        // It has no names, or some of its hashes are still at another record.
        if !is_split_off(number, &hashes) {
            return Outlook::Stays;
        }
        if let Some(rank) = self.wanted_rank(inode) {
            let is_remote = rank != self.config.rank;
            return if is_remote { Outlook::Due(Reason::Move(rank)) } else { self.merge_outlook(inode) };
        }
        let next = match inode.partition() {
            None => Some(1),
            Some(_) => next_number(number, &hashes),
        };
        let Some(next) = next.filter(|next| *next < self.config.ranks.into()) else {
            return self.merge_outlook(inode);
        };
        match self.split_cause(inode, directory.entries, next) {
            Some(cause) => Outlook::Due(Reason::Split(cause)),
            None => self.merge_outlook(inode),
        }
    }

    /// Why a fragment should split. `next`: the number of the fragment that would split off.
    fn split_cause(&self, inode: &Inode, entries: u64, next: usize) -> Option<SplitCause> {
        let (servers, limit) = (self.wanted_servers(inode), self.capacity(inode));
        if next < servers {
            Some(SplitCause::Servers(servers as u16))
        } else if entries > limit {
            Some(SplitCause::Entries { entries, limit })
        } else {
            let (rate, limit) = self.excessive_rate(inode)?;
            Some(SplitCause::Requests { rate, limit })
        }
    }

    /// Returns if a fragment is small and cold enough to merge into the one that it has split off
    /// from.
    fn merge_outlook(&self, inode: &Inode) -> Outlook {
        let Body::Directory(directory) = &inode.body else { return Outlook::Stays };
        let number = usize::from(inode.fragment().unwrap_or_default());
        let threshold = self.setting(inode, Policy::dir_merge);
        let threshold = threshold.map_or(self.capacity(inode) / 4, |threshold| threshold.get().into());
        let may_merge =
            number > 0 && number >= self.wanted_servers(inode) && is_unsplit(number, &inode.hashes());
        let is_due = may_merge && directory.entries < threshold && self.is_cold(inode);
        if is_due { Outlook::Due(Reason::Merge) } else { Outlook::Stays }
    }

    /// Maximum number of entries of a fragment that need not split.
    pub(super) fn capacity(&self, inode: &Inode) -> u64 {
        self.setting(inode, Policy::dir_split).map_or(u64::MAX, |capacity| capacity.get().into())
    }

    /// True if a directory record is ceding names. No leases on its names are granted meanwhile:
    /// there would always be new ones to revoke.
    pub(crate) fn is_ceding(&self, dir: Ino) -> bool {
        self.transfers.running.contains(&dir)
    }

    pub(super) fn wanted_servers(&self, inode: &Inode) -> usize {
        self.setting(inode, Policy::dir_servers).map_or(1, |servers| servers.get().into())
    }

    /// The rank at which a directory record should be, if that is determined.
    fn wanted_rank(&self, inode: &Inode) -> Option<Rank> {
        let requested = self.transfers.moves.get(&inode.ino).map(|requested| requested.to);
        requested.or_else(|| self.pinned_rank(inode))
    }

    /// The rank that a directory is pinned to; `None` also if there is no such rank.
    pub(super) fn pinned_rank(&self, inode: &Inode) -> Option<Rank> {
        let ranks = self.config.ranks;
        let rank = match self.setting(inode, Policy::pin)? {
            Pin::Off | Pin::Parent => return None,
            Pin::Rank(rank) => rank,
            Pin::Distributed => distributed_rank(self.state.whole_dir(inode.ino).unwrap_or(inode.ino), ranks),
        };
        (rank < ranks).then_some(Rank(rank))
    }

    /// True if a balancer may move a directory record.
    pub(crate) fn may_balance(&self, inode: &Inode) -> bool {
        let transfers = &self.transfers;
        let is_moving = transfers.is_known(inode.ino) || transfers.moves.contains_key(&inode.ino);
        let is_blocked = inode.decoupled().is_some() || self.state.is_known_blocked(inode.ino);
        inode.nlink > 0 && !is_blocked && !is_moving && self.pinned_rank(inode).is_none()
    }

    /// Starts the transfers that are due.
    pub(crate) fn start_transfers(&mut self, now: Now, out: &mut Outbox) {
        if self.sessions.in_grace() || self.draining || self.config.read_only {
            return;
        }
        while self.transfers.running.len() < MOST_TRANSFERS
            && let Some(dir) = self.transfers.due.pop_first()
        {
            if self.transfers.running.insert(dir) {
                let (request, number) = (Request::Transfer { dir }, RequestId(0));
                self.run(now, Task::new(INTERNAL_CLIENT, number, Caller::SERVER, request), None, out);
            }
        }
    }

    pub(crate) fn transfer_ended(&mut self, dir: Ino, result: &Result<Reply, Errno>) {
        let transfers = &mut self.transfers;
        transfers.running.remove(&dir);
        transfers.slow.remove(&dir);
        let is_refused = transfers.refused.take() == Some(dir);
        let failed = transfers.failed.remove(&dir);
        match result {
            Ok(_) if is_refused => {}
            Ok(_) if self.state.inodes.contains_key(&dir) => self.note_growth(dir),
            // The record has been removed.
            Ok(_) | Err(Errno::ESTALE) => drop(transfers.moves.remove(&dir)),
            Err(_) => {
                transfers.counts.failed_steps += 1;
                let pause = failed.map_or(1, |retry| (2 * retry.pause).min(LONGEST_PAUSE));
                transfers.failed.insert(dir, Retry { at_tick: Some(self.ticks + pause), pause });
            }
        }
    }

    /// Tries failed transfers at the next tick: the rank that they need may be there again.
    pub(crate) fn hasten_transfers(&mut self) {
        for retry in self.transfers.failed.values_mut() {
            retry.at_tick = retry.at_tick.map(|_| 0);
        }
    }

    /// Called with each tick: failed transfers and those from before a restart become due again,
    /// and those that wait long for another rank are withdrawn.
    pub(crate) fn retry_transfers(&mut self, out: &mut Outbox) {
        let DueTransfers { due, failed, .. } = &mut self.transfers;
        for (dir, retry) in failed {
            if retry.at_tick.is_some_and(|at| at <= self.ticks) {
                retry.at_tick = None;
                due.insert(*dir);
            }
        }
        let begun = self.state.moves.ceding().iter().filter(|dir| !self.transfers.is_known(**dir));
        self.transfers.due.extend(begun.copied().collect::<Vec<_>>());
        let slow = core::mem::replace(&mut self.transfers.slow, self.transfers.running.clone());
        let stuck = self.tasks.iter().filter_map(|(number, task)| match task.request {
            Request::Transfer { dir } if slow.contains(&dir) => Some((*number, dir)),
            _ => None,
        });
        for (number, dir) in stuck.collect::<Vec<_>>() {
            if self.ranks.stop_waiting(|waiting| *waiting == number).is_some()
                && let Some(mut task) = self.tasks.remove(&number)
            {
                self.give_back(&mut task, out);
                self.transfer_ended(dir, &Err(Errno::EAGAIN));
            }
        }
    }

    /// Has the records of a directory move to a rank: all of them, or the one with this number.
    ///
    /// # Errors
    /// `EPERM`: the caller is not the superuser. `EINVAL`: there is no such rank or record, or the
    /// text is neither `RANK` nor `INODE RANK`. `EBUSY`: the directory is decoupled, or pinned to
    /// another rank.
    pub(crate) fn request_moves(&mut self, cx: &mut Cx<'_>, dir: Ino, text: &[u8]) -> Step<Reply> {
        let inode = self.state.dir(dir)?;
        if !cx.caller.is_superuser() {
            return Err(Errno::EPERM.into());
        }
        let (record, to) = parse_move(text).ok_or(Errno::EINVAL)?;
        if to.0 >= self.config.ranks || inode.fragment().is_some() {
            return Err(Errno::EINVAL.into());
        }
        let map = self.map_of(dir)?;
        let is_named = |ino: &Ino| record.is_none_or(|record| record == *ino);
        let records: Vec<Ino> = map.fragments().map(|(_, ino)| ino).filter(is_named).collect();
        if records.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        let mut waits = false;
        for fragment in records.into_iter().filter(|ino| ino.rank() != to) {
            let answer = match fragment.rank() {
                rank if rank == self.config.rank => self.answer_move(fragment, to, MoveScope::Names),
                rank => {
                    let scope = MoveScope::Names;
                    self.query_rank(cx, rank, Question::MoveFragment { fragment, to, scope })
                }
            };
            match answer {
                // The record has just moved.
                Ok(_) | Err(Stop::Fail(Errno::ESTALE)) => {}
                Err(Stop::Wait(Wait::Peers)) => waits = true,
                Err(stop) => return Err(stop),
            }
        }
        if waits { Err(Stop::Wait(Wait::Peers)) } else { Ok(Reply::Done) }
    }

    /// Has a directory record of this rank move to another one.
    pub(crate) fn answer_move(&mut self, fragment: Ino, to: Rank, scope: MoveScope) -> Step<PeerAnswer> {
        let inode = self.state.dir(fragment)?;
        if inode.decoupled().is_some() || self.pinned_rank(inode).is_some_and(|rank| rank != to) {
            return Err(Errno::EBUSY.into());
        }
        let former = self.transfers.moves.insert(fragment, RequestedMove { to, scope });
        if former.is_some_and(|former| former.to != to) {
            self.transfers.failed.remove(&fragment);
        }
        self.note_growth(fragment);
        Ok(PeerAnswer::Moves)
    }
}

/// The rank of a directory among `ranks` that share all directories evenly. With each rank that
/// joins, only directories that it gets have another (jump consistent hashing).
fn distributed_rank(dir: Ino, ranks: u16) -> u16 {
    let (mut key, mut rank, mut next) = (dir.0, 0, 0);
    while next < u64::from(ranks) {
        rank = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((rank + 1) << 31) / ((key >> 33) + 1);
    }
    rank as u16
}

/// The record, if one is given, and the rank of `RANK` or `INODE RANK`.
fn parse_move(text: &[u8]) -> Option<(Option<Ino>, Rank)> {
    let text = core::str::from_utf8(text).ok()?.trim();
    let (record, rank) = match text.split_once(' ') {
        Some((record, rank)) => (Some(Ino(record.parse().ok()?)), rank),
        None => (None, text),
    };
    Some((record, Rank(rank.parse().ok()?)))
}
