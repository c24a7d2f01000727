//! Statistics of the metadata machine, for `espalier status`, the metrics and tests: sizes of
//! cache, journal and tables, and counts of what has happened.

use alloc::vec::Vec;
use core::ops::Bound;

use espalier_proto::{Ino, Name, Rank};

use crate::config::Atime;
use crate::fragment::{FragmentCounts, PullCounts};
use crate::machine::Meta;
use crate::record::{Body, Inode, Slot};
use crate::state::{Location, Target};

/// Statistics that are available without computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// In memory.
    pub inodes: u64,
    pub dentries: u64,
    /// Directories with entries in memory.
    pub directories: u64,
    /// Stuffed files with bytes in memory.
    pub strips: u64,
    /// Approximate size of the cache and its bound, in bytes.
    pub cache_bytes: u64,
    pub cache_limit: u64,
    /// Approximate size of changes that no checkpoint has written, in bytes.
    pub dirty_bytes: u64,
    /// Changes since the file system was made.
    pub changes: u64,
    /// Those that are not known to be durable.
    pub unsynced: u64,
    /// The lowest inode number that was never allocated.
    pub next_ino: u64,
    /// Bytes of the journal in use, as reported by the driver, and its capacity.
    pub journal_used: u64,
    pub journal_capacity: u64,
    /// Syncs of the journal requested, and replies that waited for them, since the start.
    pub syncs: u64,
    pub synced_replies: u64,
    pub checkpoint_running: bool,
    /// Entries of removed trees that remain to be freed, and their bytes.
    pub trash_entries: u64,
    pub trash_bytes: u64,
    /// Clients with sessions, and those of them that have not finished reclaiming. While there are
    /// any, the server is in its grace period: see [`Meta::awaited`].
    pub sessions: u64,
    pub awaited_sessions: u64,
    /// Leases held, including those that ended up to a term ago.
    pub leases_held: u64,
    /// Leases granted or renewed, revoked, and expired since the start.
    pub leases_given: u64,
    pub leases_revoked: u64,
    pub leases_expired: u64,
    /// Revocations that were not acknowledged within the lease's term.
    pub leases_unanswered: u64,
    /// Times that operations waited for other clients' leases.
    pub lease_waits: u64,
    /// Fragments of partitioned directories at this rank.
    pub fragments: u64,
    /// Splits, merges and moves of fragments of this rank that are due or running.
    pub transfers_running: u64,
    pub fragment_counts: FragmentCounts,
    /// Directory records at this rank that may have names of files which are to move here.
    pub pulls_unfinished: u64,
    pub pull_counts: PullCounts,
}

impl Meta {
    pub fn figures(&self) -> Figures {
        let trash = self.trash_usage();
        let (leases_held, leases) = self
            .leases
            .as_ref()
            .map_or_else(Default::default, |leases| (leases.held() as u64, leases.counts));
        Figures {
            inodes: self.state.inodes.len() as u64,
            dentries: self.state.clock.cells as u64,
            directories: self.state.fragments.len() as u64,
            strips: self.state.strips.len() as u64,
            cache_bytes: self.state.cache_bytes() as u64,
            cache_limit: self.config.cache_bytes as u64,
            dirty_bytes: self.state.changes.dirty() as u64,
            changes: self.state.sequence,
            unsynced: self.state.sequence.saturating_sub(self.journal.durable),
            next_ino: self.state.numbers.next(),
            journal_used: self.journal.used,
            journal_capacity: self.config.journal_capacity,
            syncs: self.journal.syncs,
            synced_replies: self.journal.synced_replies,
            checkpoint_running: self.is_checkpoint_running(),
            trash_entries: trash.inodes(),
            trash_bytes: trash.bytes,
            sessions: self.sessions.len() as u64,
            awaited_sessions: self.sessions.awaited() as u64,
            leases_held,
            leases_given: leases.given,
            leases_revoked: leases.revoked,
            leases_expired: leases.expired,
            leases_unanswered: leases.unanswered,
            lease_waits: leases.waits,
            fragments: self.state.counts.partitions,
            transfers_running: self.transfers.unfinished() as u64,
            fragment_counts: self.transfers.counts,
            pulls_unfinished: self.unfinished_pulls() as u64,
            pull_counts: self.pulls.counts,
        }
    }

    /// Entries of the fragments at this rank, as far as they are in memory. Examines all inodes in
    /// memory: for models and tests.
    pub fn fragment_entries(&self) -> u64 {
        let entries = |inode: &Inode| match &inode.body {
            Body::Directory(directory) if directory.partition.is_some() => directory.entries,
            _ => 0,
        };
        self.state.inodes.sorted().map(|(_, cached)| entries(&cached.inode)).sum()
    }

    /// Approximate size of the cache in bytes.
    pub fn cache_bytes(&self) -> usize {
        self.state.cache_bytes()
    }

    pub fn rank(&self) -> Rank {
        self.config.rank
    }

    /// The number of ranks of the cluster, as far as this one has heard.
    pub fn ranks(&self) -> u16 {
        self.config.ranks
    }

    /// When reading updates access times.
    pub fn atime(&self) -> Atime {
        self.config.atime
    }

    /// Inodes in use.
    pub fn files(&self) -> u64 {
        self.state.counts.files
    }

    /// Number of entries that a page of a listing will have, as far as they are in memory. For cost
    /// models.
    pub fn entries_in_memory(&self, dir: Ino, after: u64, limit: u32) -> usize {
        let from = Bound::Excluded(Slot { hash: after.saturating_add(1), name: Name::lowest() });
        let cells =
            self.state.fragments.get(&dir).map(|fragment| fragment.cells.range((from, Bound::Unbounded)));
        let present = cells.into_iter().flatten().filter(|(_, cell)| cell.target != Target::Absent);
        present.take(limit as usize).count()
    }

    /// The directory that contains an inode; a directory itself. `None`: it is not in memory, or
    /// has several names.
    pub fn directory_of(&self, ino: Ino) -> Option<Ino> {
        let cached = self.state.inodes.get(&ino)?;
        match cached.location {
            _ if cached.inode.is_dir() => Some(ino),
            Location::Dentry { dir, .. } => Some(dir),
            Location::Table | Location::Orphan => None,
        }
    }

    /// The absolute path of an inode. `None`: part of it is not in memory, or the inode has several
    /// names.
    pub fn path_of(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut names: Vec<&Name> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let Location::Dentry { dir, hash } = self.state.inodes.get(&at)?.location else { return None };
            let cells = &self.state.fragments.get(&dir)?.cells;
            let mut cells = cells.range(Slot { hash, name: Name::lowest() }..);
            let found = cells.find(|(slot, cell)| slot.hash != hash || cell.target == Target::Primary(at))?;
            if found.0.hash != hash {
                return None;
            }
            names.push(&found.0.name);
            at = dir;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }
}
