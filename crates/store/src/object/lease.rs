//! The lease of a rank: the right to serve it and to write its objects, for a term.
//!
//! The lock of an object has the term and is renewed. The object's bytes name the holder, also
//! after the lock has expired. The next holder fences it first, so none of its writes takes effect
//! later. A holder stops by its own clock when the term is over, measured from before the renewal.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use espalier_proto::Rank;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::names::Names;
use crate::engine::{Engine, EngineError, EngineFailure, ObjectOp, VersionedBytes};
use crate::{Holder, StoreError};

/// Renewals within a term.
const RENEWALS: u32 = 4;

/// The process that has a lease, or had it and did not release it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// What it is, and where: shown to users.
    pub description: String,
    /// The engine's address of it, for fencing.
    pub address: String,
    /// The machine and the process, so that others on this machine know whether it has ended.
    machine: String,
    process: Option<Holder>,
}

impl LeaseHolder {
    fn of_this_process(address: String) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let description = format!("process {} on {host}", std::process::id());
        Self { description, address, machine: machine(), process: Holder::of_process(std::process::id()) }
    }

    /// True if it ran on this machine and has ended.
    fn has_ended(&self) -> bool {
        self.machine == machine() && self.process.is_some_and(|process| !process.runs())
    }
}

/// Identifies a boot of a machine, and the numbering of processes there.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), processes.display())
}

/// A lease that this process holds and renews, until it is dropped.
pub struct RankLease<E: Engine> {
    state: Arc<LeaseState<E>>,
    stop: Option<Sender<()>>,
    renewer: Option<JoinHandle<()>>,
}

struct LeaseState<E> {
    engine: Arc<E>,
    rank: Rank,
    object: String,
    cookie: String,
    term: Duration,
    /// End of the lease; `None` if it was lost or released.
    until: Mutex<Option<Instant>>,
}

impl<E: Engine> RankLease<E> {
    /// Takes the lease of a rank, and renews it from then on. The previous holder is fenced unless
    /// it released the lease. A holder on this machine that has ended is replaced at once.
    ///
    /// # Errors
    /// [`StoreError::HeldBy`] names the holder.
    pub fn acquire(engine: &Arc<E>, rank: Rank, term: Duration) -> Result<Self, StoreError> {
        let mut lease = Self::acquire_for(engine, rank, term)?;
        let (stop, stopped) = channel();
        let renewed = Arc::clone(&lease.state);
        let renew = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(renewed.term / RENEWALS) {
                if !renewed.renew() {
                    return;
                }
            }
        };
        let renewer = std::thread::Builder::new().name("lease".into()).spawn(renew);
        let renewer = renewer.map_err(|cause| StoreError::Io {
            operation: "start the renewal of the lease of",
            path: lease.state.object.clone().into(),
            cause,
        })?;
        (lease.stop, lease.renewer) = (Some(stop), Some(renewer));
        Ok(lease)
    }

    /// As [`Self::acquire`], but the lease is not renewed: it ends with its term.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub fn acquire_for(engine: &Arc<E>, rank: Rank, term: Duration) -> Result<Self, StoreError> {
        let state = LeaseState {
            engine: Arc::clone(engine),
            rank,
            object: Names(rank).lock(),
            cookie: Uuid::new_v4().to_string(),
            term,
            until: Mutex::new(None),
        };
        state.take()?;
        Ok(Self { state: Arc::new(state), stop: None, renewer: None })
    }

    pub fn rank(&self) -> Rank {
        self.state.rank
    }

    /// Time until which this process may serve the rank; `None`: the lease was lost.
    pub fn served_until(&self) -> Option<Instant> {
        *self.state.until()
    }

    pub fn is_held(&self) -> bool {
        self.served_until().is_some_and(|until| Instant::now() < until)
    }
}

impl<E: Engine> Drop for RankLease<E> {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(renewer) = self.renewer.take() {
            let _ = renewer.join();
        }
        if let Err(error) = self.state.release() {
            tracing::warn!(%error, "cannot release a lease, which ends with its term");
        }
    }
}

impl<E: Engine> LeaseState<E> {
    fn take(&self) -> Result<(), StoreError> {
        let begun = Instant::now();
        let locked = match self.engine.lock(&self.object, &self.cookie, self.term) {
            Err(error) if error.is(&EngineFailure::Locked) => self.replace_ended()?,
            outcome => outcome,
        };
        let previous = lease_holder(self.engine.as_ref(), self.rank)?;
        match (locked, previous) {
            (Err(error), holder) if error.is(&EngineFailure::Locked) => {
                let holder = holder.map_or_else(|| "another process".into(), |holder| holder.description);
                return Err(StoreError::HeldBy { rank: self.rank, holder, term: self.term });
            }
            (Err(error), _) => return Err(error.into()),
            (Ok(()), Some(previous)) if previous.address != self.engine.address() => {
                tracing::warn!(previous = previous.description, "fencing the last holder of a lease");
                self.engine.fence(&previous.address)?;
            }
            (Ok(()), _) => {}
        }
        let own =
            serde_json::to_vec(&LeaseHolder::of_this_process(self.engine.address())).unwrap_or_default();
        self.engine.apply(&self.object, vec![ObjectOp::WriteFull(own)])?;
        *self.until() = Some(begun + self.term);
        Ok(())
    }

    /// Takes the lock of a process on this machine that has ended.
    fn replace_ended(&self) -> Result<Result<(), EngineError>, EngineError> {
        let holder = lease_holder(self.engine.as_ref(), self.rank)?.filter(LeaseHolder::has_ended);
        let locked = self.engine.lock_holder(&self.object)?;
        if let (Some(holder), Some(locked)) = (holder, locked) {
            self.engine.fence(&holder.address)?;
            self.engine.break_lock(&self.object, &locked)?;
        }
        Ok(self.engine.lock(&self.object, &self.cookie, self.term))
    }

    /// Extends the lease by its term from now. False if it was lost.
    fn renew(&self) -> bool {
        let begun = Instant::now();
        match self.engine.renew(&self.object, &self.cookie, self.term) {
            Ok(()) => *self.until() = Some(begun + self.term),
            Err(error) if matches!(error.failure, EngineFailure::Missing | EngineFailure::Fenced) => {
                tracing::error!(%error, "another process may serve the store by now: this one stops");
                *self.until() = None;
                return false;
            }
            Err(error) => tracing::warn!(%error, "cannot renew a lease yet"),
        }
        true
    }

    fn release(&self) -> Result<(), EngineError> {
        if self.engine.has_unknown_writes() {
            // The next holder fences this process, whose writes may still take effect.
            tracing::warn!(
                object = self.object,
                "a lease is left to its term: writes were not answered in time"
            );
            return Ok(());
        }
        // A lease whose term is over may belong to another process.
        if self.until().take().is_some_and(|until| Instant::now() < until) {
            self.engine.apply(&self.object, vec![ObjectOp::WriteFull(Vec::new())])?;
            self.engine.unlock(&self.object, &self.cookie)?;
        }
        Ok(())
    }

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The holder of a rank's lease, or the last one that did not release it.
///
/// # Errors
/// As the engine.
pub fn lease_holder(engine: &impl Engine, rank: Rank) -> Result<Option<LeaseHolder>, EngineError> {
    let read = match engine.read_versioned(&Names(rank).lock()) {
        Err(error) if error.is(&EngineFailure::Missing) => VersionedBytes::default(),
        outcome => outcome?,
    };
    Ok(serde_json::from_slice(&read.bytes).ok())
}

/// Releases the lease of a rank if one of these fenced clients holds it, by its address.
///
/// # Errors
/// As the engine.
pub fn break_lease(engine: &impl Engine, rank: Rank, fenced: &[String]) -> Result<(), EngineError> {
    let holder = lease_holder(engine, rank)?;
    if holder.is_none_or(|holder| !fenced.contains(&holder.address)) {
        return Ok(());
    }
    let lock = Names(rank).lock();
    match engine.lock_holder(&lock)? {
        Some(locked) => engine.break_lock(&lock, &locked),
        None => Ok(()),
    }
}
