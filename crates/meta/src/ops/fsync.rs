//! `fsync`.

use espalier_proto::{Errno, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::{Step, StreamCall};

impl Meta {
    /// `fsync`. Answered when all changes so far are durable, including this file's and its name's.
    pub(crate) fn fsync(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        if self.journal.broken.is_some() {
            return Err(Errno::EIO.into());
        }
        if self.state.inode(ino)?.is_streamed() && !self.config.read_only {
            cx.stream(StreamCall::Sync { ino })?;
        }
        cx.durable = true;
        Ok(Reply::Done)
    }
}
