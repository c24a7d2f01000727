//! Benchmarks of directories on any file system, by real processes.
//!
//! A team of processes executes a *group* of phases, with a barrier before and after each phase.
//! With two directories, or with the *floor* (a file system that answers from memory, mounted
//! through the same FUSE code), runs alternate, and the result is the ratio of each pair, so that
//! variations of the machine affect both sides.
//!
//! [`native()`] measures servers by clients in this process instead.
//!
//! The program that links this crate must provide two hidden commands, [`WORKER_COMMAND`] and
//! [`FLOOR_COMMAND`].

mod commands;
mod error;
mod floor;
mod group;
mod groups;
mod listing;
mod memory;
mod native;
mod place;
mod plot;
mod report;
mod source;
mod team;
mod worker;

use std::fmt;
use std::path::PathBuf;

use tempfile::TempDir;

pub use error::Error;
pub use floor::{FLOOR_COMMAND, serve_floor};
pub use group::{GROUPS, Group, Procs};
pub use listing::{ListingCost, sample_listing};
pub use native::{NativeOptions, Processors, Sample, native, sample};
pub use place::BenchTarget;
pub use plot::plot;
pub use report::{Against, PhaseReport, Report, SideFigures};
pub use team::WORKER_COMMAND;
pub use worker::worker;

use commands::Counts;
use floor::Floor;
use group::{Selected, Uncached};
use team::{PhaseOutcome, TeamJob};

/// Parameters of a benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory to measure; `second` is compared with it.
    pub dir: PathBuf,
    pub second: Option<PathBuf>,
    /// Compare with a file system that answers from memory. Mounting it needs root or
    /// `fusermount3`.
    pub floor: bool,
    /// Groups, or `group/phase`.
    pub phases: Vec<String>,
    /// Numbers of processes, each measured in turn; empty: the group's default.
    pub procs: Vec<u32>,
    /// Files per process and bytes per file, instead of the group's defaults.
    pub files: Option<u64>,
    pub bytes: Option<u64>,
    pub algorithm: Algorithm,
    /// All processes work in one directory.
    pub shared: bool,
    /// Command that empties the caches of a file system before an uncached phase, such as by
    /// mounting it again. Gets the directory as its argument.
    pub uncache: Option<String>,
    /// Command that prints counters, a name and a number a line, before and after each phase. Gets
    /// the directory as its argument.
    pub counters: Option<String>,
    /// Runs of each side: by default 5, or 1 without a comparison.
    pub runs: Option<u32>,
}

/// The timing methods of Carns et al., section IV.B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Algorithm 1: each process measures its own time; the longest counts.
    SlowestProcess,
    /// Algorithm 2, as in mdtest: the first process measures the time between barriers.
    FirstProcess,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(match self {
            Algorithm::SlowestProcess => "of the slowest process (algorithm 1)",
            Algorithm::FirstProcess => "between two barriers, as the first process sees them (algorithm 2)",
        })
    }
}

/// Runs a benchmark. Everything created in the directories is removed, also after a failure.
///
/// # Errors
/// The options name something that does not exist, a directory cannot be used, or a process failed.
pub fn run(options: &Options) -> Result<Report, Error> {
    let selection = group::select(&options.phases)?;
    let least = |option, value: Option<u64>, least| match value {
        Some(value) if value < least => Err(Error::TooSmall { option, least }),
        _ => Ok(()),
    };
    least("files", options.files, 1)?;
    least("runs", options.runs.map(u64::from), 1)?;
    least("procs", options.procs.iter().min().map(|procs| u64::from(*procs)), 1)?;

    let mut sides = vec![BenchTarget::of(&options.dir)?];
    sides.extend(options.second.as_deref().map(BenchTarget::of).transpose()?);
    let floor = if options.floor { Some(Floor::mount(&sides[0])?) } else { None };
    sides.extend(floor.as_ref().map(|floor| BenchTarget::of(floor.dir())).transpose()?);
    let runs = options.runs.unwrap_or(if sides.len() > 1 { 5 } else { 1 });

    let algorithm = match options.algorithm {
        Algorithm::SlowestProcess => 1,
        Algorithm::FirstProcess => 2,
    };
    let mut report = Report { algorithm, runs, uncached: None, sides, phases: Vec::new() };
    for selected in &selection {
        run_group(options, selected, &mut report)?;
    }
    Ok(report)
}

fn run_group(options: &Options, selected: &Selected, report: &mut Report) -> Result<(), Error> {
    let group = selected.group;
    if options.shared && !group.may_share {
        return Err(Error::NotShared { group: group.name });
    }
    let (files, bytes) = (options.files.unwrap_or(group.files), options.bytes.unwrap_or(group.bytes));
    let prepared = source::prepare(group.source, files)?;
    let numbers = match group.procs {
        Procs::Default(numbers) if options.procs.is_empty() => numbers,
        Procs::Default(_) => &options.procs,
        Procs::One => &[1],
    };
    for &procs in numbers {
        let mut outcomes: Vec<Vec<Vec<PhaseOutcome>>> = report.sides.iter().map(|_| Vec::new()).collect();
        for run in 0..report.runs as usize {
            for offset in 0..report.sides.len() {
                // Alternate the first side, so that the order favours none.
                let side = (offset + run) % report.sides.len();
                let place = &report.sides[side];
                let unusable = |source| Error::Directory { dir: place.dir.clone(), source };
                let dir = TempDir::with_prefix_in("espalier-bench-", &place.dir).map_err(unusable)?;
                let job = TeamJob {
                    group,
                    phases: selected.needed(),
                    dir: dir.path(),
                    procs,
                    files,
                    bytes,
                    prepared: &prepared,
                    algorithm: options.algorithm,
                    shared: options.shared,
                    reopens: options.uncache.is_some(),
                };
                // Write out the dirty pages of the previous run.
                for place in &report.sides {
                    place.sync().map_err(Error::doing(format!("sync {}", place.dir.display())))?;
                }
                let uncached = &mut report.uncached;
                let forget = |caches| {
                    forget(caches, place, uncached);
                    match &options.uncache {
                        Some(command) if caches != Uncached::Nothing => {
                            commands::run(command, &place.dir).map(drop)
                        }
                        _ => Ok(()),
                    }
                };
                let count = || {
                    options
                        .counters
                        .as_ref()
                        .map_or(Ok(Counts::new()), |command| commands::count(command, &place.dir))
                };
                outcomes[side].push(team::run(&job, forget, count)?);
                dir.close().map_err(Error::doing("remove the created files"))?;
            }
        }
        for (index, phase) in group.phases.iter().enumerate().filter(|(_, phase)| selected.reports(phase)) {
            let sides: Vec<Vec<&PhaseOutcome>> =
                outcomes.iter().map(|runs| runs.iter().map(|phases| &phases[index]).collect()).collect();
            report.phases.push(PhaseReport::new(format!("{}/{}", group.name, phase.name), procs, &sides));
        }
    }
    Ok(())
}

/// Drops kernel caches; `done` records whether that always succeeded.
fn forget(caches: Uncached, place: &BenchTarget, done: &mut Option<bool>) {
    if caches != Uncached::Nothing {
        let forgotten =
            place::forget(caches, place).inspect_err(|error| tracing::info!(%error, "cannot drop caches"));
        *done = Some(done.unwrap_or(true) && forgotten.is_ok());
    }
}
