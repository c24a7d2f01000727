//! Directory listings, also during changes.

use std::collections::{BTreeMap, BTreeSet};

use super::prelude::*;
use crate::sys::{ListedEntry, DirReader, names};

/// Buffer size in bytes; small, so that a listing takes many calls.
const PIECE: usize = 512;

fn fill(d: &Dir, count: usize) -> CaseResult {
    (0..count).try_for_each(|n| d.file(format!("keep{n:05}"), b"").map(drop))
}

/// An entry that exists throughout appears exactly once; no entry appears twice.
pub(super) fn seek_while_changing(d: &Dir) -> CaseResult {
    fill(d, 800)?;
    for n in 0..400 {
        d.file(format!("go{n:05}"), b"")?;
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let mut reader = DirReader::open(d.path(), PIECE)?;
    let mut seen: Vec<ListedEntry> = Vec::new();
    let (mut gone, mut made) = (0, 0);
    loop {
        let some = reader.some()?;
        if some.is_empty() {
            break;
        }
        // Use only some of the returned entries, then seek back to the last used offset.
        let take = rng.usize(1..=some.len());
        seen.extend_from_slice(&some[..take]);
        for _ in 0..5 {
            if gone < 400 {
                fs::remove_file(d.at(format!("go{gone:05}")))?;
                gone += 1;
            }
            if made < 2000 {
                d.file(format!("new{made:05}"), b"")?;
                made += 1;
            }
        }
        if rng.bool() {
            reader = DirReader::open(d.path(), PIECE)?;
        }
        reader.seek(some[take - 1].next)?;
    }
    let mut count = BTreeMap::new();
    for entry in &seen {
        *count.entry(entry.name.clone()).or_insert(0) += 1;
    }
    for (name, times) in &count {
        same!(*times, 1, "{name:?}");
    }
    for n in 0..800 {
        let name: std::ffi::OsString = format!("keep{n:05}").into();
        check!(count.contains_key(&name), "{name:?} was never listed");
    }
    Ok(())
}

pub(super) fn rewind(d: &Dir) -> CaseResult {
    fill(d, 100)?;
    let mut reader = DirReader::open(d.path(), PIECE)?;
    reader.some()?;
    d.file("late", b"")?;
    fs::remove_file(d.at("keep00000"))?;
    reader.seek(0)?;
    let listed: BTreeSet<_> = reader.rest()?.into_iter().map(|e| e.name).collect();
    check!(listed.contains(std::ffi::OsStr::new("late")) && listed.len() == 100);
    same!(reader.some()?.len(), 0);
    reader.seek(0)?;
    same!(reader.rest()?.len(), 100);
    Ok(())
}

/// Alternates reading and removing, as `rm -rf` does.
pub(super) fn remove_while_reading(d: &Dir) -> CaseResult {
    for (count, piece) in [(1000, PIECE), (3000, 32 * 1024), (10, 4096)] {
        fill(d, count)?;
        let mut reader = DirReader::open(d.path(), piece)?;
        let mut removed = 0;
        loop {
            let some = reader.some()?;
            if some.is_empty() {
                break;
            }
            for entry in some.iter().filter(|e| e.name != "." && e.name != "..") {
                fs::remove_file(d.at(&entry.name))?;
                removed += 1;
            }
        }
        same!(removed, count);
        same!(names(d.path())?.len(), 0);
    }
    Ok(())
}

pub(super) fn types_and_inodes(d: &Dir) -> CaseResult {
    use rustix::fs::FileType;
    d.file("file", b"")?;
    fs::create_dir(d.at("dir"))?;
    rustix::fs::symlink("x", d.at("link"))?;
    rustix::fs::mkfifoat(CWD, d.at("fifo"), Mode::from_raw_mode(0o600))?;
    std::os::unix::net::UnixListener::bind(d.at("sock"))?;
    rustix::fs::mknodat(CWD, d.at("char"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), 0x103)?;
    rustix::fs::mknodat(CWD, d.at("block"), FileType::BlockDevice, Mode::from_raw_mode(0o600), 0x700)?;
    fs::hard_link(d.at("file"), d.at("hard"))?;
    let entries = DirReader::open(d.path(), 32 * 1024)?.rest()?;
    same!(entries.len(), 8);
    for entry in entries {
        let s = stat(d.at(&entry.name))?;
        same!(entry.ino, s.st_ino, "{:?}", entry.name);
        same!(entry.kind, FileType::from_raw_mode(s.st_mode), "{:?}", entry.name);
    }
    Ok(())
}

pub(super) fn dots(d: &Dir) -> CaseResult {
    fs::create_dir_all(d.at("a/b"))?;
    for (path, parent) in [("a/b", "a"), ("a", "")] {
        let all = {
            let mut reader = DirReader::open(d.at(path), 32 * 1024)?;
            reader.some()?
        };
        for (name, target) in [(".", path), ("..", parent)] {
            let found: Vec<_> = all.iter().filter(|e| e.name == name).collect();
            same!(found.len(), 1, "{name} in {path}");
            same!(found[0].ino, stat(d.at(target))?.st_ino, "{name} in {path}");
        }
    }
    Ok(())
}

pub(super) fn small_buffers(d: &Dir) -> CaseResult {
    let long = "n".repeat(255);
    d.file(&long, b"")?;
    d.file("short", b"")?;
    let mut reader = DirReader::open(d.path(), 300)?;
    same!(reader.rest()?.len(), 2);
    // A buffer too small for the next entry is an error, not the end of the directory.
    let mut reader = DirReader::open(d.path(), 64)?;
    fails!(reader.rest().map_err(|_| rustix::io::Errno::INVAL), EINVAL);
    Ok(())
}

pub(super) fn empty_and_removed(d: &Dir) -> CaseResult {
    fs::create_dir(d.at("e"))?;
    let mut reader = DirReader::open(d.at("e"), PIECE)?;
    same!(reader.rest()?.len(), 0);
    reader.seek(0)?;
    fs::remove_dir(d.at("e"))?;
    if let Ok(rest) = reader.rest() {
        same!(rest.len(), 0);
    }
    d.file("f", b"")?;
    fails!(fs::read_dir(d.at("f")), ENOTDIR);
    fails!(fs::remove_dir(d.at("f")), ENOTDIR);
    fs::create_dir_all(d.at("full/x"))?;
    fails!(fs::remove_dir(d.at("full")), ENOTEMPTY | EEXIST);
    fails!(rustix::fs::rmdir(d.at("full/.")), EINVAL);
    fails!(rustix::fs::rmdir(d.at("full/x/..")), ENOTEMPTY | EEXIST);
    fails!(fs::remove_file(d.at("full")), EISDIR | EPERM);
    Ok(())
}

/// An offset stays valid for a long time.
pub(super) fn stable_cookies(d: &Dir) -> CaseResult {
    fill(d, 500)?;
    let mut reader = DirReader::open(d.path(), PIECE)?;
    let all = reader.rest()?;
    let mut rng = fastrand::Rng::with_seed(2);
    for n in 0..100 {
        d.file(format!("other{n}"), b"")?;
    }
    for n in 0..100 {
        fs::remove_file(d.at(format!("other{n}")))?;
    }
    for _ in 0..100 {
        let at = rng.usize(..all.len());
        reader.seek(all[at].next)?;
        let rest: Vec<_> = reader.rest()?.into_iter().map(|e| e.name).collect();
        let want: Vec<_> = all[at + 1..].iter().map(|e| e.name.clone()).collect();
        same!(rest, want, "from entry {at}");
    }
    Ok(())
}
