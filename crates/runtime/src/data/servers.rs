//! Connections to the data servers of a cluster. Requests to an unreachable server wait until it is
//! reachable.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use espalier_client::{DataEvent, DataLink};
use espalier_net::{ConnectError, Connection, Limits, NetError, Receiver, Security, Sender, connect};
use espalier_proto::{
    Capability, ClientId, ClusterId, DataReply, DataRequest, Errno, FromData, Hello, Ino, ServerId, Service,
    Space, ToData, Welcome,
};
use tokio::sync::oneshot;

use crate::tracer::{Id, NodeId, Tracer};

/// A pending answer of a data server.
pub type PendingReply = oneshot::Receiver<Result<DataReply, Errno>>;

/// Connections to all data servers. See the module's documentation.
pub struct DataServers {
    links: Mutex<HashMap<ServerId, Arc<DataServerLink>>>,
    /// The last reported free space of each server.
    space: Mutex<BTreeMap<ServerId, Space>>,
    /// The valid sessions, as in [`DataRequest::Admit`].
    sessions: Mutex<(u64, Vec<u64>)>,
    security: Security,
    limits: Limits,
    requester: DataRequester,
    tracer: Arc<Tracer>,
}

/// A peer of data servers.
#[derive(Clone, Copy, Debug)]
pub enum DataRequester {
    /// A metadata server. `incarnation`: distinguishes its starts.
    Server {
        number: ServerId,
        incarnation: u64,
    },
    Client(ClientId),
}

/// A client's permission for a request.
#[derive(Clone, Debug)]
pub struct Pass {
    pub capability: Capability,
    /// Held as long as a request with this capability may be executed.
    pub _held: Arc<()>,
}

struct DataServerLink {
    inner: Mutex<Inner>,
}

struct Inner {
    address: String,
    /// A task keeps the server connected.
    is_kept_connected: bool,
    link: DataLink<Waits>,
    sender: Option<Sender<ToData>>,
}

/// The waiter for an answer.
struct Waits {
    reply_to: oneshot::Sender<Result<DataReply, Errno>>,
    _pass: Option<Pass>,
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl DataServers {
    /// `addresses`: the servers' addresses as `HOST:PORT`.
    pub fn new(
        addresses: Vec<(ServerId, String)>,
        security: Security,
        limits: Limits,
        requester: DataRequester,
        tracer: Arc<Tracer>,
    ) -> Self {
        let (links, space, sessions) = Default::default();
        let servers = Self { links, space, sessions, security, limits, requester, tracer };
        servers.learn(addresses);
        servers
    }

    /// Adds or updates server addresses.
    pub fn learn(&self, addresses: Vec<(ServerId, String)>) {
        let mut links = self.lock();
        let lists_provisional = matches!(self.requester, DataRequester::Server { .. });
        for (server, address) in addresses {
            let link = DataLink::new(lists_provisional);
            let inner = Inner { address: String::new(), is_kept_connected: false, link, sender: None };
            let new = || Arc::new(DataServerLink { inner: Mutex::new(inner) });
            links.entry(server).or_insert_with(new).lock().address = address;
        }
    }

    pub fn numbers(&self) -> Vec<ServerId> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServerId, Arc<DataServerLink>>> {
        // The state is consistent between any two statements.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, server: ServerId) -> Option<Arc<DataServerLink>> {
        self.lock().get(&server).cloned()
    }

    /// Sends a request. To cancel, drop the answer. `causes`: the operations that wait for it.
    pub fn ask(
        &self,
        server: ServerId,
        request: DataRequest,
        pass: Option<Pass>,
        causes: &[Id],
    ) -> PendingReply {
        let (reply_to, answer) = oneshot::channel();
        let Some(link) = self.link(server) else {
            tracing::error!(%server, "a file is stored on a data server that the configuration does not list");
            let _ = reply_to.send(Err(Errno::EIO));
            return answer;
        };
        let (mut out, capability) = (Vec::new(), pass.as_ref().map(|pass| pass.capability));
        let (mut inner, kind) = (link.lock(), request.name());
        let id = inner.link.ask(request, capability, Waits { reply_to, _pass: pass }, &mut out);
        self.tracer.begin(self.tracer.request_id(NodeId::Data(server.0), id.0), kind, || causes.into());
        inner.send(out);
        answer
    }

    /// Sends the valid sessions to all servers; an unreachable one receives them before any other
    /// request.
    pub fn admit(&self, below: u64, live: Vec<u64>) -> Vec<PendingReply> {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) = (below, live.clone());
        let request = DataRequest::Admit { below, live, durable: 0 };
        self.numbers().into_iter().map(|server| self.ask(server, request.clone(), None, &[])).collect()
    }

    /// True if all of these servers are connected.
    pub fn are_reached(&self, servers: &[ServerId]) -> bool {
        let reached =
            |server: &ServerId| self.link(*server).is_none_or(|link| link.lock().link.is_connected());
        servers.iter().all(reached)
    }

    /// Selects the servers that no task keeps connected, and marks them as connected by a task.
    pub fn unkept(&self, servers: &[ServerId]) -> Vec<ServerId> {
        let take = |server: &&ServerId| {
            let link = self.link(**server);
            link.is_some_and(|link| !std::mem::replace(&mut link.lock().is_kept_connected, true))
        };
        servers.iter().filter(take).copied().collect()
    }

    /// Requests the free space and stores the answers.
    pub async fn measure_space(&self) {
        for server in self.numbers() {
            if self.are_reached(&[server])
                && let Ok(Ok(DataReply::Space(space))) = self.ask(server, DataRequest::Space, None, &[]).await
            {
                self.space.lock().unwrap_or_else(PoisonError::into_inner).insert(server, space);
            }
        }
    }

    /// The last reported free space of all servers.
    pub fn space(&self) -> Vec<Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
    }

    /// Keeps a connection to a server, forever. `new` receives the server's provisional datafiles
    /// once, before a metadata server sends any request.
    pub async fn keep_connected(&self, server: ServerId, new: impl Fn(ServerId, Vec<Ino>)) {
        let Some(link) = self.link(server) else { return };
        let link = &*link;
        let (mut pause, mut logged) = (FIRST_PAUSE, false);
        loop {
            match self.reach(server, link).await {
                Ok((_, Connection { receiver, sender })) => {
                    tracing::info!(%server, "connected to a data server");
                    (pause, logged) = (FIRST_PAUSE, false);
                    let error = self.converse(server, link, receiver, sender, &new).await;
                    tracing::warn!(%server, %error, "lost the connection to a data server: reconnecting");
                    link.lock().lose();
                }
                Err(error) if logged => tracing::debug!(%server, %error, "not connected yet"),
                Err(error) => {
                    tracing::warn!(%server, %error, "cannot reach a data server: operations on it wait");
                    logged = true;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn reach(
        &self,
        server: ServerId,
        link: &DataServerLink,
    ) -> Result<(Welcome, Connection<FromData, ToData>), ConnectError> {
        let (service, client, incarnation) = match self.requester {
            DataRequester::Server { number, incarnation } => {
                (Service::Data(server), ClientId(number.0.into()), Some(incarnation))
            }
            DataRequester::Client(client) => (Service::Delegated(server), client, None),
        };
        let hello = Hello { cluster: ClusterId::ANY, service, client, incarnation };
        let address = link.lock().address.clone();
        connect(&address, &self.security, &self.limits, hello).await
    }

    async fn converse(
        &self,
        server: ServerId,
        link: &DataServerLink,
        mut receiver: Receiver<FromData>,
        sender: Sender<ToData>,
        new: impl Fn(ServerId, Vec<Ino>),
    ) -> NetError {
        let admit = match self.requester {
            DataRequester::Server { .. } => {
                Some(self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone())
            }
            DataRequester::Client(_) => None,
        };
        link.begin(sender, admit);
        let mut batch = Vec::new();
        loop {
            if let Err(error) = receiver.next(&mut batch).await {
                return error;
            }
            let end_span = |message: &FromData| {
                self.tracer.end(self.tracer.request_id(NodeId::Data(server.0), message.id.0));
            };
            let others = link.take(batch.drain(..).inspect(end_span));
            for other in others {
                match other {
                    DataEvent::New(inos) => new(server, inos),
                    DataEvent::NoNew(result) => {
                        tracing::error!(%server, ?result, "a data server cannot list its provisional datafiles");
                        tokio::time::sleep(LONGEST_PAUSE).await;
                        link.request_provisional();
                    }
                    DataEvent::Answer(..) | DataEvent::Nothing => {}
                }
            }
        }
    }
}

impl Inner {
    fn lose(&mut self) {
        self.sender = None;
        self.link.disconnected();
    }

    /// Messages that a lost connection does not accept are repeated over the next.
    fn send(&self, messages: Vec<ToData>) {
        let Some(sender) = self.sender.as_ref().filter(|_| !messages.is_empty()) else { return };
        let queued = messages.into_iter().try_for_each(|message| sender.queue(message));
        if let Err(error) = queued.and_then(|()| sender.flush()) {
            tracing::debug!(%error, "cannot send a message to a data server");
        }
    }
}

impl DataServerLink {
    fn begin(&self, sender: Sender<ToData>, admit: Option<(u64, Vec<u64>)>) {
        let (mut inner, mut out) = (self.lock(), Vec::new());
        inner.link.connected(admit, |waits| !waits.reply_to.is_closed(), &mut out);
        inner.sender = Some(sender);
        inner.send(out);
    }

    /// Delivers answers to their waiters; returns all other messages.
    fn take(&self, messages: impl Iterator<Item = FromData>) -> Vec<DataEvent<Waits>> {
        let (mut inner, mut out, mut others) = (self.lock(), Vec::new(), Vec::new());
        for message in messages {
            match inner.link.received(message, &mut out) {
                // The waiter may have cancelled.
                DataEvent::Answer(Waits { reply_to, .. }, result) => drop(reply_to.send(result)),
                other => others.push(other),
            }
        }
        inner.send(out);
        others
    }

    fn request_provisional(&self) {
        let (inner, mut out) = (self.lock(), Vec::new());
        inner.link.request_provisional(&mut out);
        inner.send(out);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The state is consistent between any two statements.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
