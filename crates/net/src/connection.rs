//! An established connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpStream;
use tokio_rustls::rustls;

use crate::error::NetError;
use crate::inbox::Inbox;
use crate::limits::{Limits, Terms};
use crate::link::{Counters, SocketLink};
use crate::message::Message;
use crate::outbox::SendQueue;
use crate::receiver::Receiver;
use crate::sender::Sender;

/// Messages `In` are received, `Out` are sent.
#[derive(Debug)]
pub struct Connection<In, Out> {
    pub receiver: Receiver<In>,
    pub sender: Sender<Out>,
}

/// Traffic since the handshake, in bytes on the network, TLS included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    pub messages_sent: u64,
    pub bytes_sent: u64,
    pub messages_received: u64,
    pub bytes_received: u64,
}

impl<In: Message, Out: Message> Connection<In, Out> {
    /// `theirs`: what the peer accepts.
    pub(crate) fn new(
        socket: TcpStream,
        tls: Option<rustls::Connection>,
        limits: &Limits,
        theirs: Terms,
    ) -> Result<Self, NetError> {
        let (read, write) = socket.into_split();
        let outbox = SendQueue::new(theirs.to_send(limits));
        let link = Arc::new(SocketLink::new(write, tls, outbox, limits.unsent_bytes));
        let inbox = Inbox::new(Terms::of(limits), limits.receiving_bytes);
        let receiver = Receiver::new(Arc::clone(&link), read, inbox, limits.silence)?;
        tokio::spawn(Arc::clone(&link).write_rest());
        Ok(Self { receiver, sender: Sender::new(link) })
    }
}

impl TrafficCounts {
    pub(crate) fn of(counters: &Counters) -> Self {
        Self {
            messages_sent: counters.messages_sent.load(Ordering::Relaxed),
            bytes_sent: counters.bytes_sent.load(Ordering::Relaxed),
            messages_received: counters.messages_received.load(Ordering::Relaxed),
            bytes_received: counters.bytes_received.load(Ordering::Relaxed),
        }
    }
}
