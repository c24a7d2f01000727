//! Random access control lists on directories and files, set between the other calls of a process.
//! They use a separate random generator, so that other calls do not depend on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use espalier_proto::{Ino, Request, SetAttr, XattrMode};
use rand::Rng;
use rand::seq::IndexedRandom;

use crate::check::{ACCESS_LIST, DEFAULT_LIST};
use crate::random::{Random, Seed};

/// Settings of lists in a run.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    seed: u64,
    /// Use default lists too.
    defaults: bool,
}

/// One in this many runs uses lists.
const EVERY: u32 = 4;
/// One in this many of those runs has default lists on directories where clients make files: the
/// check gives up if a file's list is unknown.
const VAGUE: u32 = 3;

impl Habit {
    /// `by_client`: clients make files themselves.
    pub fn of(seed: u64, by_client: bool) -> Option<Self> {
        let mut random = Seed(seed).random("fuzz lists", 0);
        let is_so = random.random_range(0..EVERY) == 0;
        let defaults = !by_client || random.random_range(0..VAGUE) == 0;
        is_so.then_some(Self { seed, defaults })
    }
}

/// Users and groups in entries: those of processes, and others.
const USERS: [u32; 3] = [1001, 1002, 1003];
const GROUPS: [u32; 4] = [0, 100, 101, 102];

/// Supplementary groups of a process; `None`: the server asks for them.
pub fn groups(process: u32) -> Option<Arc<[u32]>> {
    [None, Some([102].as_slice()), Some([101, 102].as_slice())][process as usize % 5 % 3].map(Arc::from)
}

/// Tags of required entries, of named users, of named groups, and of the mask.
const NEEDED: [u16; 3] = [1, 4, 32];
const NAMED_USER: u16 = 2;
const NAMED_GROUP: u16 = 8;
const MASK: u16 = 16;

/// The lists of one process.
#[derive(Debug)]
pub struct Lists {
    random: Random,
    defaults: bool,
    /// First sets a default list on the root, so that nearly everything inherits one.
    begins: bool,
    /// The last call was one of these.
    was_one: bool,
}

impl Lists {
    pub fn new(habit: Habit, process: u32) -> Self {
        let mut random = Seed(habit.seed).random("fuzz lists of a process", process.into());
        let begins = process == 0 && habit.defaults && random.random();
        Self { random, defaults: habit.defaults, begins, was_one: false }
    }

    /// A call on the list of a known inode, if one precedes the next other call.
    pub fn next(&mut self, dirs: &[Ino], files: &[Ino], links: &[Ino]) -> Option<Request> {
        let random = &mut self.random;
        if std::mem::take(&mut self.begins) {
            let (ino, name, value) = (Ino::ROOT, DEFAULT_LIST.into(), list(random, true));
            return Some(Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false });
        }
        if self.was_one || random.random_range(0..6) > 0 {
            self.was_one = false;
            return None;
        }
        self.was_one = true;
        let newest =
            |all: &[Ino], random: &mut Random| all[all.len().saturating_sub(4)..].choose(random).copied();
        let file =
            if random.random_range(0..20) == 0 { newest(links, random) } else { newest(files, random) };
        let file = file.filter(|_| random.random());
        // A process without access to the root has no further effect.
        let dir = newest(dirs, random).filter(|dir| *dir != Ino::ROOT || random.random_range(0..4) == 0);
        let ino = file.or(dir)?;
        let is_default = self.defaults && random.random_range(0..if file.is_some() { 20 } else { 2 }) == 0;
        let name: Box<[u8]> = if is_default { DEFAULT_LIST } else { ACCESS_LIST }.into();
        Some(match random.random_range(0..100) {
            0..50 => {
                let (value, mode) = (list(random, ino == Ino::ROOT), any_mode(random));
                Request::SetXattr { ino, name, value, mode, kill_sgid: false }
            }
            50..55 => {
                // A list without entries.
                let value = list(random, false)[..4].into();
                Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false }
            }
            55..60 => {
                let value = spoiled(random);
                Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false }
            }
            60..70 => Request::RemoveXattr { ino, name },
            70..80 => Request::GetXattr { ino, name },
            80..84 => Request::ListXattr { ino },
            84..88 => Request::GetAttr { ino },
            _ => {
                let perm = random.random_range(0..8) << 3 | *[0o705, 0o700, 0o707].choose(random)?;
                let perm = Some(if ino == Ino::ROOT { perm | 0o007 } else { perm });
                Request::SetAttr { ino, set: SetAttr { perm, ..SetAttr::default() } }
            }
        })
    }
}

/// Any mode; it has no effect on lists.
fn any_mode(random: &mut Random) -> XattrMode {
    [XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace][random.random_range(0..4)]
}

type Entries = BTreeMap<(u16, u32), u16>;

fn entries(random: &mut Random, open: bool) -> Entries {
    let right = |random: &mut Random| *[7, 7, 7, 6, 5, 4, 3, 0].choose(random).unwrap_or(&7);
    let mut entries: Entries = NEEDED.map(|tag| ((tag, u32::MAX), right(random))).into();
    entries.insert((NEEDED[0], u32::MAX), if random.random_range(0..4) == 0 { right(random) } else { 7 });
    for (tag, ids) in [(NAMED_USER, USERS.as_slice()), (NAMED_GROUP, &GROUPS)] {
        let named = ids.iter().filter(|_| random.random_range(0..3) == 0).copied().collect::<Vec<_>>();
        entries.extend(named.into_iter().map(|id| ((tag, id), right(random))));
    }
    if entries.len() > NEEDED.len() || random.random_range(0..3) == 0 {
        entries.insert((MASK, u32::MAX), right(random));
    }
    if open {
        entries.insert((NEEDED[2], u32::MAX), 7);
    }
    entries
}

/// A list in the kernel's encoding. `open`: others have all permissions.
fn list(random: &mut Random, open: bool) -> Box<[u8]> {
    encoded(entries(random, open))
}

/// An invalid list.
fn spoiled(random: &mut Random) -> Box<[u8]> {
    let mut entries = entries(random, true);
    match random.random_range(0..4) {
        0 => drop(entries.remove(&(NEEDED[random.random_range(0..NEEDED.len())], u32::MAX))),
        1 => drop(entries.insert((MASK, u32::MAX), 8)),
        2 => drop(entries.insert((64, 0), 7)),
        _ => {
            entries.insert((NAMED_USER, 1001), 7);
            entries.remove(&(MASK, u32::MAX));
        }
    }
    encoded(entries)
}

fn encoded(entries: Entries) -> Box<[u8]> {
    let entry = |((tag, id), right): ((u16, u32), u16)| {
        let bytes = tag.to_le_bytes().into_iter().chain(right.to_le_bytes());
        bytes.chain(id.to_le_bytes())
    };
    2_u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect()
}
