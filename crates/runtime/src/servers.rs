//! Where servers are, and how a client stays connected to them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use espalier_net::{ConnectError, Connection, Limits, Reason, Receiver, Security, connect};
use espalier_proto::{Accesses, ClientId, ClusterId, FromClient, FromServer, Hello, Rank, Service, Welcome};
use tokio::task::JoinSet;

use crate::calls::Door;
use crate::remote::Remote;

/// Where a file system is served, and how to show who asks.
#[derive(Clone, Debug)]
pub struct Servers {
    /// As `HOST:PORT`, of any metadata servers of the cluster.
    pub addresses: Vec<String>,
    pub security: Security,
    pub limits: Limits,
    /// Unlike any other client's.
    pub client: ClientId,
    /// Whether what they tell is to be leased.
    pub leases: bool,
    pub accesses: Accesses,
}

/// Before a lost connection is tried again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub type Conversation = (Welcome, Connection<FromServer, FromClient>);

/// A text is no URL of servers.
#[derive(Debug, thiserror::Error)]
#[error("a server is named espalier://HOST:PORT/, and not {0}")]
pub struct UrlError(String);

impl Servers {
    pub const SCHEME: &str = "espalier://";

    /// The addresses in `espalier://HOST:PORT,HOST:PORT/`.
    ///
    /// # Errors
    /// It is no such URL.
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
    /// Why the last one could not be reached.
    pub async fn reach(&self) -> Result<Conversation, ConnectError> {
        self.reach_one_of(&self.addresses, None).await
    }

    /// `incarnation`: of the server that the session was last in, if there is one.
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

/// How many metadata servers there are, as one of them says.
pub fn rank_count(welcome: &Welcome) -> usize {
    welcome.servers.ranks.len().max(usize::from(welcome.rank.0) + 1)
}

/// Where metadata servers are, by rank, as the one has said that was connected to last. Empty: there is but one, at all addresses.
type Known = Arc<Mutex<Vec<String>>>;

/// Stays connected to all metadata servers, for ever. `first`: the conversation that there is already.
pub async fn keep_connected<D: Door>(remote: Arc<Remote<D>>, servers: Servers, first: Conversation) {
    let (welcome, connection) = first;
    let known = Known::default();
    let mut first = Some(begin(&remote, &known, welcome.rank, (welcome.clone(), connection)));
    let mut tasks = JoinSet::new();
    for number in 0..remote.sessions().len() {
        let rank = Rank(number as u16);
        let receiver = if rank == welcome.rank { first.take() } else { None };
        tasks.spawn(keep_rank(Arc::clone(&remote), servers.clone(), Arc::clone(&known), rank, receiver));
    }
    while tasks.join_next().await.is_some() {}
}

fn begin<D: Door>(
    remote: &Remote<D>,
    known: &Known,
    rank: Rank,
    (welcome, connection): Conversation,
) -> Receiver<FromServer> {
    known.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&welcome.servers.ranks);
    remote.connected(rank, &welcome, connection.sender);
    connection.receiver
}

/// Takes what comes from a server, for ever; a connection that is lost is made again.
async fn keep_rank<D: Door>(
    remote: Arc<Remote<D>>,
    servers: Servers,
    known: Known,
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
            tracing::warn!(rank = rank.0, %error, "the connection to a server is lost: connecting again");
            remote.disconnected(rank);
        }
        let mut pause = FIRST_PAUSE;
        let conversation = loop {
            match reach_rank(&remote, &servers, &known, rank).await {
                Ok(conversation) => break conversation,
                Err(error) if error.is_ended() && remote.incarnation(rank).is_some() => {
                    tracing::warn!(rank = rank.0, %error, "a server has ended the session: beginning another");
                    remote.ended(rank);
                    continue;
                }
                Err(error) if is_first && pause == FIRST_PAUSE => {
                    tracing::warn!(rank = rank.0, %error, "not connected: what needs this server waits");
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

async fn reach_rank<D: Door>(
    remote: &Remote<D>,
    servers: &Servers,
    known: &Known,
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
    /// Whether the server knows no session of this client.
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
