//! The order of requests: a client under write-back sends changes that depend on each other without
//! waiting for replies. Most requests are executed when they arrive; one that must wait, for a
//! record or a lease, is not overtaken by those that follow it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::replace;

use espalier_proto::{ClientId, Errno, RequestId};

use super::RequestState;
use crate::lease::PreparedGrant;
use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::task::Task;

/// Requests that wait for those that they follow.
#[derive(Debug, Default)]
pub(crate) struct RequestOrder {
    /// By one that has not been executed, or not arrived.
    waiting: BTreeMap<(ClientId, RequestId), Vec<WaitingRequest>>,
    /// Executed requests that others follow.
    ready: Vec<(ClientId, RequestId)>,
}

#[derive(Debug)]
struct WaitingRequest {
    task: Task,
    follows: Vec<RequestId>,
    has_seen_tick: bool,
}

impl RequestOrder {
    /// A request has been executed: those that follow it may begin.
    pub(super) fn executed(&mut self, of: (ClientId, RequestId)) {
        if self.waiting.contains_key(&of) {
            self.ready.push(of);
        }
    }
}

impl Meta {
    /// Begins a request of a session when those that it follows have been executed.
    pub(super) fn begin_after(&mut self, now: Now, follows: Vec<RequestId>, task: Task, out: &mut Outbox) {
        let Some(session) = self.sessions.clients.get(&task.from) else { return };
        let below = session.below_of(task.id);
        let is_due = |leader: &RequestId| match session.requests.get(leader) {
            Some(progress) => !matches!(progress, RequestState::Running),
            // It has not arrived yet.
            None => *leader < below,
        };
        // A request cannot follow a later one.
        match follows.iter().find(|leader| **leader < task.id && !is_due(leader)) {
            Some(leader) => {
                let waiting = self.sessions.order.waiting.entry((task.from, *leader)).or_default();
                waiting.push(WaitingRequest { task, follows, has_seen_tick: false });
            }
            None => self.begin_task(now, task, out),
        }
    }

    /// Refuses requests that follow some that have not arrived: messages of a client arrive in
    /// order, so these were refused.
    pub(super) fn refuse_ordered(&mut self, now: Now, out: &mut Outbox) {
        let mut refused = Vec::new();
        for ((client, leader), waiting) in &mut self.sessions.order.waiting {
            let session = self.sessions.clients.get(client);
            if session.is_none_or(|session| !session.requests.contains_key(leader)) {
                refused.extend(waiting.extract_if(.., |request| replace(&mut request.has_seen_tick, true)));
            }
        }
        self.sessions.order.waiting.retain(|_, waiting| !waiting.is_empty());
        for WaitingRequest { task, .. } in refused {
            let of = (task.from, task.id);
            self.answer(now, of, Err(Errno::EAGAIN), &PreparedGrant::default(), out);
        }
    }

    /// Begins the requests that follow executed ones.
    pub(crate) fn resume_ordered(&mut self, now: Now, out: &mut Outbox) {
        while let Some(leader) = self.sessions.order.ready.pop() {
            let waiting = self.sessions.order.waiting.remove(&leader).unwrap_or_default();
            for WaitingRequest { task, follows, .. } in waiting {
                self.begin_after(now, follows, task, out);
            }
        }
    }
}
