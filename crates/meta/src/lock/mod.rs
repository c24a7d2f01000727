//! File locks: `fcntl(2)` and `flock(2)` among all clients of a server. They are in memory only:
//! after a restart, clients reclaim their locks, and until all have done so no new lock is granted.
//!
//! A request that must wait is answered at once, with [`Reply::Waits`], so it blocks nothing else
//! of its client; the client is notified when the lock is granted. The notification may be lost
//! with a connection. The client then asks again: asking for a lock that is held or awaited changes
//! nothing.

mod table;
#[cfg(test)]
mod tests;

use espalier_proto::{ClientId, Errno, Ino, Lock, Reply, Request};

use crate::machine::Meta;
use crate::step::{Step, Stop, Wait};

use table::LockOutcome;
pub(crate) use table::LockTable;

impl Meta {
    /// Executes a lock request. It never loads anything.
    pub(crate) fn on_lock(&mut self, client: ClientId, request: &Request) -> Step<Reply> {
        match *request {
            Request::Lock { ino, .. } | Request::TestLock { ino, .. } if self.opens_of(client, ino) == 0 => {
                Err(Errno::EBADF.into())
            }
            // Clients that have not reclaimed may hold conflicting locks.
            Request::Lock { .. } | Request::TestLock { .. } if self.sessions.in_grace() => {
                Err(Stop::Wait(Wait::Grace))
            }
            // Earlier lock requests come first.
            Request::Unlock { .. } | Request::StopWaiting { .. } if self.awaits_locks(client) => {
                Err(Stop::Wait(Wait::Grace))
            }
            Request::Lock { ino, lock, wait } => match self.locks.lock(client, ino, lock, wait)? {
                LockOutcome::Locked => Ok(Reply::Done),
                LockOutcome::Waits => Ok(Reply::Waits),
            },
            Request::Unlock { ino, owner, first, last } => {
                self.locks.unlock(client, ino, owner, (first, last))?;
                Ok(Reply::Done)
            }
            Request::TestLock { ino, lock } => Ok(Reply::InTheWay(self.locks.test(client, ino, &lock))),
            Request::StopWaiting { ino, lock, wait } => {
                if self.locks.stop_waiting(client, ino, &lock, wait) {
                    Ok(Reply::Done)
                } else {
                    Err(Errno::EINTR.into())
                }
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// True if a lock request of the client waits for the end of the grace period.
    fn awaits_locks(&self, client: ClientId) -> bool {
        let tasks = self.waiting_for_space.iter().filter_map(|number| self.tasks.get(number));
        tasks.into_iter().any(|task| task.from == client && matches!(task.request, Request::Lock { .. }))
    }

    /// Restores the locks of a client that reclaims. A lock that conflicts with one already
    /// reclaimed is dropped.
    pub(crate) fn reclaim_locks(&mut self, client: ClientId, locks: &[(Ino, Lock)]) {
        for (ino, lock) in locks {
            if self.opens_of(client, *ino) > 0 {
                let _ = self.locks.lock(client, *ino, *lock, None);
            }
        }
    }
}
