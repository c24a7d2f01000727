//! A connection to a server, and counts of its messages.

use espalier_net::Sender;
use espalier_proto::{FromClient, FromServer, Request};
use serde::{Deserialize, Serialize};

use crate::watch::Kind;

/// Counts of a session's messages, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// Sent: requests of programs, except forgets.
    pub requests: u64,
    /// Sent: forgotten inodes, many per message.
    pub forgets: u64,
    /// Sent: stream I/O.
    pub streams: u64,
    /// Sent to data servers: reads and writes.
    #[serde(default)]
    pub data: u64,
    /// Sent: all other messages.
    pub others: u64,
    /// Received: replies.
    pub replies: u64,
    pub revocations: u64,
    pub notices: u64,
}

impl Messages {
    /// The sum of two sessions.
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            forgets: self.forgets + other.forgets,
            streams: self.streams + other.streams,
            data: self.data + other.data,
            others: self.others + other.others,
            replies: self.replies + other.replies,
            revocations: self.revocations + other.revocations,
            notices: self.notices + other.notices,
        }
    }
}

pub(super) struct ServerLine {
    /// Set while connected.
    pub sender: Option<Sender<FromClient>>,
    pub messages: Messages,
    /// Requests and stream I/O by [`Kind`].
    pub kinds: [u64; Kind::ALL.len()],
}

impl Default for ServerLine {
    fn default() -> Self {
        Self { sender: None, messages: Messages::default(), kinds: [0; Kind::ALL.len()] }
    }
}

impl ServerLine {
    pub fn count_sent(&mut self, message: &FromClient) {
        let (count, kind) = match message {
            FromClient::Request { request, .. } => {
                let is_forget = matches!(request, Request::ForgetAll { .. });
                let Messages { requests, forgets, .. } = &mut self.messages;
                (if is_forget { forgets } else { requests }, Some(request.kind()))
            }
            FromClient::Stream { io, .. } => (&mut self.messages.streams, Some(io.op.kind())),
            _ => (&mut self.messages.others, None),
        };
        *count += 1;
        if let Some(kind) = kind {
            self.kinds[kind as usize] += 1;
        }
    }

    pub fn count_received(&mut self, message: &FromServer) {
        *match message {
            FromServer::Reply { .. } => &mut self.messages.replies,
            FromServer::Revoke { .. } => &mut self.messages.revocations,
            _ => &mut self.messages.notices,
        } += 1;
    }
}
