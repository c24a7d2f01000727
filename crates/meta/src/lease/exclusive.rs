//! Exclusive leases: what happens in a directory that only one client knows nobody else can see. So that client may make and remove
//! files in it and tell its callers before the server has answered, as CephFS's clients do with asynchronous creates and unlinks.
//! Before anybody else comes to know the directory its client gives the lease up, which it does when all that it has told is done.

use espalier_proto::{ClientId, Errno, Ino, Request};

use super::table::{Key, Leases};
use crate::config::Atime;
use crate::journal::Acknowledge;
use crate::machine::{Cx, Meta};
use crate::record::{Body, Inode};
use crate::step::{Step, Stop, Wait};
use crate::trash::ITSELF;

impl Meta {
    /// Whether nobody but a client knows an inode, or has it open, as far as answers have been given.
    pub(crate) fn is_alone_with(&self, client: ClientId, ino: Ino) -> bool {
        let Some(cached) = self.state.inodes.get(&ino).filter(|_| !self.sessions.in_grace()) else {
            return false;
        };
        self.sessions.holds(client, ino, cached.lookups, cached.opens)
    }

    /// Whether an inode is a file that has its only name in a directory, and that nobody but a client knows.
    pub(crate) fn is_alone_with_file_in(&self, client: ClientId, dir: Ino, ino: Ino) -> bool {
        let cached = self.state.inodes.get(&ino);
        cached.is_some_and(|cached| cached.inode.nlink == 1 && cached.parents() == [(dir, 1)])
            && self.is_alone_with(client, ino)
    }

    /// Whether a client may be given an exclusive lease on a directory.
    pub(super) fn may_be_alone_in(&self, client: ClientId, dir: Ino) -> bool {
        let is_trusted = self.makes_early(client) && self.config.acknowledge != Acknowledge::Durable;
        // Every client knows the root, though it was never told. Who knows what a file holds, for he wrote it, tells of no reads.
        is_trusted
            && self.config.atime != Atime::Always
            && dir != Ino::ROOT
            && self.sessions.is_told_of(client, dir)
            && self.is_alone_with(client, dir)
            && self.state.inodes.get(&dir).is_some_and(|cached| self.is_plain(&cached.inode))
            && self.state.is_removed(dir) == Ok(false)
            && self.state.limits_below(dir).is_ok_and(|limits| !limits.is_any())
            && self.has_space_to_spare()
    }

    /// Whether a file that is made in a directory is stuffed and made by the server, and takes nothing from it but a group.
    fn is_plain(&self, dir: &Inode) -> bool {
        matches!(dir.body, Body::Directory(_))
            && dir.nlink > 0
            && dir.default_acl.is_none()
            && self.is_stuffed_in(dir)
            && !self.wants_clients_to_make(dir)
    }

    /// The caller's client is about to be told of a directory, or an operation depends on what is in it: nobody else is to go on having
    /// an exclusive lease on it.
    pub(crate) fn share(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<()> {
        if self.leases.is_none() || self.sessions.is_told_of(cx.client, dir) {
            return Ok(());
        }
        // Whoever has not said yet what he has may have told his callers what is not done yet.
        if self.may_have_told_early() {
            return Err(Stop::Wait(Wait::Grace));
        }
        self.revoke_all(cx, &|_, see| {
            see(Key::exclusive(dir), None);
            Ok(())
        })
    }

    /// Something comes that may refuse what any client has told already.
    pub(crate) fn share_all(&mut self, cx: &mut Cx<'_>) -> Step<()> {
        if self.may_have_told_early() {
            return Err(Stop::Wait(Wait::Grace));
        }
        let Some(leases) = &mut self.leases else { return Ok(()) };
        for dir in leases.exclusive() {
            let key = Key::exclusive(dir);
            // That of the caller's own client, too.
            if leases.revoke(ITSELF, key, None, cx.uptime_ms) {
                leases.claim(cx.claims, key);
                return Err(Stop::Wait(Wait::Lease(key)));
            }
        }
        Ok(())
    }

    /// Whether quotas allow what a client does in a directory; which they do if it has told its caller that it is done while it was alone
    /// there. Whoever sets a quota waits for that, but one that is set at another rank may become known here only afterwards.
    pub(crate) fn unless_told(&self, cx: &Cx<'_>, dir: Ino, allowed: Step<()>) -> Step<()> {
        let is_alone = |leases: &Leases| leases.is_held_by(cx.client, Key::exclusive(dir));
        match allowed {
            Err(Stop::Fail(Errno::EDQUOT)) if cx.is_told && self.leases.as_ref().is_some_and(is_alone) => {
                Ok(())
            }
            allowed => allowed,
        }
    }

    /// Whether quotas allow a file to have so many bytes; as [`Self::unless_told`].
    pub(crate) fn admit_size(&self, cx: &Cx<'_>, ino: Ino, size: u64) -> Step<()> {
        let Err(stop) = self.state.admit_size(ino, size) else { return Ok(()) };
        let parents = self.state.load_parents(ino)?;
        self.unless_told(cx, parents.first().map_or(ino, |(dir, _)| *dir), Err(stop))
    }

    /// Makes a lease on a directory an exclusive one. Whether that could be.
    pub(crate) fn give_exclusive(&mut self, client: ClientId, dir: Ino, now: u64) -> bool {
        let Some(leases) = &mut self.leases else { return false };
        let keys = [Key::exclusive(dir)];
        if !leases.is_free(keys[0], &[]) {
            return false;
        }
        let turn = leases.promise(client, &keys, now);
        leases.keep(client, &keys, turn, now)
    }

    /// Whether a client wants to tell its callers of changes before it is answered.
    fn makes_early(&self, client: ClientId) -> bool {
        self.state.sessions.get(&client).is_some_and(|kept| kept.unused.len() > 0)
    }

    /// Whether some client may have told its callers, before the machine began, of what it has not said yet.
    fn may_have_told_early(&self) -> bool {
        self.sessions.leases_may_last()
            && self.sessions.awaited_clients().any(|client| self.makes_early(client))
    }
}

/// The directory in which a request looks for a name, or makes or removes one; or in which its client wants to be alone.
pub(super) fn named_dir(request: &Request) -> Option<Ino> {
    match request {
        Request::Lookup { dir, .. }
        | Request::Create { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::RmDir { dir, .. }
        | Request::ReadDir { dir, .. } => Some(*dir),
        Request::Renew { alone_in, .. } => *alone_in,
        _ => None,
    }
}
