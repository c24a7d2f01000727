//! Two-phase commit: the participant. Answers other ranks' questions, prepares their edits, and
//! carries out their decisions.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{
    Access, Caller, Errno, FileType, FragmentMap, Ino, InodeFlags, Name, Rank, Reply, Request, RequestId,
};

use super::coordinator::nameless;
use super::edit::{Edit, Part, makes};
use super::location::WholeFile;
use super::lock::MOVE_LOCK;
use super::message::{MAX_DIRS, PeerAnswer, PeerMessage, Question, TransactionId};
use crate::balancing::BalancerEvent;
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::ops::rmdir::check_empty;
use crate::outbox::{Now, Outbox};
use crate::permission::{check_coupled, check_not};
use crate::record::{Body, Inode, Referent};
use crate::state::{Cached, Location, Target};
use crate::step::{Step, Stop, StreamCall, Wait};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;
use crate::usage::Usage;

#[derive(Clone, Debug)]
pub(crate) enum PeerRequest {
    Answer {
        from: Rank,
        id: TransactionId,
        question: Question,
    },
    Decide {
        from: Rank,
        id: TransactionId,
        commit: bool,
    },
    Count {
        from: Rank,
        last: u64,
        changes: Vec<(Ino, Usage)>,
        about: Vec<Ino>,
    },
    /// The rank's own request to balance its load: [`Meta::balance`].
    Balance,
    /// The rank's own request to log what its balancer did: [`Meta::record_balancing`].
    RecordBalancing {
        version: u64,
        since_ms: u64,
        events: Vec<BalancerEvent>,
    },
}

/// The state of this rank has changed since the coordinator's query. `ESTALE`, for a removed inode,
/// means the same.
const CHANGED: Stop = Stop::Fail(Errno::EAGAIN);

impl PeerRequest {
    pub(super) fn key(&self) -> (Rank, TransactionId) {
        match self {
            Self::Answer { from, id, .. } | Self::Decide { from, id, .. } => (*from, *id),
            // One at a time per rank. No transaction has such an id.
            Self::Count { from, .. } => (*from, TransactionId { began: 0, number: 0, rank: *from }),
            Self::Balance => (Rank(0), TransactionId { began: 0, number: 1, rank: Rank(0) }),
            Self::RecordBalancing { .. } => (Rank(0), TransactionId { began: 0, number: 2, rank: Rank(0) }),
        }
    }

    /// True if it does not count as load.
    pub(crate) fn is_about_load(&self) -> bool {
        match self {
            Self::Balance | Self::RecordBalancing { .. } => true,
            Self::Answer { question, .. } => question.is_about_load(),
            Self::Decide { .. } | Self::Count { .. } => false,
        }
    }
}

impl Meta {
    pub(crate) fn begin_peer_request(
        &mut self,
        now: Now,
        peer_request: PeerRequest,
        caller: Caller,
        out: &mut Outbox,
    ) {
        // A duplicate of a request in progress.
        if self.ranks.peer_requests.contains_key(&peer_request.key()) {
            return;
        }
        let request = Request::Find { ino: Ino::ROOT, kind: Some(FileType::Directory), open: None };
        let task = Task {
            peer_request: Some(Box::new(peer_request)),
            ..Task::new(INTERNAL_CLIENT, RequestId(0), caller, request)
        };
        self.run(now, task, None, out);
    }

    /// Cancels a request that its sender has withdrawn.
    pub(crate) fn cancel_peer_request(&mut self, key: (Rank, TransactionId)) {
        let Some(number) = self.ranks.peer_requests.remove(&key) else { return };
        self.ranks.locked_out.remove(&number);
        if let Some(mut task) = self.tasks.remove(&number) {
            self.lift_barriers(&mut task);
        }
    }

    pub(crate) fn run_peer_request(
        &mut self,
        cx: &mut Cx<'_>,
        peer_request: &PeerRequest,
    ) -> Step<Final<'_>> {
        match peer_request {
            PeerRequest::Decide { id, commit, .. } => return self.decide(cx, *id, *commit),
            PeerRequest::Count { from, last, changes, about } => {
                self.count_received(*from, *last, changes, about)?
            }
            PeerRequest::Balance => drop(self.balance(cx)?),
            PeerRequest::RecordBalancing { version, since_ms, events } => {
                self.record_balancing(cx, *version, *since_ms, events)?;
            }
            PeerRequest::Answer { from, id, question } => {
                let changed = |stop| if let Stop::Misrouted(_) = stop { CHANGED } else { stop };
                if let Question::Prepare { edits, time, since } = question {
                    let part = Part { edits: edits.clone(), time: *time, since: *since };
                    self.answer_prepare(cx, (*from, *id), part).map_err(changed)?;
                    return Ok(Final::of(Reply::Done));
                }
                let answer = self.answer_rank(cx, *from, question).map_err(changed)?;
                self.send_to_rank(*from, PeerMessage::Answer { id: *id, answer });
            }
        }
        Ok(Final::of(Reply::Done))
    }

    /// Handles the end of another rank's request.
    pub(crate) fn end_peer_request(
        &mut self,
        now: Now,
        peer_request: &PeerRequest,
        result: Result<Reply, Errno>,
        out: &mut Outbox,
    ) {
        self.ranks.peer_requests.remove(&peer_request.key());
        match (peer_request, result) {
            (PeerRequest::Balance, result) => self.balanced(now, &result, out),
            (PeerRequest::RecordBalancing { .. }, result) => self.balancing_recorded(now, &result),
            (PeerRequest::Answer { from, id, question }, Err(errno)) => {
                let is_part = matches!(question, Question::Prepare { .. });
                let answer = match errno {
                    Errno::EAGAIN => PeerAnswer::Changed,
                    Errno::ESTALE if is_part => PeerAnswer::Changed,
                    _ => PeerAnswer::Refused(errno),
                };
                self.send_to_rank(*from, PeerMessage::Answer { id: *id, answer });
            }
            (PeerRequest::Decide { from, id, commit }, Ok(_)) => {
                if *commit {
                    self.ranks.acknowledgements.push_back((self.state.sequence, *from, *id));
                }
                self.resume_locked_out(now, out);
            }
            (PeerRequest::Count { from, last, .. }, Err(Errno::ESTALE)) => {
                if self.skip_gone(*from, *last) {
                    self.begin_peer_request(now, peer_request.clone(), Caller::SERVER, out);
                }
            }
            // The next tick sends the inquiry or the deltas again.
            (PeerRequest::Decide { .. } | PeerRequest::Count { .. }, Err(_))
            | (PeerRequest::Answer { .. } | PeerRequest::Count { .. }, Ok(_)) => {}
        }
    }

    /// Answers another rank's request, which ends with that.
    pub(super) fn answer_peer(&mut self, from: Rank, id: TransactionId, answer: PeerAnswer) {
        self.ranks.peer_requests.remove(&(from, id));
        self.send_to_rank(from, PeerMessage::Answer { id, answer });
    }

    fn answer_rank(&mut self, cx: &mut Cx<'_>, from: Rank, question: &Question) -> Step<PeerAnswer> {
        match question {
            Question::Look { dir, name } => match self.look(cx, *dir, name) {
                Err(Stop::Misrouted(dir)) => Ok(PeerAnswer::Misrouted { dir: self.state.whole_dir(dir)? }),
                answer => answer,
            },
            Question::Above { dir } => {
                let (dirs, next) = self.above(*dir)?;
                Ok(PeerAnswer::Above { dirs, next })
            }
            Question::Dirs { ino, after } => Ok(PeerAnswer::Dirs { dirs: self.dirs_of(*ino, *after)? }),
            Question::Map { dir } => self.answer_map(*dir),
            Question::Entries { dir } => self.answer_entries(*dir),
            Question::Hottest { most } => Ok(self.answer_hottest(*most)),
            Question::NewNumber => self.answer_new_number(),
            Question::MoveFragment { fragment, to, scope } => self.answer_move(*fragment, *to, *scope),
            Question::Records { dirs, of } => self.answer_records(dirs, *of),
            Question::Parents { dirs } => self.answer_parents(dirs),
            Question::Balancer { known } => self.answer_balancer(cx.now, *known),
            Question::RecordBalancing { version, events } => self.answer_record(cx, from, *version, events),
            Question::BalancerStatus => Ok(self.answer_balancer_status(cx.uptime_ms)),
            Question::Movable { dir, names } => self.answer_movable(*dir, names),
            // `Self::answer_prepare` answers it.
            Question::Prepare { .. } => Err(Errno::EIO.into()),
        }
    }

    fn look(&self, cx: &Cx<'_>, dir: Ino, name: &Name) -> Step<PeerAnswer> {
        let parent = self.state.dir(dir)?;
        // The permissions of a removed fragment are those that it had at its end.
        if self.state.is_removed(dir)? {
            return Err(Errno::ENOENT.into());
        }
        cx.check(parent, Access::EXEC)?;
        let target = self.whose_name(dir, name)?;
        let sticky = cx.is_bound_by_sticky(parent);
        Ok(PeerAnswer::Found { dir: self.state.whole_dir(dir)?, target, sticky })
    }

    /// The target of a name, at any rank.
    pub(crate) fn whose_name(&self, dir: Ino, name: &Name) -> Step<Option<Referent>> {
        Ok(match self.state.target(dir, &self.state.slot(name))? {
            Target::Primary(ino) => Some(self.state.referent_here(ino)?),
            Target::Remote(referent) => Some(referent),
            Target::Absent => None,
        })
    }

    /// The ancestors of a directory at this rank, itself included. Also returns the parent of the
    /// last one, if it is at another rank or the list is truncated.
    pub(crate) fn above(&self, dir: Ino) -> Step<(Vec<Ino>, Option<Ino>)> {
        let (mut dirs, mut dir) = (Vec::new(), dir);
        loop {
            let inode = self.state.dir(dir)?;
            let Body::Directory(directory) = &inode.body else { return Err(Errno::EIO.into()) };
            dirs.push(dir);
            if dir == Ino::ROOT || inode.nlink == 0 {
                return Ok((dirs, None));
            }
            if directory.parent.rank() != dir.rank() || dirs.len() == MAX_DIRS {
                return Ok((dirs, Some(directory.parent)));
            }
            dir = directory.parent;
        }
    }

    /// The directory itself, or the directories with names of a file: those above `after`, by
    /// ascending number.
    pub(crate) fn dirs_of(&self, ino: Ino, after: Ino) -> Step<Vec<Ino>> {
        let cached = self.state.cached(ino)?;
        let mut dirs: Vec<Ino> = match (&cached.inode, cached.location) {
            (inode, _) if inode.is_dir() => [ino].into(),
            (_, Location::Dentry { dir, .. }) => [dir].into(),
            (inode, _) => {
                inode.rare.names.iter().flat_map(|names| names.iter()).map(|(dir, _)| *dir).collect()
            }
        };
        dirs.retain(|dir| *dir > after);
        dirs.sort_unstable();
        dirs.truncate(MAX_DIRS);
        Ok(dirs)
    }

    fn answer_prepare(&mut self, cx: &mut Cx<'_>, (from, id): (Rank, TransactionId), part: Part) -> Step<()> {
        if let Some((part, vote)) = self.state.prepared(id) {
            let (named, inodes) = (part.named(), part.given());
            let locks = self.state.locks.take();
            let files = inodes.iter().map(|ino| self.state.whole_file(*ino)).collect::<Step<Vec<_>>>();
            self.state.locks = locks;
            self.vote(from, id, PeerAnswer::Ready { vote, named, files: files? });
            return Ok(());
        }
        let age = part.age(id);
        match self.check_part(cx, part) {
            Ok((part, files)) => self.prepare(cx, (from, id), part, files),
            // Wait-die: a transaction does not wait for an older one.
            Err(Stop::Wait(Wait::Locked(holder))) if holder < age => {
                self.send_to_rank(from, PeerMessage::Answer { id, answer: PeerAnswer::Busy });
            }
            Err(stop) => return Err(stop),
        }
        Ok(())
    }

    /// Locks and journals a checked part, and votes for the transaction.
    fn prepare(
        &mut self,
        cx: &mut Cx<'_>,
        (from, id): (Rank, TransactionId),
        part: Part,
        files: Vec<WholeFile>,
    ) {
        let (age, named) = (part.age(id), part.named());
        self.state.lock(age, &part.edits);
        self.append_loaded(&Event::Prepared { id, part });
        self.ranks.barriers.insert(id, core::mem::take(cx.barriers));
        self.vote(from, id, PeerAnswer::Ready { vote: self.state.sequence, named, files });
    }

    fn vote(&mut self, from: Rank, id: TransactionId, answer: PeerAnswer) {
        self.send_to_rank_when_durable(from, PeerMessage::Answer { id, answer });
    }

    /// Checks that a part can be committed later, and completes it. Revokes the leases on what it
    /// changes. Also returns the files that it gives away.
    fn check_part(&mut self, cx: &mut Cx<'_>, mut part: Part) -> Step<(Part, Vec<WholeFile>)> {
        self.writable()?;
        self.state.load_names(&part.edits)?;
        self.check_edits(cx, &part.edits)?;
        // A fragment has got its number before, and the times of its directory.
        let is_new = |inode: &Inode| inode.fragment().is_none();
        let makes = part.edits.iter().any(|edit| matches!(edit, Edit::Make { inode } if is_new(inode)));
        let new_ino = makes.then(|| self.new_ino()).transpose()?;
        self.revoke_edits(cx, &part.edits)?;
        let files = part.given().iter().map(|ino| self.state.whole_file(*ino)).collect::<Step<Vec<_>>>()?;
        let time = part.time;
        for edit in &mut part.edits {
            match edit {
                Edit::Make { inode } if is_new(inode) => {
                    inode.ino = new_ino.unwrap_or(inode.ino);
                    (inode.atime, inode.mtime, inode.ctime, inode.btime) = (time, time, time, time);
                }
                Edit::Link { ino, found, .. } => {
                    let cached = self.state.cached(*ino)?;
                    *found = Some((cached.inode.kind, cached.location));
                }
                _ => {}
            }
        }
        // Replies that expose such a directory before the decision must not be cached.
        if let Some(leases) = &mut self.leases {
            for edit in &part.edits {
                edit.touched(&self.state, &mut |key, _| leases.raise_barrier(cx.barriers, key));
            }
        }
        Ok((part, files))
    }

    /// Checks that edits can be made in this order. Edits of names come first: a name that has
    /// changed takes precedence over errors about inodes.
    pub(crate) fn check_edits(&mut self, cx: &mut Cx<'_>, edits: &[Edit]) -> Step<()> {
        for edit in edits {
            if let Edit::Unlink { ino, .. } = edit {
                self.revoke_exclusive(cx, *ino)?;
            }
        }
        let (names, inodes): (Vec<_>, Vec<_>) = (0..edits.len()).partition(|at| edits[*at].is_of_name());
        names.into_iter().chain(inodes).try_for_each(|at| self.check_edit(cx, edits, at))
    }

    /// Checks that an edit can be made after those before it, as far as only this rank knows.
    pub(crate) fn check_edit(&self, cx: &Cx<'_>, edits: &[Edit], at: usize) -> Step<()> {
        match &edits[at] {
            Edit::MoveLock => self.state.locks.as_ref().map_or(Ok(()), |locks| locks.check(MOVE_LOCK)),
            Edit::Expect { dir, name, ino } => {
                self.state.dir(*dir)?;
                let target = self.state.target(*dir, &self.state.slot(name))?.ino();
                if target == *ino { Ok(()) } else { Err(CHANGED) }
            }
            Edit::Make { .. } => self.growable(),
            Edit::Link { ino, .. } => self.check_link(*ino),
            Edit::Unlink { ino, dir, owner, map_version, .. } => {
                let cached = self.state.cached(*ino)?;
                is_named(cached, *dir)?;
                check_map(&cached.inode, *map_version)?;
                check_taken(&cached.inode, *owner)?;
                if cached.inode.is_dir() { check_empty(&cached.inode) } else { Ok(()) }
            }
            Edit::Move { ino, from, owner, replaces, changes_parent, .. } => {
                let cached = self.state.cached(*ino)?;
                is_named(cached, *from)?;
                check_taken(&cached.inode, *owner)?;
                if cached.inode.is_dir() && *changes_parent {
                    // Moving it changes its `..`.
                    cx.check(&cached.inode, Access::WRITE)?;
                }
                if *replaces && cached.inode.is_streamed() {
                    // After a crash there is the old file or the new one, not a name without bytes.
                    cx.stream(StreamCall::Sync { ino: *ino })?;
                }
                Ok(())
            }
            Edit::TakeName { dir, name, referent, sticky } => {
                self.check_dir(cx, *dir)?;
                check_not(self.state.dir(*dir)?, InodeFlags::APPEND)?;
                let target = self.whose_name(*dir, name)?;
                let is_as_found =
                    target == Some(*referent) && cx.is_bound_by_sticky(self.state.dir(*dir)?) == *sticky;
                if is_as_found { Ok(()) } else { Err(CHANGED) }
            }
            Edit::PutName { dir, name, .. } => {
                self.check_dir(cx, *dir)?;
                let target = self.state.target(*dir, &self.state.slot(name))?.ino();
                let is_taken = |edit: &Edit| matches!(edit, Edit::TakeName { dir: d, name: n, .. } if (d, n) == (dir, name));
                if target.is_none() || edits[..at].iter().any(is_taken) { Ok(()) } else { Err(CHANGED) }
            }
            // Only the directory record's own rank cedes names and adopts files.
            Edit::CedeNames { .. } | Edit::AdoptFiles { .. } => Err(Errno::EINVAL.into()),
            Edit::GiveFiles { dir, inodes, .. } => self.check_movable(*dir, inodes),
            Edit::Relocate { from, inodes, .. } => self.check_relocated(*from, inodes),
            Edit::AcceptNames { fragment, .. } => {
                self.growable()?;
                // Two prepared steps of a transfer could be carried out in the wrong order.
                if makes(&edits[..at], *fragment) { Ok(()) } else { self.state.dir(*fragment).map(drop) }
            }
            Edit::MoveNames { from, inodes, .. } => {
                inodes.iter().try_for_each(|ino| is_named(self.state.cached(*ino)?, *from))
            }
            Edit::SetMap { dir, after, map, .. } => {
                // Another rank may know servers that have just joined.
                let ranks = self.config.ranks.max(map.servers() as u16);
                if !map.is_sound(*dir, ranks) || map.version() < *after {
                    return Err(Errno::EINVAL.into());
                }
                check_map(self.state.dir(*dir)?, *after)
            }
            Edit::SetRights { ino, .. } => self.state.dir(*ino).map(drop),
        }
    }

    fn check_link(&self, ino: Ino) -> Step<()> {
        if self.sessions.in_grace() && !self.state.inodes.contains_key(&ino) {
            // Its client may not have reclaimed its location yet.
            return Err(Stop::Wait(Wait::Grace));
        }
        let cached = self.state.cached(ino)?;
        if cached.inode.is_dir() || cached.inode.has_no_metafile() {
            return Err(Errno::EPERM.into());
        }
        check_not(&cached.inode, InodeFlags::PROTECTED)?;
        if cached.inode.nlink == 0 && !cached.nameless {
            return Err(Errno::ENOENT.into());
        }
        if cached.inode.nlink == u32::MAX { Err(Errno::EMLINK.into()) } else { Ok(()) }
    }

    fn check_dir(&self, cx: &Cx<'_>, dir: Ino) -> Step<()> {
        let parent = self.state.dir(dir)?;
        if parent.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        self.state.check_blocked(dir)?;
        cx.check_change(parent)
    }

    /// Commits or aborts a prepared part.
    fn decide(&mut self, cx: &mut Cx<'_>, id: TransactionId, commit: bool) -> Step<Final<'_>> {
        let Some(part) = self.state.prepared(id).map(|(part, _)| part.clone()) else {
            return Ok(Final::of(Reply::Done));
        };
        let locks = self.state.locks.take();
        let loaded = if commit { self.state.load_edits(&part.edits) } else { Ok(()) };
        self.state.locks = locks;
        loaded?;
        let edits = if commit { &part.edits[..] } else { &[] };
        self.append_part(edits, &Event::Decided { id, commit })?;
        Ok(Final::of(self.decided_part(cx, id, commit, &part)))
    }

    fn decided_part(&mut self, cx: &mut Cx<'_>, id: TransactionId, commit: bool, part: &Part) -> Reply {
        self.pulls.counts.given += if commit { part.given().len() as u64 } else { 0 };
        self.state.unlock(part.age(id));
        // The barrier was held since the leases were revoked, so nobody has been granted one
        // meanwhile.
        if let (Some(leases), Some(mut barriers)) = (&mut self.leases, self.ranks.barriers.remove(&id)) {
            leases.lift_barriers(&mut barriers);
            self.streams_changed += 1;
        }
        nameless(&part.edits).into_iter().for_each(|ino| self.name_taken(cx, ino));
        Reply::Done
    }
}

/// Checks that an inode has a name in a directory.
fn is_named(cached: &Cached, dir: Ino) -> Step<()> {
    let is_named = match (&cached.inode.body, cached.location) {
        (_, Location::Orphan) => false,
        (Body::Directory(directory), _) => directory.parent == dir,
        (_, Location::Dentry { dir: lies, .. }) => lies == dir,
        (_, Location::Table) => {
            cached.inode.rare.names.iter().flat_map(|names| names.iter()).any(|(at, _)| *at == dir)
        }
    };
    if is_named { Ok(()) } else { Err(CHANGED) }
}

/// Checks that a directory exists and has this version of its fragment map.
fn check_map(inode: &Inode, version: u32) -> Step<()> {
    let is_as_found = inode.fragment_map().map_or(0, FragmentMap::version) == version;
    if is_as_found && inode.nlink > 0 { Ok(()) } else { Err(CHANGED) }
}

/// Checks that a name of an inode may be removed or renamed: only by its owner, if `owner` is
/// given.
fn check_taken(inode: &Inode, owner: Option<u32>) -> Step<()> {
    check_not(inode, InodeFlags::PROTECTED)?;
    check_coupled(inode)?;
    match owner {
        Some(uid) if inode.uid != uid => Err(Errno::EPERM.into()),
        _ => Ok(()),
    }
}
