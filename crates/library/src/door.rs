//! The library frontend: tasks make calls and wait for the answers.

use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use espalier_client::Answer;
use espalier_proto::{Errno, Ino, Lease, Name, Recall};
use espalier_runtime::{Calls, Door, Outcome};
use tokio::sync::oneshot;

use crate::session::{Handle, Session};

/// Delivers answers to tasks.
pub(crate) struct LibraryDoor {
    /// See [`ConnectOptions::early`](crate::ConnectOptions::early).
    pub(crate) is_early: bool,
}

/// A task that waits for an answer.
pub(crate) struct Ticket {
    pub(crate) session: Weak<Session>,
    pub(crate) told: oneshot::Sender<Result<Told, Errno>>,
}

/// An answer and the handle that the call has opened; an unclaimed handle is closed.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) answer: Answer,
    pub(crate) handle: Option<Handle>,
}

impl Door for LibraryDoor {
    type Ticket = Ticket;

    fn is_early(&self) -> bool {
        self.is_early
    }

    fn answer(&self, _: &impl Calls<Self>, ticket: Ticket, outcome: Result<Outcome<'_>, Errno>, _: Duration) {
        let Ticket { session, told } = ticket;
        let answer = outcome.map(|outcome| match outcome {
            Outcome::Answer(answer) => answer,
            Outcome::Data(bytes) => Answer::Bytes(Bytes::copy_from_slice(bytes)),
        });
        let answer = answer.map(|answer| {
            let opened = match &answer {
                Answer::Opened(opening) | Answer::Created(_, opening) => Some(opening.ino),
                _ => None,
            };
            Told { answer, handle: opened.map(|ino| Handle { session, ino }) }
        });
        // The task may have stopped waiting.
        let _ = told.send(answer);
    }

    fn revoke(
        &self,
        _: &Lease,
        _: bool,
        _: impl FnOnce() + Send + 'static,
        done: impl FnOnce() + Send + 'static,
    ) {
        done();
    }

    fn distrust_names(&self) {}

    fn distrust(&self, _: Vec<(Ino, Name)>, _: &[Ino]) {}

    fn recall(&self, _: &[Recall], _: &[(Ino, Name)]) {}

    fn changed(&self, _: &[Ino]) {}

    fn left_behind(&self, _: Ino, _: Range<u64>) {}
}
