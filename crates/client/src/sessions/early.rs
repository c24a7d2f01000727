//! Metadata write-back: operations that are acknowledged before the server has applied them.
//! They are creates, removals and small writes in a directory on which this client has an exclusive
//! lease ([`Touched::exclusive`]). Calls on the same names and inodes, syncs, and the revocation of
//! the lease are blocked on pending operations.
//!
//! Pending operations are sent in batches, as small segments are by J. Nagle (RFC 896): the first
//! is sent at once, those that follow when its reply arrives. One message per operation would cost
//! both sides more than the operation.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{
    Access, Caller, END, Errno, FileType, FromClient, Ino, InodeFlags, Name, NewNode, OpenHow, Opened, Rank,
    Reads, Reply, Request, RequestId, Time, Touched, mode,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::rights::certainly_may;
use super::write_behind::WriteBehind;
use super::{Asked, End, ForDoor, Sessions, Told, Waiter};
use crate::cache::new_inode;
use crate::{Answer, Call};

/// Maximum number of pending operations: more than a network holds, and few enough to bound the
/// wait of a blocked call.
const MOST: usize = 64;
/// Maximum number of operations in a batch: as many as a server processes at once.
const TOGETHER: usize = 16;
/// Inode numbers in stock; a new allocation is requested when half are left.
const STOCK: u32 = Request::MAX_NUMBERS;
/// How long a reading of the server's clock is used, in ms: the local clock may run slower.
const CLOCK_MS: u64 = 60_000;
/// Maximum lead of the server's clock over the estimate, in ms: the reply with its time was
/// delayed.
const AHEAD_MS: u64 = 1_000;
/// A longer round trip, in ms, was not due to a disk: the request was repeated or blocked.
const ROUND_TRIP_MS: u64 = 200;
/// Delay in ms before a server that refused inode numbers is asked again; it refuses read-only
/// clients.
const REFUSED_MS: u64 = 60_000;

/// The pending operations, and what they need.
#[derive(Debug, Default)]
pub(super) struct Early {
    changes: BTreeMap<(Rank, RequestId), Change>,
    /// Writes that wait until the earlier operations on their files are answered, in order.
    unsent: VecDeque<Unsent>,
    /// Pending writes to streams.
    pub behind: WriteBehind,
    /// The number of the last operation.
    last: u64,
    /// New files that have been open since their creation, with their directories.
    open: HashMap<Ino, Ino, FxBuildHasher>,
    supplies: BTreeMap<Rank, Supply>,
    /// Errors of rejected operations, to be reported by the next `fsync`, `close` or write.
    failed: BTreeMap<Ino, Errno>,
}

/// A pending operation.
#[derive(Debug)]
pub(super) struct Change {
    /// Ascending.
    pub number: u64,
    /// The frontend's number of the call; 0: the call ended long ago.
    pub call: u64,
    pub dir: Ino,
    what: What,
    pub ino: Ino,
    sent: u64,
}

/// The kind of an operation.
#[derive(Debug)]
pub(super) enum What {
    /// A create or removal of this name.
    Name(Name),
    /// A write to a file.
    Bytes,
    /// An open. Its directory is the file itself.
    Opening,
}

impl Change {
    fn name(&self) -> Option<&Name> {
        match &self.what {
            What::Name(name) => Some(name),
            What::Bytes | What::Opening => None,
        }
    }
}

#[derive(Debug)]
struct Unsent {
    change: Change,
    caller: Caller,
    request: Request,
}

/// What a server provides for future operations of this client.
#[derive(Debug, Default)]
struct Supply {
    numbers: VecDeque<Ino>,
    /// Maximum size of a small file, in bytes.
    strip: u64,
    /// Opens update access times (`relatime`).
    accesses: bool,
    /// A reading of the server's clock, and the local time of the reading.
    clock: Option<(Time, u64)>,
    /// The latest time in any reply of the server.
    latest: Time,
    /// The allocation request and when it was sent.
    asked: Option<(RequestId, u64)>,
    /// The server has refused an allocation and is not asked again before this time.
    refused_until: u64,
}

impl Early {
    /// True if the request is a pending operation.
    pub fn is_change(&self, rank: Rank, id: RequestId) -> bool {
        self.changes.contains_key(&(rank, id))
    }

    /// When the operation was sent.
    pub fn sent(&self, rank: Rank, id: RequestId) -> Option<u64> {
        self.changes.get(&(rank, id)).map(|change| change.sent)
    }

    /// The number of the last operation.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// True if an operation with a number up to `last` is pending on a directory and file that
    /// `is_it` selects.
    pub fn is_any_left(&self, last: u64, is_it: impl Fn(Ino, Ino) -> bool) -> bool {
        self.left().any(|change| change.number <= last && is_it(change.dir, change.ino))
    }

    /// The directories with pending operations.
    pub fn dirs(&self) -> BTreeSet<Ino> {
        let changes = self.left().filter(|change| !matches!(change.what, What::Opening));
        changes.map(|change| change.dir).collect()
    }

    /// A file is closed. The file's other openings write without write-back.
    pub fn closed(&mut self, ino: Ino) {
        self.open.remove(&ino);
    }

    fn left(&self) -> impl Iterator<Item = &Change> {
        self.small().chain(self.behind.changes())
    }

    fn small(&self) -> impl Iterator<Item = &Change> {
        self.changes.values().chain(self.unsent.iter().map(|unsent| &unsent.change))
    }

    /// As [`Self::is_any_left`], but writes to streams count only if `is_one` selects the file.
    pub fn is_any_left_of(&self, last: u64, is_one: impl Fn(Ino) -> bool) -> bool {
        let mut behind = self.behind.changes();
        self.small().any(|change| change.number <= last)
            || behind.any(|change| change.number <= last && is_one(change.ino))
    }

    /// True if an operation on the inode was rejected and the error has not been reported.
    pub fn has_failed(&self, ino: Ino) -> bool {
        self.failed.contains_key(&ino)
    }

    fn count(&self) -> usize {
        self.changes.len() + self.unsent.len()
    }

    pub fn new_change(&mut self, call: u64, (dir, what): (Ino, What), ino: Ino, now: u64) -> Change {
        self.last += 1;
        Change { number: self.last, call, dir, what, ino, sent: now }
    }
}

impl Supply {
    /// An estimate of the server's time that is not early, and not before any time in its replies.
    fn time(&self, now: u64) -> Option<Time> {
        let (time, at) = self.clock.filter(|(_, at)| now - at < CLOCK_MS)?;
        Some(time.later(now - at).max(self.latest))
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
    // ---- Write-back

    /// Acknowledges a call immediately, if it is eligible; otherwise returns it.
    pub(super) fn tell_early(
        &mut self,
        now: u64,
        asked: Asked<'static, Waiter<T>>,
        told: &mut Told<T>,
    ) -> Option<Asked<'static, Waiter<T>>> {
        let early = self.change_early(now, &asked).or_else(|| self.write_early(now, &asked));
        let early = early.or_else(|| self.open_early(now, &asked));
        let Some((mut answer, lease)) = early else { return self.write_behind(now, asked, told) };
        let lease_ms = self.keep(now, self.cache.turn(), &asked.call, &mut answer, lease, told);
        told.answer_leased(asked.ticket, Ok(answer), lease_ms);
        None
    }

    /// True if the call is eligible for write-back except that too many operations are pending.
    pub(super) fn waits_for_room(&self, now: u64, call: &Call<'_>) -> bool {
        let dir = match call {
            Call::Request(Request::Create { dir, node, .. }) => self.early_kind(node).map(|_| *dir),
            Call::Request(Request::Unlink { dir, .. } | Request::RmDir { dir, .. }) => Some(*dir),
            Call::Write { ino, .. } => self.early.open.get(ino).copied(),
            _ => None,
        };
        self.early.count() >= MOST && dir.is_some_and(|dir| self.cache.alone_in(dir, now).is_some())
            || self.waits_for_room_behind(now, call)
    }

    /// Acknowledges and sends a change of an exclusive directory. Returns the answer and how long
    /// it may be cached, in ms.
    fn change_early(&mut self, now: u64, asked: &Asked<'_, Waiter<T>>) -> Option<(Answer, u64)> {
        let Call::Request(request) = &asked.call else { return None };
        let (Request::Create { dir, name, .. }
        | Request::Unlink { dir, name, .. }
        | Request::RmDir { dir, name, .. }) = request
        else {
            return None;
        };
        let (dir, rank) = (*dir, dir.rank());
        let parent = self.cache.alone_in(dir, now)?;
        let time = self.may_tell(now, rank)?;
        // The server has allocated numbers, so it trusts this client's superuser.
        let may = certainly_may(&parent, &asked.caller, Access::WRITE | Access::EXEC, true);
        if !may || self.cache.is_early_name(dir, name) || self.behind.is_any_named(dir, name) {
            return None;
        }
        let (ino, answer, left) = match request {
            Request::Create { node, perm, umask, open, .. } => {
                let kind = self.early_kind(node)?;
                // Whether the set-group-ID bit is kept depends on all of the caller's groups.
                if !self.cache.is_absent(dir, name, now) || perm & mode::SET_GID != 0 {
                    return None;
                }
                let ino = self.early.supplies.get_mut(&rank)?.numbers.pop_front()?;
                let inherits = parent.perm & mode::SET_GID;
                let gid = if inherits != 0 { parent.gid } else { asked.caller.gid };
                let inherited = if kind == FileType::Directory { inherits } else { 0 };
                let rights = (perm & mode::PERMISSIONS & !umask | inherited, asked.caller.uid, gid);
                let made = new_inode(ino, kind, rights, time);
                let (entry, until) = self.cache.make_early((dir, name), &parent, made, now);
                let answer = match open {
                    Some(_) => {
                        self.early.open.insert(ino, dir);
                        self.cache.opened_to_write(ino);
                        Answer::Created(entry, self.client.opened(ino, Opened::default()))
                    }
                    None => Answer::Entry(entry),
                };
                (ino, answer, until - now)
            }
            _ => {
                let attr = self.cache.alone_with(dir, name, now)?;
                let is_plain = match request {
                    Request::RmDir { .. } => attr.kind == FileType::Directory && attr.size == 0,
                    _ => attr.kind != FileType::Directory && attr.nlink == 1 && !attr.streamed,
                };
                let owners = [0, attr.uid, parent.uid];
                let may = parent.perm & mode::STICKY == 0 || owners.contains(&asked.caller.uid);
                let is_used = self.client.files.contains_key(&attr.ino) || self.cache.is_early(attr.ino);
                if !is_plain || !may || is_used || !attr.flags.is_empty() {
                    return None;
                }
                self.cache.remove_early(dir, name, &attr, time);
                (attr.ino, Answer::Done, 0)
            }
        };
        let change = self.early.new_change(asked.call_id, (dir, What::Name(name.clone())), ino, now);
        self.send_early(rank, change, asked.caller.clone(), request.clone().told(ino, time));
        Some((answer, left))
    }

    /// The type of the node if its creation is eligible: with several ranks, the server chooses a
    /// rank for a directory.
    fn early_kind(&self, node: &NewNode) -> Option<FileType> {
        match node {
            NewNode::Regular => Some(FileType::Regular),
            NewNode::Directory if self.ranks == 1 => Some(FileType::Directory),
            _ => None,
        }
    }

    /// Acknowledges a write to a new file that has been open since its creation, if the file stays
    /// small. The write is sent when the earlier operations on the file are answered.
    fn write_early(&mut self, now: u64, asked: &Asked<'_, Waiter<T>>) -> Option<(Answer, u64)> {
        let Call::Write { ino, offset, data, kill_suid_gid } = &asked.call else { return None };
        let (ino, rank) = (*ino, ino.rank());
        let dir = *self.early.open.get(&ino)?;
        let attr = self.cache.alone_writing(dir, ino, now)?;
        if attr.streamed || !attr.flags.is_empty() {
            return None;
        }
        let time = self.may_tell(now, rank)?;
        let start = if *offset == END { attr.size } else { *offset };
        let end = start.checked_add(data.len() as u64)?;
        let kills = *kill_suid_gid && attr.perm & (mode::SET_UID | mode::SET_GID) != 0;
        let is_small = !data.is_empty() && end <= self.early.supplies.get(&rank)?.strip;
        if kills || !is_small || self.behind.is_any_about(ino) {
            return None;
        }
        let is_first = !self.cache.is_early(ino);
        self.cache.written_early(dir, ino, (start, data), time);
        let change = self.early.new_change(asked.call_id, (dir, What::Bytes), ino, now);
        let (data, kill_suid_gid) = (data.to_bytes(), false);
        let answer = Answer::Written(data.len() as u32);
        let request = Request::Write { ino, offset: *offset, data, kill_suid_gid, time: None };
        let request = request.told(ino, time);
        self.send_in_turn(is_first, Unsent { change, caller: asked.caller.clone(), request });
        Some((answer, 0))
    }

    /// Acknowledges an open for reading of a small file whose contents are cached. The lease on the
    /// file stands for the open; the server is notified before the lease ends.
    fn open_early(&mut self, now: u64, asked: &Asked<'_, Waiter<T>>) -> Option<(Answer, u64)> {
        let Call::Request(Request::Open { ino, how }) = asked.call else { return None };
        let reads = how.access == Access::READ && how.reads == Reads::Whole && !how.truncate;
        self.cache.content(ino, now).filter(|_| reads)?;
        let attr = self.cache.attr(ino, now)?;
        let time = self.may_tell(now, ino.rank())?;
        if !certainly_may(&attr, &asked.caller, Access::READ, true) || self.behind.is_any_about(ino) {
            return None;
        }
        // The server applies the same rule (`relatime`).
        let counts = self.early.supplies.get(&ino.rank()).is_some_and(|supply| supply.accesses);
        let accessed = counts
            && !attr.flags.contains(InodeFlags::NOATIME)
            && attr.atime.is_old_access(attr.mtime.max(attr.ctime), time);
        if !self.open_quietly(ino, &asked.caller, accessed.then_some(time)) {
            self.tell_opening(now, asked.call_id, ino, asked.caller.clone());
            if accessed {
                self.cache.accessed_early(ino);
            }
        }
        let opened = Opened { accessed, ..Opened::default() };
        Some((Answer::Opened(self.client.opened(ino, opened)), 0))
    }

    /// Notifies a server of an open that `call_id` made; 0: a call that ended long ago.
    pub(super) fn tell_opening(&mut self, now: u64, call_id: u64, ino: Ino, caller: Caller) {
        let is_first = !self.cache.is_early(ino);
        self.cache.opened_early(ino);
        let change = self.early.new_change(call_id, (ino, What::Opening), ino, now);
        let how = OpenHow { access: Access::READ, reads: Reads::Client, ..OpenHow::default() };
        let request = Request::Open { ino, how };
        self.send_in_turn(is_first, Unsent { change, caller, request });
    }

    /// The time for a new pending operation, if there can be one.
    fn may_tell(&self, now: u64, rank: Rank) -> Option<Time> {
        let is_ready = self.ends.get(&rank)?.link.is_ready() && self.early.count() < MOST && self.tells_early;
        self.early.supplies.get(&rank)?.time(now).filter(|_| is_ready)
    }

    /// Sends an operation, or queues it until the earlier operations on its file are answered.
    fn send_in_turn(&mut self, is_first: bool, unsent: Unsent) {
        if is_first {
            let Unsent { change, caller, request } = unsent;
            self.send_early(change.ino.rank(), change, caller, request);
        } else {
            self.early.unsent.push_back(unsent);
        }
    }

    fn send_early(&mut self, rank: Rank, change: Change, caller: Caller, request: Request) {
        if let Some(end) = self.end(rank) {
            let id = end.ask(caller, request);
            self.early.changes.insert((rank, id), change);
        }
    }

    /// True if the queued messages to a server may wait for more: no call is blocked on them, and
    /// an earlier operation will be answered.
    pub(super) fn may_linger(&self, rank: Rank, end: &End<T>) -> bool {
        let told = |message: &FromClient| match message {
            FromClient::Request { id, .. } => Some(*id).filter(|id| self.early.is_change(rank, *id)),
            _ => None,
        };
        let Some(first) = end.out.first().and_then(told) else { return false };
        let mut before = self.early.changes.range((rank, RequestId(0))..(rank, first));
        self.behind.is_patient()
            && end.out.len() < TOGETHER
            && end.out.iter().all(|message| told(message).is_some())
            && before.next().is_some()
    }

    /// Sends the next queued write to a file, after an operation on it was answered.
    fn send_next(&mut self, now: u64, of: Ino) {
        let at = self.early.unsent.iter().position(|unsent| unsent.change.ino == of);
        if let Some(Unsent { mut change, caller, request }) = at.and_then(|at| self.early.unsent.remove(at)) {
            change.sent = now;
            self.send_early(of.rank(), change, caller, request);
        }
    }

    /// Handles the reply to a pending operation; returns false if the request is none.
    pub(super) fn early_reply(
        &mut self,
        now: u64,
        of: (Rank, RequestId),
        (lease, touched): (u64, &Touched),
        result: &Result<Reply, Errno>,
        told: &mut Told<T>,
    ) -> bool {
        let Some(change) = self.early.changes.remove(&of) else { return false };
        let Change { dir, ref what, ino, sent, .. } = change;
        self.cache.end_early(dir, change.name(), ino);
        let lease = lease.saturating_sub(now.saturating_sub(sent) + 1);
        match (result, what) {
            (Ok(Reply::Entry(entry) | Reply::Created(entry, _)), What::Name(name))
                if entry.attr.ino == ino =>
            {
                let until = if lease == 0 { 0 } else { now + lease };
                self.cache.made_early(dir, name, entry, until, now);
                if until == 0 || !entry.name_leased || !entry.attr_leased {
                    // The early answer allowed callers to cache it.
                    self.invalidate([(dir, name.clone())].into(), [ino].into(), told);
                }
            }
            (Ok(Reply::Done), What::Name(name)) => self.cache.removed_early(dir, name),
            (Ok(Reply::Done), What::Bytes) | (Ok(Reply::Opened(_)), What::Opening) => {}
            (Ok(_), _) => self.early_failed(change, Errno::EIO, told),
            (Err(errno), _) => self.early_failed(change, *errno, told),
        }
        self.cache.changed(touched, lease, now);
        self.send_next(now, ino);
        true
    }

    pub(super) fn early_failed(&mut self, change: Change, errno: Errno, told: &mut Told<T>) {
        self.cache.failed_early(change.dir, change.name(), change.ino);
        let Change { dir, what, ino, .. } = change;
        let (name, places) = match what {
            // The next read requests the contents.
            What::Opening => return self.invalidate(Vec::new(), [ino].into(), told),
            What::Bytes => (None, Vec::from([ino])),
            What::Name(name) => (Some(name), Vec::from([ino, dir])),
        };
        for place in &places {
            self.early.failed.entry(*place).or_insert(errno);
        }
        while self.early.failed.len() > MOST {
            self.early.failed.pop_first();
        }
        let names = name.iter().map(|name| (dir, name.clone())).collect();
        self.invalidate(names, places, told);
        let dir = self.shown_as(dir);
        told.door.push(ForDoor::Failed { dir, ino, name, errno });
    }

    /// The error of a rejected operation that this call must report, once: an `fsync`, a `close`,
    /// or a write. An `fsync` of the root reports any error.
    pub(super) fn early_error(&mut self, call: &Call<'_>) -> Option<Errno> {
        let ino = match call {
            Call::Request(Request::Fsync { ino } | Request::Unlock { ino, first: 0, last: u64::MAX, .. })
            | Call::Write { ino, .. } => ino,
            _ => return None,
        };
        match self.early.failed.remove(ino) {
            None if *ino == self.root => core::mem::take(&mut self.early.failed).into_values().next(),
            errno => errno,
        }
    }

    /// Number of operations that were acknowledged to callers and not by servers.
    pub fn unanswered_changes(&self) -> usize {
        self.early.count() + self.early.behind.count() + self.quiet.untold()
    }

    /// As [`Self::call_of`], for pending operations.
    pub fn early_call_of(&self, rank: Rank, id: RequestId) -> Option<u64> {
        self.early.changes.get(&(rank, id)).map(|change| change.call).filter(|call| *call > 0)
    }

    /// True if the call was acknowledged before the server applied it.
    pub fn is_told_early(&self, call_id: u64) -> bool {
        self.early.small().any(|change| change.call == call_id) || self.early.behind.is_any_by(call_id)
    }

    // ---- Inode numbers and time

    /// Requests inode numbers and the time from a server that grants leases, if they run short.
    pub(super) fn supply(&mut self, now: u64, rank: Rank) {
        let supply = self.early.supplies.entry(rank).or_default();
        if !self.tells_early || !supply.is_short(now) {
            return;
        }
        let request = Request::TakeNumbers { rank, count: supply.wanted() };
        let asked = self.end(rank).map(|end| end.ask(Caller::SERVER, request));
        if let Some(supply) = self.early.supplies.get_mut(&rank) {
            supply.asked = asked.map(|id| (id, now));
        }
    }

    /// Updates the estimate of the server's time from a reply.
    pub(super) fn hear_time(
        &mut self,
        now: u64,
        rank: Rank,
        result: &Result<Reply, Errno>,
        touched: &Touched,
    ) {
        let Some(supply) = self.early.supplies.get_mut(&rank) else { return };
        let Some(time) = supply.time(now) else { return };
        let told = match result {
            Ok(Reply::Attr(attr)) => Some(attr.ctime),
            Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => Some(entry.attr.ctime),
            Ok(Reply::Listing { entries, .. }) => {
                entries.iter().filter_map(|dirent| Some(dirent.entry.as_ref()?.attr.ctime)).max()
            }
            _ => None,
        };
        let touched = touched.attrs.iter().map(|attr| attr.ctime);
        // Later times are of a clock that was set back since.
        let heard = touched.chain(told).filter(|told| *told < time.later(AHEAD_MS));
        supply.latest = heard.fold(supply.latest, Time::max);
    }

    /// Handles the reply to an allocation request; returns false if the request is none.
    pub(super) fn supplied(
        &mut self,
        now: u64,
        (rank, id): (Rank, RequestId),
        result: &Result<Reply, Errno>,
    ) -> bool {
        let supply = self
            .early
            .supplies
            .get_mut(&rank)
            .filter(|supply| supply.asked.is_some_and(|(asked, _)| asked == id));
        let Some(supply) = supply else { return false };
        let sent = supply.asked.take().map_or(now, |(_, sent)| sent);
        match result {
            Ok(Reply::Numbers { first, count, time, strip, accesses }) => {
                (supply.strip, supply.accesses) = (u64::from(*strip), *accesses);
                supply.numbers.extend((first.0..first.0 + u64::from(*count)).map(Ino));
                // The server reads its clock when the request arrives, and waits for its disk
                // afterwards.
                let read = if now - sent < ROUND_TRIP_MS { sent } else { now };
                supply.clock = Some((*time, read));
            }
            _ => supply.refused_until = now + REFUSED_MS,
        }
        true
    }

    /// Handles the end of a session: pending operations may not have been applied, and are reported
    /// as failed.
    pub(super) fn lose_early(&mut self, rank: Rank, lost: &[RequestId], told: &mut Told<T>) {
        let mut changes: Vec<_> =
            lost.iter().filter_map(|id| self.early.changes.remove(&(rank, *id))).collect();
        self.lose_gathered(rank, told);
        self.early.supplies.remove(&rank);
        // The server has closed their files.
        let unsent = core::mem::take(&mut self.early.unsent).into_iter();
        let (lost, kept) = unsent.partition::<VecDeque<_>, _>(|unsent| unsent.change.ino.rank() == rank);
        self.early.unsent = kept;
        changes.extend(lost.into_iter().map(|unsent| unsent.change));
        for change in changes {
            self.cache.end_early(change.dir, change.name(), change.ino);
            self.early_failed(change, Errno::EIO, told);
        }
    }
}
