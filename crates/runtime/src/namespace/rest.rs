//! The records that make a server's tree equal to a namespace, part of which it has from earlier
//! syncs. Those of a sync leave out big files, and flags that would prevent later changes.
//!
//! The order: names that the namespace does not have are removed or moved away, new inodes are
//! created, inodes that were moved away get their names, and attributes follow last.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use espalier_meta::{Decoupled, Inode, MergeRecord};
use espalier_proto::{FileType, Ino, Name};
use espalier_store::Store;

use super::synced::{PlanHead, SyncedFile, SyncedStep, SyncedTree};
use super::{
    BigFile, ClientJournal, LINKS, MergeStep, Merged, NO_NUMBER, NamedInode, Namespace, NamespaceOrigin,
    NumberRange, Sequence, SyncPoint, TableReader, WriteBytes, Xattrs, below, is_big,
};
use crate::error::Error;

/// Records of the tables that are read at once.
const PIECE: usize = 4096;
/// How temporary names begin.
const TEMPORARY: &[u8] = b".espalier-moved-";

/// The syncs of a namespace.
pub struct NamespaceSync {
    dir: PathBuf,
    origin: NamespaceOrigin,
    /// The last sync.
    plan: Option<SyncPlan>,
}

/// The records of a sync, and the tree that the server has after them.
struct SyncPlan {
    synced: SyncedFile,
    head: PlanHead,
    steps: Vec<SyncedStep>,
    /// Number of steps that are in the file.
    recorded: usize,
}

impl NamespaceSync {
    /// `dir`: of the namespace.
    pub fn new(dir: &Path, origin: NamespaceOrigin) -> Self {
        Self { dir: dir.into(), origin, plan: None }
    }

    /// The mounted namespace as of a checkpoint, which is in use only while [`SyncPoint::read`]
    /// allows it; `None` if that does not.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn read(&self, sync_point: &SyncPoint) -> Result<Option<Namespace>, Error> {
        let Some(disk) = sync_point.disk().map(Arc::clone) else { return Ok(None) };
        let mut read = TableReader::default();
        {
            let Some(mut records) = sync_point.read(|| disk.store.records()) else { return Ok(None) };
            loop {
                // A checkpoint waits for one piece at most.
                let piece = || records.by_ref().take(PIECE).collect::<Result<Vec<_>, _>>();
                let Some(piece) = sync_point.read(piece).transpose()? else { return Ok(None) };
                if piece.is_empty() {
                    break;
                }
                piece.into_iter().try_for_each(|record| read.add(record))?;
            }
        }
        Namespace::of_nodes(&self.dir, self.origin.clone(), disk, read.finish()?).map(Some)
    }

    /// The records that follow those that the directory has merged, of which none may be sent
    /// before [`Self::record`]. `ends`: they complete the merge.
    ///
    /// # Errors
    /// As [`ClientJournal::rest`].
    pub fn rest_of<'a>(
        &mut self,
        namespace: &'a Namespace,
        decoupled: &Decoupled,
        ends: bool,
    ) -> Result<NamespaceRest<'a>, Error> {
        let last = self.plan.take().map(|plan| plan.synced);
        let mut synced = match last.filter(|synced| synced.is_current(decoupled)) {
            Some(synced) => synced,
            None => SyncedFile::open(&self.dir, decoupled)?,
        };
        let first = synced.tree.steps;
        let base = if first == 0 { 0 } else { decoupled.digest };
        let numbers = NumberRange::of(&self.origin.decoupled);
        let (sequence, steps) = Planner::new(&namespace.nodes, &mut synced.tree, numbers, ends).plan()?;
        let head = PlanHead::of(first, base, &steps);
        if !steps.is_empty() {
            synced.digest = head.digest;
        }
        self.plan = Some(SyncPlan { synced, head, steps, recorded: 0 });
        Ok(NamespaceRest { namespace, sequence, head, is_sync: !ends })
    }

    /// Makes durable that the records before `end` are about to be sent.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn record(&mut self, end: u64) -> Result<(), Error> {
        let Some(SyncPlan { synced, head, steps, recorded }) = &mut self.plan else { return Ok(()) };
        let end = usize::try_from(end.saturating_sub(head.first)).unwrap_or(usize::MAX).min(steps.len());
        if end <= *recorded {
            return Ok(());
        }
        synced.append((*recorded == 0).then_some(*head), &steps[*recorded..end])?;
        *recorded = end;
        Ok(())
    }
}

/// The records that follow those of earlier syncs.
pub struct NamespaceRest<'a> {
    namespace: &'a Namespace,
    sequence: Sequence,
    head: PlanHead,
    is_sync: bool,
}

impl NamespaceRest<'_> {
    fn step(&self, number: u64) -> Option<&MergeStep> {
        let at = number.checked_sub(self.head.first)?;
        self.sequence.steps.get(usize::try_from(at).ok()?)
    }
}

impl ClientJournal for NamespaceRest<'_> {
    fn origin(&self) -> &NamespaceOrigin {
        self.namespace.origin()
    }

    fn root(&self) -> &Inode {
        self.namespace.root()
    }

    fn root_xattrs(&self) -> Result<Xattrs, Error> {
        self.namespace.root_xattrs()
    }

    fn first(&self) -> u64 {
        self.head.first
    }

    fn base(&self) -> u64 {
        self.head.base
    }

    fn is_sync(&self) -> bool {
        self.is_sync
    }

    fn len(&self) -> u64 {
        self.head.first + self.sequence.steps.len() as u64
    }

    fn digest(&self) -> u64 {
        self.head.digest
    }

    fn record(&self, number: u64) -> Result<Merged, Error> {
        let step = self.step(number).ok_or_else(super::damaged)?;
        let mut record = self.namespace.record_of(&self.sequence, step, number)?;
        if let (MergeStep::Finish { .. }, Merged::Record(MergeRecord::Finish { flags, .. })) =
            (step, &mut record)
            && self.is_sync
        {
            *flags = None;
        }
        Ok(record)
    }

    fn read_big(&self, file: &BigFile, write: &mut WriteBytes<'_>) -> Result<(), Error> {
        self.namespace.read_big(file, write)
    }

    fn path_of(&self, number: u64) -> Vec<u8> {
        self.step(number).map_or_else(Vec::new, |step| self.namespace.path_of_step(step))
    }
}

/// Plans the records of a sync, or of the end of the merge.
struct Planner<'a> {
    nodes: &'a BTreeMap<Ino, NamedInode>,
    tree: &'a mut SyncedTree,
    numbers: NumberRange,
    ends: bool,
    sequence: Sequence,
    log: Vec<SyncedStep>,
    /// Inodes at temporary names.
    displaced: Vec<(Ino, (Ino, Name))>,
    created: HashSet<Ino>,
    /// Names of the namespace that begin as temporary ones do.
    reserved: HashSet<Name>,
}

impl<'a> Planner<'a> {
    fn new(
        nodes: &'a BTreeMap<Ino, NamedInode>,
        tree: &'a mut SyncedTree,
        numbers: NumberRange,
        ends: bool,
    ) -> Self {
        let mut sequence = Sequence::new();
        let numbered = tree.inodes.iter().filter_map(|(ino, inode)| Some((*ino, inode.number?)));
        sequence.merged.extend(numbered);
        let reserved = nodes.values().flat_map(|node| &node.names).map(|(_, name)| name);
        let reserved = reserved.filter(|name| name.starts_with(TEMPORARY)).cloned().collect();
        Self {
            nodes,
            tree,
            numbers,
            ends,
            sequence,
            log: Vec::new(),
            displaced: Vec::new(),
            created: HashSet::new(),
            reserved,
        }
    }

    fn plan(mut self) -> Result<(Sequence, Vec<SyncedStep>), Error> {
        self.clear_flags();
        let dead = self.detach();
        self.remove_directories(dead)?;
        self.create()?;
        self.place();
        self.link();
        self.update();
        Ok((self.sequence, self.log))
    }

    fn push(&mut self, step: MergeStep, logged: SyncedStep) {
        self.tree.apply(&logged);
        self.sequence.steps.push(step);
        self.log.push(logged);
    }

    fn push_move(&mut self, ino: Ino, from: (Ino, Name), to: (Ino, Name)) {
        let logged = SyncedStep::Move { from: from.clone(), to: to.clone() };
        self.push(MergeStep::Move { ino, from, to }, logged);
    }

    fn push_removal(&mut self, ino: Ino, (dir, name): (Ino, Name)) {
        let logged = SyncedStep::Remove { dir, name: name.clone() };
        self.push(MergeStep::Remove { ino, dir, name }, logged);
    }

    /// Removes flags, which would prevent changes. Only the end of a merge that was interrupted has
    /// set them.
    fn clear_flags(&mut self) {
        let flagged = self.tree.inodes.iter().filter(|(_, inode)| inode.flags);
        let flagged: BTreeSet<Ino> = flagged.map(|(ino, _)| *ino).collect();
        for ino in flagged {
            self.push(MergeStep::ClearFlags { ino }, SyncedStep::ClearFlags { ino });
        }
    }

    /// A free name for an inode whose new place is not free yet.
    fn temporary_name(&self, ino: Ino) -> (Ino, Name) {
        let is_free =
            |name: &(Ino, Name)| !self.tree.names.contains_key(name) && !self.reserved.contains(&name.1);
        let mut named = (0_u64..).map(|number| {
            let name = [TEMPORARY, format!("{ino}-{number}").as_bytes()].concat();
            // It is valid: short, without a slash.
            (Ino::ROOT, Name::new(&name).unwrap_or_else(|_| Name::lowest()))
        });
        named.find(is_free).unwrap_or((Ino::ROOT, Name::lowest()))
    }

    /// True if an inode that the server has stays there, under whichever names.
    fn stays(&self, ino: Ino) -> bool {
        let (Some(node), Some(synced)) = (self.nodes.get(&ino), self.tree.inodes.get(&ino)) else {
            return false;
        };
        // At the end, big files are sent again if they have changed or were small.
        let is_current = if is_big(&node.inode) {
            synced.number.is_none() && synced.ctime == Some(node.inode.ctime)
        } else {
            synced.number.is_some()
        };
        !node.names.is_empty() && (is_current || !self.ends)
    }

    fn is_named(&self, ino: Ino, name: &(Ino, Name)) -> bool {
        self.tree.names.get(name) == Some(&ino)
    }

    /// Names of an inode that the server lacks, in directories that it has.
    fn missing(&self, ino: Ino) -> impl Iterator<Item = &'a (Ino, Name)> {
        let names = self.nodes.get(&ino).map_or(&[][..], |node| &node.names[..]);
        names.iter().filter(move |name| self.tree.has_dir(name.0) && !self.is_named(ino, name))
    }

    /// Removes names that the namespace does not have, and moves inodes from those that are their
    /// only ones. Returns removed directories.
    fn detach(&mut self) -> Vec<Ino> {
        let mut outdated: BTreeMap<Ino, BTreeSet<(Ino, Name)>> = BTreeMap::new();
        for (name, ino) in &self.tree.names {
            let has_name = |node: &NamedInode| node.names.contains(name);
            if !self.stays(*ino) || !self.nodes.get(ino).is_some_and(has_name) {
                outdated.entry(*ino).or_default().insert(name.clone());
            }
        }
        let mut dead = Vec::new();
        for (ino, names) in outdated {
            let (stays, Some(synced)) = (self.stays(ino), self.tree.inodes.get(&ino)) else { continue };
            let (is_dir, has_others) = (synced.is_dir, synced.names.len() > names.len());
            if is_dir && !stays {
                dead.push(ino);
                continue;
            }
            // A file that was moved to one of these names has replaced the inode there.
            let mut names: VecDeque<_> = names.into_iter().filter(|name| self.is_named(ino, name)).collect();
            if stays
                && !has_others
                && let Some(from) = names.pop_front()
            {
                let to = self.direct_target(ino, &from, is_dir).unwrap_or_else(|| {
                    let name = self.temporary_name(ino);
                    self.displaced.push((ino, name.clone()));
                    name
                });
                self.push_move(ino, from, to);
            }
            names.into_iter().for_each(|name| self.push_removal(ino, name));
        }
        dead
    }

    /// A new name to which an inode can be moved at once: it is free or that of a file that goes,
    /// and no directory moves below itself.
    fn direct_target(&self, ino: Ino, from: &(Ino, Name), is_dir: bool) -> Option<(Ino, Name)> {
        let is_free = |to: &&(Ino, Name)| match self.tree.names.get(*to) {
            None => !is_dir || to.0 == from.0,
            Some(other) => {
                !is_dir
                    && !self.stays(*other)
                    && self.tree.inodes.get(other).is_some_and(|inode| !inode.is_dir)
            }
        };
        // A directory that goes may still have the name of one that stays.
        let stays = |dir: Ino| dir == Ino::ROOT || self.stays(dir);
        self.missing(ino).filter(|to| stays(to.0)).find(is_free).cloned()
    }

    fn remove_directories(&mut self, dead: Vec<Ino>) -> Result<(), Error> {
        let (inodes, mut deepest) = (&self.tree.inodes, Vec::new());
        for dir in dead {
            let (mut depth, mut at) = (0, dir);
            while let Some((above, _)) = inodes.get(&at).and_then(|inode| inode.names.first()) {
                (at, depth) = (*above, depth + 1);
                // A crafted file may have a circle.
                if depth > inodes.len() {
                    return Err(super::damaged());
                }
            }
            deepest.push((std::cmp::Reverse(depth), dir));
        }
        deepest.sort_unstable();
        for (_, dir) in deepest {
            let name = self.tree.inodes.get(&dir).and_then(|inode| inode.names.first().cloned());
            name.into_iter().for_each(|name| self.push_removal(dir, name));
        }
        Ok(())
    }

    /// Creates inodes, in ascending order of their numbers if these are not used up.
    fn create(&mut self) -> Result<(), Error> {
        let mut postponed = Vec::new();
        for (ino, node) in self.nodes {
            if self.tree.inodes.contains_key(ino) || is_big(&node.inode) || node.names.is_empty() {
                continue;
            }
            let number = Ino(self.numbers.rank + ino.0);
            if number < self.tree.next || !self.try_create(*ino, number) {
                postponed.push(*ino);
            }
        }
        let mut below = below(self.nodes, &postponed);
        let mut reached: VecDeque<Ino> =
            below.keys().copied().filter(|dir| self.tree.has_dir(*dir)).collect();
        while let Some(dir) = reached.pop_front() {
            for ino in below.remove(&dir).unwrap_or_default() {
                if self.tree.inodes.contains_key(&ino) {
                    continue;
                }
                let number = self.tree.next_spare;
                if number.0 >= self.numbers.rank + self.numbers.end {
                    return Err(Error::Unmergeable(ino, NO_NUMBER));
                }
                self.try_create(ino, number);
                reached.push_back(ino);
            }
        }
        Ok(())
    }

    fn try_create(&mut self, ino: Ino, number: Ino) -> bool {
        let Some((dir, name)) = self.missing(ino).next().cloned() else { return false };
        let Some(node) = self.nodes.get(&ino) else { return false };
        let (is_dir, ctime) = (node.inode.kind == FileType::Directory, node.inode.ctime);
        self.sequence.merged.insert(ino, number);
        self.created.insert(ino);
        let logged = SyncedStep::Create { ino, number, dir, name: name.clone(), is_dir, ctime };
        self.push(MergeStep::Create { ino, dir, name }, logged);
        true
    }

    /// Moves inodes from temporary names to their places.
    fn place(&mut self) {
        for (ino, from) in std::mem::take(&mut self.displaced) {
            let to = self.missing(ino).next().cloned();
            if let Some(to) = to {
                self.push_move(ino, from, to);
            }
        }
    }

    /// Gives files their further names and, at the end, big files all of theirs.
    fn link(&mut self) {
        for (ino, node) in self.nodes {
            let names: Vec<_> = self.missing(*ino).cloned().collect();
            let synced = self.tree.inodes.get(ino).map(|synced| synced.number.is_some());
            match synced {
                _ if names.is_empty() => {}
                Some(true) => {
                    for names in names.chunks(LINKS).map(<[_]>::to_vec) {
                        let logged = SyncedStep::Link { ino: *ino, names: names.clone() };
                        self.push(MergeStep::Link { ino: *ino, names }, logged);
                    }
                }
                None if self.ends && is_big(&node.inode) => {
                    let logged = SyncedStep::Big { ino: *ino, names: names.clone(), ctime: node.inode.ctime };
                    self.push(MergeStep::Big { ino: *ino, names }, logged);
                }
                _ => {}
            }
        }
    }

    /// Attributes and bytes that have changed, times of directories and, at the end, flags.
    fn update(&mut self) {
        let mut finished = Vec::new();
        for (ino, node) in self.nodes {
            let Some(synced) = self.tree.inodes.get(ino).filter(|synced| synced.number.is_some()) else {
                continue;
            };
            if is_big(&node.inode) {
                continue;
            }
            let (is_new, is_dir) = (self.created.contains(ino), node.inode.kind == FileType::Directory);
            let ctime = node.inode.ctime;
            let is_changed = synced.ctime != Some(ctime);
            let has_flags = self.ends && !node.inode.rare.flags.is_empty();
            if !is_new && is_changed {
                self.push(MergeStep::Update { ino: *ino }, SyncedStep::Update { ino: *ino, ctime });
            }
            if is_new && is_dir || has_flags {
                finished.push(SyncedStep::Finish { ino: *ino, ctime, flags: has_flags });
            }
        }
        for logged in finished {
            if let SyncedStep::Finish { ino, .. } = logged {
                self.push(MergeStep::Finish { ino }, logged);
            }
        }
    }
}
