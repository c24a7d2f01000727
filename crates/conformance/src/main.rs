//! `espalier-conformance DIR`: tests whether a directory conforms to POSIX and Linux semantics.

#![allow(clippy::print_stdout)] // its output is its purpose

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use espalier_conformance::{CaseResult, Failure, ResourceLimits, cases, follow, model, pieces, race, runner};

/// Tests any directory of any file system by system calls only.
#[derive(Parser)]
struct Args {
    /// A directory on the file system to test; the tests use fresh subdirectories and remove them
    #[arg(required_unless_present = "list")]
    dir: Option<PathBuf>,
    /// Run only cases whose `subject::name` contains one of these
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// List the cases
    #[arg(long)]
    list: bool,
    /// Print one JSON object per case
    #[arg(long)]
    json: bool,
    /// Use a million entries instead of 20,000
    #[arg(long)]
    large: bool,
    /// Time limit of a case in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
    /// Instead of the cases, compare random operations with a reference model
    #[arg(long, value_name = "SEED")]
    model: Option<u64>,
    /// Instead of the cases, run concurrent operations and check that some order explains the
    /// results
    #[arg(long, value_name = "SEED", conflicts_with = "model", group = "threaded")]
    race: Option<u64>,
    /// Instead of the cases, write and read parts of a big file by threads, and check that reads
    /// return the last write
    #[arg(long, value_name = "SEED", conflicts_with = "model", group = "threaded")]
    pieces: Option<u64>,
    /// Instead of the cases, write a file while other threads follow it, and check what they read
    #[arg(long, value_name = "SEED", conflicts_with = "model", group = "threaded")]
    follow: Option<u64>,
    /// Another path to the same directory, such as another mount of its file system, for --race,
    /// --pieces and --follow
    #[arg(long, value_name = "DIR", requires = "threaded")]
    beside: Vec<PathBuf>,
    /// Rounds of --race, --pieces or --follow
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    /// Operations of a model run, per thread
    #[arg(long, default_value_t = 1000)]
    steps: usize,
    /// Number of model runs, with consecutive seeds
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Threads of a model run; with several, only the final state is checked
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for case in cases::ALL {
            println!("{case}");
        }
        return ExitCode::SUCCESS;
    }
    let Some(dir) = &args.dir else { return ExitCode::from(2) };
    let ways = || std::iter::once(dir.clone()).chain(args.beside.iter().cloned()).collect::<Vec<_>>();
    let failed = match (args.model, args.race, args.pieces, args.follow) {
        (Some(seed), ..) => run_model(&args, dir.clone(), seed),
        (_, Some(seed), ..) => report(race::run(&ways(), seed, args.rounds)),
        (_, _, Some(seed), _) => report(pieces::run(&ways(), seed, args.rounds)),
        (.., Some(seed)) => report(follow::run(&ways(), seed, args.rounds)),
        (None, None, None, None) => run_cases(&args, dir.clone()),
    };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(outcome: CaseResult) -> u64 {
    let failed = u64::from(outcome.is_err());
    if let Err(failure) = outcome {
        println!("{}", failure.message);
    }
    println!("{} passed, {failed} failed", 1 - failed);
    failed
}

fn run_cases(args: &Args, base: PathBuf) -> u64 {
    let limits = ResourceLimits { entries: if args.large { 1_000_000 } else { 20_000 } };
    let (mut passed, mut skipped, mut failures) = (0, 0, Vec::new());
    for case in cases::ALL {
        let name = case.to_string();
        if !args.filter.is_empty() && !args.filter.iter().any(|f| name.contains(f.as_str())) {
            continue;
        }
        let report = runner::run(&base, case, limits, Duration::from_secs(args.timeout));
        let (word, detail) = match &report.outcome {
            Ok(()) => ("ok", String::new()),
            Err(Failure { message, skip: true }) => ("skipped", message.clone()),
            Err(Failure { message, .. }) => ("FAILED", message.clone()),
        };
        match word {
            "ok" => passed += 1,
            "skipped" => skipped += 1,
            _ => failures.push((name.clone(), detail.clone())),
        }
        if args.json {
            println!(
                "{}",
                serde_json::json!({
                    "case": name, "result": word, "detail": detail, "seconds": report.seconds,
                })
            );
        } else {
            println!("{name:52} {word:8} {:6.2} s  {detail}", report.seconds);
        }
    }
    if !args.json {
        // Again, because scripts print only the last lines of a part that failed.
        for (name, detail) in &failures {
            println!("{name:52} FAILED  {detail}");
        }
        if skipped > 0 {
            println!("{skipped} skipped");
        }
    }
    println!("{passed} passed, {} failed", failures.len());
    failures.len() as u64
}

fn run_model(args: &Args, base: PathBuf, first: u64) -> u64 {
    let (mut passed, mut failed) = (0, 0);
    for seed in first..first + args.runs {
        let outcome = match args.threads {
            0 | 1 => model::run(&base, seed, args.steps),
            threads => model::run_threads(&base, seed, args.steps, threads),
        };
        match outcome {
            Ok(()) => passed += 1,
            Err(failure) => {
                failed += 1;
                println!("seed {seed}: {}", failure.message);
                println!(
                    "replay: espalier-conformance {} --model {seed} --steps {} --threads {}",
                    base.display(),
                    args.steps,
                    args.threads
                );
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    failed
}
