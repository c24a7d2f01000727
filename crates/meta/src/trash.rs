//! The trash: directories that were removed with all below them ([`Request::RemoveTree`]), in the orphans' table. What they
//! hold is freed in the background, a few entries at a time: an entry goes as if by `unlink`, and a directory among them
//! becomes a piece of trash of its own, to be freed next. So a crash at any point leaves just what is still to be freed.

use espalier_proto::{Caller, ClientId, Ino, Request, RequestId};

use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::record::Body;
use crate::state::Trashed;
use crate::task::Task;
use crate::usage::Usage;

/// Who asks for what the machine does by itself.
pub(crate) const ITSELF: ClientId = ClientId(0);

impl Meta {
    /// Removed trees that may wait to be freed: they stay in memory.
    pub(crate) const MAX_TRASH: usize = 10_000;

    pub(crate) fn add_trash(&mut self, dir: Ino) {
        self.state.trash.push(Trashed { dir, after: 0 });
        self.sweep_due = true;
    }

    /// Begins to free what is in the trash, or goes on, unless that had better wait.
    pub(crate) fn start_sweep(&mut self, now: Now, out: &mut Outbox) {
        self.sweep_due = false;
        if !self.sweeping && !self.state.trash.is_empty() && self.may_sweep() {
            self.sweeping = true;
            self.run(now, Task::new(ITSELF, RequestId(0), Caller::SERVER, Request::Sweep), None, out);
        }
    }

    /// Others need the room in the journal and in memory more, and a checkpoint should find little that changes.
    pub(crate) fn may_sweep(&self) -> bool {
        let writable = !self.config.read_only && self.journal.broken.is_none();
        writable
            && !self.sessions.in_grace()
            && !self.draining
            && !self.is_checkpoint_running()
            && !self.journal.is_half_full()
            && self.state.dirty <= self.config.cache_bytes / 4 + Self::SMALLEST_CACHE / 2
    }

    /// What is left in the trash.
    pub(crate) fn trash_usage(&self) -> Usage {
        let mut usage = Usage::default();
        for Trashed { dir, .. } in &self.state.trash {
            if let Some(Body::Directory(directory)) = self.state.inodes.get(dir).map(|dir| &dir.inode.body) {
                usage = usage.plus(directory.usage).plus(Usage { dirs: 1, ..Usage::default() });
            }
        }
        usage
    }
}
