//! `statfs`.

use espalier_proto::{Capacity, Ino, Reply, Space};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    /// `statfs`. Like CephFS, reports a quota that applies to the directory as the capacity.
    pub(crate) fn statfs(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        if self.state.limits(ino)?.bytes.is_some() {
            self.count_open(cx)?;
        }
        let limits = self.state.limits(ino)?;
        Ok(Reply::StatFs(Capacity {
            files: self.state.counts.files,
            space: Space::default(),
            byte_limit: limits.bytes,
            file_limit: limits.files,
        }))
    }
}
