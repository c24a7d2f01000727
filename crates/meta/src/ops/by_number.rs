//! Access by inode number, for file handles: finds an inode whether or not a client knows it, and
//! the parent of a directory.

use espalier_proto::{Errno, FileType, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::record::Body;
use crate::step::{Step, Stop, Wait};

impl Meta {
    /// Ensures that an inode is in memory and that the client may see it. Checks no search
    /// permissions: the kernel allows handles only to privileged callers.
    ///
    /// # Errors
    /// `ESTALE` for an inode that no name leads to, unless it is open.
    pub(crate) fn reach(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        self.revoke_for_number(cx, ino)?;
        self.state.locate(ino)?;
        let cached = self.state.cached(ino)?;
        let (is_dir, opens, parents) = (cached.inode.is_dir(), cached.opens, cached.parents());
        let own = self.config.rank;
        if opens == 0 && self.state.is_unreachable(ino)? {
            // A client that has it open may not have reclaimed yet.
            return Err(if self.sessions.in_grace() {
                Stop::Wait(Wait::Grace)
            } else {
                Errno::ESTALE.into()
            });
        }
        // A lookup by path would have revoked the exclusive lease on each of these.
        for (dir, _) in parents.into_iter().filter(|(dir, _)| dir.rank() == own) {
            self.revoke_exclusive(cx, dir)?;
        }
        if is_dir { self.revoke_exclusive(cx, ino) } else { Ok(()) }
    }

    /// The parent of a directory.
    pub(crate) fn parent(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<Reply> {
        let inode = self.state.dir(dir)?;
        let parent = match &inode.body {
            Body::Directory(directory) if inode.nlink > 0 => directory.parent,
            _ => return Err(Errno::ESTALE.into()),
        };
        let parent = if self.state.is_here(parent) { self.state.whole_dir(parent)? } else { parent };
        let parent = match self.root_of(cx.client) {
            Some(root) if dir == root => root,
            Some(root) if !self.is_below(cx, parent, root)? => return Err(Errno::ESTALE.into()),
            _ => parent,
        };
        if parent.rank() != self.config.rank {
            let kind = FileType::Directory;
            let at = parent.rank();
            return Ok(Reply::Remote { ino: parent, kind, at, cacheable: false, name_leased: false });
        }
        self.find(cx, parent, None, None)
    }
}
