//! The client's session with one server: requests, calls that wait for replies, and the output
//! queue.

use alloc::vec::Vec;

use espalier_proto::{Caller, FromClient, Ino, Name, Request, RequestId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::call_state::CallState;
use super::{IncomingCall, Waiter};
use crate::cache::Subject;
use crate::{Call, Link};

/// The client's session with one server.
#[derive(Debug)]
pub(super) struct ServerSession<T> {
    pub link: Link,
    pub out: Vec<FromClient>,
    /// Calls that wait for a reply, by request number.
    pub pending: HashMap<RequestId, PendingCall<T>, FxBuildHasher>,
    /// Calls that wait for a lock, by wait number.
    pub waits: HashMap<u64, PendingCall<T>, FxBuildHasher>,
    /// Abandoned requests that the server may still execute, with the names that each may change.
    pub given_up: HashMap<RequestId, Vec<(Ino, Name)>, FxBuildHasher>,
}

/// A call that has begun.
#[derive(Debug)]
pub(super) struct PendingCall<T> {
    pub incoming: IncomingCall<'static, Waiter<T>>,
    pub call_state: CallState,
}

impl<T> PendingCall<T> {
    /// A call that completes the acknowledged write with this number; no signal reaches it.
    pub fn acknowledged(number: u64, caller: Caller, call: Call<'static>, call_state: CallState) -> Self {
        let incoming = IncomingCall { call_id: 0, caller, call, ticket: Waiter::Acknowledged(number) };
        Self { incoming, call_state }
    }
}

/// The names that a call may change.
pub(super) fn changed_names(call: &Call<'_>) -> Vec<(Ino, Name)> {
    let subject = Subject::of(call);
    let names = subject.names().filter(|_| subject.is_change);
    names.map(|(dir, name)| (dir, name.clone())).collect()
}

impl<T> Default for ServerSession<T> {
    fn default() -> Self {
        Self {
            link: Link::default(),
            out: Vec::new(),
            pending: HashMap::default(),
            waits: HashMap::default(),
            given_up: HashMap::default(),
        }
    }
}

impl<T> ServerSession<T> {
    pub fn ask(&mut self, caller: Caller, request: Request) -> RequestId {
        self.link.ask(caller, request, &mut self.out)
    }

    /// Handles the reply that a call must wait for a lock.
    pub fn wait(&mut self, pending: PendingCall<T>) {
        if let Call::Request(Request::Lock { wait: Some(wait), .. }) = pending.incoming.call {
            if pending.call_state.interrupted {
                self.link.stop_waiting(wait, &mut self.out);
            }
            self.waits.insert(wait, pending);
        }
    }

    /// True if the signal does not end the caller and the call does not wait for a lock.
    pub fn outlives(&self, call_id: u64, dies: impl Fn(u32) -> bool) -> bool {
        let pending = self.pending.values().find(|pending| pending.incoming.call_id == call_id);
        pending.is_some_and(|pending| {
            !matches!(pending.incoming.call, Call::Request(Request::Lock { .. }))
                && !dies(pending.incoming.caller.pid)
        })
    }

    /// Interrupts a call. Returns whether it is known, and the call itself if it must end at once:
    /// without a connection the time of an answer is unknown.
    pub fn interrupt(&mut self, call_id: u64) -> (bool, Option<PendingCall<T>>) {
        let found = self.pending.iter_mut().find(|(_, pending)| pending.incoming.call_id == call_id);
        if let Some((&id, pending)) = found {
            pending.call_state.interrupted = true;
            let goes_on = self.link.cancel(id, &mut self.out);
            let gone = if goes_on { None } else { self.pending.remove(&id) };
            self.given_up.extend(gone.as_ref().map(|gone| (id, changed_names(&gone.incoming.call))));
            return (true, gone);
        }
        let is_known = self.waits.contains_key(&call_id);
        let goes_on = self.link.stop_waiting(call_id, &mut self.out);
        (is_known, if goes_on { None } else { self.waits.remove(&call_id) })
    }
}
