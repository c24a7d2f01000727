//! Derives fields of inodes from other records, and writes the repaired records.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use espalier_proto::{FileType, Ino, ObjectId, Rank, TableWrite, Time, mode};

use super::tree::{RepairedNode, RepairedTree};
use super::{Candidate, Contents, RecordPlace, Repaired, Stored, fingerprint};
use crate::counts::InodeCounts;
use crate::fragment::RecordedMoves;
use crate::rank::{Relocation, UsageDeltas};
use crate::record::{Body, Dentry, Directory, InoRecord, Inode, Referent, Slot, Super, encode};
use crate::session::PersistedKey;
use crate::state::{NO_DIR, orphan_key};
use crate::usage::Usage;

impl Contents {
    /// True if an inode's record agrees with other records.
    pub(super) fn fit(&self, candidate: &Candidate) -> bool {
        let inode = &candidate.inode;
        let at = (inode.ino, candidate.rank);
        let (stored_len, streamed) = (self.stored(at), self.streams.contains_key(&at));
        let body = match inode.body {
            Body::Stuffed { stored, .. } => stored_len == stored as usize && !streamed,
            Body::Streamed { .. } => stored_len == 0 && streamed,
            _ => stored_len == 0 && !streamed,
        };
        let place = match (&inode.body, &candidate.place) {
            (Body::Directory(directory), RecordPlace::Dentry(dir, _)) => directory.parent == *dir,
            (Body::Directory(directory), RecordPlace::Table) => {
                let is_remote = directory.parent.rank() != inode.ino.rank();
                inode.ino == Ino::ROOT || is_remote || inode.fragment().is_some()
            }
            (Body::Directory(_), _) => false,
            _ => true,
        };
        body && place && inode.fits() && inode.has_xattrs == self.xattrs.contains(&at)
    }

    /// Sets where a file's bytes are, and how many, in its record.
    fn describe(&self, inode: &mut Inode, rank: Rank) {
        let stored_len = self.stored((inode.ino, rank));
        let stream = self.streams.get(&(inode.ino, rank)).copied();
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

    fn stored(&self, at: (Ino, Rank)) -> usize {
        self.strips.get(&at).copied().unwrap_or(0)
    }
}

/// Entries, subdirectories, and usage below.
type DirectoryCounts = (u64, u32, Usage);

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
        self.place_remotely(&names);
        let mut said = Vec::new();
        for (ino, node) in &mut self.nodes {
            let before = node.inode.clone();
            let orphan = *ino != Ino::ROOT && !names.contains_key(ino);
            if !(orphan && before.is_streamed()) {
                self.contents.describe(&mut node.inode, node.rank);
            }
            if let (Body::Stuffed { stored: had, .. }, Body::Stuffed { stored, .. }) =
                (&before.body, &node.inode.body)
                && stored < had
            {
                said.push((*ino, "some of its bytes are lost and read as zeros"));
            }
            node.inode.has_xattrs = self.contents.xattrs.contains(&(*ino, node.rank));
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
            let above = || names.get(ino).and_then(|dirs| dirs.keys().next().copied());
            let parent = self.fragments.dir_of(*ino).or_else(above);
            directory.parent = parent.unwrap_or(directory.parent);
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

    /// Notes which inodes have names at other ranks. Those without a metafile get one.
    fn place_remotely(&mut self, names: &BTreeMap<Ino, BTreeMap<Ino, u32>>) {
        let mut made_whole = Vec::new();
        for (ino, node) in &mut self.nodes {
            let mut dirs = names.get(ino).into_iter().flat_map(BTreeMap::keys);
            node.is_remote = self.fragments.dir_of(*ino).is_some() || dirs.any(|dir| dir.rank() != node.rank);
            if node.inode.has_no_metafile() && node.is_remote {
                made_whole.push((*ino, names.get(ino).and_then(|dirs| dirs.keys().next().copied())));
            }
        }
        for (ino, dir) in made_whole {
            let dir = dir.and_then(|dir| self.nodes.get(&dir)).map(|node| node.inode.clone());
            if let Some(node) = self.nodes.get_mut(&ino) {
                dir.iter().for_each(|dir| node.inode.strip_to(dir));
                node.inode.make_whole();
            }
            self.say(ino, "gets an inode of its own, since its name is at another rank");
        }
    }

    /// For each directory: its entries, subdirectories, and the usage below it.
    fn usage(&self, names: &BTreeMap<Ino, BTreeMap<Ino, u32>>) -> BTreeMap<Ino, DirectoryCounts> {
        let mut counts: BTreeMap<Ino, DirectoryCounts> = BTreeMap::new();
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
            self.add_usage(*dir, within, names, &mut counts);
        }
        for (dir, usage) in &self.uncounted {
            if self.nodes.contains_key(dir) {
                self.add_usage(*dir, Usage::default().minus(*usage), names, &mut counts);
            }
        }
        counts
    }

    /// Adds usage to a directory and to all above it.
    fn add_usage(
        &self,
        dir: Ino,
        usage: Usage,
        names: &BTreeMap<Ino, BTreeMap<Ino, u32>>,
        counts: &mut BTreeMap<Ino, DirectoryCounts>,
    ) {
        // All cycles are broken by this point.
        let mut above = Some(dir);
        while let Some(dir) = above {
            let below = &mut counts.entry(dir).or_default().2;
            *below = below.plus(usage);
            let named = || names.get(&dir).and_then(|dirs| dirs.keys().next().copied());
            above = self.fragments.dir_of(dir).or_else(named);
        }
    }

    /// Files whose streams are missing.
    fn missing_streams(&mut self) -> Vec<(Ino, Rank)> {
        // Files on data servers have none in the store.
        let is_here = |inode: &Inode| inode.is_streamed() && inode.layout().is_none() && inode.nlink > 0;
        let streamed = self.nodes.iter().filter(|(_, node)| is_here(&node.inode));
        let missing: Vec<(Ino, Rank)> = streamed
            .map(|(ino, node)| (*ino, node.rank))
            .filter(|at| !self.contents.streams.contains_key(at))
            .collect();
        for (ino, _) in &missing {
            self.say(*ino, "its stream was missing: the file is made empty");
        }
        missing
    }

    /// The writes that turn `stored` into this tree, for each rank.
    pub(super) fn repaired(
        mut self,
        stored: Stored,
        old: BTreeMap<Rank, Super>,
        usage_deltas: &[(Rank, Rank, UsageDeltas)],
    ) -> Vec<Repaired> {
        let empty = self.missing_streams();
        let mut writes = Writes { stored, changed: BTreeMap::new() };
        for (record, (ino, rank)) in &self.removed {
            let (object, key) = record.place(*ino);
            writes.change(*rank, TableWrite { object, key, value: None });
        }
        for (rank, other, deltas) in usage_deltas {
            let (object, key) = PersistedKey::UsageDeltas(*other).place();
            writes.put(*rank, object, key, encode(deltas));
        }
        self.put_relocations(&mut writes);
        let places = self.put_dentries(&mut writes);
        self.put_inodes(&mut writes);
        for rank in (0..self.ranks).map(Rank) {
            let record = self.super_record(rank, old.get(&rank).cloned(), &places);
            writes.put(rank, ObjectId::SUPER, Vec::new(), record.encode());
        }
        let mut repaired: Vec<Repaired> = (0..self.ranks).map(|_| Repaired::default()).collect();
        for (rank, writes) in writes.finish() {
            if let Some(of_rank) = repaired.get_mut(usize::from(rank.0)) {
                of_rank.writes = writes;
            }
        }
        for (ino, rank) in empty {
            if let Some(of_rank) = repaired.get_mut(usize::from(rank.0)) {
                of_rank.empty.push(ino);
            }
        }
        for (from, to) in self.copies {
            if let Some(of_rank) = repaired.get_mut(usize::from(to.rank().0)) {
                of_rank.copies.push((from, to));
            }
        }
        for finding in self.done {
            let rank = finding.ino.map_or(0, |ino| usize::from(ino.rank().0));
            let rank = if rank < repaired.len() { rank } else { 0 };
            repaired[rank].done.push(finding);
        }
        repaired
    }

    /// Puts the records of homes whose inodes are at other ranks.
    fn put_relocations(&mut self, writes: &mut Writes) {
        let mut said = Vec::new();
        let freed = |ino: &Ino| self.freed.values().any(|freed| freed.inodes.contains(ino));
        let mut left = self.relocations.clone();
        let mut put = |ino: Ino, at| {
            let (object, key) = InoRecord::Relocation.place(ino);
            writes.put(ino.rank(), object, key, encode(&Relocation { at }));
        };
        for (ino, node) in self.nodes.iter().filter(|(ino, node)| node.rank != ino.rank()) {
            if left.remove(ino) != Some(node.rank) {
                said.push((*ino, "its home, the rank of its number, did not know at which rank it is"));
            }
            put(*ino, node.rank);
        }
        for (ino, at) in left {
            if !self.nodes.contains_key(&ino) && freed(&ino) {
                put(ino, at);
            } else {
                said.push((ino, "is not at the rank that its home, the rank of its number, said"));
            }
        }
        for ((rank, home), freed) in &mut self.freed {
            let before = freed.inodes.len();
            freed.inodes.retain(|ino| !self.nodes.contains_key(ino));
            if freed.inodes.len() < before {
                let (object, key) = PersistedKey::FreedNumbers(*home).place();
                let value = (!freed.inodes.is_empty()).then(|| encode(freed));
                writes.change(*rank, TableWrite { object, key, value });
            }
        }
        for (ino, message) in said {
            self.say(ino, message);
        }
    }

    /// The directory records of a rank with names of files at other ranks.
    fn pulling(&self, rank: Rank) -> BTreeSet<Ino> {
        let is_remote =
            |ino: &Ino| self.nodes.get(ino).is_some_and(|node| node.rank != rank && !node.inode.is_dir());
        let of_rank = self.entries.iter().filter(|(dir, _)| dir.rank() == rank);
        of_rank.filter(|(_, entries)| entries.values().any(is_remote)).map(|(dir, _)| *dir).collect()
    }

    /// Puts all names; returns where the inodes in dentries are.
    fn put_dentries(&self, writes: &mut Writes) -> BTreeMap<Ino, (Ino, u64)> {
        let mut places = BTreeMap::new();
        for (dir, entries) in &self.entries {
            for (name, ino) in entries {
                let Some(node) = self.nodes.get(ino) else { continue };
                let dentry = match node.in_table() {
                    true => Dentry::Remote(Referent { ino: *ino, kind: node.inode.kind, at: node.rank }),
                    false => Dentry::Primary(node.inode.clone()),
                };
                let slot = Slot::new(&self.name_key, name.clone());
                writes.put(dir.rank(), ObjectId::fragment(*dir, 0), slot.key(), encode(&dentry));
                if !node.in_table() {
                    let (object, key) = InoRecord::Place.place(*ino);
                    writes.put(node.rank, object, key, encode(&(*dir, slot.hash)));
                    places.insert(*ino, (*dir, slot.hash));
                }
            }
        }
        places
    }

    /// Puts the inodes that are not in dentries.
    fn put_inodes(&self, writes: &mut Writes) {
        for (ino, node) in &self.nodes {
            let rank = node.rank;
            if node.inode.nlink == 0 {
                writes.put(rank, ObjectId::ORPHANS, orphan_key(*ino), encode(&node.inode));
            } else if node.in_table() {
                let (object, key) = InoRecord::Inode.place(*ino);
                writes.put(rank, object, key, encode(&node.inode));
                if *ino != Ino::ROOT {
                    let (object, key) = InoRecord::Place.place(*ino);
                    writes.put(rank, object, key, encode(&(NO_DIR, 0u64)));
                }
            }
        }
    }

    fn super_record(&self, rank: Rank, old: Option<Super>, places: &BTreeMap<Ino, (Ino, u64)>) -> Super {
        let nodes = || self.nodes.values().filter(|node| node.rank == rank);
        let is_new = old.is_none();
        let mut record = old.unwrap_or(Super { end_ino: u64::MAX, ..Super::default() });
        let mut nodes_elsewhere = self.nodes.iter().filter(|(ino, node)| node.rank != ino.rank());
        let is_freed = |(by, home): &(Rank, Rank)| *by == rank || *home == rank;
        let has_relocated = record.moves.has_relocated()
            || nodes_elsewhere.any(|(ino, node)| node.rank == rank || ino.rank() == rank)
            || self.freed.keys().any(is_freed);
        let pulling = if is_new { self.pulling(rank) } else { record.moves.pulling().clone() };
        let is_dir = |dir: &Ino| self.nodes.get(dir).is_some_and(|node| node.inode.is_dir());
        let pulling = pulling.into_iter().filter(is_dir);
        record.moves = RecordedMoves::new(self.fragments.ceding(rank), has_relocated, pulling);
        record.next_ino = self.next_ino.get(&rank).copied().unwrap_or_default();
        if record.end_ino < record.next_ino {
            record.end_ino = u64::MAX;
        }
        record.counts = InodeCounts::default();
        nodes().for_each(|node| record.counts.add(InodeCounts::of(&node.inode)));
        record.provisional.retain(|ino| self.nodes.get(ino).is_some_and(|node| node.inode.is_streamed()));
        record.size_dirty.retain(|(ino, place)| {
            let node = self.nodes.get(ino).filter(|node| node.inode.is_streamed() && node.inode.nlink > 0);
            node.is_some() && places.get(ino) == place.as_ref()
        });
        // Drop batches with numbers in use: the rest of a batch is removed.
        record.pool.retain(|batch| self.nodes.keys().all(|ino| !batch.has(*ino)));
        // Finalising a stream twice is harmless; a provisional one would be removed.
        let striped: Vec<Ino> =
            nodes().filter(|node| node.inode.layout().is_some()).map(|node| node.inode.ino).collect();
        if !striped.is_empty() {
            record.striped = Some(striped);
        }
        record
    }
}

/// The writes that are found so far.
struct Writes {
    /// Records that are not known to stay.
    stored: Stored,
    changed: BTreeMap<Rank, Vec<TableWrite>>,
}

impl Writes {
    fn change(&mut self, rank: Rank, write: TableWrite) {
        self.changed.entry(rank).or_default().push(write);
    }

    /// Has a record stay or become this.
    fn put(&mut self, rank: Rank, object: ObjectId, key: Vec<u8>, value: Vec<u8>) {
        if self.stored.remove(&(rank, object, key.clone())) != Some(fingerprint(&value)) {
            self.change(rank, TableWrite { object, key, value: Some(value) });
        }
    }

    /// Removes the records that were not put.
    fn finish(mut self) -> BTreeMap<Rank, Vec<TableWrite>> {
        for (rank, object, key) in core::mem::take(&mut self.stored).into_keys() {
            self.change(rank, TableWrite { object, key, value: None });
        }
        self.changed
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
