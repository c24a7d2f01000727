//! Partitioned directories (wu 3): the fragments at this rank.
//!
//! A directory's first fragment is at first the directory itself, at its home server. Every other
//! fragment, and the first one after it has moved, is a directory record of its own, whose parent
//! is the directory. Requests name the record that has the name; one that another record has is
//! *misrouted*, and its reply says where the fragments are.
//!
//! Invariants: the hashes of the records are disjoint and cover all hashes. All records have the
//! directory's owner, permissions, flags, access control lists and policy ([`Rights`]).

mod due;
mod moves;
mod pull;
mod rate;
mod show;
mod subtree;
mod transfer;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use espalier_policy::Policy;
use espalier_proto::{Errno, FileType, FragmentMap, Fragments, Ino, InodeFlags, Reply, Time};
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::rank::{Edit, FragmentName, PeerAnswer, Question};
use crate::record::{Body, Directory, Inode, Partition, PastTransfer, Referent, SplitCause};
use crate::state::State;
use crate::step::{Step, Stop};
use crate::usage::Usage;

pub(crate) use due::DueTransfers;
pub use due::FragmentCounts;
pub use moves::RecordedMoves;
pub(crate) use pull::DuePulls;
pub use pull::PullCounts;
pub use subtree::MoveScope;

/// What all fragments of a directory have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    perm: u32,
    uid: u32,
    gid: u32,
    flags: InodeFlags,
    acl: Option<Box<Acl>>,
    default_acl: Option<Box<Acl>>,
    policy: Option<Arc<Policy>>,
    /// Present if it is set too: the directory's is the latest of the fragments'.
    mtime: Option<Time>,
    /// Of the directory itself.
    atime: Time,
}

impl Rights {
    fn of(inode: &Inode, mtime: Option<Time>) -> Self {
        Self {
            perm: inode.perm,
            uid: inode.uid,
            gid: inode.gid,
            flags: inode.rare.flags,
            acl: inode.acl.clone(),
            default_acl: inode.default_acl.clone(),
            policy: inode.rare.policy.clone(),
            mtime,
            atime: inode.atime,
        }
    }

    pub(crate) fn apply(&self, inode: &mut Inode, time: Time) {
        (inode.perm, inode.uid, inode.gid) = (self.perm, self.uid, self.gid);
        inode.rare.flags = self.flags;
        inode.acl.clone_from(&self.acl);
        inode.default_acl.clone_from(&self.default_acl);
        inode.rare.policy.clone_from(&self.policy);
        inode.mtime = self.mtime.unwrap_or(inode.mtime);
        (inode.atime, inode.ctime) = (self.atime, time);
    }
}

impl State {
    /// Checks that a directory record has the names with this hash.
    pub(crate) fn check_hash(&self, dir: Ino, hash: u64) -> Step<()> {
        match self.inodes.get(&dir) {
            Some(cached) if !cached.inode.hashes().contains(&hash) => Err(Stop::Misrouted(dir)),
            _ => Ok(()),
        }
    }

    /// The directory of a fragment; for any other directory, the directory itself.
    pub(crate) fn whole_dir(&self, dir: Ino) -> Step<Ino> {
        let inode = self.dir_even_if_locked(dir)?;
        Ok(match &inode.body {
            Body::Directory(directory) if inode.fragment().is_some() => directory.parent,
            _ => dir,
        })
    }

    pub(crate) fn cede_names(&mut self, fragment: Ino, to: Ino, rest: (u64, u64), names: &[FragmentName]) {
        for FragmentName { name, referent } in names {
            if referent.at == fragment.rank() {
                self.count(fragment, Usage::default(), self.weight_here(*referent));
                self.move_name(referent.ino, fragment, to);
            }
            self.erase_cell(fragment, &self.slot(name));
        }
        self.change_entries(fragment, names, u64::saturating_sub);
        self.set_hashes(fragment, rest);
    }

    pub(crate) fn accept_names(&mut self, fragment: Ino, hashes: (u64, u64), names: &[FragmentName]) {
        for FragmentName { name, referent } in names {
            self.put_name(fragment, name, *referent);
        }
        self.change_entries(fragment, names, u64::saturating_add);
        self.set_hashes(fragment, hashes);
    }

    /// Sets the hashes of a record that is not the directory itself, whose map says it.
    fn set_hashes(&mut self, fragment: Ino, hashes: (u64, u64)) {
        self.change_partition(fragment, |partition| {
            if let Some(Partition::Fragment { first, last, .. }) = partition.as_deref_mut() {
                (*first, *last) = hashes;
            }
        });
    }

    /// Counts names that come or go without a change of the directory's times.
    fn change_entries(&mut self, dir: Ino, names: &[FragmentName], change: impl Fn(u64, u64) -> u64) {
        let subdirs = names.iter().filter(|name| name.referent.is_dir()).count() as u64;
        self.change(dir, |inode| {
            inode.nlink = u32::try_from(change(inode.nlink.into(), subdirs)).unwrap_or(u32::MAX);
            if let Body::Directory(directory) = &mut inode.body {
                directory.entries = change(directory.entries, names.len() as u64);
            }
        });
    }

    pub(crate) fn set_fragment_map(&mut self, dir: Ino, map: &FragmentMap, ended: Option<PastTransfer>) {
        self.change_partition(dir, |partition| {
            let mut transfers = match partition.take().map(|partition| *partition) {
                Some(Partition::First { transfers, .. }) => transfers,
                _ => Vec::new(),
            };
            transfers.extend(ended);
            transfers.drain(..transfers.len().saturating_sub(PastTransfer::MOST));
            *partition = Some(Box::new(Partition::First { map: map.clone(), transfers }));
        });
    }

    /// True if an inode in memory is a fragment that is not the directory itself.
    pub(crate) fn is_fragment(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|cached| cached.inode.fragment().is_some())
    }

    /// True if a directory here has a fragment map.
    fn is_partitioned(&self, dir: Ino) -> bool {
        self.inodes.get(&dir).is_some_and(|cached| cached.inode.fragment_map().is_some())
    }

    pub(crate) fn set_rights(&mut self, ino: Ino, rights: &Rights, time: Time) {
        self.change_counted(ino, |inode| rights.apply(inode, time));
        self.update_dependents(ino);
    }

    /// Makes a removed directory, which is empty, whole again.
    pub(crate) fn remove_fragment_map(&mut self, dir: Ino) {
        if self.is_partitioned(dir) {
            self.change_partition(dir, |partition| *partition = None);
        }
    }

    fn change_partition(&mut self, dir: Ino, change: impl FnOnce(&mut Option<Box<Partition>>)) {
        self.change_counted(dir, |inode| {
            if let Body::Directory(directory) = &mut inode.body {
                change(&mut directory.partition);
            }
        });
    }
}

impl Meta {
    /// The reply to a request for a name that `dir` does not have.
    pub(crate) fn reply_misrouted(&self, dir: Ino) -> Reply {
        match self.state.inodes.get(&dir).map(|cached| &cached.inode).and_then(Inode::fragment_map) {
            Some(map) => self.reply_fragments(map.clone()),
            None => Reply::Misrouted { dir: self.state.whole_dir(dir).unwrap_or(dir) },
        }
    }

    fn reply_fragments(&self, map: FragmentMap) -> Reply {
        Reply::Fragments(Box::new(Fragments { map, name_key: self.state.name_key }))
    }

    /// Returns a directory's fragment map.
    pub(crate) fn fragments(&self, dir: Ino) -> Step<Reply> {
        Ok(self.reply_fragments(self.map_of(dir)?))
    }

    fn map_of(&self, dir: Ino) -> Step<FragmentMap> {
        let map = self.state.dir(dir)?.fragment_map().cloned();
        Ok(map.unwrap_or_else(|| FragmentMap::new(dir, self.config.ranks)))
    }

    /// Answers another rank that asks for a directory's fragment map.
    pub(crate) fn answer_map(&self, dir: Ino) -> Step<PeerAnswer> {
        Ok(PeerAnswer::Map { map: self.map_of(dir)? })
    }

    /// The fragment map of a directory at any rank.
    pub(crate) fn query_map(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<FragmentMap> {
        if dir.rank() == self.config.rank {
            return self.map_of(dir);
        }
        match self.query_rank(cx, dir.rank(), Question::Map { dir })? {
            PeerAnswer::Map { map } => Ok(map),
            _ => Err(Errno::EIO.into()),
        }
    }

    /// The edits that unlink a directory with its fragments, which must all be empty.
    pub(crate) fn unlink_edits(
        &mut self,
        cx: &mut Cx<'_>,
        Referent { ino, kind, at }: Referent,
        dir: Ino,
        owner: Option<u32>,
    ) -> Step<Vec<Edit>> {
        if kind != FileType::Directory {
            return Ok([Edit::Unlink { ino, at, dir, owner, map_version: 0 }].into());
        }
        let map = self.query_map(cx, ino)?;
        let mut edits = Vec::from([Edit::Unlink { ino, at, dir, owner, map_version: map.version() }]);
        let unlink = |fragment: Ino| {
            let at = fragment.rank();
            Edit::Unlink { ino: fragment, at, dir: ino, owner: None, map_version: 0 }
        };
        edits.extend(map.others().map(unlink));
        Ok(edits)
    }

    /// Commits a change of an inode's permissions, times or policy; for a partitioned directory, at
    /// all fragments at once.
    pub(crate) fn commit_rights<T>(
        &mut self,
        cx: &mut Cx<'_>,
        event: &Event,
        rest: impl FnOnce(&mut Self, &mut Cx<'_>) -> T,
    ) -> Step<Final<'_, T>> {
        let (ino, mtime) = match event {
            Event::SetAttr { ino, change } => (*ino, change.mtime),
            Event::SetAcl { ino, .. }
            | Event::SetDefaultAcl { ino, .. }
            | Event::SetPolicy { dir: ino, .. } => (*ino, None),
            _ => return self.commit(cx, event, rest),
        };
        let inode = self.state.inode(ino)?;
        let Some(map) = inode.fragment_map().cloned() else { return self.commit(cx, event, rest) };
        let mut changed = inode.clone();
        event.change_rights(&mut changed);
        let rights = Rights::of(&changed, mtime);
        let set = |ino| Edit::SetRights { ino, rights: Box::new(rights.clone()) };
        let edits = [ino].into_iter().chain(map.others()).map(set);
        let (own, others): (Vec<_>, Vec<_>) = edits.partition(|edit| edit.rank() == ino.rank());
        self.revoke_edits(cx, &own)?;
        if !others.is_empty() {
            self.prepare_edits(cx, &others)?;
        }
        self.commit_edits(cx, own, rest)
    }
}

/// The record of a new fragment of a directory.
pub(crate) fn new_fragment(
    of: &Inode,
    ino: Ino,
    dir: Ino,
    number: u16,
    hashes: &RangeInclusive<u64>,
    cause: Option<SplitCause>,
) -> Inode {
    let mut inode = of.clone();
    (inode.ino, inode.nlink, inode.has_xattrs) = (ino, 2, false);
    inode.rare.names = None;
    let (first, last) = (*hashes.start(), *hashes.end());
    let partition = Some(Box::new(Partition::Fragment { number, first, last, cause }));
    inode.body = Body::Directory(Box::new(Directory { partition, ..*Directory::empty(dir) }));
    inode
}
