//! Big files that are written to in many places without a pause, as databases do: where its client is alone with such a file, it gathers
//! what is written.

use espalier_proto::Ino;
use rand::Rng;

use crate::random::{Random, Seed};

/// In so many of the runs in which processes are alone now and then they write so.
const EVERY: u32 = 2;
/// One of so many files that a process makes is.
const SELDOM: u32 = 2;
/// Places, at most.
const PLACES: u32 = 24;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz streaks", 0).random_range(0..EVERY) == 0
}

/// Who writes so.
#[derive(Debug, Default)]
pub struct Streak {
    /// The last file that it has made.
    file: Option<Ino>,
    /// In so many places it will write.
    left: u32,
}

impl Streak {
    /// Where the next write to a file goes, and how many bytes of it, if that is one of these.
    pub fn next(&mut self, random: &mut Random, file: Ino, strip: u64) -> Option<(u64, u64)> {
        if self.file.replace(file) != Some(file) {
            self.left = if random.random_range(0..SELDOM) == 0 { random.random_range(2..PLACES) } else { 0 };
            // The first makes it big.
            return (self.left > 0).then_some((strip, strip));
        }
        self.left = self.left.checked_sub(1)?;
        Some((random.random_range(0..4 * strip), random.random_range(1..=(strip / 8).max(1))))
    }

    /// Whether there is no time to rest.
    pub fn goes_on(&self, is_open: impl Fn(&Ino) -> bool) -> bool {
        self.left > 0 && self.file.as_ref().is_some_and(is_open)
    }
}
