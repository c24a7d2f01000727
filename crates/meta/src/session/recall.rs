//! Recalls. An orphan that is not open is freed when all clients have forgotten it. The server asks
//! them to, since their kernels would cache it, and keep its bytes allocated, indefinitely.

use espalier_proto::{ClientId, Ino, Recall};

use crate::machine::Meta;

impl Meta {
    /// Recalls an inode that has lost its last name or has been closed for the last time, from all
    /// clients that know it. Does nothing if only `but`, the client that removed the name, knows
    /// it.
    pub(crate) fn recall_unnamed(&mut self, ino: Ino, but: Option<ClientId>) {
        if self.config.session_ms.is_none() || !self.is_unnamed(ino) {
            return;
        }
        let own = but.and_then(|client| self.sessions.lookups_of(client, ino)).unwrap_or(0);
        if self.state.inodes.get(&ino).is_some_and(|cached| cached.lookups > own) {
            self.sessions.recalls.push(Recall { ino, dir: None, name: None });
        }
        // Clients that have not reclaimed yet are sent the recall at the end of the grace period.
        if self.sessions.in_grace() {
            self.sessions.unreclaimed.insert(ino);
        }
    }

    /// True if the inode has no name and nobody has it open.
    fn is_unnamed(&self, ino: Ino) -> bool {
        let cached = self.state.inodes.get(&ino);
        cached.is_some_and(|cached| cached.inode.nlink == 0 && cached.opens == 0)
    }

    /// The recalls for a client that attaches. It may have received them already.
    pub(crate) fn to_be_recalled(&self, client: ClientId) -> impl Iterator<Item = Recall> {
        let held = self.sessions.clients.get(&client).into_iter().flat_map(|session| session.held.keys());
        held.filter(|ino| self.is_unnamed(**ino)).map(|ino| Recall { ino: *ino, dir: None, name: None })
    }
}
