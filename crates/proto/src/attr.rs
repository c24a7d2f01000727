use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use crate::{Ino, StreamStat, Time};

/// The bits of `st_mode` that Espalier itself decides by.
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
    /// The flags of a file or directory that `chattr(1)` sets, with Linux's numbers (`FS_*_FL`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct InodeFlags: u8 {
        /// Nothing about it changes; in a directory no name is made or removed.
        const IMMUTABLE = 0x10;
        /// Bytes are added at its end only; in a directory names are made and never removed.
        const APPEND = 0x20;
        /// `dump(8)` leaves it out.
        const NODUMP = 0x40;
        /// Its access time stays.
        const NOATIME = 0x80;

        /// With one of these it keeps its names and its attributes.
        const PROTECTED = Self::IMMUTABLE.bits() | Self::APPEND.bits();
    }
}

impl InodeFlags {
    /// Those of files whose bytes an opening cannot change: `discards` if it would take some away.
    pub fn of_fixed_bytes(discards: bool) -> Self {
        if discards { Self::PROTECTED } else { Self::IMMUTABLE }
    }
}

/// The kind of thing an inode is.
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

    /// The type of a whole `st_mode`; `None` if its type bits name none.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::BITS.iter().find(|(_, bits)| mode & mode::TYPE == *bits).map(|(kind, _)| *kind)
    }

    /// `d_type` of a directory entry.
    pub fn dirent_type(self) -> u32 {
        self.bits() >> 12
    }
}

/// What `stat` tells of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileType,
    /// Permission bits with set-id and sticky; at most 0o7777.
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device node, as the kernel encodes `dev_t` in 32 bits.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// When the inode was made.
    pub btime: Time,
    /// Its bytes lie in a stream, which may change without the metadata server's doing.
    pub streamed: bool,
    /// It has neither extended attributes nor access control lists.
    pub bare: bool,
    pub flags: InodeFlags,
}

impl Attr {
    /// Completes the attributes of the inode's record with those of its stream.
    ///
    /// The record holds the mtime that was set last, and each stream of the file has got it. So a stream with another
    /// mtime was written to since, at that time, which is the file's mtime and, if later than the record's, its ctime.
    pub fn measure(&mut self, stream: &StreamStat) {
        (self.size, self.blocks) = (stream.size, stream.blocks);
        let is_write = |time: &Time| ![self.mtime, Time::default()].contains(time);
        if let Some(written) = [stream.mtime, stream.other_mtime].into_iter().find(is_write) {
            self.mtime = written;
            self.ctime = self.ctime.max(written);
        }
    }

    /// True for a file that has bytes and no blocks.
    pub fn is_hole(&self) -> bool {
        self.kind == FileType::Regular && self.size > 0 && self.blocks == 0
    }
}

/// A new value for one of the two times that `utimensat` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    Now,
    To(Time),
}

/// What `chmod`, `chown`, `truncate` and `utimensat` ask to be changed.
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
    /// The change removes set-id bits, as a truncation or a write by a caller without `CAP_FSETID` does.
    pub kill_suid_gid: bool,
    /// The bytes are changed through an open file, so write permission was checked when it was opened.
    pub through_handle: bool,
}
