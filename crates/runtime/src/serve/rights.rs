//! What a client may do, whoever calls through it.

use std::collections::HashMap;

use espalier_net::Identity;
use espalier_proto::{Caller, Errno, Request, StreamIo};
use serde::{Deserialize, Serialize};

/// Who may connect, and what they may do then.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// By the names in the clients' certificates; others may do everything.
    pub clients: HashMap<String, Rights>,
}

impl Access {
    /// The rights of a client; `None`: one that need not show who it is.
    ///
    /// # Errors
    /// Why it may not connect.
    pub fn of(&self, identity: Option<&Identity>) -> Result<Rights, &'static str> {
        match identity {
            None => Ok(Rights::default()),
            Some(Identity::Client(name)) => Ok(self.clients.get(name).cloned().unwrap_or_default()),
            Some(Identity::Server(_)) => {
                Err("this certificate is a server's: use one that was made for a client")
            }
        }
    }
}

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rights {
    /// It may change nothing.
    pub read_only: bool,
    /// Its superusers are nobody.
    pub root_squash: bool,
}

impl Rights {
    /// As which user Linux's NFS server, too, lets squashed superusers act.
    const NOBODY: u32 = 65534;

    /// Whether the client may ask for this.
    ///
    /// # Errors
    /// `EROFS`, and `EINVAL` for what no client would ask.
    pub fn check(&self, request: &Request) -> Result<(), Errno> {
        request.check()?;
        if self.read_only && request.is_change() { Err(Errno::EROFS) } else { Ok(()) }
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
        if self.root_squash && (caller.uid == 0 || caller.gid == 0) {
            let squashed = |id| if id == 0 { Self::NOBODY } else { id };
            let groups = caller.groups.map(|groups| groups.iter().copied().filter(|gid| *gid != 0).collect());
            return Caller { uid: squashed(caller.uid), gid: squashed(caller.gid), pid: caller.pid, groups };
        }
        caller
    }
}
