use alloc::boxed::Box;

use espalier_proto::{Access, Errno, Ino, Name, NewNode, RenameFlags, Reply};

use super::rmdir::check_empty;
use crate::event::Event;
use crate::machine::{Cx, Meta};
use crate::record::{Body, Inode};
use crate::step::{Step, StreamCall};

impl Meta {
    /// `renameat2`, atomic: at any time, also after a crash, there is the state before or the state after.
    pub(crate) fn rename(
        &mut self,
        cx: &mut Cx<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        flags: RenameFlags,
    ) -> Step<Reply> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.victim(cx, from.0, from.1)?;
        let (from_dir, to_dir) = (self.state.dir(from.0)?, self.state.dir(to.0)?);
        cx.check(to_dir, Access::EXEC)?;
        let target = self.state.target(to.0, &self.state.slot(to.1))?.ino();
        let target = target.map(|ino| self.state.inode(ino)).transpose()?;
        cx.check_change(to_dir)?;
        if to_dir.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        self.check_moved(cx, inode, from_dir, to_dir)?;
        match target {
            None if exchange => return Err(Errno::ENOENT.into()),
            None => {}
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST.into()),
            Some(target) if target.ino == inode.ino => return Ok(Reply::Done),
            Some(target) if exchange => {
                cx.check_sticky(to_dir, target)?;
                self.check_moved(cx, target, to_dir, from_dir)?;
                let ((from_dir, from), (to_dir, to)) = ((from.0, from.1.clone()), (to.0, to.1.clone()));
                self.commit(cx, &Event::Exchange { from_dir, from, to_dir, to, time: cx.now })?;
                return Ok(Reply::Done);
            }
            Some(target) => {
                cx.check_sticky(to_dir, target)?;
                if inode.is_dir() {
                    check_empty(target)?;
                } else if target.is_dir() {
                    return Err(Errno::EISDIR.into());
                }
                if inode.is_streamed() {
                    // After a crash there is the old file or the new one, not a name without bytes.
                    cx.stream(StreamCall::Sync { ino: inode.ino })?;
                }
            }
        }
        let replaced = target.map(|target| target.ino);
        let whiteout = flags
            .contains(RenameFlags::WHITEOUT)
            .then(|| self.new_inode(cx, from.0, &NewNode::CharDevice(0), (0, 0)).map(Box::new));
        let whiteout = whiteout.transpose()?;
        let ((from_dir, from), (to_dir, to)) = ((from.0, from.1.clone()), (to.0, to.1.clone()));
        self.commit(cx, &Event::Rename { from_dir, from, to_dir, to, whiteout, time: cx.now })?;
        if let Some(ino) = replaced {
            self.purge_if_unused(cx, ino)?;
        }
        Ok(Reply::Done)
    }

    /// A directory may not move into itself; and its `..` changes, which its owner must allow.
    fn check_moved(&self, cx: &Cx<'_>, inode: &Inode, from: &Inode, to: &Inode) -> Step<()> {
        if !inode.is_dir() || from.ino == to.ino {
            return Ok(());
        }
        cx.check(inode, Access::WRITE)?;
        let mut ancestor = to;
        while ancestor.ino != Ino::ROOT {
            if ancestor.ino == inode.ino {
                return Err(Errno::EINVAL.into());
            }
            let Body::Directory { parent, .. } = ancestor.body else { return Err(Errno::EIO.into()) };
            ancestor = self.state.dir(parent)?;
        }
        Ok(())
    }
}
