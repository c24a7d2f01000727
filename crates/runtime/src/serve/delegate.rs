//! Seals the capabilities in replies to clients, which use them at data servers, and has data
//! servers stop serving sessions that have ended.

use espalier_meta::{Input, IoDone, IoId};
use espalier_net::SealKey;
use espalier_proto::{ClientId, Reply, ServerId};

use super::machine::{Inner, Server};
use crate::data::answers;

/// Seals capabilities.
pub struct Sealer {
    pub key: SealKey,
    /// The issuing server, and its incarnation.
    pub number: ServerId,
    pub incarnation: u64,
}

impl Server {
    /// Seals the capability in a reply; without a sealer the client must access data through this
    /// server.
    pub(super) fn seal(&self, inner: &Inner, to: ClientId, reply: &mut Reply) {
        let Some(capability) = reply.capability() else { return };
        if let (Some(sealer), Some(peer)) = (&self.sealer, inner.peers.get(&to)) {
            (capability.server, capability.incarnation) = (sealer.number, sealer.incarnation);
            peer.guest.holder.seal(capability, &sealer.key);
        } else if let Reply::Delegated(given) = reply {
            *given = None;
        }
    }

    /// Sends the valid sessions to the data servers; the machine is informed when all have
    /// acknowledged.
    pub(super) fn admit(&self, id: IoId, below: u64, live: Vec<u64>) {
        let (Some(striper), Some(server)) = (&self.striper, self.own_handle.upgrade()) else { return };
        let pending_replies = striper.servers.admit(below, live);
        self.runtime.spawn(async move {
            let result = answers(pending_replies).await.into_iter().find_map(Result::err);
            let result = result.map_or(Ok(IoDone::Admitted), Err);
            server.feed(Input::Done { id, result });
        });
    }
}
