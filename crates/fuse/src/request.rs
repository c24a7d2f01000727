//! Decodes the kernel's messages into typed requests that borrow from them.
//!
//! Decoding does not allocate, and does not panic on any input. Excess bytes after an operation's
//! arguments are ignored, since the protocol is extended by appending.

mod parse;

use crate::abi::{self, InHeader};
use zerocopy::FromBytes;

/// A request of the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request<'a> {
    /// Identifies the request until the reply; an [`Op::Interrupt`] refers to it.
    pub unique: u64,
    /// The node of the request; if the operation carries a name, the parent.
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    /// Zero for the kernel's own requests, such as writeback.
    pub pid: u32,
    /// The caller's supplementary group that owns the parent, if CREATE_SUPP_GROUP was granted and
    /// there is one.
    pub parent_group: Option<u32>,
    pub op: Op<'a>,
}

/// The operation and its arguments. `flags` are those of the system call (`O_*`, `RENAME_*`,
/// `XATTR_*`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// Has no reply.
    Forget {
        lookups: u64,
    },
    /// Has no reply.
    BatchForget(Forgets<'a>),
    GetAttr {
        handle: Option<u64>,
    },
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// The request's node is the directory that receives the name; `node` is the linked one.
    Link {
        node: u64,
        new_name: &'a [u8],
    },
    Open {
        flags: u32,
        kill_suid_gid: bool,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        flags: u32,
        lock_owner: Option<u64>,
    },
    /// `cache`: written back from the page cache; the handle is then a guess, and the caller is
    /// unknown.
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        flags: u32,
        lock_owner: Option<u64>,
        cache: bool,
        kill_suid_gid: bool,
    },
    StatFs,
    Release {
        handle: u64,
        flags: u32,
        flush: bool,
        flock_unlock: bool,
        lock_owner: u64,
    },
    FSync {
        handle: u64,
        datasync: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        acl_kill_sgid: bool,
    },
    /// Size zero requests the size only.
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    /// Size zero requests the size only.
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    /// Handled by the session.
    Init(Init),
    OpenDir {
        flags: u32,
    },
    ReadDir {
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReadDirPlus {
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReleaseDir {
        handle: u64,
        flags: u32,
    },
    FSyncDir {
        handle: u64,
        datasync: bool,
    },
    GetLk(Lock),
    SetLk(Lock),
    /// As `SetLk`, but waits.
    SetLkW(Lock),
    Access {
        mask: u32,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
        kill_suid_gid: bool,
    },
    TmpFile {
        flags: u32,
        mode: u32,
        umask: u32,
    },
    /// The caller of request `unique` got a signal. A reply is optional; ENOSYS disables these
    /// requests.
    Interrupt {
        unique: u64,
    },
    BMap {
        block: u64,
        block_size: u32,
    },
    /// Handled by the session.
    Destroy,
    Ioctl {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        data: &'a [u8],
        out_size: u32,
    },
    Poll {
        handle: u64,
        kernel_handle: u64,
        flags: u32,
        events: u32,
    },
    FAllocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    LSeek {
        handle: u64,
        offset: i64,
        whence: u32,
    },
    CopyFileRange {
        handle_in: u64,
        offset_in: u64,
        node_out: u64,
        handle_out: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    },
    SyncFs,
    StatX {
        handle: Option<u64>,
        flags: u32,
        mask: u32,
    },
    /// An unknown opcode; the reply should be ENOSYS.
    Unknown(u32),
}

/// A change of attributes; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Sent only with the write-back cache.
    pub ctime: Option<(i64, u32)>,
    pub handle: Option<u64>,
    pub lock_owner: Option<u64>,
    pub kill_suid_gid: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The server's present time, which needs less permission than an explicit time.
    Now,
    To(i64, u32),
}

/// A byte-range lock, or with `flock` a lock of the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    pub handle: u64,
    pub owner: u64,
    pub start: u64,
    /// Inclusive.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    pub pid: u32,
    pub flock: bool,
}

/// The kernel's offer at INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: abi::InitFlags,
}

/// The nodes of a BATCH_FORGET, with the number of lookups to subtract from each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let (one, rest) = abi::ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some((one.node, one.lookups))
    }
}

/// A message that violates the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed request (opcode {opcode:?}): {flaw}")]
pub struct Malformed {
    /// The request to answer, if the header is valid.
    pub unique: Option<u64>,
    pub opcode: Option<u32>,
    pub flaw: Flaw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("{needs} bytes expected, {has} left")]
    Short { needs: usize, has: usize },
    #[error("the header states {stated} bytes, {read} were read")]
    Length { stated: usize, read: usize },
    #[error("name without end")]
    Unterminated,
}

impl<'a> Request<'a> {
    /// Decodes `bytes`, which must be exactly one complete message.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed {
            unique: None,
            opcode: None,
            flaw: Flaw::Short { needs: size_of::<InHeader>(), has: bytes.len() },
        })?;
        let malformed = |flaw| Malformed { unique: Some(header.unique), opcode: Some(header.opcode), flaw };
        if header.len as usize != bytes.len() {
            return Err(malformed(Flaw::Length { stated: header.len as usize, read: bytes.len() }));
        }
        let extended = usize::from(header.extensions) * 8;
        let Some(split) = body.len().checked_sub(extended) else {
            return Err(malformed(Flaw::Short { needs: extended, has: body.len() }));
        };
        let (arguments, extensions) = body.split_at(split);
        let op = Op::parse(header.opcode, arguments).map_err(malformed)?;
        Ok(Request {
            unique: header.unique,
            node: header.node,
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            parent_group: parse::first_group(extensions),
            op,
        })
    }
}

#[cfg(test)]
mod tests;
