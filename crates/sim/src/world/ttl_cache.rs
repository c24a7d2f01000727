//! Cache with a fixed term for names and attributes, without leases, as with the mount option
//! `cache=ttl:`.

use std::collections::BTreeMap;

use espalier_client::{Answer, Call};
use espalier_proto::{Attr, Entry, Errno, Ino, Name, Request};

use crate::scenario::Caching;
use crate::time::Nanos;

/// See the module description.
#[derive(Debug)]
pub struct TtlCache {
    term: Nanos,
    /// Entries with the time of the reply; `None`: the name does not exist.
    names: BTreeMap<(Ino, Name), (Nanos, Option<Entry>)>,
    attrs: BTreeMap<Ino, (Nanos, Attr)>,
}

impl TtlCache {
    /// The cache of a client with this mode, if it has one.
    pub fn of(caching: Caching) -> Option<Self> {
        match caching {
            Caching::Ttl(term) => Some(Self { term, names: BTreeMap::new(), attrs: BTreeMap::new() }),
            Caching::Leases | Caching::None => None,
        }
    }

    /// The cached reply to a call, if any.
    pub fn answer(&self, now: Nanos, call: &Call<'_>) -> Option<Answer> {
        let Call::Request(request) = call else { return None };
        match request {
            Request::Lookup { dir, name } => {
                let (until, entry) = self.names.get(&(*dir, name.clone()))?;
                if *until < now {
                    return None;
                }
                let Some(entry) = entry else { return Some(Answer::Absent { cacheable: false }) };
                let attr = self.attr(now, entry.attr.ino)?;
                Some(Answer::Entry(Entry { attr, ..*entry }))
            }
            Request::GetAttr { ino } => self.attr(now, *ino).map(Answer::Attr),
            _ => None,
        }
    }

    fn attr(&self, now: Nanos, ino: Ino) -> Option<Attr> {
        self.attrs.get(&ino).filter(|(until, _)| *until >= now).map(|(_, attr)| *attr)
    }

    /// Caches the reply to a call that was not answered from the cache.
    pub fn learn(&mut self, now: Nanos, call: &Call<'_>, result: &Result<Answer, Errno>) {
        self.forget_changed(call);
        let until = now + self.term;
        let name = match call {
            Call::Request(
                Request::Lookup { dir, name }
                | Request::Create { dir, name, .. }
                | Request::Link { dir, name, .. },
            ) => Some((*dir, name.clone())),
            _ => None,
        };
        match (result, name) {
            (Ok(Answer::Attr(attr)), _) => drop(self.attrs.insert(attr.ino, (until, *attr))),
            (Ok(Answer::Entry(entry) | Answer::Created(entry, _)), Some(name)) => {
                self.attrs.insert(entry.attr.ino, (until, entry.attr));
                self.names.insert(name, (until, Some(*entry)));
            }
            (Ok(Answer::Absent { .. }), Some(name)) => drop(self.names.insert(name, (until, None))),
            (Ok(Answer::Listing { entries, .. }), _) => {
                let Call::Request(Request::ReadDir { dir, .. }) = call else { return };
                for (name, entry) in entries.iter().filter_map(|it| Some((&it.name, it.entry?))) {
                    self.attrs.insert(entry.attr.ino, (until, entry.attr));
                    self.names.insert((*dir, name.clone()), (until, Some(entry)));
                }
            }
            _ => {}
        }
    }

    /// Drops entries that the client itself has changed.
    fn forget_changed(&mut self, call: &Call<'_>) {
        match call {
            Call::Range(_) => {
                if let Some(ino) = call.writes() {
                    self.attrs.remove(&ino);
                }
            }
            Call::Request(request) => match request {
                Request::Create { dir, name, .. }
                | Request::Unlink { dir, name, .. }
                | Request::RmDir { dir, name, .. } => self.forget_name(*dir, name),
                Request::Link { ino, dir, name } => {
                    self.forget_name(*dir, name);
                    self.attrs.remove(ino);
                }
                Request::Rename { from_dir, from, to_dir, to, .. } => {
                    self.forget_name(*from_dir, from);
                    self.forget_name(*to_dir, to);
                }
                Request::SetAttr { ino, .. }
                | Request::Open { ino, .. }
                | Request::SetXattr { ino, .. }
                | Request::RemoveXattr { ino, .. } => drop(self.attrs.remove(ino)),
                _ => {}
            },
            _ => {}
        }
    }

    fn forget_name(&mut self, dir: Ino, name: &Name) {
        self.attrs.remove(&dir);
        if let Some((_, Some(entry))) = self.names.remove(&(dir, name.clone())) {
            self.attrs.remove(&entry.attr.ino);
        }
    }

    /// Drops expired entries.
    pub fn tick(&mut self, now: Nanos) {
        self.names.retain(|_, (until, _)| *until >= now);
        self.attrs.retain(|_, (until, _)| *until >= now);
    }

    pub fn forget(&mut self) {
        self.names.clear();
        self.attrs.clear();
    }
}
