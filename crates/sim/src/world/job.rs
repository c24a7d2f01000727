//! What comes to a metadata server.

use espalier_meta::{IoDone, IoId, PeerMessage};
use espalier_proto::{Errno, FromClient, Hello};

use crate::message::work_of_client;
use crate::model::Work;
use crate::world::fabric::WireId;

/// What a server is given to serve.
#[derive(Debug)]
pub enum Job {
    Hello(WireId, Hello),
    Client(WireId, FromClient),
    Peer(WireId, PeerMessage),
    /// A frame goes to the journal's file, which waits for no disk.
    Append(IoId, Result<IoDone, Errno>),
}

impl Job {
    /// By which connection it has come.
    pub fn wire(&self) -> Option<WireId> {
        match self {
            Self::Hello(wire, _) | Self::Client(wire, _) | Self::Peer(wire, _) => Some(*wire),
            Self::Append(..) => None,
        }
    }

    /// What it costs a processor; `None`: nothing worth mentioning.
    pub fn work(&self) -> Option<Work> {
        match self {
            Self::Client(_, message) => work_of_client(message),
            Self::Peer(..) => Some(Work::Peer),
            Self::Append(..) => Some(Work::Append),
            Self::Hello(..) => None,
        }
    }
}
