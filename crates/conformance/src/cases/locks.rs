//! Advisory locks between processes: `flock`, POSIX ranges, and open-file-description locks.

use std::time::{Duration, Instant};

use libc::{F_RDLCK, F_UNLCK, F_WRLCK};
use rustix::fs::{FlockOperation, flock};

use super::prelude::*;
use crate::sys::{Cmd, get_lock, interrupt_after, lock};

const BUSY: [i32; 2] = [libc::EAGAIN, libc::EACCES];

/// Tests a POSIX lock in a process and handle of its own.
fn denied(d: &Dir, kind: i32, start: i64, len: i64, expected: bool) -> CaseResult {
    in_child(|| {
        let file = d.open("f")?;
        match lock(&file, Cmd::Set, kind, start, len) {
            Ok(()) => check!(!expected, "locked {start}+{len}"),
            Err(e) => {
                check!(BUSY.contains(&e.raw_os_error().unwrap_or(0)), "{e}");
                check!(expected, "did not lock {start}+{len}");
            }
        }
        Ok(())
    })
}

pub(super) fn flock_between_processes(d: &Dir) -> CaseResult {
    let a = d.open("f")?;
    let try_both = |exclusive: bool, shared: bool| {
        in_child(|| {
            let b = d.open("f")?;
            same!(flock(&b, FlockOperation::NonBlockingLockExclusive).is_ok(), exclusive);
            flock(&b, FlockOperation::Unlock)?;
            same!(flock(&b, FlockOperation::NonBlockingLockShared).is_ok(), shared);
            Ok(())
        })
    };
    try_both(true, true)?;
    flock(&a, FlockOperation::LockShared)?;
    try_both(false, true)?;
    flock(&a, FlockOperation::LockExclusive)?;
    try_both(false, false)?;
    // Two handles in one process conflict like two processes.
    let c = d.open("f")?;
    fails!(flock(&c, FlockOperation::NonBlockingLockShared), EWOULDBLOCK);
    flock(&a, FlockOperation::Unlock)?;
    try_both(true, true)?;
    // A duplicate shares the lock, which ends with the last close.
    flock(&a, FlockOperation::LockExclusive)?;
    let duplicate = a.try_clone()?;
    drop(a);
    try_both(false, false)?;
    drop(duplicate);
    try_both(true, true)
}

pub(super) fn flock_upgrade(d: &Dir) -> CaseResult {
    let (a, b) = (d.open("f")?, d.open("f")?);
    flock(&a, FlockOperation::LockShared)?;
    flock(&b, FlockOperation::LockShared)?;
    fails!(flock(&a, FlockOperation::NonBlockingLockExclusive), EWOULDBLOCK);
    drop(b);
    flock(&a, FlockOperation::NonBlockingLockExclusive)?;
    let directory = open(d.path(), OFlags::RDONLY)?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(())
}

pub(super) fn posix_between_processes(d: &Dir) -> CaseResult {
    let a = d.open("f")?;
    lock(&a, Cmd::Set, F_WRLCK, 0, 0)?;
    denied(d, F_RDLCK, 0, 1, true)?;
    denied(d, F_WRLCK, 1 << 40, 1, true)?;
    let me = std::process::id() as i32;
    in_child(|| {
        same!(get_lock(&d.open("f")?, F_WRLCK, 5, 5)?, Some((F_WRLCK, 0, 0, me)));
        Ok(())
    })?;
    lock(&a, Cmd::Set, F_RDLCK, 0, 0)?;
    denied(d, F_RDLCK, 0, 0, false)?;
    denied(d, F_WRLCK, 0, 0, true)?;
    lock(&a, Cmd::Set, F_UNLCK, 0, 0)?;
    denied(d, F_WRLCK, 0, 0, false)?;
    // Locks of one process do not conflict with each other.
    lock(&a, Cmd::Set, F_WRLCK, 0, 10)?;
    same!(get_lock(&d.open("g")?, F_WRLCK, 0, 0)?, None);
    same!(get_lock(&a, F_WRLCK, 0, 0)?, None);
    let read_only = File::open(d.at("g"))?;
    fails!(lock(&read_only, Cmd::Set, F_WRLCK, 0, 1), EBADF);
    Ok(())
}

pub(super) fn posix_ranges(d: &Dir) -> CaseResult {
    let a = d.open("f")?;
    lock(&a, Cmd::Set, F_WRLCK, 100, 100)?;
    denied(d, F_WRLCK, 0, 100, false)?;
    denied(d, F_WRLCK, 200, 0, false)?;
    denied(d, F_WRLCK, 199, 1, true)?;
    denied(d, F_WRLCK, 0, 101, true)?;
    // Unlocking the middle splits a lock; locking it again merges the parts.
    lock(&a, Cmd::Set, F_UNLCK, 140, 20)?;
    denied(d, F_WRLCK, 140, 20, false)?;
    denied(d, F_WRLCK, 139, 1, true)?;
    denied(d, F_WRLCK, 160, 1, true)?;
    lock(&a, Cmd::Set, F_RDLCK, 130, 40)?;
    denied(d, F_RDLCK, 130, 40, false)?;
    denied(d, F_RDLCK, 129, 1, true)?;
    lock(&a, Cmd::Set, F_UNLCK, 0, 0)?;
    denied(d, F_WRLCK, 0, 0, false)
}

pub(super) fn posix_lost_on_close(d: &Dir) -> CaseResult {
    let (a, b) = (d.open("f")?, d.open("f")?);
    lock(&a, Cmd::Set, F_WRLCK, 0, 0)?;
    denied(d, F_WRLCK, 0, 0, true)?;
    // Closing any handle of the file releases the process's locks on it (POSIX).
    drop(b);
    denied(d, F_WRLCK, 0, 0, false)
}

pub(super) fn blocking_wait(d: &Dir) -> CaseResult {
    let a = d.open("f")?;
    let (started, release) = (Bell::new()?, Duration::from_millis(150));
    lock(&a, Cmd::Set, F_WRLCK, 0, 0)?;
    let waiter = Child::start(|| {
        let file = d.open("f")?;
        started.ring()?;
        let start = Instant::now();
        lock(&file, Cmd::Wait, F_WRLCK, 10, 10)?;
        check!(start.elapsed() >= release / 2, "did not wait");
        Ok(())
    })?;
    started.wait()?;
    std::thread::sleep(release);
    lock(&a, Cmd::Set, F_UNLCK, 0, 0)?;
    waiter.wait()?;
    // The same with flock.
    flock(&a, FlockOperation::LockExclusive)?;
    let waiter = Child::start(|| {
        let file = d.open("f")?;
        started.ring()?;
        flock(&file, FlockOperation::LockShared)?;
        Ok(())
    })?;
    started.wait()?;
    std::thread::sleep(release);
    flock(&a, FlockOperation::Unlock)?;
    waiter.wait()
}

fn interrupts(wait: impl FnOnce() -> Result<(), Failure>) -> CaseResult {
    let start = Instant::now();
    interrupt_after(150);
    wait()?;
    check!(start.elapsed() < Duration::from_secs(3), "the signal came late");
    Ok(())
}

pub(super) fn interrupted(d: &Dir) -> CaseResult {
    let a = d.open("f")?;
    lock(&a, Cmd::Set, F_WRLCK, 0, 0)?;
    in_child(|| {
        let file = d.open("f")?;
        interrupts(|| {
            fails!(lock(&file, Cmd::Wait, F_WRLCK, 0, 0), EINTR);
            Ok(())
        })
    })?;
    // A cancelled request must not be granted later.
    lock(&a, Cmd::Set, F_UNLCK, 0, 0)?;
    denied(d, F_WRLCK, 0, 0, false)?;
    // A killed waiter leaves nothing behind.
    lock(&a, Cmd::Set, F_WRLCK, 0, 0)?;
    let started = Bell::new()?;
    let waiter = Child::start(|| {
        let file = d.open("f")?;
        started.ring()?;
        lock(&file, Cmd::Wait, F_WRLCK, 0, 0)?;
        Ok(())
    })?;
    started.wait()?;
    tick();
    waiter.kill(libc::SIGKILL);
    check!(waiter.wait().is_err());
    lock(&a, Cmd::Set, F_UNLCK, 0, 0)?;
    denied(d, F_WRLCK, 0, 0, false)
}

pub(super) fn flock_interrupted(d: &Dir) -> CaseResult {
    let a = d.open("f")?;
    flock(&a, FlockOperation::LockExclusive)?;
    in_child(|| {
        let file = d.open("f")?;
        interrupts(|| {
            fails!(flock(&file, FlockOperation::LockExclusive), EINTR);
            Ok(())
        })
    })?;
    drop(a);
    flock(&d.open("f")?, FlockOperation::NonBlockingLockExclusive)?;
    Ok(())
}

pub(super) fn ofd(d: &Dir) -> CaseResult {
    let (a, b) = (d.open("f")?, d.open("f")?);
    lock(&a, Cmd::OfdSet, F_WRLCK, 0, 10)?;
    // Unlike POSIX locks, these conflict within a process and survive the close of another handle.
    fails!(lock(&b, Cmd::OfdSet, F_WRLCK, 5, 1), EAGAIN | EACCES);
    lock(&b, Cmd::OfdSet, F_WRLCK, 10, 1)?;
    drop(b);
    denied(d, F_WRLCK, 0, 10, true)?;
    denied(d, F_WRLCK, 10, 1, false)?;
    drop(a);
    denied(d, F_WRLCK, 0, 0, false)
}

pub(super) fn released_by_exit(d: &Dir) -> CaseResult {
    for posix in [true, false] {
        let locked = Bell::new()?;
        let holder = Child::start(|| {
            let file = d.open("f")?;
            if posix {
                lock(&file, Cmd::Set, F_WRLCK, 0, 0)?;
            } else {
                flock(&file, FlockOperation::LockExclusive)?;
            }
            locked.ring()?;
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        })?;
        locked.wait()?;
        check!(holder.pid() > 0);
        holder.kill(libc::SIGKILL);
        check!(holder.wait().is_err());
        let file = d.open("f")?;
        lock(&file, Cmd::Set, F_WRLCK, 0, 0)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    }
    Ok(())
}
