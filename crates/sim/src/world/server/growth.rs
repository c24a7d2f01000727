//! A server that hears of ranks that join, first their addresses, then they connect; and of ranks
//! that another server has taken over.

use espalier_meta::Input;
use espalier_proto::{FromServer, Rank, ServerMap};

use super::SimServer;
use crate::message::Message;
use crate::node::Node;
use crate::world::fabric::Fabric;

/// The server that has a rank, as addresses say; `None`: the one that had it first.
pub fn host_of(servers: &ServerMap, rank: Rank) -> Option<Node> {
    let address = servers.ranks.get(usize::from(rank.0))?;
    address.parse().ok().map(Node)
}

impl SimServer {
    /// A running or stopped server gets the addresses of ranks that join, and passes them on to its
    /// clients.
    pub fn hear_of_ranks(&mut self, fabric: &mut Fabric<'_>, ranks: u16) {
        if usize::from(ranks) <= self.servers.ranks.len() {
            return;
        }
        self.servers.ranks.resize(ranks.into(), String::new());
        self.announce(fabric);
    }

    /// A running or stopped server gets the addresses of ranks that another server has taken over,
    /// and passes them on to its clients.
    pub fn hear_of_hosts(&mut self, fabric: &mut Fabric<'_>) {
        let ranks = self.servers.ranks.len().max(self.config.ranks.into());
        self.servers.ranks.resize(ranks, String::new());
        for (rank, address) in self.servers.ranks.iter_mut().enumerate() {
            let host = fabric.hosts[rank];
            if host.0 as usize != rank {
                *address = host.0.to_string();
            }
        }
        self.announce(fabric);
    }

    /// Sends the addresses of all ranks to the clients.
    fn announce(&self, fabric: &mut Fabric<'_>) {
        let mut clients: Vec<_> = self.clients.iter().map(|(client, wire)| (*client, *wire)).collect();
        clients.sort_unstable_by_key(|(client, _)| *client);
        for (_, wire) in clients {
            let servers = ServerMap { ranks: self.servers.ranks.clone(), ..ServerMap::NONE };
            fabric.send(wire, self.node, Message::FromServer(FromServer::Servers(servers)));
        }
    }

    /// True if this server has heard of a rank.
    pub(super) fn may_connect(&self, rank: Rank) -> bool {
        rank.0 < self.config.ranks || usize::from(rank.0) < self.servers.ranks.len()
    }

    /// A rank has connected, which has joined if it was unknown. Restarts do not forget it.
    pub(super) fn rank_connected(&mut self, fabric: &mut Fabric<'_>, rank: Rank) {
        if rank.0 >= self.config.ranks {
            self.config.ranks = rank.0 + 1;
            self.input(fabric, Input::Ranks { ranks: rank.0 + 1 });
        }
    }
}
