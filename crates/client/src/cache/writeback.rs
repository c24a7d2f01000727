//! The cache's part of write-back: names and attributes with pending operations.
//! Their cached state is what this client has acknowledged; replies that the server sent before it
//! applied the operations do not replace it.

use alloc::vec::Vec;
use core::hash::Hash;

use espalier_proto::{Attr, Entry, FileType, Ino, Location, Name, Time, Touched, mode};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::record::InodeRecord;
use super::{Binding, Cache, Term, Users};
use crate::Answer;

/// Pending operations by name and inode.
#[derive(Debug, Default)]
pub(super) struct PendingOps {
    /// Number of the last exclusive lease.
    leases: u64,
    /// Number of pending operations per name.
    names: HashMap<(Ino, Name), u32, FxBuildHasher>,
    /// Number of pending operations per inode.
    inodes: HashMap<Ino, u32, FxBuildHasher>,
}

impl PendingOps {
    /// True if the server's attributes of this inode may be older than the cached ones.
    pub fn is_of(&self, ino: Ino) -> bool {
        !self.inodes.is_empty() && self.inodes.contains_key(&ino)
    }

    fn end(&mut self, ino: Ino) {
        end_one(&mut self.inodes, &ino);
    }

    /// As [`Self::is_of`], for a name.
    pub fn is_named(&self, dir: Ino, name: &Name) -> bool {
        self.is_of(dir) && self.names.contains_key(&(dir, name.clone()))
    }
}

/// Counts one pending operation less.
fn end_one<K: Eq + Hash>(pending: &mut HashMap<K, u32, FxBuildHasher>, key: &K) {
    if let Some(count) = pending.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            pending.remove(key);
        }
    }
}

impl Cache {
    /// Records the exclusive lease of a reply, valid until `until`. `known`: inodes of which this
    /// client is the sole holder, with their link counts.
    pub fn grant_exclusive(&mut self, touched: &Touched, known: &[(Ino, u32)], until: u64, now: u64) {
        let Some(dir) = touched.exclusive else { return };
        let Some(record) = self.records.get_mut(&dir).filter(|record| record.lease > now) else { return };
        if record.exclusive == 0 || record.exclusive_until <= now {
            self.pending_ops.leases += 1;
            record.exclusive = self.pending_ops.leases;
        }
        record.exclusive_until = until;
        record.spreads_dirs = touched.spreads_dirs;
        let lease = record.exclusive;
        // Skip inodes that a pending call may make visible to other clients.
        for (ino, names) in known.iter().filter(|(ino, _)| !self.changing.is_more_than_written(*ino)) {
            if let Some(record) = self.records.get_mut(ino) {
                record.sole_holder = lease;
                record.exclusive_dir = (*names == 1).then_some(dir);
            }
        }
    }

    /// Handles the revocation of the exclusive lease on a directory.
    pub(super) fn revoke_exclusive(&mut self, dir: Ino) {
        if let Some(record) = self.records.get_mut(&dir) {
            record.exclusive = 0;
        }
    }

    /// Other clients may know this inode.
    pub(super) fn clear_sole_holder(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            record.sole_holder = 0;
        }
    }

    /// The attributes of a directory on which this client has an exclusive lease.
    pub fn exclusive_dir(&self, dir: Ino, now: u64) -> Option<Attr> {
        self.records.get(&dir).filter(|record| record.exclusive > 0 && record.exclusive_until > now)?;
        self.attr(dir, now)
    }

    /// True if a server may make directories in an exclusive one at other ranks.
    pub fn spreads_dirs(&self, dir: Ino) -> bool {
        self.records.get(&dir).is_none_or(|record| record.spreads_dirs)
    }

    /// The cursor up to which the names of an exclusive directory are known, if there are more and
    /// all of them can be cached.
    pub fn names_to_list(&self, dir: Ino, now: u64) -> Option<u64> {
        let attr = self.exclusive_dir(dir, now)?;
        let record = self.records.get(&dir).filter(|record| !record.is_whole(now))?;
        let missing = usize::try_from(attr.size).ok()?.saturating_sub(record.names.len());
        (self.names.saturating_add(missing) <= self.capacity).then(|| record.listed_to())
    }

    /// True if the name is known to be absent, possibly only by the directory's lease.
    pub fn is_absent(&self, dir: Ino, name: &Name, now: u64) -> bool {
        let Some(record) = self.records.get(&dir).filter(|record| record.lease > now) else { return false };
        match record.names.get(name) {
            None => record.is_whole(now),
            Some(known) => {
                known.binding == Some(Binding::Absent) && (known.until > now || record.is_whole(now))
            }
        }
    }

    /// The attributes of the inode with this name, if this client is its sole holder under an
    /// exclusive lease.
    pub fn sole_holder_attr(&self, dir: Ino, name: &Name, now: u64) -> Option<Attr> {
        let Binding::Inode(ino, _) = self.name(dir, name, now)? else { return None };
        let lease = self.records.get(&dir)?.exclusive;
        self.records.get(&ino).filter(|record| lease > 0 && record.sole_holder == lease)?;
        self.attr(ino, now)
    }

    /// The attributes of a file in an exclusive directory, if this client is its sole holder.
    pub fn sole_writer_attr(&self, dir: Ino, ino: Ino, now: u64) -> Option<Attr> {
        self.exclusive_dir(dir, now)?;
        let lease = self.records.get(&dir)?.exclusive;
        self.records.get(&ino).filter(|record| record.sole_holder == lease)?;
        self.attr(ino, now)
    }

    /// The directory of a file's only name, and until when this client is the file's sole holder;
    /// 0: other clients may know it.
    pub fn sole_holder_dir(&self, ino: Ino) -> Option<(Ino, u64)> {
        let record = self.records.get(&ino)?;
        let dir = record.exclusive_dir?;
        let holds = |held: &&InodeRecord| record.sole_holder > 0 && held.exclusive == record.sole_holder;
        Some((dir, self.records.get(&dir).filter(holds).map_or(0, |held| held.exclusive_until)))
    }

    /// Replaces attributes in an answer that predate a pending operation. Returns the inode if its
    /// attributes have been evicted, so that the answer cannot be corrected.
    pub fn apply_pending(&mut self, answer: &mut Answer) -> Option<Ino> {
        let correct = |attr: &mut Attr| {
            if self.pending_ops.is_of(attr.ino) {
                let record = self.records.get(&attr.ino).filter(|record| !record.is_outdated)?;
                *attr = *record.attr.as_deref()?;
            }
            Some(())
        };
        match answer {
            Answer::Attr(attr) => correct(attr).is_none().then_some(attr.ino),
            Answer::Entry(entry) | Answer::Created(entry, _) => {
                correct(&mut entry.attr).is_none().then_some(entry.attr.ino)
            }
            Answer::Listing { entries, .. } => {
                let mut unreported = Vec::new();
                for dirent in entries {
                    if dirent.entry.as_mut().is_some_and(|entry| correct(&mut entry.attr).is_none()) {
                        dirent.entry = None;
                        unreported.push(dirent.ino);
                    }
                }
                unreported.into_iter().for_each(|ino| self.forget(ino, 1));
                None
            }
            _ => None,
        }
    }

    /// True if operations on the inode, or on entries of this directory, are pending.
    pub fn has_pending(&self, ino: Ino) -> bool {
        self.pending_ops.is_of(ino)
    }

    /// As [`Self::has_pending`], for a name.
    pub fn has_pending_name(&self, dir: Ino, name: &Name) -> bool {
        self.pending_ops.is_named(dir, name)
    }

    /// Applies a pending create in an exclusive directory. Returns the entry for the caller, and
    /// when its lease ends.
    pub fn create_pending(
        &mut self,
        (dir, name): (Ino, &Name),
        parent: &Attr,
        attr: Attr,
        now: u64,
    ) -> (Entry, u64) {
        let record = self.records.get(&dir);
        let lease =
            record.map_or((now, 0, 0), |record| (record.lease, record.exclusive, record.exclusive_until));
        let (until, exclusive, exclusive_until) = lease;
        self.change_pending(dir, 1, attr.kind, attr.mtime);
        self.bind(dir, name, Binding::Inode(attr.ino, attr.kind), until, now);
        self.note_attr(&attr, Term { requested_at: now, left: until.saturating_sub(now) }, 0, now);
        if attr.kind == FileType::Regular {
            self.contents.learn(attr.ino, Vec::new(), true);
        }
        let counts = self.users == Users::Report;
        if let Some(record) = self.records.get_mut(&attr.ino) {
            record.users += u64::from(counts);
            (record.sole_holder, record.exclusive_dir) = (exclusive, Some(dir));
            if attr.kind == FileType::Directory {
                // The server gives the exclusive lease on it when it creates it.
                self.pending_ops.leases += 1;
                (record.exclusive, record.exclusive_until) = (self.pending_ops.leases, exclusive_until);
                // Its parent does not spread directories, and it inherits the policy.
                record.spreads_dirs = false;
            }
        }
        self.know_empty(&attr, until, now);
        self.begin_pending(dir, [name], attr.ino);
        let cacheable = parent.perm & mode::ANY_EXEC == mode::ANY_EXEC;
        let (name_leased, attr_leased, sole_holder, location) = (true, true, true, Location::Table);
        (Entry { attr, cacheable, name_leased, attr_leased, sole_holder, location, reclaim_token: 0 }, until)
    }

    /// Applies the pending removal of an inode's only name.
    pub fn remove_pending(&mut self, dir: Ino, name: &Name, removed: &Attr, time: Time) {
        self.change_pending(dir, -1, removed.kind, time);
        self.unbind(dir, name);
        self.drop_lease(removed.ino);
        self.begin_pending(dir, [name], removed.ino);
    }

    /// Applies the pending rename of an inode's only name in an exclusive directory, with the inode
    /// that it replaces.
    pub fn rename_pending(
        &mut self,
        dir: Ino,
        [from, to]: [&Name; 2],
        moved: &Attr,
        replaced: Option<&Attr>,
        now: u64,
    ) {
        let time = moved.ctime;
        self.change_pending(dir, -i32::from(replaced.is_some()), moved.kind, time);
        replaced.into_iter().for_each(|replaced| self.drop_lease(replaced.ino));
        self.unbind(dir, from);
        let until = self.records.get(&dir).map_or(0, |record| record.lease);
        self.bind(dir, to, Binding::Inode(moved.ino, moved.kind), until, now);
        if let Some(attr) = self.records.get_mut(&moved.ino).and_then(|record| record.attr.as_mut()) {
            attr.ctime = time;
        }
        self.begin_pending(dir, [from, to], moved.ino);
    }

    /// Applies a pending write to such a file.
    pub fn write_pending(&mut self, dir: Ino, ino: Ino, (offset, data): (u64, &[u8]), time: Time) {
        let end = offset + data.len() as u64;
        self.contents.write(ino, offset, data);
        if let Some(attr) = self.records.get_mut(&ino).and_then(|record| record.attr.as_mut()) {
            attr.size = attr.size.max(end);
            attr.blocks = attr.blocks.max(end.div_ceil(512));
            (attr.mtime, attr.ctime) = (time, time);
        }
        self.begin_pending(dir, [], ino);
    }

    /// Applies a pending change of a file's owner, permissions or times.
    pub fn set_attr_pending(&mut self, dir: Ino, changed: Attr) {
        if let Some(attr) = self.records.get_mut(&changed.ino).and_then(|record| record.attr.as_mut()) {
            **attr = changed;
        }
        self.begin_pending(dir, [], changed.ino);
    }

    /// Records a pending write to a stream.
    pub fn begin_write_behind(&mut self, ino: Ino) {
        *self.pending_ops.inodes.entry(ino).or_default() += 1;
    }

    /// Records the end of a pending write to a stream, successful or not.
    pub fn end_write_behind(&mut self, ino: Ino) {
        self.pending_ops.end(ino);
    }

    /// Applies a pending update of the access time.
    pub fn accessed(&mut self, ino: Ino, time: Time) {
        if let Some(attr) = self.records.get_mut(&ino).and_then(|record| record.attr.as_mut()) {
            attr.atime = time;
        }
    }

    /// An access whose time the server chooses: drops the attributes.
    pub fn access_pending(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            record.attr = None;
        }
    }

    /// Records a pending open.
    pub fn open_pending(&mut self, ino: Ino) {
        self.begin_pending(ino, [], ino);
    }

    fn change_pending(&mut self, dir: Ino, entries: i32, kind: FileType, time: Time) {
        self.listings.lose(dir);
        if let Some(attr) = self.records.get_mut(&dir).and_then(|record| record.attr.as_mut()) {
            attr.size = attr.size.saturating_add_signed(entries.into());
            if kind == FileType::Directory {
                attr.nlink = attr.nlink.saturating_add_signed(entries);
            }
            (attr.mtime, attr.ctime) = (time, time);
        }
    }

    fn begin_pending<const N: usize>(&mut self, dir: Ino, names: [&Name; N], ino: Ino) {
        for name in names {
            *self.pending_ops.names.entry((dir, name.clone())).or_default() += 1;
        }
        for ino in [dir, ino] {
            *self.pending_ops.inodes.entry(ino).or_default() += 1;
        }
    }

    /// Ends a pending operation on an inode and its names.
    pub fn end_pending<'a>(&mut self, dir: Ino, names: impl Iterator<Item = &'a Name>, ino: Ino) {
        for name in names {
            end_one(&mut self.pending_ops.names, &(dir, name.clone()));
        }
        [dir, ino].into_iter().for_each(|ino| self.pending_ops.end(ino));
    }

    /// Applies the server's reply to a pending create, after [`Self::end_pending`].
    pub fn create_completed(&mut self, dir: Ino, name: &Name, entry: &Entry, until: u64, now: u64) {
        let (attr, counts) = (&entry.attr, self.users == Users::Report);
        if entry.name_leased {
            self.bind(dir, name, Binding::Inode(attr.ino, attr.kind), until, now);
        }
        let until = if entry.attr_leased { until } else { 0 };
        // The file was small at its creation; request its present attributes.
        self.note_attr(attr, Term { requested_at: 0, left: until.saturating_sub(now) }, 1, now);
        self.placed(attr, dir, name);
        self.know_empty(attr, until, now);
        // The lookup of this reply was counted at the write-back answer.
        if let Some(record) = self.records.get_mut(&attr.ino).filter(|_| counts) {
            record.users = record.users.saturating_sub(1);
            if record.users == 0 && record.lease <= now {
                self.remove(attr.ino);
            }
        }
    }

    /// Applies the server's reply to a pending rename, after [`Self::end_pending`]. `until`: when
    /// its leases end.
    pub fn rename_completed(&mut self, dir: Ino, [from, to]: [&Name; 2], ino: Ino, until: u64, now: u64) {
        // Older replies may have bound the names.
        self.unbind(dir, from);
        self.doubt(dir, to);
        let kind = self.attr(ino, now).map(|attr| attr.kind);
        if let Some(kind) = kind {
            self.bind(dir, to, Binding::Inode(ino, kind), until, now);
        }
    }

    /// Applies the server's reply to a pending removal, after [`Self::end_pending`].
    pub fn remove_completed(&mut self, dir: Ino, name: &Name) {
        // An older reply may have bound the name again.
        self.unbind(dir, name);
    }

    /// Handles the failure of a pending operation, after [`Self::end_pending`].
    pub fn operation_failed<'a>(&mut self, dir: Ino, names: impl Iterator<Item = &'a Name>, ino: Ino) {
        self.drop_lease(ino);
        for name in names {
            self.doubt(dir, name);
            self.drop_lease(dir);
        }
    }
}
