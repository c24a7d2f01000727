//! The requests to metadata servers, declared: the inode that routes each, the kind that names it
//! in metrics and traces, and its class. A new request needs one row.

use crate::{Access, Ino, Kind, NewNode, Rank, Request};

/// The origin of a request, and its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestClass {
    Read,
    /// A read-only client may not make it.
    Change,
    /// About locks on a file.
    Lock,
    /// About a client's session, not about one inode.
    Session,
    /// Only the server itself makes it.
    Internal,
}

macro_rules! requests {
    (@inode) => { None };
    (@inode $field:tt $ino:ident) => { Some($ino) };
    ($($variant:ident$(($field:tt))?: $kind:ident, $class:ident;)+) => {
        impl Request {
            fn class(&self) -> RequestClass {
                match self { $(Self::$variant { .. } => RequestClass::$class),+ }
            }

            fn general_kind(&self) -> Kind {
                match self { $(Self::$variant { .. } => Kind::$kind),+ }
            }

            /// The inode or directory that the request names first; `None` if it names several or
            /// none.
            fn named_inode(&self) -> Option<&Ino> {
                match self {
                    $(Self::$variant { $($field: ino,)? .. } => requests!(@inode $($field ino)?)),+
                }
            }

            fn named_inode_mut(&mut self) -> Option<&mut Ino> {
                match self {
                    $(Self::$variant { $($field: ino,)? .. } => requests!(@inode $($field ino)?)),+
                }
            }
        }
    };
}

requests! {
    Lookup(dir): Lookup, Read;
    Forget(ino): Forget, Session;
    ForgetAll: Forget, Session;
    GetAttr(ino): GetAttr, Read;
    SetAttr(ino): SetAttr, Change;
    ReadLink(ino): ReadLink, Read;
    Create(dir): Create, Change;
    TmpFile(dir): TmpFile, Change;
    Link(dir): Link, Change;
    Unlink(dir): Unlink, Change;
    RmDir(dir): RmDir, Change;
    Rename(from_dir): Rename, Change;
    Open(ino): Open, Read;
    Release(ino): Release, Read;
    Read(ino): Read, Read;
    Write(ino): Write, Change;
    Allocate(ino): Allocate, Change;
    RemovePrivileges(ino): SetAttr, Change;
    Seek(ino): Seek, Read;
    Fsync(ino): Fsync, Read;
    ReadDir(dir): ReadDir, Read;
    Access(ino): Access, Read;
    SetXattr(ino): SetXattr, Change;
    GetXattr(ino): GetXattr, Read;
    ListXattr(ino): ListXattr, Read;
    RemoveXattr(ino): RemoveXattr, Change;
    StatFs(ino): StatFs, Read;
    Extend(ino): Write, Change;
    Delegate(ino): Open, Read;
    RemoveTree(dir): RemoveTree, Change;
    CopyTree: CopyTree, Change;
    Reclaim: Open, Session;
    ReclaimLocks: Open, Session;
    Lock(ino): Lock, Lock;
    Unlock(ino): Lock, Lock;
    TestLock(ino): Lock, Lock;
    StopWaiting(ino): Lock, Lock;
    Enter: RemoveTree, Internal;
    Fragments(dir): GetAttr, Read;
    Transfer(dir): Rename, Internal;
    Pull(dir): Rename, Internal;
    ClaimDatafile(ino): GetAttr, Internal;
    Sweep: RemoveTree, Internal;
    Recount(ino): GetAttr, Internal;
    Place: Write, Internal;
    Find(ino): Lookup, Read;
    Parent(dir): Lookup, Read;
    SetLayout(ino): SetAttr, Change;
    Purge(ino): Unlink, Change;
    TakeNumbers: TakeNumbers, Session;
    SyncFs: SyncFs, Session;
    Accessed: Accessed, Session;
    Renew: Renew, Session;
    LeaseData(ino): LeaseData, Read;
    Announce(0): Announce, Change;
}

impl Request {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Create { node: NewNode::Regular, open: Some(_), .. } => Kind::Create,
            Self::Create { node: NewNode::Directory, .. } => Kind::MkDir,
            Self::Create { node: NewNode::Symlink(_), .. } => Kind::Symlink,
            Self::Create { .. } => Kind::MkNod,
            Self::ReadDir { plus: true, .. } => Kind::ReadDirPlus,
            Self::Place { io } => io.op.kind(),
            _ => self.general_kind(),
        }
    }

    /// The rank that executes the request.
    pub fn rank(&self) -> Rank {
        match self {
            Self::TakeNumbers { rank, .. } | Self::SyncFs { rank } => *rank,
            _ => self.ino().rank(),
        }
    }

    /// The inode that the request is about: the directory of a name, or the first of several.
    pub fn ino(&self) -> Ino {
        let first = match self {
            // The client splits these by rank, so the first inode determines the rank.
            Self::Accessed { files } => files.first().map(|(ino, _)| ino),
            Self::Renew { inodes, .. } => inodes.first(),
            Self::ForgetAll { inodes, .. } => inodes.first().map(|(ino, _)| ino),
            Self::Reclaim { held, .. } => held.first().map(|held| &held.ino),
            Self::CopyTree(copy) => copy.levels.first().map(|level| &level.from),
            Self::ReclaimLocks { locks } => locks.first().map(|(ino, _)| ino),
            Self::Place { io } => Some(&io.ino),
            _ => self.named_inode(),
        };
        first.copied().unwrap_or(Ino::ROOT)
    }

    /// The inode to which the request's time is charged.
    pub fn charged_inode(&self) -> Ino {
        match self {
            Self::CopyTree(copy) => copy.levels.first().map_or(Ino::ROOT, |level| level.to),
            Self::Place { io } => io.ino,
            _ => self.named_inode().copied().unwrap_or(Ino::ROOT),
        }
    }

    /// Calls `see` for each inode that the request operates on. Skips inodes that it forgets or
    /// reclaims.
    pub fn each_inode(&mut self, see: &mut dyn FnMut(&mut Ino)) {
        match self {
            Self::Link { ino: one, dir: other, .. } | Self::Rename { from_dir: one, to_dir: other, .. } => {
                see(one);
                see(other);
            }
            Self::Extend { ino, from, .. } => {
                see(ino);
                from.iter_mut().for_each(|(ino, _)| see(ino));
            }
            Self::CopyTree(copy) => {
                for level in &mut copy.levels {
                    see(&mut level.from);
                    see(&mut level.to);
                }
            }
            Self::Release { .. } | Self::Purge { .. } => {}
            _ if matches!(self.class(), RequestClass::Session | RequestClass::Internal) => {}
            _ => self.named_inode_mut().into_iter().for_each(see),
        }
    }

    /// True for requests that only the server itself makes.
    pub fn is_internal(&self) -> bool {
        self.class() == RequestClass::Internal
    }

    /// True for requests that are about a client's session, not about one inode.
    pub fn is_about_sessions(&self) -> bool {
        self.class() == RequestClass::Session
    }

    pub fn is_about_locks(&self) -> bool {
        self.class() == RequestClass::Lock
    }

    /// True for requests that a read-only client may not make.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Open { how, .. } | Self::Find { open: Some(how), .. } => {
                how.truncate || how.access.contains(Access::WRITE)
            }
            Self::Delegate { access, .. } => *access != Access::READ,
            Self::TakeNumbers { .. } => true,
            _ => self.class() == RequestClass::Change,
        }
    }
}
