//! The rank at which an inode is.
//!
//! The rank of an inode's number is its *home*. A file may be *relocated* to another rank, where
//! its only name is (`crate::fragment::pull`): then its home has a record that says to which.
//! Invariants: an inode is at one rank; a transaction that moves it changes the record too; a
//! remote dentry says where its inode is. Directories are always at home.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Name, ObjectId, Rank, Recall, Reply};
use serde::{Deserialize, Serialize};

use super::message::{PeerAnswer, PeerMessage};
use super::participant::PeerRequest;
use crate::counts::InodeCounts;
use crate::event::Event;
use crate::lease::ReadSet;
use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::record::{Body, Corrupt, InoRecord, Inode, Xattrs, decode, encode};
use crate::session::PersistedKey;
use crate::state::{Cached, Location, State, wait_record};
use crate::step::{Load, Step, Stop, Wait};
use crate::table::{Record, Track};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;
use crate::usage::Usage;

/// Maximum number of inode numbers in a message about removed inodes.
const MOST_FREED: usize = 1000;
/// Maximum size in bytes of the files that move in a transaction: they are in one message and one
/// event.
const MAX_MOVED_BYTES: usize = 256 << 10;
/// Number of clean relocation records that stay in memory.
const MOST_CLEAN: usize = 1 << 16;

/// The record of an inode's home that says at which rank the inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocation {
    pub at: Rank,
}

impl Record for Relocation {
    type Key = Ino;

    fn place(ino: Ino) -> (ObjectId, Vec<u8>) {
        InoRecord::Relocation.place(ino)
    }

    fn encode(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        decode(value)
    }
}

/// Removed inodes of another home, of which that home still has relocation records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FreedNumbers {
    pub inodes: BTreeSet<Ino>,
}

impl Record for FreedNumbers {
    type Key = Rank;

    fn place(home: Rank) -> (ObjectId, Vec<u8>) {
        PersistedKey::FreedNumbers(home).place()
    }

    fn encode(&self) -> Option<Vec<u8>> {
        (!self.inodes.is_empty()).then(|| encode(self))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        decode(value)
    }
}

/// All that an inode's rank stores of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeFile {
    pub inode: Inode,
    /// The stored bytes of a stuffed file.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    pub xattrs: Xattrs,
}

impl State {
    /// True if the number was drawn at this rank.
    pub(crate) fn is_home_of(&self, ino: Ino) -> bool {
        ino.rank() == self.rank()
    }

    /// Why an inode is not in memory: it is at another rank, or else `stop`.
    pub(crate) fn missing(&self, ino: Ino, stop: Stop) -> Stop {
        match self.relocations.get(&ino) {
            Some(relocation) => Stop::Relocated(ino, relocation.at),
            None => stop,
        }
    }

    /// The rank at which this home's inode is.
    ///
    /// # Errors
    /// `ESTALE`, after a load: there is no record.
    fn relocation(&self, ino: Ino) -> Step<Rank> {
        let relocation = self.relocations.get(&ino);
        relocation.map(|it| it.at).ok_or_else(|| wait_record(InoRecord::Relocation, ino))
    }

    pub(crate) fn load_relocation(&mut self, ino: Ino, value: &[u8]) -> Result<(), Corrupt> {
        if self.changes.is_outdated(ino) { Ok(()) } else { self.relocations.load(ino, value) }
    }

    /// A file that may move to the rank of its only name, which is in `dir`, and its size as far as
    /// it is stored with the inode; `None`: the file stays for now.
    ///
    /// # Errors
    /// [`Stop::Wait`] if its records must be loaded.
    fn movable(&self, ino: Ino, dir: Ino) -> Step<Option<(&Cached, usize)>> {
        let cached = self.cached(ino)?;
        let inode = &cached.inode;
        let is_movable = cached.location == Location::Table
            && !inode.is_dir()
            && !inode.is_streamed()
            && inode.nlink == 1
            && inode.rare.names.as_deref().is_some_and(|names| names[..] == [(dir, 1)])
            && !cached.in_use()
            && !self.size_dirty.contains(ino);
        if !is_movable {
            return Ok(None);
        }
        let xattrs = Record::bytes(self.xattr_list(ino)?);
        let body = match &inode.body {
            Body::Symlink(target) => target.len(),
            Body::Stuffed { stored, .. } => *stored as usize,
            _ => 0,
        };
        Ok(Some((cached, body + xattrs)))
    }

    /// All that is stored of a file; loads it.
    pub(crate) fn whole_file(&self, ino: Ino) -> Step<WholeFile> {
        let (bytes, xattrs) = (self.strip(ino)?.to_vec(), self.xattr_list(ino)?.clone());
        Ok(WholeFile { inode: self.inode(ino)?.clone(), bytes, xattrs })
    }

    /// Gives a file, whose only name is in `dir`, to the rank of that name.
    pub(crate) fn give_file(&mut self, ino: Ino, dir: Ino) {
        let counts = self.inodes.get(&ino).map(|cached| InodeCounts::of(&cached.inode)).unwrap_or_default();
        self.owe_loss(dir, ino);
        self.forget_moved(ino);
        self.drop_inode(ino);
        self.counts.remove(counts);
        if self.is_home_of(ino) {
            self.relocate(ino, dir.rank());
        }
    }

    /// Takes a file whose only name is in `dir` of this rank.
    pub(crate) fn adopt_file(&mut self, dir: Ino, name: &Name, file: &WholeFile) {
        let (slot, ino) = (self.slot(name), file.inode.ino);
        if self.is_home_of(ino) {
            self.return_home(ino);
        } else {
            self.moves.note_relocated();
        }
        self.count(dir, file.inode.weight(), Usage::default());
        self.erase_cell(dir, &slot);
        self.counts.add(InodeCounts::of(&file.inode));
        let mut inode = file.inode.clone();
        inode.rare.names = None;
        self.add_inode(Cached::new(inode, Location::Orphan, Track::default()));
        self.touch_inode(ino);
        self.put_primary(dir, slot, ino);
        if !file.bytes.is_empty() {
            self.change_strip(ino, |bytes| bytes.clone_from(&file.bytes));
        }
        if !file.xattrs.is_empty() {
            self.change_xattrs(ino, |xattrs: &mut Xattrs| xattrs.clone_from(&file.xattrs));
        }
    }

    /// Records that an inode of this home is at another rank.
    pub(crate) fn relocate(&mut self, ino: Ino, at: Rank) {
        self.moves.note_relocated();
        let set = |relocation: &mut Relocation| relocation.at = at;
        self.relocations.change_or_insert(ino, &mut self.changes, || Relocation { at }, set);
    }

    /// Removes the record of an inode that is at this home again, or is removed.
    fn return_home(&mut self, ino: Ino) {
        self.relocations.remove(ino, &mut self.changes);
        // The record may be in the store without being in memory.
        self.changes.erase_inode(ino, InoRecord::Relocation.place(ino));
    }

    /// Notes that an inode of another home has been removed here.
    pub(crate) fn note_freed(&mut self, ino: Ino) {
        if !self.is_home_of(ino) {
            self.change_freed(ino.rank(), |freed| freed.inodes.extend([ino]));
        }
    }

    /// The home of these inodes drops its records: they have been removed at another rank.
    pub(crate) fn apply_freed(&mut self, inodes: &[Ino]) {
        inodes.iter().for_each(|ino| self.return_home(*ino));
    }

    /// A home has dropped its records of these inodes.
    pub(crate) fn apply_freed_acknowledged(&mut self, home: Rank, inodes: &[Ino]) {
        self.change_freed(home, |freed| {
            for ino in inodes {
                freed.inodes.remove(ino);
            }
        });
    }

    fn change_freed(&mut self, home: Rank, change: impl FnOnce(&mut FreedNumbers)) {
        self.freed.change_or_insert(home, &mut self.changes, FreedNumbers::default, change);
    }

    /// Evicts the records that are in the store, if there are many.
    pub(crate) fn shrink_relocations(&mut self) {
        if self.relocations.len() > 2 * MOST_CLEAN {
            self.relocations.evict_clean(self.changes.published());
        }
    }
}

impl Meta {
    /// The rank that has an inode, as far as this rank knows. If another rank knows better, it
    /// says so when it is asked ([`PeerAnswer::Relocated`]), and the operation starts over.
    pub(crate) fn rank_of(&self, cx: &mut Cx<'_>, ino: Ino) -> Step<Rank> {
        let own = self.config.rank;
        if let Some(at) = cx.located(ino) {
            return Ok(at);
        }
        if self.state.is_home_of(ino) {
            if !self.state.moves.has_relocated() {
                return Ok(own);
            }
            return match self.state.cached(ino) {
                Err(Stop::Relocated(_, at)) => Ok(at),
                found => found.map(|_| own),
            };
        }
        let is_here = self.state.inodes.contains_key(&ino) || self.state.known.contains_key(&ino);
        if is_here || !self.state.moves.has_relocated() {
            return Ok(if is_here { own } else { ino.rank() });
        }
        // The record of its place says if it is here.
        let stop = wait_record(InoRecord::Place, ino);
        match &stop {
            Stop::Wait(Wait::Load(load)) if cx.loaded == Some(load) => {
                // Not loaded again when the operation starts over: it would never find that
                // another record is missing.
                cx.note_location(ino, ino.rank());
                Ok(ino.rank())
            }
            _ => Err(stop),
        }
    }

    /// Answers an operation on an inode that is at another rank. `at`: where it is, or its home,
    /// which knows.
    pub(crate) fn relocated(&mut self, now: Now, mut task: Task, ino: Ino, at: Rank, out: &mut Outbox) {
        if let Some(PeerRequest::Answer { from, id, .. }) = task.peer_request.as_deref() {
            let (from, id) = (*from, *id);
            self.give_back(&mut task, out);
            return self.answer_peer(from, id, PeerAnswer::Relocated { ino, at });
        }
        if task.from == INTERNAL_CLIENT || task.peer_request.is_some() || task.request.is_internal() {
            return self.refuse(now, &mut task, Errno::ESTALE, out);
        }
        self.pulls.counts.redirected += 1;
        self.give_back(&mut task, out);
        self.finish(now, &task, false, ReadSet::default(), Ok(Reply::Relocated { ino, at }), out);
    }

    /// The load that shows where an inode is that is not in the tables; `None`: it is nowhere, or
    /// its home is another rank.
    pub(crate) fn other_place(&self, ino: Ino) -> Option<Load> {
        let may_be_relocated = self.state.moves.has_relocated() && self.state.is_home_of(ino);
        let (object, key) = InoRecord::Relocation.place(ino);
        may_be_relocated.then_some(Load::Record { object, key })
    }

    // ---- Moves, as transactions

    /// The inodes among these names' that may move to the rank of the names, up to a bound on their
    /// size. Clients that know others of them are asked to forget them.
    pub(crate) fn answer_movable(&mut self, dir: Ino, names: &[(Name, Ino)]) -> Step<PeerAnswer> {
        let (mut inodes, mut bytes, mut recalled) = (Vec::new(), 0, Vec::new());
        for (name, ino) in names.iter().filter(|_| !self.sessions.in_grace()) {
            match self.movable(*ino, dir) {
                Ok(Some(size)) => {
                    bytes += size;
                    if bytes > MAX_MOVED_BYTES && !inodes.is_empty() {
                        break;
                    }
                    inodes.push(*ino);
                }
                Ok(None) => {
                    let cached = self.state.inodes.get(ino);
                    let is_idle = cached.is_some_and(|cached| cached.lookups > 0 && cached.opens == 0);
                    if is_idle {
                        let (dir, name) = (Some(dir), Some(name.clone()));
                        recalled.push(Recall { ino: *ino, dir, name });
                    }
                }
                Err(stop @ Stop::Wait(Wait::Load(_) | Wait::Hint(..))) => return Err(stop),
                Err(_) => {}
            }
        }
        self.sessions.recalls.append(&mut recalled);
        Ok(PeerAnswer::Movable { inodes })
    }

    /// As [`State::movable`].
    fn movable(&self, ino: Ino, dir: Ino) -> Step<Option<usize>> {
        let movable = self.state.movable(ino, dir)?;
        let stays = |cached: &Cached| {
            matches!(cached.inode.body, Body::Stuffed { .. }) && !self.leaves_no_datafile(ino)
        };
        Ok(movable.filter(|(cached, _)| !stays(cached)).map(|(_, size)| size))
    }

    /// Checks that all of these inodes may move.
    pub(crate) fn check_movable(&self, dir: Ino, inodes: &[Ino]) -> Step<()> {
        if self.sessions.in_grace() {
            return Err(Errno::EAGAIN.into());
        }
        for ino in inodes {
            self.movable(*ino, dir)?.ok_or(Errno::EAGAIN)?;
        }
        Ok(())
    }

    /// Checks that inodes of this home are at `from`.
    pub(crate) fn check_relocated(&self, from: Rank, inodes: &[Ino]) -> Step<()> {
        for ino in inodes {
            if self.state.relocation(*ino)? != from {
                return Err(Errno::EAGAIN.into());
            }
        }
        Ok(())
    }

    // ---- Removed inodes

    /// Has homes drop their records of inodes that have been removed here; again until they
    /// acknowledge that.
    pub(crate) fn send_freed(&mut self) {
        let freed: Vec<(Rank, Vec<Ino>)> = self
            .state
            .freed
            .sorted()
            .filter(|(_, freed)| !freed.inodes.is_empty())
            .map(|(home, freed)| (*home, freed.inodes.iter().copied().take(MOST_FREED).collect()))
            .collect();
        for (home, inodes) in freed {
            self.send_to_rank_when_durable(home, PeerMessage::Freed { inodes });
        }
    }

    pub(crate) fn freed(&mut self, from: Rank, inodes: Vec<Ino>) {
        let is_home = inodes.iter().all(|ino| self.state.is_home_of(*ino));
        if !is_home || self.config.read_only {
            return;
        }
        self.append_loaded(&Event::Freed { inodes: inodes.clone() });
        self.send_to_rank_when_durable(from, PeerMessage::FreedAcknowledged { inodes });
    }

    pub(crate) fn freed_acknowledged(&mut self, home: Rank, inodes: Vec<Ino>) {
        let is_new = self
            .state
            .freed
            .get(&home)
            .is_some_and(|freed| inodes.iter().any(|ino| freed.inodes.contains(ino)));
        if is_new {
            self.append_loaded(&Event::FreedAcknowledged { home, inodes });
        }
    }
}
