//! How much a connection may hold, and how long it may be silent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a side sets for its connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Payloads up to so many bytes are sent within their message's frame, unless that wants it otherwise; longer ones are announced.
    pub eager_bytes: u32,
    /// The longest message without its payload, in bytes.
    pub message_bytes: u32,
    /// The longest payload, in bytes.
    pub payload_bytes: u32,
    /// Announced payloads that may be on their way to this side together, in bytes. At least `payload_bytes`.
    pub receiving_bytes: usize,
    /// What may wait until the peer reads it, in bytes. A peer that lets more come together is given up.
    pub unsent_bytes: usize,
    /// A peer that has not been heard of for so long is sent a ping, and given up after three times as long. Whoever connects is
    /// given up as well when it has taken nothing for three times as long of what is sent to it.
    pub silence: Duration,
    /// A connection is given up that is not agreed upon after so long.
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
    /// For a side that gives up a client of which it has not heard for as long as that: it is asked several times before.
    #[must_use]
    pub fn for_sessions(session: Duration) -> Self {
        let limits = Self::default();
        // It is within twice the silence that a peer is heard of.
        Self { silence: limits.silence.min(session / 5), ..limits }
    }
}

/// After so many times the limit of silence a peer is given up.
pub(crate) const SILENCES_MAX: u32 = 3;

/// Payloads that are announced and have not come whole, of a side, at a time.
pub(crate) const ANNOUNCED_MAX: usize = 32;

/// The longest message, without its payload, whose payload is announced.
/// It has room for all the groups that a caller may be in.
const ANNOUNCED_HEAD_BYTES: usize = 384 << 10;

/// The bytes of a payload in one frame, if it was announced.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// What a side takes from its peer, as it says in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) eager_bytes: u32,
    pub(crate) message_bytes: u32,
    pub(crate) payload_bytes: u32,
}

impl Terms {
    /// What this side takes.
    pub(crate) fn of(limits: &Limits) -> Self {
        let payload_bytes =
            limits.payload_bytes.min(u32::try_from(limits.receiving_bytes).unwrap_or(u32::MAX));
        Self {
            eager_bytes: limits.eager_bytes.min(payload_bytes),
            message_bytes: limits.message_bytes.min(1 << 30),
            payload_bytes,
        }
    }

    /// The longest message without its payload. One that waits for a large payload is to take little room.
    pub(crate) fn head_bytes(self, large: bool) -> usize {
        let max = self.message_bytes as usize;
        if large { max.min(ANNOUNCED_HEAD_BYTES) } else { max }
    }

    /// What this side sends to a peer that takes `self`.
    pub(crate) fn to_send(self, limits: &Limits) -> Self {
        Self { eager_bytes: self.eager_bytes.min(limits.eager_bytes), ..self }
    }
}
