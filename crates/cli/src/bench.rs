//! `espalier bench`, and the two internal commands that it starts as processes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_bench::{Algorithm, NativeOptions, Options, Report};

use crate::args::parse_size;
use crate::{options, stop};

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Directory on the file system to measure. The benchmark removes everything that it creates
    /// there.
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "native")]
    pub dir: Option<PathBuf>,
    /// Directory on the file system to compare with.
    #[arg(value_hint = ValueHint::DirPath)]
    pub second: Option<PathBuf>,
    /// Groups of phases, or single phases such as small/unlink: paper, mdtest, small, durable,
    /// synced, big, tree, bulk, git, growth.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "paper,mdtest")]
    pub phases: Vec<String>,
    /// Number of processes, each in its own directory; several numbers are run in sequence
    /// [default: 1; durable and synced: 1,4]
    #[arg(long, value_name = "P", value_delimiter = ',', hide_default_value = true)]
    pub procs: Vec<u32>,
    /// Files per process [default: depends on the group, see docs/performance.md]
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// Bytes per file, such as 4K; in `big`, of the single file [default: depends on the group]
    #[arg(long, value_name = "M", value_parser = parse_size)]
    pub bytes: Option<u64>,
    /// Timing: 1, the longest of the processes' own times; 2, from one barrier to the next (as
    /// mdtest).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub algorithm: u8,
    /// Number of alternating runs of each side [default: 5, or 1 without a comparison]
    #[arg(long, value_name = "R")]
    pub runs: Option<u32>,
    /// Compare with a temporary mount of a file system that answers from memory: the upper limit
    /// with FUSE.
    #[arg(long)]
    pub floor: bool,
    /// All processes work in one directory (groups small and synced).
    #[arg(long)]
    pub shared: bool,
    /// Before uncached phases, run this shell command with DIR as its argument. It can mount the
    /// file system again: the processes have no files or directories open meanwhile.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub uncache: Option<String>,
    /// Before and after each phase, run this shell command with DIR as its argument. It prints
    /// counters, such as "requests 12", each on a line; the report has their increase per
    /// operation.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub counters: Option<String>,
    /// Measure a server without a mount: clients in this process create, stat, unlink, write and
    /// read small files.
    #[arg(long, value_name = "URL", conflicts_with_all = ["dir", "second", "phases", "procs", "algorithm", "floor", "shared", "uncache", "counters"])]
    pub native: Option<String>,
    /// Clients, each with its own connection and directory.
    #[arg(long, value_name = "P", default_value_t = 1, requires = "native")]
    pub clients: u32,
    /// Additional idle clients, to measure their effect on the others.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "native")]
    pub idle: u32,
    /// Outstanding calls per client.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "native")]
    pub outstanding: u32,
    /// Authentication: credentials=DIR, or insecure for a server without TLS.
    #[arg(short, long, value_name = "OPTIONS", value_delimiter = ',', requires = "native")]
    pub options: Vec<String>,
    #[arg(long)]
    pub json: bool,
    /// Write a chart of the rates to this file, as SVG.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct FloorArgs {
    pub mountpoint: PathBuf,
    #[arg(short, long, value_delimiter = ',')]
    pub options: Vec<String>,
}

pub(crate) fn bench(args: BenchArgs) -> Result<ExitCode> {
    // The first interrupt ends the processes and thereby the benchmark, which cleans up; the second
    // one ends it at once.
    let requested = stop::on_signal()?;
    let report = match &args.native {
        Some(url) => native(url, &args, requested)?,
        None => directories(&args)?,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    if let Some(file) = &args.plot {
        espalier_bench::plot(&report, file)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn directories(args: &BenchArgs) -> Result<Report> {
    Ok(espalier_bench::run(&Options {
        dir: args.dir.clone().context("which directory?")?,
        second: args.second.clone(),
        floor: args.floor,
        phases: args.phases.clone(),
        procs: args.procs.clone(),
        files: args.files,
        bytes: args.bytes,
        algorithm: if args.algorithm == 1 { Algorithm::SlowestProcess } else { Algorithm::FirstProcess },
        shared: args.shared,
        uncache: args.uncache.clone(),
        counters: args.counters.clone(),
        runs: args.runs,
    })?)
}

/// Default number of files per client, and of bytes per file.
const NATIVE_FILES: u64 = 10_000;
const NATIVE_BYTES: u64 = 4096;

fn native(url: &str, args: &BenchArgs, stop: Arc<AtomicBool>) -> Result<Report> {
    if let Some(other) = args.options.iter().find(|o| *o != "insecure" && !o.starts_with("credentials=")) {
        bail!("--native takes -o credentials=DIR or -o insecure, and not {other}");
    }
    let (_, _, reach) = options::parse(&args.options, false)?;
    Ok(espalier_bench::native(&NativeOptions {
        url: url.into(),
        credentials: reach.credentials(url)?,
        clients: args.clients,
        idle: args.idle,
        outstanding: args.outstanding,
        files: args.files.unwrap_or(NATIVE_FILES),
        bytes: args.bytes.unwrap_or(NATIVE_BYTES),
        runs: args.runs.unwrap_or(1),
        stop,
    })?)
}

pub(crate) fn floor(args: &FloorArgs) -> Result<ExitCode> {
    let superuser = rustix::process::geteuid().is_root();
    let (_, mount, _) = options::parse(&args.options, superuser)?;
    espalier_bench::serve_floor(&args.mountpoint, &mount.kernel, mount.transport, mount.threads)?;
    Ok(ExitCode::SUCCESS)
}
