//! The FUSE door: turns the kernel's requests into calls; what comes of them, `answer.rs` puts into the kernel's replies.

mod answer;
mod flags;
mod locks;
mod mapped;
mod openings;
mod overlap;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use espalier_client::{Call, Interrupt};
use espalier_fuse::{self as fuse, BackingId, Filesystem, Granted, Notifier, Op, OpenedFlags, Transport};
use espalier_meta::Atime;
use espalier_proto::{
    Access, AllocateMode, Caller, END, Errno, FileType, Ino, Lock, LockOwner, Name, NameError, NewNode,
    OpenHow, Rank, Reads, RenameFlags, Request, SeekWhat, SetAttr, SetTime, Time, XattrMode, mode,
};
use rustix::fs::OFlags;
use rustix::param::page_size;

use answer::{Once, answer_data};
use locks::Lockers;
use mapped::Mapped;
use openings::{DIRECT, Openings, Use};
use overlap::{Overlaps, Read};

use crate::bulk::{self, Copies, CopyKey};
use crate::caller::dies;
use crate::calls::Calls;
use crate::record::{Begun, Recorder};

/// The kernel is the only client of an embedded file system: what it has cached holds until it changes it itself.
pub const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);
const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const O_RDWR: u32 = 0o2;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const O_NOATIME: u32 = 0o1_000_000;
const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;
const O_DSYNC: u32 = 0o10000;
/// The kernel's own flag for opening in order to execute.
const FMODE_EXEC: u32 = 0x20;

/// Answers to the kernel.
pub struct FuseDoor {
    /// The kernel can be asked to forget inodes by their numbers.
    can_prune: bool,
    has_epochs: bool,
    /// What is written past the kernel's cache, the kernel also takes out of it.
    writes_directly: bool,
    /// See [`MountOptions::ttl`](crate::MountOptions::ttl).
    ttl: Option<Duration>,
    /// The kernel may open directories without asking.
    kernel_opens_directories: bool,
    /// Locks on files are the servers' business, not the kernel's: then openings have handles that tell them apart.
    shares_locks: bool,
    next_handle: AtomicU64,
    lockers: Lockers,
    openings: Openings,
    overlaps: Overlaps<Ticket>,
    notifiers: OnceLock<Notifiers>,
    recorder: OnceLock<Recorder>,
    /// Known once the first request may come, as is the next.
    transport: OnceLock<Transport>,
    /// Streams may be passed through.
    passthrough: AtomicBool,
    /// Streams that the kernel reads and writes itself, while they are open.
    backing: Mutex<HashMap<Ino, Backing>>,
    /// Streams that the kernel may have mapped past us: it has passed them through to openings for reading and writing.
    /// A map does not keep its opening.
    mapped_through: Mutex<HashSet<Ino>>,
    copies: Copies,
    /// Calls whose callers have got a signal that did not end them. The kernel does not tell of the next one.
    signalled: Mutex<Vec<u64>>,
    /// Revocations of names that the kernel has not carried out yet.
    revoking: Mutex<Vec<Revoking>>,
}

/// A revocation of a name.
struct Revoking {
    since: Instant,
    /// Has the server refuse calls that hold the directory. `None`: it has been asked to, at `since`.
    blocked: Option<Box<dyn FnOnce() + Send>>,
    done: Once,
}

struct Backing {
    id: BackingId,
    opens: u32,
}

/// A request of the kernel's that is to be answered.
pub struct Ticket {
    reply: fuse::Reply,
    form: Form,
    /// If it is recorded.
    begun: Option<Box<Begun>>,
}

/// What the kernel is told without having asked.
#[derive(Clone, Debug)]
pub struct Notifiers {
    /// Of names, which the kernel forgets with their directories locked.
    pub names: Notifier,
    /// Of inodes, for which it waits for nobody who might have such a lock.
    pub inodes: Notifier,
}

/// How an answer is to be put.
enum Form {
    Plain,
    /// An extended attribute's value or a list of names, of which only the size is asked with 0.
    Xattr(u32),
    /// Of these names, on a mount of servers. The kernel gives the names that it has moved the validity of the old ones.
    Moving(Box<[(Ino, Name); 2]>),
    /// Of a file that is opened with these flags. `uncached`: others may write to it, and it is opened to be appended to, or past the cache. It
    /// may end elsewhere than the kernel believes, which reads nothing behind that, nor caches what is written, unless it is told to leave
    /// both to us.
    Opening {
        flags: u32,
        uncached: bool,
    },
    /// See `overlap.rs`.
    Read(Box<Read>),
    /// Of whole pages of this file, past the kernel's cache, or for a memory map.
    Pages(Ino),
    /// Of a write under this number. `sync`: past the kernel's cache, and to be durable when it returns: the kernel sends no FSYNC
    /// after it.
    Write {
        ino: Ino,
        unique: u64,
        sync: bool,
        cached: bool,
    },
    /// Of the FSYNC after that, so many bytes.
    Written(u32),
    Flush,
    /// Of a request under this number to lock a file as `flock` does, without waiting.
    TryLock(u64, Ino, Lock),
    /// Of this directory with all that is below it.
    Removing(Ino),
    Copying(CopyKey),
    StatX,
    Flags(Ino, flags::Shape),
    /// See `mapped.rs`.
    Mapped(Box<Mapped>),
    Copy,
    /// A listing of a directory: the offset, the room, and whether with attributes.
    Listing {
        dir: Ino,
        offset: u64,
        size: u32,
        plus: bool,
    },
    StatFs,
    /// Of this rank's part of a request under this number to sync all of the file system. `xattr`: it came as the reading of an extended
    /// attribute, with so much room.
    SyncFs {
        unique: u64,
        rank: Rank,
        xattr: Option<u32>,
    },
}

/// The file system behind the kernel's requests.
pub struct Mounted<C> {
    pub calls: Arc<C>,
    /// The kernel may read and write streams itself.
    pub may_pass_through: bool,
    /// Others may write to the same files: where one ends the kernel does not know.
    pub is_shared: bool,
    /// What was asked for by name.
    pub transport: Option<Transport>,
}

impl<C: Calls<FuseDoor> + 'static> Filesystem for Mounted<C> {
    fn init(&self, granted: &Granted) {
        let passthrough = granted.flags.contains(fuse::InitFlags::PASSTHROUGH) && self.may_pass_through;
        if passthrough {
            self.calls.pass_through();
        }
        self.calls.door().passthrough.store(passthrough, Ordering::Relaxed);
        let _ = self.calls.door().transport.set(granted.transport());
        if self.transport == Some(Transport::Uring) && granted.transport() != Transport::Uring {
            tracing::warn!(
                "no FUSE over io_uring, as transport=uring asks for: it needs Linux 6.14, a mount by root or `echo Y > \
                 /sys/module/fuse/parameters/enable_uring` before it, and io_uring allowed; going on with queues"
            );
        }
    }

    fn request(&self, request: fuse::Request<'_>, reply: fuse::Reply) {
        let (unique, node) = (request.unique, request.node);
        match &request.op {
            Op::Forget { lookups } => {
                self.calls.door().forgotten([Ino(node)]);
                self.calls.forget([Request::Forget { ino: Ino(node), lookups: *lookups }]);
                return reply.none();
            }
            Op::BatchForget(forgets) => {
                self.calls.door().forgotten(forgets.map(|(node, _)| Ino(node)));
                self.calls.forget(forgets.map(|(node, lookups)| Request::Forget { ino: Ino(node), lookups }));
                return reply.none();
            }
            Op::Interrupt { unique } => {
                return match self.calls.door().interrupt(&*self.calls, *unique) {
                    // It may have overtaken what it is about: the kernel then sends it again.
                    Interrupt::Unknown => reply.error(Errno::EAGAIN.raw()),
                    Interrupt::Heard => reply.none(),
                    Interrupt::Survived => {
                        self.calls.door().survived(*unique);
                        reply.none();
                    }
                };
            }
            Op::GetXattr { name, size } if *name == bulk::TOLD.as_bytes() => {
                let size = *size;
                return self.calls.door().after_told(move || answer_data(reply, Form::Xattr(size), &[]));
            }
            Op::GetXattr { name, size } => {
                let (uid, size) = (request.uid, *size);
                let door = self.calls.door();
                if let Some(got) = door.copies.get(uid, Ino(node), name, size as usize) {
                    return door.after_told(move || match got {
                        Ok(value) => answer_data(reply, Form::Xattr(size), &value),
                        Err(errno) => reply.error(errno.raw()),
                    });
                }
            }
            _ => {}
        }
        match request.op {
            Op::OpenDir { .. } if self.is_shared && self.calls.door().kernel_opens_directories => {
                let kept = self.calls.open_dir(Ino(node));
                let mut flags = OpenedFlags::empty();
                flags.set(OpenedFlags::CACHE_DIR, kept.is_some());
                flags.set(OpenedFlags::KEEP_CACHE, kept == Some(true));
                return reply.open(&fuse::Opened { handle: 0, flags, backing: None });
            }
            Op::ReleaseDir { .. } if self.is_shared && self.calls.door().kernel_opens_directories => {
                self.calls.close_dir(Ino(node));
                return reply.ok();
            }
            Op::Release { handle, flags, .. } => {
                let access = flags & O_ACCMODE;
                self.calls.door().close_backing(&reply, Ino(node), access);
                let used = Use { writes: access != 0, maps: access == O_RDWR };
                self.calls.door().openings.close(Ino(node), handle, used);
                self.calls.door().closed(&*self.calls, Ino(node), handle);
            }
            // A process has closed a file, which it nearly always has not locked.
            Op::Flush { handle, lock_owner } if self.calls.door().shares_locks => {
                self.calls.door().closing(handle);
                if !self.calls.must_flush(Ino(node), process(lock_owner)) {
                    return reply.ok();
                }
            }
            _ => {}
        }
        let caller = caller(&request);
        match self.call(&request) {
            Ok((call, form)) => {
                let form = self.mapped_form(&request, &call, form);
                let recorder = self.calls.door().recorder.get();
                let begun = recorder.map(|recorder| recorder.begin(&caller, &call));
                let ticket = Ticket { reply, form, begun };
                let door = self.calls.door();
                if sets_mtime(&call) && door.openings.may_be_mapped(Ino(node)) {
                    // The kernel may send what was stored through a map before only afterwards, as a write.
                    let (calls, call) = (Arc::clone(&self.calls), call.into_owned());
                    let set = move || calls.call(unique, caller, call, ticket);
                    return door.after_written_back(Ino(node), 0..u64::MAX, set);
                }
                self.calls.call(unique, caller, call, ticket);
            }
            Err(errno) => reply.error(errno.raw()),
        }
    }
}

impl<C: Calls<FuseDoor>> Mounted<C> {
    fn call<'a>(&self, request: &fuse::Request<'a>) -> Result<(Call<'a>, Form), Errno> {
        let (ino, unique) = (Ino(request.node), request.unique);
        let plain = |request| Ok((Call::Request(request), Form::Plain));
        let create = |bytes: &[u8], node, perm: u32, umask| {
            let (open, exclusive) = (None, true);
            let perm = perm & mode::PERMISSIONS;
            plain(Request::Create {
                dir: ino,
                name: name(bytes)?,
                node,
                perm,
                umask,
                open,
                exclusive,
                early: None,
            })
        };
        match request.op {
            // Of a file handle, whose inode the kernel has evicted, and of a directory with one.
            Op::Lookup { name: b"." } => plain(Request::Find { ino, kind: None, open: None }),
            Op::Lookup { name: b".." } => plain(Request::Parent { dir: ino }),
            Op::Lookup { name: bytes } => plain(Request::Lookup { dir: ino, name: name(bytes)? }),
            Op::GetAttr { .. } => plain(Request::GetAttr { ino }),
            Op::StatX { .. } => Ok((Call::Request(Request::GetAttr { ino }), Form::StatX)),
            Op::SetAttr(ref set) => {
                let mut to_set = set_attr(set);
                if to_set == SetAttr::default() {
                    // It sets nothing: bytes of a file with set-id bits are about to change, also by a
                    // write that the kernel passes through, or `chown(path, -1, -1)` was called.
                    to_set.kill_suid_gid = true;
                    to_set.through_handle = self.calls.door().is_passed_through(ino);
                }
                plain(Request::SetAttr { ino, set: to_set })
            }
            Op::ReadLink => plain(Request::ReadLink { ino }),
            Op::Symlink { name, target } => create(name, NewNode::Symlink(target.into()), 0o777, 0),
            Op::MkDir { name, mode, umask } => create(name, NewNode::Directory, mode, umask),
            Op::MkNod { name, mode, umask, rdev } => {
                let node = match FileType::from_mode(mode).unwrap_or(FileType::Regular) {
                    FileType::Regular => NewNode::Regular,
                    FileType::Fifo => NewNode::Fifo,
                    FileType::Socket => NewNode::Socket,
                    FileType::CharDevice => NewNode::CharDevice(rdev),
                    FileType::BlockDevice => NewNode::BlockDevice(rdev),
                    FileType::Directory | FileType::Symlink => return Err(Errno::EINVAL),
                };
                create(name, node, mode, umask)
            }
            Op::Create { name: bytes, flags, mode: perm, umask, kill_suid_gid } => {
                let open = Some(open_how(flags, kill_suid_gid));
                let (name, perm, exclusive) = (name(bytes)?, perm & mode::PERMISSIONS, flags & O_EXCL != 0);
                let request = Request::Create {
                    dir: ino,
                    name,
                    node: NewNode::Regular,
                    perm,
                    umask,
                    open,
                    exclusive,
                    early: None,
                };
                Ok((Call::Request(request), self.opening_form(flags)))
            }
            Op::TmpFile { flags, mode: perm, umask } => {
                let request = Request::TmpFile { dir: ino, perm: perm & mode::PERMISSIONS, umask };
                Ok((Call::Request(request), self.opening_form(flags)))
            }
            Op::Link { node, new_name } => {
                plain(Request::Link { ino: Ino(node), dir: ino, name: name(new_name)? })
            }
            Op::Unlink { name: bytes } => plain(Request::Unlink { dir: ino, name: name(bytes)?, time: None }),
            Op::RmDir { name: bytes } => plain(Request::RmDir { dir: ino, name: name(bytes)?, time: None }),
            Op::Rename { name: from, new_parent, new_name, flags } => {
                let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
                let (from, to) = (name(from)?, name(new_name)?);
                let names = || Box::new([(ino, from.clone()), (Ino(new_parent), to.clone())]);
                let form = if self.is_shared { Form::Moving(names()) } else { Form::Plain };
                let request = Request::Rename { from_dir: ino, from, to_dir: Ino(new_parent), to, flags };
                Ok((Call::Request(request), form))
            }
            Op::Open { flags, kill_suid_gid } => {
                // The kernel truncates by itself, when the file is open.
                let how = open_how(flags & !O_TRUNC, kill_suid_gid);
                Ok((Call::Request(Request::Open { ino, how }), self.opening_form(flags)))
            }
            // The kernel asks no second time, opens directories by itself, and caches listings until it changes them or
            // is told that they have changed.
            Op::OpenDir { .. } if self.calls.door().kernel_opens_directories => Err(Errno::ENOSYS),
            Op::OpenDir { .. } => {
                let how = OpenHow { access: Access::READ, ..OpenHow::default() };
                plain(Request::Open { ino, how })
            }
            Op::Read { handle, offset, size, flags, .. } => {
                let noatime = flags & O_NOATIME != 0;
                let mut form = Form::Plain;
                if self.is_shared && handle & DIRECT == 0 {
                    let read = Read { unique, ino, offset, size, noatime, caller: caller(request) };
                    self.calls.door().overlaps.read(ino, unique, offset, size.into());
                    form = Form::Read(Box::new(read));
                } else if self.is_shared && is_of_pages(offset, size) {
                    form = Form::Pages(ino);
                }
                Ok((Call::Read { ino, offset, size, noatime }, form))
            }
            Op::Write { handle, offset, data, kill_suid_gid, flags, .. } => {
                let appends = self.is_shared && flags & O_APPEND != 0;
                if self.is_shared {
                    let length = (!appends).then_some(data.len() as u64);
                    self.calls.door().overlaps.write(ino, unique, offset, length);
                }
                let cached = self.is_shared && handle & DIRECT == 0;
                let sync = handle & DIRECT != 0 && flags & O_DSYNC != 0;
                let offset = if appends { END } else { offset };
                let call = Call::Write { ino, offset, data: data.into(), kill_suid_gid };
                Ok((call, Form::Write { ino, unique, sync, cached }))
            }
            Op::Release { .. } | Op::ReleaseDir { .. } => Ok((Call::Release { ino }, Form::Plain)),
            Op::Flush { lock_owner, .. } if self.calls.door().shares_locks => {
                let owner = process(lock_owner);
                plain(Request::Unlock { ino, owner, first: 0, last: u64::MAX })
            }
            // Nothing is kept back that closing would have to write.
            Op::Flush { .. } => Ok((Call::Request(Request::GetAttr { ino }), Form::Flush)),
            Op::FSync { .. } | Op::FSyncDir { .. } => plain(Request::Fsync { ino }),
            Op::SyncFs => Ok(sync_fs(unique, None)),
            Op::GetXattr { name, size } if name == bulk::SYNC.as_bytes() => Ok(sync_fs(unique, Some(size))),
            Op::ReadDir { offset, size, .. } => Ok(self.listing(ino, offset, size, false)),
            Op::ReadDirPlus { offset, size, .. } => Ok(self.listing(ino, offset, size, true)),
            Op::Access { mask } => plain(Request::Access { ino, want: Access::from_bits_truncate(mask) }),
            Op::SetXattr { name, .. } if name == bulk::REMOVE_TREE.as_bytes() => {
                check_root(request)?;
                Ok((Call::Request(Request::RemoveTree { dir: ino }), Form::Removing(ino)))
            }
            Op::SetXattr { name, value, flags, acl_kill_sgid } => {
                if let Some(step) = self.calls.door().copies.set(request.uid, ino, name, value) {
                    let (step, key) = step?;
                    check_root(request)?;
                    return Ok((Call::Request(Request::CopyTree(step)), Form::Copying(key)));
                }
                let mode = match flags {
                    0 => XattrMode::Any,
                    1 => XattrMode::Create,
                    2 => XattrMode::Replace,
                    _ => return Err(Errno::EINVAL),
                };
                let (name, value, kill_sgid) = (name.into(), value.into(), acl_kill_sgid);
                plain(Request::SetXattr { ino, name, value, mode, kill_sgid })
            }
            Op::GetXattr { name, size } => {
                Ok((Call::Request(Request::GetXattr { ino, name: name.into() }), Form::Xattr(size)))
            }
            Op::ListXattr { size } => Ok((Call::Request(Request::ListXattr { ino }), Form::Xattr(size))),
            Op::RemoveXattr { name } => plain(Request::RemoveXattr { ino, name: name.into() }),
            Op::StatFs => Ok((Call::Request(Request::StatFs { ino }), Form::StatFs)),
            Op::FAllocate { offset, length, mode, .. } => {
                let mode = AllocateMode::from_bits(mode).ok_or(Errno::EOPNOTSUPP)?;
                let kill_suid_gid = request.uid != 0;
                Ok((Call::Allocate { ino, offset, length, mode, kill_suid_gid }, Form::Plain))
            }
            Op::LSeek { offset, whence, .. } => {
                let what = match whence {
                    3 => SeekWhat::Data,
                    4 => SeekWhat::Hole,
                    _ => return Err(Errno::EINVAL),
                };
                let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                Ok((Call::Seek { ino, offset, what }, Form::Plain))
            }
            Op::CopyFileRange { offset_in, node_out, offset_out, length, .. } => {
                let (from_offset, to, to_offset) = (offset_in, Ino(node_out), offset_out);
                let kill_suid_gid = request.uid != 0;
                let call = Call::Copy { from: ino, from_offset, to, to_offset, length, kill_suid_gid };
                Ok((call, Form::Copy))
            }
            Op::Ioctl { command, data, .. } => flags::call(ino, command, data),
            Op::GetLk(ref lock) if self.calls.door().shares_locks => {
                match self.calls.door().lock_request(ino, lock, None)? {
                    Request::Lock { ino, lock, .. } => plain(Request::TestLock { ino, lock }),
                    _ => Err(Errno::EINVAL),
                }
            }
            Op::SetLk(ref lock) if self.calls.door().shares_locks => {
                let request = self.calls.door().lock_request(ino, lock, None)?;
                let form = match request {
                    Request::Lock { lock, .. } if lock.owner.flock => Form::TryLock(unique, ino, lock),
                    _ => Form::Plain,
                };
                Ok((Call::Request(request), form))
            }
            Op::SetLkW(ref lock) if self.calls.door().shares_locks => {
                plain(self.calls.door().lock_request(ino, lock, Some(request.unique))?)
            }
            // Polls and block maps, and locks on one machine, are the kernel's own business.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn opening_form(&self, flags: u32) -> Form {
        let direct = flags & OFlags::DIRECT.bits() != 0 && self.calls.door().writes_directly;
        Form::Opening { flags, uncached: self.is_shared && (direct || flags & O_APPEND != 0) }
    }

    fn listing<'a>(&self, dir: Ino, offset: u64, size: u32, plus: bool) -> (Call<'a>, Form) {
        // Even the shortest entries take so many bytes.
        let shortest = if plus { 160 } else { 32 };
        let (after, limit) = (if offset < 3 { 0 } else { offset }, size / shortest + 1);
        let call = Call::Request(Request::ReadDir { dir, after, limit, plus });
        (call, Form::Listing { dir, offset, size, plus })
    }
}

impl FuseDoor {
    /// `atime`: who reads directories is to be seen each time only with [`Atime::Always`].
    pub fn new(atime: Atime, ttl: Option<Duration>, granted: &Granted) -> Self {
        let kernel_can = granted.flags.contains(fuse::InitFlags::NO_OPENDIR_SUPPORT);
        Self {
            kernel_opens_directories: kernel_can && atime != Atime::Always && ttl.is_none(),
            ttl,
            can_prune: granted.prune,
            has_epochs: granted.epoch,
            writes_directly: granted.coherent_direct_writes,
            shares_locks: granted
                .flags
                .contains(fuse::InitFlags::POSIX_LOCKS.union(fuse::InitFlags::FLOCK_LOCKS)),
            next_handle: AtomicU64::new(1),
            lockers: Lockers::default(),
            openings: Openings::default(),
            overlaps: Overlaps::default(),
            notifiers: OnceLock::new(),
            recorder: OnceLock::new(),
            transport: OnceLock::new(),
            passthrough: AtomicBool::new(false),
            backing: Mutex::default(),
            mapped_through: Mutex::default(),
            copies: Copies::default(),
            signalled: Mutex::default(),
            revoking: Mutex::default(),
        }
    }

    /// Before the first request.
    pub fn set_notifiers(&self, notifiers: Notifiers) {
        let _ = self.notifiers.set(notifiers);
    }

    /// Before the first request.
    pub fn set_recorder(&self, recorder: Recorder) {
        let _ = self.recorder.set(recorder);
    }

    /// All calls have been answered.
    pub fn finish_recording(&self) {
        if let Some(recorder) = self.recorder.get() {
            recorder.finish();
        }
    }

    fn survived(&self, call: u64) {
        self.signalled.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// Comes often: looks after callers that have got signals.
    pub(crate) fn look_after_signals(&self, calls: &impl Calls<Self>) {
        let signalled = std::mem::take(&mut *self.signalled.lock().unwrap_or_else(PoisonError::into_inner));
        for call in signalled {
            if self.interrupt(calls, call) == Interrupt::Survived {
                self.survived(call);
            }
        }
    }

    pub fn transport(&self) -> Option<Transport> {
        self.transport.get().copied()
    }
}

/// All ranks are synced, one after the other.
fn sync_fs<'a>(unique: u64, xattr: Option<u32>) -> (Call<'a>, Form) {
    let rank = Rank(0);
    (Call::Request(Request::SyncFs { rank }), Form::SyncFs { unique, rank, xattr })
}

/// The owner of a process's locks.
fn process(number: u64) -> LockOwner {
    LockOwner { flock: false, number }
}

/// As a kernel reads for a memory map.
fn is_of_pages(offset: u64, size: u32) -> bool {
    let page = page_size() as u64;
    offset.is_multiple_of(page) && u64::from(size).is_multiple_of(page)
}

fn sets_mtime(call: &Call<'_>) -> bool {
    matches!(call, Call::Request(Request::SetAttr { set: SetAttr { mtime: Some(_), .. }, .. }))
}

/// Bulk work of root's is checked by nobody else.
fn check_root(request: &fuse::Request<'_>) -> Result<(), Errno> {
    if request.uid == 0 && !bulk::is_capable(request.pid) { Err(Errno::EPERM) } else { Ok(()) }
}

fn caller(request: &fuse::Request<'_>) -> Caller {
    Caller { uid: request.uid, gid: request.gid, pid: request.pid, groups: None }
}

fn name(bytes: &[u8]) -> Result<Name, Errno> {
    Name::new(bytes).map_err(|error| match error {
        NameError::TooLong => Errno::ENAMETOOLONG,
        NameError::Invalid => Errno::EINVAL,
    })
}

fn open_how(flags: u32, kill_suid_gid: bool) -> OpenHow {
    let access = match flags & O_ACCMODE {
        _ if flags & FMODE_EXEC != 0 => Access::EXEC,
        0 => Access::READ,
        1 => Access::WRITE,
        _ => Access::READ | Access::WRITE,
    };
    // O_SYNC has this bit too. The kernel follows each such write with an FSYNC, but where it passes files through.
    let sync = flags & O_DSYNC != 0 && access.contains(Access::WRITE);
    // What is read without being an access is asked for.
    let reads = if flags & O_NOATIME != 0 { Reads::Server } else { Reads::Whole };
    let (truncate, append) = (flags & O_TRUNC != 0, flags & O_APPEND != 0);
    OpenHow { access, kill_suid_gid, truncate, sync, append, reads }
}

fn set_attr(set: &fuse::SetAttr) -> SetAttr {
    let set_time = |time| match time {
        fuse::SetTime::Now => SetTime::Now,
        fuse::SetTime::To(secs, nanos) => SetTime::To(Time::new(secs, nanos)),
    };
    SetAttr {
        perm: set.mode.map(|mode| mode & mode::PERMISSIONS),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(set_time),
        mtime: set.mtime.map(set_time),
        ctime: set.ctime.map(|(secs, nanos)| Time::new(secs, nanos)),
        flags: None,
        kill_suid_gid: set.kill_suid_gid,
        through_handle: set.handle.is_some(),
    }
}
