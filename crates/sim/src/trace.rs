//! Traces of real programs, to be replayed: HECIOS's, strace's, and recordings of mounts.

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

/// What processes have done, and what had been there before.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub(crate) processes: Vec<Vec<Entry>>,
    /// What makes the files that must be there first.
    pub(crate) before: Vec<Op>,
    /// What the trace has that is not replayed, and how often.
    pub skipped: BTreeMap<String, u64>,
    /// The processes were of one machine, and those of a trace share open files.
    pub(crate) is_local: bool,
}

/// Something that a process has done.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its line in the file, from 1 on.
    pub(crate) line: u64,
    /// Time that its process computed before.
    pub(crate) pause: Nanos,
    pub(crate) act: Act,
    /// Entries of other processes that must have been done: process and number.
    pub(crate) after: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Do(Op, Expected),
    Barrier,
}

/// What an operation had come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Success,
    Error(Errno),
    /// Which is not known, or not one of those that this file system has.
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
    #[error("{}, line {line}: {what}", path.display())]
    Malformed { path: PathBuf, line: u64, what: String },
    #[error(
        "{}: it is no trace: neither a directory with HECIOS's event files, nor such a file, nor what `strace -f -ttt -T -y -o FILE` \
         writes, nor what `espalier mount --record FILE` writes",
        path.display()
    )]
    Unknown { path: PathBuf },
}

/// A line that is not as it should be.
#[derive(Debug, PartialEq, Eq)]
struct BadLine {
    line: u64,
    what: String,
}

impl BadLine {
    fn new(line: u64, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }

    fn of(self, path: &Path) -> TraceError {
        TraceError::Malformed { path: path.into(), line: self.line, what: self.what }
    }
}

impl Trace {
    /// Reads a trace in whichever format it has. Of a log of strace's only what was done below the directory `root` is
    /// replayed.
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

    /// Operations that are replayed.
    pub fn operations(&self) -> u64 {
        let entries = self.processes.iter().flatten();
        entries.filter(|entry| matches!(entry.act, Act::Do(..))).count() as u64
    }
}

fn read(path: &Path) -> Result<String, TraceError> {
    // Names that are no UTF-8 are escaped in all formats.
    std::fs::read_to_string(path).map_err(|cause| TraceError::Read { path: path.into(), cause })
}

/// The text of a line, without the place in its file that it has.
fn lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty())
}
