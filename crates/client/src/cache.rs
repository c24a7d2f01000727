//! Leased names, attributes and small files. The cache's users are a kernel or a program.
//!
//! A name is stored with its directory and is valid only while the lease on the directory lasts
//! without a gap: it covers search permission. Another lease covers the directory's contents. While
//! that lasts without a gap, absent names are known if the client has made the directory or listed
//! it completely. `now`: ms of a monotonic clock.

mod changes;
mod contents;
mod invalidation;
mod listings;
mod pages;
mod record;
mod subject;
mod writeback;
mod writing;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{
    Attr, Dirent, Entry, FileType, Ino, Location, Name, RangeOp, Request, Touched, XattrPresence,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::{Answer, Call, RangeCall, RemoteEntry};
use changes::{Changing, Extent};
use contents::Contents;
use listings::Listings;
use record::{InodeRecord, KnownName};
use subject::InodeChange;
use writeback::PendingOps;
use writing::Writing;

pub use changes::Changes;
pub use listings::Page;
pub(crate) use pages::SOON_MS;
pub(crate) use subject::{ACLS, Subject};

/// The binding of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    Absent,
    /// The inode and its type; the type of an inode never changes.
    Inode(Ino, FileType),
}

/// The way in which users of the cache release inodes that were returned to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// A kernel: users report each inode that they forget.
    Report,
    /// A program: inodes are used immediately and never held.
    AtOnce,
}

/// The cache. See the module's documentation.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    users: Users,
    records: HashMap<Ino, InodeRecord, FxBuildHasher>,
    /// Leased records with the earliest time at which they can expire; see [`InodeRecord::due`].
    order: VecDeque<(u64, Ino)>,
    /// Number of names in all records.
    names: usize,
    forgotten: Vec<(Ino, u64)>,
    changing: Changing,
    listings: Listings,
    contents: Contents,
    pending_ops: PendingOps,
    writing: Writing,
    /// At least one lease has been granted.
    has_leases: bool,
    /// Epoch: counts messages received from servers.
    epoch: u64,
    counts: CacheCounts,
}

/// Lifetime of an answer, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// When the request was sent.
    pub requested_at: u64,
    /// Remaining time of its lease; 0: no lease.
    pub left: u64,
}

impl Term {
    fn until(self, now: u64) -> u64 {
        if self.left == 0 { 0 } else { now.saturating_add(self.left) }
    }
}

/// Statistics of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Requests answered without a message.
    pub hits: u64,
    /// Inodes and names that are cached at present.
    pub inodes: u64,
    pub names: u64,
}

impl Cache {
    /// How long an unleased inode is retained if users do not report forgotten inodes, in ms.
    const KEEP: u64 = 1000;
    /// Bytes of file contents per unit of inode capacity: 256 MiB on a mount.
    const CONTENT_BYTES: usize = 1024;

    /// `capacity`: the maximum number of leased inodes, and of names.
    pub fn new(capacity: usize, users: Users) -> Self {
        Self {
            capacity,
            users,
            records: HashMap::default(),
            order: VecDeque::new(),
            names: 0,
            forgotten: Vec::new(),
            changing: Changing::default(),
            listings: Listings::default(),
            contents: Contents::new(capacity.saturating_mul(Self::CONTENT_BYTES)),
            pending_ops: PendingOps::default(),
            writing: Writing::default(),
            has_leases: false,
            epoch: 0,
            counts: CacheCounts::default(),
        }
    }

    pub fn counts(&self) -> CacheCounts {
        CacheCounts { inodes: self.records.len() as u64, names: self.names as u64, ..self.counts }
    }

    /// The binding of a name, if cached.
    pub fn name(&self, dir: Ino, name: &Name, now: u64) -> Option<Binding> {
        let record = self.records.get(&dir).filter(|record| record.lease > now)?;
        if self.changing.is_named(dir, name) {
            return None;
        }
        match record.names.get(name) {
            Some(known) => known.at(now),
            None => record.is_whole(now).then_some(Binding::Absent),
        }
    }

    /// The inode that a name is bound to, if cached.
    pub fn node(&self, dir: Ino, name: &Name, now: u64) -> Option<Ino> {
        match self.name(dir, name, now)? {
            Binding::Inode(ino, _) => Some(ino),
            Binding::Absent => None,
        }
    }

    /// The inode that users may take a name to refer to, by a lease that they hold on the name.
    pub fn leased_name(&self, dir: Ino, name: &Name, now: u64) -> Option<Ino> {
        let binding = self.records.get(&dir)?.names.get(name)?.at(now)?;
        if let Binding::Inode(ino, _) = binding { Some(ino) } else { None }
    }

    /// Names on which users may have leases, in the directories that `is_one` selects.
    pub fn leased_names(&self, is_one: impl Fn(Ino) -> bool) -> Vec<(Ino, Name)> {
        let records = self.records.iter().filter(|(dir, _)| is_one(**dir));
        let names = records.flat_map(|(dir, record)| record.names.iter().map(|name| (*dir, name)));
        let leased = names.filter(|(_, (_, known))| known.until > 0);
        leased.map(|(dir, (name, _))| (dir, name.clone())).collect()
    }

    /// The attributes of an inode, if cached and valid.
    pub fn attr(&self, ino: Ino, now: u64) -> Option<Attr> {
        self.known(ino, now).map(|(_, attr)| *attr)
    }

    /// The record and attributes of an inode, if valid, including the size and times of a stream.
    fn known(&self, ino: Ino, now: u64) -> Option<(&InodeRecord, &Attr)> {
        let (record, attr) = self.known_attr(ino, now)?;
        (!attr.streamed || self.writing.allows(ino, record.requested_at)).then_some((record, attr))
    }

    /// The record and attributes of an inode; the size and times of a stream may be stale.
    fn known_attr(&self, ino: Ino, now: u64) -> Option<(&InodeRecord, &Attr)> {
        let is_valid = |record: &&InodeRecord| {
            record.contents_lease > now && !record.is_outdated && !self.changing.is_so(ino)
        };
        let record = self.records.get(&ino).filter(is_valid)?;
        Some((record, record.attr.as_deref()?))
    }

    /// The attributes of an inode that decide who may use it, and its fragment map's version, if
    /// cached and valid. Size, link count and times may be out of date.
    pub fn rights(&self, ino: Ino, now: u64) -> Option<&Attr> {
        let record = self.records.get(&ino).filter(|record| record.lease > now)?;
        record.attr.as_deref().filter(|_| !self.changing.may_change_rights(ino))
    }

    /// True if the client has a lease on an inode; of a directory it may have none on the contents.
    pub fn is_leased(&self, ino: Ino, now: u64) -> bool {
        self.records.get(&ino).is_some_and(|record| record.lease > now)
    }

    /// When the first of the leases on an inode and what it contains ends; 0: no lease.
    pub fn leased_until(&self, ino: Ino) -> u64 {
        self.records.get(&ino).map_or(0, |record| record.contents_lease)
    }

    /// Answers a lookup of users that cache it. Also returns how long they may, in ms.
    pub fn look_up(&mut self, dir: Ino, name: &Name, now: u64) -> Option<(Answer, u64)> {
        let record = self.records.get_mut(&dir).filter(|record| record.lease > now)?;
        if self.changing.is_named(dir, name) {
            return None;
        }
        let cacheable = record.is_searchable_by_all();
        let Some(known) = record.names.get(name) else {
            if !record.is_whole(now) {
                return None;
            }
            // Implied by the directory's lease, whose end users are not notified of: they may not
            // cache it. At the next lookup of the name they get a lease on the name itself.
            record.names.insert(name.clone(), KnownName::REPORTED_ABSENT);
            self.names += 1;
            self.counts.hits += 1;
            self.bound_names(dir);
            return Some((Answer::Absent { cacheable }, 0));
        };
        let until = record.lease.min(known.until);
        let answer = match known.at(now)? {
            Binding::Absent => Answer::Absent { cacheable },
            Binding::Inode(ino, kind) => {
                let is_measured = self.attr(ino, now).is_some();
                let attr = match self.attr(ino, now) {
                    // A walk through a directory whose names change needs no more.
                    None if kind == FileType::Directory => {
                        Attr { contents_leased: false, ..*self.rights(ino, now)? }
                    }
                    attr => attr?,
                };
                let has_pending = self.pending_ops.is_of(ino);
                let record = self.records.get_mut(&ino).filter(|record| record.lookups > 0 || has_pending)?;
                if self.users == Users::Report {
                    record.users += 1;
                }
                self.counts.hits += 1;
                let entry = Entry {
                    attr,
                    cacheable,
                    name_leased: true,
                    attr_leased: is_measured,
                    sole_holder: false,
                    location: Location::Table,
                    reclaim_token: 0,
                };
                return Some(match is_measured {
                    true => (Answer::Entry(entry), until.min(record.contents_lease) - now),
                    false => (Answer::Unmeasured(entry), until.min(record.lease) - now),
                });
            }
        };
        self.counts.hits += 1;
        Some((answer, until - now))
    }

    /// The remote inode that a name is bound to, if cached, and how long it is valid in ms.
    pub fn remote_entry(&self, dir: Ino, name: &Name, now: u64) -> Option<(RemoteEntry, u64)> {
        let record = self.records.get(&dir).filter(|record| record.lease > now)?;
        let known = record.names.get(name).filter(|_| !self.changing.is_named(dir, name))?;
        match known.at(now)? {
            Binding::Inode(ino, kind) if ino.rank() != dir.rank() && !self.changing.is_so(ino) => {
                let remote = RemoteEntry { dir, ino, kind, cacheable: false, leased: true };
                Some((remote, record.lease.min(known.until) - now))
            }
            _ => None,
        }
    }

    /// True if the inode is known to have no extended attributes and no access control lists.
    pub fn has_no_xattrs(&mut self, ino: Ino, now: u64) -> bool {
        let has_no_xattrs = self.rights(ino, now).is_some_and(|attr| attr.xattrs == XattrPresence::None);
        self.counts.hits += u64::from(has_no_xattrs);
        has_no_xattrs
    }

    /// Reads up to `size` bytes of a cached small file.
    pub fn read(&mut self, ino: Ino, offset: u64, size: u32, now: u64) -> Option<Vec<u8>> {
        let bytes = self.content(ino, now)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let bytes = bytes[start..].iter().copied().take(size as usize).collect();
        self.counts.hits += 1;
        Some(bytes)
    }

    /// All bytes of a small file, if cached.
    pub fn content(&self, ino: Ino, now: u64) -> Option<&[u8]> {
        let bytes = self.contents.get(ino)?;
        (self.is_leased(ino, now) && !self.changing.is_so(ino)).then_some(bytes)
    }

    /// Records that a caller has opened a file for writing.
    pub fn opened_to_write(&mut self, ino: Ino) {
        self.writing.opened(ino);
    }

    /// Records the last close of a file.
    pub fn closed(&mut self, ino: Ino, now: u64) {
        self.writing.closed(ino, now);
    }

    /// Stores a file's contents from a reply, after [`Self::changed`]. `lease`: remaining ms.
    pub fn learn(&mut self, ino: Ino, bytes: Vec<u8>, lease: u64, now: u64) {
        // Pending write-back data is newer than the server's.
        if lease > 0 && !self.has_pending(ino) {
            self.renew(ino, now.saturating_add(lease), now);
            self.contents.learn(ino, bytes, false);
        }
    }

    /// Starts a call. Entries that it may change are distrusted until the result is dropped.
    pub fn sent(&mut self, call: &Call<'_>, now: u64) -> Changes {
        let subject = Subject::of(call);
        if !subject.is_change {
            return Changes::default();
        }
        let mut inos: Vec<_> = subject.inos().map(Some).collect();
        for (dir, name) in subject.names().filter(|_| subject.changes_named) {
            match self.name(dir, name, now) {
                Some(Binding::Inode(ino, _)) => inos.push(Some(ino)),
                Some(Binding::Absent) => {}
                None => inos.push(None),
            }
        }
        self.distrust_subject(&subject);
        let extent = match () {
            () if call.stream().is_some() => Extent::Bytes,
            () if subject.inode_change.is_some() => Extent::Rights,
            () => Extent::Names,
        };
        if extent != Extent::Bytes {
            // The call may give these inodes names that other clients see.
            inos.iter().flatten().for_each(|ino| self.clear_sole_holder(*ino));
        }
        self.changing.begin(inos.into_iter(), subject.names(), extent)
    }

    fn distrust_subject(&mut self, subject: &Subject<'_>) {
        if !subject.is_change {
            return;
        }
        subject.names().for_each(|(dir, name)| self.doubt(dir, name));
        for ino in subject.inos() {
            self.touched(ino);
            match subject.inode_change {
                Some(InodeChange::Rights) => self.drop_lease(ino),
                Some(InodeChange::Xattrs) => self.doubt_xattrs(ino),
                None => {}
            }
        }
    }

    /// Applies the answer to a call, in the order in which the server sent the answers.
    pub fn answered(&mut self, call: &Call<'_>, answer: Option<&Answer>, term: Term, now: u64) {
        let subject = Subject::of(call);
        self.distrust_subject(&subject);
        if let Call::Request(Request::CopyTree(_) | Request::RemoveTree { .. }) = call {
            // Even if it has failed, it may have changed any directory.
            self.distrust();
        }
        let name = subject.name();
        if let (true, Some(Answer::Created(entry, _))) = (subject.changes_named, answer) {
            self.contents.lose(entry.attr.ino);
        }
        match answer {
            Some(Answer::Entry(entry) | Answer::Created(entry, _) | Answer::Unmeasured(entry)) => {
                self.entry(name, entry, term, now);
            }
            Some(Answer::Absent { .. }) => {
                if let Some((dir, name)) = name {
                    self.bind(dir, name, Binding::Absent, term.until(now), now);
                }
            }
            Some(Answer::Attr(attr)) => self.note_attr(attr, term, 0, now),
            Some(Answer::Bytes(_)) => {
                if let Call::Range(RangeCall { ino, op: RangeOp::Read { .. }, .. }) = *call {
                    self.renewed(ino, term.until(now), now);
                }
            }
            Some(Answer::Listing { entries, end, .. }) => {
                if let Some((dir, after)) = subject.lists {
                    let last = if *end { u64::MAX } else { entries.last().map_or(after, |last| last.cursor) };
                    self.listing(dir, (after, last), entries, term, now);
                }
            }
            // Without a lease the reply may be stale: the name may have been created again.
            Some(Answer::Done) if term.left > 0 => {
                if let Some((dir, name)) = subject.removes {
                    self.unbind(dir, name);
                }
            }
            Some(Answer::Removed { dir, name }) => self.doubt(*dir, name),
            _ => {}
        }
    }

    /// As [`Self::answered`], for a remote dentry; [`Self::found`] follows with its attributes.
    pub fn remote_found(&mut self, call: &Call<'_>, remote: &RemoteEntry, lease: u64, now: u64) {
        let subject = Subject::of(call);
        self.distrust_subject(&subject);
        if let Some((dir, name)) = subject.name().filter(|_| remote.leased && lease > 0) {
            self.bind(dir, name, Binding::Inode(remote.ino, remote.kind), now.saturating_add(lease), now);
        }
    }

    /// Applies the reply of the inode's rank. The name was handled by [`Self::remote_found`].
    pub fn found(&mut self, call: &Call<'_>, answer: Option<&Answer>, term: Term, now: u64) {
        if let Some(Answer::Entry(entry) | Answer::Created(entry, _)) = answer {
            self.entry(None, entry, term, now);
            if let Some((dir, name)) = Subject::of(call).name() {
                self.placed(&entry.attr, dir, name);
            }
        }
    }

    /// Records the name under which users last saw a directory.
    fn placed(&mut self, attr: &Attr, dir: Ino, name: &Name) {
        if attr.kind == FileType::Directory
            && let Some(record) = self.records.get_mut(&attr.ino)
            && record.place.as_deref().is_none_or(|(at, called)| (*at, called) != (dir, name))
        {
            record.place = Some(Box::new((dir, name.clone())));
        }
    }

    /// The last name of a removed directory, unless users know another inode by that name.
    pub fn removed_from(&self, ino: Ino, now: u64) -> Option<(Ino, Name)> {
        let (dir, name) = self.records.get(&ino)?.place.as_deref()?;
        self.node(*dir, name, now).is_none_or(|there| there == ino).then(|| (*dir, name.clone()))
    }

    /// Applies a reply's list of changed inodes. `lease`: its remaining time in ms.
    pub fn changed(&mut self, touched: &Touched, lease: u64, now: u64) {
        let unreported = touched.attrs.iter().filter(|_| lease == 0).map(|attr| attr.ino);
        for ino in touched.others.iter().copied().chain(unreported) {
            // Pending write-back state is newer than the server's.
            if !self.has_pending(ino) {
                self.touched(ino);
            }
        }
        for attr in touched.attrs.iter().filter(|_| lease > 0) {
            self.contents.doubt(attr.ino);
            if attr.nlink == 0 {
                // The inode has no name: it exists as long as a client knows it.
                self.drop_lease(attr.ino);
            } else if self.records.contains_key(&attr.ino) {
                if !attr.contents_leased && !self.has_pending(attr.ino) {
                    // Other clients may have changed the directory since.
                    self.drop_contents(attr.ino);
                }
                // None of these inodes has a stream.
                self.note_attr(attr, Term { requested_at: now, left: lease }, 0, now);
            }
        }
    }

    fn entry(&mut self, name: Option<(Ino, &Name)>, entry: &Entry, term: Term, now: u64) {
        let attr = &entry.attr;
        if let Some((dir, name)) = name.filter(|_| entry.name_leased) {
            self.bind(dir, name, Binding::Inode(attr.ino, attr.kind), term.until(now), now);
        }
        let term = if entry.attr_leased { term } else { Term { left: 0, ..term } };
        self.note_attr(attr, term, 1, now);
        if let Some((dir, name)) = name {
            self.placed(attr, dir, name);
        }
        if !entry.sole_holder {
            self.clear_sole_holder(attr.ino);
        }
        self.know_empty(attr, term.until(now), now);
    }

    /// A directory that the server reports as empty is completely listed.
    fn know_empty(&mut self, attr: &Attr, until: u64, now: u64) {
        // A reply without its own lease may be stale: other clients may have added entries since.
        if until > now
            && attr.contents_leased
            && (attr.kind, attr.size) == (FileType::Directory, 0)
            && let Some(empty) = self.records.get_mut(&attr.ino)
        {
            empty.listed(0, u64::MAX);
        }
    }

    /// Applies a part of a listing; `part` is its first and its last cursor.
    fn listing(&mut self, dir: Ino, part: (u64, u64), entries: &[Dirent], term: Term, now: u64) {
        let until = term.until(now);
        if until > now {
            self.renew(dir, until, now).listed(part.0, part.1);
        }
        for dirent in entries {
            if let Some(entry) = &dirent.entry {
                self.entry(Some((dir, &dirent.name)), entry, term, now);
            }
            if dirent.remote.is_some_and(|remote| remote.name_leased) {
                self.bind(dir, &dirent.name, Binding::Inode(dirent.ino, dirent.kind), until, now);
            }
        }
        let Some(record) = self.records.get_mut(&dir).filter(|record| record.is_listed()) else { return };
        // An entry without a lease still exists.
        for dirent in entries {
            if !record.names.contains_key(&dirent.name) {
                record.names.insert(dirent.name.clone(), KnownName::LAPSED);
                self.names += 1;
            }
        }
        self.bound_names(dir);
    }

    fn bind(&mut self, dir: Ino, name: &Name, binding: Binding, until: u64, now: u64) {
        let Some(record) = self.records.get_mut(&dir).filter(|record| record.lease > now) else { return };
        if until <= now || self.pending_ops.is_named(dir, name) {
            return;
        }
        if record.names.insert(name.clone(), KnownName { binding: Some(binding), until }).is_none() {
            self.names += 1;
        }
        self.bound_names(dir);
    }

    /// Enforces the limit on names at the expense of the directory that was last added to.
    fn bound_names(&mut self, dir: Ino) {
        if self.names > self.capacity
            && let Some(record) = self.records.get_mut(&dir)
        {
            self.names -= record.drop_names();
        }
    }

    fn note_attr(&mut self, attr: &Attr, term: Term, lookups: u64, now: u64) {
        let (counts, has_pending) = (self.users == Users::Report, self.pending_ops.is_of(attr.ino));
        let until = term.until(now);
        let record = self.renew_parts(attr.ino, attr.contents_leased, until, now);
        record.lookups += lookups;
        if counts {
            record.users += lookups;
        }
        if until > now && !has_pending {
            (record.attr, record.requested_at) = (Some(Box::new(*attr)), term.requested_at);
            record.is_outdated = !attr.contents_leased;
        } else if !has_pending && record.attr.as_deref().is_some_and(|known| known.ctime < attr.ctime) {
            // The new attributes may not be cached. The cached ones are stale, except for what a
            // lease covers.
            record.is_outdated = true;
        }
        if self.order.len() > self.capacity {
            self.make_room();
        }
    }

    /// Extends the leases on an inode and what it contains until `until`, unless that has passed.
    fn renew(&mut self, ino: Ino, until: u64, now: u64) -> &mut InodeRecord {
        self.renew_parts(ino, true, until, now)
    }

    /// As [`Self::renew`]. `contents`: the leases cover what a directory contains.
    fn renew_parts(&mut self, ino: Ino, contents: bool, until: u64, now: u64) -> &mut InodeRecord {
        self.has_leases |= until > now;
        let record = self.records.entry(ino).or_default();
        if record.lease <= now {
            self.names -= record.drop_lease();
            self.contents.lose(ino);
        }
        if until > now {
            record.lease = record.lease.max(until);
        }
        if until > now && contents {
            if record.contents_lease <= now {
                self.names -= record.drop_contents();
                record.since = self.epoch;
            }
            record.contents_lease = record.contents_lease.max(until);
        }
        record.keep_until = record.lease;
        if self.users == Users::AtOnce {
            record.keep_until = record.keep_until.max(now.saturating_add(Self::KEEP));
        }
        if record.due == 0 && record.keep_until > now {
            record.due = record.keep_until;
            self.order.push_back((record.due, ino));
        }
        record
    }

    /// Users have forgotten `lookups` references to an inode.
    pub fn forget(&mut self, ino: Ino, lookups: u64) {
        let Some(record) = self.records.get_mut(&ino) else { return };
        record.users = record.users.saturating_sub(lookups);
        // The server may be waiting for this to free an unlinked file.
        let is_known = record.attr.is_some() && !record.is_outdated;
        if record.users == 0 && !is_known && record.names.is_empty() {
            self.remove(ino);
        }
    }

    fn make_room(&mut self) {
        // Second chance for renewed records; each record is examined at most once.
        for _ in 0..self.order.len() {
            if self.order.len() <= self.capacity {
                return;
            }
            let Some((due, ino)) = self.order.pop_front() else { return };
            self.look_at(due, ino, due);
        }
    }

    /// Evicts expired entries. [`Self::forgotten`] returns those to report to the server.
    pub fn expire(&mut self, now: u64) {
        self.changing.expire();
        self.writing.expire(now);
        while let Some(&(due, ino)) = self.order.front()
            && due <= now
        {
            self.order.pop_front();
            self.look_at(due, ino, now);
        }
    }

    /// Evicts an entry from the queue, unless its lease was renewed beyond `until`.
    fn look_at(&mut self, due: u64, ino: Ino, until: u64) {
        let Some(record) = self.records.get_mut(&ino).filter(|record| record.due == due) else { return };
        if record.keep_until > until {
            record.due = record.keep_until;
            self.order.push_back((record.due, ino));
            return;
        }
        record.due = 0;
        self.names -= record.drop_lease();
        self.contents.lose(ino);
        if record.users == 0 {
            self.remove(ino);
        }
    }

    /// Takes the evicted inodes, with the server's lookup count of each.
    pub fn forgotten(&mut self) -> Vec<(Ino, u64)> {
        core::mem::take(&mut self.forgotten)
    }

    fn remove(&mut self, ino: Ino) {
        self.contents.lose(ino);
        if let Some(record) = self.records.remove(&ino) {
            self.names -= record.names.len();
            if record.lookups > 0 {
                self.forgotten.push((ino, record.lookups));
            }
        }
    }
}

#[cfg(test)]
mod tests;
