//! What file handles need: an inode by its number alone, whether or not a client knows it, and the directory that a directory is in.

use espalier_proto::{Errno, FileType, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::record::Body;
use crate::step::{Step, Stop, Wait};

impl Meta {
    /// Makes sure that an inode is in memory and that the client may see it; `ESTALE` for one that no name leads to, unless it is open.
    ///
    /// Checks no right to search directories: the client's kernel lets only privileged callers use handles.
    pub(crate) fn reach(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        self.state.locate(ino)?;
        let cached = self.state.cached(ino)?;
        let (is_dir, opens, parents) = (cached.inode.is_dir(), cached.opens, cached.parents());
        if opens == 0 && self.state.is_unreachable(ino)? {
            // A client may have it open and not have reclaimed it yet.
            return Err(if self.sessions.in_grace() {
                Stop::Wait(Wait::Grace)
            } else {
                Errno::ESTALE.into()
            });
        }
        // A lookup by path would have revoked each of these.
        for (dir, _) in parents.into_iter().filter(|(dir, _)| dir.rank() == ino.rank()) {
            self.share(cx, dir)?;
        }
        if is_dir { self.share(cx, ino) } else { Ok(()) }
    }

    /// The directory that a directory is in.
    pub(crate) fn parent(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<Reply> {
        let inode = self.state.dir(dir)?;
        let parent = match &inode.body {
            Body::Directory(directory) if inode.nlink > 0 => directory.parent,
            _ => return Err(Errno::ESTALE.into()),
        };
        let parent = match self.root_of(cx.client) {
            Some(root) if dir == root => root,
            Some(root) if !self.is_below(cx, parent, root)? => return Err(Errno::ESTALE.into()),
            _ => parent,
        };
        if parent.rank() != self.config.rank {
            let kind = FileType::Directory;
            return Ok(Reply::Elsewhere { ino: parent, kind, cacheable: false, name_leased: false });
        }
        self.find(cx, parent, None, None)
    }
}
