//! Traces of a metadata server's operations.

use espalier_meta::{IoId, PeerMessage, StreamRequest};
use espalier_proto::{ClientId, Rank};
use espalier_timeline::{Id, Layer, NodeId};

use crate::time::Nanos;
use crate::world::fabric::Fabric;
use crate::world::spans::{id_of, layered, place_of};

use super::{DiskJob, SimServer};

impl SimServer {
    pub(super) fn place(&self) -> NodeId {
        NodeId::Rank(self.rank.0)
    }

    pub(super) fn served_to(&self, client: ClientId, number: u64) -> Id {
        Id { from: place_of(client), to: self.place(), number }
    }

    pub(super) fn trace_actions(&self, fabric: &mut Fabric<'_>, rank: Rank, message: &PeerMessage) {
        let cause = || match message {
            PeerMessage::Ask { id, .. } => self.meta()?.cause_of_question(*id).map(|it| id_of(it, self.rank)),
            _ => None,
        };
        fabric.trace_peer((self.rank, rank), message, true, cause);
    }

    /// Operations that wait for an I/O, if traced.
    pub(super) fn causes_of(&self, fabric: &mut Fabric<'_>, id: IoId) -> Vec<Id> {
        let meta = self.meta().filter(|_| fabric.traces());
        let causes = meta.map(|meta| meta.causes_of(id)).unwrap_or_default();
        causes.into_iter().map(|cause| id_of(cause, self.rank)).collect()
    }

    /// Traces a completed disk operation.
    pub(super) fn trace_stored(&self, fabric: &mut Fabric<'_>, since: Nanos, job: &DiskJob) {
        if !fabric.traces() {
            return;
        }
        let job = match job {
            DiskJob::OverLimit(job, _) => job,
            job => job,
        };
        let (name, causes) = match job {
            DiskJob::Io(id, io) => (layered(io), self.causes_of(fabric, *id)),
            DiskJob::Journal(id, _) => ((Layer::Disk, "journal sync"), self.causes_of(fabric, *id)),
            DiskJob::Stream(StreamRequest { of: (client, id), .. }) => {
                ((Layer::Store, "stream"), vec![self.served_to(*client, id.0)])
            }
            DiskJob::OverLimit(..) => return,
        };
        fabric.add_span(self.place(), name, causes, since);
    }
}
