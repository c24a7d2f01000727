//! Waiting for pending write-back operations: dependent calls, closes of new files, and
//! revocations of leases.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Errno, FromClient, Ino, Name, Rank, Request, RevocationId};

use super::writeback::Writeback;
use super::{Actions, IncomingCall, Sessions, Waiter};
use crate::cache::Subject;
use crate::{Binding, Cache, Call, Interrupt};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct BlockedCalls<T> {
    /// Blocked calls in order of arrival.
    calls: VecDeque<Renewal<T>>,
    /// New files whose close is blocked on their creation.
    closed: Vec<Ino>,
    revoked: Vec<Revoked>,
}

/// A blocked call.
#[derive(Debug)]
struct Renewal<T> {
    incoming: IncomingCall<'static, Waiter<T>>,
    why: BlockReason,
    /// The number of the last pending operation at the call's arrival.
    last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockReason {
    /// The call is eligible for write-back but too many operations are pending.
    Room,
    /// The call depends on a pending operation.
    Change,
    /// The call's answer contains this inode, on which operations are pending.
    Inode(Ino),
}

/// A revocation that is blocked on pending operations.
#[derive(Debug)]
struct Revoked {
    rank: Rank,
    number: RevocationId,
    ino: Ino,
    /// The frontend has given the lease up.
    by_frontend: bool,
}

impl<T> Default for BlockedCalls<T> {
    fn default() -> Self {
        Self { calls: VecDeque::new(), closed: Vec::new(), revoked: Vec::new() }
    }
}

impl<T> BlockedCalls<T> {
    /// True if no call is blocked on a particular operation. Calls that wait for room proceed when
    /// any sent operation is answered.
    pub fn is_patient(&self) -> bool {
        self.revoked.is_empty() && self.calls.iter().all(|renewal| renewal.why == BlockReason::Room)
    }

    /// True if anything may be blocked on writes to this file.
    pub fn is_any_for(&self, ino: Ino) -> bool {
        let may_be = |call: &Call<'_>| call.stream().is_none_or(|of| of == ino);
        !self.revoked.is_empty()
            || self
                .calls
                .iter()
                .any(|renewal| renewal.why == BlockReason::Room || may_be(&renewal.incoming.call))
    }

    /// True if a blocked call refers to this inode, or its answer does.
    pub fn is_any_about(&self, ino: Ino) -> bool {
        self.calls.iter().any(|renewal| {
            renewal.why == BlockReason::Inode(ino) || is_about(&renewal.incoming.call, |it| it == ino)
        })
    }

    /// True if a blocked call may change the binding of this name.
    pub fn is_any_named(&self, dir: Ino, name: &Name) -> bool {
        let mut subjects = self.calls.iter().map(|renewal| Subject::of(&renewal.incoming.call));
        subjects.any(|subject| subject.is_change && subject.names().any(|it| it == (dir, name)))
    }

    /// Drops the revocations of a server that has restarted.
    pub fn forget_revoked(&mut self, rank: Rank) {
        self.revoked.retain(|revoked| revoked.rank != rank);
    }
}

impl<T> Sessions<T> {
    /// Blocks a call that depends on pending operations; returns it if it does not.
    pub(super) fn block_call(
        &mut self,
        now: u64,
        incoming: IncomingCall<'static, Waiter<T>>,
    ) -> Option<IncomingCall<'static, Waiter<T>>> {
        let last = self.writeback.last();
        let Some(why) = self.block_reason(now, &incoming.call, last) else { return Some(incoming) };
        self.blocked.calls.push_back(Renewal { incoming, why, last });
        None
    }

    /// Blocks a call until all pending operations on an inode are answered; then the call is
    /// repeated.
    pub(super) fn retry_when_unblocked(&mut self, ino: Ino, incoming: IncomingCall<'static, Waiter<T>>) {
        self.blocked.calls.push_back(Renewal {
            incoming,
            why: BlockReason::Inode(ino),
            last: self.writeback.last(),
        });
    }

    /// Why a call is blocked: it waits for room, or depends on a pending operation with a number up
    /// to `last`. Later operations do not count, so that the call cannot starve.
    fn block_reason(&self, now: u64, call: &Call<'_>, last: u64) -> Option<BlockReason> {
        if self.waits_for_writeback_room(now, call) {
            return Some(BlockReason::Room);
        }
        self.depends(now, call, last).then_some(BlockReason::Change)
    }

    fn depends(&self, now: u64, call: &Call<'_>, last: u64) -> bool {
        if !self.writeback.is_any_left(last, |_, _| true) {
            return false;
        }
        let is_left = |of: Ino| {
            self.cache.has_pending(of) && self.writeback.is_any_left(last, |dir, ino| dir == of || ino == of)
        };
        // The server does not know this inode yet.
        let is_new =
            |of: Ino| self.cache.has_pending(of) && self.writeback.is_any_left(last, |_, ino| ino == of);
        // `unknown`: the result for a name whose binding is not cached.
        let is_named = |dir: Ino, name: &Name, unknown: bool| {
            self.cache.has_pending_name(dir, name)
                || match self.cache.name(dir, name, now) {
                    Some(Binding::Inode(ino, _)) => is_left(ino),
                    Some(Binding::Absent) => false,
                    None => unknown,
                }
        };
        match call {
            Call::Request(request) => match request {
                // These need all earlier operations, to sync, count, copy or remove them. Exempt
                // are writes to other files' streams, since a data server may be down.
                Request::Fsync { ino } => {
                    self.writeback.is_any_left_of(last, |of| of == *ino || *ino == self.root)
                }
                Request::StatFs { .. } => self.writeback.is_any_left_of(last, |_| false),
                Request::CopyTree(_) | Request::RemoveTree { .. } | Request::SyncFs { .. } => true,
                // The attributes are not cached, so no more operations on the inode become pending;
                // and the cache would ignore a reply that arrived before the pending ones are
                // answered.
                Request::GetAttr { ino } => self.cache.has_pending(*ino),
                // The entry that is found is corrected by the cached state.
                Request::Lookup { dir, name } => is_new(*dir) || is_named(*dir, name, false),
                Request::Create { dir, name, .. }
                | Request::Unlink { dir, name, .. }
                | Request::RmDir { dir, name, .. } => is_named(*dir, name, true),
                Request::Link { ino, dir, name } => is_left(*ino) || is_named(*dir, name, true),
                Request::Rename { from_dir, from, to_dir, to, .. } => {
                    is_named(*from_dir, from, true) || is_named(*to_dir, to, true)
                }
                _ => is_about(call, is_left),
            },
            call => is_about(call, is_left),
        }
    }

    /// Closes a new file locally; the server is notified when it has created the file. Returns
    /// whether this was possible.
    pub(super) fn close_pending(&mut self, call: &Call<'_>, now: u64) -> bool {
        let Call::Release { ino } = *call else { return false };
        self.writeback.closed(ino);
        // A file with pending writes stays open, since they may need another capability of data
        // servers.
        let is_quick = !self.blocked.is_any_about(ino) && !self.writeback.write_behind.is_any_of(ino);
        let has_pending = is_quick && self.cache.has_pending(ino);
        if has_pending {
            let _ = self.client.start(call);
            self.closed(ino, now);
            self.blocked.closed.push(ino);
        }
        has_pending
    }

    /// Resumes what was blocked, after an operation was answered.
    pub(super) fn resume_blocked(&mut self, now: u64, actions: &mut Actions<T>) {
        for ino in self.blocked.closed.extract_if(.., |ino| !self.cache.has_pending(*ino)).collect::<Vec<_>>()
        {
            if let Some(end) = self.end(ino.rank()) {
                end.link.release(ino, &mut end.out);
            }
        }
        let (cache, writeback) = (&self.cache, &self.writeback);
        let is_due = |revoked: &mut Revoked| revoked.by_frontend && !is_needed(cache, writeback, revoked.ino);
        for Revoked { rank, number, .. } in self.blocked.revoked.extract_if(.., is_due) {
            actions.send.push((rank, FromClient::Revoked { number }));
        }
        for Renewal { incoming, why, last } in core::mem::take(&mut self.blocked.calls) {
            let Some(incoming) = self.try_writeback(now, incoming, actions) else { continue };
            let still =
                |ino| self.writeback.is_any_left(last, |dir, of| [dir, of].contains(&ino)).then_some(why);
            let why = match why {
                BlockReason::Inode(ino) => still(ino),
                BlockReason::Room | BlockReason::Change => self.block_reason(now, &incoming.call, last),
            };
            match why {
                Some(why) => self.blocked.calls.push_back(Renewal { incoming, why, last }),
                None => self.take_after(now, incoming, actions),
            }
        }
    }

    /// As [`Sessions::interrupt`], for blocked calls.
    pub(super) fn interrupt_blocked(
        &mut self,
        call_id: u64,
        dies: impl Fn(u32) -> bool,
        actions: &mut Actions<T>,
    ) -> Option<Interrupt> {
        let at = self.blocked.calls.iter().position(|renewal| renewal.incoming.call_id == call_id)?;
        if !self.blocked.calls.get(at).is_some_and(|renewal| dies(renewal.incoming.caller.pid)) {
            return Some(Interrupt::Survived);
        }
        let Renewal { incoming, .. } = self.blocked.calls.remove(at)?;
        actions.answer(incoming.ticket, Err(Errno::EINTR));
        Some(Interrupt::Heard)
    }

    /// Blocks the answer to a revocation until the operations pending under the lease are answered.
    pub(super) fn defer_revocation(&mut self, rank: Rank, number: RevocationId, ino: Ino) {
        let is_known = |revoked: &Revoked| (revoked.rank, revoked.number) == (rank, number);
        let is_needed = is_needed(&self.cache, &self.writeback, ino);
        if is_needed && !self.blocked.revoked.iter().any(is_known) {
            self.blocked.revoked.push(Revoked { rank, number, ino, by_frontend: false });
        }
    }

    /// The frontend has given up a lease. Returns true if the server can be answered immediately.
    pub(super) fn is_given_up(&mut self, rank: Rank, number: RevocationId) -> bool {
        let is_it = |revoked: &Revoked| (revoked.rank, revoked.number) == (rank, number);
        let Some(at) = self.blocked.revoked.iter().position(is_it) else { return true };
        let revoked = self.blocked.revoked.get_mut(at);
        if let Some(revoked) = revoked.filter(|revoked| is_needed(&self.cache, &self.writeback, revoked.ino))
        {
            revoked.by_frontend = true;
            return false;
        }
        self.blocked.revoked.swap_remove(at);
        true
    }
}

/// True if operations are pending under the lease on an inode, or in that directory.
fn is_needed(cache: &Cache, writeback: &Writeback, ino: Ino) -> bool {
    cache.has_pending(ino) || writeback.write_behind.is_any_in(ino)
}

/// True if the call refers by number to an inode that `is_one` selects.
pub(super) fn is_about(call: &Call<'_>, mut is_one: impl FnMut(Ino) -> bool) -> bool {
    match call {
        Call::Request(request) => {
            let mut is_any = false;
            request.clone().each_inode(&mut |ino| is_any |= is_one(*ino));
            is_any
        }
        Call::Copy { from, to, .. } => is_one(*from) || is_one(*to),
        Call::Read { ino, .. }
        | Call::Write { ino, .. }
        | Call::WriteList { ino, .. }
        | Call::Allocate { ino, .. }
        | Call::Seek { ino, .. }
        | Call::Release { ino } => is_one(*ino),
    }
}
