//! Common programs applied to a source tree.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::process::{Command, Stdio};

use crate::group::{Group, Phase, Procs, ProgramInput, Uncached};
use crate::source;
use crate::worker::{Laps, PhaseFailure, Worker, WorkerResult};

pub(crate) static TREE: Group = Group {
    name: "tree",
    files: 30_000,
    bytes: 0,
    procs: Procs::One,
    may_share: false,
    source: ProgramInput::Archive,
    start: |worker| {
        // Cache the archive, so that every run reads it from memory.
        if let Some(archive) = &worker.task.archive {
            io::copy(&mut File::open(archive)?, &mut io::sink())?;
        }
        Ok(())
    },
    phases: &[
        Phase::new("untar", |worker, laps| {
            let archive = worker.task.archive.clone().unwrap_or_default();
            run(worker, laps, "tar", [OsStr::new("-xf"), archive.as_os_str()])
        }),
        Phase::new("find -ls uncached", |worker, laps| run(worker, laps, "find", ["tree", "-ls"]))
            .uncached(Uncached::Everything),
        Phase::new("rm -rf", |worker, laps| run(worker, laps, "rm", ["-rf", "tree"])),
    ],
};

/// Requires a directory of a mounted Espalier file system.
pub(crate) static BULK: Group = Group {
    name: "bulk",
    files: 30_000,
    bytes: 0,
    procs: Procs::One,
    may_share: false,
    source: ProgramInput::Archive,
    start: |worker| {
        let archive = worker.task.archive.clone().unwrap_or_default();
        let untar = [OsStr::new("-xf"), archive.as_os_str()];
        run_program(worker, OsStr::new("tar"), untar)
    },
    phases: &[
        Phase::new("cp -r", |worker, laps| run(worker, laps, "cp", ["-r", "tree", "copy"])),
        Phase::new("rm -rf", |worker, laps| run(worker, laps, "rm", ["-rf", "copy"])),
        // Not directly after `cp`: it would wait until the written data is in the tables.
        Phase::new("espalier cp -r", |worker, laps| espalier(worker, laps, ["cp", "-r", "tree", "clone"])),
        Phase::new("espalier rm -r", |worker, laps| espalier(worker, laps, ["rm", "-r", "clone"])),
    ],
};

pub(crate) static GIT: Group = Group {
    name: "git",
    files: 10_000,
    bytes: 0,
    procs: Procs::One,
    may_share: false,
    source: ProgramInput::Repository,
    start: |_| Ok(()),
    phases: &[
        Phase::new("clone", |worker, laps| {
            let repository = worker.task.repository.clone().unwrap_or_default();
            let [clone, quiet_flag, copy] = ["clone", "--quiet", "--no-hardlinks"].map(OsStr::new);
            run(worker, laps, "git", [clone, quiet_flag, copy, repository.as_os_str(), OsStr::new("clone")])
        }),
        Phase::new("status uncached", status).uncached(Uncached::Everything),
        Phase::new("status cached", status),
    ],
};

fn status(worker: &mut Worker, laps: &mut Laps) -> WorkerResult {
    run(worker, laps, "git", ["-C", "clone", "status", "--short"])
}

/// Runs a program on the tree; its entries count as operations.
fn run<S: AsRef<OsStr>>(
    worker: &mut Worker,
    laps: &mut Laps,
    program: &'static str,
    args: impl IntoIterator<Item = S>,
) -> WorkerResult {
    run_program(worker, OsStr::new(program), args)?;
    laps.bulk(source::entries(worker.task.files));
    Ok(())
}

/// As [`run`], for this program.
fn espalier<const N: usize>(worker: &mut Worker, laps: &mut Laps, args: [&str; N]) -> WorkerResult {
    run_program(worker, std::env::current_exe()?.as_os_str(), args)?;
    laps.bulk(source::entries(worker.task.files));
    Ok(())
}

fn run_program<S: AsRef<OsStr>>(
    worker: &Worker,
    program: &OsStr,
    args: impl IntoIterator<Item = S>,
) -> WorkerResult {
    let mut command = Command::new(program);
    source::without_configuration(&mut command);
    let command = command.args(args).current_dir(&worker.task.dir);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status =
        status.map_err(|error| PhaseFailure(format!("cannot run {}: {error}", program.display())))?;
    if !status.success() {
        return Err(PhaseFailure(format!("{} failed ({status})", program.display())));
    }
    Ok(())
}
