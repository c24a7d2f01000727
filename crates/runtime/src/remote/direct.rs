//! Direct access of a client to data servers or to the data pool, under capabilities of the
//! metadata server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use espalier_client::{Actions, DataOperation, DataOutcome, Work};
use espalier_proto::{Capability, Layout, Rank, ServerMap};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Called, Inner, Remote};
use crate::calls::Frontend;
use crate::data::{
    self, ClientPool, DataRequester, DataServers, Pass, PoolError, PoolStreams, Stale, Striper,
};
use crate::servers::Servers;
use crate::tracer::Tracer;

/// Pause before a new capability is requested: a data server may not yet have learnt of the
/// metadata server's restart.
const STALE_PAUSE: Duration = Duration::from_millis(50);

/// The data servers and their connections.
pub struct Direct {
    striper: Arc<Striper>,
    /// The data pool, if this client uses it.
    pool: Option<Arc<ClientPool>>,
    runtime: Handle,
    connections: Mutex<Vec<AbortHandle>>,
}

impl Direct {
    /// Creates it without connections.
    pub fn new(servers: &Servers, pool: Option<ClientPool>, tracer: &Arc<Tracer>) -> Self {
        let (security, limits) = (servers.security.clone(), servers.limits.clone());
        let requester = DataRequester::Client(servers.client);
        let data_servers = DataServers::new(Vec::new(), security, limits, requester, Arc::clone(tracer));
        let striper = Arc::new(Striper::new(data_servers));
        Self { striper, pool: pool.map(Arc::new), runtime: Handle::current(), connections: Mutex::default() }
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

    /// Ends all access.
    pub async fn close(&self) {
        self.disconnect();
        if let Some(pool) = self.pool.clone() {
            // Its failure is logged.
            let _ = self.runtime.spawn_blocking(move || pool.close()).await;
        }
    }

    fn disconnect(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl<D: Frontend> Remote<D> {
    pub(super) fn ask_data_servers(&self, inner: &mut Inner<Called<D::Ticket>>, asks: Vec<DataOperation>) {
        for DataOperation { number, delegation, work, data, held } in asks {
            let capability = delegation.capability;
            if let Some(line) = inner.lines.get_mut(usize::from(inner.sessions.rank_of(capability.ino).0)) {
                line.messages.data += 1;
            }
            let Some(layout) = delegation.layout.clone() else {
                let task = self.ask_pool(number, &capability, work, data, held);
                inner.tasks.extend(task.map(|task| (number, task)));
                continue;
            };
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

    /// Executes an operation on the data pool. A thread waits for the cluster.
    fn ask_pool(
        &self,
        number: u64,
        capability: &Capability,
        work: Work,
        data: Bytes,
        held: Arc<()>,
    ) -> Option<AbortHandle> {
        let (Some(pool), Work::Stream(io)) = (self.direct.pool.clone(), work) else { return None };
        // Streams are in the store of the rank that has issued the capability.
        let (rank, remote) = (Rank(capability.server.0), self.own.clone());
        // The connection for which the capability was given, also if it is fenced meanwhile.
        let streams = pool.streams();
        let task = self.direct.runtime.spawn_blocking(move || {
            let outcome = match data::execute(&streams, rank, &io, &data) {
                Ok(reply) => DataOutcome::Done(Ok(reply)),
                Err(PoolError::Failed(errno)) => DataOutcome::Done(Err(errno)),
                Err(PoolError::Fenced) => DataOutcome::Stale,
            };
            drop(held);
            let Some(remote) = remote.upgrade() else { return };
            if matches!(outcome, DataOutcome::Stale) {
                remote.reconnect_pool(&pool, &streams);
            }
            remote.data_completed(number, outcome);
        });
        Some(task.abort_handle())
    }

    /// Connects to the data pool anew. If that fails, bytes pass through the servers. No capability
    /// from before is used with the new address.
    fn reconnect_pool(&self, pool: &ClientPool, fenced: &Arc<PoolStreams>) {
        self.cached(|sessions, _| sessions.set_data_pool(false));
        match pool.reconnect(fenced) {
            Ok(()) => drop(self.cached(|sessions, _| sessions.set_data_pool(true))),
            Err(error) => tracing::error!(
                %error,
                "fenced from the data pool: big files pass through the servers until the next mount"
            ),
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
