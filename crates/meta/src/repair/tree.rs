//! The repaired tree: its inodes, and the names that make them reachable from the root.

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{FileType, Ino, Name, Rank, Time, name_hash};

use super::derive::make_sound;
use super::fragments::RepairedFragments;
use super::{Candidate, Contents, Named, RecordPlace, Repair, is_plausible};
use crate::check::Finding;
use crate::rank::{FreedNumbers, uncounted};
use crate::record::{Body, Directory, InoRecord, Inode, Rare, Super};
use crate::usage::Usage;

/// The tree that the repaired records describe.
#[derive(Debug)]
pub(super) struct RepairedTree {
    pub(super) name_key: [u8; 16],
    now: Time,
    pub(super) ranks: u16,
    /// The next inode number of each rank.
    pub(super) next_ino: BTreeMap<Rank, u64>,
    pub(super) nodes: BTreeMap<Ino, Box<RepairedNode>>,
    /// The entries of each directory record.
    pub(super) entries: BTreeMap<Ino, BTreeMap<Name, Ino>>,
    pub(super) fragments: RepairedFragments,
    pub(super) contents: Contents,
    /// Where inodes are, as their homes said.
    pub(super) relocations: BTreeMap<Ino, Rank>,
    pub(super) freed: BTreeMap<(Rank, Rank), FreedNumbers>,
    /// Changes of usage that directories do not count yet.
    pub(super) uncounted: Vec<(Ino, Usage)>,
    /// With the new file of each.
    pub(super) copies: Vec<(Ino, Ino)>,
    /// Records beside inodes that are to be removed.
    pub(super) removed: Vec<(InoRecord, (Ino, Rank))>,
    pub(super) done: Vec<Finding>,
    lost: Option<Ino>,
}

#[derive(Debug)]
pub(super) struct RepairedNode {
    pub(super) inode: Inode,
    pub(super) place: RecordPlace,
    /// The rank that has it.
    pub(super) rank: Rank,
    /// It has a name at another rank, or is a fragment.
    pub(super) is_remote: bool,
}

impl RepairedNode {
    pub(super) fn new(inode: Inode, place: RecordPlace) -> Box<Self> {
        let rank = inode.ino.rank();
        Box::new(Self { inode, place, rank, is_remote: false })
    }

    /// True if its record is in the inode table: for the root, fragments, and inodes that have or
    /// had several names or one at another rank.
    pub(super) fn in_table(&self) -> bool {
        match self.inode.is_dir() {
            true => self.inode.ino == Ino::ROOT || self.is_remote,
            false => self.place == RecordPlace::Table || self.inode.nlink > 1 || self.is_remote,
        }
    }

    /// True if a directory may have this name, as far as its record shows: it has one, in the
    /// directory where its record is, or at another rank.
    fn may_be_named(&self, dir: Ino, name: &Name) -> bool {
        match &self.place {
            RecordPlace::Dentry(of, known) => (*of, known) == (dir, name),
            RecordPlace::Table | RecordPlace::Nowhere => dir.rank() != self.inode.ino.rank(),
            RecordPlace::Orphan => false,
        }
    }
}

impl RepairedTree {
    pub(super) fn new(mut repair: Repair, old: &BTreeMap<Rank, Super>) -> Self {
        let candidates = core::mem::take(&mut repair.candidates);
        let names = core::mem::take(&mut repair.names);
        let uncounted = uncounted(&repair.usage_deltas).collect();
        let mut tree = Self {
            name_key: repair.name_key,
            now: repair.now,
            ranks: repair.ranks,
            next_ino: BTreeMap::new(),
            nodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            fragments: RepairedFragments::default(),
            contents: repair.contents,
            relocations: repair.relocations,
            freed: repair.freed,
            uncounted,
            copies: Vec::new(),
            removed: Vec::new(),
            done: repair.done,
            lost: None,
        };
        tree.choose(candidates);
        tree.count_numbers(old, &repair.given, &names);
        tree.mend_fragments(&names);
        tree.make_missing(&names);
        tree.give_names(names);
        tree
    }

    /// Finds the numbers from which on none is in use.
    fn count_numbers(&mut self, old: &BTreeMap<Rank, Super>, given: &BTreeMap<Rank, u64>, names: &[Named]) {
        for rank in (0..self.ranks).map(Rank) {
            let recorded = old.get(&rank).map(|old| old.next_ino).filter(|next| Ino(*next).rank() == rank);
            let given = given.get(&rank).copied().filter(|next| Ino(*next).rank() == rank);
            let first = Ino::none_of(rank).0.max(if rank == Ino::ROOT.rank() { Ino::ROOT.0 } else { 0 }) + 1;
            self.next_ino.insert(rank, first.max(recorded.unwrap_or(0)).max(given.unwrap_or(0)));
        }
        let Contents { strips, xattrs, streams, .. } = &self.contents;
        let dirs = names.iter().map(|named| &named.dir);
        let contents = strips.keys().chain(xattrs).chain(streams.keys()).map(|(ino, _)| ino);
        let in_use = self.nodes.keys().chain(contents).chain(dirs);
        let others = self.nodes.values().flat_map(|node| node.fragment_numbers());
        let in_use: Vec<Ino> = in_use.copied().chain(others).collect();
        for ino in in_use.into_iter().filter(|ino| is_plausible(*ino, self.ranks)) {
            let next = self.next_ino.entry(ino.rank()).or_default();
            *next = (*next).max(ino.0 + 1);
        }
    }

    pub(super) fn say(&mut self, ino: Ino, message: impl Into<String>) {
        self.done.push(Finding { ino: Some(ino), message: message.into() });
    }

    /// Chooses the record that fits other records best, among those that claim to be the same
    /// inode.
    fn choose(&mut self, candidates: BTreeMap<Ino, Vec<Candidate>>) {
        for (ino, mut candidates) in candidates {
            if ino == Ino::ROOT {
                candidates.retain(|candidate| candidate.inode.is_dir() && candidate.inode.fits());
            }
            if candidates.len() > 1 {
                self.say(
                    ino,
                    format!("existed {} times: the record that fits best is kept", candidates.len()),
                );
            }
            let best = candidates.into_iter().max_by_key(|candidate| {
                let named = matches!(candidate.place, RecordPlace::Dentry(..) | RecordPlace::Table);
                // Without a record, an inode is at home.
                let is_there = *self.relocations.get(&ino).unwrap_or(&ino.rank()) == candidate.rank;
                (self.contents.fit(candidate), named, is_there, candidate.inode.ctime)
            });
            if let Some(Candidate { mut inode, place, rank }) = best {
                make_sound(&mut inode);
                let mut node = RepairedNode::new(inode, place);
                if !node.inode.is_dir() {
                    node.rank = rank;
                }
                self.nodes.insert(ino, node);
            }
        }
    }

    /// Makes inodes whose records are missing, for names, bytes and entries that refer to them.
    fn make_missing(&mut self, names: &[Named]) {
        if !self.nodes.contains_key(&Ino::ROOT) {
            self.say(Ino::ROOT, "the root directory was missing, and is recreated");
            self.make(Ino::ROOT, FileType::Directory, 0o755);
        }
        let dirs: BTreeSet<Ino> = names.iter().map(|named| named.dir).collect();
        for dir in dirs {
            if !self.nodes.contains_key(&dir) && !self.fragments.is_dissolved(dir) {
                self.say(dir, "had entries, but was missing: it is recreated, accessible only to root");
                self.make(dir, FileType::Directory, 0o700);
            }
        }
        let files: BTreeSet<(Ino, Rank)> =
            self.contents.strips.keys().chain(self.contents.streams.keys()).copied().collect();
        let ranks = self.ranks;
        for (ino, rank) in files.into_iter().filter(|(ino, _)| is_plausible(*ino, ranks)) {
            let is_there = *self.relocations.get(&ino).unwrap_or(&ino.rank()) == rank;
            if is_there && !self.nodes.contains_key(&ino) {
                self.say(ino, "had bytes, but was missing: it is recreated, accessible only to root");
                self.make(ino, FileType::Regular, 0o600);
                if let Some(node) = self.nodes.get_mut(&ino) {
                    node.rank = rank;
                }
            }
        }
    }

    fn make(&mut self, ino: Ino, kind: FileType, perm: u32) {
        let time = self.now;
        let body = match kind {
            FileType::Directory => Body::Directory(Directory::empty(Ino::ROOT)),
            _ => Body::STUFFED,
        };
        let inode = Inode {
            ino,
            kind,
            perm,
            uid: 0,
            gid: 0,
            nlink: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            body,
            acl: None,
            default_acl: None,
            has_xattrs: false,
            rare: Rare::default(),
        };
        self.nodes.insert(ino, RepairedNode::new(inode, RecordPlace::Nowhere));
    }

    pub(super) fn next_number(&mut self, rank: Rank) -> Ino {
        let next = self.next_ino.entry(rank).or_insert(Ino::none_of(rank).0 + 1);
        *next += 1;
        Ino(*next - 1)
    }

    fn make_next(&mut self, rank: Rank, kind: FileType) -> Ino {
        let ino = self.next_number(rank);
        self.make(ino, kind, if kind == FileType::Directory { 0o700 } else { 0o600 });
        ino
    }

    /// Adds the names to directories. Names come first where lookups found them.
    fn give_names(&mut self, mut names: Vec<Named>) {
        names.sort_by_cached_key(|named| self.doubts(named));
        // Directories made for the entries of inodes that are not directories.
        let mut instead: BTreeMap<Ino, Ino> = BTreeMap::new();
        let mut named_dirs = BTreeSet::new();
        for Named { dir, name, ino, in_place } in names {
            let Some(node) = self.nodes.get(&ino) else {
                self.say(ino, format!("was missing: its name {name:?} in directory {dir} is removed"));
                continue;
            };
            let is_directory = node.inode.is_dir();
            let has_other_dentry =
                is_directory && (!node.may_be_named(dir, &name) || named_dirs.contains(&ino));
            if ino == Ino::ROOT || has_other_dentry {
                self.say(ino, format!("is a directory with another name: {name:?} in {dir} is removed"));
                continue;
            }
            let location = self.location(dir, &name, &mut instead);
            let entries = self.entries.entry(location).or_default();
            if entries.get(&name).is_some_and(|other| *other != ino) {
                self.say(ino, format!("had the name {name:?} in {dir}, which belongs to another inode"));
                continue;
            }
            entries.insert(name.clone(), ino);
            if is_directory {
                named_dirs.insert(ino);
            }
            if self.fragments.location(dir, self.hash(&name)) != dir {
                self.say(dir, format!("had entry {name:?}, which belongs to fragment {location}"));
            } else if !in_place {
                self.say(dir, format!("the key of entry {name:?} had another name's hash"));
            }
        }
    }

    pub(super) fn hash(&self, name: &Name) -> u64 {
        name_hash(&self.name_key, name)
    }

    /// Whether a name is where lookups do not find it, and whether it is not where its directory's
    /// record says.
    fn doubts(&self, named: &Named) -> (bool, bool) {
        let Named { dir, name, ino, in_place } = named;
        let is_found = *in_place && self.fragments.location(*dir, self.hash(name)) == *dir;
        let parent = self.nodes.get(ino).map(|node| &node.inode.body);
        let is_elsewhere = matches!(parent, Some(Body::Directory(directory)) if directory.parent != *dir);
        (!is_found, is_elsewhere)
    }

    /// The directory record for a name, which is made if `dir` is not a directory.
    fn location(&mut self, dir: Ino, name: &Name, instead: &mut BTreeMap<Ino, Ino>) -> Ino {
        let location = self.fragments.location(dir, self.hash(name));
        if self.nodes.get(&location).is_some_and(|node| node.inode.is_dir()) {
            return location;
        }
        if let Some(location) = instead.get(&dir) {
            return *location;
        }
        let location = self.make_next(dir.rank(), FileType::Directory);
        self.say(dir, format!("had entries but is no directory: they move to directory {location}"));
        instead.insert(dir, location);
        location
    }

    /// Makes everything reachable from the root: unreachable inodes move to `/lost+found`.
    pub(super) fn join(&mut self) {
        let mut named: BTreeMap<Ino, (Ino, Name)> = BTreeMap::new();
        for (dir, entries) in &self.entries {
            named.extend(entries.iter().map(|(name, ino)| (*ino, (*dir, name.clone()))));
        }
        let nodes = self.nodes.iter();
        let nameless: Vec<Ino> = nodes
            .filter(|(ino, node)| {
                let is_placed = named.contains_key(ino) || self.fragments.dir_of(**ino).is_some();
                **ino != Ino::ROOT && !is_placed && !self.is_orphan(node)
            })
            .map(|(ino, _)| *ino)
            .collect();
        for ino in nameless {
            self.put_into_lost_found(ino);
        }
        // The remaining inodes are in a cycle of directories, or below one.
        let mut reached = BTreeSet::new();
        self.walk(Ino::ROOT, &mut reached);
        for (ino, _) in self.nodes.iter().filter(|(_, node)| self.is_orphan(node)) {
            self.walk(*ino, &mut reached);
        }
        let all: Vec<Ino> = self.entries.keys().copied().collect();
        for start in all {
            if reached.contains(&start) {
                continue;
            }
            let mut seen = BTreeSet::new();
            let mut dir = start;
            while seen.insert(dir) {
                let above = self.fragments.dir_of(dir).or_else(|| named.get(&dir).map(|(above, _)| *above));
                let Some(above) = above else { break };
                dir = above;
            }
            let dir = self.fragments.dir_of(dir).unwrap_or(dir);
            if let Some((above, name)) = named.get(&dir)
                && let Some(entries) = self.entries.get_mut(above)
            {
                entries.remove(name);
                self.say(dir, format!("was in a cycle of directories: {name:?} in {above} is removed"));
                self.put_into_lost_found(dir);
            }
            self.walk(dir, &mut reached);
        }
    }

    /// True if it rightly has no name: it was in use at the checkpoint, or is a removed tree.
    pub(super) fn is_orphan(&self, node: &RepairedNode) -> bool {
        node.place == RecordPlace::Orphan && node.inode.nlink == 0
    }

    fn walk(&self, from: Ino, reached: &mut BTreeSet<Ino>) {
        let mut ahead = Vec::from([from]);
        while let Some(dir) = ahead.pop() {
            if reached.insert(dir) {
                ahead.extend(self.entries.get(&dir).into_iter().flat_map(BTreeMap::values));
                ahead.extend(self.fragments.others(dir));
            }
        }
    }

    pub(super) fn put_into_lost_found(&mut self, ino: Ino) {
        let lost = self.lost_found();
        if ino != lost {
            let name = self.add(lost, &format!("#{ino}"), ino);
            self.say(ino, format!("had no name, and is in the directory lost+found as {name:?}"));
        }
    }

    /// Handles bytes and attributes that belong to no inode: a stream becomes a file in
    /// `/lost+found`, the rest is removed.
    pub(super) fn sort_contents(&mut self) {
        let node = |(ino, rank): &(Ino, Rank)| self.nodes.get(ino).filter(|node| node.rank == *rank);
        let is_file = |at: &(Ino, Rank)| node(at).is_some_and(|node| node.inode.kind == FileType::Regular);
        let body = |at: &(Ino, Rank)| node(at).map(|node| &node.inode.body);
        let Contents { strips, xattrs, streams } = &self.contents;
        let stuffed =
            |at: &(Ino, Rank)| strips.contains_key(at) && matches!(body(at), Some(Body::Stuffed { .. }));
        let strays = streams.iter().filter(|(at, _)| !is_file(at) || stuffed(at));
        let stray_streams: Vec<((Ino, Rank), u64)> = strays.map(|(at, size)| (*at, *size)).collect();
        let beside_stream = |at: &(Ino, Rank)| streams.contains_key(at) && !stuffed(at);
        let stray_strips: Vec<(Ino, Rank)> =
            strips.keys().filter(|at| !is_file(at) || beside_stream(at)).copied().collect();
        let stray_xattrs: Vec<(Ino, Rank)> = xattrs.iter().filter(|at| node(at).is_none()).copied().collect();
        for (at, size) in stray_streams {
            self.copy_into_lost_found(at, size);
        }
        for at in stray_strips {
            self.contents.strips.remove(&at);
            self.say(at.0, "had bytes beside its stream, or is not a file: the bytes are removed");
            self.removed.push((InoRecord::Strip, at));
        }
        for at in stray_xattrs {
            self.contents.xattrs.remove(&at);
            self.say(at.0, "was missing: its extended attributes are removed");
            self.removed.push((InoRecord::Xattrs, at));
        }
    }

    fn copy_into_lost_found(&mut self, (stream, rank): (Ino, Rank), size: u64) {
        let ino = self.make_next(rank, FileType::Regular);
        self.contents.streams.remove(&(stream, rank));
        self.contents.streams.insert((ino, rank), size);
        self.copies.push((stream, ino));
        let lost = self.lost_found();
        let name = self.add(lost, &format!("#{stream}.stream"), ino);
        let message =
            format!("a stream of {size} bytes that no file referred to is in lost+found as {name:?}");
        self.say(stream, message);
    }

    fn lost_found(&mut self) -> Ino {
        if let Some(lost) = self.lost {
            return lost;
        }
        let there = Name::new(b"lost+found").ok();
        let there = there.and_then(|name| {
            let location = self.fragments.location(Ino::ROOT, self.hash(&name));
            self.entries.get(&location)?.get(&name).copied()
        });
        let is_dir = |ino: &Ino| self.nodes.get(ino).is_some_and(|node| node.inode.is_dir());
        let lost = match there.filter(is_dir) {
            Some(there) => there,
            None => {
                let ino = self.make_next(Ino::ROOT.rank(), FileType::Directory);
                self.add(Ino::ROOT, "lost+found", ino);
                ino
            }
        };
        self.lost = Some(lost);
        lost
    }

    /// Adds a name for an inode, with a number if it is taken. Returns the name.
    fn add(&mut self, dir: Ino, wanted: &str, ino: Ino) -> String {
        let numbered = (1u64..).map(|number| format!("{wanted}-{number}"));
        for text in core::iter::once(String::from(wanted)).chain(numbered) {
            // Letters and digits always form a valid name.
            let Ok(name) = Name::new(text.as_bytes()) else { break };
            let location = self.fragments.location(dir, self.hash(&name));
            let entries = self.entries.entry(location).or_default();
            if let Entry::Vacant(entry) = entries.entry(name) {
                entry.insert(ino);
                return text;
            }
        }
        String::new()
    }
}
