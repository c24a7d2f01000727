//! A connection's socket, its TLS state, and its send queue.
//!
//! The flushing thread writes as much as the socket takes. One thread writes at a time, and takes
//! along what others queue meanwhile; a task writes the rest.

use std::io::{self, BufRead, IoSlice, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rustix::net::Shutdown;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio_rustls::rustls;

use crate::error::NetError;
use crate::frame::Header;
use crate::outbox::SendQueue;
use crate::rope::{Rope, SLICES};

/// Initial receive buffer, in bytes. It serves many frames, since decoded ones are dropped.
const FRAMES_BYTES: usize = 1 << 10;

/// Rounds of writing before the flushing thread leaves the rest to the task, so that other threads
/// cannot keep it.
const ROUNDS: usize = 8;

pub(crate) struct SocketLink {
    socket: OwnedWriteHalf,
    tls: Option<Mutex<rustls::Connection>>,
    out: Mutex<Out>,
    unsent_max: usize,
    /// Signals that something could not be written at once.
    unwritten: Notify,
    /// Signals that everything is written, or that the connection has ended.
    drained: Notify,
    pub(crate) counters: Counters,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) messages_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) messages_received: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    /// No more messages are queued.
    Begun,
    /// The peer knows that nothing follows.
    Done,
}

struct Out {
    outbox: SendQueue,
    /// Bytes in wire format; `None` while a thread writes them.
    flight: Option<Rope>,
    /// TLS has something to send.
    tls_waits: bool,
    closing: Closing,
    ended: Option<NetError>,
}

impl SocketLink {
    pub(crate) fn new(
        socket: OwnedWriteHalf,
        tls: Option<rustls::Connection>,
        outbox: SendQueue,
        unsent_max: usize,
    ) -> Self {
        let flight = Some(Rope::default());
        let tls = tls.map(|mut tls| {
            // The input is bounded by its source.
            tls.set_buffer_limit(None);
            Mutex::new(tls)
        });
        Self {
            socket,
            tls,
            out: Mutex::new(Out { outbox, flight, tls_waits: false, closing: Closing::No, ended: None }),
            unsent_max,
            unwritten: Notify::new(),
            drained: Notify::new(),
            counters: Counters::default(),
        }
    }

    /// Queues a message: see [`SendQueue::message`].
    ///
    /// # Errors
    /// [`NetError::TooLong`]: the connection stays usable. [`NetError::SlowPeer`]: more waits than
    /// allowed; the connection has ended.
    pub(crate) fn message(
        &self,
        request: Option<u64>,
        head: &[u8],
        payload: Bytes,
        announced: bool,
    ) -> Result<(), NetError> {
        let mut out = self.out();
        out.check()?;
        if out.closing != Closing::No {
            return Err(NetError::Dropped);
        }
        out.outbox.message(request, head, payload, announced)?;
        self.bound(out)
    }

    /// Queues a frame that is no message.
    pub(crate) fn control(&self, header: Header) -> Result<(), NetError> {
        let mut out = self.out();
        out.check()?;
        if out.closing != Closing::Done {
            out.outbox.control(header);
        }
        self.bound(out)
    }

    /// The peer has granted this announced payload.
    pub(crate) fn grant(&self, number: u32) -> Result<(), NetError> {
        let mut out = self.out();
        out.check()?;
        out.outbox.grant(number)
    }

    fn bound(&self, out: MutexGuard<'_, Out>) -> Result<(), NetError> {
        let unsent = out.unsent();
        drop(out);
        if unsent > self.unsent_max { Err(self.end(NetError::SlowPeer(unsent))) } else { Ok(()) }
    }

    /// Writes what is queued, as far as the socket takes it.
    pub(crate) fn flush(&self) -> Result<(), NetError> {
        let mut flight = {
            let mut out = self.out();
            out.check()?;
            // The thread that has it will look for more.
            let Some(flight) = out.flight.take() else { return Ok(()) };
            flight
        };
        for _ in 0..ROUNDS {
            match self.write(&mut flight) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(self.end(error.into())),
            }
            {
                let mut out = self.out();
                out.outbox.take(&mut flight);
                if !flight.has_remaining() && !out.tls_waits {
                    // TLS output has memory of its own.
                    out.flight = Some(if self.is_plain() { flight } else { Rope::default() });
                    if out.unsent() == 0 {
                        self.drained.notify_waiters();
                    }
                    return Ok(());
                }
                out.tls_waits = false;
            }
            flight = self.seal(flight).map_err(|error| self.end(error))?;
        }
        self.out().flight = Some(flight);
        self.unwritten.notify_one();
        Ok(())
    }

    /// Flushes whenever the socket becomes writable, until the connection ends.
    pub(crate) async fn write_rest(self: Arc<Self>) {
        loop {
            self.unwritten.notified().await;
            let written = match self.socket.writable().await {
                Ok(()) => self.flush(),
                Err(error) => Err(self.end(error.into())),
            };
            if written.is_err() {
                return;
            }
        }
    }

    /// Waits until everything is written, then notifies the peer that no more follows.
    pub(crate) async fn close(&self) -> Result<(), NetError> {
        self.out().closing = Closing::Begun;
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            self.flush()?;
            {
                let mut out = self.out();
                if out.flight.is_some() && out.unsent() == 0 {
                    out.closing = Closing::Done;
                    break;
                }
            }
            drained.await;
        }
        if let Some(tls) = &self.tls {
            lock(tls).send_close_notify();
            self.out().tls_waits = true;
            self.flush()?;
        }
        rustix::net::shutdown(self.socket.as_ref(), Shutdown::Write).map_err(io::Error::from)?;
        Ok(())
    }

    /// Ends the connection. Returns the first reason given, which all users of the connection get.
    pub(crate) fn end(&self, error: NetError) -> NetError {
        let mut out = self.out();
        let error = out.ended.get_or_insert(error).clone();
        out.outbox.clear();
        drop(out);
        // Wakes the reader. The peer may have shut it down already.
        let _ = rustix::net::shutdown(self.socket.as_ref(), Shutdown::Both);
        self.unwritten.notify_one();
        self.drained.notify_waiters();
        error
    }

    /// Bytes that wait only for the socket.
    pub(crate) fn ready(&self) -> usize {
        let out = self.out();
        out.outbox.ready_bytes() + out.flight_bytes()
    }

    /// True without TLS.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Decrypts `wire` and appends it to `into`.
    pub(crate) fn open(&self, mut wire: &[u8], into: &mut BytesMut) -> Result<(), NetError> {
        if into.capacity() - into.len() < wire.len() {
            into.reserve(wire.len().max(FRAMES_BYTES));
        }
        let Some(tls) = &self.tls else {
            into.extend_from_slice(wire);
            return Ok(());
        };
        let mut tls = lock(tls);
        loop {
            let state = tls.process_new_packets();
            let waits = tls.wants_write();
            if waits {
                self.out().tls_waits = true;
            }
            if let Err(error) = state {
                drop(tls);
                // Sends the alert with the reason.
                let _ = self.flush();
                return Err(NetError::Tls(error));
            }
            let mut reader = tls.reader();
            // Errors mean no more data or a closed peer; the socket reports these, too.
            while let Ok(plain) = reader.fill_buf() {
                let length = plain.len();
                if length == 0 {
                    break;
                }
                into.extend_from_slice(plain);
                reader.consume(length);
            }
            if wire.is_empty() {
                drop(tls);
                return if waits { self.flush() } else { Ok(()) };
            }
            if tls.read_tls(&mut wire)? == 0 {
                // Data after close_notify.
                return Ok(());
            }
        }
    }

    /// Encrypts.
    fn seal(&self, mut plain: Rope) -> Result<Rope, NetError> {
        let Some(tls) = &self.tls else { return Ok(plain) };
        let mut tls = lock(tls);
        // Each record of 16 KiB adds some 22 bytes.
        let length = plain.remaining() + plain.remaining() / 512 + 64;
        while plain.has_remaining() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = plain.chunks_vectored(&mut slices);
            let taken = tls.writer().write_vectored(&slices[..count])?;
            plain.advance(taken);
        }
        let mut wire = BytesMut::with_capacity(length).writer();
        while tls.wants_write() {
            tls.write_tls(&mut wire)?;
        }
        Ok(wire.into_inner().into())
    }

    /// Writes to the socket. Returns false if it does not take everything.
    fn write(&self, flight: &mut Rope) -> io::Result<bool> {
        while flight.has_remaining() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = flight.chunks_vectored(&mut slices);
            match self.socket.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    flight.advance(written);
                    self.counters.bytes_sent.fetch_add(written as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        lock(&self.out)
    }
}

impl Out {
    fn check(&self) -> Result<(), NetError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Excludes what a thread is writing at the moment.
    fn unsent(&self) -> usize {
        self.outbox.bytes() + self.flight_bytes()
    }

    fn flight_bytes(&self) -> usize {
        self.flight.as_ref().map_or(0, Rope::remaining)
    }
}

/// No panic while these locks are held leaves their data inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
