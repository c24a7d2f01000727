//! The table of pending calls: those that a caller waits for, and those that complete acknowledged
//! writes. Each is in one state.
//!
//! | state | resumed by | a fatal signal | its session ends |
//! |---|---|---|---|
//! | blocked on operations | [`Sessions::resume_blocked`] | ends it | it stays |
//! | waits for replies | [`Sessions::reply`] | cancels the requests | fails, if one was sent |
//! | waits for a lock | the grant, or its refusal | stops the wait, as any signal | it stays |
//! | waits for data servers | [`Sessions::data_completed`] | ends it, if one is down | fails |
//!
//! A lost connection changes no state, since the next one repeats the requests. Without a
//! connection a signal ends calls that wait for a server; their requests are *abandoned*.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Caller, Delegation, Entry, Errno, Ino, Name, Rank, Reply, Request, RequestId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::blocked::BlockedCall;
use super::call_state::CallState;
use super::own::Own;
use super::{Actions, IncomingCall, Interrupt, OwnedCall, Sessions, Waiter};
use crate::Call;
use crate::cache::Subject;
use crate::locations::Locations;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct PendingCalls<T> {
    /// Calls that have not begun, in order of arrival.
    pub blocked: VecDeque<BlockedCall<T>>,
    /// Calls that have begun, by what they wait for.
    begun: HashMap<CallWait, PendingCall<T>, FxBuildHasher>,
    /// Abandoned requests that a server may still execute, with the names that each may change.
    abandoned: HashMap<(Rank, RequestId), Vec<(Ino, Name)>, FxBuildHasher>,
    /// Unanswered requests of calls that wait for several replies, with [`Replies::number`].
    of_several: HashMap<(Rank, RequestId), u64, FxBuildHasher>,
    /// The last number of an operation on data servers, or of a [`CallWait::Replies`].
    last_number: u64,
}

/// The event that resumes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CallWait {
    Reply(Rank, RequestId),
    /// Several replies, by [`Replies::number`]. Each resumes the call.
    Replies(u64),
    /// A lock, by wait number.
    Lock(Rank, u64),
    /// Data servers, by [`DataOperation::number`](super::DataOperation::number).
    Data(u64),
}

/// A call's wait for several replies. The requests change no names.
#[derive(Debug)]
pub(super) struct Replies {
    number: u64,
    /// Number of replies that have not come.
    left: usize,
}

impl Replies {
    pub fn wait(&self) -> CallWait {
        CallWait::Replies(self.number)
    }

    /// A reply has come; returns true if it was the last.
    pub fn came(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

/// A call that has begun.
#[derive(Debug)]
pub(super) struct PendingCall<T> {
    pub incoming: OwnedCall<T>,
    pub call_state: CallState,
}

impl<T> PendingCall<T> {
    /// A call that completes the acknowledged write with this number; no signal reaches it.
    pub fn acknowledged(number: u64, caller: Caller, call: Call<'static>, call_state: CallState) -> Self {
        let incoming = IncomingCall { call_id: 0, caller, call, ticket: Waiter::Acknowledged(number) };
        Self { incoming, call_state }
    }

    /// The entry that a lookup has found, without the size and times that data servers have.
    pub fn unmeasured_entry(&self) -> Option<Entry> {
        match (&self.incoming.call, &self.call_state.own) {
            (Call::Request(Request::Lookup { .. }), Some(Own::Measure(Reply::Entry(entry)))) => Some(*entry),
            _ => None,
        }
    }
}

/// The names that a call may change.
pub(super) fn changed_names(call: &Call<'_>) -> Vec<(Ino, Name)> {
    let subject = Subject::of(call);
    let names = subject.names().filter(|_| subject.is_change);
    names.map(|(dir, name)| (dir, name.clone())).collect()
}

impl<T> Default for PendingCalls<T> {
    fn default() -> Self {
        Self {
            blocked: VecDeque::new(),
            begun: HashMap::default(),
            abandoned: HashMap::default(),
            of_several: HashMap::default(),
            last_number: 0,
        }
    }
}

impl<T> PendingCalls<T> {
    pub fn insert(&mut self, wait: CallWait, pending: PendingCall<T>) {
        self.begun.insert(wait, pending);
    }

    /// Adds a call that waits for data servers; returns the number of the operation.
    pub fn insert_data(&mut self, mut pending: PendingCall<T>, delegation: Arc<Delegation>) -> u64 {
        self.last_number += 1;
        pending.call_state.delegation = Some(delegation);
        self.insert(CallWait::Data(self.last_number), pending);
        self.last_number
    }

    /// A wait for the replies that [`Self::add_reply`] adds.
    pub fn replies(&mut self) -> Replies {
        self.last_number += 1;
        Replies { number: self.last_number, left: 0 }
    }

    pub fn add_reply(&mut self, replies: &mut Replies, rank: Rank, id: RequestId) {
        self.of_several.insert((rank, id), replies.number);
        replies.left += 1;
    }

    fn wait_for(&self, rank: Rank, id: RequestId) -> CallWait {
        let of_several = self.of_several.get(&(rank, id));
        of_several.map_or(CallWait::Reply(rank, id), |number| CallWait::Replies(*number))
    }

    /// The call that waits for a reply.
    pub fn waiting(&self, rank: Rank, id: RequestId) -> Option<&PendingCall<T>> {
        self.get(self.wait_for(rank, id))
    }

    /// Removes the call that waits for a reply, which has come or will not come.
    pub fn replied(&mut self, rank: Rank, id: RequestId) -> Option<PendingCall<T>> {
        let wait = self.wait_for(rank, id);
        self.of_several.remove(&(rank, id));
        self.remove(wait)
    }

    /// The unanswered requests of a call that waits for several replies.
    fn requests_of(&self, number: u64) -> Vec<(Rank, RequestId)> {
        let requests = self.of_several.iter().filter(|(_, of)| **of == number);
        requests.map(|(request, _)| *request).collect()
    }

    pub fn get(&self, wait: CallWait) -> Option<&PendingCall<T>> {
        self.begun.get(&wait)
    }

    pub fn remove(&mut self, wait: CallWait) -> Option<PendingCall<T>> {
        self.begun.remove(&wait)
    }

    /// Removes a call that no caller waits for.
    pub fn abandon(&mut self, wait: CallWait) -> Option<PendingCall<T>> {
        let pending = self.remove(wait)?;
        if let CallWait::Reply(rank, id) = wait {
            self.abandoned.insert((rank, id), changed_names(&pending.incoming.call));
        }
        Some(pending)
    }

    /// A request that may be abandoned has another number, at another rank.
    pub fn forwarded(&mut self, from: (Rank, RequestId), to: (Rank, RequestId)) {
        if let Some(names) = self.abandoned.remove(&from) {
            self.abandoned.insert(to, names);
        }
    }

    /// Handles the reply to a request. Returns the names that it may have changed if it was
    /// abandoned.
    pub fn remove_abandoned(&mut self, rank: Rank, id: RequestId) -> Option<Vec<(Ino, Name)>> {
        self.abandoned.remove(&(rank, id))
    }

    /// The calls that wait for replies.
    pub fn requests(&mut self) -> impl Iterator<Item = &mut PendingCall<T>> {
        let is_reply = |wait: &CallWait| matches!(wait, CallWait::Reply(..) | CallWait::Replies(_));
        self.begun.iter_mut().filter_map(move |(wait, pending)| is_reply(wait).then_some(pending))
    }

    /// Number of calls that wait for a server's replies.
    pub fn count(&self, rank: Rank) -> usize {
        let waits_for_rank = |wait: &&CallWait| match **wait {
            CallWait::Reply(of, _) => of == rank,
            CallWait::Replies(number) => self.requests_of(number).iter().any(|(of, _)| *of == rank),
            CallWait::Lock(..) | CallWait::Data(_) => false,
        };
        self.begun.keys().filter(waits_for_rank).count()
    }

    /// Handles the end of a server's session, which revokes its capabilities. `lost`: the requests
    /// that it ends. Returns the calls whose outcome is unknown.
    pub fn lose(
        &mut self,
        (rank, locations): (Rank, &Locations),
        lost: &[RequestId],
        actions: &mut Actions<T>,
    ) -> Vec<PendingCall<T>> {
        lost.iter().for_each(|id| drop(self.abandoned.remove(&(rank, *id))));
        let mut failed: Vec<_> = lost.iter().filter_map(|id| self.replied(rank, *id)).collect();
        let is_of = |_: &_, delegation: &Delegation| locations.of(delegation.capability.ino) == rank;
        failed.append(&mut self.take_data(is_of, actions));
        failed
    }

    /// Removes the listings that wait for other ranks if `is_late` is true for when they began to.
    pub fn take_listings(&mut self, is_late: impl Fn(u64) -> bool) -> Vec<PendingCall<T>> {
        let is_one = |_: &CallWait, pending: &mut PendingCall<T>| {
            pending.call_state.listing.is_some() && is_late(pending.call_state.sent)
        };
        self.begun.extract_if(is_one).map(|(_, pending)| pending).collect()
    }

    /// Removes the calls that wait for data servers and that `is_one` selects.
    pub fn take_data(
        &mut self,
        is_one: impl Fn(&PendingCall<T>, &Delegation) -> bool,
        actions: &mut Actions<T>,
    ) -> Vec<PendingCall<T>> {
        let is_one = |pending: &PendingCall<T>| {
            pending.call_state.delegation.as_ref().is_some_and(|delegation| is_one(pending, delegation))
        };
        let taken = self.begun.extract_if(|_, pending| is_one(pending));
        let taken = taken.map(|(wait, pending)| {
            if let CallWait::Data(number) = wait {
                actions.abandoned.push(number);
            }
            pending
        });
        taken.collect()
    }
}

impl<T> Sessions<T> {
    /// As [`Sessions::interrupt`].
    pub(super) fn interrupt_call(
        &mut self,
        call_id: u64,
        dies: impl Fn(u32) -> bool,
        actions: &mut Actions<T>,
    ) -> Interrupt {
        let mut begun = self.calls.begun.iter_mut();
        let found = begun.find(|(_, pending)| pending.incoming.call_id == call_id);
        if let Some((&wait, PendingCall { incoming, call_state })) = found {
            let is_lock = matches!(incoming.call, Call::Request(Request::Lock { .. }));
            if !is_lock && !dies(incoming.caller.pid) {
                return Interrupt::Survived;
            }
            call_state.interrupted = true;
            self.cancel(wait, actions);
            return Interrupt::Heard;
        }
        if let Some(interrupt) = self.interrupt_joined(call_id, &dies, actions) {
            return interrupt;
        }
        let mut blocked = self.calls.blocked.iter();
        let Some(at) = blocked.position(|blocked| blocked.incoming.call_id == call_id) else {
            return Interrupt::Unknown;
        };
        let blocked = &mut self.calls.blocked;
        if !blocked.get(at).is_some_and(|blocked| dies(blocked.incoming.caller.pid)) {
            return Interrupt::Survived;
        }
        if let Some(BlockedCall { incoming, .. }) = blocked.remove(at) {
            actions.answer(incoming.ticket, Err(Errno::EINTR));
        }
        Interrupt::Heard
    }

    /// Cancels the wait of an interrupted call. Without a connection the time of the server's
    /// answer is unknown, so the call ends at once.
    pub(super) fn cancel(&mut self, wait: CallWait, actions: &mut Actions<T>) {
        let will_end = match wait {
            CallWait::Reply(rank, id) => {
                let end = self.server_session(rank);
                end.link.cancel(id, &mut end.out)
            }
            CallWait::Replies(number) => {
                let mut will_end = true;
                for (rank, id) in self.calls.requests_of(number) {
                    let end = self.server_session(rank);
                    will_end &= end.link.cancel(id, &mut end.out);
                }
                will_end
            }
            CallWait::Lock(rank, wait) => {
                let end = self.server_session(rank);
                end.link.stop_waiting(wait, &mut end.out)
            }
            // See `give_up_stuck`.
            CallWait::Data(_) => true,
        };
        if !will_end && let Some(pending) = self.calls.abandon(wait) {
            self.give_up(pending, Errno::EINTR, actions);
        }
    }
}
