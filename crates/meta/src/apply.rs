//! Applies events to the tables in memory: the only way in which these change, live and in replay.
//!
//! Each event first checks that all it needs is loaded, then makes its changes
//! ([`State::apply_checked`]). A live operation has loaded this before it decided; in replay, the
//! check says what to load.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Name, Time};

use crate::counts::InodeCounts;
use crate::event::{Change, Event};
use crate::no_metafile::NoMetafile;
use crate::record::{Body, Inode, Referent, Slot};
use crate::state::{Location, SAME_HASH, State, Target};
use crate::step::{Load, Step, Stop, Wait};
use crate::usage::{Usage, add_name, remove_name};

/// A name and the inode that it refers to.
struct NamedInode {
    slot: Slot,
    target: Target,
    ino: Ino,
    is_dir: bool,
    weight: Usage,
}

impl NamedInode {
    fn new(slot: Slot, target: Target, inode: &Inode) -> Self {
        Self { slot, target, ino: inode.ino, is_dir: inode.is_dir(), weight: inode.weight() }
    }
}

struct CheckedRename {
    moved: NamedInode,
    /// The new name.
    to: Slot,
    replaced: Option<NamedInode>,
}

/// A change of a file's counted size.
struct SizeChange {
    /// The directories of its names, with the number of names in each.
    parents: Vec<(Ino, u32)>,
    old: u64,
    new: u64,
}

impl State {
    pub(crate) fn apply(&mut self, event: &Event) -> Step<()> {
        // Locks bind operations that decide, and not events, which are decided.
        let locks = self.locks.take();
        let outcome = self.apply_one(event);
        if outcome.is_ok() {
            event.changes_dependents().into_iter().for_each(|dir| self.update_dependents(dir));
        }
        self.locks = locks;
        outcome
    }

    /// Checks what an event needs, which changes nothing; then makes its changes, which cannot
    /// fail.
    fn apply_checked<T>(
        &mut self,
        check: impl FnOnce(&Self) -> Step<T>,
        change: impl FnOnce(&mut Self, T),
    ) -> Step<()> {
        let checked = check(self)?;
        self.apply_always(|state| change(state, checked))
    }

    /// Makes the changes of an event that needs nothing.
    fn apply_always(&mut self, change: impl FnOnce(&mut Self)) -> Step<()> {
        self.sequence += 1;
        change(self);
        Ok(())
    }

    fn apply_one(&mut self, event: &Event) -> Step<()> {
        match event {
            Event::Create { dir, name, inode } => self
                .apply_checked(|state| state.load_above(*dir), |state, ()| state.create(*dir, name, inode)),
            Event::CreateNoMetafile { dir, name, ino, server, time } => self.apply_checked(
                |state| {
                    let (counted, mtime) = (0, None);
                    let file = NoMetafile { ino: *ino, server: *server, counted, time: *time, mtime };
                    let mut inode = file.inode()?;
                    inode.strip_to(state.dir(*dir)?);
                    state.load_above(*dir)?;
                    Ok(inode)
                },
                |state, inode| {
                    state.create(*dir, name, &inode);
                    state.fragments.entry(*dir).or_default().has_no_metafile_entries = true;
                },
            ),
            Event::Clone { from, dir, name, inode } => self.apply_checked(
                |state| {
                    let bytes = state.strip(*from)?.to_vec();
                    state.load_above(*dir)?;
                    Ok(bytes)
                },
                |state, bytes| {
                    state.create(*dir, name, inode);
                    state.put_clone(inode.ino, bytes);
                },
            ),
            Event::Merge { dir, name, inode, bytes } => self.apply_checked(
                |state| state.load_above(*dir),
                |state, ()| {
                    state.create(*dir, name, inode);
                    if !bytes.is_empty() {
                        state.put_clone(inode.ino, bytes.clone());
                    }
                },
            ),
            Event::Decouple { dir, decoupled, time } => self.apply_checked(
                |state| state.dir(*dir).map(drop),
                |state, ()| state.apply_decouple(*dir, decoupled, *time),
            ),
            Event::TmpFile { inode } => self.apply_always(|state| state.insert_new(inode)),
            Event::Link { ino, dir, name, time } | Event::MergeLink { ino, dir, name, time } => self
                .apply_checked(
                    |state| {
                        state.load_above(*dir)?;
                        Ok((
                            state.cached(*ino)?.location,
                            state.referent_here(*ino)?,
                            state.inode(*ino)?.weight(),
                        ))
                    },
                    |state, (location, referent, weight)| {
                        state.count(*dir, weight, Usage::default());
                        state.link(referent, location, (*dir, name), *time);
                    },
                ),
            Event::Unlink { dir, name, time } => self.apply_checked(
                |state| {
                    let named = state.named(*dir, name)?;
                    state.load_above(*dir)?;
                    Ok(named)
                },
                |state, named| state.unlink(*dir, &named, *time),
            ),
            Event::Rename { from_dir, from, to_dir, to, whiteout, time } => self.apply_checked(
                |state| state.check_rename((*from_dir, from), (*to_dir, to)),
                |state, checked| state.rename(*from_dir, *to_dir, checked, whiteout.as_deref(), *time),
            ),
            Event::Exchange { from_dir, from, to_dir, to, time } => self.apply_checked(
                |state| {
                    let names = (state.named(*from_dir, from)?, state.named(*to_dir, to)?);
                    state.load_above(*from_dir)?;
                    state.load_above(*to_dir)?;
                    Ok(names)
                },
                |state, (from, to)| state.exchange((*from_dir, from), (*to_dir, to), *time),
            ),
            Event::SetAttr { ino, change } => self.apply_checked(
                |state| state.inode(*ino).map(drop),
                |state, ()| match change.flags {
                    Some(_) => state.change_counted(*ino, |inode| event.change_rights(inode)),
                    None => state.change(*ino, |inode| event.change_rights(inode)),
                },
            ),
            Event::Write { ino, offset, data, time } => {
                let end = offset + data.len() as u64;
                self.apply_checked(
                    |state| {
                        state.strip(*ino)?;
                        state.check_resize(*ino, |counted| counted.max(end))
                    },
                    |state, resized| {
                        state.resize(resized);
                        state.change_strip(*ino, |bytes| overwrite(bytes, *offset as usize, data));
                        state.stuffed_changed(*ino, |size| size.max(end), *time);
                    },
                )
            }
            Event::Resize { ino, size, time } => self.apply_checked(
                |state| Ok((state.strip(*ino)?.len(), state.check_resize(*ino, |_| *size)?)),
                |state, (stored, resized)| {
                    state.resize(resized);
                    if stored as u64 > *size {
                        state.change_strip(*ino, |bytes| bytes.truncate(*size as usize));
                    }
                    state.stuffed_changed(*ino, |_| *size, *time);
                },
            ),
            Event::Zero { ino, offset, length, time } => self.apply_checked(
                |state| Ok(state.strip(*ino)?.len() as u64),
                |state, stored| {
                    let from = (*offset).min(stored) as usize;
                    let to = offset.saturating_add(*length).min(stored) as usize;
                    state.change_strip(*ino, |bytes| {
                        bytes[from..to].fill(0);
                        if to == bytes.len() {
                            bytes.truncate(from);
                        }
                    });
                    state.stuffed_changed(*ino, |size| size, *time);
                },
            ),
            Event::Allocate { ino, offset, length, zero, size, time } => self.apply_checked(
                |state| Ok((state.strip(*ino)?.len(), state.check_resize(*ino, |_| *size)?)),
                |state, (stored, resized)| {
                    state.resize(resized);
                    let (from, to) = (*offset as usize, offset.saturating_add(*length) as usize);
                    state.changes.cloned += to.saturating_sub(stored) as u64;
                    state.change_strip(*ino, |bytes| {
                        bytes.resize(stored.max(to), 0);
                        if *zero {
                            bytes[from..to].fill(0);
                        }
                    });
                    state.stuffed_changed(*ino, |_| *size, *time);
                },
            ),
            Event::Unstuff { ino } => self.apply_checked(
                |state| state.strip(*ino).map(drop),
                |state, ()| {
                    state.strips.remove(*ino, &mut state.changes);
                    state.provisional.note_unstuffed(*ino);
                    // If this event is lost, so is the stream, and no write to it needs counting.
                    state.size_dirty.mark(*ino, 0);
                    state.change(*ino, |inode| {
                        inode.body = Body::Streamed { counted: inode.counted_bytes() };
                    });
                },
            ),
            Event::Stripe { ino, layout } => self.apply_checked(
                |state| state.strip(*ino).map(drop),
                |state, ()| {
                    state.strips.remove(*ino, &mut state.changes);
                    state.provisional.note_striped(*ino);
                    state.size_dirty.mark_outgrown(*ino, state.sequence);
                    state.change(*ino, |inode| {
                        let (counted, layout) = (inode.counted_bytes(), Arc::clone(layout));
                        inode.body = Body::Striped { counted, layout };
                    });
                },
            ),
            Event::SetLayout { ino, layout } => self.change_loaded(*ino, |inode| {
                if let Body::Striped { layout: set, .. } = &mut inode.body {
                    set.clone_from(layout);
                }
            }),
            Event::MarkSizeDirty { ino } => self.apply_checked(
                |state| state.inode(*ino).map(drop),
                |state, ()| {
                    state.size_dirty.mark(*ino, state.sequence);
                },
            ),
            Event::Count { ino, size } => self.apply_checked(
                |state| state.check_resize(*ino, |_| *size),
                |state, resized| {
                    state.resize(resized);
                    state.change(*ino, |inode| {
                        if let Body::Streamed { counted } | Body::Striped { counted, .. } = &mut inode.body {
                            *counted = *size;
                        }
                    });
                },
            ),
            Event::SetQuota { dir, quota, time } => self.change_loaded(*dir, |inode| {
                if let Body::Directory(directory) = &mut inode.body {
                    directory.quota = *quota;
                }
                inode.ctime = *time;
            }),
            Event::SetPolicy { dir: ino, .. }
            | Event::SetAcl { ino, .. }
            | Event::SetDefaultAcl { ino, .. } => {
                self.change_loaded(*ino, |inode| event.change_rights(inode))
            }
            Event::SetXattr { ino, name, value, time } => self.apply_checked(
                |state| state.xattr_list(*ino).map(drop),
                |state, ()| {
                    let has_xattrs = state.change_xattrs(*ino, |list| {
                        match (list.binary_search_by(|(n, _)| n.cmp(name)), value) {
                            (Ok(at), Some(value)) => list[at].1.clone_from(value),
                            (Ok(at), None) => drop(list.remove(at)),
                            (Err(at), Some(value)) => list.insert(at, (name.clone(), value.clone())),
                            (Err(_), None) => {}
                        }
                        !list.is_empty()
                    });
                    state.change(*ino, |inode| {
                        inode.has_xattrs = has_xattrs;
                        inode.ctime = *time;
                    });
                },
            ),
            Event::Locate { ino, dir, hash } => self.apply_checked(
                |state| {
                    let load = Load::Dentries { dir: *dir, from: *hash, limit: SAME_HASH };
                    if state.inodes.contains_key(ino) { Ok(()) } else { Err(Stop::Wait(Wait::Load(load))) }
                },
                |_, ()| {},
            ),
            Event::Session { client, begins } => {
                self.apply_always(|state| state.apply_session(*client, *begins))
            }
            Event::Completed { client, id, below, outcome } => {
                self.apply_always(|state| state.apply_completed(*client, *id, *below, outcome))
            }
            Event::Moved { ino } => self.apply_checked(
                |state| Ok(state.cached(*ino)?.location),
                |state, location| state.apply_moved(*ino, location),
            ),
            Event::Began => self.apply_always(|_| {}),
            Event::Reserved { below } => self.apply_always(|state| state.numbers.note_reserved(*below)),
            Event::Pool { pool } => self.apply_always(|state| state.apply_pool(pool)),
            Event::Given { client, first, count } => {
                self.apply_always(|state| state.apply_given(*client, *first, *count))
            }
            Event::Prepared { id, part } => self.apply_always(|state| state.apply_prepared(*id, part)),
            Event::Decided { id, commit } => {
                let part = self.prepared(*id).filter(|_| *commit).map(|(part, _)| part.clone());
                self.apply_checked(
                    |state| part.as_ref().map_or(Ok(()), |part| state.load_edits(&part.edits)),
                    |state, ()| {
                        part.iter().for_each(|part| state.apply_edits(part));
                        state.forget_transaction(*id);
                    },
                )
            }
            Event::Committed { id, part, ranks } => self.apply_checked(
                |state| state.load_edits(&part.edits),
                |state, ()| state.apply_committed(*id, part, ranks),
            ),
            Event::Forgotten { id } => self.apply_always(|state| state.forget_transaction(*id)),
            Event::UsageSent { to } => self.apply_always(|state| state.apply_usage_sent(*to)),
            Event::UsageReceived { from, change } => self.apply_checked(
                |state| change.map_or(Ok(()), |(dir, _)| state.load_above(dir)),
                |state, ()| state.apply_heard(*from, *change),
            ),
            Event::Counted { by } => self.apply_always(|state| state.apply_counted(*by)),
            Event::Freed { inodes } => self.apply_always(|state| state.apply_freed(inodes)),
            Event::FreedAcknowledged { home, inodes } => {
                self.apply_always(|state| state.apply_freed_acknowledged(*home, inodes))
            }
            Event::Pulled { dir } => self.apply_always(|state| {
                state.moves.end_pull(*dir);
            }),
            Event::Purge { ino } => self.apply_checked(
                |state| Ok(InodeCounts::of(state.inode(*ino)?)),
                |state, counts| {
                    state.size_dirty.remove(*ino);
                    state.forget_moved(*ino);
                    state.drop_inode(*ino);
                    state.note_freed(*ino);
                    state.moves.end_pull(*ino);
                    state.counts.remove(counts);
                },
            ),
        }
    }

    /// Changes an inode that must be in memory.
    fn change_loaded(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Step<()> {
        self.apply_checked(|state| state.inode(ino).map(drop), |state, ()| state.change(ino, change))
    }

    fn create(&mut self, dir: Ino, name: &Name, inode: &Inode) {
        let slot = self.slot(name);
        self.count(dir, inode.weight(), Usage::default());
        self.insert_new(inode);
        self.put_primary(dir, slot, inode.ino);
        self.entry_added(dir, inode.is_dir(), inode.ctime);
    }

    fn insert_new(&mut self, inode: &Inode) {
        self.counts.add(InodeCounts::of(inode));
        if inode.layout().is_some() {
            self.provisional.note_servers();
        }
        self.numbers.note_file(inode.ino);
        self.insert_inode(inode.clone(), Location::Orphan);
    }

    /// A name that must exist. It and its inode are loaded.
    fn named(&self, dir: Ino, name: &Name) -> Step<NamedInode> {
        self.dir(dir)?;
        let slot = self.slot(name);
        let target = self.target(dir, &slot)?;
        let inode = self.inode(target.ino().ok_or(Stop::Fail(Errno::ENOENT))?)?;
        Ok(NamedInode::new(slot, target, inode))
    }

    fn unlink(&mut self, dir: Ino, named: &NamedInode, time: Time) {
        self.count(dir, Usage::default(), named.weight);
        self.lose_name(named.ino, dir, time);
        self.erase_cell(dir, &named.slot);
        self.entry_removed(dir, named.is_dir, time);
    }

    pub(crate) fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        if let Some(cached) = self.touch_inode(ino) {
            change(&mut cached.inode);
        }
    }

    /// As [`Self::change`], for a change of what [`InodeCounts`] count.
    pub(crate) fn change_counted(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        if let Some(cached) = self.touch_inode(ino) {
            let before = InodeCounts::of(&cached.inode);
            change(&mut cached.inode);
            let after = InodeCounts::of(&cached.inode);
            self.counts.remove(before);
            self.counts.add(after);
        }
    }

    /// The change of a file's counted size, with the directories above it, which are in memory.
    /// `None`: it stays.
    fn check_resize(&self, ino: Ino, new: impl FnOnce(u64) -> u64) -> Step<Option<SizeChange>> {
        let old = self.inode(ino)?.counted_bytes();
        let new = new(old);
        if old == new {
            return Ok(None);
        }
        Ok(Some(SizeChange { parents: self.load_parents(ino)?, old, new }))
    }

    fn resize(&mut self, change: Option<SizeChange>) {
        if let Some(SizeChange { parents, old, new }) = change {
            self.count_size(&parents, old, new);
        }
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

    /// Adds a name to an inode at this location.
    fn link(&mut self, referent: Referent, location: Location, (dir, name): (Ino, &Name), time: Time) {
        let (ino, slot) = (referent.ino, self.slot(name));
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
    }

    /// The slot of an inode that is in a dentry.
    pub(crate) fn primary_slot(&self, dir: Ino, hash: u64, ino: Ino) -> Option<Slot> {
        let from = Slot { hash, name: Name::lowest() };
        let mut cells =
            self.fragments.get(&dir)?.cells.range(from..).take_while(|(slot, _)| slot.hash == hash);
        cells.find(|(_, cell)| cell.target == Target::Primary(ino)).map(|(slot, _)| slot.clone())
    }

    fn check_rename(&self, from: (Ino, &Name), to: (Ino, &Name)) -> Step<CheckedRename> {
        let moved = self.named(from.0, from.1)?;
        self.dir(to.0)?;
        let to_slot = self.slot(to.1);
        let target = self.target(to.0, &to_slot)?;
        let replaced = target.ino().map(|ino| self.inode(ino)).transpose()?;
        let replaced = replaced.map(|inode| NamedInode::new(to_slot.clone(), target, inode));
        self.load_above(from.0)?;
        self.load_above(to.0)?;
        Ok(CheckedRename { moved, to: to_slot, replaced })
    }

    fn rename(&mut self, from: Ino, to: Ino, checked: CheckedRename, whiteout: Option<&Inode>, time: Time) {
        let CheckedRename { moved, to: to_slot, replaced } = checked;
        self.count_move(from, to, moved.weight);
        if let Some(replaced) = replaced {
            self.unlink(to, &replaced, time);
        }
        self.change_renamed(moved.ino, from != to, time);
        self.erase_cell(from, &moved.slot);
        self.entry_removed(from, moved.is_dir, time);
        self.place(from, to, to_slot, moved.target);
        self.entry_added(to, moved.is_dir, time);
        if let Some(inode) = whiteout {
            self.counts.add(InodeCounts::of(inode));
            self.count(from, inode.weight(), Usage::default());
            self.insert_inode(inode.clone(), Location::Orphan);
            self.put_primary(from, moved.slot, inode.ino);
            self.entry_added(from, false, time);
        }
    }

    fn exchange(&mut self, (from, old): (Ino, NamedInode), (to, new): (Ino, NamedInode), time: Time) {
        self.count_move(from, to, old.weight);
        self.count_move(to, from, new.weight);
        for ino in [old.ino, new.ino] {
            self.change_renamed(ino, from != to, time);
        }
        self.erase_cell(from, &old.slot);
        self.erase_cell(to, &new.slot);
        self.entry_removed(from, old.is_dir, time);
        self.entry_removed(to, new.is_dir, time);
        self.place(to, from, old.slot, new.target);
        self.place(from, to, new.slot, old.target);
        self.entry_added(from, new.is_dir, time);
        self.entry_added(to, old.is_dir, time);
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
