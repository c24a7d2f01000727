//! Bounds on the memory and the silence of a connection.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One side's bounds for its connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Payloads up to this many bytes ride in their message's frame, unless the message asks
    /// otherwise; longer ones are announced.
    pub eager_bytes: u32,
    /// The longest message without its payload, in bytes.
    pub message_bytes: u32,
    /// The longest payload, in bytes.
    pub payload_bytes: u32,
    /// Bytes of announced payloads in flight to this side. At least `payload_bytes`.
    pub receiving_bytes: usize,
    /// Bytes that may wait for the peer to read. Beyond this the connection ends.
    pub unsent_bytes: usize,
    /// A peer that is silent for this long is sent a ping, and given up after three times as long.
    /// A connecting side also gives up when the peer accepts no data for three times as long.
    pub silence: Duration,
    /// Limit for the handshake.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            eager_bytes: 16 << 10,
            message_bytes: 1 << 20,
            payload_bytes: (4 << 20) + (64 << 10),
            receiving_bytes: 8 << 20,
            unsent_bytes: 64 << 20,
            silence: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// For a side that gives up a silent client after this time: several pings are sent before.
    #[must_use]
    pub fn for_sessions(session: Duration) -> Self {
        let limits = Self::default();
        // A live peer is heard within twice the silence.
        Self { silence: limits.silence.min(session / 5), ..limits }
    }
}

/// A peer is given up after this many silent periods.
pub(crate) const SILENCES_MAX: u32 = 3;

/// Announced and incomplete payloads of one side at a time.
pub(crate) const ANNOUNCED_MAX: usize = 32;

/// Longest message, without its payload, whose payload is announced, in bytes. It has room for all
/// groups of a caller.
const ANNOUNCED_HEAD_BYTES: usize = 384 << 10;

/// Payload bytes in one frame, if announced.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Limits of received messages, stated in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) eager_bytes: u32,
    pub(crate) message_bytes: u32,
    pub(crate) payload_bytes: u32,
}

impl Terms {
    /// The limits of this side.
    pub(crate) fn of(limits: &Limits) -> Self {
        let payload_bytes =
            limits.payload_bytes.min(u32::try_from(limits.receiving_bytes).unwrap_or(u32::MAX));
        Self {
            eager_bytes: limits.eager_bytes.min(payload_bytes),
            message_bytes: limits.message_bytes.min(1 << 30),
            payload_bytes,
        }
    }

    /// Longest message without its payload, in bytes. One that waits for a large payload must take
    /// little room.
    pub(crate) fn head_bytes(self, large: bool) -> usize {
        let max = self.message_bytes as usize;
        if large { max.min(ANNOUNCED_HEAD_BYTES) } else { max }
    }

    /// The limits of messages to a peer with the limits `self`.
    pub(crate) fn to_send(self, limits: &Limits) -> Self {
        Self { eager_bytes: self.eager_bytes.min(limits.eager_bytes), ..self }
    }
}
