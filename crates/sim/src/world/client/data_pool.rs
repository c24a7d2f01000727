//! Clients that read and write the data pool of a shared store themselves.
//!
//! A request takes effect at an instant between its beginning and its reply, also if its client has
//! crashed meanwhile, or no server reaches the client: only fencing stops it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use espalier_client::{DataOperation, Work};
use espalier_proto::{ClientId, Errno, RangeOp, Rank, Reply, StreamIo};
use espalier_store::{EngineFailure, MemoryEngine, SharedStreams, StoreError};

use super::SimClient;
use crate::disk::{DiskModel, DiskRequest};
use crate::storage::FailedOsds;
use crate::time::Nanos;
use crate::world::World;
use crate::world::event::SimEvent;
use crate::world::fabric::Fabric;

/// The pool under an address of its own.
type PoolHandle = Arc<SharedStreams<MemoryEngine>>;

/// Pause before another attempt to open the pool.
const PAUSE: Nanos = Nanos(100_000_000);

/// A client's use of the pool.
pub struct DirectAccess {
    latency: DiskModel,
    /// `None`: the pool is being opened.
    handle: Option<PoolHandle>,
}

/// A request of a client to the pool.
pub struct PoolRequest {
    purpose: PoolPurpose,
    /// Has the address under which the request was made.
    handle: PoolHandle,
    /// The request has waited for these OSDs up to its time limit.
    over_limit: Option<FailedOsds>,
}

#[derive(Debug)]
enum PoolPurpose {
    /// Record the address, so that servers can fence it.
    Register,
    Operate {
        number: u64,
        rank: Rank,
        io: StreamIo,
        data: Bytes,
        /// As in [`DataOperation`].
        held: Arc<()>,
    },
}

impl fmt::Debug for PoolRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolRequest").field(&self.purpose).finish_non_exhaustive()
    }
}

/// Operations of all clients on the pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolCounts {
    pub executed: u64,
    /// Refused, because their clients were fenced.
    pub refused: u64,
}

impl DirectAccess {
    pub fn new(latency: DiskModel) -> Self {
        Self { latency, handle: None }
    }

    fn send(&mut self, fabric: &mut Fabric<'_>, client: u32, request: PoolRequest) {
        let bytes = match &request.purpose {
            PoolPurpose::Register => 0,
            PoolPurpose::Operate { data, .. } => data.len(),
        };
        let time = self.latency.time(DiskRequest::Transfer(bytes));
        fabric.after(time, SimEvent::PoolRequest { client, request });
    }
}

impl PoolRequest {
    /// The first object that it concerns.
    fn object(&self, client: ClientId) -> String {
        match &self.purpose {
            PoolPurpose::Register => format!("client.{:x}", client.0),
            PoolPurpose::Operate { rank, io, .. } => format!("{rank}.s.{:016x}.0", io.ino.0),
        }
    }

    fn execute(&self, client: ClientId) -> Result<Reply, StoreError> {
        match &self.purpose {
            PoolPurpose::Register => self.handle.register(client).map(|()| Reply::Done),
            PoolPurpose::Operate { rank, io, data, .. } => match io.op {
                RangeOp::Read { offset, size } => {
                    let mut bytes = vec![0; size as usize];
                    let read = self.handle.read(*rank, io.ino, offset, &mut bytes)?;
                    bytes.truncate(read);
                    Ok(Reply::Bytes(bytes.into()))
                }
                RangeOp::Write { offset, length } => {
                    self.handle.write(*rank, io.ino, offset, data)?;
                    Ok(Reply::Written(length))
                }
                _ => Err(StoreError::Refused(Errno::EIO)),
            },
        }
    }
}

impl World<'_> {
    /// A client opens the pool under a new address, and registers that.
    pub(in crate::world) fn open_pool(&mut self, client: u32) {
        let (index, client) = (client, &mut self.clients[client as usize]);
        let Some(direct) = client.direct.as_mut().filter(|_| client.is_up) else { return };
        match self.failover.as_ref().and_then(|cluster| cluster.open_data_pool()) {
            Some(engine) => {
                let handle = Arc::new(SharedStreams::new(engine));
                let request = PoolRequest { purpose: PoolPurpose::Register, handle, over_limit: None };
                direct.send(&mut self.fabric, index, request);
            }
            None => self.fabric.after(PAUSE, SimEvent::OpenPool { client: index }),
        }
    }

    /// A request reaches the pool, also if its client has crashed.
    pub(in crate::world) fn pool_request(&mut self, client: u32, request: PoolRequest) {
        let id = self.clients[client as usize].id;
        let Some(cluster) = &mut self.failover else { return };
        let waits = request.over_limit.is_none();
        if let Some(until) = cluster.pool_reached(self.fabric.now, &request.object(id)).filter(|_| waits) {
            let (at, over_limit) = match self.over_limit(until, false) {
                Some((end, osds)) => (end, Some(osds)),
                None => (until, None),
            };
            let request = PoolRequest { over_limit, ..request };
            return self.fabric.queue.add(at, SimEvent::PoolRequest { client, request });
        }
        let sim_client = &mut self.clients[client as usize];
        cluster.set_now(sim_client.clock.time(self.fabric.now));
        cluster.set_time_out(request.over_limit);
        let executed = request.execute(id);
        cluster.set_time_out(None);
        let result = match executed {
            Err(StoreError::Engine(error)) if error.is(&EngineFailure::Fenced) => None,
            outcome => Some(outcome.map_err(|error| error.errno())),
        };
        if let PoolPurpose::Operate { .. } = request.purpose {
            let counts = &mut self.pool_counts;
            *(if result.is_some() { &mut counts.executed } else { &mut counts.refused }) += 1;
        }
        if let Some(direct) = &mut sim_client.direct {
            let time = direct.latency.time(DiskRequest::Sync(0));
            self.fabric.after(time, SimEvent::PoolReplied { client, request, result });
        }
    }
}

impl SimClient {
    /// Starts an operation on the pool.
    pub(super) fn ask_data_pool(&mut self, fabric: &mut Fabric<'_>, operation: DataOperation) {
        let DataOperation { number, delegation, work, data, held } = operation;
        let rank = Rank(delegation.capability.server.0);
        let handle = self.direct.as_ref().and_then(|direct| direct.handle.clone());
        let (Work::Stream(io), Some(direct), Some(handle)) = (work, &mut self.direct, handle) else {
            return self.data_completed(fabric, (number, held), None);
        };
        let purpose = PoolPurpose::Operate { number, rank, io, data, held };
        direct.send(fabric, self.index, PoolRequest { purpose, handle, over_limit: None });
    }

    /// Handles the pool's reply; `None`: the address is fenced.
    pub fn pool_replied(
        &mut self,
        fabric: &mut Fabric<'_>,
        request: PoolRequest,
        result: Option<Result<Reply, Errno>>,
    ) {
        let Some(direct) = self.direct.as_mut().filter(|_| self.is_up) else { return };
        let PoolRequest { purpose, handle, .. } = request;
        let is_present = direct.handle.as_ref().is_some_and(|present| Arc::ptr_eq(present, &handle));
        match purpose {
            PoolPurpose::Register if matches!(result, Some(Ok(_))) => {
                direct.handle = Some(handle);
                self.sessions.set_data_pool(true);
            }
            PoolPurpose::Register => fabric.after(PAUSE, SimEvent::OpenPool { client: self.index }),
            PoolPurpose::Operate { number, held, .. } => {
                if result.is_none() && is_present {
                    direct.handle = None;
                    self.sessions.set_data_pool(false);
                    fabric.after(Nanos::ZERO, SimEvent::OpenPool { client: self.index });
                }
                self.data_completed(fabric, (number, held), result);
            }
        }
        self.advance(fabric);
    }
}
