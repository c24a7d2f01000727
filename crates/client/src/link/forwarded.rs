//! Requests that one server forwards to another, which replies to them. The client has them at both
//! links: at the first, so that the server keeps its answer, and at the second, to repeat them.

use alloc::vec::Vec;

use espalier_proto::{Caller, FromClient, Request, RequestId};

use super::{Link, OutgoingMessage};

/// A request that another server has forwarded, and that this server may not have received.
#[derive(Debug)]
pub(super) struct Adopted {
    pub caller: Caller,
    pub request: Request,
    /// When it was forwarded or sent, in ms; `None`: not over this connection.
    pub sent: Option<u64>,
}

/// Time in ms after which a forwarded request is taken for lost.
const FORWARD_MS: u64 = 1000;

impl Link {
    /// The server has forwarded a request. Returns it with its caller, unless it is answered.
    pub fn forwarded(&mut self, id: RequestId) -> Option<(Caller, Request)> {
        if id.origin().is_some() {
            return self.adopted.remove(&id).map(|Adopted { caller, request, .. }| (caller, request));
        }
        let OutgoingMessage::Request(caller, request) = self.unanswered.remove(&id.0)? else { return None };
        self.forwarded.insert(id.0);
        Some((caller, request))
    }

    /// True if a request that this server may have forwarded is unanswered. `id`: its number at the
    /// other server.
    pub fn may_have_forwarded(&self, id: RequestId) -> bool {
        self.unanswered.contains_key(&id.number()) || self.forwarded.contains(&id.number())
    }

    /// True if another server has said that it has forwarded this request to this server.
    pub fn has_adopted(&self, id: RequestId) -> bool {
        self.adopted.contains_key(&id)
    }

    /// A request that this server has forwarded is answered.
    pub fn forward_ended(&mut self, id: RequestId, out: &mut Vec<FromClient>) {
        self.forwarded.remove(&id.number());
        self.fill(out);
    }

    /// Another server has forwarded a request to this one.
    pub fn adopt(
        &mut self,
        now: u64,
        id: RequestId,
        (caller, request): (Caller, Request),
        out: &mut Vec<FromClient>,
    ) {
        // It may have arrived before this client's session began.
        let is_known = self.connected_at.is_some_and(|since| now >= since.saturating_add(FORWARD_MS));
        let sent = is_known.then_some(now);
        self.adopted.insert(id, Adopted { caller, request, sent });
        self.send_adopted(now, out);
    }

    /// Sends forwarded requests that may be lost.
    pub fn send_adopted(&mut self, now: u64, out: &mut Vec<FromClient>) {
        if !self.connected {
            return;
        }
        self.connected_at.get_or_insert(now);
        let below = RequestId(self.first());
        for (id, Adopted { caller, request, sent }) in &mut self.adopted {
            if sent.is_none_or(|sent| now.saturating_sub(sent) >= FORWARD_MS) {
                *sent = Some(now);
                let (id, caller, request) = (*id, caller.clone(), request.clone());
                out.push(FromClient::Request {
                    id,
                    below,
                    follows: Vec::new(),
                    announced: false,
                    caller,
                    request,
                });
            }
        }
    }
}
