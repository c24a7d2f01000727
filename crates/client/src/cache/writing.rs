//! Files that this client has open for writing. It writes to their streams without the metadata
//! server, so attributes requested before a write are stale.

use alloc::collections::VecDeque;

use espalier_proto::Ino;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// See the module's documentation. Times are in milliseconds of the cache's clock.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// When each file was closed; `None`: it is open.
    files: HashMap<Ino, Option<u64>, FxBuildHasher>,
    /// Files by the time of a close; some have been opened again.
    order: VecDeque<(u64, Ino)>,
    /// Files that are not in `files` were closed before this time.
    closed: u64,
}

impl Writing {
    /// How long a close is remembered, in ms; few requests take longer.
    const REMEMBERED: u64 = 10_000;

    pub fn opened(&mut self, ino: Ino) {
        self.files.insert(ino, None);
    }

    /// Records the last close of a file.
    pub fn closed(&mut self, ino: Ino, now: u64) {
        if let Some(closed) = self.files.get_mut(&ino) {
            *closed = Some(now);
            self.order.push_back((now, ino));
        }
    }

    /// True if attributes requested at `requested_at` include all of this client's writes to the
    /// file.
    pub fn allows(&self, ino: Ino, requested_at: u64) -> bool {
        self.files
            .get(&ino)
            .map_or(Some(self.closed), |closed| *closed)
            .is_some_and(|closed| requested_at > closed)
    }

    pub fn expire(&mut self, now: u64) {
        while let Some((at, ino)) = self.order.front().copied().filter(|(at, _)| at + Self::REMEMBERED <= now)
        {
            self.order.pop_front();
            // The file may have been opened since.
            if self.files.get(&ino) == Some(&Some(at)) {
                self.files.remove(&ino);
                self.closed = at;
            }
        }
    }
}
