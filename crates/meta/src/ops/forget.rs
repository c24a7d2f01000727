//! `forget`: clients drop inodes from their caches.

use alloc::vec::Vec;

use espalier_proto::{Ino, Reply};

use crate::machine::{Cx, Final, Meta};
use crate::step::{Step, Stop};

impl Meta {
    /// Forgets and releases inodes. Completed items are removed from the lists, since the operation
    /// may start over. An item that fails does not block the others.
    pub(crate) fn forget_all(
        &mut self,
        cx: &mut Cx<'_>,
        inodes: &mut Vec<(Ino, u64)>,
        released: &mut Vec<Ino>,
    ) -> Step<Reply> {
        let goes_on = |done: Step<Reply>| match done {
            Err(stop @ (Stop::Wait(_) | Stop::Again(_))) => Err(stop),
            _ => Ok(()),
        };
        // Forgets first: an inode that is forgotten before its release needs no recall.
        while let Some((ino, lookups)) = inodes.last() {
            goes_on(self.forget(cx, *ino, *lookups))?;
            inodes.pop();
        }
        while let Some(ino) = released.last() {
            goes_on(self.release(cx, *ino).map(Final::end_part))?;
            released.pop();
        }
        Ok(Reply::Done)
    }

    /// Drops a client's lookups of an inode. An inode without lookups, opens and names is freed.
    pub(crate) fn forget(&mut self, cx: &mut Cx<'_>, ino: Ino, lookups: u64) -> Step<Reply> {
        if let Some(cached) = self.state.inodes.untracked(&ino) {
            cached.lookups = cached.lookups.saturating_sub(lookups);
            if !cached.in_use() {
                self.forget_moved(ino);
            }
            self.purge_if_unused(cx, ino);
        } else if let Some(known) = self.state.known.get_mut(&ino) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                self.state.known.remove(&ino);
                self.forget_moved(ino);
            }
        } else if self.state.reclaimed.give_up(ino, lookups, 0) {
            self.forget_moved(ino);
        }
        Ok(Reply::Done)
    }
}
