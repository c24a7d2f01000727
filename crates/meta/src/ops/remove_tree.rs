//! Removal of trees at once (`espalier rm -r`).

use alloc::vec::Vec;

use espalier_proto::{Access, Errno, Ino, Name, Reply};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::progress::{Progress, Walk};
use crate::state::{Location, Target};
use crate::step::{Step, Stop, Wait};

/// Entries examined per step.
const STEP: usize = 1024;
/// Number of restarts because permissions below have changed, after which the caller gets `EBUSY`.
const TRIES: u32 = 100;

impl Meta {
    /// Removes a directory with everything below it, atomically: the directory becomes an orphan in
    /// which nothing can be created or found, and its contents are freed in the background
    /// (`trash.rs`).
    pub(crate) fn remove_tree(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<Final<'_>> {
        if self.config.ranks > 1 {
            // Entries may be at other ranks.
            return Err(Errno::EXDEV.into());
        }
        self.writable()?;
        let has_entries = self.state.dir(dir)?.has_entries();
        let (parent, name) = self.name_of_dir(dir)?;
        self.victim(cx, parent, &name)?;
        self.state.load_above(parent)?;
        if has_entries && self.state.trash.len() >= Self::MAX_TRASH {
            return Err(Stop::Wait(Wait::Room));
        }
        if has_entries && (!cx.caller.is_superuser() || self.state.counts.protected > 0) {
            self.check_below(cx, dir)?;
        }
        let event = Event::Unlink { dir: parent, name: name.clone(), time: cx.now };
        self.commit(cx, &event, |meta, cx| {
            if has_entries {
                meta.add_trash(dir);
            } else {
                meta.name_taken(cx, dir);
            }
            Reply::Removed { dir: parent, name }
        })
    }

    /// The parent and name of a directory.
    fn name_of_dir(&self, dir: Ino) -> Step<(Ino, Name)> {
        match self.state.cached(dir)?.location {
            Location::Dentry { dir: parent, hash } => {
                let slot = self.state.primary_slot(parent, hash, dir).ok_or(Errno::EIO)?;
                Ok((parent, slot.name))
            }
            Location::Table => Err(Errno::EBUSY.into()),
            Location::Orphan => Err(Errno::ENOENT.into()),
        }
    }

    /// Fails unless the caller may list and empty every non-empty directory below, all at one time:
    /// the walk starts again when one that it has visited changes.
    fn check_below(&self, cx: &mut Cx<'_>, top: Ino) -> Step<()> {
        let mut walk = match core::mem::take(cx.progress) {
            Progress::Walk(walk) if walk.top == top => walk,
            _ => Walk::new(top),
        };
        if walk.disturbed {
            if walk.again == TRIES {
                return Err(Errno::EBUSY.into());
            }
            walk = Walk { again: walk.again + 1, ..Walk::new(top) };
        }
        let outcome = self.walk(cx, &mut walk);
        *cx.progress = Progress::Walk(walk);
        outcome
    }

    fn walk(&self, cx: &Cx<'_>, walk: &mut Walk) -> Step<()> {
        let mut left = STEP;
        while let Some((dir, after)) = walk.stack.last().copied() {
            let inode = self.state.dir(dir)?;
            if after == 0 {
                cx.check(inode, Access::READ | Access::WRITE | Access::EXEC)?;
            }
            let found = self.entries_after(cx, dir, after)?;
            let is_bound = cx.is_bound_by_sticky(inode) || self.state.counts.protected > 0;
            let mut below = Vec::new();
            for (_, target) in &found {
                match target {
                    Target::Primary(ino) => {
                        let entry = self.state.inode(*ino)?;
                        cx.check_removal(inode, entry)?;
                        below.extend(entry.has_entries().then_some((*ino, 0)));
                    }
                    Target::Remote(remote) if is_bound => {
                        cx.check_removal(inode, self.state.inode(remote.ino)?)?
                    }
                    Target::Remote(..) | Target::Absent => {}
                }
            }
            match (found.last(), walk.stack.last_mut()) {
                (Some((slot, _)), Some(top)) => top.1 = slot.hash,
                _ => drop(walk.stack.pop()),
            }
            walk.stack.extend(below);
            left = left.saturating_sub(found.len().max(1));
            if left == 0 && !walk.stack.is_empty() {
                return Err(Stop::Wait(Wait::Others));
            }
        }
        Ok(())
    }
}
