//! Inodes and names that the client's own pending calls may change.
//! Cached state may predate such a call or follow it, and replies to other calls may show its
//! effect already; so it is not used until the call ends.

use core::hash::BuildHasher;

use alloc::sync::{Arc, Weak};

use espalier_proto::{Ino, Name};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The inodes and names that a call may change. The cache distrusts them as long as this exists.
#[derive(Debug, Default)]
pub struct Changes([Option<Arc<()>>; 6]);

/// The part of its inodes that a call may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Rights,
    /// The names of the inodes, or in them.
    Names,
    Bytes,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Changing {
    inodes: HashMap<Ino, Weak<()>, FxBuildHasher>,
    /// Inodes that get or lose names, or whose names change; permissions stay.
    named: HashMap<Ino, Weak<()>, FxBuildHasher>,
    /// Files whose bytes are written, but which get no other names.
    written: HashMap<Ino, Weak<()>, FxBuildHasher>,
    /// By directory and hash of the name; on a collision both names are distrusted.
    names: HashMap<(Ino, u64), Weak<()>, FxBuildHasher>,
    /// A change of names of an unknown inode; it may be any.
    unknown: Weak<()>,
}

impl Changing {
    /// Begins a call that may change up to four inodes and two names. `None` stands for an inode of
    /// which only the name is known.
    pub fn begin<'a>(
        &mut self,
        inos: impl Iterator<Item = Option<Ino>>,
        names: impl Iterator<Item = (Ino, &'a Name)>,
        extent: Extent,
    ) -> Changes {
        let mut changes = Changes::default();
        let [inodes @ .., first, second] = &mut changes.0;
        let of = match extent {
            Extent::Rights => &mut self.inodes,
            Extent::Names => &mut self.named,
            Extent::Bytes => &mut self.written,
        };
        for (slot, ino) in inodes.iter_mut().zip(inos) {
            *slot = Some(match ino {
                Some(ino) => share(of.entry(ino).or_default()),
                None => share(&mut self.unknown),
            });
        }
        for (slot, (dir, name)) in [first, second].into_iter().zip(names) {
            *slot = Some(share(self.names.entry(key(dir, name)).or_default()));
        }
        changes
    }

    pub fn is_so(&self, ino: Ino) -> bool {
        is_shared(&self.unknown)
            || self.is_more_than_written(ino)
            || self.written.get(&ino).is_some_and(is_shared)
    }

    /// True if a pending call may give the inode other names.
    pub fn is_more_than_written(&self, ino: Ino) -> bool {
        self.may_change_rights(ino) || self.named.get(&ino).is_some_and(is_shared)
    }

    /// True if a pending call may change who may use the inode.
    pub fn may_change_rights(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(is_shared)
    }

    pub fn is_named(&self, dir: Ino, name: &Name) -> bool {
        self.names.get(&key(dir, name)).is_some_and(is_shared)
    }

    /// Drops the entries of calls that have ended; called periodically.
    pub fn expire(&mut self) {
        self.inodes.retain(|_, shared| is_shared(shared));
        self.named.retain(|_, shared| is_shared(shared));
        self.written.retain(|_, shared| is_shared(shared));
        self.names.retain(|_, shared| is_shared(shared));
    }
}

fn share(shared: &mut Weak<()>) -> Arc<()> {
    shared.upgrade().unwrap_or_else(|| {
        let share = Arc::default();
        *shared = Arc::downgrade(&share);
        share
    })
}

fn is_shared(shared: &Weak<()>) -> bool {
    shared.strong_count() > 0
}

fn key(dir: Ino, name: &Name) -> (Ino, u64) {
    (dir, FxBuildHasher.hash_one(name))
}
