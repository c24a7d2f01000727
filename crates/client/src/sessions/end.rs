//! A client's end of its session with one server: what it has asked, what waits for that, and what is to be sent.

use alloc::vec::Vec;

use espalier_proto::{Caller, FromClient, Ino, Name, Request, RequestId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::course::Course;
use super::{Asked, Waiter};
use crate::cache::Subject;
use crate::{Call, Link};

/// A client's end of its session with one server.
#[derive(Debug)]
pub(super) struct End<T> {
    pub link: Link,
    pub out: Vec<FromClient>,
    /// Calls that wait for the server, by the request's number.
    pub parked: HashMap<RequestId, Parked<T>, FxBuildHasher>,
    /// Calls that wait for a lock, by the number under which they do.
    pub waits: HashMap<u64, Parked<T>, FxBuildHasher>,
    /// Requests that nobody waits for and that the server may still do, with the names that each may change.
    pub given_up: HashMap<RequestId, Vec<(Ino, Name)>, FxBuildHasher>,
}

/// A call that waits.
#[derive(Debug)]
pub(super) struct Parked<T> {
    /// The door's number of it.
    pub call_id: u64,
    pub caller: Caller,
    pub call: Call<'static>,
    pub ticket: Waiter<T>,
    pub sent: u64,
    pub course: Course,
}

impl<T> Parked<T> {
    /// The call, to go on with it.
    pub fn into_asked(self) -> (Asked<'static, Waiter<T>>, Course) {
        let Self { call_id, caller, call, ticket, course, .. } = self;
        (Asked { call_id, caller, call, ticket }, course)
    }
}

/// The names that a call may change.
pub(super) fn changed_names(call: &Call<'_>) -> Vec<(Ino, Name)> {
    let subject = Subject::of(call);
    let names = subject.names().filter(|_| subject.is_change);
    names.map(|(dir, name)| (dir, name.clone())).collect()
}

impl<T> Default for End<T> {
    fn default() -> Self {
        Self {
            link: Link::default(),
            out: Vec::new(),
            parked: HashMap::default(),
            waits: HashMap::default(),
            given_up: HashMap::default(),
        }
    }
}

impl<T> End<T> {
    pub fn ask(&mut self, caller: Caller, request: Request) -> RequestId {
        self.link.ask(caller, request, &mut self.out)
    }

    /// The server says that a call has to wait for a lock.
    pub fn wait(&mut self, parked: Parked<T>) {
        if let Call::Request(Request::Lock { wait: Some(wait), .. }) = parked.call {
            if parked.course.interrupted {
                self.link.stop_waiting(wait, &mut self.out);
            }
            self.waits.insert(wait, parked);
        }
    }

    /// Whether the caller of a call goes on living, and waits for something else than a lock.
    pub fn outlives(&self, call_id: u64, dies: impl Fn(u32) -> bool) -> bool {
        let parked = self.parked.values().find(|parked| parked.call_id == call_id);
        parked.is_some_and(|parked| {
            !matches!(parked.call, Call::Request(Request::Lock { .. })) && !dies(parked.caller.pid)
        })
    }

    /// The caller of a call does not want to wait any longer. Whether there is such a call, and the call if it is to end now: while
    /// there is no connection nobody can say when an answer would come.
    pub fn interrupt(&mut self, call_id: u64) -> (bool, Option<Parked<T>>) {
        let found = self.parked.iter_mut().find(|(_, parked)| parked.call_id == call_id);
        if let Some((&id, parked)) = found {
            parked.course.interrupted = true;
            let goes_on = self.link.cancel(id, &mut self.out);
            let gone = if goes_on { None } else { self.parked.remove(&id) };
            self.given_up.extend(gone.as_ref().map(|gone| (id, changed_names(&gone.call))));
            return (true, gone);
        }
        let is_known = self.waits.contains_key(&call_id);
        let goes_on = self.link.stop_waiting(call_id, &mut self.out);
        (is_known, if goes_on { None } else { self.waits.remove(&call_id) })
    }
}
