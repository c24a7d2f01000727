//! Derives fields of inodes from other records, and writes the repaired records.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{FileType, Ino, ObjectId, TableWrite, Time, mode};

use super::tree::{RepairedNode, RepairedTree};
use super::{Candidate, Contents, RecordPlace, Repaired, fingerprint};
use crate::record::{Body, Dentry, Directory, InoRecord, Inode, Slot, Super, encode};
use crate::state::{NO_DIR, orphan_key};
use crate::usage::Usage;

impl Contents {
    /// True if an inode's record agrees with other records.
    pub(super) fn fit(&self, candidate: &Candidate) -> bool {
        let inode = &candidate.inode;
        let (stored_len, streamed) = (self.stored(inode.ino), self.streams.contains_key(&inode.ino));
        let body = match inode.body {
            Body::Stuffed { stored, .. } => stored_len == stored as usize && !streamed,
            Body::Streamed { .. } => stored_len == 0 && streamed,
            _ => stored_len == 0 && !streamed,
        };
        let place = match (&inode.body, &candidate.place) {
            (Body::Directory(directory), RecordPlace::Dentry(dir, _)) => directory.parent == *dir,
            (Body::Directory(_), _) => inode.ino == Ino::ROOT,
            _ => true,
        };
        body && place && inode.fits() && inode.has_xattrs == self.xattrs.contains(&inode.ino)
    }

    /// Sets where a file's bytes are, and how many, in its record.
    fn describe(&self, inode: &mut Inode) {
        let (ino, stored_len) = (inode.ino, self.stored(inode.ino));
        let stream = self.streams.get(&ino).copied();
        match (&mut inode.body, stream) {
            (body @ Body::Streamed { .. }, None) if stored_len > 0 => {
                *body = Body::Stuffed { size: stored_len as u64, stored: stored_len as u32 };
            }
            (body @ (Body::Stuffed { .. } | Body::Streamed { .. }), Some(counted)) => {
                *body = Body::Streamed { counted };
            }
            // The stream is made, empty.
            (Body::Streamed { counted }, None) => *counted = 0,
            (Body::Stuffed { size, stored }, None) => {
                // No file can be longer: a larger size is damaged.
                let size_or_less = if *size > i64::MAX as u64 { 0 } else { *size };
                // Allocated bytes beyond the end do not count.
                let shown = if *stored as usize == stored_len { 0 } else { stored_len as u64 };
                *stored = stored_len as u32;
                *size = size_or_less.max(shown);
            }
            _ => {}
        }
    }

    fn stored(&self, ino: Ino) -> usize {
        self.strips.get(&ino).copied().unwrap_or(0)
    }
}

const COUNTED: &str = "fields that depend on other records were recomputed";

impl RepairedNode {
    /// Sets the names of an inode that is not a directory, in its record.
    fn name(&mut self, dirs: Option<&BTreeMap<Ino, u32>>) {
        let there: Vec<(Ino, u32)> = dirs.into_iter().flatten().map(|(dir, count)| (*dir, *count)).collect();
        self.inode.nlink = there.iter().map(|(_, count)| count).sum();
        let mut said = self.inode.rare.names.as_deref().cloned().unwrap_or_default();
        said.sort_unstable();
        if !self.in_table() || there.is_empty() {
            self.inode.rare.names = None;
        } else if said != there {
            self.inode.rare.names = Some(Box::new(there));
        }
    }
}

impl RepairedTree {
    /// Derives all fields of inodes that follow from other records.
    pub(super) fn derive(&mut self) {
        let mut names: BTreeMap<Ino, BTreeMap<Ino, u32>> = BTreeMap::new();
        for (dir, entries) in &self.entries {
            for ino in entries.values() {
                *names.entry(*ino).or_default().entry(*dir).or_default() += 1;
            }
        }
        let mut said = Vec::new();
        for (ino, node) in &mut self.nodes {
            let before = node.inode.clone();
            let orphan = *ino != Ino::ROOT && !names.contains_key(ino);
            if !(orphan && before.is_streamed()) {
                self.contents.describe(&mut node.inode);
            }
            if let (Body::Stuffed { stored: had, .. }, Body::Stuffed { stored, .. }) =
                (&before.body, &node.inode.body)
                && stored < had
            {
                said.push((*ino, "some of its bytes are lost and read as zeros"));
            }
            node.inode.has_xattrs = self.contents.xattrs.contains(ino);
            if !node.inode.is_dir() {
                node.name(names.get(ino));
            }
            if node.inode != before && node.place != RecordPlace::Nowhere {
                said.push((*ino, COUNTED));
            }
        }
        let usage = self.usage(&names);
        for (ino, node) in &mut self.nodes {
            let Body::Directory(directory) = &mut node.inode.body else { continue };
            let (before, nlink) = (directory.clone(), node.inode.nlink);
            let (count, subdirs, below) = usage.get(ino).copied().unwrap_or_default();
            (directory.entries, directory.usage) = (count, below);
            let parent = names.get(ino).and_then(|dirs| dirs.keys().next());
            directory.parent = parent.copied().unwrap_or(directory.parent);
            if *ino == Ino::ROOT {
                directory.parent = Ino::ROOT;
            }
            let has_place = *ino == Ino::ROOT || parent.is_some();
            node.inode.nlink = if has_place { 2 + subdirs } else { 0 };
            if (&before, nlink) != (&*directory, node.inode.nlink) && node.place != RecordPlace::Nowhere {
                said.push((*ino, COUNTED));
            }
        }
        for (ino, message) in said {
            self.say(ino, message);
        }
    }

    /// For each directory: its entries, subdirectories, and the usage below it.
    fn usage(&self, names: &BTreeMap<Ino, BTreeMap<Ino, u32>>) -> BTreeMap<Ino, (u64, u32, Usage)> {
        let mut counts: BTreeMap<Ino, (u64, u32, Usage)> = BTreeMap::new();
        for (dir, entries) in &self.entries {
            let (mut subdirs, mut within) = (0, Usage::default());
            for node in entries.values().filter_map(|ino| self.nodes.get(ino)) {
                if node.inode.is_dir() {
                    subdirs += 1;
                    within.dirs += 1;
                } else {
                    within = within.plus(node.inode.weight());
                }
            }
            let count = counts.entry(*dir).or_default();
            (count.0, count.1) = (entries.len() as u64, subdirs);
            // All cycles are broken by this point.
            let mut above = Some(dir);
            while let Some(dir) = above {
                let below = &mut counts.entry(*dir).or_default().2;
                *below = below.plus(within);
                above = names.get(dir).and_then(|dirs| dirs.keys().next());
            }
        }
        counts
    }

    /// Files whose streams are missing.
    fn missing_streams(&mut self) -> Vec<Ino> {
        // Files on data servers have none in the store.
        let is_here = |inode: &Inode| inode.is_streamed() && inode.layout().is_none() && inode.nlink > 0;
        let streamed = self.nodes.iter().filter(|(_, node)| is_here(&node.inode));
        let missing = streamed.map(|(ino, _)| *ino).filter(|ino| !self.contents.streams.contains_key(ino));
        let missing: Vec<Ino> = missing.collect();
        for ino in &missing {
            self.say(*ino, "its stream was missing: the file is made empty");
        }
        missing
    }

    /// The writes that turn `stored` into this tree.
    pub(super) fn repaired(
        mut self,
        mut stored: BTreeMap<(ObjectId, Vec<u8>), u64>,
        old: Option<Super>,
    ) -> Repaired {
        let mut repaired = Repaired { empty: self.missing_streams(), ..Repaired::default() };
        for (record, ino) in &self.removed {
            let (object, key) = record.place(*ino);
            repaired.writes.push(TableWrite { object, key, value: None });
        }
        let mut places = BTreeMap::new();
        let mut put = |object: ObjectId, key: Vec<u8>, value: Vec<u8>| {
            if stored.remove(&(object, key.clone())) != Some(fingerprint(&value)) {
                repaired.writes.push(TableWrite { object, key, value: Some(value) });
            }
        };
        for (dir, entries) in &self.entries {
            for (name, ino) in entries {
                let Some(node) = self.nodes.get(ino) else { continue };
                let dentry = match node.in_table() {
                    true => Dentry::Remote { ino: *ino, kind: node.inode.kind },
                    false => Dentry::Primary(node.inode.clone()),
                };
                let slot = Slot::new(&self.name_key, name.clone());
                put(ObjectId::fragment(*dir, 0), slot.key(), encode(&dentry));
                if !node.in_table() {
                    let (object, key) = InoRecord::Place.place(*ino);
                    put(object, key, encode(&(*dir, slot.hash)));
                    places.insert(*ino, (*dir, slot.hash));
                }
            }
        }
        for (ino, node) in &self.nodes {
            if node.inode.nlink == 0 {
                put(ObjectId::ORPHANS, orphan_key(*ino), encode(&node.inode));
            } else if node.in_table() {
                let (object, key) = InoRecord::Inode.place(*ino);
                put(object, key, encode(&node.inode));
                if *ino != Ino::ROOT {
                    let (object, key) = InoRecord::Place.place(*ino);
                    put(object, key, encode(&(NO_DIR, 0u64)));
                }
            }
        }
        let none = Super {
            next_ino: 0,
            files: 0,
            protected: 0,
            partitions: 0,
            sequence: 0,
            journal: 0,
            provisional: Vec::new(),
            size_dirty: Vec::new(),
            striped: None,
            pool: Vec::new(),
        };
        let mut record = old.unwrap_or(none);
        (record.next_ino, record.files) = (self.next_ino, self.nodes.len() as u64);
        record.protected = self.nodes.values().filter(|node| node.inode.is_protected()).count() as u64;
        let partitions = self.nodes.values().filter(|node| node.inode.partition().is_some());
        record.partitions = partitions.count() as u64;
        record.provisional.retain(|ino| self.nodes.get(ino).is_some_and(|node| node.inode.is_streamed()));
        record.size_dirty.retain(|(ino, place)| {
            let node = self.nodes.get(ino).filter(|node| node.inode.is_streamed() && node.inode.nlink > 0);
            node.is_some() && places.get(ino) == place.as_ref()
        });
        // Drop batches with numbers in use: the rest of a batch is removed.
        record.pool.retain(|batch| self.nodes.keys().all(|ino| !batch.has(*ino)));
        // Finalising a stream twice is harmless; a provisional one would be removed.
        let is_striped = |inode: &Inode| inode.layout().is_some();
        let striped: Vec<_> =
            self.nodes.iter().filter(|(_, node)| is_striped(&node.inode)).map(|(ino, _)| *ino).collect();
        if !striped.is_empty() {
            record.striped = Some(striped);
        }
        put(ObjectId::SUPER, Vec::new(), record.encode());
        let rest = stored.into_keys();
        repaired.writes.extend(rest.map(|(object, key)| TableWrite { object, key, value: None }));
        (repaired.copies, repaired.done) = (self.copies, self.done);
        repaired
    }
}

/// Makes the fields of a record consistent.
pub(super) fn make_sound(inode: &mut Inode) {
    inode.perm &= mode::PERMISSIONS;
    for time in [&mut inode.atime, &mut inode.mtime, &mut inode.ctime, &mut inode.btime] {
        *time = Time::new(time.secs, time.nanos);
    }
    if inode.fits() {
        return;
    }
    // A single byte encodes the type; the body is harder to damage.
    match (inode.kind, &inode.body) {
        (_, Body::Stuffed { .. } | Body::Streamed { .. } | Body::Striped { .. }) => {
            inode.kind = FileType::Regular
        }
        (_, Body::Directory(_)) => inode.kind = FileType::Directory,
        (_, Body::Symlink(_)) => inode.kind = FileType::Symlink,
        (FileType::Directory, Body::Node) => inode.body = Body::Directory(Directory::empty(Ino::ROOT)),
        (_, Body::Node) => {
            inode.kind = FileType::Regular;
            inode.body = Body::STUFFED;
        }
    }
}
