//! A client's end of its session with one server: what it has asked, what waits for that, and what is to be sent.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use espalier_client::{Answer, Call, Link, Sighting};
use espalier_net::Sender;
use espalier_proto::{Caller, Errno, FromClient, FromServer, Ino, LockOwner, Request, RequestId};
use serde::{Deserialize, Serialize};

use crate::watch::Kind;

/// Messages of a session, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// Sent: what programs asked for, `forgets` excepted.
    pub requests: u64,
    /// Sent: what is no longer known, many inodes at once.
    pub forgets: u64,
    /// Sent: reads and writes of streams.
    pub streams: u64,
    /// Reads and writes of streams that were asked of data servers instead.
    #[serde(default)]
    pub data: u64,
    /// Sent: all others.
    pub others: u64,
    /// Received.
    pub replies: u64,
    pub revocations: u64,
    pub notices: u64,
}

impl Messages {
    fn count(&mut self, message: &FromClient) {
        *match message {
            FromClient::Request { request: Request::ForgetAll { .. }, .. } => &mut self.forgets,
            FromClient::Request { .. } => &mut self.requests,
            FromClient::Stream { .. } => &mut self.streams,
            _ => &mut self.others,
        } += 1;
    }

    pub(super) fn count_received(&mut self, message: &FromServer) {
        *match message {
            FromServer::Reply { .. } => &mut self.replies,
            FromServer::Revoke { .. } => &mut self.revocations,
            _ => &mut self.notices,
        } += 1;
    }

    /// Of two sessions together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            forgets: self.forgets + other.forgets,
            streams: self.streams + other.streams,
            data: self.data + other.data,
            others: self.others + other.others,
            replies: self.replies + other.replies,
            revocations: self.revocations + other.revocations,
            notices: self.notices + other.notices,
        }
    }
}

/// A client's end of its session with one server.
pub(super) struct End<T> {
    pub link: Link,
    /// While there is a connection.
    pub sender: Option<Sender<FromClient>>,
    /// To be sent when the lock is let go.
    pub out: Vec<FromClient>,
    /// Calls that wait for the server, by the request's number.
    pub parked: HashMap<RequestId, Parked<T>>,
    /// Calls that wait for a lock, by the number under which they do.
    pub waits: HashMap<u64, Parked<T>>,
    /// Requests that nobody waits for any more, and that may be done all the same.
    pub given_up: HashSet<RequestId>,
    pub messages: Messages,
    /// Of these the requests and what is done with streams, by [`Kind`].
    pub kinds: [u64; Kind::ALL.len()],
}

/// A call that waits.
pub(super) struct Parked<T> {
    /// The door's number of it.
    pub call_id: u64,
    pub caller: Caller,
    pub call: Call<'static>,
    pub ticket: T,
    pub sent: Instant,
    pub seen: Seen,
    /// The caller does not want to wait any longer.
    pub interrupted: bool,
}

/// What another rank has told of the name that a call is about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// What the name stands for, while the inode's rank is asked.
    pub sighting: Option<Sighting>,
    /// When the lease on the name ends, by the cache's clock; 0: there is none.
    pub until: u64,
    /// An inode that it has stood for, and that was gone by then.
    pub gone: Option<Ino>,
}

/// To be told when the lock is let go.
pub(super) struct Finished<T> {
    pub ticket: T,
    pub result: Result<Answer, Errno>,
    pub lease: Duration,
}

impl<T> Finished<T> {
    pub fn new(ticket: T, result: Result<Answer, Errno>) -> Self {
        Self { ticket, result, lease: Duration::ZERO }
    }
}

impl<T> Default for End<T> {
    fn default() -> Self {
        Self {
            link: Link::default(),
            sender: None,
            out: Vec::new(),
            parked: HashMap::new(),
            waits: HashMap::new(),
            given_up: HashSet::new(),
            messages: Messages::default(),
            kinds: [0; Kind::ALL.len()],
        }
    }
}

impl<T> End<T> {
    pub fn ask(&mut self, caller: Caller, request: Request) -> RequestId {
        self.link.ask(caller, request, &mut self.out)
    }

    /// What is to be sent, and by whom; what cannot be sent the link still has.
    pub fn take_out(&mut self) -> Option<(Sender<FromClient>, Vec<FromClient>)> {
        if self.out.is_empty() {
            return None;
        }
        let out = std::mem::take(&mut self.out);
        for message in &out {
            self.messages.count(message);
            let kind = match message {
                FromClient::Request { request, .. } => Kind::of_request(request),
                FromClient::Stream { io, .. } => Kind::of_stream(io),
                _ => continue,
            };
            self.kinds[kind.0 as usize] += 1;
        }
        Some((self.sender.clone()?, out))
    }

    /// Whether the caller of a call goes on living, and waits for something else than a lock.
    pub fn outlives(&self, call_id: u64, dies: impl Fn(u32) -> bool) -> bool {
        let parked = self.parked.values().find(|parked| parked.call_id == call_id);
        parked.is_some_and(|parked| {
            !matches!(parked.call, Call::Request(Request::Lock { .. })) && !dies(parked.caller.pid)
        })
    }

    /// The caller of a call does not want to wait any longer. Whether there is such a call, and the call if it is to end now: while
    /// there is no connection nobody can say when an answer would come.
    pub fn interrupt(&mut self, call_id: u64) -> (bool, Option<Parked<T>>) {
        let found = self.parked.iter_mut().find(|(_, parked)| parked.call_id == call_id);
        if let Some((&id, parked)) = found {
            parked.interrupted = true;
            let goes_on = self.link.cancel(id, &mut self.out);
            let gone = if goes_on { None } else { self.parked.remove(&id) };
            self.given_up.extend(gone.as_ref().map(|_| id));
            return (true, gone);
        }
        let is_known = self.waits.contains_key(&call_id);
        let goes_on = self.link.stop_waiting(call_id, &mut self.out);
        (is_known, if goes_on { None } else { self.waits.remove(&call_id) })
    }

    pub fn unlock(&mut self, ino: Ino, owner: LockOwner) {
        self.ask(Caller::SERVER, Request::Unlock { ino, owner, first: 0, last: u64::MAX });
    }
}

/// What a lost connection does not take any more is sent again by the next.
pub(super) fn tell(sender: &Sender<FromClient>, messages: impl IntoIterator<Item = FromClient>) {
    let queued = messages.into_iter().try_for_each(|message| sender.queue(message));
    if let Err(error) = queued.and_then(|()| sender.flush()) {
        tracing::debug!(%error, "a message to the server was not sent");
    }
}
