//! `espalier sim`: runs the program's own machines in virtual time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueHint};
use espalier_sim::source::Workload;
use espalier_sim::trace::{Replay, Replayed};
use espalier_sim::{
    BalancerMove, Observer, Report, Scenario, Tracing, World, plot_sweep, write_csv, write_moves,
    write_plots, write_sweep,
};
use espalier_timeline::{Log, write_chrome};
use indicatif::{ProgressBar, ProgressStyle};

use crate::calibrate::{CalibrateArgs, calibrate};
use crate::fuzz::{FuzzArgs, ReplayArgs, fuzz, replay};
use crate::{stop, sweep};

/// Events between two checks for an interrupt.
const STEP: u64 = 10_000;
/// Number of most recent spans in memory.
const SPANS: usize = 100_000;
/// Exit status if the run was interrupted, a trace was replayed with different results, or a check
/// failed.
pub(crate) const UNLIKE: u8 = 1;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SimArgs {
    #[command(subcommand)]
    pub command: Option<SimCommand>,
    /// The scenario file; docs/simulator.md describes it.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "trace")]
    pub scenario: Option<PathBuf>,
    /// Random seed instead of the scenario's own. Runs with equal seeds are identical.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Replay traces too: HECIOS's (a directory, or a file of events), logs of `strace -f -ttt -T
    /// -y -o FILE`, and recordings of `espalier mount --record FILE`.
    #[arg(long, num_args = 1.., value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub trace: Vec<PathBuf>,
    /// For strace logs: replay only operations below this directory.
    #[arg(long, default_value = "/", value_name = "DIR", requires = "trace")]
    pub trace_root: PathBuf,
    /// Write the measurements as tables to this directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub csv: Option<PathBuf>,
    /// Write charts to this directory, as SVG.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub plot: Option<PathBuf>,
    /// Write the last 100,000 spans, in virtual time, to this file, for `espalier trace FILE`.
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath)]
    pub spans: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Measure a server and its clients on this machine and fit a model for scenarios.
    Calibrate(CalibrateArgs),
    /// Run random clusters with random calls and faults, and check every reply.
    Fuzz(FuzzArgs),
    /// Repeat the run of a seed of `fuzz`.
    Replay(ReplayArgs),
}

pub(crate) fn sim(args: &SimArgs) -> Result<ExitCode> {
    match &args.command {
        None => {}
        Some(SimCommand::Calibrate(args)) => return calibrate(args),
        Some(SimCommand::Fuzz(args)) => return Ok(fuzz(args)),
        Some(SimCommand::Replay(args)) => return replay(args),
    }
    let scenario = scenario(args)?;
    // The first interrupt ends the run and reports its results so far; the second one ends it at
    // once.
    let stop = stop::on_signal()?;
    if !scenario.sweep.is_empty() {
        return sweep(&scenario, args, &stop);
    }
    let (mut unseen, mut tracing, mutator) = ((), Tracing(Log::new(SPANS)), &mut ());
    let observer: &mut dyn Observer = if args.spans.is_some() { &mut tracing } else { &mut unseen };
    let mut world = World::new(&scenario, observer, mutator)?;
    let outcome = run(&mut world, &stop);
    let report = world.report();
    if let Some(dir) = &args.csv {
        write_csv(dir, &report, world.series())?;
        if report.balancer.is_some() {
            write_moves(dir, world.balancer_moves())?;
        }
    }
    if let Some(dir) = &args.plot {
        write_plots(dir, world.series())?;
    }
    let replays: Vec<ReplaySummary> = world.replays().iter().map(ReplaySummary::new).collect();
    if args.json {
        println!(
            "{}",
            serde_json::json!({ "report": report, "moves": world.balancer_moves(), "replays": replays.iter().map(ReplaySummary::json).collect::<Vec<_>>() })
        );
    } else {
        print!("{report}");
        print_moves(world.balancer_moves());
        replays.iter().for_each(ReplaySummary::print);
    }
    drop(world);
    if let Some(file) = &args.spans {
        let spans = tracing.0.since(Some(0)).spans;
        std::fs::write(file, write_chrome(&spans))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let is_over = outcome?;
    if !is_over {
        eprintln!("espalier: stopped: these are the results so far");
    }
    let is_good =
        is_over && is_lawful(&report) && replays.iter().all(|reported| reported.replayed.is_faithful());
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(UNLIKE) })
}

fn sweep(scenario: &Scenario, args: &SimArgs, stop: &AtomicBool) -> Result<ExitCode> {
    let points = sweep::run(scenario, stop)?;
    if let Some(dir) = &args.csv {
        write_sweep(dir, &points)?;
    }
    if let Some(dir) = &args.plot {
        plot_sweep(dir, &points)?;
    }
    if args.json {
        println!("{}", serde_json::json!({ "points": points }));
    } else {
        sweep::print(&points);
    }
    Ok(if stop.load(Ordering::Relaxed) { ExitCode::from(UNLIKE) } else { ExitCode::SUCCESS })
}

fn scenario(args: &SimArgs) -> Result<Scenario> {
    let mut scenario = match &args.scenario {
        Some(path) => Scenario::read(path)?,
        None => Scenario::default(),
    };
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    if !args.trace.is_empty() {
        // The scenario's own traces are relative to the scenario.
        let files: Result<_, _> = args.trace.iter().map(std::path::absolute).collect();
        let files = files.context("cannot find the traces")?;
        scenario.workload.push(Workload::replay(files, args.trace_root.clone()));
    }
    if scenario.workload.is_empty() {
        bail!("there is nothing to do: the scenario has no [[workload]], and no trace is named");
    }
    Ok(scenario)
}

/// Returns true if the run was not interrupted.
fn run(world: &mut World<'_>, stop: &AtomicBool) -> Result<bool> {
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template(
        "{bar:30} {pos} of {len} processes have ended, {msg} ({elapsed})",
    )?);
    while !stop.load(Ordering::Relaxed) {
        let progress = world.advance(STEP)?;
        if progress.is_over {
            bar.finish_and_clear();
            return Ok(true);
        }
        bar.set_length(progress.processes as u64);
        bar.set_position(progress.ended as u64);
        bar.set_message(format!("{} operations in {}", progress.operations, progress.now));
    }
    bar.finish_and_clear();
    Ok(false)
}

/// Prints what balancers have moved, the first so many moves.
fn print_moves(moves: &[BalancerMove]) {
    const SHOWN: usize = 100;
    for BalancerMove { time, from, to, directory, reason } in moves.iter().take(SHOWN) {
        println!("{time:>8.1} s {directory} from rank {from} to rank {to}: {reason}");
    }
    if moves.len() > SHOWN {
        println!("and {} more moves: `--csv DIR` writes all", moves.len() - SHOWN);
    }
}

fn is_lawful(report: &Report) -> bool {
    report.lawless.is_empty()
}

/// Report of a replay.
struct ReplaySummary {
    file: PathBuf,
    skipped: Vec<(String, u64)>,
    replayed: Replayed,
}

impl ReplaySummary {
    fn new((file, replay): &(PathBuf, Replay)) -> Self {
        let skipped = replay.skipped().iter().map(|(reason, count)| (reason.clone(), *count)).collect();
        Self { file: file.clone(), skipped, replayed: replay.replayed() }
    }

    fn name(&self) -> std::path::Display<'_> {
        Path::new(&self.file).display()
    }

    fn print(&self) {
        let sum = |at: usize| self.replayed.kinds.values().map(|counts| counts[at]).sum::<u64>();
        println!(
            "\n{}: {} operations of {}, {} of which came to the same",
            self.name(),
            sum(1),
            sum(0),
            sum(2)
        );
        println!("{:>10} {:>10} {:>10} {:>10}", "operation", "trace", "replay", "same");
        for (kind, [was, is, same]) in &self.replayed.kinds {
            println!("{kind:>10} {was:>10} {is:>10} {same:>10}");
        }
        for difference in &self.replayed.differences {
            println!("{difference}");
        }
        if !self.skipped.is_empty() {
            let skipped: Vec<_> =
                self.skipped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            println!("not replayed: {}", skipped.join(", "));
        }
    }

    fn json(&self) -> serde_json::Value {
        let kinds = self.replayed.kinds.iter().map(|(kind, [was, is, same])| {
            (kind.to_string(), serde_json::json!({ "trace": was, "replay": is, "same": same }))
        });
        serde_json::json!({
            "file": self.file,
            "operations": kinds.collect::<serde_json::Map<_, _>>(),
            "differences": self.replayed.differences.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "skipped": self.skipped.iter().cloned().map(|(reason, count)| (reason, count.into())).collect::<serde_json::Map<_, _>>(),
        })
    }
}
