//! What a client asks of a metadata server, and what it is told.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bitflags::bitflags;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Attr, Capability, ClientId, Delegation, FileType, Ino, Layout, Lock, LockOwner, Name, Rank, RequestId,
    SetAttr, Space, StreamIo, Time,
};

bitflags! {
    /// `renameat2`'s flags, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RenameFlags: u32 {
        const NOREPLACE = 1;
        const EXCHANGE = 2;
        const WHITEOUT = 4;
    }

    /// What a caller wants to do to an inode, with the numbers of `access(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Access: u32 {
        const EXEC = 1;
        const WRITE = 2;
        const READ = 4;
    }

    /// `fallocate`'s modes that Espalier knows, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct AllocateMode: u32 {
        const KEEP_SIZE = 0x01;
        const PUNCH_HOLE = 0x02;
        const ZERO_RANGE = 0x10;
    }
}

/// What kind of inode `create` makes, and what only that kind has.
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

/// `setxattr`'s flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    Any,
    /// `XATTR_CREATE`: fail if it exists.
    Create,
    /// `XATTR_REPLACE`: fail if it does not.
    Replace,
}

/// `lseek`'s two searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeekWhat {
    Data,
    Hole,
}

/// In place of the offset of a write: where the file ends at that time (`O_APPEND`).
pub const END: u64 = u64::MAX;

/// One operation on the namespace or on stuffed bytes. The names are those of the system calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    Lookup {
        dir: Ino,
        name: Name,
    },
    /// The client no longer knows an inode that replies had named to it `lookups` times. Answered only to clients that have
    /// sessions: they must know that it need not be sent again.
    Forget {
        ino: Ino,
        lookups: u64,
    },
    /// As `Forget` of several inodes and `Release` of others, and answered.
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
        /// For regular files: open it too; and open what is there already, unless `exclusive`.
        open: Option<OpenHow>,
        exclusive: bool,
        /// For regular files, and for directories where there is one rank.
        early: Option<Early>,
    },
    /// A regular file without a name, opened.
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
        /// As [`Early::time`].
        time: Option<Time>,
    },
    RmDir {
        dir: Ino,
        name: Name,
        /// As [`Early::time`].
        time: Option<Time>,
    },
    Rename {
        from_dir: Ino,
        from: Name,
        to_dir: Ino,
        to: Name,
        flags: RenameFlags,
    },
    Open {
        ino: Ino,
        how: OpenHow,
    },
    /// An open file or directory was closed for the last time.
    Release {
        ino: Ino,
    },
    Read {
        ino: Ino,
        offset: u64,
        size: u32,
        /// It is no access (`O_NOATIME`).
        noatime: bool,
    },
    Write {
        ino: Ino,
        /// Or [`END`], as in the other requests that lead to a write.
        offset: u64,
        data: Bytes,
        /// The caller lacks `CAP_FSETID`. If the file has set-id bits the reply is
        /// [`Reply::PrivilegesRemoved`], and the client asks again.
        kill_suid_gid: bool,
        /// As [`Early::time`].
        time: Option<Time>,
    },
    Allocate {
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    },
    /// A caller without `CAP_FSETID` is about to change bytes of a file that the client has open for
    /// writing: its set-id bits and file capabilities are removed.
    RemovePrivileges {
        ino: Ino,
    },
    Seek {
        ino: Ino,
        offset: u64,
        what: SeekWhat,
    },
    /// Answered when everything before it is durable.
    Fsync {
        ino: Ino,
    },
    ReadDir {
        dir: Ino,
        /// The cursor of the last entry that the client has; see [`Dirent::cursor`]. 0: from the start.
        after: u64,
        /// At most so many entries.
        limit: u32,
        /// With attributes (readdirplus), which counts as a lookup of each.
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
    /// Of where an inode is: quotas there bound what there is.
    StatFs {
        ino: Ino,
    },
    /// The client is about to write to a file's stream: may it have so many bytes from there on? Not asked for what the
    /// kernel writes by itself, nor for what the server writes, which finds that out itself ([`StreamIo::extends`]).
    Extend {
        ino: Ino,
        offset: u64,
        length: u64,
        /// The bytes are a copy of what another file has from an offset on, if it has so many.
        from: Option<(Ino, u64)>,
        /// It takes bytes away that are there ([`AllocateMode::discards`]).
        discards: bool,
        /// Its caller has been told already that it is done.
        told: bool,
    },
    /// The client is about to read or write the bytes of a file itself; as with `Extend` nobody else is to have cached what it
    /// writes. `access`: what it lets the client do, until its session ends; with [`Access::EXEC`], what [`Reply::Made`] lets it do.
    Delegate {
        ino: Ino,
        access: Access,
    },
    /// Removes a directory with all that is below it, if the caller might do so one by one; what is below goes on to be
    /// freed in the background.
    RemoveTree {
        dir: Ino,
    },
    /// Copies what is in a directory into another, a step.
    CopyTree(CopyTree),
    /// What the client has, for a server that has begun again; in pieces, of which the `last` says so. Until then the server
    /// takes nothing else from the client (`EAGAIN`), and keeps for it what has no name.
    Reclaim {
        held: Vec<Held>,
        last: bool,
        /// With the last: the requests of before that follow again, in ascending order.
        again: Vec<RequestId>,
    },
    /// As `Reclaim`, of locks: after the files that they are on, and before the last of all.
    ReclaimLocks {
        locks: Vec<(Ino, Lock)>,
    },
    /// Locks a part of a file that the client has open. `EAGAIN`: another lock is in the way; with `wait` the request waits for
    /// that, under a number that no other waiting request of the client has.
    Lock {
        ino: Ino,
        lock: Lock,
        wait: Option<u64>,
    },
    /// Unlocks what an owner has locked of these bytes; `last` is inclusive.
    Unlock {
        ino: Ino,
        owner: LockOwner,
        first: u64,
        last: u64,
    },
    /// Which lock would be in the way of this one?
    TestLock {
        ino: Ino,
        lock: Lock,
    },
    /// A `Lock` under this number need not wait any longer: `EINTR`, unless the client has the lock.
    StopWaiting {
        ino: Ino,
        lock: Lock,
        wait: u64,
    },
    /// A client is restricted to this directory. The machine asks it of itself.
    Enter {
        client: ClientId,
        path: Box<[Name]>,
    },
    /// Goes on freeing what trees that were removed held. The machine asks it of itself; never answered.
    Sweep,
    /// Asks how long a file is that was being written when the machine ended. As `Sweep`, the machine's own.
    Recount {
        ino: Ino,
    },
    /// Before something is done with a stream: that its inode is in memory then, and whether that may be done. `length`: of what is to be
    /// written, in bytes. As `Sweep`, the machine's own.
    Place {
        io: StreamIo,
        length: u64,
    },
    /// An inode that another rank's answer has named ([`Reply::Elsewhere`]); with `open`, it is opened, too. Answered as a
    /// lookup, or a creation.
    Find {
        ino: Ino,
        /// `None`: the client has only the number, from a file handle. `ESTALE`: no name leads to the inode.
        kind: Option<FileType>,
        open: Option<OpenHow>,
    },
    /// The directory that a directory is in. Answered as a lookup.
    Parent {
        dir: Ino,
    },
    /// Of a file that the client makes itself ([`Reply::Made`]): its datafiles are there, as the server has said that they are to be.
    SetLayout {
        ino: Ino,
        layout: Arc<Layout>,
    },
    /// A file of which the client has taken the last name ([`Reply::Orphaned`]) is to cease to be. `removed`: its datafiles are gone; if
    /// not, the server sees to it.
    Purge {
        ino: Ino,
        removed: bool,
    },
    /// Numbers for so many files that the client is going to make at that rank ([`Early`]), and what time it is there.
    TakeNumbers {
        rank: Rank,
        count: u32,
    },
    /// Makes everything durable that this rank has acknowledged: its journal, the streams in its store, and all datafiles of the data servers
    /// that it knows.
    SyncFs {
        rank: Rank,
    },
    /// The client has opened these files to read them, at these times, and told nobody then: what is known of a file by a lease is read
    /// without a message. One that has been changed since, or that the client does not know any more, has not been accessed.
    Accessed {
        files: Vec<(Ino, Time)>,
    },
    /// The leases on these inodes, of which the client still uses what they hold, are to last for another term: [`Reply::Renewed`].
    Renew {
        inodes: Vec<Ino>,
        /// The client would be alone in this directory, which is among them, and with the others, which are files in it: it is told of those
        /// with which it is, and whether its lease on the directory is exclusive, as by a lookup.
        alone_in: Option<Ino>,
    },
    /// A kernel is about to cache bytes of a file. The reply has a lease on them once all other clients announce what they write to it.
    LeaseData {
        ino: Ino,
    },
    /// The client has changed bytes of a file that other clients may cache: [`Reply::Announced`] comes when they no longer do.
    Announce(Ino),
}

/// What a client that has answered its caller already has told it of a new file, which is stuffed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Early {
    /// One of those that the client has taken ([`Request::TakeNumbers`]), and has not used.
    pub ino: Ino,
    /// When it was made. It is taken for that unless the server's clock differs too much.
    pub time: Time,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHow {
    pub access: Access,
    pub kill_suid_gid: bool,
    pub truncate: bool,
    /// What is written through it is to be durable before that is answered.
    pub sync: bool,
    /// What is written through it goes to the end of the file.
    pub append: bool,
    pub reads: Reads,
}

/// Who answers reads of a small file that is opened to be read only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reads {
    /// The server: each is a request.
    #[default]
    Server,
    /// The client, if the answer brings all that the file holds ([`Reply::OpenedWhole`]). That it opens the file is the access then.
    Whole,
    /// The client, which has that already, under a lease on the file. The same holds for the access.
    Client,
}

/// A name's inode, and how long what is told of it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub attr: Attr,
    /// The name may be cached for every caller: whoever may reach the directory may search it.
    pub cacheable: bool,
    /// The reply's lease is on the name, too.
    pub name_leased: bool,
    /// The reply's lease is on the inode, too.
    pub attr_leased: bool,
    /// Nobody but the client knew the inode.
    pub alone: bool,
    /// For [`Held`].
    pub home: Home,
    /// For [`Held::told`].
    pub proof: u64,
}

/// A directory entry in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirent {
    pub name: Name,
    pub ino: Ino,
    pub kind: FileType,
    /// Its place in the listing: stays valid while the directory changes. In 3..2^63 - 1.
    pub cursor: u64,
    /// Present if the listing was asked for with attributes.
    pub entry: Option<Entry>,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Entry(Entry),
    /// No such name, and that may be cached as a found name may be.
    Absent {
        cacheable: bool,
    },
    Attr(Attr),
    Bytes(Bytes),
    /// `Read`, `Write`, `Allocate`, `Seek`: the file is not stuffed; turn to its stream. A server appends to streams itself.
    Streamed,
    Opened(Opened),
    /// `Open` with [`Reads::Whole`]: and these bytes are what the file holds, as long as there is a lease on it.
    OpenedWhole(Opened, Bytes),
    Created(Entry, Opened),
    Offset(u64),
    /// Bytes written to a stream.
    Written(u32),
    Listing {
        entries: Vec<Dirent>,
        /// The directory's parent, for `..`.
        parent: Ino,
        end: bool,
    },
    StatFs(Capacity),
    /// `Extend`: go on.
    Granted,
    /// `RemovePrivileges`: the file has none. `Write`: nothing is written yet, but its set-id bits are
    /// removed. `changed`: its mode is another one than before.
    PrivilegesRemoved {
        changed: bool,
    },
    /// `Delegate`, and `Write` to what is not stuffed; `None`: the file's bytes are to be asked for here.
    Delegated(Option<Box<Delegation>>),
    /// `Write`: it is done, and the file has outgrown its strip by it (carns III.B). What follows is to be written so.
    Outgrown(Box<Delegation>),
    /// `RemoveTree`: the directory had this name in that directory.
    Removed {
        dir: Ino,
        name: Name,
    },
    Copied(Box<Copied>),
    /// The name is there, and its inode is at another rank: to be asked for it ([`Request::Find`]). What the reply's lease
    /// is on is the name, if `name_leased`.
    Elsewhere {
        ino: Ino,
        kind: FileType,
        /// As in [`Entry`].
        cacheable: bool,
        name_leased: bool,
    },
    /// `Lock`: it waits, and [`FromServer::Locked`](crate::FromServer) comes when that is over.
    Waits,
    /// `TestLock`.
    InTheWay(Option<Lock>),
    /// Of what is to be done with a stream: the file is stuffed, for a loss of power has taken that it was moved out; ask for it
    /// with a request.
    Stuffed,
    /// `Create`: the client is to make the file itself. This is its inode, which has no name yet.
    Made(Box<Made>),
    /// As that reply, of a file whose size and times the client is to ask data servers for; or, as `Created`, whose datafile it is to make.
    Unmeasured(Box<Reply>, Box<Delegation>),
    /// `Unlink`: it was the last name, and nobody else uses the file. The client is to remove its datafiles, if it has any, and then the
    /// inode ([`Request::Purge`]).
    Orphaned(Ino, Option<Box<Delegation>>),
    /// `TakeNumbers`: so many from the first on are the client's, until its session ends.
    Numbers {
        first: Ino,
        count: u32,
        time: Time,
        /// Files of up to so many bytes lie with their metadata.
        strip: u32,
        /// Files' access times change when they are opened to be read, as `relatime` has it.
        accesses: bool,
    },
    /// `Renew`: there is a lease on each of these.
    Renewed(Vec<Ino>),
    /// `Announce`: no other client caches what was there before. Whether the client's next write is to be announced, too.
    Announced(bool),
}

impl Reply {
    /// As it is, or with what its client needs to complete it.
    #[must_use]
    pub fn unless_unmeasured(self, unmeasured: Option<Box<Delegation>>) -> Self {
        match unmeasured {
            Some(delegation) => Self::Unmeasured(Box::new(self), delegation),
            None => self,
        }
    }

    /// What is to be sealed of it.
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

/// A file that its client goes on to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    pub ino: Ino,
    /// It is open, for reading and writing.
    pub opened: Opened,
    /// Its datafiles are to be made, and the layout to be set; `None`: it needs nothing but its name.
    pub delegation: Option<Delegation>,
}

/// A step of copying a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTree {
    /// How far it has come, from the top down.
    pub levels: Vec<CopyLevel>,
    /// Owners, permissions, times, links and extended attributes are kept, as far as the caller may set them.
    pub preserve: bool,
    pub umask: u32,
}

impl CopyTree {
    /// So many directories in each other: then a path below the first is one that the kernel takes.
    pub const MAX_LEVELS: usize = 15;
}

/// A directory that is being copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyLevel {
    pub from: Ino,
    pub to: Ino,
    /// The cursor of the last entry that has been copied.
    pub after: u64,
}

/// What a [`CopyTree`] has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Where the next step begins; empty: that was all.
    pub levels: Vec<CopyLevel>,
    /// Entries dealt with, and bytes copied.
    pub entries: u64,
    pub bytes: u64,
    /// What the caller is to copy itself before it goes on: paths below the first directory.
    pub left: Vec<Vec<u8>>,
    /// New names that clients may have been told are not there.
    pub made: Vec<(Ino, Name)>,
    /// Directories with other attributes that clients may know.
    pub changed: Vec<Ino>,
}

/// What `statfs` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Inodes in use.
    pub files: u64,
    /// Of the store: who does its I/O knows.
    pub space: Space,
    /// The quota on bytes that leaves the least room.
    pub byte_limit: Option<Limit>,
    /// That on files and directories.
    pub file_limit: Option<Limit>,
}

/// A quota, and what is there of what it limits.
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

/// What a client must know of a file that it has opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Its bytes lie in a stream, not with its metadata.
    pub streamed: bool,
    /// That was an access, so that an access time from before is old.
    pub accessed: bool,
    /// Writes must go through the server: a quota bounds its size, or they remove its set-id bits.
    pub limited: bool,
    /// Others have it open, and somebody may write to it: it is read past a kernel's cache, and writes are announced at first.
    pub shared: bool,
    /// What is read and written is announced, however little it is ([`FromClient::announced`](crate::FromClient::announced)).
    pub announced: bool,
    /// For [`Held::opened`].
    pub proof: u64,
}

/// A client that can is to forget an inode, and to say so; if it uses it, it need not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    pub ino: Ino,
    /// A directory and a name in it, by which clients know it; unless they may know it by several.
    pub dir: Option<Ino>,
    pub name: Option<Name>,
}

/// Where an inode's record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Home {
    /// In its only name's dentry: the directory, and the hash of the name.
    Dentry { dir: Ino, hash: u64 },
    /// In the inode table: the root, and what has or had several names.
    Table,
    /// Without a name, in use.
    Orphan,
}

/// What a client has of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub ino: Ino,
    /// Where it was when the client was told last. It may have moved since.
    pub home: Home,
    /// How often answers have named it to the client that has not forgotten it.
    pub lookups: u64,
    pub opens: u32,
    /// The last [`Entry::proof`] and [`Opened::proof`] that the client has got: a server that was started anew remembers neither, and
    /// believes nobody without them.
    pub told: u64,
    pub opened: u64,
    /// It is a directory in which the client has told its callers of what the server has not: [`Touched::exclusive`](crate::Touched::exclusive).
    pub exclusive: bool,
}
