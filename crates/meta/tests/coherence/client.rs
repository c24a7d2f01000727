//! A client with a cache.

use std::collections::{HashMap, HashSet, VecDeque};

use espalier_client::{Answer, Binding, Cache, Call, Changes, Opening, Term, Users};
use espalier_proto::*;

#[expect(clippy::large_enum_variant, reason = "nearly all messages are replies")]
pub enum ServerMessage {
    Reply { id: u64, lease_ms: u32, touched: Touched, result: Result<Reply, Errno> },
    Revoke { number: RevocationId, lease: Lease },
}

/// A part of an inode's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    Attr(Attr),
    Bytes(Vec<u8>),
    Listing(Vec<(Name, Ino)>),
    Xattrs(Vec<u8>),
    Rights(Rights),
}

/// The attributes that decide who may use an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    perm: u32,
    owner: (u32, u32),
    xattrs: XattrPresence,
}

impl Rights {
    pub fn of(attr: &Attr) -> Self {
        Self { perm: attr.perm, owner: (attr.uid, attr.gid), xattrs: attr.xattrs }
    }

    /// True if the cached rights are right. A client that has changed extended attributes does not
    /// know whether any are left.
    pub fn holds(&self, is: &Self) -> bool {
        let may_have_none = self.xattrs == XattrPresence::NoAcl;
        self == is || may_have_none && *is == Self { xattrs: XattrPresence::None, ..*self }
    }
}

impl Thing {
    pub fn of(request: &Request, reply: &Reply) -> Option<Self> {
        Some(match (request, reply) {
            (_, Reply::Attr(attr)) => Self::Attr(*attr),
            (Request::Read { .. }, Reply::Bytes(bytes)) | (_, Reply::OpenedWhole(_, bytes)) => {
                Self::Bytes(bytes.clone().into())
            }
            (Request::ListXattr { .. }, Reply::Bytes(bytes)) => Self::Xattrs(bytes.clone().into()),
            (Request::ReadDir { after: 0, .. }, Reply::Listing { entries, end: true, .. }) => {
                Self::Listing(entries.iter().map(|entry| (entry.name.clone(), entry.ino)).collect())
            }
            _ => return None,
        })
    }

    /// True if the lease of a reply covers all of it.
    fn is_leased(&self) -> bool {
        !matches!(self, Self::Attr(attr) if !attr.contents_leased)
    }

    pub fn sort(&self) -> usize {
        match self {
            Self::Attr(_) => 0,
            Self::Bytes(_) => 1,
            Self::Listing(_) => 2,
            Self::Xattrs(_) => 3,
            Self::Rights(_) => 4,
        }
    }

    /// Or may be one.
    pub fn is_of_directory(&self) -> bool {
        match self {
            Self::Attr(attr) => attr.kind == FileType::Directory,
            Self::Bytes(_) => false,
            Self::Listing(_) | Self::Xattrs(_) | Self::Rights(_) => true,
        }
    }
}

/// A name, and what it refers to.
pub type Named = ((Ino, Name), Option<Ino>);

pub struct CachingClient {
    pub id: ClientId,
    /// The cache under test; the rest is a kernel above it, in the simplest model.
    pub cache: Cache,
    pub inbox: VecDeque<ServerMessage>,
    /// Unanswered requests, each with when it was sent.
    pub pending: HashMap<u64, (Request, u64, Changes)>,
    /// Unanswered requests from before the client wrote to a stream.
    pub outdated: HashSet<u64>,
    /// It receives and sends nothing until then.
    pub asleep_until: u64,
    /// Each with the time until which it may be used.
    names: HashMap<(Ino, Name), (u64, Option<Ino>)>,
    things: HashMap<(Ino, usize), (u64, Thing)>,
}

impl CachingClient {
    pub fn new(id: ClientId, users: Users) -> Self {
        let (names, things) = (HashMap::new(), HashMap::new());
        Self {
            id,
            cache: Cache::new(1000, users),
            inbox: VecDeque::new(),
            pending: HashMap::new(),
            outdated: HashSet::new(),
            asleep_until: 0,
            names,
            things,
        }
    }

    /// Replies in transit may report the file's old state.
    pub fn has_written(&mut self) {
        self.outdated.extend(self.pending.keys());
    }

    pub fn expire(&mut self, now: u64) {
        self.names.retain(|_, (until, _)| now < *until);
        self.things.retain(|_, (until, _)| now < *until);
    }

    pub fn forget(&mut self, lease: &Lease) {
        match lease {
            Lease::Name { dir, name } => drop(self.names.remove(&(*dir, name.clone()))),
            Lease::Exclusive { .. } | Lease::Data { .. } | Lease::Unannounced { .. } => {}
            Lease::Inode { ino } => self.things.retain(|(of, _), _| of != ino),
            Lease::Contents { dir } => {
                self.things.retain(|(of, _), (_, thing)| of != dir || matches!(thing, Thing::Xattrs(_)));
            }
        }
    }

    /// Except those that the client itself is changing.
    pub fn usable_names(&self) -> impl Iterator<Item = (&(Ino, Name), Option<Ino>)> {
        let usable = self.names.iter().filter(|(key, _)| !self.is_changing_name(key));
        usable.map(|(key, (_, ino))| (key, *ino))
    }

    pub fn usable_things(&self) -> impl Iterator<Item = (Ino, &Thing)> {
        let usable = self.things.iter().filter(|((ino, _), _)| !self.is_changing(*ino));
        usable.map(|((ino, _), (_, thing))| (*ino, thing))
    }

    fn is_changing_name(&self, key: &(Ino, Name)) -> bool {
        let changes = |request: &Request| changed_names(request).contains(key) || is_of_trees(request);
        self.pending.values().any(|(request, ..)| changes(request))
    }

    fn is_changing(&self, ino: Ino) -> bool {
        let changes = |request: &Request| {
            changed_inodes(request).contains(&ino) || finds_by_name(request) || is_of_trees(request)
        };
        self.pending.values().any(|(request, ..)| changes(request))
    }

    /// True if the cache answers a request; then the caller may cache the answer too.
    pub fn answers(&mut self, request: &Request, now: u64) -> bool {
        let answered = match request {
            Request::Lookup { dir, name } => self.cache.look_up(*dir, name, now),
            Request::GetAttr { ino } => {
                let left = self.cache.leased_until(*ino).saturating_sub(now);
                self.cache.attr(*ino, now).map(|attr| (Answer::Attr(attr), left))
            }
            _ => None,
        };
        let Some((answer, left)) = answered else { return false };
        match (request, answer) {
            (Request::Lookup { dir, name }, Answer::Absent { .. }) => {
                self.names.insert((*dir, name.clone()), (now + left, None));
            }
            (Request::Lookup { dir, name }, Answer::Entry(entry) | Answer::Unmeasured(entry)) => {
                self.entry(*dir, name, &entry, now + left);
            }
            (_, Answer::Attr(attr)) => self.thing(attr.ino, now + left, Some(Thing::Attr(attr))),
            (_, answer) => panic!("{answer:?}"),
        }
        true
    }

    /// The part of a tree in the cache, except what the client itself is changing.
    pub fn known(&self, tree: &super::CurrentTree, now: u64) -> (Vec<Named>, Vec<(Ino, Thing)>) {
        let (mut names, mut things) = (Vec::new(), Vec::new());
        for dir in &tree.dirs {
            for text in ["a", "b", "c", "d"] {
                let key = (*dir, Name::new(text.as_bytes()).unwrap());
                match self.cache.name(key.0, &key.1, now).filter(|_| !self.is_changing_name(&key)) {
                    Some(Binding::Inode(ino, _)) => names.push((key, Some(ino))),
                    Some(Binding::Absent) => names.push((key, None)),
                    None => {}
                }
            }
        }
        for ino in tree.dirs.iter().chain(&tree.files).filter(|ino| !self.is_changing(**ino)) {
            things.extend(self.cache.attr(*ino, now).map(|attr| (*ino, Thing::Attr(attr))));
            let rights = self.cache.rights(*ino, now).map(Rights::of);
            things.extend(rights.map(|rights| (*ino, Thing::Rights(rights))));
            things.extend(self.cache.content(*ino, now).map(|bytes| (*ino, Thing::Bytes(bytes.to_vec()))));
        }
        (names, things)
    }

    /// Handles a reply. `until`: end of its lease.
    pub fn replied(
        &mut self,
        request: &Request,
        result: &Result<Reply, Errno>,
        (now, until): (u64, u64),
        touched: &Touched,
    ) {
        let lease = until.saturating_sub(now);
        let answer = result.as_ref().ok().and_then(answer_of);
        self.cache.answered(&call_of(request), answer.as_ref(), Term { requested_at: 0, left: lease }, now);
        self.cache.changed(touched, lease, now);
        if let (Request::Open { ino, .. }, Ok(Reply::OpenedWhole(_, bytes))) = (request, result) {
            self.cache.learn(*ino, bytes.clone().into(), lease, now);
        }
        self.kernel_replied(request, result, until, touched);
    }

    fn kernel_replied(
        &mut self,
        request: &Request,
        result: &Result<Reply, Errno>,
        until: u64,
        touched: &Touched,
    ) {
        for key in changed_names(request) {
            self.names.remove(&key);
        }
        let reported = touched.attrs.iter().map(|attr| &attr.ino).chain(&touched.others);
        for ino in changed_inodes(request).iter().chain(reported) {
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
        if let Some(thing) = thing.filter(Thing::is_leased) {
            self.things.insert((ino, thing.sort()), (until, thing));
        }
    }
}

/// The call behind a request.
pub fn call_of(request: &Request) -> Call<'static> {
    match *request {
        Request::Write { ino, offset, ref data, kill_suid_gid, time: None } => {
            Call::write(ino, offset, data.clone().into(), kill_suid_gid)
        }
        Request::Extend { ino, offset, length, .. } => {
            let mode = AllocateMode::empty();
            Call::range(ino, RangeOp::Allocate { offset, length, mode }, false)
        }
        Request::Allocate { ino, offset, length, mode } => {
            Call::range(ino, RangeOp::Allocate { offset, length, mode }, false)
        }
        ref request => Call::Request(request.clone()),
    }
}

/// The knowledge that the cache gains from a reply.
fn answer_of(reply: &Reply) -> Option<Answer> {
    Some(match reply.clone() {
        Reply::Done => Answer::Done,
        Reply::Entry(entry) => Answer::Entry(entry),
        Reply::Absent { cacheable } => Answer::Absent { cacheable },
        Reply::Attr(attr) => Answer::Attr(attr),
        Reply::Created(entry, opened) => {
            let (ino, passthrough) = (entry.attr.ino, false);
            let Opened { accessed, shared, .. } = opened;
            Answer::Created(entry, Opening { ino, accessed, shared, keep_cache: true, passthrough })
        }
        Reply::Listing { entries, parent, end, .. } => Answer::Listing { entries, parent, end },
        Reply::Removed { dir, name } => Answer::Removed { dir, name },
        Reply::Copied(copied) => Answer::Copied(copied),
        _ => return None,
    })
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
        | Request::Unlink { dir, name, .. }
        | Request::RmDir { dir, name, .. } => vec![(*dir, name.clone())],
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

/// The request changes inodes that the client cannot identify.
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
