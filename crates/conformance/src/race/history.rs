//! Linearizability check (J. M. Wing, C. Gong, "Testing and Verifying Concurrent Objects", 1993):
//! each operation takes effect at some instant between its call and its return.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::Duration;

use super::Rules;
use super::op::{RaceOp, RaceState, Seen};

/// A completed operation of a thread, with the times of its call and return.
#[derive(Clone, Copy, Debug)]
pub struct Did {
    pub thread: usize,
    /// Index of the path.
    pub way: usize,
    pub op: RaceOp,
    pub seen: Seen,
    pub from: Duration,
    pub to: Duration,
}

/// True if the rules explain all results.
pub fn is_explained(history: &[Did], rules: Rules) -> bool {
    match rules {
        Rules::Strict => has_an_order(history, rules),
        Rules::SeveralMounts => {
            let is_of_file = |did: &&Did| matches!(did.op, RaceOp::Read | RaceOp::Write(_));
            let (file, names): (Vec<&Did>, Vec<_>) = history.iter().partition(is_of_file);
            is_regular(&file) && has_an_order(&names.into_iter().copied().collect::<Vec<_>>(), rules)
        }
    }
}

/// True if each read returned the last preceding write or a concurrent one (regular register; L.
/// Lamport, "On Interprocess Communication", 1986).
fn is_regular(file: &[&Did]) -> bool {
    let writes = || file.iter().filter(|did| matches!(did.op, RaceOp::Write(_)));
    file.iter().filter(|did| did.op == RaceOp::Read).all(|read| {
        let written =
            writes().find(|did| matches!(did.op, RaceOp::Write(value) if read.seen == Seen::Number(value)));
        let (from, to) = match written {
            Some(write) => (write.from, write.to),
            None if read.seen == Seen::Number(0) => (Duration::ZERO, Duration::ZERO),
            None => return false,
        };
        let is_overwritten = |by: &&Did| by.from > to && by.to < read.from;
        from <= read.to && !writes().any(is_overwritten)
    })
}

/// True if some order of the operations, at most 64, explains all results.
fn has_an_order(history: &[Did], rules: Rules) -> bool {
    assert!(history.len() <= 64, "their set is a number");
    let all = if history.len() == 64 { u64::MAX } else { (1 << history.len()) - 1 };
    let is_excused: Vec<bool> =
        history.iter().map(|did| rules == Rules::SeveralMounts && did.is_excused(history)).collect();
    // Visited states: the set of executed operations, and the resulting state.
    let mut tried = HashSet::new();
    let mut left = vec![(0_u64, RaceState::default())];
    while let Some((happened, state)) = left.pop() {
        if happened == all {
            return true;
        }
        let waiting = || history.iter().enumerate().filter(|(at, _)| happened & (1 << at) == 0);
        // An operation that was called after another had returned comes after it.
        let Some(first_return) = waiting().map(|(_, did)| did.to).min() else { continue };
        for (at, did) in waiting().filter(|(_, did)| did.from <= first_return) {
            let nothing = is_excused[at].then(|| state.clone());
            for next in state.after(did.op, did.seen, rules).into_iter().chain(nothing) {
                let next = (happened | 1 << at, next);
                if tried.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
    }
    false
}

impl Did {
    fn is_excused(&self, history: &[Did]) -> bool {
        let overlap = |by: &&Did| by.thread != self.thread && by.from <= self.to && self.from <= by.to;
        let done = history.iter().filter(overlap).filter(|by| by.seen == Seen::Done);
        done.into_iter().any(|by| self.op.is_excused_by(self.seen, by.op, by.way == self.way))
    }
}

/// The history as text, in order of the calls.
pub fn describe(history: &[Did]) -> String {
    let mut history = history.to_vec();
    history.sort_by_key(|did| did.from);
    let mut reported = String::new();
    for Did { thread, op, seen, from, to, .. } in history {
        let (from, to) = (from.as_nanos() / 1000, to.as_nanos() / 1000);
        let _ = writeln!(reported, "    {from:>8} to {to:>8} us, thread {thread}: {op:?}: {seen:?}");
    }
    reported
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::op::PathIndex;

    fn did(op: RaceOp, seen: Seen, from: u64, to: u64) -> Did {
        Did { thread: 0, way: 0, op, seen, from: Duration::from_micros(from), to: Duration::from_micros(to) }
    }

    fn explained(history: &[Did]) -> bool {
        is_explained(history, Rules::Strict)
    }

    #[test]
    fn overlapping_operations_may_take_any_order() {
        let write = did(RaceOp::Write(5), Seen::Done, 0, 10);
        for seen in [0, 5] {
            assert!(explained(&[write, did(RaceOp::Read, Seen::Number(seen), 2, 4)]));
        }
        assert!(!explained(&[write, did(RaceOp::Read, Seen::Number(7), 2, 4)]));
    }

    #[test]
    fn completed_operation_is_visible() {
        let write = did(RaceOp::Write(5), Seen::Done, 0, 10);
        assert!(!explained(&[write, did(RaceOp::Read, Seen::Number(0), 11, 12)]));
        // A later read must not return an older value.
        let reads =
            [did(RaceOp::Read, Seen::Number(5), 2, 4), did(RaceOp::Read, Seen::Number(0), 5, 6), write];
        assert!(!explained(&reads));
    }

    #[test]
    fn one_of_two_concurrent_creates_succeeds() {
        let place = PathIndex(0);
        let make = |token, seen| did(RaceOp::Symlink(place, token), seen, 0, 10);
        assert!(explained(&[make(1, Seen::Done), make(2, Seen::Error(libc::EEXIST))]));
        assert!(!explained(&[make(1, Seen::Done), make(2, Seen::Done)]));
        let removed = did(RaceOp::Unlink(place), Seen::Done, 0, 10);
        assert!(explained(&[make(1, Seen::Done), removed, make(2, Seen::Done)]));
    }

    #[test]
    fn mounts_see_names_during_concurrent_moves() {
        use crate::race::op::How;
        let (a, b) = (PathIndex(0), PathIndex(1));
        let made =
            [did(RaceOp::Symlink(a, 1), Seen::Done, 0, 1), did(RaceOp::Symlink(b, 2), Seen::Done, 0, 1)];
        let is_explained = |did: &[Did]| is_explained(&[&made, did].concat(), Rules::SeveralMounts);
        let exchange = did(RaceOp::Rename(a, b, How::Exchange), Seen::Done, 10, 20);
        let other = |way, op, seen, from| Did { thread: 1, way, ..did(op, seen, from, from + 2) };
        // The first name already stands for the inode of the second.
        let nothing = |from| other(1, RaceOp::Rename(a, b, How::Plain), Seen::Done, from);
        let after = |a_has| [did(RaceOp::ReadLink(a), Seen::Number(a_has), 30, 31)];
        assert!(is_explained(&[exchange, nothing(15), after(2)[0]]));
        assert!(!is_explained(&[exchange, nothing(22), after(2)[0]]));
        // The first reader has seen it.
        let first = other(1, RaceOp::ReadLink(a), Seen::Number(2), 11);
        let late = |way, from| other(way, RaceOp::ReadLink(a), Seen::Number(1), from);
        assert!(is_explained(&[exchange, first, late(0, 14)]));
        assert!(!is_explained(&[exchange, first, late(1, 14)]));
        assert!(!is_explained(&[exchange, first, late(0, 22)]));
    }

    #[test]
    fn mounts_see_names_during_concurrent_creates_and_removes() {
        let a = PathIndex(0);
        let other = |way, op, seen, from| Did { thread: 1, way, ..did(op, seen, from, from + 2) };
        let link = |way, seen, from| other(way, RaceOp::ReadLink(a), seen, from);
        let is_explained = |did: &[Did]| is_explained(did, Rules::SeveralMounts);
        let (is_free, is_dir) = (Seen::Error(libc::ENOENT), Seen::Error(libc::EINVAL));
        // The other mount has seen the change before the call returned.
        let makes = did(RaceOp::MkDir(a), Seen::Done, 10, 20);
        assert!(is_explained(&[makes, link(1, is_dir, 11), link(0, is_free, 14)]));
        assert!(!is_explained(&[makes, link(1, is_dir, 11), link(1, is_free, 14)]));
        assert!(!is_explained(&[makes, link(1, is_dir, 11), link(0, is_free, 21)]));
        let made = did(RaceOp::MkDir(a), Seen::Done, 0, 1);
        let removes = did(RaceOp::RmDir(a), Seen::Done, 10, 20);
        assert!(is_explained(&[made, removes, link(1, is_free, 11), link(0, is_dir, 14)]));
        assert!(!is_explained(&[made, removes, link(1, is_free, 11), link(1, is_dir, 14)]));
        assert!(!is_explained(&[made, removes, link(1, is_free, 11), link(0, is_dir, 21)]));
        // Changes of a name wait for each other.
        let again = other(0, RaceOp::MkDir(a), Seen::Error(libc::EEXIST), 14);
        assert!(!is_explained(&[made, removes, link(1, is_free, 11), again]));
    }

    #[test]
    fn several_mounts_see_the_last_write_or_one_under_way() {
        let write = did(RaceOp::Write(5), Seen::Done, 10, 20);
        let read = |seen, from, to| did(RaceOp::Read, Seen::Number(seen), from, to);
        let is_explained = |history: &[Did]| is_explained(history, Rules::SeveralMounts);
        assert!(is_explained(&[write, read(5, 11, 12), read(0, 13, 14), read(5, 21, 22)]));
        for wrong in [read(0, 21, 22), read(5, 1, 9), read(6, 11, 12)] {
            assert!(!is_explained(&[write, wrong]));
        }
    }
}
