//! File handles: numbers of inodes that a process knows. All processes look them up, including
//! those of clients that never got them in a reply, as several NFS servers of one tree do. The
//! inodes may have been removed or renamed meanwhile.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use espalier_proto::{Ino, Request};
use rand::Rng;
use rand::seq::IteratorRandom;

use crate::random::{Random, Seed};

/// One in this many runs has file handles.
const EVERY: u32 = 3;
/// One in this many calls uses a handle.
const SELDOM: u32 = 8;

/// Marks a run with file handles.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    seed: u64,
}

impl Habit {
    pub fn of(seed: u64) -> Option<Self> {
        let is_so = Seed(seed).random("fuzz handles", 0).random_range(0..EVERY) == 0;
        is_so.then_some(Self { seed })
    }
}

/// The handles of all processes of a run; each has the inode's number, and whether it is a
/// directory.
#[derive(Clone, Debug, Default)]
pub struct Exported(Rc<RefCell<BTreeSet<(Ino, bool)>>>);

impl Exported {
    /// Looks all of them up, once.
    pub fn take(&self) -> Vec<Request> {
        self.0.take().into_iter().map(|(ino, _)| by_number(ino)).collect()
    }
}

/// One process's use of handles.
#[derive(Debug)]
pub struct Handles {
    random: Random,
    exported: Exported,
}

impl Handles {
    pub fn new(habit: Habit, process: u32, exported: Exported) -> Self {
        let random = Seed(habit.seed).random("fuzz handles of a process", process.into());
        Self { random, exported }
    }

    /// A reply to the process contained the inode.
    pub fn know(&self, ino: Ino, is_dir: bool) {
        self.exported.0.borrow_mut().insert((ino, is_dir));
    }

    /// A lookup by a handle, before the next other call.
    pub fn next(&mut self) -> Option<Request> {
        if self.random.random_range(0..SELDOM) > 0 {
            return None;
        }
        let (ino, is_dir) = self.exported.0.borrow().iter().choose(&mut self.random).copied()?;
        let is_up = is_dir && self.random.random_range(0..3) == 0;
        Some(if is_up { Request::Parent { dir: ino } } else { by_number(ino) })
    }
}

fn by_number(ino: Ino) -> Request {
    Request::Find { ino, kind: None, open: None }
}
