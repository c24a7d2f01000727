//! Changes that callers are told of before the server has answered, where nobody else can see the difference: files made and removed in a
//! directory on which this client has an exclusive lease ([`Touched::exclusive`]). They are sent at once, and what depends on them is
//! kept back until they are answered: other calls about the same names and inodes, whatever is to be durable, and the lease, if the server
//! wants it back.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{
    self as proto, Attr, Caller, Errno, FileType, FromClient, Ino, Name, NewNode, Opened, Rank, Reply,
    Request, RequestId, Time, Touched, mode,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::{Asked, ForDoor, Sessions, Told};
use crate::cache::new_file;
use crate::{Answer, Binding, Call, Interrupt};

/// So many changes may be told and not answered: more than a network holds, and few enough that who comes behind them does not wait for long.
const MOST: usize = 64;
/// So many numbers are kept in stock; more are asked for when half of them are left.
const STOCK: u32 = Request::MAX_NUMBERS;
/// The server's clock is asked for again after so many milliseconds: this one may be slower.
const CLOCK_MS: u64 = 60_000;
/// A server that gives no numbers, as to those who may only read, is asked again after so long.
const REFUSED_MS: u64 = 60_000;

/// How a file is opened that has just been made.
const NEW: Opened = Opened { streamed: false, keep_cache: true, limited: false, proof: 0 };

/// What has been told and not answered, and what waits for that.
#[derive(Debug)]
pub(super) struct Early<T> {
    changes: HashMap<(Rank, RequestId), Change, FxBuildHasher>,
    supplies: BTreeMap<Rank, Supply>,
    /// Calls that come after what has been told, in their order.
    behind: VecDeque<Asked<'static, T>>,
    /// New files that have been closed.
    closed: Vec<Ino>,
    revoked: Vec<Revoked>,
    /// What could not be done is to be told to whoever wants it to be durable.
    failed: BTreeMap<Ino, Errno>,
}

/// A change that callers have been told of.
#[derive(Debug)]
struct Change {
    dir: Ino,
    name: Name,
    ino: Ino,
    sent: u64,
}

/// What a server has given for changes to come.
#[derive(Debug, Default)]
struct Supply {
    numbers: VecDeque<Ino>,
    /// What its clock has said, and when.
    clock: Option<(Time, u64)>,
    /// It has been asked for more.
    asked: Option<RequestId>,
    /// It did not give any then, and is not asked before this time.
    refused_until: u64,
}

/// A lease that a server wants back.
#[derive(Debug)]
struct Revoked {
    rank: Rank,
    number: u64,
    ino: Ino,
    /// The door has given it up.
    by_door: bool,
}

impl<T> Default for Early<T> {
    fn default() -> Self {
        Self {
            changes: HashMap::default(),
            supplies: BTreeMap::new(),
            behind: VecDeque::new(),
            closed: Vec::new(),
            revoked: Vec::new(),
            failed: BTreeMap::new(),
        }
    }
}

impl<T> Early<T> {
    /// Whether a request makes a change that callers have been told of.
    pub fn is_change(&self, rank: Rank, id: RequestId) -> bool {
        self.changes.contains_key(&(rank, id))
    }

    /// When it was sent.
    pub fn sent(&self, rank: Rank, id: RequestId) -> Option<u64> {
        self.changes.get(&(rank, id)).map(|change| change.sent)
    }
}

impl Supply {
    /// The server's time, or a little before.
    fn time(&self, now: u64) -> Option<Time> {
        let (time, at) = self.clock.filter(|(_, at)| now - at < CLOCK_MS)?;
        Some(time.later(now - at))
    }

    fn is_short(&self, now: u64) -> bool {
        let is_due = self.asked.is_none() && now >= self.refused_until;
        is_due && (self.wanted() > 0 || self.time(now).is_none())
    }

    fn wanted(&self) -> u32 {
        if self.numbers.len() > STOCK as usize / 2 { 0 } else { STOCK }
    }
}

impl<T> Sessions<T> {
    // ---- Telling early

    /// Answers a call that changes a directory which this client is alone in, and sends it. Returns for how many milliseconds the answer
    /// may be cached.
    pub(super) fn answer_early(&mut self, now: u64, asked: &Asked<'_, T>) -> Option<(Answer, u64)> {
        let Call::Request(request) = &asked.call else { return None };
        let (Request::Create { dir, name, node: NewNode::Regular, .. } | Request::Unlink { dir, name, .. }) =
            request
        else {
            return None;
        };
        let (dir, rank) = (*dir, dir.rank());
        let parent = self.cache.alone_in(dir, now).filter(|_| self.shares_names)?;
        let time = self.early.supplies.get(&rank)?.time(now)?;
        let is_ready = self.ends.get(&rank)?.link.is_ready() && self.early.changes.len() < MOST;
        if !is_ready || self.cache.is_early_name(dir, name) || !may_change(&parent, &asked.caller) {
            return None;
        }
        let (ino, request, answer, left) = match request {
            Request::Create { perm, umask, open, .. } => {
                // Whether it may keep that bit depends on all of the caller's groups.
                if !self.cache.is_absent(dir, name, now) || perm & mode::SET_GID != 0 {
                    return None;
                }
                let ino = self.early.supplies.get_mut(&rank)?.numbers.pop_front()?;
                let gid = if parent.perm & mode::SET_GID != 0 { parent.gid } else { asked.caller.gid };
                let rights = (perm & mode::PERMISSIONS & !umask, asked.caller.uid, gid);
                let (entry, until) =
                    self.cache.make_early((dir, name), &parent, new_file(ino, rights, time), now);
                let mut request = request.clone();
                if let Request::Create { early, .. } = &mut request {
                    *early = Some(proto::Early { ino, time });
                }
                let answer = match open {
                    Some(_) => Answer::Created(entry, self.client.opened(ino, NEW)),
                    None => Answer::Entry(entry),
                };
                (ino, request, answer, until - now)
            }
            _ => {
                let attr = self.cache.alone_with(dir, name, now)?;
                let is_plain = attr.kind != FileType::Directory && attr.nlink == 1 && !attr.streamed;
                let owners = [0, attr.uid, parent.uid];
                let may = parent.perm & mode::STICKY == 0 || owners.contains(&asked.caller.uid);
                if !is_plain || !may || self.client.files.contains_key(&attr.ino) {
                    return None;
                }
                self.cache.remove_early(dir, name, attr.ino, time);
                (attr.ino, Request::Unlink { dir, name: name.clone(), time: Some(time) }, Answer::Done, 0)
            }
        };
        let id = self.end(rank)?.ask(asked.caller.clone(), request);
        self.early.changes.insert((rank, id), Change { dir, name: name.clone(), ino, sent: now });
        Some((answer, left))
    }

    /// Takes what a server says of a change that was told early. Whether it is one.
    pub(super) fn early_reply(
        &mut self,
        now: u64,
        of: (Rank, RequestId),
        (lease, touched): (u64, &Touched),
        result: &Result<Reply, Errno>,
        told: &mut Told<T>,
    ) -> bool {
        let Some(Change { dir, name, ino, sent }) = self.early.changes.remove(&of) else { return false };
        self.cache.end_early(dir, &name, ino);
        let lease = lease.saturating_sub(now.saturating_sub(sent) + 1);
        match result {
            Ok(Reply::Entry(entry) | Reply::Created(entry, _)) if entry.attr.ino == ino => {
                let until = if lease == 0 { 0 } else { now + lease };
                self.cache.made_early(dir, &name, entry, until, now);
                if until == 0 || !entry.name_leased || !entry.attr_leased {
                    // Callers were told that they may cache it.
                    told.door.push(ForDoor::Distrust([ino].into()));
                }
            }
            Ok(Reply::Done) => self.cache.removed_early(dir, &name),
            Ok(_) => self.early_failed((dir, name, ino), Errno::EIO, told),
            Err(errno) => self.early_failed((dir, name, ino), *errno, told),
        }
        self.cache.changed(touched, lease, now);
        true
    }

    fn early_failed(&mut self, (dir, name, ino): (Ino, Name, Ino), errno: Errno, told: &mut Told<T>) {
        self.cache.failed_early(dir, &name, ino);
        for ino in [dir, ino] {
            self.early.failed.entry(ino).or_insert(errno);
        }
        while self.early.failed.len() > MOST {
            self.early.failed.pop_first();
        }
        told.door.push(ForDoor::Distrust([self.shown_as(dir), ino].into()));
        told.door.push(ForDoor::Failed { dir: self.shown_as(dir), name, errno });
    }

    /// What could not be done of what was told, if whoever wants it to be durable has not been told yet. Of the root: of all.
    pub(super) fn early_error(&mut self, call: &Call<'_>) -> Option<Errno> {
        let Call::Request(Request::Fsync { ino }) = call else { return None };
        match self.early.failed.remove(ino) {
            None if *ino == self.root => core::mem::take(&mut self.early.failed).into_values().next(),
            errno => errno,
        }
    }

    // ---- Waiting for what was told

    /// Keeps a call back if it depends on what was told and is not answered.
    pub(super) fn keep_behind<'a>(&mut self, now: u64, asked: Asked<'a, T>) -> Option<Asked<'a, T>> {
        if !self.comes_behind(now, &asked.call) {
            return Some(asked);
        }
        let Asked { call_id, caller, call, ticket } = asked;
        self.early.behind.push_back(Asked { call_id, caller, call: call.into_owned(), ticket });
        None
    }

    fn comes_behind(&self, now: u64, call: &Call<'_>) -> bool {
        if self.early.changes.is_empty() {
            return false;
        }
        let is_any = |inos: &[Ino]| inos.iter().any(|ino| self.cache.is_early(*ino));
        let is_named = |dir: Ino, name: &Name| {
            self.cache.is_early_name(dir, name)
                || match self.cache.name(dir, name, now) {
                    Some(Binding::Inode(ino, _)) => self.cache.is_early(ino),
                    Some(Binding::Absent) => false,
                    None => true,
                }
        };
        match call {
            Call::Request(request) => match request {
                // Everything that was done before is to be durable, or is about to be counted, copied or removed.
                Request::Fsync { .. }
                | Request::StatFs { .. }
                | Request::CopyTree(_)
                | Request::RemoveTree { .. } => true,
                Request::Lookup { dir, name }
                | Request::Create { dir, name, .. }
                | Request::Unlink { dir, name, .. }
                | Request::RmDir { dir, name } => is_named(*dir, name),
                Request::Link { ino, dir, name } => is_any(&[*ino]) || is_named(*dir, name),
                Request::Rename { from_dir, from, to_dir, to, .. } => {
                    is_named(*from_dir, from) || is_named(*to_dir, to)
                }
                request => {
                    let mut is_early = false;
                    request.clone().each_inode(&mut |ino| is_early |= self.cache.is_early(*ino));
                    is_early
                }
            },
            Call::Copy { from, to, .. } => is_any(&[*from, *to]),
            Call::Read { ino, .. }
            | Call::Write { ino, .. }
            | Call::Allocate { ino, .. }
            | Call::Seek { ino, .. }
            | Call::Release { ino } => is_any(&[*ino]),
        }
    }

    /// A new file is closed, of which the server is told when it has made it. Whether that is so.
    pub(super) fn close_early(&mut self, call: &Call<'_>) -> bool {
        let Call::Release { ino } = *call else { return false };
        let is_early = self.cache.is_early(ino)
            && !self.early.behind.iter().any(|asked| asked.call.stream() == Some(ino));
        if is_early {
            let _ = self.client.start(call);
            self.early.closed.push(ino);
        }
        is_early
    }

    /// Something that was told has been answered: what waits for that goes on.
    pub(super) fn go_on_behind(&mut self, now: u64, told: &mut Told<T>) {
        for ino in self.early.closed.extract_if(.., |ino| !self.cache.is_early(*ino)).collect::<Vec<_>>() {
            if let Some(end) = self.end(ino.rank()) {
                end.link.release(ino, &mut end.out);
            }
        }
        let cache = &self.cache;
        let is_due = |revoked: &mut Revoked| revoked.by_door && !cache.is_early(revoked.ino);
        for Revoked { rank, number, .. } in self.early.revoked.extract_if(.., is_due) {
            told.send.push((rank, FromClient::Revoked { number }));
        }
        let mut kept = VecDeque::new();
        while let Some(asked) = self.early.behind.pop_front() {
            if self.comes_behind(now, &asked.call) {
                kept.push_back(asked);
            } else {
                self.take(now, asked, told);
            }
        }
        kept.append(&mut self.early.behind);
        self.early.behind = kept;
    }

    /// As [`Sessions::interrupt`], of calls that are kept back.
    pub(super) fn interrupt_behind(
        &mut self,
        call_id: u64,
        dies: impl Fn(u32) -> bool,
        told: &mut Told<T>,
    ) -> Option<Interrupt> {
        let at = self.early.behind.iter().position(|asked| asked.call_id == call_id)?;
        if !self.early.behind.get(at).is_some_and(|asked| dies(asked.caller.pid)) {
            return Some(Interrupt::Survived);
        }
        let asked = self.early.behind.remove(at)?;
        told.answer(asked.ticket, Err(Errno::EINTR));
        Some(Interrupt::Heard)
    }

    /// A server wants a lease back: it gets it when what was told under it is answered.
    pub(super) fn revoke_early(&mut self, rank: Rank, number: u64, ino: Ino) {
        let is_known = |revoked: &Revoked| (revoked.rank, revoked.number) == (rank, number);
        if self.cache.is_early(ino) && !self.early.revoked.iter().any(is_known) {
            self.early.revoked.push(Revoked { rank, number, ino, by_door: false });
        }
    }

    /// The door has given up a lease. Whether the server is to be told so now.
    pub(super) fn is_given_up(&mut self, rank: Rank, number: u64) -> bool {
        let is_it = |revoked: &Revoked| (revoked.rank, revoked.number) == (rank, number);
        let Some(at) = self.early.revoked.iter().position(is_it) else { return true };
        if let Some(revoked) =
            self.early.revoked.get_mut(at).filter(|revoked| self.cache.is_early(revoked.ino))
        {
            revoked.by_door = true;
            return false;
        }
        self.early.revoked.swap_remove(at);
        true
    }

    /// How many changes callers have been told of that no server has answered.
    pub fn unanswered_changes(&self) -> usize {
        self.early.changes.len()
    }

    // ---- Servers

    /// Asks for what early changes need, where changes are under leases.
    pub(super) fn supply(&mut self, now: u64, rank: Rank) {
        let supply = self.early.supplies.entry(rank).or_default();
        if !supply.is_short(now) {
            return;
        }
        let request = Request::TakeNumbers { rank, count: supply.wanted() };
        let asked = self.end(rank).map(|end| end.ask(Caller::SERVER, request));
        if let Some(supply) = self.early.supplies.get_mut(&rank) {
            supply.asked = asked;
        }
    }

    /// Takes what was asked for so. Whether it is that.
    pub(super) fn supplied(
        &mut self,
        now: u64,
        (rank, id): (Rank, RequestId),
        result: &Result<Reply, Errno>,
    ) -> bool {
        let supply = self.early.supplies.get_mut(&rank).filter(|supply| supply.asked == Some(id));
        let Some(supply) = supply else { return false };
        supply.asked = None;
        match result {
            Ok(Reply::Numbers { first, count, time }) => {
                supply.numbers.extend((first.0..first.0 + u64::from(*count)).map(Ino));
                supply.clock = Some((*time, now));
            }
            _ => supply.refused_until = now + REFUSED_MS,
        }
        true
    }

    /// The session with a server goes on, or begins anew: then what was told early and not answered may not have been done.
    pub(super) fn early_connected(
        &mut self,
        rank: Rank,
        (is_new, is_lost): (bool, bool),
        lost: &[RequestId],
        told: &mut Told<T>,
    ) {
        if is_new {
            self.early.revoked.retain(|revoked| revoked.rank != rank);
        }
        if is_lost {
            self.early.supplies.remove(&rank);
        }
        for id in lost {
            if let Some(Change { dir, name, ino, .. }) = self.early.changes.remove(&(rank, *id)) {
                self.cache.end_early(dir, &name, ino);
                self.early_failed((dir, name, ino), Errno::EIO, told);
            }
        }
    }
}

/// Whether it is certain that a caller may make and remove names in a directory: of his groups only one is known.
fn may_change(dir: &Attr, caller: &Caller) -> bool {
    const WRITE_AND_EXEC: u32 = 0o3;
    let allows = |shift: u32| dir.perm >> shift & WRITE_AND_EXEC == WRITE_AND_EXEC;
    dir.bare
        && match caller.uid {
            0 => true,
            uid if uid == dir.uid => allows(6),
            _ if caller.gid == dir.gid => allows(3),
            _ => allows(3) && allows(0),
        }
}
