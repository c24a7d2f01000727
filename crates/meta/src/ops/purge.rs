use espalier_proto::{Ino, Reply};

use crate::event::Event;
use crate::journal::Held;
use crate::machine::{Cx, Meta};
use crate::step::Step;

impl Meta {
    /// A client that was to remove the file of which it has taken the last name has done so, or has not.
    pub(crate) fn purge(&mut self, cx: &mut Cx<'_>, ino: Ino, removed: bool) -> Step<Reply> {
        if self.sessions.removing.get(&ino) != Some(&cx.client) {
            // The machine was started anew since, and sees to it itself.
            return Ok(Reply::Done);
        }
        self.writable()?;
        if !removed && self.state.inode(ino)?.is_streamed() {
            // Some datafiles may be gone: it is still not to be opened, and those who know it are not waited for.
            self.journal.hold(self.state.sequence, Held::RemoveStream(ino));
        } else {
            self.commit(cx, &Event::Purge { ino })?;
            self.sessions.removing.remove(&ino);
        }
        Ok(Reply::Done)
    }
}
