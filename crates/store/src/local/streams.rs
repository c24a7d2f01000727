use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use espalier_proto::{AllocateMode, END, Errno, Ino, SeekWhat, StreamStat, Time};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, Timespec, Timestamps, UTIME_OMIT, copy_file_range};
use rustix::io::{Errno as Os, ReadWriteFlags, preadv2, pwritev2, retry_on_intr};

use super::files::{Files, Places};
use crate::error::Context;
use crate::{StoreError, stamp};

/// Most bytes that one copy call moves, so that it can be interrupted.
const MAX_COPY_BYTES: u64 = 1 << 30;

/// The byte streams: one regular file each.
pub(super) struct Streams {
    places: Places,
    files: Files,
    read_only: bool,
}

impl Streams {
    pub(super) fn create(path: &Path) -> Result<(), StoreError> {
        Places::create(path)
    }

    pub(super) fn open(path: PathBuf, read_only: bool, open_files: usize) -> Result<Self, StoreError> {
        // A missing directory is damage; otherwise its streams would read as empty.
        if !path.is_dir() {
            return Err(StoreError::corrupt(format!("{} is missing", path.display())));
        }
        Ok(Self { places: Places::new(path), files: Files::new(open_files), read_only })
    }

    pub(super) fn make(&self, ino: Ino) -> Result<(), StoreError> {
        self.check_writable()?;
        let path = self.places.new_path(ino);
        let made = self.files.get(ino, || match self.open_file(ino)? {
            None => self.create_file(ino, &path, true).map(Some),
            found => Ok(found),
        });
        made.map(drop)
    }

    pub(super) fn finalise(&self, ino: Ino) -> Result<(), StoreError> {
        self.check_writable()?;
        let (from, to) = (self.places.new_path(ino), self.places.path(ino));
        match std::fs::rename(&from, &to) {
            Ok(()) => {}
            // The stream is finalised or absent, or its directory was never made.
            Err(cause) if cause.kind() == ErrorKind::NotFound && !from.exists() => return Ok(()),
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                self.places.make_dir_of(&to)?;
                std::fs::rename(&from, &to).context("finalise", &from)?;
            }
            Err(cause) => return Err(StoreError::io("finalise", &from, cause)),
        }
        self.places.entered(ino, false);
        self.places.sync(ino, false)
    }

    pub(super) fn list_new(&self) -> Result<Vec<Ino>, StoreError> {
        self.places.list_new()
    }

    pub(super) fn list(&self) -> Result<Vec<Ino>, StoreError> {
        self.places.list()
    }

    pub(super) fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        let Some(file) = self.existing(ino)? else { return Ok(0) };
        let (read, _) = self.fill(&file, ino, offset, buf, ReadWriteFlags::empty())?;
        Ok(read)
    }

    pub(super) fn read_cached(
        &self,
        ino: Ino,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(usize, bool), StoreError> {
        let Some(file) = self.files.cached(ino) else { return Ok((0, false)) };
        self.fill(&file, ino, offset, buf, ReadWriteFlags::NOWAIT)
    }

    /// Returns the number of bytes read, and true if that is all that the range holds.
    fn fill(
        &self,
        file: &File,
        ino: Ino,
        offset: u64,
        buf: &mut [u8],
        flags: ReadWriteFlags,
    ) -> Result<(usize, bool), StoreError> {
        if i64::try_from(offset).is_err() {
            return Ok((0, true));
        }
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut [IoSliceMut::new(&mut buf[done..])];
            match retry_on_intr(|| preadv2(file, rest, offset + done as u64, flags)) {
                Ok(0) => break,
                Ok(read) => done += read,
                // Not every file system supports the flags.
                Err(Os::AGAIN | Os::OPNOTSUPP) if !flags.is_empty() => return Ok((done, false)),
                Err(cause) => return Err(StoreError::io("read", &self.places.path(ino), cause.into())),
            }
        }
        Ok((done, true))
    }

    pub(super) fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        if offset == END {
            let file = self.stamped(ino)?;
            return append(&file, data).context("append to", &self.places.path(ino));
        }
        check_end(offset, data.len() as u64)?;
        let file = self.stamped(ino)?;
        file.write_all_at(data, offset).context("write", &self.places.path(ino))
    }

    pub(super) fn stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        let found = match self.files.cached(ino) {
            Some(file) => file.metadata().map(Some),
            None => self.places.find(ino, |path| std::fs::symlink_metadata(path)),
        };
        let Some(stat) = found.context("examine", &self.places.path(ino))? else {
            return Ok(StreamStat::default());
        };
        Ok(StreamStat {
            exists: true,
            size: stat.len(),
            blocks: stat.blocks(),
            mtime: Time::new(stat.mtime(), stat.mtime_nsec() as u32),
            ..StreamStat::default()
        })
    }

    pub(super) fn truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        check_end(size, 0)?;
        let file = self.stamped(ino)?;
        file.set_len(size).context("truncate", &self.places.path(ino))
    }

    pub(super) fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError> {
        check_end(offset, length)?;
        let file = self.stamped(ino)?;
        let mode = FallocateFlags::from_bits_retain(mode.bits());
        let done = retry(|| rustix::fs::fallocate(&*file, mode, offset, length));
        done.context("allocate", &self.places.path(ino))
    }

    pub(super) fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError> {
        let Some(file) = self.existing(ino)? else { return Ok(None) };
        if i64::try_from(offset).is_err() {
            return Ok(None);
        }
        let seek = match what {
            SeekWhat::Data => SeekFrom::Data(offset),
            SeekWhat::Hole => SeekFrom::Hole(offset),
        };
        // `lseek` moves the descriptor's offset, which nothing uses.
        match rustix::fs::seek(&*file, seek) {
            Ok(found) => Ok(Some(found)),
            Err(Os::NXIO) => Ok(None),
            Err(errno) => Err(StoreError::io("seek in", &self.places.path(ino), errno.into())),
        }
    }

    pub(super) fn copy(
        &self,
        from: Ino,
        mut from_offset: u64,
        to: Ino,
        mut to_offset: u64,
        length: u64,
    ) -> Result<u64, StoreError> {
        let length = length.min(MAX_COPY_BYTES);
        let Some(source) = self.existing(from)? else { return Ok(0) };
        if check_end(from_offset, length).is_err() {
            return Ok(0);
        }
        check_end(to_offset, length)?;
        // A copy within a stream may move its end, but ends at the present one.
        let size = source.metadata().context("look at", &self.places.path(from))?.len();
        let length = length.min(size.saturating_sub(from_offset));
        let target = self.stamped(to)?;
        let mut copied = 0;
        while copied < length {
            let left = (length - copied) as usize;
            let step =
                || copy_file_range(&*source, Some(&mut from_offset), &*target, Some(&mut to_offset), left);
            match retry(step) {
                Ok(0) => break,
                Ok(done) => copied += done as u64,
                // Report the copied bytes; the next call returns the error.
                Err(_) if copied > 0 => break,
                Err(errno) => return Err(StoreError::io("copy to", &self.places.path(to), errno.into())),
            }
        }
        Ok(copied)
    }

    pub(super) fn set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        let file = self.writable(ino)?;
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let time = Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() };
        let times = Timestamps { last_access: omit, last_modification: time };
        rustix::fs::futimens(&*file, &times).context("set the time of", &self.places.path(ino))
    }

    pub(super) fn sync(&self, ino: Ino) -> Result<(), StoreError> {
        if self.read_only {
            return Ok(());
        }
        let Some(file) = self.existing(ino)? else { return Ok(()) };
        file.sync_all().context("sync", &self.places.path(ino))?;
        self.places.sync(ino, self.places.is_new(ino))
    }

    pub(super) fn remove(&self, ino: Ino) -> Result<(), StoreError> {
        self.check_writable()?;
        self.files.forget_and(ino, || {
            // The order in which finalising moves a stream, so a concurrent call cannot hide it
            // from both tries.
            for (path, new) in [(self.places.new_path(ino), true), (self.places.path(ino), false)] {
                match std::fs::remove_file(&path) {
                    Ok(()) => self.places.removed(ino, new, true),
                    // A killed process may have removed it.
                    Err(cause) if cause.kind() == ErrorKind::NotFound => self.places.removed(ino, new, false),
                    Err(cause) => return Err(StoreError::io("remove", &path, cause)),
                }
            }
            Ok(())
        })
    }

    pub(super) fn sync_new(&self) -> Result<(), StoreError> {
        self.places.sync_new()
    }

    pub(super) fn sync_removed(&self) -> Result<(), StoreError> {
        self.places.sync_removed()
    }

    pub(super) fn file(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError> {
        if self.read_only { self.existing(ino) } else { self.writable(ino).map(Some) }
    }

    fn existing(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError> {
        self.files.get(ino, || self.open_file(ino))
    }

    /// The file of a stream, before a change that stamps it with a time consistent with `stamp`.
    fn stamped(&self, ino: Ino) -> Result<Arc<File>, StoreError> {
        let file = self.writable(ino)?;
        stamp::raise();
        Ok(file)
    }

    fn writable(&self, ino: Ino) -> Result<Arc<File>, StoreError> {
        self.check_writable()?;
        let path = self.places.path(ino);
        let file = self.files.get(ino, || match self.open_file(ino)? {
            None => self.create_file(ino, &path, false).map(Some),
            found => Ok(found),
        })?;
        // The closure above sets `file`.
        file.ok_or_else(|| StoreError::io("create", &path, ErrorKind::NotFound.into()))
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        if self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }

    fn open_file(&self, ino: Ino) -> Result<Option<File>, StoreError> {
        let flags = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        self.places.find(ino, |path| open(path, flags)).context("open", &self.places.path(ino))
    }

    fn create_file(&self, ino: Ino, path: &Path, new: bool) -> Result<File, StoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = match open(path, flags) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                self.places.make_dir_of(path)?;
                open(path, flags)
            }
            outcome => outcome,
        };
        let file = file.context("create", path)?;
        self.places.entered(ino, new);
        Ok(file)
    }
}

/// Opens a file without access time updates, if permitted.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let (flags, mode) = (flags | OFlags::CLOEXEC, 0o600.into());
    let opened = match rustix::fs::open(path, flags | OFlags::NOATIME, mode) {
        Err(Os::PERM) => rustix::fs::open(path, flags, mode),
        outcome => outcome,
    };
    opened.map(File::from).map_err(io::Error::from)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Os::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Appends atomically with `O_APPEND`, except after a short write.
fn append(file: &File, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let flags = ReadWriteFlags::APPEND;
        match retry_on_intr(|| pwritev2(file, &[IoSlice::new(data)], 0, flags))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => data = &data[written..],
        }
    }
    Ok(())
}

/// Checks that the end fits the signed offsets of system calls.
fn check_end(offset: u64, length: u64) -> Result<(), StoreError> {
    let end = offset.checked_add(length).filter(|&end| i64::try_from(end).is_ok());
    end.map(drop).ok_or(StoreError::Refused(Errno::EFBIG))
}
