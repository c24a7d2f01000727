//! Message layouts, opcodes and flags of the kernel's FUSE interface, version 7.45.
//!
//! Only what this crate uses is defined here. Fields with a leading underscore exist in the
//! messages but are not used.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 45;
/// Version 7.36 introduced the second word of INIT flags. Older kernels are not supported.
pub(crate) const MINOR_MIN: u32 = 36;

/// The first minor version with [`notify::INC_EPOCH`].
pub(crate) const MINOR_EPOCH: u32 = 44;
/// The first minor version with [`notify::PRUNE`].
pub(crate) const MINOR_PRUNE: u32 = 45;
/// The first minor version whose kernels drop cached pages after a direct write as well as before.
pub(crate) const MINOR_COHERENT: u32 = 45;

pub(crate) const PAGE: usize = 4096;

/// The node number of the mount's root, fixed by the protocol.
pub const ROOT_NODE: u64 = 1;

macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// The kernel's request codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Opcode { $($name = $value),* }

        impl Opcode {
            pub(crate) fn from_wire(value: u32) -> Option<Opcode> {
                match value { $($value => Some(Opcode::$name),)* _ => None }
            }

            #[cfg(test)]
            pub(crate) const ALL: &[Opcode] = &[$(Opcode::$name),*];
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, GetAttr = 3, SetAttr = 4, ReadLink = 5, Symlink = 6, MkNod = 8, MkDir = 9, Unlink = 10,
    RmDir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, StatFs = 17, Release = 18, FSync = 20,
    SetXattr = 21, GetXattr = 22, ListXattr = 23, RemoveXattr = 24, Flush = 25, Init = 26, OpenDir = 27, ReadDir = 28,
    ReleaseDir = 29, FSyncDir = 30, GetLk = 31, SetLk = 32, SetLkW = 33, Access = 34, Create = 35, Interrupt = 36,
    BMap = 37, Destroy = 38, Ioctl = 39, Poll = 40, BatchForget = 42, FAllocate = 43, ReadDirPlus = 44, Rename2 = 45,
    LSeek = 46, CopyFileRange = 47, SyncFs = 50, TmpFile = 51, StatX = 52, CopyFileRange64 = 53,
}

/// Notification codes, in the `error` field of a message that answers no request.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const DELETE: i32 = 6;
    pub(crate) const INC_EPOCH: i32 = 8;
    pub(crate) const PRUNE: i32 = 9;
    /// In `NotifyEntryOut::flags`: expire the name, and keep what is mounted below it.
    pub(crate) const EXPIRE_ONLY: u32 = 1;
}

pub(crate) mod ioctl {
    use rustix::ioctl::{Opcode, opcode};
    const MAGIC: u8 = 229;
    pub(crate) const CLONE: Opcode = opcode::read::<u32>(MAGIC, 0);
    pub(crate) const BACKING_OPEN: Opcode = opcode::write::<super::BackingMap>(MAGIC, 1);
    pub(crate) const BACKING_CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);
}

/// Commands of a queue over io_uring.
pub(crate) mod uring {
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// Size of a request's header over io_uring: 128 bytes for the [`InHeader`] (or the [`OutHeader`]
/// of its reply), 128 for the operation's first argument, and a [`UringEntry`]. Names and data are
/// in the payload.
pub(crate) const URING_HEADER: usize = URING_ENTRY_AT + size_of::<UringEntry>();
pub(crate) const URING_ARGUMENTS_AT: usize = 128;
pub(crate) const URING_ENTRY_AT: usize = 256;

bitflags! {
    /// Features that the kernel offers at INIT, and those that are accepted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const SECURITY_CTX = 1 << 32;
        const CREATE_SUPP_GROUP = 1 << 34;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
        const _ = !0;
    }

    /// Properties of an open file or directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenedFlags: u32 {
        const DIRECT_IO = 1;
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        const PASSTHROUGH = 1 << 7;
    }

    /// The valid fields of a `SetAttrIn`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct SetAttrValid: u32 {
        const MODE = 1;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const HANDLE = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCK_OWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUID_GID = 1 << 11;
    }
}

pub(crate) const GETATTR_HANDLE: u32 = 1;
pub(crate) const OPEN_KILL_SUID_GID: u32 = 1;
pub(crate) const READ_LOCK_OWNER: u32 = 1 << 1;
pub(crate) const WRITE_CACHE: u32 = 1;
pub(crate) const WRITE_LOCK_OWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUID_GID: u32 = 1 << 2;
pub(crate) const RELEASE_FLUSH: u32 = 1;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const FSYNC_DATA_ONLY: u32 = 1;
pub(crate) const LOCK_FLOCK: u32 = 1;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Extension record with supplementary groups.
pub(crate) const EXT_GROUPS: u32 = 32;

macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
    )* };
}

// Headers.
wire! {
    /// `extensions`: length of the data after the arguments, in units of eight bytes.
    struct InHeader {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extensions: u16, _pad: u16,
    }
    /// `error`: zero or a negative errno; with `unique` zero, the code of a notification.
    struct OutHeader { len: u32, error: i32, unique: u64 }
    struct ExtensionHeader { size: u32, kind: u32 }
}

// Bodies of requests.
wire! {
    /// Kernels before 7.36 end here; newer ones continue with [`InitExtIn`].
    struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    struct InitExtIn { flags2: u32 }
    struct ForgetIn { lookups: u64 }
    struct ForgetOne { node: u64, lookups: u64 }
    struct BatchForgetIn { count: u32, _pad: u32 }
    struct GetAttrIn { flags: u32, _pad: u32, handle: u64 }
    struct SetAttrIn {
        valid: u32, _pad: u32, handle: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, _unused4: u32, uid: u32, gid: u32,
        _unused5: u32,
    }
    struct StatXIn { flags: u32, _pad: u32, handle: u64, sx_flags: u32, sx_mask: u32 }
    struct MkNodIn { mode: u32, rdev: u32, umask: u32, _pad: u32 }
    struct MkDirIn { mode: u32, umask: u32 }
    struct RenameIn { new_parent: u64 }
    struct Rename2In { new_parent: u64, flags: u32, _pad: u32 }
    struct LinkIn { node: u64 }
    struct OpenIn { flags: u32, open_flags: u32 }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    struct ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    struct FlushIn { handle: u64, _unused: u32, _pad: u32, lock_owner: u64 }
    struct ReadIn { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, _pad: u32 }
    struct WriteIn { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, _pad: u32 }
    struct FSyncIn { handle: u64, flags: u32, _pad: u32 }
    struct SetXattrIn { size: u32, flags: u32, ext_flags: u32, _pad: u32 }
    struct GetXattrIn { size: u32, _pad: u32 }
    struct LockIn {
        handle: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, flags: u32, _pad: u32,
    }
    struct AccessIn { mask: u32, _pad: u32 }
    struct InterruptIn { unique: u64 }
    struct BMapIn { block: u64, block_size: u32, _pad: u32 }
    struct IoctlIn { handle: u64, flags: u32, command: u32, argument: u64, in_size: u32, out_size: u32 }
    struct PollIn { handle: u64, kernel_handle: u64, flags: u32, events: u32 }
    struct FAllocateIn { handle: u64, offset: u64, length: u64, mode: u32, _pad: u32 }
    struct LSeekIn { handle: u64, offset: i64, whence: u32, _pad: u32 }
    struct CopyFileRangeIn {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64, length: u64, flags: u64,
    }
    struct SyncFsIn { _pad: u64 }
}

// Bodies of replies.
wire! {
    struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_granularity: u32, max_pages: u16, map_alignment: u16, flags2: u32,
        max_stack_depth: u32, request_timeout: u16, _unused: [u16; 11],
    }
    struct AttrBody {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atime_nanos: u32, mtime_nanos: u32,
        ctime_nanos: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    struct EntryOut {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nanos: u32,
        attr_valid_nanos: u32, attr: AttrBody,
    }
    struct AttrOut { valid: u64, valid_nanos: u32, _pad: u32, attr: AttrBody }
    struct StatXTime { seconds: i64, nanos: u32, _pad: i32 }
    struct StatXOut {
        valid: u64, valid_nanos: u32, flags: u32, _spare: [u64; 2],
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, _spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: StatXTime, btime: StatXTime, ctime: StatXTime,
        mtime: StatXTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, _spare2: [u64; 14],
    }
    struct OpenOut { handle: u64, flags: u32, backing: i32 }
    struct WriteOut { size: u32, _pad: u32 }
    struct StatFsOut {
        blocks: u64, blocks_free: u64, blocks_available: u64, files: u64, files_free: u64, block_size: u32,
        name_max: u32, fragment_size: u32, _pad: u32, _spare: [u32; 6],
    }
    struct XattrSizeOut { size: u32, _pad: u32 }
    struct LockOut { start: u64, end: u64, kind: u32, pid: u32 }
    struct BMapOut { block: u64 }
    struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    struct PollOut { events: u32, _pad: u32 }
    struct LSeekOut { offset: u64 }
    struct CopiedOut { bytes: u64 }
    struct DirEntryHead { ino: u64, next: u64, name_len: u32, kind: u32 }
}

// Bodies of notifications and ioctls.
wire! {
    struct NotifyInodeOut { node: u64, offset: i64, length: i64 }
    struct NotifyEntryOut { parent: u64, name_len: u32, flags: u32 }
    struct NotifyDeleteOut { parent: u64, node: u64, name_len: u32, _pad: u32 }
    struct NotifyPruneOut { count: u32, _pad: u32, _spare: u64 }
    struct BackingMap { fd: i32, flags: u32, _pad: u64 }
}

// Structures of io_uring queues.
wire! {
    struct UringEntry { _flags: u64, commit_id: u64, payload: u32, _pad: u32, _reserved: u64 }
    struct UringCommand { _flags: u64, commit_id: u64, queue: u16, _pad: [u8; 6] }
    /// The kernel's `iovec`.
    struct Area { base: u64, length: u64 }
}

/// Bytes before the data of a WRITE.
pub(crate) const WRITE_PREFIX: usize = size_of::<InHeader>() + size_of::<WriteIn>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_the_kernels_sizes() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<SetAttrIn>(), 88);
        assert_eq!(size_of::<AttrBody>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<StatXOut>(), 32 + 256);
        assert_eq!(size_of::<StatFsOut>(), 80);
        assert_eq!(size_of::<LockIn>(), 48);
        assert_eq!(size_of::<DirEntryHead>(), 24);
        assert_eq!(WRITE_PREFIX, 80);
        assert_eq!(URING_HEADER, 288);
        assert_eq!(size_of::<UringCommand>(), 24);
    }

    #[test]
    fn ioctl_numbers_are_the_headers() {
        assert_eq!(ioctl::CLONE as u64, 0x8004_e500);
        assert_eq!(ioctl::BACKING_OPEN as u64, 0x4010_e501);
        assert_eq!(ioctl::BACKING_CLOSE as u64, 0x4004_e502);
    }
}
