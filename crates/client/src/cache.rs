//! What a client without a kernel above it has cached of names and attributes, under leases, on behalf of one caller.
//!
//! A name lies with its directory, and is trusted no longer than the lease on the directory lasts without a break: whoever
//! may search it is one of the directory's attributes. The machine has no clock: `now` is milliseconds of one that
//! does not go back.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Attr, Entry, FileType, Ino, Lease, Name, Request};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::Answer;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    Absent,
    /// What kind of inode it is does not change.
    Inode(Ino, FileType),
}

/// What a request is about, for what its answer tells.
#[derive(Debug, Default)]
pub struct Subject {
    /// The last one is what an answer with an inode names.
    names: Vec<(Ino, Name)>,
    inos: Vec<Ino>,
    is_change: bool,
    /// Who may search the inodes may change.
    changes_rights: bool,
}

impl Subject {
    pub fn of(request: &Request) -> Self {
        let change = |names: Vec<(Ino, Name)>, inos: Vec<Ino>| Self {
            names,
            inos,
            is_change: true,
            changes_rights: false,
        };
        match request {
            Request::Lookup { dir, name } => Self { names: [(*dir, name.clone())].into(), ..Self::default() },
            Request::GetAttr { ino } => Self { inos: [*ino].into(), ..Self::default() },
            Request::ReadDir { dir, .. } => Self { inos: [*dir].into(), ..Self::default() },
            Request::SetAttr { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. } => {
                Self { changes_rights: true, ..change(Vec::new(), [*ino].into()) }
            }
            Request::Create { dir, name, .. }
            | Request::Unlink { dir, name }
            | Request::RmDir { dir, name } => change([(*dir, name.clone())].into(), [*dir].into()),
            Request::Link { ino, dir, name } => change([(*dir, name.clone())].into(), [*dir, *ino].into()),
            Request::Rename { from_dir, from, to_dir, to, .. } => {
                change([(*from_dir, from.clone()), (*to_dir, to.clone())].into(), [*from_dir, *to_dir].into())
            }
            Request::Open { ino, how } if how.truncate => Self::written(*ino),
            _ => Self::default(),
        }
    }

    /// A write to a file, whichever way it takes.
    pub fn written(ino: Ino) -> Self {
        Self { inos: [ino].into(), is_change: true, ..Self::default() }
    }
}

#[derive(Debug, Default)]
struct Record {
    /// How often the server has named it to this client and has not been told that it is forgotten.
    lookups: u64,
    /// When the lease on it is over; 0: there is none.
    lease: u64,
    attr: Option<Attr>,
    /// Until then it stays known, so that what has just been found can be used.
    keep: u64,
    names: HashMap<Name, (Binding, u64), FxBuildHasher>,
}

impl Record {
    fn drop_lease(&mut self) -> usize {
        (self.lease, self.attr) = (0, None);
        let dropped = self.names.len();
        self.names = HashMap::default();
        dropped
    }
}

/// The cache. See the module's description.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    records: HashMap<Ino, Record, FxBuildHasher>,
    /// Each record once, with a time before which it need not be looked at.
    order: VecDeque<(u64, Ino)>,
    /// Names in all records.
    names: usize,
    forgotten: Vec<(Ino, u64)>,
}

impl Cache {
    /// An inode that is not leased stays known for so long, in ms.
    const KEEP: u64 = 1000;

    /// Room for so many inodes, and as many names.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            records: HashMap::default(),
            order: VecDeque::new(),
            names: 0,
            forgotten: Vec::new(),
        }
    }

    /// What a name stands for, if that is known.
    pub fn name(&self, dir: Ino, name: &Name, now: u64) -> Option<Binding> {
        let record = self.records.get(&dir).filter(|record| record.lease > now)?;
        record.names.get(name).filter(|(_, until)| *until > now).map(|(binding, _)| *binding)
    }

    /// An inode's attributes, if they are known.
    pub fn attr(&self, ino: Ino, now: u64) -> Option<Attr> {
        self.records.get(&ino).filter(|record| record.lease > now)?.attr
    }

    /// Whether there is a lease on an inode.
    pub fn is_leased(&self, ino: Ino, now: u64) -> bool {
        self.records.get(&ino).is_some_and(|record| record.lease > now)
    }

    /// A request is about to be sent: what it may change is not trusted meanwhile.
    pub fn sent(&mut self, subject: &Subject) {
        if !subject.is_change {
            return;
        }
        for (dir, name) in &subject.names {
            self.forget_name(*dir, name);
        }
        for ino in &subject.inos {
            self.touched(*ino);
            if subject.changes_rights {
                self.drop_lease(*ino);
            }
        }
    }

    /// A request has been answered, in the order in which the server's answers came. `lease`: what is left of it, in ms.
    pub fn answered(&mut self, subject: &Subject, answer: Option<&Answer>, lease: u64, now: u64) {
        self.sent(subject);
        let until = if lease == 0 { 0 } else { now.saturating_add(lease) };
        match answer {
            Some(Answer::Entry(entry)) => self.entry(subject.names.last(), entry, until, now),
            Some(Answer::Created(entry, _)) => self.entry(subject.names.last(), entry, until, now),
            Some(Answer::Absent { .. }) => {
                if let Some((dir, name)) = subject.names.last() {
                    self.bind(*dir, name, Binding::Absent, until, now);
                }
            }
            Some(Answer::Attr(attr)) => self.tell(attr, until, 0, now),
            Some(Answer::Listing { entries, .. }) => {
                let dir = subject.inos.first();
                for dirent in entries {
                    if let Some(entry) = &dirent.entry {
                        let name = dir.map(|dir| (*dir, dirent.name.clone()));
                        self.entry(name.as_ref(), entry, until, now);
                    }
                }
            }
            _ => {}
        }
    }

    fn entry(&mut self, name: Option<&(Ino, Name)>, entry: &Entry, until: u64, now: u64) {
        let attr = &entry.attr;
        if let Some((dir, name)) = name.filter(|_| entry.name_leased) {
            self.bind(*dir, name, Binding::Inode(attr.ino, attr.kind), until, now);
        }
        self.tell(attr, if entry.attr_leased { until } else { 0 }, 1, now);
    }

    fn bind(&mut self, dir: Ino, name: &Name, binding: Binding, until: u64, now: u64) {
        let Some(record) = self.records.get_mut(&dir).filter(|record| record.lease > now) else { return };
        if until <= now {
            return;
        }
        if self.names >= self.capacity {
            self.names -= record.names.len();
            record.names.clear();
        }
        if self.names < self.capacity && record.names.insert(name.clone(), (binding, until)).is_none() {
            self.names += 1;
        }
    }

    fn tell(&mut self, attr: &Attr, until: u64, lookups: u64, now: u64) {
        let is_new = !self.records.contains_key(&attr.ino);
        let record = self.records.entry(attr.ino).or_default();
        record.lookups += lookups;
        if record.lease <= now {
            self.names -= record.drop_lease();
        }
        if until > now {
            record.lease = record.lease.max(until);
            // A stream may change without the server's doing.
            record.attr = (!attr.streamed).then_some(*attr);
        }
        record.keep = record.lease.max(now.saturating_add(Self::KEEP));
        if is_new {
            self.order.push_back((record.keep, attr.ino));
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        // Those that were renewed since they were looked at get another turn, but no more than once.
        for _ in 0..self.order.len() {
            if self.records.len() <= self.capacity {
                return;
            }
            let Some((keep, ino)) = self.order.pop_front() else { return };
            match self.records.get(&ino) {
                Some(record) if record.keep > keep => self.order.push_back((record.keep, ino)),
                _ => self.remove(ino),
            }
        }
    }

    /// Takes out what need not be known any longer. What the server is to be told as forgotten is [`Self::forgotten`].
    pub fn expire(&mut self, now: u64) {
        while let Some(&(keep, ino)) = self.order.front()
            && keep <= now
        {
            self.order.pop_front();
            match self.records.get(&ino) {
                Some(record) if record.keep > now => self.order.push_back((record.keep, ino)),
                _ => self.remove(ino),
            }
        }
    }

    /// Inodes that are not known any longer, and how often the server had named each.
    pub fn forgotten(&mut self) -> Vec<(Ino, u64)> {
        core::mem::take(&mut self.forgotten)
    }

    fn remove(&mut self, ino: Ino) {
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
            Lease::Name { dir, name } => self.forget_name(*dir, name),
            Lease::Inode { ino } => self.drop_lease(*ino),
        }
    }

    /// An inode has other attributes.
    pub fn touched(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            record.attr = None;
        }
    }

    /// Nothing that was told until now is trusted any longer.
    pub fn distrust(&mut self) {
        for record in self.records.values_mut() {
            record.drop_lease();
        }
        self.names = 0;
    }

    /// The server asks that an inode be forgotten.
    pub fn recall(&mut self, ino: Ino) {
        self.drop_lease(ino);
        if let Some(record) = self.records.get_mut(&ino)
            && record.lookups > 0
        {
            self.forgotten.push((ino, core::mem::take(&mut record.lookups)));
        }
    }

    fn forget_name(&mut self, dir: Ino, name: &Name) {
        if let Some(record) = self.records.get_mut(&dir)
            && record.names.remove(name).is_some()
        {
            self.names -= 1;
        }
    }

    fn drop_lease(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            self.names -= record.drop_lease();
        }
    }
}

#[cfg(test)]
mod tests;
