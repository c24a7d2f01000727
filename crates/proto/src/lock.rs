//! Advisory file locks with the semantics of `fcntl(2)` and `flock(2)`.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// Lock mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Compatible with other shared locks: `F_RDLCK`, `LOCK_SH`.
    Shared,
    /// Compatible with no other lock: `F_WRLCK`, `LOCK_EX`.
    Exclusive,
}

/// Owner of a lock, as numbered by its client: a process, or an open file with `flock` or
/// `F_OFD_SETLK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// The lock was taken by `flock(2)`. Such locks and `fcntl` locks do not conflict.
    pub flock: bool,
    pub number: u64,
}

/// A lock on the bytes from `first` to `last`, inclusive. With `flock` it covers the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    pub owner: LockOwner,
    pub kind: LockKind,
    pub first: u64,
    pub last: u64,
    /// Process that requested the lock, as reported to others; 0 if it runs on another machine.
    pub pid: u32,
}

/// A locked range of a file. `last` is inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    pub first: u64,
    pub last: u64,
    pub kind: LockKind,
}

impl LockRange {
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }
}

/// The locks of one owner on one file: ascending, disjoint; adjacent ranges differ in mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockRanges(Vec<LockRange>);

impl LockRanges {
    /// Sets the mode of the bytes from `first` to `last`, inclusive; `None` unlocks them.
    pub fn set(&mut self, kind: Option<LockKind>, first: u64, last: u64) {
        let mut ranges = Vec::with_capacity(self.0.len() + 2);
        for range in self.0.drain(..) {
            if !range.overlaps(first, last) {
                ranges.push(range);
                continue;
            }
            if range.first < first {
                ranges.push(LockRange { last: first - 1, ..range });
            }
            if range.last > last {
                ranges.push(LockRange { first: last + 1, ..range });
            }
        }
        ranges.extend(kind.map(|kind| LockRange { first, last, kind }));
        ranges.sort_unstable_by_key(|range| range.first);
        ranges.dedup_by(|next, range| {
            let is_one = next.kind == range.kind && range.last.checked_add(1) == Some(next.first);
            if is_one {
                range.last = next.last;
            }
            is_one
        });
        self.0 = ranges;
    }

    /// The first range that conflicts with such a lock of another owner.
    pub fn conflict(&self, kind: LockKind, first: u64, last: u64) -> Option<LockRange> {
        let excludes = |range: &&LockRange| {
            range.overlaps(first, last) && (kind == LockKind::Exclusive || range.kind == LockKind::Exclusive)
        };
        self.0.iter().find(excludes).copied()
    }

    /// True if all these bytes are locked in mode `kind`.
    pub fn covers(&self, kind: LockKind, first: u64, last: u64) -> bool {
        self.0.iter().any(|range| range.kind == kind && range.first <= first && last <= range.last)
    }

    pub fn iter(&self) -> impl Iterator<Item = LockRange> + '_ {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest offset stands for the last of 16 bytes.
    const ENDS: [u64; 16] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, u64::MAX - 4, u64::MAX - 3, u64::MAX - 2, u64::MAX - 1, u64::MAX];

    /// xorshift
    fn random(state: &mut u64) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 8) as usize
    }

    #[test]
    fn ranges_are_as_an_array_of_bytes() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        for _ in 0..500 {
            let (mut ranges, mut bytes) = (LockRanges::default(), [None; 16]);
            for _ in 0..30 {
                let (a, b) = (random(&mut state) % 16, random(&mut state) % 16);
                let (first, last) = (a.min(b), a.max(b));
                let kinds = [None, Some(LockKind::Shared), Some(LockKind::Exclusive)];
                let kind = kinds[random(&mut state) % 3];
                ranges.set(kind, ENDS[first], ENDS[last]);
                bytes[first..=last].fill(kind);
                for (at, byte) in bytes.iter().enumerate() {
                    let end = ENDS[at];
                    let conflict = |kind| ranges.conflict(kind, end, end).map(|range| range.kind);
                    assert_eq!(conflict(LockKind::Exclusive), *byte);
                    assert_eq!(conflict(LockKind::Shared), byte.filter(|kind| *kind == LockKind::Exclusive));
                    assert_eq!(byte.is_some_and(|kind| ranges.covers(kind, end, end)), byte.is_some());
                }
                let parts: Vec<_> = ranges.iter().collect();
                for pair in parts.windows(2) {
                    let touch = pair[0].last + 1 == pair[1].first && pair[0].kind == pair[1].kind;
                    assert!(pair[0].last < pair[1].first && !touch, "{parts:?}");
                }
            }
        }
    }
}
