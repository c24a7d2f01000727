//! One process's machines and the threads that drive them.
//!
//! The thread that brings a call runs the machines for it and does the I/O that it needs itself, so that a call takes
//! no hop between threads. A call that must wait for others is parked, and whoever ends its waiting answers it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};

use espalier_client::{Answer, Call, Client, Next, StreamIo};
use espalier_meta::{Input, Io, IoDone, IoId, Meta, Now, Outbox, Recall};
use espalier_proto::{Caller, ClientId, Errno, Reply, Request, RequestId};

use crate::clock;
use crate::disk::Disk;

/// Where calls come from and answers go to.
pub trait Door: Sized + Send + Sync + 'static {
    /// What a door needs to answer a call.
    type Ticket: Send;

    fn answer(&self, node: &Node<Self>, ticket: Self::Ticket, outcome: Result<Outcome<'_>, Errno>);

    /// Those who call through the door need not know these inodes any longer.
    fn recall(&self, recalls: &[Recall]);
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
    door: D,
    background: SyncSender<Errand>,
}

struct Inner<T> {
    meta: Meta,
    client: Client,
    /// Calls that wait for the metadata machine, by the request's id.
    parked: HashMap<RequestId, Parked<T>>,
}

struct Parked<T> {
    caller: Caller,
    call: Call<'static>,
    ticket: T,
}

/// A call whose last step is to be done without the lock.
enum Finished<'a, T> {
    Answer(T, Result<Answer, Errno>),
    Stream(T, Call<'a>, StreamIo),
}

/// What the background thread is for: what may take long and nobody waits for.
enum Errand {
    Io(IoId, Io),
    Stop,
}

/// Work that follows from inputs under the lock, to be done after it is let go.
struct Work<'a, T> {
    out: Outbox,
    finished: Vec<Finished<'a, T>>,
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
    /// The node, and what its background thread is to run ([`Self::run_background`]).
    pub fn new(meta: Meta, disk: Arc<Disk>, door: D) -> (Self, Background) {
        // A checkpoint has one errand under way at a time, so that a short queue never blocks.
        let (background, errands) = sync_channel(16);
        let inner = Inner { meta, client: Client::default(), parked: HashMap::new() };
        let (inner, queued) = (Mutex::new(inner), AtomicUsize::new(0));
        (Self { inner, queued, disk, door, background }, Background(errands))
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
        let locked = self.lock();
        self.queued.fetch_sub(1, Ordering::Relaxed);
        let mut inner = match locked {
            Ok(inner) => inner,
            Err(errno) => return self.door.answer(self, ticket, Err(errno)),
        };
        let mut work = Work { out: Outbox::default(), finished: Vec::new() };
        let next = inner.client.start(&call);
        self.advance(&mut inner, &mut work, RequestId(id), (caller, call, ticket), next);
        self.settle(inner, work);
    }

    /// Tells the metadata machine something that has no answer.
    pub fn tell(&self, requests: impl IntoIterator<Item = Request>) {
        let Ok(mut inner) = self.lock() else { return };
        let mut work = Work { out: Outbox::default(), finished: Vec::new() };
        for request in requests {
            self.input(&mut inner, &mut work, told(request));
        }
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
    }

    /// Lets a closure use the client's machine under the lock.
    pub fn with_client<R>(&self, use_it: impl FnOnce(&mut Client) -> R) -> Result<R, Errno> {
        self.lock().map(|mut inner| use_it(&mut inner.client))
    }

    /// Inodes in use, and why nothing can be changed any more, if so.
    pub fn state(&self) -> (u64, Option<Errno>) {
        self.lock().map_or((0, Some(Errno::EIO)), |inner| (inner.meta.files(), inner.meta.broken()))
    }

    /// Bytes of memory that the metadata machine's cache takes, about.
    pub fn cache_bytes(&self) -> u64 {
        self.lock().map_or(0, |inner| inner.meta.cache_bytes() as u64)
    }

    fn feed(&self, input: Input) {
        let Ok(mut inner) = self.lock() else { return };
        let mut work = Work { out: Outbox::default(), finished: Vec::new() };
        self.input(&mut inner, &mut work, input);
        self.settle(inner, work);
    }

    /// Fails after a thread has panicked while it held the machines: what they hold cannot be trusted any more.
    fn lock(&self) -> Result<MutexGuard<'_, Inner<D::Ticket>>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }

    fn input(&self, inner: &mut Inner<D::Ticket>, work: &mut Work<'_, D::Ticket>, input: Input) {
        let now = Now { time: clock::now(), queued: self.queued.load(Ordering::Relaxed) };
        inner.meta.on(now, input, &mut work.out);
    }

    /// Leads a call on until it is finished or must wait.
    fn advance<'a>(
        &self,
        inner: &mut Inner<D::Ticket>,
        work: &mut Work<'a, D::Ticket>,
        id: RequestId,
        (caller, call, ticket): (Caller, Call<'a>, D::Ticket),
        mut next: Next,
    ) {
        loop {
            match next {
                Next::Answer(result) => return work.finished.push(Finished::Answer(ticket, result)),
                Next::Stream(io) => return work.finished.push(Finished::Stream(ticket, call, io)),
                Next::Tell(request, answer) => {
                    self.input(inner, work, told(request));
                    return work.finished.push(Finished::Answer(ticket, Ok(answer)));
                }
                Next::Ask(request) => {
                    let input = Input::Request { from: CLIENT, id, caller: caller.clone(), request };
                    self.input(inner, work, input);
                    let answered = work.out.replies.iter().position(|(_, answered, _)| *answered == id);
                    let Some(at) = answered else {
                        inner.parked.insert(id, Parked { caller, call: call.into_owned(), ticket });
                        return;
                    };
                    let (_, _, reply) = work.out.replies.swap_remove(at);
                    next = inner.client.reply(&call, reply);
                }
            }
        }
    }

    /// Does all that follows, and what follows from that, until nothing is left to do.
    fn settle<'a>(&'a self, mut inner: MutexGuard<'a, Inner<D::Ticket>>, mut work: Work<'a, D::Ticket>)
    where
        D::Ticket: 'a,
    {
        loop {
            while let Some((_, id, reply)) = work.out.replies.pop() {
                self.unpark(&mut inner, &mut work, id, reply);
            }
            let io = std::mem::take(&mut work.out.io);
            let recalls = std::mem::take(&mut work.out.recalls);
            drop(inner);
            if !recalls.is_empty() {
                self.door.recall(&recalls);
            }
            for finished in work.finished.drain(..) {
                self.finish(finished);
            }
            let done: Vec<_> = io.into_iter().filter_map(|(id, io)| self.execute(id, io)).collect();
            if done.is_empty() {
                return;
            }
            let Ok(locked) = self.lock() else { return };
            inner = locked;
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
        if let Some(Parked { caller, call, ticket }) = inner.parked.remove(&id) {
            let next = inner.client.reply(&call, reply);
            self.advance(inner, work, id, (caller, call, ticket), next);
        }
    }

    fn finish(&self, finished: Finished<'_, D::Ticket>) {
        match finished {
            Finished::Answer(ticket, Ok(Answer::Bytes(bytes))) => {
                self.door.answer(self, ticket, Ok(Outcome::Data(&bytes)))
            }
            Finished::Answer(ticket, result) => self.door.answer(self, ticket, result.map(Outcome::Answer)),
            Finished::Stream(ticket, _, StreamIo::Read { ino, offset, size }) => {
                BUFFER.with_borrow_mut(|buffer| {
                    let read = self.disk.read_stream(ino, offset, size, buffer);
                    self.door.answer(self, ticket, read.map(Outcome::Data));
                });
            }
            Finished::Stream(ticket, call, io) => {
                let data: &[u8] = if let Call::Write { data, .. } = &call { data } else { &[] };
                self.door.answer(self, ticket, self.disk.stream_io(io, data).map(Outcome::Answer));
            }
        }
    }

    /// Does an I/O, unless it is one for the background.
    fn execute(&self, id: IoId, io: Io) -> Option<(IoId, Result<IoDone, Errno>)> {
        if matches!(io, Io::Stage { .. } | Io::Publish { .. }) {
            // It fails only when the background thread is gone, at the very end.
            let _ = self.background.send(Errand::Io(id, io));
            return None;
        }
        Some((id, self.disk.execute(io)))
    }

    /// Runs errands until [`Self::stop_background`].
    pub fn run_background(&self, errands: Background) {
        while let Ok(Errand::Io(id, io)) = errands.0.recv() {
            let published = matches!(io, Io::Publish { .. });
            let result = self.disk.execute(io);
            self.feed(Input::Done { id, result });
            if published {
                self.disk.maintain();
            }
        }
    }

    pub fn stop_background(&self) {
        let _ = self.background.send(Errand::Stop);
    }

    /// Writes everything out; until that is done, or has failed for good, or the time is over.
    pub fn drain(&self, limit: std::time::Duration) -> bool {
        let deadline = std::time::Instant::now() + limit;
        loop {
            self.feed(Input::Drain);
            if self.lock().is_ok_and(|inner| inner.meta.is_quiet()) {
                return self.state().1.is_none();
            }
            if std::time::Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// The errands of [`Node::run_background`].
pub struct Background(Receiver<Errand>);

fn told(request: Request) -> Input {
    let caller = Caller { uid: 0, gid: 0, pid: 0, groups: None };
    Input::Request { from: CLIENT, id: NOBODY, caller, request }
}
