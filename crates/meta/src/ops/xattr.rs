//! Extended attributes. The two for access control lists are stored in the inode, since every
//! permission check needs them.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_policy::PREFIX;
use espalier_proto::{Access, Errno, FileType, Ino, InodeFlags, Reply, XattrMode, mode};

use super::policy::{self, PolicyAttribute};
use super::usage::Virtual;
use crate::acl::Acl;
use crate::decouple::{DECOUPLE, MERGE};
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::permission::check_not;
use crate::record::Inode;
use crate::step::Step;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";
/// Maximum size of an inode's names and values in bytes; they share one record. As on Linux, a
/// value has at most 64 KiB.
const MAX_TOTAL: usize = 256 * 1024;
/// Maximum size of a list of names in bytes, as on Linux.
const MAX_LIST: usize = 65536;

impl Meta {
    pub(crate) fn getxattr(&mut self, cx: &mut Cx<'_>, ino: Ino, name: &[u8]) -> Step<Reply> {
        if let Some(which) = Virtual::of(name) {
            return self.get_virtual(cx, ino, which);
        }
        if let Some(which) = PolicyAttribute::of(name) {
            return self.get_policy_attribute(cx, ino, which);
        }
        if name == DECOUPLE.as_bytes() {
            return self.get_decoupled(ino);
        }
        let inode = self.state.inode(ino)?;
        let acl = match name {
            ACCESS_ACL => Some(&inode.acl),
            DEFAULT_ACL => Some(&inode.default_acl),
            _ => None,
        };
        if let Some(acl) = acl {
            let acl = acl.as_ref().ok_or(Errno::ENODATA)?;
            let value = full(acl, inode).format();
            self.note_inode(cx, ino);
            return Ok(Reply::Bytes(value.into()));
        }
        check_namespace(cx, inode, name, Access::READ)?;
        self.note_inode(cx, ino);
        let list = self.state.xattr_list(ino)?;
        let at = list.binary_search_by(|(n, _)| n.as_ref().cmp(name)).map_err(|_| Errno::ENODATA)?;
        Ok(Reply::Bytes(list[at].1.to_vec().into()))
    }

    pub(crate) fn listxattr(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let inode = self.state.inode(ino)?;
        let mut names: Vec<u8> = Vec::new();
        let mut push = |name: &[u8]| {
            names.extend_from_slice(name);
            names.push(0);
        };
        if inode.acl.is_some() {
            push(ACCESS_ACL);
        }
        if inode.default_acl.is_some() {
            push(DEFAULT_ACL);
        }
        for name in policy::attributes(inode) {
            push(name.as_bytes());
        }
        for (name, _) in self.state.xattr_list(ino)? {
            let is_shown = !name.starts_with(b"trusted.") || cx.caller.is_superuser();
            // Tools that copy attributes need not see them.
            if is_shown && !Self::is_of_balancer(ino, name) {
                push(name);
            }
        }
        self.note_inode(cx, ino);
        Ok(Reply::Bytes(names.into()))
    }

    pub(crate) fn setxattr(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        kill_sgid: bool,
    ) -> Step<Final<'_>> {
        self.growable()?;
        check_not(self.state.inode(ino)?, InodeFlags::PROTECTED)?;
        if matches!(name, ACCESS_ACL | DEFAULT_ACL) {
            // An ACL without entries removes it, as `setfacl -k` and `-b` do.
            let acl = (value.len() > 4).then(|| Acl::parse(value).ok_or(Errno::EINVAL)).transpose()?;
            return match name {
                DEFAULT_ACL => self.set_default_acl(cx, ino, acl),
                _ => self.set_access_acl(cx, ino, acl, kill_sgid),
            };
        }
        if let Some(which) = Virtual::of(name) {
            return self.set_virtual(cx, ino, which, Some(value), how);
        }
        if name.starts_with(PREFIX.as_bytes()) {
            return self.set_policy_attribute(cx, ino, name, Some(value), how);
        }
        if name == DECOUPLE.as_bytes() {
            return self.decouple(cx, ino, value);
        }
        if name == MERGE.as_bytes() {
            return self.merge(cx, ino, value);
        }
        if Self::is_of_balancer(ino, name) {
            return Err(Errno::EPERM.into());
        }
        let inode = self.state.inode(ino)?;
        check_namespace(cx, inode, name, Access::WRITE)?;
        self.check_has_metafile(ino)?;
        if name == CAPABILITY && self.is_written_directly(inode) && self.others_may_write(cx.client, ino)? {
            // Other clients' direct writes would not remove the capability.
            return Err(Errno::ETXTBSY.into());
        }
        let list = self.state.xattr_list(ino)?;
        let at = list.binary_search_by(|(n, _)| n.as_ref().cmp(name));
        match (how, at) {
            (XattrMode::Create, Ok(_)) => return Err(Errno::EEXIST.into()),
            (XattrMode::Replace, Err(_)) => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        let total: usize = list.iter().map(|(name, value)| name.len() + value.len()).sum();
        let old = at.map_or(0, |at| list[at].1.len() + name.len());
        let names: usize = list.iter().map(|(name, _)| name.len() + 1).sum();
        if total - old + name.len() + value.len() > MAX_TOTAL
            || (at.is_err() && names + name.len() + 1 > MAX_LIST)
        {
            return Err(Errno::ENOSPC.into());
        }
        let event = Event::SetXattr { ino, name: name.into(), value: Some(value.into()), time: cx.now };
        self.commit(cx, &event, |_, _| Reply::Done)
    }

    /// Removes `security.capability` before a file's bytes change. The kernel does so itself only
    /// for writes through its cache.
    pub(crate) fn drop_capability(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        let list = self.state.xattr_list(ino)?;
        match list.binary_search_by(|(n, _)| n.as_ref().cmp(CAPABILITY)) {
            Ok(_) => {
                self.writable()?;
                let event = Event::SetXattr { ino, name: CAPABILITY.into(), value: None, time: cx.now };
                Err(self.stage(cx, &event))
            }
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn removexattr(&mut self, cx: &mut Cx<'_>, ino: Ino, name: &[u8]) -> Step<Final<'_>> {
        self.writable()?;
        check_not(self.state.inode(ino)?, InodeFlags::PROTECTED)?;
        if let Some(which) = Virtual::of(name) {
            return self.set_virtual(cx, ino, which, None, XattrMode::Replace);
        }
        if PolicyAttribute::of(name).is_some() {
            return self.set_policy_attribute(cx, ino, name, None, XattrMode::Replace);
        }
        if name == DECOUPLE.as_bytes() {
            return self.abort_decoupled(cx, ino);
        }
        if Self::is_of_balancer(ino, name) {
            return Err(Errno::EPERM.into());
        }
        let inode = self.state.inode(ino)?;
        let is_acl = match name {
            ACCESS_ACL => Some(inode.acl.is_some()),
            DEFAULT_ACL => Some(inode.default_acl.is_some()),
            _ => None,
        };
        if let Some(present) = is_acl {
            if !present {
                return Err(Errno::ENODATA.into());
            }
            return match name {
                DEFAULT_ACL => self.set_default_acl(cx, ino, None),
                _ => self.set_access_acl(cx, ino, None, false),
            };
        }
        if name == CAPABILITY {
            self.check_capability_removal(cx, ino)?;
        } else {
            check_namespace(cx, inode, name, Access::WRITE)?;
        }
        if self.state.xattr_list(ino)?.binary_search_by(|(n, _)| n.as_ref().cmp(name)).is_err() {
            return Err(Errno::ENODATA.into());
        }
        let event = Event::SetXattr { ino, name: name.into(), value: None, time: cx.now };
        self.commit(cx, &event, |_, _| Reply::Done)
    }

    /// Checks that the caller may remove `security.capability`. A kernel removes a file's
    /// capabilities as the user who is about to write to it or change its owner. Kernels and
    /// libraries check `removexattr(2)` themselves, which needs `CAP_SETFCAP`. A client that does
    /// not check gains nothing: callers who pass this check could as well write to the file.
    fn check_capability_removal(&self, cx: &Cx<'_>, ino: Ino) -> Step<()> {
        let cached = self.state.cached(ino)?;
        let may = cx.is_owner(&cached.inode) || cached.opens > 0 || cx.may(&cached.inode, Access::WRITE)?;
        if may { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    fn set_default_acl(&mut self, cx: &mut Cx<'_>, ino: Ino, acl: Option<Acl>) -> Step<Final<'_>> {
        if !self.acl_holder(cx, ino)?.is_dir() {
            return Err(if acl.is_some() { Errno::EACCES } else { Errno::ENODATA }.into());
        }
        let event = Event::SetDefaultAcl { ino, acl: acl.map(Box::new), time: cx.now };
        self.commit_rights(cx, &event, |_, _| Reply::Done)
    }

    fn set_access_acl(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        acl: Option<Acl>,
        kill_sgid: bool,
    ) -> Step<Final<'_>> {
        let inode = self.acl_holder(cx, ino)?;
        let mut perm = inode.perm;
        // Without a list the mode keeps the bits of the former mask.
        if let Some(acl) = &acl {
            perm = perm & !0o777 | acl.perm();
        }
        if kill_sgid {
            perm &= !mode::SET_GID;
        } else {
            perm = cx.without_foreign_sgid(perm, inode.gid)?;
        }
        let acl = acl.filter(|acl| !acl.is_minimal()).map(Box::new);
        if inode.has_no_metafile() {
            let is_same = acl.is_none() && perm == inode.perm;
            return if is_same { Ok(Final::of(Reply::Done)) } else { Err(Errno::EPERM.into()) };
        }
        self.commit_rights(cx, &Event::SetAcl { ino, acl, perm, time: cx.now }, |_, _| Reply::Done)
    }

    /// The inode, if the caller may set its access control lists.
    fn acl_holder(&self, cx: &Cx<'_>, ino: Ino) -> Step<&Inode> {
        let inode = self.state.inode(ino)?;
        match inode.kind {
            FileType::Symlink => Err(Errno::EOPNOTSUPP.into()),
            _ if !cx.is_owner(inode) => Err(Errno::EPERM.into()),
            _ => Ok(inode),
        }
    }
}

/// The effective list: entries for the permission bits follow `chmod`.
fn full(acl: &Acl, inode: &Inode) -> Acl {
    let mut acl = acl.clone();
    if inode.acl.as_deref() == Some(&acl) {
        acl.set_perm(inode.perm);
    }
    acl
}

/// Checks access by an attribute's namespace (`xattr(7)`).
pub(super) fn check_namespace(cx: &Cx<'_>, inode: &Inode, name: &[u8], want: Access) -> Step<()> {
    let write = want.contains(Access::WRITE);
    if matches!(name, b"user." | b"trusted." | b"security.") {
        return Err(Errno::EINVAL.into());
    }
    if name.starts_with(b"user.") {
        if !matches!(inode.kind, FileType::Regular | FileType::Directory) {
            return Err(if write { Errno::EPERM } else { Errno::ENODATA }.into());
        }
        if write && inode.is_dir() && cx.is_bound_by_sticky(inode) {
            return Err(Errno::EPERM.into());
        }
        return cx.check(inode, want);
    }
    if name.starts_with(b"trusted.") {
        let refusal = if write { Errno::EPERM } else { Errno::ENODATA };
        return if cx.caller.is_superuser() { Ok(()) } else { Err(refusal.into()) };
    }
    if name.starts_with(b"security.") {
        return if write && !cx.caller.is_superuser() { Err(Errno::EPERM.into()) } else { Ok(()) };
    }
    Err(Errno::EOPNOTSUPP.into())
}
