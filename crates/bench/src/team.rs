//! Controls the processes of a run: starts them, releases barriers, collects results.
//!
//! A failure of one process ends the run at once and kills the others.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use hdrhistogram::Histogram;

use crate::Algorithm;
use crate::commands::{self, Counts};
use crate::error::Error;
use crate::group::{Group, Phase, Uncached};
use crate::source::Prepared;
use crate::worker::{Measured, Said, WorkerTask, histogram};

/// Hidden command of the program that links this crate: it calls [`crate::worker()`].
pub const WORKER_COMMAND: &str = "bench-worker";

/// A run of a group on one directory.
pub(crate) struct TeamJob<'a> {
    pub(crate) group: &'static Group,
    /// Those of the group's phases to run.
    pub(crate) phases: &'static [Phase],
    pub(crate) dir: &'a Path,
    pub(crate) procs: u32,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) prepared: &'a Prepared,
    pub(crate) algorithm: Algorithm,
    pub(crate) shared: bool,
    /// The file system may be mounted again between phases.
    pub(crate) reopens: bool,
}

/// Result of a phase over all processes.
#[derive(Debug)]
pub(crate) struct PhaseOutcome {
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) latencies: Histogram<u64>,
    /// Increases of the user's counters.
    pub(crate) counts: Counts,
}

/// Executes phases of a group. `forget` is called before a phase, and `count` before and after
/// it, with all processes at the barrier.
pub(crate) fn run(
    job: &TeamJob,
    mut forget: impl FnMut(Uncached) -> Result<(), Error>,
    count: impl Fn() -> Result<Counts, Error>,
) -> Result<Vec<PhaseOutcome>, Error> {
    let (heard, words) = channel();
    let mut team = Team { job, members: Vec::new(), words };
    for rank in 0..job.procs {
        team.start(rank, heard.clone())?;
    }
    let mut outcomes = Vec::new();
    team.gather(|said| matches!(said, Said::Ready).then_some(()))?;
    for phase in job.phases {
        forget(phase.uncached)?;
        let before = count()?;
        team.release();
        team.gather(|said| matches!(said, Said::Done).then_some(()))?;
        team.release();
        let measured = team.gather(|said| match said {
            Said::Measured(measured) => Some(measured),
            _ => None,
        })?;
        let counts = commands::increases(&before, count()?);
        outcomes.push(PhaseOutcome { counts, ..combine(job.algorithm, &measured) });
    }
    Ok(outcomes)
}

fn combine(algorithm: Algorithm, measured: &[Measured]) -> PhaseOutcome {
    let seconds = match algorithm {
        Algorithm::SlowestProcess => measured.iter().map(|m| m.work).fold(0.0, f64::max),
        Algorithm::FirstProcess => measured.first().map_or(0.0, |m| m.barriers),
    };
    let mut latencies = histogram();
    for (nanos, count) in measured.iter().flat_map(|m| &m.latencies) {
        latencies.saturating_record_n(*nanos, *count);
    }
    PhaseOutcome {
        seconds,
        operations: measured.iter().map(|m| m.operations).sum(),
        bytes: measured.iter().map(|m| m.bytes).sum(),
        latencies,
        counts: Counts::new(),
    }
}

/// A message of a process; `None` if the process has ended.
type Word = (usize, io::Result<Option<Said>>);

struct Team<'a> {
    job: &'a TeamJob<'a>,
    members: Vec<Member>,
    words: Receiver<Word>,
}

struct Member {
    child: Child,
    input: ChildStdin,
}

impl Team<'_> {
    fn start(&mut self, rank: u32, heard: Sender<Word>) -> Result<(), Error> {
        let job = self.job;
        let task = WorkerTask {
            group: job.group.name.into(),
            dir: job.dir.into(),
            rank,
            files: job.files,
            bytes: job.bytes,
            procs: job.procs,
            shared: job.shared,
            reopens: job.reopens,
            archive: job.prepared.archive.clone(),
            repository: job.prepared.repository.clone(),
        };
        let task =
            serde_json::to_string(&task).map_err(|error| Error::doing("start a process")(error.into()))?;
        let mut child = std::env::current_exe()
            .and_then(|program| {
                Command::new(program).arg(WORKER_COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
            })
            .map_err(Error::doing("start a process"))?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are piped")
        };
        // A process that has already died is detected at the first barrier.
        let _ = writeln!(input, "{task}");
        self.members.push(Member { child, input });
        // The thread ends with the process.
        std::thread::spawn(move || listen(rank as usize, output, &heard));
        Ok(())
    }

    /// Receives one message of the expected type from each process, in order of ranks.
    fn gather<T>(&mut self, expected: impl Fn(Said) -> Option<T>) -> Result<Vec<T>, Error> {
        let (group, dir) = (self.job.group.name, self.job.dir);
        let mut all: Vec<Option<T>> = self.members.iter().map(|_| None).collect();
        for _ in 0..self.members.len() {
            let (index, word) = self.words.recv().map_err(|gone| Error::hearing(io::Error::other(gone)))?;
            let rank = index as u32;
            let failed = |message| Error::Failed { group, dir: dir.into(), rank, message };
            all[index] = match word.map_err(Error::hearing)? {
                Some(Said::Failed(message)) => return Err(failed(message)),
                Some(said) => expected(said),
                None => {
                    let status = self.members[index].child.wait().map_err(Error::hearing)?;
                    return Err(Error::Died { group, dir: dir.into(), rank, status });
                }
            };
            if all[index].is_none() {
                return Err(failed("unexpected message".into()));
            }
        }
        // No process sends two messages before a barrier.
        Ok(all.into_iter().flatten().collect())
    }

    /// Releases the barrier. A process that has died is detected at the next one.
    fn release(&mut self) {
        for member in &mut self.members {
            let _ = member.input.write_all(b"\n");
        }
    }
}

/// Forwards the messages of a process line by line, and finally its end.
fn listen(rank: usize, output: ChildStdout, heard: &Sender<Word>) {
    for line in BufReader::new(output).lines() {
        let said = line.and_then(|line| Ok(Some(serde_json::from_str(&line)?)));
        if heard.send((rank, said)).is_err() {
            return;
        }
    }
    let _ = heard.send((rank, Ok(None)));
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_algorithms_take_different_times() {
        let measured = [(1.0, 3.5), (3.0, 4.0)].map(|(work, barriers)| Measured {
            work,
            barriers,
            operations: 10,
            bytes: 1,
            latencies: vec![(1000, 9), (5000, 1)],
        });
        let slowest = combine(Algorithm::SlowestProcess, &measured);
        assert_eq!((slowest.seconds, slowest.operations, slowest.latencies.len()), (3.0, 20, 20));
        assert_eq!(combine(Algorithm::FirstProcess, &measured).seconds, 3.5);
    }
}
