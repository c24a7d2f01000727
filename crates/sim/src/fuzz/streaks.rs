//! Streaks of writes to many places of big files, as by databases: a client with an exclusive lease
//! on the directory coalesces them.

use espalier_proto::Ino;
use rand::Rng;

use crate::random::{Random, Seed};

/// One in this many runs with exclusive directories has streaks.
const EVERY: u32 = 2;
/// One in this many new files gets a streak.
const SELDOM: u32 = 2;
/// Most writes of a streak.
const PLACES: u32 = 24;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz streaks", 0).random_range(0..EVERY) == 0
}

/// State of a process's streak.
#[derive(Debug, Default)]
pub struct Streak {
    /// The last file that the process made.
    file: Option<Ino>,
    /// Remaining writes.
    left: u32,
}

impl Streak {
    /// Offset and length of the next write to the file, if it belongs to a streak.
    pub fn next(&mut self, random: &mut Random, file: Ino, strip: u64) -> Option<(u64, u64)> {
        if self.file.replace(file) != Some(file) {
            self.left = if random.random_range(0..SELDOM) == 0 { random.random_range(2..PLACES) } else { 0 };
            // The first write unstuffs the file.
            return (self.left > 0).then_some((strip, strip));
        }
        self.left = self.left.checked_sub(1)?;
        Some((random.random_range(0..4 * strip), random.random_range(1..=(strip / 8).max(1))))
    }

    /// True while a streak is in progress, which has no rests.
    pub fn goes_on(&self, is_open: impl Fn(&Ino) -> bool) -> bool {
        self.left > 0 && self.file.as_ref().is_some_and(is_open)
    }
}
