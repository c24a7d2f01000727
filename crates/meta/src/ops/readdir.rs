//! `readdir`, with attributes or without.

use alloc::vec::Vec;
use core::ops::Bound;

use espalier_proto::{Access, Attr, Dirent, Entry, FileType, Ino, Name, RemoteName, Reply};

use crate::lease::LeaseKey;
use crate::machine::{Cx, Final, Meta};
use crate::record::{Body, Inode, Referent, Slot};
use crate::state::{Fragment, Target};
use crate::step::{Load, Step, Stop, Wait};
use crate::task::Page;

/// Dentries loaded from the tables at a time.
const PAGE: usize = 1024;

/// The entries of a page.
enum PageEntries {
    Names(Vec<Dirent>),
    /// With the attributes of those at this rank.
    Entries(Vec<(Slot, Target)>, Vec<Attr>),
}

impl Meta {
    /// Returns a page of a listing (carns III.E). Entries are ordered by the hashes of their names,
    /// and a cursor is a hash: a listing shows every entry that stays exactly once, whatever else
    /// changes. The caller adds `.` and `..`.
    pub(crate) fn readdir(
        &mut self,
        cx: &mut Cx<'_>,
        dir: Ino,
        after: u64,
        limit: u32,
        plus: bool,
    ) -> Step<Final<'_>> {
        let inode = self.state.dir(dir)?;
        if let Some(locks) = &self.state.locks {
            locks.check_whole(dir)?;
        }
        if inode.hashes().is_empty() {
            return Err(Stop::Misrouted(dir));
        }
        // A listing begins at 0 in the first fragment.
        if after > 0 {
            self.state.check_hash(dir, after.saturating_add(1))?;
        }
        let Body::Directory(directory) = &inode.body else {
            return Err(Stop::Fail(espalier_proto::Errno::EIO));
        };
        let (parent, cacheable, hashes) = (directory.parent, inode.searchable_by_all(), inode.hashes());
        let (is_fragment, is_hidden) = (inode.fragment().is_some(), inode.hides_entries());
        // The kernel checks this when it opens a directory, but other clients exist too.
        if self.config.session_ms.is_some() && self.opens_of(cx.client, dir) == 0 {
            cx.check(inode, Access::READ)?;
        }
        if is_hidden || self.state.is_removed(dir)? {
            let parent = self.parent_for(cx.client, dir, parent);
            let (entries, until) = (Vec::new(), u64::MAX);
            return Ok(Final::of(Reply::Listing { entries, parent, end: true, until }));
        }
        let parent = if self.state.is_here(parent) { self.state.whole_dir(parent)? } else { parent };
        let parent = self.parent_for(cx.client, dir, parent);
        let page = self.page(cx, dir, after);
        let (found, end) = self
            .state
            .fragments
            .get(&dir)
            .map_or((Vec::new(), false), |fragment| collect(fragment, page, after, limit as usize));
        if found.is_empty() && !end {
            let from = page.map_or(after + 1, |page| page.to.max(after + 1));
            return Err(Stop::Wait(Wait::Load(Load::Dentries { dir, from, limit: PAGE })));
        }
        let attrs = if plus { self.attributes_of(cx, &found)? } else { None };
        let listed = match attrs {
            Some(attrs) => PageEntries::Entries(found, attrs),
            None => PageEntries::Names(self.without(found)?),
        };
        let access = if after == 0 && !is_fragment { self.atime_update(cx, dir)? } else { None };
        self.commit_all(cx, access.as_slice(), |meta, cx| {
            let entries = match listed {
                PageEntries::Entries(found, attrs) => meta.with_attributes(cx, dir, cacheable, found, attrs),
                PageEntries::Names(names) => names,
            };
            meta.note_listing(cx, dir);
            Reply::Listing { entries, parent, end, until: *hashes.end() }
        })
    }

    /// The next entry after a cursor, with all others of the same hash. Empty at the end of the
    /// directory.
    pub(crate) fn entries_after(&self, cx: &Cx<'_>, dir: Ino, after: u64) -> Step<Vec<(Slot, Target)>> {
        let page = self.page(cx, dir, after);
        let fragment = self.state.fragments.get(&dir);
        let (found, end) =
            fragment.map_or_else(Default::default, |fragment| collect(fragment, page, after, 1));
        if found.is_empty() && !end {
            // A range loaded from the beginning is known to be complete and is not loaded again.
            let whole_to = fragment.map_or(0, |fragment| fragment.loaded_to);
            let next = page.map_or(0, |page| page.to).max(after + 1);
            let from = if after == 0 || whole_to > after { whole_to } else { next };
            return Err(Stop::Wait(Wait::Load(Load::Dentries { dir, from, limit: PAGE })));
        }
        Ok(found)
    }

    /// The page that was loaded last, if it continues the listing at this cursor and is still
    /// completely in memory.
    fn page(&self, cx: &Cx<'_>, dir: Ino, after: u64) -> Option<Page> {
        let is_whole = |page: &Page| page.dropped == self.state.clock.dropped;
        cx.page.filter(|page| page.dir == dir && page.from <= after + 1 && is_whole(page))
    }

    fn without(&self, found: Vec<(Slot, Target)>) -> Step<Vec<Dirent>> {
        let dirent = |(slot, target): (Slot, Target)| {
            let (ino, kind) = match target {
                Target::Remote(Referent { ino, kind, .. }) => (ino, kind),
                Target::Primary(ino) => (ino, self.state.inode(ino)?.kind),
                Target::Absent => return Ok(None),
            };
            Ok(Some(Dirent { name: slot.name, ino, kind, cursor: slot.hash, entry: None, remote: None }))
        };
        found.into_iter().filter_map(|item| dirent(item).transpose()).collect()
    }

    /// The attributes of entries at this rank; `None` if their sizes cannot be queried, so that the
    /// listing returns only names.
    fn attributes_of(&mut self, cx: &mut Cx<'_>, found: &[(Slot, Target)]) -> Step<Option<Vec<Attr>>> {
        for ino in found.iter().filter_map(|(_, target)| target.ino()) {
            self.revoke_exclusive(cx, ino)?;
        }
        let (own, mut inodes) = (self.config.rank, Vec::with_capacity(found.len()));
        for (_, target) in found {
            if let Some(ino) = target.ino().filter(|_| target.at_other_rank(own).is_none()) {
                inodes.push(self.state.inode(ino)?);
            }
        }
        let streamed: Vec<Ino> =
            inodes.iter().filter(|inode| inode.is_streamed()).map(|inode| inode.ino).collect();
        // One call queries all of them (carns III.E, listattr).
        let stats = if streamed.is_empty() { Some(Vec::new()) } else { cx.try_stat(streamed)? };
        let Some(stats) = stats else { return Ok(None) };
        let mut stats = stats.iter();
        let attr = |inode: &&Inode| inode.attr(if inode.is_streamed() { stats.next() } else { None });
        Ok(Some(inodes.iter().map(attr).collect()))
    }

    fn with_attributes(
        &mut self,
        cx: &mut Cx<'_>,
        dir: Ino,
        cacheable: bool,
        found: Vec<(Slot, Target)>,
        attrs: Vec<Attr>,
    ) -> Vec<Dirent> {
        let (own, mut attrs) = (self.config.rank, attrs.into_iter());
        let mut with = |(slot, target): (Slot, Target)| {
            let (name, cursor): (Name, u64) = (slot.name, slot.hash);
            if let Some(Referent { ino, kind, at }) = target.at_other_rank(own) {
                let name_leased = self.note_read(cx, LeaseKey::Name { dir, hash: cursor });
                let remote = Some(RemoteName { at, cacheable, name_leased });
                return Some(Dirent { name, ino, kind, cursor, entry: None, remote });
            }
            let attr = attrs.next()?;
            let entry = Some::<Entry>(self.entry(cx, Some((dir, cursor)), cacheable, attr));
            let kind: FileType = attr.kind;
            Some(Dirent { name, ino: attr.ino, kind, cursor, entry, remote: None })
        };
        found.into_iter().filter_map(&mut with).collect()
    }
}

/// The entries after a cursor, as far as the directory is known to be complete, and whether they
/// reach its end. `page`: the range that a load has just covered.
fn collect(fragment: &Fragment, page: Option<Page>, after: u64, limit: usize) -> (Vec<(Slot, Target)>, bool) {
    let covered = if fragment.complete { u64::MAX } else { fragment.loaded_to };
    let covered = covered.max(page.map_or(0, |page| page.to));
    let mut found: Vec<(Slot, Target)> = Vec::new();
    let start = Bound::Excluded(Slot { hash: after + 1, name: Name::lowest() });
    for (slot, cell) in fragment.cells.range((start, Bound::Unbounded)) {
        if slot.hash >= covered {
            break;
        }
        // Names with equal hashes stay on one page: a cursor cannot distinguish them.
        if found.len() >= limit && found.last().is_some_and(|(last, _)| last.hash != slot.hash) {
            return (found, false);
        }
        if cell.target != Target::Absent {
            found.push((slot.clone(), cell.target));
        }
    }
    (found, covered == u64::MAX)
}
