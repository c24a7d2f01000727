//! Transfers of names from one record of a directory to another: a fragment that splits gives half
//! of its hashes to a new one at the next server of its directory's list (wu 3.4), one that merges
//! returns them, and one that moves gives all to a record at another rank.
//!
//! A transfer moves names in steps, from one end of the hashes, and other operations run between
//! two steps. A step is a transaction of the record's rank with the other record's, the directory's
//! home and the ranks of inodes whose names move. The record is frozen while the others prepare. An
//! inode stays at its rank, and its name becomes a remote dentry: files that are made after the
//! transfer lie with their names again.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use espalier_proto::{Cession, CessionKind, Errno, FragmentMap, Ino, LAST_CURSOR, Rank, Reply, Time};

use super::due::{Outlook, Reason};
use super::new_fragment;
use super::subtree::MoveScope;
use crate::machine::{Cx, Final, Meta};
use crate::rank::{Edit, FragmentName, PeerAnswer, Question};
use crate::record::{Body, Inode, PastTransfer, Referent, SplitCause, TransferKind};
use crate::state::Target;
use crate::step::{Step, Stop, Wait};

/// Maximum size in bytes of the names that a step moves: they are in one message and one event.
const MAX_BYTES: usize = 256 << 10;
/// Size of a name with its inode in a message, in bytes, besides the name's length.
const NAME_BYTES: usize = 24;

/// A step of a transfer.
struct TransferStep {
    map: FragmentMap,
    /// New records, with their fragments' numbers.
    new: Vec<(usize, Ino)>,
    /// The kind of transfer, and the record that gets the names; absent if none move.
    receiver: Option<(CessionKind, Ino)>,
    names: Vec<FragmentName>,
    is_done: bool,
}

impl TransferStep {
    /// The transfer from a record that ends with this step.
    fn ended(&self, record: Ino) -> Option<PastTransfer> {
        let (kind, to) = self.receiver.filter(|_| self.is_done)?;
        let kind = match kind {
            CessionKind::Split(_) => TransferKind::Split,
            CessionKind::Merge => TransferKind::Merge,
            CessionKind::Move(_) => TransferKind::Move,
        };
        let (first, last) = self.map.hashes(to).into_inner();
        let at = Time::default();
        Some(PastTransfer { kind, from: record.rank(), to: to.rank(), first, last, at })
    }
}

impl Meta {
    /// Takes a step of a transfer from a directory record, if one is due.
    pub(crate) fn transfer(&mut self, cx: &mut Cx<'_>, record: Ino) -> Step<Final<'_>> {
        self.growable()?;
        let inode = self.state.dir_even_if_locked(record)?;
        if let Err(load @ Stop::Wait(_)) = self.state.check_blocked_dir(record) {
            return Err(load);
        }
        let Outlook::Due(reason) = self.outlook(inode) else { return Ok(Final::of(Reply::Done)) };
        let (inode, dir) = (inode.clone(), self.state.whole_dir(record)?);
        let mut map = match inode.fragment_map() {
            Some(map) => map.clone(),
            None if dir == record => FragmentMap::new(dir, self.config.ranks),
            None => self.query_map(cx, dir)?,
        };
        map.grow(self.config.ranks);
        let is_split = matches!(reason, Reason::Split(_));
        let step = if is_split && map.version() == 0 && !inode.has_entries() {
            self.spread(cx, &inode, &map)?
        } else {
            let Some((cession, to, is_new)) = self.cession(cx, &inode, reason, &map)? else {
                return Ok(Final::of(Reply::Done));
            };
            self.cede(cx, &inode, &map, &cession, (to, is_new))?
        };
        let moved = self.transfers.moves.get(&record).copied();
        let moved = moved.filter(|moved| {
            let is_move = matches!(step.receiver, Some((CessionKind::Move(to), _)) if to.rank() == moved.to);
            is_move && moved.scope == MoveScope::Subtree
        });
        let nested = moved.map_or(Ok(Vec::new()), |_| self.nested_records(cx, &step.names))?;
        let cause = if let Reason::Split(cause) = reason { Some(cause) } else { inode.split_cause() };
        let edits = edits(&inode, dir, &map, &step, cause);
        let rank = self.config.rank;
        let (own, others): (Vec<_>, Vec<_>) = edits.into_iter().partition(|edit| edit.rank() == rank);
        self.revoke_absent(cx, record, &step.map.hashes(record))?;
        self.revoke_edits(cx, &own)?;
        self.freeze(cx, record)?;
        self.prepare_edits(cx, &others)?;
        self.unfreeze(cx.coordinator());
        self.commit_edits(cx, own, |meta, _| {
            meta.count_step(record, reason, &step);
            if let Some(moved) = moved {
                meta.follow(&nested, moved);
            }
            Reply::Done
        })
    }

    fn count_step(&mut self, record: Ino, reason: Reason, step: &TransferStep) {
        let counts = &mut self.transfers.counts;
        counts.names_moved += step.names.len() as u64;
        if matches!(reason, Reason::Split(SplitCause::Requests { .. })) {
            counts.splits_by_rate += step.new.len() as u64;
        }
        let done = u64::from(step.is_done);
        let splits = match step.receiver.map(|(kind, _)| kind) {
            None => step.new.len() as u64,
            Some(CessionKind::Split(_)) => done,
            Some(CessionKind::Merge | CessionKind::Move(_)) => 0,
        };
        counts.splits += splits;
        match step.receiver.map(|(kind, _)| kind) {
            Some(CessionKind::Merge) => counts.merges += done,
            Some(CessionKind::Move(_)) => counts.moves += done,
            Some(CessionKind::Split(_)) | None => {}
        }
        if splits > 0 {
            // The requests for the ceded names go to the new fragments.
            self.metrics.counters.divide(record, splits as usize + 1);
            self.transfers.hot.remove(record);
        }
    }

    /// Gives an empty directory, which is not partitioned yet, all the fragments that its policy
    /// wants at once (pre-distribution).
    fn spread(&mut self, cx: &mut Cx<'_>, inode: &Inode, map: &FragmentMap) -> Step<TransferStep> {
        let end = self.wanted_servers(inode).min(map.servers());
        let ranks: Vec<Rank> = (1..end.max(2)).filter_map(|number| map.rank(number)).collect();
        let new: Vec<(usize, Ino)> = (1..).zip(self.new_records(cx, &ranks)?).collect();
        let mut map = map.clone();
        for (number, ino) in &new {
            let first = *map.to_cede(*number).start();
            map.cede(*number, *ino, first);
        }
        Ok(TransferStep { map, new, receiver: None, names: Vec::new(), is_done: true })
    }

    /// The hashes that a record cedes, the record that gets them, and whether that is to be made.
    fn cession(
        &mut self,
        cx: &mut Cx<'_>,
        inode: &Inode,
        reason: Reason,
        map: &FragmentMap,
    ) -> Step<Option<(Cession, Ino, bool)>> {
        if let Some(cession) = map.cession(inode.ino) {
            let to = receiver(map, &cession).ok_or(Errno::EIO)?;
            // It must have carried out the step before, before this record is frozen.
            self.query_fragment(cx, to)?;
            return Ok(Some((cession, to, false)));
        }
        // The map and the record disagree; a later attempt may find that they agree.
        let number = map.number_of(inode.ino).filter(|number| map.is_at_rest(*number)).ok_or(Errno::EBUSY)?;
        let hashes = map.hashes(inode.ino);
        let mut new_at = |meta: &mut Self, rank| {
            meta.new_records(cx, &[rank])?.first().copied().ok_or(Stop::Fail(Errno::EIO))
        };
        Ok(match reason {
            Reason::Begun => return Err(Errno::EBUSY.into()),
            Reason::Move(rank) if number == 0 && map.dir().rank() == rank => {
                Some((Cession { number, kind: CessionKind::Move(map.dir()), hashes }, map.dir(), false))
            }
            Reason::Move(rank) => {
                let to = new_at(self, rank)?;
                Some((Cession { number, kind: CessionKind::Move(to), hashes }, to, true))
            }
            Reason::Split(_) => {
                let child = map.next_split(number).ok_or(Errno::EBUSY)?;
                let to = new_at(self, map.rank(child).ok_or(Errno::EIO)?)?;
                let cession = Cession { number, kind: CessionKind::Split(child), hashes: map.to_cede(child) };
                Some((cession, to, true))
            }
            Reason::Merge => {
                let to = map.merge_target(number).and_then(|parent| map.ino(parent));
                let other = to.map(|to| self.query_fragment(cx, to)).transpose()?;
                let fits = other.is_some_and(|other| {
                    let entries = other.entries.saturating_add(inode.entries());
                    entries <= self.capacity(inode) / 2 && self.has_room_for(inode, &other.popularity)
                });
                let Some(to) = to.filter(|_| fits) else {
                    self.transfers.refused = Some(inode.ino);
                    return Ok(None);
                };
                Some((Cession { number, kind: CessionKind::Merge, hashes }, to, false))
            }
        })
    }

    fn cede(
        &mut self,
        cx: &mut Cx<'_>,
        inode: &Inode,
        map: &FragmentMap,
        cession: &Cession,
        (to, is_new): (Ino, bool),
    ) -> Step<TransferStep> {
        let (ceded, names) = self.names_to_cede(cx, inode, cession)?;
        let (first, last) = ceded.into_inner();
        let (mut map, number) = (map.clone(), cession.number);
        let mut new = Vec::new();
        match cession.kind {
            CessionKind::Split(child) => {
                map.cede(child, to, first);
                new.extend(is_new.then_some((child, to)));
            }
            CessionKind::Merge => map.give_back(number, last),
            CessionKind::Move(to) => {
                map.move_to(number, to, first);
                new.extend(is_new.then_some((number, to)));
            }
        }
        let is_done = map.cession(inode.ino).is_none();
        Ok(TransferStep { map, new, receiver: Some((cession.kind, to)), names, is_done })
    }

    /// The names at one end of a cession, as many as a step moves, and the hashes that they fill.
    fn names_to_cede(
        &self,
        cx: &Cx<'_>,
        inode: &Inode,
        cession: &Cession,
    ) -> Step<(RangeInclusive<u64>, Vec<FragmentName>)> {
        let Body::Directory(directory) = &inode.body else { return Err(Errno::EIO.into()) };
        let (start, end) = (*cession.hashes.start(), *cession.hashes.end());
        // Hashes are uniform.
        let all = inode.hashes();
        let per_name = ((*all.end()).min(LAST_CURSOR) - all.start()) / directory.entries.max(1);
        let mut width = per_name.saturating_mul(self.config.split_names);
        if (end - start).saturating_sub(width) < per_name {
            width = end - start;
        }
        loop {
            width = width.min(end - start);
            let range = match cession.kind {
                CessionKind::Merge => start..=start + width,
                CessionKind::Split(_) | CessionKind::Move(_) => end - width..=end,
            };
            let names = self.names_in(cx, inode.ino, range.clone())?;
            let bytes: usize = names.iter().map(|name| name.name.len() + NAME_BYTES).sum();
            if bytes <= MAX_BYTES || width == 0 {
                return Ok((range, names));
            }
            width /= 2;
        }
    }

    /// Allocates inode numbers for new records at these ranks.
    fn new_records(&mut self, cx: &mut Cx<'_>, ranks: &[Rank]) -> Step<Vec<Ino>> {
        let mut inos = Vec::with_capacity(ranks.len());
        let mut waits = false;
        for rank in ranks {
            match self.query_rank(cx, *rank, Question::NewNumber) {
                Ok(PeerAnswer::Number { ino }) => inos.push(ino),
                Ok(_) => return Err(Errno::EIO.into()),
                Err(Stop::Wait(Wait::Peers)) => waits = true,
                Err(stop) => return Err(stop),
            }
        }
        if waits { Err(Stop::Wait(Wait::Peers)) } else { Ok(inos) }
    }

    /// Allocates an inode number for another rank, which makes an inode here later.
    pub(crate) fn answer_new_number(&mut self) -> Step<PeerAnswer> {
        self.growable()?;
        let ino = self.new_ino()?;
        // A restarted machine continues above all numbers that it may have allocated.
        self.state.numbers.note_used(ino.0 + 1);
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
                let referent = match target {
                    Target::Primary(ino) => self.state.referent_here(ino)?,
                    Target::Remote(referent) => referent,
                    Target::Absent => continue,
                };
                if !range.contains(&slot.hash) {
                    return Ok(names);
                }
                names.push(FragmentName { name: slot.name, referent });
            }
            after = last;
        }
    }
}

/// The record that gets what another one has begun to cede.
fn receiver(map: &FragmentMap, cession: &Cession) -> Option<Ino> {
    match cession.kind {
        CessionKind::Split(child) => map.ino(child),
        CessionKind::Merge => map.ino(cession.number & !(1 << cession.number.ilog2())),
        CessionKind::Move(to) => Some(to),
    }
}

/// The edits of a step of a transfer from a record, at all ranks.
fn edits(
    inode: &Inode,
    dir: Ino,
    before: &FragmentMap,
    step: &TransferStep,
    cause: Option<SplitCause>,
) -> Vec<Edit> {
    let (record, map) = (inode.ino, &step.map);
    let make = |(number, ino): &(usize, Ino)| Edit::Make {
        inode: Box::new(new_fragment(inode, *ino, dir, *number as u16, &map.hashes(*ino), cause)),
    };
    let mut edits: Vec<Edit> = step.new.iter().map(make).collect();
    let ended = step.ended(record);
    edits.push(Edit::SetMap { dir, map: map.clone(), after: before.version(), ended });
    let Some((_, to)) = step.receiver else { return edits };
    let mut by_rank: BTreeMap<Rank, Vec<Ino>> = BTreeMap::new();
    for Referent { ino, at, .. } in step.names.iter().map(|name| name.referent) {
        if at != record.rank() {
            by_rank.entry(at).or_default().push(ino);
        }
    }
    let moves = |(at, inodes)| Edit::MoveNames { from: record, to, at, inodes };
    edits.extend(by_rank.into_iter().map(moves));
    let (names, is_done) = (step.names.clone(), step.is_done);
    // The record cedes its names before another one of its rank accepts them.
    edits.push(Edit::CedeNames {
        fragment: record,
        to,
        rest: map.hashes(record).into_inner(),
        names,
        is_done,
    });
    let (hashes, names) = (map.hashes(to).into_inner(), step.names.clone());
    edits.push(Edit::AcceptNames { fragment: to, hashes, names });
    if record != dir && map.number_of(record).is_none() {
        edits.push(Edit::Unlink { ino: record, at: record.rank(), dir, owner: None, map_version: 0 });
    }
    edits
}
