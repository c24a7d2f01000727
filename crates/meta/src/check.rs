//! `fsck`: checks that the tables of a checkpoint are consistent.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use espalier_proto::{FileType, FragmentMap, Ino, Layout, ObjectId, ObjectKind, Rank, ServerId, name_key};

use crate::counts::InodeCounts;
use crate::rank::{FragmentCheck, FreedNumbers, LocationCheck, Relocation, RemoteNames, UsageDeltas};
use crate::record::{Body, Dentry, InoRecord, Inode, Referent, Slot, Super, Xattrs, decode};
use crate::recount::Recount;
use crate::session::{PersistedKey, is_sound_record};
use crate::state::{FxMap, NO_DIR, orphan_key};

/// An inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub ino: Option<Ino>,
    pub message: String,
}

/// A check in progress: each record in the order of the store, then each stream, then
/// [`Self::finish`].
#[derive(Debug)]
pub struct Check {
    name_key: [u8; 16],
    rank: Rank,
    findings: Vec<Finding>,
    super_record: Option<Super>,
    /// The records of each inode number.
    seen: FxMap<Ino, Seen>,
    recount: Recount,
    usage_deltas: BTreeMap<Rank, UsageDeltas>,
    striped: FxMap<Ino, Datafiles>,
    remote_names: RemoteNames,
    fragments: FragmentCheck,
    /// Inodes whose numbers are of another rank.
    adopted: Vec<Ino>,
    /// Where inodes of this home are, if they are at other ranks.
    relocations: BTreeMap<Ino, Rank>,
    /// Removed inodes of other homes.
    freed: BTreeSet<Ino>,
    pub records: u64,
    pub counts: InodeCounts,
    pub directories: u64,
}

/// The datafiles of a striped file.
#[derive(Debug)]
struct Datafiles {
    layout: Arc<Layout>,
    counted: u64,
    /// By place in the layout.
    sizes: Vec<u64>,
}

/// Must be small: there is one per inode.
#[derive(Debug, Default)]
struct Seen {
    /// Records that contain the inode itself; must be one.
    inodes: u8,
    flags: u8,
    nlink: u32,
    /// Number of remote dentries found.
    remotes: u32,
    /// For directories: recorded entries, found entries, and found subdirectories.
    entries: u64,
    found: u64,
    subdirs: u32,
    /// For directories: the directory that contains it, and its recorded parent. For files: the
    /// recorded and the found bytes of its strip or stream.
    a: u64,
    b: u64,
    /// Difference between its actual locations and its recorded places, as [`place_sum`]s.
    place: u64,
}

/// A number that differs between places.
fn place_sum((dir, hash): (Ino, u64)) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (dir.0.wrapping_mul(ODD).rotate_left(32) ^ hash).wrapping_mul(ODD).wrapping_add(1)
}

const DIRECTORY: u8 = 1;
const STREAMED: u8 = 2;
const HAS_XATTRS: u8 = 4;
const XATTRS_FOUND: u8 = 8;
const ORPHAN: u8 = 16;
const IN_TABLE: u8 = 32;
const STREAM_FOUND: u8 = 64;

impl Check {
    /// `rank`: the rank whose records follow.
    pub fn new(secret: [u8; 16], rank: Rank) -> Self {
        Self {
            name_key: name_key(&secret),
            rank,
            findings: Vec::new(),
            super_record: None,
            seen: FxMap::default(),
            recount: Recount::new(rank),
            usage_deltas: BTreeMap::new(),
            striped: FxMap::default(),
            remote_names: RemoteNames::default(),
            fragments: FragmentCheck::default(),
            adopted: Vec::new(),
            relocations: BTreeMap::new(),
            freed: BTreeSet::new(),
            records: 0,
            counts: InodeCounts::default(),
            directories: 0,
        }
    }

    fn find(&mut self, ino: Option<Ino>, message: String) {
        self.findings.push(Finding { ino, message });
    }

    pub fn record(&mut self, object: ObjectId, key: &[u8], value: &[u8]) {
        self.records += 1;
        let understood = match object.kind {
            ObjectKind::Super => {
                let record = Super::parse(value).filter(|_| object == ObjectId::SUPER && key.is_empty());
                let understood = record.is_some();
                self.super_record = record.or(self.super_record.take());
                understood
            }
            ObjectKind::Fragment => object.part == 0 && self.dentry(Ino(object.id), key, value),
            ObjectKind::Inodes => self.by_ino(object, key, value),
            ObjectKind::Orphans => decode::<Inode>(value).is_ok_and(|inode| {
                let placed = object == ObjectId::ORPHANS && key == orphan_key(inode.ino);
                self.inode(&inode, ORPHAN, Ino(0));
                placed
            }),
            ObjectKind::Sessions => {
                if let Some(PersistedKey::UsageDeltas(rank)) = PersistedKey::from_bytes(key) {
                    self.usage_deltas.extend(decode(value).ok().map(|deltas| (rank, deltas)));
                }
                if let Some(PersistedKey::FreedNumbers(_)) = PersistedKey::from_bytes(key) {
                    let freed = decode::<FreedNumbers>(value).map(|freed| freed.inodes);
                    self.freed.extend(freed.unwrap_or_default());
                }
                object == ObjectId::SESSIONS && is_sound_record(key, value)
            }
        };
        if !understood {
            self.find(
                None,
                format!(
                    "a record of {object:?} is damaged (key {:?})",
                    key.escape_ascii().collect::<Vec<_>>()
                ),
            );
        }
    }

    fn dentry(&mut self, dir: Ino, key: &[u8], value: &[u8]) -> bool {
        let (Some(slot), Ok(dentry)) = (Slot::from_key(key), decode::<Dentry>(value)) else { return false };
        if Slot::new(&self.name_key, slot.name.clone()).hash != slot.hash {
            self.find(Some(dir), format!("the key of entry {:?} has another name's hash", slot.name));
        }
        self.seen.entry(dir).or_default().found += 1;
        self.fragments.name(dir, slot.hash);
        match dentry {
            Dentry::Primary(inode) => {
                if inode.is_dir() {
                    self.seen.entry(dir).or_default().subdirs += 1;
                } else if inode.nlink != 1 {
                    self.find(
                        Some(inode.ino),
                        format!("is in its dentry {:?}, but has {} links", slot.name, inode.nlink),
                    );
                }
                self.recount.primary(dir, &inode);
                self.lies_at(inode.ino, (dir, slot.hash));
                self.inode(&inode, 0, dir);
            }
            Dentry::Remote(Referent { ino, kind, at }) if at != self.rank => {
                self.seen.entry(dir).or_default().subdirs += u32::from(kind == FileType::Directory);
                self.recount.remote_rank_entry(dir, ino, kind);
                self.remote_names.name((ino, at), dir);
            }
            Dentry::Remote(Referent { ino, .. }) => {
                self.recount.remote(dir, ino);
                self.seen.entry(ino).or_default().remotes += 1;
            }
        }
        true
    }

    fn by_ino(&mut self, object: ObjectId, key: &[u8], value: &[u8]) -> bool {
        let Some((record, ino)) = InoRecord::from_key(key) else { return false };
        if ObjectId::inodes(ino) != object {
            return false;
        }
        match record {
            InoRecord::Inode => decode::<Inode>(value).is_ok_and(|inode| {
                self.inode(&inode, IN_TABLE, inode.ino);
                inode.ino == ino
            }),
            InoRecord::Strip => {
                self.seen.entry(ino).or_default().b = value.len() as u64;
                !value.is_empty()
            }
            InoRecord::Place => decode::<(Ino, u64)>(value).is_ok_and(|place| {
                let seen = self.seen.entry(ino).or_default();
                seen.place = seen.place.wrapping_sub(place_sum(place));
                true
            }),
            InoRecord::Relocation => decode::<Relocation>(value).is_ok_and(|relocation| {
                self.relocations.insert(ino, relocation.at);
                ino.rank() == self.rank
            }),
            InoRecord::Xattrs => decode::<Xattrs>(value).is_ok_and(|list| {
                self.seen.entry(ino).or_default().flags |= XATTRS_FOUND;
                !list.is_empty()
            }),
        }
    }

    fn lies_at(&mut self, ino: Ino, place: (Ino, u64)) {
        let seen = self.seen.entry(ino).or_default();
        seen.place = seen.place.wrapping_add(place_sum(place));
    }

    fn inode(&mut self, inode: &Inode, place: u8, dir: Ino) {
        self.counts.add(InodeCounts::of(inode));
        if place & IN_TABLE != 0 && inode.ino != Ino::ROOT {
            self.lies_at(inode.ino, (NO_DIR, 0));
        }
        if inode.ino.rank() != self.rank {
            self.adopted.push(inode.ino);
        }
        self.recount.inode(inode, place & IN_TABLE != 0);
        self.directories += u64::from(inode.is_dir());
        if !inode.fits() {
            self.find(Some(inode.ino), format!("has type {:?}, but the body of another type", inode.kind));
        }
        let seen = self.seen.entry(inode.ino).or_default();
        seen.inodes = seen.inodes.saturating_add(1);
        seen.nlink = inode.nlink;
        for (dir, names) in inode.rare.names.iter().flat_map(|names| names.iter()) {
            if dir.rank() != self.rank {
                // Names at other ranks are counted there.
                seen.nlink = seen.nlink.wrapping_sub(*names);
                self.remote_names.named((inode.ino, self.rank), *dir, *names);
            }
        }
        seen.flags |= place | if inode.has_xattrs { HAS_XATTRS } else { 0 };
        match &inode.body {
            Body::Directory(directory) => {
                seen.flags |= DIRECTORY;
                self.fragments.dir(inode, directory);
                (seen.entries, seen.a, seen.b) = (directory.entries, dir.0, directory.parent.0);
                for fragment in inode.fragment_map().into_iter().flat_map(FragmentMap::others) {
                    self.remote_names.name((fragment, fragment.rank()), inode.ino);
                }
                let is_remote = directory.parent.rank() != inode.ino.rank() || inode.fragment().is_some();
                if place & IN_TABLE != 0 && is_remote {
                    seen.a = directory.parent.0;
                    self.remote_names.named((inode.ino, self.rank), directory.parent, 1);
                }
            }
            Body::Stuffed { stored, .. } => seen.a = u64::from(*stored),
            // Its datafiles are at data servers.
            Body::Striped { counted, layout } => {
                let sizes = vec![0; layout.servers().len()];
                let datafiles = Datafiles { layout: Arc::clone(layout), counted: *counted, sizes };
                self.striped.insert(inode.ino, datafiles);
            }
            Body::Streamed { counted } => {
                seen.flags |= STREAMED;
                seen.a = *counted;
            }
            _ => {}
        }
    }

    /// Reports a stream of the store, with its size.
    pub fn stream(&mut self, ino: Ino, size: u64) {
        match self.seen.get_mut(&ino).filter(|seen| seen.flags & STREAMED != 0) {
            Some(seen) => {
                seen.flags |= STREAM_FOUND;
                seen.b = size;
            }
            None => self.find(Some(ino), "has a stream that no file refers to".into()),
        }
    }

    /// True if the records contain a file with bytes on data servers.
    pub fn has_striped(&self, ino: Ino) -> bool {
        self.striped.contains_key(&ino)
    }

    /// Reports a datafile of a data server, with its size.
    pub fn datafile(&mut self, server: ServerId, ino: Ino, size: u64) {
        let of_file = self.striped.get_mut(&ino).and_then(|datafiles| {
            let place = datafiles.layout.servers().iter().position(|one| *one == server)?;
            datafiles.sizes.get_mut(place)
        });
        if let Some(known) = of_file {
            *known = size;
        } else if !self.is_pooled(ino, server) {
            self.find(Some(ino), format!("has a datafile on data server {server} that no file refers to"));
        }
    }

    /// True if the datafile is precreated, and no file uses it yet.
    fn is_pooled(&self, ino: Ino, server: ServerId) -> bool {
        let pool = self.super_record.iter().flat_map(|record| &record.pool);
        pool.into_iter().any(|batch| batch.explains(ino, server))
    }

    /// Compares sizes, after all datafiles of all data servers have been reported.
    pub fn datafiles_end(&mut self) {
        let size_dirty = self.super_record.iter().flat_map(|record| &record.size_dirty);
        let size_dirty: BTreeSet<Ino> = size_dirty.map(|(ino, _)| *ino).collect();
        let mut wrong = Vec::new();
        for (ino, Datafiles { layout, counted, sizes }) in &self.striped {
            let size = layout.size(sizes.iter().copied());
            let is_orphan = self.seen.get(ino).is_some_and(|seen| seen.flags & ORPHAN != 0);
            // Size-dirty files are counted when the file system is served again.
            if size != *counted && !is_orphan && !size_dirty.contains(ino) {
                wrong.push((*ino, format!("keeps {counted} bytes, has {size} on data servers")));
            }
        }
        wrong.sort_unstable();
        for (ino, message) in wrong {
            self.find(Some(ino), message);
        }
    }

    /// All findings; empty if the file system is clean.
    pub fn finish(self) -> Vec<Finding> {
        Self::finish_all([self].into())
    }

    /// As [`Self::finish`], for all ranks that share a namespace. Finds unfinished transactions
    /// between them too.
    pub fn finish_all(checks: Vec<Self>) -> Vec<Finding> {
        let (mut remote_names, mut fragments) = (RemoteNames::default(), FragmentCheck::default());
        let mut findings = Vec::new();
        let is_exclusive = checks.len() == 1;
        let mut locations = LocationCheck::default();
        let (mut recount, mut usage_deltas) = (Recount::new(Ino::ROOT.rank()), BTreeMap::new());
        for mut check in checks {
            let rank = check.rank;
            remote_names.add(core::mem::take(&mut check.remote_names));
            fragments.add(core::mem::take(&mut check.fragments));
            let adopted = core::mem::take(&mut check.adopted);
            let freed = core::mem::take(&mut check.freed);
            locations.add(rank, &adopted, check.relocations.clone(), freed);
            recount.add(core::mem::replace(&mut check.recount, Recount::new(rank)));
            usage_deltas.extend(
                core::mem::take(&mut check.usage_deltas).into_iter().map(|(to, it)| ((rank, to), it)),
            );
            let is_dir = |seen: &Seen| !is_exclusive && seen.flags & (DIRECTORY | ORPHAN) == DIRECTORY;
            let dirs = check.seen.iter().filter(|(_, seen)| is_dir(seen));
            remote_names.parents.extend(dirs.map(|(ino, seen)| (*ino, Ino(seen.a))));
            findings.append(&mut check.finish_one());
        }
        recount.leave_out(&usage_deltas);
        let mut recounted = recount.finish();
        recounted.sort_unstable();
        let found = recounted.into_iter().chain(remote_names.finish()).chain(fragments.finish());
        let found = found.chain(locations.finish());
        findings.extend(found.map(|(ino, message)| Finding { ino: Some(ino), message }));
        findings
    }

    /// As [`Self::finish`], for one rank of several: does not check references to other ranks, nor
    /// usage.
    pub fn finish_one(mut self) -> Vec<Finding> {
        let mut inos: Vec<Ino> = self.seen.keys().copied().collect();
        inos.sort_unstable();
        for ino in &inos {
            self.check_ino(*ino);
        }
        let mut has_root = true;
        match self.super_record.take() {
            None => self.find(None, "the super record of the tables is missing".into()),
            Some(record) => {
                has_root = self.rank == Ino::ROOT.rank();
                let (recorded, counts) = (record.counts, self.counts);
                if recorded.files != counts.files {
                    self.find(
                        None,
                        format!("{} inodes are recorded, {} found", recorded.files, counts.files),
                    );
                }
                if recorded.protected != counts.protected {
                    let (counted, found) = (recorded.protected, counts.protected);
                    self.find(
                        None,
                        format!("{counted} immutable and append-only inodes are recorded, {found} found"),
                    );
                }
                if recorded.partitions != counts.partitions {
                    let (counted, found) = (recorded.partitions, counts.partitions);
                    self.find(None, format!("{counted} fragments are recorded, {found} found"));
                }
                let has_none = self.relocations.is_empty() && self.adopted.is_empty();
                if !record.moves.has_relocated() && !has_none {
                    self.find(None, "the super record does not say that inodes are relocated".into());
                }
                let last = inos.iter().rfind(|ino| ino.rank() == self.rank);
                if let Some(last) = last.filter(|last| last.0 >= record.next_ino) {
                    self.find(
                        Some(*last),
                        format!("is not below the next inode number to allocate, {}", record.next_ino),
                    );
                }
            }
        }
        let is_root = |seen: &Seen| seen.flags & (IN_TABLE | DIRECTORY) == IN_TABLE | DIRECTORY;
        let both: Vec<Ino> = self.relocations.keys().filter(|ino| self.exists(**ino)).copied().collect();
        for ino in both {
            self.find(Some(ino), "is here, and is recorded to be at another rank".into());
        }
        if has_root && !self.seen.get(&Ino::ROOT).is_some_and(is_root) {
            self.find(None, "the root directory is missing".into());
        }
        self.findings
    }

    fn check_ino(&mut self, ino: Ino) {
        let Some(seen) = self.seen.get(&ino) else { return };
        let mut wrong: Vec<String> = Vec::new();
        let is_dir = seen.flags & DIRECTORY != 0;
        match seen.inodes {
            1 => {}
            0 => wrong.push("is referred to but does not exist".into()),
            n => wrong.push(format!("exists {n} times")),
        }
        if seen.inodes == 1 && seen.place != 0 {
            wrong.push(
                "its recorded place is not where it is found, or the record is missing or left over".into(),
            );
        }
        if is_dir {
            if seen.entries != seen.found {
                wrong.push(format!("records {} entries, has {}", seen.entries, seen.found));
            }
            let links = if seen.flags & ORPHAN != 0 { 0 } else { 2 + seen.subdirs };
            if seen.nlink != links {
                wrong.push(format!("has {} links instead of {links}", seen.nlink));
            }
            if seen.flags & ORPHAN == 0 && seen.a != seen.b {
                wrong.push(format!("is in directory {}, but records {} as its parent", seen.a, seen.b));
            }
            if seen.remotes > 0 {
                wrong.push("is a directory with more than one name".into());
            }
            if !self.reaches_root(ino) {
                wrong.push("cannot be reached from the root".into());
            }
        } else if seen.inodes > 0 {
            if seen.found > 0 {
                wrong.push("has entries, but is not a directory".into());
            }
            if seen.flags & IN_TABLE != 0 && seen.nlink != seen.remotes {
                wrong.push(format!("has {} links, but {} names", seen.nlink, seen.remotes));
            }
            if seen.flags & IN_TABLE == 0 && seen.remotes > 0 {
                wrong.push("has names besides its primary dentry".into());
            }
            // The stream of an orphan may be removed already, and an empty stream need not exist.
            if seen.flags & (STREAMED | STREAM_FOUND | ORPHAN) == STREAMED && seen.a > 0 {
                wrong.push("has no stream with its bytes".into());
            }
            if seen.a != seen.b && seen.flags & (ORPHAN | STREAMED) != ORPHAN | STREAMED {
                wrong.push(format!("keeps {} bytes, has {}", seen.a, seen.b));
            }
        }
        if (seen.flags & HAS_XATTRS != 0) != (seen.flags & XATTRS_FOUND != 0) && seen.inodes > 0 {
            wrong.push("its inode and its extended attributes disagree on whether it has any".into());
        }
        for message in wrong {
            self.find(Some(ino), message);
        }
    }

    fn exists(&self, ino: Ino) -> bool {
        self.seen.get(&ino).is_some_and(|seen| seen.inodes > 0)
    }

    fn reaches_root(&self, mut ino: Ino) -> bool {
        for _ in 0..=self.directories {
            match self.seen.get(&ino) {
                Some(_) if ino == Ino::ROOT => return true,
                // The check across ranks continues there.
                Some(seen) if seen.inodes > 0 && Ino(seen.a).rank() != ino.rank() => return true,
                Some(seen) if seen.flags & ORPHAN != 0 => return true,
                Some(seen) if seen.inodes > 0 => ino = Ino(seen.a),
                _ => return false,
            }
        }
        false
    }
}
