//! The reply to a request. Each method consumes it, so there is exactly one; dropping it replies
//! EIO.

use crate::abi::{self, AttrBody, Opcode, OpenedFlags};
use crate::channel::{BackingId, Channel};
use crate::slot::Slot;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// The obligation to reply to one request, from any thread at any time.
#[derive(Debug)]
pub struct Reply {
    way: ReplyDestination,
    unique: u64,
    opcode: u32,
    owed: Owed,
}

/// The destination of a reply.
#[derive(Debug, Clone)]
pub(crate) enum ReplyDestination {
    Device(Channel),
    Uring(Arc<Slot>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    /// A caller waits for the reply.
    Answer,
    /// A reply is optional (INTERRUPT).
    Optional,
    /// No reply is permitted (FORGET), or it has been sent.
    Nothing,
}

/// Attributes of a node. Times are seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: (i64, u32),
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    /// Includes the file type.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
}

/// The node of a name, and the validity of both. The default (node zero) means that the name does
/// not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    pub node: u64,
    pub generation: u64,
    pub attr: Attr,
    pub entry_valid: Duration,
    pub attr_valid: Duration,
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    pub handle: u64,
    pub flags: OpenedFlags,
    /// Enables passthrough, and clears the flags that the kernel rejects together with it.
    pub backing: Option<BackingId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatFs {
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_size: u32,
    pub fragment_size: u32,
    pub name_max: u32,
}

/// Attributes of statx(2) beyond [`Attr`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatXExtra {
    pub btime: Option<(i64, u32)>,
    pub attributes: u64,
    pub attributes_mask: u64,
}

impl Reply {
    pub(crate) fn new(way: ReplyDestination, unique: u64, opcode: u32) -> Reply {
        let owed = match Opcode::from_wire(opcode) {
            // The ring entry is reusable only after a reply, even for these requests.
            _ if matches!(way, ReplyDestination::Uring(_)) => Owed::Answer,
            Some(Opcode::Forget | Opcode::BatchForget) => Owed::Nothing,
            Some(Opcode::Interrupt) => Owed::Optional,
            _ => Owed::Answer,
        };
        Reply { way, unique, opcode, owed }
    }

    /// The connection to the kernel, for registering backing files.
    pub fn channel(&self) -> &Channel {
        match &self.way {
            ReplyDestination::Device(channel) => channel,
            ReplyDestination::Uring(slot) => slot.device(),
        }
    }

    /// Success without data.
    pub fn ok(mut self) {
        self.send(0, &[]);
    }

    /// An error. An invalid errno becomes EIO, because the kernel would reject the message and keep
    /// the caller waiting.
    pub fn error(mut self, errno: i32) {
        self.fail(errno);
    }

    /// For requests without a reply: FORGET, INTERRUPT. Other requests get EIO, as on a drop.
    pub fn none(self) {}

    /// Data of a file, directory, symbolic link or attribute.
    pub fn data(mut self, data: &[u8]) {
        self.send(0, &[IoSlice::new(data)]);
    }

    /// Data in several pieces; up to sixteen need no allocation.
    pub fn data_vectored(mut self, data: &[IoSlice<'_>]) {
        self.send(0, data);
    }

    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK. The kernel counts a lookup of the node.
    pub fn entry(mut self, entry: &Entry) {
        self.send_body(&entry.to_wire());
    }

    /// GETATTR, SETATTR.
    pub fn attr(mut self, attr: &Attr, valid: Duration) {
        let (valid, valid_nanos) = split(valid);
        self.send_body(&abi::AttrOut { valid, valid_nanos, attr: attr.to_wire(), ..Default::default() });
    }

    /// STATX.
    pub fn statx(mut self, attr: &Attr, extra: &StatXExtra, valid: Duration) {
        self.send_body(&statx_out(attr, extra, valid));
    }

    /// OPEN, OPENDIR.
    pub fn open(mut self, opened: &Opened) {
        self.send_body(&opened.to_wire());
    }

    /// CREATE, TMPFILE.
    pub fn create(mut self, entry: &Entry, opened: &Opened) {
        let (entry, opened) = (entry.to_wire(), opened.to_wire());
        self.send(0, &[IoSlice::new(entry.as_bytes()), IoSlice::new(opened.as_bytes())]);
    }

    /// WRITE.
    pub fn written(mut self, size: u32) {
        self.send_body(&abi::WriteOut { size, ..Default::default() });
    }

    /// COPY_FILE_RANGE, in either width. The narrow one reports at most 4 GiB minus 1, as a short
    /// copy.
    pub fn copied(mut self, bytes: u64) {
        if self.opcode == Opcode::CopyFileRange64 as u32 {
            self.send_body(&abi::CopiedOut { bytes });
        } else {
            let size = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.send_body(&abi::WriteOut { size, ..Default::default() });
        }
    }

    pub fn statfs(mut self, stat: &StatFs) {
        self.send_body(&abi::StatFsOut {
            blocks: stat.blocks,
            blocks_free: stat.blocks_free,
            blocks_available: stat.blocks_available,
            files: stat.files,
            files_free: stat.files_free,
            block_size: stat.block_size,
            name_max: stat.name_max,
            fragment_size: stat.fragment_size,
            ..Default::default()
        });
    }

    /// GETXATTR and LISTXATTR with size zero.
    pub fn xattr_size(mut self, size: u32) {
        self.send_body(&abi::XattrSizeOut { size, ..Default::default() });
    }

    pub fn lseek(mut self, offset: u64) {
        self.send_body(&abi::LSeekOut { offset });
    }

    /// GETLK: the conflicting lock, or one of kind `F_UNLCK`.
    pub fn lock(mut self, start: u64, end: u64, kind: u32, pid: u32) {
        self.send_body(&abi::LockOut { start, end, kind, pid });
    }

    pub fn bmap(mut self, block: u64) {
        self.send_body(&abi::BMapOut { block });
    }

    pub fn ioctl(mut self, result: i32, data: &[u8]) {
        let out = abi::IoctlOut { result, ..Default::default() };
        self.send(0, &[IoSlice::new(out.as_bytes()), IoSlice::new(data)]);
    }

    pub fn poll(mut self, events: u32) {
        self.send_body(&abi::PollOut { events, ..Default::default() });
    }

    /// INIT, by the session only.
    pub(crate) fn init(mut self, out: &abi::InitOut) {
        self.send_body(out);
    }

    fn send_body<T: IntoBytes + Immutable>(&mut self, body: &T) {
        self.send(0, &[IoSlice::new(body.as_bytes())]);
    }

    fn fail(&mut self, errno: i32) {
        let errno = if (1..512).contains(&errno) { errno } else { Errno::IO.raw_os_error() };
        self.send(-errno, &[]);
    }

    fn send(&mut self, error: i32, body: &[IoSlice<'_>]) {
        if self.owed == Owed::Nothing {
            return;
        }
        self.owed = Owed::Nothing;
        match self.way.send(self.unique, error, body) {
            // The caller was killed, or the mount is gone: no caller waits.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM) => {}
            Err(refused) => {
                tracing::error!(opcode = self.opcode, error = %refused, "the kernel rejected a reply");
                // If the kernel rejected the message before matching it with its request, the
                // caller still waits.
                let _ = self.way.send(self.unique, -Errno::IO.raw_os_error(), &[]);
            }
        }
    }
}

impl ReplyDestination {
    fn send(&self, unique: u64, error: i32, body: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        match self {
            ReplyDestination::Device(channel) => channel.send(unique, error, body),
            ReplyDestination::Uring(slot) => slot.send(error, body),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.owed == Owed::Answer {
            tracing::warn!(
                opcode = self.opcode,
                unique = self.unique,
                "a request was dropped without an answer"
            );
            self.fail(Errno::IO.raw_os_error());
        }
    }
}

impl Attr {
    fn to_wire(self) -> AttrBody {
        AttrBody {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.0,
            mtime: self.mtime.0,
            ctime: self.ctime.0,
            atime_nanos: self.atime.1,
            mtime_nanos: self.mtime.1,
            ctime_nanos: self.ctime.1,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

impl Entry {
    /// A negative entry, which the kernel caches for `valid`.
    pub fn absent(valid: Duration) -> Entry {
        Entry { entry_valid: valid, ..Entry::default() }
    }

    pub(crate) fn to_wire(self) -> abi::EntryOut {
        let (entry_valid, entry_valid_nanos) = split(self.entry_valid);
        let (attr_valid, attr_valid_nanos) = split(self.attr_valid);
        abi::EntryOut {
            node: self.node,
            generation: self.generation,
            entry_valid,
            attr_valid,
            entry_valid_nanos,
            attr_valid_nanos,
            attr: self.attr.to_wire(),
        }
    }
}

impl Opened {
    fn to_wire(self) -> abi::OpenOut {
        let besides_passthrough =
            OpenedFlags::DIRECT_IO | OpenedFlags::PARALLEL_DIRECT_WRITES | OpenedFlags::NOFLUSH;
        let (flags, backing) = match self.backing {
            Some(id) => (self.flags & besides_passthrough | OpenedFlags::PASSTHROUGH, id.0),
            None => (self.flags, 0),
        };
        abi::OpenOut { handle: self.handle, flags: flags.bits(), backing }
    }
}

fn statx_out(attr: &Attr, extra: &StatXExtra, valid: Duration) -> abi::StatXOut {
    const BASIC: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    let time = |(seconds, nanos)| abi::StatXTime { seconds, nanos, ..Default::default() };
    let (valid, valid_nanos) = split(valid);
    abi::StatXOut {
        valid,
        valid_nanos,
        mask: if extra.btime.is_some() { BASIC | BTIME } else { BASIC },
        blksize: attr.blksize,
        attributes: extra.attributes,
        attributes_mask: extra.attributes_mask,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(extra.btime.unwrap_or_default()),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        // The protocol's rdev has 32 bits: the minor's low byte, the major's twelve bits, the rest
        // of the minor.
        rdev_major: (attr.rdev >> 8) & 0xfff,
        rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
        ..Default::default()
    }
}

fn split(valid: Duration) -> (u64, u32) {
    (valid.as_secs(), valid.subsec_nanos())
}

#[cfg(test)]
mod tests;
