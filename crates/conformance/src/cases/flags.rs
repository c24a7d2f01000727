//! Flags of `chattr(1)`: immutable, append-only, nodump, noatime.

use rustix::fs::{FallocateFlags, IFlags, fallocate, ftruncate, ioctl_getflags, ioctl_setflags};

use super::prelude::*;

/// Flags that ext4 reports for every file.
const OF_EXT4: IFlags = IFlags::from_bits_retain(0x0008_0000 | 0x1000_0000);

/// A file with flags, which are cleared at the end so that it can be removed.
struct Flagged(PathBuf);

impl Flagged {
    fn new(path: &Path, flags: IFlags) -> Result<Self, Failure> {
        match set(path, flags) {
            Err(rustix::io::Errno::NOTTY | rustix::io::Errno::OPNOTSUPP) => Err(Failure::skip("no flags here")),
            outcome => Ok(outcome.map(|()| Self(path.into()))?),
        }
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        let _ = set(&self.0, IFlags::empty());
    }
}

fn set(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    let file = open(path, OFlags::RDONLY)?;
    let preserved = ioctl_getflags(&file)? & OF_EXT4;
    ioctl_setflags(&file, flags | preserved)
}

fn get(path: &Path) -> rustix::io::Result<IFlags> {
    Ok(ioctl_getflags(open(path, OFlags::RDONLY)?)?.difference(OF_EXT4))
}

/// A small file and a big one.
fn both(d: &Dir) -> Result<[PathBuf; 2], Failure> {
    Ok([d.file("small", b"bytes")?, d.file("big", &pattern(1, 300_000))?])
}

fn keeps_names_and_attributes(d: &Dir, f: &Path) -> CaseResult {
    let other = d.file("other", b"")?;
    fails!(fs::remove_file(f), EPERM);
    fails!(fs::rename(f, d.at("moved")), EPERM);
    fails!(fs::rename(&other, f), EPERM);
    fails!(fs::hard_link(f, d.at("second")), EPERM);
    fails!(fs::set_permissions(f, fs::Permissions::from_mode(0o600)), EPERM);
    fails!(rustix::fs::setxattr(f, "user.x", b"x", rustix::fs::XattrFlags::empty()), EPERM);
    fails!(File::create(f), EPERM);
    Ok(())
}

pub(super) fn immutable(d: &Dir) -> CaseResult {
    if d.kind() == "tmpfs" {
        return Ok(()); // it ignores flags for open files
    }
    for f in both(d)? {
        let length = fs::metadata(&f)?.len();
        let writer = OpenOptions::new().write(true).open(&f)?;
        let flagged = Flagged::new(&f, IFlags::IMMUTABLE)?;
        same!(get(&f)?, IFlags::IMMUTABLE);
        keeps_names_and_attributes(d, &f)?;
        fails!(OpenOptions::new().append(true).open(&f), EPERM);
        fails!(filetime(&f), EPERM);
        fails!(ftruncate(&writer, 0), EPERM);
        fails!(fallocate(&writer, FallocateFlags::empty(), 0, 1 << 20), EPERM);
        same!(fs::metadata(&f)?.len(), length);
        drop(flagged);
        fs::write(&f, b"other")?;
        fs::remove_file(&f)?;
    }
    Ok(())
}

/// Sets times as `touch` does.
fn filetime(path: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{Timespec, Timestamps, UTIME_NOW, utimensat};
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    utimensat(CWD, path, &Timestamps { last_access: now, last_modification: now }, AtFlags::empty())
}

pub(super) fn append_only(d: &Dir) -> CaseResult {
    for f in both(d)? {
        let mut expected = fs::read(&f)?;
        let _flagged = Flagged::new(&f, IFlags::APPEND)?;
        keeps_names_and_attributes(d, &f)?;
        fails!(OpenOptions::new().write(true).open(&f), EPERM);
        fails!(OpenOptions::new().read(true).write(true).open(&f), EPERM);
        let mut log = OpenOptions::new().append(true).open(&f)?;
        std::io::Write::write_all(&mut log, b"more")?;
        expected.extend(b"more");
        check!(fs::read(&f)? == expected);
        fails!(ftruncate(&log, 0), EPERM);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fails!(fallocate(&log, punch, 0, 4), EPERM);
        filetime(&f)?;
        check!(fs::read(&f)? == expected);
    }
    Ok(())
}

pub(super) fn directories(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    let (old, other) = (dir.join("old"), d.file("other", b"")?);
    fs::write(&old, b"old")?;
    let immutable = Flagged::new(&dir, IFlags::IMMUTABLE)?;
    fails!(fs::write(dir.join("new"), b""), EPERM);
    fails!(fs::create_dir(dir.join("new")), EPERM);
    fails!(fs::rename(&other, dir.join("new")), EPERM);
    fails!(fs::remove_file(&old), EPERM);
    fails!(fs::remove_dir_all(&dir), EPERM);
    fs::write(&old, b"new")?;
    drop(immutable);
    let _append = Flagged::new(&dir, IFlags::APPEND)?;
    fs::write(dir.join("new"), b"")?;
    fails!(fs::remove_file(dir.join("new")), EPERM);
    fails!(fs::rename(dir.join("new"), dir.join("newer")), EPERM);
    fs::rename(&other, dir.join("moved"))?;
    Ok(())
}

/// Sets flags directly after creation, when a client may hold an exclusive lease.
pub(super) fn set_at_once(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    for n in 0..20 {
        let f = dir.join(format!("f{n}"));
        fs::write(&f, b"bytes")?;
        let _flagged = Flagged::new(&f, IFlags::IMMUTABLE)?;
        fails!(fs::remove_file(&f), EPERM);
        fails!(fs::write(&f, b"x"), EPERM);
        same!(fs::read(&f)?, b"bytes");
    }
    let sub = dir.join("sub");
    fs::create_dir(&sub)?;
    let _flagged = Flagged::new(&sub, IFlags::IMMUTABLE)?;
    fails!(fs::write(sub.join("f"), b""), EPERM);
    fails!(fs::remove_dir(&sub), EPERM);
    Ok(())
}

pub(super) fn who_may_set(d: &Dir) -> CaseResult {
    if d.kind() == "tmpfs" {
        return Ok(()); // it ignores flags for open files
    }
    let f = d.file("f", b"")?;
    let _flagged = Flagged::new(&f, IFlags::NODUMP)?;
    chown(&f, ALICE.uid, ALICE.gid)?;
    let before = ctime(&stat(&f)?);
    tick();
    ALICE.run(|| {
        set(&f, IFlags::NOATIME)?;
        fails!(set(&f, IFlags::IMMUTABLE), EPERM);
        fails!(set(&f, IFlags::APPEND), EPERM);
        Ok(())
    })?;
    check!(ctime(&stat(&f)?) > before, "setting flags changes ctime");
    BOB.run(|| {
        same!(get(&f)?, IFlags::NOATIME);
        fails!(set(&f, IFlags::NODUMP), EPERM | EACCES);
        Ok(())
    })?;
    set(&f, IFlags::IMMUTABLE)?;
    fails!(set(&f, IFlags::IMMUTABLE | IFlags::NODUMP), EPERM);
    set(&f, IFlags::NODUMP)?;
    same!(get(&f)?, IFlags::NODUMP);
    Ok(())
}

pub(super) fn no_access_time(d: &Dir) -> CaseResult {
    let f = d.file("f", b"bytes")?;
    let _flagged = Flagged::new(&f, IFlags::NOATIME)?;
    let before = atime(&stat(&f)?);
    tick();
    fs::write(&f, b"newer")?;
    same!(fs::read(&f)?, b"newer");
    same!(atime(&stat(&f)?), before);
    Ok(())
}
