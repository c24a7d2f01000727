//! Inodes and names that this client's own calls may change while they are under way. What is known of them is of before such a call, or of
//! after it, and an answer to another call may have told already that it was done.

use core::hash::BuildHasher;

use alloc::sync::{Arc, Weak};

use espalier_proto::{Ino, Name};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// What a call may change. It is not known any longer than somebody has this.
#[derive(Debug, Default)]
pub struct Changes([Option<Arc<()>>; 6]);

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Changing {
    inodes: HashMap<Ino, Weak<()>, FxBuildHasher>,
    /// Files that are written to, and no more.
    written: HashMap<Ino, Weak<()>, FxBuildHasher>,
    /// By the directory and a hash of the name: two that share one are both not known.
    names: HashMap<(Ino, u64), Weak<()>, FxBuildHasher>,
    /// It may be any.
    unknown: Weak<()>,
}

impl Changing {
    /// A call is about to be made that may change up to four inodes, and up to two names; `None`: an inode of which only a name is known.
    /// `writes`: it changes bytes alone.
    pub fn begin<'a>(
        &mut self,
        inos: impl Iterator<Item = Option<Ino>>,
        names: impl Iterator<Item = (Ino, &'a Name)>,
        writes: bool,
    ) -> Changes {
        let mut changes = Changes::default();
        let [inodes @ .., first, second] = &mut changes.0;
        let of = if writes { &mut self.written } else { &mut self.inodes };
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

    /// Whether it may come to have other names, as far as is known.
    pub fn is_more_than_written(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(is_shared)
    }

    pub fn is_named(&self, dir: Ino, name: &Name) -> bool {
        self.names.get(&key(dir, name)).is_some_and(is_shared)
    }

    /// Comes from time to time.
    pub fn expire(&mut self) {
        self.inodes.retain(|_, shared| is_shared(shared));
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
