//! Merging a decoupled namespace: records that change what earlier ones have made. A namespace sync
//! sends them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{Access, Errno, Ino, InodeFlags, Name, Request, Time};

use super::merge::{MergeName, check_xattrs};
use super::rename::check_replaced;
use super::xattr::check_namespace;
use crate::decouple::Decoupled;
use crate::event::{Change, Event};
use crate::lease::LeaseKey;
use crate::machine::{Cx, Final, Meta};
use crate::permission::check_not;
use crate::record::{Body, Inode, Xattrs};
use crate::step::{Step, Stop};

impl Meta {
    /// Fails with `EBUSY` for a change below a decoupled directory without interference.
    pub(crate) fn check_not_blocked(&self, request: &mut Request) -> Step<()> {
        let mut changed = Vec::new();
        match request {
            // It has no name, as those with which a merge makes big files.
            Request::TmpFile { .. } => {}
            Request::CopyTree(copy) => changed.extend(copy.levels.last().map(|level| level.to)),
            Request::Link { ino, dir, .. } => changed.extend([*ino, *dir]),
            request => request.each_inode(&mut |ino| changed.push(*ino)),
        }
        // Everything below a decoupled directory has numbers of its rank.
        for ino in changed.into_iter().filter(|ino| self.state.is_here(*ino)) {
            // The operation itself reports other errors.
            if let Err(stop @ (Stop::Wait(_) | Stop::Fail(Errno::EBUSY))) = self.state.check_blocked(ino) {
                return Err(stop);
            }
        }
        Ok(())
    }

    pub(super) fn merge_removal(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &mut Decoupled,
        dir: Ino,
        (name, ino): (&Name, Option<Ino>),
    ) -> Step<Final<'_, ()>> {
        let Some(dir) = self.merge_dir(cx, top, decoupled, dir)? else { return Ok(Final::of(())) };
        let Some(ino) = self.own_target(decoupled, dir, name, ino)? else { return Ok(Final::of(())) };
        self.revoke_exclusive(cx, ino)?;
        let (parent, victim) = (self.state.dir(dir)?, self.state.inode(ino)?);
        if victim.has_entries() || victim.partition().is_some() {
            // Others have added to it.
            let is_allowed = decoupled.allows_interference();
            return if is_allowed { Ok(Final::of(())) } else { Err(Errno::ENOTEMPTY.into()) };
        }
        cx.check_removal(parent, victim)?;
        self.state.load_above(dir)?;
        self.commit(cx, &Event::Unlink { dir, name: name.clone(), time: cx.now }, |meta, cx| {
            meta.name_taken(cx, ino);
            meta.expose_merged(cx, (top, true), dir, name);
        })
    }

    pub(super) fn merge_move(
        &mut self,
        cx: &mut Cx<'_>,
        top: Ino,
        decoupled: &mut Decoupled,
        ((from_dir, from), ino): ((Ino, Name), Option<Ino>),
        (to_dir, to): (Ino, Name),
    ) -> Step<Final<'_, ()>> {
        let from_dir = self.merge_dir(cx, top, decoupled, from_dir)?;
        let to_dir = self.merge_dir(cx, top, decoupled, to_dir)?;
        let (Some(from_dir), Some(to_dir)) = (from_dir, to_dir) else { return Ok(Final::of(())) };
        let Some(moved) = self.own_target(decoupled, from_dir, &from, ino)? else { return Ok(Final::of(())) };
        let is_dir = self.state.inode(moved)?.is_dir();
        if decoupled.allows_interference() {
            match self.merge_name(cx, decoupled, to_dir, &to, is_dir)? {
                MergeName::Free => {}
                MergeName::Replaces(victim) => {
                    let unlink = Event::Unlink { dir: to_dir, name: to, time: cx.now };
                    return Err(self.stage_all(cx, &[unlink], |meta, cx| meta.name_taken(cx, victim)));
                }
                MergeName::Unites(_) => return Err(Errno::EEXIST.into()),
            }
        }
        let replaced = self.state.target(to_dir, &self.state.slot(&to))?.ino();
        if let Some(ino) = replaced {
            self.revoke_exclusive(cx, ino)?;
        }
        let (inode, old, new) =
            (self.state.inode(moved)?, self.state.dir(from_dir)?, self.state.dir(to_dir)?);
        cx.check_removal(old, inode)?;
        if is_dir && from_dir != to_dir {
            // The owner could have moved it before its permissions.
            if !cx.is_owner(inode) {
                cx.check(inode, Access::WRITE)?;
            }
            self.check_not_above(inode, new)?;
        }
        let weight = inode.weight();
        let mut losses = Vec::from([(from_dir, weight)]);
        if let Some(ino) = replaced {
            let target = self.state.inode(ino)?;
            if ino == moved || target.partition().is_some() {
                return Err(Errno::EINVAL.into());
            }
            check_replaced(cx, inode, new, target)?;
            losses.push((to_dir, target.weight()));
        }
        self.state.load_above(from_dir)?;
        self.state.admit(&[(to_dir, weight)], &losses)?;
        let (time, whiteout) = (cx.now, None);
        let event = Event::Rename { from_dir, from: from.clone(), to_dir, to: to.clone(), whiteout, time };
        self.commit(cx, &event, |meta, cx| {
            if let Some(ino) = replaced {
                meta.name_taken(cx, ino);
            }
            meta.expose_merged(cx, (top, true), from_dir, &from);
            meta.expose_merged(cx, (top, true), to_dir, &to);
        })
    }

    /// The merged inode of a name; `None` if interference is allowed and others have replaced,
    /// moved or removed it. `expected`: in the namespace.
    ///
    /// # Errors
    /// `ENOENT`: the name does not exist.
    fn own_target(
        &self,
        decoupled: &Decoupled,
        dir: Ino,
        name: &Name,
        expected: Option<Ino>,
    ) -> Step<Option<Ino>> {
        let target = self.state.target(dir, &self.state.slot(name))?;
        if decoupled.allows_interference() {
            let is_here = target.at_other_rank(self.config.rank).is_none();
            let is_own = |ino: &Ino| decoupled.has_merged(*ino) && expected.is_none_or(|own| own == *ino);
            return Ok(target.ino().filter(|ino| is_here && is_own(ino)));
        }
        Ok(Some(target.ino().ok_or(Errno::ENOENT)?))
    }

    pub(super) fn merge_update(
        &mut self,
        cx: &mut Cx<'_>,
        decoupled: &Decoupled,
        inode: Inode,
        bytes: Vec<u8>,
        xattrs: Xattrs,
    ) -> Step<Final<'_, ()>> {
        let ino = inode.ino;
        if !decoupled.has_merged(ino) {
            return Err(Errno::EINVAL.into());
        }
        let old = self.state.inode(ino)?.clone();
        check_not(&old, InodeFlags::PROTECTED)?;
        if !cx.is_owner(&old) {
            return Err(Errno::EPERM.into());
        }
        let parents = self.state.load_parents(ino)?;
        let (parent, _) = parents.first().ok_or(Errno::ESTALE)?;
        let mut new = self.checked_inode(cx, *parent, inode, &bytes)?;
        check_xattrs(cx, &new, &xattrs)?;
        if decoupled.allows_interference() {
            new.ctime = cx.now;
        }
        let mut events = Vec::new();
        match (&old.body, &new.body) {
            (Body::Stuffed { .. }, Body::Stuffed { size, .. }) => {
                events.extend(self.replace_bytes(&old, *size, bytes, new.ctime)?);
            }
            // Others have made it bigger.
            (Body::Streamed { .. } | Body::Striped { .. }, Body::Stuffed { .. }) => {
                return Err(Errno::EEXIST.into());
            }
            _ if old.kind != new.kind => return Err(Errno::EINVAL.into()),
            _ => {}
        }
        if new.is_dir() {
            events.extend(self.update_directory(cx, &old, &new)?);
        }
        events.extend(self.replace_xattrs(cx, &new, &xattrs)?);
        let (acl, perm, time) = (new.acl, new.perm, new.ctime);
        if old.acl != acl {
            events.push(Event::SetAcl { ino, acl, perm, time });
        }
        let change = Change {
            perm: Some(perm),
            uid: Some(new.uid),
            gid: Some(new.gid),
            atime: Some(new.atime),
            mtime: Some(new.mtime),
            ctime: Some(time),
            flags: None,
        };
        events.push(Event::SetAttr { ino, change });
        self.commit_all(cx, &events, |meta, cx| meta.revoke_without_waiting(cx, LeaseKey::Inode(ino), None))
    }

    /// The events that replace the bytes of a stuffed file.
    fn replace_bytes(&self, old: &Inode, size: u64, data: Vec<u8>, time: Time) -> Step<Vec<Event>> {
        let ino = old.ino;
        if self.state.strip(ino)? == data && old.counted_bytes() == size {
            return Ok(Vec::new());
        }
        self.state.admit_size(ino, size)?;
        let mut events = Vec::from([Event::Resize { ino, size: 0, time }]);
        if !data.is_empty() {
            events.push(Event::Write { ino, offset: 0, data, time });
        }
        events.push(Event::Resize { ino, size, time });
        Ok(events)
    }

    /// The events that set a directory's quota, policy and default ACL.
    fn update_directory(&mut self, cx: &mut Cx<'_>, old: &Inode, new: &Inode) -> Step<Vec<Event>> {
        let (dir, time) = (new.ino, new.ctime);
        let mut events = Vec::new();
        if let (Body::Directory(before), Body::Directory(after)) = (&old.body, &new.body)
            && before.quota != after.quota
        {
            if !cx.caller.is_superuser() {
                return Err(Errno::EPERM.into());
            }
            self.count_open(cx)?;
            self.revoke_all_exclusive(cx)?;
            events.push(Event::SetQuota { dir, quota: after.quota, time });
        }
        if old.rare.policy != new.rare.policy {
            events.push(Event::SetPolicy { dir, policy: new.rare.policy.clone(), time });
        }
        if old.default_acl != new.default_acl {
            events.push(Event::SetDefaultAcl { ino: dir, acl: new.default_acl.clone(), time });
        }
        Ok(events)
    }

    /// The events that replace a set of extended attributes.
    fn replace_xattrs(&self, cx: &Cx<'_>, inode: &Inode, xattrs: &Xattrs) -> Step<Vec<Event>> {
        let (ino, time) = (inode.ino, inode.ctime);
        let mut changed: BTreeMap<_, _> = self
            .state
            .xattr_list(ino)?
            .iter()
            .map(|(name, value)| (name.clone(), Some(value.clone())))
            .collect();
        let before = changed.clone();
        for value in changed.values_mut() {
            *value = None;
        }
        changed.extend(xattrs.iter().map(|(name, value)| (name.clone(), Some(value.clone()))));
        changed.retain(|name, value| before.get(name) != Some(&*value));
        let writable = Inode { perm: inode.perm | 0o700, acl: None, ..inode.clone() };
        changed.keys().try_for_each(|name| check_namespace(cx, &writable, name, Access::WRITE))?;
        let set = |(name, value)| Event::SetXattr { ino, name, value, time };
        Ok(changed.into_iter().map(set).collect())
    }
}
