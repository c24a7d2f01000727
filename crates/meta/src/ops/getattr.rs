//! `stat`.

use espalier_proto::{Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    pub(crate) fn getattr(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let (attr, unmeasured) = self.attr_or_grant(cx, ino)?;
        self.note_inode(cx, ino);
        Ok(Reply::Attr(attr).unless_unmeasured(unmeasured))
    }
}
