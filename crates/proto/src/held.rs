//! Inodes as clients know them: recalls, and what clients reclaim after a restart of their server.

use serde::{Deserialize, Serialize};

use crate::{Ino, Name};

/// Asks a client to forget an inode and to confirm it. The client ignores it if it uses the inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    pub ino: Ino,
    /// The name under which clients know the inode; `None` if there may be several.
    pub dir: Option<Ino>,
    pub name: Option<Name>,
}

/// Location of an inode's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// In the dentry of its only name: the directory, and the hash of the name.
    Dentry { dir: Ino, hash: u64 },
    /// In the inode table: the root, and inodes that have or had several names.
    Table,
    /// Among the orphans: in use, without a name.
    Orphan,
}

/// State that a client reclaims for one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub ino: Ino,
    /// Location at the last reply. The inode may have moved since.
    pub location: Location,
    /// Lookup count: how often replies named the inode, minus what the client forgot.
    pub lookups: u64,
    pub opens: u32,
    /// The last [`Entry::reclaim_token`] and [`Opened::reclaim_token`] that the client received. A
    /// restarted server accepts a reclaim only with these tokens.
    pub lookup_token: u64,
    pub opened: u64,
    /// The client may have pending operations in this directory:
    /// [`Touched::exclusive`](crate::Touched::exclusive).
    pub exclusive: bool,
}
