//! Operations at the same time by threads that reach one directory by several ways, as by two mounts of one file system:
//! whatever happens, there must be an order in which they could have happened one after the other.
//!
//! A run says what it has done when it fails; what it does depends on the moment as well as on its seed.

mod history;
mod mounted;
mod op;

use std::io;
use std::sync::Barrier;
use std::time::Instant;

use history::Did;
pub use mounted::run;
pub use op::{DIRS, How, Op, Place, REGISTER, Seen};

use crate::process::Code;
use crate::{Failure, Outcome};

/// A way to the names and the file: `DIRS` and `REGISTER`, which begins with the number 0, in an otherwise empty directory.
pub trait Way: Sync {
    /// How names can be changed.
    const RENAMES: &'static [How] = &[How::Plain, How::Plain, How::NoReplace, How::Exchange];

    /// Does an operation.
    ///
    /// # Errors
    /// Those of the operation, which it may be to have.
    fn perform(&self, op: Op) -> io::Result<Seen>;
}

/// What an order may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    Strict,
    /// Linux resolves the names of an operation one after the other, also if they change meanwhile by others' doing than its
    /// own: a rename that finds one inode by both its names does nothing, one may fail for what its two names have never stood for
    /// at one time, and what finds a directory where it has not been before may fail with `ESTALE`. And what is being written
    /// is seen at once by those who share a cache with the writer; what is being made, moved or removed, as it was, until that has
    /// returned.
    SeveralMounts,
}

/// Threads, which take the ways in turn, and operations of each: an order of many more takes too long to find.
const THREADS: usize = 4;
const STEPS: usize = 8;

/// Does operations by all the ways, once.
///
/// # Errors
/// No order explains what was seen, or something else went wrong.
pub fn round<W: Way>(ways: &[W], seed: u64, rules: Rules) -> Outcome {
    let start = Barrier::new(THREADS);
    let begun = Instant::now();
    let done = std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (number, start) = (thread % ways.len(), &start);
                let rng = fastrand::Rng::with_seed(seed.wrapping_mul(31).wrapping_add(thread as u64));
                scope.spawn(move || {
                    start.wait();
                    one(&ways[number], rng, (thread, number), begun)
                })
            })
            .collect();
        let ended = running
            .into_iter()
            .map(|thread| thread.join().map_err(|_| Failure::at("a thread panicked")).and_then(|done| done));
        ended.collect::<Result<Vec<_>, Failure>>()
    })?;
    let history: Vec<Did> = done.into_iter().flatten().collect();
    if history::is_explained(&history, rules) {
        return Ok(());
    }
    let told = history::tell(&history);
    Err(Failure::at(format!("seed {seed}: no order explains this:\n{told}")))
}

fn one<W: Way>(
    way: &W,
    mut rng: fastrand::Rng,
    (thread, number): (usize, usize),
    begun: Instant,
) -> Result<Vec<Did>, Failure> {
    let mut done = Vec::with_capacity(STEPS);
    for step in 0..STEPS {
        let op = Op::random(&mut rng, W::RENAMES, (thread * STEPS + step) as u32 + 1);
        let from = begun.elapsed();
        let seen = match way.perform(op) {
            Err(error) if error.code() != 0 => Seen::Error(error.code()),
            seen => seen?,
        };
        done.push(Did { thread, way: number, op, seen, from, to: begun.elapsed() });
    }
    Ok(done)
}
