//! Runs in which little is changed and much is looked at, so that leases are given, used and revoked: where all are in a hurry to change the
//! same names, nothing is leased.

use espalier_proto::{Ino, Name, Request};
use rand::Rng;

use crate::random::{Random, Seed};

/// In so many runs processes look rather than change.
const EVERY: u32 = 4;
/// Of a hundred calls so many only look.
const OFTEN: u32 = 85;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz looks", 0).random_range(0..EVERY) == 0
}

/// The next call, if it is one that only looks: at names in `dir`, or at what `node` is.
pub fn next(random: &mut Random, dir: Ino, name: Name, node: Ino) -> Option<Request> {
    (random.random_range(0..100) < OFTEN).then(|| match random.random_range(0..6) {
        // Its names are cached only while it is leased itself.
        0 => Request::GetAttr { ino: Ino::ROOT },
        1 | 2 => Request::Lookup { dir: Ino::ROOT, name },
        3 => Request::Lookup { dir, name },
        4 => Request::ReadDir { dir, after: 0, limit: 100, plus: random.random() },
        _ => Request::GetAttr { ino: node },
    })
}
