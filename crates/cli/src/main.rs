//! The `espalier` program.

/// Prints as `std::print` does, without a panic if standard output is closed.
macro_rules! print {
    ($($text:tt)*) => { $crate::usage::print_args(format_args!($($text)*)) };
}
macro_rules! println {
    () => { print!("\n") };
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}

mod args;
mod background;
mod balancer;
mod bench;
mod calibrate;
mod cluster;
mod copy;
mod cp;
mod decouple;
mod fsck;
mod fuzz;
mod heap;
mod journal;
mod list;
mod log;
mod merge;
mod migrate;
mod mount;
mod namespace_status;
mod options;
mod paper;
mod place;
mod policy;
mod remove;
mod report;
mod screen;
mod serve;
mod shared;
mod sim;
mod stop;
mod subtree;
mod sweep;
mod sync;
mod table;
mod top;
mod trace;
mod usage;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use args::{Cli, Command, LogArgs, MkfsArgs};
use clap::{CommandFactory, Parser};
use espalier_runtime::MkfsOptions;

fn main() -> ExitCode {
    let cli = Cli::parse_from(as_mount_helper(std::env::args_os().collect()));
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("espalier: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let log = cli.log;
    match cli.command {
        // Mounting may redirect the log.
        Command::Mount(args) => return mount::mount(args, &log),
        Command::Umount(args) => return mount::umount(&args),
        Command::Serve(args) => return serve::serve(&args, &log),
        _ => start_log(&log, std::io::stderr)?,
    }
    // The listed commands have connections, or report write errors themselves.
    if !matches!(
        cli.command,
        Command::Bench(_)
            | Command::BenchWorker
            | Command::BenchFloor(_)
            | Command::Dump(_)
            | Command::Load(_)
            | Command::Sim(_)
            | Command::Paper(_)
    ) {
        end_with_readers();
    }
    match cli.command {
        Command::Mkfs(args) => mkfs(&args),
        Command::Fsck(args) => Ok(fsck::fsck(&args)),
        Command::Status(args) => report::status(&args),
        Command::Top(args) => top::top(&args),
        Command::Ls(args) => list::ls(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Du(args) => usage::du(&args),
        Command::Quota(args) => usage::quota(&args),
        Command::Policy(args) => policy::policy(&args),
        Command::Layout(args) => policy::layout(&args),
        Command::Subtree(args) => subtree::subtree(&args.command),
        Command::Balancer(args) => balancer::balancer(&args),
        Command::Log(args) => log::log(&args),
        Command::Explain { path, cluster } => balancer::explain(&path, cluster.as_deref()),
        Command::Cp(args) => Ok(cp::cp(&args)),
        Command::Rm(args) => Ok(remove::rm(&args)),
        Command::Decouple(args) => decouple::decouple(&args),
        Command::Merge(args) => merge::merge(&args),
        Command::Journal(args) => journal::journal(&args.command),
        Command::Sync(args) => Ok(sync::sync(&args)),
        Command::Dump(args) => copy::dump(&args),
        Command::Load(args) => copy::load(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::Bench(args) => bench::bench(args),
        Command::Sim(args) => sim::sim(&args),
        Command::Paper(args) => paper::paper(&args),
        Command::BenchWorker => Ok(espalier_bench::worker()),
        Command::BenchFloor(args) => bench::floor(&args),
        Command::Cluster(args) => cluster::cluster(&args.command),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "espalier", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man => {
            clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Mount(_) | Command::Umount(_) | Command::Serve(_) => unreachable!("handled above"),
    }
}

/// Restores the default action of SIGPIPE, so that the process ends when its reader does (`espalier
/// status | head`); Rust ignores the signal, and printing panics.
fn end_with_readers() {
    // SAFETY: installs no handler; no other threads exist yet.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Converts the arguments of mount(8), which runs `mount.espalier SOURCE MOUNTPOINT [-sfnvrw] [-o
/// OPTIONS] [-t TYPE]`; so does `mount.fuse`.
fn as_mount_helper(args: Vec<OsString>) -> Vec<OsString> {
    let program = args.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    if !program.to_string_lossy().starts_with("mount.") {
        return args;
    }
    let mut ours: Vec<OsString> = vec!["espalier".into(), "mount".into()];
    let mut rest = args.into_iter().skip(1);
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-t") => drop(rest.next()),
            Some("-r") => ours.extend(["-o".into(), "ro".into()]),
            Some("-w") => ours.extend(["-o".into(), "rw".into()]),
            Some("-s" | "-f" | "-n" | "-v" | "-sf" | "-nv") => {}
            _ => ours.push(arg),
        }
    }
    ours
}

fn mkfs(args: &MkfsArgs) -> Result<ExitCode> {
    let strip_bytes = u32::try_from(args.strip).context("--strip is at most 4G")?;
    let options = MkfsOptions {
        label: args.label.clone(),
        strip_bytes,
        journal_bytes: args.journal,
        force: args.force,
        data_pool: args.data_pool.clone(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..MkfsOptions::default()
    };
    let superblock = espalier_runtime::mkfs(&args.rados.locate(&args.dir)?, &options)?;
    if args.json {
        println!("{}", serde_json::json!({ "uuid": superblock.uuid.to_string(), "dir": args.dir }));
    } else {
        println!("made a file system in {} (uuid {})", args.dir.display(), superblock.uuid);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn start_log<W>(args: &LogArgs, writer: W) -> Result<()>
where
    W: for<'a> tracing_subscriber::fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log).context("--log is not a filter")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    if args.log_json {
        log.json().init()
    } else {
        log.init()
    }
    Ok(())
}
