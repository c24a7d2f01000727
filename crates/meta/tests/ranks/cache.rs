//! Caches of clients of several ranks, under leases.

use std::collections::HashMap;

use espalier_proto::*;

type Target = Option<(Ino, FileType)>;

/// A client's cached replies, each with the time until which it may be used.
#[derive(Default)]
pub struct Cache {
    pub names: HashMap<(Ino, Name), (Target, u64)>,
    attrs: HashMap<Ino, (Attr, u64)>,
}

impl Cache {
    fn name(&mut self, lookup: &Request, target: Target, until: u64) {
        if let Request::Lookup { dir, name } | Request::Create { dir, name, .. } = lookup {
            self.names.insert((*dir, name.clone()), (target, until));
        }
    }

    pub fn learn(&mut self, request: &Request, reply: &Reply, until: u64) {
        match reply {
            Reply::Entry(Entry { attr, name_leased, attr_leased, .. }) => {
                if *name_leased {
                    self.name(request, Some((attr.ino, attr.kind)), until);
                }
                if *attr_leased && attr.contents_leased {
                    self.attrs.insert(attr.ino, (*attr, until));
                }
            }
            Reply::Remote { ino, kind, name_leased: true, .. } => {
                self.name(request, Some((*ino, *kind)), until);
            }
            Reply::Absent { .. } => self.name(request, None, until),
            Reply::Attr(attr) if attr.contents_leased => {
                self.attrs.insert(attr.ino, (*attr, until));
            }
            _ => {}
        }
    }

    /// Drops what the client itself has changed.
    pub fn forget(&mut self, request: &Request, touched: &[Ino]) {
        let mut name = |dir: &Ino, name: &Name| {
            self.names.remove(&(*dir, name.clone()));
            self.attrs.remove(dir);
        };
        match request {
            Request::Create { dir, name: it, .. }
            | Request::Unlink { dir, name: it, .. }
            | Request::RmDir { dir, name: it, .. } => name(dir, it),
            Request::Link { ino, dir, name: it } => {
                name(dir, it);
                self.attrs.remove(ino);
            }
            Request::Rename { from_dir, from, to_dir, to, .. } => {
                name(from_dir, from);
                name(to_dir, to);
            }
            _ => {}
        }
        touched.iter().for_each(|ino| {
            self.attrs.remove(ino);
        });
    }

    pub fn give_up(&mut self, lease: &Lease) {
        match lease {
            Lease::Name { dir, name } => drop(self.names.remove(&(*dir, name.clone()))),
            Lease::Exclusive { .. } | Lease::Data { .. } | Lease::Unannounced { .. } => {}
            Lease::Inode { ino } | Lease::Contents { dir: ino } => {
                self.attrs.remove(ino);
            }
        }
    }

    pub fn distrust(&mut self, rank: usize) {
        self.names.retain(|(dir, _), _| dir.rank().0 as usize != rank);
        self.attrs.retain(|ino, _| ino.rank().0 as usize != rank);
    }

    pub fn answer(&self, request: &Request, now: u64) -> Option<Reply> {
        match request {
            Request::Lookup { dir, name } => {
                let (target, until) = self.names.get(&(*dir, name.clone()))?;
                let (cacheable, name_leased) = (true, true);
                (now < *until).then_some(match *target {
                    Some((ino, kind)) => Reply::Remote { ino, kind, at: ino.rank(), cacheable, name_leased },
                    None => Reply::Absent { cacheable },
                })
            }
            Request::GetAttr { ino } => {
                let (attr, until) = self.attrs.get(ino)?;
                (now < *until).then_some(Reply::Attr(*attr))
            }
            _ => None,
        }
    }
}
