//! The receive queue: splits bytes into frames and joins messages with their payloads. It does no
//! I/O.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

use crate::error::NetError;
use crate::frame::{self, Begun, Header};
use crate::limits::{ANNOUNCED_MAX, Terms};
use crate::message::Message;

pub(crate) struct Inbox<In> {
    splitter: LengthDelimitedCodec,
    /// The limits of this side.
    terms: Terms,
    /// Bytes of payloads that may still be granted.
    room: usize,
    arrivals: BTreeMap<u32, Arrival<In>>,
    /// Entries of `arrivals` that wait for a grant.
    ungranted: VecDeque<u32>,
    /// Part of a frame has arrived.
    cut: bool,
    /// The splitter holds a frame's beginning; the buffer continues it.
    split: bool,
    /// The payload whose piece is arriving, and its length with that piece.
    piece: Option<(u32, usize)>,
}

/// A message whose payload was announced.
struct Arrival<In> {
    message: In,
    length: usize,
    payload: Vec<u8>,
    granted: bool,
}

/// Kind of a frame.
#[derive(Debug)]
pub(crate) enum Taken<In> {
    Message(In),
    /// Nothing to deliver.
    Handled,
    Ping,
    /// The peer grants an announced payload.
    Grant(u32),
}

impl<In: Message> Inbox<In> {
    pub(crate) fn new(terms: Terms, room: usize) -> Self {
        let splitter = frame::splitter(terms);
        Self {
            splitter,
            terms,
            room,
            arrivals: BTreeMap::new(),
            ungranted: VecDeque::new(),
            cut: false,
            split: false,
            piece: None,
        }
    }

    /// True if part of a message has arrived.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut || !self.arrivals.is_empty()
    }

    /// Takes the next whole frame from the front of `buffer`.
    pub(crate) fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Taken<In>>, NetError> {
        self.cut |= !buffer.is_empty();
        if self.piece.is_none() && !self.split {
            match frame::begun(buffer, self.terms) {
                Begun::Unknown => return Ok(None),
                Begun::Other => {}
                Begun::Piece { number, header, length } => {
                    self.begin_piece(number, length)?;
                    buffer.advance(header);
                }
            }
        }
        if let Some((number, end)) = self.piece {
            self.cut = false;
            return self.piece(number, end, buffer);
        }
        let frame = self.splitter.decode(buffer);
        let frame = frame.map_err(|_| NetError::Protocol("a frame is too long"))?;
        self.split = frame.is_none();
        let Some(frame) = frame else { return Ok(None) };
        self.cut = false;
        let (header, rest) = postcard::take_from_bytes(&frame)
            .map_err(|_| NetError::Protocol("a frame is of a kind that does not exist"))?;
        let nothing_follows =
            if rest.is_empty() { Ok(()) } else { Err(NetError::Protocol("a frame has bytes left over")) };
        match header {
            Header::Message => self.message(rest).map(Taken::Message),
            Header::Announce { number, length } => {
                self.announce(number, length, rest).map(|()| Taken::Handled)
            }
            // Handled above, not by the splitter.
            Header::Piece { .. } => Err(NetError::Protocol("a piece of a payload came as another frame")),
            Header::Grant { number } => nothing_follows.map(|()| Taken::Grant(number)),
            Header::Ping => nothing_follows.map(|()| Taken::Ping),
            Header::Pong => nothing_follows.map(|()| Taken::Handled),
        }
        .map(Some)
    }

    /// The next announced payload that there is room for.
    pub(crate) fn grant(&mut self) -> Option<u32> {
        let number = *self.ungranted.front()?;
        let arrival = self.arrivals.get_mut(&number)?;
        self.room = self.room.checked_sub(arrival.length)?;
        arrival.granted = true;
        self.ungranted.pop_front()
    }

    /// Makes room for payloads.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.arrivals.values().map(|arrival| arrival.payload.capacity()).sum()
    }

    fn message(&self, bytes: &[u8]) -> Result<In, NetError> {
        let (mut message, payload) = self.head(bytes, false)?;
        if !payload.is_empty() {
            if payload.len() > self.terms.eager_bytes as usize {
                return Err(NetError::Protocol("a payload is too long to come unannounced"));
            }
            *slot(&mut message)? = Bytes::copy_from_slice(payload);
        }
        Ok(message)
    }

    fn announce(&mut self, number: u32, length: u32, bytes: &[u8]) -> Result<(), NetError> {
        let (mut message, rest) = self.head(bytes, true)?;
        slot(&mut message)?;
        if length == 0 || length > self.terms.payload_bytes {
            return Err(NetError::Protocol("an announced payload is too long, or empty"));
        }
        if !rest.is_empty() || self.arrivals.contains_key(&number) || self.arrivals.len() >= ANNOUNCED_MAX {
            return Err(NetError::Protocol("an announcement is malformed, or one too many"));
        }
        let arrival = Arrival { message, length: length as usize, payload: Vec::new(), granted: false };
        self.arrivals.insert(number, arrival);
        self.ungranted.push_back(number);
        Ok(())
    }

    fn begin_piece(&mut self, number: u32, length: usize) -> Result<(), NetError> {
        let not_granted = NetError::Protocol("a piece of a payload came that was not granted");
        let arrival = self.arrivals.get_mut(&number).filter(|arrival| arrival.granted).ok_or(not_granted)?;
        let end = arrival.payload.len() + length;
        if length == 0 || end > arrival.length {
            return Err(NetError::Protocol("a piece is empty, or longer than the missing rest"));
        }
        if arrival.payload.is_empty() {
            arrival.payload.reserve_exact(arrival.length);
        }
        self.piece = Some((number, end));
        Ok(())
    }

    /// The destination of the rest of an incomplete piece, once the buffer is empty.
    pub(crate) fn rest_of_piece(&mut self) -> Option<impl BufMut> {
        let (number, end) = self.piece?;
        let payload = &mut self.arrivals.get_mut(&number)?.payload;
        let missing = end - payload.len();
        Some(payload.limit(missing))
    }

    /// True if pieces are expected.
    pub(crate) fn awaits_pieces(&self) -> bool {
        self.arrivals.len() > self.ungranted.len()
    }

    /// Takes more of a piece.
    fn piece(
        &mut self,
        number: u32,
        end: usize,
        buffer: &mut BytesMut,
    ) -> Result<Option<Taken<In>>, NetError> {
        let Some(arrival) = self.arrivals.get_mut(&number) else { return Ok(None) };
        let missing = end - arrival.payload.len();
        arrival.payload.put(buffer.split_to(missing.min(buffer.len())));
        if arrival.payload.len() < end {
            return Ok(None);
        }
        self.piece = None;
        if end < arrival.length {
            return Ok(Some(Taken::Handled));
        }
        self.room += arrival.length;
        let Some(Arrival { mut message, payload, .. }) = self.arrivals.remove(&number) else {
            return Ok(None);
        };
        *slot(&mut message)? = payload.into();
        Ok(Some(Taken::Message(message)))
    }

    /// A message without its payload, and the bytes after it.
    fn head<'a>(&self, bytes: &'a [u8], large: bool) -> Result<(In, &'a [u8]), NetError> {
        let (message, rest) = postcard::take_from_bytes(bytes)
            .map_err(|_| NetError::Protocol("a message cannot be decoded"))?;
        if bytes.len() - rest.len() > self.terms.head_bytes(large) {
            return Err(NetError::Protocol("a message is too long"));
        }
        Ok((message, rest))
    }
}

/// Attaches a payload that arrived apart from its message.
fn slot<In: Message>(message: &mut In) -> Result<&mut Bytes, NetError> {
    let slot = message.payload().filter(|slot| slot.is_empty());
    slot.ok_or(NetError::Protocol("a payload belongs to no message"))
}
