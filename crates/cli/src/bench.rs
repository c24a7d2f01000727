//! `espalier bench`, and the two commands by which it starts processes of its own.

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
    /// A directory of the file system to measure. What is made in it is removed again.
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "native")]
    pub dir: Option<PathBuf>,
    /// A directory to compare it with.
    #[arg(value_hint = ValueHint::DirPath)]
    pub second: Option<PathBuf>,
    /// Groups of phases, or single ones as in small/unlink: paper, mdtest, small, durable, big, tree,
    /// bulk, git, growth.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "paper,mdtest")]
    pub phases: Vec<String>,
    /// Processes, each in its own directory; several numbers are run one after the other [default: 1; durable: 1,4]
    #[arg(long, value_name = "P", value_delimiter = ',', hide_default_value = true)]
    pub procs: Vec<u32>,
    /// Files of each process [default: as the group has it, see docs/performance.md]
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// Bytes of each file, as in 4K; of the big file in `big` [default: as the group has it]
    #[arg(long, value_name = "M", value_parser = parse_size)]
    pub bytes: Option<u64>,
    /// How time is taken: 1, the longest of the processes' own times; 2, from one barrier to the next (as mdtest does).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub algorithm: u8,
    /// How often each side is run, in turn [default: 5, or 1 if nothing is compared]
    #[arg(long, value_name = "R")]
    pub runs: Option<u32>,
    /// Compare with a file system that only answers from memory, mounted beside for the time: the limit through FUSE.
    #[arg(long)]
    pub floor: bool,
    /// Measure a server, without the kernel in between: create, stat, unlink, write and read small files by clients of this
    /// process.
    #[arg(long, value_name = "URL", conflicts_with_all = ["dir", "second", "phases", "procs", "algorithm", "floor"])]
    pub native: Option<String>,
    /// Clients, each with a connection and a directory of its own.
    #[arg(long, value_name = "P", default_value_t = 1, requires = "native")]
    pub clients: u32,
    /// Clients besides, which connect and do nothing more: what they cost the others.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "native")]
    pub idle: u32,
    /// Calls of each client that are under way at once.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "native")]
    pub outstanding: u32,
    /// How to show who asks: credentials=DIR, or insecure for a server without TLS.
    #[arg(short, long, value_name = "OPTIONS", value_delimiter = ',', requires = "native")]
    pub options: Vec<String>,
    #[arg(long)]
    pub json: bool,
    /// Draw the rates to this file, as SVG.
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
    // An interrupt ends the processes, and so the benchmark, which then cleans up. A second one ends it at once.
    let asked = stop::when_asked()?;
    let report = match &args.native {
        Some(url) => native(url, &args, asked)?,
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
        runs: args.runs,
    })?)
}

/// Files of each client, and bytes of each file.
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
