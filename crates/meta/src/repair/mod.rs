//! `fsck --repair`: takes all records of all ranks, as [`Check`](crate::Check) does, and computes
//! the writes after which a check finds nothing. A field that can be derived from other records is;
//! an inode without a valid location moves to `/lost+found`. This module writes nothing: the driver
//! saves the old records first.

mod derive;
mod fragments;
mod tree;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::Hasher;

use espalier_proto::{Ino, Name, ObjectId, ObjectKind, Rank, TableWrite, Time, name_key};
use siphasher::sip::SipHasher13;

use crate::check::Finding;
use crate::rank::{FreedNumbers, Relocation, UsageDeltas, reconcile};
use crate::record::{Dentry, InoRecord, Inode, Slot, Super, Xattrs, decode};
use crate::session::{PersistedKey, given_below, is_sound_record};
use tree::RepairedTree;

/// The repair of one store to execute, in this order: make and copy streams, finalise all remaining
/// streams, make `writes` durable atomically, and only then remove the copied streams.
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

/// Fingerprints of stored values.
type Stored = BTreeMap<(Rank, ObjectId, Vec<u8>), u64>;

/// A repair in progress: each record, then each stream, then [`Self::finish`].
#[derive(Debug)]
pub struct Repair {
    name_key: [u8; 16],
    now: Time,
    /// Number of ranks.
    ranks: u16,
    super_records: BTreeMap<Rank, Super>,
    /// Fingerprints of all values, except of strips and extended attributes that may stay.
    stored: Stored,
    candidates: BTreeMap<Ino, Vec<Candidate>>,
    names: Vec<Named>,
    contents: Contents,
    /// Bounds below which clients have been allocated numbers.
    given: BTreeMap<Rank, u64>,
    /// Where inodes are, as their homes say.
    relocations: BTreeMap<Ino, Rank>,
    /// By the rank that stores them, and the inodes' home.
    freed: BTreeMap<(Rank, Rank), FreedNumbers>,
    /// By the rank that stores them, and the other one.
    usage_deltas: BTreeMap<(Rank, Rank), UsageDeltas>,
    done: Vec<Finding>,
}

/// A record that claims to be an inode.
#[derive(Debug)]
struct Candidate {
    inode: Inode,
    place: RecordPlace,
    /// The rank whose record it is.
    rank: Rank,
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

/// Records beside the inodes, each with the rank that has it.
#[derive(Debug, Default)]
struct Contents {
    /// Lengths in bytes.
    strips: BTreeMap<(Ino, Rank), usize>,
    xattrs: BTreeSet<(Ino, Rank)>,
    streams: BTreeMap<(Ino, Rank), u64>,
}

/// True for a number that one of the ranks can have allocated.
fn is_plausible(ino: Ino, ranks: u16) -> bool {
    ino > Ino::none_of(ino.rank()) && ino.rank().0 < ranks
}

/// True if an inode may lie at a rank. A directory is always at the rank of its number.
fn may_lie_at(inode: &Inode, rank: Rank) -> bool {
    inode.ino.rank() == rank || !inode.is_dir()
}

impl Repair {
    /// `now`: the time of inodes that are made anew. `ranks`: the number of ranks, all of whose
    /// records follow.
    pub fn new(secret: [u8; 16], now: Time, ranks: u16) -> Self {
        Self {
            name_key: name_key(&secret),
            now,
            ranks,
            super_records: BTreeMap::new(),
            stored: BTreeMap::new(),
            candidates: BTreeMap::new(),
            names: Vec::new(),
            contents: Contents::default(),
            given: BTreeMap::new(),
            relocations: BTreeMap::new(),
            freed: BTreeMap::new(),
            usage_deltas: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// A record of the store of a rank.
    pub fn record(&mut self, rank: Rank, object: ObjectId, key: &[u8], value: &[u8]) {
        let understood = match object.kind {
            ObjectKind::Super => self.super_record(rank, object, key, value),
            ObjectKind::Fragment => self.dentry(rank, Ino(object.id), key, value),
            ObjectKind::Inodes => match self.content(rank, object, key, value) {
                // It may stay, or the tree lists it for removal.
                Some(true) => return,
                understood => understood.is_some() || self.inode(rank, object, key, value),
            },
            ObjectKind::Orphans => decode(value).is_ok_and(|inode: Inode| {
                let place = if may_lie_at(&inode, rank) { RecordPlace::Orphan } else { RecordPlace::Nowhere };
                self.candidate(inode, place, rank)
            }),
            // No other record depends on the rest of it.
            ObjectKind::Sessions if object == ObjectId::SESSIONS && self.session(rank, key, value) => return,
            ObjectKind::Sessions => false,
        };
        self.stored.insert((rank, object, key.to_vec()), fingerprint(value));
        if !understood {
            let message = format!("a record of {object:?} was damaged, and is removed (key {})", shown(key));
            self.done.push(Finding { ino: None, message });
        }
    }

    /// Reports a stream of a rank's store, with its size in bytes.
    pub fn stream(&mut self, rank: Rank, ino: Ino, size: u64) {
        self.contents.streams.insert((ino, rank), size);
    }

    fn super_record(&mut self, rank: Rank, object: ObjectId, key: &[u8], value: &[u8]) -> bool {
        if object != ObjectId::SUPER || !key.is_empty() {
            return false;
        }
        let record = Super::parse(value);
        let understood = record.is_some();
        self.super_records.extend(record.map(|record| (rank, record)));
        understood
    }

    fn session(&mut self, rank: Rank, key: &[u8], value: &[u8]) -> bool {
        if !is_sound_record(key, value) {
            return false;
        }
        let given = self.given.entry(rank).or_default();
        *given = (*given).max(given_below(key, value));
        if let Some(PersistedKey::UsageDeltas(other)) = PersistedKey::from_bytes(key) {
            if other == rank || other.0 >= self.ranks {
                return false;
            }
            self.usage_deltas.extend(decode(value).ok().map(|deltas| ((rank, other), deltas)));
        }
        if let Some(PersistedKey::FreedNumbers(home)) = PersistedKey::from_bytes(key) {
            if home == rank || home.0 >= self.ranks {
                return false;
            }
            self.freed.extend(decode(value).ok().map(|freed| ((rank, home), freed)));
        }
        true
    }

    fn dentry(&mut self, rank: Rank, dir: Ino, key: &[u8], value: &[u8]) -> bool {
        let Ok(dentry) = decode::<Dentry>(value) else { return false };
        let ino = match &dentry {
            Dentry::Primary(inode) => inode.ino,
            Dentry::Remote(remote) => remote.ino,
        };
        let is_here = dir.rank() == rank && self.is_plausible(dir);
        let slot = Slot::from_key(key).filter(|_| is_here && self.is_plausible(ino));
        let place = match slot {
            Some(slot) => {
                let in_place = Slot::new(&self.name_key, slot.name.clone()).hash == slot.hash;
                self.names.push(Named { dir, name: slot.name.clone(), ino, in_place });
                RecordPlace::Dentry(dir, slot.name)
            }
            None => RecordPlace::Nowhere,
        };
        match dentry {
            Dentry::Primary(inode) if !may_lie_at(&inode, rank) => {
                self.candidate(inode, RecordPlace::Nowhere, rank)
            }
            Dentry::Primary(inode) => self.candidate(inode, place, rank),
            Dentry::Remote(_) => place != RecordPlace::Nowhere,
        }
    }

    /// Takes a record beside an inode. Returns true if it may stay; `None` if the record is an
    /// inode.
    fn content(&mut self, rank: Rank, object: ObjectId, key: &[u8], value: &[u8]) -> Option<bool> {
        let (record, ino) = InoRecord::from_key(key)?;
        let in_place = ObjectId::inodes(ino) == object && self.is_plausible(ino);
        match record {
            InoRecord::Inode => return None,
            _ if !in_place => {}
            // It is rewritten if it is wrong.
            InoRecord::Place => return Some(false),
            // As are these.
            InoRecord::Relocation if ino.rank() == rank => {
                if let Ok(Relocation { at }) = decode(value)
                    && at.0 < self.ranks
                {
                    self.relocations.insert(ino, at);
                    return Some(false);
                }
            }
            InoRecord::Strip if !value.is_empty() => {
                self.contents.strips.insert((ino, rank), value.len());
                return Some(true);
            }
            InoRecord::Xattrs if decode::<Xattrs>(value).is_ok_and(|list| !list.is_empty()) => {
                self.contents.xattrs.insert((ino, rank));
                return Some(true);
            }
            InoRecord::Strip | InoRecord::Xattrs | InoRecord::Relocation => {}
        }
        self.say(ino, format!("a record of it was damaged, and is removed (key {})", shown(key)));
        Some(false)
    }

    fn inode(&mut self, rank: Rank, object: ObjectId, key: &[u8], value: &[u8]) -> bool {
        let Ok(inode) = decode::<Inode>(value) else { return false };
        let in_place =
            may_lie_at(&inode, rank) && (object, key) == as_ref(&InoRecord::Inode.place(inode.ino));
        self.candidate(inode, if in_place { RecordPlace::Table } else { RecordPlace::Nowhere }, rank)
    }

    fn candidate(&mut self, inode: Inode, place: RecordPlace, rank: Rank) -> bool {
        let plausible = self.is_plausible(inode.ino);
        if plausible {
            // Most inodes have one claim, and a growing vector allocates for four.
            let candidates = self.candidates.entry(inode.ino).or_insert_with(|| Vec::with_capacity(1));
            candidates.push(Candidate { inode, place, rank });
        }
        plausible
    }

    fn is_plausible(&self, ino: Ino) -> bool {
        is_plausible(ino, self.ranks)
    }

    fn say(&mut self, ino: Ino, message: String) {
        self.done.push(Finding { ino: Some(ino), message });
    }

    /// Computes the repair of each rank's store; empty if the file system is consistent.
    pub fn finish(mut self) -> Vec<Repaired> {
        let stored = core::mem::take(&mut self.stored);
        let old = core::mem::take(&mut self.super_records);
        for rank in (0..self.ranks).map(Rank).filter(|rank| !old.contains_key(rank)) {
            let message = match self.ranks {
                1 => "the super record of the tables was missing or damaged, and is recreated".into(),
                _ => format!("the super record of rank {rank} was missing or damaged, and is recreated"),
            };
            self.done.push(Finding { ino: None, message });
        }
        let mut reconciled = Vec::new();
        for (rank, other) in reconcile(&mut self.usage_deltas) {
            let message = format!("rank {rank} and rank {other} disagreed on which usage is counted");
            self.done.push(Finding { ino: None, message });
            reconciled
                .extend(self.usage_deltas.get(&(rank, other)).map(|deltas| (rank, other, deltas.clone())));
        }
        let mut tree = RepairedTree::new(self, &old);
        tree.join();
        tree.sort_contents();
        tree.derive();
        tree.repaired(stored, old, &reconciled)
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
