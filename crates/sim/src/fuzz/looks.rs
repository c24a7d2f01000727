//! Runs with mostly reads, in which leases are granted, used and revoked. Under heavy changes of
//! the same names nothing is leased.

use espalier_proto::{Ino, Name, Request};
use rand::Rng;

use crate::random::{Random, Seed};

/// In one in this many runs processes mostly read.
const EVERY: u32 = 4;
/// Percentage of reads in these runs.
const OFTEN: u32 = 85;

pub fn are_in(seed: u64) -> bool {
    Seed(seed).random("fuzz looks", 0).random_range(0..EVERY) == 0
}

/// The next call, if it is a read: of a name in `dir`, or of `node`.
pub fn next(random: &mut Random, dir: Ino, name: Name, node: Ino) -> Option<Request> {
    (random.random_range(0..100) < OFTEN).then(|| match random.random_range(0..6) {
        // Names in the root are cached only while the root itself is leased.
        0 => Request::GetAttr { ino: Ino::ROOT },
        1 | 2 => Request::Lookup { dir: Ino::ROOT, name },
        3 => Request::Lookup { dir, name },
        4 => Request::ReadDir { dir, after: 0, limit: 100, plus: random.random() },
        _ => Request::GetAttr { ino: node },
    })
}
