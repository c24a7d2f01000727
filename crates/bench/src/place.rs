//! The file system of a directory, and control of the kernel's caches.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::group::Uncached;

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BenchTarget {
    pub dir: PathBuf,
    /// Type of the file system, such as `ext4` or `fuse.espalier`.
    pub file_system: String,
    /// Mounted source: a device or a store.
    pub source: PathBuf,
    /// Mount options, including those of the file system.
    pub options: String,
    /// Durability guarantees, as far as type and options determine them.
    pub durability: String,
}

impl BenchTarget {
    pub(crate) fn of(dir: &Path) -> Result<BenchTarget, Error> {
        let unusable = |source| Error::Directory { dir: dir.into(), source };
        let dir = dir.canonicalize().map_err(unusable)?;
        if !dir.is_dir() {
            return Err(unusable(io::ErrorKind::NotADirectory.into()));
        }
        let table =
            fs::read_to_string("/proc/self/mountinfo").map_err(Error::doing("read the mount table"))?;
        // The last of several mounts on one directory is visible.
        let mounts = table.lines().filter_map(parse).filter(|(mountpoint, ..)| dir.starts_with(mountpoint));
        let mount = mounts.max_by_key(|(mountpoint, ..)| mountpoint.components().count());
        let (_, file_system, source, options) = mount.unwrap_or_default();
        let durability = durability(&file_system, &options).to_string();
        Ok(BenchTarget { dir, file_system, source, options, durability })
    }

    /// Writes out the dirty data of this file system.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(fs::File::open(&self.dir)?)?)
    }
}

fn has(options: &str, name: &str) -> bool {
    options.split(',').any(|option| option == name)
}

/// Mount point, type, source and options of a mountinfo line.
fn parse(line: &str) -> Option<(PathBuf, String, PathBuf, String)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(4);
    let (mountpoint, options) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.splitn(3, ' ');
    let (kind, source, own) = (file_system.next()?, file_system.next()?, file_system.next()?);
    let own = own.split(',').filter(|option| !has(options, option));
    let all: Vec<&str> = options.split(',').chain(own).collect();
    Some((unescape(mountpoint).into(), kind.into(), unescape(source).into(), all.join(",")))
}

/// Decodes octal escapes of the mount table.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_string(), |text, (code, plain)| text.replace(code, plain))
}

fn durability(file_system: &str, options: &str) -> &'static str {
    let unflushed = has(options, "nobarrier") || has(options, "barrier=0");
    match file_system {
        "tmpfs" | "ramfs" | "fuse.espalier-floor" => "memory only, nothing survives a crash",
        _ if has(options, "sync") => "every change is durable before it is acknowledged",
        "fuse.espalier" => "durable after fsync, the rest within a second",
        "ext4" | "ext3" | "xfs" | "btrfs" | "f2fs" if unflushed => {
            "not durable: the disk's own cache is not flushed, even by fsync"
        }
        "fuse.ceph-fuse" => "durable after fsync, the rest within about 5 s",
        "ext4" | "ext3" => "durable after fsync, the rest within 5 s (commit=), file data within 30 s",
        "xfs" | "btrfs" | "f2fs" => "durable after fsync, the rest within about 30 s",
        _ => "not known",
    }
}

/// Pause after dropping caches: evicted inodes cause work (FUSE gets a request for each), which
/// must not count for the next phase.
const PAUSE: Duration = Duration::from_millis(500);

/// Drops kernel caches of the whole machine; root only. Writes dirty data first, which cannot be
/// dropped. Caches of a file system's server stay.
pub(crate) fn forget(uncached: Uncached, place: &BenchTarget) -> io::Result<()> {
    let caches = match uncached {
        Uncached::Nothing => return Ok(()),
        Uncached::Names => "2",
        Uncached::Everything => "3",
    };
    place.sync()?;
    fs::write("/proc/sys/vm/drop_caches", caches)?;
    std::thread::sleep(PAUSE);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table_is_understood() {
        let line =
            r"36 35 98:0 / /mnt/a\040b rw,noatime master:1 - ext4 /dev/loop0 rw,barrier=0,data=ordered";
        let (mountpoint, kind, source, options) = parse(line).unwrap();
        assert_eq!((mountpoint.to_str(), kind.as_str()), (Some("/mnt/a b"), "ext4"));
        assert_eq!(source, Path::new("/dev/loop0"));
        assert_eq!(options, "rw,noatime,barrier=0,data=ordered");
        assert!(durability(&kind, &options).starts_with("not durable"));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn a_directory_is_found_on_its_file_system() {
        assert_eq!(BenchTarget::of(Path::new("/proc/self")).unwrap().file_system, "proc");
        assert!(
            BenchTarget::of(Path::new("/proc/self/mountinfo")).unwrap_err().to_string().contains("directory")
        );
    }
}
