//! Effects of calls that are never answered or fail with an unknown effect, as the servers know
//! them. Without this knowledge such calls could take effect at any later time, and their number
//! would grow.

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};

use espalier_client::Call;
use espalier_proto::{Errno, FromClient, Rank, Reply, Request, RequestId};

use crate::Nanos;
use crate::check::{Fate, is_unknown};

/// A client, and its number of a call.
pub type CallId = (u32, u64);

/// A request that a server may still execute.
#[derive(Debug)]
struct SentRequest {
    call: u64,
    has_arrived: bool,
    /// True if this is the only request of the call.
    is_all: bool,
}

#[derive(Debug)]
struct CallProgress {
    kind: Option<Discriminant<Request>>,
    /// A server has received it.
    has_arrived: bool,
    /// Time and effect of the reply to the call's only request.
    replied: Option<(Nanos, Fate)>,
    /// The caller does not get the result.
    is_given_up: bool,
}

/// See the module description.
#[derive(Debug, Default)]
pub struct CallOutcomes {
    calls: BTreeMap<CallId, CallProgress>,
    requests: BTreeMap<(u32, Rank, RequestId), SentRequest>,
}

impl CallOutcomes {
    pub fn invoked(&mut self, call: CallId, invoked_call: &Call<'_>) {
        let kind = match invoked_call {
            Call::Request(request) => Some(discriminant(request)),
            _ => None,
        };
        self.calls.insert(call, CallProgress { kind, has_arrived: false, replied: None, is_given_up: false });
    }

    /// A call sends a request to a server, possibly again.
    pub fn requested(&mut self, (client, call): CallId, rank: Rank, message: &FromClient) {
        let (id, kind) = match message {
            FromClient::Request { id, request, .. } => (*id, Some(discriminant(request))),
            FromClient::Stream { id, .. } => (*id, None),
            _ => return,
        };
        let Some(progress) = self.calls.get(&(client, call)) else { return };
        let is_all = kind.is_some() && kind == progress.kind;
        let new = SentRequest { call, has_arrived: false, is_all };
        self.requests.entry((client, rank, id)).or_insert(new);
    }

    pub fn arrived(&mut self, client: u32, rank: Rank, message: &FromClient) {
        let (FromClient::Request { id, .. } | FromClient::Stream { id, .. }) = message else { return };
        if let Some(requested) = self.requests.get_mut(&(client, rank, *id)) {
            requested.has_arrived = true;
            self.calls.entry((client, requested.call)).and_modify(|progress| progress.has_arrived = true);
        }
    }

    /// A server has replied to a request, whether or not the client receives it. Returns the call
    /// if it is thereby over.
    pub fn replied(
        &mut self,
        now: Nanos,
        (client, rank, id): (u32, Rank, RequestId),
        result: &Result<Reply, Errno>,
    ) -> Option<(CallId, Nanos, Fate)> {
        let requested = self.requests.remove(&(client, rank, id))?;
        let call = (client, requested.call);
        if let Ok(Reply::Forwarded { to, .. }) = result {
            // The other server may execute it without another message of the client.
            self.requests.insert((client, to.rank(), id.forwarded_by(rank)), requested);
            return None;
        }
        let fate = match result {
            // The client continues the operation.
            Ok(Reply::Made(_) | Reply::Unmeasured(..)) => Fate::Either,
            Ok(_) => Fate::Done,
            Err(errno) if is_unknown(*errno) => Fate::Either,
            Err(_) => Fate::Nothing,
        };
        // The client sends such a request again, to another server.
        let is_misrouted =
            matches!(result, Ok(Reply::Fragments(_) | Reply::Misrouted { .. } | Reply::Relocated { .. }));
        if let Some(progress) = self.calls.get_mut(&call).filter(|_| requested.is_all && !is_misrouted) {
            progress.replied = Some((now, fate));
        }
        self.over(now, call)
    }

    /// A server ends. Requests that it has not executed are lost; clients resend those of waiting
    /// callers. Returns the calls that are thereby over.
    pub fn ended(&mut self, now: Nanos, rank: Rank) -> Vec<(CallId, Nanos, Fate)> {
        // The server may have lost the effects of its replies.
        let courses = self.calls.values_mut().filter_map(|progress| progress.replied.as_mut());
        courses.filter(|(_, fate)| *fate == Fate::Done).for_each(|(_, fate)| *fate = Fate::Either);
        let mut calls = Vec::new();
        self.requests.retain(|(client, to, _), requested| {
            let call = (*client, requested.call);
            let is_gone = *to == rank && self.calls.get(&call).is_none_or(|progress| progress.is_given_up);
            if is_gone {
                calls.push(call);
            } else if *to == rank {
                requested.has_arrived = false;
            }
            !is_gone
        });
        calls.into_iter().filter_map(|call| self.over(now, call)).collect()
    }

    /// A call has ended; its client makes no more requests for it. Returns its effect if the reply
    /// does not show it.
    pub fn answered(
        &mut self,
        now: Nanos,
        call: CallId,
        errno: Option<Errno>,
    ) -> Option<(CallId, Nanos, Fate)> {
        self.requests.retain(|(client, ..), requested| (*client, requested.call) != call);
        if errno == Some(Errno::EIO) {
            self.calls.entry(call).and_modify(|progress| progress.is_given_up = true);
            return self.over(now, call);
        }
        self.calls.remove(&call);
        None
    }

    /// A client has crashed: requests in flight are lost. Returns the calls that are thereby over.
    pub fn lost(&mut self, now: Nanos, client: u32) -> Vec<(CallId, Nanos, Fate)> {
        self.requests.retain(|(of, ..), requested| *of != client || requested.has_arrived);
        let calls: Vec<CallId> =
            self.calls.range((client, 0)..=(client, u64::MAX)).map(|(call, _)| *call).collect();
        for call in &calls {
            self.calls.entry(*call).and_modify(|progress| progress.is_given_up = true);
        }
        calls.into_iter().filter_map(|call| self.over(now, call)).collect()
    }

    fn over(&mut self, now: Nanos, call: CallId) -> Option<(CallId, Nanos, Fate)> {
        let is_under_way =
            self.requests.iter().any(|((client, ..), requested)| (*client, requested.call) == call);
        if is_under_way || !self.calls.get(&call)?.is_given_up {
            return None;
        }
        let progress = self.calls.remove(&call)?;
        let (at, fate) = match progress.replied {
            Some(replied) => replied,
            None if progress.has_arrived => (now, Fate::Either),
            None => (now, Fate::Nothing),
        };
        Some((call, at, fate))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used)]
mod tests {
    use espalier_proto::{Caller, Ino, Name};

    use super::*;

    #[test]
    fn misrouted_request_of_a_crashed_client_has_no_known_effect() {
        let mut outcomes = CallOutcomes::default();
        let (call, rank, id) = ((1, 2), Rank(0), RequestId(3));
        let request = Request::RmDir { dir: Ino::ROOT, name: Name::new(b"a").unwrap(), time: None };
        let message = FromClient::Request {
            id,
            below: id,
            follows: Vec::new(),
            announced: false,
            caller: Caller::SERVER,
            request: request.clone(),
        };
        outcomes.invoked(call, &Call::Request(request));
        outcomes.requested(call, rank, &message);
        outcomes.arrived(1, rank, &message);
        let reply = Ok(Reply::Misrouted { dir: Ino::ROOT });
        assert_eq!(outcomes.replied(Nanos(1), (1, rank, id), &reply), None);
        assert_eq!(outcomes.lost(Nanos(2), 1), [(call, Nanos(2), Fate::Either)]);
    }
}
