//! What comes to a metadata server.

use espalier_meta::PeerMessage;
use espalier_proto::{FromClient, Hello};

use crate::message::work_of_client;
use crate::model::Work;
use crate::world::fabric::WireId;

/// What a server is given to serve.
#[derive(Debug)]
pub enum Job {
    Hello(WireId, Hello),
    Client(WireId, FromClient),
    Peer(WireId, PeerMessage),
}

impl Job {
    /// By which connection it has come.
    pub fn wire(&self) -> WireId {
        let (Self::Hello(wire, _) | Self::Client(wire, _) | Self::Peer(wire, _)) = self;
        *wire
    }

    /// What it costs a processor; `None`: nothing worth mentioning.
    pub fn work(&self) -> Option<Work> {
        match self {
            Self::Client(_, message) => work_of_client(message),
            Self::Peer(..) => Some(Work::Peer),
            Self::Hello(..) => None,
        }
    }
}
