//! Waiting operations: registers what they wait for, and resumes them.

use alloc::boxed::Box;

use espalier_proto::{ClientId, Errno, Ino, ObjectId, ObjectKind, Rank, Reply, Request, RequestId};

use crate::checkpoint::CheckpointWhen;
use crate::io::Purpose;
use crate::journal::HeldOutput;
use crate::lease::PreparedGrant;
use crate::machine::Meta;
use crate::outbox::{Io, IoDone, Now, Outbox, Waiting};
use crate::progress::Progress;
use crate::record::InoRecord;
use crate::state::SAME_HASH;
use crate::step::{Load, Wait};
use crate::task::{Page, Task};

impl Meta {
    /// Parks an operation and requests what it waits for.
    pub(crate) fn wait(
        &mut self,
        now: Now,
        mut task: Task,
        number: Option<u64>,
        wait: Wait,
        out: &mut Outbox,
    ) {
        let number = number.unwrap_or_else(|| {
            self.next_task += 1;
            self.next_task
        });
        let waiting = match wait {
            Wait::Room => Waiting::Journal,
            Wait::Lease(_) | Wait::End(_) => Waiting::Clients,
            Wait::Peers | Wait::Locked(_) => Waiting::Peers,
            _ => Waiting::Disk,
        };
        match wait {
            Wait::Hint(ino, load) if task.loaded.as_ref() == Some(&load) => {
                // The hint is wrong: try another one, or the inode table.
                self.state.reclaimed.forget_hint(ino);
                return self.run(now, task, Some(number), out);
            }
            Wait::Load(load) if let Some(missing) = self.missing(&task, &load) => {
                if let Missing::AtOtherRank(ino, at) = missing {
                    return self.relocated(now, task, ino, at, out);
                }
                if let Missing::LoadedFromOtherPlace(load) = missing {
                    self.load(&mut task, number, load, out);
                    return self.park(task, number, waiting, out);
                }
                // The record was loaded and does not exist, though another record refers to it.
                let errno = if is_inode(&load) { Errno::ESTALE } else { Errno::EIO };
                if self.start_over(&mut task) {
                    return self.run(now, task, Some(number), out);
                }
                return self.refuse(now, &mut task, errno, out);
            }
            Wait::Load(load) | Wait::Hint(_, load) => self.load(&mut task, number, load, out),
            Wait::Groups => {
                let io = Io::Groups { of: (task.from, task.id), pid: task.caller.pid };
                self.ask(Purpose::Groups(number), io, out);
            }
            Wait::Stream(call) => {
                if task.streams.is_empty() {
                    task.streams_since = self.streams_changed;
                }
                self.ask(Purpose::Stream(number, call.clone()), self.stream_io(call), out);
            }
            Wait::Durable => {
                task.loaded = None;
                self.journal.hold(self.state.sequence, HeldOutput::Task(number));
            }
            Wait::Written => {
                task.loaded = None;
                if self.journal.hold_written(HeldOutput::Task(number)).is_some() {
                    return self.run(now, task, Some(number), out);
                }
            }
            Wait::End(ino) => {
                (task.loaded, task.page) = (None, None);
                self.sessions.ends.wait(ino, number);
            }
            Wait::Filling(ino) => {
                (task.loaded, task.page) = (None, None);
                self.lift_barriers(&mut task);
                self.filling.wait(ino, number);
            }
            Wait::Grace => self.waiting_for_space.push(number),
            Wait::Room => {
                self.waiting_for_space.push(number);
                self.start_checkpoint(CheckpointWhen::Changed, out);
            }
            Wait::Lease(key) => {
                // Loaded records may be evicted by then.
                (task.loaded, task.page) = (None, None);
                self.wait_for_lease(key, task.from, number);
            }
            Wait::Peers => {
                (task.loaded, task.page) = (None, None);
                self.await_ranks(number);
            }
            Wait::Locked(_) => {
                // Withdraws the operation's own locks before it waits. Only an older transaction
                // waits for a younger one while it holds locks.
                (task.loaded, task.page) = (None, None);
                self.withdraw_all(&mut task);
                self.await_lock(number);
            }
            Wait::Others | Wait::While => {
                (task.loaded, task.page) = (None, None);
                self.lift_barriers(&mut task);
                let io = if wait == Wait::Others { Io::Yield } else { Io::Rest };
                self.ask(Purpose::Pause(number), io, out);
            }
        }
        self.park(task, number, waiting, out);
    }

    fn park(&mut self, task: Task, number: u64, waiting: Waiting, out: &mut Outbox) {
        if matches!(task.progress, Progress::Walk(_)) {
            self.walking.insert(number);
        }
        self.register_questions(&task, number);
        out.waiting.push((task.from, task.id, waiting));
        self.tasks.insert(number, Box::new(task));
    }

    fn load(&mut self, task: &mut Task, number: u64, load: Load, out: &mut Outbox) {
        task.loaded = Some(load.clone());
        let waiting = self.loads.entry(load.clone()).or_default();
        waiting.push(number);
        if waiting.len() == 1 {
            self.ask(Purpose::Load(load.clone(), self.state.changes.published()), Io::Load(load), out);
        }
    }

    /// The consequence for an operation that needs a record that it has just loaded; `None`: it has
    /// not loaded it.
    fn missing(&self, task: &Task, load: &Load) -> Option<Missing> {
        let loaded = task.loaded.as_ref()?;
        let ino = inode_of(load).filter(|_| self.config.ranks > 1);
        let other = ino.and_then(|ino| self.other_place(ino));
        if loaded == load {
            return Some(match (ino, other) {
                (Some(ino), None) if !self.state.is_home_of(ino) => Missing::AtOtherRank(ino, ino.rank()),
                (_, Some(other)) => Missing::LoadedFromOtherPlace(other),
                _ => Missing::Nowhere,
            });
        }
        (other.as_ref() == Some(loaded)).then_some(Missing::Nowhere)
    }

    /// Interrupts an operation that waits for journal space, leases or other ranks, which may take
    /// long. An `fsync` is never interrupted: on a local file system it never fails so, and
    /// databases panic if it does.
    pub(crate) fn cancel(&mut self, now: Now, from: ClientId, id: RequestId, out: &mut Outbox) {
        // Unlock requests are executed all the same.
        let gives_back =
            |task: &Task| matches!(task.request, Request::Unlock { .. } | Request::StopWaiting { .. });
        let is_task = |task: &Task| (task.from, task.id) == (from, id) && !gives_back(task);
        let is_target = |number: &u64| self.tasks.get(number).is_some_and(|task| is_task(task));
        let waiting_for_space =
            self.waiting_for_space.iter().position(is_target).map(|at| self.waiting_for_space.remove(at));
        let waiting = || self.leases.as_mut().and_then(|leases| leases.stop_waiting(is_target));
        let among_ranks = || self.ranks.stop_waiting(is_target);
        let ends = || self.sessions.ends.stop_waiting(is_target);
        let filling = || self.filling.stop_waiting(is_target);
        let number = waiting_for_space.or_else(waiting).or_else(among_ranks).or_else(filling).or_else(ends);
        if let Some(number) = number {
            self.refuse_waiting(now, number, Errno::EINTR, out);
        }
    }

    /// Ends an operation that waits, which has changed nothing, or says how far it has come.
    pub(crate) fn refuse_waiting(&mut self, now: Now, number: u64, errno: Errno, out: &mut Outbox) {
        self.walking.remove(&number);
        let Some(mut task) = self.tasks.remove(&number) else { return };
        self.give_back(&mut task, out);
        let of = (task.from, task.id);
        if matches!(task.request, Request::Place { .. }) {
            return out.placed.push((of, Err(errno)));
        }
        let reply = match task.progress {
            Progress::Copy(copied) => Ok(Reply::Copied(copied)),
            _ => Err(errno),
        };
        self.answer(now, of, reply, &PreparedGrant::default(), out);
    }

    pub(crate) fn resume(&mut self, now: Now, number: u64, out: &mut Outbox) {
        // The operation may have been cancelled meanwhile.
        self.walking.remove(&number);
        if let Some(task) = self.tasks.remove(&number) {
            self.run(now, *task, Some(number), out);
        }
    }

    pub(crate) fn done_load(
        &mut self,
        now: Now,
        load: &Load,
        result: Result<IoDone, Errno>,
        out: &mut Outbox,
    ) {
        let (mut page, mut records) = (None, 0);
        let loaded = match (load, result) {
            (Load::Record { object, key }, Ok(IoDone::Record(value))) => {
                records = usize::from(value.is_some());
                self.state.loaded(*object, key, value.as_deref()).map_err(|_| Errno::EIO)
            }
            (Load::Dentries { dir, from, limit }, Ok(IoDone::Dentries(pairs))) => {
                records = pairs.len();
                let end = records < *limit;
                let last = pairs
                    .last()
                    .and_then(|(key, _)| key.first_chunk::<8>())
                    .map(|hash| u64::from_be_bytes(*hash));
                // More names with the last hash may follow, so it is not covered.
                let to = if end { u64::MAX } else { last.unwrap_or(*from) };
                let dropped = self.state.clock.dropped;
                // A load of one hash is no part of a listing.
                page = (*limit > SAME_HASH).then_some(Page { dir: *dir, from: *from, to, dropped });
                self.state.loaded_dentries(*dir, *from, *limit, &pairs).map_err(|_| Errno::EIO)
            }
            (_, Err(errno)) => Err(errno),
            (_, Ok(_)) => Err(Errno::EIO),
        };
        if loaded.is_ok() {
            self.count_loaded(load, records);
        }
        for number in self.loads.remove(load).unwrap_or_default() {
            match loaded {
                Ok(()) => {
                    if let Some(task) = self.tasks.get_mut(&number) {
                        // Adjacent pages are joined.
                        task.page = match (task.page, page) {
                            (Some(old), Some(new))
                                if (old.dir, old.to, old.dropped) == (new.dir, new.from, new.dropped) =>
                            {
                                Some(Page { to: new.to, ..old })
                            }
                            (old, new) => new.or(old),
                        };
                    }
                    self.resume(now, number, out);
                }
                Err(errno) => {
                    self.walking.remove(&number);
                    if let Some(mut task) = self.tasks.remove(&number) {
                        self.refuse(now, &mut task, errno, out);
                    }
                }
            }
        }
    }

    pub(crate) fn resume_waiting_for_space(&mut self, now: Now, out: &mut Outbox) {
        for number in core::mem::take(&mut self.waiting_for_space) {
            self.resume(now, number, out);
        }
    }
}

/// The consequence of a load that has found no record.
enum Missing {
    /// The record does not exist.
    Nowhere,
    /// It belongs to an inode that is not here. This rank knows where it is.
    AtOtherRank(Ino, Rank),
    /// It belongs to an inode that may be at another rank. This record says so.
    LoadedFromOtherPlace(Load),
}

/// The inode whose record or place is loaded.
fn inode_of(load: &Load) -> Option<Ino> {
    let Load::Record { object, key } = load else { return None };
    match InoRecord::from_key(key).filter(|_| object.kind == ObjectKind::Inodes)? {
        (InoRecord::Inode | InoRecord::Place, ino) => Some(ino),
        _ => None,
    }
}

fn is_inode(load: &Load) -> bool {
    inode_of(load).is_some() || matches!(load, Load::Record { object, .. } if *object == ObjectId::ORPHANS)
}
