//! The sending side of a connection.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::connection::TrafficCounts;
use crate::error::NetError;
use crate::link::SocketLink;
use crate::message::Message;

thread_local! {
    /// Messages are encoded here before the connection's lock is taken.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encoding buffer that each thread keeps, in bytes.
const SCRATCH_BYTES: usize = 64 << 10;

/// Sends messages. Any thread may use it; only [`Sender::close`] waits.
pub struct Sender<Out> {
    pub(crate) link: Arc<SocketLink>,
    messages: PhantomData<fn(Out)>,
}

impl<Out: Message> Sender<Out> {
    pub(crate) fn new(link: Arc<SocketLink>) -> Self {
        Self { link, messages: PhantomData }
    }

    /// Queues a message and writes all that is queued.
    ///
    /// # Errors
    /// As [`Sender::queue`] and [`Sender::flush`].
    pub fn send(&self, message: Out) -> Result<(), NetError> {
        self.queue(message)?;
        self.flush()
    }

    /// Queues a message; a [`Sender::flush`] after it sends it.
    ///
    /// # Errors
    /// [`NetError::TooLong`]: the message was not queued; the connection stays usable.
    /// [`NetError::SlowPeer`]: more waits for the peer than allowed; the connection has ended.
    /// Otherwise the reason of its earlier end.
    pub fn queue(&self, mut message: Out) -> Result<(), NetError> {
        let (request, announced) = (message.request(), message.announced());
        let payload = message.payload().map(mem::take).unwrap_or_default();
        let mut scratch = SCRATCH.take();
        scratch.clear();
        let head = postcard::to_extend(&message, scratch)
            .map_err(|_| NetError::Protocol("this side cannot encode a message"))?;
        let queued = self.link.message(request, &head, payload, announced);
        if head.capacity() <= SCRATCH_BYTES {
            SCRATCH.set(head);
        }
        queued?;
        self.link.counters.messages_sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes what is queued, as far as the socket takes it; a task writes the rest. If another
    /// thread is writing, it takes this along.
    ///
    /// # Errors
    /// The reason of the connection's end.
    pub fn flush(&self) -> Result<(), NetError> {
        self.link.flush()
    }

    /// Bytes that wait only for the peer to read. The server should take nothing more from it
    /// meanwhile. Large payloads do not count: they wait for grants.
    pub fn unread(&self) -> usize {
        self.link.ready()
    }

    /// Waits until everything queued is written, then notifies the peer that no more follows. Large
    /// payloads need the [`crate::Receiver`] to run. Messages of the peer are still received.
    ///
    /// # Errors
    /// The reason of the connection's end.
    pub async fn close(&self) -> Result<(), NetError> {
        self.link.close().await
    }

    /// Ends the connection at once and drops what is queued.
    pub fn end(&self) {
        self.link.end(NetError::Dropped);
    }

    pub fn counts(&self) -> TrafficCounts {
        TrafficCounts::of(&self.link.counters)
    }
}

impl<Out> Clone for Sender<Out> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link), messages: PhantomData }
    }
}

impl<Out> fmt::Debug for Sender<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}
