//! Calls that wait for data servers, which the client asks itself.

use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{Delegation, Entry, Errno, Ino, Layout, Rank, Reply, Request, write_list};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::end::Parked;
use super::own::Own;
use super::{DataAsk, Interrupt, Told};
use crate::{Call, Work};

/// What has come of asking data servers.
#[derive(Debug)]
pub enum Outcome {
    Done(Result<Reply, Errno>),
    /// A capability has to be asked for again. What it was shown for may have been done in part.
    Stale,
}

#[derive(Debug)]
pub(super) struct Asking<T> {
    next: u64,
    calls: HashMap<u64, Waiting<T>, FxBuildHasher>,
    /// Files of which data servers have been asked something. Who asks has a share, until it is sure that nothing of it is done any
    /// more: also when nobody waits for it.
    held: HashMap<Ino, Arc<()>, FxBuildHasher>,
    /// Releases of those that somebody still has.
    put_off: Vec<Ino>,
}

#[derive(Debug)]
struct Waiting<T> {
    parked: Parked<T>,
    delegation: Arc<Delegation>,
}

impl<T> Default for Asking<T> {
    fn default() -> Self {
        Self { next: 0, calls: HashMap::default(), held: HashMap::default(), put_off: Vec::new() }
    }
}

impl<T> Asking<T> {
    pub fn ask(&mut self, parked: Parked<T>, delegation: Arc<Delegation>, work: Work, told: &mut Told<T>) {
        self.next += 1;
        let data = match &parked.call {
            Call::Write { data, .. } => data.to_bytes(),
            Call::WriteList { pieces, .. } => write_list(pieces),
            _ => Bytes::new(),
        };
        let held = match work {
            Work::Stream(_) | Work::Create { .. } => {
                Arc::clone(self.held.entry(delegation.capability.ino).or_default())
            }
            // No release has to wait for it.
            Work::Measure(_) | Work::Remove(_) => Arc::default(),
        };
        told.data.push(DataAsk { number: self.next, delegation: Arc::clone(&delegation), work, data, held });
        self.calls.insert(self.next, Waiting { parked, delegation });
    }

    /// The call that waited, if it still does.
    pub fn came(&mut self, number: u64) -> Option<(Parked<T>, Arc<Delegation>)> {
        self.calls.remove(&number).map(|Waiting { parked, delegation }| (parked, delegation))
    }

    /// The same, and it goes on waiting.
    pub fn waits(&self, number: u64) -> Option<&Parked<T>> {
        self.calls.get(&number).map(|waiting| &waiting.parked)
    }

    /// The caller of a call got a signal. `dies`: whether a process ends by it.
    pub fn interrupt(&mut self, call_id: u64, dies: impl Fn(u32) -> bool) -> Interrupt {
        match self.calls.values_mut().find(|waiting| waiting.parked.call_id == call_id) {
            None => Interrupt::Unknown,
            Some(waiting) if !dies(waiting.parked.caller.pid) => Interrupt::Survived,
            Some(waiting) => {
                waiting.parked.course.interrupted = true;
                Interrupt::Heard
            }
        }
    }

    /// The session with a rank has ended, and with it what it had allowed. Returns the calls of which nobody knows whether they were done.
    pub fn lose(&mut self, rank: Rank, told: &mut Told<T>) -> Vec<Parked<T>> {
        self.give_up(|waiting| waiting.delegation.capability.ino.rank() == rank, told)
    }

    /// Gives up calls whose callers do not want to wait for servers that cannot be reached: nobody knows how long that takes.
    pub fn give_up_stuck(
        &mut self,
        is_stuck: impl Fn(&Layout) -> bool,
        told: &mut Told<T>,
    ) -> Vec<Parked<T>> {
        let is_stuck =
            |waiting: &Waiting<T>| waiting.parked.course.interrupted && is_stuck(&waiting.delegation.layout);
        self.give_up(is_stuck, told)
    }

    /// Gives up lookups that wait for servers that cannot be reached, of the files that are wanted, with what is known without these.
    pub fn give_up_lookups(
        &mut self,
        is_stuck: impl Fn(&Layout) -> bool,
        is_wanted: impl Fn(Ino) -> bool,
        told: &mut Told<T>,
    ) -> Vec<(Parked<T>, Entry)> {
        let entry = |parked: &Parked<T>| match (&parked.call, &parked.course.own) {
            (Call::Request(Request::Lookup { .. }), Some(Own::Measure(Reply::Entry(entry)))) => Some(*entry),
            _ => None,
        };
        let which = |waiting: &Waiting<T>| {
            entry(&waiting.parked).is_some_and(|entry| is_wanted(entry.attr.ino))
                && is_stuck(&waiting.delegation.layout)
        };
        let given_up = self.give_up(which, told).into_iter();
        given_up.filter_map(|parked| entry(&parked).map(|entry| (parked, entry))).collect()
    }

    fn give_up(&mut self, which: impl Fn(&Waiting<T>) -> bool, told: &mut Told<T>) -> Vec<Parked<T>> {
        let given_up = self.calls.extract_if(|_, waiting| which(waiting));
        let parked = given_up.map(|(number, Waiting { parked, .. })| {
            told.abandoned.push(number);
            parked
        });
        parked.collect()
    }

    /// A file is to be released. Whether that has to wait: what nobody waits for any more may still be done with it.
    pub fn puts_off(&mut self, ino: Ino) -> bool {
        let is_busy = self.held.get(&ino).is_some_and(|held| Arc::strong_count(held) > 1);
        if is_busy {
            self.put_off.push(ino);
        } else {
            self.held.remove(&ino);
        }
        is_busy
    }

    /// All that data servers were asked of a file has been answered.
    pub fn is_over(&mut self, ino: Ino) {
        self.held.remove(&ino);
    }

    /// Files to be released with which nothing is done any more.
    pub fn released(&mut self) -> Vec<Ino> {
        let mut released = core::mem::take(&mut self.put_off);
        released.retain(|ino| !self.puts_off(*ino));
        released
    }
}
