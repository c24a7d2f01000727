//! The fresh directory of each case, and helpers for common calls.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, StatFs, Timespec};

use crate::Failure;
use crate::process::User;

/// Resource limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct ResourceLimits {
    /// Entries of the largest directory.
    pub entries: u32,
}

/// The directory of one case.
#[derive(Clone, Debug)]
pub struct Dir {
    path: PathBuf,
    pub limits: ResourceLimits,
}

impl Dir {
    pub fn new(path: PathBuf, limits: ResourceLimits) -> Self {
        Self { path, limits }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Creates a file with these bytes.
    pub(crate) fn file(&self, name: impl AsRef<Path>, bytes: &[u8]) -> Result<PathBuf, Failure> {
        let path = self.at(name);
        fs::write(&path, bytes)?;
        Ok(path)
    }

    /// Creates an empty file, open for reading and writing.
    pub(crate) fn open(&self, name: impl AsRef<Path>) -> Result<File, Failure> {
        Ok(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.at(name))?)
    }

    /// Creates a directory with exactly this mode, regardless of the umask.
    pub(crate) fn mkdir(&self, name: impl AsRef<Path>, mode: u32) -> Result<PathBuf, Failure> {
        let path = self.at(name);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    }

    /// A subdirectory that belongs to `user`.
    pub(crate) fn home(&self, name: &str, user: User, mode: u32) -> Result<Self, Failure> {
        let path = self.mkdir(name, mode)?;
        chown(&path, user.uid, user.gid)?;
        chmod(&path, mode)?;
        Ok(Self { path, limits: self.limits })
    }

    pub(crate) fn statfs(&self) -> Result<StatFs, Failure> {
        Ok(rustix::fs::statfs(&self.path)?)
    }

    /// True on a mount of servers, whose clocks determine times.
    pub(crate) fn is_of_servers(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounts = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            Some((fields.next()?, fields.next()?))
        });
        let above = mounts.filter(|(_, at)| self.path.starts_with(at));
        above.max_by_key(|(_, at)| at.len()).is_some_and(|(source, _)| source.starts_with("espalier://"))
    }

    /// Type of the file system, for cases that depend on the limits of ext4 or tmpfs.
    pub(crate) fn kind(&self) -> &'static str {
        match self.statfs().map(|s| s.f_type as u64) {
            Ok(0xEF53) => "ext4",
            Ok(0x0102_1994) => "tmpfs",
            Ok(0x6573_5546) => "fuse",
            _ => "other",
        }
    }
}

pub(crate) fn stat(path: impl AsRef<Path>) -> Result<Stat, Failure> {
    let path = path.as_ref();
    rustix::fs::lstat(path).map_err(|e| Failure::at(format!("lstat {}: {e}", path.display())))
}

pub(crate) fn chmod(path: impl AsRef<Path>, mode: u32) -> Result<(), Failure> {
    Ok(rustix::fs::chmod(path.as_ref(), Mode::from_raw_mode(mode))?)
}

pub(crate) fn chown(path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<(), Failure> {
    use rustix::process::{Gid, Uid};
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(rustix::fs::chownat(CWD, path.as_ref(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Permission, set-id and sticky bits.
pub(crate) fn mode(path: impl AsRef<Path>) -> Result<u32, Failure> {
    Ok(stat(path)?.st_mode & 0o7777)
}

pub(crate) fn exists(path: impl AsRef<Path>) -> bool {
    rustix::fs::lstat(path.as_ref()).is_ok()
}

/// `open(2)` with flags that std does not support.
pub(crate) fn open(path: impl AsRef<Path>, flags: OFlags) -> rustix::io::Result<File> {
    rustix::fs::open(path.as_ref(), flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).map(File::from)
}

pub(crate) fn umask(mask: u32) {
    rustix::process::umask(Mode::from_raw_mode(mask));
}

/// Sleeps longer than a tick of the coarsest kernel clock (100 Hz).
pub(crate) fn tick() {
    std::thread::sleep(Duration::from_millis(21));
}

/// Bytes that identify their offset and their writer.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(1..)).take(len).collect()
}

/// A time in nanoseconds.
pub(crate) fn nanos(seconds: i64, nanoseconds: u64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

pub(crate) fn mtime(s: &Stat) -> i128 {
    nanos(s.st_mtime, s.st_mtime_nsec)
}

pub(crate) fn ctime(s: &Stat) -> i128 {
    nanos(s.st_ctime, s.st_ctime_nsec)
}

pub(crate) fn atime(s: &Stat) -> i128 {
    nanos(s.st_atime, s.st_atime_nsec)
}

pub(crate) fn timespec(seconds: i64, nanoseconds: i64) -> Timespec {
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds }
}
