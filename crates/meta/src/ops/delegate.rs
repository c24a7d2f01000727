//! `Delegate`: grants a client that has a file open a capability for reading and writing its bytes
//! at the data servers, or in the data pool of the store.

use alloc::boxed::Box;
use alloc::sync::Arc;

use espalier_proto::{Access, Errno, Ino, InodeFlags, Reply};

use crate::machine::{Cx, Meta};
use crate::permission::check_not;
use crate::size_dirty::SizeDirty;
use crate::step::{Step, Stop, Wait};

impl Meta {
    /// Grants a client that has a file open a capability to read or write its bytes at data
    /// servers, or in the store's data pool. For writing, does what each write would need
    /// ([`Self::extend`]) once: while the client may write, no other client caches anything of the
    /// file.
    pub(crate) fn delegate(&mut self, cx: &mut Cx<'_>, ino: Ino, access: Access) -> Step<Reply> {
        let inode = self.state.inode(ino)?;
        if access.contains(Access::WRITE) {
            check_not(inode, InodeFlags::IMMUTABLE)?;
        }
        let layout = inode.layout().map(Arc::clone);
        if layout.is_none() && (!self.is_in_data_pool(inode) || access.contains(Access::EXEC)) {
            return Ok(Reply::Delegated(None));
        }
        if access.contains(Access::EXEC) && !self.state.cached(ino)?.nameless {
            return Err(Errno::EACCES.into());
        }
        let limited = self.state.is_limited(ino)?;
        let mut since = 0;
        if access.contains(Access::WRITE) {
            since = self.mark_new_size_dirty(cx, ino)?;
            self.drop_capability(cx, ino)?;
        }
        let mut delegation = self.grant(cx, ino, layout, access, limited)?;
        delegation.capability.since = since;
        delegation.capability.announced = self.announces(self.state.inode(ino)?);
        Ok(Reply::Delegated(Some(Box::new(delegation))))
    }

    /// As [`Self::mark_size_dirty`], but does not wait for the event that unstuffed the file to be
    /// durable. Instead it returns the event's number: data servers list what the client makes from
    /// then on, and if the event is lost, so that the file is small again, recovery asks them for
    /// their lists.
    fn mark_new_size_dirty(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<u64> {
        let outgrew = self.state.size_dirty.get(ino).and_then(SizeDirty::outgrew);
        let since = outgrew.filter(|since| *since > self.journal.durable);
        match (self.mark_size_dirty(cx, ino), since) {
            (Err(Stop::Wait(Wait::Durable)), Some(since)) => Ok(since),
            (size_dirty, _) => size_dirty.map(|()| 0),
        }
    }
}
