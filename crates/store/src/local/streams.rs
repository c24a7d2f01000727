//! Byte streams: one plain file for each, spread over directories, opened when needed and kept open for a while.
//!
//! A new stream lies in a directory of its own until it is settled.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use espalier_proto::{AllocateMode, Ino, SeekWhat, StreamStat, Time};
use quick_cache::sync::Cache;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::error::StoreError;
use crate::sync_dir;

/// Files kept open. A process may have 20,000 on usual machines, and the kernel's passthrough takes its share.
const OPEN_FILES: usize = 4096;
const NEW: &str = "new";

pub(super) struct Streams {
    path: PathBuf,
    open: Cache<Ino, Arc<File>>,
    /// Streams that are not settled.
    new: Mutex<HashSet<Ino>>,
    /// Directories whose entries are not durable.
    dirty: Mutex<HashSet<PathBuf>>,
}

impl Streams {
    pub(super) fn format(path: &Path) -> Result<(), StoreError> {
        let make = |dir: PathBuf| fs::create_dir_all(&dir).map_err(StoreError::io("make", &dir));
        make(path.join(NEW))?;
        for low in 0..=255 {
            make(path.join(format!("{low:02x}")))?;
        }
        sync_dir(path)
    }

    pub(super) fn open(path: PathBuf) -> Result<Self, StoreError> {
        let streams = Self {
            path,
            open: Cache::new(OPEN_FILES),
            new: Mutex::default(),
            dirty: Mutex::default(),
        };
        let new = streams.list(&streams.path.join(NEW))?;
        *locked(&streams.new) = new.into_iter().collect();
        Ok(streams)
    }

    fn dir_of(&self, ino: Ino) -> PathBuf {
        let is_new = locked(&self.new).contains(&ino);
        self.path.join(if is_new { NEW.into() } else { format!("{:02x}", ino.0 & 0xff) })
    }

    fn path_of(&self, ino: Ino) -> PathBuf {
        self.dir_of(ino).join(format!("{:x}", ino.0))
    }

    /// The file of a stream that is there.
    fn find(&self, ino: Ino) -> Result<Option<Arc<File>>, StoreError> {
        if let Some(file) = self.open.get(&ino) {
            return Ok(Some(file));
        }
        loop {
            let path = self.path_of(ino);
            match open(&path, false) {
                Ok(file) => {
                    let file = Arc::new(file);
                    self.open.insert(ino, Arc::clone(&file));
                    return Ok(Some(file));
                }
                // It may have been settled between the two looks.
                Err(error) if error.kind() == ErrorKind::NotFound && self.path_of(ino) != path => {}
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(StoreError::io("open", &path)(error)),
            }
        }
    }

    /// The file of a stream, made if it is not there: the file system below may have lost it in a crash.
    pub(super) fn file(&self, ino: Ino) -> Result<Arc<File>, StoreError> {
        if let Some(file) = self.find(ino)? {
            return Ok(file);
        }
        let path = self.path_of(ino);
        let file = Arc::new(open(&path, true).map_err(StoreError::io("make", &path))?);
        locked(&self.dirty).insert(self.dir_of(ino));
        self.open.insert(ino, Arc::clone(&file));
        Ok(file)
    }

    pub(super) fn create(&self, ino: Ino) -> Result<(), StoreError> {
        self.remove(ino)?;
        locked(&self.new).insert(ino);
        self.file(ino).map(drop)
    }

    pub(super) fn settle(&self, ino: Ino) -> Result<(), StoreError> {
        let mut new = locked(&self.new);
        let name = format!("{:x}", ino.0);
        let (from, dir) = (self.path.join(NEW).join(&name), self.path.join(format!("{:02x}", ino.0 & 0xff)));
        match fs::rename(&from, dir.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(StoreError::io("settle", &from)(error)),
            _ => {}
        }
        new.remove(&ino);
        locked(&self.dirty).insert(dir);
        Ok(())
    }

    pub(super) fn new_streams(&self) -> Result<Vec<Ino>, StoreError> {
        let mut new: Vec<Ino> = locked(&self.new).iter().copied().collect();
        new.sort_unstable();
        Ok(new)
    }

    pub(super) fn all(&self) -> Result<Vec<Ino>, StoreError> {
        let mut all = self.list(&self.path.join(NEW))?;
        for low in 0..=255 {
            all.extend(self.list(&self.path.join(format!("{low:02x}")))?);
        }
        Ok(all)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Ino>, StoreError> {
        let foreign = |path: PathBuf| StoreError::Corrupt { what: format!("{} is no stream", path.display()) };
        let entries = fs::read_dir(dir).map_err(StoreError::io("list", dir))?;
        let ino = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.map_err(StoreError::io("list", dir))?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
            number.map(Ino).ok_or_else(|| foreign(entry.path()))
        };
        entries.map(ino).collect()
    }

    pub(super) fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let Some(file) = self.find(ino)? else { return Ok(0) };
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read", ino)(error)),
            }
        }
        Ok(done)
    }

    pub(super) fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.file(ino)?.write_all_at(data, offset).map_err(self.failed("write", ino))
    }

    pub(super) fn stat(&self, ino: Ino) -> Result<StreamStat, StoreError> {
        let stat = match self.open.get(&ino) {
            Some(file) => rustix::fs::fstat(&*file),
            None => rustix::fs::stat(self.path_of(ino)),
        };
        let stat = match stat {
            Err(Errno::NOENT) => match self.find(ino)? {
                Some(file) => rustix::fs::fstat(&*file).map_err(|error| self.failed("look at", ino)(error.into()))?,
                None => return Ok(StreamStat::default()),
            },
            stat => stat.map_err(|error| self.failed("look at", ino)(error.into()))?,
        };
        Ok(StreamStat {
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            mtime: Time::new(stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: Time::new(stat.st_ctime, stat.st_ctime_nsec as u32),
        })
    }

    pub(super) fn truncate(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        self.file(ino)?.set_len(size).map_err(self.failed("truncate", ino))
    }

    pub(super) fn allocate(&self, ino: Ino, offset: u64, length: u64, mode: AllocateMode) -> Result<(), StoreError> {
        let flags = FallocateFlags::from_bits_retain(mode.bits());
        let file = self.file(ino)?;
        rustix::fs::fallocate(&*file, flags, offset, length).map_err(|error| self.failed("allocate", ino)(error.into()))
    }

    pub(super) fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<Option<u64>, StoreError> {
        let Some(file) = self.find(ino)? else { return Ok(None) };
        let whence = match what {
            SeekWhat::Data => SeekFrom::Data(offset),
            SeekWhat::Hole => SeekFrom::Hole(offset),
        };
        // The position of the open file is nobody's: all reads and writes say theirs.
        match rustix::fs::seek(&*file, whence) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(self.failed("search", ino)(error.into())),
        }
    }

    pub(super) fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64, StoreError> {
        let Some(source) = self.find(from.0)? else { return Ok(0) };
        let target = self.file(to.0)?;
        let (mut from_offset, mut to_offset) = (from.1, to.1);
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(1 << 30);
        rustix::fs::copy_file_range(&*source, Some(&mut from_offset), &*target, Some(&mut to_offset), length)
            .map(|copied| copied as u64)
            .map_err(|error| self.failed("copy to", to.0)(error.into()))
    }

    pub(super) fn set_mtime(&self, ino: Ino, mtime: Time) -> Result<(), StoreError> {
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let last_modification = Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() };
        let file = self.file(ino)?;
        rustix::fs::futimens(&*file, &Timestamps { last_access, last_modification })
            .map_err(|error| self.failed("set the time of", ino)(error.into()))
    }

    pub(super) fn sync(&self, ino: Ino) -> Result<(), StoreError> {
        if let Some(file) = self.find(ino)? {
            file.sync_all().map_err(self.failed("sync", ino))?;
        }
        let dir = self.dir_of(ino);
        let was_dirty = locked(&self.dirty).remove(&dir);
        if was_dirty {
            let synced = sync_dir(&dir);
            if synced.is_err() {
                locked(&self.dirty).insert(dir);
            }
            return synced;
        }
        Ok(())
    }

    pub(super) fn remove(&self, ino: Ino) -> Result<(), StoreError> {
        let path = self.path_of(ino);
        let removed = fs::remove_file(&path);
        self.open.remove(&ino);
        locked(&self.new).remove(&ino);
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    fn failed(&self, what: &'static str, ino: Ino) -> impl FnOnce(io::Error) -> StoreError {
        StoreError::io(what, self.path_of(ino))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Sets are whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let noatime = OFlags::NOATIME.bits() as i32;
    let with = |flags| OpenOptions::new().read(true).write(true).create(create).mode(0o600).custom_flags(flags).open(path);
    with(noatime)
        // Only the owner may leave the access time alone.
        .or_else(|error| if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) { with(0) } else { Err(error) })
        // On a read-only file system, or of somebody else's store.
        .or_else(|error| match Errno::from_io_error(&error) {
            Some(Errno::ROFS | Errno::ACCESS) if !create => File::open(path),
            _ => Err(error),
        })
}
