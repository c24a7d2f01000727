//! How sessions begin and end. A silent session expires, and its lookups and opens are released.

use alloc::vec::Vec;

use espalier_proto::{Caller, ClientId, DataRequest, Errno, Request, RequestId};

use super::{Hold, SessionState};
use crate::event::Event;
use crate::io::Purpose;
use crate::journal::HeldOutput;
use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

/// Maximum number of sessions.
const MAX_SESSIONS: usize = DataRequest::MAX_SESSIONS;
/// Number of departed clients that are remembered and announced to other ranks.
const MOST_LEFT: usize = 4096;
/// Inodes of ended sessions that are released per step; bounds how long other operations wait.
const RELEASE: usize = 128;

impl Meta {
    /// Starts or resumes a client's session. A client that resumes gets no new session: if that
    /// answer were lost, the client would take it for the old one and execute old requests again.
    pub(crate) fn connect(
        &mut self,
        now: Now,
        client: ClientId,
        (leases, resumes): (bool, bool),
        out: &mut Outbox,
    ) {
        if self.config.session_ms.is_none() {
            return;
        }
        if let Some(session) = self.sessions.clients.get_mut(&client) {
            (session.heard_ms, session.left) = (Some(now.uptime_ms), false);
            self.want_leases(client, leases);
            return self.connect_when_written(client, out);
        }
        if resumes {
            return out.refused.push((client, Errno::ESTALE));
        }
        if client == INTERNAL_CLIENT {
            return out.refused.push((client, Errno::EINVAL));
        }
        if self.sessions.clients.len() >= MAX_SESSIONS {
            return out.refused.push((client, Errno::ENFILE));
        }
        if self.journal.broken.is_some() {
            return out.refused.push((client, Errno::EIO));
        }
        let session = SessionState { heard_ms: Some(now.uptime_ms), ..SessionState::default() };
        self.sessions.clients.insert(client, session);
        self.sessions.left.retain(|left| *left != client);
        self.want_leases(client, leases);
        self.journal_session(client, true);
        self.connect_when_written(client, out);
    }

    fn connect_when_written(&mut self, client: ClientId, out: &mut Outbox) {
        self.sessions.clients.entry(client).and_modify(|session| session.connecting = true);
        let held = HeldOutput::Session(client, Ok(()));
        if let Some(HeldOutput::Session(client, result)) = self.journal.hold_written(held) {
            self.connected(client, result, out);
        }
    }

    /// Reports a session whose event is in the journal, or could not be written.
    pub(crate) fn connected(&mut self, client: ClientId, result: Result<(), Errno>, out: &mut Outbox) {
        let session = self.sessions.clients.get_mut(&client);
        let is_there = session.map(|session| session.connecting = false).is_some();
        match result {
            Ok(()) if is_there => out.connected.push(client),
            // The client has left meanwhile.
            Ok(()) => out.refused.push((client, Errno::ESTALE)),
            Err(errno) => out.refused.push((client, errno)),
        }
    }

    pub(crate) fn heard(&mut self, now: Now, client: ClientId) {
        if let Some(session) = self.sessions.clients.get_mut(&client) {
            session.heard_ms = Some(now.uptime_ms);
        }
    }

    /// Ends a client's session at its own request; what it holds is released.
    pub(crate) fn leave(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        let Some(session) = self.sessions.clients.get_mut(&client) else { return };
        session.left = true;
        if self.config.ranks > 1 {
            self.sessions.left.push_back(client);
            if self.sessions.left.len() > MOST_LEFT {
                self.sessions.left.pop_front();
            }
        }
        // Requests in progress end first: their outcome would belong to no session.
        if !session.is_busy() && self.end_session(now, client, out) {
            self.release_abandoned_soon(now, out);
        }
    }

    /// Ends the sessions of clients that left another rank and have not reclaimed here.
    pub(crate) fn left_other_rank(&mut self, now: Now, clients: &[ClientId], out: &mut Outbox) {
        for client in clients {
            if self.sessions.clients.get(client).is_some_and(|session| session.awaited) {
                self.leave(now, *client, out);
            }
        }
    }

    /// Ends a session. Returns false if data servers must first stop serving the client, or the
    /// client must be fenced in the data pool.
    fn end_session(&mut self, now: Now, client: ClientId, out: &mut Outbox) -> bool {
        if !self.is_cut_off(client, out) {
            return false;
        }
        let Some(session) = self.sessions.clients.remove(&client) else { return false };
        self.sessions.abandoned.extend(session.held);
        let removing = self.sessions.removing.extract_if(.., |_, by| *by == client);
        // The forget of such a file then frees its remainder.
        self.sessions.abandoned.extend(removing.map(|(ino, _)| (ino, Hold::LOOKUP)));
        self.journal_session(client, false);
        self.drop_leases(now, client, out);
        self.locks.end(client);
        self.unlock_ends(now, |(by, _)| by == client, out);
        if session.awaited {
            if self.config.data_pool {
                // It may have written until it was fenced to files that it has not reclaimed.
                self.state.size_dirty.must_measure_all();
            }
            self.await_no_more(now, out);
        }
        true
    }

    pub(super) fn journal_session(&mut self, client: ClientId, begins: bool) {
        if !self.config.read_only {
            self.append_loaded(&Event::Session { client, begins });
        }
    }

    /// Ends the sessions that have been silent for too long.
    pub(crate) fn expire(&mut self, now: Now, out: &mut Outbox) {
        let Some(limit) = self.config.session_ms else { return };
        self.refuse_ordered(now, out);
        self.wait_for_leases(now, out);
        let mut expired: Vec<ClientId> = Vec::new();
        for (client, session) in &mut self.sessions.clients {
            if session.connecting {
                session.heard_ms = Some(now.uptime_ms);
            }
            let heard = *session.heard_ms.get_or_insert(now.uptime_ms);
            if session.left || now.uptime_ms.saturating_sub(heard) > limit.into() {
                expired.push(*client);
            }
        }
        expired.sort_unstable();
        for client in expired {
            self.give_up_groups(now, client, out);
            let is_idle = self.sessions.clients.get(&client).is_some_and(|session| !session.is_busy());
            if is_idle && self.end_session(now, client, out) {
                out.expired.push(client);
            }
        }
        self.release_abandoned_soon(now, out);
    }

    /// Fails the group queries of a client that is gone.
    fn give_up_groups(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        let is_group_query = |purpose: &Purpose| match purpose {
            Purpose::Groups(number) => self.tasks.get(number).is_some_and(|task| task.from == client),
            _ => false,
        };
        let group_queries = self.io.iter().filter(|(_, purpose)| is_group_query(purpose)).map(|(id, _)| *id);
        for id in group_queries.collect::<Vec<_>>() {
            self.done(now, id, Err(Errno::EIO), out);
        }
    }

    fn release_abandoned_soon(&mut self, now: Now, out: &mut Outbox) {
        if !self.sessions.releasing {
            self.release_abandoned(now, out);
        }
    }

    /// Releases some abandoned holds, as if their clients had released them.
    pub(crate) fn release_abandoned(&mut self, now: Now, out: &mut Outbox) {
        let count = self.sessions.abandoned.len().min(RELEASE);
        for (ino, Hold { lookups, opens, .. }) in self.sessions.abandoned.drain(..count).collect::<Vec<_>>() {
            if lookups > 0 {
                let request = Request::Forget { ino, lookups };
                self.run(now, Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, request), None, out);
            }
            if opens > 0 {
                // The last close counts the bytes written.
                self.state.close(ino, opens - 1);
                let request = Request::Release { ino };
                self.run(now, Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, request), None, out);
            }
        }
        self.sessions.releasing = !self.sessions.abandoned.is_empty();
        if self.sessions.releasing {
            self.rest_abandoned(out);
        }
    }
}
