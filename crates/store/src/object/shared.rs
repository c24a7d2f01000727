//! Streams of a data pool, as clients use them that have a key for the pool. The servers use them
//! at the same time.

use espalier_proto::{ClientId, Ino, Rank};

use super::names::Names;
use super::open::OpenStreams;
use super::stream::{Stream, StreamPlace, end_of};
use super::wait_all;
use crate::StoreError;
use crate::engine::{Engine, EngineFailure, ObjectOp, Version};

/// The streams of all ranks in a data pool.
pub struct SharedStreams<E> {
    engine: E,
    open: OpenStreams<(Rank, Ino)>,
}

impl<E: Engine> SharedStreams<E> {
    /// `engine`: the store's namespace in its data pool.
    pub fn new(engine: E) -> Self {
        Self { engine, open: OpenStreams::default() }
    }

    /// Reads bytes of a stream; fewer at its end.
    ///
    /// # Errors
    /// [`StoreError::Engine`]; [`StoreError::Corrupt`].
    pub fn read(&self, rank: Rank, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        let place = self.place(rank, ino);
        place.read(offset, buf, || Stream::default().size(&place))
    }

    /// Writes bytes to a stream that exists. They are durable on return.
    ///
    /// # Errors
    /// As [`Self::read`]; [`StoreError::Refused`] if the end exceeds the limit of a file.
    pub fn write(&self, rank: Rank, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let place = self.place(rank, ino);
        let range = offset..end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        let now = self.engine.now();
        self.open.with((rank, ino), |stream| stream.prepare(&place, range, now))?;
        wait_all(place.submit(offset, data, now))
    }

    /// Records this engine's address, for [`Self::fence`]. A client does that before it gets its
    /// first capability.
    ///
    /// # Errors
    /// [`StoreError::Engine`].
    pub fn register(&self, client: ClientId) -> Result<(), StoreError> {
        let address = self.engine.address().into_bytes();
        self.engine.apply(&Names::client(client), vec![ObjectOp::WriteFull(address)])?;
        Ok(())
    }

    /// Removes the record of a client that has ended all its operations.
    ///
    /// # Errors
    /// [`StoreError::Engine`].
    pub fn unregister(&self, client: ClientId) -> Result<(), StoreError> {
        forget(&self.engine, client, None)
    }

    /// Excludes clients from the pool, as [`Store::fence_clients`](crate::Store).
    ///
    /// # Errors
    /// [`StoreError::Engine`].
    pub fn fence(&self, clients: &[ClientId]) -> Result<(), StoreError> {
        fence(&self.engine, clients)
    }

    fn place(&self, rank: Rank, ino: Ino) -> StreamPlace<'_, E> {
        StreamPlace { engine: &self.engine, names: Names(rank), ino, shared: true }
    }
}

/// Excludes registered clients from the pool.
pub(super) fn fence(engine: &impl Engine, clients: &[ClientId]) -> Result<(), StoreError> {
    let mut fenced = Vec::new();
    for client in clients {
        match engine.read_versioned(&Names::client(*client)) {
            Err(error) if error.is(&EngineFailure::Missing) => {}
            registered => {
                let registered = registered?;
                engine.fence(&String::from_utf8_lossy(&registered.bytes))?;
                fenced.push((*client, registered.version));
            }
        }
    }
    if fenced.is_empty() {
        return Ok(());
    }
    engine.settle_fences()?;
    // One that has come back meanwhile, with another address, stays registered.
    fenced.into_iter().try_for_each(|(client, version)| forget(engine, client, Some(version)))
}

fn forget(engine: &impl Engine, client: ClientId, version: Option<Version>) -> Result<(), StoreError> {
    let guard = version.map(ObjectOp::AssertVersion);
    let ops = guard.into_iter().chain([ObjectOp::Remove]).collect();
    match engine.apply(&Names::client(client), ops) {
        Err(error) if error.is(&EngineFailure::Missing) || error.is(&EngineFailure::Guard) => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}
