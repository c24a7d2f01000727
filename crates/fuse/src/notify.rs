//! Notifications that invalidate the kernel's caches.
//!
//! A notification can block on a lock or page of a request in flight, and the thread that serves
//! that request may be the notifying one. So notifications go through a queue to threads of their
//! own.

use crate::abi::{self, notify};
use crate::channel::Channel;
use crate::slot::Slots;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// A bounded queue of notifications. Those of one inode or directory are sent in order. Each method
/// returns false if the queue is full or the mount is gone; the notification is then not queued.
#[derive(Clone)]
pub struct Notifier(Arc<NotifierState>);

struct NotifierState {
    queue: Mutex<Queue>,
    changed: Condvar,
    capacity: usize,
    channel: Channel,
    slots: Arc<Slots>,
    /// The kernel can expire a name; otherwise the name is dropped.
    can_expire: bool,
}

#[derive(Default)]
struct Queue {
    notes: VecDeque<(u64, Note)>,
    /// The number of the next notification.
    next: u64,
    /// The notifications that threads are sending.
    sending: Vec<Sending>,
    threads: usize,
    /// Threads that wait for a notification; one is enough.
    idle: usize,
    closed: bool,
}

/// A notification that the kernel is processing.
struct Sending {
    number: u64,
    /// The directory that the kernel locks for it.
    parent: Option<u64>,
    since: Instant,
}

enum Note {
    Inode { node: u64, offset: i64, length: i64 },
    Entry { parent: u64, name: Box<[u8]>, expire: bool, done: Option<FenceAction> },
    Delete { parent: u64, node: u64, name: Box<[u8]> },
    Prune(Box<[u64]>),
    Fence(FenceAction),
}

type FenceAction = Box<dyn FnOnce() + Send>;

impl Notifier {
    /// Maximum number of threads, all of which may block in the kernel.
    const THREADS: usize = 64;

    pub(crate) fn start(
        channel: Channel,
        slots: Arc<Slots>,
        capacity: usize,
        can_expire: bool,
    ) -> io::Result<Notifier> {
        let queue = Mutex::new(Queue { threads: 1, ..Queue::default() });
        let changed = Condvar::new();
        let notifier =
            Notifier(Arc::new(NotifierState { queue, changed, capacity, channel, slots, can_expire }));
        notifier.start_thread()?;
        Ok(notifier)
    }

    fn start_thread(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        std::thread::Builder::new().name("fuse-notify".into()).spawn(move || shared.send_all())?;
        Ok(())
    }

    /// Starts another thread if all have been blocked in the kernel for this long, and the queue is
    /// not empty.
    pub fn relieve(&self, patience: Duration) {
        let mut queue = self.0.lock();
        let is_stuck = queue.idle == 0 && queue.sending.iter().all(|it| it.since.elapsed() >= patience);
        if !is_stuck || queue.threads >= Self::THREADS || queue.closed || queue.ready().is_none() {
            return;
        }
        queue.threads += 1;
        drop(queue);
        if let Err(error) = self.start_thread() {
            self.0.lock().threads -= 1;
            tracing::warn!(%error, "cannot start a thread for notifications");
        }
    }

    /// Invalidates cached attributes, and `length` bytes of pages from `offset` on: up to the end
    /// if `length` is zero, none if `offset` is negative.
    pub fn inval_inode(&self, node: u64, offset: i64, length: i64) -> bool {
        self.push(Note::Inode { node, offset, length })
    }

    /// Invalidates cached attributes immediately, on the caller's thread: the kernel takes no lock
    /// for it.
    pub fn inval_attributes(&self, node: u64) {
        Note::Inode { node, offset: -1, length: 0 }.send(&self.0.channel);
    }

    /// Drops a name with everything cached below it, and detaches mounts there.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> bool {
        self.push(Note::Entry { parent, name: name.into(), expire: false, done: None })
    }

    /// Makes the kernel look a name up again at its next use, which keeps mounts below it if it is
    /// bound to the same node. Calls `done`, as [`Self::fence`] does, when the kernel has expired
    /// the name. Without HAS_EXPIRE_ONLY the name is dropped.
    ///
    /// A lookup that was answered just before can undo this: the kernel revalidates a cached name
    /// without its directory's lock, and sets the timeout when it processes the reply.
    pub fn expire_entry(&self, parent: u64, name: &[u8], done: Option<FenceAction>) -> bool {
        self.push(Note::Entry { parent, name: name.into(), expire: self.0.can_expire, done })
    }

    /// Reports the removal of a name, also to inotify watchers.
    pub fn delete(&self, parent: u64, node: u64, name: &[u8]) -> bool {
        self.push(Note::Delete { parent, node, name: name.into() })
    }

    /// Asks the kernel to drop unused nodes with their names. It locks no directory for that. Needs
    /// [`crate::Granted::prune`].
    pub fn prune(&self, nodes: &[u64]) -> bool {
        self.push(Note::Prune(nodes.into()))
    }

    /// Invalidates all cached names immediately, on the caller's thread: the kernel takes no lock
    /// for it. It detaches mounts below, so it is the fallback if a name cannot be expired. Needs
    /// [`crate::Granted::epoch`].
    pub fn inc_epoch(&self) {
        if let Err(error) = self.0.channel.send(0, notify::INC_EPOCH, &[]) {
            tracing::debug!(%error, "the kernel rejected a notification");
        }
    }

    /// True if the queue is at least half full; optional notifications should be skipped then.
    pub fn is_busy(&self) -> bool {
        self.0.lock().notes.len() >= self.0.capacity / 2
    }

    /// Calls `done`, on a thread of the queue, when the kernel has processed all earlier
    /// notifications. `done` must not wait for the mount. It is dropped without a call if the mount
    /// ends first.
    pub fn fence(&self, done: impl FnOnce() + Send + 'static) -> bool {
        self.push(Note::Fence(Box::new(done)))
    }

    pub(crate) fn close(&self) {
        let notes = {
            let mut queue = self.0.lock();
            queue.closed = true;
            std::mem::take(&mut queue.notes)
        };
        self.0.changed.notify_all();
        drop(notes);
    }

    fn push(&self, note: Note) -> bool {
        let mut queue = self.0.lock();
        if queue.closed || queue.notes.len() >= self.0.capacity {
            return false;
        }
        // An equal notification at the end of the queue covers this one.
        if !queue.notes.back().is_some_and(|(_, last)| note.is_as(last)) {
            let number = queue.next;
            queue.next += 1;
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

impl NotifierState {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No foreign code runs under the lock, so a poisoned queue is consistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends notifications until another thread waits for the next one, or the mount is gone.
    fn send_all(&self) {
        let mut queue = self.lock();
        while !queue.closed {
            let Some((number, note)) = queue.take() else {
                if queue.idle > 0 {
                    break;
                }
                queue.idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
                continue;
            };
            drop(queue);
            if note.takes_back() {
                self.slots.wait_until_sent();
            }
            if catch_unwind(AssertUnwindSafe(|| note.send(&self.channel))).is_err() {
                tracing::error!("a fence panicked");
            }
            queue = self.lock();
            queue.sending.retain(|it| it.number != number);
        }
        queue.threads -= 1;
    }
}

impl Queue {
    fn take(&mut self) -> Option<(u64, Note)> {
        let place = self.ready()?;
        let (number, note) = self.notes.remove(place)?;
        self.sending.push(Sending { number, parent: note.parent(), since: Instant::now() });
        Some((number, note))
    }

    /// The position of the first notification that can be sent. A name waits for others of its
    /// directory, which the kernel locks for each; a fence waits for all earlier ones.
    fn ready(&self) -> Option<usize> {
        self.notes.iter().enumerate().position(|(place, (number, note))| match note {
            Note::Fence(_) => place == 0 && self.sending.iter().all(|it| it.number > *number),
            note => {
                let parent = note.parent();
                parent.is_none() || self.sending.iter().all(|it| it.parent != parent)
            }
        })
    }
}

impl Note {
    fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Inode { node, offset, length },
                Self::Inode { node: other, offset: from, length: so_much },
            ) => (node, offset, length) == (other, from, so_much),
            _ => false,
        }
    }

    /// True if it invalidates data of a reply that may still be in flight over io_uring.
    fn takes_back(&self) -> bool {
        matches!(self, Note::Inode { .. } | Note::Entry { .. } | Note::Delete { .. })
    }

    fn parent(&self) -> Option<u64> {
        match self {
            Note::Entry { parent, .. } | Note::Delete { parent, .. } => Some(*parent),
            Note::Inode { .. } | Note::Prune(_) | Note::Fence(_) => None,
        }
    }

    fn send(self, channel: &Channel) {
        let mut then = None;
        let sent = match self {
            Note::Inode { node, offset, length } => {
                let out = abi::NotifyInodeOut { node, offset, length };
                channel.send(0, notify::INVAL_INODE, &[IoSlice::new(out.as_bytes())])
            }
            Note::Entry { parent, name, expire, done } => {
                then = done;
                let flags = if expire { notify::EXPIRE_ONLY } else { 0 };
                let out = abi::NotifyEntryOut { parent, name_len: name.len() as u32, flags };
                channel.send(0, notify::INVAL_ENTRY, &named(out.as_bytes(), &name))
            }
            Note::Delete { parent, node, name } => {
                let out = abi::NotifyDeleteOut { parent, node, name_len: name.len() as u32, _pad: 0 };
                channel.send(0, notify::DELETE, &named(out.as_bytes(), &name))
            }
            Note::Prune(nodes) => {
                let out = abi::NotifyPruneOut { count: nodes.len() as u32, ..Default::default() };
                let body = [IoSlice::new(out.as_bytes()), IoSlice::new(nodes.as_bytes())];
                channel.send(0, notify::PRUNE, &body)
            }
            Note::Fence(done) => {
                done();
                Ok(())
            }
        };
        match sent {
            // The data was not cached, or the mount is gone.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NOTCONN) => {}
            Err(error) => tracing::debug!(%error, "the kernel rejected a notification"),
        }
        if let Some(done) = then {
            done();
        }
    }
}

/// A name in a notification is followed by a NUL that its length does not count.
fn named<'a>(head: &'a [u8], name: &'a [u8]) -> [IoSlice<'a>; 3] {
    [IoSlice::new(head), IoSlice::new(name), IoSlice::new(&[0])]
}
