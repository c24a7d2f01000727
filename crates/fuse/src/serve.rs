//! The threads that serve a mount, over either transport.
//!
//! A long request, such as an fsync, must not delay others, so a thread always waits for the next
//! one:
//!
//! - Over device queues, each thread reads a clone of the device, and any free thread takes the
//!   next request. A thread that takes one and leaves none waiting first starts another, up to the
//!   limit. A thread that finishes and finds enough others waiting ends.
//! - Over io_uring the kernel has one queue per CPU, with its own threads, most of which exist from
//!   the start. A thread that takes a request and leaves few waiting starts another, up to the
//!   limit. The kernel reconsiders delayed requests only when a reply is committed, not when an
//!   entry is registered, so it is nudged then. Interrupts and forgets still come from the device.

use crate::abi::{self, InitFlags, Opcode};
use crate::channel::{Channel, Received};
use crate::reply::{Reply, ReplyDestination};
use crate::request::{Op, Request};
use crate::ring::Ring;
use crate::session::{Buffer, Filesystem, RunError, Session, Threads};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeSet;
use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, Scope};

/// Minimum number of threads per CPU over io_uring, unless that exceeds [`RINGS_MAX`].
const DEPTH_MIN: usize = 4;
/// Each ring is an open file.
pub(crate) const RINGS_MAX: usize = 256;
/// Number of waiting entries per queue below which more are added.
const SPARE: usize = 4;
/// Serves until the file system is unmounted. `rings`: one per CPU, or none.
pub(crate) fn serve<F: Filesystem + ?Sized>(
    session: &Session,
    mut rings: Vec<Ring>,
    threads: Threads,
    filesystem: &F,
) -> Result<(), RunError> {
    let queues = rings.len();
    if let Err(error) = deepen(session, &mut rings, threads.rings) {
        tracing::debug!(%error, rings = rings.len(), "no more rings");
    }
    let service = Service {
        session,
        filesystem,
        device: ReaderThreads::new(threads.device),
        free: (0..queues).map(|_| AtomicUsize::new(0)).collect(),
        vacant: AtomicUsize::new(threads.rings_max.saturating_sub(rings.len())),
        gate: RwLock::new(false),
        outcome: Mutex::new(Ok(())),
    };
    thread::scope(|scope| {
        let mut gate = service.gate.write().unwrap_or_else(PoisonError::into_inner);
        let (report, reports) = mpsc::channel();
        for ring in rings {
            if let Err(error) = service.start_ring(scope, ring, Some(report.clone())) {
                service.fail(RunError::Thread(error));
            }
        }
        drop(report);
        // The kernel uses io_uring only if each queue has an entry. Otherwise it has rejected one,
        // and continues with the device.
        let registered: BTreeSet<u16> = reports.iter().collect();
        *gate = queues > 0 && registered.len() == queues;
        let mut granted = *session.granted();
        granted.flags.set(InitFlags::OVER_IO_URING, *gate);
        filesystem.init(&granted);
        if *gate {
            // The remaining requests on the device are short.
            service.device.limit(2);
        }
        drop(gate);
        if let Err(error) = service.start_device(scope, session.channel().clone()) {
            service.fail(RunError::Thread(error));
        }
    });
    service.outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Adds rings to each queue, according to the number of threads.
fn deepen(session: &Session, rings: &mut Vec<Ring>, threads: usize) -> io::Result<()> {
    let queues = rings.len();
    let depth = threads.checked_div(queues).unwrap_or(0).max(DEPTH_MIN);
    for more in queues..(depth * queues).min(RINGS_MAX) {
        rings.push(session.ring(rings[more % queues].queue())?);
    }
    Ok(())
}

struct Service<'a, F: ?Sized> {
    session: &'a Session,
    filesystem: &'a F,
    device: ReaderThreads,
    /// Waiting entries by queue.
    free: Vec<AtomicUsize>,
    /// Number of rings that may still be added.
    vacant: AtomicUsize,
    /// Locked until the transport is decided; true: io_uring.
    gate: RwLock<bool>,
    outcome: Mutex<Result<(), RunError>>,
}

/// Counts the threads that read the device.
struct ReaderThreads {
    counts: Mutex<ThreadCounts>,
    /// Maximum number of waiting threads. The kernel wakes them in turn, so with many of them each
    /// would have a cold cache.
    waiting_max: usize,
}

struct ThreadCounts {
    waiting: usize,
    /// Number of threads that may still be started.
    vacant: usize,
}

impl ReaderThreads {
    /// Starts with one waiting thread.
    fn new(threads: usize) -> ReaderThreads {
        let counts = Mutex::new(ThreadCounts { waiting: 1, vacant: threads.saturating_sub(1) });
        let waiting_max = thread::available_parallelism().map_or(2, NonZero::get).max(2);
        ReaderThreads { counts, waiting_max }
    }

    fn counts(&self) -> MutexGuard<'_, ThreadCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread has taken a request. Returns true if it must start another, which is counted
    /// already.
    fn leave(&self) -> bool {
        let mut counts = self.counts();
        counts.waiting -= 1;
        let more = counts.waiting == 0 && counts.vacant > 0;
        if more {
            *counts = ThreadCounts { waiting: 1, vacant: counts.vacant - 1 };
        }
        more
    }

    /// A thread is free again. Returns true if it must wait for a request, false if it must end.
    fn come_back(&self) -> bool {
        let mut counts = self.counts();
        let wait = counts.waiting < self.waiting_max;
        if wait {
            counts.waiting += 1;
        } else {
            counts.vacant += 1;
        }
        wait
    }

    /// A counted thread could not be started. Its place stays taken, to avoid endless retries.
    fn lose(&self) {
        self.counts().waiting -= 1;
    }

    /// Limits the number of threads; called before any but the first is started.
    fn limit(&self, threads: usize) {
        self.counts().vacant = threads.saturating_sub(1);
    }
}

impl<F: Filesystem + ?Sized> Service<'_, F> {
    fn start_device<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        channel: Channel,
    ) -> io::Result<()> {
        let work = move || {
            let _alarm = Alarm(self);
            self.serve_device(scope, &channel);
        };
        thread::Builder::new().name("fuse".into()).spawn_scoped(scope, work).map(drop)
    }

    fn start_ring<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut ring: Ring,
        report: Option<Sender<u16>>,
    ) -> io::Result<()> {
        self.session.slots().add(ring.slot());
        let work = move || {
            let _alarm = Alarm(self);
            // A thread near its callers is faster; a failure to move it is harmless.
            run_on(ring.queue());
            let is_late = report.is_none();
            let registered = match ring.register() {
                Ok(registered) => registered,
                Err(error) => return self.fail(RunError::Thread(error)),
            };
            if registered {
                self.free_of(ring.queue()).fetch_add(1, Ordering::SeqCst);
                // The receiver outlives this thread.
                let _ = report.as_ref().map(|report| report.send(ring.queue()));
            }
            drop(report);
            if registered && *self.gate.read().unwrap_or_else(PoisonError::into_inner) {
                if is_late {
                    self.nudge(scope, ring.queue());
                }
                self.serve_ring(scope, ring);
            }
        };
        thread::Builder::new().name("fuse-uring".into()).spawn_scoped(scope, work).map(drop)
    }

    fn serve_device<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, channel: &Channel) {
        let mut buffer = Buffer::new(self.session.granted().max_write as usize);
        loop {
            match channel.receive(buffer.as_mut()) {
                Ok(Received::Message(length)) => {
                    if self.device.leave()
                        && let Err(error) = self.start_device(scope, self.session.queue())
                    {
                        tracing::debug!(%error, "no further thread");
                        self.device.lose();
                    }
                    dispatch(
                        ReplyDestination::Device(channel.clone()),
                        &buffer.as_mut()[..length],
                        self.filesystem,
                    );
                    if !self.device.come_back() {
                        return;
                    }
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) => return self.close(),
                Err(error) => return self.fail(RunError::Transport(error.into())),
            }
        }
    }

    fn free_of(&self, queue: u16) -> &AtomicUsize {
        // There is one ring for each queue, or none at all.
        &self.free[usize::from(queue) % self.free.len().max(1)]
    }

    /// Few entries of a queue are waiting: adds another, up to the limit.
    fn grow<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, queue: u16) {
        let taken =
            self.vacant.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |vacant| vacant.checked_sub(1));
        if taken.is_ok()
            && let Err(error) = self.session.ring(queue).and_then(|ring| self.start_ring(scope, ring, None))
        {
            tracing::debug!(queue, %error, "no further ring");
        }
    }

    /// Makes another process send a request, which a waiting entry of the queue takes; its reply
    /// makes the kernel reconsider delayed requests. A process that waited for its own mount could
    /// not be killed.
    fn nudge<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, queue: u16) {
        let work = move || {
            run_on(queue);
            let mut statfs = Command::new("stat");
            statfs.args(["-f", "-c", ""]).arg(self.session.mountpoint());
            statfs.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if let Err(error) = statfs.status() {
                tracing::debug!(queue, %error, "the kernel was not nudged");
            }
        };
        if let Err(error) = thread::Builder::new().name("fuse-nudge".into()).spawn_scoped(scope, work) {
            tracing::debug!(queue, %error, "the kernel was not nudged");
        }
    }

    fn serve_ring<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, mut ring: Ring) {
        let slot = Arc::clone(ring.slot());
        let (queue, free) = (ring.queue(), self.free_of(ring.queue()));
        loop {
            let message = match ring.receive() {
                Ok(Some(message)) => message,
                Ok(None) => return self.close(),
                Err(error) => return self.fail(RunError::Transport(error)),
            };
            // The request may wait long for its reply.
            if free.fetch_sub(1, Ordering::SeqCst) <= SPARE {
                self.grow(scope, queue);
            }
            dispatch(ReplyDestination::Uring(Arc::clone(&slot)), message, self.filesystem);
            match ring.answer() {
                Ok(true) => free.fetch_add(1, Ordering::SeqCst),
                Ok(false) => return self.close(),
                Err(error) => return self.fail(RunError::Transport(error)),
            };
        }
    }
}

impl<F: ?Sized> Service<'_, F> {
    /// The mount is gone: releases all threads that wait for replies.
    fn close(&self) {
        self.session.slots().close();
    }

    /// The other threads would continue, and the missing one would go unnoticed.
    fn fail(&self, error: RunError) {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.is_ok() {
            *outcome = Err(error);
        }
        drop(outcome);
        self.session.abort();
        self.close();
    }
}

/// Ends the mount if a thread panics outside of a handler, since others would wait for it forever.
struct Alarm<'a, 'b, F: ?Sized>(&'a Service<'b, F>);

impl<F: ?Sized> Drop for Alarm<'_, '_, F> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.session.abort();
            self.0.close();
        }
    }
}

/// Decodes a message and passes it to the file system. A panic there affects only this request.
fn dispatch<F: Filesystem + ?Sized>(way: ReplyDestination, message: &[u8], filesystem: &F) {
    let request = match Request::parse(message) {
        Ok(request) => request,
        Err(malformed) => {
            tracing::error!(%malformed, "cannot decode a request");
            if let Some(unique) = malformed.unique {
                let opcode = malformed.opcode.unwrap_or_default();
                Reply::new(way, unique, opcode).error(Errno::IO.raw_os_error());
            }
            return;
        }
    };
    let opcode = opcode_of(message);
    let reply = Reply::new(way, request.unique, opcode);
    match request.op {
        Op::Init(_) => reply.error(Errno::PROTO.raw_os_error()),
        Op::Destroy => reply.ok(),
        _ => {
            let (unique, node) = (request.unique, request.node);
            // Unwinding drops the reply, which sends EIO.
            if catch_unwind(AssertUnwindSafe(|| filesystem.request(request, reply))).is_err() {
                tracing::error!(opcode = ?Opcode::from_wire(opcode), unique, node, "a request's handler panicked");
            }
        }
    }
}

/// Binds the thread to a CPU, if possible.
fn run_on(cpu: u16) {
    let mut cpus = CpuSet::new();
    cpus.set(usize::from(cpu));
    if let Err(error) = sched_setaffinity(None, &cpus) {
        tracing::debug!(cpu, %error, "a thread may run anywhere");
    }
}

fn opcode_of(message: &[u8]) -> u32 {
    use zerocopy::FromBytes;
    abi::InHeader::read_from_prefix(message).map_or(0, |(header, _)| header.opcode)
}

#[cfg(test)]
mod tests {
    use super::ReaderThreads;

    #[test]
    fn threads_start_when_none_wait_and_end_when_enough_do() {
        let crew = ReaderThreads { waiting_max: 2, ..ReaderThreads::new(4) };
        // Each request finds no thread waiting, up to the limit.
        assert_eq!([(); 4].map(|()| crew.leave()), [true, true, true, false]);
        assert_eq!([(); 4].map(|()| crew.come_back()), [true, true, false, false]);
        // The places of ended threads are free again.
        assert_eq!([(); 3].map(|()| crew.leave()), [false, true, true]);
    }

    #[test]
    fn failed_thread_start_is_not_retried() {
        let crew = ReaderThreads::new(2);
        assert!(crew.leave());
        crew.lose();
        assert!(crew.come_back() && !crew.leave());
    }

    #[test]
    fn a_limit_of_one_starts_none() {
        let crew = ReaderThreads::new(64);
        crew.limit(1);
        assert!(!crew.leave() && crew.come_back());
    }
}
