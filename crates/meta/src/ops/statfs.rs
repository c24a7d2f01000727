use espalier_proto::{Capacity, Ino, Reply, Space};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    /// `statfs`: as CephFS does, a quota above is what there is.
    pub(crate) fn statfs(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let (byte_limit, _) = self.state.limits(ino)?;
        if byte_limit.is_some() {
            self.count_open(cx)?;
        }
        let (byte_limit, file_limit) = self.state.limits(ino)?;
        Ok(Reply::StatFs(Capacity {
            files: self.state.files,
            space: Space::default(),
            byte_limit,
            file_limit,
        }))
    }
}
