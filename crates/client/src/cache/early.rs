//! What this client has done in directories that it is alone in and told its callers before the server has answered: what is known of the names
//! and attributes is what this client has told, whatever older answers say that come meanwhile.

use alloc::vec::Vec;

use espalier_proto::{Attr, Entry, FileType, Home, Ino, InodeFlags, Name, Time, mode};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use super::record::Record;
use super::{Binding, Cache, Term, Users};
use crate::Answer;

/// What is told and not answered.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The last number of an exclusive lease.
    leases: u64,
    names: HashSet<(Ino, Name), FxBuildHasher>,
    /// How often.
    inodes: HashMap<Ino, u32, FxBuildHasher>,
}

impl Early {
    /// Whether what a server tells of an inode is older than what is known.
    pub fn is_of(&self, ino: Ino) -> bool {
        !self.inodes.is_empty() && self.inodes.contains_key(&ino)
    }

    fn end(&mut self, ino: Ino) {
        if let Some(count) = self.inodes.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.inodes.remove(&ino);
            }
        }
    }

    /// The same of a name.
    pub fn is_named(&self, dir: Ino, name: &Name) -> bool {
        self.is_of(dir) && self.names.contains(&(dir, name.clone()))
    }
}

impl Cache {
    /// A reply has said that the lease on a directory is exclusive until then, and has told of these inodes, which nobody else knew,
    /// and how many names each has.
    pub fn alone(&mut self, dir: Ino, known: &[(Ino, u32)], until: u64, now: u64) {
        let Some(record) = self.records.get_mut(&dir).filter(|record| record.lease > now) else { return };
        if record.exclusive == 0 || record.exclusive_until <= now {
            self.early.leases += 1;
            record.exclusive = self.early.leases;
        }
        record.exclusive_until = until;
        let lease = record.exclusive;
        // What this client does to them meanwhile may let others know them.
        for (ino, names) in known.iter().filter(|(ino, _)| !self.changing.is_more_than_written(*ino)) {
            if let Some(record) = self.records.get_mut(ino) {
                record.alone = lease;
                record.alone_in = (*names == 1).then_some(dir);
            }
        }
    }

    /// Others may come to know a directory.
    pub(super) fn share(&mut self, dir: Ino) {
        if let Some(record) = self.records.get_mut(&dir) {
            record.exclusive = 0;
        }
    }

    /// Others may know an inode.
    pub(super) fn not_alone(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            record.alone = 0;
        }
    }

    /// The attributes of a directory in which nobody else sees what this client does.
    pub fn alone_in(&self, dir: Ino, now: u64) -> Option<Attr> {
        self.records.get(&dir).filter(|record| record.exclusive > 0 && record.exclusive_until > now)?;
        self.attr(dir, now)
    }

    /// Whether it is known that a name is not there, if only by the lease on its directory.
    pub fn is_absent(&self, dir: Ino, name: &Name, now: u64) -> bool {
        let Some(record) = self.records.get(&dir).filter(|record| record.lease > now) else { return false };
        match record.names.get(name) {
            None => record.is_whole(),
            Some(known) => known.binding == Some(Binding::Absent) && (known.until > now || record.is_whole()),
        }
    }

    /// The attributes of what has a name in such a directory, if nobody else knows that either.
    pub fn alone_with(&self, dir: Ino, name: &Name, now: u64) -> Option<Attr> {
        let Binding::Inode(ino, _) = self.name(dir, name, now)? else { return None };
        let lease = self.records.get(&dir)?.exclusive;
        self.records.get(&ino).filter(|record| lease > 0 && record.alone == lease)?;
        self.attr(ino, now)
    }

    /// The attributes of a file that this client has made in a directory in which it is alone, if nobody else knows it.
    pub fn alone_writing(&self, dir: Ino, ino: Ino, now: u64) -> Option<Attr> {
        self.alone_in(dir, now)?;
        let lease = self.records.get(&dir)?.exclusive;
        self.records.get(&ino).filter(|record| record.alone == lease)?;
        self.attr(ino, now)
    }

    /// The directory in which a file had its only name when it was last told that nobody else knew it, and until when nobody else knows
    /// either; 0: others may.
    pub fn alone_dir(&self, ino: Ino) -> Option<(Ino, u64)> {
        let record = self.records.get(&ino)?;
        let dir = record.alone_in?;
        let holds = |held: &&Record| record.alone > 0 && held.exclusive == record.alone;
        Some((dir, self.records.get(&dir).filter(holds).map_or(0, |held| held.exclusive_until)))
    }

    /// Makes an answer one that callers may hear: they are not told again of how things were before what they were told. Returns what an
    /// answer is about that cannot be made one, for what was told is not known any more.
    pub fn as_told(&mut self, answer: &mut Answer) -> Option<Ino> {
        let correct = |attr: &mut Attr| {
            if self.early.is_of(attr.ino) {
                *attr = *self.records.get(&attr.ino)?.attr.as_deref()?;
            }
            Some(())
        };
        match answer {
            Answer::Attr(attr) => correct(attr).is_none().then_some(attr.ino),
            Answer::Entry(entry) | Answer::Created(entry, _) => {
                correct(&mut entry.attr).is_none().then_some(entry.attr.ino)
            }
            Answer::Listing { entries, .. } => {
                let mut untold = Vec::new();
                for dirent in entries {
                    if dirent.entry.as_mut().is_some_and(|entry| correct(&mut entry.attr).is_none()) {
                        dirent.entry = None;
                        untold.push(dirent.ino);
                    }
                }
                untold.into_iter().for_each(|ino| self.forget(ino, 1));
                None
            }
            _ => None,
        }
    }

    /// Whether anything has been told of an inode, or of what is in it, that is not answered.
    pub fn is_early(&self, ino: Ino) -> bool {
        self.early.is_of(ino)
    }

    /// The same of a name.
    pub fn is_early_name(&self, dir: Ino, name: &Name) -> bool {
        self.early.is_named(dir, name)
    }

    /// Callers are told that a file or directory has been made in a directory that this client is alone in, with these attributes. Returns
    /// what they are told, and when the lease ends.
    pub fn make_early(
        &mut self,
        (dir, name): (Ino, &Name),
        parent: &Attr,
        attr: Attr,
        now: u64,
    ) -> (Entry, u64) {
        let record = self.records.get(&dir);
        let lease = record.map_or((now, 0), |record| (record.lease, record.exclusive));
        let (until, exclusive) = lease;
        self.change_early(dir, 1, attr.kind, attr.mtime);
        self.bind(dir, name, Binding::Inode(attr.ino, attr.kind), until, now);
        self.tell(&attr, Term { asked: now, left: until.saturating_sub(now) }, 0, now);
        if attr.kind == FileType::Regular {
            self.contents.learn(attr.ino, Vec::new(), true);
        }
        let counts = self.users == Users::Tell;
        if let Some(record) = self.records.get_mut(&attr.ino) {
            record.users += u64::from(counts);
            (record.alone, record.alone_in) = (exclusive, Some(dir));
        }
        self.begin_early(dir, Some(name), attr.ino);
        let cacheable = parent.perm & mode::ANY_EXEC == mode::ANY_EXEC;
        let (name_leased, attr_leased, alone, home) = (true, true, true, Home::Table);
        (Entry { attr, cacheable, name_leased, attr_leased, alone, home, proof: 0 }, until)
    }

    /// Callers are told that the only name of an inode has been removed.
    pub fn remove_early(&mut self, dir: Ino, name: &Name, removed: &Attr, time: Time) {
        self.change_early(dir, -1, removed.kind, time);
        self.unbind(dir, name);
        self.drop_lease(removed.ino);
        self.begin_early(dir, Some(name), removed.ino);
    }

    /// Callers are told that such a file has been written to.
    pub fn written_early(&mut self, dir: Ino, ino: Ino, (offset, data): (u64, &[u8]), time: Time) {
        let end = offset + data.len() as u64;
        self.contents.write(ino, offset, data);
        if let Some(attr) = self.records.get_mut(&ino).and_then(|record| record.attr.as_mut()) {
            attr.size = attr.size.max(end);
            attr.blocks = attr.blocks.max(end.div_ceil(512));
            (attr.mtime, attr.ctime) = (time, time);
        }
        self.begin_early(dir, None, ino);
    }

    /// The same of a stream's bytes.
    pub fn written_behind(&mut self, ino: Ino) {
        *self.early.inodes.entry(ino).or_default() += 1;
    }

    /// What was told so is done, or could not be.
    pub fn done_behind(&mut self, ino: Ino) {
        self.early.end(ino);
    }

    /// Callers are told that a file has been accessed, as its server will be.
    pub fn accessed(&mut self, ino: Ino, time: Time) {
        if let Some(attr) = self.records.get_mut(&ino).and_then(|record| record.attr.as_mut()) {
            attr.atime = time;
        }
    }

    /// The same, and when that was, its server says.
    pub fn accessed_early(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            record.attr = None;
        }
    }

    /// Callers are told that a file is open.
    pub fn opened_early(&mut self, ino: Ino) {
        self.begin_early(ino, None, ino);
    }

    fn change_early(&mut self, dir: Ino, entries: i32, kind: FileType, time: Time) {
        self.listings.lose(dir);
        if let Some(attr) = self.records.get_mut(&dir).and_then(|record| record.attr.as_mut()) {
            attr.size = attr.size.saturating_add_signed(entries.into());
            if kind == FileType::Directory {
                attr.nlink = attr.nlink.saturating_add_signed(entries);
            }
            (attr.mtime, attr.ctime) = (time, time);
        }
    }

    fn begin_early(&mut self, dir: Ino, name: Option<&Name>, ino: Ino) {
        self.early.names.extend(name.map(|name| (dir, name.clone())));
        for ino in [dir, ino] {
            *self.early.inodes.entry(ino).or_default() += 1;
        }
    }

    /// What was told of an inode, and of its name, is answered.
    pub fn end_early(&mut self, dir: Ino, name: Option<&Name>, ino: Ino) {
        if let Some(name) = name {
            self.early.names.remove(&(dir, name.clone()));
        }
        [dir, ino].into_iter().for_each(|ino| self.early.end(ino));
    }

    /// What has been told of is made. After [`Self::end_early`].
    pub fn made_early(&mut self, dir: Ino, name: &Name, entry: &Entry, until: u64, now: u64) {
        let (attr, counts) = (&entry.attr, self.users == Users::Tell);
        if entry.name_leased {
            self.bind(dir, name, Binding::Inode(attr.ino, attr.kind), until, now);
        }
        let until = if entry.attr_leased { until } else { 0 };
        // It was small when it was made: what has become of it since is asked for.
        self.tell(attr, Term { asked: 0, left: until.saturating_sub(now) }, 1, now);
        self.placed(attr, dir, name);
        self.know_empty(attr, until, now);
        // Those who were told are counted already.
        if let Some(record) = self.records.get_mut(&attr.ino).filter(|_| counts) {
            record.users = record.users.saturating_sub(1);
            if record.users == 0 && record.lease <= now {
                self.remove(attr.ino);
            }
        }
    }

    /// A name that was told to be removed is. After [`Self::end_early`].
    pub fn removed_early(&mut self, dir: Ino, name: &Name) {
        // An older answer may have told of it since.
        self.unbind(dir, name);
    }

    /// What was told could not be done. After [`Self::end_early`].
    pub fn failed_early(&mut self, dir: Ino, name: Option<&Name>, ino: Ino) {
        self.drop_lease(ino);
        if let Some(name) = name {
            self.doubt(dir, name);
            self.drop_lease(dir);
        }
    }
}

/// A file or directory that is new: what its server will tell of it.
pub fn new_inode(ino: Ino, kind: FileType, (perm, uid, gid): (u32, u32, u32), time: Time) -> Attr {
    Attr {
        ino,
        kind,
        perm,
        nlink: if kind == FileType::Directory { 2 } else { 1 },
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        streamed: false,
        bare: true,
        flags: InodeFlags::empty(),
    }
}
