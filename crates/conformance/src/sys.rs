//! System calls that rustix lacks in the required form: byte-range locks and raw directory reads.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{FileType, OFlags, RawDir, Stat};

use crate::Failure;

/// Lock command: POSIX or open-file-description locks, waiting or not.
#[derive(Clone, Copy)]
pub(crate) enum Cmd {
    Set = libc::F_SETLK as isize,
    Wait = libc::F_SETLKW as isize,
    OfdSet = libc::F_OFD_SETLK as isize,
}

/// Locks `[start, start + len)` by `fcntl`; `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
pub(crate) fn lock(file: &File, cmd: Cmd, kind: i32, start: i64, len: i64) -> io::Result<()> {
    let lock = region(kind, start, len);
    // SAFETY: `lock` outlives the call.
    done(unsafe { libc::fcntl(file.as_raw_fd(), cmd as i32, &raw const lock) })
}

/// Type, start, length and owner of a conflicting lock, if any.
pub(crate) fn get_lock(
    file: &File,
    kind: i32,
    start: i64,
    len: i64,
) -> io::Result<Option<(i32, i64, i64, i32)>> {
    let mut lock = region(kind, start, len);
    // SAFETY: `lock` outlives the call.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) })?;
    let free = i32::from(lock.l_type) == libc::F_UNLCK;
    Ok((!free).then_some((i32::from(lock.l_type), lock.l_start, lock.l_len, lock.l_pid)))
}

fn region(kind: i32, start: i64, len: i64) -> libc::flock {
    // SAFETY: all zeroes is a valid value of this plain struct.
    let mut lock: libc::flock = unsafe { zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = start;
    lock.l_len = len;
    lock
}

/// Interrupts a system call after `millis` by SIGALRM, without ending the process.
pub(crate) fn interrupt_after(millis: i64) {
    extern "C" fn ignore(_: i32) {}
    let handler: extern "C" fn(i32) = ignore;
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: millis / 1000, tv_usec: millis % 1000 * 1000 },
    };
    // SAFETY: the handler does nothing; without SA_RESTART, waits end with EINTR.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
}

pub(crate) fn sync_file_range(file: &File, offset: i64, len: i64, flags: u32) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    done(unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) })
}

/// A file handle for `name_to_handle_at`, of the kernel's maximum length.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct Handle {
    bytes: u32,
    kind: i32,
    value: [u8; 128],
}

impl Handle {
    /// The handle of a path, without following a link at its end.
    pub(crate) fn of(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = std::ffi::CString::new(path.as_ref().as_os_str().as_bytes())?;
        let (mut handle, mut mount) = (Self { bytes: 128, kind: 0, value: [0; 128] }, 0);
        // SAFETY: the handle begins with the fields of the C struct, followed by as many bytes as
        // it states.
        done(unsafe {
            libc::name_to_handle_at(
                libc::AT_FDCWD,
                path.as_ptr(),
                (&raw mut handle).cast(),
                &raw mut mount,
                0,
            )
        })?;
        Ok(handle)
    }

    /// Opens the handle; `mount` is an open file of its file system.
    pub(crate) fn open(&self, mount: &File, flags: OFlags) -> io::Result<File> {
        let (mut handle, flags) = (self.clone(), flags | OFlags::CLOEXEC);
        // SAFETY: as above; the descriptor is owned here.
        unsafe {
            let fd =
                libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags.bits() as i32);
            done(fd)?;
            Ok(File::from_raw_fd(fd))
        }
    }
}

impl Handle {
    /// Attributes of the handle's inode. Retries while it has no name, since FUSE reports the last
    /// close in the background.
    pub(crate) fn stat(&self, mount: &File) -> io::Result<Stat> {
        const TRIES: usize = 200;
        let stat = || -> io::Result<Stat> { Ok(rustix::fs::fstat(self.open(mount, OFlags::PATH)?)?) };
        for _ in 0..TRIES {
            match stat() {
                Ok(found) if found.st_nlink == 0 => std::thread::sleep(std::time::Duration::from_millis(10)),
                result => return result,
            }
        }
        stat()
    }
}

/// Makes the kernel evict all unused inodes and names. Root only.
pub(crate) fn drop_caches() -> io::Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "2")
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An entry of `getdents64`; `next` is the offset after it, as of `telldir`.
#[derive(Clone, Debug)]
pub(crate) struct ListedEntry {
    pub(crate) name: OsString,
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    pub(crate) next: u64,
}

/// An open directory that is read in small pieces.
pub(crate) struct DirReader {
    file: File,
    buffer: Vec<MaybeUninit<u8>>,
}

impl DirReader {
    pub(crate) fn open(path: impl AsRef<Path>, buffer: usize) -> Result<Self, Failure> {
        let file = crate::dir::open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { file, buffer: vec![MaybeUninit::uninit(); buffer] })
    }

    /// The entries of one `getdents64`; empty at the end.
    pub(crate) fn some(&mut self) -> Result<Vec<ListedEntry>, Failure> {
        let mut entries = Vec::new();
        let mut raw = RawDir::new(self.file.as_fd(), &mut self.buffer);
        while let Some(entry) = raw.next() {
            let entry = entry?;
            entries.push(ListedEntry {
                name: OsString::from_vec(entry.file_name().to_bytes().to_vec()),
                ino: entry.ino(),
                kind: entry.file_type(),
                next: entry.next_entry_cookie(),
            });
            if raw.is_buffer_empty() {
                break;
            }
        }
        Ok(entries)
    }

    /// The remaining entries, without `.` and `..`.
    pub(crate) fn rest(&mut self) -> Result<Vec<ListedEntry>, Failure> {
        let mut all = Vec::new();
        loop {
            let some = self.some()?;
            if some.is_empty() {
                return Ok(all);
            }
            all.extend(some.into_iter().filter(|e| e.name != "." && e.name != ".."));
        }
    }

    pub(crate) fn seek(&self, offset: u64) -> Result<(), Failure> {
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(offset))?;
        Ok(())
    }
}

/// Sorted names in a directory, without `.` and `..`.
pub(crate) fn names(path: impl AsRef<Path>) -> Result<Vec<OsString>, Failure> {
    let mut names: Vec<_> = DirReader::open(path, 32 * 1024)?.rest()?.into_iter().map(|e| e.name).collect();
    names.sort();
    Ok(names)
}
