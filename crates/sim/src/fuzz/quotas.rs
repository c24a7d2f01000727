//! Random quotas: small ones during the run, and at the end, when all ranks know all usage, ones
//! that leave little room.

use std::collections::{BTreeMap, VecDeque};

use espalier_client::{Answer, Call};
use espalier_proto::{Errno, Ino, Name, NewNode, Request, XattrMode};
use rand::Rng;

use crate::Random;
use crate::check::{QUOTAS, USAGES};

/// Percentage of quota calls.
const OFTEN: u32 = 6;

/// Quota settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    /// Limits of bytes are multiples of this.
    pub strip: u64,
}

impl Habit {
    /// The next call, if it concerns the quotas of directory `ino`.
    pub fn next(self, random: &mut Random, ino: Ino) -> Option<Request> {
        if random.random_range(0..100) >= OFTEN {
            return None;
        }
        let which = usize::from(random.random_range(0..3) == 0);
        let name = QUOTAS[which].into();
        Some(match random.random_range(0..8) {
            0..5 => {
                // The root has more usage.
                let times = if ino == Ino::ROOT { 4 } else { 1 };
                let unit = if which == 0 { 1 } else { self.strip / 4 };
                let limit: u64 = times * unit * random.random_range(0..10);
                let value = limit.to_string().into_bytes().into();
                let mode = [XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                let mode = mode[random.random_range(0..mode.len())];
                Request::SetXattr { ino, name, value, mode, kill_sgid: false }
            }
            5 => Request::RemoveXattr { ino, name },
            _ => Request::GetXattr { ino, name },
        })
    }
}

/// Number of names created in a directory: with each, ranks learn the quotas of one rank further up
/// the path.
const TRIALS: u64 = 5;
/// Number of names for which a limit leaves room.
const ROOM: u64 = 3;
const MOST_DIRS: usize = 2;

/// Creates at the end of a run: with the existing quotas, then with one on a directory, then with
/// one on the root.
#[derive(Debug, Default)]
pub struct Trials {
    /// Number of files and directories below each directory.
    usages: BTreeMap<Ino, u64>,
    limited: Vec<(Ino, Box<[u8]>)>,
    /// Remaining trials; `None`: not started.
    left: Option<VecDeque<Trial>>,
}

#[derive(Clone, Debug)]
enum Trial {
    /// Removes a limit.
    Free(Ino, Box<[u8]>),
    /// Sets a limit that leaves little room.
    Limit(Ino),
    Create(Ino, String),
}

impl Trials {
    pub fn learn(&mut self, requested: &Call<'_>, answer: &Result<Answer, Errno>) {
        match (requested, answer) {
            (Call::Request(Request::GetXattr { ino, name }), Ok(Answer::Bytes(xattr))) => {
                let number = std::str::from_utf8(xattr).ok().and_then(|text| text.parse::<u64>().ok());
                if USAGES[..2].contains(&&**name) {
                    *self.usages.entry(*ino).or_default() += number.unwrap_or(0);
                } else if QUOTAS.contains(&&**name) {
                    self.limited.push((*ino, name.clone()));
                }
            }
            (Call::Request(Request::Create { dir, .. }), Ok(Answer::Entry(_))) => {
                for of in [Some(*dir), Some(Ino::ROOT).filter(|root| root != dir)].into_iter().flatten() {
                    *self.usages.entry(of).or_default() += 1;
                }
            }
            _ => {}
        }
    }

    pub fn next(&mut self) -> Option<Call<'static>> {
        if self.left.is_none() {
            self.left = Some(self.all());
        }
        let trial = self.left.as_mut()?.pop_front()?;
        Some(Call::Request(match trial {
            Trial::Free(ino, name) => Request::RemoveXattr { ino, name },
            Trial::Limit(ino) => {
                let limit = self.usages.get(&ino).copied().unwrap_or(0) + ROOM;
                let (name, value) = (QUOTAS[0].into(), limit.to_string().into_bytes().into());
                Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false }
            }
            Trial::Create(dir, text) => {
                let (node, perm, umask, open, exclusive) = (NewNode::Regular, 0o644, 0, None, true);
                // Cannot fail: the name is valid.
                let name = Name::new(text.as_bytes()).unwrap_or_else(|_| Name::lowest());
                Request::Create { dir, name, node, perm, umask, open, exclusive, writeback: None }
            }
        }))
    }

    fn all(&self) -> VecDeque<Trial> {
        let dirs: Vec<Ino> =
            self.usages.keys().rev().copied().filter(|dir| *dir != Ino::ROOT).take(MOST_DIRS).collect();
        let named = |what: &str, dir: &Ino, at: u64| Trial::Create(*dir, format!("{what} {at}"));
        let mut all = VecDeque::new();
        all.extend(dirs.iter().flat_map(|dir| (0..2).map(move |at| named("there", dir, at))));
        all.extend(self.limited.iter().map(|(ino, name)| Trial::Free(*ino, name.clone())));
        for dir in &dirs {
            for of in [*dir, Ino::ROOT] {
                all.push_back(Trial::Limit(of));
                all.extend((0..TRIALS).map(|at| named(if of == *dir { "own" } else { "root" }, dir, at)));
                all.push_back(Trial::Free(of, QUOTAS[0].into()));
            }
        }
        all
    }
}
