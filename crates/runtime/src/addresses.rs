//! The addresses of a cluster's servers, which change when servers fail over. Each server, also a
//! standby, sends them and all changes to its peers that ask ([`Service::Addresses`]).

use bytes::Bytes;
use espalier_net::{ConnectError, Connection, Limits, Message, Security, connect};
use espalier_proto::{ClientId, ClusterId, Hello, Rank, ServerMap, Service, Welcome};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The addresses of the servers, and each change of them.
pub type Addresses = watch::Sender<ServerMap>;

/// A changed list of addresses, as sent over the network.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Listed(pub ServerMap);

impl Message for Listed {
    fn payload(&mut self) -> Option<&mut Bytes> {
        None
    }

    /// All messages are in one order.
    fn request(&self) -> Option<u64> {
        None
    }
}

/// Takes over newer addresses. Without versions, a server that names fewer ranks has not heard yet
/// that others have joined.
pub fn learn(addresses: &Addresses, servers: &ServerMap) {
    addresses.send_if_modified(|known| {
        let is_newer = servers.version > known.version
            || (servers.version == 0 && servers.ranks.len() >= known.ranks.len() && servers != known);
        if is_newer {
            known.clone_from(servers);
        }
        is_newer
    });
}

/// The address of a rank's server; `None`: it is unknown.
pub fn of_rank(servers: &ServerMap, rank: Rank) -> Option<&str> {
    servers.ranks.get(usize::from(rank.0)).map(String::as_str).filter(|address| !address.is_empty())
}

/// Waits until another server has the rank, or the same one has it anew. `address`,
/// `incarnation`: of the rank, as far as they are known.
pub async fn moved(addresses: &Addresses, rank: Rank, address: Option<&str>, incarnation: Option<u64>) {
    let has_moved = |servers: &ServerMap| match (incarnation, servers.incarnations.get(usize::from(rank.0))) {
        (Some(known), Some(newest)) => *newest > known,
        _ => of_rank(servers, rank).is_some_and(|newest| Some(newest) != address),
    };
    let mut changes = addresses.subscribe();
    // The sender exists.
    let _ = changes.wait_for(|servers| servers.version > 0 && has_moved(servers)).await;
}

/// Waits for a time, or for a change of the addresses.
pub async fn pause(addresses: &Addresses, time: std::time::Duration) {
    let mut changes = addresses.subscribe();
    // The outcome does not matter.
    let _ = tokio::time::timeout(time, changes.changed()).await;
}

/// Asks a server for the addresses. It sends all later changes over the connection.
pub async fn ask(
    address: &str,
    security: &Security,
    limits: &Limits,
    client: ClientId,
) -> Result<(Welcome, Connection<Listed, Listed>), ConnectError> {
    let hello = Hello { cluster: ClusterId::ANY, service: Service::Addresses, client, incarnation: None };
    connect(address, security, limits, hello).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(version: u64, ranks: &[(&str, u64)]) -> ServerMap {
        ServerMap {
            version,
            ranks: ranks.iter().map(|(address, _)| (*address).into()).collect(),
            incarnations: ranks.iter().map(|(_, incarnation)| *incarnation).collect(),
            ..ServerMap::NONE
        }
    }

    #[test]
    fn newer_addresses_replace_older_ones() {
        let addresses = Addresses::new(ServerMap::NONE);
        for (version, known) in [(3, 3), (2, 3), (3, 3), (5, 5)] {
            learn(&addresses, &servers(version, &[("a:1", version)]));
            assert_eq!(addresses.borrow().version, known);
        }
    }

    #[test]
    fn server_that_has_not_heard_of_a_rank_takes_none_away() {
        let addresses = Addresses::new(ServerMap::NONE);
        for (ranks, known) in [(2, 2), (3, 3), (2, 3), (3, 3), (4, 4)] {
            learn(&addresses, &servers(0, &vec![("a:1", 0); ranks]));
            assert_eq!(addresses.borrow().ranks.len(), known);
        }
    }

    #[tokio::test]
    async fn rank_moves_with_address_or_incarnation() {
        let addresses = Addresses::new(servers(1, &[("a:1", 4), ("", 2)]));
        let moves = async |rank, address, incarnation| {
            let moved = moved(&addresses, Rank(rank), Some(address), incarnation);
            tokio::time::timeout(std::time::Duration::from_millis(20), moved).await.is_ok()
        };
        assert!(!moves(0, "a:1", Some(4)).await);
        assert!(!moves(0, "a:1", Some(5)).await, "the list is older than the connection");
        assert!(!moves(0, "a:1", None).await);
        assert!(moves(0, "a:1", Some(3)).await);
        assert!(moves(0, "b:1", None).await);
        assert!(!moves(1, "b:1", None).await, "nobody has it yet");
        assert!(!moves(9, "b:1", None).await);
    }
}
