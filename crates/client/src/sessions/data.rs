//! Coherence of file bytes that several clients cache.
//! A kernel's page cache reads a shared file only under a lease on its bytes. A client announces a
//! write to such a file before it answers the caller, so that other clients drop their pages.

use alloc::boxed::Box;
use core::mem::take;

use espalier_proto::{Errno, Ino, RangeOp, Reply, Request};

use super::call_state::CallState;
use super::pending_calls::PendingCall;
use super::{Actions, Sessions};
use crate::{Answer, Call, Next, RangeCall};

/// Kernels fill their cache in whole pages.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of lease requests of a call: a lease may be revoked before its reply leaves.
const TRIES: u32 = 4;

/// A call's progress with leases and announcements.
#[derive(Debug, Default)]
pub(super) enum DataLease {
    #[default]
    Nothing,
    /// A lease has been requested this many times; the last request is unanswered, or answered.
    Requested(u32),
    Answered(u32),
    /// The call's answer, which waits for the announcement, and the epoch in which the announcement
    /// began.
    Announcing(Box<Result<Answer, Errno>>, u64),
    Announced,
}

impl<T> Sessions<T> {
    /// The file that the call reads into a page cache, if no lease covers the read.
    fn uncovered(&self, now: u64, call: &Call<'_>, incoming: u64) -> Option<Ino> {
        let Call::Range(RangeCall { ino, op: RangeOp::Read { offset, size }, .. }) = *call else {
            return None;
        };
        let is_retained = self.cache.has_kernel()
            && self.cache.has_leases()
            && offset.is_multiple_of(PAGE_BYTES)
            && u64::from(size).is_multiple_of(PAGE_BYTES);
        (is_retained && !self.cache.has_pending(ino) && !self.cache.covers_pages(ino, incoming, now))
            .then_some(ino)
    }

    /// Requests a lease before a cached read of a stream, whose data comes without a lease.
    pub(super) fn lease_first(&self, now: u64, call: &Call<'_>) -> Option<Next> {
        let ino = self.uncovered(now, call, self.cache.epoch())?;
        self.client.is_streamed(ino).then_some(Next::Ask(Request::LeaseData { ino }))
    }

    /// The next step of a call: requests a lease or sends an announcement if one is due. `leased`:
    /// the read's reply carried a lease.
    pub(super) fn before_answer(
        &self,
        now: u64,
        call: &Call<'_>,
        call_state: &mut CallState,
        next: Next,
        leased: bool,
    ) -> Next {
        let tries = match call_state.data {
            DataLease::Answered(tries) => tries,
            _ => 0,
        };
        let result = match next {
            Next::Ask(Request::LeaseData { .. }) => {
                call_state.data = DataLease::Requested(tries + 1);
                return next;
            }
            Next::Answer(result) => result,
            next => return next,
        };
        if let (Ok(Answer::Bytes(_)), true) = (&result, tries < TRIES)
            && let Some(ino) =
                self.uncovered(now, call, if leased { self.cache.epoch() } else { call_state.epoch })
        {
            call_state.data = DataLease::Requested(tries + 1);
            return Next::Ask(Request::LeaseData { ino });
        }
        if let DataLease::Nothing = call_state.data
            && let Some(ino) = call.changed(&result)
            && self.must_announce(now, call, ino, result.is_ok())
        {
            call_state.data = DataLease::Announcing(Box::new(result), self.cache.epoch());
            return Next::Ask(Request::Announce(ino));
        }
        Next::Answer(result)
    }

    /// For a file that it does not have open, this client does not know whether other clients cache
    /// the bytes.
    fn must_announce(&self, now: u64, call: &Call<'_>, ino: Ino, is_done: bool) -> bool {
        let is_by_name = matches!(call, Call::Request(Request::SetAttr { .. })) && !self.client.is_open(ino);
        let is_sole_holder = self.cache.sole_holder_dir(ino).is_some_and(|(_, until)| until > now);
        self.client.announces(ino) || is_by_name && is_done && !is_sole_holder
    }

    /// Continues with the reply to a request of [`Self::before_answer`]; returns the call if it has
    /// made none.
    pub(super) fn resume_with_data(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        result: &Result<Reply, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) -> Option<PendingCall<T>> {
        if !matches!(pending.call_state.data, DataLease::Requested(_) | DataLease::Announcing(..)) {
            return Some(pending);
        }
        let PendingCall { incoming, call_state } = &mut pending;
        let next = match take(&mut call_state.data) {
            DataLease::Announcing(answer, since) => {
                if let (Ok(Reply::Announced(again)), Some(ino)) = (result, incoming.call.changed(&answer)) {
                    self.client.announced(ino, *again, since);
                }
                call_state.data = DataLease::Announced;
                Next::Answer(*answer)
            }
            DataLease::Requested(tries) => {
                call_state.data = DataLease::Answered(tries);
                if let Call::Range(RangeCall { ino, op: RangeOp::Read { .. }, .. }) = incoming.call
                    && result.is_ok()
                    && lease > 0
                {
                    self.cache.data_leased(ino, now.saturating_add(lease), now);
                }
                call_state.epoch = self.cache.epoch();
                match result {
                    Err(Errno::EINTR) => Next::Answer(Err(Errno::EINTR)),
                    _ => self.client.start(&incoming.call),
                }
            }
            _ => return None,
        };
        self.advance(now, pending, next, 0, actions);
        None
    }
}
