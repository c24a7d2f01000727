//! Repairs partitioned directories: each hash is in one fragment, which exists and which the
//! directory's map names. A sound map decides; without one, the fragments that are left do.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;

use espalier_proto::{FragmentMap, Ino, Rank};

use super::tree::{RepairedNode, RepairedTree};
use super::{Named, RecordPlace, is_plausible};
use crate::fragment::new_fragment;
use crate::record::{Body, Directory, Inode, Partition};

/// The fragments of the repaired tree.
#[derive(Debug, Default)]
pub(super) struct RepairedFragments {
    maps: BTreeMap<Ino, FragmentMap>,
    /// The directory of each fragment that is not the directory itself.
    dirs: BTreeMap<Ino, Ino>,
    /// Removed fragments, whose names go to fragments of these directories.
    dissolved: BTreeMap<Ino, Ino>,
}

impl RepairedFragments {
    /// The directory of a fragment that is not the directory itself.
    pub(super) fn dir_of(&self, fragment: Ino) -> Option<Ino> {
        self.dirs.get(&fragment).copied()
    }

    /// The fragments of a directory other than the directory itself.
    pub(super) fn others(&self, dir: Ino) -> impl Iterator<Item = Ino> {
        self.maps.get(&dir).into_iter().flat_map(FragmentMap::others)
    }

    /// The directory records of a rank that have begun to cede names.
    pub(super) fn ceding(&self, rank: Rank) -> impl Iterator<Item = Ino> {
        let records = |map: &FragmentMap| {
            map.fragments()
                .filter(|(_, ino)| map.cession(*ino).is_some())
                .map(|(_, ino)| ino)
                .collect::<Vec<_>>()
        };
        self.maps.values().flat_map(records).filter(move |ino| ino.rank() == rank)
    }

    pub(super) fn is_dissolved(&self, fragment: Ino) -> bool {
        self.dissolved.contains_key(&fragment)
    }

    /// The directory record that has the names with a hash. `dir`: where such a name was found.
    pub(super) fn location(&self, dir: Ino, hash: u64) -> Ino {
        let whole = self.dirs.get(&dir).or_else(|| self.dissolved.get(&dir)).copied().unwrap_or(dir);
        self.maps.get(&whole).map_or(whole, |map| map.fragment(hash))
    }
}

impl RepairedNode {
    /// The numbers of fragments and directories to which the record refers.
    pub(super) fn fragment_numbers(&self) -> Vec<Ino> {
        match &self.inode.body {
            Body::Directory(directory) if self.inode.fragment().is_some() => [directory.parent].into(),
            _ => self.inode.fragment_map().into_iter().flat_map(FragmentMap::others).collect(),
        }
    }

    /// Returns false if it was so before, or is not a directory.
    fn set_partition(&mut self, partition: Option<Partition>) -> bool {
        let Body::Directory(directory) = &mut self.inode.body else { return false };
        let is_new = directory.partition.as_deref() != partition.as_ref();
        directory.partition = partition.map(Box::new);
        is_new
    }
}

fn parent(inode: &Inode) -> Option<Ino> {
    if let Body::Directory(directory) = &inode.body { Some(directory.parent) } else { None }
}

impl RepairedTree {
    pub(super) fn mend_fragments(&mut self, names: &[Named]) {
        self.take_maps(names);
        self.rebuild_maps();
        let dirs: Vec<Ino> = self.fragments.maps.keys().copied().collect();
        dirs.into_iter().for_each(|dir| self.complete(dir));
        self.dissolve_others();
    }

    /// Takes the sound maps, and finds directories that are not fragments, though their records say
    /// so.
    fn take_maps(&mut self, names: &[Named]) {
        let named: BTreeSet<Ino> = names.iter().map(|named| named.ino).collect();
        let mut taken = BTreeSet::new();
        let mut wrong = Vec::new();
        for (ino, node) in &mut self.nodes {
            if let Some(map) = node.inode.fragment_map().cloned() {
                let is_free = |other: Ino| is_plausible(other, self.ranks) && !taken.contains(&other);
                if map.is_sound(*ino, self.ranks) && map.others().all(is_free) {
                    taken.extend(map.others());
                    self.fragments.maps.insert(*ino, map);
                    continue;
                }
                wrong.push((*ino, "had a damaged fragment map"));
                node.set_partition(None);
            }
            let has_place = node.place == RecordPlace::Table || node.place == RecordPlace::Nowhere;
            let is_ordinary = *ino == Ino::ROOT || named.contains(ino) || !has_place;
            let is_orphan = node.place == RecordPlace::Orphan && node.inode.nlink == 0;
            if node.inode.fragment().is_some() && !is_orphan && is_ordinary {
                node.set_partition(None);
                wrong.push((*ino, "was recorded as a fragment, and is a directory with a name"));
            }
        }
        wrong.into_iter().for_each(|(ino, message)| self.say(ino, message));
    }

    /// Fragments that no map names, by directory, with their numbers.
    fn unnamed(&self) -> BTreeMap<Ino, Vec<(usize, Ino)>> {
        let taken: BTreeSet<Ino> = self.fragments.maps.values().flat_map(FragmentMap::others).collect();
        let mut unnamed: BTreeMap<Ino, Vec<(usize, Ino)>> = BTreeMap::new();
        for (ino, node) in
            self.nodes.iter().filter(|(ino, node)| !taken.contains(ino) && !self.is_orphan(node))
        {
            if let (Some(number), Some(dir)) = (node.inode.fragment(), parent(&node.inode)) {
                unnamed.entry(dir).or_default().push((number.into(), *ino));
            }
        }
        unnamed
    }

    /// True if a directory can have fragments.
    fn can_be_partitioned(&self, dir: Ino) -> bool {
        let node = self.nodes.get(&dir);
        node.is_some_and(|node| {
            node.inode.is_dir() && node.inode.fragment().is_none() && !self.is_orphan(node)
        })
    }

    /// Makes maps for directories without one, from their fragments; makes missing directories.
    fn rebuild_maps(&mut self) {
        for (dir, fragments) in self.unnamed() {
            if self.fragments.maps.contains_key(&dir) || !is_plausible(dir, self.ranks) {
                continue;
            }
            if !self.nodes.contains_key(&dir)
                && let Some(fragment) = fragments.first().and_then(|(_, ino)| self.nodes.get(ino))
            {
                let body = Body::Directory(Directory::empty(Ino::ROOT));
                let inode = Inode { ino: dir, body, ..fragment.inode.clone() };
                self.nodes.insert(dir, RepairedNode::new(inode, RecordPlace::Nowhere));
                self.say(dir, "had fragments, but was missing: it is recreated");
            }
            // Of those with the same number one stays, and the others are dissolved.
            let map = FragmentMap::with_fragments(dir, self.ranks, &fragments.into_iter().collect());
            if self.can_be_partitioned(dir) && map.version() > 0 {
                self.say(dir, "its fragment map is made anew, from its fragments");
                self.fragments.maps.insert(dir, map);
            }
        }
    }

    /// Makes the records of a directory's fragments agree with its map; makes missing fragments.
    fn complete(&mut self, dir: Ino) {
        let Some(mut map) = self.fragments.maps.get(&dir).cloned() else { return };
        let others = map.fragments().filter(|(_, ino)| *ino != dir);
        for (number, mut ino) in others.collect::<Vec<_>>() {
            let hashes = map.hashes(ino);
            let (first, last) = (*hashes.start(), *hashes.end());
            let at = number as u16;
            let is_other = self.nodes.get(&ino).is_some_and(|node| node.inode.fragment().is_none());
            if is_other || self.fragments.dirs.contains_key(&ino) {
                // The number belongs to another inode.
                let other = self.next_number(ino.rank());
                map.replace(ino, other);
                ino = other;
            }
            let is_missing = !self.nodes.contains_key(&ino);
            if is_missing && let Some(node) = self.nodes.get(&dir) {
                let inode = new_fragment(&node.inode, ino, dir, at, &hashes, None);
                self.nodes.insert(ino, RepairedNode::new(inode, RecordPlace::Nowhere));
                self.say(ino, format!("fragment {number} of directory {dir} was missing, and is recreated"));
            }
            let cause = self.nodes.get(&ino).and_then(|node| node.inode.split_cause());
            let partition = Partition::Fragment { number: at, first, last, cause };
            if self.nodes.get_mut(&ino).is_some_and(|node| node.set_partition(Some(partition))) {
                self.say(ino, format!("did not agree with the fragment map of directory {dir}"));
            }
            self.fragments.dirs.insert(ino, dir);
        }
        if let Some(node) = self.nodes.get_mut(&dir) {
            let transfers = node.inode.past_transfers().to_vec();
            node.set_partition(Some(Partition::First { map: map.clone(), transfers }));
        }
        self.fragments.maps.insert(dir, map);
    }

    /// Removes the fragments that no map names; their names go to the directory.
    fn dissolve_others(&mut self) {
        for (dir, fragments) in self.unnamed() {
            for (_, ino) in fragments {
                if self.can_be_partitioned(dir) {
                    self.nodes.remove(&ino);
                    self.fragments.dissolved.insert(ino, dir);
                    self.say(
                        ino,
                        format!("was a fragment that directory {dir} does not have: it is removed"),
                    );
                } else if let Some(node) = self.nodes.get_mut(&ino) {
                    node.set_partition(None);
                    self.say(ino, "was a fragment without a directory: it becomes a directory");
                }
            }
        }
    }
}
