//! POSIX access control lists (POSIX 1003.1e draft 17), in the kernel's encoding of
//! `system.posix_acl_*`.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// An access control list. Each right is a value of three bits, rwx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    pub user: u8,
    pub group: u8,
    pub other: u8,
    /// Present if there are named entries; may be present without.
    pub mask: Option<u8>,
    /// Named users, by id.
    pub users: Vec<(u32, u8)>,
    /// Named groups, by id.
    pub groups: Vec<(u32, u8)>,
}

impl Acl {
    /// The maximum number of entries, those that fit into 64 KiB.
    const MAX_ENTRIES: usize = 8191;

    /// Decodes the value passed to `setxattr`; `None` if it is not a valid list.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (version, entries) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION
            || entries.len() % 8 != 0
            || entries.len() / 8 > Self::MAX_ENTRIES
        {
            return None;
        }
        let mut acl = Self { user: 0, group: 0, other: 0, mask: None, users: Vec::new(), groups: Vec::new() };
        let mut seen = 0;
        for entry in entries.chunks_exact(8) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let right =
                u8::try_from(u16::from_le_bytes([entry[2], entry[3]])).ok().filter(|right| *right <= 7)?;
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            if !matches!(tag, USER | GROUP) && seen & tag != 0 {
                return None;
            }
            seen |= tag;
            match tag {
                USER_OBJ => acl.user = right,
                GROUP_OBJ => acl.group = right,
                OTHER => acl.other = right,
                MASK => acl.mask = Some(right),
                USER if id != NO_ID => acl.users.push((id, right)),
                GROUP if id != NO_ID => acl.groups.push((id, right)),
                _ => return None,
            }
        }
        let named = !acl.users.is_empty() || !acl.groups.is_empty();
        if seen & (USER_OBJ | GROUP_OBJ | OTHER) != USER_OBJ | GROUP_OBJ | OTHER
            || (named && acl.mask.is_none())
        {
            return None;
        }
        acl.users.sort_unstable();
        acl.groups.sort_unstable();
        let twice = |list: &[(u32, u8)]| list.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!twice(&acl.users) && !twice(&acl.groups)).then_some(acl)
    }

    /// The value that `getxattr` returns.
    pub fn format(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut push = |tag: u16, right: u8, id: u32| {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&u16::from(right).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        };
        push(USER_OBJ, self.user, NO_ID);
        self.users.iter().for_each(|(id, right)| push(USER, *right, *id));
        push(GROUP_OBJ, self.group, NO_ID);
        self.groups.iter().for_each(|(id, right)| push(GROUP, *right, *id));
        if let Some(mask) = self.mask {
            push(MASK, mask, NO_ID);
        }
        push(OTHER, self.other, NO_ID);
        bytes
    }

    /// True if it says no more than the nine permission bits.
    pub fn is_minimal(&self) -> bool {
        self.mask.is_none()
    }

    /// The nine permission bits for it; the group's are the mask's, if there is one.
    pub fn perm(&self) -> u32 {
        u32::from(self.user) << 6 | u32::from(self.mask.unwrap_or(self.group)) << 3 | u32::from(self.other)
    }

    /// Applies `chmod`.
    pub fn set_perm(&mut self, perm: u32) {
        self.user = (perm >> 6 & 7) as u8;
        *self.mask.as_mut().unwrap_or(&mut self.group) = (perm >> 3 & 7) as u8;
        self.other = (perm & 7) as u8;
    }

    /// The list of a new entry in a directory with this default list. `perm` bounds every class.
    pub fn inherit(&self, perm: u32) -> Self {
        let mut acl = self.clone();
        acl.user &= (perm >> 6 & 7) as u8;
        *acl.mask.as_mut().unwrap_or(&mut acl.group) &= (perm >> 3 & 7) as u8;
        acl.other &= (perm & 7) as u8;
        acl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Acl {
        Acl {
            user: 7,
            group: 5,
            other: 0,
            mask: Some(5),
            users: alloc::vec![(5, 7)],
            groups: alloc::vec![(9, 4)],
        }
    }

    #[test]
    fn a_list_survives_the_kernels_encoding() {
        assert_eq!(Acl::parse(&sample().format()), Some(sample()));
    }

    #[test]
    fn malformed_lists_are_refused() {
        let good = sample().format();
        for length in 0..good.len() {
            // A prefix of whole entries is valid only if it is a valid list; here none is.
            assert_eq!(Acl::parse(&good[..length]), None, "{length} bytes");
        }
        let mut twice = good.clone();
        twice.extend_from_slice(&good[4..12]);
        assert_eq!(Acl::parse(&twice), None);
    }

    #[test]
    fn the_mask_stands_for_the_group_in_the_mode() {
        let mut acl = sample();
        assert_eq!(acl.perm(), 0o750);
        acl.set_perm(0o711);
        assert_eq!((acl.mask, acl.group), (Some(1), 5));
        assert_eq!(acl.inherit(0o666).perm(), 0o600);
    }
}
