//! `link`.

use espalier_proto::{Access, Errno, Ino, InodeFlags, Name, Reply};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::permission::{check_interference, check_not};
use crate::step::Step;

impl Meta {
    /// Adds a name to a file.
    pub(crate) fn link(&mut self, cx: &mut Cx<'_>, ino: Ino, dir: Ino, name: &Name) -> Step<Final<'_>> {
        let at = self.rank_of(cx, ino)?;
        if at != self.config.rank {
            return self.link_remote(cx, (ino, at), dir, name);
        }
        self.growable()?;
        let parent = self.state.dir(dir)?;
        cx.check(parent, Access::EXEC)?;
        check_interference(parent)?;
        let slot = self.state.slot(name);
        if self.state.target(dir, &slot)?.ino().is_some() {
            return Err(Errno::EEXIST.into());
        }
        cx.check_change(parent)?;
        let cacheable = parent.searchable_by_all();
        let cached = self.state.cached(ino)?;
        let inode = &cached.inode;
        let is_gone = if cached.nameless { false } else { self.state.is_unreachable(ino)? };
        if is_gone || self.state.is_removed(dir)? {
            return Err(Errno::ENOENT.into());
        }
        if inode.is_dir() {
            return Err(Errno::EPERM.into());
        }
        check_not(inode, InodeFlags::PROTECTED)?;
        self.check_has_metafile(ino)?;
        if inode.nlink == u32::MAX {
            return Err(Errno::EMLINK.into());
        }
        if inode.is_streamed() && self.is_bounded(dir)? {
            self.count_open(cx)?;
        }
        // No data server needs to be queried about a file that is being made.
        let is_new = self.sessions.making.contains(&ino);
        let inode = self.state.inode(ino)?;
        let stat = if is_new { None } else { self.stream_stat(cx, inode)? };
        self.state.admit(&[(dir, inode.weight())], &[])?;
        let mut attr = inode.attr(None);
        (attr.nlink, attr.ctime) = (inode.nlink + 1, cx.now);
        if let Some(stat) = stat {
            attr.measure(&stat);
        }
        self.commit(cx, &Event::Link { ino, dir, name: name.clone(), time: cx.now }, |meta, cx| {
            meta.sessions.making.remove(&ino);
            Reply::Entry(meta.entry(cx, Some((dir, slot.hash)), cacheable, attr))
        })
    }
}
