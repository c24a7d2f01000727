//! Merging a decoupled namespace.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_policy::Policy;
use espalier_proto::{Access, Errno, FileType, Ino, InodeFlags, Name, Reply, Time, mode};

use super::xattr::check_namespace;
use crate::acl::Acl;
use crate::decouple::{Decoupled, MergeBatch, MergeEnd, MergeRecord};
use crate::event::{Change, Event};
use crate::lease::LeaseKey;
use crate::machine::{Cx, Final, Meta};
use crate::permission::{check_coupled, check_not};
use crate::record::{Body, Directory, Inode, Rare, Xattrs, decode};
use crate::step::{Step, Stop, Wait};
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
    pub(crate) fn merge(&mut self, cx: &mut Cx<'_>, dir: Ino, value: &[u8]) -> Step<Final<'_>> {
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
        // Each sync begins a new sequence, but only after the last record of the one that it was
        // planned after: late requests of other ones may arrive.
        let is_next = batch.after == decoupled.merged && batch.base == decoupled.digest;
        let is_new = decoupled.merged == 0 || decoupled.shows && is_next;
        let is_same = is_new || decoupled.digest == batch.digest;
        let Some(skipped) = decoupled.merged.checked_sub(batch.after).filter(|_| is_same) else {
            return Err(Errno::EINVAL.into());
        };
        self.block_grants(cx, dir)?;
        self.state.load_above(dir)?;
        let (before, redirected) = (decoupled.merged, decoupled.redirected.clone());
        decoupled.digest = batch.digest;
        // Records that were merged before stay hidden until the end.
        decoupled.shows |= batch.shows && before == 0;
        let new = batch.records.into_iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        let outcome = self.merge_records(cx, dir, &mut decoupled, new);
        if decoupled.merged != before || decoupled.redirected != redirected {
            // In the frame of the merged records: a crash cannot separate them.
            let (merged, time) = (Some(Box::new(decoupled.clone())), cx.now);
            self.append_loaded(&Event::Decouple { dir, decoupled: merged, time });
            cx.changed = Some(self.state.sequence);
        }
        outcome?;
        match &batch.end {
            Some(end) => self.end_merge(cx, dir, &decoupled, end),
            None => Ok(Final::of(Reply::Done)),
        }
    }

    fn merge_records(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &mut Decoupled,
        records: impl Iterator<Item = MergeRecord>,
    ) -> Step<()> {
        for record in records {
            let number = if let MergeRecord::Create { inode, .. } = &record { Some(inode.ino) } else { None };
            if number.is_some_and(|ino| !decoupled.may_create(ino)) {
                return Err(Errno::EINVAL.into());
            }
            self.merge_record(cx, top, decoupled, record)?.end_part();
            if let Some(ino) = number {
                decoupled.note_created(ino);
            }
            decoupled.merged += 1;
        }
        Ok(())
    }

    /// Merges a record with one change.
    fn merge_record(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &mut Decoupled,
        record: MergeRecord,
    ) -> Step<Final<'_, ()>> {
        let (is_shared, is_seen) = (decoupled.allows_interference(), decoupled.is_seen());
        match record {
            MergeRecord::Create { dir, name, mut inode, bytes, xattrs } => {
                let Some(dir) = self.merge_dir(cx, top, decoupled, dir)? else {
                    if inode.is_dir() {
                        decoupled.redirect(inode.ino, None)?;
                    }
                    return Ok(Final::of(()));
                };
                if is_shared {
                    // The directory's times must not go back.
                    inode.ctime = cx.now;
                }
                let inode = self.checked_inode(cx, dir, *inode, &bytes)?;
                check_xattrs(cx, &inode, &xattrs)?;
                self.state.load_above(dir)?;
                self.state.admit(&[(dir, inode.weight())], &[])?;
                let replaced = match self.merge_name(cx, decoupled, dir, &name, inode.is_dir())? {
                    MergeName::Free => None,
                    MergeName::Replaces(ino) => Some(ino),
                    MergeName::Unites(united) => {
                        decoupled.redirect(inode.ino, Some(united))?;
                        return Ok(Final::of(()));
                    }
                };
                let events = merge_events(dir, &name, replaced.map(|_| cx.now), inode, (bytes, xattrs));
                self.commit_all(cx, &events, |meta, cx| {
                    replaced.into_iter().for_each(|ino| meta.name_taken(cx, ino));
                    meta.expose_merged(cx, (top, is_seen), dir, &name);
                })
            }
            MergeRecord::Link { ino, names, time } => {
                let names = self.merge_names(cx, top, decoupled, ino, names)?;
                if names.is_empty() || self.is_lost(cx, decoupled, ino)? {
                    return Ok(Final::of(()));
                }
                let time = if is_shared { cx.now } else { time };
                self.merge_links(cx, top, decoupled, ino, &names, time)
            }
            MergeRecord::Finish { ino, atime, mtime, ctime, flags } => {
                if self.is_lost(cx, decoupled, ino)? {
                    return Ok(Final::of(()));
                }
                let times = Change { atime: Some(atime), mtime: Some(mtime), ..Change::default() };
                let change = Change { ctime: Some(ctime), flags, ..times };
                self.finish_merged(cx, decoupled, ino, change)
            }
            MergeRecord::Update { inode, bytes, xattrs } => {
                if self.is_lost(cx, decoupled, inode.ino)? {
                    return Ok(Final::of(()));
                }
                self.merge_update(cx, decoupled, *inode, bytes, xattrs)
            }
            MergeRecord::Remove { dir, name, ino } => {
                self.merge_removal(cx, top, decoupled, dir, (&name, ino))
            }
            MergeRecord::Move { from, to, ino } => self.merge_move(cx, top, decoupled, (from, ino), to),
        }
    }

    /// True if interference is allowed and others have removed a merged inode. Otherwise finds it.
    pub(super) fn is_lost(&self, cx: &Cx<'_>, decoupled: &Decoupled, ino: Ino) -> Step<bool> {
        if decoupled.redirected.contains_key(&ino) {
            return Ok(true);
        }
        if !decoupled.has_merged(ino) {
            return Ok(false);
        }
        if decoupled.allows_interference() {
            return self.is_gone(cx, ino);
        }
        // After a restart no client may know it.
        self.state.locate(ino)?;
        Ok(false)
    }

    fn is_gone(&self, cx: &Cx<'_>, ino: Ino) -> Step<bool> {
        match self.state.locate(ino) {
            Err(Stop::Wait(Wait::Load(load))) if cx.loaded == Some(&load) => return Ok(true),
            located => located?,
        }
        let inode = self.state.inode(ino)?;
        if inode.is_dir() { self.state.is_removed(ino) } else { Ok(inode.nlink == 0) }
    }

    /// The server's directory for one of the namespace, whose root stands for the decoupled
    /// directory; `None` if others have removed it.
    ///
    /// # Errors
    /// - `EINVAL`: it is not of the namespace.
    /// - `EACCES`: it belongs to others, and the caller may not change it.
    pub(super) fn merge_dir(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &mut Decoupled,
        dir: Ino,
    ) -> Step<Option<Ino>> {
        let redirected = decoupled.redirected.get(&dir).copied();
        let at = match redirected {
            Some(None) => return Ok(None),
            Some(Some(united)) => united,
            None if dir == Ino::ROOT => top,
            None if dir == top || decoupled.has_merged(dir) => dir,
            None => return Err(Errno::EINVAL.into()),
        };
        if decoupled.allows_interference() && at != top {
            if self.is_gone(cx, at)? {
                decoupled.redirect(dir, None)?;
                return Ok(None);
            }
            self.revoke_exclusive(cx, at)?;
        }
        let inode = self.state.dir(at)?;
        // The owner could have changed it before its permissions.
        if redirected.is_some() || !cx.is_owner(inode) {
            cx.check_change(inode)?;
        }
        Ok(Some(at))
    }

    /// Looks up a name that the namespace gives an inode. If interference is allowed, that inode
    /// replaces the file or empty directory of others.
    ///
    /// # Errors
    /// `EEXIST`: interference is blocked; or a directory with entries, or an inode at another rank,
    /// has the name.
    pub(super) fn merge_name(
        &mut self,
        cx: &mut Cx<'_>,
        decoupled: &Decoupled,
        dir: Ino,
        name: &Name,
        is_dir: bool,
    ) -> Step<MergeName> {
        let target = self.state.target(dir, &self.state.slot(name))?;
        let Some(ino) = target.ino() else { return Ok(MergeName::Free) };
        if !decoupled.allows_interference() || target.at_other_rank(self.config.rank).is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.revoke_exclusive(cx, ino)?;
        let (parent, victim) = (self.state.dir(dir)?, self.state.inode(ino)?);
        let is_whole = victim.partition().is_none();
        if is_dir && is_whole && victim.is_dir() {
            check_coupled(victim)?;
            cx.check_change(victim)?;
            return Ok(MergeName::Unites(ino));
        }
        if !is_whole || victim.has_entries() {
            return Err(Errno::EEXIST.into());
        }
        cx.check_removal(parent, victim)?;
        Ok(MergeName::Replaces(ino))
    }

    /// Names that a record gives an inode. Others may have given it some, or removed their
    /// directories.
    fn merge_names(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &mut Decoupled,
        ino: Ino,
        names: Vec<(Ino, Name)>,
    ) -> Step<Vec<(Ino, Name)>> {
        let is_shared = decoupled.allows_interference();
        let mut new = Vec::new();
        for (dir, name) in names {
            let Some(dir) = self.merge_dir(cx, top, decoupled, dir)? else { continue };
            match self.state.target(dir, &self.state.slot(&name))?.ino() {
                Some(named) if is_shared && named == ino => continue,
                Some(_) if !is_shared => return Err(Errno::EEXIST.into()),
                _ => new.push((dir, name)),
            }
        }
        Ok(new)
    }

    /// The inode that a record creates in a directory, as far as the caller may create it.
    pub(super) fn checked_inode(&self, cx: &Cx<'_>, dir: Ino, inode: Inode, bytes: &[u8]) -> Step<Inode> {
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
        let inherited = self.inherited_policy(parent);
        let policy = match (inode.rare.policy, inherited) {
            (Some(own), Some(inherited)) => Some(Arc::new(own.within(&inherited))),
            (Some(own), None) => Some(Arc::new(own.within(&Policy::NONE))),
            (None, inherited) => inherited,
        };
        let is_weaker = policy.as_ref().is_some_and(|policy| self.exceeded_bound(policy).is_some());
        if inode.kind == FileType::Directory && is_weaker && !cx.caller.is_superuser() {
            return Err(Errno::EPERM.into());
        }
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

    fn merge_links(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &Decoupled,
        ino: Ino,
        names: &[(Ino, Name)],
        time: Time,
    ) -> Step<Final<'_, ()>> {
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
        let (mut events, mut replaced) = (Vec::new(), Vec::new());
        for (dir, name) in names {
            if let MergeName::Replaces(victim) = self.merge_name(cx, decoupled, *dir, name, false)? {
                events.push(Event::Unlink { dir: *dir, name: name.clone(), time: cx.now });
                replaced.push(victim);
            }
            events.push(Event::MergeLink { ino, dir: *dir, name: name.clone(), time });
        }
        let is_seen = decoupled.is_seen();
        self.commit_all(cx, &events, |meta, cx| {
            replaced.into_iter().for_each(|ino| meta.name_taken(cx, ino));
            meta.sessions.making.remove(&ino);
            names.iter().for_each(|(dir, name)| meta.expose_merged(cx, (top, is_seen), *dir, name));
        })
    }

    fn finish_merged(
        &mut self,
        cx: &mut Cx<'_>,
        decoupled: &Decoupled,
        ino: Ino,
        change: Change,
    ) -> Step<Final<'_, ()>> {
        if !decoupled.has_merged(ino) {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.state.inode(ino)?;
        if !cx.is_owner(inode) {
            return Err(Errno::EPERM.into());
        }
        if let Some(flags) = change.flags {
            cx.check_flags(inode, flags)?;
        }
        self.commit(cx, &Event::SetAttr { ino, change }, |_, _| {})
    }

    /// Shows the merged entries, with the directory's new attributes.
    fn end_merge(
        &mut self,
        cx: &mut Cx<'_>,
        dir: Ino,
        decoupled: &Decoupled,
        end: &MergeEnd,
    ) -> Step<Final<'_>> {
        let mut change = end.change;
        if decoupled.allows_interference() {
            // Those of the changes by others and by the merge stand.
            (change.atime, change.mtime) = (None, None);
        }
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
        let shows = Event::SetAttr { ino: dir, change: Change { ctime: Some(cx.now), ..change } };
        let ends = Event::Decouple { dir, decoupled: None, time: cx.now };
        self.commit_all(cx, &[shows, ends], |meta, cx| {
            meta.revoke_without_waiting(cx, LeaseKey::Inode(dir), None);
            // The client discards its copy after this.
            cx.durable = true;
            Reply::Done
        })
    }

    /// Ends the caller's own leases on a name of the decoupled directory and, if others see merged
    /// entries, on what the merge changes below it. Otherwise other names of the namespace are
    /// unknown to all clients.
    pub(super) fn expose_merged(&mut self, cx: &Cx<'_>, (top, is_seen): (Ino, bool), dir: Ino, name: &Name) {
        if dir == top || is_seen {
            let key = LeaseKey::Name { dir, hash: self.state.slot(name).hash };
            self.revoke_without_waiting(cx, key, Some(name));
        }
        if is_seen {
            for key in [LeaseKey::Exclusive(dir), LeaseKey::Contents(dir), LeaseKey::Inode(dir)] {
                self.revoke_without_waiting(cx, key, None);
            }
        }
    }
}

/// The holder of a name that a namespace gives an inode.
pub(super) enum MergeName {
    Free,
    /// An inode of others that loses the name.
    Replaces(Ino),
    /// A directory of others that the namespace's directory unites with.
    Unites(Ino),
}

/// The events that merge a new inode. `replaces`: when the name's old inode loses it, which a crash
/// cannot separate from the merge.
fn merge_events(
    dir: Ino,
    name: &Name,
    replaces: Option<Time>,
    inode: Inode,
    (bytes, xattrs): (Vec<u8>, Xattrs),
) -> Vec<Event> {
    let (ino, ctime) = (inode.ino, inode.ctime);
    let unlink = replaces.map(|time| Event::Unlink { dir, name: name.clone(), time });
    let merge = Event::Merge { dir, name: name.clone(), inode, bytes };
    let set = |(name, value)| Event::SetXattr { ino, name, value: Some(value), time: ctime };
    unlink.into_iter().chain([merge]).chain(xattrs.into_iter().map(set)).collect()
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
pub(super) fn check_xattrs(cx: &Cx<'_>, inode: &Inode, xattrs: &Xattrs) -> Step<()> {
    let is_sorted = xattrs.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let is_name = |name: &[u8]| (1..=255).contains(&name.len()) && !name.contains(&0);
    if !is_sorted || !xattrs.iter().all(|(name, _)| is_name(name)) {
        return Err(Errno::EINVAL.into());
    }
    // The owner could have set them before the permissions.
    let writable = Inode { perm: inode.perm | 0o700, acl: None, ..inode.clone() };
    xattrs.iter().try_for_each(|(name, _)| check_namespace(cx, &writable, name, Access::WRITE))
}
