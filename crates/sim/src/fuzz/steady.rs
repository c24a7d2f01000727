//! Processes that open one file and from then on only write it, and others that only read it, with
//! the kernel's cache where nobody may write. A client with direct access to the data pool goes on
//! writing while no server reaches it.

use espalier_client::{Answer, Call};
use espalier_proto::{Access, Errno, Ino, Name, NewNode, OpenHow, Request};
use rand::Rng;

use super::random_calls::{CALLER, UNWELL};
use crate::process::{Act, Program};
use crate::random::Random;
use crate::time::Nanos;

/// Number of reads or writes of a process.
const CALLS: u32 = 250;
/// Longest pause between two of them.
const PAUSE: u64 = 200_000_000;
/// Number of reads after which a file is opened again: it is cached if nobody may write it then.
const READS: u32 = 4;
/// Size of a file in strips.
const STRIPS: u64 = 4;

/// See the module description.
#[derive(Debug)]
pub struct SteadyProcess {
    /// Number of the process, unique in the run.
    number: u32,
    /// Number of the file.
    file: u32,
    writes: bool,
    strip: u64,
    /// The file's inode.
    known: Option<Ino>,
    is_open: bool,
    /// Number of reads since the file was opened.
    reads: u32,
    /// The file has its size.
    is_filled: bool,
    left: u32,
    rests: bool,
    written: u32,
}

impl SteadyProcess {
    /// The processes of all clients but the last, with their clients: each client writes a file
    /// that the next one reads. `number`: of the first process.
    pub fn all(clients: u32, number: u32, strip: u64) -> Vec<(u32, Self)> {
        let count = clients - 1;
        let process = |index: u32| {
            let (client, writes) = (index % count, index < count);
            let file = if writes { client } else { (client + 1) % count };
            let process = Self {
                number: number + index,
                file,
                writes,
                strip,
                known: None,
                is_open: false,
                reads: 0,
                is_filled: false,
                left: CALLS,
                rests: false,
                written: 0,
            };
            (client, process)
        };
        (0..2 * count).map(process).collect()
    }

    fn how(&self) -> OpenHow {
        let access = if self.writes { Access::READ | Access::WRITE } else { Access::READ };
        OpenHow { access, ..OpenHow::default() }
    }

    fn open(&self) -> Option<Request> {
        let how = self.how();
        if let Some(ino) = self.known {
            return Some(Request::Open { ino, how });
        }
        let name = Name::new(format!("steady {}", self.file).as_bytes()).ok()?;
        let open = Some(how);
        let (dir, node, perm, umask) = (Ino::ROOT, NewNode::Regular, 0o666, 0);
        Some(Request::Create { dir, name, node, perm, umask, open, exclusive: false, writeback: None })
    }

    fn next(&mut self, random: &mut Random, ino: Ino) -> Call<'static> {
        self.left -= 1;
        let size = STRIPS * self.strip;
        if !self.writes {
            self.reads += 1;
            // To its end, so that the kernel caches it.
            return Call::read(ino, 0, size as u32 + 1, true);
        }
        self.written += 1;
        let tag = [self.number as u8, self.written as u8, (self.written >> 8) as u8];
        let (offset, length) = match self.is_filled {
            true => (random.random_range(0..STRIPS) * self.strip, self.strip),
            false => (0, size),
        };
        self.is_filled = true;
        let bytes: Vec<u8> = (0..length as usize).map(|at| tag[at % tag.len()]).collect();
        Call::write(ino, offset, bytes.into(), false)
    }
}

impl Program for SteadyProcess {
    fn step(&mut self, _: Nanos, random: &mut Random, answer: Option<Result<Answer, Errno>>) -> Act {
        match answer {
            Some(Ok(Answer::Created(entry, _))) => {
                (self.known, self.is_open) = (Some(entry.attr.ino), true);
            }
            Some(Ok(Answer::Opened(_))) => self.is_open = true,
            Some(Err(_)) => {
                // The session may have ended, and the open file with it.
                (self.is_open, self.reads, self.rests) = (false, 0, true);
                self.left = self.left.saturating_sub(1);
                return Act::Pause(UNWELL);
            }
            _ => {}
        }
        if !std::mem::replace(&mut self.rests, true) && self.left > 0 {
            return Act::Pause(Nanos(random.random_range(0..PAUSE)));
        }
        self.rests = false;
        let call = match self.known.filter(|_| self.is_open) {
            Some(ino) if self.left > 0 && self.reads < READS => self.next(random, ino),
            Some(ino) => {
                (self.is_open, self.reads) = (false, 0);
                Call::Release { ino }
            }
            None if self.left > 0 => match self.open() {
                Some(request) => Call::Request(request),
                None => return Act::End,
            },
            None => return Act::End,
        };
        Act::Call(CALLER, call)
    }
}
