//! `lookup`.

use espalier_proto::{Access, Errno, Ino, Name, Reply};

use crate::machine::{Cx, Meta};
use crate::state::Target;
use crate::step::Step;

impl Meta {
    /// Looks up a name in a directory.
    pub(crate) fn lookup(&mut self, cx: &mut Cx<'_>, dir: Ino, name: &Name) -> Step<Reply> {
        let inode = self.state.dir(dir)?;
        cx.check(inode, Access::EXEC)?;
        let cacheable = inode.searchable_by_all();
        if inode.hides_entries() || self.state.is_removed(dir)? {
            return Ok(Reply::Absent { cacheable: false });
        }
        let slot = self.state.slot(name);
        let ino = match self.state.target(dir, &slot)? {
            Target::Absent => {
                if let Some(cached) = self.state.inodes.untracked(&dir) {
                    cached.names_are_new = false;
                }
                self.note_absent(cx, dir, &slot);
                return Ok(Reply::Absent { cacheable });
            }
            target => match target.at_other_rank(self.config.rank) {
                Some(referent) => {
                    return Ok(self.reply_remote(cx, (dir, slot.hash), cacheable, referent));
                }
                None => target.ino().ok_or(Errno::EIO)?,
            },
        };
        self.revoke_exclusive(cx, ino)?;
        // Does not wait for sizes: kernels lock the directory during a lookup.
        let (attr, unmeasured) = self.attr_at_once(cx, ino)?;
        let entry = self.entry(cx, Some((dir, slot.hash)), cacheable, attr);
        Ok(Reply::Entry(entry).unless_unmeasured(unmeasured))
    }
}
