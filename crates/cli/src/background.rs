//! Restarts this program as a background process.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

/// Message of the background process when it is usable.
const READY: &str = "ready";

/// Starts a command of this program and waits until it is usable.
pub(crate) fn start(mut command: Command) -> Result<ExitCode> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start the server")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    // The child has reported the reason on the shared standard error.
    let status = child.wait()?;
    Ok(ExitCode::from(
        status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(2),
    ))
}

/// Reports to the parent that this process is usable.
pub(crate) fn announce() {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
    // Closes our standard output, so that its reader sees the end.
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null).and_then(|()| rustix::stdio::dup2_stderr(&null));
    }
}

pub(crate) fn log_file(path: &Path) -> Result<File> {
    let open = OpenOptions::new().create(true).append(true).open(path);
    // A store on a read-only medium can be mounted, without a log.
    let open = open.or_else(|_| OpenOptions::new().write(true).open("/dev/null"));
    open.with_context(|| format!("cannot open the log {}", path.display()))
}
