//! What a metadata server lets clients do at data servers.

use espalier_meta::{Input, IoDone, IoId};
use espalier_net::SealKey;
use espalier_proto::{ClientId, Delegation, ServerId};

use super::machine::{Inner, Server};
use super::striped::Striped;
use crate::data::answers;

/// Makes capabilities good.
pub struct Sealer {
    pub key: SealKey,
    /// Who gives them, and tells one start of it from the next.
    pub number: ServerId,
    pub incarnation: u64,
}

impl Server {
    /// What the machine gives to a client, sealed for it; `None`: it has to ask here.
    pub(super) fn sealed(
        &self,
        inner: &Inner,
        to: ClientId,
        given: Option<Box<Delegation>>,
    ) -> Option<Box<Delegation>> {
        let (mut given, sealer, peer) = (given?, self.sealer.as_ref()?, inner.peers.get(&to)?);
        (given.capability.server, given.capability.incarnation) = (sealer.number, sealer.incarnation);
        peer.guest.holder.seal(&mut given.capability, &sealer.key);
        Some(given)
    }

    /// Has data servers told which clients' sessions go on. The machine hears of it when all know.
    pub(super) fn admit(&self, id: IoId, below: u64, live: Vec<u64>) {
        let Some(Striped { striper, runtime, server }) = &self.striped else { return };
        let Some(server) = server.upgrade() else { return };
        let asked = striper.servers.admit(below, live);
        runtime.spawn(async move {
            let result = answers(asked).await.into_iter().find_map(Result::err);
            let result = result.map_or(Ok(IoDone::Admitted), Err);
            server.feed(Input::Done { id, result });
        });
    }
}
