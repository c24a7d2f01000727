//! The driver of an embedded file system: the state machines of this process.
//!
//! The thread that makes a call runs the machines and executes the I/O, so a call needs no hop
//! between threads. A call that must wait is suspended; the thread that ends the wait answers it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use espalier_client::{Answer, Call, Client, Interrupt, Next};
use espalier_meta::{Cause, Input, IoId, LoadReport, Meta, Now, Outbox, Waiting};
use espalier_proto::{Caller, ClientId, Errno, Ino, LockOwner, RangeOp, Reply, Request, RequestId, StreamIo};
use espalier_store::Store;

use crate::background_work::{Background, BackgroundWork};
use crate::calls::{CallOutcome, Calls, Frontend};
use crate::clock;
use crate::disk::Disk;
use crate::frontend::FOREVER;
use crate::namespace::SyncPoint;
use crate::tracer::{Id, Layer, NodeId, Tracer};
use crate::watch::{CriticalSection, Kind, MachineFigures, Span, Stage, Watch, exposition};

/// The state machines of this process and their disk.
pub struct Node<D: Frontend> {
    inner: Mutex<Inner<D::Ticket>>,
    /// Number of calls that wait for the lock.
    queued: AtomicUsize,
    pub background_work: BackgroundWork,
    frontend: D,
}

struct Inner<T> {
    meta: Meta,
    client: Client,
    /// Calls that wait for the metadata machine, by request number.
    pending: HashMap<RequestId, PendingCall<'static, T>>,
}

type Locked<'a, T> = MutexGuard<'a, Inner<T>>;

struct PendingCall<'a, T> {
    caller: Caller,
    call: Call<'a>,
    ticket: T,
    span: Span,
}

/// A call whose last step is executed without the lock.
struct Finished<'a, T> {
    ticket: T,
    span: Span,
    last: FinalStep<'a>,
}

enum FinalStep<'a> {
    Answer(Result<Answer, Errno>),
    Stream(Call<'a>, StreamIo),
}

/// Results of inputs, to be executed after the lock is released.
struct PendingEffects<'a, T> {
    out: Outbox,
    finished: Vec<Finished<'a, T>>,
    /// Files that have lost their set-id bits.
    unprivileged: Vec<Ino>,
    /// The critical section of the inputs.
    section: CriticalSection,
}

impl<T> PendingEffects<'_, T> {
    /// Reserves room for one reply, the usual number: a vector's default capacity would exceed what
    /// the allocator serves without a lock.
    fn new(section: CriticalSection) -> Self {
        let out = Outbox { replies: Vec::with_capacity(1), ..Outbox::default() };
        Self { out, finished: Vec::with_capacity(1), unprivileged: Vec::new(), section }
    }
}

/// The only client: this process.
const CLIENT: ClientId = ClientId(1);
/// The request number for which no call waits.
const NOBODY: RequestId = RequestId(0);

thread_local! {
    /// This thread's buffer for reads of streams.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<D: Frontend> Node<D> {
    /// Creates the node, and the state of its background threads ([`Self::run_background`]).
    pub fn new(meta: Meta, disk: Arc<Disk>, frontend: D, watch: Watch) -> (Self, Background) {
        let (background_work, background) = BackgroundWork::new(disk, watch, Tracer::new(NodeId::Rank(0)));
        let inner = Inner { meta, client: Client::default(), pending: HashMap::new() };
        let (inner, queued) = (Mutex::new(inner), AtomicUsize::new(0));
        (Self { inner, queued, background_work, frontend }, background)
    }

    /// Called once per second: reports the time and the free space to the machine.
    pub fn tick(&self) {
        match self.background_work.disk.free_space() {
            Ok(free) => self.feed(Input::Space { free }),
            Err(error) => tracing::warn!(%error, "cannot determine the free space of the store"),
        }
        self.feed(self.background_work.resources.sample());
        self.feed(Input::Tick);
        if let Some(when) = self.background_work.disk.sync_point().and_then(SyncPoint::tick) {
            self.feed(Input::Checkpoint(when));
        }
        self.background_work.watch.tick();
    }

    /// Number of inodes in use, and the failure of the machine, if any ([`Meta::failure`]).
    pub fn state(&self) -> (u64, Option<Errno>) {
        self.lock().map_or((0, Some(Errno::EIO)), |inner| (inner.meta.files(), inner.meta.failure()))
    }

    /// Statistics of the state machines.
    pub fn figures(&self) -> MachineFigures {
        let Ok(inner) = self.lock() else { return MachineFigures::default() };
        let now = Instant::now();
        let waits = inner.pending.values().map(|pending| now.saturating_duration_since(pending.span.mark()));
        MachineFigures::of(&inner.meta, inner.pending.len(), waits.max().unwrap_or_default())
    }

    /// The load of this machine, with at most this many directories.
    pub fn load(&self, most: usize) -> Option<LoadReport> {
        Some(self.lock().ok()?.meta.load_report(most))
    }

    /// Statistics since mounting, for Prometheus.
    pub fn exposition(&self) -> String {
        let (totals, (files, broken)) = (self.background_work.watch.totals(), self.state());
        let figures = self.background_work.watch.figures(&totals, self.figures());
        exposition(totals, figures, files, broken.is_some())
    }

    /// The path of an inode, as far as it is cached.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        let path = self.lock().ok()?.meta.path_of(ino)?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }

    fn feed(&self, input: Input) {
        let Ok((mut inner, section)) = self.enter() else { return };
        let mut work = PendingEffects::new(section);
        self.input(&mut inner, &mut work, input);
        self.carry_out(inner, work);
    }

    /// Locks the machines and notes the time; without contention the clock is read once.
    fn enter(&self) -> Result<(Locked<'_, D::Ticket>, CriticalSection), Errno> {
        let requested = Instant::now();
        if let Ok(inner) = self.inner.try_lock() {
            return Ok((inner, CriticalSection { requested, began: requested }));
        }
        let inner = self.lock()?;
        Ok((inner, CriticalSection { requested, began: Instant::now() }))
    }

    /// Fails after a panic under the lock: the machines' state is unreliable then.
    fn lock(&self) -> Result<Locked<'_, D::Ticket>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }

    fn input(&self, inner: &mut Inner<D::Ticket>, work: &mut PendingEffects<'_, D::Ticket>, input: Input) {
        let now = Now {
            time: clock::now(),
            uptime_ms: clock::uptime_ms(),
            queued: self.queued.load(Ordering::Relaxed),
        };
        inner.meta.on(now, input, &mut work.out);
    }

    /// Advances a call until it is finished or must wait.
    fn advance<'a>(
        &self,
        inner: &mut Inner<D::Ticket>,
        work: &mut PendingEffects<'a, D::Ticket>,
        id: RequestId,
        pending: PendingCall<'a, D::Ticket>,
        mut next: Next,
    ) {
        let PendingCall { caller, call, ticket, span } = pending;
        loop {
            match next {
                Next::Answer(result) => {
                    return work.finished.push(Finished { ticket, span, last: FinalStep::Answer(result) });
                }
                // All streams are in the local store, and there is no write-back.
                Next::Data(..) | Next::Apart => next = Next::Answer(Err(Errno::EIO)),
                Next::Stream(io) => {
                    return work.finished.push(Finished { ticket, span, last: FinalStep::Stream(call, io) });
                }
                Next::Notify(request, answer) => {
                    self.input(inner, work, without_reply(request));
                    return work.finished.push(Finished {
                        ticket,
                        span,
                        last: FinalStep::Answer(Ok(answer)),
                    });
                }
                Next::Release(ino) => {
                    self.input(inner, work, without_reply(Request::Release { ino }));
                    let last = FinalStep::Answer(Ok(Answer::Done));
                    return work.finished.push(Finished { ticket, span, last });
                }
                // There is only one rank, so it returns no remote reference.
                Next::Ask(request) | Next::Find(request, _) => {
                    let input = Input::Request {
                        from: CLIENT,
                        id,
                        below: id,
                        follows: Vec::new(),
                        caller: caller.clone(),
                        request,
                    };
                    self.input(inner, work, input);
                    let answered = work.out.replies.iter().position(|answered| answered.id == id);
                    let Some(at) = answered else {
                        inner
                            .pending
                            .insert(id, PendingCall { caller, call: call.into_owned(), ticket, span });
                        return;
                    };
                    let reply = work.out.replies.swap_remove(at);
                    work.unprivileged.extend(call.unprivileged(&reply.result));
                    next = inner.client.reply(&call, reply.result);
                }
            }
        }
    }

    /// Executes all results, and the results of these, until nothing is left.
    fn carry_out<'a>(&'a self, mut inner: Locked<'a, D::Ticket>, mut work: PendingEffects<'a, D::Ticket>)
    where
        D::Ticket: 'a,
    {
        loop {
            for (_, id, waiting) in work.out.waiting.drain(..) {
                if let Some(pending) = inner.pending.get_mut(&id) {
                    pending.span.resume(work.section);
                    pending.span.enter_stage(Stage::from(waiting), Instant::now());
                }
            }
            while let Some(reply) = work.out.replies.pop() {
                self.resume_pending(&mut inner, &mut work, reply.id, reply.result);
            }
            for remark in work.out.warnings.drain(..) {
                tracing::warn!("{remark}");
            }
            let io = std::mem::take(&mut work.out.io);
            let recalls = std::mem::take(&mut work.out.recalls);
            let changed = std::mem::take(&mut work.out.changed);
            let causes = self.background_work.tracer.causes(&io, |(id, _)| self.causes_of(&inner, *id));
            drop(inner);
            if !recalls.is_empty() {
                self.frontend.recall(&recalls, &[]);
            }
            if !changed.is_empty() {
                self.frontend.changed(&changed);
            }
            work.unprivileged.drain(..).for_each(|ino| self.frontend.privileges_removed(ino));
            for finished in work.finished.drain(..) {
                self.finish(finished);
            }
            let mut causes = causes.into_iter();
            let execute = |(id, io)| self.background_work.execute(id, io, causes.next().unwrap_or_default());
            let done: Vec<_> = io.into_iter().filter_map(execute).collect();
            if done.is_empty() {
                return;
            }
            let Ok(locked) = self.enter() else { return };
            (inner, work.section) = locked;
            for (id, result) in done {
                self.input(&mut inner, &mut work, Input::Done { id, result });
            }
        }
    }

    fn resume_pending(
        &self,
        inner: &mut Inner<D::Ticket>,
        work: &mut PendingEffects<'_, D::Ticket>,
        id: RequestId,
        reply: Result<Reply, Errno>,
    ) {
        if let Some(mut pending) = inner.pending.remove(&id) {
            pending.span.resume(work.section);
            work.unprivileged.extend(pending.call.unprivileged(&reply));
            let next = inner.client.reply(&pending.call, reply);
            self.advance(inner, work, id, pending, next);
        }
    }

    fn finish(&self, finished: Finished<'_, D::Ticket>) {
        let Finished { ticket, mut span, last } = finished;
        // The machines are finished with the call; what remains is stream I/O.
        span.enter_stage(Stage::Disk, Instant::now());
        match last {
            FinalStep::Answer(Ok(Answer::Bytes(bytes))) => {
                self.answer(ticket, span, Ok(CallOutcome::Data(&bytes)))
            }
            FinalStep::Answer(Ok(Answer::StatFs(mut capacity))) => {
                let space = self.background_work.disk.space();
                if let Ok(free) = self.background_work.disk.free_space() {
                    // The machine learns of the free space before it is reported.
                    self.feed(Input::Space { free });
                }
                let answer = space.map(|space| {
                    capacity.space = space;
                    CallOutcome::Answer(Answer::StatFs(capacity))
                });
                self.answer(ticket, span, answer);
            }
            FinalStep::Answer(result) => self.answer(ticket, span, result.map(CallOutcome::Answer)),
            FinalStep::Stream(_, StreamIo { ino, op: RangeOp::Read { offset, size }, .. }) => BUFFER
                .with_borrow_mut(|buffer| {
                    let cause = [self.id_of(span.number)];
                    let steps = self.background_work.tracer.steps(&cause);
                    let read = steps.step(Layer::Store, "stream read", || {
                        self.background_work.disk.read_stream(ino, offset, size, buffer)
                    });
                    span.enter_stage(Stage::Work, Instant::now());
                    self.answer(ticket, span, read.map(CallOutcome::Data));
                }),
            FinalStep::Stream(call, io) => {
                let data = call.data();
                let (cause, kind) = ([self.id_of(span.number)], span.kind.name());
                let steps = self.background_work.tracer.steps(&cause);
                let result = steps.step(Layer::Store, kind, || {
                    self.background_work.disk.stream_io(io, data).and_then(Answer::of_stream)
                });
                span.enter_stage(Stage::Work, Instant::now());
                // Before the answer, after which the file may be removed.
                let left = match io.op {
                    RangeOp::Write { offset, .. } if result.is_ok() => self
                        .background_work
                        .disk
                        .follow(io.ino, offset, data.len() as u64)
                        .map(|bytes| (io.ino, bytes)),
                    _ => None,
                };
                self.answer(ticket, span, result.map(CallOutcome::Answer));
                if let Some((ino, bytes)) = left {
                    self.frontend.flushed_behind(ino, bytes);
                }
            }
        }
    }

    /// The identifier of a call in traces.
    fn id_of(&self, number: u64) -> Id {
        self.background_work.tracer.served(NodeId::Client(CLIENT.0 as u32), number)
    }

    fn causes_of(&self, inner: &Inner<D::Ticket>, id: IoId) -> Vec<Id> {
        let id_of = |cause| match cause {
            Cause::Request(_, RequestId(number)) => Some(self.id_of(number)),
            // There is no other rank.
            Cause::Question(..) => None,
        };
        inner.meta.causes_of(id).into_iter().filter_map(id_of).collect()
    }

    /// Counts a finished call and answers it.
    fn answer(&self, ticket: D::Ticket, span: Span, outcome: Result<CallOutcome<'_>, Errno>) {
        self.background_work.tracer.end(self.id_of(span.number));
        let is_held = self.background_work.disk.store.is_held();
        let outcome = if is_held { outcome } else { Err(Errno::EIO) };
        let failure = outcome.as_ref().err().copied();
        let log = self.background_work.watch.record(&span, failure.is_some());
        self.frontend.answer(self, ticket, outcome, FOREVER);
        if log {
            self.log_slow(&span, failure);
        }
    }

    fn log_slow(&self, span: &Span, failure: Option<Errno>) {
        let ms = |stage| span.spent[stage as usize] / 1_000_000;
        tracing::warn!(
            operation = span.kind.name(),
            inode = span.ino.0,
            path = self.path_of(span.ino),
            pid = span.pid,
            failure = failure.map(tracing::field::display),
            queue_ms = ms(Stage::Queue),
            work_ms = ms(Stage::Work),
            journal_ms = ms(Stage::Journal),
            disk_ms = ms(Stage::Disk),
            "slow operation"
        );
    }

    /// Runs background work until [`BackgroundWork::stop`].
    pub fn run_background(&self, background: Background) {
        self.background_work.run(background, |id, result| self.feed(Input::Done { id, result }));
    }

    /// Writes everything out, until done, failed or timed out. Returns true on success.
    pub fn drain(&self, limit: std::time::Duration) -> bool {
        let deadline = std::time::Instant::now() + limit;
        loop {
            self.feed(Input::Drain);
            if self.lock().is_ok_and(|inner| inner.meta.is_idle()) {
                return self.lock().is_ok_and(|inner| inner.meta.broken().is_none());
            }
            if std::time::Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl<D: Frontend> Calls<D> for Node<D> {
    fn call(&self, id: u64, caller: Caller, call: Call<'_>, ticket: D::Ticket) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let section = self.enter();
        self.queued.fetch_sub(1, Ordering::Relaxed);
        let (mut inner, section) = match section {
            Ok(section) => section,
            Err(errno) => return self.frontend.answer(self, ticket, Err(errno), FOREVER),
        };
        let mut work = PendingEffects::new(section);
        let (kind, ino) = (call.kind(), call.charged_inode());
        let mut span = Span::start(kind, caller.pid, ino, work.section);
        span.number = id;
        self.background_work.tracer.begin(self.id_of(id), kind.name(), Vec::new);
        if self.background_work.watch.has_viewers() {
            span.dir = inner.meta.directory_of(ino);
        }
        let next = inner.client.start(&call);
        let pending = PendingCall { caller, call, ticket, span };
        self.advance(&mut inner, &mut work, RequestId(id), pending, next);
        self.carry_out(inner, work);
    }

    fn ranks(&self) -> usize {
        1
    }

    fn forget(&self, requests: impl IntoIterator<Item = Request>) {
        let Ok((mut inner, section)) = self.enter() else { return };
        let mut work = PendingEffects::new(section);
        let mut span = Span::start(Kind::Forget, 0, Ino::ROOT, work.section);
        for request in requests {
            self.input(&mut inner, &mut work, without_reply(request));
        }
        span.enter_stage(Stage::Work, Instant::now());
        self.background_work.watch.record(&span, false);
        self.carry_out(inner, work);
    }

    fn interrupt(&self, id: u64, dies: impl Fn(u32) -> bool) -> Interrupt {
        let id = RequestId(id);
        let pid = self.lock().ok().and_then(|inner| Some(inner.pending.get(&id)?.caller.pid));
        if !pid.is_none_or(dies) {
            return Interrupt::Survived;
        }
        self.feed(Input::Cancel { from: CLIENT, id });
        Interrupt::Heard
    }

    fn has_locks(&self, _: Ino, _: LockOwner) -> bool {
        false
    }

    fn must_flush(&self, _: Ino, _: LockOwner) -> bool {
        false
    }

    fn unlock(&self, _: Ino, _: LockOwner) {}

    fn stream_file(&self, ino: Ino) -> Option<Arc<File>> {
        self.background_work.disk.stream_file(ino)
    }

    fn pass_through(&self) {
        if let Ok(mut inner) = self.lock() {
            inner.client.can_pass_through = true;
        }
    }

    fn open_dir(&self, _: Ino) -> Option<bool> {
        None
    }

    fn close_dir(&self, _: Ino) {}

    fn without_passthrough(&self, ino: Ino) {
        if let Ok(mut inner) = self.lock() {
            inner.client.without_passthrough(ino);
        }
    }

    fn frontend(&self) -> &D {
        &self.frontend
    }
}

impl From<Waiting> for Stage {
    fn from(waiting: Waiting) -> Self {
        match waiting {
            Waiting::Disk | Waiting::Clients | Waiting::Peers => Self::Disk,
            Waiting::Journal => Self::Journal,
        }
    }
}

fn without_reply(request: Request) -> Input {
    Input::Request {
        from: CLIENT,
        id: NOBODY,
        below: NOBODY,
        follows: Vec::new(),
        caller: Caller::SERVER,
        request,
    }
}
