//! Connections between clients and servers: bytes, TLS and frames, and no file system.
//!
//! A server's [`Acceptor`] and a client's [`connect`] perform the handshake. The result is a
//! [`Connection`]: a [`Receiver`] of batches of messages, owned by one task, and a [`Sender`] that
//! any thread may use. docs/protocol.md describes the wire format.
#![forbid(unsafe_code)]

mod accept;
mod clock;
mod connect;
mod connection;
mod error;
mod frame;
mod handshake;
mod identity;
mod inbox;
mod limits;
mod link;
mod message;
mod outbox;
pub mod pki;
mod receiver;
mod rope;
mod seal;
mod security;
mod sender;
#[cfg(test)]
mod tests;

pub use accept::{Acceptor, Incoming};
pub use connect::connect;
pub use connection::{Connection, TrafficCounts};
pub use error::{AcceptError, ConnectError, NetError};
pub use handshake::{Reason, Refusal, VERSION};
pub use identity::{Identity, IdentityError};
pub use limits::Limits;
pub use message::Message;
pub use receiver::Receiver;
pub use seal::{SealError, SealKey};
pub use security::{Security, SecurityError};
pub use sender::Sender;
