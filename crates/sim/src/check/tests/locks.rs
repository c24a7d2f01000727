//! Locks: no two holders of conflicting locks.

use espalier_proto::{ClientId, Ino, Lock, LockKind, LockOwner, Rank};

use super::super::LockChecker;
use super::*;

const FILE: Ino = Ino(2);
const SESSION: Nanos = Nanos(10_000_000_000);
const EXCLUSIVE: LockKind = LockKind::Exclusive;
const SHARED: LockKind = LockKind::Shared;

struct Holders {
    locks: LockChecker,
    now: u64,
    calls: u64,
}

fn lock(kind: LockKind, (first, last): (u64, u64)) -> Call<'static> {
    let owner = LockOwner { flock: false, number: 1 };
    let lock = Lock { owner, kind, first, last, pid: 2 };
    Call::Request(Request::Lock { ino: FILE, lock, wait: None })
}

fn unlock((first, last): (u64, u64)) -> Call<'static> {
    let owner = LockOwner { flock: false, number: 1 };
    Call::Request(Request::Unlock { ino: FILE, owner, first, last })
}

fn look(kind: LockKind) -> Call<'static> {
    let owner = LockOwner { flock: false, number: 1 };
    let lock = Lock { owner, kind, first: 0, last: 9, pid: 2 };
    Call::Request(Request::TestLock { ino: FILE, lock })
}

impl Holders {
    fn new() -> Self {
        Self { locks: LockChecker::new(SESSION), now: 0, calls: 0 }
    }

    fn tick(&mut self) -> Nanos {
        self.now += 1_000_000;
        Nanos(self.now)
    }

    fn hears(&mut self, clients: &[u64]) {
        let now = self.tick();
        clients.iter().for_each(|client| self.locks.heard(now, ClientId(*client), Rank(0)));
    }

    fn asks(&mut self, client: u64, call: &Call<'_>) -> u64 {
        let now = self.tick();
        self.calls += 1;
        self.locks.invoked(now, ClientId(client), self.calls, call);
        self.calls
    }

    fn ends(&mut self, client: u64, call: u64, result: Result<Answer, Errno>) -> bool {
        let now = self.tick();
        self.locks.answered(now, ClientId(client), call, &result).is_ok()
    }

    fn did(&mut self, client: u64, call: &Call<'_>, result: Result<Answer, Errno>) -> bool {
        let number = self.asks(client, call);
        self.ends(client, number, result)
    }

    /// The first client has locked this range.
    fn with(kind: LockKind, part: (u64, u64)) -> Self {
        let mut holders = Self::new();
        holders.hears(&[1, 2]);
        assert!(holders.did(1, &lock(kind, part), Ok(Answer::Done)));
        holders
    }
}

#[test]
fn conflicting_lock_is_not_granted() {
    for (kind, part, other, excludes) in [
        (EXCLUSIVE, (0, 4), (EXCLUSIVE, (4, 9)), true),
        (EXCLUSIVE, (0, 4), (SHARED, (4, 9)), true),
        (SHARED, (0, 4), (EXCLUSIVE, (0, 9)), true),
        (SHARED, (0, 4), (SHARED, (0, 9)), false),
        (EXCLUSIVE, (0, 4), (EXCLUSIVE, (5, 9)), false),
    ] {
        let ask = lock(other.0, other.1);
        assert_eq!(Holders::with(kind, part).did(2, &ask, Ok(Answer::Done)), !excludes, "{ask:?}");
        assert_eq!(Holders::with(kind, part).did(2, &ask, Err(Errno::EAGAIN)), excludes, "{ask:?}");
        // An owner's locks never conflict with each other.
        assert!(Holders::with(kind, part).did(1, &ask, Ok(Answer::Done)));
    }
}

#[test]
fn released_lock_is_free() {
    let mut holders = Holders::with(EXCLUSIVE, (0, 9));
    assert!(holders.did(1, &unlock((0, 9)), Ok(Answer::Done)));
    assert!(!holders.did(2, &lock(EXCLUSIVE, (3, 3)), Err(Errno::EAGAIN)));
    assert!(holders.did(2, &lock(EXCLUSIVE, (3, 3)), Ok(Answer::Done)));
    // Both results are possible while the other request is pending.
    for result in [Ok(Answer::Done), Err(Errno::EAGAIN)] {
        let mut holders = Holders::with(EXCLUSIVE, (0, 9));
        let gives = holders.asks(1, &unlock((0, 9)));
        assert!(holders.did(2, &lock(EXCLUSIVE, (3, 3)), result));
        assert!(holders.ends(1, gives, Ok(Answer::Done)));
    }
    // And only for this range.
    let mut holders = Holders::with(EXCLUSIVE, (0, 9));
    assert!(holders.did(1, &unlock((0, 4)), Ok(Answer::Done)));
    assert!(holders.did(2, &lock(EXCLUSIVE, (0, 4)), Ok(Answer::Done)));
    assert!(!holders.did(2, &lock(EXCLUSIVE, (5, 5)), Ok(Answer::Done)));
}

#[test]
fn expired_client_has_no_locks() {
    let mut holders = Holders::with(EXCLUSIVE, (0, 9));
    holders.now += SESSION.0;
    holders.hears(&[2]);
    assert!(holders.did(2, &lock(EXCLUSIVE, (3, 3)), Ok(Answer::Done)));
    // A holder keeps its lock.
    let mut holders = Holders::with(EXCLUSIVE, (0, 9));
    holders.now += SESSION.0 / 2;
    holders.hears(&[1]);
    holders.now += SESSION.0 / 2;
    holders.hears(&[2]);
    assert!(!holders.did(2, &lock(EXCLUSIVE, (3, 3)), Ok(Answer::Done)));
}

#[test]
fn lock_test_reports_existing_lock() {
    let none = || Ok(Answer::InTheWay(None));
    assert!(!Holders::with(EXCLUSIVE, (0, 9)).did(2, &look(SHARED), none()));
    assert!(Holders::with(SHARED, (0, 9)).did(2, &look(SHARED), none()));
    let other =
        Lock { owner: LockOwner { flock: false, number: 1 }, kind: SHARED, first: 0, last: 9, pid: 0 };
    assert!(Holders::with(SHARED, (0, 9)).did(2, &look(EXCLUSIVE), Ok(Answer::InTheWay(Some(other)))));
    assert!(!Holders::new().did(2, &look(EXCLUSIVE), Ok(Answer::InTheWay(Some(other)))));
}
