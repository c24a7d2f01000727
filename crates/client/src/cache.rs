//! What a client has cached of names and attributes, under leases, on behalf of those who call: a kernel, or a program.
//!
//! A name lies with its directory, and is trusted no longer than the lease on the directory lasts without a break: whoever
//! may search it is one of the directory's attributes, and its listing is covered by that lease. So of a directory that was
//! listed to its end, or made by this client, it is known which names are not there. The machine has no clock: `now` is
//! milliseconds of one that does not go back.

mod changes;
mod contents;
mod early;
mod listings;
mod pages;
mod record;
mod subject;
mod writing;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Attr, Dirent, Entry, FileType, Home, Ino, Lease, Name, Rank, Request, Touched};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::{Answer, Call, Sighting};
use changes::Changing;
use contents::Contents;
use early::Early;
use listings::Listings;
use record::{Known, Record};
use writing::Writing;

pub use changes::Changes;
pub(crate) use early::new_inode;
pub use listings::Page;
pub(crate) use pages::SOON_MS;
pub(crate) use subject::Subject;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    Absent,
    /// What kind of inode it is does not change.
    Inode(Ino, FileType),
}

/// How those who call use what they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// They say what they forget.
    Tell,
    /// At once, or never.
    AtOnce,
}

/// The cache. See the module's description.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    users: Users,
    records: HashMap<Ino, Record, FxBuildHasher>,
    /// Those with leases, with a time before which they need not be looked at; see [`Record::due`].
    order: VecDeque<(u64, Ino)>,
    /// Names in all records.
    names: usize,
    forgotten: Vec<(Ino, u64)>,
    changing: Changing,
    listings: Listings,
    contents: Contents,
    early: Early,
    writing: Writing,
    /// There has been a lease.
    has_leases: bool,
    /// Counts what servers have said.
    turn: u64,
    counts: CacheCounts,
}

/// How an answer may be kept, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// When it was asked for.
    pub asked: u64,
    /// What is left of its lease; 0: it has none.
    pub left: u64,
}

impl Term {
    fn until(self, now: u64) -> u64 {
        if self.left == 0 { 0 } else { now.saturating_add(self.left) }
    }
}

/// What a cache has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Questions that were answered without a message.
    pub hits: u64,
    /// Inodes and names that are held now.
    pub inodes: u64,
    pub names: u64,
}

impl Cache {
    /// An inode that is not leased stays known for so long, in ms, if users do not say when they have done with it.
    const KEEP: u64 = 1000;
    /// What files hold may take so many bytes for each inode that there is room for: 256 MiB on a mount.
    const CONTENT_BYTES: usize = 1024;

    /// Room for so many inodes with leases, and as many names.
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
            early: Early::default(),
            writing: Writing::default(),
            has_leases: false,
            turn: 0,
            counts: CacheCounts::default(),
        }
    }

    pub fn counts(&self) -> CacheCounts {
        CacheCounts { inodes: self.records.len() as u64, names: self.names as u64, ..self.counts }
    }

    // ---- Asking

    /// What a name stands for, if that is known.
    pub fn name(&self, dir: Ino, name: &Name, now: u64) -> Option<Binding> {
        let record = self.records.get(&dir).filter(|record| record.lease > now)?;
        if self.changing.is_named(dir, name) {
            return None;
        }
        match record.names.get(name) {
            Some(known) => known.at(now),
            None => record.is_whole().then_some(Binding::Absent),
        }
    }

    /// The inode that a name stands for, if there is one and it is known.
    pub fn node(&self, dir: Ino, name: &Name, now: u64) -> Option<Ino> {
        match self.name(dir, name, now)? {
            Binding::Inode(ino, _) => Some(ino),
            Binding::Absent => None,
        }
    }

    /// The inode that users may take a name to stand for, by a lease that they were given with it.
    pub fn leased_name(&self, dir: Ino, name: &Name, now: u64) -> Option<Ino> {
        match self.records.get(&dir)?.names.get(name)?.at(now)? {
            Binding::Inode(ino, _) => Some(ino),
            Binding::Absent => None,
        }
    }

    /// The names in directories for which users may have been given leases.
    pub fn leased_names(&self, is_one: impl Fn(Ino) -> bool) -> Vec<(Ino, Name)> {
        let records = self.records.iter().filter(|(dir, _)| is_one(**dir));
        let names = records.flat_map(|(dir, record)| record.names.iter().map(|name| (*dir, name)));
        let leased = names.filter(|(_, (_, known))| known.until > 0);
        leased.map(|(dir, (name, _))| (dir, name.clone())).collect()
    }

    /// An inode's attributes, if they are known.
    pub fn attr(&self, ino: Ino, now: u64) -> Option<Attr> {
        self.known(ino, now).map(|(_, attr)| *attr)
    }

    /// What has been told of an inode, and holds.
    fn known(&self, ino: Ino, now: u64) -> Option<(&Record, &Attr)> {
        let (record, attr) = self.told(ino, now)?;
        (!attr.streamed || self.writing.allows(ino, record.asked)).then_some((record, attr))
    }

    /// What has been told of an inode, and holds, but for what is in its stream.
    fn told(&self, ino: Ino, now: u64) -> Option<(&Record, &Attr)> {
        let record =
            self.records.get(&ino).filter(|record| record.lease > now && !self.changing.is_so(ino))?;
        Some((record, record.attr.as_deref()?))
    }

    /// Whether there is a lease on an inode.
    pub fn is_leased(&self, ino: Ino, now: u64) -> bool {
        self.records.get(&ino).is_some_and(|record| record.lease > now)
    }

    /// When the lease on an inode ends; 0: there is none.
    pub fn leased_until(&self, ino: Ino) -> u64 {
        self.records.get(&ino).map_or(0, |record| record.lease)
    }

    /// The answer to a lookup, for users who cache it themselves, and for how many milliseconds they may.
    pub fn look_up(&mut self, dir: Ino, name: &Name, now: u64) -> Option<(Answer, u64)> {
        let record = self.records.get_mut(&dir).filter(|record| record.lease > now)?;
        if self.changing.is_named(dir, name) {
            return None;
        }
        let cacheable = record.is_searchable_by_all();
        let Some(known) = record.names.get(name) else {
            if !record.is_whole() {
                return None;
            }
            // That is known by the lease on the directory, and users would not be told when it ends: they must ask again.
            // If they do, they had better have a lease on the name.
            record.names.insert(name.clone(), Known::TOLD_ABSENT);
            self.names += 1;
            self.counts.hits += 1;
            self.bound_names(dir);
            return Some((Answer::Absent { cacheable }, 0));
        };
        let until = record.lease.min(known.until);
        let answer = match known.at(now)? {
            Binding::Absent => Answer::Absent { cacheable },
            Binding::Inode(ino, _) => {
                let attr = self.attr(ino, now)?;
                let is_early = self.early.is_of(ino);
                let record = self.records.get_mut(&ino).filter(|record| record.lookups > 0 || is_early)?;
                if self.users == Users::Tell {
                    record.users += 1;
                }
                self.counts.hits += 1;
                let (name_leased, attr_leased, alone, home) = (true, true, false, Home::Table);
                let entry = Entry { attr, cacheable, name_leased, attr_leased, alone, home, proof: 0 };
                return Some((Answer::Entry(entry), until.min(record.lease) - now));
            }
        };
        self.counts.hits += 1;
        Some((answer, until - now))
    }

    /// What a name stands for, if that is at another rank and known, and for how many milliseconds it will be: then the name's rank
    /// need not be asked.
    pub fn sighting(&self, dir: Ino, name: &Name, now: u64) -> Option<(Sighting, u64)> {
        let record = self.records.get(&dir).filter(|record| record.lease > now)?;
        let known = record.names.get(name).filter(|_| !self.changing.is_named(dir, name))?;
        match known.at(now)? {
            Binding::Inode(ino, kind) if ino.rank() != dir.rank() && !self.changing.is_so(ino) => {
                let sighting = Sighting { dir, ino, kind, cacheable: false, leased: true };
                Some((sighting, record.lease.min(known.until) - now))
            }
            _ => None,
        }
    }

    /// The answer to a question for attributes, and for how many milliseconds it may be cached.
    pub fn get_attr(&mut self, ino: Ino, now: u64) -> Option<(Answer, u64)> {
        let (attr, until) = (self.attr(ino, now)?, self.records.get(&ino)?.lease);
        self.counts.hits += 1;
        Some((Answer::Attr(attr), until - now))
    }

    /// Whether it is known that an inode has no extended attributes and no access control lists.
    pub fn is_bare(&mut self, ino: Ino, now: u64) -> bool {
        let is_bare = self.told(ino, now).is_some_and(|(_, attr)| attr.bare);
        self.counts.hits += u64::from(is_bare);
        is_bare
    }

    /// What a file holds from an offset on, up to so many bytes.
    pub fn read(&mut self, ino: Ino, offset: u64, size: u32, now: u64) -> Option<Vec<u8>> {
        let bytes = self.content(ino, now)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let bytes = bytes[start..].iter().copied().take(size as usize).collect();
        self.counts.hits += 1;
        Some(bytes)
    }

    /// All that a file holds, if that is known.
    pub fn content(&self, ino: Ino, now: u64) -> Option<&[u8]> {
        let bytes = self.contents.get(ino)?;
        (self.is_leased(ino, now) && !self.changing.is_so(ino)).then_some(bytes)
    }

    // ---- Being told

    /// A caller has opened a file and may write to it.
    pub fn opened_to_write(&mut self, ino: Ino) {
        self.writing.opened(ino);
    }

    /// Nobody has a file open any more.
    pub fn closed(&mut self, ino: Ino, now: u64) {
        self.writing.closed(ino, now);
    }

    /// A server has told what a file holds. After [`Self::changed`] for the same reply. `lease`: what is left of it, in ms.
    pub fn learn(&mut self, ino: Ino, bytes: Vec<u8>, lease: u64, now: u64) {
        // What was written early and is not answered is newer.
        if lease > 0 && !self.is_early(ino) {
            self.renew(ino, now.saturating_add(lease), now);
            self.contents.learn(ino, bytes, false);
        }
    }

    /// A call is about to be made: what it may change is not trusted as long as somebody has what this gives.
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
        let writes = call.stream().is_some();
        if !writes {
            // They may come to have names where others see them.
            inos.iter().flatten().for_each(|ino| self.not_alone(*ino));
        }
        self.changing.begin(inos.into_iter(), subject.names(), writes)
    }

    fn distrust_subject(&mut self, subject: &Subject<'_>) {
        if !subject.is_change {
            return;
        }
        subject.names().for_each(|(dir, name)| self.doubt(dir, name));
        for ino in subject.inos() {
            self.touched(ino);
            if subject.changes_rights {
                self.drop_lease(ino);
            }
        }
    }

    /// A call has been answered, in the order in which the server's answers came.
    pub fn answered(&mut self, call: &Call<'_>, answer: Option<&Answer>, term: Term, now: u64) {
        let subject = Subject::of(call);
        self.distrust_subject(&subject);
        if let Call::Request(Request::CopyTree(_) | Request::RemoveTree { .. }) = call {
            // It may have changed any directory, also if it has failed.
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
            Some(Answer::Attr(attr)) => self.tell(attr, term, 0, now),
            Some(Answer::Bytes(_)) => {
                if let Call::Read { ino, .. } = *call {
                    self.renewed(ino, term.until(now), now);
                }
            }
            Some(Answer::Listing { entries, end, .. }) => {
                if let Some((dir, after)) = subject.lists {
                    let last = if *end { u64::MAX } else { entries.last().map_or(after, |last| last.cursor) };
                    self.listing(dir, (after, last), entries, term, now);
                }
            }
            // Without a lease it may be late, for the client has removed datafiles since: the name may have been made anew.
            Some(Answer::Done) if term.left > 0 => {
                if let Some((dir, name)) = subject.removes {
                    self.unbind(dir, name);
                }
            }
            Some(Answer::Removed { dir, name }) => self.doubt(*dir, name),
            _ => {}
        }
    }

    /// A name's inode is at another rank, which is asked for it next: then comes [`Self::found`]. The arguments are those of
    /// [`Self::answered`].
    pub fn sighted(&mut self, call: &Call<'_>, sighting: &Sighting, lease: u64, now: u64) {
        let subject = Subject::of(call);
        self.distrust_subject(&subject);
        if let Some((dir, name)) = subject.name().filter(|_| sighting.leased && lease > 0) {
            self.bind(dir, name, Binding::Inode(sighting.ino, sighting.kind), now.saturating_add(lease), now);
        }
    }

    /// What the inode's rank has told of it. What is known of the name is so since [`Self::sighted`].
    pub fn found(&mut self, call: &Call<'_>, answer: Option<&Answer>, term: Term, now: u64) {
        if let Some(Answer::Entry(entry) | Answer::Created(entry, _)) = answer {
            self.entry(None, entry, term, now);
            if let Some((dir, name)) = Subject::of(call).name() {
                self.placed(&entry.attr, dir, name);
            }
        }
    }

    /// Users have seen an inode by that name.
    fn placed(&mut self, attr: &Attr, dir: Ino, name: &Name) {
        if attr.kind == FileType::Directory
            && let Some(record) = self.records.get_mut(&attr.ino)
            && record.place.as_deref().is_none_or(|(at, called)| (*at, called) != (dir, name))
        {
            record.place = Some(Box::new((dir, name.clone())));
        }
    }

    /// The name by which users have last seen a directory that has been removed, unless they know another inode by it.
    pub fn removed_from(&self, ino: Ino, now: u64) -> Option<(Ino, Name)> {
        let (dir, name) = self.records.get(&ino)?.place.as_deref()?;
        self.node(*dir, name, now).is_none_or(|there| there == ino).then(|| (*dir, name.clone()))
    }

    /// A request has changed inodes, besides those that its reply tells of. `lease`: what is left of it, in ms.
    pub fn changed(&mut self, touched: &Touched, lease: u64, now: u64) {
        let untold = touched.attrs.iter().filter(|_| lease == 0).map(|attr| attr.ino);
        for ino in touched.others.iter().copied().chain(untold) {
            // What was told early and is not answered is newer.
            if !self.is_early(ino) {
                self.touched(ino);
            }
        }
        for attr in touched.attrs.iter().filter(|_| lease > 0) {
            self.contents.doubt(attr.ino);
            if attr.nlink == 0 {
                // Nobody needs it any more but those who use it, and it is there for as long as it is known.
                self.drop_lease(attr.ino);
            } else if self.records.contains_key(&attr.ino) {
                // None of them has a stream.
                self.tell(attr, Term { asked: now, left: lease }, 0, now);
            }
        }
    }

    fn entry(&mut self, name: Option<(Ino, &Name)>, entry: &Entry, term: Term, now: u64) {
        let attr = &entry.attr;
        if let Some((dir, name)) = name.filter(|_| entry.name_leased) {
            self.bind(dir, name, Binding::Inode(attr.ino, attr.kind), term.until(now), now);
        }
        let term = if entry.attr_leased { term } else { Term { left: 0, ..term } };
        self.tell(attr, term, 1, now);
        if let Some((dir, name)) = name {
            self.placed(attr, dir, name);
        }
        if !entry.alone {
            self.not_alone(attr.ino);
        }
        self.know_empty(attr, term.until(now), now);
    }

    /// Nothing is in a directory of which a server has told that, if it has none.
    fn know_empty(&mut self, attr: &Attr, until: u64, now: u64) {
        // An answer without a lease of its own may be late: others may have been there since.
        if until > now
            && (attr.kind, attr.size) == (FileType::Directory, 0)
            && let Some(empty) = self.records.get_mut(&attr.ino)
        {
            empty.listed(0, u64::MAX);
        }
    }

    /// `part`: of the listing, from one cursor up to another.
    fn listing(&mut self, dir: Ino, part: (u64, u64), entries: &[Dirent], term: Term, now: u64) {
        let until = term.until(now);
        if until > now {
            self.renew(dir, until, now).listed(part.0, part.1);
        }
        for dirent in entries {
            if let Some(entry) = &dirent.entry {
                self.entry(Some((dir, &dirent.name)), entry, term, now);
            }
        }
        let Some(record) = self.records.get_mut(&dir).filter(|record| record.is_listed()) else { return };
        // What has no lease of its own is there all the same.
        for dirent in entries {
            if !record.names.contains_key(&dirent.name) {
                record.names.insert(dirent.name.clone(), Known::LAPSED);
                self.names += 1;
            }
        }
        self.bound_names(dir);
    }

    fn bind(&mut self, dir: Ino, name: &Name, binding: Binding, until: u64, now: u64) {
        let Some(record) = self.records.get_mut(&dir).filter(|record| record.lease > now) else { return };
        if until <= now || self.early.is_named(dir, name) {
            return;
        }
        if record.names.insert(name.clone(), Known { binding: Some(binding), until }).is_none() {
            self.names += 1;
        }
        self.bound_names(dir);
    }

    /// The directory that names were added to last pays for those that are too many.
    fn bound_names(&mut self, dir: Ino) {
        if self.names > self.capacity
            && let Some(record) = self.records.get_mut(&dir)
        {
            self.names -= record.drop_names();
        }
    }

    fn tell(&mut self, attr: &Attr, term: Term, lookups: u64, now: u64) {
        let (counts, is_early) = (self.users == Users::Tell, self.early.is_of(attr.ino));
        let until = term.until(now);
        let record = self.renew(attr.ino, until, now);
        record.lookups += lookups;
        if counts {
            record.users += lookups;
        }
        if until > now && !is_early {
            (record.attr, record.asked) = (Some(Box::new(*attr)), term.asked);
        } else if !is_early && record.attr.as_deref().is_some_and(|known| known.ctime < attr.ctime) {
            // What is newer may not be cached, and what is older is so no more.
            record.attr = None;
        }
        if self.order.len() > self.capacity {
            self.make_room();
        }
    }

    /// There is a lease on an inode until then, if that is not over.
    fn renew(&mut self, ino: Ino, until: u64, now: u64) -> &mut Record {
        self.has_leases |= until > now;
        let record = self.records.entry(ino).or_default();
        if record.lease <= now {
            self.names -= record.drop_lease();
            self.contents.lose(ino);
        }
        if until > now {
            if record.lease <= now {
                record.since = self.turn;
            }
            record.lease = record.lease.max(until);
        }
        record.keep = record.lease;
        if self.users == Users::AtOnce {
            record.keep = record.keep.max(now.saturating_add(Self::KEEP));
        }
        if record.due == 0 && record.keep > now {
            record.due = record.keep;
            self.order.push_back((record.due, ino));
        }
        record
    }

    // ---- Forgetting

    /// Users have forgotten an inode that they had been named so often.
    pub fn forget(&mut self, ino: Ino, lookups: u64) {
        let Some(record) = self.records.get_mut(&ino) else { return };
        record.users = record.users.saturating_sub(lookups);
        // The server may wait for that to free a file that has no name any more.
        if record.users == 0 && record.attr.is_none() && record.names.is_empty() {
            self.remove(ino);
        }
    }

    fn make_room(&mut self) {
        // Those that were renewed since they were looked at get another turn, but no more than once.
        for _ in 0..self.order.len() {
            if self.order.len() <= self.capacity {
                return;
            }
            let Some((due, ino)) = self.order.pop_front() else { return };
            self.look_at(due, ino, due);
        }
    }

    /// Takes out what need not be known any longer. What the server is to be told as forgotten is [`Self::forgotten`].
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

    /// Takes out what was due at a time, unless it has been renewed beyond `until`.
    fn look_at(&mut self, due: u64, ino: Ino, until: u64) {
        let Some(record) = self.records.get_mut(&ino).filter(|record| record.due == due) else { return };
        if record.keep > until {
            record.due = record.keep;
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

    /// Inodes that are not known any longer, and how often the server had named each.
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

    /// The server takes a lease back.
    pub fn revoke(&mut self, lease: &Lease) {
        match lease {
            Lease::Name { dir, name } => self.doubt(*dir, name),
            Lease::Inode { ino } => self.drop_lease(*ino),
            Lease::Exclusive { dir } => self.share(*dir),
            Lease::Data { ino } => self.lose_data(*ino),
            Lease::Quiet { .. } => {}
        }
    }

    /// An inode has other attributes.
    pub fn touched(&mut self, ino: Ino) {
        self.listings.lose(ino);
        self.contents.lose(ino);
        if let Some(record) = self.records.get_mut(&ino) {
            record.attr = None;
        }
    }

    /// Nothing that was told until now is trusted any longer.
    pub fn distrust(&mut self) {
        self.distrust_those(|_| true);
    }

    /// Nothing that a rank has told until now is trusted any longer.
    pub fn distrust_rank(&mut self, rank: Rank) {
        self.distrust_those(|ino| ino.rank() == rank);
    }

    fn distrust_those(&mut self, is_one: impl Fn(&Ino) -> bool) {
        let inos: Vec<Ino> = self.records.keys().copied().filter(is_one).collect();
        for ino in inos {
            self.lose_data(ino);
            self.drop_lease(ino);
        }
    }

    /// The server asks that an inode be forgotten.
    pub fn recall(&mut self, ino: Ino) {
        self.drop_lease(ino);
        if self.users == Users::AtOnce
            && let Some(record) = self.records.get_mut(&ino)
            && record.lookups > 0
        {
            self.forgotten.push((ino, core::mem::take(&mut record.lookups)));
        }
    }

    /// Whether a name is there, or what it stands for, is not known any more.
    fn doubt(&mut self, dir: Ino, name: &Name) {
        self.listings.lose(dir);
        let Some(record) = self.records.get_mut(&dir) else { return };
        if record.is_listed() {
            if record.names.insert(name.clone(), Known::LAPSED).is_none() {
                self.names += 1;
                self.bound_names(dir);
            }
        } else if record.names.remove(name).is_some() {
            self.names -= 1;
        }
    }

    /// A name is not there any more.
    fn unbind(&mut self, dir: Ino, name: &Name) {
        self.listings.lose(dir);
        if let Some(record) = self.records.get_mut(&dir)
            && record.names.remove(name).is_some()
        {
            self.names -= 1;
        }
    }

    fn drop_lease(&mut self, ino: Ino) {
        self.listings.lose(ino);
        self.contents.lose(ino);
        let Some(record) = self.records.get_mut(&ino) else { return };
        self.names -= record.drop_lease();
        if self.users == Users::Tell && record.users == 0 {
            self.remove(ino);
        }
    }
}

#[cfg(test)]
mod tests;
