//! A client that routes names by hand, as the replies say.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::{Harness, ROOT_CALLER, Ranks, config, name};
use espalier_meta::Config;
use espalier_proto::*;

/// Ranks with a client that knows the fragment maps of the directories that it has used.
pub struct Routed {
    pub fs: Ranks,
    pub maps: BTreeMap<Ino, Fragments>,
}

/// The directory of most tests is at this rank; its parent, the root, is not.
pub const HOME: u16 = 1;
pub const RANKS: u16 = 4;

pub fn hash(file: &str) -> u64 {
    name_hash(&name_key(&config().hash_key), &name(file))
}

/// Names that all begin with `tag`.
pub fn names(tag: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{tag}{number}")).collect()
}

/// A new name with hashes of a fragment. `number`: that of the fragment in `map`.
pub fn name_in(map: &FragmentMap, number: usize, tag: &str) -> String {
    let names = (0..).map(|at| format!("{tag}-{at}"));
    names.into_iter().find(|file| map.number(hash(file)) == number).unwrap()
}

pub fn create(dir: Ino, file: &str, node: NewNode) -> Request {
    let (perm, umask, open, exclusive) = (0o777, 0, None, true);
    Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback: None }
}

pub fn set_xattr(ino: Ino, attribute: &str, value: &[u8]) -> Request {
    let (name, value, mode) = (attribute.as_bytes().into(), value.into(), XattrMode::Any);
    Request::SetXattr { ino, name, value, mode, kill_sgid: false }
}

pub fn set_perm(ino: Ino, perm: u32) -> Request {
    Request::SetAttr { ino, set: SetAttr { perm: Some(perm), ..SetAttr::default() } }
}

pub fn rmdir(dir: Ino, file: &str) -> Request {
    Request::RmDir { dir, name: name(file), time: None }
}

pub fn unlink(dir: Ino, file: &str) -> Request {
    Request::Unlink { dir, name: name(file), time: None }
}

impl Routed {
    pub fn new() -> Self {
        Self { fs: Ranks::new(RANKS), maps: BTreeMap::new() }
    }

    /// A file system with the directory `dir` in the root.
    pub fn with_dir() -> (Self, Ino) {
        let mut fs = Self::new();
        let dir = fs.fs.mkdir_at(HOME, Ino::ROOT, "dir", 0o777);
        (fs, dir)
    }

    /// A file system with the directory `dir` in the root, which has a fragment at each rank.
    pub fn with_fragments() -> (Self, Ino) {
        let (mut fs, dir) = Self::with_dir();
        fs.ask(set_xattr(dir, "user.espalier.dir_servers", b"4")).unwrap();
        assert_eq!(fs.map(dir).fragments().count(), 4);
        (fs, dir)
    }

    pub fn ask(&mut self, request: Request) -> Result<Reply, Errno> {
        self.ask_as(&ROOT_CALLER, request)
    }

    pub fn ask_as(&mut self, caller: &Caller, request: Request) -> Result<Reply, Errno> {
        for _ in 0..8 {
            let mut routed = request.clone();
            self.route(&mut routed);
            let is_elsewhere = format!("{routed:?}") != format!("{request:?}");
            match self.fs.ask_as(caller, routed) {
                // The fragment has been removed.
                Err(Errno::ESTALE | Errno::ENOENT) if is_elsewhere => {
                    let dirs: Vec<Ino> = self.maps.keys().copied().collect();
                    self.maps.clear();
                    dirs.into_iter().for_each(|dir| drop(self.map_if_any(dir)));
                }
                Ok(Reply::Fragments(fragments)) => self.learn(*fragments),
                Ok(Reply::Misrouted { dir }) => drop(self.map(dir)),
                reply => return reply,
            }
        }
        panic!("is routed in circles: {request:?}");
    }

    pub fn route(&self, request: &mut Request) {
        request.each_name(&mut |dir, name| {
            *dir = self.maps.get(dir).map_or(*dir, |fragments| fragments.of(name));
        });
        if let Request::ReadDir { dir, after, .. } = request
            && let Some(Fragments { map, .. }) = self.maps.get(dir)
        {
            let next = *after + 1;
            *dir = map.fragment(next);
            if next == *map.hashes(*dir).start() {
                *after = 0;
            }
        }
    }

    pub fn learn(&mut self, fragments: Fragments) {
        self.maps.insert(fragments.map.dir(), fragments);
    }

    /// The current map of a directory.
    pub fn map(&mut self, dir: Ino) -> FragmentMap {
        self.map_if_any(dir).unwrap_or_else(|| panic!("directory {dir} has no map"))
    }

    fn map_if_any(&mut self, dir: Ino) -> Option<FragmentMap> {
        let Ok(Reply::Fragments(fragments)) = self.fs.ask(Request::Fragments { dir }) else { return None };
        self.learn((*fragments).clone());
        Some(fragments.map)
    }

    pub fn make(&mut self, dir: Ino, file: &str, node: NewNode) -> Ino {
        let reply = self.ask(create(dir, file, node));
        self.fs.found(reply).unwrap().ino
    }

    pub fn make_files(&mut self, dir: Ino, files: &[String]) {
        for file in files {
            self.make(dir, file, NewNode::Regular);
        }
    }

    pub fn lookup(&mut self, dir: Ino, file: &str) -> Result<Attr, Errno> {
        match self.ask(Request::Lookup { dir, name: name(file) }) {
            Ok(Reply::Absent { .. }) => Err(Errno::ENOENT),
            reply => self.fs.found(reply),
        }
    }

    pub fn rename_as(&mut self, caller: &Caller, from: (Ino, &str), to: (Ino, &str)) -> Result<Reply, Errno> {
        let flags = RenameFlags::empty();
        let (from_dir, to_dir) = (from.0, to.0);
        self.ask_as(
            caller,
            Request::Rename { from_dir, from: name(from.1), to_dir, to: name(to.1), flags, time: None },
        )
    }

    /// The parent of a directory, as clients determine it.
    pub fn parent(&mut self, dir: Ino) -> Ino {
        let reply = self.ask(Request::Parent { dir });
        let attr = self.fs.found(reply).unwrap();
        if attr.map_version == Attr::FRAGMENT { self.parent(attr.ino) } else { attr.ino }
    }

    /// The attributes of all fragments together.
    pub fn attr(&mut self, dir: Ino) -> Attr {
        let mut attr = self.fs.attr(dir);
        for fragment in self.map(dir).others() {
            let part = self.fs.attr(fragment);
            assert_eq!(part.map_version, Attr::FRAGMENT);
            attr.add_fragment(&part);
        }
        attr
    }

    /// A page of a listing, and the cursor to continue after; `None` at the end.
    pub fn page(&mut self, dir: Ino, after: u64, limit: u32) -> (Vec<Dirent>, Option<u64>) {
        let reply = self.ask(Request::ReadDir { dir, after, limit, plus: false });
        let Ok(Reply::Listing { entries, end, until, .. }) = reply else { panic!("{reply:?}") };
        let last = entries.last().map(|entry| entry.cursor);
        let next = if end { Some(until).filter(|until| *until < LAST_CURSOR) } else { last };
        (entries, next)
    }

    /// All names of a directory in the order of a listing.
    pub fn list(&mut self, dir: Ino) -> Vec<String> {
        let (mut found, mut after) = (Vec::new(), Some(0));
        while let Some(cursor) = after {
            let (entries, next) = self.page(dir, cursor, 3);
            found.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
            after = next;
        }
        found
    }

    /// Checks that each name is in the one fragment that the map says, and that no other is.
    pub fn assert_names<'a>(&mut self, dir: Ino, expected: impl IntoIterator<Item = &'a String>) {
        let expected: BTreeSet<&String> = expected.into_iter().collect();
        let mut found = BTreeSet::new();
        let map = self.map(dir);
        for (_, fragment) in map.fragments() {
            let listing = Request::ReadDir { dir: fragment, after: 0, limit: 1000, plus: false };
            let Ok(Reply::Listing { entries, end: true, .. }) = self.fs.ask(listing) else { panic!() };
            for entry in &entries {
                let file = String::from_utf8(entry.name.to_vec()).unwrap();
                assert_eq!(map.fragment(hash(&file)), fragment, "{file}");
                assert!(found.insert(file));
            }
            assert_eq!(self.fs.attr(fragment).size, entries.len() as u64);
        }
        assert_eq!(found.iter().collect::<BTreeSet<_>>(), expected);
        for file in expected {
            assert!(self.lookup(dir, file).is_ok(), "{file}");
        }
        let listed = self.list(dir);
        assert_eq!(listed.len(), found.len());
        assert_eq!(BTreeSet::from_iter(listed), found);
    }
}

/// A directory with names of inodes at all ranks, which are durable.
pub fn full_dir() -> (Routed, Ino, Vec<String>) {
    fill_dir(Routed::new())
}

/// As [`full_dir`], with nothing in memory except what is in use.
pub fn full_dir_on_disk() -> (Routed, Ino, Vec<String>) {
    let (mut fs, dir, files) = fill_dir(Routed::evicting());
    fs.restart();
    (fs, dir, files)
}

impl Routed {
    /// Hosts with nothing in memory except what is in use.
    pub fn evicting() -> Self {
        let host =
            |rank| Harness::with(Config { rank: Rank(rank), ranks: RANKS, cache_bytes: 0, ..config() });
        Self { fs: Ranks((0..RANKS).map(host).collect()), maps: BTreeMap::new() }
    }

    /// Restarts each host after a checkpoint.
    pub fn restart(&mut self) {
        for rank in 0..RANKS {
            self.fs.0[usize::from(rank)].checkpoint();
            self.fs.deliver();
            self.fs.crash(rank, false);
            self.fs.deliver();
        }
    }
}

fn fill_dir(mut fs: Routed) -> (Routed, Ino, Vec<String>) {
    let dir = fs.fs.mkdir_at(HOME, Ino::ROOT, "dir", 0o777);
    let (files, mut all) = (names("file", 12), names("dir", 8));
    for file in &all {
        fs.make(dir, file, NewNode::Directory);
    }
    fs.make_files(dir, &files);
    all.extend(files);
    let far = fs.fs.mkdir_at(3, Ino::ROOT, "far", 0o755);
    let ino = fs.make(far, "linked", NewNode::Regular);
    let linked = fs.ask(Request::Link { ino, dir, name: name("linked") });
    assert_eq!(fs.fs.found(linked).unwrap().nlink, 2);
    all.push("linked".into());
    for rank in 0..RANKS {
        assert_eq!(fs.fs.ask(Request::SyncFs { rank: Rank(rank) }), Ok(Reply::Done));
    }
    (fs, dir, all)
}
