//! Allocation of inode numbers for metadata write-back.

use espalier_proto::{Accesses, Errno, Ino, Rank, Reply};

use crate::config::Atime;
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::session::Unused;
use crate::step::{Step, Stop, Wait};

impl Meta {
    /// Allocates inode numbers to the client's pool, for files that it acknowledges before the
    /// server creates them.
    ///
    /// # Errors
    /// `EAGAIN` if the pool would exceed [`Unused::MAX`].
    pub(crate) fn take_numbers(&mut self, cx: &mut Cx<'_>, rank: Rank, count: u32) -> Step<Final<'_>> {
        let (time, strip) = (cx.now, self.config.strip_bytes);
        let accesses =
            self.config.atime != Atime::Never && self.sessions.accesses(cx.client) != Accesses::None;
        if count == 0 {
            return Ok(Final::of(Reply::Numbers { first: Ino(0), count, time, strip, accesses }));
        }
        self.growable()?;
        let persisted = self.state.sessions.get(&cx.client).filter(|_| rank == self.config.rank);
        let persisted = persisted.ok_or(Errno::EINVAL)?;
        if persisted.unused.len() + u64::from(count) > Unused::MAX {
            return Err(Errno::EAGAIN.into());
        }
        let (client, first) = (cx.client, Ino(self.state.numbers.next()));
        if !self.may_give(first.0 + u64::from(count) - 1) {
            return Err(Stop::Wait(Wait::Durable));
        }
        self.commit(cx, &Event::Given { client, first, count }, |_, cx| {
            // Callers will learn these numbers, so they must never be allocated again.
            cx.durable = true;
            Reply::Numbers { first, count, time, strip, accesses }
        })
    }
}
