//! One process's machines and the threads that drive them.
//!
//! The thread that brings a call runs the machines for it and does the I/O that it needs itself, so that a call takes
//! no hop between threads. A call that must wait for others is parked, and whoever ends its waiting answers it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use espalier_client::{Answer, Call, Client, Next, StreamIo};
use espalier_meta::{Input, Io, IoDone, IoId, Meta, Now, Outbox, Waiting};
use espalier_proto::{Caller, ClientId, Errno, Ino, Recall, Reply, Request, RequestId};

use crate::clock;
use crate::disk::Disk;
use crate::watch::{
    CacheFigures, Figures, IoKind, JournalFigures, Kind, MachineFigures, Span, Stage, TrashFigures, Turn,
    Watch, exposition,
};

/// Where calls come from and answers go to.
pub trait Door: Sized + Send + Sync + 'static {
    /// What a door needs to answer a call.
    type Ticket: Send;

    fn answer(&self, node: &Node<Self>, ticket: Self::Ticket, outcome: Result<Outcome<'_>, Errno>);

    /// Those who call through the door need not know these inodes any longer.
    fn recall(&self, recalls: &[Recall]);

    /// These have other attributes than those who call through the door have been told.
    fn changed(&self, inos: &[Ino]);

    /// The writer of a growing file has left these bytes behind; callers need not keep copies of them.
    fn left_behind(&self, ino: Ino, bytes: Range<u64>);
}

/// What a door is told of a call.
#[derive(Debug)]
pub enum Outcome<'a> {
    Answer(Answer),
    /// What was read.
    Data(&'a [u8]),
}

/// The machines of this process and their disk.
pub struct Node<D: Door> {
    inner: Mutex<Inner<D::Ticket>>,
    /// Calls that have come and have not been given to the machines.
    queued: AtomicUsize,
    pub disk: Arc<Disk>,
    pub watch: Watch,
    door: D,
    errands: Errands,
}

struct Inner<T> {
    meta: Meta,
    client: Client,
    /// Calls that wait for the metadata machine, by the request's id.
    parked: HashMap<RequestId, Parked<T>>,
}

type Locked<'a, T> = MutexGuard<'a, Inner<T>>;

struct Parked<T> {
    caller: Caller,
    call: Call<'static>,
    ticket: T,
    span: Span,
}

/// A call whose last step is to be done without the lock.
struct Finished<'a, T> {
    ticket: T,
    span: Span,
    last: Last<'a>,
}

enum Last<'a> {
    Answer(Result<Answer, Errno>),
    Stream(Call<'a>, StreamIo),
}

/// For the background threads: what may take long and nobody waits for.
struct Errands {
    /// Pieces of a checkpoint, one at a time.
    checkpoint: SyncSender<Errand>,
    /// Frames of the journal that need not be durable yet, one at a time.
    journal: SyncSender<Errand>,
    /// Rests between the steps in which the trash is freed.
    sweep: SyncSender<Errand>,
    /// A checkpoint has added to the tables.
    upkeep: SyncSender<Errand>,
    stopping: AtomicBool,
}

enum Errand {
    Io(IoId, Io),
    Upkeep,
    Stop,
}

/// Work that follows from inputs under the lock, to be done after it is let go.
struct Work<'a, T> {
    out: Outbox,
    finished: Vec<Finished<'a, T>>,
    /// In which inputs are being given to the machines.
    turn: Turn,
}

impl<T> Work<'_, T> {
    /// With room for the one answer that most inputs have: what a vector takes by itself is more than the allocator
    /// gives without a lock.
    fn new(turn: Turn) -> Self {
        let out = Outbox { replies: Vec::with_capacity(1), ..Outbox::default() };
        Self { out, finished: Vec::with_capacity(1), turn }
    }
}

/// The only client: this process.
const CLIENT: ClientId = ClientId(1);
/// For requests whose answers nobody waits for.
const NOBODY: RequestId = RequestId(0);

thread_local! {
    /// Where this thread reads streams into.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<D: Door> Node<D> {
    /// The node, and what its background threads are to run ([`Self::run_background`]).
    pub fn new(meta: Meta, disk: Arc<Disk>, door: D, watch: Watch) -> (Self, Background) {
        // Each has one errand under way at a time and may be told to stop, so that a short queue never blocks.
        let (checkpoint, checkpoints) = sync_channel(2);
        let (journal, frames) = sync_channel(2);
        let (sweep, sweeps) = sync_channel(2);
        let (upkeep, upkeeps) = sync_channel(2);
        let errands = Errands { checkpoint, journal, sweep, upkeep, stopping: AtomicBool::new(false) };
        let inner = Inner { meta, client: Client::default(), parked: HashMap::new() };
        let (inner, queued) = (Mutex::new(inner), AtomicUsize::new(0));
        (
            Self { inner, queued, disk, watch, door, errands },
            Background { checkpoints, frames, sweeps, upkeeps },
        )
    }

    pub fn door(&self) -> &D {
        &self.door
    }

    /// Whether the door can let the kernel read and write streams itself.
    pub fn set_passthrough(&self, can_pass_through: bool) {
        if let Ok(mut inner) = self.lock() {
            inner.client.can_pass_through = can_pass_through;
        }
    }

    /// Runs a call. It is answered through the door, now or later. `id`: not 0, and unique among unanswered calls.
    pub fn call(&self, id: u64, caller: Caller, call: Call<'_>, ticket: D::Ticket) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn();
        self.queued.fetch_sub(1, Ordering::Relaxed);
        let (mut inner, turn) = match turn {
            Ok(turn) => turn,
            Err(errno) => return self.door.answer(self, ticket, Err(errno)),
        };
        let mut work = Work::new(turn);
        let (kind, ino) = Kind::of(&call);
        let mut span = Span::start(kind, caller.pid, ino, work.turn);
        if self.watch.is_watched() {
            span.dir = inner.meta.directory_of(ino);
        }
        let next = inner.client.start(&call);
        self.advance(&mut inner, &mut work, RequestId(id), (caller, call, ticket, span), next);
        self.settle(inner, work);
    }

    /// Tells the metadata machine what the kernel has forgotten, which has no answer.
    pub fn forget(&self, requests: impl IntoIterator<Item = Request>) {
        let Ok((mut inner, turn)) = self.turn() else { return };
        let mut work = Work::new(turn);
        let mut span = Span::start(Kind::Forget, 0, Ino::ROOT, work.turn);
        for request in requests {
            self.input(&mut inner, &mut work, told(request));
        }
        span.turn_to(Stage::Work, Instant::now());
        self.watch.record(&span, false);
        self.settle(inner, work);
    }

    /// The caller of a call does not want to wait any longer.
    pub fn interrupt(&self, id: u64) {
        self.feed(Input::Cancel { from: CLIENT, id: RequestId(id) });
    }

    /// Comes once a second: tells the time and the space left.
    pub fn tick(&self) {
        match self.disk.free_space() {
            Ok(free) => self.feed(Input::Space { free }),
            Err(error) => tracing::warn!(%error, "the store does not tell its free space"),
        }
        self.feed(Input::Tick);
        self.watch.tick();
    }

    /// Lets a closure use the client's machine under the lock.
    pub fn with_client<R>(&self, use_it: impl FnOnce(&mut Client) -> R) -> Result<R, Errno> {
        self.lock().map(|mut inner| use_it(&mut inner.client))
    }

    /// Inodes in use, and what is wrong, if anything is: see [`Meta::failure`].
    pub fn state(&self) -> (u64, Option<Errno>) {
        self.lock().map_or((0, Some(Errno::EIO)), |inner| (inner.meta.files(), inner.meta.failure()))
    }

    /// What the machines tell to those who watch.
    pub fn figures(&self) -> MachineFigures {
        let Ok(inner) = self.lock() else { return MachineFigures::default() };
        let now = Instant::now();
        let waits = inner.parked.values().map(|parked| now.saturating_duration_since(parked.span.mark()));
        let figures = inner.meta.figures();
        MachineFigures {
            waiting: inner.parked.len(),
            longest_wait: waits.max().unwrap_or_default(),
            cache: CacheFigures {
                inodes: figures.inodes,
                directories: figures.directories,
                small_files: figures.strips,
                dentries: figures.dentries,
                bytes: figures.cache_bytes,
                limit_bytes: figures.cache_limit,
                dirty_bytes: figures.dirty_bytes,
            },
            journal: JournalFigures {
                used_bytes: figures.journal_used,
                bytes: figures.journal_capacity,
                changes: figures.changes,
                syncs: figures.syncs,
                synced_operations: figures.synced_replies,
            },
            checkpoint_running: figures.checkpoint_running,
            trash: TrashFigures { entries: figures.trash_entries, bytes: figures.trash_bytes },
        }
    }

    /// What the file system has done since it was mounted.
    pub fn activity(&self) -> Figures {
        self.watch.figures(&self.watch.totals(), self.figures())
    }

    /// The same for Prometheus.
    pub fn exposition(&self) -> String {
        let (totals, (files, broken)) = (self.watch.totals(), self.state());
        let figures = self.watch.figures(&totals, self.figures());
        exposition(totals, figures, files, broken.is_some())
    }

    /// An inode's path in the file system, as far as it is in memory.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        let path = self.lock().ok()?.meta.path_of(ino)?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }

    fn feed(&self, input: Input) {
        let Ok((mut inner, turn)) = self.turn() else { return };
        let mut work = Work::new(turn);
        self.input(&mut inner, &mut work, input);
        self.settle(inner, work);
    }

    /// The machines, and when they were there. The clock is read once where nobody else had them.
    fn turn(&self) -> Result<(Locked<'_, D::Ticket>, Turn), Errno> {
        let asked = Instant::now();
        if let Ok(inner) = self.inner.try_lock() {
            return Ok((inner, Turn { asked, began: asked }));
        }
        let inner = self.lock()?;
        Ok((inner, Turn { asked, began: Instant::now() }))
    }

    /// Fails after a thread has panicked while it held the machines: what they hold cannot be trusted any more.
    fn lock(&self) -> Result<Locked<'_, D::Ticket>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }

    fn input(&self, inner: &mut Inner<D::Ticket>, work: &mut Work<'_, D::Ticket>, input: Input) {
        let now = Now {
            time: clock::now(),
            uptime_ms: clock::uptime_ms(),
            queued: self.queued.load(Ordering::Relaxed),
        };
        inner.meta.on(now, input, &mut work.out);
    }

    /// Leads a call on until it is finished or must wait.
    fn advance<'a>(
        &self,
        inner: &mut Inner<D::Ticket>,
        work: &mut Work<'a, D::Ticket>,
        id: RequestId,
        (caller, call, ticket, span): (Caller, Call<'a>, D::Ticket, Span),
        mut next: Next,
    ) {
        loop {
            match next {
                Next::Answer(result) => {
                    return work.finished.push(Finished { ticket, span, last: Last::Answer(result) });
                }
                Next::Stream(io) => {
                    return work.finished.push(Finished { ticket, span, last: Last::Stream(call, io) });
                }
                Next::Tell(request, answer) => {
                    self.input(inner, work, told(request));
                    return work.finished.push(Finished { ticket, span, last: Last::Answer(Ok(answer)) });
                }
                Next::Ask(request) => {
                    let input =
                        Input::Request { from: CLIENT, id, below: id, caller: caller.clone(), request };
                    self.input(inner, work, input);
                    let answered = work.out.replies.iter().position(|answered| answered.id == id);
                    let Some(at) = answered else {
                        inner.parked.insert(id, Parked { caller, call: call.into_owned(), ticket, span });
                        return;
                    };
                    let reply = work.out.replies.swap_remove(at);
                    next = inner.client.reply(&call, reply.result);
                }
            }
        }
    }

    /// Does all that follows, and what follows from that, until nothing is left to do.
    fn settle<'a>(&'a self, mut inner: Locked<'a, D::Ticket>, mut work: Work<'a, D::Ticket>)
    where
        D::Ticket: 'a,
    {
        loop {
            for (id, waiting) in work.out.waiting.drain(..) {
                if let Some(parked) = inner.parked.get_mut(&id) {
                    parked.span.resume(work.turn);
                    parked.span.turn_to(Stage::from(waiting), Instant::now());
                }
            }
            while let Some(reply) = work.out.replies.pop() {
                self.unpark(&mut inner, &mut work, reply.id, reply.result);
            }
            let io = std::mem::take(&mut work.out.io);
            let recalls = std::mem::take(&mut work.out.recalls);
            let changed = std::mem::take(&mut work.out.changed);
            drop(inner);
            if !recalls.is_empty() {
                self.door.recall(&recalls);
            }
            if !changed.is_empty() {
                self.door.changed(&changed);
            }
            for finished in work.finished.drain(..) {
                self.finish(finished);
            }
            let done: Vec<_> = io.into_iter().filter_map(|(id, io)| self.execute(id, io)).collect();
            if done.is_empty() {
                return;
            }
            let Ok(locked) = self.turn() else { return };
            (inner, work.turn) = locked;
            for (id, result) in done {
                self.input(&mut inner, &mut work, Input::Done { id, result });
            }
        }
    }

    fn unpark(
        &self,
        inner: &mut Inner<D::Ticket>,
        work: &mut Work<'_, D::Ticket>,
        id: RequestId,
        reply: Result<Reply, Errno>,
    ) {
        if let Some(Parked { caller, call, ticket, mut span }) = inner.parked.remove(&id) {
            span.resume(work.turn);
            let next = inner.client.reply(&call, reply);
            self.advance(inner, work, id, (caller, call, ticket, span), next);
        }
    }

    fn finish(&self, finished: Finished<'_, D::Ticket>) {
        let Finished { ticket, mut span, last } = finished;
        // The machines are done with it; if anything is left to do, it is with streams.
        span.turn_to(Stage::Disk, Instant::now());
        match last {
            Last::Answer(Ok(Answer::Bytes(bytes))) => self.answer(ticket, span, Ok(Outcome::Data(&bytes))),
            Last::Answer(result) => self.answer(ticket, span, result.map(Outcome::Answer)),
            Last::Stream(_, StreamIo::Read { ino, offset, size }) => BUFFER.with_borrow_mut(|buffer| {
                let read = self.disk.read_stream(ino, offset, size, buffer);
                span.turn_to(Stage::Work, Instant::now());
                self.answer(ticket, span, read.map(Outcome::Data));
            }),
            Last::Stream(call, io) => {
                let data: &[u8] = if let Call::Write { data, .. } = &call { data } else { &[] };
                let result = self.disk.stream_io(io, data);
                span.turn_to(Stage::Work, Instant::now());
                // Before the answer: after it the file may be removed at any time.
                let left = match io {
                    StreamIo::Write { ino, offset } if result.is_ok() => {
                        self.disk.follow(ino, offset, data.len() as u64).map(|bytes| (ino, bytes))
                    }
                    _ => None,
                };
                self.answer(ticket, span, result.map(Outcome::Answer));
                if let Some((ino, bytes)) = left {
                    self.door.left_behind(ino, bytes);
                }
            }
        }
    }

    /// Counts a call that has ended, and answers it.
    fn answer(&self, ticket: D::Ticket, span: Span, outcome: Result<Outcome<'_>, Errno>) {
        let failure = outcome.as_ref().err().copied();
        let log = self.watch.record(&span, failure.is_some());
        self.door.answer(self, ticket, outcome);
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

    /// Does an I/O, unless it is one for the background.
    fn execute(&self, id: IoId, io: Io) -> Option<(IoId, Result<IoDone, Errno>)> {
        let errands = match io {
            Io::Stage { .. } | Io::Publish { .. } => &self.errands.checkpoint,
            Io::Journal { sync: false, .. } => &self.errands.journal,
            Io::Rest => &self.errands.sweep,
            _ => return Some((id, self.timed(io))),
        };
        // It fails only when the background thread is gone, at the very end.
        let _ = errands.send(Errand::Io(id, io));
        None
    }

    fn timed(&self, io: Io) -> Result<IoDone, Errno> {
        let (kind, began) = (IoKind::of(&io), Instant::now());
        let result = self.disk.execute(io);
        if let Some(kind) = kind {
            self.watch.record_io(kind, began.elapsed());
        }
        result
    }

    /// Runs errands until [`Self::stop_background`].
    pub fn run_background(&self, Background { checkpoints, frames, sweeps, upkeeps }: Background) {
        std::thread::scope(|scope| {
            for errands in [frames, sweeps] {
                scope.spawn(move || {
                    while let Ok(Errand::Io(id, io)) = errands.recv() {
                        let result = self.timed(io);
                        self.feed(Input::Done { id, result });
                    }
                });
            }
            scope.spawn(move || {
                while let Ok(Errand::Upkeep) = upkeeps.recv() {
                    let mut more = true;
                    while more && !self.errands.stopping.load(Ordering::Relaxed) {
                        more = self.disk.maintain();
                    }
                }
            });
            self.run_checkpoints(&checkpoints);
        });
    }

    fn run_checkpoints(&self, errands: &Receiver<Errand>) {
        let (mut checkpoint, mut records) = (None, 0);
        while let Ok(Errand::Io(id, io)) = errands.recv() {
            let published = matches!(io, Io::Publish { .. });
            let began = *checkpoint.get_or_insert_with(Instant::now);
            if let Io::Stage { writes } = &io {
                records += writes.len() as u64;
            }
            let result = self.timed(io);
            if published {
                self.watch.record_checkpoint(began.elapsed(), records, result.is_ok());
                (checkpoint, records) = (None, 0);
                // If it is full, the upkeep is behind already.
                let _ = self.errands.upkeep.try_send(Errand::Upkeep);
            }
            self.feed(Input::Done { id, result });
        }
    }

    /// Lets what is under way come to its end.
    pub fn stop_background(&self) {
        let Errands { checkpoint, journal, sweep, upkeep, stopping } = &self.errands;
        stopping.store(true, Ordering::Relaxed);
        for errands in [checkpoint, journal, sweep, upkeep] {
            let _ = errands.send(Errand::Stop);
        }
    }

    /// Writes everything out; until that is done, or has failed for good, or the time is over.
    pub fn drain(&self, limit: std::time::Duration) -> bool {
        let deadline = std::time::Instant::now() + limit;
        loop {
            self.feed(Input::Drain);
            if self.lock().is_ok_and(|inner| inner.meta.is_quiet()) {
                return self.lock().is_ok_and(|inner| inner.meta.broken().is_none());
            }
            if std::time::Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// The errands of [`Node::run_background`].
pub struct Background {
    checkpoints: Receiver<Errand>,
    frames: Receiver<Errand>,
    sweeps: Receiver<Errand>,
    upkeeps: Receiver<Errand>,
}

impl From<Waiting> for Stage {
    fn from(waiting: Waiting) -> Self {
        match waiting {
            Waiting::Disk => Self::Disk,
            Waiting::Journal => Self::Journal,
        }
    }
}

fn told(request: Request) -> Input {
    Input::Request { from: CLIENT, id: NOBODY, below: NOBODY, caller: Caller::SERVER, request }
}
