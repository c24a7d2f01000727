//! `syncfs`.

use espalier_proto::{Errno, Rank, Reply};

use crate::machine::{Cx, Meta};
use crate::step::{Step, StreamCall};

impl Meta {
    /// Answered when all changes so far and the bytes of all files are durable.
    pub(crate) fn syncfs(&mut self, cx: &mut Cx<'_>, rank: Rank) -> Step<Reply> {
        if rank != self.config.rank {
            return Err(Errno::EINVAL.into());
        }
        if self.journal.broken.is_some() {
            return Err(Errno::EIO.into());
        }
        if !self.config.read_only {
            cx.stream(StreamCall::SyncStore)?;
            if self.config.striping.is_some() {
                cx.stream(StreamCall::SyncServers)?;
            }
        }
        cx.durable = true;
        Ok(Reply::Done)
    }
}
