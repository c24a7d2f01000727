//! Operations of the threads, and their effect on the names and the file.
//!
//! No operation makes hard links or reads link counts: Linux looks up a name and uses its inode in
//! two steps, also on ext4.

use std::path::Path;

use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ESTALE};

use super::Rules;

pub const DIRS: [&str; 2] = ["one", "two"];
/// A file whose first four bytes are a little-endian number.
pub const REGISTER: &str = "register";
const NAMES: [&str; 2] = ["x", "y"];
const PLACES: usize = DIRS.len() * NAMES.len();

/// A name in one of the directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathIndex(pub(super) usize);

impl PathIndex {
    /// The path relative to the common directory.
    pub fn path(self) -> String {
        format!("{}/{}", DIRS[self.0 / NAMES.len()], NAMES[self.0 % NAMES.len()])
    }
}

/// Unique contents of a symbolic link or of the file; identifies the writer.
type Token = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Plain,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaceOp {
    Symlink(PathIndex, Token),
    ReadLink(PathIndex),
    MkDir(PathIndex),
    RmDir(PathIndex),
    Unlink(PathIndex),
    Rename(PathIndex, PathIndex, How),
    Read,
    Write(Token),
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Done,
    Number(u32),
    Error(i32),
}

impl Seen {
    /// Number in the target of a symbolic link; 0 if no operation made it.
    pub fn target(target: &Path) -> Self {
        Self::Number(target.to_str().and_then(|text| text.parse().ok()).unwrap_or(0))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum PathState {
    #[default]
    Free,
    Link(Token),
    Dir,
}

/// State of the names and the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RaceState {
    places: [PathState; PLACES],
    register: Token,
}

impl RaceOp {
    /// `unique`: a number used only by this operation.
    pub fn random(rng: &mut fastrand::Rng, renames: &[How], unique: u32) -> Self {
        let (a, b) = (PathIndex(rng.usize(..PLACES)), PathIndex(rng.usize(..PLACES)));
        match rng.u8(..20) {
            0..4 => Self::Symlink(a, unique),
            4..7 => Self::ReadLink(a),
            7..9 => Self::MkDir(a),
            9..11 => Self::RmDir(a),
            11..13 => Self::Unlink(a),
            13..17 => Self::Rename(a, b, renames[rng.usize(..renames.len())]),
            17..19 => Self::Read,
            _ => Self::Write(unique),
        }
    }
}

impl RaceOp {
    /// True if a concurrent change excuses the result `seen` without an effect: a rename may see
    /// one name before and the other after an exchange; or, on the `same_mount`, a name that is
    /// being made, moved or removed is still cached.
    pub fn is_excused_by(self, seen: Seen, change: RaceOp, same_mount: bool) -> bool {
        let (from, to, how) = match change {
            Self::Rename(from, to, how) => (from, to, how),
            // No other operation looks up a name without waiting for concurrent changes of it.
            Self::MkDir(place) | Self::Symlink(place, _) => {
                return same_mount && self == Self::ReadLink(place) && seen == Seen::Error(ENOENT);
            }
            Self::RmDir(place) | Self::Unlink(place) => {
                return same_mount && self == Self::ReadLink(place) && seen != Seen::Error(ENOENT);
            }
            Self::ReadLink(_) | Self::Read | Self::Write(_) => return false,
        };
        match (self, seen) {
            (Self::Rename(a, b, How::Plain | How::Exchange), Seen::Done) => {
                how == How::Exchange && ((a, b) == (from, to) || (a, b) == (to, from))
            }
            (_, Seen::Done) => false,
            (Self::Rename(a, b, _), _) => same_mount && [a, b].iter().any(|place| [from, to].contains(place)),
            (
                Self::ReadLink(a) | Self::RmDir(a) | Self::Unlink(a) | Self::Symlink(a, _) | Self::MkDir(a),
                _,
            ) => same_mount && [from, to].contains(&a),
            (Self::Read | Self::Write(_), _) => false,
        }
    }
}

impl RaceState {
    /// The state after an operation with the result `seen`, if that is possible.
    pub fn after(&self, op: RaceOp, seen: Seen, rules: Rules) -> Option<Self> {
        let mut next = self.clone();
        if next.apply(op) == seen {
            return Some(next);
        }
        let did_nothing = match (op, seen) {
            (_, Seen::Error(ESTALE)) => true,
            (RaceOp::Rename(..), Seen::Error(EEXIST | EISDIR | ENOTDIR)) => true,
            (RaceOp::Rename(from, to, How::Plain | How::Exchange), Seen::Done) => {
                self.places[from.0] == PathState::Free || self.places[to.0] == PathState::Free
            }
            _ => false,
        };
        (rules == Rules::SeveralMounts && did_nothing).then(|| self.clone())
    }

    /// Executes an operation and returns its result.
    fn apply(&mut self, op: RaceOp) -> Seen {
        use PathState::{Dir, Free, Link};
        let old = |place: PathIndex| self.places[place.0];
        let outcome = match op {
            RaceOp::Symlink(a, _) | RaceOp::MkDir(a) if old(a) != Free => Err(EEXIST),
            RaceOp::Symlink(a, token) => self.put([(a, Link(token))]),
            RaceOp::MkDir(a) => self.put([(a, Dir)]),
            RaceOp::ReadLink(a) => match old(a) {
                Free => Err(ENOENT),
                Dir => Err(EINVAL),
                Link(token) => Ok(Seen::Number(token)),
            },
            RaceOp::RmDir(a) => match old(a) {
                Free => Err(ENOENT),
                Link(_) => Err(ENOTDIR),
                Dir => self.put([(a, Free)]),
            },
            RaceOp::Unlink(a) => match old(a) {
                Free => Err(ENOENT),
                Dir => Err(EISDIR),
                Link(_) => self.put([(a, Free)]),
            },
            RaceOp::Rename(a, b, how) => match (old(a), old(b), how) {
                (Free, ..) | (_, Free, How::Exchange) => Err(ENOENT),
                (_, Link(_) | Dir, How::NoReplace) => Err(EEXIST),
                (from, to, How::Exchange) => self.put([(a, to), (b, from)]),
                _ if a == b => Ok(Seen::Done),
                (Dir, Link(_), How::Plain) => Err(ENOTDIR),
                (Link(_), Dir, How::Plain) => Err(EISDIR),
                (from, ..) => self.put([(a, Free), (b, from)]),
            },
            RaceOp::Read => Ok(Seen::Number(self.register)),
            RaceOp::Write(value) => {
                self.register = value;
                Ok(Seen::Done)
            }
        };
        outcome.unwrap_or_else(Seen::Error)
    }

    fn put<const N: usize>(&mut self, entries: [(PathIndex, PathState); N]) -> Result<Seen, i32> {
        for (place, entry) in entries {
            self.places[place.0] = entry;
        }
        Ok(Seen::Done)
    }
}
