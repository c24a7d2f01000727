//! Tells the kernel to forget what it has cached.
//!
//! A notification can wait for a lock or a page that a request in flight holds, and the thread that serves that
//! request may be the one that wants to notify. So they go through a queue to a thread of their own, and to another
//! when one waits for long: a page that is being read may come from a machine that is away.

use crate::abi::{self, notify};
use crate::channel::Channel;
use crate::slot::Slots;
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// So long a notification may hold up those behind it.
const PATIENCE: Duration = Duration::from_millis(50);

/// So many may wait in the kernel at a time, each with a thread.
const WAITING_MAX: usize = 64;

/// A bounded queue of notifications, sent in order but for those that [`Notifier::relieve`] lets pass. Each method returns
/// false when the queue is full or the mount is gone; nothing is then queued and nothing older is lost.
#[derive(Clone)]
pub struct Notifier(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    capacity: usize,
    channel: Channel,
    slots: Arc<Slots>,
}

#[derive(Default)]
struct Queue {
    /// With their numbers, which grow.
    notes: VecDeque<(u64, Note)>,
    last: u64,
    /// Those that the kernel has not acted on yet.
    sending: BTreeSet<u64>,
    /// When the last of these was sent, by the thread whose turn it is.
    since: Option<Instant>,
    turn: u64,
    /// Fences that older ones of `sending` hold back.
    fences: Vec<(u64, Done)>,
    closed: bool,
}

type Done = Box<dyn FnOnce() + Send>;

enum Note {
    Inode { node: u64, offset: i64, length: i64, done: Option<Done> },
    Entry { parent: u64, name: Box<[u8]>, expire: bool },
    Delete { parent: u64, node: u64, name: Box<[u8]> },
    Epoch,
    Prune(Box<[u64]>),
    Fence(Done),
}

impl Notifier {
    pub(crate) fn start(channel: Channel, slots: Arc<Slots>, capacity: usize) -> io::Result<Notifier> {
        let queue = Mutex::new(Queue::default());
        let notifier =
            Notifier(Arc::new(Shared { queue, changed: Condvar::new(), capacity, channel, slots }));
        notifier.serve(0)?;
        Ok(notifier)
    }

    fn serve(&self, turn: u64) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        std::thread::Builder::new().name("fuse-notify".into()).spawn(move || {
            while let Some((number, note)) = shared.next(turn) {
                if note.takes_back() {
                    shared.slots.settle();
                }
                note.send(&shared.channel).into_iter().for_each(call);
                shared.sent(turn, number).into_iter().for_each(call);
            }
        })?;
        Ok(())
    }

    /// Comes many times a second: if a notification waits in the kernel for long, those behind it go on without it.
    pub fn relieve(&self) {
        let mut queue = self.0.lock();
        let waits = queue.since.is_some_and(|since| since.elapsed() > PATIENCE);
        if !waits || queue.notes.is_empty() || queue.sending.len() >= WAITING_MAX {
            return;
        }
        let turn = queue.turn + 1;
        match self.serve(turn) {
            Ok(()) => (queue.turn, queue.since) = (turn, None),
            Err(error) => tracing::warn!(%error, "no thread for notifications: they wait for one that waits"),
        }
    }

    /// Drops cached attributes, and pages from `offset` on: `length` bytes, to the end if zero, none if `offset` is
    /// negative.
    pub fn inval_inode(&self, node: u64, offset: i64, length: i64) -> bool {
        self.push(Note::Inode { node, offset, length, done: None })
    }

    /// The same for all of it, and calls `done`, on a thread of the queue's, once the kernel has. `done` must not wait for
    /// the mount. It is dropped uncalled if the mount goes first.
    pub fn inval_inode_then(&self, node: u64, done: impl FnOnce() + Send + 'static) -> bool {
        self.push(Note::Inode { node, offset: 0, length: 0, done: Some(Box::new(done)) })
    }

    /// Drops cached attributes at once and by the caller's thread: the kernel takes no lock for it.
    pub fn inval_attributes(&self, node: u64) {
        Note::Inode { node, offset: -1, length: 0, done: None }.send(&self.0.channel);
    }

    /// Drops a name, and what is cached below it.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> bool {
        self.push(Note::Entry { parent, name: name.into(), expire: false })
    }

    /// Makes the kernel look a name up again at its next use. Needs HAS_EXPIRE_ONLY granted.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> bool {
        self.push(Note::Entry { parent, name: name.into(), expire: true })
    }

    /// Tells that a name was removed elsewhere, so that inotify watchers hear of it.
    pub fn delete(&self, parent: u64, node: u64, name: &[u8]) -> bool {
        self.push(Note::Delete { parent, node, name: name.into() })
    }

    /// Distrusts every name cached until now, at once and by the caller's thread: the kernel takes no lock for it. Needs
    /// [`crate::Granted::epoch`].
    pub fn inc_epoch(&self) {
        Note::Epoch.send(&self.0.channel);
    }

    /// Asks the kernel to give up nodes that nobody uses. Needs [`crate::Granted::prune`].
    pub fn prune(&self, nodes: &[u64]) -> bool {
        self.push(Note::Prune(nodes.into()))
    }

    /// At least half full: what can wait had better.
    pub fn is_busy(&self) -> bool {
        self.0.lock().notes.len() >= self.0.capacity / 2
    }

    /// Calls `done`, on a thread of the queue's, once the kernel has acted on all that was queued before. `done` must not
    /// wait for the mount. It is dropped uncalled if the mount goes first.
    pub fn fence(&self, done: impl FnOnce() + Send + 'static) -> bool {
        self.push(Note::Fence(Box::new(done)))
    }

    pub(crate) fn close(&self) {
        let dropped = {
            let mut queue = self.0.lock();
            queue.closed = true;
            (std::mem::take(&mut queue.notes), std::mem::take(&mut queue.fences))
        };
        self.0.changed.notify_all();
        drop(dropped);
    }

    fn push(&self, note: Note) -> bool {
        let mut queue = self.0.lock();
        if queue.closed || queue.notes.len() >= self.0.capacity {
            return false;
        }
        // What has been queued last, and not sent, comes after what this is for, too.
        if !queue.notes.back().is_some_and(|(_, last)| note.is_as(last)) {
            queue.last += 1;
            let number = queue.last;
            queue.notes.push_back((number, note));
        }
        drop(queue);
        self.0.changed.notify_one();
        true
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("capacity", &self.0.capacity).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code of others runs under the lock, so a poisoned queue is a whole one.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be sent by the thread whose turn this is, until another has taken over.
    fn next(&self, turn: u64) -> Option<(u64, Note)> {
        let mut queue = self.lock();
        loop {
            if queue.closed || queue.turn != turn {
                return None;
            }
            match queue.notes.pop_front() {
                Some((number, Note::Fence(done))) if !queue.sending.is_empty() => {
                    queue.fences.push((number, done));
                }
                Some((number, note)) => {
                    queue.sending.insert(number);
                    queue.since = Some(Instant::now());
                    return Some((number, note));
                }
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Returns the fences that nothing holds back any more.
    fn sent(&self, turn: u64, number: u64) -> Vec<Done> {
        let mut queue = self.lock();
        queue.sending.remove(&number);
        if queue.turn == turn {
            queue.since = None;
        }
        let oldest = queue.sending.first().copied().unwrap_or(u64::MAX);
        queue.fences.extract_if(.., |(number, _)| *number < oldest).map(|(_, done)| done).collect()
    }
}

impl Note {
    fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Inode { node, offset, length, done: None },
                Self::Inode { node: other, offset: from, length: so_much, .. },
            ) => (node, offset, length) == (other, from, so_much),
            _ => false,
        }
    }

    /// Whether it is about what an answer may have told that is still on its way over io_uring.
    fn takes_back(&self) -> bool {
        matches!(self, Note::Inode { .. } | Note::Entry { .. } | Note::Delete { .. })
    }

    /// Returns what is to follow.
    fn send(self, channel: &Channel) -> Option<Done> {
        let mut then = None;
        let sent = match self {
            Note::Inode { node, offset, length, done } => {
                then = done;
                let out = abi::NotifyInodeOut { node, offset, length };
                channel.send(0, notify::INVAL_INODE, &[IoSlice::new(out.as_bytes())])
            }
            Note::Entry { parent, name, expire } => {
                let flags = if expire { notify::EXPIRE_ONLY } else { 0 };
                let out = abi::NotifyEntryOut { parent, name_len: name.len() as u32, flags };
                channel.send(0, notify::INVAL_ENTRY, &named(out.as_bytes(), &name))
            }
            Note::Delete { parent, node, name } => {
                let out = abi::NotifyDeleteOut { parent, node, name_len: name.len() as u32, _pad: 0 };
                channel.send(0, notify::DELETE, &named(out.as_bytes(), &name))
            }
            Note::Epoch => channel.send(0, notify::INC_EPOCH, &[]),
            Note::Prune(nodes) => {
                let out = abi::NotifyPruneOut { count: nodes.len() as u32, ..Default::default() };
                let body = [IoSlice::new(out.as_bytes()), IoSlice::new(nodes.as_bytes())];
                channel.send(0, notify::PRUNE, &body)
            }
            Note::Fence(done) => {
                then = Some(done);
                Ok(())
            }
        };
        match sent {
            // What was not cached need not be forgotten; what is unmounted neither.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NOTCONN) => {}
            Err(error) => tracing::debug!(%error, "the kernel refused a notification"),
        }
        then
    }
}

fn call(done: Done) {
    if catch_unwind(AssertUnwindSafe(done)).is_err() {
        tracing::error!("what was to follow a notification panicked");
    }
}

/// Names in notifications end with a NUL that their length does not count.
fn named<'a>(head: &'a [u8], name: &'a [u8]) -> [IoSlice<'a>; 3] {
    [IoSlice::new(head), IoSlice::new(name), IoSlice::new(&[0])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(20);

    /// The first waits, as one does for a page that is being read.
    #[test]
    fn what_waits_holds_up_no_other() {
        let (kernel, ours) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let channel_of_ours = Channel::from(OwnedFd::from(ours));
        let notifier = Notifier::start(channel_of_ours, Arc::default(), 10).expect("a thread");
        let (let_go, waits) = channel::<()>();
        let (tell, told) = channel();
        let says = |what: &'static str| {
            let tell = tell.clone();
            move || {
                let _ = tell.send(what);
            }
        };
        let first = says("first");
        assert!(notifier.fence(move || {
            let _ = waits.recv();
            first();
        }));
        assert!(notifier.inval_inode_then(1, says("second")));
        assert!(notifier.fence(says("third")));
        assert!(notifier.inval_inode_then(2, says("fourth")));
        assert_eq!(told.recv_timeout(2 * PATIENCE).ok(), None, "in order, as long as nobody is told");
        notifier.relieve();
        assert_eq!(told.recv_timeout(LONG), Ok("second"));
        assert_eq!(told.recv_timeout(LONG), Ok("fourth"));
        assert_eq!(told.recv_timeout(2 * PATIENCE).ok(), None, "a fence is for all before it");
        let_go.send(()).expect("it waits for that");
        assert_eq!(told.recv_timeout(LONG), Ok("first"));
        assert_eq!(told.recv_timeout(LONG), Ok("third"));
        // The thread that has waited is not needed any more.
        assert!(notifier.fence(says("last")));
        assert_eq!(told.recv_timeout(LONG), Ok("last"));
        notifier.close();
        drop(kernel);
    }
}
