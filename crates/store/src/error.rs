use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use espalier_proto::{Errno, Rank};

use crate::{DataPoolError, EngineError, EngineFailure, JournalError, SuperblockError};

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {operation} {}: {cause}", path.display())]
    Io { operation: &'static str, path: PathBuf, cause: io::Error },
    #[error("no space is left for {}", path.display())]
    NoSpace { path: PathBuf },
    /// The operation that failed returned the cause; all later ones return this error.
    #[error("{} could not be written: unmount, repair the disk, and mount again", path.display())]
    Failed { path: PathBuf },
    #[error("the store is open for reading only")]
    ReadOnly,
    #[error("the store is damaged: {damage}")]
    Corrupt { damage: String },
    #[error("{} is in use{}", path.display(), by(*.pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error(
        "rank {rank} is in use by {holder}: unmount it, or end that process and wait {} s until its lease is over",
        term.as_secs()
    )]
    HeldBy { rank: Rank, holder: String, term: Duration },
    /// Another process may serve the store by now.
    #[error(
        "the lease of the store is over: the cluster could not be reached, or another process has taken over"
    )]
    LeaseOver,
    /// Neither the source nor the destination of a migration may be used.
    #[error(
        "it is not known whether the migration of the store has ended: unmount, and run the same `espalier migrate` again"
    )]
    Undecided,
    #[error("the copy differs from the store: {0}")]
    DifferentCopy(String),
    #[error("the migration was stopped: run the same command again to continue it")]
    Stopped,
    /// The request is invalid for this store or stream.
    #[error("{0}")]
    Refused(Errno),
    #[error(transparent)]
    DataPool(#[from] DataPoolError),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Engine(EngineError),
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        match error.failure {
            EngineFailure::Full => Self::NoSpace { path: error.object.into() },
            _ => Self::Engine(error),
        }
    }
}

fn by(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!(" by process {pid}: unmount it, or end that process"),
        None => " by another process: unmount it, or end that process".into(),
    }
}

impl StoreError {
    /// The error number that the caller of a system call gets.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Io { cause, .. } => cause.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            Self::NoSpace { .. } => Errno::ENOSPC,
            Self::ReadOnly => Errno::EROFS,
            Self::InUse { .. } | Self::HeldBy { .. } => Errno::EBUSY,
            Self::Engine(error) => error.errno(),
            Self::Refused(errno) => *errno,
            Self::LeaseOver
            | Self::Undecided
            | Self::DifferentCopy(_)
            | Self::Stopped
            | Self::Failed { .. }
            | Self::Corrupt { .. }
            | Self::DataPool(_)
            | Self::Superblock(_)
            | Self::Journal(_) => Errno::EIO,
        }
    }

    pub(crate) fn io(operation: &'static str, path: &Path, cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::StorageFull => Self::NoSpace { path: path.into() },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            _ => Self::Io { operation, path: path.into(), cause },
        }
    }

    pub(crate) fn corrupt(damage: impl Into<String>) -> Self {
        Self::Corrupt { damage: damage.into() }
    }
}

/// Adds to an I/O error what was attempted and on which file.
pub(crate) trait Context<T> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T, StoreError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::io(operation, path, error.into()))
    }
}
