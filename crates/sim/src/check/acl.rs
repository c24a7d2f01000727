//! Access control lists: a reference implementation of draft 17 of POSIX 1003.1e and acl(5).

use std::collections::BTreeMap;

use espalier_proto::{Errno, FileType, mode};

use super::outcome::ExpectedOutcome;
use super::permit::CallerCreds;
use super::tree::{ModelInode, ModelNode, Tree};

/// Extended attributes that represent the lists.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

pub fn is_list(name: &[u8]) -> bool {
    name == ACCESS || is_default(name)
}

pub fn is_default(name: &[u8]) -> bool {
    name == DEFAULT
}

/// Tags of entries, as in `linux/posix_acl.h`.
const OWNER: u16 = 1;
const NAMED_USER: u16 = 2;
const GROUP: u16 = 4;
const NAMED_GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

const VERSION: u32 = 2;
const NOBODY: u32 = u32::MAX;

/// Permissions by tag and id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct List(BTreeMap<(u16, u32), u32>);

impl List {
    /// The list that is equivalent to a mode.
    pub fn of_mode(perm: u32) -> Self {
        let right = |tag, shift: u32| ((tag, NOBODY), perm >> shift & 7);
        Self([right(OWNER, 6), right(GROUP, 3), right(OTHER, 0)].into())
    }

    /// Decodes a list; `None` if it is invalid.
    fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk()?;
        let mut list = BTreeMap::new();
        let mut is_valid = u32::from_le_bytes(*version) == VERSION && entries.len().is_multiple_of(8);
        for entry in entries.chunks_exact(8) {
            let [a, b, c, d, e, f, g, h] = *entry else { return None };
            let (tag, right) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
            let id = match tag {
                NAMED_USER | NAMED_GROUP => u32::from_le_bytes([e, f, g, h]),
                _ => NOBODY,
            };
            let is_named = id != NOBODY;
            let is_known = matches!(tag, OWNER | GROUP | MASK | OTHER) || is_named;
            is_valid &= is_known && right <= 7 && list.insert((tag, id), right.into()).is_none();
        }
        let has = |tag| list.contains_key(&(tag, NOBODY));
        let names = list.keys().any(|(tag, _)| matches!(*tag, NAMED_USER | NAMED_GROUP));
        is_valid &= has(OWNER) && has(GROUP) && has(OTHER) && (has(MASK) || !names);
        is_valid.then_some(Self(list))
    }

    fn encoded(&self) -> Vec<u8> {
        let entry = |((tag, id), right): (&(u16, u32), &u32)| {
            let right = *right as u16;
            tag.to_le_bytes().into_iter().chain(right.to_le_bytes()).chain(id.to_le_bytes())
        };
        VERSION.to_le_bytes().into_iter().chain(self.0.iter().flat_map(entry)).collect()
    }

    fn right(&self, tag: u16) -> Option<u32> {
        self.0.get(&(tag, NOBODY)).copied()
    }

    /// True if the list has entries that a mode cannot express.
    fn is_extended(&self) -> bool {
        self.0.len() > 3
    }

    /// The tag to which the group bits of the mode correspond.
    fn class(&self) -> u16 {
        if self.right(MASK).is_some() { MASK } else { GROUP }
    }

    fn mode(&self) -> u32 {
        let right = |tag| self.right(tag).unwrap_or(0);
        right(OWNER) << 6 | right(self.class()) << 3 | right(OTHER)
    }

    fn set_mode(&mut self, perm: u32) {
        let class = self.class();
        for (tag, shift) in [(OWNER, 6), (class, 3), (OTHER, 0)] {
            self.0.insert((tag, NOBODY), perm >> shift & 7);
        }
    }

    /// True if the list grants `want` on an inode with this owner and group.
    pub fn allows(&self, creds: &CallerCreds, (uid, gid): (u32, u32), want: u32) -> bool {
        let allows = |right: u32| right & want == want;
        let mask = self.right(MASK).unwrap_or(7);
        if creds.uid == uid {
            return self.right(OWNER).is_some_and(allows);
        }
        if let Some(right) = self.0.get(&(NAMED_USER, creds.uid)) {
            return allows(right & mask);
        }
        let is_of = |(tag, id): &(u16, u32)| match *tag {
            GROUP => creds.is_of(gid),
            NAMED_GROUP => creds.is_of(*id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(|(of, _)| is_of(of)).map(|(_, right)| right & mask).peekable();
        // A single matching group entry must grant everything; other entries do not apply to group
        // members.
        if groups.peek().is_some() {
            return groups.any(allows);
        }
        self.right(OTHER).is_some_and(allows)
    }

    /// The permissions that all entries with these tags grant, limited by the mask.
    fn all(&self, tags: &[u16]) -> u32 {
        let mask = self.right(MASK).unwrap_or(7);
        let of = self.0.iter().filter(|((tag, _), _)| tags.contains(tag));
        of.fold(7, |all, ((tag, _), right)| {
            all & right & if matches!(*tag, OWNER | OTHER) { 7 } else { mask }
        })
    }
}

impl ModelInode {
    /// Updates the list for `chmod`.
    pub fn set_perm(&mut self, perm: u32) {
        self.perm = perm;
        if let Some(list) = &mut self.access_list {
            list.set_mode(perm);
        }
    }

    /// Sets the mode and lists of a new inode from the default list of its directory. The umask
    /// applies only without a default list.
    pub fn take_lists(&mut self, default: Option<&List>, umask: u32) {
        if self.kind == FileType::Symlink.bits() {
            self.perm = 0o777;
            return;
        }
        let Some(default) = default else {
            self.perm &= !umask;
            return;
        };
        let mut list = default.clone();
        list.set_mode(self.perm & default.mode());
        self.perm = self.perm & !0o777 | list.mode();
        self.access_list = Some(list).filter(|list| list.is_extended() && !self.no_metafile);
        self.default_list = self.is_dir().then(|| default.clone());
    }

    /// Permissions of no-metafile files in this directory: the intersection of all entries that may
    /// apply, without execute permission (docs/small-files.md).
    pub fn no_metafile_perm(&self) -> u32 {
        let of_mode = || List::of_mode(self.perm);
        let list = self.access_list.clone().unwrap_or_else(of_mode);
        let owner = list.all(&[OWNER]);
        let group = list.all(&[GROUP, NAMED_USER]);
        let other = list.all(&[OTHER, NAMED_USER, NAMED_GROUP]);
        (owner << 6 | group << 3 | other) & 0o666
    }
}

impl Tree<'_> {
    /// Sets a list; `None` or a value without entries removes it, and does not require that it
    /// exists.
    pub fn set_list(
        &mut self,
        node: ModelNode,
        creds: &CallerCreds,
        default: bool,
        value: Option<&[u8]>,
    ) -> ExpectedOutcome {
        let Some(inode) = self.inode(node) else { return ExpectedOutcome::Gone };
        let own = if default { &inode.default_list } else { &inode.access_list };
        let Some(value) = value else {
            if own.is_none() {
                return ExpectedOutcome::fails([Errno::ENODATA]);
            }
            self.put_list(node, creds, default, None);
            return ExpectedOutcome::Done;
        };
        let is_empty = value == VERSION.to_le_bytes() || value.is_empty();
        let list = List::parse(value);
        let is_minimal = list.as_ref().is_none_or(|list| !list.is_extended());
        let is_same = is_minimal && list.as_ref().is_none_or(|list| list.mode() == inode.perm & 0o777);
        let errnos = [
            (list.is_none() && !is_empty).then_some(Errno::EINVAL),
            (inode.kind == FileType::Symlink.bits()).then_some(Errno::EOPNOTSUPP),
            (default && !inode.is_dir() && !is_empty).then_some(Errno::EACCES),
            (default && !inode.is_dir() && is_empty).then_some(Errno::ENODATA),
            (inode.no_metafile && !default && !is_same).then_some(Errno::EPERM),
        ];
        if errnos.iter().any(Option::is_some) {
            return ExpectedOutcome::fails(errnos.into_iter().flatten());
        }
        self.put_list(node, creds, default, list);
        ExpectedOutcome::Done
    }

    fn put_list(&mut self, node: ModelNode, creds: &CallerCreds, default: bool, list: Option<List>) {
        self.change(node, |inode| {
            if default {
                inode.default_list = list;
                return;
            }
            // Only members of the group can set the set-group-id bit, in ACLs as in modes.
            inode.perm = creds.without_foreign_sgid(inode.perm, inode.gid);
            // Removing a list leaves the rest of the mode unchanged.
            if let Some(list) = &list {
                inode.perm = inode.perm & (mode::PERMISSIONS & !0o777) | list.mode();
            }
            inode.access_list = list.filter(List::is_extended);
        });
        self.update_dependents(node);
    }
}

/// The list as `getxattr` returns it.
pub fn encoded(inode: &ModelInode, name: &[u8]) -> ExpectedOutcome {
    let list = if is_default(name) { &inode.default_list } else { &inode.access_list };
    list.as_ref()
        .map_or(ExpectedOutcome::fails([Errno::ENODATA]), |list| ExpectedOutcome::Bytes(list.encoded()))
}

/// Names of the existing lists, as in `listxattr`.
pub fn names(inode: &ModelInode) -> impl Iterator<Item = u8> {
    let access = inode.access_list.iter().map(|_| ACCESS);
    let names = access.chain(inode.default_list.iter().map(|_| DEFAULT));
    names.flat_map(|name| name.iter().copied().chain([0]))
}
