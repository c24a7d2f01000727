//! Permission rules that metadata servers and clients share: owners, mode bits, sticky directories.
//! Access control lists and inode flags are the server's (`meta`).

use crate::attr::{Attr, mode};
use crate::ids::Caller;

/// The attributes of an inode that permission checks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Permission, set-id and sticky bits.
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The mode bits that apply to a caller, from 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeClass {
    Owner(u32),
    /// The caller's primary group is the inode's.
    Group(u32),
    /// Those of the group if one of the caller's supplementary groups is the inode's.
    GroupOrOther {
        group: u32,
        other: u32,
    },
}

impl Permissions {
    /// True for the owner and for the superuser.
    pub fn is_owned_by(self, caller: &Caller) -> bool {
        caller.is_superuser() || caller.uid == self.uid
    }

    /// For a directory: true if the caller may remove only names of its own inodes from it.
    pub fn is_sticky_for(self, caller: &Caller) -> bool {
        self.perm & mode::STICKY != 0 && !self.is_owned_by(caller)
    }

    /// For a directory: true if the caller may remove a name of `victim` as far as ownership goes.
    pub fn allows_removal(self, caller: &Caller, victim: Self) -> bool {
        !self.is_sticky_for(caller) || victim.is_owned_by(caller)
    }

    /// The mode bits of owner, group and others, each from 0 to 7.
    pub fn mode_bits(self) -> [u32; 3] {
        [6, 3, 0].map(|shift| self.perm >> shift & 7)
    }

    /// The mode bits that apply, for callers other than the superuser.
    pub fn mode_class(self, caller: &Caller) -> ModeClass {
        let [owner, group, other] = self.mode_bits();
        match caller {
            Caller { uid, .. } if *uid == self.uid => ModeClass::Owner(owner),
            Caller { gid, .. } if *gid == self.gid => ModeClass::Group(group),
            _ => ModeClass::GroupOrOther { group, other },
        }
    }
}

impl Attr {
    pub fn permissions(&self) -> Permissions {
        Permissions { perm: self.perm, uid: self.uid, gid: self.gid }
    }
}
