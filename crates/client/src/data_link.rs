//! A client's end of a connection to a data server.
//! It numbers requests, stores unanswered ones, and sends these again over the next connection.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{Capability, DataReply, DataRequest, Errno, FromData, Ino, RequestId, ToData};

/// The client's end; the client may be a metadata server. `T`: identifies the waiter.
#[derive(Debug)]
pub struct DataLink<T> {
    next: u64,
    /// Unanswered requests by number.
    unanswered: BTreeMap<u64, UnansweredRequest<T>>,
    phase: LinkState,
    /// The server has listed its provisional datafiles, or need not list them.
    known: bool,
    /// The last durable journal position that was sent; a restarted data server has lost it.
    durable: u64,
    /// All requests with smaller numbers were sent over this connection.
    sent: u64,
    /// Payload bytes of unanswered requests that were sent over this connection.
    under_way: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    /// Disconnected.
    Away,
    /// Connected; the list of provisional datafiles has been requested.
    Asking,
    Connected,
}

#[derive(Debug)]
struct UnansweredRequest<T> {
    request: DataRequest,
    capability: Option<Capability>,
    waits: T,
}

/// Effect of a message from a data server.
#[derive(Debug)]
pub enum DataEvent<T> {
    Answer(T, Result<DataReply, Errno>),
    /// Provisional datafiles; delivered once, before any other request is sent.
    New(Vec<Ino>),
    /// The server could not list them; the driver calls [`DataLink::request_provisional`] after a
    /// delay.
    NoNew(Result<DataReply, Errno>),
    /// No one waits for this reply.
    Nothing,
}

/// Numbers of a metadata server's first requests; no other request has them.
const NEW: RequestId = RequestId(0);
const ADMIT: RequestId = RequestId(1);

/// Limit of payload bytes in flight to or from a server; bounds the queues on both sides.
pub(crate) const UNDER_WAY: usize = 16 << 20;

impl<T> DataLink<T> {
    /// `lists_provisional`: a metadata server first requests the list of provisional datafiles.
    pub fn new(lists_provisional: bool) -> Self {
        let (next, known) = (ADMIT.0, !lists_provisional);
        Self {
            next,
            unanswered: BTreeMap::new(),
            phase: LinkState::Away,
            known,
            durable: 0,
            sent: 0,
            under_way: 0,
        }
    }

    /// True if requests are sent immediately.
    pub fn is_connected(&self) -> bool {
        self.phase == LinkState::Connected
    }

    /// Queues a request and returns its number. Messages that can be sent are appended to `out`.
    pub fn ask(
        &mut self,
        request: DataRequest,
        capability: Option<Capability>,
        waits: T,
        out: &mut Vec<ToData>,
    ) -> RequestId {
        self.next += 1;
        if let DataRequest::Finalise { durable, .. } = request {
            self.durable = self.durable.max(durable);
        }
        self.unanswered.insert(self.next, UnansweredRequest { request, capability, waits });
        self.fill(out);
        RequestId(self.next)
    }

    /// A connection is established. `admit`: the valid sessions ([`DataRequest::Admit`]), from
    /// metadata servers only. Requests without an `interested` waiter are dropped.
    pub fn connected(
        &mut self,
        admit: Option<(u64, Vec<u64>)>,
        interested: impl Fn(&T) -> bool,
        out: &mut Vec<ToData>,
    ) {
        if let Some((below, live)) = admit {
            out.push(plain(ADMIT, DataRequest::Admit { below, live, durable: self.durable }));
        }
        self.unanswered.retain(|_, requested| interested(&requested.waits));
        (self.sent, self.under_way) = (0, 0);
        if self.known {
            self.phase = LinkState::Connected;
            self.fill(out);
        } else {
            self.phase = LinkState::Asking;
            self.request_provisional(out);
        }
    }

    pub fn disconnected(&mut self) {
        self.phase = LinkState::Away;
    }

    /// Requests the list of provisional datafiles again.
    pub fn request_provisional(&self, out: &mut Vec<ToData>) {
        if self.phase == LinkState::Asking {
            out.push(plain(NEW, DataRequest::New));
        }
    }

    pub fn received(&mut self, message: FromData, out: &mut Vec<ToData>) -> DataEvent<T> {
        let FromData { id, result, .. } = message;
        if id == NEW && self.phase == LinkState::Asking {
            let Ok(DataReply::Inos(inos)) = result else { return DataEvent::NoNew(result) };
            (self.phase, self.known) = (LinkState::Connected, true);
            self.fill(out);
            return DataEvent::New(inos);
        }
        let Some(UnansweredRequest { request, waits, .. }) = self.unanswered.remove(&id.0) else {
            return DataEvent::Nothing;
        };
        self.under_way = self.under_way.saturating_sub(request.bytes());
        self.fill(out);
        DataEvent::Answer(waits, result)
    }

    /// Sends queued requests in order, within the limit of bytes in flight.
    fn fill(&mut self, out: &mut Vec<ToData>) {
        if self.phase != LinkState::Connected {
            return;
        }
        for (number, UnansweredRequest { request, capability, .. }) in self.unanswered.range(self.sent..) {
            if self.under_way > 0 && self.under_way + request.bytes() > UNDER_WAY {
                break;
            }
            (self.sent, self.under_way) = (number + 1, self.under_way + request.bytes());
            let (id, capability) = (RequestId(*number), *capability);
            out.push(ToData { id, request: request.clone(), capability });
        }
    }
}

fn plain(id: RequestId, request: DataRequest) -> ToData {
    ToData { id, request, capability: None }
}
