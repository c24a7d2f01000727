//! Applies events to the tables in memory: the only way in which these change, live and in replay.
//!
//! Invariant: each event first ensures that all it needs is loaded, then makes its changes. A live
//! operation has loaded this before it decided; in replay, the first part says what to load.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Name, Time};

use crate::event::{Change, Event};
use crate::no_metafile::NoMetafile;
use crate::record::{Body, Inode, Slot};
use crate::state::{Location, SAME_HASH, SizeDirty, State, Target};
use crate::step::{Load, Step, Stop, Wait};
use crate::usage::{Usage, add_name, remove_name};

impl State {
    pub(crate) fn apply(&mut self, event: &Event) -> Step<()> {
        let next = self.sequence + 1;
        let before = core::mem::replace(&mut self.sequence, next);
        // Locks bind operations that decide, and not events, which are decided.
        let locks = self.locks.take();
        let outcome = self.apply_one(event);
        self.locks = locks;
        if outcome.is_err() {
            self.sequence = before;
        }
        outcome
    }

    fn apply_one(&mut self, event: &Event) -> Step<()> {
        match event {
            Event::Create { dir, name, inode } => self.apply_create(*dir, name, inode)?,
            Event::CreateNoMetafile { dir, name, ino, server, time } => {
                let mut inode =
                    NoMetafile { ino: *ino, server: *server, counted: 0, time: *time, mtime: None }
                        .inode()?;
                inode.strip_to(self.dir(*dir)?);
                self.apply_create(*dir, name, &inode)?;
                self.fragments.entry(*dir).or_default().has_no_metafile_entries = true;
            }
            Event::Clone { from, dir, name, inode } => {
                let bytes = self.strip(*from)?.to_vec();
                self.apply_create(*dir, name, inode)?;
                self.put_clone(inode.ino, bytes);
            }
            Event::Merge { dir, name, inode, bytes } => {
                self.apply_create(*dir, name, inode)?;
                if !bytes.is_empty() {
                    self.put_clone(inode.ino, bytes.clone());
                }
            }
            Event::Decouple { dir, decoupled, time } => self.apply_decouple(*dir, decoupled, *time)?,
            Event::TmpFile { inode } => self.insert_new(inode),
            Event::Link { ino, dir, name, time } | Event::MergeLink { ino, dir, name, time } => {
                self.apply_link(*ino, *dir, name, *time)?;
            }
            Event::Unlink { dir, name, time } => {
                let (slot, ino) = self.present(*dir, name)?;
                let (is_dir, weight) = (self.inode(ino)?.is_dir(), self.inode(ino)?.weight());
                self.load_above(*dir)?;
                self.count(*dir, Usage::default(), weight);
                self.take_name(*dir, &slot, ino, *time);
                self.entry_removed(*dir, is_dir, *time);
            }
            Event::Rename { from_dir, from, to_dir, to, whiteout, time } => {
                self.apply_rename((*from_dir, from), (*to_dir, to), whiteout.as_deref(), *time)?;
            }
            Event::Exchange { from_dir, from, to_dir, to, time } => {
                self.apply_exchange((*from_dir, from), (*to_dir, to), *time)?;
            }
            Event::SetAttr { ino, change } => {
                self.inode(*ino)?;
                if change.flags.is_some() {
                    self.change_protection(*ino, |inode| event.change_rights(inode));
                } else {
                    self.change(*ino, |inode| event.change_rights(inode));
                }
            }
            Event::Write { ino, offset, data, time } => {
                self.strip(*ino)?;
                let end = offset + data.len() as u64;
                self.resize(*ino, self.inode(*ino)?.counted_bytes().max(end))?;
                self.change_strip(*ino, |bytes| overwrite(bytes, *offset as usize, data));
                self.stuffed_changed(*ino, |size| size.max(end), *time);
            }
            Event::Resize { ino, size, time } => {
                let stored = self.strip(*ino)?.len();
                self.resize(*ino, *size)?;
                if stored as u64 > *size {
                    self.change_strip(*ino, |bytes| bytes.truncate(*size as usize));
                }
                self.stuffed_changed(*ino, |_| *size, *time);
            }
            Event::Zero { ino, offset, length, time } => {
                let stored = self.strip(*ino)?.len() as u64;
                let (from, to) =
                    ((*offset).min(stored) as usize, offset.saturating_add(*length).min(stored) as usize);
                self.change_strip(*ino, |bytes| {
                    bytes[from..to].fill(0);
                    if to == bytes.len() {
                        bytes.truncate(from);
                    }
                });
                self.stuffed_changed(*ino, |size| size, *time);
            }
            Event::Allocate { ino, offset, length, zero, size, time } => {
                let stored = self.strip(*ino)?.len();
                self.resize(*ino, *size)?;
                let (from, to) = (*offset as usize, offset.saturating_add(*length) as usize);
                self.changes.cloned += to.saturating_sub(stored) as u64;
                self.change_strip(*ino, |bytes| {
                    bytes.resize(stored.max(to), 0);
                    if *zero {
                        bytes[from..to].fill(0);
                    }
                });
                self.stuffed_changed(*ino, |_| *size, *time);
            }
            Event::Unstuff { ino } => {
                self.strip(*ino)?;
                self.strips.remove(*ino, &mut self.changes);
                self.provisional.insert(*ino);
                // If this event is lost, so is the stream, and no write to it needs counting.
                self.size_dirty.insert(*ino, SizeDirty::new(0));
                self.change(*ino, |inode| inode.body = Body::Streamed { counted: inode.counted_bytes() });
            }
            Event::Stripe { ino, layout } => {
                self.strip(*ino)?;
                self.strips.remove(*ino, &mut self.changes);
                self.striped.get_or_insert_default().insert(*ino);
                self.size_dirty.insert(*ino, SizeDirty { outgrew: true, ..SizeDirty::new(self.sequence) });
                self.change(*ino, |inode| {
                    let (counted, layout) = (inode.counted_bytes(), Arc::clone(layout));
                    inode.body = Body::Striped { counted, layout };
                });
            }
            Event::SetLayout { ino, layout } => {
                self.inode(*ino)?;
                self.change(*ino, |inode| {
                    if let Body::Striped { layout: set, .. } = &mut inode.body {
                        set.clone_from(layout);
                    }
                });
            }
            Event::MarkSizeDirty { ino } => {
                self.inode(*ino)?;
                self.size_dirty.insert(*ino, SizeDirty::new(self.sequence));
            }
            Event::Count { ino, size } => {
                self.resize(*ino, *size)?;
                self.change(*ino, |inode| {
                    if let Body::Streamed { counted } | Body::Striped { counted, .. } = &mut inode.body {
                        *counted = *size;
                    }
                });
            }
            Event::SetQuota { dir, quota, time } => {
                self.dir(*dir)?;
                self.change(*dir, |inode| {
                    if let Body::Directory(directory) = &mut inode.body {
                        directory.quota = *quota;
                    }
                    inode.ctime = *time;
                });
            }
            Event::SetPolicy { dir, .. } => {
                self.dir(*dir)?;
                self.change(*dir, |inode| event.change_rights(inode));
            }
            Event::SetAcl { ino, .. } | Event::SetDefaultAcl { ino, .. } => {
                self.inode(*ino)?;
                self.change(*ino, |inode| event.change_rights(inode));
            }
            Event::SetXattr { ino, name, value, time } => {
                self.xattr_list(*ino)?;
                let has_xattrs = self.change_xattrs(*ino, |list| {
                    match (list.binary_search_by(|(n, _)| n.cmp(name)), value) {
                        (Ok(at), Some(value)) => list[at].1.clone_from(value),
                        (Ok(at), None) => drop(list.remove(at)),
                        (Err(at), Some(value)) => list.insert(at, (name.clone(), value.clone())),
                        (Err(_), None) => {}
                    }
                    !list.is_empty()
                });
                self.change(*ino, |inode| {
                    inode.has_xattrs = has_xattrs;
                    inode.ctime = *time;
                });
            }
            Event::Locate { ino, dir, hash } => {
                if !self.inodes.contains_key(ino) {
                    let load = Load::Dentries { dir: *dir, from: *hash, limit: SAME_HASH };
                    return Err(Stop::Wait(Wait::Load(load)));
                }
            }
            Event::Session { client, begins } => self.apply_session(*client, *begins),
            Event::Completed { client, id, below, outcome } => {
                self.apply_completed(*client, *id, *below, outcome);
            }
            Event::Moved { ino } => {
                let location = self.cached(*ino)?.location;
                self.apply_moved(*ino, location);
            }
            Event::Began => {}
            Event::Reserved { below } => self.reserved = self.reserved.max(*below),
            Event::Pool { pool } => self.apply_pool(pool),
            Event::Given { client, first, count } => self.apply_given(*client, *first, *count),
            Event::Prepared { id, part } => self.apply_prepared(*id, part),
            Event::Decided { id, commit } => self.apply_decided(*id, *commit)?,
            Event::Committed { id, part, ranks } => self.apply_committed(*id, part, ranks)?,
            Event::Forgotten { id } => self.forget_transaction(*id),
            Event::UsageSent { to } => self.apply_usage_sent(*to),
            Event::UsageReceived { from, change } => self.apply_heard(*from, *change)?,
            Event::Counted { by } => self.apply_counted(*by),
            Event::Freed { inodes } => self.apply_freed(inodes),
            Event::FreedHeard { home, inodes } => self.apply_freed_heard(*home, inodes),
            Event::Pulled { dir } => drop(self.pulling.remove(dir)),
            Event::Purge { ino } => {
                let inode = self.inode(*ino)?;
                let (is_protected, is_partition) = (inode.is_protected(), inode.partition().is_some());
                self.size_dirty.remove(ino);
                self.forget_moved(*ino);
                self.drop_inode(*ino);
                self.note_freed(*ino);
                self.pulling.remove(ino);
                self.files = self.files.saturating_sub(1);
                self.protected = self.protected.saturating_sub(u64::from(is_protected));
                self.partitions = self.partitions.saturating_sub(u64::from(is_partition));
            }
        }
        event.changes_dependents().into_iter().for_each(|dir| self.update_dependents(dir));
        Ok(())
    }

    fn apply_create(&mut self, dir: Ino, name: &Name, inode: &Inode) -> Step<()> {
        self.load_above(dir)?;
        let slot = self.slot(name);
        self.count(dir, inode.weight(), Usage::default());
        self.insert_new(inode);
        self.put_primary(dir, slot, inode.ino);
        self.entry_added(dir, inode.is_dir(), inode.ctime);
        Ok(())
    }

    fn insert_new(&mut self, inode: &Inode) {
        self.files += 1;
        if inode.layout().is_some() {
            self.striped.get_or_insert_default();
        }
        self.take_from_pool(inode.ino);
        self.insert_inode(inode.clone(), Location::Orphan);
    }

    /// The slot and inode of a name that must exist; both are loaded.
    fn present(&self, dir: Ino, name: &Name) -> Step<(Slot, Ino)> {
        self.dir(dir)?;
        let slot = self.slot(name);
        let ino = self.target(dir, &slot)?.ino().ok_or(Stop::Fail(Errno::ENOENT))?;
        self.inode(ino)?;
        Ok((slot, ino))
    }

    pub(crate) fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        if let Some(cached) = self.touch_inode(ino) {
            change(&mut cached.inode);
        }
    }

    /// As [`Self::change`], for a change that may protect the inode or end its protection.
    pub(crate) fn change_protection(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let is_protected = |state: &Self| {
            u64::from(state.inodes.get(&ino).is_some_and(|cached| cached.inode.is_protected()))
        };
        let before = is_protected(self);
        self.change(ino, change);
        self.protected = self.protected.saturating_sub(before) + is_protected(self);
    }

    /// Prepares a change of a file's counted size.
    fn resize(&mut self, ino: Ino, size: u64) -> Step<()> {
        let old = self.inode(ino)?.counted_bytes();
        if old != size {
            let parents = self.load_parents(ino)?;
            self.count_size(&parents, old, size);
        }
        Ok(())
    }

    fn stuffed_changed(&mut self, ino: Ino, new_size: impl FnOnce(u64) -> u64, time: Time) {
        let stored_len = self.strips.get(&ino).map_or(0, |strip| strip.bytes.len() as u32);
        self.change(ino, |inode| {
            if let Body::Stuffed { size, stored } = &mut inode.body {
                *size = new_size(*size);
                *stored = stored_len;
            }
            inode.mtime = time;
            inode.ctime = time;
        });
    }

    pub(crate) fn entry_added(&mut self, dir: Ino, is_dir: bool, time: Time) {
        self.change(dir, |inode| {
            if let Body::Directory(directory) = &mut inode.body {
                directory.entries += 1;
            }
            inode.nlink += u32::from(is_dir);
            inode.mtime = time;
            inode.ctime = time;
        });
    }

    pub(crate) fn entry_removed(&mut self, dir: Ino, is_dir: bool, time: Time) {
        self.change(dir, |inode| {
            if let Body::Directory(directory) = &mut inode.body {
                directory.entries = directory.entries.saturating_sub(1);
            }
            inode.nlink = inode.nlink.saturating_sub(u32::from(is_dir));
            inode.mtime = time;
            inode.ctime = time;
        });
    }

    fn take_name(&mut self, dir: Ino, slot: &Slot, ino: Ino, time: Time) {
        self.lose_name(ino, dir, time);
        self.erase_cell(dir, slot);
    }

    /// Removes a name from an inode, which becomes an orphan with its last one.
    pub(crate) fn lose_name(&mut self, ino: Ino, dir: Ino, time: Time) {
        let Some(cached) = self.touch_inode(ino) else { return };
        let inode = &mut cached.inode;
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink.saturating_sub(1) };
        let orphan = inode.nlink == 0;
        if orphan {
            inode.make_whole();
        }
        inode.ctime = time;
        match &mut inode.rare.names {
            Some(names) if !orphan => remove_name(names, dir),
            names => *names = None,
        }
        if orphan {
            self.set_location(ino, Location::Orphan);
        }
    }

    fn apply_link(&mut self, ino: Ino, dir: Ino, name: &Name, time: Time) -> Step<()> {
        self.load_above(dir)?;
        let (location, referent, weight) =
            (self.cached(ino)?.location, self.referent_here(ino)?, self.inode(ino)?.weight());
        let slot = self.slot(name);
        self.count(dir, weight, Usage::default());
        self.change(ino, |inode| {
            inode.nlink += 1;
            inode.ctime = time;
            if let Location::Dentry { dir: first, .. } = location {
                inode.rare.names = Some(Box::new([(first, 1)].into()));
            }
            if let Some(names) = &mut inode.rare.names {
                add_name(names, dir);
            }
        });
        if let Some(cached) = self.inodes.untracked(&ino) {
            cached.nameless = false;
        }
        match location {
            Location::Orphan => self.put_primary(dir, slot, ino),
            Location::Table => self.put_remote(dir, slot, referent),
            Location::Dentry { dir: first_dir, hash } => {
                let first = self.primary_slot(first_dir, hash, ino);
                self.set_location(ino, Location::Table);
                if let Some(first) = first {
                    self.put_remote(first_dir, first, referent);
                }
                self.put_remote(dir, slot, referent);
            }
        }
        self.entry_added(dir, false, time);
        Ok(())
    }

    /// The slot of an inode that is in a dentry.
    pub(crate) fn primary_slot(&self, dir: Ino, hash: u64, ino: Ino) -> Option<Slot> {
        let from = Slot { hash, name: Name::lowest() };
        let mut cells =
            self.fragments.get(&dir)?.cells.range(from..).take_while(|(slot, _)| slot.hash == hash);
        cells.find(|(_, cell)| cell.target == Target::Primary(ino)).map(|(slot, _)| slot.clone())
    }

    fn apply_rename(
        &mut self,
        from: (Ino, &Name),
        to: (Ino, &Name),
        whiteout: Option<&Inode>,
        time: Time,
    ) -> Step<()> {
        let (from_slot, ino) = self.present(from.0, from.1)?;
        self.dir(to.0)?;
        let to_slot = self.slot(to.1);
        let replaced = self.target(to.0, &to_slot)?.ino();
        let replaced = replaced.map(|ino| self.inode(ino)).transpose()?;
        let replaced = replaced.map(|inode| (inode.ino, inode.is_dir(), inode.weight()));
        let (is_dir, weight) = (self.inode(ino)?.is_dir(), self.inode(ino)?.weight());
        let moving = self.target(from.0, &from_slot)?;
        self.load_above(from.0)?;
        self.load_above(to.0)?;

        self.count_move(from.0, to.0, weight);
        if let Some((replaced, was_dir, weight)) = replaced {
            self.count(to.0, Usage::default(), weight);
            self.take_name(to.0, &to_slot, replaced, time);
            self.entry_removed(to.0, was_dir, time);
        }
        self.change_renamed(ino, from.0 != to.0, time);
        self.erase_cell(from.0, &from_slot);
        self.entry_removed(from.0, is_dir, time);
        self.place(from.0, to.0, to_slot, moving);
        self.entry_added(to.0, is_dir, time);
        if let Some(inode) = whiteout {
            self.files += 1;
            self.count(from.0, inode.weight(), Usage::default());
            self.insert_inode(inode.clone(), Location::Orphan);
            self.put_primary(from.0, from_slot, inode.ino);
            self.entry_added(from.0, false, time);
        }
        Ok(())
    }

    fn apply_exchange(&mut self, from: (Ino, &Name), to: (Ino, &Name), time: Time) -> Step<()> {
        let (from_slot, from_ino) = self.present(from.0, from.1)?;
        let (to_slot, to_ino) = self.present(to.0, to.1)?;
        let (from_target, to_target) = (self.target(from.0, &from_slot)?, self.target(to.0, &to_slot)?);
        let (from_is_dir, to_is_dir) = (self.inode(from_ino)?.is_dir(), self.inode(to_ino)?.is_dir());
        let (from_weight, to_weight) = (self.inode(from_ino)?.weight(), self.inode(to_ino)?.weight());
        self.load_above(from.0)?;
        self.load_above(to.0)?;

        self.count_move(from.0, to.0, from_weight);
        self.count_move(to.0, from.0, to_weight);
        for ino in [from_ino, to_ino] {
            self.change_renamed(ino, from.0 != to.0, time);
        }
        self.erase_cell(from.0, &from_slot);
        self.erase_cell(to.0, &to_slot);
        self.entry_removed(from.0, from_is_dir, time);
        self.entry_removed(to.0, to_is_dir, time);
        self.place(to.0, from.0, from_slot, to_target);
        self.place(from.0, to.0, to_slot, from_target);
        self.entry_added(from.0, to_is_dir, time);
        self.entry_added(to.0, from_is_dir, time);
        Ok(())
    }

    fn change_renamed(&mut self, ino: Ino, leaves_dir: bool, time: Time) {
        self.change(ino, |inode| {
            if leaves_dir {
                inode.make_whole();
            }
            inode.ctime = time;
        });
    }

    fn count_move(&mut self, from: Ino, to: Ino, weight: Usage) {
        if from != to {
            self.count(from, Usage::default(), weight);
            self.count(to, weight, Usage::default());
        }
    }

    /// Puts the target of a name that has moved away from `from` under its new name.
    fn place(&mut self, from: Ino, dir: Ino, slot: Slot, target: Target) {
        match target {
            Target::Primary(ino) => {
                self.put_primary(dir, slot, ino);
                self.change(ino, |inode| {
                    if let Body::Directory(directory) = &mut inode.body {
                        directory.parent = dir;
                    }
                });
            }
            Target::Remote(referent) => {
                self.put_remote(dir, slot, referent);
                self.change(referent.ino, |inode| {
                    if let Some(names) = &mut inode.rare.names {
                        remove_name(names, from);
                        add_name(names, dir);
                    }
                });
            }
            Target::Absent => {}
        }
    }
}

impl Change {
    pub(crate) fn apply(&self, inode: &mut Inode) {
        if let Some(perm) = self.perm {
            inode.perm = perm;
            if let Some(acl) = &mut inode.acl {
                Box::as_mut(acl).set_perm(perm);
            }
        }
        inode.uid = self.uid.unwrap_or(inode.uid);
        inode.gid = self.gid.unwrap_or(inode.gid);
        inode.atime = self.atime.unwrap_or(inode.atime);
        inode.mtime = self.mtime.unwrap_or(inode.mtime);
        inode.ctime = self.ctime.unwrap_or(inode.ctime);
        inode.rare.flags = self.flags.unwrap_or(inode.rare.flags);
    }
}

/// Writes `data` at `offset` of `bytes`; fills a gap with zeros.
fn overwrite(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if bytes.len() < offset {
        bytes.resize(offset, 0);
    }
    let inside = data.len().min(bytes.len() - offset);
    bytes[offset..offset + inside].copy_from_slice(&data[..inside]);
    bytes.extend_from_slice(&data[inside..]);
}
