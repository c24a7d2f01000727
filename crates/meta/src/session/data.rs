//! Sessions at data servers. A session is numbered when it gets its first capability. Before such a
//! session ends and releases its locks, all data servers have confirmed that they have stopped
//! serving it.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno};

use crate::io::Purpose;
use crate::machine::Meta;
use crate::outbox::{Io, Now, Outbox};
use crate::step::Step;

/// The rights of a session at data servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reach {
    #[default]
    Nothing,
    /// Data servers honour capabilities with this session number.
    Granted(u64),
    /// Data servers are to stop serving the session. `notified`: the request is in progress.
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
    /// A request to data servers is in progress.
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

    /// True if data servers have stopped serving a session. Otherwise requests that they stop;
    /// [`Self::cut_off`] follows.
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
        let (mut live, mut is_news) = (Vec::new(), false);
        for session in self.sessions.clients.values_mut() {
            match &mut session.reach {
                Reach::Granted(number) if *number > 0 => live.push(*number),
                Reach::Ending { notified } => is_news |= !core::mem::replace(notified, true),
                _ => {}
            }
        }
        if is_news {
            live.sort_unstable();
            self.sessions.data.sending = true;
            let below = self.sessions.data.last + 1;
            self.ask(Purpose::Admit, Io::Admit { below, live }, out);
        }
    }

    /// Handles the data servers' confirmation, or its failure. A client that has been heard since
    /// may request new capabilities.
    pub(crate) fn cut_off(&mut self, now: Now, is_done: bool, out: &mut Outbox) {
        self.sessions.data.sending = false;
        for session in self.sessions.clients.values_mut() {
            if session.reach == (Reach::Ending { notified: true }) {
                session.reach = if is_done { Reach::Nothing } else { Reach::Ending { notified: false } };
            }
        }
        self.expire(now, out);
        // Sessions that ended meanwhile.
        self.send_sessions(out);
    }
}
