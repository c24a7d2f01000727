//! Operations of a client on data servers.

use std::sync::Arc;

use espalier_client::{DataOperation, DataOutcome};
use espalier_proto::{Errno, Reply};

use super::{DataTicket, SimClient};
use crate::world::data_calls::{DataCallEvent, DataClient};
use crate::world::fabric::Fabric;

impl SimClient {
    pub(super) fn ask_data_servers(&mut self, fabric: &mut Fabric<'_>, ask: DataOperation) {
        let Some(layout) = ask.delegation.layout.as_ref().map(Arc::clone) else {
            return self.ask_data_pool(fabric, ask);
        };
        let DataOperation { number, delegation, work, data, held } = ask;
        for server in layout.servers() {
            self.data_calls.reach(fabric, DataClient::Client(self.id), *server);
        }
        let capability = Some(delegation.capability);
        let cause = self.sessions.call_of_data(number).filter(|_| fabric.traces());
        let causes = cause.map(|call| self.called(call)).into_iter().collect();
        let purpose = (number, held);
        if let Some(reached) =
            self.data_calls.stream(fabric, purpose, layout, (work, data), capability, causes)
        {
            self.reached_data(fabric, reached);
        }
    }

    /// Handles a result from data servers.
    pub(super) fn reached_data(&mut self, fabric: &mut Fabric<'_>, reached: DataCallEvent<DataTicket>) {
        if let DataCallEvent::Streamed { purpose: (number, held), result } = reached {
            self.data_completed(fabric, (number, held), result);
        }
    }

    /// Completes an operation of the sessions; `None`: it needs another delegation.
    pub(super) fn data_completed(
        &mut self,
        fabric: &mut Fabric<'_>,
        (number, held): DataTicket,
        result: Option<Result<Reply, Errno>>,
    ) {
        drop(held);
        let outcome = result.map_or(DataOutcome::Stale, DataOutcome::Done);
        let (now, fails) = (self.now(fabric), matches!(outcome, DataOutcome::Done(Err(_))));
        let call = self.sessions.call_of_data(number);
        let acknowledged_writeback = call.filter(|call| self.sessions.is_acknowledged(*call));
        self.sessions.data_completed(now, number, outcome, &mut self.actions);
        if let Some(call) = acknowledged_writeback.filter(|call| !self.sessions.is_acknowledged(*call)) {
            fabric.observer.write_behind_completed(fabric.now, self.index, call, fails);
        }
    }
}
