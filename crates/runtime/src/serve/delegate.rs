//! What a metadata server lets clients do at data servers.

use espalier_meta::{Input, IoDone, IoId};
use espalier_net::SealKey;
use espalier_proto::{ClientId, Reply, ServerId};

use super::machine::{Inner, Server};
use crate::data::answers;

/// Makes capabilities good.
pub struct Sealer {
    pub key: SealKey,
    /// Who gives them, and tells one start of it from the next.
    pub number: ServerId,
    pub incarnation: u64,
}

impl Server {
    /// Seals what the machine gives to a client. One that is given none has to ask here.
    pub(super) fn seal(&self, inner: &Inner, to: ClientId, reply: &mut Reply) {
        let Some(capability) = reply.capability() else { return };
        if let (Some(sealer), Some(peer)) = (&self.sealer, inner.peers.get(&to)) {
            (capability.server, capability.incarnation) = (sealer.number, sealer.incarnation);
            peer.guest.holder.seal(capability, &sealer.key);
        } else if let Reply::Delegated(given) = reply {
            *given = None;
        }
    }

    /// Has data servers told which clients' sessions go on. The machine hears of it when all know.
    pub(super) fn admit(&self, id: IoId, below: u64, live: Vec<u64>) {
        let (Some(striper), Some(server)) = (&self.striper, self.itself.upgrade()) else { return };
        let asked = striper.servers.admit(below, live);
        self.runtime.spawn(async move {
            let result = answers(asked).await.into_iter().find_map(Result::err);
            let result = result.map_or(Ok(IoDone::Admitted), Err);
            server.feed(Input::Done { id, result });
        });
    }
}
