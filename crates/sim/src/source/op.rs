//! Operations of programs.

use std::rc::Rc;

use bitflags::bitflags;
use espalier_proto::{Access, NewNode, RangeOp, RenameFlags, Request, SetAttr, named};
use espalier_recording::{Observed, RecordedRequest};

bitflags! {
    /// Flags of an open.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        const READ = 1;
        const WRITE = 2;
        const CREATE = 4;
        const EXCLUSIVE = 8;
        const TRUNCATE = 16;
        const APPEND = 32;
        const DIRECTORY = 64;
        const NO_FOLLOW = 128;
        /// `O_PATH`: permits only `stat` and the like.
        const PATH = 256;
    }
}

/// Object of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Path(Vec<u8>),
    /// As `Path`, without following a symbolic link at the end.
    Link(Vec<u8>),
    /// Number of an open file.
    File(u32),
}

/// An operation, as a system call. Paths begin at the root, or at a working directory
/// ([`WORKING_DIR`](crate::process::WORKING_DIR)). Programs choose the numbers of open files:
/// opening a number that is in use closes it first.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    MkDir {
        path: Vec<u8>,
        mode: u32,
    },
    /// Make a regular file without opening it.
    MkNod {
        path: Vec<u8>,
        mode: u32,
    },
    /// `mode`: of a created file.
    Open {
        file: u32,
        path: Vec<u8>,
        flags: OpenFlags,
        mode: u32,
    },
    /// Without an offset: at the file offset.
    Read {
        file: u32,
        offset: Option<u64>,
        size: u64,
    },
    /// As `Read`. The data identifies the process that writes it.
    Write {
        file: u32,
        offset: Option<u64>,
        size: u64,
    },
    /// Set the file offset.
    Seek {
        file: u32,
        offset: u64,
    },
    Close {
        file: u32,
    },
    Sync {
        file: u32,
    },
    /// List some further entries; `plus`: with attributes.
    List {
        file: u32,
        limit: u32,
        plus: bool,
    },
    Stat {
        target: Target,
    },
    Access {
        path: Vec<u8>,
        want: Access,
    },
    SetAttr {
        target: Target,
        set: SetAttr,
    },
    Unlink {
        path: Vec<u8>,
    },
    RmDir {
        path: Vec<u8>,
    },
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
        flags: RenameFlags,
    },
    Link {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    Symlink {
        target: Vec<u8>,
        path: Vec<u8>,
    },
    ReadLink {
        path: Vec<u8>,
    },
    /// Make this directory the root of a replayed recording.
    Enter {
        path: Vec<u8>,
    },
    Recorded(Rc<RecordedCall>),
}

/// A recorded call, with the recording's inode numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedCall {
    pub uid: u32,
    pub gid: u32,
    pub recorded: RecordedRequest,
    pub observed: Observed,
}

impl Op {
    pub fn mkdir(path: impl Into<Vec<u8>>) -> Self {
        Self::MkDir { path: path.into(), mode: 0o777 }
    }

    pub fn mknod(path: impl Into<Vec<u8>>) -> Self {
        Self::MkNod { path: path.into(), mode: 0o666 }
    }

    pub fn open(file: u32, path: impl Into<Vec<u8>>, flags: OpenFlags) -> Self {
        Self::Open { file, path: path.into(), flags, mode: 0o666 }
    }

    /// Creates a file exclusively and opens it for writing.
    pub fn create(file: u32, path: impl Into<Vec<u8>>) -> Self {
        Self::open(file, path, OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE)
    }

    pub fn stat(path: impl Into<Vec<u8>>) -> Self {
        Self::Stat { target: Target::Path(path.into()) }
    }

    pub fn unlink(path: impl Into<Vec<u8>>) -> Self {
        Self::Unlink { path: path.into() }
    }

    pub fn rmdir(path: impl Into<Vec<u8>>) -> Self {
        Self::RmDir { path: path.into() }
    }

    pub fn kind(&self) -> OpKind {
        match self {
            Self::MkDir { .. } => OpKind::MkDir,
            Self::MkNod { .. } => OpKind::Create,
            Self::Open { flags, .. } if flags.contains(OpenFlags::CREATE) => OpKind::Create,
            Self::Open { .. } => OpKind::Open,
            Self::Read { .. } => OpKind::Read,
            Self::Write { .. } => OpKind::Write,
            Self::Seek { .. } => OpKind::Seek,
            Self::Close { .. } => OpKind::Close,
            Self::Sync { .. } => OpKind::Sync,
            Self::List { .. } => OpKind::List,
            Self::Stat { .. } => OpKind::Stat,
            Self::Access { .. } => OpKind::Access,
            Self::SetAttr { set, .. } => OpKind::of_set(set),
            Self::Unlink { .. } => OpKind::Unlink,
            Self::RmDir { .. } => OpKind::RmDir,
            Self::Rename { .. } => OpKind::Rename,
            Self::Link { .. } => OpKind::Link,
            Self::Symlink { .. } => OpKind::Symlink,
            Self::ReadLink { .. } => OpKind::ReadLink,
            Self::Enter { .. } => OpKind::Stat,
            Self::Recorded(call) => OpKind::of(&call.recorded),
        }
    }
}

impl Op {
    /// The paths that the operation names.
    pub fn paths(&mut self) -> Vec<&mut Vec<u8>> {
        match self {
            Self::MkDir { path, .. }
            | Self::MkNod { path, .. }
            | Self::Open { path, .. }
            | Self::Access { path, .. }
            | Self::Unlink { path }
            | Self::RmDir { path }
            | Self::Symlink { path, .. }
            | Self::ReadLink { path }
            | Self::Enter { path }
            | Self::Stat { target: Target::Path(path) | Target::Link(path) }
            | Self::SetAttr { target: Target::Path(path) | Target::Link(path), .. } => vec![path],
            Self::Rename { from, to, .. } | Self::Link { from, to } => vec![from, to],
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Seek { .. }
            | Self::Close { .. }
            | Self::Sync { .. }
            | Self::List { .. }
            | Self::Recorded(_)
            | Self::Stat { target: Target::File(_) }
            | Self::SetAttr { target: Target::File(_), .. } => Vec::new(),
        }
    }

    /// The number of the open file that the operation uses or opens.
    pub fn file(&self) -> Option<u32> {
        match *self {
            Self::Open { file, .. }
            | Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Seek { file, .. }
            | Self::Close { file }
            | Self::Sync { file }
            | Self::List { file, .. }
            | Self::Stat { target: Target::File(file) }
            | Self::SetAttr { target: Target::File(file), .. } => Some(file),
            _ => None,
        }
    }
}

impl OpKind {
    /// The kind of a recorded call.
    fn of(recorded: &RecordedRequest) -> Self {
        let request = match recorded {
            RecordedRequest::Range { op, .. } => {
                return match op {
                    RangeOp::Read { .. } => Self::Read,
                    RangeOp::Write { .. } | RangeOp::WriteList { .. } => Self::Write,
                    RangeOp::Allocate { .. } => Self::Allocate,
                    RangeOp::Seek { .. } => Self::Seek,
                    RangeOp::Copy { .. } => Self::Copy,
                };
            }
            RecordedRequest::Release { .. } => return Self::Close,
            RecordedRequest::Request(request) => request,
        };
        match request {
            Request::Lookup { .. } => Self::Lookup,
            Request::GetAttr { .. } => Self::Stat,
            Request::SetAttr { set, .. } => Self::of_set(set),
            Request::ReadLink { .. } => Self::ReadLink,
            Request::Create { node: NewNode::Directory, .. } => Self::MkDir,
            Request::Create { node: NewNode::Symlink(_), .. } => Self::Symlink,
            Request::Create { .. } | Request::TmpFile { .. } => Self::Create,
            Request::Link { .. } => Self::Link,
            Request::Unlink { .. } => Self::Unlink,
            Request::RmDir { .. } | Request::RemoveTree { .. } => Self::RmDir,
            Request::Rename { .. } => Self::Rename,
            Request::Open { .. } => Self::Open,
            Request::Fsync { .. } | Request::SyncFs { .. } => Self::Sync,
            Request::ReadDir { .. } => Self::List,
            Request::Access { .. } => Self::Access,
            Request::StatFs { .. } => Self::StatFs,
            Request::SetXattr { .. }
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::RemoveXattr { .. } => Self::Xattr,
            _ => Self::Other,
        }
    }

    fn of_set(set: &SetAttr) -> Self {
        if set.size.is_some() {
            Self::Truncate
        } else if set.perm.is_some() {
            Self::ChMod
        } else if set.uid.is_some() || set.gid.is_some() {
            Self::ChOwn
        } else {
            Self::UTimes
        }
    }
}

named! {
    /// Kinds of operations that results distinguish.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum OpKind {
        MkDir = "mkdir",
        Create = "create",
        Open = "open",
        Read = "read",
        Write = "write",
        Seek = "seek",
        Close = "close",
        Sync = "fsync",
        List = "list",
        Stat = "stat",
        Access = "access",
        Truncate = "truncate",
        ChMod = "chmod",
        ChOwn = "chown",
        UTimes = "utimes",
        Unlink = "unlink",
        RmDir = "rmdir",
        Rename = "rename",
        Link = "link",
        Symlink = "symlink",
        ReadLink = "readlink",
        Lookup = "lookup",
        Xattr = "xattr",
        Allocate = "allocate",
        Copy = "copy",
        StatFs = "statfs",
        Other = "other",
    }
}
