//! Messages between nodes.

use espalier_meta::PeerMessage;
use espalier_proto::{
    DataReply, DataRequest, FromClient, FromData, FromServer, Hello, Reply, Request, ServerMap, ToData,
    Welcome, named,
};
use postcard::ser_flavors::Flavor;
use serde::Serialize;

use crate::model::Work;

/// A message. Its size on the network is its encoded size.
#[derive(Clone, Debug, Serialize)]
pub enum Message {
    /// First message of the connecting node.
    Hello(Hello),
    Welcome(Box<Welcome>),
    /// Refuses a connection.
    Refused,
    /// Refuses a connection: the client's session has ended.
    Ended,
    FromClient(FromClient),
    FromServer(FromServer),
    Peer(PeerMessage),
    ToData(ToData),
    FromData(FromData),
    /// Addresses of the cluster's servers, whenever they change.
    Addresses(ServerMap),
    /// Keep-alive of a client.
    Alive,
}

named! {
    /// Kinds of messages, for statistics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum MessageKind {
        Hello = "hello",
        Welcome = "welcome",
        Alive = "alive",
        Request = "request",
        Stream = "stream",
        Revoked = "revoked",
        OtherOfClient = "other_of_client",
        Reply = "reply",
        Revoke = "revoke",
        Recall = "recall",
        OtherOfServer = "other_of_server",
        Peer = "peer",
        ToData = "to_data",
        FromData = "from_data",
        /// Announcement and grant of a payload.
        Handshake = "handshake",
    }
}

impl Message {
    pub fn kind(&self) -> MessageKind {
        match self {
            Self::Hello(_) => MessageKind::Hello,
            Self::Welcome(_) | Self::Refused | Self::Ended => MessageKind::Welcome,
            Self::Alive => MessageKind::Alive,
            Self::FromClient(FromClient::Request { .. }) => MessageKind::Request,
            Self::FromClient(FromClient::Stream { .. }) => MessageKind::Stream,
            Self::FromClient(FromClient::Revoked { .. }) => MessageKind::Revoked,
            Self::FromClient(_) => MessageKind::OtherOfClient,
            Self::FromServer(FromServer::Reply { .. }) => MessageKind::Reply,
            Self::FromServer(FromServer::Revoke { .. }) => MessageKind::Revoke,
            Self::FromServer(FromServer::Recall(_)) => MessageKind::Recall,
            Self::FromServer(_) | Self::Addresses(_) => MessageKind::OtherOfServer,
            Self::Peer(_) => MessageKind::Peer,
            Self::ToData(_) => MessageKind::ToData,
            Self::FromData(_) => MessageKind::FromData,
        }
    }

    /// Length of the message's payload in bytes; long payloads are announced first.
    pub fn payload(&self) -> usize {
        match self {
            Self::FromClient(
                FromClient::Request { request: Request::Write { data, .. }, .. }
                | FromClient::Stream { data, .. },
            )
            | Self::FromServer(FromServer::Reply {
                result: Ok(Reply::Bytes(data) | Reply::OpenedWhole(_, data)),
                ..
            })
            | Self::ToData(ToData {
                request: DataRequest::Range { data, .. } | DataRequest::Fill { data, .. },
                ..
            })
            | Self::FromData(FromData { result: Ok(DataReply::Bytes(data)), .. }) => data.len(),
            _ => 0,
        }
    }

    /// True if the payload is announced regardless of its length.
    pub fn announced(&self) -> bool {
        match self {
            Self::FromClient(message) => message.announced(),
            Self::FromServer(message) => message.announced(),
            Self::ToData(message) => message.announced(),
            Self::FromData(message) => message.announced,
            _ => false,
        }
    }

    /// Encoded size in bytes, and a hash of the message.
    pub fn measure(&self) -> (usize, u64) {
        // All messages can be encoded.
        postcard::serialize_with_flavor(self, Measure::default()).unwrap_or_default()
    }
}

/// Type of work for a message of a client; `None`: negligible.
pub fn work_of_client(message: &FromClient) -> Option<Work> {
    match message {
        FromClient::Request { request, .. } => Some(work_of(request)),
        FromClient::Stream { .. } => Some(Work::Data),
        _ => None,
    }
}

/// Type of work for a request.
pub fn work_of(request: &Request) -> Work {
    match request {
        Request::Create { .. } | Request::TmpFile { .. } | Request::Link { .. } => Work::Create,
        Request::Unlink { .. }
        | Request::RmDir { .. }
        | Request::RemoveTree { .. }
        | Request::Purge { .. } => Work::Remove,
        Request::Rename { .. } => Work::Rename,
        Request::Lookup { .. }
        | Request::GetAttr { .. }
        | Request::ReadLink { .. }
        | Request::Access { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::Find { .. }
        | Request::Parent { .. } => Work::Lookup,
        Request::SetAttr { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::RemovePrivileges { .. }
        | Request::SetLayout { .. } => Work::SetAttr,
        Request::ReadDir { .. } => Work::ReadDir,
        Request::Open { .. } | Request::Release { .. } => Work::Open,
        Request::Read { .. } | Request::Write { .. } | Request::Allocate { .. } | Request::Seek { .. } => {
            Work::Data
        }
        _ => Work::Other,
    }
}

/// Counts and hashes encoded bytes without storing them.
#[derive(Default)]
struct Measure {
    bytes: usize,
    hash: u64,
}

impl Measure {
    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Flavor for Measure {
    type Output = (usize, u64);

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.bytes += 1;
        self.mix(byte.into());
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.bytes += bytes.len();
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.mix((*byte).into()));
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self::Output> {
        Ok((self.bytes, self.hash))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use espalier_proto::{Ino, RequestId, StreamIo};

    use super::*;

    #[test]
    fn a_message_has_the_size_of_its_encoding() {
        let message = |byte| {
            let io = StreamIo::write(Ino(5), 7, 1000);
            let (id, below) = (RequestId(300), RequestId(299));
            Message::FromClient(FromClient::Stream {
                id,
                below,
                announced: false,
                io,
                data: vec![byte; 1000].into(),
            })
        };
        let (bytes, number) = message(1).measure();
        assert_eq!(bytes, postcard::to_allocvec(&message(1)).unwrap().len());
        assert_eq!(message(1).measure().1, number);
        assert_ne!(message(2).measure().1, number);
    }
}
