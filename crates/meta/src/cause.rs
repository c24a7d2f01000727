//! Causes of I/O and peer requests, for tracing.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Rank, RequestId};

use crate::io::Purpose;
use crate::journal::HeldOutput;
use crate::machine::Meta;
use crate::outbox::IoId;
use crate::rank::{PeerMessage, PeerRequest, TransactionId};
use crate::trash::INTERNAL_CLIENT;

/// The origin of an I/O or of a peer request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A client's request.
    Request(ClientId, RequestId),
    /// Another rank's question.
    Question(Rank, TransactionId),
}

impl Meta {
    /// The requests that wait for an I/O in progress; none for background work.
    pub fn causes_of(&self, id: IoId) -> Vec<Cause> {
        match self.io.get(&id) {
            Some(Purpose::Load(load, _)) => {
                self.loads.get(load).into_iter().flatten().filter_map(|task| self.cause_of(*task)).collect()
            }
            Some(Purpose::Groups(task) | Purpose::Stream(task, _) | Purpose::Pause(task)) => {
                self.cause_of(*task).into_iter().collect()
            }
            Some(Purpose::Journal) => {
                self.journal.held_by_frame().filter_map(|held| self.cause_of_held(held)).collect()
            }
            Some(Purpose::Sync) => {
                self.journal.held_by_sync().filter_map(|held| self.cause_of_held(held)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The request on whose behalf this rank has asked another.
    pub fn cause_of_question(&self, id: TransactionId) -> Option<Cause> {
        self.cause_of(self.ranks.requester(id)?)
    }

    fn cause_of_held(&self, held: &HeldOutput) -> Option<Cause> {
        match held {
            HeldOutput::Reply(client, id, ..) => Some(Cause::Request(*client, *id)),
            HeldOutput::Task(number) => self.cause_of(*number),
            HeldOutput::Peer(rank, PeerMessage::Answer { id, .. }) => Some(Cause::Question(*rank, *id)),
            _ => None,
        }
    }

    fn cause_of(&self, number: u64) -> Option<Cause> {
        let task = self.tasks.get(&number)?;
        match task.peer_request.as_deref() {
            Some(PeerRequest::Answer { from, id, .. }) => Some(Cause::Question(*from, *id)),
            Some(_) => None,
            None => (task.from != INTERNAL_CLIENT).then_some(Cause::Request(task.from, task.id)),
        }
    }
}
