//! The messages to a server that await its replies.

use bytes::Bytes;
use espalier_proto::{Caller, Request, StreamIo};

#[derive(Clone, Debug)]
pub(super) enum OutgoingMessage {
    Request(Caller, Request),
    Stream(StreamIo, Bytes),
}

impl OutgoingMessage {
    /// The wait number that this request cancels.
    pub fn stops(&self) -> Option<u64> {
        match self {
            Self::Request(_, Request::StopWaiting { wait, .. }) => Some(*wait),
            _ => None,
        }
    }

    /// True if the client has already acknowledged the change to its caller (write-back).
    pub fn is_acknowledged(&self) -> bool {
        match self {
            Self::Request(_, request) => request.is_acknowledged(),
            Self::Stream(io, _) => io.acknowledged,
        }
    }

    /// Bytes of file data in this message or in its reply.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Request(_, Request::Read { size, .. }) => *size as usize,
            Self::Request(_, Request::Write { data, .. }) => data.len(),
            Self::Request(..) => 0,
            Self::Stream(io, data) => io.op.bytes(data),
        }
    }
}
