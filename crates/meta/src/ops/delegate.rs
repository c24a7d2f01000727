use alloc::boxed::Box;
use alloc::sync::Arc;

use espalier_proto::{Access, Errno, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    /// A client is about to read or write the bytes of a file that it has open, without the machine. What else a write would need
    /// ([`Self::extend`]) is done here, once: as long as it may write nobody else caches anything of the file.
    pub(crate) fn delegate(&mut self, cx: &mut Cx<'_>, ino: Ino, access: Access) -> Step<Reply> {
        let Some(layout) = self.state.inode(ino)?.layout().map(Arc::clone) else {
            return Ok(Reply::Delegated(None));
        };
        if access.contains(Access::EXEC) && !self.state.cached(ino)?.nameless {
            return Err(Errno::EACCES.into());
        }
        let limited = self.state.is_limited(ino)?;
        if access.contains(Access::WRITE) {
            self.watch(cx, ino)?;
            self.drop_capability(cx, ino)?;
        }
        Ok(Reply::Delegated(Some(Box::new(self.grant(cx, ino, layout, access, limited)?))))
    }
}
