//! No-metafile files (kuhn 4.5) that a client may have cached. Their attributes derive from their
//! directory, so a change of the directory's attributes must revoke the leases on them.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use espalier_proto::Ino;

use crate::state::FxMap;

#[derive(Debug, Default)]
pub(super) struct Dependents {
    dirs: FxMap<Ino, Ino>,
    files: FxMap<Ino, BTreeSet<Ino>>,
}

impl Dependents {
    pub fn add(&mut self, file: Ino, dir: Ino) {
        if self.dirs.get(&file) == Some(&dir) {
            return;
        }
        self.remove(file);
        self.dirs.insert(file, dir);
        self.files.entry(dir).or_default().insert(file);
    }

    pub fn remove(&mut self, file: Ino) {
        let Some(dir) = self.dirs.remove(&file) else { return };
        if let Some(files) = self.files.get_mut(&dir) {
            files.remove(&file);
            if files.is_empty() {
                self.files.remove(&dir);
            }
        }
    }

    pub fn of(&self, dir: Ino) -> Vec<Ino> {
        self.files.get(&dir).into_iter().flatten().copied().collect()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.files.is_empty()
    }
}
