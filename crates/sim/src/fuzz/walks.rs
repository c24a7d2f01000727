//! Processes that walk trees as `find` does: each directory is listed before its siblings, in the
//! order of its parent's listing. Their clients fetch next directories ahead.

use espalier_client::{Answer, Call};
use espalier_proto::{Errno, FileType, Ino, Request};
use rand::Rng;

use crate::random::{Random, Seed};

/// In one in this many runs processes walk.
const EVERY: u32 = 4;
/// Percentage of calls, outside a walk, that begin one.
const OFTEN: u32 = 10;
/// Percentage of calls during a walk that belong to it.
const STEPS: u32 = 80;
/// Maximum number of directories that a walk has yet to list.
const MOST: usize = 100;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz walks", 1).random_range(0..EVERY) == 0
}

/// See the module description.
#[derive(Debug, Default)]
pub struct Walker {
    /// The directories to list; the next one is at the end.
    next: Vec<Ino>,
    /// The directory and the cursor at which a kernel asks for the end of its listing.
    ends: Option<(Ino, u64)>,
}

impl Walker {
    pub fn learn(&mut self, call: &Call<'_>, answer: &Result<Answer, Errno>) {
        let Call::Request(Request::ReadDir { dir, after: 0, plus: true, .. }) = call else { return };
        if self.next.last() != Some(dir) {
            return;
        }
        self.next.pop();
        if let Ok(Answer::Listing { entries, end, .. }) = answer {
            let dirs = entries.iter().rev().filter(|dirent| dirent.kind == FileType::Directory);
            let room = MOST.saturating_sub(self.next.len());
            // Only numbers that the servers know the client to know.
            self.next
                .extend(dirs.filter(|dirent| dirent.entry.is_some()).map(|dirent| dirent.ino).take(room));
            self.ends = end.then(|| (*dir, entries.last().map_or(0, |last| last.cursor)));
        }
    }

    /// The next call of the walk, or the first of a new one, which begins at `dir`.
    pub fn next(&mut self, random: &mut Random, dir: Ino) -> Option<Request> {
        let limit = 100;
        if let Some((dir, after)) = self.ends.take() {
            return Some(Request::ReadDir { dir, after, limit, plus: after == 0 });
        }
        if self.next.is_empty() && random.random_range(0..100) < OFTEN {
            self.next.push(if random.random() { Ino::ROOT } else { dir });
        } else if random.random_range(0..100) >= STEPS {
            return None;
        }
        let dir = *self.next.last()?;
        Some(Request::ReadDir { dir, after: 0, limit, plus: true })
    }
}
