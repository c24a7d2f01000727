//! `unlink`.

use espalier_proto::{Access, Errno, FileType, Ino, Name, Reply};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::record::Inode;
use crate::step::Step;

impl Meta {
    pub(crate) fn unlink(&mut self, cx: &mut Cx<'_>, dir: Ino, name: &Name) -> Step<Final<'_>> {
        if let Some(referent) = self.named_remote(dir, name)? {
            return match referent.kind {
                FileType::Directory => Err(Errno::EISDIR.into()),
                _ => self.remove_remote(cx, dir, name, referent),
            };
        }
        let inode = self.victim(cx, dir, name)?;
        if inode.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        self.remove(cx, dir, name, inode.ino)
    }

    /// The inode of a name that the caller may remove.
    pub(crate) fn victim(&self, cx: &Cx<'_>, dir: Ino, name: &Name) -> Step<&Inode> {
        self.writable()?;
        let parent = self.state.dir(dir)?;
        cx.check(parent, Access::EXEC)?;
        if self.state.is_removed(dir)? {
            return Err(Errno::ENOENT.into());
        }
        let ino = self.state.target(dir, &self.state.slot(name))?.ino().ok_or(Errno::ENOENT)?;
        cx.check_change(parent)?;
        let inode = self.state.inode(ino)?;
        cx.check_removal(parent, inode)?;
        Ok(inode)
    }

    pub(crate) fn remove(&mut self, cx: &mut Cx<'_>, dir: Ino, name: &Name, ino: Ino) -> Step<Final<'_>> {
        let has_no_metafile = self.state.has_no_metafile(ino);
        let event = Event::Unlink { dir, name: name.clone(), time: cx.now };
        self.commit(cx, &event, |meta, cx| {
            // The machine removes the datafile of a no-metafile file itself; the client does not
            // wait for it.
            if !has_no_metafile && let Some(left) = meta.leave_to_client(cx, ino) {
                return left;
            }
            meta.name_taken(cx, ino);
            Reply::Done
        })
    }
}
