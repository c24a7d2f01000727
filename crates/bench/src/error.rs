//! Errors of benchmarks.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no phases are called `{name}`; there are {known}")]
    UnknownPhase { name: String, known: String },
    #[error("--{option} must be at least {least}")]
    TooSmall { option: &'static str, least: u64 },
    #[error("{} is not a usable directory", dir.display())]
    Directory { dir: PathBuf, source: io::Error },
    #[error("cannot {context}")]
    Io { context: String, source: io::Error },
    /// A worker has reported a failure.
    #[error("process {rank} of {group} in {}: {message}", dir.display())]
    Failed { group: &'static str, dir: PathBuf, rank: u32, message: String },
    /// A worker has died without a report.
    #[error("process {rank} of {group} in {} ended early ({status})", dir.display())]
    Died { group: &'static str, dir: PathBuf, rank: u32, status: ExitStatus },
    #[error("`{program}` failed ({status})")]
    Program { program: &'static str, status: ExitStatus },
    #[error("`{command}` failed ({status})")]
    Command { command: String, status: ExitStatus },
    #[error("`{command}` prints `{line}`: a name and a number are expected")]
    Counter { command: String, line: String },
    #[error("the processes of {group} need own directories")]
    NotShared { group: &'static str },
    #[error("the floor cannot be mounted; see its message above")]
    Floor,
    #[error("cannot mount the floor on {}", mountpoint.display())]
    Mount { mountpoint: PathBuf, source: espalier_fuse::MountError },
    #[error("the floor has stopped")]
    Served(#[from] espalier_fuse::RunError),
    #[error("this process may have at most {most} connections: raise `ulimit -Hn`")]
    Connections { most: u64 },
    #[error(transparent)]
    Connect(espalier_library::ConnectError),
    #[error("stopped")]
    Stopped,
    #[error("cannot draw {}: {message}", file.display())]
    Plot { file: PathBuf, message: String },
}

impl Error {
    /// For `map_err`: the attempted action, as in "cannot WHAT".
    pub(crate) fn doing(context: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let context = context.into();
        move |source| Error::Io { context, source }
    }

    pub(crate) fn hearing(source: io::Error) -> Error {
        Error::doing("hear from a process")(source)
    }
}
