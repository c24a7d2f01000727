//! Server addresses, and the connections of a client.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use espalier_net::{ConnectError, Connection, Limits, Reason, Receiver, Security, connect};
use espalier_proto::{Accesses, ClientId, ClusterId, FromClient, FromServer, Hello, Rank, Service, Welcome};
use tokio::task::JoinSet;

use crate::calls::Frontend;
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
}

/// Minimum and maximum pause between connection attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

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

    /// Connects to the first server that answers.
    ///
    /// # Errors
    /// The error of the last server.
    pub async fn reach(&self) -> Result<Conversation, ConnectError> {
        self.reach_one_of(&self.addresses, None).await
    }

    /// `incarnation`: the server incarnation of the present session, if there is one.
    async fn reach_one_of(
        &self,
        addresses: &[String],
        incarnation: Option<u64>,
    ) -> Result<Conversation, ConnectError> {
        let mut last = ConnectError::Address(String::new());
        for address in addresses {
            let hello = Hello {
                cluster: ClusterId::ANY,
                service: Service::Metadata { leases: self.leases, accesses: self.accesses },
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

/// Addresses of the metadata servers by rank, as last reported; empty: one server, at all
/// addresses.
type KnownServers = Arc<Mutex<Vec<String>>>;

/// Keeps connections to all metadata servers, forever. `first`: the established connection.
pub async fn keep_connected<D: Frontend>(remote: Arc<Remote<D>>, servers: Servers, first: Conversation) {
    let (welcome, connection) = first;
    let known = KnownServers::default();
    let mut first = Some(begin(&remote, &known, welcome.rank, (welcome.clone(), connection)));
    let mut tasks = JoinSet::new();
    for number in 0..remote.sessions().len() {
        let rank = Rank(number as u16);
        let receiver = if rank == welcome.rank { first.take() } else { None };
        tasks.spawn(keep_rank(Arc::clone(&remote), servers.clone(), Arc::clone(&known), rank, receiver));
    }
    while tasks.join_next().await.is_some() {}
}

fn begin<D: Frontend>(
    remote: &Remote<D>,
    known: &KnownServers,
    rank: Rank,
    (welcome, connection): Conversation,
) -> Receiver<FromServer> {
    known.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&welcome.servers.ranks);
    remote.connected(rank, &welcome, connection.sender);
    connection.receiver
}

/// Receives messages from a server, forever; reconnects after a lost connection.
async fn keep_rank<D: Frontend>(
    remote: Arc<Remote<D>>,
    servers: Servers,
    known: KnownServers,
    rank: Rank,
    mut receiver: Option<Receiver<FromServer>>,
) {
    let mut batch = Vec::new();
    loop {
        let is_first = receiver.is_none();
        if let Some(receiver) = &mut receiver {
            let error = loop {
                match receiver.next(&mut batch).await {
                    Ok(_) => remote.received(rank, batch.drain(..)),
                    Err(error) => break error,
                }
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
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        tracing::info!(rank = rank.0, "connected");
        receiver = Some(begin(&remote, &known, rank, conversation));
    }
}

async fn reach_rank<D: Frontend>(
    remote: &Remote<D>,
    servers: &Servers,
    known: &KnownServers,
    rank: Rank,
) -> Result<Conversation, RankError> {
    let address = {
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(usize::from(rank.0)).cloned()
    };
    let addresses = address.as_ref().map_or(&servers.addresses[..], std::slice::from_ref);
    let conversation = servers.reach_one_of(addresses, remote.incarnation(rank)).await?;
    match conversation.0.rank {
        is if is == rank => Ok(conversation),
        is => Err(RankError::Other { addresses: addresses.join(","), is: is.0 }),
    }
}

#[derive(Debug, thiserror::Error)]
enum RankError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{addresses} is the server of rank {is}: compare the addresses in the servers' configurations")]
    Other { addresses: String, is: u16 },
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
