//! Inodes that this client's own calls may change while they are under way. What is known of their attributes is of before such a call, or of
//! after it, and an answer to another call may have told already that it was done.

use alloc::sync::{Arc, Weak};

use espalier_proto::Ino;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// What a call may change. It is not known any longer than somebody has this.
#[derive(Debug, Default)]
pub struct Changes(#[expect(dead_code, reason = "it is enough that it is there")] [Option<Arc<()>>; 4]);

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Changing {
    inodes: HashMap<Ino, Weak<()>, FxBuildHasher>,
    /// It may be any.
    unknown: Weak<()>,
}

impl Changing {
    /// A call is about to be made that may change up to four inodes; `None`: one of which only a name is known.
    pub fn begin(&mut self, mut inos: impl Iterator<Item = Option<Ino>>) -> Changes {
        Changes(core::array::from_fn(|_| inos.next().map(|ino| self.share(ino))))
    }

    fn share(&mut self, ino: Option<Ino>) -> Arc<()> {
        let shared = match ino {
            Some(ino) => self.inodes.entry(ino).or_default(),
            None => &mut self.unknown,
        };
        shared.upgrade().unwrap_or_else(|| {
            let share = Arc::default();
            *shared = Arc::downgrade(&share);
            share
        })
    }

    pub fn is_so(&self, ino: Ino) -> bool {
        let is_shared = |shared: &Weak<()>| shared.strong_count() > 0;
        is_shared(&self.unknown) || self.inodes.get(&ino).is_some_and(is_shared)
    }

    /// Comes from time to time.
    pub fn expire(&mut self) {
        self.inodes.retain(|_, shared| shared.strong_count() > 0);
    }
}
