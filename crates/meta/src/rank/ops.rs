//! Operations whose names and inodes are at several ranks: lookup, `mkdir`, `unlink`, `rmdir`,
//! `link` and `rename` of remote dentries. They are called by `ops`, and commit by a transaction
//! (`coordinator.rs`).

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_policy::{Pin, Policy};
use espalier_proto::{
    Errno, FileType, Ino, InodeFlags, Name, NewNode, OpenHow, Rank, RenameFlags, Reply, Time,
};

use super::edit::Edit;
use super::message::{PeerAnswer, Question};
use crate::lease::LeaseKey;
use crate::machine::{Cx, Final, Meta};
use crate::permission::check_not;
use crate::record::{Inode, Referent};
use crate::step::{Step, Stop};
use crate::usage::Usage;

const DIRECTORY: FileType = FileType::Directory;
/// Maximum number of times that a path may change ranks.
const MAX_HOPS: usize = 4096;

/// The changes that a `rename` makes.
pub(crate) enum RenamePlan {
    /// Only names and inodes of this rank: the rename is still to be checked.
    Here,
    /// Both names refer to one inode.
    Nothing,
    /// These at this rank; other ranks have prepared theirs.
    Edits(Vec<Edit>),
}

impl Meta {
    /// The reply for a remote dentry: its inode is at another rank.
    pub(crate) fn reply_remote(
        &self,
        cx: &mut Cx<'_>,
        (dir, hash): (Ino, u64),
        cacheable: bool,
        Referent { ino, kind, at }: Referent,
    ) -> Reply {
        let name_leased = self.note_read(cx, LeaseKey::Name { dir, hash });
        Reply::Remote { ino, kind, at, cacheable, name_leased }
    }

    /// Finds an inode by number for a client that has it from another rank, or from a file handle;
    /// from a handle, `kind` is `None`.
    pub(crate) fn find(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        kind: Option<FileType>,
        open: Option<OpenHow>,
    ) -> Step<Reply> {
        if kind.is_none() {
            self.reach(cx, ino)?;
        }
        if kind == Some(DIRECTORY) {
            // It may have moved to a dentry of this rank meanwhile.
            self.state.dir(ino)?;
            self.revoke_exclusive(cx, ino)?;
        }
        let mut attr = self.attr(cx, self.state.inode(ino)?)?;
        let Some(how) = open else { return Ok(Reply::Entry(self.entry(cx, None, false, attr))) };
        let opened = self.open_as(cx, ino, how)?;
        if !attr.streamed {
            // The open may have truncated the file.
            attr = self.state.inode(ino)?.attr(None);
        }
        self.opened(ino);
        Ok(Reply::Created(self.entry(cx, None, false, attr), opened))
    }

    /// The inode of a remote dentry; `None` if the name does not exist or its inode is at this
    /// rank.
    pub(crate) fn named_remote(&self, dir: Ino, name: &Name) -> Step<Option<Referent>> {
        if self.config.ranks == 1 {
            return Ok(None);
        }
        self.state.dir(dir)?;
        Ok(self.state.target(dir, &self.state.slot(name))?.at_other_rank(self.config.rank))
    }

    /// True if directories in `dir` may be made at other ranks.
    pub(crate) fn spreads_dirs(&self, dir: Ino) -> bool {
        let pin = self.state.inodes.get(&dir).and_then(|dir| self.setting(&dir.inode, Policy::pin));
        let is_here = match pin {
            Some(Pin::Rank(pinned)) => pinned == self.config.rank.0,
            Some(Pin::Parent) => true,
            _ => false,
        };
        self.config.ranks > 1 && !is_here
    }

    /// The rank at which a new directory is made; `None`: this one.
    pub(crate) fn remote_home(&mut self, cx: &mut Cx<'_>, inode: &Inode) -> Option<Rank> {
        let (rank, ranks) = (self.config.rank, self.config.ranks);
        if ranks == 1 || !inode.is_dir() {
            return None;
        }
        match self.setting(inode, Policy::pin) {
            Some(Pin::Rank(pinned)) if pinned < ranks => {
                return (pinned != rank.0).then_some(Rank(pinned));
            }
            Some(Pin::Parent) => return None,
            _ => {}
        }
        let last = &mut self.ranks.last_home;
        let home = *cx.coordinator().home.get_or_insert_with(|| {
            *last = (*last + 1) % ranks;
            Rank((rank.0 + *last) % ranks)
        });
        (home != rank).then_some(home)
    }

    pub(crate) fn mkdir_remote(
        &mut self,
        cx: &mut Cx<'_>,
        rank: Rank,
        (dir, name): (Ino, &Name),
        inode: Inode,
    ) -> Step<Final<'_>> {
        let parent = self.state.dir(dir)?;
        self.state.admit(&[(dir, inode.weight())], &[])?;
        let (cacheable, slot) = (parent.searchable_by_all(), self.state.slot(name));
        let put = |ino| Edit::PutName { dir, name: name.clone(), referent: Referent::dir(ino) };
        let (ino, none) = (Ino::none_of(rank), Time::default());
        // The rank that makes the inode fills these in.
        let inode = Box::new(Inode { ino, atime: none, mtime: none, ctime: none, btime: none, ..inode });
        self.revoke_edits(cx, &[put(ino)])?;
        let (ino, _) = self.prepare_edits(cx, &[Edit::Make { inode }])?.ok_or(Errno::EIO)?;
        self.commit_edits(cx, [put(ino)].into(), |meta, cx| {
            meta.reply_remote(cx, (dir, slot.hash), cacheable, Referent::dir(ino))
        })
    }

    /// `unlink` and `rmdir` of a remote dentry.
    pub(crate) fn remove_remote(
        &mut self,
        cx: &mut Cx<'_>,
        dir: Ino,
        name: &Name,
        referent: Referent,
    ) -> Step<Final<'_>> {
        self.writable()?;
        let parent = self.state.dir(dir)?;
        cx.check_change(parent)?;
        check_not(parent, InodeFlags::APPEND)?;
        let sticky = cx.is_bound_by_sticky(parent);
        let owner = sticky.then_some(cx.caller.uid);
        let take = [Edit::TakeName { dir, name: name.clone(), referent, sticky }];
        let unlink = self.unlink_edits(cx, referent, dir, owner)?;
        let rank = self.config.rank;
        let (mut own, others): (Vec<_>, Vec<_>) = unlink.into_iter().partition(|edit| edit.rank() == rank);
        own.extend(take);
        self.revoke_edits(cx, &own)?;
        self.check_edits(cx, &own)?;
        self.prepare_edits(cx, &others)?;
        self.commit_edits(cx, own, |_, _| Reply::Done)
    }

    /// `link` to a file at another rank.
    pub(crate) fn link_remote(
        &mut self,
        cx: &mut Cx<'_>,
        (ino, at): (Ino, Rank),
        dir: Ino,
        name: &Name,
    ) -> Step<Final<'_>> {
        self.growable()?;
        let parent = self.state.dir(dir)?;
        cx.check_change(parent)?;
        let (cacheable, slot) = (parent.searchable_by_all(), self.state.slot(name));
        if self.state.is_removed(dir)? {
            return Err(Errno::ENOENT.into());
        }
        if self.state.target(dir, &slot)?.ino().is_some() {
            return Err(Errno::EEXIST.into());
        }
        // The file's rank reports its size later, as a usage delta.
        self.state.admit(&[(dir, Usage { files: 1, ..Usage::default() })], &[])?;
        let put = |kind| {
            let referent = Referent { ino, kind, at };
            [Edit::PutName { dir, name: name.clone(), referent }]
        };
        self.revoke_edits(cx, &put(FileType::Regular))?;
        let (_, kind) =
            self.prepare_edits(cx, &[Edit::Link { ino, at, dir, found: None }])?.ok_or(Errno::EIO)?;
        self.commit_edits(cx, put(kind).into(), |meta, cx| {
            meta.reply_remote(cx, (dir, slot.hash), cacheable, Referent { ino, kind, at })
        })
    }

    /// Decides what a `rename` changes, as far as it involves other ranks.
    pub(crate) fn rename_among_ranks(
        &mut self,
        cx: &mut Cx<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        flags: RenameFlags,
    ) -> Step<RenamePlan> {
        let (exchange, rank) = (flags.contains(RenameFlags::EXCHANGE), self.config.rank);
        self.growable()?;
        let old = self.name_here(cx, from)?;
        let moved = old.target.ok_or(Errno::ENOENT)?;
        let Referent { ino, kind, .. } = moved;
        let new = self.find_name(cx, to)?;
        let target = new.target;
        let checked = match target {
            None if exchange => Some(Err(Errno::ENOENT)),
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => Some(Err(Errno::EEXIST)),
            Some(target) if target.ino == ino => Some(Ok(RenamePlan::Nothing)),
            Some(target) if !exchange && kind == DIRECTORY && !target.is_dir() => Some(Err(Errno::ENOTDIR)),
            Some(target) if !exchange && kind != DIRECTORY && target.is_dir() => Some(Err(Errno::EISDIR)),
            _ => None,
        };
        let expected = Edit::Expect { dir: to.0, name: to.1.clone(), ino: target.map(|target| target.ino) };
        if let Some(outcome) = checked {
            self.confirm(cx, &expected)?;
            return Ok(outcome?);
        }
        if old.dir != new.dir {
            if kind == DIRECTORY {
                self.check_not_below(cx, to.0, ino)?;
            }
            if let Some(target) = target.filter(|target| exchange && target.is_dir()) {
                let outcome = self.check_not_below(cx, from.0, target.ino);
                self.confirm_failure(cx, outcome, &expected)?;
            }
        }
        let unlink = match target.filter(|_| !exchange) {
            Some(target) => self.unlink_edits(cx, target, to.0, new.sticky.then_some(cx.caller.uid))?,
            None => Vec::new(),
        };
        // A partitioned directory that is replaced is at several ranks.
        let is_all_here =
            to.0.rank() == rank && moved.at == rank && target.is_none_or(|target| target.at == rank);
        if is_all_here && unlink.len() < 2 {
            return Ok(RenamePlan::Here);
        }
        let whiteout = flags.contains(RenameFlags::WHITEOUT);
        let whiteout = whiteout.then(|| self.new_inode(cx, from.0, &NewNode::CharDevice(0), (0, 0), None));
        let names = RenamedNames { old, new, moved, exchange };
        let edits = names.edits(cx.caller.uid, rank, unlink, whiteout.transpose()?);
        let (own, others): (Vec<_>, Vec<_>) = edits.into_iter().partition(|edit| edit.rank() == rank);
        let outcome = self.check_edits(cx, &own);
        self.confirm_failure(cx, outcome, &expected)?;
        self.revoke_edits(cx, &own)?;
        self.prepare_edits(cx, &others)?;
        Ok(RenamePlan::Edits(own))
    }

    /// A name at this rank in a directory that the caller may change.
    fn name_here<'n>(&self, cx: &Cx<'_>, (dir, name): (Ino, &'n Name)) -> Step<FoundName<'n>> {
        let inode = self.state.dir(dir)?;
        if inode.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        cx.check_change(inode)?;
        let sticky = cx.is_bound_by_sticky(inode);
        let target = self.whose_name(dir, name)?;
        Ok(FoundName { at: (dir, name), dir: self.state.whole_dir(dir)?, target, sticky })
    }

    /// A name at any rank. Another rank checks when it prepares the change.
    fn find_name<'n>(&mut self, cx: &mut Cx<'_>, (dir, name): (Ino, &'n Name)) -> Step<FoundName<'n>> {
        if dir.rank() == self.config.rank {
            return self.name_here(cx, (dir, name));
        }
        let at = (dir, name);
        match self.query_rank(cx, dir.rank(), Question::Look { dir, name: name.clone() })? {
            PeerAnswer::Found { dir, target, sticky } => Ok(FoundName { at, dir, target, sticky }),
            PeerAnswer::Misrouted { dir } => Err(Stop::Misrouted(dir)),
            _ => Err(Errno::EIO.into()),
        }
    }

    /// Confirms, at the moment of the outcome, that a name at another rank still refers to what was
    /// reported.
    fn confirm(&mut self, cx: &mut Cx<'_>, expected: &Edit) -> Step<()> {
        if expected.rank() == self.config.rank {
            return Ok(());
        }
        self.prepare_edits(cx, core::slice::from_ref(expected)).map(drop)
    }

    /// Confirms the name if `outcome` is an error, which would otherwise rest on an outdated
    /// answer.
    fn confirm_failure(&mut self, cx: &mut Cx<'_>, outcome: Step<()>, expected: &Edit) -> Step<()> {
        if let Err(Stop::Fail(_)) = outcome {
            self.confirm(cx, expected)?;
        }
        outcome
    }

    /// Fails with `EINVAL` if `dir` is `top` or below it. Until the operation ends no directory can
    /// move there.
    fn check_not_below(&mut self, cx: &mut Cx<'_>, dir: Ino, top: Ino) -> Step<()> {
        self.lock_moves(cx)?;
        if self.is_below(cx, dir, top)? { Err(Errno::EINVAL.into()) } else { Ok(()) }
    }

    /// True if `dir` is `top` or below it.
    pub(crate) fn is_below(&mut self, cx: &mut Cx<'_>, mut dir: Ino, top: Ino) -> Step<bool> {
        for _ in 0..MAX_HOPS {
            let (dirs, next) = if dir.rank() == self.config.rank {
                self.above(dir)?
            } else {
                match self.query_rank(cx, dir.rank(), Question::Above { dir })? {
                    PeerAnswer::Above { dirs, next } => (dirs, next),
                    _ => return Err(Errno::EIO.into()),
                }
            };
            if dirs.contains(&top) {
                return Ok(true);
            }
            let Some(next) = next else { return Ok(false) };
            dir = next;
        }
        Err(Errno::ELOOP.into())
    }
}

/// The inode that a name refers to.
struct FoundName<'n> {
    at: (Ino, &'n Name),
    /// The directory itself, not the fragment with the name.
    dir: Ino,
    target: Option<Referent>,
    /// The caller may remove only its own files there.
    sticky: bool,
}

/// The names that a `rename` changes.
struct RenamedNames<'n> {
    old: FoundName<'n>,
    new: FoundName<'n>,
    moved: Referent,
    exchange: bool,
}

impl RenamedNames<'_> {
    /// The edits at all ranks, by the caller `uid`; `unlink`: those that remove the replaced inode.
    fn edits(&self, uid: u32, rank: Rank, unlink: Vec<Edit>, whiteout: Option<Inode>) -> Vec<Edit> {
        let Self { old, new, moved, exchange } = self;
        let (from, to, moved, target) = (old.at, new.at, *moved, new.target);
        let (changes_parent, from_sticky, to_sticky) = (old.dir != new.dir, old.sticky, new.sticky);
        let moves = |Referent { ino, at, .. }, from, to, sticky: bool, replaces| Edit::Move {
            ino,
            at,
            from,
            to,
            owner: sticky.then_some(uid),
            replaces,
            changes_parent,
        };
        let take = |(dir, name): (Ino, &Name), referent, sticky| Edit::TakeName {
            dir,
            name: name.clone(),
            referent,
            sticky,
        };
        let put = |(dir, name): (Ino, &Name), referent| Edit::PutName { dir, name: name.clone(), referent };
        let mut edits = Vec::from([moves(moved, from.0, to.0, from_sticky, target.is_some() && !*exchange)]);
        edits
            .extend(target.filter(|_| *exchange).map(|target| moves(target, to.0, from.0, to_sticky, false)));
        edits.extend(unlink);
        edits.push(take(from, moved, from_sticky));
        edits.extend(target.map(|target| take(to, target, to_sticky)));
        edits.push(put(to, moved));
        edits.extend(target.filter(|_| *exchange).map(|target| put(from, target)));
        if let Some(mut inode) = whiteout {
            edits.push(put(from, Referent { ino: inode.ino, kind: inode.kind, at: rank }));
            inode.rare.names = Some(Box::new([(from.0, 1)].into()));
            edits.insert(0, Edit::Make { inode: Box::new(inode) });
        }
        edits
    }
}
