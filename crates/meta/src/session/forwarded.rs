//! Requests that reach a server without the name and are forwarded to the one that has it (wu 3.3).
//!
//! The other server executes the request in its session of the same client, under a number that
//! names its origin ([`RequestId::forwarded_by`]), and replies to the client. The first server
//! replies that it has forwarded the request, from when on the client repeats it there, after a
//! lost connection or a restart; so a lost forward is only late. It is executed once:
//! - The outcome of a forwarded change is stored by the server that executes it, as for others.
//! - The first server journals where it has sent a change. If a crash takes that event, it takes
//!   every later one: no name has moved since, and the repeated request goes to the same server.

use alloc::vec::Vec;

use espalier_policy::Policy;
use espalier_proto::{ClientId, Fragments, Ino, Reply, RequestId};

use super::{RequestState, SessionState, weight};
use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::rank::PeerMessage;
use crate::task::Task;

impl SessionState {
    /// The client has the answers to all requests of the same origin before this one.
    pub(super) fn below_of(&self, id: RequestId) -> RequestId {
        let forwarded = |rank| self.forwarded_below.get(&rank).copied().unwrap_or(id.first_of_origin());
        id.origin().map_or(self.below, forwarded)
    }

    /// The client has the answers to all requests of the same origin before `below`: drops the
    /// stored ones.
    pub(super) fn acknowledge(&mut self, below: RequestId) {
        let below = below.max(self.below_of(below));
        match below.origin() {
            Some(rank) => drop(self.forwarded_below.insert(rank, below)),
            None => self.below = below,
        }
        let is_over = |request: &RequestState| !request.is_under_way();
        let answered =
            self.requests.extract_if(below.first_of_origin()..below, |_, request| is_over(request));
        for (_, request) in answered {
            if let RequestState::Answered(result) = request {
                self.bytes -= weight(&result);
            }
        }
    }
}

impl Meta {
    /// Forwards a request for a name that `dir` does not have. Returns the reply to the client;
    /// `None`: the client must send the request again.
    pub(crate) fn forward(&mut self, task: &Task, dir: Ino) -> Option<Reply> {
        let inode = &self.state.inodes.get(&dir)?.inode;
        if task.peer_request.is_some() || self.setting(inode, Policy::dir_forward) != Some(true) {
            return None;
        }
        let mut request = task.request.clone();
        let (target, name) = request.forwarded_name()?;
        let fragments =
            inode.fragment_map().map(|map| Fragments { map: map.clone(), name_key: self.state.name_key });
        let to = match &fragments {
            Some(fragments) => fragments.of(name),
            None => self.state.whole_dir(dir).ok()?,
        };
        *target = to;
        let session = self.sessions.clients.get(&task.from)?;
        if to.rank() == self.config.rank {
            return None;
        }
        let forward = PeerMessage::Forward {
            client: task.from,
            id: task.id.forwarded_by(self.config.rank),
            below: session.below_of(task.id).forwarded_by(self.config.rank),
            caller: task.caller.clone(),
            request,
            time: self.latest_reported(),
        };
        self.send_to_rank(to.rank(), forward);
        self.transfers.counts.forwarded += 1;
        Some(Reply::Forwarded { to, fragments: fragments.map(Into::into) })
    }

    /// Executes a request that another rank has forwarded, if the client has a session here that
    /// it uses. Otherwise the client repeats it.
    pub(crate) fn admit_forwarded(&mut self, now: Now, mut task: Task, below: RequestId, out: &mut Outbox) {
        let Some(session) = self.sessions.clients.get(&task.from) else { return };
        let is_admitted = !session.awaited && !session.left && task.id.origin().is_some();
        if is_admitted && task.id.origin() == below.origin() && task.request.forwarded_name().is_some() {
            self.admit(now, task, (below, Vec::new()), out);
        }
    }

    /// A client has reclaimed after a restart: releases what was reserved for the answers of
    /// forwarded requests that it does not repeat, because it has them.
    pub(super) fn reclaimed_forwarded(&mut self, client: ClientId, again: &[RequestId]) {
        let Some(session) = self.sessions.clients.get_mut(&client) else { return };
        let is_over = |id: &RequestId| id.origin().is_some() && again.binary_search(id).is_err();
        let over: Vec<_> = session.reserved.extract_if(.., |id, _| is_over(id)).collect();
        for (_, (ino, hold)) in over {
            let unwanted = session.release_held(ino, hold);
            self.sessions.abandoned.push_back((ino, unwanted));
        }
    }
}
