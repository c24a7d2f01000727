//! Byte streams: where the bytes of files lie that are not stuffed.

use serde::{Deserialize, Serialize};

use crate::{AllocateMode, Ino, SeekWhat, Time};

/// Attributes of a byte stream. It has no ctime: maintenance of the store (renames, links) changes the ctime of the file
/// that holds a stream, at any time ([`Attr::measure`](crate::Attr::measure)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStat {
    pub exists: bool,
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Of a striped file: the latest of its datafiles' times. Zero if nothing was ever written.
    pub mtime: Time,
    /// Of a striped file: the latest of its datafiles' times that differs from `mtime`, or zero.
    pub other_mtime: Time,
}

/// What is to be done with the streams of files that are not stuffed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamIo {
    Read {
        ino: Ino,
        offset: u64,
        size: u32,
    },
    /// What is written goes with it. `told`: as of [`Request::Extend`](crate::Request::Extend).
    Write {
        ino: Ino,
        offset: u64,
        told: bool,
    },
    /// Writes to several places, from `offset` to `end`, of which the callers have been told already that they are done. A [list of
    /// pieces](crate::write_list) goes with it.
    WriteList {
        ino: Ino,
        offset: u64,
        end: u64,
    },
    Allocate {
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    },
    Seek {
        ino: Ino,
        offset: u64,
        what: SeekWhat,
    },
    Copy {
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
    },
}

/// Room in a store, as `statvfs(3)` tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes not in use.
    pub free: u64,
    /// Bytes not in use and not reserved for the superuser.
    pub available: u64,
    /// Files that there can be, in use or not; 0 if the engine has no limit.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
}
