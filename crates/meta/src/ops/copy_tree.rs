//! Copies of trees, in steps (`espalier cp`).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::take;

use espalier_proto::{
    Access, Copied, CopyLevel, CopyTree, Errno, FileType, Ino, InodeFlags, Name, NewNode, Reply, mode,
};

use crate::event::{Change, Event};
use crate::machine::{Cx, Final, Meta};
use crate::permission::{check_interference, check_not};
use crate::progress::Progress;
use crate::record::{Body, Inode, Slot, Xattrs};
use crate::state::{Location, Target};
use crate::step::{Step, Stop};

/// Entries and bytes copied per step; bounds how long operations wait for it.
const STEP: usize = 256;
const STEP_BYTES: u64 = 1 << 20;
/// Bytes of paths left to the caller per step.
const LEFT_BYTES: usize = 32 << 10;

/// The copy of an entry.
struct EntryCopy {
    /// They create the copy, with its extended attributes.
    events: Vec<Event>,
    /// Number of bytes in the copy.
    bytes: u64,
    /// A directory, which is still empty.
    below: Option<CopyLevel>,
    /// The name of the copy, if clients may know that the directory has no such name.
    made: Option<(Ino, Name)>,
}

impl Meta {
    /// Copies some entries below a directory, at any depth. It leaves to the caller what needs more
    /// than a few records: files with streams, files whose links are to be preserved, files that
    /// the caller may not read, nodes whose creation only the kernel can authorise, and names that
    /// exist already.
    pub(crate) fn copy_tree(&mut self, cx: &mut Cx<'_>, request: &CopyTree) -> Step<Reply> {
        if self.config.ranks > 1 {
            // Entries may be at other ranks.
            return Err(Errno::EXDEV.into());
        }
        let mut copied = match take(cx.progress) {
            Progress::Copy(copied) => copied,
            _ => Box::new(Copied { levels: request.levels.clone(), ..Copied::default() }),
        };
        match self.copy_some(cx, request, &mut copied) {
            Ok(()) => Ok(Reply::Copied(copied)),
            // The next step reports the error.
            Err(Stop::Fail(_)) if copied.entries > 0 => Ok(Reply::Copied(copied)),
            Err(stop) => {
                *cx.progress = Progress::Copy(copied);
                Err(stop)
            }
        }
    }

    fn copy_some(&mut self, cx: &mut Cx<'_>, request: &CopyTree, copied: &mut Copied) -> Step<()> {
        self.growable()?;
        if let (Some(first), Some(last)) = (copied.levels.first(), copied.levels.last())
            && self.state.is_below(last.to, first.from)?
        {
            return Err(Errno::EINVAL.into());
        }
        while let Some(level) = copied.levels.last().copied() {
            if copied.entries >= STEP as u64
                || copied.bytes >= STEP_BYTES
                || copied.left.iter().map(Vec::len).sum::<usize>() >= LEFT_BYTES
            {
                return Ok(());
            }
            self.revoke_exclusive(cx, level.from)?;
            check_interference(self.state.dir(level.to)?)?;
            let dir = self.state.dir(level.from)?;
            cx.check(dir, Access::READ | Access::EXEC)?;
            let is_hidden = dir.hides_entries() || self.state.is_removed(level.from)?;
            let found = if is_hidden { Vec::new() } else { self.entries_after(cx, level.from, level.after)? };
            let Some(hash) = found.last().map(|(slot, _)| slot.hash) else {
                // Entries that the caller copies itself change the directory's times once more.
                if !copied.left.is_empty() {
                    return Ok(());
                }
                if copied.levels.len() > 1 {
                    self.finish_dir(cx, request, level, copied)?.end_part();
                }
                copied.levels.pop();
                continue;
            };
            self.copy_entries(cx, request, copied, level, (hash, found))?.end_part();
        }
        Ok(())
    }

    /// Copies the entries of one hash with one change, or leaves them to the caller.
    fn copy_entries(
        &mut self,
        cx: &mut Cx<'_>,
        request: &CopyTree,
        copied: &mut Copied,
        level: CopyLevel,
        (hash, found): (u64, Vec<(Slot, Target)>),
    ) -> Step<Final<'_, ()>> {
        let (mut copy, mut left, mut entries) = (None, Vec::new(), 0);
        // The cursor cannot stop between several names of one hash, which hardly exist.
        let is_single = found.len() == 1;
        for (slot, target) in found {
            let Some(ino) = target.ino() else { continue };
            entries += 1;
            let depth = copied.levels.len();
            copy = match is_single.then(|| self.copy_entry(cx, request, level, depth, &slot.name, ino)) {
                // The caller reports what could not be copied, and why.
                None | Some(Err(Stop::Fail(Errno::EDQUOT))) => None,
                Some(copy) => copy?,
            };
            if copy.is_none() {
                left.push(self.path_below(&copied.levels, &slot.name));
            }
        }
        let events = copy.as_mut().map_or_else(Vec::new, |copy| take(&mut copy.events));
        self.commit_all(cx, &events, |meta, _| {
            if let Some(level) = copied.levels.last_mut() {
                level.after = hash;
            }
            copied.entries += entries;
            copied.left.extend(left);
            if let Some(copy) = copy {
                meta.note_changed(copied, level.to);
                copied.bytes += copy.bytes;
                copied.made.extend(copy.made);
                copied.levels.extend(copy.below);
            }
        })
    }

    /// The copy of an entry at this depth; `None` if it is left to the caller.
    fn copy_entry(
        &mut self,
        cx: &mut Cx<'_>,
        request: &CopyTree,
        level: CopyLevel,
        depth: usize,
        name: &Name,
        ino: Ino,
    ) -> Step<Option<EntryCopy>> {
        let to = level.to;
        let inode = self.state.inode(ino)?;
        let is_left = match &inode.body {
            Body::Directory(_) => {
                depth == CopyTree::MAX_LEVELS || !cx.may(inode, Access::READ | Access::EXEC)?
            }
            Body::Streamed { .. } | Body::Striped { .. } => true,
            Body::Stuffed { .. } => !cx.may(inode, Access::READ)?,
            Body::Symlink(_) => false,
            // Only the kernel knows who may create devices.
            Body::Node => matches!(inode.kind, FileType::CharDevice | FileType::BlockDevice),
        };
        let is_linked = request.preserve && !inode.is_dir() && inode.nlink > 1;
        let has_others = request.preserve && self.has_foreign_xattrs(cx, ino)?;
        let slot = self.state.slot(name);
        if is_left || is_linked || has_others || self.state.target(to, &slot)?.ino().is_some() {
            return Ok(None);
        }
        let (copy, xattrs) = self.copy_of(cx, request, to, self.state.inode(ino)?)?;
        self.state.admit(&[(to, copy.weight())], &[])?;
        let (new, dir, name) = (copy.ino, to, name.clone());
        let bytes = self.state.strip(ino)?.len() as u64;
        self.revoke_new_name(cx, to, &name)?;
        self.clonable(bytes)?;
        let made = (!self.state.cached(to)?.names_are_new).then(|| (to, name.clone()));
        let below = copy.is_dir().then_some(CopyLevel { from: ino, to: new, after: 0 });
        let event = match copy.body {
            Body::Stuffed { stored: 1.., .. } => Event::Clone { from: ino, dir, name, inode: copy },
            _ => Event::Create { dir, name, inode: copy },
        };
        let set = |(name, value)| Event::SetXattr { ino: new, name, value: Some(value), time: cx.now };
        let events = [event].into_iter().chain(xattrs.into_iter().map(set)).collect();
        Ok(Some(EntryCopy { events, bytes, below, made }))
    }

    /// True if an inode has extended attributes that only privileged callers may set, which only
    /// the kernel can authorise.
    fn has_foreign_xattrs(&self, cx: &Cx<'_>, ino: Ino) -> Step<bool> {
        let mut names = self.state.xattr_list(ino)?.iter().map(|(name, _)| name);
        Ok(cx.caller.is_superuser() && names.any(|name| !name.starts_with(b"user.")))
    }

    /// The inode and extended attributes of a copy, as `cp` would create them.
    fn copy_of(&self, cx: &Cx<'_>, request: &CopyTree, to: Ino, inode: &Inode) -> Step<(Inode, Xattrs)> {
        let node = match (&inode.body, inode.kind) {
            (Body::Directory(_), _) => NewNode::Directory,
            (Body::Symlink(target), _) => NewNode::Symlink(target.clone()),
            (_, FileType::Fifo) => NewNode::Fifo,
            (_, FileType::Socket) => NewNode::Socket,
            _ => NewNode::Regular,
        };
        let perm = inode.perm & plain_perm(inode.is_dir());
        let mut copy = self.new_inode(cx, to, &node, (perm, request.umask), None)?;
        if let Body::Stuffed { .. } = inode.body {
            copy.body = inode.body.clone();
        }
        let mut xattrs = Xattrs::new();
        if request.preserve {
            let keeps_group = cx.caller.is_superuser() || cx.is_member(inode.gid)?;
            if cx.caller.is_superuser() {
                copy.uid = inode.uid;
            }
            if keeps_group {
                copy.gid = inode.gid;
            }
            copy.perm = copied_perm(inode, &copy);
            (copy.atime, copy.mtime) = (inode.atime, inode.mtime);
            copy.acl.clone_from(&inode.acl);
            copy.default_acl.clone_from(&inode.default_acl);
            if copy.is_dir() && inode.rare.policy.is_some() {
                let policy = inode.policy().within(copy.policy());
                // As far as the caller may set it.
                if cx.caller.is_superuser() || self.exceeded_bound(&policy).is_none() {
                    copy.rare.policy = Some(Arc::new(policy));
                }
            }
            xattrs.clone_from(self.state.xattr_list(inode.ino)?);
            xattrs.retain(|(name, _)| name.starts_with(b"user."));
        }
        if copy.is_dir() && !cx.caller.is_superuser() {
            // The caller must be able to fill the directory.
            set_perm(&mut copy, |perm| perm | 0o700);
        }
        Ok((copy, xattrs))
    }

    /// Completes the copy of a directory whose entries have been copied.
    fn finish_dir(
        &mut self,
        cx: &mut Cx<'_>,
        request: &CopyTree,
        level: CopyLevel,
        copied: &mut Copied,
    ) -> Step<Final<'_, ()>> {
        let (from, to) = (self.state.inode(level.from)?, self.state.inode(level.to)?);
        let mut change = Change::default();
        let perm = if request.preserve {
            (change.atime, change.mtime) = (Some(from.atime), Some(from.mtime));
            copied_perm(from, to)
        } else {
            to.perm & (!0o700 | (from.perm & !request.umask))
        };
        change.perm = (perm != to.perm).then_some(perm);
        if change == Change::default() {
            return Ok(Final::of(()));
        }
        check_not(to, InodeFlags::PROTECTED)?;
        change.ctime = Some(cx.now);
        self.commit(cx, &Event::SetAttr { ino: level.to, change }, |meta, _| {
            meta.note_changed(copied, level.to);
        })
    }

    /// Records that a directory known to clients has changed.
    fn note_changed(&self, copied: &mut Copied, dir: Ino) {
        let is_known = self.state.inodes.get(&dir).is_some_and(|cached| cached.lookups > 0);
        if is_known && copied.changed.last() != Some(&dir) {
            copied.changed.push(dir);
        }
    }

    /// The path of an entry relative to the first level's directory, as far as the directories have
    /// names.
    fn path_below(&self, levels: &[CopyLevel], name: &Name) -> Vec<u8> {
        let mut path = Vec::new();
        for level in levels.iter().skip(1) {
            if let Some(Location::Dentry { dir, hash }) =
                self.state.inodes.get(&level.from).map(|cached| cached.location)
                && let Some(slot) = self.state.primary_slot(dir, hash, level.from)
            {
                path.extend_from_slice(&slot.name);
                path.push(b'/');
            }
        }
        path.extend_from_slice(name);
        path
    }
}

/// The permissions that a copy with this owner keeps.
fn copied_perm(inode: &Inode, copy: &Inode) -> u32 {
    match (copy.uid, copy.gid) == (inode.uid, inode.gid) {
        true => inode.perm,
        false => inode.perm & plain_perm(inode.is_dir()),
    }
}

/// The permission bits that any owner may set.
fn plain_perm(is_dir: bool) -> u32 {
    0o777 | if is_dir { mode::STICKY } else { 0 }
}

fn set_perm(inode: &mut Inode, perm: impl FnOnce(u32) -> u32) {
    let change = Change { perm: Some(perm(inode.perm)), ..Change::default() };
    change.apply(inode);
}
