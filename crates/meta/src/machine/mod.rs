//! The metadata machine: takes inputs, runs operations, keeps those that wait, and emits their
//! replies and I/O.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{
    Caller, ClientId, Errno, Ino, NewNode, Position, Reply, Request, RequestId, StreamStat, Time,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

mod commit;

use crate::balancing::Balancing;
use crate::checkpoint::{Checkpoint, CheckpointWhen};
use crate::config::Config;
use crate::fragment::{DuePulls, DueTransfers};
use crate::io::Purpose;
use crate::journal::{Acknowledge, HeldOutput, Journal};
use crate::lease::{Leases, PreparedGrant, ReadSet};
use crate::lock::LockTable;
use crate::metrics::Metrics;
use crate::numbers::Numbers;
use crate::ops::create::Creation;
use crate::outbox::{Answered, Input, Io, IoId, Now, Outbox, Waiting};
use crate::pool::Pool;
use crate::rank::Ranks;
use crate::record::Inode;
use crate::session::SessionTable;
use crate::state::State;
use crate::step::{Load, Step, Stop, StreamCall, Wait};
pub(crate) use crate::task::Cx;
use crate::task::{Task, reported_time};
use crate::trash::INTERNAL_CLIENT;
use crate::uncommitted::Uncommitted;
use crate::unstuff::Filling;
pub(crate) use commit::{Final, Staged};

/// The metadata server's state machine. See the crate's description.
#[derive(Debug)]
pub struct Meta {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) journal: Journal,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) sessions: SessionTable,
    pub(crate) ranks: Ranks,
    pub(crate) transfers: DueTransfers,
    pub(crate) pulls: DuePulls,
    pub(crate) metrics: Metrics,
    pub(crate) balancing: Balancing,
    pub(crate) numbers: Numbers,
    pub(crate) pool: Pool,
    pub(crate) filling: Filling,
    pub(crate) locks: LockTable,
    /// Waiting operations, by task number.
    pub(crate) tasks: HashMap<u64, Box<Task>, FxBuildHasher>,
    /// Waiting operations that walk a tree; events are reported to them.
    pub(crate) walking: BTreeSet<u64>,
    pub(crate) next_task: u64,
    pub(crate) io: HashMap<IoId, Purpose, FxBuildHasher>,
    pub(crate) next_io: u64,
    /// Operations that wait for a load in progress.
    pub(crate) loads: HashMap<Load, Vec<u64>, FxBuildHasher>,
    /// Operations that wait for journal space, or for the end of the grace period.
    pub(crate) waiting_for_space: Vec<u64>,
    free_space: u64,
    /// Bytes cloned since the free space was last reported.
    cloned: u64,
    pub(crate) ticks: u64,
    pub(crate) draining: bool,
    /// The trash is not empty and no sweep is running.
    pub(crate) sweep_due: bool,
    /// A sweep is running.
    pub(crate) sweeping: bool,
    /// Inodes that clients know and that have changed without a request of theirs.
    pub(crate) changed: Vec<Ino>,
    /// Warnings for the log.
    pub(crate) warnings: Vec<String>,
    pub(crate) leases: Option<Leases>,
    pub(crate) uncommitted: Uncommitted,
    /// Generation of stream queries: grows whenever the result of one may be outdated.
    pub(crate) streams_changed: u64,
    /// The latest time that a client has reported for a change.
    latest_reported: Time,
}

/// One run of an operation.
struct OperationRun {
    outcome: Step<Reply>,
    /// The reply waits until everything so far is durable.
    durable: bool,
    read_set: ReadSet,
}

/// Maximum lead, in ms, of a client's estimate of this clock over the clock.
const MAX_LEAD_MS: u64 = 1_000;

impl Meta {
    /// More runs than an operation needs without waiting.
    const MOST_RUNS: u32 = 100;
    /// Ticks between checkpoints when nothing else requires one.
    const CHECKPOINT_TICKS: u64 = 30;
    /// Bytes of changes for which operations never wait.
    pub(crate) const SMALLEST_CACHE: usize = 1 << 20;

    pub(crate) fn with_state(config: Config, state: State, end: Position, used: u64) -> Self {
        let (capacity, watermarks) = (config.journal_capacity, config.watermarks);
        let journal = Journal::new(state.sequence, end, used, capacity, watermarks, config.acknowledge);
        let leases = config.lease_ms.map(|term| Leases::new(term, config.most_leases));
        Self {
            config,
            state,
            journal,
            checkpoint: Checkpoint::default(),
            sessions: SessionTable::default(),
            ranks: Ranks::default(),
            transfers: DueTransfers::default(),
            pulls: DuePulls::default(),
            metrics: Metrics::default(),
            balancing: Balancing::default(),
            numbers: Numbers::default(),
            pool: Pool::default(),
            filling: Filling::default(),
            locks: LockTable::default(),
            tasks: HashMap::default(),
            walking: BTreeSet::new(),
            next_task: 0,
            io: HashMap::default(),
            next_io: 0,
            loads: HashMap::default(),
            waiting_for_space: Vec::new(),
            free_space: u64::MAX,
            cloned: 0,
            ticks: 0,
            draining: false,
            sweep_due: false,
            sweeping: false,
            changed: Vec::new(),
            warnings: Vec::new(),
            leases,
            uncommitted: Uncommitted::default(),
            streams_changed: 0,
            latest_reported: Time::default(),
        }
    }

    /// Processes one input. On return, `out` contains all immediate actions.
    pub fn on(&mut self, now: Now, input: Input, out: &mut Outbox) {
        self.metrics.counters.advance(now.uptime_ms);
        // Draining appends no events.
        if !matches!(input, Input::Drain) {
            self.reserve_numbers();
        }
        match input {
            Input::Request { from, id, below, follows, caller, request } => {
                self.metrics.heartbeats.arrived(now.queued + self.tasks.len());
                let task = Task::new(from, id, caller, request);
                match self.config.session_ms {
                    None => self.run(now, task, None, out),
                    Some(_) => self.admit(now, task, (below, follows), out),
                }
            }
            Input::Connect { client, leases, resumes } => {
                self.connect(now, client, (leases, resumes), out);
            }
            Input::Accesses { client, accesses } => self.sessions.set_accesses(client, accesses),
            Input::Enter { client, path } => self.restrict(now, client, path, out),
            Input::Leave { client } => self.leave(now, client, out),
            Input::Heard { client } => self.heard(now, client),
            Input::Revoked { client, number } => self.revoked(now, client, number, out),
            Input::Blocked { client, number } => self.blocked(now, client, number, out),
            Input::Cancel { from, id } => self.cancel(now, from, id, out),
            Input::Done { id, result } => self.done(now, id, result, out),
            Input::Place { of: (from, id), io } => {
                let task = Task::new(from, id, Caller::SERVER, Request::Place { io });
                self.run(now, task, None, out);
            }
            Input::NewDatafiles { server, inos } => self.new_datafiles(now, server, &inos, out),
            Input::Watermarks { low, high } => self.journal.set_watermarks((low, high)),
            Input::Ranks { ranks } => self.ranks_joined(ranks),
            Input::Space { free } => {
                (self.free_space, self.cloned) = (free, 0);
                self.resume_waiting_for_space(now, out);
            }
            Input::Resources { cpu, mem } => self.set_resources(cpu, mem),
            Input::Peer { from, message } => self.peer(now, from, message, out),
            Input::PeerConnected { rank } => self.peer_connected(rank),
            Input::PeerLost { rank } => self.peer_lost(now, rank, out),
            Input::Tick => {
                self.expire(now, out);
                self.tick(now, out);
                self.tick_balancer(now, out);
                self.tick_metrics(out);
                self.tick_rates();
            }
            Input::Checkpoint(when) => self.start_checkpoint(when, out),
            Input::Drain => {
                self.draining = true;
                self.tick(now, out);
            }
        }
        self.resume_filling(now, out);
        self.resume_ordered(now, out);
        if self.sweep_due {
            self.start_sweep(now, out);
        }
        self.start_transfers(now, out);
        self.start_pulls(now, out);
        self.send_to_ranks(now, out);
        self.tend_pool(out);
        out.changed.append(&mut self.changed);
        out.warnings.append(&mut self.warnings);
        out.recalls.append(&mut self.sessions.recalls);
        out.locked.append(&mut self.locks.granted);
        if let Some(leases) = &mut self.leases {
            out.revocations.append(&mut leases.outgoing);
        }
        // The next checkpoint can trim what is appended, which makes room.
        let flush = !self.waiting_for_space.is_empty() || (self.draining && self.tasks.is_empty());
        self.flush(now, now.queued, flush, out);
        // Give waiting operations some slack, so that what they have loaded stays until they run.
        let bound = self.config.cache_bytes;
        let now_bound =
            if self.tasks.is_empty() { bound } else { bound.saturating_add(Self::SMALLEST_CACHE) };
        self.state.shrink(now_bound, &mut out.recalls);
        if self.state.changes.dirty() > self.config.cache_bytes / 4 {
            self.start_checkpoint(CheckpointWhen::Changed, out);
        }
    }

    /// True once everything is written, after [`Input::Drain`].
    pub fn is_idle(&self) -> bool {
        // Operations that wait for other ranks may do so for long, and are retried after the
        // restart.
        let is_for_ranks = |number| self.ranks.is_waiting(number);
        self.tasks.keys().all(is_for_ranks) && self.journal.is_idle() && self.checkpoint.is_idle()
    }

    /// The error since which changes cannot become durable.
    pub fn broken(&self) -> Option<Errno> {
        self.journal.broken
    }

    // ---- Operations

    /// The time of a request's changes: the one that the client has given its caller, or else now,
    /// but not before the times that clients have given others, which may be of another server's
    /// clock.
    fn time_of(&mut self, request: &Request, now: Time) -> Time {
        let Some(reported) = request.time() else {
            if self.latest_reported < now || self.latest_reported > now.later(MAX_LEAD_MS) {
                return now;
            }
            // Two changes one after the other have different times.
            self.latest_reported = self.latest_reported.next();
            return self.latest_reported;
        };
        let time = reported_time(reported, now);
        self.note_change_time(now, time);
        time
    }

    /// Notes a time that a client has given to a change, here or at another rank.
    pub(crate) fn note_change_time(&mut self, now: Time, time: Time) {
        if time <= now.later(MAX_LEAD_MS) {
            self.latest_reported = self.latest_reported.max(time);
        }
    }

    /// The latest time of a change that this rank knows.
    pub(crate) fn latest_reported(&self) -> Time {
        self.latest_reported
    }

    pub(crate) fn run(&mut self, now: Now, mut task: Task, number: Option<u64>, out: &mut Outbox) {
        // Both runs of an operation that has made a change and starts over have one time.
        let time = self.time_of(&task.request, now.time);
        let mut run = self.run_once(now, time, &mut task);
        let mut runs = 1;
        while let Err(Stop::Again(_)) = run.outcome {
            runs += 1;
            if runs > Self::MOST_RUNS {
                debug_assert!(false, "{:?} does not find its changes done", task.request);
                run.outcome = Err(Errno::EIO.into());
                break;
            }
            task.touched = run.read_set.touched;
            run = self.run_once(now, time, &mut task);
        }
        let OperationRun { outcome, durable, read_set } = run;
        let outcome = match outcome {
            Err(Stop::Fail(Errno::EAGAIN)) if self.start_over(&mut task) => Err(Stop::Wait(Wait::While)),
            outcome => outcome,
        };
        if !matches!(outcome, Err(Stop::Wait(_))) {
            self.count_operation(&task, &outcome);
        }
        match outcome {
            Err(Stop::Wait(wait)) => {
                if task.changed.is_some() {
                    task.touched = read_set.touched;
                }
                self.wait(now, task, number, wait, out);
            }
            Ok(reply) => {
                self.give_back(&mut task, out);
                self.finish(now, &task, durable, read_set, Ok(reply), out);
            }
            Err(Stop::Fail(errno)) => self.refuse(now, &mut task, errno, out),
            Err(Stop::Misrouted(dir)) => {
                self.give_back(&mut task, out);
                self.transfers.counts.misrouted += 1;
                let reply = self.forward(&task, dir).unwrap_or_else(|| self.reply_misrouted(dir));
                self.finish(now, &task, false, ReadSet::default(), Ok(reply), out);
            }
            Err(Stop::Relocated(ino, at)) => self.relocated(now, task, ino, at, out),
            Err(Stop::Again(_)) => {}
        }
    }

    fn run_once(&mut self, now: Now, time: Time, task: &mut Task) -> OperationRun {
        let mut cx = Cx {
            now: time,
            uptime_ms: now.uptime_ms,
            client: task.from,
            id: task.id,
            caller: &task.caller,
            streams: &task.streams,
            page: task.page,
            loaded: task.loaded.as_ref(),
            is_acknowledged: task.request.is_acknowledged(),
            durable: false,
            changed: task.changed,
            coalescing: task.coalescing,
            read_set: ReadSet::after(core::mem::take(&mut task.touched)),
            barriers: &mut task.barriers,
            streams_have_changed: !task.streams.is_empty() && task.streams_since != self.streams_changed,
            progress: &mut task.progress,
            coordinator: &mut task.coordinator,
        };
        let outcome = match (&task.peer_request, &task.again) {
            (Some(peer_request), _) => self.run_peer_request(&mut cx, peer_request).map(Final::into_value),
            (None, Some(outcome)) => self.repeat_reply(&cx, outcome),
            (None, None) => self.dispatch(&mut cx, &mut task.request),
        };
        let run = OperationRun { outcome, durable: cx.durable, read_set: cx.read_set };
        (task.changed, task.coalescing) = (cx.changed, cx.coalescing);
        run
    }

    pub(crate) fn refuse(&mut self, now: Now, task: &mut Task, errno: Errno, out: &mut Outbox) {
        self.give_back(task, out);
        self.finish(now, task, false, ReadSet::default(), Err(errno), out);
    }

    /// Releases the resources of an operation that is about to end.
    pub(crate) fn give_back(&mut self, task: &mut Task, out: &mut Outbox) {
        self.lift_barriers(task);
        self.withdraw_all(task);
        self.remove_unused(task, out);
    }

    /// Finishes an operation. `durable`: the reply waits until everything that the operation has
    /// done is durable. `read_set`: what the reply exposes.
    pub(crate) fn finish(
        &mut self,
        now: Now,
        task: &Task,
        durable: bool,
        mut read_set: ReadSet,
        result: Result<Reply, Errno>,
        out: &mut Outbox,
    ) {
        if let Some(peer_request) = &task.peer_request {
            return self.end_peer_request(now, peer_request, result, out);
        }
        self.may_refuse_again(task);
        match task.request {
            // A failed sweep is retried at the next tick.
            Request::Sweep => return self.sweeping = false,
            Request::Transfer { dir } => return self.transfer_ended(dir, &result),
            Request::Pull { dir } => return self.pull_ended(dir, &result),
            Request::ClaimDatafile { ino, server } => return self.datafile_claimed(ino, server, &result),
            Request::Recount { ino } => {
                if result.is_err() {
                    self.state.size_dirty.must_measure(ino);
                }
                return;
            }
            Request::Place { .. } => return out.placed.push(((task.from, task.id), result.map(drop))),
            Request::Enter { client, .. } => {
                let entered = result.and_then(|reply| (reply == Reply::Done).then_some(()).ok_or(Errno::EIO));
                return out.entered.push((client, entered));
            }
            Request::Forget { .. } if self.config.session_ms.is_none() => return,
            _ => {}
        }
        if self.config.session_ms.is_some() {
            if task.from == INTERNAL_CLIENT {
                return;
            }
            self.note(task, &result);
            self.grant_created(task, &result, now.uptime_ms);
        }
        if task.request.is_about_locks() {
            // Lock replies do not wait for the journal; they must precede later notifications of
            // grants.
            return self.answer(now, (task.from, task.id), result, &PreparedGrant::default(), out);
        }
        let is_change =
            task.changed.is_some() && result.is_ok() && self.config.acknowledge == Acknowledge::Durable;
        let until =
            if durable || is_change { self.state.sequence } else { self.last_change_of(&read_set, &result) };
        // The client may not hold the fragment.
        if task.id.origin().is_some() {
            read_set.refuse();
        }
        let grant = self.prepare_grant(task, read_set, &result, now.uptime_ms);
        let answer = HeldOutput::Reply(task.from, task.id, result, grant);
        match self.journal.hold_answer(until, answer, task.coalescing.or(self.config.policy.coalescing())) {
            Some(HeldOutput::Reply(to, id, result, grant)) => self.answer(now, (to, id), result, &grant, out),
            _ => out.waiting.push((task.from, task.id, Waiting::Journal)),
        }
    }

    /// Sends a reply and grants its leases.
    pub(crate) fn answer(
        &mut self,
        now: Now,
        (to, id): (ClientId, RequestId),
        result: Result<Reply, Errno>,
        grant: &PreparedGrant,
        out: &mut Outbox,
    ) {
        if self.config.session_ms.is_none() || self.remember((to, id), &result) {
            let (lease_ms, touched) = self.finish_grant(to, grant, now.uptime_ms);
            out.replies.push(Answered { to, id, result, lease_ms, touched });
        }
        self.unlock_ends(now, |by| by == (to, id), out);
    }

    fn dispatch(&mut self, cx: &mut Cx<'_>, request: &mut Request) -> Step<Reply> {
        if self.config.ranks > 1 || matches!(request, Request::Find { .. }) {
            self.keep_within(cx, request)?;
        }
        if self.state.counts.protected > 0 && request.is_change() {
            self.check_not_blocked(request)?;
        }
        match request {
            Request::Lookup { dir, name } => self.lookup(cx, *dir, name),
            Request::Forget { ino, lookups } => self.forget(cx, *ino, *lookups),
            Request::ForgetAll { inodes, released } => self.forget_all(cx, inodes, released),
            Request::GetAttr { ino } => self.getattr(cx, *ino),
            Request::SetAttr { ino, set } => self.setattr(cx, *ino, set).map(Final::into_value),
            Request::ReadLink { ino } => self.readlink(cx, *ino).map(Final::into_value),
            Request::Create { dir, name, node, perm, umask, open, exclusive, writeback } => {
                let new = Creation {
                    dir: *dir,
                    name,
                    node,
                    perm: *perm,
                    umask: *umask,
                    open: matches!(node, NewNode::Regular).then_some(*open).flatten(),
                    exclusive: *exclusive,
                    writeback: writeback.map(|writeback| writeback.ino),
                };
                self.create(cx, &new).map(Final::into_value)
            }
            Request::TmpFile { dir, perm, umask } => {
                self.tmpfile(cx, *dir, *perm, *umask).map(Final::into_value)
            }
            Request::Link { ino, dir, name } => self.link(cx, *ino, *dir, name).map(Final::into_value),
            Request::Unlink { dir, name, .. } => self.unlink(cx, *dir, name).map(Final::into_value),
            Request::RmDir { dir, name, .. } => self.rmdir(cx, *dir, name).map(Final::into_value),
            Request::Rename { from_dir, from, to_dir, to, flags, .. } => {
                self.rename(cx, (*from_dir, from), (*to_dir, to), *flags).map(Final::into_value)
            }
            Request::Open { ino, how } => self.open(cx, *ino, *how),
            Request::Release { ino } => self.release(cx, *ino).map(Final::into_value),
            Request::Read { ino, offset, size, noatime } => {
                self.read(cx, *ino, *offset, *size, *noatime).map(Final::into_value)
            }
            Request::Write { ino, offset, data, kill_suid_gid, .. } => {
                self.write(cx, *ino, *offset, data, *kill_suid_gid).map(Final::into_value)
            }
            Request::Allocate { ino, offset, length, mode } => {
                self.allocate(cx, *ino, *offset, *length, *mode).map(Final::into_value)
            }
            Request::RemovePrivileges { ino } => self.remove_privileges(cx, *ino).map(Final::into_value),
            Request::Seek { ino, offset, what } => self.seek(cx, *ino, *offset, *what),
            Request::Fsync { ino } => self.fsync(cx, *ino),
            Request::SyncFs { rank } => self.syncfs(cx, *rank),
            Request::ReadDir { dir, after, limit, plus } => {
                self.readdir(cx, *dir, *after, *limit, *plus).map(Final::into_value)
            }
            Request::Access { ino, want } => self.access(cx, *ino, *want),
            Request::SetXattr { ino, name, value, mode, kill_sgid } => {
                self.setxattr(cx, *ino, name, value, *mode, *kill_sgid).map(Final::into_value)
            }
            Request::GetXattr { ino, name } => self.getxattr(cx, *ino, name),
            Request::ListXattr { ino } => self.listxattr(cx, *ino),
            Request::RemoveXattr { ino, name } => self.removexattr(cx, *ino, name).map(Final::into_value),
            Request::StatFs { ino } => self.statfs(cx, *ino),
            Request::Extend { ino, offset, length, from, discards, .. } => {
                self.extend(cx, *ino, (*offset, *length), *from, *discards)
            }
            Request::Delegate { ino, access } => self.delegate(cx, *ino, *access),
            Request::RemoveTree { dir } => self.remove_tree(cx, *dir).map(Final::into_value),
            Request::CopyTree(copy) => self.copy_tree(cx, copy),
            Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::StopWaiting { .. } => self.on_lock(cx.client, request),
            // The session layer handles these.
            Request::Reclaim { .. } | Request::ReclaimLocks { .. } => Err(Errno::EINVAL.into()),
            Request::Enter { client, path } => self.enter(cx, *client, path),
            Request::Sweep => self.sweep(cx),
            Request::Transfer { dir } => self.transfer(cx, *dir).map(Final::into_value),
            Request::Pull { dir } => self.pull(cx, *dir).map(Final::into_value),
            Request::ClaimDatafile { ino, server } => self.claim_datafile(cx, *ino, *server),
            Request::Fragments { dir } => self.fragments(*dir),
            Request::Recount { ino } => self.recount_file(cx, *ino).map(Final::into_value),
            Request::Place { io } => self.place(cx, io),
            Request::Find { ino, kind, open } => self.find(cx, *ino, *kind, *open),
            Request::Parent { dir } => self.parent(cx, *dir),
            Request::SetLayout { ino, layout } => self.set_layout(cx, *ino, layout).map(Final::into_value),
            Request::Purge { ino, removed } => self.purge(cx, *ino, *removed).map(Final::into_value),
            Request::TakeNumbers { rank, count } => {
                self.take_numbers(cx, *rank, *count).map(Final::into_value)
            }
            Request::Accessed { files } => self.accessed_before(cx, files).map(Final::into_value),
            Request::Renew { inodes, exclusive_dir } => self.renew(cx, inodes, *exclusive_dir),
            Request::LeaseData { ino } => self.lease_data(cx, *ino),
            Request::Announce(ino) => self.announce(cx, *ino),
        }
    }

    // ---- Shared by operations

    /// Checks that changes are possible and that the journal has space.
    ///
    /// # Errors
    /// - `EROFS`: mounted read-only.
    /// - `EIO`: the journal or the store has failed.
    /// - `ENOSPC`: a checkpoint has failed for lack of space.
    pub(crate) fn writable(&self) -> Step<()> {
        if self.config.read_only {
            return Err(Errno::EROFS.into());
        }
        if self.journal.broken.is_some() {
            return Err(Errno::EIO.into());
        }
        if self.sessions.must_wait() {
            return Err(Stop::Wait(Wait::Grace));
        }
        let failure = self.checkpoint.failure();
        // A full store may have space again; a store that fails gets no more changes.
        if failure.is_some_and(|errno| errno != Errno::ENOSPC) {
            return Err(Errno::EIO.into());
        }
        if !self.journal.has_room()
            || self.state.changes.dirty() > self.config.cache_bytes / 2 + Self::SMALLEST_CACHE
        {
            // While checkpoints fail, no space will become free: fail instead of waiting.
            return Err(failure.map_or(Stop::Wait(Wait::Room), Stop::Fail));
        }
        Ok(())
    }

    /// As [`Self::writable`], and the store has space for more.
    ///
    /// # Errors
    /// `ENOSPC` if free space is below the reserve.
    pub(crate) fn growable(&self) -> Step<()> {
        self.writable()?;
        if self.free_space < self.config.reserve { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }

    /// As [`Self::writable`], and the store has space for another version of existing data, which
    /// may use three quarters of the reserve.
    pub(crate) fn overwritable(&self) -> Step<()> {
        self.writable()?;
        if self.free_space < self.config.reserve / 4 { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }

    /// True if the store will not run out of space soon.
    pub(crate) fn has_space_to_spare(&self) -> bool {
        self.growable().is_ok() && self.free_space / 2 >= self.config.reserve
    }

    /// As [`Self::growable`], for `bytes` that the journal does not contain. A checkpoint must find
    /// space for them, though free space is reported only now and then.
    pub(crate) fn clonable(&mut self, bytes: u64) -> Step<()> {
        self.growable()?;
        let room = (self.free_space - self.config.reserve) / 4;
        if bytes > room {
            return Err(Errno::ENOSPC.into());
        }
        if self.state.changes.cloned.max(self.cloned) > room - bytes {
            return Err(Stop::Wait(Wait::Room));
        }
        self.cloned += bytes;
        Ok(())
    }

    /// The attributes of an inode; queries its stream for the attributes that the stream has.
    pub(crate) fn attr(&self, cx: &Cx<'_>, inode: &Inode) -> Step<espalier_proto::Attr> {
        Ok(inode.attr(self.stream_stat(cx, inode)?.as_ref()))
    }

    /// The attributes that the stream of an inode has.
    pub(crate) fn stream_stat(&self, cx: &Cx<'_>, inode: &Inode) -> Step<Option<StreamStat>> {
        if !inode.is_streamed() {
            return Ok(None);
        }
        Ok(cx.stream_stats(alloc::vec![inode.ino])?.first().copied())
    }

    fn tick(&mut self, now: Now, out: &mut Outbox) {
        self.ticks += 1;
        self.sweep_due = true;
        self.finalise_filled(out);
        self.retry_pool();
        self.retry_transfers(out);
        self.retry_pulls(out);
        if let Some(io) = self.checkpoint.retry() {
            self.ask_checkpoint(io, out);
        }
        // Removals free their space only with a checkpoint.
        let is_short = self.free_space < 2 * self.config.reserve;
        let is_due = self.ticks.is_multiple_of(Self::CHECKPOINT_TICKS);
        // Not while draining: the next mount checks the size-dirty files.
        if !self.draining && !self.config.read_only {
            for ino in self.idle_size_dirty() {
                self.ask(Purpose::SyncStream(ino, self.ticks), self.stream_io(StreamCall::Sync { ino }), out);
            }
            self.measure_unmeasured(now, out);
            self.retry_removals(out);
        }
        let is_waited_for = !self.waiting_for_space.is_empty();
        if self.draining || is_due || is_short || is_waited_for || self.journal.is_half_full() {
            self.start_checkpoint(CheckpointWhen::Changed, out);
        }
        self.inquire(|_| true);
        self.skip_silent(now, out);
        if !self.draining {
            self.send_usage();
            self.send_freed();
        }
        self.flush(now, 0, true, out);
        self.tick_leases(now, out);
    }

    fn flush(&mut self, now: Now, queued: usize, flush: bool, out: &mut Outbox) {
        let due = self.journal.due();
        self.release_held(now, due, out);
        if let Some((frame, sync)) = self.journal.next_frame(queued, flush) {
            self.ask(Purpose::Journal, Io::Journal { frame, sync }, out);
        }
        if self.journal.next_sync() {
            self.ask(Purpose::Sync, Io::Sync, out);
        }
        if self.journal.begin_write_delay() {
            self.ask(Purpose::WriteDelay, Io::WriteDelay, out);
        }
    }
}
