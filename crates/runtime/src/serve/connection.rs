//! Serves one connection of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use espalier_meta::Refused;
use espalier_net::{Acceptor, Connection, Identity, Incoming, Reason, Receiver, Refusal, Sender};
use espalier_proto::{
    Accesses, ClientId, ClusterId, DataPool, FromClient, FromServer, Hello, Ino, Rank, ServerMap, Service,
    Welcome,
};
use espalier_store::Superblock;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::Settings;
use super::machine::{Guest, Origin, Server};
use super::peers;
use super::ranks::RankTable;
use crate::addresses::Listed;
use crate::capability::Holder;
use crate::data::DataServer;
use crate::tracer::place_of;

/// Maximum number of unanswered requests per client.
const WINDOW: u32 = 1024;
/// Number of messages processed between two checks of the output queue.
const AT_ONCE: usize = 16;
/// Size of the output queue, in bytes, above which nothing more is received.
const UNREAD: usize = 16 << 20;
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of concurrent handshakes.
const HANDSHAKES: usize = 256;
/// Pause after an error of `accept`, usually a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection has ended.
pub type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// State shared by all connections of a server.
pub struct Gate {
    /// The metadata services, if this server provides any.
    pub meta: Option<Arc<RankTable>>,
    /// The data service, if this server provides it.
    pub data: Option<Arc<DataServer>>,
    pub acceptor: Acceptor,
    pub incarnation: u64,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Runtimes among which connections are distributed.
    pub workers: Vec<Handle>,
    pub open: AtomicUsize,
    pub handshakes: Semaphore,
}

/// State shared by the connections to a rank.
pub struct Metadata {
    pub server: Arc<Server>,
    pub superblock: Superblock,
    /// Changes with each start of the rank's service.
    pub incarnation: u64,
}

impl Gate {
    /// The limit for [`Self::handshakes`].
    pub fn turnstile() -> Semaphore {
        Semaphore::new(HANDSHAKES)
    }

    pub fn set(&self, settings: Settings) {
        self.acceptor.set_eager_bytes(settings.eager_bytes);
        if let Some(data) = &self.data {
            data.set_individual(settings.watermarks.1 == 1);
        }
        if let Some(table) = &self.meta {
            table.set(settings);
        }
    }
}

/// Accepts connections forever.
pub async fn accept(gate: Arc<Gate>, listener: TcpListener) {
    for worker in gate.workers.iter().cycle() {
        match listener.accept().await.and_then(|(socket, _)| socket.into_std()) {
            Ok(socket) => {
                let gate = Arc::clone(&gate);
                worker.spawn(async move {
                    let open = gate.open.fetch_add(1, Ordering::Relaxed);
                    let is_full = open >= gate.max_connections;
                    match TcpStream::from_std(socket) {
                        Ok(socket) => gate.serve(socket, is_full).await,
                        Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                    }
                    gate.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Gate {
    async fn serve(&self, socket: TcpStream, is_full: bool) {
        let peer = socket.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string());
        let accepted = {
            let _permit = self.handshakes.acquire().await;
            self.acceptor.accept(socket).await
        };
        let incoming = match accepted {
            Ok(incoming) => incoming,
            Err(error) => return tracing::warn!(peer, %error, "cannot accept a connection"),
        };
        let is_client = matches!(incoming.hello().service, Service::Metadata { .. } | Service::Delegated(_));
        let refusal = if is_full && is_client {
            Some(Refusal::new(Reason::Full, "the server has as many clients as it may: try again later"))
        } else {
            self.refusal(incoming.hello())
        };
        if let Some(refusal) = refusal {
            tracing::warn!(peer, %refusal, "a client was refused");
            incoming.refuse(refusal).await;
            return;
        }
        let ended = match (incoming.hello().service, &self.meta, &self.data) {
            (Service::Metadata { leases, accesses, rank }, Some(table), _) => match table.get(rank) {
                Some(meta) => converse(table, &meta, incoming, &peer, (leases, accesses)).await,
                None => return refuse_rank(incoming, rank).await,
            },
            (Service::Addresses, Some(table), _) => self.list_servers(table, incoming).await,
            (Service::Data(number), _, Some(data)) if number == data.store.number() => {
                self.serve_data(data, incoming, &peer).await
            }
            (Service::Delegated(number), _, Some(data)) if number == data.store.number() => {
                data.serve_client(incoming, self.welcome_to_server(Rank(0))).await.map_err(Into::into)
            }
            (Service::Peer { from, to }, Some(table), _) => match table.get(Some(to)) {
                Some(meta) if table.is_peer(from, to) => {
                    self.serve_peer(table, &meta, from, incoming, &peer).await
                }
                _ => return refuse_peer(incoming, &peer, from, to).await,
            },
            (service, ..) => {
                let text = match service {
                    Service::Metadata { .. } | Service::Addresses => {
                        "this server serves no metadata: use another in the URL".into()
                    }
                    Service::Data(number) | Service::Delegated(number) => {
                        format!("this is not data server {number}: correct [[data]] in server.toml")
                    }
                    Service::Peer { from, to } => return refuse_peer(incoming, &peer, from, to).await,
                };
                tracing::warn!(peer, "a peer was refused: {text}");
                incoming.refuse(Refusal::new(Reason::Service, text)).await;
                return;
            }
        };
        if let Err(error) = ended {
            tracing::info!(peer, %error, "a connection has ended");
        }
    }

    fn refusal(&self, hello: &Hello) -> Option<Refusal> {
        let own = self.meta.as_ref().map(|table| table.cluster);
        let is_any = hello.cluster == ClusterId::ANY && !matches!(hello.service, Service::Peer { .. });
        (!is_any && own.is_some_and(|own| own != hello.cluster))
            .then(|| Refusal::new(Reason::Cluster, "this server is one of another cluster"))
    }

    /// Restricts a service to the cluster's servers.
    async fn servers_only(incoming: Incoming, peer: &str) -> Option<Incoming> {
        let Some(Identity::Client(name)) = incoming.identity() else { return Some(incoming) };
        tracing::warn!(peer, name, "a client was refused: it requested a service for servers only");
        let text = "this is for the cluster's servers only: this certificate is a client's";
        incoming.refuse(Refusal::new(Reason::Identity, text)).await;
        None
    }

    fn welcome_to_server(&self, rank: Rank) -> Welcome {
        let (incarnation, session_ms) = (self.incarnation, u32::MAX);
        Welcome {
            incarnation,
            window: WINDOW,
            session_ms,
            rank,
            root: Ino::ROOT,
            servers: ServerMap::NONE,
            data_pool: None,
        }
    }

    async fn serve_peer(
        &self,
        table: &RankTable,
        meta: &Metadata,
        rank: Rank,
        incoming: Incoming,
        peer: &str,
    ) -> Ended {
        let Some(mut incoming) = Self::servers_only(incoming, peer).await else { return Ok(()) };
        table.rank_connected(rank, meta.superblock.rank, &meta.server)?;
        incoming.set_unsent_bytes(peers::UNSENT_BYTES);
        let incarnation = incoming.hello().incarnation;
        let welcome =
            Welcome { incarnation: meta.incarnation, ..self.welcome_to_server(meta.superblock.rank) };
        let connection = incoming.welcome(welcome).await?;
        tracing::info!(peer, %rank, "another metadata server has connected");
        let addresses = &table.addresses;
        Err(meta.server.converse_with_rank(rank, incarnation, connection, addresses).await.into())
    }

    /// Sends the addresses of all servers, and each change.
    async fn list_servers(&self, table: &RankTable, incoming: Incoming) -> Ended {
        if let (Some(Identity::Client(_)), Err(text)) =
            (incoming.identity(), table.access().of(incoming.identity()))
        {
            incoming.refuse(Refusal::new(Reason::Identity, text)).await;
            return Ok(());
        }
        let mut changes = table.addresses.subscribe();
        let servers = changes.borrow_and_update().clone();
        let welcome = Welcome { servers, ..self.welcome_to_server(Rank(0)) };
        let Connection { mut receiver, sender } = incoming.welcome::<Listed, Listed>(welcome).await?;
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                received = receiver.next(&mut batch) => {
                    received?;
                    if !batch.is_empty() {
                        return Err("a peer may not change the addresses".into());
                    }
                }
                changed = changes.changed() => {
                    changed?;
                    let servers = changes.borrow_and_update().clone();
                    sender.send(Listed(servers))?;
                }
            }
        }
    }

    async fn serve_data(&self, data: &Arc<DataServer>, incoming: Incoming, peer: &str) -> Ended {
        let Some(incoming) = Self::servers_only(incoming, peer).await else { return Ok(()) };
        Ok(data.serve_server(incoming, self.welcome_to_server(Rank(0))).await?)
    }
}

async fn converse(
    table: &RankTable,
    meta: &Metadata,
    incoming: Incoming,
    peer: &str,
    (leases, accesses): (bool, Accesses),
) -> Ended {
    let identity = incoming.identity().cloned();
    let rights = match table.access().of(identity.as_ref()) {
        Ok(rights) => rights,
        Err(text) => {
            tracing::warn!(peer, "a client was refused: {text}");
            incoming.refuse(Refusal::new(Reason::Identity, text)).await;
            return Ok(());
        }
    };
    let place = place_of(incoming.hello().client);
    let holder = Holder::new(incoming.identity(), incoming.hello().client);
    // 1 is the client of an embedded mount.
    let client = ClientId(holder.number(&meta.superblock.hash_key).0.max(2));
    let before = incoming.hello().incarnation;
    let (resumed, known) = (before.is_some(), before == Some(meta.incarnation));
    let root = match meta.server.connect(client, (leases, resumed), accesses, &rights).await? {
        Ok(root) => root,
        Err(refused) => {
            incoming.refuse(refusal(refused, peer, client)).await;
            return Ok(());
        }
    };
    let mut changes = table.addresses.subscribe();
    let welcome = Welcome {
        incarnation: meta.incarnation,
        window: WINDOW,
        session_ms: table.session_ms,
        rank: meta.superblock.rank,
        root,
        servers: changes.borrow_and_update().clone(),
        data_pool: table.data_pool.clone().map(|pool| DataPool { client, ..pool }),
    };
    let Connection { mut receiver, sender } = incoming.welcome(welcome).await?;
    let guest = Guest { identity, holder, rights: rights.clone(), place };
    let origin = meta.server.attach(client, guest, sender.clone())?;
    // The rights may have changed during the handshake.
    meta.server.enforce(&table.access(), Some(client));
    tracing::info!(peer, client = client.0, resumed, known, "a client has connected");
    let ended = tokio::select! {
        ended = receive(&meta.server, &mut receiver, &sender, &origin) => ended,
        ended = send_changes(&mut changes, &sender) => ended,
    };
    sender.end();
    meta.server.detach(&origin);
    ended
}

/// Receives a client's messages until the connection ends. A client that reads slowly, or
/// requests more than the disks deliver, is not served meanwhile. If it does not read at all,
/// the connection ends, and the queue becomes empty. An empty batch is a sign of life.
async fn receive(
    server: &Server,
    receiver: &mut Receiver<FromClient>,
    sender: &Sender<FromServer>,
    origin: &Origin,
) -> Ended {
    let mut batch = Vec::new();
    loop {
        receiver.next(&mut batch).await?;
        loop {
            server.received(origin, batch.drain(..batch.len().min(AT_ONCE)))?;
            while sender.unread() + origin.under_way.bytes() > UNREAD {
                tokio::time::sleep(PAUSE).await;
            }
            if batch.is_empty() {
                break;
            }
        }
    }
}

/// Notifies a client of each change of the servers' addresses, forever.
async fn send_changes(changes: &mut watch::Receiver<ServerMap>, sender: &Sender<FromServer>) -> Ended {
    loop {
        changes.changed().await?;
        let servers = changes.borrow_and_update().clone();
        sender.send(FromServer::Servers(servers))?;
    }
}

/// Refuses a client whose rank this server does not have.
async fn refuse_rank(incoming: Incoming, rank: Option<Rank>) {
    let text = match rank {
        Some(rank) => format!(
            "this server does not have rank {rank}: unless servers share their store, compare the addresses in [[meta]] of their configurations"
        ),
        None => "this server is a standby".into(),
    };
    incoming.refuse(Refusal::new(Reason::Unready, text)).await;
}

async fn refuse_peer(incoming: Incoming, peer: &str, from: Rank, to: Rank) {
    let text = format!(
        "this is not metadata server {to}, to which server {from} connects: correct [[meta]] in server.toml"
    );
    tracing::warn!(peer, "a peer was refused: {text}");
    incoming.refuse(Refusal::new(Reason::Service, text)).await;
}

/// Why a client gets no session.
fn refusal(refused: Refused, peer: &str, client: ClientId) -> Refusal {
    match refused {
        Refused::Ended => {
            tracing::info!(peer, client = client.0, "the session of a returning client has ended");
            Refusal::new(Reason::Ended, "the session has ended: what was open in it is lost")
        }
        Refused::Session(errno) => {
            let advice = "see its status, or try again later";
            Refusal::new(Reason::Full, format!("the server accepts no new clients ({errno}): {advice}"))
        }
        Refused::Subtree(errno) => {
            let text = format!("the directory that this client is restricted to cannot be entered: {errno}");
            tracing::warn!(peer, "a client was refused: {text}");
            Refusal::new(Reason::Identity, text)
        }
    }
}
