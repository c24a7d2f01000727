//! Merging a decoupled namespace.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Access, Errno, FileType, Ino, InodeFlags, Name, Reply, Time, mode};

use super::xattr::check_namespace;
use crate::acl::Acl;
use crate::decouple::{Decoupled, MergeBatch, MergeEnd, MergeRecord};
use crate::event::{Change, Event};
use crate::lease::LeaseKey;
use crate::machine::{Cx, Meta};
use crate::permission::check_not;
use crate::record::{Body, Directory, Inode, Rare, Xattrs, decode};
use crate::step::Step;
use crate::usage::Quota;

/// Largest target of a symbolic link in bytes.
const MAX_TARGET: usize = 4095;

impl Meta {
    /// Merges consecutive records of a decoupled namespace. Those that are merged already are
    /// skipped, so a client may send them again. Each record is applied as a whole; after an error
    /// those before the failed one are merged.
    ///
    /// # Errors
    /// - `ESTALE`: the directory is not decoupled, or by another namespace.
    /// - `EINVAL`: records before these are missing; the namespace has changed since its merge
    ///   began; or a record is invalid.
    /// - `EPERM`: the caller may not do what a record does.
    /// - `EDQUOT`, `ENOSPC`, `ENOENT`, `EEXIST`: as for the calls that create files.
    pub(crate) fn merge(&mut self, cx: &mut Cx<'_>, dir: Ino, value: &[u8]) -> Step<Reply> {
        let batch: MergeBatch = decode(value).map_err(|_| Errno::EINVAL)?;
        let inode = self.state.dir(dir)?;
        if !cx.is_owner(inode) {
            return Err(Errno::EPERM.into());
        }
        let is_named = |decoupled: &&Decoupled| decoupled.id == batch.id && batch.id != Decoupled::ABORTED;
        let mut decoupled = inode.decoupled().filter(is_named).ok_or(Errno::ESTALE)?.clone();
        if self.state.is_removed(dir)? {
            return Err(Errno::ENOENT.into());
        }
        self.growable()?;
        let is_same = decoupled.merged == 0 || decoupled.digest == batch.digest;
        let Some(skipped) = decoupled.merged.checked_sub(batch.after).filter(|_| is_same) else {
            return Err(Errno::EINVAL.into());
        };
        self.block_grants(cx, dir)?;
        self.state.load_above(dir)?;
        let before = decoupled.merged;
        decoupled.digest = batch.digest;
        let new = batch.records.into_iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        let outcome = self.merge_records(cx, dir, &mut decoupled, new);
        if decoupled.merged != before {
            // In the frame of the merged records: a crash cannot separate them.
            cx.changed = true;
            let (merged, time) = (Some(Box::new(decoupled.clone())), cx.now);
            self.append(&Event::Decouple { dir, decoupled: merged, time })?;
        }
        outcome?;
        if let Some(end) = &batch.end {
            self.end_merge(cx, dir, &decoupled, end)?;
        }
        Ok(Reply::Done)
    }

    fn merge_records(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &mut Decoupled,
        records: impl Iterator<Item = MergeRecord>,
    ) -> Step<()> {
        for record in records {
            match record {
                MergeRecord::Create { dir, name, inode, bytes, xattrs } => {
                    let dir = at_server(top, dir);
                    self.check_merge_name(top, decoupled, dir, &name)?;
                    let ino = inode.ino;
                    if !decoupled.may_create(ino) {
                        return Err(Errno::EINVAL.into());
                    }
                    let inode = self.checked_inode(cx, dir, *inode, &bytes)?;
                    check_xattrs(cx, &inode, &xattrs)?;
                    self.merge_inode(cx, dir, &name, inode, bytes, xattrs)?;
                    self.expose_merged(cx, top, dir, &name);
                    decoupled.next = Ino(ino.0 + 1);
                }
                MergeRecord::Link { ino, mut names, time } => {
                    names.iter_mut().for_each(|(dir, _)| *dir = at_server(top, *dir));
                    for (dir, name) in &names {
                        self.check_merge_name(top, decoupled, *dir, name)?;
                    }
                    self.merge_links(cx, decoupled, ino, &names, time)?;
                    names.iter().for_each(|(dir, name)| self.expose_merged(cx, top, *dir, name));
                }
                MergeRecord::Finish { ino, atime, mtime, ctime, flags } => {
                    let times = Change { atime: Some(atime), mtime: Some(mtime), ..Change::default() };
                    let change = Change { ctime: Some(ctime), flags, ..times };
                    self.finish_merged(cx, decoupled, ino, change)?;
                }
            }
            decoupled.merged += 1;
        }
        Ok(())
    }

    /// Checks that a name in a directory of the namespace is free.
    fn check_merge_name(&self, top: Ino, decoupled: &Decoupled, dir: Ino, name: &Name) -> Step<()> {
        if dir != top && !decoupled.has_merged(dir) {
            return Err(Errno::EINVAL.into());
        }
        self.state.dir(dir)?;
        let target = self.state.target(dir, &self.state.slot(name))?;
        if target.ino().is_some() { Err(Errno::EEXIST.into()) } else { Ok(()) }
    }

    /// The inode that a record creates in a directory, as far as the caller may create it.
    fn checked_inode(&self, cx: &Cx<'_>, dir: Ino, inode: Inode, bytes: &[u8]) -> Step<Inode> {
        let parent = self.state.dir(dir)?;
        let strip = u64::from(self.config.strip_bytes);
        let (nlink, body) = match inode.body {
            _ if !inode.fits() => return Err(Errno::EINVAL.into()),
            Body::Node => (1, Body::Node),
            Body::Stuffed { size, stored } if size.max(stored.into()) <= strip => {
                if stored as usize != bytes.len() {
                    return Err(Errno::EINVAL.into());
                }
                (1, Body::Stuffed { size, stored })
            }
            Body::Symlink(target) if (1..=MAX_TARGET).contains(&target.len()) && !target.contains(&0) => {
                (1, Body::Symlink(target))
            }
            Body::Directory(directory) => {
                let quota = directory.quota;
                if quota != Quota::default() && !cx.caller.is_superuser() {
                    return Err(Errno::EPERM.into());
                }
                (2, Body::Directory(Box::new(Directory { quota, ..*Directory::empty(dir) })))
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        if !matches!(body, Body::Stuffed { .. }) && !bytes.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        let policy = match (inode.rare.policy, &parent.rare.policy) {
            (Some(own), Some(inherited)) => Some(Arc::new(own.or(inherited))),
            (own, inherited) => own.or_else(|| inherited.clone()),
        };
        let has_policy = matches!(inode.kind, FileType::Regular | FileType::Directory);
        let rare = Rare { policy: policy.filter(|_| has_policy), ..Rare::default() };
        let time = |time: Time| Time::new(time.secs, time.nanos);
        let inode = Inode {
            nlink,
            body,
            rare,
            has_xattrs: false,
            atime: time(inode.atime),
            mtime: time(inode.mtime),
            ctime: time(inode.ctime),
            btime: time(inode.btime),
            ..inode
        };
        check_rights(cx, parent, &inode)?;
        Ok(inode)
    }

    fn merge_inode(
        &mut self,
        cx: &mut Cx<'_>,
        dir: Ino,
        name: &Name,
        inode: Inode,
        bytes: Vec<u8>,
        xattrs: Xattrs,
    ) -> Step<()> {
        self.state.admit(&[(dir, inode.weight())], &[])?;
        let (ino, time) = (inode.ino, inode.ctime);
        self.commit(cx, &Event::Merge { dir, name: name.clone(), inode, bytes })?;
        for (name, value) in xattrs {
            self.commit(cx, &Event::SetXattr { ino, name, value: Some(value), time })?;
        }
        Ok(())
    }

    fn merge_links(
        &mut self,
        cx: &mut Cx<'_>,
        decoupled: &Decoupled,
        ino: Ino,
        names: &[(Ino, Name)],
        time: Time,
    ) -> Step<()> {
        let is_merged = decoupled.has_merged(ino);
        if ino.rank() != decoupled.first.rank() || !is_distinct(names) {
            return Err(Errno::EINVAL.into());
        }
        let cached = self.state.cached(ino)?;
        let inode = &cached.inode;
        let is_new = cached.nameless && cx.is_owner(inode);
        if inode.is_dir() || !(is_new || is_merged) {
            return Err(Errno::EINVAL.into());
        }
        check_not(inode, InodeFlags::PROTECTED)?;
        if inode.nlink.checked_add(names.len() as u32).is_none() {
            return Err(Errno::EMLINK.into());
        }
        for (dir, _) in names {
            if self.state.inode(ino)?.is_streamed() && self.is_bounded(*dir)? {
                self.count_open(cx)?;
            }
            self.state.load_above(*dir)?;
        }
        let weight = self.state.inode(ino)?.weight();
        let gains: Vec<_> = names.iter().map(|(dir, _)| (*dir, weight)).collect();
        self.state.admit(&gains, &[])?;
        for (dir, name) in names {
            self.revoke_new_name(cx, *dir, name)?;
        }
        self.revoke_inode(cx, ino)?;
        let time = Time::new(time.secs, time.nanos);
        for (dir, name) in names {
            self.commit(cx, &Event::MergeLink { ino, dir: *dir, name: name.clone(), time })?;
        }
        self.sessions.making.remove(&ino);
        Ok(())
    }

    fn finish_merged(
        &mut self,
        cx: &mut Cx<'_>,
        decoupled: &Decoupled,
        ino: Ino,
        change: Change,
    ) -> Step<()> {
        if !decoupled.has_merged(ino) {
            return Err(Errno::EINVAL.into());
        }
        if let Some(flags) = change.flags {
            cx.check_flags(self.state.inode(ino)?, flags)?;
        }
        self.commit(cx, &Event::SetAttr { ino, change })
    }

    /// Shows the merged entries, with the directory's new attributes.
    fn end_merge(&mut self, cx: &mut Cx<'_>, dir: Ino, decoupled: &Decoupled, end: &MergeEnd) -> Step<()> {
        let change = end.change;
        let inode = self.state.dir(dir)?;
        let is_chown = change.uid.is_some_and(|uid| uid != inode.uid);
        let is_chgrp = change.gid.is_some_and(|gid| gid != inode.gid);
        let is_sound =
            change.flags.is_none() && change.perm.is_none_or(|perm| perm & !mode::PERMISSIONS == 0);
        if decoupled.merged != end.records || !is_sound {
            return Err(Errno::EINVAL.into());
        }
        let may_chgrp = !is_chgrp || cx.caller.is_superuser() || cx.is_member(change.gid.unwrap_or(0))?;
        if is_chown && !cx.caller.is_superuser() || !may_chgrp {
            return Err(Errno::EPERM.into());
        }
        self.commit(cx, &Event::SetAttr { ino: dir, change: Change { ctime: Some(cx.now), ..change } })?;
        self.commit(cx, &Event::Decouple { dir, decoupled: None, time: cx.now })?;
        self.revoke_without_waiting(cx, LeaseKey::Inode(dir), None);
        // The client discards its copy after this.
        cx.durable = true;
        Ok(())
    }

    /// Ends the caller's own leases on a name of the decoupled directory; other names of the
    /// namespace are unknown to all clients.
    fn expose_merged(&mut self, cx: &Cx<'_>, top: Ino, dir: Ino, name: &Name) {
        if dir == top {
            let key = LeaseKey::Name { dir, hash: self.state.slot(name).hash };
            self.revoke_without_waiting(cx, key, Some(name));
        }
    }
}

/// The directory of a record, in which the namespace's root stands for the decoupled directory.
fn at_server(top: Ino, dir: Ino) -> Ino {
    if dir == Ino::ROOT { top } else { dir }
}

fn is_distinct(names: &[(Ino, Name)]) -> bool {
    let mut sorted: Vec<_> = names.iter().collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// Checks that the caller may own an inode with these permissions.
fn check_rights(cx: &Cx<'_>, parent: &Inode, inode: &Inode) -> Step<()> {
    let is_valid = |acl: &Option<Box<Acl>>| {
        acl.as_ref().is_none_or(|acl| Acl::parse(&acl.format()).as_ref() == Some(&**acl) && !acl.is_minimal())
    };
    let has_acl = inode.acl.is_some() || inode.default_acl.is_some();
    let is_sound = inode.perm & !mode::PERMISSIONS == 0
        && is_valid(&inode.acl)
        && inode.default_acl.as_ref().is_none_or(|acl| Acl::parse(&acl.format()).as_ref() == Some(&**acl))
        && (inode.default_acl.is_none() || inode.is_dir())
        && !(has_acl && inode.kind == FileType::Symlink);
    if !is_sound {
        return Err(Errno::EINVAL.into());
    }
    if cx.caller.is_superuser() {
        return Ok(());
    }
    let is_device = matches!(inode.kind, FileType::CharDevice | FileType::BlockDevice);
    let is_inherited = parent.perm & mode::SET_GID != 0 && inode.gid == parent.gid;
    let has_group = is_inherited && inode.perm & mode::SET_GID == 0 || cx.is_member(inode.gid)?;
    if is_device || inode.uid != cx.caller.uid || !(has_group || is_inherited && inode.is_dir()) {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

/// Checks that the caller may set these attributes of a new inode.
fn check_xattrs(cx: &Cx<'_>, inode: &Inode, xattrs: &Xattrs) -> Step<()> {
    let is_sorted = xattrs.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let is_name = |name: &[u8]| (1..=255).contains(&name.len()) && !name.contains(&0);
    if !is_sorted || !xattrs.iter().all(|(name, _)| is_name(name)) {
        return Err(Errno::EINVAL.into());
    }
    // The owner could have set them before the permissions.
    let writable = Inode { perm: inode.perm | 0o700, acl: None, ..inode.clone() };
    xattrs.iter().try_for_each(|(name, _)| check_namespace(cx, &writable, name, Access::WRITE))
}
