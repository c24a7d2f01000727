//! Clients that have files open for writing.

use espalier_proto::{ClientId, Ino};

use super::SessionTable;
use crate::machine::Meta;
use crate::step::{Step, Stop, Wait};

impl SessionTable {
    /// The clients that have a file open for writing, each with whether it announces its writes.
    pub(crate) fn writers(&self, ino: Ino) -> impl Iterator<Item = (ClientId, bool)> {
        self.clients.iter().filter_map(move |(client, session)| {
            session.held.get(&ino).filter(|hold| hold.writes).map(|hold| (*client, hold.announces))
        })
    }

    /// Sets whether a client that has a file open for writing announces its writes.
    pub(crate) fn set_announces(&mut self, client: ClientId, ino: Ino, announces: bool) {
        let session = self.clients.get_mut(&client);
        if let Some(hold) = session.and_then(|session| session.held.get_mut(&ino)) {
            hold.announces = announces && hold.writes;
        }
    }
}

impl Meta {
    /// True if other clients have a file open for writing. Waits for the end of the grace period.
    pub(crate) fn others_may_write(&self, client: ClientId, ino: Ino) -> Step<bool> {
        if self.sessions.in_grace() {
            return Err(Stop::Wait(Wait::Grace));
        }
        Ok(self.sessions.clients.iter().any(|(other, session)| *other != client && session.writes(ino)))
    }
}
