//! The end of a client's sessions.

use espalier_proto::{FromClient, Ino, Rank};

use crate::message::Message;
use crate::world::fabric::Fabric;

use super::SimClient;

impl SimClient {
    /// Ends all sessions; those with unreachable servers end later.
    pub fn leave(&mut self, fabric: &mut Fabric<'_>) {
        self.leaves = true;
        for rank in self.lines.keys().copied().collect::<Vec<_>>() {
            self.say_goodbye(fabric, rank);
        }
    }

    /// Ends a session, unless write-back operations are pending.
    pub(super) fn say_goodbye(&mut self, fabric: &mut Fabric<'_>, rank: Rank) {
        if self.sessions.unanswered_changes() > 0 {
            return;
        }
        if let Some(wire) = self.lines.get(&rank).filter(|line| line.up).and_then(|line| line.wire) {
            fabric.send(wire, self.node, Message::FromClient(FromClient::Goodbye));
            // Do not reconnect: the server closes the connection.
            self.lines.remove(&rank);
            self.sessions.disconnected(rank);
        }
    }

    /// Inodes of a metadata server with lookup and open counts, if the client uses it; the inner
    /// value is `None` while anything is pending.
    #[expect(clippy::option_option)]
    pub fn holdings(&self, rank: Rank) -> Option<Option<Vec<(Ino, u64, u32)>>> {
        self.lines.get(&rank)?;
        Some(self.sessions.holdings(rank).filter(|_| self.sessions.unanswered_changes() == 0))
    }

    /// True if the client has no session.
    pub fn has_left(&self) -> bool {
        !self.is_up || (self.leaves && self.lines.is_empty())
    }

    /// Number of pending calls by rank.
    pub fn waits_for(&self) -> Vec<(Rank, usize)> {
        let waiting = self.sessions.needed().map(|rank| (rank, self.sessions.waiting(rank)));
        waiting.filter(|(_, waiting)| *waiting > 0).collect()
    }
}
