//! The repaired tree: its inodes, and the names that make them reachable from the root.

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{FileType, Ino, Name, Time};

use super::derive::make_sound;
use super::{Candidate, Contents, Named, RecordPlace, Repair, is_plausible};
use crate::check::Finding;
use crate::record::{Body, Directory, InoRecord, Inode, Rare};

/// The tree that the repaired records describe.
#[derive(Debug)]
pub(super) struct RepairedTree {
    pub(super) name_key: [u8; 16],
    now: Time,
    pub(super) next_ino: u64,
    pub(super) nodes: BTreeMap<Ino, Box<RepairedNode>>,
    /// The entries of each directory.
    pub(super) entries: BTreeMap<Ino, BTreeMap<Name, Ino>>,
    pub(super) contents: Contents,
    pub(super) copies: Vec<(Ino, Ino)>,
    /// Records beside inodes that are to be removed.
    pub(super) removed: Vec<(InoRecord, Ino)>,
    pub(super) done: Vec<Finding>,
    lost: Option<Ino>,
}

#[derive(Debug)]
pub(super) struct RepairedNode {
    pub(super) inode: Inode,
    pub(super) place: RecordPlace,
}

impl RepairedNode {
    /// True if its record is in the inode table: for the root, and inodes that have or had several
    /// names.
    pub(super) fn in_table(&self) -> bool {
        match self.inode.is_dir() {
            true => self.inode.ino == Ino::ROOT,
            false => self.place == RecordPlace::Table || self.inode.nlink > 1,
        }
    }
}

impl RepairedTree {
    pub(super) fn new(mut repair: Repair, next_ino: u64) -> Self {
        let candidates = core::mem::take(&mut repair.candidates);
        let names = core::mem::take(&mut repair.names);
        let mut tree = Self {
            name_key: repair.name_key,
            now: repair.now,
            next_ino: if is_plausible(Ino(next_ino)) { next_ino } else { 0 },
            nodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            contents: repair.contents,
            copies: Vec::new(),
            removed: Vec::new(),
            done: repair.done,
            lost: None,
        };
        tree.choose(candidates);
        tree.make_missing(&names);
        let contents = &tree.contents;
        let numbers = tree.nodes.keys().chain(contents.strips.keys()).chain(&contents.xattrs);
        let last = numbers.chain(contents.streams.keys()).filter(|ino| is_plausible(**ino)).max();
        tree.next_ino = tree.next_ino.max(last.map_or(0, |last| last.0 + 1)).max(Ino::ROOT.0 + 1);
        tree.give_names(names);
        tree
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
                (self.contents.fit(candidate), named, candidate.inode.ctime)
            });
            if let Some(Candidate { mut inode, place }) = best {
                make_sound(&mut inode);
                self.nodes.insert(ino, Box::new(RepairedNode { inode, place }));
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
            if !self.nodes.contains_key(&dir) {
                self.say(dir, "had entries, but was missing: it is recreated, accessible only to root");
                self.make(dir, FileType::Directory, 0o700);
            }
        }
        let files: BTreeSet<Ino> =
            self.contents.strips.keys().chain(self.contents.streams.keys()).copied().collect();
        for ino in files.into_iter().filter(|ino| is_plausible(*ino)) {
            if !self.nodes.contains_key(&ino) {
                self.say(ino, "had bytes, but was missing: it is recreated, accessible only to root");
                self.make(ino, FileType::Regular, 0o600);
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
        self.nodes.insert(ino, Box::new(RepairedNode { inode, place: RecordPlace::Nowhere }));
    }

    fn make_next(&mut self, kind: FileType) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.make(ino, kind, if kind == FileType::Directory { 0o700 } else { 0o600 });
        ino
    }

    /// Adds the names to directories. Names whose key matches their hash come first, since lookups
    /// found these.
    fn give_names(&mut self, mut names: Vec<Named>) {
        names.sort_by_key(|named| !named.in_place);
        // Directories made for the entries of inodes that are not directories.
        let mut instead: BTreeMap<Ino, Ino> = BTreeMap::new();
        for Named { dir, name, ino, in_place } in names {
            let Some(node) = self.nodes.get(&ino) else {
                self.say(ino, format!("was missing: its name {name:?} in directory {dir} is removed"));
                continue;
            };
            // A directory has one name, where its record is.
            let has_other_dentry =
                node.inode.is_dir() && node.place != RecordPlace::Dentry(dir, name.clone());
            if ino == Ino::ROOT || has_other_dentry {
                self.say(ino, format!("is a directory with another name: {name:?} in {dir} is removed"));
                continue;
            }
            let is_dir = self.nodes.get(&dir).is_some_and(|node| node.inode.is_dir());
            let location = match instead.get(&dir) {
                _ if is_dir => dir,
                Some(location) => *location,
                None => {
                    let location = self.make_next(FileType::Directory);
                    self.say(
                        dir,
                        format!("had entries but is no directory: they move to directory {location}"),
                    );
                    instead.insert(dir, location);
                    location
                }
            };
            let entries = self.entries.entry(location).or_default();
            if entries.get(&name).is_some_and(|other| *other != ino) {
                self.say(ino, format!("had the name {name:?} in {dir}, which belongs to another inode"));
                continue;
            }
            entries.insert(name.clone(), ino);
            if !in_place {
                self.say(dir, format!("the key of entry {name:?} had another name's hash"));
            }
        }
    }

    /// Makes everything reachable from the root: unreachable inodes move to `/lost+found`.
    pub(super) fn join(&mut self) {
        let mut named: BTreeMap<Ino, (Ino, Name)> = BTreeMap::new();
        for (dir, entries) in &self.entries {
            named.extend(entries.iter().map(|(name, ino)| (*ino, (*dir, name.clone()))));
        }
        let nodes = self.nodes.iter();
        let nameless: Vec<Ino> = nodes
            .filter(|(ino, node)| **ino != Ino::ROOT && !named.contains_key(ino) && !self.is_orphan(node))
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
                let Some((above, _)) = named.get(&dir) else { break };
                dir = *above;
            }
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
        let is_file =
            |ino: &Ino| self.nodes.get(ino).is_some_and(|node| node.inode.kind == FileType::Regular);
        let body = |ino: &Ino| self.nodes.get(ino).map(|node| &node.inode.body);
        let Contents { strips, xattrs, streams } = &self.contents;
        let stuffed = |ino: &Ino| strips.contains_key(ino) && matches!(body(ino), Some(Body::Stuffed { .. }));
        let stray_streams: Vec<(Ino, u64)> =
            streams.iter().filter(|(ino, _)| !is_file(ino) || stuffed(ino)).map(|(a, b)| (*a, *b)).collect();
        let beside_stream = |ino: &Ino| streams.contains_key(ino) && !stuffed(ino);
        let stray_strips: Vec<Ino> =
            strips.keys().filter(|ino| !is_file(ino) || beside_stream(ino)).copied().collect();
        let stray_xattrs: Vec<Ino> =
            xattrs.iter().filter(|ino| !self.nodes.contains_key(ino)).copied().collect();
        for (ino, size) in stray_streams {
            self.copy_into_lost_found(ino, size);
        }
        for ino in stray_strips {
            self.contents.strips.remove(&ino);
            self.say(ino, "had bytes beside its stream, or is not a file: the bytes are removed");
            self.removed.push((InoRecord::Strip, ino));
        }
        for ino in stray_xattrs {
            self.contents.xattrs.remove(&ino);
            self.say(ino, "was missing: its extended attributes are removed");
            self.removed.push((InoRecord::Xattrs, ino));
        }
    }

    fn copy_into_lost_found(&mut self, stream: Ino, size: u64) {
        let ino = self.make_next(FileType::Regular);
        self.contents.streams.remove(&stream);
        self.contents.streams.insert(ino, size);
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
        let there = there.and_then(|name| self.entries.get(&Ino::ROOT)?.get(&name).copied());
        let is_dir = |ino: &Ino| self.nodes.get(ino).is_some_and(|node| node.inode.is_dir());
        let lost = match there.filter(is_dir) {
            Some(there) => there,
            None => {
                let ino = self.make_next(FileType::Directory);
                self.add(Ino::ROOT, "lost+found", ino);
                ino
            }
        };
        self.lost = Some(lost);
        lost
    }

    /// Adds a name for an inode, with a number if it is taken. Returns the name.
    fn add(&mut self, dir: Ino, wanted: &str, ino: Ino) -> String {
        let entries = self.entries.entry(dir).or_default();
        let numbered = (1u64..).map(|number| format!("{wanted}-{number}"));
        for text in core::iter::once(String::from(wanted)).chain(numbered) {
            // Letters and digits always form a valid name.
            let Ok(name) = Name::new(text.as_bytes()) else { break };
            if let Entry::Vacant(entry) = entries.entry(name) {
                entry.insert(ino);
                return text;
            }
        }
        String::new()
    }
}
