//! The end of a server's process.

use crate::storage::{Loss, StorageError};
use crate::time::Nanos;
use crate::world::data_calls::DataCalls;
use crate::world::fabric::Fabric;
use crate::world::line::Line;
use crate::world::server::SimServer;

impl SimServer {
    /// Crashes the server. Returns the time that recovery will need to read the journal.
    ///
    /// # Errors
    /// The journal cannot be opened.
    pub fn crash(&mut self, fabric: &mut Fabric<'_>, loss: Loss) -> Result<Nanos, StorageError> {
        self.end(fabric, loss, loss)
    }

    /// As [`Self::crash`]. `observed`: the loss as observers see it.
    ///
    /// # Errors
    /// As for [`Self::crash`].
    pub fn end(
        &mut self,
        fabric: &mut Fabric<'_>,
        loss: Loss,
        observed: Loss,
    ) -> Result<Nanos, StorageError> {
        let Some(storage) = &self.storage else { return Ok(Nanos::ZERO) };
        let (found, left) = storage.crash(loss)?;
        let replay = self.disk.time(found.to_replay());
        self.storage = Some(found);
        self.forget(fabric.now);
        fabric.observer.crashed(fabric.now, self.node, observed, Some(left));
        fabric.drop_node(self.node, observed != Loss::Process);
        Ok(replay)
    }

    /// Forgets everything that is in memory.
    pub(super) fn forget(&mut self, now: Nanos) {
        self.session_layer = None;
        self.cpu.clear(now);
        self.device.clear(now);
        self.clients.clear();
        self.wires.clear();
        self.greeted.clear();
        self.peers.fill(Line::default());
        self.switches.clear();
        self.data_calls = DataCalls::new((self.node, self.place()), self.numbers.first_data(), true);
        self.start += 1;
    }
}
