//! Permission checks: POSIX permission bits, access control lists, sticky directories, immutable
//! and append-only files.

use espalier_proto::{Access, Errno, FileType, InodeFlags, ModeClass, mode};

use crate::machine::Cx;
use crate::record::Inode;
use crate::step::{Step, Stop, Wait};

impl Cx<'_> {
    /// Fails with `EACCES` unless the caller has all permissions of `want`. An operation that has
    /// already truncated its file passes.
    pub(crate) fn check(&self, inode: &Inode, want: Access) -> Step<()> {
        if self.truncated().is_some() {
            return Ok(());
        }
        if want.contains(Access::WRITE) {
            check_not(inode, InodeFlags::IMMUTABLE)?;
        }
        if self.may(inode, want)? { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    pub(crate) fn may(&self, inode: &Inode, want: Access) -> Step<bool> {
        if self.caller.is_superuser() {
            return Ok(!want.contains(Access::EXEC) || inode.is_dir() || inode.perm & mode::ANY_EXEC != 0);
        }
        let grants = |right: u32| right & want.bits() == want.bits();
        let class = inode.permissions().mode_class(self.caller);
        if let ModeClass::Owner(rights) = class {
            return Ok(grants(rights));
        }
        let Some(acl) = &inode.acl else {
            return match class {
                ModeClass::Owner(rights) | ModeClass::Group(rights) => Ok(grants(rights)),
                // Fetching groups is costly: ask only if they matter.
                ModeClass::GroupOrOther { group, other } if grants(group) != grants(other) => {
                    Ok(self.is_member(inode.gid)? == grants(group))
                }
                ModeClass::GroupOrOther { other, .. } => Ok(grants(other)),
            };
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
        Ok(!is_member && grants(inode.perm & 7))
    }

    /// True if a group is the caller's primary or a supplementary one.
    pub(crate) fn is_member(&self, gid: u32) -> Step<bool> {
        if self.caller.gid == gid {
            return Ok(true);
        }
        let groups = self.caller.groups.as_ref().ok_or(Stop::Wait(Wait::Groups))?;
        Ok(groups.contains(&gid))
    }

    pub(crate) fn is_owner(&self, inode: &Inode) -> bool {
        inode.permissions().is_owned_by(self.caller)
    }

    /// True if the caller may remove only names of its own inodes from the directory.
    pub(crate) fn is_bound_by_sticky(&self, dir: &Inode) -> bool {
        dir.permissions().is_sticky_for(self.caller)
    }

    /// Checks that the caller may search the directory and change its entries.
    pub(crate) fn check_change(&self, dir: &Inode) -> Step<()> {
        check_interference(dir)?;
        self.check(dir, Access::WRITE | Access::EXEC)
    }

    /// Checks that an entry of a directory may be removed or renamed. Immutable and append-only
    /// inodes keep their names, and such directories their entries; in a sticky directory only the
    /// owner of the directory or of the entry may remove it.
    pub(crate) fn check_removal(&self, dir: &Inode, victim: &Inode) -> Step<()> {
        check_not(dir, InodeFlags::PROTECTED)?;
        check_not(victim, InodeFlags::PROTECTED)?;
        check_coupled(victim)?;
        let is_allowed = dir.permissions().allows_removal(self.caller, victim.permissions());
        if is_allowed { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    /// Checks that the caller may give an inode these flags.
    ///
    /// # Errors
    /// `EPERM` if the caller may not; `EOPNOTSUPP` if the inode cannot have flags.
    pub(crate) fn check_flags(&self, inode: &Inode, flags: InodeFlags) -> Step<()> {
        let old = inode.rare.flags;
        let has_flags =
            matches!(inode.kind, FileType::Regular | FileType::Directory) && !inode.has_no_metafile();
        if !has_flags {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let changed = old ^ flags;
        let needs_superuser = changed.intersects(InodeFlags::PROTECTED);
        if !self.is_owner(inode) || needs_superuser && !self.caller.is_superuser() {
            return Err(Errno::EPERM.into());
        }
        // An inode that stays immutable keeps its other flags.
        if (old & flags).contains(InodeFlags::IMMUTABLE) && !changed.is_empty() {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }

    /// Only members of the group may set the set-group-id bit.
    pub(crate) fn without_foreign_sgid(&self, perm: u32, gid: u32) -> Step<u32> {
        if perm & mode::SET_GID != 0 && !self.caller.is_superuser() && !self.is_member(gid)? {
            return Ok(perm & !mode::SET_GID);
        }
        Ok(perm)
    }

    /// Permissions without set-id bits. A set-group-id bit without group execution is no privilege;
    /// only callers outside the group lose it.
    pub(crate) fn without_privileges(&self, perm: u32, gid: u32) -> Step<u32> {
        let remaining = if perm & mode::GROUP_EXEC != 0 {
            perm & !mode::SET_GID
        } else {
            self.without_foreign_sgid(perm, gid)?
        };
        Ok(remaining & !mode::SET_UID)
    }
}

/// Fails with `EPERM` for an inode with one of these flags.
pub(crate) fn check_not(inode: &Inode, flags: InodeFlags) -> Step<()> {
    if inode.rare.flags.intersects(flags) { Err(Errno::EPERM.into()) } else { Ok(()) }
}

/// Fails with `EBUSY` for a directory whose entries only a merge may change.
pub(crate) fn check_interference(dir: &Inode) -> Step<()> {
    if dir.blocks_changes() { Err(Errno::EBUSY.into()) } else { Ok(()) }
}

/// Fails with `EBUSY` for a decoupled directory: until it is merged, it keeps its name.
pub(crate) fn check_coupled(inode: &Inode) -> Step<()> {
    if inode.decoupled().is_some() { Err(Errno::EBUSY.into()) } else { Ok(()) }
}
