//! Set-id bits and `security.capability`: the reference for the program, as the VFS has them.
//! Callers other than the superuser lack `CAP_FSETID`, which their calls state.

use espalier_client::{Call, RangeCall};
use espalier_proto::{Access, Errno, RangeOp, Request, SetAttr, mode};

use super::action::Action;
use super::outcome::ExpectedOutcome;
use super::permit::CallerCreds;
use super::tree::{ModelInode, ModelNode, Tree};

pub const CAPABILITY: &[u8] = b"security.capability";

/// Why a file loses its privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Bytes,
    /// A step that removes no set-id bits. A write whose caller lacks `CAP_FSETID` has one after
    /// the one that removes both. A truncation has one first, as in Linux: if it is refused then,
    /// it has removed the capability only.
    Capability,
    /// `truncate(2)`, which overlayfs is spared while it copies a file.
    Truncation,
    /// A write that the kernel does not report. Capabilities remain: the kernel removes them
    /// itself.
    Unreported,
}

/// The actions of a call on its file's privileges. Each executes at its own instant: the permission
/// was checked before, and may have been withdrawn.
pub fn removals(call: &Call<'_>) -> Vec<Action> {
    let (ino, causes) = match *call {
        Call::Range(RangeCall { ino, op: RangeOp::Write { .. }, kill_suid_gid: true, .. }) => {
            (ino, vec![Cause::Bytes, Cause::Capability])
        }
        Call::Range(RangeCall { ino, op: RangeOp::Write { .. } | RangeOp::Allocate { .. }, .. }) => {
            (ino, vec![Cause::Bytes])
        }
        Call::Request(Request::Open { ino, how }) if how.truncate => (ino, vec![Cause::Bytes]),
        Call::Request(Request::SetAttr { ino, set: SetAttr { size: Some(_), .. } }) => {
            (ino, vec![Cause::Capability, Cause::Truncation])
        }
        Call::Request(Request::SetAttr { ino, set }) if set.kill_suid_gid => (ino, vec![Cause::Unreported]),
        _ => return Vec::new(),
    };
    causes.into_iter().map(|cause| Action::RemovePrivileges { ino, cause }).collect()
}

impl CallerCreds {
    /// The mode that a file gets if the caller sets this one: set-group-id bits are for members of
    /// the group.
    pub fn without_foreign_sgid(&self, perm: u32, gid: u32) -> u32 {
        if self.uid == 0 || self.is_of(gid) { perm } else { perm & !mode::SET_GID }
    }

    /// A set-group-id bit without group execution is no privilege.
    fn without_privileges(&self, perm: u32, gid: u32) -> u32 {
        let retained = match perm & mode::GROUP_EXEC {
            0 => self.without_foreign_sgid(perm, gid),
            _ => perm & !mode::SET_GID,
        };
        retained & !mode::SET_UID
    }
}

impl ModelInode {
    pub fn lose_set_ids(&mut self, creds: &CallerCreds) {
        if !self.is_dir() && !self.no_metafile {
            self.perm = creds.without_privileges(self.perm, self.gid);
        }
    }

    /// Applies a directory's set-group-id bit to a new entry: it inherits the group, and a
    /// directory the bit, too.
    pub fn take_group(&mut self, dir: &Self, creds: &CallerCreds) {
        if dir.perm & mode::SET_GID == 0 {
            return;
        }
        self.gid = dir.gid;
        if self.is_dir() {
            self.perm |= mode::SET_GID;
        } else if self.perm & mode::GROUP_EXEC != 0 {
            self.perm = creds.without_foreign_sgid(self.perm, self.gid);
        }
    }
}

impl Tree<'_> {
    pub fn remove_privileges(
        &mut self,
        node: ModelNode,
        creds: &CallerCreds,
        cause: Cause,
    ) -> ExpectedOutcome {
        self.change(node, |inode| {
            let is_copied = creds.uid == 0 && inode.uid == 0 && inode.names == 0;
            let may = match cause {
                Cause::Bytes | Cause::Truncation => true,
                Cause::Capability => false,
                Cause::Unreported => creds.owns(inode) || creds.may(inode, Access::WRITE),
            };
            if creds.uid != 0 && may {
                inode.lose_set_ids(creds);
            }
            if cause == Cause::Bytes || cause != Cause::Unreported && !is_copied {
                inode.xattrs.remove(CAPABILITY);
            }
        });
        ExpectedOutcome::Done
    }

    pub fn change_owner(
        &mut self,
        node: ModelNode,
        creds: &CallerCreds,
        (uid, gid): (Option<u32>, Option<u32>),
        strip: u64,
    ) -> ExpectedOutcome {
        let Some(inode) = self.inode(node) else { return ExpectedOutcome::Gone };
        let new = (uid.unwrap_or(inode.uid), gid.unwrap_or(inode.gid));
        if inode.no_metafile && new != (inode.uid, inode.gid) {
            return ExpectedOutcome::fails([Errno::EPERM]);
        }
        self.change(node, |inode| {
            inode.lose_set_ids(creds);
            if !inode.is_dir() {
                inode.xattrs.remove(CAPABILITY);
            }
            (inode.uid, inode.gid) = new;
        });
        self.update_dependents(node);
        ExpectedOutcome::Stat(self.stat(node, strip))
    }
}

/// True if a caller may change an inode's owner and group to these.
pub fn may_change_owner(
    creds: &CallerCreds,
    inode: &ModelInode,
    (uid, gid): (Option<u32>, Option<u32>),
) -> bool {
    let is_same = uid.is_none_or(|uid| uid == inode.uid);
    creds.owns(inode) && is_same && gid.is_none_or(|gid| gid == inode.gid || creds.is_of(gid))
}
