//! The entry: what a call passes before its first request. The order matters.
//!
//! 1. *Close a delegated open.* The server does not know of the open, and step 3 would announce it.
//! 2. *Write back.* An eligible call depends on nothing that the next steps wait for, and is
//!    acknowledged. An open that becomes delegated here must not be announced in step 3.
//! 3. *Announce delegated opens* that the call depends on. The announcements are pending
//!    operations, on which the call blocks in step 5.
//! 4. *Close a file that is not created yet.* It would block in step 5.
//! 5. *Block* on pending operations. When one is answered, a blocked call repeats steps 2 and 5: it
//!    may be eligible by then.
//! 6. *Report an error* of an earlier operation: those that it was blocked on may have failed.
//! 7. *Begin.* The first request depends on what is cached, which changes while a call is blocked.

use espalier_proto::{Reads, Request};

use super::call_state::CallState;
use super::pending_calls::PendingCall;
use super::{Actions, OwnedCall, Sessions};
use crate::{Answer, Call};

impl<T> Sessions<T> {
    /// Takes a call through all steps. See the module's documentation.
    pub(super) fn enter(&mut self, now: u64, incoming: OwnedCall<T>, actions: &mut Actions<T>) {
        if self.close_delegated(now, &incoming.call) {
            return actions.answer(incoming.ticket, Ok(Answer::Done));
        }
        let Some(incoming) = self.try_writeback(now, incoming, actions) else { return };
        self.announce_delegated_for(now, &incoming.call);
        if self.close_uncreated(now, &incoming.call) {
            return actions.answer(incoming.ticket, Ok(Answer::Done));
        }
        let Some(incoming) = self.block_call(now, incoming) else { return };
        self.enter_unblocked(now, incoming, actions);
    }

    /// Takes a call that is not blocked through the last steps.
    pub(super) fn enter_unblocked(&mut self, now: u64, incoming: OwnedCall<T>, actions: &mut Actions<T>) {
        let Some(incoming) = self.report_error(incoming, actions) else { return };
        self.begin(now, incoming, CallState::default(), actions);
    }

    /// Answers a call that must report the error of an earlier operation; otherwise returns it.
    fn report_error(&mut self, incoming: OwnedCall<T>, actions: &mut Actions<T>) -> Option<OwnedCall<T>> {
        let Some(errno) = self.deferred_error(&incoming.call) else { return Some(incoming) };
        // The file is closed nevertheless.
        if let Call::Request(request @ Request::Unlock { ino, .. }) = incoming.call {
            self.server_session(self.rank_of(ino)).ask(incoming.caller, request);
        }
        actions.answer(incoming.ticket, Err(errno));
        None
    }

    pub(super) fn begin(
        &mut self,
        now: u64,
        mut incoming: OwnedCall<T>,
        call_state: CallState,
        actions: &mut Actions<T>,
    ) {
        if let Call::Request(Request::Open { ino, how }) = &mut incoming.call
            && how.reads == Reads::Whole
            && self.cache.content(*ino, now).is_some()
        {
            how.reads = Reads::Client;
        }
        let confirmation = self.confirmation(&incoming.call, now);
        let changes = self.cache.sent(&incoming.call, now);
        let epoch = self.cache.epoch();
        let call_state = CallState { begun: now, epoch, changes, confirmation, ..call_state };
        let pending = PendingCall { incoming, call_state };
        let Some(PendingCall { incoming, call_state }) = self.enter_fragment(now, pending, actions) else {
            return;
        };
        let known =
            self.known_remote(now, &incoming).or_else(|| Some((self.lease_first(now, &incoming.call)?, 0)));
        let (next, lease) = known.unwrap_or_else(|| (self.client.start(&incoming.call), 0));
        self.advance(now, PendingCall { incoming, call_state }, next, lease, actions);
    }
}
