//! A client's way to the metadata servers: parses their URL, connects to one that answers, and
//! maintains a connection for each rank.

use std::sync::Arc;
use std::time::Duration;

use espalier_net::{ConnectError, Connection, Limits, NetError, Reason, Receiver, Security, connect};
use espalier_proto::{
    Accesses, ClientId, ClusterId, FromClient, FromServer, Hello, Rank, ServerMap, Service, Welcome,
};
use tokio::task::JoinSet;

use crate::addresses::{self, Addresses, of_rank};
use crate::calls::Frontend;
use crate::data::ClientPool;
use crate::error::Error;
use crate::location::RadosAccess;
use crate::remote::Remote;

/// Addresses of a file system's servers, and the client's credentials.
#[derive(Clone, Debug)]
pub struct Servers {
    /// Addresses of any metadata servers of the cluster, as `HOST:PORT`.
    pub addresses: Vec<String>,
    pub security: Security,
    pub limits: Limits,
    /// Unique among all clients.
    pub client: ClientId,
    /// True if the client requests leases.
    pub leases: bool,
    pub accesses: Accesses,
    /// How to reach the pool of the big files' bytes; `None`: they pass through the servers.
    pub data_pool: Option<RadosAccess>,
}

/// Minimum and maximum pause between connection attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Number of servers that report addresses to a client: one may be the one that fails.
const FOLLOWED: usize = 2;
/// Time limit for reaching a server that only reports addresses: another one can do so.
const HANDSHAKE: Duration = Duration::from_secs(2);

pub type Conversation = (Welcome, Connection<FromServer, FromClient>);

/// A text is not a server URL.
#[derive(Debug, thiserror::Error)]
#[error("a server URL has the form espalier://HOST:PORT/, unlike {0}")]
pub struct UrlError(String);

impl Servers {
    pub const SCHEME: &str = "espalier://";

    /// Parses the addresses of `espalier://HOST:PORT,HOST:PORT/`.
    ///
    /// # Errors
    /// The text is not such a URL.
    pub fn addresses(url: &str) -> Result<Vec<String>, UrlError> {
        let list = url.strip_prefix(Self::SCHEME).unwrap_or_default();
        let list = list.strip_suffix('/').unwrap_or(list);
        let addresses: Vec<String> = list.split(',').map(String::from).collect();
        for address in &addresses {
            let port =
                address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
            if port.is_none_or(|(host, _)| host.is_empty()) || address.contains('/') {
                return Err(UrlError(url.into()));
            }
        }
        Ok(addresses)
    }

    /// Opens the data pool, if it is to be used. `first`: a server's reply. Waits for the cluster.
    ///
    /// # Errors
    /// It cannot be used; there is none.
    pub fn open_data_pool(&self, first: &Welcome) -> Result<Option<ClientPool>, Error> {
        let Some(access) = self.data_pool.clone() else { return Ok(None) };
        let pool = first.data_pool.clone().ok_or(Error::NoDataPool)?;
        ClientPool::open(pool, access).map(Some)
    }

    /// Connects to the first server that answers. A standby returns the addresses of the others.
    ///
    /// # Errors
    /// The error of the last server.
    pub async fn reach(&self) -> Result<Conversation, ConnectError> {
        let mut last = match self.reach_one_of(&self.addresses, None, None).await {
            Ok(conversation) => return Ok(conversation),
            Err(error) => error,
        };
        for address in &self.addresses {
            let Ok(servers) = self.list(address).await else { continue };
            let known: Vec<_> = servers.ranks.into_iter().filter(|address| !address.is_empty()).collect();
            match self.reach_one_of(&known, None, None).await {
                Ok(conversation) => return Ok(conversation),
                Err(error) if !known.is_empty() => last = error,
                Err(_) => {}
            }
        }
        Err(last)
    }

    /// The addresses that a server knows.
    async fn list(&self, address: &str) -> Result<ServerMap, ConnectError> {
        let (welcome, _) = addresses::ask(address, &self.security, &self.limits, self.client).await?;
        Ok(welcome.servers)
    }

    /// `rank`: the rank to reach. `incarnation`: the server incarnation of the present session, if
    /// there is one.
    async fn reach_one_of(
        &self,
        addresses: &[String],
        rank: Option<Rank>,
        incarnation: Option<u64>,
    ) -> Result<Conversation, ConnectError> {
        let mut last = ConnectError::Address(String::new());
        for address in addresses {
            let hello = Hello {
                cluster: ClusterId::ANY,
                service: Service::Metadata { leases: self.leases, accesses: self.accesses, rank },
                client: self.client,
                incarnation,
            };
            match connect(address, &self.security, &self.limits, hello).await {
                Ok(conversation) => return Ok(conversation),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Number of metadata servers according to one of them.
pub fn rank_count(welcome: &Welcome) -> usize {
    welcome.servers.ranks.len().max(usize::from(welcome.rank.0) + 1)
}

/// Keeps connections to all metadata servers, also to those that join, forever. `first`: the
/// established connection.
pub async fn keep_connected<D: Frontend>(remote: Arc<Remote<D>>, servers: Servers, first: Conversation) {
    let (welcome, connection) = first;
    let known = Arc::new(Addresses::new(ServerMap::NONE));
    let mut first = Some(begin(&remote, &known, welcome.rank, (welcome.clone(), connection)));
    let mut tasks = JoinSet::new();
    for first in 0..FOLLOWED {
        if welcome.servers.version > 0 {
            tasks.spawn(follow_addresses(servers.clone(), Arc::clone(&known), first));
        }
    }
    let (mut heard, mut next) = (remote.ranks_heard(), 0);
    loop {
        let ranks = *heard.borrow_and_update();
        for number in next..ranks {
            let rank = Rank(number as u16);
            let line = if rank == welcome.rank { first.take() } else { None };
            tasks.spawn(keep_rank(Arc::clone(&remote), servers.clone(), Arc::clone(&known), rank, line));
        }
        next = ranks;
        // The sender exists.
        let _ = heard.changed().await;
    }
}

/// A connection to a rank.
struct RankConnection {
    receiver: Receiver<FromServer>,
    incarnation: u64,
}

fn begin<D: Frontend>(
    remote: &Remote<D>,
    known: &Addresses,
    rank: Rank,
    (welcome, connection): Conversation,
) -> RankConnection {
    addresses::learn(known, &welcome.servers);
    remote.connected(rank, &welcome, connection.sender);
    RankConnection { receiver: connection.receiver, incarnation: welcome.incarnation }
}

/// Receives messages from a server, forever; reconnects after a lost connection.
async fn keep_rank<D: Frontend>(
    remote: Arc<Remote<D>>,
    servers: Servers,
    known: Arc<Addresses>,
    rank: Rank,
    mut line: Option<RankConnection>,
) {
    loop {
        let is_first = line.is_none();
        if let Some(mut line) = line.take() {
            // A server that is gone without a trace keeps the connection open.
            let error = tokio::select! {
                error = receive(&remote, &known, rank, &mut line.receiver) => error,
                () = addresses::moved(&known, rank, None, Some(line.incarnation)) => NetError::Dropped,
            };
            tracing::warn!(rank = rank.0, %error, "lost the connection to a server: reconnecting");
            remote.disconnected(rank);
        }
        let mut pause = FIRST_PAUSE;
        let conversation = loop {
            match reach_rank(&remote, &servers, &known, rank).await {
                Ok(conversation) => break conversation,
                Err(error) if error.is_ended() && remote.incarnation(rank).is_some() => {
                    tracing::warn!(rank = rank.0, %error, "a server has ended the session: starting another");
                    remote.ended(rank);
                    continue;
                }
                Err(error) if is_first && pause == FIRST_PAUSE => {
                    tracing::warn!(rank = rank.0, %error, "not connected: calls that need this server wait");
                }
                Err(error) => tracing::debug!(rank = rank.0, %error, "not connected yet"),
            }
            addresses::pause(&known, pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        tracing::info!(rank = rank.0, "connected");
        line = Some(begin(&remote, &known, rank, conversation));
    }
}

/// Receives messages until the connection ends.
async fn receive<D: Frontend>(
    remote: &Remote<D>,
    known: &Addresses,
    rank: Rank,
    receiver: &mut Receiver<FromServer>,
) -> NetError {
    let mut batch = Vec::new();
    loop {
        if let Err(error) = receiver.next(&mut batch).await {
            return error;
        }
        for message in &batch {
            if let FromServer::Servers(servers) = message {
                addresses::learn(known, servers);
            }
        }
        remote.received(rank, batch.drain(..));
    }
}

async fn reach_rank<D: Frontend>(
    remote: &Remote<D>,
    servers: &Servers,
    known: &Addresses,
    rank: Rank,
) -> Result<Conversation, RankError> {
    let (address, fails_over) = {
        let known = known.borrow();
        (of_rank(&known, rank).map(String::from), known.version > 0)
    };
    if fails_over && address.is_none() {
        return Err(RankError::NoServer);
    }
    let addresses = address.as_ref().map_or(&servers.addresses[..], std::slice::from_ref);
    tokio::select! {
        // A server that does not have the rank refuses the connection.
        reached = servers.reach_one_of(addresses, Some(rank), remote.incarnation(rank)) => Ok(reached?),
        () = addresses::moved(known, rank, address.as_deref(), None) => Err(RankError::NoServer),
    }
}

/// Follows the changes of the addresses, forever: has one of the servers send them. `first`: the
/// server to begin with.
async fn follow_addresses(servers: Servers, known: Arc<Addresses>, first: usize) {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut candidates = known.borrow().meta.clone();
        let first = first.min(candidates.len());
        candidates.rotate_left(first);
        candidates.extend(servers.addresses.iter().cloned());
        for address in candidates {
            let limits = Limits { handshake: HANDSHAKE, ..servers.limits.clone() };
            let asked = addresses::ask(&address, &servers.security, &limits, servers.client).await;
            let Ok((welcome, Connection { mut receiver, sender: _sender })) = asked else { continue };
            pause = FIRST_PAUSE;
            addresses::learn(&known, &welcome.servers);
            let mut batch: Vec<addresses::Listed> = Vec::new();
            while receiver.next(&mut batch).await.is_ok() {
                batch.drain(..).for_each(|listed| addresses::learn(&known, &listed.0));
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[derive(Debug, thiserror::Error)]
enum RankError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("no server has the rank")]
    NoServer,
}

impl RankError {
    /// True if the server has ended this client's session.
    fn is_ended(&self) -> bool {
        matches!(self, Self::Connect(ConnectError::Refused { refusal, .. }) if refusal.reason == Reason::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_servers() {
        assert_eq!(Servers::addresses("espalier://a:1,[::1]:2/").expect("a URL"), ["a:1", "[::1]:2"]);
        for bad in ["espalier://", "espalier://a/", "espalier://a:b/", "espalier://:1/", "espalier://a:1/x"] {
            assert!(Servers::addresses(bad).is_err(), "{bad}");
        }
    }
}
