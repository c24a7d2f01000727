//! Where servers are, and how a client stays connected to one.

use std::sync::Arc;
use std::time::Duration;

use espalier_net::{ConnectError, Connection, Limits, Receiver, Security, connect};
use espalier_proto::{ClientId, ClusterId, FromClient, FromServer, Hello, Service, Welcome};

use crate::calls::Door;
use crate::remote::Remote;

/// Where a file system is served, and how to show who asks.
#[derive(Clone, Debug)]
pub struct Servers {
    /// As `HOST:PORT`; each serves the same.
    pub addresses: Vec<String>,
    pub security: Security,
    pub limits: Limits,
    /// Unlike any other client's.
    pub client: ClientId,
    /// Whether what they tell is to be leased.
    pub leases: bool,
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

    /// Connects to the first server that answers. `incarnation`: of the server that the session was last in.
    ///
    /// # Errors
    /// Why the last one could not be reached.
    pub async fn reach(&self, incarnation: Option<u64>) -> Result<Conversation, ConnectError> {
        let mut last = ConnectError::Address(String::new());
        for address in &self.addresses {
            let hello = Hello {
                cluster: ClusterId::ANY,
                service: Service::Metadata,
                client: self.client,
                leases: self.leases,
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

/// Takes what comes, for ever; a connection that is lost is made again.
pub async fn keep_connected<D: Door>(
    remote: Arc<Remote<D>>,
    servers: Servers,
    mut receiver: Receiver<FromServer>,
) {
    let mut batch = Vec::new();
    loop {
        let error = loop {
            match receiver.next(&mut batch).await {
                Ok(_) => remote.received(batch.drain(..)),
                Err(error) => break error,
            }
        };
        tracing::warn!(%error, "the connection to the server is lost: connecting again");
        remote.disconnected();
        let mut pause = FIRST_PAUSE;
        loop {
            match servers.reach(remote.incarnation()).await {
                Ok((welcome, connection)) => {
                    tracing::info!(resumed = welcome.resumed, "connected again");
                    receiver = connection.receiver;
                    remote.connected(&welcome, connection.sender);
                    break;
                }
                Err(error) => tracing::debug!(%error, "not connected yet"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
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
