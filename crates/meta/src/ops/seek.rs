use espalier_proto::{Errno, Ino, Reply, SeekWhat};

use crate::machine::{Cx, Meta};
use crate::record::Body;
use crate::step::Step;

impl Meta {
    /// `SEEK_DATA` and `SEEK_HOLE` in a stuffed file: what is kept is data, the rest is a hole.
    pub(crate) fn seek(&mut self, _: &Cx<'_>, ino: Ino, offset: u64, what: SeekWhat) -> Step<Reply> {
        let (size, stored) = match self.state.inode(ino)?.body {
            Body::Stuffed { size, stored } => (size, u64::from(stored)),
            Body::Streamed { .. } | Body::Striped { .. } => return Ok(Reply::Streamed),
            _ => return Err(Errno::EINVAL.into()),
        };
        match what {
            _ if offset >= size => Err(Errno::ENXIO.into()),
            SeekWhat::Data if offset >= stored => Err(Errno::ENXIO.into()),
            SeekWhat::Data => Ok(Reply::Offset(offset)),
            SeekWhat::Hole => Ok(Reply::Offset(offset.max(stored))),
        }
    }
}
