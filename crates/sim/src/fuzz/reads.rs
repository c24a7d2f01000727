//! Files that are opened for reading only, again and again, as a program reads its parts: the
//! client reports these opens to servers only if it must.

use espalier_client::{Answer, Call};
use espalier_proto::{Access, Errno, Ino, OpenHow, Reads, Request};
use rand::Rng;

use crate::random::{Random, Seed};

/// In one in this many runs processes read this way.
const EVERY: u32 = 3;
/// Percentage of such calls.
const OFTEN: u32 = 50;
/// Larger than any file, in bytes.
const ALL: u32 = 1 << 16;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz reads", 0).random_range(0..EVERY) == 0
}

/// State of a process that does this.
#[derive(Debug, Default)]
pub struct RandomReader {
    open: Vec<Ino>,
}

impl RandomReader {
    /// Learns from the reply to a call. Returns true if it has opened a file for reading.
    pub fn learn(&mut self, requested: &Call<'_>, answer: &Result<Answer, Errno>) -> bool {
        let (Call::Request(Request::Open { ino, how }), Ok(Answer::Opened(_))) = (requested, answer) else {
            return false;
        };
        let is_own = how.reads == Reads::Whole;
        if is_own {
            self.open.push(*ino);
        }
        is_own
    }

    /// The process has closed a file.
    pub fn lose(&mut self, ino: Ino) {
        self.open.retain(|open| *open != ino);
    }

    /// The next call, if it is one of these. `file`: a file that may be read.
    pub fn next(&mut self, random: &mut Random, file: Option<Ino>) -> Option<Call<'static>> {
        if random.random_range(0..100) >= OFTEN {
            return None;
        }
        match (random.random_range(0..4), self.open.last()) {
            (0, Some(_)) => self.close(),
            (1 | 2, Some(&ino)) => Some(Call::read(ino, 0, ALL, false)),
            _ => {
                let how = OpenHow { access: Access::READ, reads: Reads::Whole, ..OpenHow::default() };
                file.map(|ino| Call::Request(Request::Open { ino, how }))
            }
        }
    }

    /// Closes one of these files.
    pub fn close(&mut self) -> Option<Call<'static>> {
        self.open.pop().map(|ino| Call::Release { ino })
    }
}
