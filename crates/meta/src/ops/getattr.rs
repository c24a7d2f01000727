use espalier_proto::{Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    pub(crate) fn getattr(&mut self, cx: &Cx<'_>, ino: Ino) -> Step<Reply> {
        Ok(Reply::Attr(self.attr(cx, self.state.inode(ino)?)?))
    }
}
