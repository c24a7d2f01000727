//! The term of a rank: the time until which its server may answer for it, by the server's lease in
//! the cluster map, if servers share the store. Past it nothing is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::lease_ms;

/// The end of a server's lease, for all its ranks.
#[derive(Clone, Debug, Default)]
pub struct LeaseEnd(Arc<AtomicU64>);

impl LeaseEnd {
    /// `until`: on the clock of [`lease_ms`].
    pub fn set(&self, until: u64) {
        self.0.store(until, Ordering::Release);
    }
}

/// The time until which a rank is answered for. Past it nothing is sent.
#[derive(Debug)]
pub struct ServeTerm {
    /// `None`: the store belongs to this server.
    lease: Option<LeaseEnd>,
    /// The rank is being handed over.
    closed: AtomicBool,
}

impl ServeTerm {
    pub fn new(lease: Option<LeaseEnd>) -> Self {
        Self { lease, closed: AtomicBool::new(false) }
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The rank's journal has failed. If another server can take over, nothing is answered from now
    /// on: clients repeat their requests, which the journal may contain, at the next server.
    pub fn fail(&self) {
        if self.lease.is_some() {
            self.close();
        }
    }

    pub fn is_over(&self) -> bool {
        let is_past = |LeaseEnd(until): &LeaseEnd| lease_ms() >= until.load(Ordering::Acquire);
        self.closed.load(Ordering::Acquire) || self.lease.as_ref().is_some_and(is_past)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn term_ends_with_lease_or_when_closed() {
        let own = ServeTerm::new(None);
        assert!(!own.is_over());
        own.close();
        assert!(own.is_over());

        let lease = LeaseEnd::default();
        let leased = ServeTerm::new(Some(lease.clone()));
        assert!(leased.is_over(), "before the first renewal");
        lease.set(lease_ms() + 60_000);
        assert!(!leased.is_over());
        lease.set(lease_ms());
        assert!(leased.is_over());
        lease.set(lease_ms() + 60_000);
        leased.fail();
        assert!(leased.is_over());

        let own = ServeTerm::new(None);
        own.fail();
        assert!(!own.is_over(), "no other server has its store");
    }
}
