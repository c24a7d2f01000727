//! Execution of operations by system calls, and a walk of the resulting tree.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, Stat, Timestamps, UTIME_OMIT,
    XattrFlags, fallocate, seek,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::op::{
    By, CAPABILITY, HANDLES, How, ModelAttr, ModelOp, NET_RAW, OpResult, Out, Seen, Space, bytes,
};
use crate::Failure;
use crate::dir::timespec;
use crate::map::FileMapping;
use crate::process::Code;
use crate::sys::{Handle, drop_caches};

/// The held file handles.
pub(super) type Handles = [Option<Handle>; HANDLES];

/// True if the file system supports file handles and the caller may open them.
pub(super) fn has_handles(root: &Path) -> bool {
    let mount = open(root, OFlags::RDONLY | OFlags::DIRECTORY);
    mount.is_ok_and(|mount| Handle::of(root).is_ok_and(|handle| handle.stat(&mount).is_ok()))
}

pub(super) fn apply(root: &Path, handles: &mut Handles, op: &ModelOp) -> OpResult {
    let at = |path: &str| PathBuf::from(format!("{}{path}", root.display()));
    match op {
        ModelOp::Create { path, exclusive } => {
            let how = if *exclusive { OFlags::EXCL } else { OFlags::empty() };
            done(open(&at(path), OFlags::CREATE | OFlags::RDWR | how).map(drop))
        }
        ModelOp::Mkdir { path, mode } => done(rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode))),
        ModelOp::Unlink { path } => done(rustix::fs::unlink(at(path))),
        ModelOp::Rmdir { path } => done(rustix::fs::rmdir(at(path))),
        ModelOp::Rename { from, to, how } => {
            let flags = match how {
                How::Plain => RenameFlags::empty(),
                How::NoReplace => RenameFlags::NOREPLACE,
                How::Exchange => RenameFlags::EXCHANGE,
            };
            done(rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags))
        }
        ModelOp::Link { from, to } => done(rustix::fs::linkat(CWD, at(from), CWD, at(to), AtFlags::empty())),
        ModelOp::Symlink { path, target } => done(rustix::fs::symlink(target, at(path))),
        ModelOp::Write { path, at: offset, len, fill, by } => {
            let file = open(&at(path), OFlags::WRONLY).map_err(|e| e.code())?;
            done(run_as(*by, || file.write_all_at(&bytes(*fill, *len), *offset)))
        }
        ModelOp::Truncate { path, len, by } => {
            let file = open(&at(path), OFlags::WRONLY).map_err(|e| e.code())?;
            done(run_as(*by, || file.set_len(*len)))
        }
        ModelOp::Map { path, at: offset, len, fill } => {
            store(&at(path), *offset as usize, *len, *fill).map(Out::Bytes).map_err(|e| e.code())
        }
        ModelOp::Allocate { path, at: offset, len, how } => {
            let file = open(&at(path), OFlags::WRONLY).map_err(|e| e.code())?;
            // File systems differ: an allocation without an effect may remove it.
            let _ = rustix::fs::fremovexattr(&file, CAPABILITY);
            let mode = match how {
                Space::Plain => FallocateFlags::empty(),
                Space::KeepSize => FallocateFlags::KEEP_SIZE,
                Space::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            };
            done(fallocate(&file, mode, *offset, *len))
        }
        ModelOp::Read { path } => read(&at(path)).map(Out::Bytes),
        ModelOp::Stat { path } => {
            rustix::fs::lstat(at(path)).map(|s| Out::Attr(attr(&s))).map_err(|e| e.code())
        }
        ModelOp::List { path } => names(&at(path)).map(Out::Names),
        ModelOp::Chmod { path, mode } => done(rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode))),
        ModelOp::SetXattr { path, name, len, fill } => {
            done(rustix::fs::lsetxattr(at(path), name, &bytes(*fill, *len), XattrFlags::empty()))
        }
        ModelOp::RemoveXattr { path, name } => done(rustix::fs::lremovexattr(at(path), name)),
        ModelOp::SetTime { path, secs } => {
            let times =
                Timestamps { last_access: timespec(0, UTIME_OMIT), last_modification: timespec(*secs, 5) };
            done(rustix::fs::utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW))
        }
        ModelOp::KeepHandle { path, place } => {
            handles[*place] = Some(Handle::of(at(path)).map_err(|e| e.code())?);
            Ok(Out::Done)
        }
        ModelOp::StatHandle { place, evict } => {
            if *evict {
                // Without permission to evict, the test uses the kernel's caches.
                let _ = drop_caches();
            }
            let Some(handle) = &handles[*place] else { return Ok(Out::Done) };
            let mount = open(root, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|e| e.code())?;
            handle.stat(&mount).map(|s| Out::Attr(attr(&s))).map_err(|e| e.code())
        }
        ModelOp::SetCapability { path } => {
            done(rustix::fs::lsetxattr(at(path), CAPABILITY, &NET_RAW, XattrFlags::empty()))
        }
    }
}

/// Calls with or without `CAP_FSETID` in the calling thread.
fn run_as<T>(by: By, call: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    if by == By::Privileged {
        return call();
    }
    let before = capabilities(None)?;
    let mut sets = before;
    sets.effective.remove(CapabilitySet::FSETID);
    set_capabilities(None, sets)?;
    let result = call();
    set_capabilities(None, before)?;
    result
}

fn done<E: Code>(result: Result<(), E>) -> OpResult {
    result.map(|()| Out::Done).map_err(|e| e.code())
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<File> {
    crate::dir::open(path, flags | OFlags::NOFOLLOW)
}

fn read(path: &Path) -> Result<Vec<u8>, i32> {
    let mut data = Vec::new();
    let mut file = open(path, OFlags::RDONLY).map_err(|e| e.code())?;
    file.read_to_end(&mut data).map_err(|e| e.code())?;
    Ok(data)
}

/// Stores through a shared mapping, and copies the reported data segments while it is dirty.
fn store(path: &Path, at: usize, len: usize, fill: u8) -> rustix::io::Result<Vec<u8>> {
    let file = open(path, OFlags::RDWR)?;
    // File systems differ: a store through a mapping may remove it.
    let _ = rustix::fs::fremovexattr(&file, CAPABILITY);
    let size = rustix::fs::fstat(&file)?.st_size as usize;
    let map = if size > 0 { Some(FileMapping::shared(&file, size)?) } else { None };
    if let Some(map) = &map {
        let at = at.min(size);
        map.store(at, &bytes(fill, len.min(size - at)));
    }
    let reader = open(path, OFlags::RDONLY)?;
    let (mut copy, mut from) = (vec![0; size], 0);
    while from < size {
        let start = match seek(&reader, SeekFrom::Data(from as u64)) {
            Err(rustix::io::Errno::NXIO) => break,
            found => found? as usize,
        };
        from = seek(&reader, SeekFrom::Hole(start as u64))? as usize;
        let mut read = start;
        while read < from {
            match rustix::io::pread(&reader, &mut copy[read..from], read as u64)? {
                0 => break,
                count => read += count,
            }
        }
    }
    Ok(copy)
}

fn names(path: &Path) -> Result<Vec<String>, i32> {
    let file = open(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|e| e.code())?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(file).map_err(|e| e.code())? {
        let name = entry.map_err(|e| e.code())?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn attr(s: &Stat) -> ModelAttr {
    let kind = match s.st_mode & libc::S_IFMT {
        libc::S_IFREG => 'f',
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        _ => '?',
    };
    let size = if kind == 'd' { 0 } else { s.st_size as u64 };
    ModelAttr { kind, mode: s.st_mode & 0o7777, nlink: s.st_nlink, size }
}

/// All paths below the root with their visible state.
pub(super) fn tree(root: &Path) -> Result<BTreeMap<String, Seen>, Failure> {
    let mut all = BTreeMap::new();
    let mut stack = vec![String::new()];
    while let Some(path) = stack.pop() {
        let full = PathBuf::from(format!("{}{path}", root.display()));
        let attr = attr(&rustix::fs::lstat(&full)?);
        let code = |e: i32| Failure::at(format!("{path}: {}", std::io::Error::from_raw_os_error(e)));
        let content = match attr.kind {
            'd' => {
                stack.extend(names(&full).map_err(code)?.iter().map(|name| format!("{path}/{name}")));
                Vec::new()
            }
            'l' => fs::read_link(&full)?.into_os_string().into_encoded_bytes(),
            _ => read(&full).map_err(code)?,
        };
        let xattrs = xattrs(&full)?;
        if !path.is_empty() {
            all.insert(path, Seen { attr, content, xattrs });
        }
    }
    Ok(all)
}

/// The mtime of a path in seconds, and mtime and ctime in nanoseconds.
pub(super) fn times(root: &Path, path: &str) -> Result<(i64, [i128; 2]), Failure> {
    let s = crate::dir::stat(format!("{}{path}", root.display()))?;
    Ok((s.st_mtime, [crate::dir::mtime(&s), crate::dir::ctime(&s)]))
}

fn xattrs(path: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut list = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut list[..])?;
    let mut all = Vec::new();
    let is_modelled = |name: &&[u8]| name.starts_with(b"user.") || *name == CAPABILITY.as_bytes();
    for name in list[..len].split(|b| *b == 0).filter(is_modelled) {
        let mut value = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        all.push((String::from_utf8_lossy(name).into_owned(), value));
    }
    all.sort();
    Ok(all)
}
