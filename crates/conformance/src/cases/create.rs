//! `open(2)` and its flags.

use std::os::unix::fs::OpenOptionsExt;

use super::prelude::*;

pub(super) fn exclusive(d: &Dir) -> CaseResult {
    let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    open(d.at("a"), create)?;
    fails!(open(d.at("a"), create), EEXIST);
    fs::create_dir(d.at("dir"))?;
    fails!(open(d.at("dir"), create), EEXIST);
    // An exclusive create does not follow a symbolic link, not even a dangling one.
    rustix::fs::symlink("nowhere", d.at("dangling"))?;
    fails!(open(d.at("dangling"), create), EEXIST);
    check!(!exists(d.at("nowhere")));
    Ok(())
}

pub(super) fn exclusive_race(d: &Dir) -> CaseResult {
    for round in 0..50 {
        let path = d.at(format!("race{round}"));
        let winners: usize = std::thread::scope(|s| {
            let all: Vec<_> = (0..8)
                .map(|_| s.spawn(|| open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).is_ok()))
                .collect();
            all.into_iter().filter_map(|t| t.join().ok()).filter(|won| *won).count()
        });
        same!(winners, 1, "in round {round}");
    }
    Ok(())
}

pub(super) fn truncating(d: &Dir) -> CaseResult {
    for len in [1, 4096, 65_536, 65_537, 300_000] {
        let path = d.file("f", &pattern(1, len))?;
        let other = File::open(&path)?;
        let before = stat(&path)?;
        open(&path, OFlags::WRONLY | OFlags::TRUNC)?;
        same!(stat(&path)?.st_size, 0);
        same!(stat(&path)?.st_ino, before.st_ino);
        same!(other.metadata()?.len(), 0);
        same!(fs::read(&path)?, Vec::<u8>::new());
    }
    fails!(open(d.path(), OFlags::WRONLY), EISDIR);
    Ok(())
}

pub(super) fn append_processes(d: &Dir) -> CaseResult {
    const RECORDS: usize = 400;
    let path = d.file("log", b"")?;
    let children: Vec<Child> = (0..4u8)
        .map(|writer| {
            let path = path.clone();
            Child::start(move || {
                let log = OpenOptions::new().append(true).open(path)?;
                for n in 0..RECORDS {
                    let mut record = [b'a' + writer; 61];
                    record[..4].copy_from_slice(format!("{n:04}").as_bytes());
                    same!(rustix::io::write(&log, &record)?, record.len());
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        child.wait()?;
    }
    let log = fs::read(&path)?;
    same!(log.len(), 4 * RECORDS * 61);
    let mut next = [0; 4];
    for record in log.chunks(61) {
        let writer = usize::from(record[60] - b'a');
        check!(record[4..].iter().all(|b| *b == record[60]), "a torn record");
        same!(record[..4], *format!("{:04}", next[writer]).as_bytes(), "a lost or reordered record");
        next[writer] += 1;
    }
    Ok(())
}

pub(super) fn no_follow(d: &Dir) -> CaseResult {
    d.file("f", b"x")?;
    rustix::fs::symlink("f", d.at("l"))?;
    fails!(open(d.at("l"), OFlags::RDONLY | OFlags::NOFOLLOW), ELOOP);
    open(d.at("l"), OFlags::RDONLY)?;
    open(d.at("f"), OFlags::RDONLY | OFlags::NOFOLLOW)?;
    let link = open(d.at("l"), OFlags::PATH | OFlags::NOFOLLOW)?;
    same!(rustix::fs::fstat(&link)?.st_mode & libc::S_IFMT, libc::S_IFLNK);
    same!(rustix::fs::readlinkat(&link, "", Vec::new())?.to_bytes(), b"f");
    Ok(())
}

pub(super) fn path_only(d: &Dir) -> CaseResult {
    let path = d.file("f", b"content")?;
    let handle = open(&path, OFlags::PATH)?;
    let mut byte = [0];
    fails!(rustix::io::read(&handle, &mut byte), EBADF);
    same!(rustix::fs::fstat(&handle)?.st_size, 7);
    fs::rename(&path, d.at("g"))?;
    use std::os::fd::AsRawFd;
    let again = fs::read(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
    same!(again, b"content");
    let directory = open(d.path(), OFlags::PATH | OFlags::DIRECTORY)?;
    same!(rustix::fs::statat(&directory, "g", AtFlags::empty())?.st_size, 7);
    Ok(())
}

pub(super) fn directory_only(d: &Dir) -> CaseResult {
    d.file("f", b"")?;
    fs::create_dir(d.at("dir"))?;
    fails!(open(d.at("f"), OFlags::RDONLY | OFlags::DIRECTORY), ENOTDIR);
    open(d.at("dir"), OFlags::RDONLY | OFlags::DIRECTORY)?;
    fails!(open(d.at("dir"), OFlags::RDWR), EISDIR);
    fails!(open(d.at("dir"), OFlags::CREATE | OFlags::RDONLY), EISDIR);
    let mut byte = [0];
    fails!(rustix::io::read(&open(d.at("dir"), OFlags::RDONLY)?, &mut byte), EISDIR);
    Ok(())
}

pub(super) fn sync_flags(d: &Dir) -> CaseResult {
    for (name, flag) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let file = open(d.at(name), OFlags::CREATE | OFlags::RDWR | flag)?;
        let data = pattern(3, 100_000);
        file.write_all_at(&data, 0)?;
        same!(fs::read(d.at(name))?, data);
    }
    Ok(())
}

pub(super) fn direct(d: &Dir) -> CaseResult {
    let path = d.file("f", &pattern(5, 256 * 1024))?;
    let file = match open(&path, OFlags::RDWR | OFlags::DIRECT) {
        Err(e) if e == rustix::io::Errno::INVAL => return Ok(()), // direct I/O is optional
        other => other?,
    };
    let mut raw = vec![0u8; 3 * 4096];
    let skip = raw.as_ptr().align_offset(4096);
    let page = &mut raw[skip..skip + 4096];
    file.read_exact_at(page, 128 * 1024)?;
    same!(*page, pattern(5, 256 * 1024)[128 * 1024..][..4096]);
    page.fill(9);
    file.write_all_at(page, 64 * 1024)?;
    same!(fs::read(&path)?[64 * 1024..][..4096], [9; 4096]);
    Ok(())
}

pub(super) fn modes_and_umask(d: &Dir) -> CaseResult {
    for mask in [0, 0o22, 0o77, 0o777] {
        umask(mask);
        for bits in [0o777, 0o4755, 0o644, 0o000] {
            let path = d.at("f");
            OpenOptions::new().write(true).create_new(true).mode(bits).open(&path)?;
            same!(mode(&path)?, bits & !mask, "file {bits:o} under umask {mask:o}");
            fs::remove_file(&path)?;
            rustix::fs::mkdir(&path, Mode::from_raw_mode(bits & 0o1777))?;
            same!(mode(&path)?, bits & 0o1777 & !mask, "directory {bits:o} under umask {mask:o}");
            fs::remove_dir(&path)?;
        }
    }
    umask(0o22);
    // The handle of a new file has the requested access regardless of the mode.
    let home = d.home("home", ALICE, 0o755)?;
    ALICE.run(|| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o000).open(home.at("f"))?;
        file.write_all_at(b"abc", 0)?;
        let mut back = [0; 3];
        file.read_exact_at(&mut back, 0)?;
        fails!(File::open(home.at("f")), EACCES);
        Ok(())
    })
}

pub(super) fn other_errors(d: &Dir) -> CaseResult {
    d.file("f", b"")?;
    fails!(open(d.at("none"), OFlags::RDONLY), ENOENT);
    fails!(open(d.at("none/f"), OFlags::CREATE | OFlags::WRONLY), ENOENT);
    fails!(open(d.at("f/f"), OFlags::CREATE | OFlags::WRONLY), ENOTDIR);
    fails!(open(d.at("f/"), OFlags::RDONLY), ENOTDIR);
    fails!(open(d.at("new/"), OFlags::CREATE | OFlags::WRONLY), EISDIR);
    let read_only = File::open(d.at("f"))?;
    fails!(rustix::io::write(&read_only, b"x"), EBADF);
    Ok(())
}
