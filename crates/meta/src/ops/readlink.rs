//! `readlink`.

use espalier_proto::{Errno, Ino, Reply};

use crate::machine::{Cx, Final, Meta};
use crate::record::Body;
use crate::step::Step;

impl Meta {
    pub(crate) fn readlink(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Final<'_>> {
        let Body::Symlink(target) = &self.state.inode(ino)?.body else { return Err(Errno::EINVAL.into()) };
        let target = target.to_vec();
        let access = self.atime_update(cx, ino)?;
        self.commit_all(cx, access.as_slice(), |meta, cx| {
            meta.note_inode(cx, ino);
            Reply::Bytes(target.into())
        })
    }
}
