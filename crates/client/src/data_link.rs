//! The asker's end of a connection to a data server: numbers requests, keeps those that have not been answered, and sends them again
//! over the next connection.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{Capability, DataReply, DataRequest, Errno, FromData, Ino, RequestId, ToData};

/// The asker's end. See the module's description. `T`: who waits.
#[derive(Debug)]
pub struct DataLink<T> {
    next: u64,
    /// By number.
    unanswered: BTreeMap<u64, Asked<T>>,
    phase: Phase,
    /// The server has said what it has of files that were never settled, or need not.
    known: bool,
    /// What it was told last of the asker's journal: one that was started anew has forgotten.
    durable: u64,
    /// All with smaller numbers have been sent over this connection.
    sent: u64,
    /// Bytes that go with those of them that have not been answered.
    under_way: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no connection.
    Away,
    /// The server is asked what it has.
    Asking,
    Connected,
}

#[derive(Debug)]
struct Asked<T> {
    request: DataRequest,
    capability: Option<Capability>,
    waits: T,
}

/// What a message of a data server comes to.
#[derive(Debug)]
pub enum Came<T> {
    Answer(T, Result<DataReply, Errno>),
    /// Datafiles that were never settled: this comes once, before anything else is asked.
    New(Vec<Ino>),
    /// The server does not say what it has: [`DataLink::ask_for_new`] asks again, after a while.
    NoNew(Result<DataReply, Errno>),
    /// Nobody waits for it.
    Nothing,
}

/// Of requests with which a metadata server begins; nothing else has these numbers.
const NEW: RequestId = RequestId(0);
const ADMIT: RequestId = RequestId(1);

/// More bytes are not on their way to a server, or back, at a time: neither side's queue is ever too long.
pub(crate) const UNDER_WAY: usize = 16 << 20;

impl<T> DataLink<T> {
    /// `asks_for_new`: a metadata server wants to know first what datafiles were never settled.
    pub fn new(asks_for_new: bool) -> Self {
        let (next, known) = (ADMIT.0, !asks_for_new);
        Self {
            next,
            unanswered: BTreeMap::new(),
            phase: Phase::Away,
            known,
            durable: 0,
            sent: 0,
            under_way: 0,
        }
    }

    /// Whether the server can be asked now, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    /// Asks, under the number that is returned. What is to be sent for it, now or as soon as it can be, is added to `out`.
    pub fn ask(
        &mut self,
        request: DataRequest,
        capability: Option<Capability>,
        waits: T,
        out: &mut Vec<ToData>,
    ) -> RequestId {
        self.next += 1;
        if let DataRequest::Settle { durable, .. } = request {
            self.durable = self.durable.max(durable);
        }
        self.unanswered.insert(self.next, Asked { request, capability, waits });
        self.fill(out);
        RequestId(self.next)
    }

    /// A connection has begun. `admit`: which sessions go on, as in [`DataRequest::Admit`]; only metadata servers say that. `interested`:
    /// whether somebody still waits.
    pub fn connected(
        &mut self,
        admit: Option<(u64, Vec<u64>)>,
        interested: impl Fn(&T) -> bool,
        out: &mut Vec<ToData>,
    ) {
        if let Some((below, live)) = admit {
            out.push(plain(ADMIT, DataRequest::Admit { below, live, durable: self.durable }));
        }
        self.unanswered.retain(|_, asked| interested(&asked.waits));
        (self.sent, self.under_way) = (0, 0);
        if self.known {
            self.phase = Phase::Connected;
            self.fill(out);
        } else {
            self.phase = Phase::Asking;
            self.ask_for_new(out);
        }
    }

    pub fn disconnected(&mut self) {
        self.phase = Phase::Away;
    }

    /// Asks once more what the server has.
    pub fn ask_for_new(&self, out: &mut Vec<ToData>) {
        if self.phase == Phase::Asking {
            out.push(plain(NEW, DataRequest::New));
        }
    }

    pub fn received(&mut self, message: FromData, out: &mut Vec<ToData>) -> Came<T> {
        let FromData { id, result, .. } = message;
        if id == NEW && self.phase == Phase::Asking {
            let Ok(DataReply::Inos(inos)) = result else { return Came::NoNew(result) };
            (self.phase, self.known) = (Phase::Connected, true);
            self.fill(out);
            return Came::New(inos);
        }
        let Some(Asked { request, waits, .. }) = self.unanswered.remove(&id.0) else { return Came::Nothing };
        self.under_way = self.under_way.saturating_sub(request.bytes());
        self.fill(out);
        Came::Answer(waits, result)
    }

    /// Sends what may be sent, in order.
    fn fill(&mut self, out: &mut Vec<ToData>) {
        if self.phase != Phase::Connected {
            return;
        }
        for (number, Asked { request, capability, .. }) in self.unanswered.range(self.sent..) {
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
