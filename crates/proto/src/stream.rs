//! Byte streams: the data of files that are not stuffed.

use serde::{Deserialize, Serialize};

use crate::Time;

/// Attributes of a byte stream. A stream has no ctime: store maintenance (renames, links) may
/// change the ctime of the file that holds it at any time
/// ([`Attr::measure`](crate::Attr::measure)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStat {
    pub exists: bool,
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Striped files: the latest mtime of the datafiles. Zero if nothing was ever written.
    pub mtime: Time,
    /// Striped files: the latest datafile mtime that differs from `mtime`, or zero.
    pub other_mtime: Time,
}

/// Space in a store, as `statvfs(3)` reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Total bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Free bytes not reserved for the superuser.
    pub available: u64,
    /// Largest number of files; 0 if the engine has no limit.
    pub files: u64,
    /// Number of files that can still be made.
    pub files_free: u64,
}
