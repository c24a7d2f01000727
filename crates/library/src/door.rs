//! The door of this library: calls come from tasks, which wait for their answers.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use espalier_client::{Answer, Cache, Subject};
use espalier_proto::{Errno, Ino, Lease, Recall, Request};
use espalier_runtime::{Calls, Door, Outcome};
use tokio::sync::oneshot;

use crate::session::{Handle, Session};

/// What is cached, and since when its clock runs.
pub(crate) struct LibraryDoor {
    cache: Mutex<Cache>,
    started: Instant,
}

/// A task that waits.
pub(crate) struct Ticket {
    pub(crate) subject: Subject,
    pub(crate) session: Weak<Session>,
    pub(crate) told: oneshot::Sender<Result<Told, Errno>>,
}

/// An answer; and what it has opened, which is released if nobody takes it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) answer: Answer,
    pub(crate) handle: Option<Handle>,
}

impl LibraryDoor {
    pub(crate) fn new(cached: usize) -> Self {
        Self { cache: Mutex::new(Cache::new(cached)), started: Instant::now() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// A cache that a panic has left half changed may know too much, so it knows nothing.
    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            self.cache.clear_poison();
            let mut cache = poisoned.into_inner();
            cache.distrust();
            cache
        })
    }

    /// What the server is to be told as no longer known.
    pub(crate) fn forgotten(&self) -> Vec<Request> {
        let mut cache = self.cache();
        cache.expire(self.now());
        let forgotten = cache.forgotten().into_iter();
        forgotten.map(|(ino, lookups)| Request::Forget { ino, lookups }).collect()
    }
}

impl Door for LibraryDoor {
    type Ticket = Ticket;

    fn answer(
        &self,
        _: &impl Calls<Self>,
        ticket: Ticket,
        outcome: Result<Outcome<'_>, Errno>,
        lease: Duration,
    ) {
        let Ticket { subject, session, told } = ticket;
        let answer = outcome.map(|outcome| match outcome {
            Outcome::Answer(answer) => answer,
            Outcome::Data(bytes) => Answer::Bytes(bytes.to_vec()),
        });
        let lease = lease.as_millis() as u64;
        self.cache().answered(&subject, answer.as_ref().ok(), lease, self.now());
        let answer = answer.map(|answer| {
            let opened = match &answer {
                Answer::Opened(opening) | Answer::Created(_, opening) => Some(opening.ino),
                _ => None,
            };
            Told { answer, handle: opened.map(|ino| Handle { session, ino }) }
        });
        // Whoever asked may not wait any longer.
        let _ = told.send(answer);
    }

    fn touched(&self, inos: &[Ino]) {
        let mut cache = self.cache();
        inos.iter().for_each(|ino| cache.touched(*ino));
    }

    fn revoke(&self, lease: &Lease, done: impl FnOnce() + Send + 'static) {
        self.cache().revoke(lease);
        done();
    }

    fn distrust(&self, _: &[Ino]) {
        self.cache().distrust();
    }

    fn recall(&self, recalls: &[Recall]) {
        let mut cache = self.cache();
        recalls.iter().for_each(|recall| cache.recall(recall.ino));
    }

    fn changed(&self, inos: &[Ino]) {
        self.touched(inos);
    }

    fn left_behind(&self, _: Ino, _: Range<u64>) {}
}
