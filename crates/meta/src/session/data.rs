//! What sessions may do without this server: at data servers, and in the store's data pool. A
//! session is numbered when it gets its first capability. Before such a session ends and releases
//! its locks, all data servers have confirmed that they have stopped serving it, and the pool does
//! nothing for its client from then on.
//!
//! **The data pool checks no capability**, so a client may write to it after this server has
//! restarted, until it learns of that or its session ends, and need not repeat what it has written.
//! Sizes are counted exactly nevertheless:
//!
//! - A file is durably size-dirty before a client writes to it without this server, and stays so
//!   while a client may have it open: until the last close, and during the grace period.
//! - A close follows the client's last write. The end of a session follows the client's fencing,
//!   and closes what the client had open. A close measures the file.
//! - A client that never reclaimed has nothing to close. After its fencing, all size-dirty files
//!   are measured (`Meta::end_session`).

use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno};

use crate::io::Purpose;
use crate::machine::Meta;
use crate::outbox::{Io, Now, Outbox};
use crate::step::Step;

/// The rights of a session at data servers and in the data pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reach {
    #[default]
    Nothing,
    /// Data servers honour capabilities with this session number.
    Granted(u64),
    /// The session is to lose these rights. `notified`: the request is in progress.
    Ending { notified: bool },
}

impl Reach {
    /// Capabilities from before a restart. No session has this number.
    pub const BEFORE: Self = Self::Granted(0);
}

#[derive(Debug, Default)]
pub(super) struct DataSessions {
    /// The last session number.
    last: u64,
    /// A request to end rights is in progress.
    sending: bool,
}

impl Meta {
    /// The number by which data servers know a client's session; allocates one if needed.
    ///
    /// # Errors
    /// `ESTALE` if the client has no session.
    pub(crate) fn data_session(&mut self, client: ClientId) -> Step<u64> {
        let session = self.sessions.clients.get_mut(&client).ok_or(Errno::ESTALE)?;
        if let Reach::Granted(number) = session.reach
            && session.reach != Reach::BEFORE
        {
            return Ok(number);
        }
        self.sessions.data.last += 1;
        session.reach = Reach::Granted(self.sessions.data.last);
        Ok(self.sessions.data.last)
    }

    /// True if data servers have stopped serving a session, and its client is fenced in the data
    /// pool. Otherwise requests that; [`Self::cut_off`] follows.
    pub(super) fn is_cut_off(&mut self, client: ClientId, out: &mut Outbox) -> bool {
        let Some(session) = self.sessions.clients.get_mut(&client) else { return true };
        if session.reach == Reach::Nothing {
            return true;
        }
        if let Reach::Granted(_) = session.reach {
            session.reach = Reach::Ending { notified: false };
        }
        self.send_sessions(out);
        false
    }

    fn send_sessions(&mut self, out: &mut Outbox) {
        if self.sessions.data.sending {
            return;
        }
        let (mut live, mut ending) = (Vec::new(), Vec::new());
        for (client, session) in &mut self.sessions.clients {
            match &mut session.reach {
                Reach::Granted(number) if *number > 0 => live.push(*number),
                Reach::Ending { notified } if !*notified => {
                    *notified = true;
                    ending.push(*client);
                }
                _ => {}
            }
        }
        if !ending.is_empty() {
            live.sort_unstable();
            ending.sort_unstable();
            self.sessions.data.sending = true;
            let below = self.sessions.data.last + 1;
            self.ask(Purpose::Admit, Io::Admit { below, live, ending }, out);
        }
    }

    /// Handles the confirmation of [`Io::Admit`], or its failure. A client that has been heard
    /// since may request new capabilities.
    pub(crate) fn cut_off(&mut self, now: Now, is_done: bool, out: &mut Outbox) {
        self.sessions.data.sending = false;
        for session in self.sessions.clients.values_mut() {
            if session.reach == (Reach::Ending { notified: true }) {
                session.reach = if is_done { Reach::Nothing } else { Reach::Ending { notified: false } };
            }
        }
        // After a failure the next tick requests it again.
        if is_done {
            self.expire(now, out);
            // Sessions that ended meanwhile.
            self.send_sessions(out);
        }
    }
}
