use espalier_proto::{Ino, Name, Reply};

use crate::event::Event;
use crate::machine::{Cx, Meta};
use crate::state::Trashed;
use crate::step::{Step, Stop, Wait};

/// Entries freed in a step: bounds how long operations wait behind it.
const STEP: usize = 128;
/// Files with streams among them: whoever waits for the journal may find itself removing these.
const STREAMS: usize = 16;

impl Meta {
    /// Frees what trees that were removed hold, with a rest after every step, until nothing is left or others need the room.
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
                // Their streams are removed when the journal holds all of this.
                return Err(Stop::Wait(Wait::Durable));
            }
            if self.state.cached(dir).is_err() {
                // Emptied by an earlier step, and forgotten since by the last who knew it.
                self.state.trash.pop();
                continue;
            }
            let found = self.entries_after(cx, dir, after)?;
            let Some(hash) = found.last().map(|(slot, _)| slot.hash) else {
                self.state.trash.pop();
                self.name_taken(cx, dir)?;
                continue;
            };
            // The next trash may lie above this one.
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

    /// Takes an entry out of a directory in the trash.
    fn free(&mut self, cx: &mut Cx<'_>, dir: Ino, name: Name, ino: Ino) -> Step<()> {
        let has_entries = self.state.inode(ino)?.has_entries();
        // Nobody reaches the name any more; but the inode may be open, or have another.
        self.revoke_inode(cx, ino)?;
        cx.changed = true;
        self.append(&Event::Unlink { dir, name, time: cx.now })?;
        if self.state.cached(ino)?.lookups > 0 {
            // Who has it open, or has another name of it, sees a link less.
            self.changed.push(ino);
        }
        if has_entries {
            self.add_trash(ino);
            return Ok(());
        }
        self.name_taken(cx, ino)
    }
}
