//! Random locks of a process. It waits for a lock only while it holds none, so there are no
//! deadlocks.

use std::collections::BTreeSet;

use espalier_client::{Answer, Call};
use espalier_proto::{Errno, Ino, Lock, LockKind, LockOwner, Request};
use rand::Rng;

use crate::Nanos;
use crate::random::{Random, Seed};

/// Percentage of lock calls, in runs with locks.
pub const OFTEN: u32 = 30;

/// A holder of locks rests before one in this many calls.
const RESTS: u32 = 8;
/// Longest rest.
const LONGEST: Nanos = Nanos(3_000_000_000);

/// In one in this many runs files are locked.
const EVERY: u32 = 3;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz locks", 0).random_range(0..EVERY) == 0
}

/// Locks that a process may hold.
#[derive(Debug)]
pub struct Locker {
    number: u32,
    waits: u32,
    locked: BTreeSet<(Ino, bool)>,
}

impl Locker {
    pub fn new(number: u32) -> Self {
        Self { number, waits: 0, locked: BTreeSet::new() }
    }

    fn owner(&self, flock: bool) -> LockOwner {
        LockOwner { flock, number: self.number.into() }
    }

    /// The next lock call on an open file.
    pub fn next(&mut self, random: &mut Random, ino: Ino) -> Request {
        let flock = random.random_range(0..3) == 0;
        let (first, last) = match random.random_range(0..6) {
            _ if flock => (0, u64::MAX),
            first @ 0..4 => (first, first + random.random_range(0..3)),
            _ => (random.random_range(0..2), u64::MAX),
        };
        let kind = if random.random_range(0..3) > 0 { LockKind::Exclusive } else { LockKind::Shared };
        let owner = self.owner(flock);
        let lock = Lock { owner, kind, first, last, pid: self.number + 2 };
        match random.random_range(0..10) {
            0..6 => {
                let wait = (self.locked.is_empty() && random.random()).then(|| {
                    self.waits += 1;
                    u64::from(self.number) << 32 | u64::from(self.waits)
                });
                self.locked.insert((ino, flock));
                Request::Lock { ino, lock, wait }
            }
            6..8 => Request::Unlock { ino, owner, first, last },
            8 => self.give_up().unwrap_or(Request::TestLock { ino, lock }),
            _ => Request::TestLock { ino, lock },
        }
    }

    /// A rest with locks held, sometimes: a server may restart meanwhile, and other processes
    /// request the same locks.
    pub fn rest(&self, random: &mut Random) -> Option<Nanos> {
        let is_so = !self.locked.is_empty() && random.random_range(0..RESTS) == 0;
        is_so.then(|| Nanos(random.random_range(0..LONGEST.0)))
    }

    /// Longest wait for a reply, if limited.
    pub fn patience(random: &mut Random, call: &Call<'_>) -> Option<Nanos> {
        let is_waiting = matches!(call, Call::Request(Request::Lock { wait: Some(_), .. }));
        let most = [1_000_000, 100_000_000, 5_000_000_000][is_waiting.then(|| random.random_range(0..3))?];
        random.random_bool(0.5).then(|| Nanos(random.random_range(0..most)))
    }

    /// Unlocks one of the files.
    pub fn give_up(&self) -> Option<Request> {
        let (ino, flock) = *self.locked.first()?;
        Some(self.unlock(ino, flock))
    }

    /// Unlocks a file that the process may have locked.
    pub fn leave(&self, ino: Ino) -> Option<Request> {
        let flock = [false, true].into_iter().find(|flock| self.locked.contains(&(ino, *flock)))?;
        Some(self.unlock(ino, flock))
    }

    fn unlock(&self, ino: Ino, flock: bool) -> Request {
        Request::Unlock { ino, owner: self.owner(flock), first: 0, last: u64::MAX }
    }

    pub fn learn(&mut self, requested: &Call<'_>, answer: &Result<Answer, Errno>) {
        if let Call::Request(Request::Unlock { ino, owner, first: 0, last: u64::MAX }) = requested
            && !matches!(answer, Err(Errno::EIO | Errno::EINTR))
        {
            self.locked.remove(&(*ino, owner.flock));
        }
    }
}
