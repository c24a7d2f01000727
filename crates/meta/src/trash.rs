//! The trash: removed trees ([`Request::RemoveTree`]). Their top directories are orphans, and their
//! entries are freed in the background, a few at a time. An entry is freed as by `unlink`; a
//! directory among them becomes an orphan in the trash, to be freed next. A crash at any point
//! therefore leaves exactly what remains to be freed.

use espalier_proto::{Caller, ClientId, Ino, Request, RequestId};

use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::record::Body;
use crate::state::Trashed;
use crate::task::Task;
use crate::usage::Usage;

/// The client id for requests of the machine itself.
pub(crate) const INTERNAL_CLIENT: ClientId = ClientId(0);

impl Meta {
    /// Maximum number of removed trees that wait to be freed; they stay in memory.
    pub(crate) const MAX_TRASH: usize = 10_000;

    pub(crate) fn add_trash(&mut self, dir: Ino) {
        self.state.trash.push(Trashed { dir, after: 0 });
        self.sweep_due = true;
    }

    /// Starts or continues the sweep, unless it should wait.
    pub(crate) fn start_sweep(&mut self, now: Now, out: &mut Outbox) {
        self.sweep_due = false;
        if !self.sweeping && !self.state.trash.is_empty() && self.may_sweep() {
            self.sweeping = true;
            self.run(
                now,
                Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, Request::Sweep),
                None,
                out,
            );
        }
    }

    /// True if the sweep may run: other operations take precedence for journal space and memory,
    /// and a checkpoint should find few changes.
    pub(crate) fn may_sweep(&self) -> bool {
        let writable = !self.config.read_only && self.journal.broken.is_none();
        writable
            && !self.sessions.in_grace()
            && !self.draining
            && !self.is_checkpoint_running()
            && !self.journal.is_half_full()
            && self.state.changes.dirty() <= self.config.cache_bytes / 4 + Self::SMALLEST_CACHE / 2
    }

    /// Usage of the trash.
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
