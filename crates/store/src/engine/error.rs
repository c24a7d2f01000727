use std::io;

use espalier_proto::Errno;

/// Why an operation of an engine failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {object}: {failure}")]
pub struct EngineError {
    pub operation: &'static str,
    /// The object, or what else was operated on.
    pub object: String,
    pub failure: EngineFailure,
}

/// The kind of a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineFailure {
    #[error("it does not exist")]
    Missing,
    #[error("it exists")]
    Exists,
    /// A guard of a compound write does not hold: nothing was written.
    #[error("another client has changed it")]
    Guard,
    #[error("another client holds its lock")]
    Locked,
    /// This client is excluded for good.
    #[error("this process was fenced: another one has taken over")]
    Fenced,
    #[error("the pool is full, or its quota is reached")]
    Full,
    #[error("no reply in time: the cluster cannot be reached, or is degraded")]
    TimedOut,
    #[error("permission denied: see docs/rados.md for the capabilities that the user needs")]
    Denied,
    /// Erasure-coded pools have no keys, and without `allow_ec_overwrites` no overwrites.
    #[error("an erasure-coded pool does not support it")]
    Unsupported,
    /// The request itself is invalid.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// An error number without a meaning of its own here.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Io(i32),
}

impl EngineError {
    pub fn new(operation: &'static str, object: &str, failure: EngineFailure) -> Self {
        Self { operation, object: object.into(), failure }
    }

    pub fn is(&self, failure: &EngineFailure) -> bool {
        self.failure == *failure
    }

    /// The error number that the caller of a system call gets.
    pub fn errno(&self) -> Errno {
        match self.failure {
            EngineFailure::Full => Errno::ENOSPC,
            EngineFailure::Locked => Errno::EBUSY,
            _ => Errno::EIO,
        }
    }
}
