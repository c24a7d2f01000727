//! Allocation of inode numbers. Invariant: a number that a client has seen never means another
//! inode, even if a power failure loses the inode's creation. Numbers are therefore allocated only
//! below a durable bound, and a restarted machine continues at the bound. A machine whose only
//! client ends with it does without.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno, Ino};

use crate::event::Event;
use crate::machine::Meta;
use crate::pool::Batch;
use crate::step::{Step, Stop, Wait};

/// The inode numbers that events have allocated.
#[derive(Debug)]
pub(crate) struct InodeNumbers {
    /// The next number to allocate.
    next: u64,
    /// Numbers from here on are not this store's to allocate.
    end: u64,
    /// Bound below which numbers may have been allocated, even if nothing records that; 0: unused.
    reserved: u64,
    /// Precreated numbers below `next` (`pool.rs`).
    pool: Vec<Batch>,
}

impl InodeNumbers {
    pub(crate) fn new(next: u64, end: u64, pool: Vec<Batch>) -> Self {
        Self { next, end, reserved: 0, pool }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The next number after a restart.
    pub(crate) fn next_after_restart(&self) -> u64 {
        self.next.max(self.reserved)
    }

    pub(crate) fn restart(&mut self) {
        self.next = self.next_after_restart();
    }

    /// Notes that all numbers below `end` are allocated.
    pub(crate) fn note_used(&mut self, end: u64) {
        self.next = self.next.max(end);
    }

    /// Notes that numbers below `end` may be allocated without an event.
    pub(crate) fn note_reserved(&mut self, end: u64) {
        self.reserved = self.reserved.max(end);
    }

    pub(crate) fn pool(&self) -> &[Batch] {
        &self.pool
    }

    pub(crate) fn set_pool(&mut self, pool: &[Batch]) {
        self.pool = pool.to_vec();
        pool.iter().for_each(|batch| self.note_used(batch.end));
    }

    /// Notes that a file has a number, which may be of the pool.
    pub(crate) fn note_file(&mut self, ino: Ino) {
        if let Some(batch) = self.pool.iter_mut().find(|batch| batch.has(ino)) {
            batch.first = ino.0 + 1;
            self.pool.retain(|batch| batch.first != batch.end);
        }
    }
}

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
        let ino = self.state.numbers.next();
        if ino >= self.state.numbers.end() {
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
        if self.numbers.next.is_none() && self.state.numbers.next() + BATCH / 2 >= self.numbers.below {
            let below = self.state.numbers.next() + BATCH;
            self.append_loaded(&Event::Reserved { below });
            self.numbers.next = Some((self.state.sequence, below));
        }
    }
}
