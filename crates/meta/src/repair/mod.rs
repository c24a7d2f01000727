//! `fsck --repair`: takes all records, as [`Check`](crate::Check) does, and computes the writes
//! after which a check finds nothing. A field that can be derived from other records is; an inode
//! without a valid location moves to `/lost+found`. This module writes nothing: the driver saves
//! the old records first.

mod derive;
mod tree;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::Hasher;

use espalier_proto::{Ino, Name, ObjectId, ObjectKind, TableWrite, Time, name_key};
use siphasher::sip::SipHasher13;

use crate::check::Finding;
use crate::record::{Dentry, InoRecord, Inode, Slot, Super, Xattrs, decode};
use crate::session::{given_below, is_sound_record};
use tree::RepairedTree;

/// The repair to execute, in this order: make and copy streams, finalise all remaining streams,
/// make `writes` durable atomically, and only then remove the copied streams.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Streams to make, empty.
    pub empty: Vec<Ino>,
    /// Streams to copy, each with its target.
    pub copies: Vec<(Ino, Ino)>,
    pub writes: Vec<TableWrite>,
    /// A description of each change.
    pub done: Vec<Finding>,
}

/// A repair in progress: each record, then each stream, then [`Self::finish`].
#[derive(Debug)]
pub struct Repair {
    name_key: [u8; 16],
    now: Time,
    super_record: Option<Super>,
    /// Fingerprints of all values, except of strips and extended attributes that may stay.
    stored: BTreeMap<(ObjectId, Vec<u8>), u64>,
    candidates: BTreeMap<Ino, Vec<Candidate>>,
    names: Vec<Named>,
    contents: Contents,
    /// Bound below which clients have been allocated numbers.
    given: u64,
    done: Vec<Finding>,
}

/// A record that claims to be an inode.
#[derive(Debug)]
struct Candidate {
    inode: Inode,
    place: RecordPlace,
}

/// The place of a record.
#[derive(Debug, PartialEq, Eq)]
enum RecordPlace {
    Dentry(Ino, Name),
    Table,
    Orphan,
    /// A place where no inode should be.
    Nowhere,
}

/// A name in a directory.
#[derive(Debug)]
struct Named {
    dir: Ino,
    name: Name,
    ino: Ino,
    /// The key matches the name's hash.
    in_place: bool,
}

/// Records beside the inodes.
#[derive(Debug, Default)]
struct Contents {
    /// Lengths in bytes.
    strips: BTreeMap<Ino, usize>,
    xattrs: BTreeSet<Ino>,
    streams: BTreeMap<Ino, u64>,
}

/// Other numbers are damage: only stores with a single rank are repaired.
fn is_plausible(ino: Ino) -> bool {
    ino >= Ino::ROOT && ino.rank() == Ino::ROOT.rank()
}

impl Repair {
    /// `now`: the time of inodes that are made anew.
    pub fn new(secret: [u8; 16], now: Time) -> Self {
        Self {
            name_key: name_key(&secret),
            now,
            super_record: None,
            stored: BTreeMap::new(),
            candidates: BTreeMap::new(),
            names: Vec::new(),
            contents: Contents::default(),
            given: 0,
            done: Vec::new(),
        }
    }

    pub fn record(&mut self, object: ObjectId, key: &[u8], value: &[u8]) {
        let understood = match object.kind {
            ObjectKind::Super => self.super_record(object, key, value),
            ObjectKind::Fragment => self.dentry(Ino(object.id), key, value),
            ObjectKind::Inodes => match self.content(object, key, value) {
                // It may stay, or the tree lists it for removal.
                Some(true) => return,
                understood => understood.is_some() || self.inode(object, key, value),
            },
            ObjectKind::Orphans => {
                decode(value).is_ok_and(|inode| self.candidate(inode, RecordPlace::Orphan))
            }
            // No other record depends on the rest of it.
            ObjectKind::Sessions if object == ObjectId::SESSIONS && is_sound_record(key, value) => {
                self.given = self.given.max(given_below(key, value));
                return;
            }
            ObjectKind::Sessions => false,
        };
        self.stored.insert((object, key.to_vec()), fingerprint(value));
        if !understood {
            let message = format!("a record of {object:?} was damaged, and is removed (key {})", shown(key));
            self.done.push(Finding { ino: None, message });
        }
    }

    /// Reports a stream of the store, with its size in bytes.
    pub fn stream(&mut self, ino: Ino, size: u64) {
        self.contents.streams.insert(ino, size);
    }

    fn super_record(&mut self, object: ObjectId, key: &[u8], value: &[u8]) -> bool {
        if object != ObjectId::SUPER || !key.is_empty() {
            return false;
        }
        self.super_record = Super::parse(value);
        self.super_record.is_some()
    }

    fn dentry(&mut self, dir: Ino, key: &[u8], value: &[u8]) -> bool {
        let Ok(dentry) = decode::<Dentry>(value) else { return false };
        let ino = match &dentry {
            Dentry::Primary(inode) => inode.ino,
            Dentry::Remote { ino, .. } => *ino,
        };
        let slot = Slot::from_key(key).filter(|_| is_plausible(dir) && is_plausible(ino));
        let place = match slot {
            Some(slot) => {
                let in_place = Slot::new(&self.name_key, slot.name.clone()).hash == slot.hash;
                self.names.push(Named { dir, name: slot.name.clone(), ino, in_place });
                RecordPlace::Dentry(dir, slot.name)
            }
            None => RecordPlace::Nowhere,
        };
        match dentry {
            Dentry::Primary(inode) => self.candidate(inode, place),
            Dentry::Remote { .. } => place != RecordPlace::Nowhere,
        }
    }

    /// Takes a record beside an inode. Returns true if it may stay; `None` if the record is an
    /// inode.
    fn content(&mut self, object: ObjectId, key: &[u8], value: &[u8]) -> Option<bool> {
        let (record, ino) = InoRecord::from_key(key)?;
        let in_place = ObjectId::inodes(ino) == object && is_plausible(ino);
        match record {
            InoRecord::Inode => return None,
            _ if !in_place => {}
            // It is rewritten if it is wrong.
            InoRecord::Place => return Some(false),
            InoRecord::Strip if !value.is_empty() => {
                self.contents.strips.insert(ino, value.len());
                return Some(true);
            }
            InoRecord::Xattrs if decode::<Xattrs>(value).is_ok_and(|list| !list.is_empty()) => {
                self.contents.xattrs.insert(ino);
                return Some(true);
            }
            InoRecord::Strip | InoRecord::Xattrs => {}
        }
        self.say(ino, format!("a record of it was damaged, and is removed (key {})", shown(key)));
        Some(false)
    }

    fn inode(&mut self, object: ObjectId, key: &[u8], value: &[u8]) -> bool {
        let Ok(inode) = decode::<Inode>(value) else { return false };
        let in_place = (object, key) == as_ref(&InoRecord::Inode.place(inode.ino));
        self.candidate(inode, if in_place { RecordPlace::Table } else { RecordPlace::Nowhere })
    }

    fn candidate(&mut self, inode: Inode, place: RecordPlace) -> bool {
        let plausible = is_plausible(inode.ino);
        if plausible {
            // Most inodes have one claim, and a growing vector allocates for four.
            let candidates = self.candidates.entry(inode.ino).or_insert_with(|| Vec::with_capacity(1));
            candidates.push(Candidate { inode, place });
        }
        plausible
    }

    fn say(&mut self, ino: Ino, message: String) {
        self.done.push(Finding { ino: Some(ino), message });
    }

    /// Computes the repair; empty if the file system is consistent.
    pub fn finish(mut self) -> Repaired {
        let stored = core::mem::take(&mut self.stored);
        let old = self.super_record.take();
        if old.is_none() {
            let message = "the super record of the tables was missing or damaged, and is recreated";
            self.done.push(Finding { ino: None, message: message.into() });
        }
        let next_ino = old.as_ref().map_or(0, |old| old.next_ino).max(self.given);
        let mut tree = RepairedTree::new(self, next_ino);
        tree.join();
        tree.sort_contents();
        tree.derive();
        tree.repaired(stored, old)
    }
}

fn as_ref((object, key): &(ObjectId, Vec<u8>)) -> (ObjectId, &[u8]) {
    (*object, key)
}

/// Detects whether a record would change. Needs no secret key: it distinguishes damage, not
/// attacks.
fn fingerprint(value: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(value);
    hasher.finish()
}

fn shown(key: &[u8]) -> String {
    format!("{}", key.escape_ascii())
}
