//! Direct access of a client to data servers, under capabilities of the metadata server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use espalier_client::{Actions, DataOperation, DataOutcome};
use espalier_proto::{Layout, ServerMap};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Called, Inner, Remote};
use crate::calls::Frontend;
use crate::data::{DataRequester, DataServers, Pass, Stale, Striper};
use crate::servers::Servers;
use crate::tracer::Tracer;

/// Pause before a new capability is requested: a data server may not yet have learnt of the
/// metadata server's restart.
const STALE_PAUSE: Duration = Duration::from_millis(50);

/// The data servers and their connections.
pub struct Direct {
    striper: Arc<Striper>,
    runtime: Handle,
    connections: Mutex<Vec<AbortHandle>>,
}

impl Direct {
    /// Creates it without connections.
    pub fn new(servers: &Servers, tracer: &Arc<Tracer>) -> Self {
        let (security, limits) = (servers.security.clone(), servers.limits.clone());
        let requester = DataRequester::Client(servers.client);
        let data_servers = DataServers::new(Vec::new(), security, limits, requester, Arc::clone(tracer));
        let striper = Arc::new(Striper::new(data_servers));
        Self { striper, runtime: Handle::current(), connections: Mutex::default() }
    }

    pub fn learn(&self, servers: &ServerMap) {
        self.striper.servers.learn(servers.data.clone());
    }

    /// Connects to the data servers of a file.
    fn reach(&self, layout: &Layout) {
        for server in self.striper.servers.unkept(layout.servers()) {
            let striper = Arc::clone(&self.striper);
            let connection = self.runtime.spawn(async move {
                striper.servers.keep_connected(server, |_, _| {}).await;
            });
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.push(connection.abort_handle());
        }
    }

    pub fn is_stuck(&self, layout: &Layout) -> bool {
        !self.striper.servers.are_reached(layout.servers())
    }

    /// Closes all connections.
    pub fn close(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.close();
    }
}

impl<D: Frontend> Remote<D> {
    pub(super) fn ask_data_servers(&self, inner: &mut Inner<Called<D::Ticket>>, asks: Vec<DataOperation>) {
        for DataOperation { number, delegation, work, data, held } in asks {
            let capability = delegation.capability;
            if let Some(line) = inner.lines.get_mut(usize::from(inner.sessions.rank_of(capability.ino).0)) {
                line.messages.data += 1;
            }
            let Some(layout) = delegation.layout.as_ref().map(Arc::clone) else { continue };
            self.direct.reach(&layout);
            let (striper, remote) = (Arc::clone(&self.direct.striper), self.own.clone());
            let call = inner.sessions.call_of_data(number).filter(|_| self.tracer.is_on());
            let cause = call.map(|call| self.tracer.served(self.tracer.place(), call));
            // The task cannot finish before it is registered, because its end needs the lock.
            let task = self.direct.runtime.spawn(async move {
                let pass = Pass { capability, _held: held };
                let result = striper.stream(layout, work, data, Some(&pass), cause.as_slice()).await;
                drop(pass);
                let outcome = match result {
                    Ok(result) => DataOutcome::Done(result),
                    Err(Stale) => {
                        tokio::time::sleep(STALE_PAUSE).await;
                        DataOutcome::Stale
                    }
                };
                if let Some(remote) = remote.upgrade() {
                    remote.data_completed(number, outcome);
                }
            });
            inner.tasks.insert(number, task.abort_handle());
        }
    }

    /// Handles the outcome of an operation on data servers.
    fn data_completed(&self, number: u64, outcome: DataOutcome) {
        let Ok(mut inner) = self.lock() else { return };
        inner.tasks.remove(&number);
        let (mut actions, now) = (Actions::default(), inner.now());
        inner.sessions.data_completed(now, number, outcome, &mut actions);
        self.carry_out(inner, actions);
    }
}
