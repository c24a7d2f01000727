//! `fsck` across ranks: checks names whose inode is at another rank, the fragments of partitioned
//! directories, and that all directories are reachable from the root.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use espalier_proto::{FragmentMap, Ino, Rank};

use crate::record::{Directory, Inode};

/// Partitioned directories: whether each hash is in one fragment, as the map says.
#[derive(Debug, Default)]
pub(crate) struct FragmentCheck {
    maps: BTreeMap<Ino, FragmentMap>,
    /// The directory, number and hashes of each fragment that is not the directory itself.
    fragments: BTreeMap<Ino, (Ino, u16, RangeInclusive<u64>)>,
    /// The lowest and the highest hash of the names in each directory record.
    spans: BTreeMap<Ino, (u64, u64)>,
}

impl FragmentCheck {
    pub(crate) fn dir(&mut self, inode: &Inode, directory: &Directory) {
        if let Some(map) = inode.fragment_map() {
            self.maps.insert(inode.ino, map.clone());
        }
        // A removed one may still be in use.
        if let Some(number) = inode.fragment().filter(|_| inode.nlink > 0) {
            self.fragments.insert(inode.ino, (directory.parent, number, inode.hashes()));
        }
    }

    pub(crate) fn name(&mut self, dir: Ino, hash: u64) {
        let span = self.spans.entry(dir).or_insert((hash, hash));
        *span = (span.0.min(hash), span.1.max(hash));
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.maps.extend(other.maps);
        self.fragments.extend(other.fragments);
        self.spans.extend(other.spans);
    }

    pub(crate) fn finish(mut self) -> Vec<(Ino, String)> {
        let mut wrong = Vec::new();
        for (dir, map) in &self.maps {
            if map.dir() != *dir {
                wrong.push((*dir, format!("has the fragment map of directory {}", map.dir())));
            }
            self.check_span(*dir, map.hashes(*dir), &mut wrong);
            for (number, ino) in map.fragments().filter(|(_, ino)| ino != dir) {
                match self.fragments.remove(&ino) {
                    Some((of, at, hashes))
                        if (of, usize::from(at), &hashes) == (*dir, number, &map.hashes(ino)) => {}
                    Some((of, at, hashes)) => wrong.push((
                        ino,
                        format!(
                            "is fragment {at} of directory {of} with hashes {hashes:?}, but directory {dir} says \
                             number {number} and hashes {:?}",
                            map.hashes(ino)
                        ),
                    )),
                    None => wrong.push((ino, format!("is missing: fragment {number} of directory {dir}"))),
                }
                self.check_span(ino, map.hashes(ino), &mut wrong);
            }
        }
        for (ino, (dir, number, _)) in &self.fragments {
            wrong
                .push((*ino, format!("is fragment {number} of directory {dir}, whose map does not name it")));
        }
        wrong
    }

    fn check_span(&self, ino: Ino, hashes: RangeInclusive<u64>, wrong: &mut Vec<(Ino, String)>) {
        if let Some((first, last)) = self.spans.get(&ino)
            && !(hashes.contains(first) && hashes.contains(last))
        {
            wrong.push((ino, "has names that belong to another fragment".into()));
        }
    }
}

/// Relocated inodes: whether each is where its home says.
#[derive(Debug, Default)]
pub(crate) struct LocationCheck {
    /// Inodes at another rank than their home.
    adopted: Vec<(Ino, Rank)>,
    relocations: BTreeMap<Ino, Rank>,
    freed: BTreeSet<Ino>,
}

impl LocationCheck {
    pub(crate) fn add(
        &mut self,
        rank: Rank,
        adopted: &[Ino],
        relocations: BTreeMap<Ino, Rank>,
        freed: BTreeSet<Ino>,
    ) {
        self.adopted.extend(adopted.iter().map(|ino| (*ino, rank)));
        self.relocations.extend(relocations);
        self.freed.extend(freed);
    }

    pub(crate) fn finish(mut self) -> Vec<(Ino, String)> {
        let mut wrong = Vec::new();
        for (ino, rank) in self.adopted {
            let home = ino.rank();
            match self.relocations.remove(&ino) {
                Some(at) if at == rank => {}
                Some(at) => {
                    wrong
                        .push((ino, format!("is at rank {rank}, but its home, rank {home}, says rank {at}")));
                }
                None => {
                    wrong.push((ino, format!("is at rank {rank}, and its home, rank {home}, does not know")));
                }
            }
        }
        // The home of a removed inode drops its record a little later.
        for (ino, at) in self.relocations.into_iter().filter(|(ino, _)| !self.freed.contains(ino)) {
            wrong.push((ino, format!("is recorded to be at rank {at}, which does not have it")));
        }
        wrong
    }
}

#[derive(Debug, Default)]
pub(crate) struct RemoteNames {
    /// Number of names in a directory at another rank that an inode at a rank has: as found there,
    /// and as the inode's record says.
    names: BTreeMap<(Ino, Rank, Ino), (u32, u32)>,
    /// The parent of each directory, if there are several ranks.
    pub parents: BTreeMap<Ino, Ino>,
}

impl RemoteNames {
    pub(crate) fn name(&mut self, (ino, at): (Ino, Rank), dir: Ino) {
        let found = &mut self.names.entry((ino, at, dir)).or_default().0;
        *found = found.saturating_add(1);
    }

    pub(crate) fn named(&mut self, (ino, at): (Ino, Rank), dir: Ino, names: u32) {
        let said = &mut self.names.entry((ino, at, dir)).or_default().1;
        *said = said.saturating_add(names);
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (key, (found, said)) in other.names {
            let names = self.names.entry(key).or_default();
            *names = (names.0.saturating_add(found), names.1.saturating_add(said));
        }
    }

    pub(crate) fn finish(self) -> Vec<(Ino, String)> {
        let differ = self.names.iter().filter(|(_, (found, said))| found != said);
        let mut wrong: Vec<_> = differ
            .map(|((ino, at, dir), (found, said))| {
                (*ino, format!("has {found} names in directory {dir}, but rank {at} records {said}"))
            })
            .collect();
        // Each rank has checked its own part.
        for (first, _) in self.parents.iter().filter(|(ino, parent)| ino.rank() != parent.rank()) {
            let mut at = *first;
            let mut steps = 0;
            while at != Ino::ROOT && steps <= self.parents.len() {
                let Some(parent) = self.parents.get(&at) else { break };
                (at, steps) = (*parent, steps + 1);
            }
            if at != Ino::ROOT {
                wrong.push((*first, "is a directory that cannot be reached from the root".into()));
            }
        }
        wrong
    }
}
