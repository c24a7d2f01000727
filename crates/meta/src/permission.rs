//! Who may do what: POSIX permission bits, access control lists, sticky directories.

use espalier_proto::{Access, Errno, mode};

use crate::machine::Cx;
use crate::record::Inode;
use crate::step::{Step, Stop, Wait};

impl Cx<'_> {
    /// `EACCES` unless the caller may do all of `want`. Who was allowed to truncate a file is not told afterwards that they were not.
    pub(crate) fn check(&self, inode: &Inode, want: Access) -> Step<()> {
        if self.has_truncated() || self.may(inode, want)? { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    pub(crate) fn may(&self, inode: &Inode, want: Access) -> Step<bool> {
        if self.caller.is_superuser() {
            return Ok(!want.contains(Access::EXEC) || inode.is_dir() || inode.perm & mode::ANY_EXEC != 0);
        }
        let grants = |right: u32| right & want.bits() == want.bits();
        let (user, group, other) = (inode.perm >> 6 & 7, inode.perm >> 3 & 7, inode.perm & 7);
        if self.caller.uid == inode.uid {
            return Ok(grants(user));
        }
        let Some(acl) = &inode.acl else {
            // Groups are costly to learn: ask only if they matter.
            return Ok(grants(if grants(group) != grants(other) && self.is_member(inode.gid)? {
                group
            } else {
                other
            }));
        };
        let mask = acl.mask.map_or(7, u32::from);
        if let Some((_, right)) = acl.users.iter().find(|(uid, _)| *uid == self.caller.uid) {
            return Ok(grants(u32::from(*right) & mask));
        }
        let mut is_member = false;
        for (gid, right) in core::iter::once((inode.gid, acl.group)).chain(acl.groups.iter().copied()) {
            if self.is_member(gid)? {
                is_member = true;
                if grants(u32::from(right) & mask) {
                    return Ok(true);
                }
            }
        }
        Ok(!is_member && grants(other))
    }

    /// Whether the caller is in a group, by its primary or a supplementary one.
    pub(crate) fn is_member(&self, gid: u32) -> Step<bool> {
        if self.caller.gid == gid {
            return Ok(true);
        }
        let groups = self.caller.groups.as_ref().ok_or(Stop::Wait(Wait::Groups))?;
        Ok(groups.contains(&gid))
    }

    pub(crate) fn is_owner(&self, inode: &Inode) -> bool {
        self.caller.is_superuser() || self.caller.uid == inode.uid
    }

    /// The directory may be searched, and its entries changed.
    pub(crate) fn check_change(&self, dir: &Inode) -> Step<()> {
        self.check(dir, Access::WRITE | Access::EXEC)
    }

    /// In a sticky directory only the owner of the directory or of the entry may remove or rename it.
    pub(crate) fn check_sticky(&self, dir: &Inode, victim: &Inode) -> Step<()> {
        if dir.perm & mode::STICKY != 0 && !self.is_owner(dir) && !self.is_owner(victim) {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }

    /// The set-group-id bit is for members of the group alone to set.
    pub(crate) fn without_foreign_sgid(&self, perm: u32, gid: u32) -> Step<u32> {
        if perm & mode::SET_GID != 0 && !self.caller.is_superuser() && !self.is_member(gid)? {
            return Ok(perm & !mode::SET_GID);
        }
        Ok(perm)
    }
}
