//! The sweep: frees removed trees in the background, in steps.

use espalier_proto::{Ino, Name, Reply};

use crate::event::Event;
use crate::machine::{Cx, Meta};
use crate::state::Trashed;
use crate::step::{Step, Stop, Wait};

/// Entries freed per step; bounds how long operations wait for it.
const STEP: usize = 128;
/// Files with streams among them; bounds the streams removed on behalf of an operation that waits
/// for the journal.
const STREAMS: usize = 16;

impl Meta {
    /// Frees the entries of removed trees. Yields after each step, until nothing is left or
    /// other operations need the room.
    pub(crate) fn sweep(&mut self, cx: &mut Cx<'_>) -> Step<Reply> {
        let (mut left, mut streams) = (STEP, STREAMS);
        while let Some(Trashed { dir, after }) = self.state.trash.last().copied() {
            if !self.may_sweep() {
                return Ok(Reply::Done);
            }
            if left == 0 {
                return Err(Stop::Wait(Wait::While));
            }
            if streams == 0 {
                // Their streams are removed once the journal holds these events.
                return Err(Stop::Wait(Wait::Durable));
            }
            if self.state.cached(dir).is_err() {
                // An earlier step has emptied it, and the last client has forgotten it since.
                self.state.trash.pop();
                continue;
            }
            let found = self.entries_after(cx, dir, after)?;
            let Some(hash) = found.last().map(|(slot, _)| slot.hash) else {
                self.state.trash.pop();
                self.name_taken(cx, dir);
                continue;
            };
            // Freeing an entry may push another directory to the trash above this one.
            let at = self.state.trash.len() - 1;
            for (slot, target) in found {
                let Some(ino) = target.ino() else { continue };
                streams = streams.saturating_sub(usize::from(self.state.inode(ino)?.is_streamed()));
                self.free(cx, dir, slot.name, ino)?;
                left = left.saturating_sub(1);
            }
            self.state.trash[at].after = hash;
        }
        Ok(Reply::Done)
    }

    /// Frees an entry of a directory in the trash.
    pub(crate) fn free(&mut self, cx: &mut Cx<'_>, dir: Ino, name: Name, ino: Ino) -> Step<()> {
        let has_entries = self.state.inode(ino)?.has_entries();
        // The name is unreachable, but the inode may be open or have another name.
        self.revoke_inode(cx, ino)?;
        self.append(&Event::Unlink { dir, name, time: cx.now })?;
        cx.changed = Some(self.state.sequence);
        if self.state.inodes.get(&ino).is_some_and(|cached| cached.lookups > 0) {
            // Clients that have it open, or know another of its names, see one link less.
            self.changed.push(ino);
        }
        if has_entries {
            self.add_trash(ino);
        } else {
            self.name_taken(cx, ino);
        }
        Ok(())
    }
}
