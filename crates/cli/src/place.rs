//! The mount that a file is in, and the mounts below the file.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use crate::report::unescape;

/// Position of an open file in the tree of mounts.
#[derive(Debug)]
pub(crate) struct MountedPath {
    /// True if the file is in a mounted Espalier file system.
    pub espalier: bool,
    /// What is mounted there: a store, or the URL of servers.
    pub source: PathBuf,
    /// Mount points below the file.
    pub mounts_below: Vec<PathBuf>,
}

impl MountedPath {
    /// # Errors
    /// If /proc cannot be read.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        let path = fs::read_link(format!("/proc/self/fd/{fd}"))?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).unwrap_or_default().trim();
        Ok(Self::in_table(&fs::read_to_string("/proc/self/mountinfo")?, id, &path))
    }

    /// `id`: id of the mount that contains `path`.
    fn in_table(table: &str, id: &str, path: &Path) -> Self {
        let (mut espalier, mut source, mut mounts_below) = (false, PathBuf::new(), Vec::new());
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let fields: Vec<&str> = left.split(' ').collect();
            if fields.first() == Some(&id) {
                let mut right = right.split(' ');
                espalier = right.next() == Some("fuse.espalier");
                source = right.next().map(unescape).unwrap_or_default();
            }
            let mountpoint = fields.get(4).map(|field| unescape(field)).unwrap_or_default();
            if mountpoint != path && mountpoint.starts_with(path) {
                mounts_below.push(mountpoint);
            }
        }
        Self { espalier, source, mounts_below }
    }
}

/// An operand without its trailing slashes, and true if it had any; `/` stays.
pub(crate) fn without_slashes(path: &Path) -> (PathBuf, bool) {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1).min(bytes.len());
    (Path::new(std::ffi::OsStr::from_bytes(&bytes[..end])).into(), end < bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_in_the_table_of_mounts() {
        let table = "\
            29 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 29 0:50 / /mnt/a\\040b rw - fuse.espalier /data rw\n\
            41 40 0:51 / /mnt/a\\040b/dir/sub rw - tmpfs tmpfs rw\n";
        let place = MountedPath::in_table(table, "40", Path::new("/mnt/a b/dir"));
        assert!(place.espalier && place.source == Path::new("/data"));
        assert_eq!(place.mounts_below, [PathBuf::from("/mnt/a b/dir/sub")]);
        let place = MountedPath::in_table(table, "40", Path::new("/mnt/a b/di"));
        assert!(place.espalier && place.mounts_below.is_empty());
        assert!(!MountedPath::in_table(table, "41", Path::new("/mnt/a b/dir/sub")).espalier);
    }

    #[test]
    fn slashes_at_the_end_go() {
        for (path, without, had) in
            [("a//", "a", true), ("a/b", "a/b", false), ("/", "/", false), ("///", "/", true)]
        {
            assert_eq!(without_slashes(Path::new(path)), (PathBuf::from(without), had));
        }
    }
}
