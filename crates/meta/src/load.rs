//! Loads: takes records from the store into memory.

use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Ino, ObjectId};

use crate::record::{Corrupt, Dentry, InoRecord, Inode, Slot, decode};
use crate::state::{Cached, Cell, KnownInode, Location, NO_DIR, State, Target};
use crate::table::Track;

impl State {
    /// Takes in a loaded record. A record in memory is newer and stays.
    pub(crate) fn loaded(
        &mut self,
        object: ObjectId,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), Corrupt> {
        use espalier_proto::ObjectKind::{Fragment, Inodes, Orphans, Sessions, Super};
        match object.kind {
            Fragment => {
                let slot = Slot::from_key(key).ok_or(Corrupt)?;
                self.loaded_dentry(Ino(object.id), slot, value)
            }
            Inodes => {
                let (record, ino) = InoRecord::from_key(key).ok_or(Corrupt)?;
                let Some(value) = value else { return Ok(()) };
                match record {
                    InoRecord::Inode => self.loaded_inode(decode(value)?, Location::Table),
                    InoRecord::Place => {
                        let (dir, hash) = decode(value)?;
                        if !self.inodes.contains_key(&ino) && !self.changes.is_outdated(ino) {
                            let location =
                                if dir == NO_DIR { Location::Table } else { Location::Dentry { dir, hash } };
                            let known = KnownInode { location, lookups: 0 };
                            self.known.entry(ino).or_insert(known);
                        }
                    }
                    InoRecord::Relocation => self.load_relocation(ino, value)?,
                    InoRecord::Strip => self.strips.load(ino, value)?,
                    InoRecord::Xattrs => self.xattrs.load(ino, value)?,
                }
                Ok(())
            }
            Orphans => {
                if let Some(value) = value {
                    self.loaded_inode(decode(value)?, Location::Orphan);
                }
                Ok(())
            }
            Sessions => self.loaded_session(key, value.ok_or(Corrupt)?),
            Super => Err(Corrupt),
        }
    }

    /// Takes in a page of a directory's dentries, from a hash on.
    pub(crate) fn loaded_dentries(
        &mut self,
        dir: Ino,
        from: u64,
        limit: usize,
        page: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), Corrupt> {
        let mut last = from;
        for (key, value) in page {
            let slot = Slot::from_key(key).ok_or(Corrupt)?;
            last = slot.hash;
            self.loaded_dentry(dir, slot, Some(value))?;
        }
        let fragment = self.fragments.entry(dir).or_default();
        if from <= fragment.loaded_to {
            // More names with the last hash may follow.
            fragment.loaded_to = fragment.loaded_to.max(last);
            fragment.complete |= page.len() < limit;
        }
        if fragment.cells.is_empty() && !self.inodes.contains_key(&dir) {
            // The number was mistaken for a directory's.
            self.fragments.remove(&dir);
        }
        Ok(())
    }

    fn loaded_dentry(&mut self, dir: Ino, slot: Slot, value: Option<&[u8]>) -> Result<(), Corrupt> {
        let fragment = self.fragments.entry(dir).or_default();
        if fragment.complete || fragment.cells.contains_key(&slot) {
            return Ok(());
        }
        let location = Location::Dentry { dir, hash: slot.hash };
        let (target, inode) = match value.map(decode::<Dentry>).transpose()? {
            Some(Dentry::Primary(inode)) => (Target::Primary(inode.ino), Some(inode)),
            Some(Dentry::Remote(referent)) => (Target::Remote(referent), None),
            None => (Target::Absent, None),
        };
        if inode.is_none() {
            self.clock.loose.push_back((dir, slot.hash));
        }
        self.clock.cell_added(&slot);
        let track = Track { stored: value.is_some(), ..Track::default() };
        fragment.cells.insert(slot, Cell { target, track });
        if let Some(inode) = inode {
            self.loaded_inode(inode, location);
        }
        Ok(())
    }

    fn loaded_inode(&mut self, mut inode: Inode, location: Location) {
        let ino = inode.ino;
        // Most inodes have their directory's policy; share its memory.
        if let (Some(policy), Location::Dentry { dir, .. }) = (&inode.rare.policy, location)
            && let Some(theirs) = self.inodes.get(&dir).and_then(|dir| dir.inode.rare.policy.as_ref())
            && policy == theirs
        {
            inode.rare.policy = Some(Arc::clone(theirs));
        }
        if !self.inodes.contains_key(&ino) && !self.changes.is_outdated(ino) {
            self.inherit(&mut inode, location);
            let is_dir = inode.is_dir();
            let lookups = self.known.remove(&ino).map_or(0, |known| known.lookups);
            let (more, opens) = self.reclaimed.found(ino);
            let lookups = lookups + more;
            self.add_inode(Cached { lookups, opens, ..Cached::new(inode, location, Track::STORED) });
            if is_dir {
                self.update_dependents(ino);
            }
        }
    }
}
