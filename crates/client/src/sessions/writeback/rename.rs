//! Write-back of renames in one directory, by which programs replace a file with its new version.

use espalier_proto::{Access, Attr, Caller, FileType, Ino, Name, RenameFlags, Request};

use super::ChangeKind;
use crate::sessions::rights::certainly_may;
use crate::sessions::{OwnedCall, Sessions};
use crate::{Answer, Call};

impl<T> Sessions<T> {
    /// Acknowledges and sends a rename in an exclusive directory of a file or symbolic link that no
    /// other client knows.
    pub(super) fn writeback_rename(&mut self, now: u64, incoming: &OwnedCall<T>) -> Option<(Answer, u64)> {
        let Call::Request(request) = &incoming.call else { return None };
        let Request::Rename { from_dir: dir, from, to_dir, to, flags, .. } = request else { return None };
        let (dir, rank) = (*dir, dir.rank());
        if dir != *to_dir || from == to || !RenameFlags::NOREPLACE.contains(*flags) {
            return None;
        }
        let parent = self.cache.exclusive_dir(dir, now).filter(|_| self.knows_fragments(dir, now))?;
        let time = self.may_acknowledge(now, rank)?;
        let may_change = certainly_may(&parent, &incoming.caller, Access::WRITE | Access::EXEC, true);
        let is_blocked = [from, to].iter().any(|name| self.calls.is_any_blocked_named(dir, name));
        if !may_change || is_blocked || self.cache.has_pending_name(dir, to) {
            return None;
        }
        let moved = self.removable(dir, from, &parent, &incoming.caller, now)?;
        // Operations on a file are sent to its rank, and renames are to be executed at the names'.
        let is_here = self.rank_of(moved.ino) == rank;
        if moved.kind == FileType::Directory || !is_here || self.calls.is_any_blocked_about(moved.ino) {
            return None;
        }
        let replaced = if self.cache.is_absent(dir, to, now) {
            None
        } else {
            let replaced = self.removable(dir, to, &parent, &incoming.caller, now)?;
            let is_used =
                self.client.files.contains_key(&replaced.ino) || self.cache.has_pending(replaced.ino);
            if is_used || replaced.kind == FileType::Directory || !flags.is_empty() {
                return None;
            }
            Some(replaced)
        };
        self.announce_delegated(now, moved.ino);
        let moved = Attr { ctime: time, ..moved };
        self.cache.rename_pending(dir, [from, to], &moved, replaced.as_ref(), now);
        let change_kind = ChangeKind::Rename([from.clone(), to.clone()]);
        let change = self.writeback.new_change(incoming.call_id, dir, change_kind, moved.ino, now);
        let request = request.clone().acknowledged(moved.ino, time);
        self.send_in_order(change, incoming.caller.clone(), request);
        Some((Answer::Done, 0))
    }

    /// The attributes of an inode in an exclusive directory, if this client is its sole holder and
    /// the caller may remove this name, which is the only one.
    pub(super) fn removable(
        &self,
        dir: Ino,
        name: &Name,
        parent: &Attr,
        caller: &Caller,
        now: u64,
    ) -> Option<Attr> {
        let attr = self.cache.sole_holder_attr(dir, name, now)?;
        let is_plain = match attr.kind {
            // The size of a partitioned directory's record is that of one fragment.
            FileType::Directory => attr.size == 0 && attr.map_version == 0,
            _ => attr.nlink == 1 && !attr.streamed,
        };
        let may = parent.permissions().allows_removal(caller, attr.permissions());
        (is_plain && may && attr.flags.is_empty()).then_some(attr)
    }
}
