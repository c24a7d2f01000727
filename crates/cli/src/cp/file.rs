//! Copies of single files, as by cp(1).

use std::ffi::CStr;
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, copy_file_range, ftruncate, lgetxattr, linkat, llistxattr, lsetxattr, mknodat, openat,
    readlinkat, seek, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{Copier, CopyResult, plain, text};

/// Bytes per copy step, so that a signal ends the copy soon.
const CHUNK: u64 = 16 << 20;
/// Linux's limit for the value of an extended attribute, or for a list of names.
const MAX_XATTR: usize = 64 << 10;

fn cannot(action: &str, path: &Path, errno: Errno) -> String {
    format!("cannot {action} '{}': {}", path.display(), text(errno))
}

impl Copier {
    /// Copies anything but a directory.
    pub(super) fn copy_file(&mut self, from: &Path, metadata: &Metadata, to: &Path) -> CopyResult {
        let preserve = self.how.preserve;
        let mut there = to.symlink_metadata().ok();
        if let Some(there) = &there {
            if there.is_dir() {
                return Err(format!("cannot overwrite directory '{}' with non-directory", to.display()));
            }
            if (there.dev(), there.ino()) == (metadata.dev(), metadata.ino()) {
                return Err(format!("'{}' and '{}' are the same file", from.display(), to.display()));
            }
        }
        if there.as_ref().is_some_and(|there| !metadata.is_file() || (preserve && there.nlink() > 1)) {
            unlinkat(CWD, to, AtFlags::empty()).map_err(|errno| cannot("remove", to, errno))?;
            there = None;
        }
        let link = (preserve && metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()));
        if let Some(first) = link.and_then(|link| self.links.get(&link)) {
            return hard_link(first, to, there.is_some());
        }
        if metadata.is_file() {
            self.copy_regular(from, metadata, to, there.is_some())?;
        } else {
            make_special(from, metadata, to)?;
        }
        if preserve {
            set_attributes(from, metadata, to)?;
        }
        if let Some(link) = link {
            self.links.insert(link, to.into());
        }
        Ok(())
    }

    fn copy_regular(&self, from: &Path, metadata: &Metadata, to: &Path, is_there: bool) -> CopyResult {
        let (read, write) = (OFlags::RDONLY | OFlags::NOFOLLOW, OFlags::WRONLY | OFlags::CLOEXEC);
        let source = openat(CWD, from, read | OFlags::CLOEXEC, Mode::empty());
        let source = File::from(
            source
                .map_err(|errno| format!("cannot open '{}' for reading: {}", from.display(), text(errno)))?,
        );
        // Other users get access only after ownership is set.
        let mode = metadata.mode() & if self.how.preserve { 0o700 } else { 0o777 };
        let target = match is_there {
            true => openat(CWD, to, write | OFlags::TRUNC, Mode::empty()),
            false => openat(CWD, to, write | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(mode)),
        };
        let target = target.map_err(|errno| cannot("create regular file", to, errno))?;
        copy_bytes(&source, &mut File::from(target), metadata.len()).map_err(|error| {
            format!("error copying '{}' to '{}': {}", from.display(), to.display(), plain(&error))
        })
    }
}

fn hard_link(first: &Path, to: &Path, is_there: bool) -> CopyResult {
    if is_there {
        unlinkat(CWD, to, AtFlags::empty()).map_err(|errno| cannot("remove", to, errno))?;
    }
    linkat(CWD, first, CWD, to, AtFlags::empty()).map_err(|errno| {
        let (to, first) = (to.display(), first.display());
        format!("cannot create hard link '{to}' to '{first}': {}", text(errno))
    })
}

fn make_special(from: &Path, metadata: &Metadata, to: &Path) -> CopyResult {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        let target = readlinkat(CWD, from, Vec::new());
        let target = target.map_err(|errno| cannot("read symbolic link", from, errno))?;
        return symlinkat(&target, CWD, to).map_err(|errno| cannot("create symbolic link", to, errno));
    }
    let kind = match kind {
        kind if kind.is_fifo() => FileType::Fifo,
        kind if kind.is_socket() => FileType::Socket,
        kind if kind.is_char_device() => FileType::CharacterDevice,
        _ => FileType::BlockDevice,
    };
    let mode = Mode::from_raw_mode(metadata.mode() & 0o777);
    mknodat(CWD, to, kind, mode, metadata.rdev()).map_err(|errno| cannot("create special file", to, errno))
}

/// Copies data and preserves holes. Both files share the data if the store's file system supports
/// that.
fn copy_bytes(source: &File, target: &mut File, size: u64) -> std::io::Result<()> {
    // Setting the size first unstuffs a big file, so that its data can be copied in the server.
    ftruncate(&*target, size)?;
    let mut at = 0;
    while let Some(data) = next(source, SeekFrom::Data(at))? {
        let end = next(source, SeekFrom::Hole(data))?.unwrap_or(size);
        at = data;
        while at < end {
            let copied = copy_some(source, target, at, end - at)?;
            if copied == 0 {
                return Ok(());
            }
            at += copied;
        }
    }
    Ok(())
}

/// Offset of the next data or hole; `None` if there is none.
fn next(file: &File, from: SeekFrom) -> rustix::io::Result<Option<u64>> {
    match seek(file, from) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn copy_some(source: &File, target: &mut File, at: u64, length: u64) -> std::io::Result<u64> {
    let length = usize::try_from(length.min(CHUNK)).unwrap_or(usize::MAX);
    let (mut from, mut to) = (at, at);
    match copy_file_range(source, Some(&mut from), &*target, Some(&mut to), length) {
        Ok(copied) => Ok(copied as u64),
        // A small file has no stream.
        Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
            let mut bytes = Vec::new();
            seek(source, SeekFrom::Start(at))?;
            seek(&*target, SeekFrom::Start(at))?;
            let copied = source.take(length.min(1 << 20) as u64).read_to_end(&mut bytes)?;
            target.write_all(&bytes)?;
            Ok(copied as u64)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Copies owner, permissions, times, extended attributes and ACLs, as far as permitted.
pub(super) fn set_attributes(from: &Path, metadata: &Metadata, to: &Path) -> CopyResult {
    let failed = |errno| cannot("preserve attributes of", to, errno);
    let is_link = metadata.is_symlink();
    copy_xattrs(from, to).map_err(failed)?;
    let owner = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
    let retained = match chownat(CWD, to, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(()) => true,
        Err(Errno::PERM | Errno::INVAL) => {
            // Set at least the group.
            let _ = chownat(CWD, to, None, Some(owner.1), AtFlags::SYMLINK_NOFOLLOW);
            false
        }
        Err(errno) => return Err(failed(errno)),
    };
    if !is_link {
        let mode = metadata.mode()
            & match metadata.is_dir() {
                _ if retained => 0o7777,
                true => 0o1777,
                false => 0o777,
            };
        chmodat(CWD, to, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(failed)?;
    }
    let time = |secs, nanos: i64| Timespec { tv_sec: secs, tv_nsec: nanos as _ };
    let times = Timestamps {
        last_access: time(metadata.atime(), metadata.atime_nsec()),
        last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
    };
    utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
}

fn copy_xattrs(from: &Path, to: &Path) -> rustix::io::Result<()> {
    let mut names = vec![0; MAX_XATTR];
    let length = match llistxattr(from, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let mut value = vec![0; MAX_XATTR];
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let copied = lgetxattr(from, name, &mut value[..])
            .and_then(|length| lsetxattr(to, name, &value[..length], XattrFlags::empty()));
        match copied {
            // The caller may not read or set some of the attributes.
            Ok(()) | Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
