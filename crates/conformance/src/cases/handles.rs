//! File handles open their inode as long as it exists, even after the kernel has evicted it.

use std::io::Read;
use std::os::fd::AsRawFd;

use super::prelude::*;
use crate::sys::{Handle, drop_caches};

/// The directory for opening handles; skips the case if handles are not supported.
fn mount(d: &Dir) -> Result<File, Failure> {
    match Handle::of(d.path()) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Err(Failure::skip("no file handles")),
        _ => Ok(open(d.path(), OFlags::RDONLY | OFlags::DIRECTORY)?),
    }
}

/// Makes the kernel evict unused inodes and names; skips the case without permission.
fn evict() -> CaseResult {
    drop_caches().map_err(|e| Failure::skip(format!("cannot drop caches: {e}")))
}

fn read(mut file: File) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn outlive_the_cache(d: &Dir) -> CaseResult {
    let mount = mount(d)?;
    let mut handles = Vec::new();
    for n in 0..500 {
        let path = d.file(format!("f{n}"), n.to_string().as_bytes())?;
        handles.push(Handle::of(path)?);
    }
    for round in 0..2 {
        evict()?;
        for (n, handle) in handles.iter().enumerate() {
            let file = handle.open(&mount, OFlags::RDONLY);
            let file = file.map_err(|e| Failure::at(format!("round {round}, file {n}: {e}")))?;
            same!(read(file)?, n.to_string().as_bytes());
        }
    }
    Ok(())
}

pub(super) fn of_every_kind(d: &Dir) -> CaseResult {
    let mount = mount(d)?;
    let deep = (0..8).fold(d.path().to_owned(), |path, n| path.join(format!("d{n}")));
    fs::create_dir_all(&deep)?;
    let big = pattern(1, 300_000);
    fs::write(deep.join("small"), b"small")?;
    fs::write(deep.join("big"), &big)?;
    rustix::fs::symlink("nowhere", deep.join("link"))?;
    rustix::fs::mknodat(CWD, deep.join("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    fs::write(d.at("linked"), b"linked")?;
    fs::hard_link(d.at("linked"), deep.join("linked too"))?;
    // Handles bypass search permission.
    chmod(&deep, 0)?;
    let paths = ["small", "big", "link", "fifo", "linked too"].map(|name| deep.join(name));
    let paths = paths.into_iter().chain([deep.clone(), d.at("linked"), d.path().to_owned()]);
    let mut handles = Vec::new();
    for path in paths {
        let s = stat(&path)?;
        handles.push((Handle::of(&path)?, s.st_ino, s.st_mode, s.st_size));
    }
    for _ in 0..2 {
        evict()?;
        for (handle, ino, mode, size) in &handles {
            let s = rustix::fs::fstat(handle.open(&mount, OFlags::PATH)?)?;
            same!((s.st_ino, s.st_mode, s.st_size), (*ino, *mode, *size));
        }
    }
    evict()?;
    same!(read(handles[0].0.open(&mount, OFlags::RDONLY)?)?, b"small");
    check!(read(handles[1].0.open(&mount, OFlags::RDONLY)?)? == big);
    let file = handles[4].0.open(&mount, OFlags::RDWR)?;
    file.write_all_at(b"LINKED", 0)?;
    drop(file);
    same!(fs::read(d.at("linked"))?, b"LINKED");
    let link = handles[2].0.open(&mount, OFlags::PATH)?;
    let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
    same!(target.as_bytes(), b"nowhere");
    fails!(handles[2].0.open(&mount, OFlags::RDONLY), ELOOP);
    chmod(&deep, 0o755)
}

pub(super) fn follow_renames(d: &Dir) -> CaseResult {
    let mount = mount(d)?;
    fs::create_dir_all(d.at("a/b"))?;
    d.file("f", b"file")?;
    d.file("a/b/g", b"inside")?;
    let (file, dir, inside) = (Handle::of(d.at("f"))?, Handle::of(d.at("a/b"))?, Handle::of(d.at("a/b/g"))?);
    for (from, to) in [("f", "a/f"), ("a/f", "a/b/f"), ("a/b", "c"), ("c/f", "c/h")] {
        fs::rename(d.at(from), d.at(to))?;
        evict()?;
        same!(read(file.open(&mount, OFlags::RDONLY)?)?, b"file");
        same!(read(inside.open(&mount, OFlags::RDONLY)?)?, b"inside");
        let s = rustix::fs::fstat(dir.open(&mount, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        check!(s.st_mode & libc::S_IFMT == libc::S_IFDIR);
    }
    // Add a second name and remove the first.
    fs::hard_link(d.at("c/h"), d.at("second"))?;
    fs::remove_file(d.at("c/h"))?;
    evict()?;
    same!(read(file.open(&mount, OFlags::RDONLY)?)?, b"file");
    Ok(())
}

pub(super) fn end_with_the_inode(d: &Dir) -> CaseResult {
    let mount = mount(d)?;
    let mut gone = Vec::new();
    for (name, len) in [("small", 10), ("big", 300_000), ("replaced", 20)] {
        gone.push(Handle::of(d.file(name, &pattern(1, len))?)?);
    }
    gone.push(Handle::of(d.mkdir("dir", 0o755)?)?);
    rustix::fs::symlink("nowhere", d.at("link"))?;
    gone.push(Handle::of(d.at("link"))?);
    evict()?;
    fs::remove_file(d.at("small"))?;
    fs::remove_file(d.at("big"))?;
    fs::remove_file(d.at("link"))?;
    fs::remove_dir(d.at("dir"))?;
    fs::rename(d.file("new", b"new")?, d.at("replaced"))?;
    for round in 0..2 {
        for (n, handle) in gone.iter().enumerate() {
            fails!(handle.stat(&mount), ESTALE);
            // A new file does not take over a handle.
            d.file(format!("other{round}.{n}"), b"other")?;
        }
        evict()?;
    }
    Ok(())
}

pub(super) fn of_open_file(d: &Dir) -> CaseResult {
    let mount = mount(d)?;
    for len in [10, 300_000] {
        let file = d.open("f")?;
        file.write_all_at(&pattern(1, len), 0)?;
        let handle = Handle::of(d.at("f"))?;
        fs::remove_file(d.at("f"))?;
        evict()?;
        let again = handle.open(&mount, OFlags::RDONLY)?;
        same!(again.metadata()?.nlink(), 0);
        check!(read(again)? == pattern(1, len));
        drop(file);
        fails!(handle.stat(&mount), ESTALE);
    }
    Ok(())
}

pub(super) fn directories_are_reconnected(d: &Dir) -> CaseResult {
    let mount = mount(d)?;
    let path = d.at("a/b/c/d");
    fs::create_dir_all(&path)?;
    let parent = stat(d.at("a/b/c"))?.st_ino;
    let handle = Handle::of(&path)?;
    for _ in 0..2 {
        evict()?;
        let dir = handle.open(&mount, OFlags::RDONLY | OFlags::DIRECTORY)?;
        same!(rustix::fs::statat(&dir, "..", AtFlags::empty())?.st_ino, parent);
        let shown = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
        same!(shown, fs::canonicalize(&path)?);
        let flags = OFlags::CREATE | OFlags::RDWR;
        rustix::fs::openat(&dir, "new", flags, Mode::from_raw_mode(0o644))?;
        check!(exists(path.join("new")));
        fs::remove_file(path.join("new"))?;
    }
    Ok(())
}

pub(super) fn need_privilege(d: &Dir) -> CaseResult {
    let mount = mount(d)?;
    let path = d.file("f", b"bytes")?;
    chmod(&path, 0o666)?;
    let handle = Handle::of(&path)?;
    ALICE.run(|| {
        fails!(handle.open(&mount, OFlags::RDONLY), EPERM);
        Ok(())
    })
}
