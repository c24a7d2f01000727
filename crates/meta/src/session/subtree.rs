//! Clients restricted to a subtree. Such a client reaches only its root and what it has found from
//! there, since a request may name no inode that its session does not hold. An inode that another
//! rank has returned to the client is unknown here: this rank checks that it lies below the
//! client's root when a request first names it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Caller, ClientId, Errno, FileType, Ino, Name, Rank, Reply, Request, RequestId};

use super::{Hold, SessionState};
use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::rank::{PeerAnswer, Question};
use crate::record::Referent;
use crate::step::{Step, Stop};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

impl Meta {
    /// Restricts a client to the directory at `path`. The result appears in [`Outbox::entered`].
    pub(crate) fn restrict(&mut self, now: Now, client: ClientId, path: Box<[Name]>, out: &mut Outbox) {
        let request = Request::Enter { client, path };
        self.run(now, Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, request), None, out);
    }

    pub(crate) fn enter(&mut self, cx: &mut Cx<'_>, client: ClientId, path: &[Name]) -> Step<Reply> {
        let (mut root, own) = (Ino::ROOT, self.config.rank);
        for name in path {
            let dir = self.query_map(cx, root)?.fragment(self.state.slot(name).hash);
            let target = if dir.rank() == own {
                self.state.dir(dir)?;
                match self.whose_name(dir, name) {
                    Err(Stop::Misrouted(_)) => return Err(Errno::EAGAIN.into()),
                    target => target?,
                }
            } else {
                let question = Question::Look { dir, name: name.clone() };
                match self.query_rank(cx, dir.rank(), question)? {
                    PeerAnswer::Found { target, .. } => target,
                    // The fragment has split meanwhile.
                    PeerAnswer::Misrouted { .. } => return Err(Errno::EAGAIN.into()),
                    _ => return Err(Errno::EIO.into()),
                }
            };
            match target.ok_or(Errno::ENOENT)? {
                Referent { ino, kind: FileType::Directory, .. } => root = ino,
                _ => return Err(Errno::ENOTDIR.into()),
            }
        }
        let is_here = root.rank() == own;
        if is_here {
            self.state.dir(root)?;
            self.revoke_exclusive(cx, root)?;
        }
        let session = self.sessions.clients.get_mut(&client).ok_or(Errno::ESTALE)?;
        if session.root == Some(root) {
            return Ok(Reply::Done);
        }
        // The hold keeps the root findable by number.
        let hold = Hold::LOOKUP;
        if let Some(cached) = self.state.inodes.untracked(&root).filter(|_| is_here) {
            cached.lookups += 1;
            session.hold(root, hold);
        }
        if let Some(before) = session.root.replace(root) {
            let unwanted = session.release_held(before, hold);
            self.sessions.abandoned.push_back((before, unwanted));
        }
        Ok(Reply::Done)
    }

    /// The directory that a client is restricted to; `None`: no restriction.
    pub fn root_of(&self, client: ClientId) -> Option<Ino> {
        self.sessions.clients.get(&client)?.root
    }

    /// The parent of `dir` as the client sees it: its root is its own parent.
    pub(crate) fn parent_for(&self, client: ClientId, dir: Ino, parent: Ino) -> Ino {
        let Some(root) = self.root_of(client) else { return parent };
        let is_outside = parent.rank() == self.config.rank && !self.knows(client, parent);
        if dir == root || is_outside { root } else { parent }
    }

    /// Checks that a request stays within the client's subtree, for inodes that its session does
    /// not hold.
    ///
    /// # Errors
    /// `ESTALE` for inodes outside.
    pub(crate) fn keep_within(&mut self, cx: &mut Cx<'_>, request: &mut Request) -> Step<()> {
        let Some(session) = self.sessions.clients.get(&cx.client) else { return Ok(()) };
        let Some(root) = session.root else { return Ok(()) };
        for ino in session.named_by_other_ranks(self.config.rank, request) {
            if ino.rank() == self.config.rank {
                self.state.locate(ino)?;
            }
            match self.is_within(cx, ino, root) {
                Ok(true) => {}
                // Reveals nothing about inodes outside, not even their type.
                Ok(false) | Err(Stop::Fail(Errno::ENOENT | Errno::ENOTDIR)) => {
                    return Err(Errno::ESTALE.into());
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// True if an inode is the directory `top` or lies below it, by any of its names.
    fn is_within(&mut self, cx: &mut Cx<'_>, ino: Ino, top: Ino) -> Step<bool> {
        if ino == top {
            return Ok(true);
        }
        let mut after = Ino(0);
        loop {
            let at = self.rank_of(cx, ino)?;
            let dirs = if at == self.config.rank {
                self.dirs_of(ino, after)?
            } else {
                match self.query_rank(cx, at, Question::Dirs { ino, after })? {
                    PeerAnswer::Dirs { dirs } => dirs,
                    _ => return Err(Errno::EIO.into()),
                }
            };
            let Some(last) = dirs.last().copied() else { return Ok(false) };
            for dir in dirs {
                if self.is_below(cx, dir, top)? {
                    return Ok(true);
                }
            }
            after = last;
        }
    }
}

impl SessionState {
    /// Checks that a request stays within the client's subtree, except for inodes that other ranks
    /// may have returned.
    pub(super) fn permits(&self, (rank, ranks): (Rank, u16), request: &mut Request) -> Result<(), Errno> {
        let Some(root) = self.root else { return Ok(()) };
        let may_be_unknown = match request {
            Request::Find { ino, .. } => ino.rank() == rank,
            _ => ranks > 1,
        };
        let from_other_ranks =
            if may_be_unknown { self.named_by_other_ranks(rank, request) } else { Vec::new() };
        let mut is_known = true;
        request
            .each_inode(&mut |ino| is_known &= self.held.contains_key(ino) || from_other_ranks.contains(ino));
        match request {
            _ if !is_known => Err(Errno::ESTALE),
            Request::RemoveTree { dir } if *dir == root => Err(Errno::EBUSY),
            // Its steps name directories that the client has not looked up.
            Request::CopyTree(_) => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }

    /// The inodes of a request that the session does not hold and that another rank may have
    /// returned.
    fn named_by_other_ranks(&self, rank: Rank, request: &mut Request) -> Vec<Ino> {
        let (is_find, mut inos) = (matches!(request, Request::Find { .. }), Vec::new());
        request.each_inode(&mut |ino| {
            if (is_find || ino.rank() != rank) && !self.held.contains_key(ino) {
                inos.push(*ino);
            }
        });
        inos
    }
}
