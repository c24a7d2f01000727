//! The receiving side of a connection.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::io::poll_read_buf;

use crate::error::NetError;
use crate::frame::Header;
use crate::inbox::{Inbox, Taken};
use crate::limits::SILENCES_MAX;
use crate::link::SocketLink;
use crate::message::Message;

/// Messages in a batch, at most.
const BATCH_MAX: usize = 64;

const READ_BYTES: usize = 64 << 10;

/// Read size where pieces are expected, so that most of their bytes are read in place.
const AHEAD_BYTES: usize = 8 << 10;

thread_local! {
    /// Read buffer, one for each thread, so that idle connections need none.
    static SPACE: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Receives messages. Dropping it ends the connection.
pub struct Receiver<In> {
    link: Arc<SocketLink>,
    socket: OwnedReadHalf,
    /// An incomplete frame, and frames that did not fit the batch.
    buffer: BytesMut,
    inbox: Inbox<In>,
    silence: Duration,
    alarm: Pin<Box<Sleep>>,
    /// Anything received since the alarm was set.
    heard: bool,
    /// Alarms since the peer was last heard.
    silences: u32,
    /// An error found behind messages that must be delivered first.
    error: Option<NetError>,
}

impl<In: Message> Receiver<In> {
    pub(crate) fn new(
        link: Arc<SocketLink>,
        socket: OwnedReadHalf,
        inbox: Inbox<In>,
        silence: Duration,
    ) -> Result<Self, NetError> {
        let mut buffer = BytesMut::new();
        // TLS may hold more than the handshake.
        link.open(&[], &mut buffer)?;
        let alarm = Box::pin(sleep(silence));
        Ok(Self { link, socket, buffer, inbox, silence, alarm, heard: true, silences: 0, error: None })
    }

    /// Waits for input and appends at most 64 messages to `batch`. Returns their number: 0 if only
    /// a ping or part of a large message arrived. Dropping the future loses nothing.
    ///
    /// The connection depends on these calls: only they answer pings and continue large messages,
    /// in both directions.
    ///
    /// # Errors
    /// Why the connection has ended. Earlier messages have been delivered.
    pub async fn next(&mut self, batch: &mut Vec<In>) -> Result<usize, NetError> {
        self.wait(batch).await.map_err(|error| {
            let cut = matches!(error, NetError::Closed) && self.inbox.is_cut();
            self.link.end(if cut { NetError::Truncated } else { error })
        })
    }

    async fn wait(&mut self, batch: &mut Vec<In>) -> Result<usize, NetError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let before = batch.len();
        loop {
            let heard = self.take(batch, before + BATCH_MAX);
            let messages = batch.len() - before;
            self.link.counters.messages_received.fetch_add(messages as u64, Ordering::Relaxed);
            match heard {
                Err(error) if messages > 0 => {
                    self.error = Some(error);
                    return Ok(messages);
                }
                Ok(true) => return Ok(messages),
                Ok(false) => {}
                Err(error) => return Err(error),
            }
            let Self { socket, link, inbox, buffer, alarm, .. } = &mut *self;
            tokio::select! {
                biased;
                read = poll_fn(|cx| Self::poll_read(socket, link, inbox, buffer, cx)) => read?,
                () = alarm.as_mut() => self.silent()?,
            }
        }
    }

    /// Takes whole frames. Returns true if there were any.
    fn take(&mut self, batch: &mut Vec<In>, full: usize) -> Result<bool, NetError> {
        let (mut heard, mut answers) = (false, false);
        while batch.len() < full {
            let Some(taken) = self.inbox.take(&mut self.buffer)? else { break };
            heard = true;
            match taken {
                Taken::Message(message) => batch.push(message),
                Taken::Handled => {}
                Taken::Ping => {
                    self.link.control(Header::Pong)?;
                    answers = true;
                }
                Taken::Grant(number) => {
                    self.link.grant(number)?;
                    answers = true;
                }
            }
        }
        while let Some(number) = self.inbox.grant() {
            self.link.control(Header::Grant { number })?;
            answers = true;
        }
        if answers {
            self.link.flush()?;
        }
        if heard {
            self.heard = true;
            self.silences = 0;
        }
        Ok(heard)
    }

    /// The alarm has expired.
    fn silent(&mut self) -> Result<(), NetError> {
        self.alarm.as_mut().reset(Instant::now() + self.silence);
        if std::mem::take(&mut self.heard) {
            return Ok(());
        }
        self.silences += 1;
        if self.silences >= SILENCES_MAX {
            return Err(NetError::Silent(self.silence * SILENCES_MAX));
        }
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
        self.link.control(Header::Ping)?;
        self.link.flush()
    }

    fn poll_read(
        socket: &mut OwnedReadHalf,
        link: &SocketLink,
        inbox: &mut Inbox<In>,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), NetError>> {
        let received = |length: usize| {
            link.counters.bytes_received.fetch_add(length as u64, Ordering::Relaxed);
            if length == 0 { Err(NetError::Closed) } else { Ok(()) }
        };
        if link.is_plain()
            && let Some(mut rest) = inbox.rest_of_piece()
        {
            return Poll::Ready(received(ready!(poll_read_buf(Pin::new(socket), cx, &mut rest))?));
        }
        let most = if link.is_plain() && inbox.awaits_pieces() { AHEAD_BYTES } else { READ_BYTES };
        SPACE.with_borrow_mut(|space| {
            let mut read = ReadBuf::new(&mut space[..most]);
            ready!(Pin::new(socket).poll_read(cx, &mut read))?;
            let wire = read.filled();
            received(wire.len())?;
            Poll::Ready(link.open(wire, buffer))
        })
    }
}

impl<In> Drop for Receiver<In> {
    fn drop(&mut self) {
        self.link.end(NetError::Dropped);
    }
}

impl<In> fmt::Debug for Receiver<In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
