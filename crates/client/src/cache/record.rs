use alloc::boxed::Box;

use espalier_proto::{Attr, Ino, Name, mode};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::Binding;
use super::pages::Pages;

/// What is known of an inode, and of the names in it.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// How often the server has named it to this client and has not been told that it is forgotten.
    pub lookups: u64,
    /// How often users have been named it who have not said that they have forgotten it.
    pub users: u64,
    /// When the lease on it is over; 0: there is none.
    pub lease: u64,
    /// The turn in which that has begun, or the last one; 0: there never was any.
    pub since: u64,
    pub pages: Pages,
    /// When the lease on its bytes is over, which others may write to; 0: there is none. And the turn in which that has begun.
    pub data: u64,
    pub data_since: u64,
    /// The number of the exclusive lease on it, and when that is over; 0: there is none.
    pub exclusive: u64,
    pub exclusive_until: u64,
    /// That of the exclusive lease on its directory under which it was told that nobody else knew it.
    pub alone: u64,
    /// That directory, if it has its only name there.
    pub alone_in: Option<Ino>,
    /// There are many of which nothing but the counts is known.
    pub attr: Option<Box<Attr>>,
    /// When they were asked for: this client may have written to a stream since.
    pub asked: u64,
    /// Until then it stays known, whoever uses it.
    pub keep: u64,
    /// The time of its place in the order; 0: it has none.
    pub due: u64,
    /// The name by which users have last seen it, if it is a directory.
    pub place: Option<Box<(Ino, Name)>>,
    pub names: HashMap<Name, Known, FxBuildHasher>,
    /// Names whose cursors are not beyond this one, and that are not among `names`, are not there. [`u64::MAX`]: none are.
    listed: Option<u64>,
}

/// What is known of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// `None`: it may be there or not.
    pub binding: Option<Binding>,
    pub until: u64,
}

impl Known {
    pub const LAPSED: Self = Self { binding: None, until: 0 };
    /// By the lease on the directory it is not there: that lasts, but users who were told so are not told when it ends.
    pub const TOLD_ABSENT: Self = Self { binding: Some(Binding::Absent), until: 0 };

    pub fn at(&self, now: u64) -> Option<Binding> {
        self.binding.filter(|_| self.until > now)
    }
}

impl Record {
    /// Whoever can reach this directory may search it, so that its names may be cached for all callers.
    pub fn is_searchable_by_all(&self) -> bool {
        self.attr.as_ref().is_some_and(|attr| attr.bare && attr.perm & mode::ANY_EXEC == mode::ANY_EXEC)
    }

    /// Which names are not in the directory is known.
    pub fn is_whole(&self) -> bool {
        self.listed == Some(u64::MAX)
    }

    /// It is at least on the way to be.
    pub fn is_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// All names from one cursor up to another are among `names`.
    pub fn listed(&mut self, after: u64, cursor: u64) {
        self.listed = match self.listed {
            Some(listed) if after <= listed => Some(listed.max(cursor)),
            _ if after == 0 => Some(cursor),
            listed => listed,
        };
    }

    /// Returns how many names are known no longer.
    pub fn drop_lease(&mut self) -> usize {
        self.pages.lapse(self.attr.as_deref());
        (self.lease, self.exclusive, self.attr) = (0, 0, None);
        self.drop_names()
    }

    pub fn drop_names(&mut self) -> usize {
        self.listed = None;
        core::mem::take(&mut self.names).len()
    }
}
