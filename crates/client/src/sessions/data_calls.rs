//! Calls that wait for requests to data servers.

use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Delegation, Entry, Errno, Ino, Layout, Rank, Reply, Request};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::own::Own;
use super::server_session::PendingCall;
use super::{Actions, DataOperation, Interrupt};
use crate::{Call, Work};

/// The outcome of requests to data servers.
#[derive(Debug)]
pub enum DataOutcome {
    Done(Result<Reply, Errno>),
    /// The data servers refuse the capability: get another. The requests may have been executed in
    /// part.
    Stale,
}

#[derive(Debug)]
pub(super) struct DataCalls<T> {
    next: u64,
    calls: HashMap<u64, Waiting<T>, FxBuildHasher>,
    /// Files with requests to data servers. A driver holds a reference as long as one of its
    /// requests may be executed, even if the call was abandoned.
    held: HashMap<Ino, Arc<()>, FxBuildHasher>,
    /// Files whose release waits for such references.
    put_off: Vec<Ino>,
}

#[derive(Debug)]
struct Waiting<T> {
    pending: PendingCall<T>,
    delegation: Arc<Delegation>,
}

impl<T> Default for DataCalls<T> {
    fn default() -> Self {
        Self { next: 0, calls: HashMap::default(), held: HashMap::default(), put_off: Vec::new() }
    }
}

impl<T> DataCalls<T> {
    pub fn ask(
        &mut self,
        pending: PendingCall<T>,
        delegation: Arc<Delegation>,
        work: Work,
        actions: &mut Actions<T>,
    ) {
        self.next += 1;
        let data = pending.incoming.call.bytes_to_write();
        let held = match work {
            Work::Stream(_) | Work::Create { .. } => {
                Arc::clone(self.held.entry(delegation.capability.ino).or_default())
            }
            // Releases do not wait for these.
            Work::Measure(_) | Work::Remove(_) => Arc::default(),
        };
        actions.data.push(DataOperation {
            number: self.next,
            delegation: Arc::clone(&delegation),
            work,
            data,
            held,
        });
        self.calls.insert(self.next, Waiting { pending, delegation });
    }

    /// Removes and returns the call with this number, if it still waits.
    pub fn came(&mut self, number: u64) -> Option<(PendingCall<T>, Arc<Delegation>)> {
        self.calls.remove(&number).map(|Waiting { pending, delegation }| (pending, delegation))
    }

    /// The call with this number, if it still waits.
    pub fn waits(&self, number: u64) -> Option<&PendingCall<T>> {
        self.calls.get(&number).map(|waiting| &waiting.pending)
    }

    /// Handles a signal to a call's caller. `dies`: true for a process that the signal ends.
    pub fn interrupt(&mut self, call_id: u64, dies: impl Fn(u32) -> bool) -> Interrupt {
        match self.calls.values_mut().find(|waiting| waiting.pending.incoming.call_id == call_id) {
            None => Interrupt::Unknown,
            Some(waiting) if !dies(waiting.pending.incoming.caller.pid) => Interrupt::Survived,
            Some(waiting) => {
                waiting.pending.call_state.interrupted = true;
                Interrupt::Heard
            }
        }
    }

    /// Handles the end of the session with a rank, which revokes its capabilities. Returns the
    /// abandoned calls; their outcome is unknown.
    pub fn lose(&mut self, rank: Rank, actions: &mut Actions<T>) -> Vec<PendingCall<T>> {
        self.give_up(|waiting| waiting.delegation.capability.ino.rank() == rank, actions)
    }

    /// Abandons interrupted calls that wait for unreachable servers.
    pub fn give_up_stuck(
        &mut self,
        is_stuck: impl Fn(&Layout) -> bool,
        actions: &mut Actions<T>,
    ) -> Vec<PendingCall<T>> {
        let is_stuck = |waiting: &Waiting<T>| {
            waiting.pending.call_state.interrupted && is_stuck(&waiting.delegation.layout)
        };
        self.give_up(is_stuck, actions)
    }

    /// Abandons lookups of `is_wanted` files that wait for unreachable servers; returns what is
    /// known without these.
    pub fn give_up_lookups(
        &mut self,
        is_stuck: impl Fn(&Layout) -> bool,
        is_wanted: impl Fn(Ino) -> bool,
        actions: &mut Actions<T>,
    ) -> Vec<(PendingCall<T>, Entry)> {
        let entry = |pending: &PendingCall<T>| match (&pending.incoming.call, &pending.call_state.own) {
            (Call::Request(Request::Lookup { .. }), Some(Own::Measure(Reply::Entry(entry)))) => Some(*entry),
            _ => None,
        };
        let which = |waiting: &Waiting<T>| {
            entry(&waiting.pending).is_some_and(|entry| is_wanted(entry.attr.ino))
                && is_stuck(&waiting.delegation.layout)
        };
        let given_up = self.give_up(which, actions).into_iter();
        given_up.filter_map(|pending| entry(&pending).map(|entry| (pending, entry))).collect()
    }

    fn give_up(
        &mut self,
        which: impl Fn(&Waiting<T>) -> bool,
        actions: &mut Actions<T>,
    ) -> Vec<PendingCall<T>> {
        let given_up = self.calls.extract_if(|_, waiting| which(waiting));
        let pending = given_up.map(|(number, Waiting { pending, .. })| {
            actions.abandoned.push(number);
            pending
        });
        pending.collect()
    }

    /// True if the release of a file must wait because abandoned requests may still be executed.
    pub fn puts_off(&mut self, ino: Ino) -> bool {
        let is_busy = self.held.get(&ino).is_some_and(|held| Arc::strong_count(held) > 1);
        if is_busy {
            self.put_off.push(ino);
        } else {
            self.held.remove(&ino);
        }
        is_busy
    }

    /// All requests for this file have been answered.
    pub fn is_over(&mut self, ino: Ino) {
        self.held.remove(&ino);
    }

    /// Takes the files whose release can proceed.
    pub fn released(&mut self) -> Vec<Ino> {
        let mut released = core::mem::take(&mut self.put_off);
        released.retain(|ino| !self.puts_off(*ino));
        released
    }
}
