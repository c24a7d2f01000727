//! Progress of operations that run in bounded steps, between which the machine processes other
//! inputs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{Copied, Ino};

use crate::event::Event;
use crate::record::Body;
use crate::state::State;

/// The state of an operation between steps.
#[derive(Debug, Default)]
pub(crate) enum Progress {
    #[default]
    None,
    Walk(Walk),
    Copy(Box<Copied>),
    /// The journaled offset at which bytes are appended to a stream, with the bytes.
    Append {
        offset: u64,
        bytes: Bytes,
    },
    /// A stuffed file has been truncated or extended.
    Truncated(Ino),
    /// The growth by an append at this offset of a stream has been counted.
    Extended {
        offset: u64,
    },
    /// The file has been unstuffed.
    Unstuffed {
        /// Together with the bytes of the write by which it outgrew its strip.
        is_written: bool,
    },
    /// Other clients have been asked to announce their writes; the operation waits for them until
    /// this uptime in milliseconds.
    LeasingData {
        until: u64,
    },
    /// Other clients' leases on a file's bytes are being revoked.
    Announcing,
}

/// A walk through everything below a directory.
#[derive(Debug)]
pub(crate) struct Walk {
    pub top: Ino,
    /// The path of directories to the current one, each with the cursor of its last visited entry.
    pub stack: Vec<(Ino, u64)>,
    /// An event may have changed what the walk has seen.
    pub disturbed: bool,
    /// Number of restarts.
    pub again: u32,
}

impl Walk {
    pub(crate) fn new(top: Ino) -> Self {
        Self { top, stack: [(top, 0)].into(), disturbed: false, again: 0 }
    }

    /// Checks whether an event may have changed who may remove what is below.
    pub(crate) fn see(&mut self, state: &State, event: &Event) {
        let changes_rights = match event {
            Event::SetAttr { change, .. } => {
                change.perm.is_some()
                    || change.uid.is_some()
                    || change.gid.is_some()
                    || change.flags.is_some()
            }
            Event::Create { .. }
            | Event::CreateNoMetafile { .. }
            | Event::Clone { .. }
            | Event::Merge { .. }
            | Event::MergeLink { .. }
            | Event::Decouple { .. }
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
    /// True if an inode is `top`, or may be below it as far as memory shows.
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
