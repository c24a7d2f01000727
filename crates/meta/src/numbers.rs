//! Allocation of inode numbers. Invariant: a number that a client has seen never means another
//! inode, even if a power failure loses the inode's creation. Numbers are therefore allocated only
//! below a durable bound, and a restarted machine continues at the bound. A machine whose only
//! client ends with it does without.

use espalier_proto::{ClientId, Errno, Ino};

use crate::event::Event;
use crate::machine::Meta;
use crate::step::{Step, Stop, Wait};

/// The bounds for allocation.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Numbers below this may be allocated.
    below: u64,
    /// An event and the bound that applies once the event is durable.
    next: Option<(u64, u64)>,
}

/// Numbers reserved at a time; a restart skips at most as many.
const BATCH: u64 = 1 << 20;

impl Meta {
    /// Allocates the number of a new inode.
    ///
    /// # Errors
    /// `ENOSPC` if a decoupled namespace has used all that were provisioned.
    pub(crate) fn new_ino(&self) -> Step<Ino> {
        let ino = self.state.next_ino;
        if ino >= self.state.end_ino {
            return Err(Errno::ENOSPC.into());
        }
        if self.may_give(ino) { Ok(Ino(ino)) } else { Err(Stop::Wait(Wait::Durable)) }
    }

    /// Checks that a number belongs to the client's pool, for a file that it has already
    /// acknowledged.
    ///
    /// # Errors
    /// `EINVAL` if it does not.
    pub(crate) fn given_ino(&self, client: ClientId, ino: Ino) -> Step<Ino> {
        let persisted = self.state.sessions.get(&client);
        if persisted.is_some_and(|persisted| persisted.unused.has(ino)) {
            Ok(ino)
        } else {
            Err(Errno::EINVAL.into())
        }
    }

    /// True if a new number is below the durable bound.
    pub(crate) fn may_give(&self, ino: u64) -> bool {
        match self.numbers.next {
            _ if self.config.session_ms.is_none() => true,
            Some((event, below)) if event <= self.journal.durable => ino < below,
            _ => ino < self.numbers.below,
        }
    }

    /// Reserves more numbers before the bound is reached: only the first inode waits.
    pub(crate) fn reserve_numbers(&mut self) {
        let is_changed = !self.config.read_only && !self.draining && self.journal.broken.is_none();
        if self.config.session_ms.is_none() || !is_changed {
            return;
        }
        if let Some((_, below)) = self.numbers.next.take_if(|(event, _)| *event <= self.journal.durable) {
            self.numbers.below = below;
        }
        if self.numbers.next.is_none() && self.state.next_ino + BATCH / 2 >= self.numbers.below {
            let below = self.state.next_ino + BATCH;
            self.append_loaded(&Event::Reserved { below });
            self.numbers.next = Some((self.state.sequence, below));
        }
    }
}
