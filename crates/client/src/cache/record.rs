//! The cached state of one inode: attributes, the leases on them, and the references that the
//! client and its users hold; for a directory also the names in it.

use alloc::boxed::Box;

use espalier_proto::{Attr, Ino, Name, XattrPresence, mode};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::pages::Pages;
use super::{Binding, Cache};

/// The cached state of an inode, including the names in a directory.
#[derive(Debug, Default)]
pub(super) struct InodeRecord {
    /// The server's lookup count of this inode for this client.
    pub lookups: u64,
    /// Lookup references that users still hold.
    pub users: u64,
    /// When the lease on the inode ends; 0: no lease. Of a directory it covers permissions, not
    /// contents.
    pub lease: u64,
    /// When the lease on what the inode contains ends. Of a file it is that on the inode. Never
    /// later than `lease`.
    pub contents_lease: u64,
    /// The epoch in which the present or last `contents_lease` began; 0: there never was one.
    pub since: u64,
    pub pages: Pages,
    /// When the lease on the bytes of a shared file ends (0: none), and the epoch in which it
    /// began.
    pub data: u64,
    pub data_since: u64,
    /// Number of the exclusive lease on this directory (0: none), and when it ends.
    pub exclusive: u64,
    pub exclusive_until: u64,
    /// The server may make directories in this one at other ranks.
    pub spreads_dirs: bool,
    /// Number of the exclusive lease on the parent under which this client became the sole holder.
    pub sole_holder: u64,
    /// The directory of its only name, if it has only one.
    pub exclusive_dir: Option<Ino>,
    /// `None` for the many inodes of which only the counts are cached.
    pub attr: Option<Box<Attr>>,
    /// Size, link count and times in `attr` may be out of date, the rest is not: a directory's
    /// names have changed.
    pub is_outdated: bool,
    /// When the attributes were requested: later writes to a stream of this client are not in them.
    pub requested_at: u64,
    /// The record is retained until then, even without users.
    pub keep_until: u64,
    /// The time of its entry in [`Cache::order`](super::Cache); 0: no entry.
    pub due: u64,
    /// The name under which users last saw this directory.
    pub place: Option<Box<(Ino, Name)>>,
    pub names: HashMap<Name, KnownName, FxBuildHasher>,
    /// Names with cursors up to this one that are not in `names` do not exist. [`u64::MAX`]:
    /// complete.
    listed: Option<u64>,
}

/// The cached binding of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownName {
    /// `None`: unknown whether the name exists.
    pub binding: Option<Binding>,
    pub until: u64,
}

impl KnownName {
    pub const LAPSED: Self = Self { binding: None, until: 0 };
    /// Absent by the directory's lease, and reported to users, who are not notified when that lease
    /// ends.
    pub const REPORTED_ABSENT: Self = Self { binding: Some(Binding::Absent), until: 0 };

    pub fn at(&self, now: u64) -> Option<Binding> {
        self.binding.filter(|_| self.until > now)
    }
}

impl InodeRecord {
    /// Everyone who can reach this directory may search it, so its names may be cached for all
    /// callers.
    pub fn is_searchable_by_all(&self) -> bool {
        let is_plain = |attr: &Attr| attr.xattrs != XattrPresence::Acl;
        self.attr.as_ref().is_some_and(|attr| is_plain(attr) && attr.perm & mode::ANY_EXEC == mode::ANY_EXEC)
    }

    /// The listing is complete: a name that is not in `names` does not exist.
    pub fn is_whole(&self, now: u64) -> bool {
        self.contents_lease > now && self.listed == Some(u64::MAX)
    }

    /// The listing is complete up to some cursor.
    pub fn is_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// The cursor up to which the listing is complete.
    pub fn listed_to(&self) -> u64 {
        self.listed.unwrap_or(0)
    }

    /// Records that all names between two cursors are in `names`.
    pub fn listed(&mut self, after: u64, cursor: u64) {
        self.listed = match self.listed {
            Some(listed) if after <= listed => Some(listed.max(cursor)),
            _ if after == 0 => Some(cursor),
            listed => listed,
        };
    }

    /// Returns the number of names that were dropped.
    pub fn drop_lease(&mut self) -> usize {
        let dropped = self.drop_contents();
        (self.lease, self.exclusive, self.attr) = (0, 0, None);
        dropped + self.drop_names()
    }

    /// Drops what the lease on the contents covers. Names with leases of their own stay. Returns
    /// the number of names that were dropped.
    pub fn drop_contents(&mut self) -> usize {
        self.pages.lapse(self.attr.as_deref().filter(|_| !self.is_outdated));
        (self.contents_lease, self.is_outdated) = (0, true);
        if self.listed.take().is_none() {
            return 0;
        }
        let before = self.names.len();
        self.names.retain(|_, known| known.until > 0);
        before - self.names.len()
    }

    pub fn drop_names(&mut self) -> usize {
        self.listed = None;
        core::mem::take(&mut self.names).len()
    }
}

impl Cache {
    /// Counts a call that is answered without a message.
    pub fn hit(&mut self) {
        self.counts.hits += 1;
    }

    /// True if the server counts lookups of the inode by this client.
    pub fn holds(&self, ino: Ino) -> bool {
        self.records.get(&ino).is_some_and(|record| record.lookups > 0)
    }
}
