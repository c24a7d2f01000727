//! Advisory locks on files, as `fcntl(2)` and `flock(2)` have them.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// With other shared ones: `F_RDLCK`, `LOCK_SH`.
    Shared,
    /// With none: `F_WRLCK`, `LOCK_EX`.
    Exclusive,
}

/// Whose a lock is, as its client numbers them. A process, or with `flock` or `F_OFD_SETLK` an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// By `flock(2)`. Those locks and others do not see each other.
    pub flock: bool,
    pub number: u64,
}

/// A lock on the bytes from `first` to `last`, inclusive; with `flock` always on all that there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    pub owner: LockOwner,
    pub kind: LockKind,
    pub first: u64,
    pub last: u64,
    /// The process that has asked for it, for others to be told; 0 for those on other machines.
    pub pid: u32,
}

/// A part of a file that an owner has locked. `last` is inclusive.
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

/// All that one owner has locked of one file: ranges in order, of which none overlap and none that touch are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockRanges(Vec<LockRange>);

impl LockRanges {
    /// Makes the bytes from `first` to `last`, inclusive, locked so, or not at all: whatever they were before.
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

    /// The first part that keeps another owner from having such a lock.
    pub fn conflict(&self, kind: LockKind, first: u64, last: u64) -> Option<LockRange> {
        let excludes = |range: &&LockRange| {
            range.overlaps(first, last) && (kind == LockKind::Exclusive || range.kind == LockKind::Exclusive)
        };
        self.0.iter().find(excludes).copied()
    }

    /// Whether all these bytes are locked so.
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

    /// The last bytes of all stand for the last of 16.
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
