//! `readlink`.

use espalier_proto::{Errno, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::record::Body;
use crate::step::Step;

impl Meta {
    pub(crate) fn readlink(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let Body::Symlink(target) = &self.state.inode(ino)?.body else { return Err(Errno::EINVAL.into()) };
        let target = target.to_vec();
        self.note_inode(cx, ino);
        self.accessed(cx, ino)?;
        Ok(Reply::Bytes(target.into()))
    }
}
