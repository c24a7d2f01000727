//! Decoupled namespaces (Cudele): what a client and the server exchange about one, and the state of
//! its directory.
//!
//! A client works on a namespace of its own in place of an empty directory. It then merges the
//! namespace as a sequence of records, which the server applies in order. The directory counts the
//! applied records, so a merge continues after a crash of either side.
//!
//! If interference is blocked, the directory appears as it was when it was decoupled until the last
//! record is applied. If it is allowed, the directory is like any other to others, and records
//! replace their entries.
//!
//! A *namespace sync* is a merge of the records so far. It shows them, and the directory stays
//! decoupled. Later records change, move and remove what earlier ones have made. If interference is
//! blocked, others may not change anything below the directory.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_policy::Interference;

use espalier_proto::{Errno, Ino, InodeFlags, Name, Time};
use serde::{Deserialize, Serialize};

use crate::event::Change;
use crate::record::{Inode, Xattrs};
use crate::state::State;
use crate::step::Step;

/// Attribute of a directory: setting it to a [`Decouple`] decouples the directory, reading it
/// returns its [`Decoupled`], and removing it discards what is merged and not visible, and couples
/// the directory again. It is not listed.
pub const DECOUPLE: &str = "system.espalier.decouple";
/// Setting it on a decoupled directory to a [`MergeBatch`] merges a part of the namespace.
pub const MERGE: &str = "system.espalier.merge";

/// The state of a decoupled directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoupled {
    /// The client's number of the namespace; [`Self::ABORTED`] while what is merged is discarded.
    pub id: u128,
    /// The directory's times when it was decoupled, which it shows until it is coupled again.
    pub mtime: Time,
    pub ctime: Time,
    /// The largest stuffed file of this server, in bytes.
    pub strip_bytes: u32,
    /// The range of inode numbers provisioned for the namespace.
    pub first: Ino,
    pub inodes: u64,
    /// The lowest number of the lower half of the range that no record has used. Records use
    /// numbers in ascending order.
    pub next: Ino,
    /// As `next`, of the upper half.
    pub next_spare: Ino,
    /// Number of records merged.
    pub merged: u64,
    /// [`MergeBatch::digest`] of the last sequence of records.
    pub digest: u64,
    /// A namespace sync has begun: merged entries are visible.
    pub shows: bool,
    /// Whether others may change the directory.
    pub interfere: Interference,
    /// Directories of the namespace that are not the merged ones with their numbers: united with
    /// one of others, or lost with one that others have removed.
    pub redirected: BTreeMap<Ino, Option<Ino>>,
}

impl Decoupled {
    pub const ABORTED: u128 = 0;
    /// Most directories in [`Self::redirected`].
    pub(crate) const MAX_REDIRECTED: usize = 256;

    pub(crate) fn allows_interference(&self) -> bool {
        self.interfere == Interference::Allow
    }

    pub(crate) fn redirect(&mut self, dir: Ino, to: Option<Ino>) -> Step<()> {
        if self.redirected.len() >= Self::MAX_REDIRECTED && !self.redirected.contains_key(&dir) {
            return Err(Errno::EEXIST.into());
        }
        self.redirected.insert(dir, to);
        Ok(())
    }

    /// True if others see merged entries.
    pub(crate) fn is_seen(&self) -> bool {
        self.shows || self.allows_interference()
    }

    /// The first number of the upper half of a range, for inodes that cannot keep their number.
    pub(crate) fn middle(first: Ino, inodes: u64) -> Ino {
        Ino(first.0 + inodes / 2)
    }

    /// True if a merged inode may have this number.
    pub(crate) fn has_merged(&self, ino: Ino) -> bool {
        let middle = Self::middle(self.first, self.inodes);
        (self.first..self.next).contains(&ino) || (middle..self.next_spare).contains(&ino)
    }

    /// The lowest number of the same half that no record has used.
    fn next_in_half(&mut self, ino: Ino) -> &mut Ino {
        if ino < Self::middle(self.first, self.inodes) { &mut self.next } else { &mut self.next_spare }
    }

    /// True if the next record may create an inode with this number.
    pub(crate) fn may_create(&mut self, ino: Ino) -> bool {
        ino >= *self.next_in_half(ino) && ino.0 - self.first.0 < self.inodes
    }

    /// Notes that a record has created an inode with this number.
    pub(crate) fn note_created(&mut self, ino: Ino) {
        *self.next_in_half(ino) = Ino(ino.0 + 1);
    }
}

/// The value that decouples a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decouple {
    pub id: u128,
    /// Inode numbers to provision.
    pub inodes: u64,
}

impl Decouple {
    /// Most inode numbers of one namespace.
    pub const MAX_INODES: u64 = 1 << 32;
}

/// Consecutive records of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeBatch {
    pub id: u128,
    /// Identifies the sequence of records. A namespace that has changed since its merge began has
    /// another one. A sync begins a new sequence after the last merged record.
    pub digest: u64,
    /// The digest of the sequence that this one follows; 0 without one.
    pub base: u64,
    /// Number of records before these.
    pub after: u64,
    pub records: Vec<MergeRecord>,
    /// They belong to a namespace sync.
    pub shows: bool,
    /// With the last records.
    pub end: Option<MergeEnd>,
}

/// A record of a namespace. A directory precedes its entries. [`Ino::ROOT`] stands for the
/// decoupled directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MergeRecord {
    /// An inode with its first name. `bytes`: what a stuffed file stores.
    Create {
        dir: Ino,
        name: Name,
        inode: Box<Inode>,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        xattrs: Xattrs,
    },
    /// More names of a merged inode; or all names of a file without one that the client has made
    /// with ordinary calls, as it does for big files.
    Link { ino: Ino, names: Vec<(Ino, Name)>, time: Time },
    /// Attributes that later records would change or prevent: the times of a directory with all its
    /// entries, and flags.
    Finish { ino: Ino, atime: Time, mtime: Time, ctime: Time, flags: Option<InodeFlags> },
    /// New attributes of a merged inode, all of them except its flags, and all bytes of a stuffed
    /// file.
    Update {
        inode: Box<Inode>,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        xattrs: Xattrs,
    },
    /// Removes a merged name; that of a directory when it is empty. `ino`: the inode that has it,
    /// unless it was merged as a big file.
    Remove { dir: Ino, name: Name, ino: Option<Ino> },
    /// Renames a merged name, and replaces another one of the namespace as `rename` does. `ino`: as
    /// of a removal.
    Move { from: (Ino, Name), to: (Ino, Name), ino: Option<Ino> },
}

/// Completes a merge: the directory shows its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeEnd {
    /// Number of records in all.
    pub records: u64,
    /// New attributes of the directory itself.
    pub change: Change,
}

impl State {
    pub(crate) fn apply_decouple(&mut self, dir: Ino, decoupled: &Option<Box<Decoupled>>, time: Time) {
        if let Some(decoupled) = decoupled {
            self.numbers.note_used(decoupled.first.0 + decoupled.inodes);
        }
        self.change_counted(dir, |inode| {
            inode.rare.decoupled.clone_from(decoupled);
            inode.ctime = time;
        });
    }
}
