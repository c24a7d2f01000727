//! A client that caches what it may.

use std::collections::{HashMap, HashSet, VecDeque};

use espalier_proto::*;

pub enum Message {
    Reply { id: u64, lease_ms: u32, touched: Vec<Ino>, result: Result<Reply, Errno> },
    Revoke { number: u64, lease: Lease },
}

/// What can be told of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    Attr(Attr),
    Bytes(Vec<u8>),
    Listing(Vec<(Name, Ino)>),
    Xattrs(Vec<u8>),
}

impl Thing {
    pub fn of(request: &Request, reply: &Reply) -> Option<Self> {
        Some(match (request, reply) {
            (_, Reply::Attr(attr)) => Self::Attr(*attr),
            (Request::Read { .. }, Reply::Bytes(bytes)) => Self::Bytes(bytes.clone()),
            (Request::ListXattr { .. }, Reply::Bytes(bytes)) => Self::Xattrs(bytes.clone()),
            (Request::ReadDir { after: 0, .. }, Reply::Listing { entries, end: true, .. }) => {
                Self::Listing(entries.iter().map(|entry| (entry.name.clone(), entry.ino)).collect())
            }
            _ => return None,
        })
    }

    pub fn sort(&self) -> usize {
        match self {
            Self::Attr(_) => 0,
            Self::Bytes(_) => 1,
            Self::Listing(_) => 2,
            Self::Xattrs(_) => 3,
        }
    }

    /// Or may be.
    pub fn is_of_directory(&self) -> bool {
        match self {
            Self::Attr(attr) => attr.kind == FileType::Directory,
            Self::Bytes(_) => false,
            Self::Listing(_) | Self::Xattrs(_) => true,
        }
    }
}

pub struct Client {
    pub id: ClientId,
    pub inbox: VecDeque<Message>,
    /// What is not answered, and when it was sent.
    pub asked: HashMap<u64, (Request, u64)>,
    /// Of these, what was asked before the client wrote to a stream.
    pub outdated: HashSet<u64>,
    /// It hears and says nothing.
    pub asleep_until: u64,
    /// With the times until which they may be used.
    names: HashMap<(Ino, Name), (u64, Option<Ino>)>,
    things: HashMap<(Ino, usize), (u64, Thing)>,
}

impl Client {
    pub fn new(id: ClientId) -> Self {
        let (names, things) = (HashMap::new(), HashMap::new());
        Self {
            id,
            inbox: VecDeque::new(),
            asked: HashMap::new(),
            outdated: HashSet::new(),
            asleep_until: 0,
            names,
            things,
        }
    }

    /// What is told of the file now may have been so before.
    pub fn has_written(&mut self) {
        self.outdated.extend(self.asked.keys());
    }

    pub fn expire(&mut self, now: u64) {
        self.names.retain(|_, (until, _)| now < *until);
        self.things.retain(|_, (until, _)| now < *until);
    }

    pub fn forget(&mut self, lease: &Lease) {
        match lease {
            Lease::Name { dir, name } => drop(self.names.remove(&(*dir, name.clone()))),
            Lease::Inode { ino } => self.things.retain(|(of, _), _| of != ino),
        }
    }

    /// But for those that are being changed by the client itself.
    pub fn usable_names(&self) -> impl Iterator<Item = (&(Ino, Name), Option<Ino>)> {
        let is_changing = |key: &(Ino, Name)| {
            let changed = |request: &Request| changed_names(request).contains(key) || is_of_trees(request);
            self.asked.values().any(|(request, _)| changed(request))
        };
        self.names.iter().filter(move |(key, _)| !is_changing(key)).map(|(key, (_, ino))| (key, *ino))
    }

    pub fn usable_things(&self) -> impl Iterator<Item = (Ino, &Thing)> {
        let is_changing = |ino: Ino| {
            let changed = |request: &Request| {
                changed_inodes(request).contains(&ino) || finds_by_name(request) || is_of_trees(request)
            };
            self.asked.values().any(|(request, _)| changed(request))
        };
        let usable = self.things.iter().filter(move |((ino, _), _)| !is_changing(*ino));
        usable.map(|((ino, _), (_, thing))| (*ino, thing))
    }

    /// `until`: what the reply tells may be used until then.
    pub fn replied(&mut self, request: &Request, result: &Result<Reply, Errno>, until: u64, touched: &[Ino]) {
        for key in changed_names(request) {
            self.names.remove(&key);
        }
        for ino in changed_inodes(request).iter().chain(touched) {
            self.forget(&Lease::Inode { ino: *ino });
        }
        match (request, result) {
            (_, Ok(Reply::Removed { dir, name })) => {
                self.forget(&Lease::Name { dir: *dir, name: name.clone() });
                self.forget(&Lease::Inode { ino: *dir });
            }
            (Request::CopyTree(copy), Ok(Reply::Copied(copied))) => {
                let made = |(dir, name): &(Ino, Name)| copied.made.contains(&(*dir, name.clone()));
                self.names.retain(|key, _| !made(key));
                for ino in copied.changed.iter().copied().chain(copy.levels.iter().map(|level| level.to)) {
                    self.forget(&Lease::Inode { ino });
                }
            }
            (Request::Lookup { dir, name }, Ok(Reply::Absent { .. })) => {
                self.names.insert((*dir, name.clone()), (until, None));
            }
            (
                Request::Lookup { dir, name }
                | Request::Create { dir, name, .. }
                | Request::Link { dir, name, .. },
                Ok(Reply::Entry(entry) | Reply::Created(entry, _)),
            ) => {
                self.forget(&Lease::Inode { ino: entry.attr.ino });
                self.entry(*dir, name, entry, until);
            }
            (Request::ReadDir { dir, .. }, Ok(reply @ Reply::Listing { entries, .. })) => {
                for dirent in entries {
                    if let Some(entry) = &dirent.entry {
                        self.entry(*dir, &dirent.name, entry, until);
                    }
                }
                self.thing(*dir, until, Thing::of(request, reply));
            }
            (_, Ok(reply)) => {
                if let Some(ino) = ino_of(request) {
                    self.thing(ino, until, Thing::of(request, reply));
                }
            }
            (_, Err(_)) => {}
        }
    }

    fn entry(&mut self, dir: Ino, name: &Name, entry: &Entry, until: u64) {
        if entry.name_leased {
            self.names.insert((dir, name.clone()), (until, Some(entry.attr.ino)));
        }
        if entry.attr_leased {
            self.thing(entry.attr.ino, until, Some(Thing::Attr(entry.attr)));
        }
    }

    fn thing(&mut self, ino: Ino, until: u64, thing: Option<Thing>) {
        if let Some(thing) = thing {
            self.things.insert((ino, thing.sort()), (until, thing));
        }
    }
}

fn ino_of(request: &Request) -> Option<Ino> {
    Some(match request {
        Request::GetAttr { ino }
        | Request::SetAttr { ino, .. }
        | Request::Read { ino, .. }
        | Request::ListXattr { ino } => *ino,
        _ => return None,
    })
}

fn changed_names(request: &Request) -> Vec<(Ino, Name)> {
    match request {
        Request::Create { dir, name, .. }
        | Request::Link { dir, name, .. }
        | Request::Unlink { dir, name }
        | Request::RmDir { dir, name } => vec![(*dir, name.clone())],
        Request::Rename { from_dir, from, to_dir, to, .. } => {
            vec![(*from_dir, from.clone()), (*to_dir, to.clone())]
        }
        _ => Vec::new(),
    }
}

fn changed_inodes(request: &Request) -> Vec<Ino> {
    match request {
        Request::Link { ino, dir, .. } => vec![*ino, *dir],
        Request::Rename { from_dir, to_dir, .. } => vec![*from_dir, *to_dir],
        Request::Create { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::RmDir { dir, .. }
        | Request::RemoveTree { dir } => vec![*dir],
        Request::SetAttr { ino, .. }
        | Request::Open { ino, .. }
        | Request::Write { ino, .. }
        | Request::Allocate { ino, .. }
        | Request::Extend { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. } => vec![*ino],
        _ => Vec::new(),
    }
}

/// It changes inodes of which the client does not know which they are.
fn finds_by_name(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { open: Some(_), .. }
            | Request::Unlink { .. }
            | Request::RmDir { .. }
            | Request::Rename { .. }
    )
}

fn is_of_trees(request: &Request) -> bool {
    matches!(request, Request::RemoveTree { .. } | Request::CopyTree(_))
}
