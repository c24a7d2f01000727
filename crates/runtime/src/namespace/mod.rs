//! A decoupled namespace at its client: a store of its own, whose root stands for the decoupled
//! directory, and the sequence of records that merges it.
//!
//! The sequence depends only on the store's contents, so an interrupted merge continues at any
//! record. A server accepts new inode numbers in ascending order only. An inode therefore keeps its
//! number unless it is in a directory that is newer than itself, into which it was moved; then it
//! receives an unused number of the upper half of the provisioned range.

mod client_journal;
mod file;
mod import;
mod offline;
mod origin;
mod rest;
mod sync_point;
#[cfg(test)]
mod sync_tests;
mod synced;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use espalier_meta::{Decoupled, Dentry, Format, InoRecord, Inode, MergeRecord, Slot, decode, encode};
use espalier_proto::{Attr, FileType, Ino, InodeFlags, Name, ObjectKind, SeekWhat};
use espalier_store::{FormatOptions, LocalStore, Record, Store, StoreError, Uuid, superblock};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::clock;
use crate::disk::Disk;
use crate::error::Error;
use crate::fsck::checkpoint;
use crate::location::StoreLocation;
use crate::volume::{OpenOptions, Volume, check_sizes, journal_bytes_for};

pub use client_journal::{ClientJournal, OutgoingBatch, WriteBytes, next_batch, open_client_journal};
pub use file::{JournalFile, export_journal};
pub use import::import_journal;
pub use offline::{OfflineStores, apply_nonvolatile};
pub use origin::NamespaceOrigin;
pub use rest::{NamespaceRest, NamespaceSync};
pub use sync_point::SyncPoint;

/// Extended attributes: names and values.
pub type Xattrs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// Stored bytes from which on a file is merged as a big one: a batch must fit into an extended
/// attribute of 64 KiB.
const MAX_INLINE: u32 = 32 << 10;
/// Encoded extended attributes from which on an inode cannot be merged with one record.
const MAX_XATTRS: usize = 24 << 10;
/// Encoded names from which on a big file cannot be merged.
const MAX_NAMES: usize = 48 << 10;
/// Names of a link record: a batch has room for this many of the longest ones.
const LINKS: usize = 128;
const NO_NUMBER: &str = "no inode number is left for it: copy the files instead";
/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// Owner and permissions of the root directory of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct RootAttributes {
    pub uid: u32,
    pub gid: u32,
    pub perm: u32,
}

/// Creates the store of a namespace that allocates the lower half of the provisioned numbers.
///
/// # Errors
/// As of `mkfs`.
pub fn mkfs_namespace(dir: &Path, origin: &NamespaceOrigin, root: RootAttributes) -> Result<(), Error> {
    let decoupled = &origin.decoupled;
    let journal_bytes = journal_bytes_for(&StoreLocation::Directory(dir.into()))?;
    check_sizes(decoupled.strip_bytes, journal_bytes)?;
    let uuid = Some(Uuid::from_u128(decoupled.id));
    let strip_bytes = decoupled.strip_bytes;
    let label = "decoupled".into();
    superblock::format(
        dir,
        &FormatOptions { label, strip_bytes, journal_bytes, uuid, ..FormatOptions::default() },
    )?;
    origin.write(dir)?;
    let (store, _) = LocalStore::open(dir, false)?;
    let RootAttributes { uid, gid, perm } = root;
    let numbers = NumberRange::of(decoupled);
    let format = Format { time: clock::now(), uid, gid, perm };
    store.stage(format.writes_within(numbers.first..numbers.spare))?;
    Ok(store.publish()?)
}

/// The inode numbers of a namespace. In the namespace they lack the rank of the server's.
#[derive(Clone, Copy, Debug)]
struct NumberRange {
    rank: u64,
    first: u64,
    /// From here on, numbers for inodes that cannot keep theirs.
    spare: u64,
    end: u64,
}

impl NumberRange {
    fn of(decoupled: &Decoupled) -> Self {
        let rank = Ino::none_of(decoupled.first.rank()).0;
        let first = decoupled.first.0 - rank;
        let end = first + decoupled.inodes;
        Self { rank, first, spare: first + decoupled.inodes / 2, end }
    }
}

/// A record of the sequence.
pub enum Merged {
    Record(MergeRecord),
    /// A file whose bytes are written to a file without a name, which is then merged.
    Big(Box<BigFile>),
}

/// A file that is merged by a [`MergeRecord::Link`] once its bytes are at the server.
pub struct BigFile {
    pub inode: Inode,
    pub xattrs: Xattrs,
    pub names: Vec<(Ino, Name)>,
    /// With the size and the modification time of the bytes.
    pub attr: Attr,
    /// The number of its record.
    number: u64,
}

/// The place of a record in a sequence, with the namespace's own numbers.
enum MergeStep {
    Create { ino: Ino, dir: Ino, name: Name },
    Big { ino: Ino, names: Vec<(Ino, Name)> },
    Link { ino: Ino, names: Vec<(Ino, Name)> },
    Finish { ino: Ino },
    Update { ino: Ino },
    ClearFlags { ino: Ino },
    Remove { ino: Ino, dir: Ino, name: Name },
    Move { ino: Ino, from: (Ino, Name), to: (Ino, Name) },
}

/// An inode with its names.
struct NamedInode {
    inode: Inode,
    /// Directory and name of each.
    names: Vec<(Ino, Name)>,
}

/// A sequence of records.
struct Sequence {
    steps: Vec<MergeStep>,
    /// The server's numbers of merged inodes, by the namespace's; the root's stands for itself.
    merged: HashMap<Ino, Ino>,
}

impl Sequence {
    fn new() -> Self {
        Self { steps: Vec::new(), merged: HashMap::from([(Ino::ROOT, Ino::ROOT)]) }
    }

    fn number(&self, ino: Ino) -> Result<Ino, Error> {
        self.merged.get(&ino).copied().ok_or_else(damaged)
    }

    fn numbered(&self, names: &[(Ino, Name)]) -> Result<Vec<(Ino, Name)>, Error> {
        names.iter().map(|(dir, name)| Ok((self.number(*dir)?, name.clone()))).collect()
    }
}

/// A namespace that is not mounted, or whose tables do not change meanwhile.
pub struct Namespace {
    dir: PathBuf,
    origin: NamespaceOrigin,
    root: Inode,
    disk: Arc<Disk>,
    nodes: BTreeMap<Ino, NamedInode>,
    /// Creates everything; empty if the namespace is mounted.
    sequence: Sequence,
    digest: u64,
}

impl Namespace {
    /// Opens the store of a namespace.
    ///
    /// # Errors
    /// Errors of opening the store; [`Error::NoNamespace`] if it is not that of a namespace;
    /// [`Error::Unmergeable`] if no number is left for an inode.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let origin = NamespaceOrigin::read(dir)?;
        // Inode numbers are reserved only for sessions, of which an embedded store has none.
        let volume = Volume::open(dir, OpenOptions { memory: 128 << 20, ..OpenOptions::default() })?;
        if volume.superblock.uuid.as_u128() != origin.decoupled.id {
            return Err(Error::NoNamespace(dir.into()));
        }
        volume.require_whole(dir)?;
        let disk = checkpoint(volume)?;
        let mut read = TableReader::default();
        disk.store.records().try_for_each(|record| read.add(record?))?;
        let mut namespace = Self::of_nodes(dir, origin, disk, read.finish()?)?;
        namespace.order(NumberRange::of(&namespace.origin.decoupled))?;
        namespace.digest = namespace.summed();
        Ok(namespace)
    }

    /// A namespace without a sequence. `nodes`: what its tables have.
    fn of_nodes(
        dir: &Path,
        origin: NamespaceOrigin,
        disk: Arc<Disk>,
        mut nodes: BTreeMap<Ino, NamedInode>,
    ) -> Result<Self, Error> {
        let root = nodes.remove(&Ino::ROOT).ok_or_else(damaged)?.inode;
        Ok(Self { dir: dir.into(), origin, root, disk, nodes, sequence: Sequence::new(), digest: 0 })
    }
}

impl ClientJournal for Namespace {
    fn origin(&self) -> &NamespaceOrigin {
        &self.origin
    }

    fn root(&self) -> &Inode {
        &self.root
    }

    fn root_xattrs(&self) -> Result<Xattrs, Error> {
        self.all_xattrs(Ino::ROOT, &self.root)
    }

    fn len(&self) -> u64 {
        self.sequence.steps.len() as u64
    }

    fn digest(&self) -> u64 {
        self.digest
    }

    fn record(&self, number: u64) -> Result<Merged, Error> {
        let step = self.sequence.steps.get(number as usize).ok_or_else(damaged)?;
        self.record_of(&self.sequence, step, number)
    }

    fn read_big(&self, file: &BigFile, write: &mut WriteBytes<'_>) -> Result<(), Error> {
        let (store, ino) = (&self.disk.store, file.inode.ino);
        if !file.inode.is_streamed() {
            return write(0, &self.strip(ino)?);
        }
        let (mut offset, mut buffer) = (0, vec![0; CHUNK]);
        while let Some(data) = store.stream_seek(ino, offset, SeekWhat::Data)? {
            let hole = store.stream_seek(ino, data, SeekWhat::Hole)?.unwrap_or(file.attr.size);
            offset = data;
            while offset < hole {
                let length = CHUNK.min(usize::try_from(hole - offset).unwrap_or(CHUNK));
                let read = store.stream_read(ino, offset, &mut buffer[..length])?;
                if read == 0 {
                    break;
                }
                write(offset, &buffer[..read])?;
                offset += read as u64;
            }
        }
        Ok(())
    }

    fn path_of(&self, number: u64) -> Vec<u8> {
        self.sequence.steps.get(number as usize).map_or_else(Vec::new, |step| self.path_of_step(step))
    }

    fn rest(&self, decoupled: &Decoupled) -> Result<Option<Box<dyn ClientJournal + '_>>, Error> {
        if !decoupled.shows {
            return Ok(None);
        }
        let mut sync = NamespaceSync::new(&self.dir, self.origin.clone());
        let rest = sync.rest_of(self, decoupled, true)?;
        sync.record(rest.len())?;
        Ok(Some(Box::new(rest)))
    }
}

impl Namespace {
    fn inode(&self, ino: Ino) -> Result<&Inode, Error> {
        self.nodes.get(&ino).map(|node| &node.inode).ok_or_else(damaged)
    }

    /// The record of a step. `number`: its place in the sequence.
    fn record_of(&self, sequence: &Sequence, step: &MergeStep, number: u64) -> Result<Merged, Error> {
        Ok(Merged::Record(match step {
            MergeStep::Create { ino, dir, name } => {
                let (dir, name) = (sequence.number(*dir)?, name.clone());
                let (inode, bytes, xattrs) = self.contents(sequence, *ino)?;
                MergeRecord::Create { dir, name, inode, bytes, xattrs }
            }
            MergeStep::Update { ino } => {
                let (inode, bytes, xattrs) = self.contents(sequence, *ino)?;
                MergeRecord::Update { inode, bytes, xattrs }
            }
            MergeStep::Link { ino, names } => {
                let (ino, time) = (sequence.number(*ino)?, self.inode(*ino)?.ctime);
                MergeRecord::Link { ino, names: sequence.numbered(names)?, time }
            }
            MergeStep::Finish { ino } => {
                let Inode { atime, mtime, ctime, rare, .. } = self.inode(*ino)?;
                let flags = (!rare.flags.is_empty()).then_some(rare.flags);
                let (atime, mtime, ctime) = (*atime, *mtime, *ctime);
                MergeRecord::Finish { ino: sequence.number(*ino)?, atime, mtime, ctime, flags }
            }
            MergeStep::ClearFlags { ino } => {
                // It may be gone here, and about to be removed.
                let Inode { atime, mtime, ctime, .. } = *self.inode(*ino).unwrap_or(&self.root);
                let flags = Some(InodeFlags::empty());
                MergeRecord::Finish { ino: sequence.number(*ino)?, atime, mtime, ctime, flags }
            }
            MergeStep::Remove { ino, dir, name } => {
                let ino = sequence.merged.get(ino).copied();
                MergeRecord::Remove { dir: sequence.number(*dir)?, name: name.clone(), ino }
            }
            MergeStep::Move { ino, from, to } => {
                let ino = sequence.merged.get(ino).copied();
                let (from_dir, to_dir) = (sequence.number(from.0)?, sequence.number(to.0)?);
                MergeRecord::Move { from: (from_dir, from.1.clone()), to: (to_dir, to.1.clone()), ino }
            }
            MergeStep::Big { ino, names } => {
                let inode = self.inode(*ino)?.clone();
                if !inode.rare.flags.is_empty() {
                    return Err(Error::Unmergeable(*ino, "a big file with flags of chattr(1): remove them"));
                }
                let names = sequence.numbered(names)?;
                if encode(&names).len() > MAX_NAMES {
                    return Err(Error::Unmergeable(*ino, "a big file with more than 48 KiB of names"));
                }
                let xattrs = self.all_xattrs(*ino, &inode)?;
                let stream = inode.is_streamed().then(|| self.disk.store.stream_stat(*ino)).transpose()?;
                let attr = inode.attr(stream.as_ref());
                return Ok(Merged::Big(Box::new(BigFile { inode, xattrs, names, attr, number })));
            }
        }))
    }

    /// An inode with the server's number, its bytes and its extended attributes.
    fn contents(&self, sequence: &Sequence, ino: Ino) -> Result<(Box<Inode>, Vec<u8>, Xattrs), Error> {
        let inode = without_flags(self.inode(ino)?);
        let inode = Box::new(Inode { ino: sequence.number(ino)?, ..inode });
        let xattrs = self.xattrs(ino, &inode)?;
        if encode(&xattrs).len() > MAX_XATTRS {
            return Err(Error::Unmergeable(ino, "more than 24 KiB of extended attributes"));
        }
        Ok((inode, self.strip(ino)?, xattrs))
    }

    /// The path of a step's inode or name in the namespace.
    fn path_of_step(&self, step: &MergeStep) -> Vec<u8> {
        let (mut path, mut at) = match step {
            MergeStep::Create { dir, name, .. } | MergeStep::Remove { dir, name, .. } => {
                (name.to_vec(), *dir)
            }
            MergeStep::Move { to: (dir, name), .. } => (name.to_vec(), *dir),
            MergeStep::Big { ino, .. }
            | MergeStep::Link { ino, .. }
            | MergeStep::Finish { ino }
            | MergeStep::ClearFlags { ino }
            | MergeStep::Update { ino } => (Vec::new(), *ino),
        };
        while let Some((dir, name)) = self.nodes.get(&at).and_then(|node| node.names.first()) {
            let below = std::mem::replace(&mut path, name.to_vec());
            if !below.is_empty() {
                path.push(b'/');
                path.extend(below);
            }
            at = *dir;
        }
        path
    }

    fn strip(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        let (object, key) = InoRecord::Strip.place(ino);
        Ok(self.disk.store.get(object, &key)?.unwrap_or_default())
    }

    fn xattrs(&self, ino: Ino, inode: &Inode) -> Result<Xattrs, Error> {
        if !inode.has_xattrs {
            return Ok(Xattrs::new());
        }
        let (object, key) = InoRecord::Xattrs.place(ino);
        let value = self.disk.store.get(object, &key)?.ok_or_else(damaged)?;
        decode(&value).map_err(|_| damaged())
    }

    fn all_xattrs(&self, ino: Ino, inode: &Inode) -> Result<Xattrs, Error> {
        let mut xattrs = self.xattrs(ino, inode)?;
        for (name, acl) in [("access", &inode.acl), ("default", &inode.default_acl)] {
            if let Some(acl) = acl {
                let name = format!("system.posix_acl_{name}").into_bytes();
                xattrs.push((name.into(), acl.format().into()));
            }
        }
        Ok(xattrs)
    }

    // ---- The sequence

    fn order(&mut self, numbers: NumberRange) -> Result<(), Error> {
        let mut order =
            CreationOrder { nodes: &self.nodes, sequence: Sequence::new(), first: HashMap::new() };
        let mut postponed = Vec::new();
        for ino in self.nodes.keys().copied() {
            if !order.try_create(ino, Ino(numbers.rank + ino.0)) {
                postponed.push(ino);
            }
        }
        order.add_postponed(&postponed, numbers)?;
        order.add_rest();
        self.sequence = order.sequence;
        let range = numbers.rank + numbers.first..numbers.rank + numbers.end;
        let merged = &self.sequence.merged;
        let outside = merged.iter().find(|(ino, number)| **ino != Ino::ROOT && !range.contains(&number.0));
        match outside {
            Some((ino, _)) => {
                Err(Error::Unmergeable(*ino, "the number is outside the range of the namespace"))
            }
            None => Ok(()),
        }
    }

    /// A checksum of the sequence, without the bytes of files, whose changes show in the times.
    fn summed(&self) -> u64 {
        let mut sum = self.sequence.steps.len() as u64;
        for step in &self.sequence.steps {
            let (ino, names) = match step {
                MergeStep::Create { ino, dir, name } => (ino, encode(&(dir, name))),
                MergeStep::Big { ino, names } | MergeStep::Link { ino, names } => (ino, encode(names)),
                MergeStep::Finish { ino } => (ino, Vec::new()),
                // Only a sync has these.
                MergeStep::Update { .. }
                | MergeStep::ClearFlags { .. }
                | MergeStep::Remove { .. }
                | MergeStep::Move { .. } => continue,
            };
            sum = xxh3_64_with_seed(&names, sum);
            if let Some(node) = self.nodes.get(ino) {
                sum = xxh3_64_with_seed(&encode(&node.inode), sum);
            }
        }
        sum
    }
}

/// Makes the sequence that creates everything.
struct CreationOrder<'a> {
    nodes: &'a BTreeMap<Ino, NamedInode>,
    sequence: Sequence,
    /// The name with which an inode is created, by its place among the names.
    first: HashMap<Ino, usize>,
}

impl CreationOrder<'_> {
    /// Appends the creation of an inode, if a directory with one of its names precedes. A big file
    /// needs no number.
    fn try_create(&mut self, ino: Ino, number: Ino) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        if is_big(&node.inode) {
            return true;
        }
        let merged = &self.sequence.merged;
        let Some(at) = node.names.iter().position(|(dir, _)| merged.contains_key(dir)) else { return false };
        let (dir, name) = node.names[at].clone();
        self.first.insert(ino, at);
        self.sequence.merged.insert(ino, number);
        self.sequence.steps.push(MergeStep::Create { ino, dir, name });
        true
    }

    /// Inodes in directories newer than themselves.
    fn add_postponed(&mut self, postponed: &[Ino], numbers: NumberRange) -> Result<(), Error> {
        let mut below = below(self.nodes, postponed);
        let dirs = below.keys().copied().filter(|dir| self.sequence.merged.contains_key(dir));
        let mut reached: VecDeque<Ino> = dirs.collect();
        let mut next = numbers.spare;
        while let Some(dir) = reached.pop_front() {
            for ino in below.remove(&dir).unwrap_or_default() {
                if self.sequence.merged.contains_key(&ino) {
                    continue;
                }
                if next == numbers.end {
                    return Err(Error::Unmergeable(ino, NO_NUMBER));
                }
                self.try_create(ino, Ino(numbers.rank + next));
                next += 1;
                reached.push_back(ino);
            }
        }
        Ok(())
    }

    /// Big files, further names, and what must follow everything else. Inodes below no directory of
    /// the sequence were removed while they were in use.
    fn add_rest(&mut self) {
        let merged = &self.sequence.merged;
        let (mut files, mut finished) = (Vec::new(), Vec::new());
        for (ino, node) in self.nodes {
            let first = self.first.get(ino);
            let names = node.names.iter().enumerate().filter(|(at, _)| Some(at) != first);
            let names = names.filter(|(_, (dir, _))| merged.contains_key(dir));
            let names: Vec<_> = names.map(|(_, name)| name.clone()).collect();
            if is_big(&node.inode) {
                files.extend((!names.is_empty()).then_some(MergeStep::Big { ino: *ino, names }));
            } else if merged.contains_key(ino) {
                let parts = names.chunks(LINKS);
                files.extend(parts.map(|names| MergeStep::Link { ino: *ino, names: names.to_vec() }));
                if node.inode.kind == FileType::Directory || !node.inode.rare.flags.is_empty() {
                    finished.push(MergeStep::Finish { ino: *ino });
                }
            }
        }
        self.sequence.steps.extend(files);
        self.sequence.steps.extend(finished);
    }
}

/// Inodes by the directories of their names.
fn below(nodes: &BTreeMap<Ino, NamedInode>, inos: &[Ino]) -> BTreeMap<Ino, Vec<Ino>> {
    let mut below: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
    for ino in inos {
        for (dir, _) in nodes.get(ino).map_or(&[][..], |node| &node.names[..]) {
            below.entry(*dir).or_default().push(*ino);
        }
    }
    below
}

fn is_big(inode: &Inode) -> bool {
    inode.is_streamed() || matches!(inode.stored_bytes(), Some(MAX_INLINE..))
}

fn without_flags(inode: &Inode) -> Inode {
    let mut inode = inode.clone();
    inode.rare.flags = InodeFlags::empty();
    inode
}

fn damaged() -> Error {
    Error::Store(StoreError::Corrupt { damage: "a record of the namespace is missing or damaged".into() })
}

/// Reads all inodes of a store with their names; the root has none.
#[derive(Default)]
struct TableReader {
    nodes: BTreeMap<Ino, NamedInode>,
    links: Vec<(Ino, (Ino, Name))>,
}

impl TableReader {
    fn add(&mut self, (object, key, value): Record) -> Result<(), Error> {
        match object.kind {
            ObjectKind::Fragment => {
                let dir = Ino(object.id);
                let Slot { name, .. } = Slot::from_key(&key).ok_or_else(damaged)?;
                match decode::<Dentry>(&value).map_err(|_| damaged())? {
                    Dentry::Primary(inode) => {
                        self.nodes.insert(inode.ino, NamedInode { inode, names: vec![(dir, name)] });
                    }
                    Dentry::Remote(remote) => self.links.push((remote.ino, (dir, name))),
                }
            }
            ObjectKind::Inodes => {
                if let Some((InoRecord::Inode, ino)) = InoRecord::from_key(&key) {
                    let inode = decode(&value).map_err(|_| damaged())?;
                    self.nodes.insert(ino, NamedInode { inode, names: Vec::new() });
                }
            }
            // Inodes without a name end with the programs that used them.
            ObjectKind::Super | ObjectKind::Orphans | ObjectKind::Sessions => {}
        }
        Ok(())
    }

    /// The inodes, without names in directories that are removed. `espalier rm -r` frees their
    /// entries later.
    fn finish(mut self) -> Result<BTreeMap<Ino, NamedInode>, Error> {
        for (ino, name) in self.links {
            self.nodes.get_mut(&ino).ok_or_else(damaged)?.names.push(name);
        }
        let mut below: HashMap<Ino, Vec<Ino>> = HashMap::new();
        for (ino, node) in &self.nodes {
            if node.inode.kind == FileType::Directory {
                node.names.iter().for_each(|(dir, _)| below.entry(*dir).or_default().push(*ino));
            }
        }
        let (mut reached, mut next) = (HashSet::from([Ino::ROOT]), vec![Ino::ROOT]);
        while let Some(dir) = next.pop() {
            let dirs = below.remove(&dir).unwrap_or_default();
            next.extend(dirs.into_iter().filter(|dir| reached.insert(*dir)));
        }
        for node in self.nodes.values_mut() {
            node.names.retain(|(dir, _)| reached.contains(dir));
        }
        Ok(self.nodes)
    }
}
