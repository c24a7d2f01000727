//! Directories that a process makes and uses exclusively for a while, as an unpacking or compiling
//! program does: until another client lists the root, its client acknowledges changes before
//! servers have applied them (write-back).

use espalier_client::{Answer, Call};
use espalier_proto::{Access, Errno, FileType, Ino, Name, NewNode, OpenHow, Request, SetAttr};
use rand::Rng;

use crate::random::{Random, Seed};

/// In one in this many runs processes use exclusive directories.
const EVERY: u32 = 6;
/// One in this many calls makes a new directory.
const SELDOM: u32 = 25;
/// Number of calls in one directory.
const CALLS: u32 = 12;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz alone", 0).random_range(0..EVERY) == 0
}

/// The exclusive directory of a process.
#[derive(Debug)]
pub struct ExclusiveDir {
    number: u32,
    made: u32,
    /// The directory, and the number of remaining calls in it.
    dir: Option<(Ino, u32)>,
    /// The file that was made and opened last, while it is written.
    file: Option<Ino>,
}

impl ExclusiveDir {
    pub fn new(number: u32) -> Self {
        Self { number, made: 0, dir: None, file: None }
    }

    /// Learns from the reply to a call.
    pub fn learn(&mut self, requested: &Call<'_>, answer: &Result<Answer, Errno>) {
        if let (
            Call::Request(Request::Create { node: NewNode::Directory, name, .. }),
            Ok(Answer::Entry(entry)),
        ) = (requested, answer)
            && *name == self.name()
        {
            self.dir = Some((entry.attr.ino, CALLS));
        }
        // The process goes on in a directory that it has just made in its own.
        if let (
            Call::Request(Request::Create { node: NewNode::Directory, dir, .. }),
            Ok(Answer::Entry(entry)),
        ) = (requested, answer)
            && let Some((_, left)) = self.dir.filter(|(own, _)| own == dir)
        {
            self.dir = Some((entry.attr.ino, left));
        }
        if let (Call::Request(Request::Create { dir, .. }), Ok(Answer::Created(entry, _))) =
            (requested, answer)
        {
            let is_new = entry.attr.kind == FileType::Regular && self.dir.is_some_and(|(own, _)| own == *dir);
            self.file = is_new.then_some(entry.attr.ino);
        }
    }

    /// The file that was just made, if the process continues with it.
    pub fn file(&mut self, random: &mut Random, is_open: impl Fn(&Ino) -> bool) -> Option<Ino> {
        self.file = self.file.filter(is_open);
        self.file.filter(|_| random.random_range(0..4) > 0)
    }

    fn name(&self) -> Name {
        Name::new(format!("own {} {}", self.number, self.made).as_bytes()).unwrap_or_else(|_| Name::lowest())
    }

    /// The next call in the exclusive directory, if any.
    pub fn next(&mut self, random: &mut Random) -> Option<Request> {
        let Some((dir, left)) = self.dir.filter(|(_, left)| *left > 0) else {
            if random.random_range(0..SELDOM) > 0 {
                return None;
            }
            self.made += 1;
            let (perm, umask, open, exclusive, writeback) = (0o777, 0, None, true, None);
            let (dir, name, node) = (Ino::ROOT, self.name(), NewNode::Directory);
            return Some(Request::Create { dir, name, node, perm, umask, open, exclusive, writeback });
        };
        self.dir = Some((dir, left - 1));
        let name = Name::new(NAMES[random.random_range(0..NAMES.len())].as_bytes()).ok()?;
        let access = Access::READ | Access::WRITE;
        let how = OpenHow { access, truncate: random.random(), ..OpenHow::default() };
        Some(match random.random_range(0..20) {
            0..7 => {
                let (node, perm, umask, writeback) = (NewNode::Regular, 0o666, 0o022, None);
                let (open, exclusive) = (random.random::<bool>().then_some(how), random.random());
                Request::Create { dir, name, node, perm, umask, open, exclusive, writeback }
            }
            7 | 8 => {
                let (node, open, exclusive, writeback) = (NewNode::Directory, None, true, None);
                Request::Create { dir, name, node, perm: 0o777, umask: 0, open, exclusive, writeback }
            }
            9 => Request::RmDir { dir, name, time: None },
            10 => {
                let perm = Some(if random.random() { 0o777 } else { 0o775 });
                Request::SetAttr { ino: dir, set: SetAttr { perm, ..SetAttr::default() } }
            }
            11..14 => Request::Unlink { dir, name, time: None },
            14..16 => Request::Lookup { dir, name },
            16 | 17 => Request::GetAttr { ino: dir },
            18 => Request::ReadDir { dir, after: 0, limit: 100, plus: random.random() },
            _ => Request::Fsync { ino: dir },
        })
    }
}
