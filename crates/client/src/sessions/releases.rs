//! Releases of files that must wait: for requests to data servers, or for the file's creation.

use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Caller, Ino, Request};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::Sessions;
use crate::{Call, Work};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct DeferredReleases {
    /// Files with requests to data servers. A driver holds a reference as long as one of its
    /// requests may be executed, even if the call was abandoned.
    in_use: HashMap<Ino, Arc<()>, FxBuildHasher>,
    /// Closed files that wait for such references.
    used: Vec<Ino>,
    /// New files that were closed before the server has created them.
    uncreated: Vec<Ino>,
}

impl DeferredReleases {
    /// The reference that a driver holds during this operation on data servers.
    pub fn hold(&mut self, ino: Ino, work: &Work) -> Arc<()> {
        match work {
            Work::Stream(_) | Work::Create { .. } => Arc::clone(self.in_use.entry(ino).or_default()),
            // Releases do not wait for these.
            Work::Measure(_) | Work::Remove(_) => Arc::default(),
        }
    }

    /// Defers the release of a file if abandoned requests may still be executed; returns whether it
    /// did.
    pub fn defer(&mut self, ino: Ino) -> bool {
        let is_used = self.in_use.get(&ino).is_some_and(|held| Arc::strong_count(held) > 1);
        if is_used {
            self.used.push(ino);
        } else {
            self.in_use.remove(&ino);
        }
        is_used
    }

    /// All requests for this file have been answered.
    pub fn end_use(&mut self, ino: Ino) {
        self.in_use.remove(&ino);
    }
}

impl<T> Sessions<T> {
    /// Releases the files whose requests to data servers are over.
    pub(super) fn release_unused(&mut self, now: u64) {
        let mut unused = core::mem::take(&mut self.releases.used);
        unused.retain(|ino| !self.releases.defer(*ino));
        for ino in unused {
            self.server_session(self.rank_of(ino)).ask(Caller::SERVER, Request::Release { ino });
            self.closed(ino, now);
        }
    }

    /// Closes a new file locally; the server is notified when it has created the file. Returns
    /// whether this was possible.
    pub(super) fn close_uncreated(&mut self, now: u64, call: &Call<'_>) -> bool {
        let Call::Release { ino } = *call else { return false };
        self.writeback.closed(ino);
        // A file with pending writes stays open, since they may need another capability of data
        // servers.
        let is_quick = !self.calls.is_any_blocked_about(ino) && !self.writeback.write_behind.is_any_of(ino);
        let has_pending = is_quick && self.cache.has_pending(ino);
        if has_pending {
            let _ = self.client.start(call);
            self.closed(ino, now);
            self.releases.uncreated.push(ino);
        }
        has_pending
    }

    /// Releases the new files that have been created.
    pub(super) fn release_created(&mut self) {
        let created = self.releases.uncreated.extract_if(.., |ino| !self.cache.has_pending(*ino));
        for ino in created.collect::<Vec<_>>() {
            let end = self.server_session(self.rank_of(ino));
            end.link.release(ino, &mut end.out);
        }
    }
}
