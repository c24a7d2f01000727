//! The client's report that it has removed an orphan's datafiles.

use espalier_proto::{Ino, Reply};

use crate::event::Event;
use crate::journal::HeldOutput;
use crate::machine::{Cx, Final, Meta};
use crate::step::Step;

impl Meta {
    /// Completes the removal of a file whose last name the client has removed, after the client has
    /// removed the datafiles, or has failed to.
    pub(crate) fn purge(&mut self, cx: &mut Cx<'_>, ino: Ino, removed: bool) -> Step<Final<'_>> {
        if self.sessions.removing.get(&ino) != Some(&cx.client) {
            // The machine has restarted since, and removes the file itself.
            return Ok(Final::of(Reply::Done));
        }
        self.writable()?;
        if !removed && self.state.inode(ino)?.is_streamed() {
            // Some datafiles may be gone. The file stays closed to opens, and the removal does not
            // wait for clients that know it.
            self.journal.hold(self.state.sequence, HeldOutput::RemoveStream(ino));
            return Ok(Final::of(Reply::Done));
        }
        self.commit(cx, &Event::Purge { ino }, |meta, _| {
            meta.sessions.removing.remove(&ino);
            Reply::Done
        })
    }
}
