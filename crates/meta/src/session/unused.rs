//! Pools of inode numbers for metadata write-back: a client names new files by them before the
//! server has created these. Numbers belong to the client until its session ends; unused ones are
//! never allocated again.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino};
use serde::{Deserialize, Serialize};

use crate::state::State;

/// Ranges `[first, end)` of numbers, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unused(Vec<(u64, u64)>);

impl Unused {
    /// Maximum number of unused numbers of a client.
    pub(crate) const MAX: u64 = 1024;

    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|(first, end)| end - first).sum()
    }

    fn place(&self, ino: Ino) -> Option<usize> {
        self.0.iter().position(|(first, end)| (*first..*end).contains(&ino.0))
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.place(ino).is_some()
    }

    /// Adds a range above all others.
    fn add(&mut self, first: u64, end: u64) {
        match self.0.last_mut() {
            Some((_, last)) if *last == first => *last = end,
            _ => self.0.push((first, end)),
        }
    }

    pub(super) fn take(&mut self, ino: Ino) {
        let Some(at) = self.place(ino) else { return };
        let (first, end) = self.0[at];
        let left = [(first, ino.0), (ino.0 + 1, end)];
        self.0.splice(at..=at, left.into_iter().filter(|(first, end)| first < end));
    }

    /// The first number above all ranges.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |(_, end)| *end)
    }

    /// True if the ranges are valid as a decoded record.
    pub(super) fn is_sound(&self) -> bool {
        let follows = |two: &[(u64, u64)]| two[0].1 <= two[1].0;
        self.0.iter().all(|(first, end)| first < end)
            && self.0.windows(2).all(follows)
            && self.len() <= Self::MAX
    }
}

impl State {
    /// The client that has a number in its pool.
    pub(crate) fn owner_of_unused(&self, ino: Ino) -> Option<ClientId> {
        let owner = self.sessions.sorted().find(|(_, session)| session.unused.has(ino));
        owner.map(|(client, _)| *client)
    }

    pub(crate) fn apply_given(&mut self, client: ClientId, first: Ino, count: u32) {
        let end = first.0 + u64::from(count);
        self.numbers.note_used(end);
        self.sessions.change(client, &mut self.changes, |session| session.unused.add(first.0, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_few_as_can_be() {
        let mut unused = Unused::default();
        unused.add(10, 14);
        unused.add(14, 16);
        unused.add(20, 21);
        assert_eq!(unused.0, [(10, 16), (20, 21)]);
        for (ino, left) in [
            (12, &[(10, 12), (13, 16), (20, 21)][..]),
            (12, &[(10, 12), (13, 16), (20, 21)]),
            (20, &[(10, 12), (13, 16)]),
            (10, &[(11, 12), (13, 16)]),
            (11, &[(13, 16)]),
            (15, &[(13, 15)]),
            (16, &[(13, 15)]),
        ] {
            unused.take(Ino(ino));
            assert_eq!(unused.0, left, "after {ino}");
            assert!(unused.is_sound() && !unused.has(Ino(ino)));
        }
        assert_eq!((unused.len(), unused.end()), (2, 15));
    }

    #[test]
    fn foreign_record_is_not_sound() {
        for runs in [&[(3, 3)][..], &[(4, 3)], &[(3, 5), (4, 6)], &[(5, 6), (3, 4)], &[(0, 1025)]] {
            assert!(!Unused(runs.to_vec()).is_sound(), "{runs:?}");
        }
        assert!(Unused(Vec::from([(3, 5), (5, 6)])).is_sound());
    }
}
