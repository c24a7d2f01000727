//! The FUSE frontend: turns the kernel's requests into calls. `answer.rs` turns the results into
//! replies.

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
use espalier_meta::{Atime, DECOUPLE, MERGE};
use espalier_proto::{
    Access, AllocateMode, Caller, END, Errno, FileType, Ino, LockOwner, Name, NameError, NewNode, OpenHow,
    RangeOp, Rank, Reads, RenameFlags, Request, SeekWhat, SetAttr, SetTime, Time, XattrMode, mode,
};
use rustix::fs::OFlags;
use rustix::param::page_size;

use answer::{Once, answer_data};
use locks::{LockAttempt, Lockers};
use mapped::Mapped;
use openings::{DIRECT, Openings, Use};
use overlap::{Overlaps, Read};

use crate::bulk::{self, Copies, CopyKey};
use crate::caller::dies;
use crate::calls::Calls;
use crate::record::{Begun, Recorder};

/// Cache validity for an embedded file system: the kernel is its only client.
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
/// The kernel's internal flag for an open by `execve`.
const FMODE_EXEC: u32 = 0x20;

/// The kernel's side of the frontend: replies and notifications.
pub struct FuseFrontend {
    /// The kernel supports a request to forget inodes by number.
    can_prune: bool,
    has_epochs: bool,
    /// Writes past the page cache also invalidate its pages.
    writes_directly: bool,
    /// See [`MountOptions::ttl`](crate::MountOptions::ttl).
    ttl: Option<Duration>,
    /// The kernel opens directories without a request.
    kernel_opens_directories: bool,
    /// Locks on files are the servers' business, not the kernel's: handles identify the openings.
    shares_locks: bool,
    next_handle: AtomicU64,
    lockers: Lockers,
    openings: Openings,
    overlaps: Overlaps<Ticket>,
    notifiers: OnceLock<Notifiers>,
    recorder: OnceLock<Recorder>,
    /// Set before the first request, like the next field.
    transport: OnceLock<Transport>,
    /// Passthrough is available.
    passthrough: AtomicBool,
    /// Streams that the kernel reads and writes itself, while they are open.
    backing: Mutex<HashMap<Ino, Backing>>,
    /// Streams that may be mapped past this process: they were passed through to openings for
    /// reading and writing. A map does not keep its opening.
    mapped_through: Mutex<HashSet<Ino>>,
    copies: Copies,
    /// Calls whose callers got a signal and survived. The kernel does not report a second signal.
    signalled: Mutex<Vec<u64>>,
    /// Revocations of names that the kernel has not acknowledged.
    revoking: Mutex<Vec<Revoking>>,
}

/// A revocation of a name.
struct Revoking {
    since: Instant,
    /// Reports to the server that a call holds the directory.
    blocked: Arc<dyn Fn() + Send + Sync>,
    /// Times that it was reported.
    reports: u32,
    done: Once,
}

struct Backing {
    id: BackingId,
    opens: u32,
}

/// A kernel request to be answered.
pub struct Ticket {
    reply: fuse::Reply,
    form: Form,
    /// Set if the call is recorded.
    begun: Option<Box<Begun>>,
}

/// Notification queues to the kernel.
#[derive(Clone, Debug)]
pub struct Notifiers {
    /// For names, which the kernel expires with their directories locked.
    pub names: Notifier,
    /// For inodes, where the kernel waits for no holder of such a lock.
    pub inodes: Notifier,
}

/// The form of a reply.
enum Form {
    Plain,
    /// An extended attribute's value or a list of names; size 0 requests the size only.
    Xattr(u32),
    /// A rename of these names on a mount of servers: the kernel keeps the validity of the old
    /// names.
    Moving(Box<[(Ino, Name); 2]>),
    /// An open with these flags. `uncached`: bypass the page cache, for append or `O_DIRECT` on a
    /// shared mount; the kernel would use its own, possibly stale, file size for cached I/O.
    Opening {
        flags: u32,
        uncached: bool,
    },
    /// See `overlap.rs`.
    Read(Box<Read>),
    /// A read of whole pages of this file, past the page cache or for a memory map.
    Pages(Ino),
    /// A write with this request number. `sync`: a direct write that must be durable when it
    /// returns; the kernel sends no `FSYNC` after it.
    Write {
        ino: Ino,
        unique: u64,
        sync: bool,
        cached: bool,
    },
    /// The sync after such a write of this many bytes.
    Written(u32),
    Flush,
    LockAttempt(LockAttempt),
    /// The removal of this directory tree.
    Removing(Ino),
    Copying(CopyKey),
    StatX,
    Flags(Ino, flags::Shape),
    /// See `mapped.rs`.
    Mapped(Box<Mapped>),
    Copy,
    /// A directory listing: offset, buffer size, and whether it includes attributes.
    Listing {
        dir: Ino,
        offset: u64,
        size: u32,
        plus: bool,
    },
    StatFs,
    /// One rank's part of a sync of the whole file system. `xattr`: it was requested as an extended
    /// attribute, with a buffer of this size.
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
    /// Other clients may write to the same files, so the kernel does not know their sizes.
    pub is_shared: bool,
    /// The transport that the mount options request.
    pub transport: Option<Transport>,
}

impl<C: Calls<FuseFrontend> + 'static> Filesystem for Mounted<C> {
    fn init(&self, granted: &Granted) {
        let passthrough = granted.flags.contains(fuse::InitFlags::PASSTHROUGH) && self.may_pass_through;
        if passthrough {
            self.calls.pass_through();
        }
        self.calls.frontend().passthrough.store(passthrough, Ordering::Relaxed);
        let _ = self.calls.frontend().transport.set(granted.transport());
        if self.transport == Some(Transport::Uring) && granted.transport() != Transport::Uring {
            tracing::warn!(
                "no FUSE over io_uring, as transport=uring asks for: it needs Linux 6.14, a mount by root or `echo Y > \
                 /sys/module/fuse/parameters/enable_uring` before it, and io_uring allowed; going on with queues"
            );
        }
    }

    fn request(&self, request: fuse::Request<'_>, reply: fuse::Reply) {
        let Some(reply) = self.answer_without_call(&request, reply) else { return };
        let Some(reply) = self.note_handle(&request, reply) else { return };
        let (unique, node, caller) = (request.unique, request.node, caller(&request));
        match self.call(&request) {
            Ok((call, form)) => {
                let form = self.mapped_form(&request, &call, form);
                let recorder = self.calls.frontend().recorder.get();
                let begun = recorder.map(|recorder| recorder.begin(&caller, &call));
                let ticket = Ticket { reply, form, begun };
                let frontend = self.calls.frontend();
                if sets_mtime(&call) && frontend.openings.may_be_mapped(Ino(node)) {
                    // The kernel may send earlier stores through a map only later, as a write.
                    let (calls, call) = (Arc::clone(&self.calls), call.into_owned());
                    let set = move || calls.call(unique, caller, call, ticket);
                    return frontend.after_written_back(Ino(node), 0..u64::MAX, set);
                }
                self.calls.call(unique, caller, call, ticket);
            }
            Err(errno) => reply.error(errno.raw()),
        }
    }
}

impl<C: Calls<FuseFrontend> + 'static> Mounted<C> {
    /// Answers a request that is no call; otherwise returns its reply.
    fn answer_without_call(&self, request: &fuse::Request<'_>, reply: fuse::Reply) -> Option<fuse::Reply> {
        let node = request.node;
        match &request.op {
            Op::Forget { lookups } => {
                self.calls.frontend().forgotten([Ino(node)]);
                self.calls.forget([Request::Forget { ino: Ino(node), lookups: *lookups }]);
                reply.none();
            }
            Op::BatchForget(forgets) => {
                self.calls.frontend().forgotten(forgets.map(|(node, _)| Ino(node)));
                self.calls.forget(forgets.map(|(node, lookups)| Request::Forget { ino: Ino(node), lookups }));
                reply.none();
            }
            Op::Interrupt { unique } if self.calls.frontend().interrupt_attempt(*unique) => {
                reply.none();
            }
            Op::Interrupt { unique } => {
                match self.calls.frontend().interrupt(&*self.calls, *unique) {
                    // The interrupt may have overtaken its request: the kernel repeats it.
                    Interrupt::Unknown => reply.error(Errno::EAGAIN.raw()),
                    Interrupt::Heard => reply.none(),
                    Interrupt::Survived => {
                        self.calls.frontend().survived(*unique);
                        reply.none();
                    }
                }
            }
            Op::GetXattr { name, size } if *name == bulk::NOTIFIED.as_bytes() => {
                let size = *size;
                self.calls.frontend().after_notified(move || answer_data(reply, Form::Xattr(size), &[]));
            }
            Op::GetXattr { name, size } => {
                let (uid, size) = (request.uid, *size);
                let frontend = self.calls.frontend();
                let Some(got) = frontend.copies.get(uid, Ino(node), name, size as usize) else {
                    return Some(reply);
                };
                frontend.after_notified(move || match got {
                    Ok(value) => answer_data(reply, Form::Xattr(size), &value),
                    Err(errno) => reply.error(errno.raw()),
                });
            }
            _ => return Some(reply),
        }
        None
    }

    /// Takes note of an opened or closed handle. Returns the reply, unless the request needs no
    /// call.
    fn note_handle(&self, request: &fuse::Request<'_>, reply: fuse::Reply) -> Option<fuse::Reply> {
        let node = request.node;
        match request.op {
            Op::OpenDir { .. } if self.is_shared && self.calls.frontend().kernel_opens_directories => {
                let retained = self.calls.open_dir(Ino(node));
                let mut flags = OpenedFlags::empty();
                flags.set(OpenedFlags::CACHE_DIR, retained.is_some());
                flags.set(OpenedFlags::KEEP_CACHE, retained == Some(true));
                reply.open(&fuse::Opened { handle: 0, flags, backing: None });
                return None;
            }
            Op::ReleaseDir { .. } if self.is_shared && self.calls.frontend().kernel_opens_directories => {
                self.calls.close_dir(Ino(node));
                reply.ok();
                return None;
            }
            Op::Release { handle, flags, .. } => {
                let access = flags & O_ACCMODE;
                self.calls.frontend().close_backing(&reply, Ino(node), access);
                let used = Use { writes: access != 0, maps: access == O_RDWR };
                self.calls.frontend().openings.close(Ino(node), handle, used);
                self.calls.frontend().closed(&*self.calls, Ino(node), handle);
            }
            // A process has closed a file; it rarely holds locks.
            Op::Flush { handle, lock_owner } if self.calls.frontend().shares_locks => {
                let process = process(lock_owner);
                self.calls.frontend().closing(&*self.calls, Ino(node), handle, process);
                if !self.calls.must_flush(Ino(node), process) {
                    reply.ok();
                    return None;
                }
            }
            _ => {}
        }
        Some(reply)
    }
}

impl<C: Calls<FuseFrontend>> Mounted<C> {
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
                writeback: None,
            })
        };
        match request.op {
            // A file handle whose inode the kernel has evicted, or a directory with one.
            Op::Lookup { name: b"." } => plain(Request::Find { ino, kind: None, open: None }),
            Op::Lookup { name: b".." } => plain(Request::Parent { dir: ino }),
            Op::Lookup { name: bytes } => plain(Request::Lookup { dir: ino, name: name(bytes)? }),
            Op::GetAttr { .. } => plain(Request::GetAttr { ino }),
            Op::StatX { .. } => Ok((Call::Request(Request::GetAttr { ino }), Form::StatX)),
            Op::SetAttr(ref set) => {
                let mut to_set = set_attr(set);
                if to_set == SetAttr::default() {
                    // A SETATTR without attributes: the bytes of a file with set-id bits are about
                    // to change, possibly by a passthrough write, or the call is `chown(path, -1,
                    // -1)`.
                    to_set.kill_suid_gid = true;
                    to_set.through_handle = self.calls.frontend().is_passed_through(ino);
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
                    writeback: None,
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
                let request =
                    Request::Rename { from_dir: ino, from, to_dir: Ino(new_parent), to, flags, time: None };
                Ok((Call::Request(request), form))
            }
            Op::Open { flags, kill_suid_gid } => {
                // The kernel truncates the file itself after the open.
                let how = open_how(flags & !O_TRUNC, kill_suid_gid);
                Ok((Call::Request(Request::Open { ino, how }), self.opening_form(flags)))
            }
            // The kernel does not ask again: it opens directories itself and caches listings until
            // it changes them or is notified of a change.
            Op::OpenDir { .. } if self.calls.frontend().kernel_opens_directories => Err(Errno::ENOSYS),
            Op::OpenDir { .. } => {
                let how = OpenHow { access: Access::READ, ..OpenHow::default() };
                plain(Request::Open { ino, how })
            }
            Op::Read { handle, offset, size, flags, .. } => {
                let noatime = flags & O_NOATIME != 0;
                let mut form = Form::Plain;
                if self.is_shared && handle & DIRECT == 0 {
                    let read = Read { unique, ino, offset, size, noatime, caller: caller(request) };
                    self.calls.frontend().overlaps.read(ino, unique, offset, size.into());
                    form = Form::Read(Box::new(read));
                } else if self.is_shared && is_of_pages(offset, size) {
                    form = Form::Pages(ino);
                }
                Ok((Call::read(ino, offset, size, noatime), form))
            }
            Op::Write { handle, offset, data, kill_suid_gid, flags, .. } => {
                let appends = self.is_shared && flags & O_APPEND != 0;
                if self.is_shared {
                    let length = (!appends).then_some(data.len() as u64);
                    self.calls.frontend().overlaps.write(ino, unique, offset, length);
                }
                let cached = self.is_shared && handle & DIRECT == 0;
                let sync = handle & DIRECT != 0 && flags & O_DSYNC != 0;
                let offset = if appends { END } else { offset };
                let call = Call::write(ino, offset, data.into(), kill_suid_gid);
                Ok((call, Form::Write { ino, unique, sync, cached }))
            }
            Op::Release { .. } | Op::ReleaseDir { .. } => Ok((Call::Release { ino }, Form::Plain)),
            Op::Flush { lock_owner, .. } if self.calls.frontend().shares_locks => {
                let owner = process(lock_owner);
                plain(Request::Unlock { ino, owner, first: 0, last: u64::MAX })
            }
            // The client buffers nothing that a close must flush.
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
                if let Some(step) = self.calls.frontend().copies.set(request.uid, ino, name, value) {
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
                if [DECOUPLE, MERGE].iter().any(|of| name == of.as_bytes()) {
                    check_root(request)?;
                }
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
                Ok((Call::range(ino, RangeOp::Allocate { offset, length, mode }, kill_suid_gid), Form::Plain))
            }
            Op::LSeek { offset, whence, .. } => {
                let what = match whence {
                    3 => SeekWhat::Data,
                    4 => SeekWhat::Hole,
                    _ => return Err(Errno::EINVAL),
                };
                let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                Ok((Call::range(ino, RangeOp::Seek { offset, what }, false), Form::Plain))
            }
            Op::CopyFileRange { offset_in, node_out, offset_out, length, .. } => {
                let op = RangeOp::Copy { from: ino, from_offset: offset_in, offset: offset_out, length };
                Ok((Call::range(Ino(node_out), op, request.uid != 0), Form::Copy))
            }
            Op::Ioctl { command, data, .. } => flags::call(ino, command, data),
            Op::GetLk(ref lock) if self.calls.frontend().shares_locks => {
                match self.calls.frontend().lock_request(ino, lock, None)? {
                    Request::Lock { ino, lock, .. } => plain(Request::TestLock { ino, lock }),
                    _ => Err(Errno::EINVAL),
                }
            }
            Op::SetLk(ref lock) if self.calls.frontend().shares_locks => {
                let request = self.calls.frontend().lock_request(ino, lock, None)?;
                let form = match request {
                    Request::Lock { lock, .. } => {
                        Form::LockAttempt(LockAttempt { unique, ino, lock, failed: None })
                    }
                    _ => Form::Plain,
                };
                Ok((Call::Request(request), form))
            }
            Op::SetLkW(ref lock) if self.calls.frontend().shares_locks => {
                plain(self.calls.frontend().lock_request(ino, lock, Some(request.unique))?)
            }
            // Polls, block maps and local locks are handled by the kernel.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn opening_form(&self, flags: u32) -> Form {
        let direct = flags & OFlags::DIRECT.bits() != 0 && self.calls.frontend().writes_directly;
        Form::Opening { flags, uncached: self.is_shared && (direct || flags & O_APPEND != 0) }
    }

    fn listing<'a>(&self, dir: Ino, offset: u64, size: u32, plus: bool) -> (Call<'a>, Form) {
        // Size in bytes of the shortest entry.
        let shortest = if plus { 160 } else { 32 };
        let (after, limit) = (if offset < 3 { 0 } else { offset }, size / shortest + 1);
        let call = Call::Request(Request::ReadDir { dir, after, limit, plus });
        (call, Form::Listing { dir, offset, size, plus })
    }
}

impl FuseFrontend {
    /// `atime`: the kernel may skip directory reads unless it is [`Atime::Always`].
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

    /// Called before the first request.
    pub fn set_notifiers(&self, notifiers: Notifiers) {
        let _ = self.notifiers.set(notifiers);
    }

    /// Called before the first request.
    pub fn set_recorder(&self, recorder: Recorder) {
        let _ = self.recorder.set(recorder);
    }

    /// Called when all calls are answered.
    pub fn finish_recording(&self) {
        if let Some(recorder) = self.recorder.get() {
            recorder.finish();
        }
    }

    fn survived(&self, call: u64) {
        self.signalled.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// Checks periodically whether callers with signals are ending.
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

/// Syncs all ranks, one after the other.
fn sync_fs<'a>(unique: u64, xattr: Option<u32>) -> (Call<'a>, Form) {
    let rank = Rank(0);
    (Call::Request(Request::SyncFs { rank }), Form::SyncFs { unique, rank, xattr })
}

/// The owner of a process's `fcntl` locks.
fn process(number: u64) -> LockOwner {
    LockOwner { flock: false, number }
}

/// True for a read of whole pages, as for a memory map.
fn is_of_pages(offset: u64, size: u32) -> bool {
    let page = page_size() as u64;
    offset.is_multiple_of(page) && u64::from(size).is_multiple_of(page)
}

fn sets_mtime(call: &Call<'_>) -> bool {
    matches!(call, Call::Request(Request::SetAttr { set: SetAttr { mtime: Some(_), .. }, .. }))
}

/// Checks the capabilities of root for bulk operations; no other code does.
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
    // `O_SYNC` includes this bit. The kernel follows such writes with an `FSYNC`, except for
    // passthrough files.
    let sync = flags & O_DSYNC != 0 && access.contains(Access::WRITE);
    // With `O_NOATIME`, reads are sent to the server.
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
        time: None,
    }
}
