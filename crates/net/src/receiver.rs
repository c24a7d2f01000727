//! The side of a connection that receives.

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
use crate::link::Link;
use crate::message::Message;

/// A batch has at most so many messages.
const BATCH_MAX: usize = 64;

const READ_BYTES: usize = 64 << 10;

/// Read at once where pieces are to come, so that most of their bytes can be read to where they belong.
const AHEAD_BYTES: usize = 8 << 10;

thread_local! {
    /// What is read from sockets, so that no connection needs a buffer while it is idle.
    static SPACE: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Receives messages. When it is dropped, the connection ends.
pub struct Receiver<In> {
    link: Arc<Link>,
    socket: OwnedReadHalf,
    /// What is not yet a whole frame, and frames that had no room in a batch.
    buffer: BytesMut,
    inbox: Inbox<In>,
    silence: Duration,
    alarm: Pin<Box<Sleep>>,
    /// Since the alarm was set.
    heard: bool,
    /// How often the alarm went off since the peer was heard.
    silences: u32,
    /// Found after messages that had to be given first.
    error: Option<NetError>,
}

impl<In: Message> Receiver<In> {
    pub(crate) fn new(
        link: Arc<Link>,
        socket: OwnedReadHalf,
        inbox: Inbox<In>,
        silence: Duration,
    ) -> Result<Self, NetError> {
        let mut buffer = BytesMut::new();
        // TLS may have more than the handshake already.
        link.open(&[], &mut buffer)?;
        let alarm = Box::pin(sleep(silence));
        Ok(Self { link, socket, buffer, inbox, silence, alarm, heard: true, silences: 0, error: None })
    }

    /// Waits until something comes, and appends all messages that are there, but at most 64, to `batch`. Returns their
    /// number, which is 0 if the peer only said that it is there, or sent a part of a large message. If the future is
    /// dropped, nothing is lost.
    ///
    /// The connection lives on these calls: pings are answered and large messages go on, in both directions, only in them.
    ///
    /// # Errors
    /// Why the connection has ended. Messages that were there before that have been given.
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

    /// Takes frames that are there whole. Returns whether there were any.
    fn take(&mut self, batch: &mut Vec<In>, full: usize) -> Result<bool, NetError> {
        let (mut heard, mut answers) = (false, false);
        while batch.len() < full {
            let Some(taken) = self.inbox.take(&mut self.buffer)? else { break };
            heard = true;
            match taken {
                Taken::Message(message) => batch.push(message),
                Taken::Quiet => {}
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

    /// The alarm has gone off.
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
        link: &Link,
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
