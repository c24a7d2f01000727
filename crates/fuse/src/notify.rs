//! Tells the kernel to forget what it has cached.
//!
//! A notification can wait for a lock or a page that a request in flight holds, and the thread that serves that
//! request may be the one that wants to notify. So they go through a queue to a thread of their own.

use crate::abi::{self, notify};
use crate::channel::Channel;
use crate::slot::Slots;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// A bounded queue of notifications, sent in order. Each method returns false when the queue is full or the mount is
/// gone; nothing is then queued and nothing older is lost.
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
    notes: VecDeque<Note>,
    closed: bool,
}

enum Note {
    Inode { node: u64, offset: i64, length: i64 },
    Entry { parent: u64, name: Box<[u8]>, expire: bool },
    Delete { parent: u64, node: u64, name: Box<[u8]> },
    Epoch,
    Prune(Box<[u64]>),
    Fence(Box<dyn FnOnce() + Send>),
}

impl Notifier {
    pub(crate) fn start(channel: Channel, slots: Arc<Slots>, capacity: usize) -> io::Result<Notifier> {
        let queue = Mutex::new(Queue::default());
        let notifier =
            Notifier(Arc::new(Shared { queue, changed: Condvar::new(), capacity, channel, slots }));
        let shared = Arc::clone(&notifier.0);
        std::thread::Builder::new().name("fuse-notify".into()).spawn(move || {
            while let Some(note) = shared.next() {
                if note.takes_back() {
                    shared.slots.settle();
                }
                if catch_unwind(AssertUnwindSafe(|| note.send(&shared.channel))).is_err() {
                    tracing::error!("a fence panicked");
                }
            }
        })?;
        Ok(notifier)
    }

    /// Drops cached attributes, and pages from `offset` on: `length` bytes, to the end if zero, none if `offset` is
    /// negative.
    pub fn inval_inode(&self, node: u64, offset: i64, length: i64) -> bool {
        self.push(Note::Inode { node, offset, length })
    }

    /// Drops cached attributes at once and by the caller's thread: the kernel takes no lock for it.
    pub fn inval_attributes(&self, node: u64) {
        Note::Inode { node, offset: -1, length: 0 }.send(&self.0.channel);
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

    /// Calls `done`, on the queue's thread, once the kernel has acted on all that was queued before. `done` must not
    /// wait for the mount. It is dropped uncalled if the mount goes first.
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
        // What has been queued last, and not sent, comes after what this is for, too.
        if !queue.notes.back().is_some_and(|last| note.is_as(last)) {
            queue.notes.push_back(note);
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

    fn next(&self) -> Option<Note> {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(note) = queue.notes.pop_front() {
                return Some(note);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
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

    /// Whether it is about what an answer may have told that is still on its way over io_uring.
    fn takes_back(&self) -> bool {
        matches!(self, Note::Inode { .. } | Note::Entry { .. } | Note::Delete { .. })
    }

    fn send(self, channel: &Channel) {
        let sent = match self {
            Note::Inode { node, offset, length } => {
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
                done();
                Ok(())
            }
        };
        match sent {
            // What was not cached need not be forgotten; what is unmounted neither.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NOTCONN) => {}
            Err(error) => tracing::debug!(%error, "the kernel refused a notification"),
        }
    }
}

/// Names in notifications end with a NUL that their length does not count.
fn named<'a>(head: &'a [u8], name: &'a [u8]) -> [IoSlice<'a>; 3] {
    [IoSlice::new(head), IoSlice::new(name), IoSlice::new(&[0])]
}
