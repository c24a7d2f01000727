use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Operations and bytes in flight, bounded.
pub(super) struct Budget {
    used: Mutex<InUse>,
    freed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct InUse {
    operations: usize,
    bytes: usize,
}

impl Budget {
    const OPERATIONS: usize = 256;
    const BYTES: usize = 64 << 20;

    pub fn new() -> Arc<Self> {
        Arc::new(Self { used: Mutex::default(), freed: Condvar::new() })
    }

    /// Waits until an operation with so many bytes may be submitted. One operation is always
    /// admitted, however large.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Share {
        let exceeds = |used: &mut InUse| {
            let is_full = used.operations >= Self::OPERATIONS || used.bytes + bytes > Self::BYTES;
            used.operations > 0 && is_full
        };
        let mut used = self.wait_while(exceeds);
        used.operations += 1;
        used.bytes += bytes;
        Share { budget: Arc::clone(self), bytes }
    }

    /// Waits until nothing is in flight.
    pub fn drain(&self) {
        drop(self.wait_while(|used| used.operations > 0));
    }

    fn wait_while(&self, condition: impl FnMut(&mut InUse) -> bool) -> MutexGuard<'_, InUse> {
        self.freed.wait_while(self.used(), condition).unwrap_or_else(PoisonError::into_inner)
    }

    fn used(&self) -> MutexGuard<'_, InUse> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One operation's share of the budget, until dropped.
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.budget.used();
        used.operations -= 1;
        used.bytes -= self.bytes;
        self.budget.freed.notify_all();
    }
}
