//! I/O of the machine: its requests to the driver, and their completion.

use alloc::vec::Vec;

use espalier_proto::{Errno, Ino};

use crate::checkpoint::CheckpointWhen;
use crate::event::Event;
use crate::journal::HeldOutput;
use crate::machine::Meta;
use crate::outbox::{Io, IoDone, IoId, Now, Outbox};
use crate::step::{Load, StreamCall};
use crate::striping::Layouts;

/// The purpose of an I/O.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// With the epoch of the last checkpoint at the time of the request.
    Load(Load, u32),
    /// The caller's groups, for one waiting operation.
    Groups(u64),
    Stream(u64, StreamCall),
    /// The pause between two steps of an operation.
    Pause(u64),
    Journal,
    Sync,
    WriteDelay,
    Stage,
    Publish,
    RemoveStream(Ino),
    FinaliseStream(Ino),
    /// Removes a stream that was filled and that no file came to use.
    RemoveUnused(Ino, Layouts),
    /// Syncs the stream of a size-dirty file, which then need not be tracked, unless it is used
    /// after this tick.
    SyncStream(Ino, u64),
    /// The pause while abandoned holds are released.
    Abandoned,
    /// Announces to data servers which sessions are live.
    Admit,
    /// The decision of the balancer, with the version of the policy.
    Decide(u64),
    /// Makes or removes the datafiles of the batch with this end.
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
            // The record read may have been changed, written and evicted meanwhile.
            (Some(Purpose::Load(load, published)), _) if published != self.state.changes.published() => {
                self.ask(Purpose::Load(load.clone(), self.state.changes.published()), Io::Load(load), out);
            }
            (Some(Purpose::Load(load, _)), result) => self.done_load(now, &load, result, out),
            (Some(Purpose::Groups(number)), result) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    // A process that is gone has no groups.
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
                self.release_held(now, held, out);
                if self.journal.is_half_full() {
                    self.start_checkpoint(CheckpointWhen::Changed, out);
                }
            }
            (Some(Purpose::Sync), result) => {
                let held = self.journal.synced(result.map(drop));
                self.release_held(now, held, out);
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
            // It stays an orphan; the next mount removes its stream.
            (Some(Purpose::RemoveStream(_)), Err(_)) => {}
            (Some(Purpose::SyncStream(ino, tick)), result) => {
                self.size_dirty_synced(ino, tick, result.is_ok())
            }
            (Some(Purpose::FinaliseStream(ino)), Ok(_)) => self.state.provisional.note_finalised(ino),
            // It stays provisional, which is harmless; the next mount retries.
            (Some(Purpose::FinaliseStream(_)), Err(_)) => {}
            (Some(Purpose::RemoveUnused(ino, layouts)), result) => {
                self.unused_removed(ino, layouts, result.is_ok());
            }
            (Some(Purpose::Abandoned), _) => self.release_abandoned(now, out),
            (Some(Purpose::Pool(end)), result) => self.pool_done(end, result.map(drop)),
            (Some(Purpose::Decide(version)), result) => self.decided(now, version, result, out),
            (Some(Purpose::Admit), result) => self.cut_off(now, result.is_ok(), out),
            (None, _) => {}
        }
    }

    pub(crate) fn release_held(&mut self, now: Now, held: Vec<HeldOutput>, out: &mut Outbox) {
        self.uncommitted.forget(self.journal.durable);
        for held in held {
            match held {
                HeldOutput::Reply(to, id, result, grant) => self.answer(now, (to, id), result, &grant, out),
                HeldOutput::Session(client, result) => self.connected(client, result, out),
                HeldOutput::Task(number) => self.resume(now, number, out),
                HeldOutput::Peer(rank, message) => self.send_to_rank(rank, message),
                // `tend_pool` runs after each input.
                HeldOutput::Pool => {}
                HeldOutput::Committed(id) => self.committed_durably(id),
                HeldOutput::RemoveStream(ino) => {
                    self.ask(Purpose::RemoveStream(ino), self.stream_io(StreamCall::Remove { ino }), out);
                }
                HeldOutput::FinaliseStream(ino) => self.finalise_soon(ino, out),
            }
        }
    }

    fn purge_removed(&mut self, ino: Ino) {
        // Orphans stay in memory, so this finds it; otherwise the next mount purges it.
        let _ = self.append(&Event::Purge { ino });
        self.sessions.removing.remove(&ino);
    }
}
