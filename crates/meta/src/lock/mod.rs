//! Locks of clients on files: `fcntl(2)` and `flock(2)` between all that use a server. They are in memory only: after a restart,
//! clients say which they have, and until all have said so nobody gets a new one.
//!
//! A request that waits is answered at once, with [`Reply::Waits`], so that it holds up nothing of its client's; when it has
//! what it has waited for, the client is told. What was told may be lost with a connection: the client asks again then,
//! and asking for what one has or waits for changes nothing.

mod table;
#[cfg(test)]
mod tests;

use espalier_proto::{ClientId, Errno, Ino, Lock, Reply, Request};

use crate::machine::Meta;
use crate::step::{Step, Stop, Wait};

use table::Asked;
pub(crate) use table::LockTable;

impl Meta {
    /// A request about locks. It needs nothing that would have to be loaded.
    pub(crate) fn on_lock(&mut self, client: ClientId, request: &Request) -> Step<Reply> {
        match *request {
            Request::Lock { ino, .. } | Request::TestLock { ino, .. } if self.opens_of(client, ino) == 0 => {
                Err(Errno::EBADF.into())
            }
            // Others may have what they have not said yet.
            Request::Lock { .. } | Request::TestLock { .. } if self.sessions.in_grace() => {
                Err(Stop::Wait(Wait::Grace))
            }
            // What was asked for before comes first.
            Request::Unlock { .. } | Request::StopWaiting { .. } if self.awaits_locks(client) => {
                Err(Stop::Wait(Wait::Grace))
            }
            Request::Lock { ino, lock, wait } => match self.locks.lock(client, ino, lock, wait)? {
                Asked::Locked => Ok(Reply::Done),
                Asked::Waits => Ok(Reply::Waits),
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

    /// A client has asked for locks that nobody is given yet.
    fn awaits_locks(&self, client: ClientId) -> bool {
        let tasks = self.roomless.iter().filter_map(|number| self.tasks.get(number));
        tasks.into_iter().any(|task| task.from == client && matches!(task.request, Request::Lock { .. }))
    }

    /// A client that is awaited says which locks it has. It cannot have what another has said to have.
    pub(crate) fn reclaim_locks(&mut self, client: ClientId, locks: &[(Ino, Lock)]) {
        for (ino, lock) in locks {
            if self.opens_of(client, *ino) > 0 {
                let _ = self.locks.lock(client, *ino, *lock, None);
            }
        }
    }
}
