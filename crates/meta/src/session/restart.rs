//! Sessions after a restart. They resume from the journal; during the *grace period*, until all
//! clients have reclaimed what they hold, the server frees nothing that may be theirs.

use alloc::vec::Vec;

use espalier_proto::{Access, ClientId, Errno, Held, Ino, Location, Reply};

use super::completed::CompletedOutcome;
use super::data::Reach;
use super::reclaim_token::{TokenKind, prove};
use super::{Hold, SessionState, SessionTable};
use crate::lease::Leases;
use crate::machine::Meta;
use crate::outbox::{Now, Outbox};

/// Bounds on what a client may reclaim of one inode, so that sums do not overflow.
const MAX_LOOKUPS: u64 = 1 << 40;
const MAX_OPENS: u32 = 1 << 17;
/// Maximum number of orphans that wait for clients that may hold them.
const MAX_UNCLAIMED: usize = 100_000;

impl Meta {
    /// Resumes the journaled sessions. Returns true if any must reclaim: then `orphans` may be
    /// theirs.
    pub(crate) fn recover_sessions(&mut self, orphans: &[(Ino, bool)]) -> bool {
        let clients: Vec<ClientId> = self.state.sessions.sorted().map(|(client, _)| *client).collect();
        let Some(_) = self.config.session_ms else {
            clients.into_iter().for_each(|client| self.journal_session(client, false));
            self.state.forget_unheld_moves();
            return false;
        };
        self.sessions.leases_over = self.config.lease_ms.is_none();
        self.sessions.awaited = clients.len();
        for client in clients {
            let may_reach = self.config.striping.is_some() || self.config.data_pool;
            let reach = if may_reach { Reach::BEFORE } else { Reach::default() };
            let mut session = SessionState { awaited: true, reach, ..SessionState::default() };
            let persisted = self
                .state
                .sessions
                .get(&client)
                .map(|persisted| persisted.completed.clone())
                .unwrap_or_default();
            for (id, outcome) in persisted {
                if let CompletedOutcome::Appending { ino, .. } = outcome {
                    self.sessions.ends.lock(ino, (client, id));
                } else if let CompletedOutcome::Made { ino } = outcome {
                    session.hold(ino, Hold::MADE);
                    session.reserved.insert(id, (ino, Hold::MADE));
                    // The file may have been named and unlinked since.
                    self.state.reclaim(Hold::MADE.of(ino, Location::Table));
                } else if let CompletedOutcome::Given { ino, location, named, opened } = outcome {
                    let hold = Hold {
                        lookups: named.is_some().into(),
                        opens: opened.is_some().into(),
                        writes: opened.is_some_and(|access| access.contains(Access::WRITE)),
                        announces: false,
                    };
                    session.hold(ino, hold);
                    session.reserved.insert(id, (ino, hold));
                    self.state.reclaim(hold.of(ino, location));
                }
            }
            self.sessions.clients.insert(client, session);
        }
        if self.sessions.in_grace() {
            self.sessions.unreclaimed.extend(orphans.iter().map(|(ino, _)| *ino));
        }
        self.sessions.in_grace()
    }

    /// Handles a client's reclaim. The client is believed as far as its reclaim tokens prove what
    /// it claims. A client whose session has ended may find that some of it still exists.
    pub(super) fn reclaim(
        &mut self,
        now: Now,
        client: ClientId,
        held: &[Held],
        last: bool,
        out: &mut Outbox,
    ) -> Result<Reply, Errno> {
        let session = self.sessions.clients.get_mut(&client).ok_or(Errno::ESTALE)?;
        // Ignores inode numbers that were never allocated.
        let next_ino = self.state.numbers.next();
        let is_home = |ino: Ino| ino.rank() == Ino(next_ino).rank();
        let secret = self.state.secret;
        let mut exclusive_dirs = Vec::new();
        for held in held.iter().filter(|held| held.ino.0 < next_ino || !is_home(held.ino)) {
            let proves =
                |reclaim_token, token_kind| reclaim_token == prove(&secret, client, held.ino, token_kind);
            let lookups = if proves(held.lookup_token, TokenKind::LookedUp) { held.lookups } else { 0 };
            let writes = proves(held.opened, TokenKind::OpenedToWrite);
            let opens = if writes || proves(held.opened, TokenKind::Opened) { held.opens } else { 0 };
            let has = session.held.get(&held.ino).copied().unwrap_or_default();
            let hold = Hold {
                lookups: lookups.min(MAX_LOOKUPS.saturating_sub(has.lookups)),
                opens: opens.min(MAX_OPENS.saturating_sub(has.opens)),
                writes,
                announces: false,
            };
            if hold.lookups > 0 || hold.opens > 0 {
                session.hold(held.ino, hold);
                self.state.reclaim(hold.of(held.ino, held.location));
            }
            if held.exclusive && hold.lookups > 0 {
                exclusive_dirs.push(held.ino);
            }
        }
        let is_over = last && core::mem::take(&mut session.awaited);
        for dir in exclusive_dirs {
            self.grant_exclusive(client, dir, now.uptime_ms);
        }
        if is_over {
            self.await_no_more(now, out);
        }
        Ok(Reply::Done)
    }

    /// Records that a session has ended or has finished reclaiming. The last one ends the grace
    /// period.
    pub(super) fn await_no_more(&mut self, now: Now, out: &mut Outbox) {
        self.sessions.awaited -= 1;
        if self.sessions.in_grace() {
            return;
        }
        for ino in core::mem::take(&mut self.sessions.unreclaimed) {
            let Some(cached) = self.state.inodes.get(&ino) else { continue };
            let is_needed = cached.inode.nlink > 0 || cached.inode.has_entries() || cached.in_use();
            if is_needed {
                self.recall_unnamed(ino, None);
            } else if !self.config.read_only && self.journal.broken.is_none() {
                self.purge_left_over(ino, cached.inode.is_streamed());
            }
        }
        self.state.forget_unheld_moves();
        self.sweep_due = true;
        self.resume_waiting_for_space(now, out);
    }

    /// Ends the wait for leases from before the restart once they have expired.
    pub(super) fn wait_for_leases(&mut self, now: Now, out: &mut Outbox) {
        let began = *self.sessions.began_ms.get_or_insert(now.uptime_ms);
        let lease = u64::from(self.config.lease_ms.unwrap_or(0)) + Leases::MARGIN_MS;
        if self.sessions.awaited > 0 && !self.sessions.leases_over && now.uptime_ms - began > lease {
            self.sessions.leases_over = true;
            self.resume_waiting_for_space(now, out);
        }
    }

    /// Clients that have not finished reclaiming since the restart. Until they have, or their
    /// sessions end, nothing that they may hold is freed.
    pub fn awaited(&self) -> Vec<ClientId> {
        let mut awaited: Vec<ClientId> = self.sessions.awaited_clients().collect();
        awaited.sort_unstable();
        awaited
    }
}

impl SessionTable {
    /// The client's lookups of an inode that it has not forgotten; `None`: the client has no
    /// session.
    pub(crate) fn lookups_of(&self, client: ClientId, ino: Ino) -> Option<u64> {
        self.held_by(client, ino).map(|hold| hold.lookups)
    }

    /// True if the client has looked up an inode and has not forgotten it.
    pub(crate) fn is_known_to(&self, client: ClientId, ino: Ino) -> bool {
        self.lookups_of(client, ino).is_some_and(|lookups| lookups > 0)
    }

    /// True if the client's lookups and opens of an inode equal these.
    pub(crate) fn holds(&self, client: ClientId, ino: Ino, lookups: u64, opens: u32) -> bool {
        self.held_by(client, ino).is_some_and(|hold| (hold.lookups, hold.opens) == (lookups, opens))
    }

    fn held_by(&self, client: ClientId, ino: Ino) -> Option<Hold> {
        let session = self.clients.get(&client)?;
        Some(session.held.get(&ino).copied().unwrap_or_default())
    }

    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn awaited(&self) -> usize {
        self.awaited
    }

    pub(crate) fn in_grace(&self) -> bool {
        self.awaited > 0
    }

    pub(crate) fn awaited_clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.iter().filter(|(_, session)| session.awaited).map(|(client, _)| *client)
    }

    /// True if clients that have not reclaimed may still use leases from before the restart.
    pub(crate) fn leases_may_last(&self) -> bool {
        self.awaited > 0 && !self.leases_over
    }

    /// True if changes must wait: clients may use leases from before the restart, or too many
    /// orphans wait for them.
    pub(crate) fn must_wait(&self) -> bool {
        self.awaited > 0 && (!self.leases_over || self.unreclaimed.len() >= MAX_UNCLAIMED)
    }

    /// Keeps an orphan for clients that have not reclaimed. Returns false outside the grace period.
    pub(crate) fn keep_for_others(&mut self, ino: Ino) -> bool {
        if self.awaited > 0 {
            self.unreclaimed.insert(ino);
        }
        self.awaited > 0
    }
}

impl Hold {
    fn of(self, ino: Ino, location: Location) -> Held {
        let (lookups, opens) = (self.lookups, self.opens);
        Held { ino, location, lookups, opens, lookup_token: 0, opened: 0, exclusive: false }
    }
}
