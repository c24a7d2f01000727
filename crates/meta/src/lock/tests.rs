//! Tests the lock table against a simple reference: for each byte of each file, the owners that
//! have locked it and how.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno, Ino, Lock, LockKind, LockOwner};

use super::table::{LockOutcome, LockTable};

const BYTES: usize = 8;
const FILES: usize = 2;
/// Three clients, each with two processes and an open file description.
const OWNERS: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Want {
    owner: usize,
    file: usize,
    kind: LockKind,
    first: usize,
    last: usize,
    wait: u64,
}

impl Want {
    fn client(&self) -> ClientId {
        client(self.owner)
    }

    fn ino(&self) -> Ino {
        Ino(self.file as u64 + 2)
    }

    fn lock(&self) -> Lock {
        let (first, last) =
            if is_flock(self.owner) { (0, u64::MAX) } else { (self.first as u64, self.last as u64) };
        Lock { owner: owner(self.owner), kind: self.kind, first, last, pid: self.owner as u32 }
    }
}

fn client(owner: usize) -> ClientId {
    ClientId(owner as u64 / 3)
}

fn is_flock(owner: usize) -> bool {
    owner % 3 == 2
}

/// Owners of different clients have equal numbers.
fn owner(owner: usize) -> LockOwner {
    LockOwner { flock: is_flock(owner), number: owner as u64 % 3 }
}

#[derive(Default)]
struct Reference {
    bytes: [[[Option<LockKind>; OWNERS]; BYTES]; FILES],
    waiting: Vec<Want>,
    granted: Vec<(ClientId, u64)>,
}

impl Reference {
    fn blockers(&self, want: &Want) -> Vec<usize> {
        let excludes = |other: &usize| {
            *other != want.owner
                && is_flock(*other) == is_flock(want.owner)
                && self.bytes[want.file][want.first..=want.last].iter().any(|byte| {
                    byte[*other]
                        .is_some_and(|kind| kind == LockKind::Exclusive || want.kind == LockKind::Exclusive)
                })
        };
        (0..OWNERS).filter(excludes).collect()
    }

    fn set(&mut self, want: &Want, kind: Option<LockKind>) {
        for byte in &mut self.bytes[want.file][want.first..=want.last] {
            byte[want.owner] = kind;
        }
        self.grant();
    }

    fn grant(&mut self) {
        while let Some(at) = self.waiting.iter().position(|want| self.blockers(want).is_empty()) {
            let want = self.waiting.remove(at);
            for byte in &mut self.bytes[want.file][want.first..=want.last] {
                byte[want.owner] = Some(want.kind);
            }
            self.granted.push((want.client(), want.wait));
        }
    }

    fn lock(&mut self, want: Want, waits: bool) -> Result<LockOutcome, Errno> {
        let held = self.bytes[want.file][0][want.owner];
        if is_flock(want.owner) && held != Some(want.kind) {
            self.set(&want, None);
        }
        if self.blockers(&want).is_empty() {
            self.set(&want, Some(want.kind));
            return Ok(LockOutcome::Locked);
        }
        if !waits {
            return Err(Errno::EAGAIN);
        }
        // Follow the waits-for graph until it yields nothing new.
        let mut reached = self.blockers(&want);
        loop {
            let more: Vec<usize> = self
                .waiting
                .iter()
                .filter(|other| reached.contains(&other.owner))
                .flat_map(|other| self.blockers(other))
                .filter(|owner| !reached.contains(owner))
                .collect();
            if more.is_empty() {
                break;
            }
            reached.extend(more);
        }
        if !is_flock(want.owner) && reached.contains(&want.owner) {
            return Err(Errno::EDEADLK);
        }
        self.waiting.push(want);
        Ok(LockOutcome::Waits)
    }

    fn forget(&mut self, of: impl Fn(usize) -> bool, files: core::ops::Range<usize>) {
        for file in files {
            self.waiting.retain(|want| !(of(want.owner) && want.file == file));
            for byte in &mut self.bytes[file] {
                (0..OWNERS).filter(|owner| of(*owner)).for_each(|owner| byte[owner] = None);
            }
            self.grant();
        }
    }
}

/// xorshift
fn random(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize % below
}

#[test]
fn locks_are_as_the_reference_says() {
    let mut seen = [0; 5];
    for seed in 1..=3000 {
        let state = &mut u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15);
        let (mut table, mut reference) = (LockTable::default(), Reference::default());
        for wait in 0..40 {
            let owner = random(state, OWNERS);
            let (a, b) = (random(state, BYTES), random(state, BYTES));
            let (first, last) = if is_flock(owner) { (0, BYTES - 1) } else { (a.min(b), a.max(b)) };
            let kind = [LockKind::Shared, LockKind::Exclusive][random(state, 2)];
            let want = Want { owner, file: random(state, FILES), kind, first, last, wait };
            match random(state, 16) {
                0..=8 => {
                    // An owner with two waiting requests is a process with threads.
                    let waits = random(state, 3) > 0;
                    let expected = reference.lock(want, waits);
                    let outcome = table.lock(want.client(), want.ino(), want.lock(), waits.then_some(wait));
                    assert_eq!(outcome, expected, "seed {seed}: {want:?}");
                    let kind = match expected {
                        Ok(LockOutcome::Locked) => 0,
                        Ok(LockOutcome::Waits) => 1,
                        Err(Errno::EDEADLK) => 2,
                        Err(_) => 3,
                    };
                    seen[kind] += 1;
                    // Repeating a request changes nothing.
                    if let Ok(outcome) = outcome {
                        let wait = waits.then_some(wait);
                        assert_eq!(table.lock(want.client(), want.ino(), want.lock(), wait), Ok(outcome));
                    }
                }
                9..=11 => {
                    let Lock { owner, first, last, .. } = want.lock();
                    table.unlock(want.client(), want.ino(), owner, (first, last)).expect("room");
                    reference.set(&want, None);
                }
                12 => {
                    let blockers = reference.blockers(&want);
                    let found = table.test(want.client(), want.ino(), &want.lock());
                    assert_eq!(found.is_none(), blockers.is_empty(), "seed {seed}");
                    if let Some(found) = found {
                        let is_match = |other: &&usize| self::owner(**other) == found.owner;
                        let holder = *blockers.iter().find(is_match).expect("one of them");
                        assert!(found.pid == 0 || found.pid as usize == holder || blockers.len() > 1);
                    }
                }
                13 => {
                    if let Some(at) = reference.waiting.len().checked_sub(1) {
                        let gone = reference.waiting.remove(random(state, at + 1));
                        assert!(!table.stop_waiting(gone.client(), gone.ino(), &gone.lock(), gone.wait));
                    }
                }
                14 => {
                    table.close(want.client(), want.ino());
                    reference.forget(|owner| client(owner) == want.client(), want.file..want.file + 1);
                }
                _ => {
                    table.end(want.client());
                    reference.forget(|owner| client(owner) == want.client(), 0..FILES);
                }
            }
            let mut granted = core::mem::take(&mut table.granted);
            seen[4] += granted.len();
            // The order among different files is unspecified.
            granted.sort_unstable();
            reference.granted.sort_unstable();
            assert_eq!(granted, core::mem::take(&mut reference.granted), "seed {seed}: {want:?}");
        }
        for owner in 0..OWNERS {
            table.end(client(owner));
        }
        assert_eq!(table.len(), 0, "seed {seed}");
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

#[test]
fn a_client_has_a_bound() {
    let mut table = LockTable::default();
    let owner = LockOwner { flock: false, number: 1 };
    let lock = |first| Lock { owner, kind: LockKind::Shared, first, last: first, pid: 1 };
    let full = (0..).find(|at| {
        let outcome = table.lock(ClientId(1), Ino(2), lock(2 * at), None);
        assert!(matches!(outcome, Ok(LockOutcome::Locked) | Err(Errno::ENOLCK)));
        outcome.is_err()
    });
    assert!(full.is_some_and(|at| at > 10_000));
    assert_eq!(table.lock(ClientId(2), Ino(2), lock(1), None), Ok(LockOutcome::Locked));
    table.unlock(ClientId(1), Ino(2), owner, (0, u64::MAX)).expect("all can be unlocked");
    assert_eq!(table.lock(ClientId(1), Ino(2), lock(1), None), Ok(LockOutcome::Locked));
}

#[test]
fn flock_conversion_above_the_limit_keeps_its_lock() {
    const LOCKED: Ino = Ino(2);
    let (mut table, client) = (LockTable::default(), ClientId(1));
    let flock = |kind| {
        let owner = LockOwner { flock: true, number: 2 };
        Lock { owner, kind, first: 0, last: u64::MAX, pid: 1 }
    };
    let owner = LockOwner { flock: false, number: 1 };
    let record = |kind, first, last| Lock { owner, kind, first, last, pid: 1 };
    let lock = |table: &mut LockTable, lock| table.lock(client, LOCKED, lock, None);
    assert_eq!(lock(&mut table, flock(LockKind::Shared)), Ok(LockOutcome::Locked));
    assert_eq!(lock(&mut table, record(LockKind::Shared, 0, 9)), Ok(LockOutcome::Locked));
    let full = (10..).find(|at| lock(&mut table, record(LockKind::Shared, 2 * at, 2 * at)).is_err());
    // The last two ranges come from the split of one.
    let last = 2 * (full.expect("a limit") - 1);
    table.unlock(client, LOCKED, owner, (last, last)).expect("below the limit");
    assert_eq!(lock(&mut table, record(LockKind::Exclusive, 4, 5)), Ok(LockOutcome::Locked));
    let held = table.len();
    assert_eq!(lock(&mut table, flock(LockKind::Exclusive)), Err(Errno::ENOLCK));
    assert_eq!(table.len(), held);
    let found = table.test(ClientId(2), LOCKED, &flock(LockKind::Exclusive));
    assert_eq!(found.map(|found| found.kind), Some(LockKind::Shared));
    table.unlock(client, LOCKED, owner, (last - 2, last - 2)).expect_err("at the limit");
    table.unlock(client, LOCKED, owner, (0, u64::MAX)).expect("all can be unlocked");
    assert_eq!(lock(&mut table, flock(LockKind::Exclusive)), Ok(LockOutcome::Locked));
}

/// The request that has waited longest is granted first, and readers are granted together.
#[test]
fn lock_waiters_are_served_in_order() {
    let mut table = LockTable::default();
    let owner = |number| LockOwner { flock: true, number };
    let lock = |number, kind| Lock { owner: owner(number), kind, first: 0, last: u64::MAX, pid: 0 };
    let mut ask = |number, kind| table.lock(ClientId(number), Ino(2), lock(number, kind), Some(number));
    assert_eq!(ask(1, LockKind::Exclusive), Ok(LockOutcome::Locked));
    for (number, kind) in [(2, LockKind::Shared), (3, LockKind::Exclusive), (4, LockKind::Shared)] {
        assert_eq!(ask(number, kind), Ok(LockOutcome::Waits));
    }
    table.end(ClientId(1));
    assert_eq!(core::mem::take(&mut table.granted), [(ClientId(2), 2), (ClientId(4), 4)]);
    table.end(ClientId(2));
    assert_eq!(table.granted, []);
    table.close(ClientId(4), Ino(2));
    assert_eq!(table.granted, [(ClientId(3), 3)]);
}
