//! What the machine has asked its driver for, and what follows when that is done.

use alloc::vec::Vec;

use espalier_proto::{Errno, Ino};

use crate::event::Event;
use crate::journal::Held;
use crate::machine::Meta;
use crate::outbox::{Io, IoDone, IoId, Now, Outbox};
use crate::step::{Load, StreamCall};
use crate::striping::Layouts;

/// What an I/O was asked for.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// With the last checkpoint's epoch when it was asked for.
    Load(Load, u32),
    /// Of one waiting operation.
    Groups(u64),
    Stream(u64, StreamCall),
    /// Between two steps of an operation.
    Pause(u64),
    Journal,
    Sync,
    WriteDelay,
    Stage,
    Publish,
    RemoveStream(Ino),
    SettleStream(Ino),
    /// One that was filled, and that the file did not come to have.
    RemoveUnused(Ino, Layouts),
    /// Of a watched file, which need then not be watched any longer, unless it was used after that tick.
    SyncStream(Ino, u64),
    /// Between releasing what expired sessions held.
    Abandoned,
    /// Of sessions that are to end.
    Admit,
    /// Of the batch that ends there.
    Pool(u64),
}

impl Meta {
    pub(crate) fn rest_abandoned(&mut self, out: &mut Outbox) {
        self.ask(Purpose::Abandoned, Io::Rest, out);
    }

    pub(crate) fn ask(&mut self, purpose: Purpose, io: Io, out: &mut Outbox) {
        self.next_io += 1;
        let id = IoId(self.next_io);
        self.io.insert(id, purpose);
        out.io.push((id, io));
    }

    pub(crate) fn done(&mut self, now: Now, id: IoId, result: Result<IoDone, Errno>, out: &mut Outbox) {
        match (self.io.remove(&id), result) {
            // What it has read may have been changed, written and evicted meanwhile.
            (Some(Purpose::Load(load, published)), _) if published != self.state.published => {
                self.ask(Purpose::Load(load.clone(), self.state.published), Io::Load(load), out);
            }
            (Some(Purpose::Load(load, _)), result) => self.done_load(now, &load, result, out),
            (Some(Purpose::Groups(number)), result) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    // A process that is gone has no groups to lend.
                    task.caller.groups =
                        Some(if let Ok(IoDone::Groups(groups)) = result { groups } else { [].into() });
                }
                self.resume(now, number, out);
            }
            (Some(Purpose::Stream(number, call)), result) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    let result = result.and_then(|done| {
                        if let IoDone::Stream(done) = done { Ok(done) } else { Err(Errno::EIO) }
                    });
                    task.streams.push((call, result));
                }
                self.resume(now, number, out);
            }
            (Some(Purpose::Pause(number)), _) => self.resume(now, number, out),
            (Some(Purpose::Journal), result) => {
                let result = result.and_then(|done| match done {
                    IoDone::Journaled { end, used, frame } => {
                        self.journal.recycle(frame);
                        Ok((end, used))
                    }
                    _ => Err(Errno::EIO),
                });
                let held = self.journal.appended(result);
                self.let_go(now, held, out);
                if self.journal.is_half_full() {
                    self.start_checkpoint(out);
                }
            }
            (Some(Purpose::Sync), result) => {
                let held = self.journal.synced(result.map(drop));
                self.let_go(now, held, out);
            }
            (Some(Purpose::WriteDelay), _) => self.journal.end_write_delay(),
            (Some(Purpose::Stage), Ok(_)) => {
                if let Some(io) = self.checkpoint.staged(&mut self.state) {
                    self.ask_checkpoint(io, out);
                }
            }
            (Some(Purpose::Stage), Err(errno)) => self.done_checkpoint(now, Err(errno), out),
            (Some(Purpose::Publish), result) => {
                let used = result.map(|done| if let IoDone::Published { used } = done { used } else { 0 });
                self.done_checkpoint(now, used, out);
            }
            (Some(Purpose::RemoveStream(ino)), Ok(_)) => self.purge_removed(ino),
            // It stays an orphan, whose stream the next mount removes.
            (Some(Purpose::RemoveStream(_)), Err(_)) => {}
            (Some(Purpose::SyncStream(ino, tick)), result) => self.watched_synced(ino, tick, result.is_ok()),
            (Some(Purpose::SettleStream(ino)), Ok(_)) => self.state.note_settled(ino),
            // It stays new, which does no harm, and the next mount tries again.
            (Some(Purpose::SettleStream(_)), Err(_)) => {}
            (Some(Purpose::RemoveUnused(ino, layouts)), result) => {
                self.unused_removed(ino, layouts, result.is_ok());
            }
            (Some(Purpose::Abandoned), _) => self.release_abandoned(now, out),
            (Some(Purpose::Pool(end)), result) => self.pool_done(end, result.map(drop)),
            (Some(Purpose::Admit), result) => self.cut_off(now, result.is_ok(), out),
            (None, _) => {}
        }
    }

    pub(crate) fn let_go(&mut self, now: Now, held: Vec<Held>, out: &mut Outbox) {
        self.uncommitted.forget(self.journal.durable);
        for held in held {
            match held {
                Held::Reply(to, id, result, promise) => self.answer(now, (to, id), result, &promise, out),
                Held::Session(client, result) => self.connected(client, result, out),
                Held::Task(number) => self.resume(now, number, out),
                Held::Peer(rank, message) => self.tell_rank(rank, message),
                // Whatever comes, it is looked at.
                Held::Pool => {}
                Held::Committed(id) => self.committed_durably(id),
                Held::RemoveStream(ino) => {
                    self.ask(Purpose::RemoveStream(ino), self.stream_io(StreamCall::Remove { ino }), out);
                }
                Held::SettleStream(ino) => self.settle_soon(ino, out),
            }
        }
    }

    fn purge_removed(&mut self, ino: Ino) {
        // It was loaded to become an orphan, and orphans stay loaded; if not, the next mount purges it.
        let _ = self.append(&Event::Purge { ino });
        self.sessions.removing.remove(&ino);
    }
}
