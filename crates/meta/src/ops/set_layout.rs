//! The client's report that it has made a file's datafiles.

use alloc::sync::Arc;

use espalier_proto::{Errno, Ino, Layout, Reply};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::step::Step;

impl Meta {
    /// Records that a client has made a file's datafiles (carns III.A), exactly where the server
    /// assigned them.
    pub(crate) fn set_layout(&mut self, cx: &mut Cx<'_>, ino: Ino, layout: &Arc<Layout>) -> Step<Final<'_>> {
        self.writable()?;
        if self.state.inode(ino)?.layout() != Some(layout) {
            return Err(Errno::EINVAL.into());
        }
        self.commit(cx, &Event::SetLayout { ino, layout: Arc::clone(layout) }, |_, _| Reply::Done)
    }
}
