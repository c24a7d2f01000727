//! Jobs of a metadata server.

use espalier_meta::{IoDone, IoId, PeerMessage};
use espalier_proto::{Errno, FromClient, Hello, Rank};

use crate::message::work_of_client;
use crate::model::Work;
use crate::world::fabric::WireId;

/// A job for the server's processor.
#[derive(Debug)]
pub enum ProcessorJob {
    Hello(WireId, Hello),
    Client(WireId, FromClient),
    Peer(WireId, Rank, PeerMessage),
    /// A frame was written to the journal's file, which does not wait for a disk.
    Append(IoId, Result<IoDone, Errno>),
}

impl ProcessorJob {
    /// The connection that the job arrived on.
    pub fn wire(&self) -> Option<WireId> {
        match self {
            Self::Hello(wire, _) | Self::Client(wire, _) | Self::Peer(wire, ..) => Some(*wire),
            Self::Append(..) => None,
        }
    }

    /// Type of work; `None`: negligible.
    pub fn work(&self) -> Option<Work> {
        match self {
            Self::Client(_, message) => work_of_client(message),
            Self::Peer(..) => Some(Work::Peer),
            Self::Append(..) => Some(Work::Append),
            Self::Hello(..) => None,
        }
    }
}
