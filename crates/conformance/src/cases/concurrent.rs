//! Operations of four concurrent threads, with a check that some order explains the final state.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::prelude::*;
use crate::sys::{DirReader, names};

const THREADS: u64 = 4;

fn spread(body: impl Fn(u64) -> CaseResult + Sync) -> CaseResult {
    std::thread::scope(|s| {
        let all: Vec<_> = (0..THREADS).map(|n| s.spawn({ let body = &body; move || body(n) })).collect();
        all.into_iter().try_for_each(|t| t.join().map_err(|_| Failure::at("a thread panicked"))?)
    })
}

/// True if the operation lost a race with an allowed error; other errors fail the case.
fn lost(result: std::io::Result<()>, allowed: &[i32]) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if allowed.contains(&e.raw_os_error().unwrap_or(0)) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Creates, unlinks and renames over five names: existing files are complete and listed.
pub(super) fn same_names(d: &Dir) -> CaseResult {
    let (created, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    spread(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread);
        for _ in 0..1500 {
            let (a, b) = (d.at(format!("n{}", rng.u8(..5))), d.at(format!("n{}", rng.u8(..5))));
            match rng.u8(..4) {
                0 | 1 => {
                    let made = OpenOptions::new().write(true).create_new(true).open(&a).map(drop);
                    if lost(made, &[libc::EEXIST])? {
                        created.fetch_add(1, Ordering::Relaxed);
                    }
                }
                2 => {
                    if lost(fs::remove_file(&a), &[libc::ENOENT])? {
                        removed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                _ => {
                    let flags = rustix::fs::RenameFlags::NOREPLACE;
                    let moved = rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
                    lost(moved.map_err(Into::into), &[libc::ENOENT, libc::EEXIST])?;
                }
            }
        }
        Ok(())
    })?;
    // Renames that do not replace keep the number of files.
    let left = names(d.path())?;
    same!(left.len(), created.into_inner() - removed.into_inner());
    for entry in DirReader::open(d.path(), 4096)?.rest()? {
        let s = stat(d.at(&entry.name))?;
        same!((s.st_ino, s.st_nlink), (entry.ino, 1));
        fs::remove_file(d.at(&entry.name))?;
    }
    for n in 0..5 {
        check!(!exists(d.at(format!("n{n}"))), "n{n} is looked up but was not listed");
    }
    Ok(())
}

pub(super) fn creates_in_one_directory(d: &Dir) -> CaseResult {
    spread(|thread| {
        for n in 0..1000 {
            d.file(format!("{thread}-{n}"), format!("{thread}{n}").as_bytes())?;
            if n % 3 == 0 {
                fs::remove_file(d.at(format!("{thread}-{n}")))?;
            }
        }
        Ok(())
    })?;
    same!(names(d.path())?.len(), 4 * 666);
    for thread in 0..THREADS {
        for n in (0..1000).filter(|n| n % 3 != 0) {
            same!(fs::read_to_string(d.at(format!("{thread}-{n}")))?, format!("{thread}{n}"));
        }
    }
    Ok(())
}

/// Directories move between four parents, also in opposite directions: no cycles, no losses,
/// correct link counts.
pub(super) fn renames_across(d: &Dir) -> CaseResult {
    for n in 0..4 {
        fs::create_dir(d.at(format!("p{n}")))?;
    }
    for n in 0..8 {
        fs::create_dir_all(d.at(format!("p{}/d{n}", n % 4)))?;
        d.file(format!("p{}/d{n}/f", n % 4), n.to_string().as_bytes())?;
    }
    let place = |rng: &mut fastrand::Rng| match rng.u8(..3) {
        0 => format!("p{}/d{}/d{}", rng.u8(..4), rng.u8(..8), rng.u8(..8)),
        _ => format!("p{}/d{}", rng.u8(..4), rng.u8(..8)),
    };
    spread(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread + 10);
        for _ in 0..1500 {
            let (from, to) = (place(&mut rng), place(&mut rng));
            let allowed = [libc::ENOENT, libc::ENOTEMPTY, libc::EEXIST, libc::EINVAL];
            lost(fs::rename(d.at(from), d.at(to)), &allowed)?;
        }
        Ok(())
    })?;
    let mut files = Vec::new();
    let mut stack = vec![d.path().to_path_buf()];
    while let Some(path) = stack.pop() {
        let entries = DirReader::open(&path, 4096)?.rest()?;
        let directories = entries.iter().filter(|e| e.kind == rustix::fs::FileType::Directory).count();
        same!(stat(&path)?.st_nlink, directories as u64 + 2, "{}", path.display());
        for entry in entries {
            let child = path.join(&entry.name);
            same!(stat(&child)?.st_ino, entry.ino);
            if entry.kind == rustix::fs::FileType::Directory {
                same!(stat(child.join(".."))?.st_ino, stat(&path)?.st_ino);
                stack.push(child);
            } else {
                files.push(fs::read_to_string(child)?);
            }
        }
    }
    files.sort();
    same!(files, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    Ok(())
}

pub(super) fn links_and_unlinks(d: &Dir) -> CaseResult {
    let f = d.file("f", b"shared")?;
    let alive = AtomicUsize::new(1);
    spread(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread + 20);
        for _ in 0..800 {
            let name = d.at(format!("l{}", rng.u8(..10)));
            if rng.bool() {
                if lost(fs::hard_link(&f, &name), &[libc::EEXIST])? {
                    alive.fetch_add(1, Ordering::Relaxed);
                }
            } else if lost(fs::remove_file(&name), &[libc::ENOENT])? {
                alive.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(())
    })?;
    same!(stat(&f)?.st_nlink, alive.into_inner() as u64);
    same!(names(d.path())?.len() as u64, stat(&f)?.st_nlink);
    Ok(())
}

pub(super) fn appenders(d: &Dir) -> CaseResult {
    d.file("log", b"")?;
    spread(|thread| {
        let mut log = OpenOptions::new().append(true).open(d.at("log"))?;
        for _ in 0..500 {
            log.write_all(&[b'a' + thread as u8; 100])?;
        }
        Ok(())
    })?;
    let log = fs::read(d.at("log"))?;
    same!(log.len(), 4 * 500 * 100);
    check!(log.chunks(100).all(|r| r.iter().all(|b| *b == r[0])), "a torn record");
    for thread in 0..4u8 {
        same!(log.iter().filter(|b| **b == b'a' + thread).count(), 50_000);
    }
    Ok(())
}

/// Files outgrow the strip while readers check them: no wrong byte, no short file.
pub(super) fn readers_during_growth(d: &Dir) -> CaseResult {
    let done = AtomicBool::new(false);
    let all = pattern(1, 200_000);
    for n in 0..8 {
        d.file(format!("f{n}"), &all[..60_000])?;
    }
    spread(|thread| {
        if thread == 0 {
            for n in 0..8 {
                let file = d.open(format!("f{n}"))?;
                for at in (60_000..200_000).step_by(5000) {
                    file.write_all_at(&all[at..at + 5000], at as u64)?;
                }
            }
            done.store(true, Ordering::Release);
            return Ok(());
        }
        while !done.load(Ordering::Acquire) {
            for n in 0..8 {
                let bytes = fs::read(d.at(format!("f{n}")))?;
                check!(bytes.len() >= 60_000 && bytes == all[..bytes.len()], "f{n}, {} bytes", bytes.len());
            }
        }
        Ok(())
    })
}

/// Small files grow by short appends, through read-write and write-only handles, while readers
/// follow.
pub(super) fn readers_of_the_end(d: &Dir) -> CaseResult {
    const FILES: usize = 40;
    let grown = AtomicUsize::new(0);
    let all = pattern(1, 65_000);
    d.file("f0", &all[..1000])?;
    spread(|thread| {
        if thread == 0 {
            for n in 0..FILES {
                let name = d.at(format!("f{n}"));
                let file = OpenOptions::new().read(n % 2 == 0).write(true).open(name)?;
                for at in (1000..all.len()).step_by(777) {
                    let end = all.len().min(at + 777);
                    file.write_all_at(&all[at..end], at as u64)?;
                }
                d.file(format!("f{}", n + 1), &all[..1000])?;
                grown.store(n + 1, Ordering::Release);
            }
            return Ok(());
        }
        loop {
            let n = grown.load(Ordering::Acquire);
            if n == FILES {
                return Ok(());
            }
            let file = File::open(d.at(format!("f{n}")))?;
            // Some threads read once, others repeatedly.
            for _ in 0..if thread == 1 { 1 } else { 40 } {
                let mut bytes = vec![0; all.len()];
                let length = file.read_at(&mut bytes, 0)?;
                check!(length >= 1000 && bytes[..length] == all[..length], "f{n}, {length} bytes");
            }
        }
    })
}

pub(super) fn mkdir_rmdir(d: &Dir) -> CaseResult {
    let (made, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    spread(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread + 30);
        for _ in 0..800 {
            let dir = d.at(format!("d{}", rng.u8(..3)));
            match rng.u8(..3) {
                0 => {
                    if lost(fs::create_dir(&dir), &[libc::EEXIST])? {
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                }
                1 => {
                    if lost(fs::remove_dir(&dir), &[libc::ENOENT, libc::ENOTEMPTY])? {
                        removed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                _ => {
                    let f = dir.join(format!("f{thread}"));
                    if lost(File::create(&f).map(drop), &[libc::ENOENT])? {
                        // A directory with an entry cannot be removed, so the file must exist.
                        fs::remove_file(&f)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    let left = names(d.path())?.len();
    same!(left, made.into_inner() - removed.into_inner());
    same!(stat(d.path())?.st_nlink, left as u64 + 2);
    Ok(())
}
