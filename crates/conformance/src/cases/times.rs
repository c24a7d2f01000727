//! Time stamps: which operations change them, and setting them.

use rustix::fs::{Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};

use std::thread::sleep;
use std::time::Duration;

use super::prelude::*;
use crate::map::FileMapping;
use crate::dir::{nanos, timespec};

fn set(path: &Path, access: (i64, i64), modification: (i64, i64)) -> rustix::io::Result<()> {
    let times = Timestamps {
        last_access: timespec(access.0, access.1),
        last_modification: timespec(modification.0, modification.1),
    };
    utimensat(CWD, path, &times, AtFlags::empty())
}

pub(super) fn nanoseconds(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    set(&f, (1_000_000_000, 123_456_789), (1_500_000_000, 987_654_321))?;
    let s = stat(&f)?;
    same!(atime(&s), nanos(1_000_000_000, 123_456_789));
    same!(mtime(&s), nanos(1_500_000_000, 987_654_321));
    set(d.path(), (5, 1), (6, 999_999_999))?;
    same!(mtime(&stat(d.path())?), nanos(6, 999_999_999));
    fails!(set(&f, (0, 1_000_000_000), (0, 0)), EINVAL);
    fails!(set(&f, (0, -1), (0, 0)), EINVAL);
    Ok(())
}

pub(super) fn now_and_omit(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    let (now, omit) = ((0, UTIME_NOW), (0, UTIME_OMIT));
    set(&f, (10, 1), (20, 2))?;
    let before = stat(&f)?;
    tick();
    set(&f, omit, (30, 3))?;
    let s = stat(&f)?;
    same!((atime(&s), mtime(&s)), (nanos(10, 1), nanos(30, 3)));
    check!(ctime(&s) > ctime(&before));
    set(&f, now, omit)?;
    let s = stat(&f)?;
    check!(atime(&s) > ctime(&before));
    same!(mtime(&s), nanos(30, 3));
    set(&f, omit, omit)?;
    let unchanged = stat(&f)?;
    same!((atime(&unchanged), mtime(&unchanged)), (atime(&s), mtime(&s)));
    set(&f, (1, 0), now)?;
    check!(mtime(&stat(&f)?) > ctime(&before));
    Ok(())
}

/// 1901 to 2446, the range of ext4.
pub(super) fn range(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    for seconds in [-2_147_483_647, -1, 0, 1, 2_147_483_647, 2_147_483_648, 4_294_967_296, 15_032_385_534] {
        set(&f, (seconds, 500_000_000), (seconds, 1))?;
        let s = stat(&f)?;
        same!((s.st_atime, s.st_atime_nsec), (seconds, 500_000_000));
        same!((s.st_mtime, s.st_mtime_nsec), (seconds, 1));
    }
    Ok(())
}

/// The times that an operation changed: atime, mtime, ctime.
fn moved(path: &Path, operation: impl FnOnce() -> CaseResult) -> Result<(bool, bool, bool), Failure> {
    let before = stat(path)?;
    tick();
    operation()?;
    let after = stat(path)?;
    let past = |time: fn(&rustix::fs::Stat) -> i128| time(&after) != time(&before);
    Ok((past(atime), past(mtime), past(ctime)))
}

pub(super) fn each_operation(d: &Dir) -> CaseResult {
    let f = d.file("f", b"some bytes")?;
    let file = OpenOptions::new().read(true).write(true).open(&f)?;
    same!(moved(&f, || Ok(file.write_all_at(b"x", 0)?))?, (false, true, true), "write");
    same!(moved(&f, || Ok(file.set_len(5)?))?, (false, true, true), "ftruncate");
    same!(moved(&f, || chmod(&f, 0o600))?, (false, false, true), "chmod");
    same!(moved(&f, || chown(&f, 60_001, 60_001))?, (false, false, true), "chown");
    same!(moved(&f, || Ok(fs::hard_link(&f, d.at("g"))?))?, (false, false, true), "link");
    same!(moved(&f, || Ok(fs::remove_file(d.at("g"))?))?, (false, false, true), "unlink of another name");
    same!(moved(&f, || { stat(&f)?; Ok(()) })?, (false, false, false), "stat");
    same!(moved(&f, || Ok(file.sync_all()?))?, (false, false, false), "fsync");
    same!(moved(&f, || { rustix::io::write(&file, b"")?; Ok(()) })?, (false, false, false), "empty write");
    same!(moved(&f, || { open(&f, OFlags::WRONLY | OFlags::TRUNC)?; Ok(()) })?, (false, true, true), "O_TRUNC");
    same!(moved(&f, || Ok(file.write_all_at(&[1; 70_000], 0)?))?, (false, true, true), "big write");
    Ok(())
}

pub(super) fn parent_directory(d: &Dir) -> CaseResult {
    let p = d.mkdir("p", 0o755)?;
    let changed = (false, true, true);
    let f = p.join("f");
    same!(moved(&p, || Ok(fs::write(&f, b"")?))?, changed, "create");
    same!(moved(&p, || Ok(fs::write(&f, b"more")?))?, (false, false, false), "write to a child");
    same!(moved(&p, || chmod(&f, 0o600))?, (false, false, false), "chmod of a child");
    same!(moved(&p, || Ok(fs::hard_link(&f, p.join("g"))?))?, changed, "link");
    same!(moved(&p, || Ok(fs::rename(&f, p.join("h"))?))?, changed, "rename");
    same!(moved(&p, || Ok(fs::remove_file(p.join("g"))?))?, changed, "unlink");
    same!(moved(&p, || Ok(fs::create_dir(p.join("sub"))?))?, changed, "mkdir");
    same!(moved(&p, || Ok(fs::remove_dir(p.join("sub"))?))?, changed, "rmdir");
    same!(moved(&p, || Ok(rustix::fs::symlink("x", p.join("l"))?))?, changed, "symlink");
    let fifo = || rustix::fs::mkfifoat(CWD, p.join("p"), Mode::from_raw_mode(0o600));
    same!(moved(&p, || Ok(fifo()?))?, changed, "mkfifo");
    same!(moved(&p, || { fails!(fs::create_dir(p.join("l")), EEXIST); Ok(()) })?, (false, false, false), "EEXIST");
    Ok(())
}

pub(super) fn chmod_and_chown(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    same!(moved(&dir, || chmod(&dir, 0o700))?, (false, false, true));
    same!(moved(&dir, || chown(&dir, 60_001, 60_001))?, (false, false, true));
    // Setting the present value counts as a change too.
    same!(moved(&dir, || chmod(&dir, 0o700))?, (false, false, true));
    Ok(())
}

pub(super) fn relatime(d: &Dir) -> CaseResult {
    let f = d.file("f", b"bytes")?;
    let flags = rustix::fs::statvfs(&f)?.f_flag;
    if flags.contains(rustix::fs::StatVfsMountFlags::NOATIME) {
        same!(moved(&f, || Ok(fs::read(&f).map(drop)?))?, (false, false, false), "read with noatime");
        return Ok(());
    }
    same!(moved(&f, || Ok(fs::read(&f).map(drop)?))?, (true, false, false), "first read after a write");
    if flags.contains(rustix::fs::StatVfsMountFlags::RELATIME) {
        same!(moved(&f, || Ok(fs::read(&f).map(drop)?))?, (false, false, false), "second read");
        // An access time older than a day is updated in any case.
        set(&f, (1_000_000_000, 0), (900_000_000, 0))?;
        same!(moved(&f, || Ok(fs::read(&f).map(drop)?))?, (true, false, false), "read after a day");
    }
    BOB.run(|| {
        fails!(open(&f, OFlags::RDONLY | OFlags::NOATIME), EPERM);
        Ok(())
    })
}

/// As `relatime`, through one handle, with reads that a page cache may answer.
pub(super) fn relatime_of_open_file(d: &Dir) -> CaseResult {
    let f = d.file("f", b"bytes")?;
    if rustix::fs::statvfs(&f)?.f_flag.contains(rustix::fs::StatVfsMountFlags::NOATIME) {
        return Ok(());
    }
    set(&f, (1_000_000_000, 0), (900_000_000, 0))?;
    fs::read(&f)?; // leaves the page in the cache, and an access time that is new
    let file = OpenOptions::new().read(true).write(true).open(&f)?;
    tick();
    file.write_all_at(b"again", 0)?;
    tick();
    // Read through another handle: a network file system may answer a handle's reads of its own
    // writes without counting an access, or count the access at open.
    let again = || Ok(File::open(&f)?.read_exact_at(&mut [0; 5], 0)?);
    same!(moved(&f, again)?, (true, false, false), "read again");
    let silent = open(&f, OFlags::RDWR | OFlags::NOATIME)?;
    silent.write_all_at(b"AGAIN", 0)?;
    same!(moved(&f, || { silent.read_exact_at(&mut [0; 5], 0)?; Ok(()) })?, (false, false, false), "O_NOATIME");
    Ok(())
}

pub(super) fn read_and_write_order(d: &Dir) -> CaseResult {
    // A time set after a write must not be overwritten by that write's own time.
    let file = d.open("f")?;
    for n in 0..20 {
        file.write_all_at(&pattern(n, 3000 * (n as usize + 1)), 0)?;
        let time = crate::dir::timespec(1_000_000 + n as i64, 5);
        rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        same!(mtime(&stat(d.at("f"))?), nanos(1_000_000 + n as i64, 5));
        file.sync_all()?;
        same!(mtime(&stat(d.at("f"))?), nanos(1_000_000 + n as i64, 5), "after fsync");
    }
    drop(file);
    same!(mtime(&stat(d.at("f"))?), nanos(1_000_019, 5), "after close");
    Ok(())
}

pub(super) fn birth(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    let born = || -> Result<_, Failure> {
        let s = rustix::fs::statx(CWD, &f, AtFlags::empty(), rustix::fs::StatxFlags::BTIME)?;
        Ok((s.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0, s.stx_btime.tv_sec, s.stx_btime.tv_nsec))
    };
    let first = born()?;
    if !first.0 {
        return Ok(()); // FUSE has no birth time before protocol 7.39
    }
    tick();
    fs::write(&f, b"x")?;
    set(&f, (1, 1), (1, 1))?;
    same!(born()?, first);
    Ok(())
}

pub(super) fn monotonic_enough(d: &Dir) -> CaseResult {
    let mut last = 0;
    for n in 0..200 {
        let now = mtime(&stat(d.file(format!("f{n}"), b"x")?)?);
        check!(now >= last, "file {n} is older than the one before");
        last = now;
    }
    Ok(())
}

/// Sizes in bytes: small, and larger than a strip.
const LENGTHS: [usize; 3] = [100, 8192, 300_000];

/// Modification time and change time.
fn times(path: &Path) -> Result<(i128, i128), Failure> {
    let s = stat(path)?;
    Ok((mtime(&s), ctime(&s)))
}

/// After close, the times of a written file are final.
pub(super) fn final_after_close(d: &Dir) -> CaseResult {
    let mut paths = vec![d.file("source", &pattern(1, 300_000))?];
    for len in LENGTHS {
        let bytes = pattern(2, len);
        paths.push(d.file(format!("written{len}"), &bytes)?);
        let mut opened = |label: &str| -> Result<File, Failure> {
            let path = d.file(format!("{label}{len}"), &bytes)?;
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            paths.push(path);
            Ok(file)
        };
        opened("overwritten")?.write_all_at(b"x", len as u64 / 2)?;
        opened("truncated")?.set_len(len as u64 / 2)?;
        opened("mapped").and_then(|file| {
            FileMapping::shared(&file, len)?.store(len / 2, b"stored");
            Ok(())
        })?;
        let file = opened("synced")?;
        file.write_all_at(b"x", 0)?;
        file.sync_all()?;
        let mode = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(opened("allocated")?, mode, 0, len as u64 + 5)?;
        let times = Timestamps { last_access: timespec(5, 0), last_modification: timespec(7, 7) };
        rustix::fs::futimens(opened("set")?, &times)?;
        let renamed = d.at(format!("renamed{len}"));
        fs::rename(d.file(format!("named{len}"), &bytes)?, &renamed)?;
        paths.push(renamed);
    }
    let source = File::open(&paths[0])?;
    for len in [30_000, 50_000, 82_000] {
        let name = format!("copied{len}");
        copy(&source, &d.open(&name)?, len, 290_000)?;
        paths.push(d.at(name));
    }
    let first = paths.iter().map(|path| times(path)).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..2 {
        sleep(Duration::from_millis(700));
        for (path, first) in paths.iter().zip(&first) {
            same!(times(path)?, *first, "{}", path.display());
        }
    }
    Ok(())
}

/// Copies the start of a file, with read and write if `copy_file_range` fails.
fn copy(from: &File, to: &File, len: usize, at: u64) -> CaseResult {
    let (mut read, mut written) = (0, at);
    while read < len as u64 {
        let left = len - read as usize;
        match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), left) {
            Ok(0) => break,
            Ok(_) => {}
            Err(rustix::io::Errno::XDEV) => return Ok(to.write_all_at(&pattern(3, left), written)?),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A time set explicitly stays, even if earlier stores through a mapping are written back
/// afterwards.
pub(super) fn set_while_map_is_dirty(d: &Dir) -> CaseResult {
    for len in LENGTHS {
        for is_new in [true, false] {
            let name = format!("f{len}{is_new}");
            let path = d.file(&name, &pattern(1, len))?;
            let mut file = d.open(&name)?;
            if is_new {
                fs::remove_file(&path)?;
                file = d.open(&name)?;
                file.write_all_at(&pattern(1, len), 0)?;
            }
            let map = FileMapping::shared(&file, len)?;
            map.store(5, b"stored");
            set(&path, (1, 0), (1, 0))?;
            same!(mtime(&stat(&path)?), nanos(1, 0), "{name}");
            let changed = times(&path)?;
            drop((map, file));
            same!(times(&path)?, changed, "{name}, closed");
            same!(fs::read(&path)?[5..11], *b"stored");
            same!(mtime(&stat(&path)?), nanos(1, 0), "{name}, read");
        }
    }
    Ok(())
}

/// A store through a mapping updates the times when it is synced at the latest, also after the time
/// was set explicitly, and when only the mapping keeps the file open.
pub(super) fn store_through_map_counts(d: &Dir) -> CaseResult {
    for len in LENGTHS {
        for keeps_open in [true, false] {
            let name = format!("f{len}{keeps_open}");
            let path = d.file(&name, &pattern(1, len))?;
            stat(&path)?; // the kernel may keep this
            let file = d.open(&name)?;
            let map = FileMapping::shared(&file, len)?;
            let file = keeps_open.then_some(file);
            set(&path, (1, 0), (1, 0))?;
            let before = times(&path)?;
            for n in 0..3 {
                tick();
                map.store(n, b"x");
                map.sync()?;
                let after = times(&path)?;
                check!(after > before, "{name}: store {n} left {after:?}");
                check!(after.0 >= before.1, "{name}: store {n} gave {after:?} after {before:?}");
            }
            drop((map, file));
        }
    }
    Ok(())
}

/// A later change never has an earlier time; on servers, apart from the difference of their clocks.
pub(super) fn order_of_small_and_big(d: &Dir) -> CaseResult {
    let big = pattern(1, 100_000);
    let open_big = OpenOptions::new().write(true).open(d.file("open", &big)?)?;
    // A client's estimate of its server's clock is off by the time of a message.
    let slack = if d.is_of_servers() { 200_000_000 } else { 0 };
    let mut last = (0, String::new());
    let mut next = |name: &str| -> CaseResult {
        let time = mtime(&stat(d.at(name))?);
        check!(time + slack >= last.0, "{name} looks older than {}, by {} ns", last.1, last.0 - time);
        last = (time, name.to_owned());
        Ok(())
    };
    for n in 0..60 {
        let (small, large, reopened) = (format!("small{n}"), format!("big{n}"), "reopened");
        d.file(&small, b"x")?;
        d.file(&large, &big)?;
        d.mkdir(format!("dir{n}"), 0o755)?;
        if n % 2 == 0 {
            // The kernel uses finer times after a `stat`.
            stat(d.at(reopened)).ok();
        }
        d.open(reopened)?.write_all_at(&big, 0)?;
        fs::write(d.at("overwritten"), b"x")?;
        open_big.write_all_at(b"x", n)?;
        d.file(format!("after{n}"), b"x")?;
        for name in [&*small, &*large, &*format!("dir{n}"), reopened, "overwritten", "open"] {
            next(name)?;
        }
        next(&format!("after{n}"))?;
    }
    Ok(())
}
