use std::io;
use std::path::{Path, PathBuf};

use espalier_proto::{Errno, Position};

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {what} {}", .path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{what}: the store is damaged; run `espalier fsck` on a copy of it, or restore it from a backup")]
    Corrupt { what: String },
    #[error("the store {} is in use by process {holder}; unmount it there first", .path.display())]
    InUse { path: PathBuf, holder: String },
    #[error("the file system is mounted read-only")]
    ReadOnly,
    #[error(transparent)]
    Journal(#[from] Box<JournalError>),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
}

impl StoreError {
    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.as_ref().into(), source }
    }

    /// As a system call reports it.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Io { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            Self::ReadOnly => Errno::EROFS,
            Self::InUse { .. } => Errno::EBUSY,
            Self::Corrupt { .. } | Self::Journal(_) | Self::Superblock(_) => Errno::EIO,
        }
    }
}

/// What is wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("the journal cannot be read or written")]
    Io(#[from] io::Error),
    #[error("the journal is full")]
    Full,
    #[error("the journal is no journal of Espalier's, or its beginning is damaged")]
    Foreign,
    #[error("the journal has {has} bytes instead of {needs}: it was truncated")]
    Truncated { has: u64, needs: u64 },
    #[error(
        "the journal is damaged at position {}: changes that had been made durable cannot be read back; \
         run `espalier fsck` on a copy of the store, or restore it from a backup", .0.0
    )]
    Damaged(Position),
    #[error("the journal is needed from position {} on, which is not in it", .0.0)]
    Missing(Position),
}

/// What is wrong with a superblock.
#[derive(Debug, thiserror::Error)]
pub enum SuperblockError {
    #[error("{} is not an Espalier file system: make one with `espalier mkfs {}`", .0.display(), .0.display())]
    Absent(PathBuf),
    #[error("{} was not made by Espalier", .0.display())]
    Foreign(PathBuf),
    #[error("{} is damaged (its checksum is wrong): restore it from a backup", .0.display())]
    Damaged(PathBuf),
    #[error("{} has format {format}, this program knows {known}: use a newer Espalier", .path.display())]
    Newer { path: PathBuf, format: u32, known: u32 },
    #[error("cannot read {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Why no file system was made.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("{} holds an Espalier file system already; with --force it is replaced, and lost", .0.display())]
    Exists(PathBuf),
    #[error("{} is not empty, and what is in it is not Espalier's; choose an empty directory", .0.display())]
    NotEmpty(PathBuf),
    #[error("a journal has 4M to 16G, not {0} bytes")]
    JournalSize(u64),
    #[error("a strip has at most 256K, and at most a sixteenth of the journal, not {0} bytes")]
    StripSize(u32),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}
