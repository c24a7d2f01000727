//! Effects of actions on a tree: a reference implementation of POSIX, without permissions
//! (`permit.rs`).

use std::collections::BTreeSet;

use espalier_proto::{Errno, FileType, Ino, Name, NewNode, RenameFlags, XattrMode};

use super::acl;
use super::action::Action;
use super::outcome::{ExpectedOutcome, Stat};
use super::permit::CallerCreds;
use super::policy::{self, Born};
use super::privileges::Cause;
use super::tree::{ModelInode, ModelNode, Tree};
use super::{quota, usage};

/// The inode of a number.
enum Found {
    There(ModelNode),
    /// The inode's last name is removed.
    Gone(ModelNode),
    /// No reply has named it.
    Unknown,
}

impl Tree<'_> {
    /// Executes an action. `call`: the call that it belongs to; `strip`: size in bytes.
    pub fn perform(
        &mut self,
        action: &Action,
        creds: &CallerCreds,
        call: u64,
        strip: u64,
    ) -> ExpectedOutcome {
        match action {
            Action::Lookup { dir, name } => match self.find(*dir) {
                Found::There(dir) => self
                    .name(dir, name)
                    .map_or(ExpectedOutcome::Absent, |node| ExpectedOutcome::Named(self.stat(node, strip))),
                Found::Gone(_) => ExpectedOutcome::Gone,
                Found::Unknown => ExpectedOutcome::Unknown,
            },
            Action::Attr { ino } => self.of(*ino, |tree, node| ExpectedOutcome::Stat(tree.stat(node, strip))),
            Action::Find { ino } => {
                self.of(*ino, |tree, node| ExpectedOutcome::Named(tree.stat(node, strip)))
            }
            Action::Parent { dir } => match self.find(*dir) {
                Found::There(dir) => self.inode(dir).map_or(ExpectedOutcome::Gone, |inode| {
                    ExpectedOutcome::Named(self.stat(inode.parent, strip))
                }),
                Found::Gone(_) => ExpectedOutcome::Gone,
                Found::Unknown => ExpectedOutcome::Unknown,
            },
            Action::List { dir } => match self.find(*dir) {
                Found::There(dir) => ExpectedOutcome::Listing(self.names(dir)),
                Found::Gone(_) => ExpectedOutcome::Gone,
                Found::Unknown => ExpectedOutcome::Unknown,
            },
            Action::ReadLink { ino } => self.of_inode(*ino, |inode| match inode.kind {
                kind if kind == FileType::Symlink.bits() => ExpectedOutcome::Bytes(inode.target.to_vec()),
                _ => ExpectedOutcome::fails([Errno::EINVAL]),
            }),
            Action::GetXattr { ino, name, .. } if usage::is_known(name) => self.of(*ino, |tree, node| {
                let encoded = tree.usage(node, strip).encoded(name);
                encoded.map_or(ExpectedOutcome::fails([Errno::ENODATA]), |encoded| {
                    ExpectedOutcome::Bytes(encoded.into_bytes())
                })
            }),
            Action::GetXattr { ino, name, .. } if policy::is_policy(name) => self.policy(*ino, name),
            Action::GetXattr { ino, name, .. } if quota::is_limit(name) => {
                self.of_inode(*ino, |inode| quota::encoded(inode, name))
            }
            Action::SetXattr { ino, name, value, mode, .. } if quota::is_limit(name) => {
                self.of(*ino, |tree, node| tree.limit(node, name, Some(value), *mode))
            }
            Action::RemoveXattr { ino, name, .. } if quota::is_limit(name) => {
                self.of(*ino, |tree, node| tree.limit(node, name, None, XattrMode::Replace))
            }
            Action::GetXattr { ino, name, .. } if acl::is_list(name) => {
                self.of_inode(*ino, |inode| acl::encoded(inode, name))
            }
            Action::SetList { ino, default, value, .. } => {
                self.of(*ino, |tree, node| tree.set_list(node, creds, *default, value.as_deref()))
            }
            Action::GetXattr { ino, name, .. } => self.of_inode(*ino, |inode| match inode.xattrs.get(name) {
                Some(value) => ExpectedOutcome::Bytes(value.to_vec()),
                None => ExpectedOutcome::fails([Errno::ENODATA]),
            }),
            Action::ListXattr { ino } => self.of_inode(*ino, |inode| {
                let settings = inode.settings.names().filter(|_| inode.is_dir());
                let names = inode.xattrs.keys().flat_map(|name| name.iter().copied().chain([0]));
                ExpectedOutcome::Bytes(names.chain(settings).chain(acl::names(inode)).collect())
            }),
            Action::Read { ino, at, from, to } => self.of_inode(*ino, |inode| {
                let mut bytes = inode.strips.get(at).map_or(Vec::new(), |bytes| bytes.to_vec());
                // Holes before the end of the file read as zeros.
                let end = inode.size(strip).saturating_sub(at * strip).min(strip);
                bytes.resize(end as usize, 0);
                ExpectedOutcome::Bytes(bytes.get(*from..bytes.len().min(*to)).unwrap_or_default().to_vec())
            }),
            Action::Open { ino, .. } => self.of(*ino, |_, _| ExpectedOutcome::Done),
            Action::Create { dir, name, node, perm, umask, open, exclusive } => {
                self.create((*dir, name), node, (creds, *perm, *umask), *open, *exclusive, call, strip)
            }
            Action::Link { ino, dir, name } => self.link(*ino, (*dir, name), strip),
            Action::Unlink { dir, name } => self.remove((*dir, name), false),
            Action::RmDir { dir, name } => self.remove((*dir, name), true),
            Action::Rename { from, to, flags } => self.rename((from.0, &from.1), (to.0, &to.1), *flags),
            Action::ChangeOwner { ino, uid, gid, .. } => {
                self.of(*ino, |tree, node| tree.change_owner(node, creds, (*uid, *gid), strip))
            }
            Action::RemovePrivileges { ino, cause } => {
                self.of(*ino, |tree, node| tree.remove_privileges(node, creds, *cause))
            }
            Action::SetAttr { ino, perm, .. } => self.of(*ino, |tree, node| {
                if let (Some(perm), Some(inode)) = (perm, tree.inode(node)) {
                    let perm = creds.without_foreign_sgid(*perm, inode.gid);
                    if inode.no_metafile && inode.perm != perm {
                        return ExpectedOutcome::fails([Errno::EPERM]);
                    }
                    tree.change(node, |inode| inode.set_perm(perm));
                    tree.update_dependents(node);
                }
                ExpectedOutcome::Stat(tree.stat(node, strip))
            }),
            Action::SetXattr { ino, name, value, mode, .. } if policy::is_policy(name) => {
                self.set_policy(*ino, name, Some(value), *mode, creds)
            }
            Action::SetXattr { ino, name, value, mode, .. } => self.of(*ino, |tree, node| {
                if tree.has_no_metafile(node) {
                    return ExpectedOutcome::fails([Errno::EPERM]);
                }
                let is_there = tree.inode(node).is_some_and(|inode| inode.xattrs.contains_key(name));
                match mode {
                    XattrMode::Create if is_there => return ExpectedOutcome::fails([Errno::EEXIST]),
                    XattrMode::Replace if !is_there => return ExpectedOutcome::fails([Errno::ENODATA]),
                    _ => {}
                }
                tree.change(node, |inode| drop(inode.xattrs.insert(name.clone(), value.clone())));
                ExpectedOutcome::Done
            }),
            Action::RemoveXattr { ino, name } if policy::is_policy(name) => {
                self.set_policy(*ino, name, None, XattrMode::Replace, creds)
            }
            Action::RemoveXattr { ino, name } => self.of(*ino, |tree, node| {
                let mut is_removed = false;
                tree.change(node, |inode| is_removed = inode.xattrs.remove(name).is_some());
                if is_removed { ExpectedOutcome::Done } else { ExpectedOutcome::fails([Errno::ENODATA]) }
            }),
            Action::Write { ino, at, from, data } => self.of(*ino, |tree, node| {
                tree.change(node, |inode| inode.write_strip(*at, *from, data));
                ExpectedOutcome::Written
            }),
            Action::Append { ino, data } => self.of(*ino, |tree, node| {
                tree.change(node, |inode| append(inode, data, strip));
                ExpectedOutcome::Written
            }),
            Action::Truncate { ino, at, size, .. } => self.of(*ino, |tree, node| {
                tree.change(node, |inode| truncate(inode, *at, *size, strip));
                ExpectedOutcome::Done
            }),
        }
    }

    fn find(&self, ino: Ino) -> Found {
        match self.numbered(ino).map(|node| (node, self.inode(node))) {
            Some((node, Some(inode))) if inode.names > 0 => Found::There(node),
            Some((node, _)) => Found::Gone(node),
            None => Found::Unknown,
        }
    }

    /// Outcome of an action on an inode that may be open without a name.
    pub fn of(
        &mut self,
        ino: Ino,
        act: impl FnOnce(&mut Self, ModelNode) -> ExpectedOutcome,
    ) -> ExpectedOutcome {
        match self.find(ino) {
            Found::There(node) => act(self, node),
            Found::Gone(node) => ExpectedOutcome::OrGone(Box::new(act(self, node))),
            Found::Unknown => ExpectedOutcome::Unknown,
        }
    }

    fn of_inode(&mut self, ino: Ino, look: impl FnOnce(&ModelInode) -> ExpectedOutcome) -> ExpectedOutcome {
        self.of(ino, |tree, node| tree.inode(node).map_or(ExpectedOutcome::Gone, look))
    }

    pub fn stat(&self, node: ModelNode, strip: u64) -> Stat {
        let inode = self.inode(node);
        Stat {
            node,
            kind: inode.map_or(0, |inode| inode.kind),
            perm: inode.map_or(0, |inode| inode.perm),
            uid: inode.map_or(0, |inode| inode.uid),
            gid: inode.map_or(0, |inode| inode.gid),
            nlink: inode.map_or(0, ModelInode::nlink),
            size: inode.map_or(0, |inode| inode.size(strip)),
        }
    }

    /// True for a file without a metafile.
    pub fn has_no_metafile(&self, node: ModelNode) -> bool {
        self.inode(node).is_some_and(|inode| inode.no_metafile)
    }

    /// True if the file may have no metafile.
    pub fn may_have_no_metafile(&self, ino: Ino) -> bool {
        self.numbered(ino).is_none_or(|node| self.has_no_metafile(node))
    }

    /// Gives the file a metafile, and so permissions of its own.
    fn make_whole(&mut self, node: ModelNode) {
        if self.has_no_metafile(node) {
            self.change(node, |inode| inode.no_metafile = false);
        }
    }

    /// Updates the attributes that no-metafile files inherit from their directory.
    pub fn update_dependents(&mut self, dir: ModelNode) {
        let Some(inode) = self.inode(dir).filter(|inode| inode.is_dir()) else { return };
        let (perm, uid, gid, settings) =
            (inode.no_metafile_perm(), inode.uid, inode.gid, inode.settings.clone());
        for node in self.names(dir).into_values() {
            if self.has_no_metafile(node) {
                let settings = settings.clone();
                self.change(node, |file| {
                    (file.perm, file.uid, file.gid, file.settings) = (perm, uid, gid, settings);
                });
            }
        }
    }

    fn is_dir(&self, node: ModelNode) -> bool {
        self.inode(node).is_some_and(ModelInode::is_dir)
    }

    fn is_empty(&self, node: ModelNode) -> bool {
        self.inode(node).is_none_or(|inode| inode.entries == 0)
    }

    #[allow(clippy::too_many_arguments)]
    fn create(
        &mut self,
        (dir, name): (Ino, &Name),
        node: &NewNode,
        (creds, perm, umask): (&CallerCreds, u32, u32),
        open: Option<bool>,
        exclusive: bool,
        call: u64,
        strip: u64,
    ) -> ExpectedOutcome {
        let dir = match self.find(dir) {
            Found::There(dir) => dir,
            Found::Gone(_) => return ExpectedOutcome::Gone,
            Found::Unknown => return ExpectedOutcome::Unknown,
        };
        if let Some(there) = self.name(dir, name) {
            let (Some(empties), false) = (open, exclusive) else {
                return ExpectedOutcome::fails([Errno::EEXIST]);
            };
            let kind = self.inode(there).map(|inode| inode.kind);
            match kind.and_then(FileType::from_mode) {
                Some(FileType::Directory) => return ExpectedOutcome::fails([Errno::EISDIR]),
                Some(FileType::Symlink) => return ExpectedOutcome::fails([Errno::ELOOP]),
                Some(FileType::Regular) | None => {}
                Some(_) => return ExpectedOutcome::fails([Errno::ENXIO]),
            }
            if empties {
                // Other inodes have no data.
                self.change(there, |inode| inode.strips.clear());
                self.remove_privileges(there, creds, Cause::Bytes);
            }
            return ExpectedOutcome::Named(self.stat(there, strip));
        }
        let (kind, target) = match node {
            NewNode::Regular => (FileType::Regular, Box::default()),
            NewNode::Directory => (FileType::Directory, Box::default()),
            NewNode::Symlink(target) => (FileType::Symlink, target.clone()),
            NewNode::Fifo => (FileType::Fifo, Box::default()),
            NewNode::Socket => (FileType::Socket, Box::default()),
            NewNode::CharDevice(_) => (FileType::CharDevice, Box::default()),
            NewNode::BlockDevice(_) => (FileType::BlockDevice, Box::default()),
        };
        let (settings, born) = self.inherited(dir, node);
        let no_metafile = born == Born::NoMetafile;
        let new = self.new_node(call);
        let (uid, gid) = (creds.uid, creds.gid);
        let mut inode =
            ModelInode { target, uid, gid, no_metafile, born, settings, ..ModelInode::new(kind, perm, dir) };
        let default = self.inode(dir).and_then(|dir| dir.default_list.as_ref());
        inode.take_lists(default, umask);
        self.inode(dir).into_iter().for_each(|dir| inode.take_group(dir, creds));
        self.insert(new, inode);
        self.put(dir, name, new);
        self.update_dependents(dir);
        ExpectedOutcome::Named(self.stat(new, strip))
    }

    fn link(&mut self, ino: Ino, (dir, name): (Ino, &Name), strip: u64) -> ExpectedOutcome {
        let (node, dir) = match (self.find(ino), self.find(dir)) {
            (Found::Unknown, _) | (_, Found::Unknown) => return ExpectedOutcome::Unknown,
            (Found::There(node), Found::There(dir)) => (node, dir),
            _ => return ExpectedOutcome::fails([Errno::ESTALE, Errno::ENOENT, Errno::EEXIST, Errno::EPERM]),
        };
        let is_one = self.is_dir(node) || self.has_no_metafile(node);
        let is_taken = self.name(dir, name).is_some();
        if is_one || is_taken {
            let errnos = [is_one.then_some(Errno::EPERM), is_taken.then_some(Errno::EEXIST)];
            return ExpectedOutcome::fails(errnos.into_iter().flatten());
        }
        self.put(dir, name, node);
        self.change(node, |inode| inode.names += 1);
        ExpectedOutcome::Named(self.stat(node, strip))
    }

    fn remove(&mut self, (dir, name): (Ino, &Name), is_rmdir: bool) -> ExpectedOutcome {
        let dir = match self.find(dir) {
            Found::There(dir) => dir,
            Found::Gone(_) => return ExpectedOutcome::Gone,
            Found::Unknown => return ExpectedOutcome::Unknown,
        };
        let Some(node) = self.name(dir, name) else { return ExpectedOutcome::fails([Errno::ENOENT]) };
        match (self.is_dir(node), is_rmdir) {
            (true, false) => return ExpectedOutcome::fails([Errno::EISDIR]),
            (false, true) => return ExpectedOutcome::fails([Errno::ENOTDIR]),
            (true, true) if !self.is_empty(node) => return ExpectedOutcome::fails([Errno::ENOTEMPTY]),
            _ => {}
        }
        self.take(dir, name);
        self.make_whole(node);
        self.change(node, |inode| inode.names -= 1);
        ExpectedOutcome::Done
    }

    fn rename(&mut self, from: (Ino, &Name), to: (Ino, &Name), flags: RenameFlags) -> ExpectedOutcome {
        let there = |found: Found| match found {
            Found::There(node) => Ok(Some(node)),
            Found::Gone(_) => Ok(None),
            Found::Unknown => Err(ExpectedOutcome::Unknown),
        };
        let (from_dir, to_dir) = match (there(self.find(from.0)), there(self.find(to.0))) {
            (Ok(from_dir), Ok(to_dir)) => (from_dir, to_dir),
            _ => return ExpectedOutcome::Unknown,
        };
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let named = |dir: Option<ModelNode>, name: &Name| dir.and_then(|dir| self.name(dir, name));
        let (moved, target) = (named(from_dir, from.1), named(to_dir, to.1));
        // If several errors apply, any of them is right.
        let mut errnos = BTreeSet::new();
        if from_dir.is_none() || to_dir.is_none() || moved.is_none() || (exchange && target.is_none()) {
            errnos.extend([Errno::ENOENT.raw(), Errno::ESTALE.raw()]);
        }
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            errnos.insert(Errno::EEXIST.raw());
        } else if moved.is_some() && moved == target {
            return ExpectedOutcome::Done;
        }
        let mut into_itself = |node: Option<ModelNode>, dir: Option<ModelNode>| {
            if let (Some(node), Some(dir)) = (node, dir)
                && self.is_dir(node)
                && self.is_below(dir, node)
            {
                errnos.insert(Errno::EINVAL.raw());
            }
        };
        into_itself(moved, to_dir);
        if exchange {
            into_itself(target, from_dir);
        } else if let (Some(moved), Some(target)) = (moved, target) {
            match (self.is_dir(moved), self.is_dir(target)) {
                (true, false) => drop(errnos.insert(Errno::ENOTDIR.raw())),
                (false, true) => drop(errnos.insert(Errno::EISDIR.raw())),
                (true, true) if !self.is_empty(target) => drop(errnos.insert(Errno::ENOTEMPTY.raw())),
                _ => {}
            }
        }
        let (true, Some(from_dir), Some(to_dir), Some(moved)) = (errnos.is_empty(), from_dir, to_dir, moved)
        else {
            return ExpectedOutcome::Fails(errnos);
        };
        self.take(from_dir, from.1);
        if from_dir != to_dir {
            self.make_whole(moved);
        }
        if let Some(target) = target {
            self.take(to_dir, to.1);
            if !exchange || from_dir != to_dir {
                self.make_whole(target);
            }
            if exchange {
                self.put(from_dir, from.1, target);
            } else {
                self.change(target, |inode| inode.names -= 1);
            }
        }
        self.put(to_dir, to.1, moved);
        ExpectedOutcome::Done
    }
}

fn append(inode: &mut ModelInode, data: &[u8], strip: u64) {
    let (mut at, mut data) = (inode.size(strip), data);
    while !data.is_empty() {
        let from = (at % strip) as usize;
        let (now, later) = data.split_at(data.len().min(strip as usize - from));
        inode.write_strip(at / strip, from, now);
        at += now.len() as u64;
        data = later;
    }
}

fn truncate(inode: &mut ModelInode, at: u64, size: u64, strip: u64) {
    let last = size.saturating_sub(1) / strip;
    let written = inode.strips.get(&at).map_or(0, |bytes| bytes.len());
    let end = size.saturating_sub(at * strip).min(strip) as usize;
    // The last strip has data up to the end of the file; earlier ones may end in a hole.
    inode.resize_strip(at, if at == last { end } else { written.min(end) });
}
