//! Lends the tables of a mounted namespace to its sync. After a checkpoint they are the state of
//! one moment, until the next checkpoint writes its first piece.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::disk::Disk;

/// The longest time for which a checkpoint is held back. The journal has room for it.
const LENT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loan {
    None,
    /// At the end of the next checkpoint.
    Wanted,
    /// The sync may read the tables.
    Lent,
    /// The sync reads the tables.
    Taken,
    /// The namespace is being unmounted.
    Closed,
}

/// The tables of a namespace, as its sync sees them.
pub struct SyncPoint {
    /// Seconds between two syncs.
    interval: u32,
    state: Mutex<SyncState>,
    changed: Condvar,
    disk: OnceLock<Arc<Disk>>,
}

#[derive(Debug)]
struct SyncState {
    loan: Loan,
    /// Seconds since the last sync was due.
    waited: u32,
}

impl SyncPoint {
    /// `interval`: seconds between two syncs.
    pub fn new(interval: u32) -> Self {
        let state = Mutex::new(SyncState { loan: Loan::None, waited: 0 });
        Self { interval, state, changed: Condvar::new(), disk: OnceLock::new() }
    }

    /// Sets the disk of the namespace.
    pub(crate) fn attach(&self, disk: &Arc<Disk>) {
        let _ = self.disk.set(Arc::clone(disk));
    }

    fn lock(&self) -> MutexGuard<'_, SyncState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes once a second. Returns true if a checkpoint is wanted.
    pub(crate) fn tick(&self) -> bool {
        // The sync reads: the time counts with the next tick.
        let Ok(mut state) = self.state.try_lock() else { return false };
        state.waited = state.waited.saturating_add(1);
        if state.loan == Loan::None && state.waited >= self.interval {
            (state.loan, state.waited) = (Loan::Wanted, 0);
        }
        state.loan == Loan::Wanted
    }

    /// A checkpoint has been published: waits until the sync does not need the tables, or a limit.
    pub(crate) fn lend(&self) {
        let mut state = self.lock();
        if state.loan != Loan::Wanted {
            return;
        }
        state.loan = Loan::Lent;
        self.changed.notify_all();
        let is_lent = |state: &mut SyncState| matches!(state.loan, Loan::Lent | Loan::Taken);
        let waited = self.changed.wait_timeout_while(state, LENT, is_lent);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if is_lent(&mut state) {
            state.loan = Loan::None;
        }
    }

    /// Waits for a checkpoint. Returns false if the namespace is being unmounted.
    pub fn take(&self) -> bool {
        let waits = |state: &mut SyncState| !matches!(state.loan, Loan::Lent | Loan::Closed);
        let taken = self.changed.wait_while(self.lock(), waits);
        let mut state = taken.unwrap_or_else(PoisonError::into_inner);
        if state.loan == Loan::Closed {
            return false;
        }
        state.loan = Loan::Taken;
        true
    }

    /// The disk of the namespace.
    pub(super) fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.get()
    }

    /// Reads the tables; `None` if the checkpoint was held back for too long.
    pub fn read<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let state = self.lock();
        (state.loan == Loan::Taken).then(read)
    }

    /// The sync does not need the tables.
    pub fn give_back(&self) {
        let mut state = self.lock();
        if state.loan == Loan::Taken {
            state.loan = Loan::None;
        }
        self.changed.notify_all();
    }

    /// Ends syncs.
    pub fn close(&self) {
        self.lock().loan = Loan::Closed;
        self.changed.notify_all();
    }
}
