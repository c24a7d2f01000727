//! Seals the capabilities in replies to clients, which use them at data servers, and has data
//! servers stop serving sessions that have ended.

use std::sync::Arc;

use espalier_meta::{Input, IoDone, IoId};
use espalier_net::SealKey;
use espalier_proto::{ClientId, Errno, Reply, ServerId};
use espalier_store::Store;

use super::machine::{Inner, Server};
use crate::data::answers;
use crate::disk::logged;

/// Issues capabilities.
pub struct Sealer {
    /// `None`: clients do not access data servers.
    pub key: Option<SealKey>,
    /// The issuing server, and its incarnation.
    pub number: ServerId,
    pub incarnation: u64,
}

impl Server {
    /// Seals the capability in a reply. Without a key the client must access data servers through
    /// this server. A data pool checks the client's own key.
    pub(super) fn seal(&self, inner: &Inner, to: ClientId, reply: &mut Reply) {
        let is_for_pool = matches!(reply, Reply::Delegated(Some(given)) if given.layout.is_none());
        let Some(capability) = reply.capability() else { return };
        let Sealer { key, number, incarnation } = &self.sealer;
        (capability.server, capability.incarnation) = (*number, *incarnation);
        if is_for_pool {
            return;
        }
        if let (Some(key), Some(peer)) = (key, inner.peers.get(&to)) {
            peer.guest.holder.seal(capability, key);
        } else if let Reply::Delegated(given) = reply {
            *given = None;
        }
    }

    /// Ends the access of clients to data pool and data servers, which get the valid sessions; the
    /// machine is informed when all is done.
    pub(super) fn admit(&self, id: IoId, (below, live): (u64, Vec<u64>), ending: Vec<ClientId>) {
        let Some(server) = self.own_handle.upgrade() else { return };
        let pending_replies =
            self.striper.as_ref().map_or_else(Vec::new, |striper| striper.servers.admit(below, live));
        self.runtime.spawn(async move {
            let result = answers(pending_replies).await.into_iter().find_map(Result::err);
            let fencing = Arc::clone(&server);
            let fence = move || fencing.background_work.disk.store.fence_clients(&ending).map_err(logged);
            let fenced = tokio::task::spawn_blocking(fence).await.unwrap_or(Err(Errno::EIO));
            let result = result.map_or(fenced.map(|()| IoDone::Admitted), Err);
            server.feed(Input::Done { id, result });
        });
    }
}
