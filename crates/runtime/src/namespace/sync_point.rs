//! Lends the tables of a mounted namespace to its sync. After a checkpoint they are the state of
//! one moment, until the next checkpoint writes its first piece.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use espalier_meta::CheckpointWhen;

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
    /// The sync waits in [`SyncPoint::take`].
    is_ready: bool,
    /// The last sync was not complete, so the next one is due although nothing has changed.
    repeats: bool,
}

impl SyncPoint {
    /// `interval`: seconds between two syncs.
    pub fn new(interval: u32) -> Self {
        // An earlier mount may have left something.
        let state = SyncState { loan: Loan::None, waited: 0, is_ready: false, repeats: true };
        let state = Mutex::new(state);
        Self { interval, state, changed: Condvar::new(), disk: OnceLock::new() }
    }

    /// Sets the disk of the namespace.
    pub(crate) fn attach(&self, disk: &Arc<Disk>) {
        let _ = self.disk.set(Arc::clone(disk));
    }

    fn lock(&self) -> MutexGuard<'_, SyncState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes once a second. Returns the checkpoint that the next sync needs.
    pub(crate) fn tick(&self) -> Option<CheckpointWhen> {
        // The sync reads: the time counts with the next tick.
        let mut state = self.state.try_lock().ok()?;
        state.waited = state.waited.saturating_add(1);
        if state.loan == Loan::None && state.is_ready && state.waited >= self.interval {
            (state.loan, state.waited) = (Loan::Wanted, 0);
        }
        let when = if state.repeats { CheckpointWhen::Always } else { CheckpointWhen::Changed };
        (state.loan == Loan::Wanted).then_some(when)
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
            tracing::warn!("the sync of the namespace has not read it in {} s", LENT.as_secs());
            state.loan = Loan::None;
        }
    }

    /// Waits for a checkpoint. Returns false if the namespace is being unmounted.
    pub fn take(&self) -> bool {
        let waits = |state: &mut SyncState| !matches!(state.loan, Loan::Lent | Loan::Closed);
        let mut state = self.lock();
        state.is_ready = true;
        let taken = self.changed.wait_while(state, waits);
        let mut state = taken.unwrap_or_else(PoisonError::into_inner);
        state.is_ready = false;
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

    /// Reads a part of the tables, for which a checkpoint waits; `None` if one was held back too
    /// long.
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

    /// Ends a sync. `is_complete`: the server has everything.
    pub fn end(&self, is_complete: bool) {
        self.lock().repeats = !is_complete;
        self.give_back();
    }

    /// Ends syncs.
    pub fn close(&self) {
        self.lock().loan = Loan::Closed;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Waits until the sync is ready, and ticks.
    fn tick(point: &SyncPoint) -> Option<CheckpointWhen> {
        while !point.lock().is_ready {
            thread::yield_now();
        }
        point.tick()
    }

    #[test]
    fn incomplete_syncs_are_repeated_without_changes() {
        let point = SyncPoint::new(2);
        assert_eq!((point.tick(), point.tick(), point.tick()), (None, None, None), "no sync is ready");
        thread::scope(|scope| {
            scope.spawn(|| {
                for is_complete in [false, true, true] {
                    assert!(point.take());
                    assert_eq!(point.read(|| 5), Some(5));
                    point.end(is_complete);
                    assert_eq!(point.read(|| 5), None);
                }
            });
            for when in [CheckpointWhen::Always, CheckpointWhen::Always, CheckpointWhen::Changed] {
                let due = loop {
                    if let Some(due) = tick(&point) {
                        break due;
                    }
                };
                assert_eq!(due, when);
                point.lend();
            }
        });
        point.close();
        assert!(!point.take());
    }
}
