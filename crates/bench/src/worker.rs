//! A benchmark process: it executes its group's phases, with a barrier around each.
//!
//! It reads its [`WorkerTask`] from the first line of standard input; every further line releases a
//! barrier. It writes [`Said`] messages to standard output, one per line. The process ends when its
//! input does.

use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::group;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkerTask {
    pub(crate) group: String,
    /// Directory of the group; each process works in a subdirectory.
    pub(crate) dir: PathBuf,
    pub(crate) rank: u32,
    /// Files per process.
    pub(crate) files: u64,
    /// Bytes per file.
    pub(crate) bytes: u64,
    /// Number of processes.
    pub(crate) procs: u32,
    /// All processes work in one directory.
    pub(crate) shared: bool,
    /// Directories are closed between phases: the file system may be mounted again meanwhile.
    pub(crate) reopens: bool,
    /// Input of `tar` and `git`.
    pub(crate) archive: Option<PathBuf>,
    pub(crate) repository: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// At the barrier before the first phase.
    Ready,
    /// At the barrier after a phase.
    Done,
    /// Result of the phase; at the barrier before the next one, if any.
    Measured(Measured),
    Failed(String),
}

/// Result of one process in one phase.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Seconds from the first barrier to the end of its own work (Algorithm 1).
    pub(crate) work: f64,
    /// Seconds from the first barrier to the second (Algorithm 2).
    pub(crate) barriers: f64,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    /// Latencies in nanoseconds with their number of operations.
    pub(crate) latencies: Vec<(u64, u64)>,
}

/// Why a phase failed.
#[derive(Debug)]
pub(crate) struct PhaseFailure(pub(crate) String);
pub(crate) type WorkerResult<T = ()> = Result<T, PhaseFailure>;

impl From<io::Error> for PhaseFailure {
    fn from(error: io::Error) -> Self {
        PhaseFailure(error.to_string())
    }
}

/// For `map_err`: the attempted action and its file.
pub(crate) fn doing(action: &str, name: &str) -> impl FnOnce(Errno) -> PhaseFailure {
    move |errno| PhaseFailure(format!("cannot {action} {name}: {}", io::Error::from(errno)))
}

/// Counts operations of a phase and their latencies.
pub(crate) struct Laps {
    last: Instant,
    operations: u64,
    bytes: u64,
    latencies: Histogram<u64>,
}

impl Laps {
    fn begin() -> Laps {
        Laps { last: Instant::now(), operations: 0, bytes: 0, latencies: histogram() }
    }

    /// Records the end of an operation and the start of the next.
    pub(crate) fn lap(&mut self) {
        let now = Instant::now();
        self.latencies.saturating_record((now - self.last).as_nanos() as u64);
        self.last = now;
        self.operations += 1;
    }

    /// Records the end of an operation that moved this number of bytes.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.lap();
        self.bytes += bytes as u64;
    }

    /// Records operations with unknown latencies.
    pub(crate) fn bulk(&mut self, operations: u64) {
        self.operations += operations;
    }
}

/// A histogram of nanoseconds up to an hour with three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
        .unwrap_or_else(|_| unreachable!("bounds are in order"))
}

/// State shared by the phases of a process.
pub(crate) struct Worker {
    pub(crate) task: WorkerTask,
    /// Directory of the group.
    base: Option<OwnedFd>,
    /// Directory of this process, once made.
    own: Option<OwnedFd>,
    has_own: bool,
    /// Files for later phases.
    pub(crate) open: Vec<OwnedFd>,
    /// Buffer of a file's length.
    pub(crate) buffer: Vec<u8>,
}

impl Worker {
    fn new(task: WorkerTask) -> WorkerResult<Worker> {
        let mut worker =
            Worker { task, base: None, own: None, has_own: false, open: Vec::new(), buffer: Vec::new() };
        worker.reopen()?;
        Ok(worker)
    }

    pub(crate) fn own_name(&self) -> String {
        if self.task.shared { "shared".into() } else { format!("process{}", self.task.rank) }
    }

    /// Name of this process's file with this number.
    pub(crate) fn file_name(&self, number: u64) -> String {
        if self.task.shared { format!("{}-{}", file_name(number), self.task.rank) } else { file_name(number) }
    }

    /// Number of files in this process's directory if every process has made all of its files.
    pub(crate) fn files_of_directory(&self) -> u64 {
        self.task.files * if self.task.shared { u64::from(self.task.procs) } else { 1 }
    }

    /// Makes this process's directory.
    pub(crate) fn make_own(&mut self) -> WorkerResult {
        match make_directory(self.base()?, &self.own_name()) {
            // Another process has made it.
            Err(_) if self.task.shared && open_directory(self.base()?, &self.own_name()).is_ok() => {}
            made => made?,
        }
        self.has_own = true;
        self.reopen()
    }

    /// Opens the directories that exist and are closed.
    fn reopen(&mut self) -> WorkerResult {
        if self.base.is_none() {
            self.base = Some(open_directory(CWD, &self.task.dir.to_string_lossy())?);
        }
        if self.has_own && self.own.is_none() {
            self.own = Some(open_directory(self.base()?, &self.own_name())?);
        }
        Ok(())
    }

    /// Closes the directories until the next phase, if they have to be closed.
    fn release(&mut self) {
        if self.task.reopens {
            self.own = None;
            self.base = None;
        }
    }

    pub(crate) fn base(&self) -> WorkerResult<&OwnedFd> {
        self.base.as_ref().ok_or_else(|| PhaseFailure("the directory of the group is closed".into()))
    }

    pub(crate) fn own(&self) -> WorkerResult<&OwnedFd> {
        self.own.as_ref().ok_or_else(|| PhaseFailure("the directory has not been made".into()))
    }

    /// Closes everything in this process's directory, which will be removed.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
        self.own = None;
        self.has_own = false;
    }
}

/// Name of the file with this number.
pub(crate) fn file_name(number: u64) -> String {
    format!("file{number:07}")
}

pub(crate) fn make_directory(at: &OwnedFd, name: &str) -> WorkerResult {
    rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755)).map_err(doing("make directory", name))
}

pub(crate) fn open_directory(at: impl std::os::fd::AsFd, name: &str) -> WorkerResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty()).map_err(doing("open directory", name))
}

pub(crate) fn open(at: &OwnedFd, name: &str, flags: OFlags) -> WorkerResult<OwnedFd> {
    rustix::fs::openat(at, name, flags | OFlags::CLOEXEC, Mode::empty()).map_err(doing("open", name))
}

/// Creates a file exclusively, for reading and writing.
pub(crate) fn create(at: &OwnedFd, name: &str) -> WorkerResult<OwnedFd> {
    create_for(at, name, OFlags::RDWR)
}

pub(crate) fn create_for(at: &OwnedFd, name: &str, access: OFlags) -> WorkerResult<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | access;
    rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o644)).map_err(doing("create", name))
}

pub(crate) fn write(file: &OwnedFd, bytes: &[u8], offset: u64) -> WorkerResult {
    match rustix::io::pwrite(file, bytes, offset).map_err(doing("write", "a file"))? {
        written if written == bytes.len() => Ok(()),
        written => Err(PhaseFailure(format!("only {written} of {} bytes were written", bytes.len()))),
    }
}

pub(crate) fn read(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> WorkerResult {
    match rustix::io::pread(file, &mut *bytes, offset).map_err(doing("read", "a file"))? {
        read if read == bytes.len() => Ok(()),
        read => Err(PhaseFailure(format!("only {read} of {} bytes were read", bytes.len()))),
    }
}

pub(crate) fn stat(at: &OwnedFd, name: &str) -> WorkerResult {
    rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).map(drop).map_err(doing("stat", name))
}

pub(crate) fn unlink(at: &OwnedFd, name: &str) -> WorkerResult {
    rustix::fs::unlinkat(at, name, AtFlags::empty()).map_err(doing("remove", name))
}

pub(crate) fn remove_directory(at: &OwnedFd, name: &str) -> WorkerResult {
    rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR).map_err(doing("remove directory", name))
}

/// Reads a directory and stats each name; there must be `expected` names.
pub(crate) fn list(dir: &OwnedFd, expected: u64, laps: &mut Laps) -> WorkerResult {
    let mut seen = 0;
    for entry in Dir::read_from(dir).map_err(doing("read", "a directory"))? {
        let entry = entry.map_err(doing("read", "a directory"))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(doing("stat", &name.to_string_lossy()))?;
        seen += 1;
        laps.lap();
    }
    if seen == expected {
        Ok(())
    } else {
        Err(PhaseFailure(format!("the listing showed {seen} files where there are {expected}")))
    }
}

/// Main function of a worker. The exit status has no meaning: failures are reported as messages.
pub fn worker() -> ExitCode {
    match serve(&mut io::stdin().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(PhaseFailure(message)) => {
            let _ = say(&Said::Failed(message));
            ExitCode::FAILURE
        }
    }
}

fn serve(input: &mut impl BufRead) -> WorkerResult {
    let task: WorkerTask = serde_json::from_str(&next_line(input)?)
        .map_err(|error| PhaseFailure(format!("a task is expected on standard input: {error}")))?;
    let group = group::find(&task.group).ok_or_else(|| PhaseFailure(format!("no group {}", task.group)))?;
    let mut worker = Worker::new(task)?;
    (group.start)(&mut worker)?;
    worker.release();
    say(&Said::Ready)?;
    for phase in group.phases {
        next_line(input)?;
        worker.reopen()?;
        let begun = Instant::now();
        let mut laps = Laps::begin();
        (phase.work)(&mut worker, &mut laps)?;
        let work = begun.elapsed().as_secs_f64();
        say(&Said::Done)?;
        next_line(input)?;
        let barriers = begun.elapsed().as_secs_f64();
        let Laps { operations, bytes, latencies, .. } = laps;
        let latencies = latencies.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value()));
        let latencies = latencies.collect();
        worker.release();
        say(&Said::Measured(Measured { work, barriers, operations, bytes, latencies }))?;
    }
    // Wait: a process that ends before all results are collected counts as dead.
    let _ = next_line(input);
    Ok(())
}

/// Reads a line; its absence means that the parent has ended.
fn next_line(input: &mut impl BufRead) -> WorkerResult<String> {
    let mut line = String::new();
    match input.read_line(&mut line)? {
        0 => Err(PhaseFailure("the parent process has ended".into())),
        _ => Ok(line),
    }
}

fn say(said: &Said) -> WorkerResult {
    let mut line = serde_json::to_string(said).map_err(io::Error::from)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}
