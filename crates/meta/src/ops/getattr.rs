//! `stat`.

use espalier_proto::{Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    pub(crate) fn getattr(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let (mut attr, unmeasured) = self.attr_or_grant(cx, ino)?;
        if !self.note_attr(cx, &mut attr) {
            cx.read_set.refuse();
        }
        Ok(Reply::Attr(attr).unless_unmeasured(unmeasured))
    }
}
