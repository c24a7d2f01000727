//! Locks of prepared transactions. An operation that meets one waits until the transaction is
//! decided.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::Ino;

use super::edit::Edit;
use super::message::Age;
use crate::record::Slot;
use crate::state::{FxMap, State};
use crate::step::{Step, Stop, Wait};

/// Stands for an inode in the lock table: the lock on moving directories.
pub(crate) const MOVE_LOCK: Ino = Ino(0);

#[derive(Debug, Default)]
pub(crate) struct TransactionLocks {
    /// Locked inodes.
    inodes: FxMap<Ino, Age>,
    names: BTreeMap<(Ino, Slot), Age>,
    /// Directories that contain locked names, with the transactions that hold these, in no order.
    /// Such a directory cannot be read as a whole.
    dirs: FxMap<Ino, Vec<Age>>,
}

impl TransactionLocks {
    /// Waits unless `ino` is unlocked.
    pub(crate) fn check(&self, ino: Ino) -> Step<()> {
        wait(self.inodes.get(&ino))
    }

    /// Waits unless `ino` and all names in it are unlocked.
    pub(crate) fn check_whole(&self, ino: Ino) -> Step<()> {
        self.check(ino)?;
        // Reports the oldest holder: a transaction waits only if it is older than all of them.
        wait(self.dirs.get(&ino).and_then(|ages| ages.iter().min()))
    }

    pub(crate) fn check_name(&self, dir: Ino, slot: &Slot) -> Step<()> {
        if self.names.is_empty() { Ok(()) } else { wait(self.names.get(&(dir, slot.clone()))) }
    }

    fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }
}

fn wait(age: Option<&Age>) -> Step<()> {
    age.map_or(Ok(()), |age| Err(Stop::Wait(Wait::Locked(*age))))
}

impl State {
    /// Locks what the edits of a prepared part name, until the transaction is decided.
    pub(crate) fn lock(&mut self, age: Age, edits: &[Edit]) {
        let mut locks = self.locks.take().unwrap_or_default();
        for edit in edits {
            match edit {
                Edit::PutName { dir, name, .. }
                | Edit::TakeName { dir, name, .. }
                | Edit::Expect { dir, name, .. } => {
                    if locks.names.insert((*dir, self.slot(name)), age).is_none() {
                        locks.dirs.entry(*dir).or_default().push(age);
                    }
                }
                Edit::Make { inode } => drop(locks.inodes.insert(inode.ino, age)),
                Edit::Link { ino, .. } | Edit::Unlink { ino, .. } | Edit::Move { ino, .. } => {
                    locks.inodes.insert(*ino, age);
                }
                Edit::MoveLock => drop(locks.inodes.insert(MOVE_LOCK, age)),
                Edit::CedeNames { fragment: ino, .. }
                | Edit::AcceptNames { fragment: ino, .. }
                | Edit::SetMap { dir: ino, .. }
                | Edit::SetRights { ino, .. } => drop(locks.inodes.insert(*ino, age)),
                Edit::AdoptFiles { dir: ino, .. } => drop(locks.inodes.insert(*ino, age)),
                Edit::MoveNames { inodes, .. }
                | Edit::GiveFiles { inodes, .. }
                | Edit::Relocate { inodes, .. } => locks.inodes.extend(inodes.iter().map(|ino| (*ino, age))),
            }
        }
        self.locks = Some(locks);
    }

    /// Locks an inode for an operation of this rank.
    pub(super) fn freeze(&mut self, ino: Ino, age: Age) {
        self.locks.get_or_insert_default().inodes.insert(ino, age);
    }

    pub(crate) fn unlock(&mut self, age: Age) {
        let Some(mut locks) = self.locks.take() else { return };
        locks.inodes.retain(|_, holder| *holder != age);
        locks.names.retain(|_, holder| *holder != age);
        locks.dirs.retain(|_, holders| {
            holders.retain(|holder| *holder != age);
            !holders.is_empty()
        });
        if !locks.is_empty() {
            self.locks = Some(locks);
        }
    }
}
