//! `espalier sim calibrate`: measures a server and its clients on this machine, fits a model, and
//! reports its accuracy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use espalier_bench::{NativeOptions, Processors, Sample};
use espalier_paper::{LocalCluster, Wanted};
use espalier_sim::{
    Fitted, Machine, Measured, MessageKind, Nanos, Sampled, Samples, Trial, Work, plot_distributions,
    quantiles,
};
use serde::Serialize;

use crate::stop;

#[derive(Clone, Debug, Args)]
pub struct CalibrateArgs {
    /// Output file, which scenarios name by `machine`.
    #[arg(value_hint = ValueHint::FilePath, default_value = "machine.toml")]
    pub file: PathBuf,
    /// Files of all clients together in each of 25 rounds.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub files: u64,
    /// Write charts of measured and simulated times to this directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub plot: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

/// Loads for the fit, as (clients, outstanding calls); the last load is predicted.
const ONE: (u32, u32) = (1, 1);
const SEVERAL: (u32, u32) = (8, 2);
const MANY: (u32, u32) = (1, 32);
const PREDICTED: (u32, u32) = (4, 4);
/// Number of alternating measurements of each load, since a machine's speed and its placement of
/// threads vary over time.
const ROUNDS: usize = 25;

/// A private server, stopped when dropped.
struct PrivateServer {
    cluster: LocalCluster,
    process: u32,
    stop: Arc<AtomicBool>,
}

/// Measured and simulated figures of one load.
#[derive(Debug, Serialize)]
struct Comparison {
    trial: Trial,
    fitted: bool,
    /// Requests per operation, measured and simulated.
    requests: [f64; 2],
    operations: Vec<Compared>,
}

/// Mean times of an operation, measured and simulated.
#[derive(Debug, Serialize)]
struct Compared {
    operation: &'static str,
    measured_us: f64,
    simulated_us: f64,
    /// Simulated divided by measured.
    ratio: f64,
    #[serde(skip)]
    quantiles: [Vec<Nanos>; 2],
}

pub(crate) fn calibrate(args: &CalibrateArgs) -> Result<ExitCode> {
    let server = PrivateServer::start()?;
    let trial = |(clients, outstanding): (u32, u32)| {
        let files = args.files.div_ceil(clients.into());
        Trial { clients, outstanding, files }
    };
    eprintln!("measuring a server on this machine, which should be idle");
    let [one, several, many, predicted] = server.measure([ONE, SEVERAL, MANY, PREDICTED].map(trial))?;
    let listed =
        espalier_bench::sample_listing(&server.options(trial(ONE)), &|| Processors::used(server.process))?;
    drop(server);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    eprintln!("fitting a model");
    let [one_of, several_of, many_of] = [&one, &several, &many].map(|samples| operations(samples));
    let sampled = |trial, operations| Sampled { trial, operations };
    let samples = Samples {
        one: sampled(trial(ONE), &one_of),
        several: sampled(trial(SEVERAL), &several_of),
        many: sampled(trial(MANY), &many_of),
    };
    let mut fitted = Fitted::new(samples, processors)?;
    let attributes = listed.with_attributes.saturating_sub(listed.entry);
    fitted.works.extend([(Work::Entry, listed.entry.into()), (Work::Attributes, attributes.into())]);
    let text = fitted.to_toml();
    std::fs::write(&args.file, &text).with_context(|| format!("cannot write {}", args.file.display()))?;
    let machine = Machine::parse(&text, &args.file)?;
    let comparisons = [
        Comparison::new(trial(ONE), true, &one, &machine)?,
        Comparison::new(trial(SEVERAL), true, &several, &machine)?,
        Comparison::new(trial(MANY), true, &many, &machine)?,
        Comparison::new(trial(PREDICTED), false, &predicted, &machine)?,
    ];
    if let Some(dir) = &args.plot {
        comparisons.iter().try_for_each(|comparison| comparison.plot(dir))?;
    }
    if args.json {
        println!("{}", serde_json::json!({ "file": args.file, "comparisons": comparisons }));
    } else {
        comparisons.iter().for_each(Comparison::print);
        println!("\nwritten to {}", args.file.display());
    }
    Ok(ExitCode::SUCCESS)
}

impl PrivateServer {
    fn start() -> Result<Self> {
        let stop = stop::on_signal()?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let wanted =
            Wanted { servers: 1, ranks: 1, insecure: false, settings: toml::Table::new(), in_memory: false };
        let cluster = LocalCluster::start(&program, &wanted)?;
        let process = crate::cluster::process(&cluster.dir())?;
        Ok(Self { cluster, process, stop })
    }

    fn options(&self, trial: Trial) -> NativeOptions {
        NativeOptions {
            url: self.cluster.url().into(),
            credentials: self.cluster.credentials(),
            clients: trial.clients,
            idle: 0,
            outstanding: trial.outstanding,
            files: trial.files,
            bytes: 0,
            runs: 1,
            stop: Arc::clone(&self.stop),
        }
    }

    fn measure<const N: usize>(&self, trials: [Trial; N]) -> Result<[Vec<Sample>; N]> {
        let mut all = [const { Vec::<Sample>::new() }; N];
        for _ in 0..ROUNDS {
            for (trial, samples) in trials.iter().zip(&mut all) {
                let new = espalier_bench::sample(&self.options(*trial), &|| Processors::used(self.process))?;
                samples.iter_mut().zip(&new).for_each(|(sample, new)| sample.add(new));
                if samples.is_empty() {
                    *samples = new;
                }
            }
        }
        Ok(all)
    }
}

/// The measured operations that models distinguish.
fn operations(samples: &[Sample]) -> Vec<Measured> {
    let each =
        |time: Duration, count: u64| Nanos::from(time / u32::try_from(count.max(1)).unwrap_or(u32::MAX));
    let measured = |sample: &Sample| {
        let count = sample.latencies.len();
        Measured {
            work: match sample.name {
                "create" => Work::Create,
                "unlink" => Work::Remove,
                _ => Work::Lookup,
            },
            mean: Nanos(sample.latencies.mean() as u64),
            quantiles: quantiles(&sample.latencies),
            client: each(sample.processors.clients, count),
            server: each(sample.processors.servers, count),
        }
    };
    samples.iter().map(measured).collect()
}

impl Comparison {
    fn new(trial: Trial, fitted: bool, measured: &[Sample], machine: &Machine) -> Result<Self> {
        let simulated = trial.simulate(machine, 1)?;
        let compare = |sample: &Sample| {
            let simulated = simulated.operations.iter().find(|report| report.kind == sample.name)?;
            let (measured_us, simulated_us) = (sample.latencies.mean() / 1e3, simulated.mean_us);
            let quantiles = [quantiles(&sample.latencies), simulated.quantiles.clone()];
            let ratio = simulated_us / measured_us.max(f64::MIN_POSITIVE);
            Some(Compared { operation: sample.name, measured_us, simulated_us, ratio, quantiles })
        };
        let all = |count: fn(&Sample) -> u64| measured.iter().map(count).sum::<u64>() as f64;
        let sent = simulated.messages.get(MessageKind::Request.name()).copied().unwrap_or_default() as f64;
        let done: u64 = simulated.operations.iter().map(|report| report.count).sum();
        let requests = [all(|it| it.requests) / all(|it| it.latencies.len()), sent / done as f64];
        Ok(Self { trial, fitted, requests, operations: measured.iter().filter_map(compare).collect() })
    }

    fn plot(&self, dir: &Path) -> Result<()> {
        let Trial { clients, outstanding, .. } = self.trial;
        for Compared { operation, quantiles: [measured, simulated], .. } in &self.operations {
            let file = dir.join(format!("{operation}-{clients}x{outstanding}.svg"));
            plot_distributions(&file, measured, simulated)?;
        }
        Ok(())
    }

    fn print(&self) {
        let Trial { clients, outstanding, .. } = self.trial;
        let how = if self.fitted { "fitted to" } else { "predicted" };
        let [measured, simulated] = self.requests;
        println!(
            "\n{how}: {clients} clients, each with {outstanding} requests under way; {measured:.2} messages for each operation, \
             simulated {simulated:.2}"
        );
        println!("{:>10} {:>12} {:>12} {:>7}", "operation", "measured us", "simulated us", "ratio");
        for Compared { operation, measured_us, simulated_us, ratio, .. } in &self.operations {
            println!("{operation:>10} {measured_us:>12.1} {simulated_us:>12.1} {ratio:>7.2}");
        }
    }
}
