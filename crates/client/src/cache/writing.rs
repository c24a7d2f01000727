//! Files that this client has open and may write to: into their streams it writes without the metadata server, which may have told of
//! one what was so before.

use alloc::collections::VecDeque;

use espalier_proto::Ino;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// See the module's description. Times are in milliseconds of the cache's clock.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// When each was closed; `None`: it is open.
    files: HashMap<Ino, Option<u64>, FxBuildHasher>,
    /// Those that are closed, or were, by when.
    order: VecDeque<(u64, Ino)>,
    /// Any other that was open has been closed by then.
    closed: u64,
}

impl Writing {
    /// For so long it is remembered when a file was closed: few questions take longer.
    const REMEMBERED: u64 = 10_000;

    pub fn opened(&mut self, ino: Ino) {
        self.files.insert(ino, None);
    }

    /// Nobody has it open any more.
    pub fn closed(&mut self, ino: Ino, now: u64) {
        if let Some(closed) = self.files.get_mut(&ino) {
            *closed = Some(now);
            self.order.push_back((now, ino));
        }
    }

    /// Whether the answer to a question of that time tells what is in a file's stream now, for all that this client has done.
    pub fn allows(&self, ino: Ino, asked: u64) -> bool {
        self.files.get(&ino).map_or(Some(self.closed), |closed| *closed).is_some_and(|closed| asked > closed)
    }

    pub fn expire(&mut self, now: u64) {
        while let Some((at, ino)) = self.order.front().copied().filter(|(at, _)| at + Self::REMEMBERED <= now)
        {
            self.order.pop_front();
            // It may have been opened since.
            if self.files.get(&ino) == Some(&Some(at)) {
                self.files.remove(&ino);
                self.closed = at;
            }
        }
    }
}
