//! What becomes of calls that are never answered, or fail so that nobody knows whether they were done: servers know. Without that such
//! calls could be carried out at any time since, and there would be more and more of them.

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};

use espalier_client::Call;
use espalier_proto::{Errno, FromClient, Rank, Reply, Request, RequestId};

use crate::Nanos;
use crate::check::{Fate, is_unknown};

/// A client, and its number of a call.
pub type CallId = (u32, u64);

/// A request that a server may yet carry out.
#[derive(Debug)]
struct Asked {
    call: u64,
    has_arrived: bool,
    /// It is all that the call asks for.
    is_all: bool,
}

#[derive(Debug)]
struct Course {
    kind: Option<Discriminant<Request>>,
    /// A server has heard of it.
    has_arrived: bool,
    /// What was answered to all that it asks for, and when.
    told: Option<(Nanos, Fate)>,
    /// Its caller will not be told.
    is_given_up: bool,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Fates {
    calls: BTreeMap<CallId, Course>,
    requests: BTreeMap<(u32, Rank, RequestId), Asked>,
}

impl Fates {
    pub fn invoked(&mut self, call: CallId, what: &Call<'_>) {
        let kind = match what {
            Call::Request(request) => Some(discriminant(request)),
            _ => None,
        };
        self.calls.insert(call, Course { kind, has_arrived: false, told: None, is_given_up: false });
    }

    /// A call asks a server, perhaps once more.
    pub fn asked(&mut self, (client, call): CallId, rank: Rank, message: &FromClient) {
        let (id, kind) = match message {
            FromClient::Request { id, request, .. } => (*id, Some(discriminant(request))),
            FromClient::Stream { id, .. } => (*id, None),
            _ => return,
        };
        let Some(course) = self.calls.get(&(client, call)) else { return };
        let is_all = kind.is_some() && kind == course.kind;
        let new = Asked { call, has_arrived: false, is_all };
        self.requests.entry((client, rank, id)).or_insert(new);
    }

    pub fn arrived(&mut self, client: u32, rank: Rank, message: &FromClient) {
        let (FromClient::Request { id, .. } | FromClient::Stream { id, .. }) = message else { return };
        if let Some(asked) = self.requests.get_mut(&(client, rank, *id)) {
            asked.has_arrived = true;
            self.calls.entry((client, asked.call)).and_modify(|course| course.has_arrived = true);
        }
    }

    /// A server has answered a request, whether or not its client hears of it. The call that is over by that, if it is.
    pub fn replied(
        &mut self,
        now: Nanos,
        (client, rank, id): (u32, Rank, RequestId),
        result: &Result<Reply, Errno>,
    ) -> Option<(CallId, Nanos, Fate)> {
        let asked = self.requests.remove(&(client, rank, id))?;
        let call = (client, asked.call);
        let fate = match result {
            // The client goes on.
            Ok(Reply::Made(_) | Reply::Unmeasured(..)) => Fate::Either,
            Ok(_) => Fate::Done,
            Err(errno) if is_unknown(*errno) => Fate::Either,
            Err(_) => Fate::Nothing,
        };
        if let Some(course) = self.calls.get_mut(&call).filter(|_| asked.is_all) {
            course.told = Some((now, fate));
        }
        self.over(now, call)
    }

    /// A server ends, with all that it has not carried out. The calls that are over by that.
    pub fn ended(&mut self, now: Nanos, rank: Rank) -> Vec<(CallId, Nanos, Fate)> {
        // What it has answered it may have lost.
        let courses = self.calls.values_mut().filter_map(|course| course.told.as_mut());
        courses.filter(|(_, fate)| *fate == Fate::Done).for_each(|(_, fate)| *fate = Fate::Either);
        let mut calls = Vec::new();
        self.requests.retain(|(client, to, _), asked| {
            let call = (*client, asked.call);
            let is_gone = *to == rank && self.calls.get(&call).is_none_or(|course| course.is_given_up);
            if is_gone {
                calls.push(call);
            } else if *to == rank {
                asked.has_arrived = false;
            }
            !is_gone
        });
        calls.into_iter().filter_map(|call| self.over(now, call)).collect()
    }

    /// A call has ended, and its client asks for nothing more. If nobody knows what has come of it: what has.
    pub fn answered(
        &mut self,
        now: Nanos,
        call: CallId,
        errno: Option<Errno>,
    ) -> Option<(CallId, Nanos, Fate)> {
        self.requests.retain(|(client, ..), asked| (*client, asked.call) != call);
        if errno == Some(Errno::EIO) {
            self.calls.entry(call).and_modify(|course| course.is_given_up = true);
            return self.over(now, call);
        }
        self.calls.remove(&call);
        None
    }

    /// A client has ended: what has not arrived never will. The calls that are over by that.
    pub fn lost(&mut self, now: Nanos, client: u32) -> Vec<(CallId, Nanos, Fate)> {
        self.requests.retain(|(of, ..), asked| *of != client || asked.has_arrived);
        let calls: Vec<CallId> =
            self.calls.range((client, 0)..=(client, u64::MAX)).map(|(call, _)| *call).collect();
        for call in &calls {
            self.calls.entry(*call).and_modify(|course| course.is_given_up = true);
        }
        calls.into_iter().filter_map(|call| self.over(now, call)).collect()
    }

    fn over(&mut self, now: Nanos, call: CallId) -> Option<(CallId, Nanos, Fate)> {
        let is_under_way = self.requests.iter().any(|((client, ..), asked)| (*client, asked.call) == call);
        if is_under_way || !self.calls.get(&call)?.is_given_up {
            return None;
        }
        let course = self.calls.remove(&call)?;
        let (at, fate) = match course.told {
            Some(told) => told,
            None if course.has_arrived => (now, Fate::Either),
            None => (now, Fate::Nothing),
        };
        Some((call, at, fate))
    }
}
