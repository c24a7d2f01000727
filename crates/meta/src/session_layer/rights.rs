//! Rights of a client: what it may do, whichever user calls through it.

use alloc::sync::Arc;

use espalier_proto::{Caller, Errno, Request, StreamIo};
use serde::{Deserialize, Serialize};

use super::subtree::Subtree;

/// The rights of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rights {
    /// The client may not connect.
    pub refused: bool,
    /// The client may change nothing.
    pub read_only: bool,
    /// Superusers of the client act as nobody.
    pub root_squash: bool,
    /// The client sees only this directory and what is below it; the directory is the client's
    /// root.
    pub subtree: Option<Subtree>,
}

impl Rights {
    /// Uid and gid of squashed superusers, as in Linux's NFS server.
    const NOBODY: u32 = 65534;

    /// Checks that the client may send this request.
    ///
    /// # Errors
    /// `EROFS`, `EPERM`, and `EINVAL` for malformed requests.
    pub fn check(&self, request: &Request) -> Result<(), Errno> {
        request.check()?;
        // A squashed client cannot check permissions: it does not know as which user its callers
        // act.
        let is_early = matches!(request, Request::TakeNumbers { .. });
        match (self.read_only && request.is_change(), self.root_squash && is_early) {
            (true, _) => Err(Errno::EROFS),
            (_, true) => Err(Errno::EPERM),
            _ => Ok(()),
        }
    }

    /// As [`Self::check`], for a stream request. `data`: the bytes to write.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_stream(&self, io: &StreamIo, data: &[u8]) -> Result<(), Errno> {
        io.check(data)?;
        if self.read_only && io.op.is_change() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// The caller as the server sees it, after squashing.
    pub fn caller(&self, caller: Caller) -> Caller {
        if self.root_squash {
            let squashed = |id| if id == 0 { Self::NOBODY } else { id };
            let groups = caller.groups.map(|groups| self.groups(groups));
            return Caller { uid: squashed(caller.uid), gid: squashed(caller.gid), pid: caller.pid, groups };
        }
        caller
    }

    /// The caller's supplementary groups after squashing.
    pub fn groups(&self, groups: Arc<[u32]>) -> Arc<[u32]> {
        if self.root_squash { groups.iter().copied().filter(|gid| *gid != 0).collect() } else { groups }
    }
}

#[cfg(test)]
mod tests {
    use espalier_proto::Ino;

    use super::*;

    #[test]
    fn squashed_superuser_has_no_root_group() {
        let rights = Rights { root_squash: true, ..Rights::default() };
        let caller = |uid, gid, groups: &[u32]| Caller { uid, gid, pid: 1, groups: Some(groups.into()) };
        assert_eq!(rights.caller(caller(0, 0, &[0, 5])), caller(65534, 65534, &[5]));
        assert_eq!(rights.caller(caller(7, 8, &[9])), caller(7, 8, &[9]));
        assert_eq!(rights.caller(caller(7, 8, &[0, 9])), caller(7, 8, &[9]), "whatever the client says");
        assert_eq!(Rights::default().caller(caller(0, 0, &[0])), caller(0, 0, &[0]));
    }

    #[test]
    fn read_only_client_changes_nothing() {
        let rights = Rights { read_only: true, ..Rights::default() };
        let ino = Ino(2);
        assert_eq!(rights.check(&Request::GetAttr { ino }), Ok(()));
        assert_eq!(rights.check(&Request::RemoveTree { dir: ino }), Err(Errno::EROFS));
        assert_eq!(rights.check_stream(&StreamIo::write(ino, 0, 1), b"x"), Err(Errno::EROFS));
        assert_eq!(rights.check_stream(&StreamIo::read(ino, 0, 1), b""), Ok(()));
    }
}
