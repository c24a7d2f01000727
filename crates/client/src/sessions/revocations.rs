//! Revocations of leases that are acknowledged when the operations pending under the lease are
//! answered.

use espalier_proto::{FromClient, Ino, Rank, RevocationId};

use super::writeback::Writeback;
use super::{Actions, Sessions};
use crate::Cache;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct DeferredRevocation {
    pub rank: Rank,
    number: RevocationId,
    ino: Ino,
    /// The frontend has given the lease up.
    by_frontend: bool,
}

impl DeferredRevocation {
    fn is(&self, rank: Rank, number: RevocationId) -> bool {
        (self.rank, self.number) == (rank, number)
    }
}

impl<T> Sessions<T> {
    /// Defers the acknowledgement of a revocation if operations are pending under the lease.
    pub(super) fn defer_revocation(&mut self, rank: Rank, number: RevocationId, ino: Ino) {
        let is_known = self.revocations.iter().any(|revocation| revocation.is(rank, number));
        if !is_known && is_needed(&self.cache, &self.writeback, ino) {
            self.revocations.push(DeferredRevocation { rank, number, ino, by_frontend: false });
        }
    }

    /// The frontend has given up a lease. Returns true if the server can be answered immediately.
    pub(super) fn is_given_up(&mut self, rank: Rank, number: RevocationId) -> bool {
        let mut revocations = self.revocations.iter();
        let Some(at) = revocations.position(|revocation| revocation.is(rank, number)) else { return true };
        let revocation = &mut self.revocations[at];
        revocation.by_frontend = is_needed(&self.cache, &self.writeback, revocation.ino);
        let is_due = !revocation.by_frontend;
        if is_due {
            self.revocations.swap_remove(at);
        }
        is_due
    }

    /// Acknowledges the revocations that no operation is pending for.
    pub(super) fn acknowledge_revocations(&mut self, actions: &mut Actions<T>) {
        let is_due = |revocation: &mut DeferredRevocation| {
            revocation.by_frontend && !is_needed(&self.cache, &self.writeback, revocation.ino)
        };
        for DeferredRevocation { rank, number, .. } in self.revocations.extract_if(.., is_due) {
            actions.send.push((rank, FromClient::Revoked { number }));
        }
    }
}

/// True if operations are pending under the lease on an inode, or in that directory.
fn is_needed(cache: &Cache, writeback: &Writeback, ino: Ino) -> bool {
    cache.has_pending(ino) || writeback.write_behind.is_any_in(ino)
}
