//! Connections between metadata servers. The server of the larger rank connects to that of the
//! smaller. After a lost connection, the machines repeat their messages over the next.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use espalier_meta::{Input, PeerMessage};
use espalier_net::{ConnectError, Connection, Limits, Message, NetError, Security, Sender, connect};
use espalier_proto::{ClientId, ClusterId, Hello, Rank, Service};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::machine::{Inner, Server};
use crate::addresses::{self, Addresses, of_rank};
use crate::control::RanksStatus;
use crate::tracer::NodeId;

/// A message between metadata servers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Said(PeerMessage);

impl Message for Said {
    fn payload(&mut self) -> Option<&mut Bytes> {
        None
    }

    /// All messages are in one order.
    fn request(&self) -> Option<u64> {
        None
    }
}

/// The connection to another rank.
pub struct PeerConnection {
    /// Distinguishes successive connections.
    connection: u64,
    sender: Sender<Said>,
}

/// Addresses of the other ranks.
pub struct Peers {
    pub own: Rank,
    pub addresses: Arc<Addresses>,
    pub cluster: ClusterId,
    pub incarnation: u64,
    pub security: Security,
    pub limits: Limits,
}

/// Limit of the output queue in bytes. Unanswered requests bound the queue; a new connection
/// repeats all of them at once.
pub const UNSENT_BYTES: usize = 1 << 30;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Peers {
    /// Keeps connections to all smaller ranks, until the tasks are aborted. The larger ranks
    /// connect to this server.
    pub fn reach(self, server: &Arc<Server>, runtime: &Handle) -> Vec<AbortHandle> {
        let peers = Arc::new(self);
        let connect = |rank| {
            let (peers, server) = (Arc::clone(&peers), Arc::clone(server));
            runtime.spawn(async move { peers.keep_connected(rank, &server).await }).abort_handle()
        };
        (0..peers.own.0).map(Rank).map(connect).collect()
    }

    async fn keep_connected(&self, rank: Rank, server: &Server) {
        let (mut pause, mut logged) = (FIRST_PAUSE, false);
        loop {
            match self.connect(rank).await {
                Ok((incarnation, connection)) => {
                    tracing::info!(%rank, "connected to another metadata server");
                    (pause, logged) = (FIRST_PAUSE, false);
                    let error =
                        server.converse_with_rank(rank, Some(incarnation), connection, &self.addresses).await;
                    tracing::warn!(%rank, %error, "lost the connection to a metadata server: reconnecting");
                }
                Err(error) if logged => tracing::debug!(%rank, %error, "not connected yet"),
                Err(error) => {
                    tracing::warn!(%rank, %error, "cannot reach a metadata server: operations on it wait");
                    logged = true;
                }
            }
            addresses::pause(&self.addresses, pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Connects to the present server of a rank; returns the rank's incarnation.
    async fn connect(&self, rank: Rank) -> Result<(u64, Connection<Said, Said>), ConnectError> {
        let Self { own, addresses, cluster, incarnation, security, limits } = self;
        let hello = Hello {
            cluster: *cluster,
            service: Service::Peer { from: *own, to: rank },
            client: ClientId(own.0.into()),
            incarnation: Some(*incarnation),
        };
        let limits = Limits { unsent_bytes: UNSENT_BYTES, ..limits.clone() };
        let address = of_rank(&addresses.borrow(), rank).map(String::from).unwrap_or_default();
        let connected = tokio::select! {
            connected = connect(&address, security, &limits, hello) => connected,
            () = addresses::moved(addresses, rank, Some(&address), None) => {
                return Err(ConnectError::NoServer { address });
            }
        };
        connected.map(|(welcome, connection)| (welcome.incarnation, connection))
    }
}

impl Server {
    /// Passes messages between the machines until the connection ends, or another server has the
    /// rank; returns the reason. `incarnation`: of the rank.
    pub async fn converse_with_rank(
        &self,
        rank: Rank,
        incarnation: Option<u64>,
        connection: Connection<Said, Said>,
        addresses: &Addresses,
    ) -> NetError {
        let Connection { mut receiver, sender } = connection;
        let Some(number) = self.attach_rank(rank, sender.clone()) else { return NetError::Dropped };
        let mut batch = Vec::new();
        let moved = addresses::moved(addresses, rank, None, incarnation.or(Some(u64::MAX)));
        tokio::pin!(moved);
        let error = loop {
            // No back-pressure here: two servers that wait for each other's queues would deadlock.
            let received = tokio::select! {
                received = receiver.next(&mut batch) => received,
                () = &mut moved => Err(NetError::Dropped),
            };
            if let Err(error) = received {
                break error;
            }
            let heard = |Said(message): &Said| self.trace_heard(rank, message);
            let inputs =
                batch.drain(..).inspect(heard).map(|Said(message)| Input::Peer { from: rank, message });
            if !self.said_by_rank(rank, number, inputs) {
                break NetError::Dropped;
            }
        };
        sender.end();
        self.detach_rank(rank, number);
        error
    }

    /// Registers a connection to a rank; returns its number.
    fn attach_rank(&self, rank: Rank, sender: Sender<Said>) -> Option<u64> {
        let mut attached = None;
        self.with_machine(|inner| {
            inner.next_connection += 1;
            let connection = inner.next_connection;
            attached = Some(connection);
            if let Some(old) = inner.ranks.insert(rank, PeerConnection { connection, sender }) {
                old.sender.end();
            }
            [Input::PeerConnected { rank }]
        });
        attached
    }

    /// Processes messages of a rank, if the connection is still its present one.
    fn said_by_rank(
        &self,
        rank: Rank,
        connection: u64,
        inputs: impl ExactSizeIterator<Item = Input>,
    ) -> bool {
        let mut is_current = false;
        self.with_machine(|inner| {
            is_current = inner.ranks.get(&rank).is_some_and(|link| link.connection == connection);
            inputs.take(if is_current { usize::MAX } else { 0 })
        });
        is_current
    }

    /// Status of the connections to the other ranks.
    pub fn ranks_status(&self) -> Option<RanksStatus> {
        let inner = self.lock().ok()?;
        let meta = inner.session_layer.meta();
        let (Rank(rank), ranks, open) = (meta.rank(), meta.ranks(), meta.open_transactions());
        let connected = inner.ranks.keys().map(|rank| rank.0).collect();
        (ranks > 1).then_some(RanksStatus { rank, ranks, connected, open })
    }

    /// The number of ranks of the cluster, as far as this server has heard.
    pub fn ranks(&self) -> u16 {
        self.lock().map_or(0, |inner| inner.session_layer.meta().ranks())
    }

    fn detach_rank(&self, rank: Rank, connection: u64) {
        if let Ok(mut inner) = self.lock()
            && inner.ranks.get(&rank).is_some_and(|link| link.connection == connection)
        {
            inner.ranks.remove(&rank);
        }
    }
}

/// Tracing of requests between ranks.
impl Server {
    /// Traces outgoing requests and replies.
    pub(super) fn trace_questions(&self, inner: &Inner, messages: &[(Rank, PeerMessage)]) {
        let tracer = &self.background_work.tracer;
        if !tracer.is_on() {
            return;
        }
        for (rank, message) in messages {
            let place = NodeId::Rank(rank.0);
            match message {
                PeerMessage::Ask { id, question, .. } => {
                    let cause = inner.session_layer.meta().cause_of_question(*id);
                    let cause = cause.and_then(|cause| self.id_of_cause(inner, cause));
                    tracer.begin(tracer.request_id(place, id.number), question.name(), || {
                        cause.into_iter().collect()
                    });
                }
                PeerMessage::Answer { id, .. } => tracer.end(tracer.served(place, id.number)),
                _ => {}
            }
        }
    }

    fn trace_heard(&self, rank: Rank, message: &PeerMessage) {
        let (tracer, place) = (&self.background_work.tracer, NodeId::Rank(rank.0));
        match message {
            PeerMessage::Ask { id, question, .. } => {
                tracer.begin(tracer.served(place, id.number), question.name(), Vec::new);
            }
            PeerMessage::Answer { id, .. } => tracer.end(tracer.request_id(place, id.number)),
            _ => {}
        }
    }
}

impl Inner {
    pub(super) fn end_ranks(&self) {
        self.ranks.values().for_each(|peer| peer.sender.end());
    }

    /// Queues messages for connected ranks; the machine repeats the others after a connection.
    /// Returns the connections to flush.
    pub(super) fn send_to_ranks(
        &self,
        messages: impl Iterator<Item = (Rank, PeerMessage)>,
    ) -> Vec<Sender<Said>> {
        let mut sent: Vec<Rank> = Vec::new();
        if !self.may_send() {
            self.end_ranks();
            return Vec::new();
        }
        for (rank, message) in messages {
            let Some(link) = self.ranks.get(&rank) else { continue };
            if let Err(error) = link.sender.queue(Said(message)) {
                tracing::warn!(%rank, %error, "cannot send a message to another metadata server");
            } else if !sent.contains(&rank) {
                sent.push(rank);
            }
        }
        sent.iter().filter_map(|rank| Some(self.ranks.get(rank)?.sender.clone())).collect()
    }
}
