//! `access`.

use espalier_proto::{Access, Errno, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    /// Checks that the caller has all permissions of `want`.
    pub(crate) fn access(&mut self, cx: &Cx<'_>, ino: Ino, want: Access) -> Step<Reply> {
        let inode = self.state.inode(ino)?;
        let is_stored = !matches!(inode.body, crate::record::Body::Node);
        if want.contains(Access::WRITE) && self.config.read_only && is_stored {
            return Err(Errno::EROFS.into());
        }
        cx.check(inode, want)?;
        Ok(Reply::Done)
    }
}
