//! What a client may do, whoever calls through it.

use alloc::sync::Arc;

use espalier_proto::{Caller, Errno, Request, StreamIo};
use serde::{Deserialize, Serialize};

use super::subtree::Subtree;

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rights {
    /// It may not connect.
    pub refused: bool,
    /// It may change nothing.
    pub read_only: bool,
    /// Its superusers are nobody.
    pub root_squash: bool,
    /// It may use what is in this directory and below, which is the root to it.
    pub subtree: Option<Subtree>,
}

impl Rights {
    /// As which user Linux's NFS server, too, lets squashed superusers act.
    const NOBODY: u32 = 65534;

    /// Whether the client may ask for this.
    ///
    /// # Errors
    /// `EROFS`, `EPERM`, and `EINVAL` for what no client would ask.
    pub fn check(&self, request: &Request) -> Result<(), Errno> {
        request.check()?;
        // It does not know as whom its callers act, nor so what they may do.
        let is_early = matches!(request, Request::TakeNumbers { .. });
        match (self.read_only && request.is_change(), self.root_squash && is_early) {
            (true, _) => Err(Errno::EROFS),
            (_, true) => Err(Errno::EPERM),
            _ => Ok(()),
        }
    }

    /// As [`Self::check`], for a stream. `data`: what is to be written.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_stream(&self, io: &StreamIo, data: &[u8]) -> Result<(), Errno> {
        io.check(data)?;
        if self.read_only && io.is_change() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// As whom a caller acts.
    pub fn caller(&self, caller: Caller) -> Caller {
        if self.root_squash {
            let squashed = |id| if id == 0 { Self::NOBODY } else { id };
            let groups = caller.groups.map(|groups| self.groups(groups));
            return Caller { uid: squashed(caller.uid), gid: squashed(caller.gid), pid: caller.pid, groups };
        }
        caller
    }

    /// In which supplementary groups a caller acts that is in these.
    pub fn groups(&self, groups: Arc<[u32]>) -> Arc<[u32]> {
        if self.root_squash { groups.iter().copied().filter(|gid| *gid != 0).collect() } else { groups }
    }
}

#[cfg(test)]
mod tests {
    use espalier_proto::Ino;

    use super::*;

    #[test]
    fn a_squashed_superuser_is_nobody_with_no_group_of_root() {
        let rights = Rights { root_squash: true, ..Rights::default() };
        let caller = |uid, gid, groups: &[u32]| Caller { uid, gid, pid: 1, groups: Some(groups.into()) };
        assert_eq!(rights.caller(caller(0, 0, &[0, 5])), caller(65534, 65534, &[5]));
        assert_eq!(rights.caller(caller(7, 8, &[9])), caller(7, 8, &[9]));
        assert_eq!(rights.caller(caller(7, 8, &[0, 9])), caller(7, 8, &[9]), "whatever the client says");
        assert_eq!(Rights::default().caller(caller(0, 0, &[0])), caller(0, 0, &[0]));
    }

    #[test]
    fn who_may_only_read_changes_nothing() {
        let rights = Rights { read_only: true, ..Rights::default() };
        let ino = Ino(2);
        assert_eq!(rights.check(&Request::GetAttr { ino }), Ok(()));
        assert_eq!(rights.check(&Request::RemoveTree { dir: ino }), Err(Errno::EROFS));
        assert_eq!(
            rights.check_stream(&StreamIo::Write { ino, offset: 0, told: false }, b"x"),
            Err(Errno::EROFS)
        );
        assert_eq!(rights.check_stream(&StreamIo::Read { ino, offset: 0, size: 1 }, b""), Ok(()));
    }
}
