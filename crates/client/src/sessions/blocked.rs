//! Calls that are blocked on pending write-back operations.

use espalier_proto::{Ino, Name, Request};

use super::pending_calls::PendingCalls;
use super::{Actions, OwnedCall, Sessions};
use crate::cache::Subject;
use crate::{Binding, Call};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct BlockedCall<T> {
    pub incoming: OwnedCall<T>,
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

impl<T> PendingCalls<T> {
    /// True if no call is blocked on a particular operation. Calls that wait for room proceed when
    /// any sent operation is answered.
    pub fn only_wait_for_room(&self) -> bool {
        self.blocked.iter().all(|blocked| blocked.why == BlockReason::Room)
    }

    /// True if a call may be blocked on writes to this file.
    pub fn is_any_blocked_on(&self, ino: Ino) -> bool {
        let may_be = |call: &Call<'_>| call.stream().is_none_or(|of| of == ino);
        self.blocked.iter().any(|blocked| blocked.why == BlockReason::Room || may_be(&blocked.incoming.call))
    }

    /// True if a blocked call refers to this inode, or its answer does.
    pub fn is_any_blocked_about(&self, ino: Ino) -> bool {
        self.blocked.iter().any(|blocked| {
            blocked.why == BlockReason::Inode(ino) || is_about(&blocked.incoming.call, |it| it == ino)
        })
    }

    /// True if a blocked call may change the binding of this name.
    pub fn is_any_blocked_named(&self, dir: Ino, name: &Name) -> bool {
        let mut subjects = self.blocked.iter().map(|blocked| Subject::of(&blocked.incoming.call));
        subjects.any(|subject| subject.is_change && subject.names().any(|it| it == (dir, name)))
    }
}

impl<T> Sessions<T> {
    /// Blocks a call that depends on pending operations; returns it if it does not.
    pub(super) fn block_call(&mut self, now: u64, incoming: OwnedCall<T>) -> Option<OwnedCall<T>> {
        let last = self.writeback.last();
        let Some(why) = self.block_reason(now, &incoming.call, last) else { return Some(incoming) };
        self.calls.blocked.push_back(BlockedCall { incoming, why, last });
        None
    }

    /// True if a call depends on pending operations.
    pub(super) fn is_blocked(&self, now: u64, call: &Call<'_>) -> bool {
        self.block_reason(now, call, self.writeback.last()).is_some()
    }

    /// Blocks a call until all pending operations on an inode are answered; then the call is
    /// repeated.
    pub(super) fn retry_when_unblocked(&mut self, ino: Ino, incoming: OwnedCall<T>) {
        let (why, last) = (BlockReason::Inode(ino), self.writeback.last());
        self.calls.blocked.push_back(BlockedCall { incoming, why, last });
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
            self.any_fragment(of, |of| {
                self.cache.has_pending(of)
                    && self.writeback.is_any_left(last, |dir, ino| dir == of || ino == of)
            })
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
                    let is_of = |of| self.any_fragment(*ino, |fragment| of == fragment);
                    self.writeback.is_any_left_of(last, |of| is_of(of) || *ino == self.root)
                }
                Request::StatFs { .. } => self.writeback.is_any_left_of(last, |_| false),
                Request::CopyTree(_) | Request::RemoveTree { .. } | Request::SyncFs { .. } => true,
                // The attributes are not cached, so no more operations on the inode become pending;
                // and the cache would ignore a reply that arrived before the pending ones are
                // answered.
                Request::GetAttr { ino } => self.any_fragment(*ino, |of| self.cache.has_pending(of)),
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

    /// Resumes what was blocked, after an operation was answered.
    pub(super) fn resume_blocked(&mut self, now: u64, actions: &mut Actions<T>) {
        self.release_created();
        self.acknowledge_revocations(actions);
        for BlockedCall { incoming, why, last } in core::mem::take(&mut self.calls.blocked) {
            let Some(incoming) = self.try_writeback(now, incoming, actions) else { continue };
            let still =
                |ino| self.writeback.is_any_left(last, |dir, of| [dir, of].contains(&ino)).then_some(why);
            let why = match why {
                BlockReason::Inode(ino) => still(ino),
                BlockReason::Room | BlockReason::Change => self.block_reason(now, &incoming.call, last),
            };
            match why {
                Some(why) => self.calls.blocked.push_back(BlockedCall { incoming, why, last }),
                None => self.enter_unblocked(now, incoming, actions),
            }
        }
    }
}

/// True if the call refers by number to an inode that `is_one` selects.
pub(super) fn is_about(call: &Call<'_>, mut is_one: impl FnMut(Ino) -> bool) -> bool {
    match call {
        Call::Request(request) => {
            let mut is_any = false;
            request.clone().each_inode(&mut |ino| is_any |= is_one(*ino));
            is_any
        }
        Call::Range(range) => is_one(range.ino) || range.op.source().is_some_and(is_one),
        Call::Release { ino } => is_one(*ino),
    }
}
