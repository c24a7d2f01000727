use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use crate::{Ino, StreamStat, Time};

/// The bits of `st_mode` that Espalier interprets.
pub mod mode {
    pub const TYPE: u32 = 0o170_000;
    pub const SET_UID: u32 = 0o4000;
    pub const SET_GID: u32 = 0o2000;
    pub const STICKY: u32 = 0o1000;
    pub const PERMISSIONS: u32 = 0o7777;
    pub const GROUP_EXEC: u32 = 0o010;
    pub const ANY_EXEC: u32 = 0o111;
}

bitflags! {
    /// Flags of a file or directory as set by `chattr(1)`, with Linux's numbers (`FS_*_FL`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct InodeFlags: u8 {
        /// Contents and attributes are fixed; in a directory, so are the names.
        const IMMUTABLE = 0x10;
        /// Data is only appended; in a directory, names are added and not removed.
        const APPEND = 0x20;
        /// `dump(8)` skips the inode.
        const NODUMP = 0x40;
        /// Reads do not update the access time.
        const NOATIME = 0x80;

        /// Each of these flags protects names and attributes of the inode.
        const PROTECTED = Self::IMMUTABLE.bits() | Self::APPEND.bits();
    }
}

impl InodeFlags {
    /// Flags that forbid a change of a file's data. `discards`: the change removes data.
    pub fn of_fixed_bytes(discards: bool) -> Self {
        if discards { Self::PROTECTED } else { Self::IMMUTABLE }
    }
}

/// Type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileType {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileType {
    const BITS: [(Self, u32); 7] = [
        (Self::Regular, 0o100_000),
        (Self::Directory, 0o040_000),
        (Self::Symlink, 0o120_000),
        (Self::Fifo, 0o010_000),
        (Self::Socket, 0o140_000),
        (Self::CharDevice, 0o020_000),
        (Self::BlockDevice, 0o060_000),
    ];

    /// The type bits of `st_mode`.
    pub fn bits(self) -> u32 {
        Self::BITS[self as usize].1
    }

    /// The type that the type bits of an `st_mode` value encode; `None` if they are invalid.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::BITS.iter().find(|(_, bits)| mode & mode::TYPE == *bits).map(|(kind, _)| *kind)
    }

    /// `d_type` of a directory entry.
    pub fn dirent_type(self) -> u32 {
        self.bits() >> 12
    }
}

/// The extended attributes of an inode, as far as others need to know without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrPresence {
    /// It has neither extended attributes nor access control lists.
    None,
    /// It has no access control lists, so that its mode decides who may use it; a client may not
    /// know whether it has other attributes.
    NoAcl,
    Acl,
}

/// The attributes that `stat(2)` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileType,
    /// Permission, set-id and sticky bits; at most 0o7777.
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device node, in the kernel's 32-bit encoding of `dev_t`.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Creation time.
    pub btime: Time,
    /// The data is in a stream, which may change without the metadata server.
    pub streamed: bool,
    pub xattrs: XattrPresence,
    pub flags: InodeFlags,
    /// For a partitioned directory: the version of its fragment map. These attributes are then
    /// those of its first fragment ([`Self::add_fragment`]). 0: not partitioned.
    pub map_version: u32,
    /// The reply's lease on a directory covers its contents too, that is size, link count and
    /// times. Otherwise these are only true when the reply is given.
    pub contents_leased: bool,
}

impl Attr {
    /// The attributes of a new, empty inode of the superuser.
    pub fn new(ino: Ino, kind: FileType, perm: u32, time: Time) -> Self {
        Self {
            ino,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            streamed: false,
            xattrs: XattrPresence::None,
            flags: InodeFlags::empty(),
            map_version: 0,
            contents_leased: true,
        }
    }

    /// Merges the attributes of the inode record with those of its stream.
    ///
    /// The record holds the mtime that was last set explicitly, also on all streams of the file. A
    /// stream with a different mtime was written after that: its mtime is the file's, and also the
    /// file's ctime if later than that of the record.
    pub fn measure(&mut self, stream: &StreamStat) {
        (self.size, self.blocks) = (stream.size, stream.blocks);
        let is_write = |time: &Time| ![self.mtime, Time::default()].contains(time);
        if let Some(written) = [stream.mtime, stream.other_mtime].into_iter().find(is_write) {
            self.mtime = written;
            self.ctime = self.ctime.max(written);
        }
    }

    /// [`Self::map_version`] of a fragment that is not the directory itself.
    pub const FRAGMENT: u32 = u32::MAX;

    /// Adds what another fragment contributes to the attributes of a partitioned directory.
    pub fn add_fragment(&mut self, fragment: &Self) {
        self.size += fragment.size;
        self.nlink += fragment.nlink.saturating_sub(2);
        self.mtime = self.mtime.max(fragment.mtime);
        self.ctime = self.ctime.max(fragment.ctime);
    }

    /// True for a file with size but without allocated blocks.
    pub fn is_hole(&self) -> bool {
        self.kind == FileType::Regular && self.size > 0 && self.blocks == 0
    }
}

/// New value of one of the times that `utimensat(2)` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    Now,
    To(Time),
}

/// The changes that `chmod`, `chown`, `truncate` and `utimensat` request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    pub perm: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<Time>,
    pub flags: Option<InodeFlags>,
    /// Remove set-id bits, as a truncation or write by a caller without `CAP_FSETID` does.
    pub kill_suid_gid: bool,
    /// The request is made through an open file, so write permission was checked at open.
    pub through_handle: bool,
    /// When the client acknowledged the change to its caller (write-back).
    pub time: Option<Time>,
}
