//! Counts of inodes, which each event that makes, changes or removes an inode keeps up to date.

use serde::{Deserialize, Serialize};

use crate::record::Inode;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeCounts {
    /// Inodes in use.
    pub files: u64,
    /// Immutable, append-only and decoupled inodes.
    pub protected: u64,
    /// Partitioned directories here, and fragments of others.
    pub partitions: u64,
}

impl InodeCounts {
    /// The share of one inode.
    pub(crate) fn of(inode: &Inode) -> Self {
        let (protected, partitions) = (inode.is_protected().into(), inode.partition().is_some().into());
        Self { files: 1, protected, partitions }
    }

    pub(crate) fn add(&mut self, gain: Self) {
        self.files += gain.files;
        self.protected += gain.protected;
        self.partitions += gain.partitions;
    }

    pub(crate) fn remove(&mut self, loss: Self) {
        self.files = self.files.saturating_sub(loss.files);
        self.protected = self.protected.saturating_sub(loss.protected);
        self.partitions = self.partitions.saturating_sub(loss.partitions);
    }
}
