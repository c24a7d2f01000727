//! What operations remember that go in bounded steps, so that the machine is free for others in between.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{Copied, Ino};

use crate::event::Event;
use crate::record::Body;
use crate::state::State;

/// How far an operation has come.
#[derive(Debug, Default)]
pub(crate) enum Progress {
    #[default]
    None,
    Walk(Walk),
    Copy(Box<Copied>),
    /// Where the bytes go that are appended to a stream: that is journaled.
    Append {
        offset: u64,
        bytes: Bytes,
    },
    /// Other clients have been asked to announce what they write; one that does not answer is waited for until this time.
    LeasingData {
        until: u64,
    },
    /// The leases that others had on a file's bytes are being revoked.
    Announcing,
}

/// A look at everything below a directory.
#[derive(Debug)]
pub(crate) struct Walk {
    pub top: Ino,
    /// The directories that it is in, each with the cursor of the last entry that it has seen.
    pub stack: Vec<(Ino, u64)>,
    /// What it has seen may not be so any more.
    pub disturbed: bool,
    /// How often it had to begin again.
    pub again: u32,
}

impl Walk {
    pub(crate) fn new(top: Ino) -> Self {
        Self { top, stack: [(top, 0)].into(), disturbed: false, again: 0 }
    }

    /// Notes whether an event may have changed who may remove what is below.
    pub(crate) fn see(&mut self, state: &State, event: &Event) {
        let changes_rights = match event {
            Event::SetAttr { change, .. } => {
                change.perm.is_some()
                    || change.uid.is_some()
                    || change.gid.is_some()
                    || change.flags.is_some()
            }
            Event::Create { .. }
            | Event::CreateBare { .. }
            | Event::Clone { .. }
            | Event::Link { .. }
            | Event::Rename { .. }
            | Event::Exchange { .. }
            | Event::SetAcl { .. } => true,
            _ => false,
        };
        if changes_rights && !self.disturbed {
            let mut about = event.addressed().into_iter().flatten();
            self.disturbed = about.any(|ino| state.may_be_below(ino, self.top));
        }
    }
}

impl State {
    /// Whether an inode is a directory or lies below it, or may do so, as far as that is in memory.
    fn may_be_below(&self, ino: Ino, top: Ino) -> bool {
        let Some(cached) = self.inodes.get(&ino) else { return true };
        match &cached.inode.body {
            _ if ino == top => true,
            _ if ino == Ino::ROOT || cached.inode.nlink == 0 => false,
            Body::Directory(directory) => self.may_be_below(directory.parent, top),
            _ => cached.parents().iter().any(|(dir, _)| self.may_be_below(*dir, top)),
        }
    }
}
