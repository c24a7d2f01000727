//! `renameat2`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Access, Errno, Ino, Name, NewNode, RenameFlags, Reply};

use super::rmdir::check_empty;
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::rank::RenamePlan;
use crate::record::{Body, Inode};
use crate::step::{Step, StreamCall};

impl Meta {
    /// `renameat2`. Atomic: at any time, also after a crash, either the old or the new state
    /// exists.
    pub(crate) fn rename(
        &mut self,
        cx: &mut Cx<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        flags: RenameFlags,
    ) -> Step<Final<'_>> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL.into());
        }
        let plan = match self.config.ranks {
            1 => RenamePlan::Here,
            _ => self.rename_among_ranks(cx, from, to, flags)?,
        };
        match plan {
            RenamePlan::Here => self.rename_here(cx, from, to, flags),
            RenamePlan::Nothing => Ok(Final::of(Reply::Done)),
            RenamePlan::Edits(edits) => self.commit_edits(cx, edits, |meta, cx| {
                meta.note_moved(cx, to.0, to.1);
                if exchange {
                    meta.note_moved(cx, from.0, from.1);
                }
                Reply::Done
            }),
        }
    }

    fn rename_here(
        &mut self,
        cx: &mut Cx<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        flags: RenameFlags,
    ) -> Step<Final<'_>> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if from.0 != to.0 && (self.is_bounded(to.0)? || (exchange && self.is_bounded(from.0)?)) {
            self.count_open(cx)?;
        }
        let (moved, replaced) =
            (self.victim(cx, from.0, from.1)?.ino, self.state.target(to.0, &self.state.slot(to.1))?);
        if let Some(ino) = replaced.ino() {
            self.revoke_exclusive(cx, ino)?;
        }
        if from.0 != to.0 && self.state.limits_below(to.0)?.is_any() {
            self.revoke_all_exclusive(cx)?;
        }
        let inode = self.state.inode(moved)?;
        let (from_dir, to_dir) = (self.state.dir(from.0)?, self.state.dir(to.0)?);
        cx.check(to_dir, Access::EXEC)?;
        let target = self.state.target(to.0, &self.state.slot(to.1))?.ino();
        let target = target.map(|ino| self.state.inode(ino)).transpose()?;
        cx.check_change(to_dir)?;
        if self.state.is_removed(to.0)? {
            return Err(Errno::ENOENT.into());
        }
        self.check_moved(cx, inode, from_dir, to_dir)?;
        match target {
            None if exchange => return Err(Errno::ENOENT.into()),
            None => {}
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST.into()),
            Some(target) if target.ino == inode.ino => return Ok(Final::of(Reply::Done)),
            Some(target) if exchange => {
                let target = target.ino;
                return self.exchange_here(cx, from, to, (moved, target));
            }
            Some(target) => check_replaced(cx, inode, to_dir, target)?,
        }
        let replaced = target.map(|target| target.ino);
        let whiteout = flags
            .contains(RenameFlags::WHITEOUT)
            .then(|| self.new_inode(cx, from.0, &NewNode::CharDevice(0), (0, 0), None).map(Box::new));
        let whiteout = whiteout.transpose()?;
        let mut gains = Vec::new();
        let mut losses: Vec<_> = target.map(|target| (to.0, target.weight())).into_iter().collect();
        if from.0 != to.0 {
            gains.push((to.0, inode.weight()));
            losses.push((from.0, inode.weight()));
        }
        gains.extend(whiteout.as_ref().map(|inode| (from.0, inode.weight())));
        self.state.admit(&gains, &losses)?;
        let ((from_dir, old), (to_dir, new)) = ((from.0, from.1.clone()), (to.0, to.1.clone()));
        let event = Event::Rename { from_dir, from: old, to_dir, to: new, whiteout, time: cx.now };
        self.commit(cx, &event, |meta, cx| {
            meta.note_moved(cx, to_dir, to.1);
            if let Some(ino) = replaced {
                meta.name_taken(cx, ino);
            }
            Reply::Done
        })
    }

    /// Exchanges the inodes of two names, of which all but the target's own is checked.
    fn exchange_here(
        &mut self,
        cx: &mut Cx<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        (moved, target): (Ino, Ino),
    ) -> Step<Final<'_>> {
        let (inode, target) = (self.state.inode(moved)?, self.state.inode(target)?);
        let (from_dir, to_dir) = (self.state.dir(from.0)?, self.state.dir(to.0)?);
        cx.check_removal(to_dir, target)?;
        self.check_moved(cx, target, to_dir, from_dir)?;
        if from.0 != to.0 {
            let (weight, target_weight) = (inode.weight(), target.weight());
            let gains = [(to.0, weight), (from.0, target_weight)];
            self.state.admit(&gains, &[(from.0, weight), (to.0, target_weight)])?;
        }
        let ((from_dir, old), (to_dir, new)) = ((from.0, from.1.clone()), (to.0, to.1.clone()));
        let event = Event::Exchange { from_dir, from: old, to_dir, to: new, time: cx.now };
        self.commit(cx, &event, |meta, cx| {
            meta.note_moved(cx, from_dir, from.1);
            meta.note_moved(cx, to_dir, to.1);
            Reply::Done
        })
    }

    /// True if a quota of bytes applies to the directory.
    pub(crate) fn is_bounded(&self, dir: Ino) -> Step<bool> {
        Ok(self.state.limits(dir)?.bytes.is_some())
    }

    /// Checks that a directory does not move into itself, and that the caller may change its `..`.
    pub(super) fn check_moved(&self, cx: &Cx<'_>, inode: &Inode, from: &Inode, to: &Inode) -> Step<()> {
        if !inode.is_dir() || from.ino == to.ino {
            return Ok(());
        }
        cx.check(inode, Access::WRITE)?;
        self.check_not_above(inode, to)
    }

    /// Checks that a directory is not another one or above it.
    pub(super) fn check_not_above(&self, inode: &Inode, to: &Inode) -> Step<()> {
        let mut ancestor = to;
        while ancestor.ino != Ino::ROOT {
            if ancestor.ino == inode.ino {
                return Err(Errno::EINVAL.into());
            }
            let Body::Directory(directory) = &ancestor.body else { return Err(Errno::EIO.into()) };
            if directory.parent.rank() != ancestor.ino.rank() {
                // `rename_among_ranks` has checked the ancestors above.
                return Ok(());
            }
            ancestor = self.state.dir(directory.parent)?;
        }
        Ok(())
    }
}

/// Checks that a moved inode may replace another one.
pub(super) fn check_replaced(cx: &Cx<'_>, moved: &Inode, dir: &Inode, target: &Inode) -> Step<()> {
    cx.check_removal(dir, target)?;
    if moved.is_dir() {
        check_empty(target)?;
    } else if target.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    if moved.is_streamed() {
        // After a crash there is the old file or the new one, not a name without bytes.
        cx.stream(StreamCall::Sync { ino: moved.ino })?;
    }
    Ok(())
}
