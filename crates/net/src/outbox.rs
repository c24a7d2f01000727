//! The send queue: determines the order of messages and pieces of payloads. It does no I/O.
//!
//! A message with a large payload is announced; its payload flows in pieces once the peer has
//! granted it. Messages of other requests overtake it meanwhile.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::mem;

use bytes::{Buf, Bytes};

use crate::error::NetError;
use crate::frame::{self, Header};
use crate::limits::{ANNOUNCED_MAX, PIECE_BYTES, Terms};
use crate::rope::Rope;

/// Bytes handed out at once.
const FLIGHT_BYTES: usize = 256 << 10;

/// Pieces are added only while less than this is ready, which bounds the delay of the next message.
const PUMP_BYTES: usize = 2 * PIECE_BYTES;

pub(crate) struct SendQueue {
    /// The limits of the peer.
    terms: Terms,
    /// Frames in sending order.
    ready: Rope,
    announced: BTreeMap<u32, Transfer>,
    /// Granted entries of `announced`, served round robin.
    granted: VecDeque<u32>,
    /// Messages that must not overtake an announced one, or that cannot be announced yet; in order.
    held: VecDeque<HeldMessage>,
    held_requests: HashSet<u64>,
    /// Bytes in `announced` and `held`.
    apart: usize,
    number: u32,
    order: u64,
}

struct Transfer {
    order: u64,
    request: Option<u64>,
    /// The unsent rest.
    payload: Bytes,
    granted: bool,
}

struct HeldMessage {
    order: u64,
    request: Option<u64>,
    head: Vec<u8>,
    payload: Bytes,
    /// The payload is to be announced.
    large: bool,
}

impl HeldMessage {
    fn bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

impl SendQueue {
    pub(crate) fn new(terms: Terms) -> Self {
        Self {
            terms,
            ready: Rope::default(),
            announced: BTreeMap::new(),
            granted: VecDeque::new(),
            held: VecDeque::new(),
            held_requests: HashSet::new(),
            apart: 0,
            number: 0,
            order: 0,
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.terms);
    }

    /// Bytes not handed out yet.
    pub(crate) fn bytes(&self) -> usize {
        self.ready_bytes() + self.apart
    }

    /// Bytes that wait for no grant.
    pub(crate) fn ready_bytes(&self) -> usize {
        self.ready.remaining()
    }

    /// Queues a message of `request`, encoded without its payload. `announced`: announce the
    /// payload even if it is short.
    ///
    /// # Errors
    /// [`NetError::TooLong`]: the peer would not accept it.
    pub(crate) fn message(
        &mut self,
        request: Option<u64>,
        head: &[u8],
        payload: Bytes,
        announced: bool,
    ) -> Result<(), NetError> {
        let large = payload.len() > self.terms.eager_bytes as usize || announced && !payload.is_empty();
        let head_max = self.terms.head_bytes(large);
        for (bytes, max) in [(head.len(), head_max), (payload.len(), self.terms.payload_bytes as usize)] {
            if bytes > max {
                return Err(NetError::TooLong { bytes, max });
            }
        }
        self.order += 1;
        self.place(self.order, request, head, payload, large);
        Ok(())
    }

    pub(crate) fn control(&mut self, header: Header) {
        self.put(header, &[], Bytes::new());
    }

    /// The peer has granted an announced payload.
    pub(crate) fn grant(&mut self, number: u32) -> Result<(), NetError> {
        let transfer = self.announced.get_mut(&number).filter(|transfer| !transfer.granted);
        transfer.ok_or(NetError::Protocol("it granted what was not announced"))?.granted = true;
        self.granted.push_back(number);
        Ok(())
    }

    /// Moves the next bytes into an empty rope: everything ready up to a bound, then pieces.
    pub(crate) fn take(&mut self, taken: &mut Rope) {
        while self.ready.remaining() < PUMP_BYTES {
            let Some(number) = self.granted.pop_front() else { break };
            self.piece(number);
        }
        self.ready.move_to(taken, FLIGHT_BYTES);
    }

    fn place(&mut self, order: u64, request: Option<u64>, head: &[u8], payload: Bytes, large: bool) {
        if self.waits(order, request) || (large && self.announced.len() >= ANNOUNCED_MAX) {
            let held = HeldMessage { order, request, head: head.to_vec(), payload, large };
            self.apart += held.bytes();
            self.held_requests.extend(request);
            self.held.push_back(held);
        } else if large {
            // At most ANNOUNCED_MAX numbers are in use.
            while self.announced.contains_key(&self.number) {
                self.number = self.number.wrapping_add(1);
            }
            let number = self.number;
            self.number = number.wrapping_add(1);
            self.put(Header::Announce { number, length: payload.len() as u32 }, head, Bytes::new());
            self.apart += payload.len();
            let transfer = Transfer { order, request, payload, granted: false };
            self.announced.insert(number, transfer);
        } else {
            self.put(Header::Message, head, payload);
        }
    }

    /// True if the message must not overtake an earlier one.
    fn waits(&self, order: u64, request: Option<u64>) -> bool {
        let earlier = |transfer: &&Transfer| transfer.order < order;
        let mut announced = self.announced.values().filter(earlier);
        match request {
            None => !self.held.is_empty() || announced.next().is_some(),
            Some(id) => self.held_requests.contains(&id) || announced.any(|t| t.request == request),
        }
    }

    /// The next piece of a granted payload.
    fn piece(&mut self, number: u32) {
        let Some(mut transfer) = self.announced.remove(&number) else { return };
        let piece = transfer.payload.split_to(transfer.payload.len().min(PIECE_BYTES));
        self.apart -= piece.len();
        self.put(Header::Piece { number }, &[], piece);
        if transfer.payload.is_empty() {
            self.release();
        } else {
            self.announced.insert(number, transfer);
            self.granted.push_back(number);
        }
    }

    /// Queues held messages whose wait is over.
    fn release(&mut self) {
        self.held_requests.clear();
        for held in mem::take(&mut self.held) {
            self.apart -= held.bytes();
            self.place(held.order, held.request, &held.head, held.payload, held.large);
        }
    }

    fn put(&mut self, header: Header, head: &[u8], payload: Bytes) {
        frame::put(&mut self.ready, header, head, payload);
    }
}
