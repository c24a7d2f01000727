//! A client's own access to the data pool of its cluster, which has the bytes of big files
//! (lensing 5.4: data does not pass through metadata servers).

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use espalier_proto::{DataPool, Errno, RangeOp, Rank, Reply, StreamIo};
use espalier_store::{Engine, Rados, RadosAddress, SharedStreams, StoreError};

use crate::disk::logged;
use crate::error::Error;
use crate::location::RadosAccess;

/// The pool as a client uses it. All methods wait for the cluster.
pub struct ClientPool {
    pool: DataPool,
    access: RadosAccess,
    streams: Mutex<Arc<PoolStreams>>,
}

pub type PoolStreams = SharedStreams<Rados>;

impl ClientPool {
    /// Connects, and registers the client.
    ///
    /// # Errors
    /// The pool cannot be reached or written; it is another one than the servers use.
    pub fn open(pool: DataPool, access: RadosAccess) -> Result<Self, Error> {
        let streams = Mutex::new(connect(&pool, &access)?);
        Ok(Self { pool, access, streams })
    }

    /// The pool over the present connection.
    pub fn streams(&self) -> Arc<PoolStreams> {
        Arc::clone(&self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Connects anew, with another address, after a server has fenced the client: its session had
    /// expired. `fenced`: the connection that was fenced. No effect if another call has replaced
    /// it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn reconnect(&self, fenced: &Arc<PoolStreams>) -> Result<(), Error> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&streams, fenced) {
            *streams = connect(&self.pool, &self.access)?;
        }
        Ok(())
    }

    /// Ends the registration. Nothing may be in progress.
    pub fn close(&self) {
        if let Err(error) = self.streams().unregister(self.pool.client) {
            tracing::debug!(%error, "cannot end the registration in the data pool");
        }
    }
}

fn connect(pool: &DataPool, access: &RadosAccess) -> Result<Arc<PoolStreams>, Error> {
    let DataPool { name, number, namespace, client } = pool.clone();
    let (conf, user) = (access.conf.clone(), access.user.clone().unwrap_or_else(|| "admin".into()));
    let engine = Rados::connect(&RadosAddress { pool: name, namespace, conf, user })?;
    let found = engine.pool();
    if found.number != number {
        return Err(Error::OtherCluster { pool: found.name, found: found.number, expected: number });
    }
    let streams = SharedStreams::new(engine);
    streams.register(client)?;
    Ok(Arc::new(streams))
}

/// Why an operation on the pool has not been executed, or not completely.
#[derive(Debug)]
pub enum PoolError {
    /// The client has been fenced.
    Fenced,
    Failed(Errno),
}

/// Reads or writes a stream. `data`: the bytes to write.
///
/// # Errors
/// [`PoolError`]; failures are logged here.
pub fn execute(streams: &PoolStreams, rank: Rank, io: &StreamIo, data: &[u8]) -> Result<Reply, PoolError> {
    let StreamIo { ino, op, .. } = *io;
    let result = match op {
        RangeOp::Read { offset, size } => {
            let mut bytes = vec![0; size as usize];
            streams.read(rank, ino, offset, &mut bytes).map(|read| {
                bytes.truncate(read);
                Reply::Bytes(Bytes::from(bytes))
            })
        }
        RangeOp::Write { .. } | RangeOp::WriteList { .. } => {
            let pieces = op.pieces(data).map_err(PoolError::Failed)?;
            pieces
                .into_iter()
                .try_for_each(|(offset, piece)| streams.write(rank, ino, offset, piece))
                .map(|()| Reply::Written(data.len() as u32))
        }
        RangeOp::Allocate { .. } | RangeOp::Seek { .. } | RangeOp::Copy { .. } => {
            return Err(PoolError::Failed(Errno::EOPNOTSUPP));
        }
    };
    result.map_err(|error| match error {
        StoreError::Engine(error) if error.is(&espalier_store::EngineFailure::Fenced) => PoolError::Fenced,
        error => PoolError::Failed(logged(error)),
    })
}
