//! Requests of clients to a metadata server, and its replies.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bitflags::bitflags;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Attr, Capability, ClientId, Delegation, FileType, Fragments, Held, Ino, Layout, Location, Lock,
    LockOwner, Name, Rank, RequestId, ServerId, SetAttr, Space, StreamIo, Time,
};

bitflags! {
    /// Flags of `renameat2(2)`, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RenameFlags: u32 {
        const NOREPLACE = 1;
        const EXCHANGE = 2;
        const WHITEOUT = 4;
    }

    /// Requested access to an inode, with the numbers of `access(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Access: u32 {
        const EXEC = 1;
        const WRITE = 2;
        const READ = 4;
    }

    /// Modes of `fallocate(2)` that Espalier supports, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct AllocateMode: u32 {
        const KEEP_SIZE = 0x01;
        const PUNCH_HOLE = 0x02;
        const ZERO_RANGE = 0x10;
    }
}

/// Type of the inode that `create` makes, with the attributes that only this type has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewNode {
    Regular,
    Directory,
    Symlink(#[serde(with = "serde_bytes")] Box<[u8]>),
    Fifo,
    Socket,
    CharDevice(u32),
    BlockDevice(u32),
}

/// Flags of `setxattr(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    Any,
    /// `XATTR_CREATE`: fail if the attribute exists.
    Create,
    /// `XATTR_REPLACE`: fail if the attribute does not exist.
    Replace,
}

/// The searches of `lseek(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeekWhat {
    Data,
    Hole,
}

/// Offset of a write that appends (`O_APPEND`): the end of the file when the server executes it.
pub const END: u64 = u64::MAX;

/// An operation on the namespace or on stuffed data, named after the system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    Lookup {
        dir: Ino,
        name: Name,
    },
    /// The client drops `lookups` lookup counts of an inode. Answered only to clients with
    /// sessions, which resend it otherwise.
    Forget {
        ino: Ino,
        lookups: u64,
    },
    /// `Forget` for several inodes and `Release` for several files; always answered.
    ForgetAll {
        inodes: Vec<(Ino, u64)>,
        released: Vec<Ino>,
    },
    GetAttr {
        ino: Ino,
    },
    SetAttr {
        ino: Ino,
        set: SetAttr,
    },
    ReadLink {
        ino: Ino,
    },
    Create {
        dir: Ino,
        name: Name,
        node: NewNode,
        perm: u32,
        umask: u32,
        /// Regular files: open the file too, and, unless `exclusive`, also if it exists.
        open: Option<OpenHow>,
        exclusive: bool,
        /// A pending create, of an inode at the directory's rank.
        writeback: Option<WritebackCreate>,
    },
    /// Make and open a regular file without a name.
    TmpFile {
        dir: Ino,
        perm: u32,
        umask: u32,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
    },
    Unlink {
        dir: Ino,
        name: Name,
        /// As [`WritebackCreate::time`].
        time: Option<Time>,
    },
    RmDir {
        dir: Ino,
        name: Name,
        /// As [`WritebackCreate::time`].
        time: Option<Time>,
    },
    Rename {
        from_dir: Ino,
        from: Name,
        to_dir: Ino,
        to: Name,
        flags: RenameFlags,
        /// As [`WritebackCreate::time`]; only in one directory.
        time: Option<Time>,
    },
    Open {
        ino: Ino,
        how: OpenHow,
    },
    /// The last descriptor of an open file or directory was closed.
    Release {
        ino: Ino,
    },
    Read {
        ino: Ino,
        offset: u64,
        size: u32,
        /// Do not count as an access (`O_NOATIME`).
        noatime: bool,
    },
    Write {
        ino: Ino,
        /// Offset in bytes, or [`END`]. The same holds for the other requests that write.
        offset: u64,
        data: Bytes,
        /// The caller lacks `CAP_FSETID`. If the file has set-id bits, the reply is
        /// [`Reply::PrivilegesRemoved`] and the client repeats the request.
        kill_suid_gid: bool,
        /// As [`WritebackCreate::time`].
        time: Option<Time>,
    },
    Allocate {
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    },
    /// Remove set-id bits and file capabilities before a caller without `CAP_FSETID` changes a file
    /// that the client has open for writing.
    RemovePrivileges {
        ino: Ino,
    },
    Seek {
        ino: Ino,
        offset: u64,
        what: SeekWhat,
    },
    /// The reply follows when all earlier changes are durable.
    Fsync {
        ino: Ino,
    },
    ReadDir {
        dir: Ino,
        /// Cursor of the last entry that the client has ([`Dirent::cursor`]); 0: from the start.
        after: u64,
        /// Most entries in the reply.
        limit: u32,
        /// Return attributes too (readdirplus); counts as a lookup of each entry.
        plus: bool,
    },
    Access {
        ino: Ino,
        want: Access,
    },
    SetXattr {
        ino: Ino,
        #[serde(with = "serde_bytes")]
        name: Box<[u8]>,
        #[serde(with = "serde_bytes")]
        value: Box<[u8]>,
        mode: XattrMode,
        kill_sgid: bool,
    },
    GetXattr {
        ino: Ino,
        #[serde(with = "serde_bytes")]
        name: Box<[u8]>,
    },
    ListXattr {
        ino: Ino,
    },
    RemoveXattr {
        ino: Ino,
        #[serde(with = "serde_bytes")]
        name: Box<[u8]>,
    },
    /// Capacity, limited by the quotas that apply to the inode.
    StatFs {
        ino: Ino,
    },
    /// Reserve space: the client is about to write `length` bytes at `offset` to a file's stream.
    /// Not sent for writes that the kernel passes through, nor for writes that the server executes,
    /// which checks [`StreamIo::extends`] itself.
    Extend {
        ino: Ino,
        offset: u64,
        length: u64,
        /// Source of a copy: file and offset, if the bytes are copied.
        from: Option<(Ino, u64)>,
        /// The change removes data ([`AllocateMode::discards`]).
        discards: bool,
        /// The client has already acknowledged the write to its caller.
        acknowledged: bool,
    },
    /// Request a [`Delegation`]: the client is about to access the file's data itself. Like
    /// `Extend`, it ends other clients' cached data before a write. `access`: granted until the
    /// client's session ends; [`Access::EXEC`] grants what [`Reply::Made`] permits.
    Delegate {
        ino: Ino,
        access: Access,
    },
    /// Remove a directory with its whole subtree, if the caller could remove each entry. The server
    /// frees the subtree in the background.
    RemoveTree {
        dir: Ino,
    },
    /// Execute one step of copying a directory tree.
    CopyTree(CopyTree),
    /// Reclaim state after a server restart. A client sends several of these; `last` marks the
    /// final one. Until then the server answers all other requests with `EAGAIN`, and keeps the
    /// inodes without a name that the client may have open.
    Reclaim {
        held: Vec<Held>,
        last: bool,
        /// With `last`: numbers of the earlier requests that the client resends, ascending.
        again: Vec<RequestId>,
    },
    /// Reclaim locks: after the `Reclaim` of their files, and before the last one.
    ReclaimLocks {
        locks: Vec<(Ino, Lock)>,
    },
    /// Lock a range of an open file. `EAGAIN`: a conflicting lock is held. `wait`: wait for it; the
    /// number is unique among the client's waiting requests.
    Lock {
        ino: Ino,
        lock: Lock,
        wait: Option<u64>,
    },
    /// Unlock a range of an owner; `last` is inclusive.
    Unlock {
        ino: Ino,
        owner: LockOwner,
        first: u64,
        last: u64,
    },
    /// Return a conflicting lock, if any.
    TestLock {
        ino: Ino,
        lock: Lock,
    },
    /// Cancel the waiting `Lock` with this number. It fails with `EINTR`, unless the lock was
    /// granted before.
    StopWaiting {
        ino: Ino,
        lock: Lock,
        wait: u64,
    },
    /// Check the directory to which a client is restricted. Internal to the server.
    Enter {
        client: ClientId,
        path: Box<[Name]>,
    },
    /// The fragment map of a directory: [`Reply::Fragments`].
    Fragments {
        dir: Ino,
    },
    /// Move names of a directory to another of its records. Internal to the server; never answered.
    Transfer {
        dir: Ino,
    },
    /// Move files of other ranks to their names in a directory record. Internal to a server, never
    /// answered.
    Pull {
        dir: Ino,
    },
    /// Determine if a provisional datafile of a data server is this rank's. Internal, as `Pull`.
    ClaimDatafile {
        ino: Ino,
        server: ServerId,
    },
    /// Continue freeing removed trees. Internal to the server; never answered.
    Sweep,
    /// Determine the size of a file that was being written when the server ended. Internal, as
    /// `Sweep`.
    Recount {
        ino: Ino,
    },
    /// Authorise a stream operation and load the file's inode. Internal, as `Sweep`.
    Place {
        io: StreamIo,
    },
    /// Look up, and with `open` also open, an inode that the reply of another rank named
    /// ([`Reply::Remote`]). The reply is that of a lookup or a creation.
    Find {
        ino: Ino,
        /// `None`: the client has only the number, from a file handle. `ESTALE`: the inode has no
        /// name.
        kind: Option<FileType>,
        open: Option<OpenHow>,
    },
    /// Look up the parent of a directory. The reply is that of a lookup.
    Parent {
        dir: Ino,
    },
    /// Set the layout of a file that the client makes ([`Reply::Made`]): its datafiles exist as the
    /// server requested.
    SetLayout {
        ino: Ino,
        layout: Arc<Layout>,
    },
    /// Remove the inode of a file whose last name the client removed ([`Reply::Orphaned`]).
    /// `removed`: its datafiles are gone; otherwise the server removes them.
    Purge {
        ino: Ino,
        removed: bool,
    },
    /// Allocate inode numbers for files that the client will make at this rank
    /// ([`WritebackCreate`]). The reply includes the server's time.
    TakeNumbers {
        rank: Rank,
        count: u32,
    },
    /// Make everything durable that this rank has acknowledged: its journal, the streams in its
    /// store, and all datafiles of the data servers that it knows.
    SyncFs {
        rank: Rank,
    },
    /// Update access times of files that the client opened for reading under a lease, without a
    /// message. The server skips files that have changed since, or that the client has forgotten.
    Accessed {
        files: Vec<(Ino, Time)>,
    },
    /// Extend the leases on inodes whose cached state the client still uses: [`Reply::Renewed`].
    Renew {
        inodes: Vec<Ino>,
        /// A directory among `inodes` on which the client requests an exclusive lease; the others
        /// are files in it. The reply contains the inodes that no other client knows, and whether
        /// the lease on the directory is exclusive, as in a lookup.
        exclusive_dir: Option<Ino>,
    },
    /// Request a lease on a file's data before a kernel caches it. The server replies once all
    /// other clients announce their writes to the file.
    LeaseData {
        ino: Ino,
    },
    /// The client has changed data that other clients may cache. [`Reply::Announced`] follows when
    /// none caches it.
    Announce(Ino),
}

/// A pending create: the client has acknowledged it to its caller. The file is stuffed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritebackCreate {
    /// An unused number from the client's inode-number pool ([`Request::TakeNumbers`]).
    pub ino: Ino,
    /// Creation time. The server uses its own clock instead if they differ too much.
    pub time: Time,
}

/// Flags of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHow {
    pub access: Access,
    pub kill_suid_gid: bool,
    pub truncate: bool,
    /// Writes through this open file are durable before they are acknowledged.
    pub sync: bool,
    /// Writes through this open file append.
    pub append: bool,
    pub reads: Reads,
}

/// The side that answers reads of a small file that is opened for reading only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reads {
    /// The server answers each read.
    #[default]
    Server,
    /// The client, if the reply contains the whole file ([`Reply::OpenedWhole`]). The open counts
    /// as the access.
    Whole,
    /// The client, which has the contents cached under a lease. The open counts as the access.
    Client,
}

/// The inode of a name, with the leases on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub attr: Attr,
    /// The name may be cached for all callers: everyone who can reach the directory can search it.
    pub cacheable: bool,
    /// The reply's lease covers the name.
    pub name_leased: bool,
    /// The reply's lease covers the inode.
    pub attr_leased: bool,
    /// No other client knew the inode.
    pub sole_holder: bool,
    /// For [`Held`].
    pub location: Location,
    /// For [`Held::lookup_token`].
    pub reclaim_token: u64,
}

/// An entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirent {
    pub name: Name,
    pub ino: Ino,
    pub kind: FileType,
    /// Position in the listing, in 3..2^63 - 1. Stays valid while the directory changes.
    pub cursor: u64,
    /// Present if the listing requested attributes and the server has the inode.
    pub entry: Option<Entry>,
    /// Present if the listing requested attributes and another rank has the inode.
    pub remote: Option<RemoteName>,
}

/// A name in a listing whose inode is at another rank; as in [`Reply::Remote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteName {
    /// The rank that has the inode.
    pub at: Rank,
    pub cacheable: bool,
    pub name_leased: bool,
}

/// The reply to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Entry(Entry),
    /// The name does not exist; the client may cache that as it caches an existing name.
    Absent {
        cacheable: bool,
    },
    Attr(Attr),
    Bytes(Bytes),
    /// `Read`, `Write`, `Allocate`, `Seek`: the file is not stuffed; repeat the operation on its
    /// stream. The server executes appends to streams itself.
    Streamed,
    Opened(Opened),
    /// `Open` with [`Reads::Whole`]: the bytes are the file's contents while the lease lasts.
    OpenedWhole(Opened, Bytes),
    Created(Entry, Opened),
    Offset(u64),
    /// Number of bytes written to a stream.
    Written(u32),
    Listing {
        entries: Vec<Dirent>,
        /// The directory's parent, for `..`.
        parent: Ino,
        /// There are no more entries in this fragment of the directory.
        end: bool,
        /// The last cursor that belongs to this fragment. With `end`, the listing continues after
        /// it with the next fragment, unless it is the last cursor of all.
        until: u64,
    },
    StatFs(Capacity),
    /// `Extend`: the write may proceed.
    Granted,
    /// `RemovePrivileges`: the file has none. `Write`: its set-id bits are removed, nothing is
    /// written yet. `changed`: the file's mode has changed.
    PrivilegesRemoved {
        changed: bool,
    },
    /// `Delegate`, and `Write` to a file that is not stuffed. `None`: the client accesses the data
    /// through this server.
    Delegated(Option<Box<Delegation>>),
    /// `Write`: done; the file has outgrown its strip (carns III.B). Later writes use this
    /// delegation.
    Outgrown(Box<Delegation>),
    /// `RemoveTree`: parent and name of the removed directory.
    Removed {
        dir: Ino,
        name: Name,
    },
    Copied(Box<Copied>),
    /// The name exists, and its inode is at another rank; the client sends [`Request::Find`] there.
    /// The reply's lease covers only the name, if `name_leased`.
    Remote {
        ino: Ino,
        kind: FileType,
        /// The rank that has the inode.
        at: Rank,
        /// As in [`Entry`].
        cacheable: bool,
        name_leased: bool,
    },
    /// `Lock`: the request waits; [`FromServer::Locked`](crate::FromServer) follows.
    Waits,
    /// `TestLock`: the conflicting lock, if any.
    InTheWay(Option<Lock>),
    /// Stream operation: the file is stuffed again, since a loss of power undid its unstuffing. The
    /// client repeats the operation as a request.
    Stuffed,
    /// `Create`: the client makes the file itself. The new inode has no name yet.
    Made(Box<Made>),
    /// The inner reply, for a file whose size and times the client fetches from data servers; as
    /// `Created`, for a file whose datafile the client makes.
    Unmeasured(Box<Reply>, Box<Delegation>),
    /// `Unlink`: the name was the last one and no one else uses the file. The client removes its
    /// datafiles, if any, then the inode ([`Request::Purge`]).
    Orphaned(Ino, Option<Box<Delegation>>),
    /// `TakeNumbers`: consecutive numbers that belong to the client until its session ends.
    Numbers {
        first: Ino,
        count: u32,
        time: Time,
        /// Largest size in bytes of a stuffed file.
        strip: u32,
        /// Opening a file for reading updates its access time, as `relatime` does.
        accesses: bool,
    },
    /// `Renew`: the inodes on which the client has a lease.
    Renewed(Vec<Ino>),
    /// The fragment map of the directory; also the reply to a request for a name that another
    /// fragment has. The client repeats such a request there.
    Fragments(Box<Fragments>),
    /// The reply to a request for a name that another fragment has; this server does not know
    /// which.
    Misrouted {
        dir: Ino,
    },
    /// The reply to a request about an inode that is not at this rank: it is at the rank `at`, or
    /// that is the rank of its number, which knows. The client repeats the request there.
    Relocated {
        ino: Ino,
        at: Rank,
    },
    /// The reply to a request for a name that another fragment has: this server has passed the
    /// request on, and the reply comes from the rank of `to` ([`RequestId::forwarded_by`]).
    Forwarded {
        /// The fragment, or the directory at its home server.
        to: Ino,
        /// The directory's map, if this server has it.
        fragments: Option<Box<Fragments>>,
    },
    /// `Announce`: no other client caches the old data. True: announce the next write, too.
    Announced(bool),
}

impl Reply {
    /// Wraps the reply in `Unmeasured` if a delegation is given.
    #[must_use]
    pub fn unless_unmeasured(self, unmeasured: Option<Box<Delegation>>) -> Self {
        match unmeasured {
            Some(delegation) => Self::Unmeasured(Box::new(self), delegation),
            None => self,
        }
    }

    /// The capability in the reply, to be sealed.
    pub fn capability(&mut self) -> Option<&mut Capability> {
        let given = match self {
            Self::Delegated(given) | Self::Orphaned(_, given) => given.as_deref_mut(),
            Self::Made(made) => made.delegation.as_mut(),
            Self::Unmeasured(_, given) | Self::Outgrown(given) => Some(&mut **given),
            _ => None,
        };
        given.map(|given| &mut given.capability)
    }
}

/// A new inode whose file the client completes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    pub ino: Ino,
    /// The file, open for reading and writing.
    pub opened: Opened,
    /// The datafiles to make and the layout to set; `None`: only the name is missing.
    pub delegation: Option<Delegation>,
}

/// One step of copying a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTree {
    /// Progress: the directories that are being copied, outermost first.
    pub levels: Vec<CopyLevel>,
    /// Preserve owners, permissions, times, links and extended attributes as far as the caller may
    /// set them.
    pub preserve: bool,
    pub umask: u32,
}

impl CopyTree {
    /// Deepest nesting, so that a path below the first directory is within the kernel's limit.
    pub const MAX_LEVELS: usize = 15;
}

/// A directory that is being copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyLevel {
    pub from: Ino,
    pub to: Ino,
    /// Cursor of the last copied entry.
    pub after: u64,
}

/// Result of a [`CopyTree`] step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// The position at which the next step continues; empty at the end.
    pub levels: Vec<CopyLevel>,
    /// Entries processed and bytes copied.
    pub entries: u64,
    pub bytes: u64,
    /// Paths below the first directory that the caller copies itself before the next step.
    pub left: Vec<Vec<u8>>,
    /// New names that clients may have cached as absent.
    pub made: Vec<(Ino, Name)>,
    /// Directories with changed attributes that clients may have cached.
    pub changed: Vec<Ino>,
}

/// The result of `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Inodes in use.
    pub files: u64,
    /// Space in the store; the driver fills it in.
    pub space: Space,
    /// The quota on bytes with the least room.
    pub byte_limit: Option<Limit>,
    /// The quota on files and directories with the least room.
    pub file_limit: Option<Limit>,
}

/// A quota and the usage that it limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub max: u64,
    pub used: u64,
}

impl Limit {
    pub fn free(self) -> u64 {
        self.max.saturating_sub(self.used)
    }
}

/// Properties of a file that the client has opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The data is in a stream, not with the metadata.
    pub streamed: bool,
    /// The open counted as an access, so a cached access time is stale.
    pub accessed: bool,
    /// Writes go through the server: a quota limits the size, or writes remove set-id bits.
    pub limited: bool,
    /// Other clients have the file open and one may write to it: reads bypass the kernel's cache,
    /// and the first writes are announced.
    pub shared: bool,
    /// Payloads are announced regardless of their length
    /// ([`FromClient::announced`](crate::FromClient::announced)).
    pub announced: bool,
    /// For [`Held::opened`].
    pub reclaim_token: u64,
}
