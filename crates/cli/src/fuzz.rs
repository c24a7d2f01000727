//! `espalier sim fuzz` and `espalier sim replay`: random runs with checks.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use espalier_sim::fuzz;

use crate::sim::UNLIKE;

#[derive(Debug, Args)]
pub struct FuzzArgs {
    /// Duration in minutes.
    #[arg(long, default_value_t = 1.0, value_name = "M")]
    pub minutes: f64,
    /// First seed; the runs use consecutive ones.
    #[arg(long, default_value_t = 0, value_name = "S")]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    pub seed: u64,
    /// Show the messages during this call; the first call is 1.
    #[arg(long, value_name = "N")]
    pub op: Option<u64>,
}

pub(crate) fn fuzz(args: &FuzzArgs) -> ExitCode {
    // Failures are reported with their seeds instead.
    std::panic::set_hook(Box::new(|_| {}));
    let end = Instant::now() + Duration::try_from_secs_f64(args.minutes * 60.0).unwrap_or_default();
    let (next, found, answers, given_up) =
        (AtomicU64::new(args.seed), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while Instant::now() < end {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            match fuzz::run(seed) {
                Ok(passed) => {
                    answers.fetch_add(passed.answers, Ordering::Relaxed);
                    given_up.fetch_add(u64::from(passed.given_up), Ordering::Relaxed);
                }
                Err(failure) => {
                    found.fetch_add(1, Ordering::Relaxed);
                    let text = failure.to_string();
                    let first: Vec<&str> = text.lines().take(2).map(str::trim).collect();
                    println!("seed {seed}: {}\n    espalier sim replay {seed}", first.join(" "));
                }
            }
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
    let [runs, found, answers, given_up] =
        [next, found, answers, given_up].map(|count| count.load(Ordering::Relaxed));
    println!(
        "{} runs, {answers} answers explained, {given_up} runs that could be explained in too many ways; {found} failures",
        runs - args.seed
    );
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::from(UNLIKE) }
}

pub(crate) fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    println!("{}", fuzz::scenario_text(args.seed)?);
    let (result, lines) = fuzz::replay(args.seed, args.op);
    lines.iter().for_each(|line| println!("{line}"));
    Ok(match result {
        Ok(passed) => {
            println!("{} answers explained; nothing found", passed.answers);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::from(UNLIKE)
        }
    })
}
