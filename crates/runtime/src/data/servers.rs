//! The data servers of a cluster, as who asks them sees them: what is asked of one that cannot be reached waits until it can.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use espalier_net::{ConnectError, Connection, Limits, NetError, Receiver, Security, Sender, connect};
use espalier_proto::{
    ClusterId, DataReply, DataRequest, Errno, FromData, Hello, Ino, RequestId, ServerId, Service, Space,
    ToData, Welcome,
};
use tokio::sync::oneshot;

use super::serve::asker;

/// What a data server answers, when it does.
pub type Answer = oneshot::Receiver<Result<DataReply, Errno>>;

/// All data servers. See the module's description.
pub struct DataServers {
    links: HashMap<ServerId, Link>,
    /// What is known of the room on each.
    space: Mutex<BTreeMap<ServerId, Space>>,
    how: How,
}

/// How they are reached.
struct How {
    security: Security,
    limits: Limits,
    /// Who asks.
    own: ServerId,
    incarnation: u64,
}

struct Link {
    address: String,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    /// Requests that have not been answered, by number: they are sent again over the next connection.
    unanswered: BTreeMap<u64, Asked>,
    /// There, once it has been said what the server has of files that were never settled.
    sender: Option<Sender<ToData>>,
    known: bool,
    /// All with smaller numbers have been sent over this connection.
    sent: u64,
    /// Bytes that go with those of them that have not been answered.
    under_way: usize,
}

struct Asked {
    request: DataRequest,
    tell: oneshot::Sender<Result<DataReply, Errno>>,
}

/// More than that is not on its way to a server, or back, at a time: neither side's queue is ever too long.
const UNDER_WAY: usize = 16 << 20;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl DataServers {
    /// `addresses`: where the servers are, as `HOST:PORT`. `own`: the number of the server that asks.
    pub fn new(
        addresses: Vec<(ServerId, String)>,
        security: Security,
        limits: Limits,
        own: ServerId,
        incarnation: u64,
    ) -> Self {
        let link = |(server, address)| (server, Link { address, inner: Mutex::default() });
        let how = How { security, limits, own, incarnation };
        Self { links: addresses.into_iter().map(link).collect(), space: Mutex::default(), how }
    }

    pub fn numbers(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.links.keys().copied()
    }

    /// Asks a server. Whoever is no longer interested drops the answer.
    pub fn ask(&self, server: ServerId, request: DataRequest) -> Answer {
        let (tell, answer) = oneshot::channel();
        let Some(link) = self.links.get(&server) else {
            tracing::error!(%server, "a file lies on a data server that the configuration does not name");
            let _ = tell.send(Err(Errno::EIO));
            return answer;
        };
        let mut inner = link.lock();
        inner.next += 1;
        let number = inner.next;
        inner.unanswered.insert(number, Asked { request, tell });
        inner.fill();
        answer
    }

    /// Whether all of these can be reached, as far as is known.
    pub fn are_reached(&self, servers: &[ServerId]) -> bool {
        let reached = |link: &Link| link.lock().sender.is_some();
        servers.iter().all(|server| self.links.get(server).is_none_or(reached))
    }

    /// Asks how much room there is, and remembers the answers.
    pub async fn measure_space(&self) {
        for server in self.links.keys() {
            if self.are_reached(&[*server])
                && let Ok(Ok(DataReply::Space(space))) = self.ask(*server, DataRequest::Space).await
            {
                self.space.lock().unwrap_or_else(PoisonError::into_inner).insert(*server, space);
            }
        }
    }

    /// The room on all servers together, as of a while ago.
    pub fn space(&self) -> Vec<Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
    }

    /// Stays connected to a server, for ever. `new`: is told, once and before anything is asked, which datafiles it has that were never
    /// settled.
    pub async fn keep_connected(&self, server: ServerId, new: impl Fn(ServerId, Vec<Ino>)) {
        let Some(link) = self.links.get(&server) else { return };
        let (mut pause, mut told) = (FIRST_PAUSE, false);
        loop {
            match self.reach(server, link).await {
                Ok((_, Connection { receiver, sender })) => {
                    tracing::info!(%server, address = link.address, "connected to a data server");
                    (pause, told) = (FIRST_PAUSE, false);
                    let error = self.converse(server, link, receiver, sender, &new).await;
                    tracing::warn!(%server, %error, "the connection to a data server is lost: connecting again");
                    link.lock().sender = None;
                }
                Err(error) if told => tracing::debug!(%server, %error, "not connected yet"),
                Err(error) => {
                    tracing::warn!(%server, %error, "a data server cannot be reached: what needs it waits");
                    told = true;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn reach(
        &self,
        server: ServerId,
        link: &Link,
    ) -> Result<(Welcome, Connection<FromData, ToData>), ConnectError> {
        let How { security, limits, own, incarnation } = &self.how;
        let (service, incarnation) = (Service::Data(server), Some(*incarnation));
        let hello = Hello { cluster: ClusterId::ANY, service, client: asker(*own), incarnation };
        connect(&link.address, security, limits, hello).await
    }

    async fn converse(
        &self,
        server: ServerId,
        link: &Link,
        mut receiver: Receiver<FromData>,
        sender: Sender<ToData>,
        new: impl Fn(ServerId, Vec<Ino>),
    ) -> NetError {
        let mut batch = Vec::new();
        if !link.lock().known {
            // The number 0 is nobody else's.
            send(&sender, [ToData { id: RequestId(0), request: DataRequest::New }]);
            loop {
                if let Err(error) = receiver.next(&mut batch).await {
                    return error;
                }
                match batch.pop().map(|message| message.result) {
                    Some(Ok(DataReply::Inos(inos))) => {
                        new(server, inos);
                        break;
                    }
                    Some(other) => {
                        tracing::error!(%server, ?other, "a data server does not tell what it has");
                        tokio::time::sleep(LONGEST_PAUSE).await;
                        send(&sender, [ToData { id: RequestId(0), request: DataRequest::New }]);
                    }
                    None => {}
                }
            }
        }
        {
            let mut inner = link.lock();
            inner.known = true;
            inner.unanswered.retain(|_, asked| !asked.tell.is_closed());
            (inner.sent, inner.under_way) = (0, 0);
            inner.sender = Some(sender);
            inner.fill();
        }
        loop {
            if let Err(error) = receiver.next(&mut batch).await {
                return error;
            }
            let mut inner = link.lock();
            for FromData { id, result } in batch.drain(..) {
                if let Some(Asked { request, tell }) = inner.unanswered.remove(&id.0) {
                    inner.under_way = inner.under_way.saturating_sub(request.bytes());
                    // Nobody may be interested any more.
                    let _ = tell.send(result);
                }
            }
            inner.fill();
        }
    }
}

impl Inner {
    /// Sends what may be sent, in order.
    fn fill(&mut self) {
        let Some(sender) = &self.sender else { return };
        let mut messages = Vec::new();
        for (number, Asked { request, .. }) in self.unanswered.range(self.sent..) {
            if self.under_way > 0 && self.under_way + request.bytes() > UNDER_WAY {
                break;
            }
            (self.sent, self.under_way) = (number + 1, self.under_way + request.bytes());
            messages.push(ToData { id: RequestId(*number), request: request.clone() });
        }
        send(sender, messages);
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // It is whole between any two statements.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a lost connection does not take any more is sent again by the next.
fn send(sender: &Sender<ToData>, messages: impl IntoIterator<Item = ToData>) {
    let queued = messages.into_iter().try_for_each(|message| sender.queue(message));
    if let Err(error) = queued.and_then(|()| sender.flush()) {
        tracing::debug!(%error, "a message to a data server was not sent");
    }
}
