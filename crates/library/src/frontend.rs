//! The library frontend: tasks make calls and wait for the answers.

use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use espalier_client::Answer;
use espalier_proto::{Errno, Ino, Lease, Name, Recall};
use espalier_runtime::{CallOutcome, Calls, Frontend};
use tokio::sync::oneshot;

use crate::session::{Handle, Session};

/// Delivers answers to tasks.
pub(crate) struct LibraryFrontend {
    /// See [`ConnectOptions::writeback`](crate::ConnectOptions::writeback).
    pub(crate) uses_writeback: bool,
}

/// A task that waits for an answer.
pub(crate) struct Ticket {
    pub(crate) session: Weak<Session>,
    pub(crate) completion: oneshot::Sender<Result<Completion, Errno>>,
}

/// An answer and the handle that the call has opened; an unclaimed handle is closed.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) answer: Answer,
    pub(crate) handle: Option<Handle>,
}

impl Frontend for LibraryFrontend {
    type Ticket = Ticket;

    fn uses_writeback(&self) -> bool {
        self.uses_writeback
    }

    fn answer(
        &self,
        _: &impl Calls<Self>,
        ticket: Ticket,
        outcome: Result<CallOutcome<'_>, Errno>,
        _: Duration,
    ) {
        let Ticket { session, completion } = ticket;
        let answer = outcome.map(|outcome| match outcome {
            CallOutcome::Answer(answer) => answer,
            CallOutcome::Data(bytes) => Answer::Bytes(Bytes::copy_from_slice(bytes)),
        });
        let answer = answer.map(|answer| {
            let opened = match &answer {
                Answer::Opened(opening) | Answer::Created(_, opening) => Some(opening.ino),
                _ => None,
            };
            Completion { answer, handle: opened.map(|ino| Handle { session, ino }) }
        });
        // The task may have stopped waiting.
        let _ = completion.send(answer);
    }

    fn revoke(
        &self,
        _: &Lease,
        _: bool,
        _: impl Fn() + Send + Sync + 'static,
        done: impl FnOnce() + Send + 'static,
    ) {
        done();
    }

    fn distrust_names(&self) {}

    fn distrust(&self, _: Vec<(Ino, Name)>, _: &[Ino]) {}

    fn recall(&self, _: &[Recall], _: &[(Ino, Name)]) {}

    fn changed(&self, _: &[Ino]) {}

    fn privileges_removed(&self, _: Ino) {}

    fn flushed_behind(&self, _: Ino, _: Range<u64>) {}
}
