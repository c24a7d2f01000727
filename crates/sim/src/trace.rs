//! Traces of real programs for replay: HECIOS's, strace's, and recordings of mounts.

mod before;
mod hecios;
mod order;
mod recording;
mod replay;
mod strace;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use espalier_proto::Errno;

use crate::Nanos;
use crate::source::Op;

pub use replay::{Difference, Replay, Replayed};

/// Recorded operations of processes, and the files that existed before.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub(crate) processes: Vec<Vec<RecordedOp>>,
    /// Operations that make the files that existed before.
    pub(crate) before: Vec<Op>,
    /// Parts of the trace that are not replayed, with their number.
    pub skipped: BTreeMap<String, u64>,
    /// The processes ran on one machine and share open files per trace.
    pub(crate) is_local: bool,
}

/// A recorded operation.
#[derive(Clone, Debug)]
pub(crate) struct RecordedOp {
    /// Line in the file, from 1.
    pub(crate) line: u64,
    /// Computing time of the process before the operation.
    pub(crate) pause: Nanos,
    pub(crate) act: Act,
    /// Operations of other processes that must precede it: process and index.
    pub(crate) after: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Do(Op, Expected),
    Barrier,
}

/// Recorded result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Success,
    Error(Errno),
    /// An unknown error, or one that Espalier does not use.
    AnyError,
}

impl Expected {
    fn is_met(self, result: Result<u64, Errno>) -> bool {
        match (self, result) {
            (Self::Success, Ok(_)) | (Self::AnyError, Err(_)) => true,
            (Self::Error(expected), Err(errno)) => expected == errno,
            _ => false,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("done"),
            Self::Error(errno) => errno.fmt(f),
            Self::AnyError => f.write_str("an error"),
        }
    }
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{}: {cause}", path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("{}, line {line}: {message}", path.display())]
    Malformed { path: PathBuf, line: u64, message: String },
    #[error(
        "{}: it is no trace: neither a directory with HECIOS's event files, nor such a file, nor what `strace -f -ttt -T -y -o FILE` \
         writes, nor what `espalier mount --record FILE` writes",
        path.display()
    )]
    Unknown { path: PathBuf },
}

/// A malformed line.
#[derive(Debug, PartialEq, Eq)]
struct BadLine {
    line: u64,
    message: String,
}

impl BadLine {
    fn new(line: u64, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }

    fn of(self, path: &Path) -> TraceError {
        TraceError::Malformed { path: path.into(), line: self.line, message: self.message }
    }
}

impl Trace {
    /// Reads a trace in any supported format. Of a strace log, only operations below the directory
    /// `root` are replayed.
    ///
    /// # Errors
    /// [`TraceError`]
    pub fn read(path: &Path, root: &Path) -> Result<Self, TraceError> {
        if path.is_dir() {
            return hecios::read_directory(path);
        }
        let text = read(path)?;
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if hecios::is_record(first) {
            return hecios::read_file(path, &text);
        }
        if first.starts_with('{') {
            return recording::parse(&text).map_err(|bad| bad.of(path));
        }
        if strace::is_line(first) {
            return strace::parse(&text, root).map_err(|bad| bad.of(path));
        }
        Err(TraceError::Unknown { path: path.into() })
    }

    /// Number of replayed operations.
    pub fn operations(&self) -> u64 {
        let entries = self.processes.iter().flatten();
        entries.filter(|entry| matches!(entry.act, Act::Do(..))).count() as u64
    }
}

fn read(path: &Path) -> Result<String, TraceError> {
    // All formats escape names that are not UTF-8.
    std::fs::read_to_string(path).map_err(|cause| TraceError::Read { path: path.into(), cause })
}

/// The lines of a text with their numbers, from 1.
fn lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty())
}
