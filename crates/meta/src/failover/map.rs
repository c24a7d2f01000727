//! The cluster map: which server holds which rank.

use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{Rank, ServerMap};
use serde::{Deserialize, Serialize};

/// Identifies one start of a server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// Holds no rank and waits for one.
    Standby,
    /// Holds ranks.
    Active,
    /// Hands over its ranks and ends.
    Draining,
}

/// A server's entry in the cluster map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    pub instance: InstanceId,
    /// Number of the server in the cluster, which all its instances have.
    pub number: u16,
    /// Address for clients and other servers, as `HOST:PORT`.
    pub address: String,
    /// Name of the instance at the store, for fencing.
    pub store_client: String,
    pub state: ServerState,
    /// As a standby, it follows the journals of ranks that others serve.
    pub standby_replay: bool,
    /// Raised with each renewal of the server's lease.
    pub heartbeat: u64,
}

/// A rank's entry in the cluster map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEntry {
    pub holder: Option<InstanceId>,
    /// Raised with each change of the holder; clients know a holder by it.
    pub incarnation: u64,
    /// The holder has opened the rank's store and answers.
    pub serving: bool,
    /// Earlier holders, by their names at the store, to fence before the rank's store is opened.
    pub unfenced: Vec<String>,
}

/// The cluster map: one versioned object of the shared store, changed by compare-and-swap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    pub servers: Vec<ServerEntry>,
    /// By rank.
    pub ranks: Vec<RankEntry>,
}

impl ClusterMap {
    /// The map of a new cluster: no server has started.
    pub fn new(ranks: u16) -> Self {
        Self { servers: Vec::new(), ranks: (0..ranks).map(|_| RankEntry::default()).collect() }
    }

    pub fn server(&self, instance: InstanceId) -> Option<&ServerEntry> {
        self.servers.iter().find(|server| server.instance == instance)
    }

    pub fn rank(&self, rank: Rank) -> Option<&RankEntry> {
        self.ranks.get(usize::from(rank.0))
    }

    /// The ranks that an instance holds.
    pub fn held_by(&self, instance: InstanceId) -> impl Iterator<Item = Rank> {
        let numbered = (0..).map(Rank).zip(&self.ranks);
        numbered.filter(move |(_, entry)| entry.holder == Some(instance)).map(|(rank, _)| rank)
    }

    /// The ranks whose journals a server follows: warm standbys share the ranks that others hold.
    pub fn followed_by(&self, instance: InstanceId) -> impl Iterator<Item = Rank> {
        let is_warm = |server: &&ServerEntry| server.standby_replay && server.state == ServerState::Standby;
        let mut standbys: Vec<_> =
            self.servers.iter().filter(is_warm).map(|server| (server.number, server.instance)).collect();
        standbys.sort_unstable();
        let place = standbys.iter().position(|(_, standby)| *standby == instance);
        let held = (0..).map(Rank).zip(&self.ranks).filter(|(_, entry)| entry.holder.is_some());
        let count = standbys.len().max(1);
        held.filter(move |(rank, _)| Some(usize::from(rank.0) % count) == place).map(|(rank, _)| rank)
    }

    /// True if a server hands over its ranks.
    pub fn is_draining(&self) -> bool {
        self.servers.iter().any(|server| server.state == ServerState::Draining)
    }

    /// Removes a server that has ended or must end. Its ranks are free, and their next holders
    /// fence it first.
    pub(super) fn remove(&mut self, instance: InstanceId) {
        let Some(at) = self.servers.iter().position(|server| server.instance == instance) else { return };
        let removed = self.servers.remove(at);
        for entry in self.ranks.iter_mut().filter(|entry| entry.holder == Some(instance)) {
            (entry.holder, entry.serving) = (None, false);
            entry.unfenced.push(removed.store_client.clone());
        }
    }

    /// The map as clients and other servers get it. `version`: of the cluster map.
    pub fn addresses(&self, version: u64) -> ServerMap {
        let holder = |entry: &RankEntry| entry.holder.and_then(|holder| self.server(holder));
        let address = |entry| holder(entry).map(|server| server.address.clone()).unwrap_or_default();
        // Standbys have the least to do.
        let mut servers: Vec<_> = self.servers.iter().collect();
        servers.sort_by_key(|server| (server.state != ServerState::Standby, server.number));
        ServerMap {
            version,
            ranks: self.ranks.iter().map(address).collect(),
            incarnations: self.ranks.iter().map(|entry| entry.incarnation).collect(),
            meta: servers.into_iter().map(|server| server.address.clone()).collect(),
            data: Vec::new(),
        }
    }
}
