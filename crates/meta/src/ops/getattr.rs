//! `stat`.

use alloc::boxed::Box;

use espalier_proto::{Attr, Delegation, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    pub(crate) fn getattr(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let (attr, unmeasured) = self.attr_or_grant(cx, ino)?;
        Ok(self.reply_attr(cx, attr, unmeasured))
    }

    pub(super) fn reply_attr(
        &self,
        cx: &mut Cx<'_>,
        mut attr: Attr,
        unmeasured: Option<Box<Delegation>>,
    ) -> Reply {
        if !self.note_attr(cx, &mut attr) {
            cx.read_set.refuse();
        }
        Reply::Attr(attr).unless_unmeasured(unmeasured)
    }
}
