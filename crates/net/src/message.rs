//! The properties of a message that its transmission depends on.

use bytes::Bytes;
use espalier_proto::{DataReply, FromClient, FromData, FromServer, Reply, Request, ToData};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message of one direction of a connection.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// Bytes that are sent apart from the rest, past the encoder.
    fn payload(&mut self) -> Option<&mut Bytes>;

    /// The request that the message belongs to. It may overtake large messages of other requests; a
    /// message without a request overtakes nothing.
    fn request(&self) -> Option<u64>;

    /// True if the payload is announced regardless of its length.
    fn announced(&self) -> bool {
        false
    }
}

impl Message for FromClient {
    fn payload(&mut self) -> Option<&mut Bytes> {
        match self {
            Self::Request { request: Request::Write { data, .. }, .. } | Self::Stream { data, .. } => {
                Some(data)
            }
            _ => None,
        }
    }

    fn request(&self) -> Option<u64> {
        match self {
            // The server has received what it follows.
            Self::Request { follows, .. } if !follows.is_empty() => None,
            Self::Request { id, .. }
            | Self::Stream { id, .. }
            | Self::Cancel { id }
            | Self::Groups { id, .. } => Some(id.0),
            Self::Revoked { .. } | Self::Blocked { .. } | Self::Goodbye | Self::Clock { .. } => None,
        }
    }

    fn announced(&self) -> bool {
        self.announced()
    }
}

impl Message for FromServer {
    fn payload(&mut self) -> Option<&mut Bytes> {
        match self {
            Self::Reply { result: Ok(Reply::Bytes(bytes) | Reply::OpenedWhole(_, bytes)), .. } => Some(bytes),
            _ => None,
        }
    }

    fn request(&self) -> Option<u64> {
        match self {
            Self::Reply { id, .. } | Self::AskGroups { id, .. } => Some(id.0),
            // A client must receive a lease, which may ride in a large reply, before its
            // revocation.
            Self::Revoke { .. }
            | Self::Recall(_)
            | Self::Changed(_)
            | Self::Locked { .. }
            | Self::Servers(_) => None,
        }
    }

    fn announced(&self) -> bool {
        self.announced()
    }
}

impl Message for ToData {
    fn payload(&mut self) -> Option<&mut Bytes> {
        self.request.payload()
    }

    fn request(&self) -> Option<u64> {
        Some(self.id.0)
    }

    fn announced(&self) -> bool {
        self.announced()
    }
}

impl Message for FromData {
    fn payload(&mut self) -> Option<&mut Bytes> {
        if let Ok(DataReply::Bytes(bytes)) = &mut self.result { Some(bytes) } else { None }
    }

    fn request(&self) -> Option<u64> {
        Some(self.id.0)
    }

    fn announced(&self) -> bool {
        self.announced
    }
}
