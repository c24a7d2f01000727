//! Exclusive leases on directories: the precondition of metadata write-back. The holder
//! acknowledges creates, renames, small writes and unlinks in the directory before the server has
//! applied them (CephFS: asynchronous dirops).
//!
//! Invariant: before another client observes the directory, the server revokes the exclusive lease,
//! and the holder flushes its pending operations before it acknowledges the revocation.

use espalier_proto::{ClientId, Errno, Ino, NewNode, Reply, Request};

use super::table::{LeaseKey, Leases};
use crate::config::Atime;
use crate::machine::{Cx, Meta};
use crate::record::{Body, Inode};
use crate::step::{Step, Stop, Wait};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

impl Meta {
    /// True if `client` is the only one that caches `ino` or has it open, as far as replies have
    /// been sent. False during the grace period, when not all clients have reclaimed.
    pub(crate) fn is_sole_holder(&self, client: ClientId, ino: Ino) -> bool {
        let Some(cached) = self.state.inodes.get(&ino).filter(|_| !self.sessions.in_grace()) else {
            return false;
        };
        self.sessions.holds(client, ino, cached.lookups, cached.opens)
    }

    /// True if `ino` is a file whose only name is in `dir`, and `client` is the only one that
    /// caches it or has it open.
    pub(crate) fn is_sole_holder_of_file_in(&self, client: ClientId, dir: Ino, ino: Ino) -> bool {
        let cached = self.state.inodes.get(&ino);
        cached.is_some_and(|cached| cached.inode.nlink == 1 && cached.parents() == [(dir, 1)])
            && self.is_sole_holder(client, ino)
    }

    /// Preconditions for an exclusive lease on `dir` (docs/leases.md).
    pub(super) fn may_grant_exclusive(&self, client: ClientId, dir: Ino) -> bool {
        let is_trusted = self.wants_writeback(client) && self.config.writeback;
        // Every client knows the root without a lookup. An exclusive holder serves reads of files
        // that it wrote from its cache and reports no accesses, so `Atime::Always` excludes
        // exclusive leases.
        is_trusted
            && self.config.atime != Atime::Always
            && dir != Ino::ROOT
            && self.sessions.is_known_to(client, dir)
            && self.is_sole_holder(client, dir)
            && self.state.inodes.get(&dir).is_some_and(|cached| self.is_plain(&cached.inode))
            && self.state.is_removed(dir) == Ok(false)
            && self.state.check_blocked(dir).is_ok()
            && self.state.limits_below(dir).is_ok_and(|limits| !limits.is_any())
            && self.has_space_to_spare()
    }

    /// True if the server creates the files of `dir` and stuffs them, and they inherit at most a
    /// group.
    fn is_plain(&self, dir: &Inode) -> bool {
        matches!(dir.body, Body::Directory(_))
            && dir.nlink > 0
            && dir.decoupled().is_none()
            && dir.default_acl.is_none()
            && self.is_stuffed_in(dir)
            && !self.wants_clients_to_make(dir)
    }

    /// Revokes other clients' exclusive lease on `dir` before the caller's client observes the
    /// directory, or before the outcome of an operation depends on its entries. Waits for the end
    /// of the grace period while a client that has not reclaimed may have pending operations.
    pub(crate) fn revoke_exclusive(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<()> {
        if self.leases.is_none() || self.sessions.is_known_to(cx.client, dir) {
            return Ok(());
        }
        // A client that has not reclaimed yet may have acknowledged operations that are not applied
        // yet.
        if self.may_have_pending() {
            return Err(Stop::Wait(Wait::Grace));
        }
        self.revoke_all(cx, &|_, see| {
            see(LeaseKey::Exclusive(dir), None);
            Ok(())
        })
    }

    /// Revokes all exclusive leases before a change that could reject operations that a holder has
    /// already acknowledged, as a new quota can.
    pub(crate) fn revoke_all_exclusive(&mut self, cx: &mut Cx<'_>) -> Step<()> {
        self.revoke_exclusive_of(cx, None)
    }

    /// Revokes the exclusive leases of a client that has the number of an unknown inode in its
    /// pool: it may have acknowledged the creation.
    pub(crate) fn revoke_for_number(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        if self.leases.is_none() || self.state.inodes.contains_key(&ino) {
            return Ok(());
        }
        match self.state.owner_of_unused(ino).filter(|owner| *owner != cx.client) {
            Some(owner) => self.revoke_exclusive_of(cx, Some(owner)),
            None => Ok(()),
        }
    }

    /// Revokes the exclusive leases of a client; `None`: of all clients.
    fn revoke_exclusive_of(&mut self, cx: &mut Cx<'_>, client: Option<ClientId>) -> Step<()> {
        if self.may_have_pending() {
            return Err(Stop::Wait(Wait::Grace));
        }
        let Some(leases) = &mut self.leases else { return Ok(()) };
        let mut held = None;
        for dir in leases.exclusive() {
            let key = LeaseKey::Exclusive(dir);
            if client.is_some_and(|client| !leases.is_held_by(client, key)) {
                continue;
            }
            // Includes the lease of the caller's own client.
            if leases.revoke(INTERNAL_CLIENT, key, None, cx.uptime_ms) {
                leases.raise_barrier(cx.barriers, key);
                held = Some(key);
            }
        }
        // The operation starts over when this key is free, and then waits for the next one.
        held.map_or(Ok(()), |key| Err(Stop::Wait(Wait::Lease(key))))
    }

    /// Overrides `EDQUOT` for operations that the exclusive holder has already acknowledged to its
    /// caller. Setting a quota revokes exclusive leases first, but a quota that is set at another
    /// rank becomes known at this rank only later.
    pub(crate) fn allow_if_acknowledged(&self, cx: &Cx<'_>, dir: Ino, allowed: Step<()>) -> Step<()> {
        let is_exclusive = |leases: &Leases| leases.is_held_by(cx.client, LeaseKey::Exclusive(dir));
        match allowed {
            Err(Stop::Fail(Errno::EDQUOT))
                if cx.is_acknowledged && self.leases.as_ref().is_some_and(is_exclusive) =>
            {
                Ok(())
            }
            allowed => allowed,
        }
    }

    /// Checks quotas for a file that grows to `size` bytes, with the exception of
    /// [`Self::allow_if_acknowledged`].
    pub(crate) fn admit_size(&self, cx: &Cx<'_>, ino: Ino, size: u64) -> Step<()> {
        let Err(stop) = self.state.admit_size(ino, size) else { return Ok(()) };
        let parents = self.state.load_parents(ino)?;
        self.allow_if_acknowledged(cx, parents.first().map_or(ino, |(dir, _)| *dir), Err(stop))
    }

    /// Upgrades a client's lease on `dir` to an exclusive one. Returns false if the lease cannot be
    /// granted.
    pub(crate) fn grant_exclusive(&mut self, client: ClientId, dir: Ino, now: u64) -> bool {
        let Some(leases) = &mut self.leases else { return false };
        let keys = [LeaseKey::Exclusive(dir)];
        if !leases.is_free(keys[0], &[]) {
            return false;
        }
        let epoch = leases.prepare_grant(client, &keys, now);
        leases.finish_grant(client, &keys, epoch, now)
    }

    /// Grants the exclusive lease on a directory that its client has created under write-back in an
    /// exclusive one, and may have filled: no other client can have observed it.
    pub(crate) fn grant_created(&mut self, task: &Task, result: &Result<Reply, Errno>, now: u64) {
        let Request::Create { dir, node: NewNode::Directory, writeback: Some(_), .. } = task.request else {
            return;
        };
        if let (Some(leases), Ok(Reply::Entry(entry))) = (&mut self.leases, result)
            && leases.is_held_by(task.from, LeaseKey::Exclusive(dir))
        {
            let keys = [LeaseKey::Exclusive(entry.attr.ino)];
            let epoch = leases.prepare_grant(task.from, &keys, now);
            leases.finish_grant(task.from, &keys, epoch, now);
        }
    }

    /// True if the client uses metadata write-back: it has a pool of inode numbers.
    fn wants_writeback(&self, client: ClientId) -> bool {
        self.state.sessions.get(&client).is_some_and(|persisted| persisted.unused.len() > 0)
    }

    /// True if a client that has not reclaimed yet may have acknowledged operations, before the
    /// restart, that are not applied yet.
    fn may_have_pending(&self) -> bool {
        self.sessions.leases_may_last()
            && self.sessions.awaited_clients().any(|client| self.wants_writeback(client))
    }
}

/// The directory in which a request looks up, creates, removes, renames or lists names, or on which
/// its client asks for an exclusive lease.
pub(super) fn named_dir(request: &Request) -> Option<Ino> {
    match request {
        Request::Lookup { dir, .. }
        | Request::Create { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::RmDir { dir, .. }
        | Request::ReadDir { dir, .. } => Some(*dir),
        Request::Rename { from_dir, to_dir, .. } => Some(*from_dir).filter(|_| from_dir == to_dir),
        Request::Renew { exclusive_dir, .. } => *exclusive_dir,
        _ => None,
    }
}
