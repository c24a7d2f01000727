//! A server that hears of ranks that have joined.

use espalier_meta::Input;
use espalier_proto::{FromServer, ServerMap};

use super::SimServer;
use crate::message::Message;
use crate::world::fabric::Fabric;

impl SimServer {
    /// A running or stopped server hears of the ranks that have joined, and notifies its clients.
    pub fn hear_of_ranks(&mut self, fabric: &mut Fabric<'_>, ranks: u16) {
        if ranks <= self.config.ranks {
            return;
        }
        self.config.ranks = ranks;
        self.servers.ranks = vec![String::new(); ranks.into()];
        let mut clients: Vec<_> = self.clients.iter().map(|(client, wire)| (*client, *wire)).collect();
        clients.sort_unstable_by_key(|(client, _)| *client);
        for (_, wire) in clients {
            let servers = ServerMap { ranks: self.servers.ranks.clone(), ..ServerMap::NONE };
            fabric.send(wire, self.node, Message::FromServer(FromServer::Servers(servers)));
        }
        self.input(fabric, Input::Ranks { ranks });
    }
}
