//! Inode numbers. A client may be told of one, and its inode's creation lost with the power: then the number must not come again, for the
//! client may go on by it. So numbers are given out only below a bound that is durable, and a machine that begins goes on at the bound. One
//! whose only client ends with it need not care.

use espalier_proto::{ClientId, Errno, Ino};

use crate::event::Event;
use crate::machine::Meta;
use crate::step::{Step, Stop, Wait};

/// How far numbers may be given out.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Those below this.
    below: u64,
    /// And those below this, once the journal is durable up to that event.
    next: Option<(u64, u64)>,
}

/// Numbers that are reserved at a time. As many are left out at most when a server is started anew.
const BATCH: u64 = 1 << 20;

impl Meta {
    /// The number of an inode that is about to be made.
    pub(crate) fn new_ino(&self) -> Step<Ino> {
        let ino = self.state.next_ino;
        if self.may_give(ino) { Ok(Ino(ino)) } else { Err(Stop::Wait(Wait::Durable)) }
    }

    /// The number of a file that a client has told its callers of, if it has been given that one for it.
    pub(crate) fn given_ino(&self, client: ClientId, ino: Ino) -> Step<Ino> {
        let kept = self.state.sessions.get(&client);
        if kept.is_some_and(|kept| kept.unused.has(ino)) { Ok(ino) } else { Err(Errno::EINVAL.into()) }
    }

    /// Whether a number that was never given out may be now.
    pub(crate) fn may_give(&self, ino: u64) -> bool {
        match self.numbers.next {
            _ if self.config.session_ms.is_none() => true,
            Some((event, below)) if event <= self.journal.durable => ino < below,
            _ => ino < self.numbers.below,
        }
    }

    /// Reserves numbers while there are some left, so that nobody waits for that but who makes the first inode.
    pub(crate) fn reserve_numbers(&mut self) {
        let is_changed = !self.config.read_only && !self.draining && self.journal.broken.is_none();
        if self.config.session_ms.is_none() || !is_changed {
            return;
        }
        if let Some((_, below)) = self.numbers.next.take_if(|(event, _)| *event <= self.journal.durable) {
            self.numbers.below = below;
        }
        if self.numbers.next.is_none() && self.state.next_ino + BATCH / 2 >= self.numbers.below {
            let below = self.state.next_ino + BATCH;
            // It needs nothing that would have to be loaded.
            if self.append(&Event::Reserved { below }).is_ok() {
                self.numbers.next = Some((self.state.sequence, below));
            }
        }
    }
}
