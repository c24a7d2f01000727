//! Concurrent operations by threads that reach one directory by several paths, such as two mounts
//! of one file system: some sequential order must explain the results.
//!
//! A failing run prints its history; a run depends on timing as well as on its seed.

mod history;
mod mounted;
mod op;

use std::io;
use std::sync::Barrier;
use std::time::Instant;

use history::Did;
pub use mounted::run;
pub use op::{DIRS, How, PathIndex, REGISTER, RaceOp, Seen};

use crate::process::Code;
use crate::{CaseResult, Failure};

/// A path to the shared names `DIRS` and the file `REGISTER`, which contains the number 0, in an
/// otherwise empty directory.
pub trait Way: Sync {
    /// Types of renames.
    const RENAMES: &'static [How] = &[How::Plain, How::Plain, How::NoReplace, How::Exchange];

    /// Executes an operation.
    ///
    /// # Errors
    /// Those of the operation, which may be expected.
    fn perform(&self, op: RaceOp) -> io::Result<Seen>;
}

/// The permitted orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    Strict,
    /// Linux resolves the names of an operation one after the other, even if other operations
    /// change them meanwhile: a rename that finds one inode under both names has no effect, a
    /// rename may fail for a combination of names that never existed at one time, and finding a
    /// moved directory may fail with `ESTALE`. Readers that share a cache with a writer see data
    /// while it is written, and names as they were while they are made, moved or removed.
    SeveralMounts,
}

/// Number of threads, which use the paths in turn, and operations per thread: the search for an
/// order is exponential.
const THREADS: usize = 4;
const STEPS: usize = 8;

/// Executes concurrent operations by all paths once.
///
/// # Errors
/// No order explains the results, or a call failed.
pub fn round<W: Way>(ways: &[W], seed: u64, rules: Rules) -> CaseResult {
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
    let reported = history::describe(&history);
    Err(Failure::at(format!("seed {seed}: no order explains this history:\n{reported}")))
}

fn one<W: Way>(
    way: &W,
    mut rng: fastrand::Rng,
    (thread, number): (usize, usize),
    begun: Instant,
) -> Result<Vec<Did>, Failure> {
    let mut done = Vec::with_capacity(STEPS);
    for step in 0..STEPS {
        let op = RaceOp::random(&mut rng, W::RENAMES, (thread * STEPS + step) as u32 + 1);
        let from = begun.elapsed();
        let seen = match way.perform(op) {
            Err(error) if error.code() != 0 => Seen::Error(error.code()),
            seen => seen?,
        };
        done.push(Did { thread, way: number, op, seen, from, to: begun.elapsed() });
    }
    Ok(done)
}
