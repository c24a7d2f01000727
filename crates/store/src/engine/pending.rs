use std::sync::mpsc::{Receiver, Sender, channel};

use super::{EngineError, EngineFailure};

/// An operation that was submitted. Dropping it neither cancels nor awaits the operation.
#[derive(Debug)]
pub struct Pending<T>(Receiver<Result<T, EngineError>>);

/// The engine's end of a [`Pending`].
#[derive(Debug)]
pub struct Completion<T>(Sender<Result<T, EngineError>>);

impl<T> Pending<T> {
    /// An operation in progress, and the handle that completes it.
    pub fn begin() -> (Completion<T>, Self) {
        let (sender, receiver) = channel();
        (Completion(sender), Self(receiver))
    }

    /// An operation that is complete.
    pub fn done(outcome: Result<T, EngineError>) -> Self {
        let (reply, pending) = Self::begin();
        reply.send(outcome);
        pending
    }

    /// Waits until the operation is complete.
    ///
    /// # Errors
    /// As the operation; [`EngineFailure::TimedOut`] if the engine was closed meanwhile.
    pub fn wait(self) -> Result<T, EngineError> {
        let closed = || EngineError::new("complete an operation of", "the engine", EngineFailure::TimedOut);
        self.0.recv().unwrap_or_else(|_| Err(closed()))
    }

    /// The outcome if the operation is complete; otherwise the operation itself.
    ///
    /// # Errors
    /// The operation is not complete.
    pub fn try_wait(self) -> Result<Result<T, EngineError>, Self> {
        use std::sync::mpsc::TryRecvError;
        match self.0.try_recv() {
            Ok(outcome) => Ok(outcome),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(self.wait()),
        }
    }
}

impl<T> Completion<T> {
    /// Completes the operation.
    pub fn send(self, outcome: Result<T, EngineError>) {
        // A caller that dropped the pending operation needs no outcome.
        let _ = self.0.send(outcome);
    }
}
