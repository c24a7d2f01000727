//! File attributes and directory entries.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use espalier_proto::{Attr, FileType, Ino, SetTime, Time};

/// The attributes of a file, as `stat` returns them. The access time may be stale, since leases do
/// not cover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    pub fn file_type(&self) -> FileType {
        self.0.kind
    }

    pub fn is_file(&self) -> bool {
        self.0.kind == FileType::Regular
    }

    pub fn is_dir(&self) -> bool {
        self.0.kind == FileType::Directory
    }

    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileType::Symlink
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Allocated space in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    pub fn ino(&self) -> u64 {
        self.0.ino.0
    }

    /// Permission bits, at most 0o7777.
    pub fn permissions(&self) -> u32 {
        self.0.perm
    }

    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }

    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }

    /// Time of the last change of the contents or the attributes (ctime).
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.ctime)
    }

    pub fn created(&self) -> SystemTime {
        system_time(self.0.btime)
    }
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub(crate) name: OsString,
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
}

/// A directory entry with attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub entry: DirEntry,
    pub metadata: Metadata,
    /// The target of a symbolic link.
    pub target: Option<PathBuf>,
}

impl DirEntry {
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    pub fn file_type(&self) -> FileType {
        self.kind
    }

    pub fn ino(&self) -> u64 {
        self.ino.0
    }
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.secs.unsigned_abs());
    let whole = if time.secs < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    let exact = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanos.into())));
    exact.unwrap_or(UNIX_EPOCH)
}

pub(crate) fn set_time(time: SystemTime) -> SetTime {
    let time = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => Time::new(seconds, 0),
                nanos => Time::new(seconds - 1, 1_000_000_000 - nanos),
            }
        }
    };
    SetTime::To(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_come_back() {
        for nanos in [0, 1, 1_500_000_000, 3_000_000_000] {
            for time in [UNIX_EPOCH + Duration::from_nanos(nanos), UNIX_EPOCH - Duration::from_nanos(nanos)] {
                let SetTime::To(set) = set_time(time) else { panic!("a time") };
                assert_eq!(system_time(set), time);
            }
        }
    }
}
