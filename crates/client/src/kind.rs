//! Names of operations, for counters and traces.

use espalier_proto::{DataRequest, Ino, NewNode, RangeOp, Request, StreamIo};

use crate::Call;

macro_rules! kinds {
    ($($kind:ident = $name:literal),* $(,)?) => {
        /// An operation, named after its system call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($kind),* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name),* }
            }
        }
    };
}

kinds! {
    Lookup = "lookup", Forget = "forget", GetAttr = "getattr", SetAttr = "setattr", ReadLink = "readlink",
    Create = "create", MkDir = "mkdir", Symlink = "symlink", MkNod = "mknod", TmpFile = "tmpfile", Link = "link",
    Unlink = "unlink", RmDir = "rmdir", Rename = "rename", Open = "open", Release = "release", Read = "read",
    Write = "write", Allocate = "fallocate", Seek = "lseek", Copy = "copy_file_range", Fsync = "fsync", SyncFs = "syncfs",
    ReadDir = "readdir", ReadDirPlus = "readdirplus", Access = "access", SetXattr = "setxattr",
    GetXattr = "getxattr", ListXattr = "listxattr", RemoveXattr = "removexattr", StatFs = "statfs",
    RemoveTree = "remove_tree", CopyTree = "copy_tree", Lock = "lock",
    TakeNumbers = "take_numbers", Accessed = "accessed", Renew = "renew",
    LeaseData = "lease_data", Announce = "announce",
}

impl Kind {
    /// The kind of a call and its inode; if the call carries a name, the inode of the directory.
    pub fn of(call: &Call<'_>) -> (Self, Ino) {
        match call {
            Call::Request(request) => Self::of_request(request),
            Call::Range(range) => (Self::of_range(&range.op), range.ino),
            Call::Release { ino } => (Self::Release, *ino),
        }
    }

    /// As [`Self::of`], for stream I/O.
    pub fn of_stream(io: &StreamIo) -> (Self, Ino) {
        (Self::of_range(&io.op), io.ino)
    }

    fn of_range(op: &RangeOp) -> Self {
        match op {
            RangeOp::Read { .. } => Self::Read,
            RangeOp::Write { .. } | RangeOp::WriteList { .. } => Self::Write,
            RangeOp::Allocate { .. } => Self::Allocate,
            RangeOp::Seek { .. } => Self::Seek,
            RangeOp::Copy { .. } => Self::Copy,
        }
    }

    /// As [`Self::of`], for a request to a data server: the most similar system call.
    pub fn of_data(request: &DataRequest) -> (Self, Ino) {
        match *request {
            DataRequest::Range { ino, ref op, .. } => (Self::of_range(op), ino),
            DataRequest::Stat { .. } => (Self::GetAttr, Ino::ROOT),
            DataRequest::Fill { ino, .. } | DataRequest::Create { ino, .. } => (Self::Create, ino),
            DataRequest::Precreate { .. } => (Self::Create, Ino::ROOT),
            DataRequest::Discard { .. } => (Self::Unlink, Ino::ROOT),
            DataRequest::Finalise { ino, .. }
            | DataRequest::Truncate { ino, .. }
            | DataRequest::SetMtime { ino, .. } => (Self::SetAttr, ino),
            DataRequest::Sync { ino } => (Self::Fsync, ino),
            DataRequest::SyncAll => (Self::SyncFs, Ino::ROOT),
            DataRequest::Remove { ino } => (Self::Unlink, ino),
            DataRequest::New => (Self::ReadDir, Ino::ROOT),
            DataRequest::Space => (Self::StatFs, Ino::ROOT),
            DataRequest::Admit { .. } => (Self::Access, Ino::ROOT),
        }
    }

    /// As [`Self::of`], for a request to a metadata server.
    pub fn of_request(request: &Request) -> (Self, Ino) {
        match request {
            Request::Lookup { dir, .. } => (Self::Lookup, *dir),
            Request::Find { ino, .. } | Request::Parent { dir: ino } => (Self::Lookup, *ino),
            Request::Forget { ino, .. } => (Self::Forget, *ino),
            Request::ForgetAll { .. } => (Self::Forget, Ino::ROOT),
            Request::GetAttr { ino } => (Self::GetAttr, *ino),
            Request::SetAttr { ino, .. } => (Self::SetAttr, *ino),
            Request::ReadLink { ino } => (Self::ReadLink, *ino),
            Request::Create { dir, node, open, .. } => match node {
                NewNode::Regular if open.is_some() => (Self::Create, *dir),
                NewNode::Directory => (Self::MkDir, *dir),
                NewNode::Symlink(_) => (Self::Symlink, *dir),
                _ => (Self::MkNod, *dir),
            },
            Request::TmpFile { dir, .. } => (Self::TmpFile, *dir),
            Request::Link { dir, .. } => (Self::Link, *dir),
            Request::Unlink { dir, .. } => (Self::Unlink, *dir),
            Request::RmDir { dir, .. } => (Self::RmDir, *dir),
            Request::Rename { from_dir, .. } => (Self::Rename, *from_dir),
            Request::Open { ino, .. } | Request::Delegate { ino, .. } => (Self::Open, *ino),
            Request::Release { ino } => (Self::Release, *ino),
            Request::SetLayout { ino, .. } => (Self::SetAttr, *ino),
            Request::Purge { ino, .. } => (Self::Unlink, *ino),
            Request::Read { ino, .. } => (Self::Read, *ino),
            Request::Write { ino, .. } | Request::Extend { ino, .. } => (Self::Write, *ino),
            Request::Allocate { ino, .. } => (Self::Allocate, *ino),
            Request::RemovePrivileges { ino } => (Self::SetAttr, *ino),
            Request::Seek { ino, .. } => (Self::Seek, *ino),
            Request::Fsync { ino } => (Self::Fsync, *ino),
            Request::SyncFs { .. } => (Self::SyncFs, Ino::ROOT),
            Request::ReadDir { dir, plus: false, .. } => (Self::ReadDir, *dir),
            Request::ReadDir { dir, plus: true, .. } => (Self::ReadDirPlus, *dir),
            Request::Access { ino, .. } => (Self::Access, *ino),
            Request::SetXattr { ino, .. } => (Self::SetXattr, *ino),
            Request::GetXattr { ino, .. } => (Self::GetXattr, *ino),
            Request::ListXattr { ino } => (Self::ListXattr, *ino),
            Request::RemoveXattr { ino, .. } => (Self::RemoveXattr, *ino),
            Request::StatFs { ino } => (Self::StatFs, *ino),
            Request::RemoveTree { dir } => (Self::RemoveTree, *dir),
            Request::CopyTree(copy) => {
                (Self::CopyTree, copy.levels.first().map_or(Ino::ROOT, |level| level.to))
            }
            Request::Lock { ino, .. }
            | Request::Unlock { ino, .. }
            | Request::TestLock { ino, .. }
            | Request::StopWaiting { ino, .. } => (Self::Lock, *ino),
            Request::Reclaim { .. } | Request::ReclaimLocks { .. } => (Self::Open, Ino::ROOT),
            Request::TakeNumbers { .. } => (Self::TakeNumbers, Ino::ROOT),
            Request::Accessed { .. } => (Self::Accessed, Ino::ROOT),
            Request::Renew { .. } => (Self::Renew, Ino::ROOT),
            Request::LeaseData { ino } => (Self::LeaseData, *ino),
            Request::Announce(ino) => (Self::Announce, *ino),
            Request::Fragments { dir } => (Self::GetAttr, *dir),
            Request::Transfer { dir } | Request::Pull { dir } => (Self::Rename, *dir),
            Request::Sweep | Request::Enter { .. } => (Self::RemoveTree, Ino::ROOT),
            Request::Recount { ino } | Request::ClaimDatafile { ino, .. } => (Self::GetAttr, *ino),
            Request::Place { io } => Self::of_stream(io),
        }
    }
}
