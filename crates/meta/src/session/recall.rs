//! What has no name and is not open any more ceases to be when all clients have forgotten it. They are asked to, for their kernels would keep it,
//! and its bytes, for as long as they like.

use espalier_proto::{ClientId, Ino, Recall};

use crate::machine::Meta;

impl Meta {
    /// An inode may have lost its last name, or been closed for the last time: all clients that know it are asked to forget it, unless that is
    /// only the one that has just taken its name.
    pub(crate) fn recall_unnamed(&mut self, ino: Ino, but: Option<ClientId>) {
        if self.config.session_ms.is_none() || !self.is_unnamed(ino) {
            return;
        }
        let own = but.and_then(|client| self.sessions.lookups_of(client, ino)).unwrap_or(0);
        if self.state.inodes.get(&ino).is_some_and(|cached| cached.lookups > own) {
            self.sessions.recalls.push(Recall { ino, dir: None, name: None });
        }
        // Those who have not said yet that they know it are told then.
        if self.sessions.in_grace() {
            self.sessions.unclaimed.insert(ino);
        }
    }

    /// Whether it has neither a name nor anybody that has it open.
    fn is_unnamed(&self, ino: Ino) -> bool {
        let cached = self.state.inodes.get(&ino);
        cached.is_some_and(|cached| cached.inode.nlink == 0 && cached.opens == 0)
    }

    /// What a client is to forget, though it may have been told: it was not reached then.
    pub(crate) fn to_be_recalled(&self, client: ClientId) -> impl Iterator<Item = Recall> {
        let held = self.sessions.clients.get(&client).into_iter().flat_map(|session| session.held.keys());
        held.filter(|ino| self.is_unnamed(**ino)).map(|ino| Recall { ino: *ino, dir: None, name: None })
    }
}
