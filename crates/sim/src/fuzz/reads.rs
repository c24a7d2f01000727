//! Files that are opened to be read and for nothing else, again and again, as programs read what they are built of: their client tells servers
//! of that only if it must.

use espalier_client::{Answer, Call};
use espalier_proto::{Access, Errno, Ino, OpenHow, Reads, Request};
use rand::Rng;

use crate::random::{Random, Seed};

/// In so many runs processes read so.
const EVERY: u32 = 3;
/// Of a hundred calls so many are about that.
const OFTEN: u32 = 50;
/// More than any file holds.
const ALL: u32 = 1 << 16;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz reads", 0).random_range(0..EVERY) == 0
}

/// Who reads so.
#[derive(Debug, Default)]
pub struct Reader {
    open: Vec<Ino>,
}

impl Reader {
    /// What comes of a call. Whether it has opened a file so.
    pub fn learn(&mut self, asked: &Call<'_>, answer: &Result<Answer, Errno>) -> bool {
        let (Call::Request(Request::Open { ino, how }), Ok(Answer::Opened(_))) = (asked, answer) else {
            return false;
        };
        let is_own = how.reads == Reads::Whole;
        if is_own {
            self.open.push(*ino);
        }
        is_own
    }

    /// A file is not open any more.
    pub fn lose(&mut self, ino: Ino) {
        self.open.retain(|open| *open != ino);
    }

    /// The next call, if it is one of these. `file`: one that may be read.
    pub fn next(&mut self, random: &mut Random, file: Option<Ino>) -> Option<Call<'static>> {
        if random.random_range(0..100) >= OFTEN {
            return None;
        }
        match (random.random_range(0..4), self.open.last()) {
            (0, Some(_)) => self.close(),
            (1 | 2, Some(&ino)) => Some(Call::Read { ino, offset: 0, size: ALL, noatime: false }),
            _ => {
                let how = OpenHow { access: Access::READ, reads: Reads::Whole, ..OpenHow::default() };
                file.map(|ino| Call::Request(Request::Open { ino, how }))
            }
        }
    }

    /// Closes one of them.
    pub fn close(&mut self) -> Option<Call<'static>> {
        self.open.pop().map(|ino| Call::Release { ino })
    }
}
