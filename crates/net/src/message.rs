//! What a message must tell so that it can be sent.

use bytes::Bytes;
use espalier_proto::{DataReply, DataRequest, FromClient, FromData, FromServer, Reply, Request, ToData};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What goes over a connection in one direction.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// The bytes in it that are sent apart from the rest, past the encoder.
    fn payload(&mut self) -> Option<&mut Bytes>;

    /// The request that it is about. Such a message may overtake large ones that are about other requests; a message that
    /// is about none overtakes nothing.
    fn request(&self) -> Option<u64>;

    /// Its payload is announced, however short it is.
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
            Self::Request { id, .. }
            | Self::Stream { id, .. }
            | Self::Cancel { id }
            | Self::Groups { id, .. } => Some(id.0),
            Self::Revoked { .. } | Self::Goodbye => None,
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
            // A client must have seen a lease, which may ride in a large reply, before it is told of its end.
            Self::Revoke { .. } | Self::Recall(_) | Self::Changed(_) | Self::Locked { .. } => None,
        }
    }

    fn announced(&self) -> bool {
        self.announced()
    }
}

impl Message for ToData {
    fn payload(&mut self) -> Option<&mut Bytes> {
        match &mut self.request {
            DataRequest::Write { data, .. }
            | DataRequest::WriteList { data, .. }
            | DataRequest::Fill { data, .. } => Some(data),
            _ => None,
        }
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
