//! Metadata write-back: operations that are acknowledged before the server has applied them.
//! They are creates, removals, renames, small writes and changes of attributes in a directory on
//! which this client has an exclusive lease ([`Touched::exclusive`]). Calls on the same names and
//! inodes, syncs, and the revocation of the lease are blocked on pending operations.
//!
//! Pending operations are sent in batches, as small segments are by J. Nagle (RFC 896): the first
//! is sent at once, those that follow when its reply arrives. One message per operation would cost
//! both sides more than the operation.
//!
//! [`Touched::exclusive`]: espalier_proto::Touched::exclusive

mod order;
mod rename;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{
    Access, Attr, Caller, END, Errno, FileType, FromClient, Ino, InodeFlags, Name, NewNode, OpenHow, Opened,
    RangeOp, Rank, Reads, Reply, Request, RequestId, SetAttr, Time, mode,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::call_state::ServerReply;
use super::rights::{certainly_may, certainly_sets};
use super::write_behind::WriteBehind;
use super::{Actions, FrontendEvent, OwnedCall, ServerSession, Sessions};
use crate::{Answer, Call, RangeCall};
use order::Unsent;

/// Maximum number of pending operations: more than a network holds, and few enough to bound the
/// wait of a blocked call.
const MOST: usize = 64;
/// Maximum number of places whose failed operations are remembered one by one.
const MOST_FAILED: usize = 4 * MOST;
/// Maximum number of operations in a batch: as many as a server processes at once.
const TOGETHER: usize = 16;
/// Inode numbers in stock; a new allocation is requested when half are left.
const STOCK: u32 = Request::MAX_NUMBERS;
/// How long a reading of the server's clock is used, in ms: the local clock may run slower.
const CLOCK_MS: u64 = 60_000;
/// Maximum lead of the server's clock over the estimate, in ms: the reply with its time was
/// delayed.
const AHEAD_MS: u64 = 1_000;
/// Time in ms after which the clocks of all servers are past the time of a change.
const RECENT_MS: u64 = 200;
/// Delay in ms before a server that refused inode numbers is asked again; it refuses read-only
/// clients.
const REFUSED_MS: u64 = 60_000;

/// The pending operations, and what they need.
#[derive(Debug, Default)]
pub(super) struct Writeback {
    changes: BTreeMap<(Rank, RequestId), PendingOp>,
    /// Operations whose rank does not execute the earlier ones on their files, in order. They wait
    /// until those are answered.
    unsent: VecDeque<Unsent>,
    /// Pending writes to streams.
    pub write_behind: WriteBehind,
    /// The number of the last operation.
    last: u64,
    /// The latest time of a change that the client knows, and when it learned the time.
    latest: (Time, u64),
    /// New files that have been open since their creation, with their directories.
    open: HashMap<Ino, Ino, FxBuildHasher>,
    number_pools: BTreeMap<Rank, NumberPool>,
    /// Errors of rejected operations, to be reported by the next `fsync`, `close` or write.
    failed: BTreeMap<Ino, Errno>,
    /// An error of those beyond [`MOST_FAILED`].
    failed_before: Option<Errno>,
}

/// A pending operation.
#[derive(Debug)]
pub(super) struct PendingOp {
    /// Ascending.
    pub number: u64,
    /// The frontend's number of the call; 0: the call ended long ago.
    pub call: u64,
    pub dir: Ino,
    change_kind: ChangeKind,
    pub ino: Ino,
    sent: u64,
}

/// The kind of an operation.
#[derive(Debug)]
pub(super) enum ChangeKind {
    /// A create or removal of this name.
    Name(Name),
    /// A rename of the first name to the second.
    Rename([Name; 2]),
    /// A write to a file.
    Bytes,
    /// A change of owner, permissions or times.
    Attributes,
    /// An open. Its directory is the file itself.
    Opening,
}

impl PendingOp {
    fn names(&self) -> impl Iterator<Item = &Name> {
        let names = match &self.change_kind {
            ChangeKind::Name(name) => core::slice::from_ref(name),
            ChangeKind::Rename(names) => names,
            ChangeKind::Bytes | ChangeKind::Attributes | ChangeKind::Opening => &[],
        };
        names.iter()
    }
}

/// Resources that a server provides for future operations of this client.
#[derive(Debug, Default)]
struct NumberPool {
    numbers: VecDeque<Ino>,
    /// Maximum size of a small file, in bytes.
    strip: u64,
    /// Opens update access times (`relatime`).
    accesses: bool,
    /// A reading of the server's clock, and the local time of the reading.
    clock: Option<(Time, u64)>,
    /// The latest time of a change that the server knows from this client or has returned to it.
    shared: Time,
    /// The allocation request.
    requested: Option<RequestId>,
    /// The server has refused an allocation and is not asked again before this time.
    refused_until: u64,
}

impl Writeback {
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
    /// `concerns` selects.
    pub fn is_any_left(&self, last: u64, concerns: impl Fn(Ino, Ino) -> bool) -> bool {
        self.left().any(|change| change.number <= last && concerns(change.dir, change.ino))
    }

    /// The directories with pending operations.
    pub fn dirs(&self) -> BTreeSet<Ino> {
        let changes = self.left().filter(|change| !matches!(change.change_kind, ChangeKind::Opening));
        changes.map(|change| change.dir).collect()
    }

    /// A file is closed. The file's other openings write without write-back.
    pub fn closed(&mut self, ino: Ino) {
        self.open.remove(&ino);
    }

    fn left(&self) -> impl Iterator<Item = &PendingOp> {
        self.small().chain(self.write_behind.changes())
    }

    fn small(&self) -> impl Iterator<Item = &PendingOp> {
        self.changes.values().chain(self.unsent.iter().map(|unsent| &unsent.change))
    }

    /// As [`Self::is_any_left`], but writes to streams count only if `is_one` selects the file.
    pub fn is_any_left_of(&self, last: u64, is_one: impl Fn(Ino) -> bool) -> bool {
        let mut write_behind = self.write_behind.changes();
        self.small().any(|change| change.number <= last)
            || write_behind.any(|change| change.number <= last && is_one(change.ino))
    }

    /// True if an operation on the inode was rejected and the error has not been reported.
    pub fn has_failed(&self, ino: Ino) -> bool {
        self.failed.contains_key(&ino)
    }

    fn count(&self) -> usize {
        self.changes.len() + self.unsent.len()
    }

    /// Notes the time that a pending operation has.
    fn give_time(&mut self, rank: Rank, change: &PendingOp, request: &Request) {
        if let Some(time) = request.time() {
            self.hear_time(change.sent, rank, time);
        }
    }

    /// Notes the time of a change at a server.
    fn hear_time(&mut self, now: u64, rank: Rank, time: Time) {
        let pool = self.number_pools.entry(rank).or_default();
        pool.shared = pool.shared.max(time);
        if time > self.latest.0 {
            self.latest = (time, now);
        }
    }

    pub fn new_change(
        &mut self,
        call: u64,
        dir: Ino,
        change_kind: ChangeKind,
        ino: Ino,
        now: u64,
    ) -> PendingOp {
        self.last += 1;
        PendingOp { number: self.last, call, dir, change_kind, ino, sent: now }
    }
}

impl NumberPool {
    /// An estimate of the server's time: at most its true time, since programs warn of times in the
    /// future.
    fn time(&self, now: u64) -> Option<Time> {
        let (time, at) = self.clock.filter(|(_, at)| now - at < CLOCK_MS)?;
        // Both local times are rounded down to milliseconds.
        Some(time.later((now - at).saturating_sub(1)))
    }

    fn is_short(&self, now: u64) -> bool {
        let is_due = self.requested.is_none() && now >= self.refused_until;
        is_due && (self.wanted() > 0 || self.time(now).is_none())
    }

    fn wanted(&self) -> u32 {
        if self.numbers.len() > STOCK as usize / 2 { 0 } else { STOCK }
    }
}

impl<T> Sessions<T> {
    // ---- Write-back

    /// Acknowledges a call immediately, if it is eligible; otherwise returns it.
    pub(super) fn try_writeback(
        &mut self,
        now: u64,
        incoming: OwnedCall<T>,
        actions: &mut Actions<T>,
    ) -> Option<OwnedCall<T>> {
        let writeback = self
            .writeback_change(now, &incoming)
            .or_else(|| self.writeback_rename(now, &incoming))
            .or_else(|| self.writeback_write(now, &incoming))
            .or_else(|| self.writeback_set_attr(now, &incoming))
            .or_else(|| self.open_delegated(now, &incoming));
        let Some((mut answer, lease)) = writeback else { return self.write_behind(now, incoming, actions) };
        let lease_ms =
            self.retain_pages(now, self.cache.epoch(), &incoming.call, &mut answer, lease, actions);
        actions.answer_leased(incoming.ticket, Ok(answer), lease_ms);
        None
    }

    /// True if the call is eligible for write-back except that too many operations are pending.
    pub(super) fn waits_for_writeback_room(&self, now: u64, call: &Call<'_>) -> bool {
        let dir = match call {
            Call::Request(Request::Create { dir, node, .. }) => self.writeback_kind(*dir, node).map(|_| *dir),
            Call::Request(Request::Unlink { dir, .. } | Request::RmDir { dir, .. }) => Some(*dir),
            Call::Request(Request::Rename { from_dir, to_dir, .. }) => {
                Some(*from_dir).filter(|_| from_dir == to_dir)
            }
            Call::Range(RangeCall { ino, op: RangeOp::Write { .. }, .. }) => {
                self.writeback.open.get(ino).copied()
            }
            Call::Request(Request::SetAttr { ino, .. }) => {
                self.cache.sole_holder_dir(*ino).map(|(dir, _)| dir)
            }
            _ => None,
        };
        self.writeback.count() >= MOST && dir.is_some_and(|dir| self.cache.exclusive_dir(dir, now).is_some())
            || self.waits_for_write_behind_room(now, call)
    }

    /// Acknowledges and sends a change of an exclusive directory. Returns the answer and how long
    /// it may be cached, in ms.
    fn writeback_change(&mut self, now: u64, incoming: &OwnedCall<T>) -> Option<(Answer, u64)> {
        let Call::Request(request) = &incoming.call else { return None };
        let (Request::Create { dir, name, .. }
        | Request::Unlink { dir, name, .. }
        | Request::RmDir { dir, name, .. }) = request
        else {
            return None;
        };
        let (dir, rank) = (*dir, dir.rank());
        let parent = self.cache.exclusive_dir(dir, now).filter(|_| self.knows_fragments(dir, now))?;
        let time = self.may_acknowledge(now, rank)?;
        // The server has allocated numbers, so it trusts this client's superuser.
        let may = certainly_may(&parent, &incoming.caller, Access::WRITE | Access::EXEC, true);
        if !may || self.cache.has_pending_name(dir, name) || self.calls.is_any_blocked_named(dir, name) {
            return None;
        }
        let (ino, answer, left) = match request {
            Request::Create { node, perm, umask, open, .. } => {
                let kind = self.writeback_kind(dir, node)?;
                // All of the caller's groups determine if the set-group-ID bit is preserved.
                if !self.cache.is_absent(dir, name, now) || perm & mode::SET_GID != 0 {
                    return None;
                }
                let ino = self.writeback.number_pools.get_mut(&rank)?.numbers.pop_front()?;
                let inherits = parent.perm & mode::SET_GID;
                let gid = if inherits != 0 { parent.gid } else { incoming.caller.gid };
                let inherited = if kind == FileType::Directory { inherits } else { 0 };
                let (perm, size) = match node {
                    NewNode::Symlink(target) => (0o777, target.len() as u64),
                    _ => (perm & mode::PERMISSIONS & !umask | inherited, 0),
                };
                let uid = incoming.caller.uid;
                let made = Attr { uid, gid, size, ..Attr::new(ino, kind, perm, time) };
                let (entry, until) = self.cache.create_pending((dir, name), &parent, made, now);
                let answer = match open {
                    Some(_) => {
                        self.writeback.open.insert(ino, dir);
                        self.cache.opened_to_write(ino);
                        Answer::Created(entry, self.client.opened(ino, Opened::default()))
                    }
                    None => Answer::Entry(entry),
                };
                (ino, answer, until - now)
            }
            _ => {
                let attr = self.removable(dir, name, &parent, &incoming.caller, now)?;
                let is_right = matches!(request, Request::RmDir { .. }) == (attr.kind == FileType::Directory);
                // A directory may have had entries whose removals are pending.
                let has_pending = self.writeback.is_any_left(u64::MAX, |_, ino| ino == attr.ino);
                let is_used = has_pending || self.client.files.contains_key(&attr.ino);
                if !is_right || is_used {
                    return None;
                }
                self.cache.remove_pending(dir, name, &attr, time);
                (attr.ino, Answer::Done, 0)
            }
        };
        let change =
            self.writeback.new_change(incoming.call_id, dir, ChangeKind::Name(name.clone()), ino, now);
        let request = request.clone().acknowledged(ino, time);
        self.send_in_order(change, incoming.caller.clone(), request);
        Some((answer, left))
    }

    /// The type of the node if its creation in `dir` is eligible.
    fn writeback_kind(&self, dir: Ino, node: &NewNode) -> Option<FileType> {
        match node {
            NewNode::Regular => Some(FileType::Regular),
            NewNode::Symlink(_) => Some(FileType::Symlink),
            NewNode::Directory if !self.cache.spreads_dirs(dir) => Some(FileType::Directory),
            _ => None,
        }
    }

    /// Acknowledges a write to a new file that has been open since its creation, if the file stays
    /// small.
    fn writeback_write(&mut self, now: u64, incoming: &OwnedCall<T>) -> Option<(Answer, u64)> {
        let Call::Range(range) = &incoming.call else { return None };
        let RangeOp::Write { offset, .. } = range.op else { return None };
        let (ino, rank) = (range.ino, self.rank_of(range.ino));
        let dir = *self.writeback.open.get(&ino)?;
        let attr = self.cache.sole_writer_attr(dir, ino, now)?;
        if attr.streamed || !attr.flags.is_empty() {
            return None;
        }
        let time = self.may_acknowledge(now, rank)?;
        let start = if offset == END { attr.size } else { offset };
        let end = start.checked_add(range.data.len() as u64)?;
        let kills = range.kill_suid_gid && attr.perm & (mode::SET_UID | mode::SET_GID) != 0;
        let is_small = !range.data.is_empty() && end <= self.writeback.number_pools.get(&rank)?.strip;
        if kills || !is_small || self.calls.is_any_blocked_about(ino) {
            return None;
        }
        self.cache.write_pending(dir, ino, (start, &range.data), time);
        let change = self.writeback.new_change(incoming.call_id, dir, ChangeKind::Bytes, ino, now);
        let data = range.data.to_bytes();
        let answer = Answer::Written(data.len() as u32);
        let request = Request::Write { ino, offset, data, kill_suid_gid: false, time: Some(time) };
        self.send_in_order(change, incoming.caller.clone(), request);
        Some((answer, 0))
    }

    /// Acknowledges a change of owner, permissions or times of a small file, symbolic link or
    /// exclusive directory that no other client knows.
    fn writeback_set_attr(&mut self, now: u64, incoming: &OwnedCall<T>) -> Option<(Answer, u64)> {
        let Call::Request(Request::SetAttr { ino, set }) = incoming.call else { return None };
        let (dir, until) = self.cache.sole_holder_dir(ino).filter(|(_, until)| *until > now)?;
        let attr = self.cache.sole_writer_attr(dir, ino, now)?;
        let time = self.may_acknowledge(now, self.rank_of(ino))?;
        let changed = certainly_sets(&attr, &incoming.caller, &set, time)?;
        let is_plain = match attr.kind {
            FileType::Directory => attr.map_version == 0 && self.cache.exclusive_dir(ino, now).is_some(),
            _ => !attr.streamed,
        };
        if !is_plain || self.calls.is_any_blocked_about(ino) {
            return None;
        }
        // The change may forbid an open of which the server does not know yet.
        self.announce_delegated(now, ino);
        self.cache.set_attr_pending(dir, changed);
        let change = self.writeback.new_change(incoming.call_id, dir, ChangeKind::Attributes, ino, now);
        // The server may not know that the file is open, and need not.
        let set = SetAttr { through_handle: false, ..set };
        let request = Request::SetAttr { ino, set }.acknowledged(ino, time);
        self.send_in_order(change, incoming.caller.clone(), request);
        Some((Answer::Attr(changed), until - now))
    }

    /// Acknowledges an open for reading of a small file whose contents are cached. The lease on the
    /// file stands for the open; the server is notified before the lease ends.
    fn open_delegated(&mut self, now: u64, incoming: &OwnedCall<T>) -> Option<(Answer, u64)> {
        let Call::Request(Request::Open { ino, how }) = incoming.call else { return None };
        let reads = how.access == Access::READ && how.reads == Reads::Whole && !how.truncate;
        self.cache.content(ino, now).filter(|_| reads)?;
        let attr = self.cache.attr(ino, now)?;
        let time = self.may_acknowledge(now, self.rank_of(ino))?;
        if !certainly_may(&attr, &incoming.caller, Access::READ, true) || self.calls.is_any_blocked_about(ino)
        {
            return None;
        }
        // The server applies the same rule (`relatime`).
        let counts = self
            .writeback
            .number_pools
            .get(&self.rank_of(ino))
            .is_some_and(|number_pool| number_pool.accesses);
        let accessed = counts
            && !attr.flags.contains(InodeFlags::NOATIME)
            && attr.atime.is_old_access(attr.mtime.max(attr.ctime), time);
        if !self.try_delegated_open(ino, &incoming.caller, accessed.then_some(time)) {
            self.announce_open(now, incoming.call_id, ino, incoming.caller.clone());
            if accessed {
                self.cache.access_pending(ino);
            }
        }
        let opened = Opened { accessed, ..Opened::default() };
        Some((Answer::Opened(self.client.opened(ino, opened)), 0))
    }

    /// Notifies a server of an open that `call_id` made; 0: a call that ended long ago.
    pub(super) fn announce_open(&mut self, now: u64, call_id: u64, ino: Ino, caller: Caller) {
        self.cache.open_pending(ino);
        let change = self.writeback.new_change(call_id, ino, ChangeKind::Opening, ino, now);
        let how = OpenHow { access: Access::READ, reads: Reads::Client, ..OpenHow::default() };
        let request = Request::Open { ino, how };
        self.send_in_order(change, caller, request);
    }

    /// The time for a new pending operation, if there can be one.
    fn may_acknowledge(&self, now: u64, rank: Rank) -> Option<Time> {
        let is_ready = self.server_sessions.get(&rank)?.link.is_ready()
            && self.writeback.count() < MOST
            && self.uses_writeback;
        let time = self.writeback.number_pools.get(&rank)?.time(now).filter(|_| is_ready)?;
        // Later times are of a clock that was set back since.
        let (latest, _) = self.writeback.latest;
        Some(if latest > time && latest < time.later(AHEAD_MS) { latest.next() } else { time })
    }

    /// True if the queued messages to a server may wait for more: no call is blocked on them, and
    /// an earlier operation will be answered.
    pub(super) fn may_linger(&self, rank: Rank, end: &ServerSession) -> bool {
        let actions = |message: &FromClient| match message {
            FromClient::Request { id, .. } => Some(*id).filter(|id| self.writeback.is_change(rank, *id)),
            _ => None,
        };
        let Some(first) = end.out.first().and_then(actions) else { return false };
        let mut before = self.writeback.changes.range((rank, RequestId(0))..(rank, first));
        self.revocations.is_empty()
            && self.calls.only_wait_for_room()
            && end.out.len() < TOGETHER
            && end.out.iter().all(|message| actions(message).is_some())
            && before.next().is_some()
    }

    /// Handles the reply to a pending operation; returns false if the request is none.
    pub(super) fn pending_reply(&mut self, now: u64, reply: &ServerReply, actions: &mut Actions<T>) -> bool {
        let Some(change) = self.writeback.changes.remove(&(reply.rank, reply.id)) else { return false };
        let PendingOp { dir, ref change_kind, ino, sent, .. } = change;
        self.cache.end_pending(dir, change.names(), ino);
        let lease = reply.lease_left(Some(sent), now);
        match (&reply.result, change_kind) {
            (Ok(Reply::Entry(entry) | Reply::Created(entry, _)), ChangeKind::Name(name))
                if entry.attr.ino == ino =>
            {
                let until = if lease == 0 { 0 } else { now + lease };
                self.cache.create_completed(dir, name, entry, until, now);
                if until == 0 || !entry.name_leased || !entry.attr_leased {
                    // The write-back answer allowed callers to cache it.
                    self.invalidate([(dir, name.clone())].into(), [ino].into(), actions);
                }
            }
            (Ok(Reply::Done), ChangeKind::Name(name)) => self.cache.remove_completed(dir, name),
            (Ok(Reply::Done), ChangeKind::Rename(names)) => {
                let until = if lease == 0 { 0 } else { now + lease };
                self.cache.rename_completed(dir, names.each_ref(), ino, until, now);
                if lease == 0 {
                    // The kernel keeps what it has cached under the old name.
                    self.invalidate(
                        names.iter().map(|name| (dir, name.clone())).collect(),
                        [ino].into(),
                        actions,
                    );
                }
            }
            (Ok(Reply::Attr(_)), ChangeKind::Attributes) if lease == 0 => {
                // As above.
                self.invalidate(Vec::new(), [ino].into(), actions);
            }
            (Ok(Reply::Attr(_)), ChangeKind::Attributes) => {}
            (Ok(Reply::Done), ChangeKind::Bytes) | (Ok(Reply::Opened(_)), ChangeKind::Opening) => {}
            (Ok(_), _) => self.pending_failed(change, Errno::EIO, actions),
            (Err(errno), _) => self.pending_failed(change, *errno, actions),
        }
        self.cache.changed(&reply.touched, lease, now);
        self.send_queued(Some(now));
        true
    }

    pub(super) fn pending_failed(&mut self, change: PendingOp, errno: Errno, actions: &mut Actions<T>) {
        self.cache.operation_failed(change.dir, change.names(), change.ino);
        let PendingOp { dir, change_kind, ino, .. } = change;
        let names = match change_kind {
            // The next read requests the contents.
            ChangeKind::Opening => return self.invalidate(Vec::new(), [ino].into(), actions),
            ChangeKind::Bytes | ChangeKind::Attributes => Vec::new(),
            ChangeKind::Name(name) => Vec::from([name]),
            ChangeKind::Rename(names) => names.into(),
        };
        let mut places = Vec::from([ino]);
        if !names.is_empty() {
            places.push(self.fragments.whole(dir));
        }
        for place in &places {
            self.writeback.failed.entry(*place).or_insert(errno);
        }
        while self.writeback.failed.len() > MOST_FAILED {
            let dropped = self.writeback.failed.pop_first().map(|(_, errno)| errno);
            self.writeback.failed_before = self.writeback.failed_before.or(dropped);
        }
        let name = names.last().cloned();
        self.invalidate(names.into_iter().map(|name| (dir, name)).collect(), places, actions);
        let dir = self.shown_as(dir);
        actions.frontend.push(FrontendEvent::Failed { dir, ino, name, errno });
    }

    /// The error of a rejected operation that this call must report, once: an `fsync`, a `close`,
    /// or a write. An `fsync` of the root reports any error.
    pub(super) fn deferred_error(&mut self, call: &Call<'_>) -> Option<Errno> {
        let ino = match call {
            Call::Request(Request::Fsync { ino } | Request::Unlock { ino, first: 0, last: u64::MAX, .. })
            | Call::Range(RangeCall { ino, op: RangeOp::Write { .. }, .. }) => ino,
            _ => return None,
        };
        let failed = match self.writeback.failed.remove(ino) {
            None if *ino == self.root => core::mem::take(&mut self.writeback.failed).into_values().next(),
            errno => errno,
        };
        failed.or_else(|| self.writeback.failed_before.take())
    }

    /// Number of operations that were acknowledged to callers and not by servers.
    pub fn unanswered_changes(&self) -> usize {
        self.writeback.count() + self.writeback.write_behind.count() + self.delegated_opens.unreported()
    }

    /// As [`Self::call_of`], for pending operations.
    pub fn pending_call_of(&self, rank: Rank, id: RequestId) -> Option<u64> {
        self.writeback.changes.get(&(rank, id)).map(|change| change.call).filter(|call| *call > 0)
    }

    /// True if the call was acknowledged before the server applied it.
    pub fn is_acknowledged(&self, call_id: u64) -> bool {
        self.writeback.small().any(|change| change.call == call_id)
            || self.writeback.write_behind.is_any_by(call_id)
    }

    // ---- Inode numbers and time

    /// Requests inode numbers and the time from a server that grants leases, if they run short.
    pub(super) fn number_pool(&mut self, now: u64, rank: Rank) {
        let number_pool = self.writeback.number_pools.entry(rank).or_default();
        if !self.uses_writeback || !number_pool.is_short(now) {
            return;
        }
        let request = Request::TakeNumbers { rank, count: number_pool.wanted() };
        let id = self.server_session(rank).ask(Caller::SERVER, request);
        if let Some(number_pool) = self.writeback.number_pools.get_mut(&rank) {
            number_pool.requested = Some(id);
        }
    }

    /// Notes the times in a reply.
    pub(super) fn hear_time(&mut self, now: u64, reply: &ServerReply) {
        let latest = match &reply.result {
            Ok(Reply::Attr(attr)) => Some(attr.ctime),
            Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => Some(entry.attr.ctime),
            Ok(Reply::Listing { entries, .. }) => {
                entries.iter().filter_map(|dirent| Some(dirent.entry.as_ref()?.attr.ctime)).max()
            }
            _ => None,
        };
        let touched = reply.touched.attrs.iter().map(|attr| attr.ctime);
        let estimate = self.writeback.number_pools.get(&reply.rank).and_then(|pool| pool.time(now));
        // Later times are of a clock that was set back since.
        let heard =
            touched.chain(latest).filter(|ctime| estimate.is_some_and(|time| *ctime < time.later(AHEAD_MS)));
        if let Some(time) = heard.max() {
            self.writeback.hear_time(now, reply.rank, time);
        }
    }

    /// Reports the latest time to a server that is about to give a change its own time, if the
    /// change could look older than an earlier one at another server.
    pub(super) fn report_time(&mut self, now: u64, request: &Request) {
        let (rank, (time, at)) = (self.client.locations.of_request(request), self.writeback.latest);
        let is_recent = now - at <= RECENT_MS;
        let shared = self.writeback.number_pools.get(&rank).map(|pool| pool.shared).unwrap_or_default();
        if is_recent
            && time > shared
            && request.is_change()
            && request.time().is_none()
            && self.server_session(rank).link.is_ready()
        {
            self.server_session(rank).out.push(FromClient::Clock { time });
            self.writeback.number_pools.entry(rank).or_default().shared = time;
        }
    }

    /// Handles the reply to an allocation request; returns false if the request is none.
    pub(super) fn numbers_received(&mut self, now: u64, reply: &ServerReply) -> bool {
        let Some(number_pool) = self.writeback.number_pools.get_mut(&reply.rank) else { return false };
        if number_pool.requested.take_if(|id| *id == reply.id).is_none() {
            return false;
        }
        match &reply.result {
            Ok(Reply::Numbers { first, count, time, strip, accesses }) => {
                (number_pool.strip, number_pool.accesses) = (u64::from(*strip), *accesses);
                number_pool.numbers.extend((first.0..first.0 + u64::from(*count)).map(Ino));
                number_pool.clock = Some((*time, now));
            }
            _ => number_pool.refused_until = now + REFUSED_MS,
        }
        true
    }

    /// Handles the end of a session: pending operations may not have been applied, and are reported
    /// as failed.
    pub(super) fn lose_pending(&mut self, rank: Rank, lost: &[RequestId], actions: &mut Actions<T>) {
        let mut changes: Vec<_> =
            lost.iter().filter_map(|id| self.writeback.changes.remove(&(rank, *id))).collect();
        self.lose_gathered(rank, actions);
        self.writeback.number_pools.remove(&rank);
        // The server has closed their files.
        let unsent = core::mem::take(&mut self.writeback.unsent).into_iter();
        let is_lost = |unsent: &Unsent| self.client.locations.of(unsent.change.ino) == rank;
        let (lost, remaining) = unsent.partition::<VecDeque<_>, _>(is_lost);
        self.writeback.unsent = remaining;
        changes.extend(lost.into_iter().map(|unsent| unsent.change));
        for change in changes {
            self.cache.end_pending(change.dir, change.names(), change.ino);
            self.pending_failed(change, Errno::EIO, actions);
        }
    }
}
