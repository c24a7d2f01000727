//! A server that hears of ranks that join: first their addresses, then they connect.

use espalier_meta::Input;
use espalier_proto::{FromServer, Rank, ServerMap};

use super::SimServer;
use crate::message::Message;
use crate::world::fabric::Fabric;

impl SimServer {
    /// A running or stopped server gets the addresses of ranks that join, and passes them on to its
    /// clients.
    pub fn hear_of_ranks(&mut self, fabric: &mut Fabric<'_>, ranks: u16) {
        if usize::from(ranks) <= self.servers.ranks.len() {
            return;
        }
        self.servers.ranks = vec![String::new(); ranks.into()];
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
