//! `fsck` across ranks: checks names whose inode is at another rank, and that all directories are
//! reachable from the root.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::Ino;

#[derive(Debug, Default)]
pub(crate) struct RemoteNames {
    /// Number of an inode's names in a directory at another rank: as found there, and as the
    /// inode's record says.
    names: BTreeMap<(Ino, Ino), (u32, u32)>,
    /// The parent of each directory, if there are several ranks.
    pub parents: BTreeMap<Ino, Ino>,
}

impl RemoteNames {
    pub(crate) fn name(&mut self, ino: Ino, dir: Ino) {
        let found = &mut self.names.entry((ino, dir)).or_default().0;
        *found = found.saturating_add(1);
    }

    pub(crate) fn named(&mut self, ino: Ino, dir: Ino, names: u32) {
        let said = &mut self.names.entry((ino, dir)).or_default().1;
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
            .map(|((ino, dir), (found, said))| {
                (*ino, format!("has {found} names in directory {dir}, but records {said}"))
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
