//! `espalier log`: a shared log in a directory.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueHint};
use espalier_balancer::{BalancerEngine, BalancerPolicy};
use espalier_shared_log::{
    HostOptions, LeaseLimits, LogEntry, LogOptions, NumberSource, SequencerHost, SharedLog, live_hosts,
    policies,
};

use crate::balancer;
use crate::stop;
use crate::usage::print_text;

#[derive(Debug, Args)]
pub struct SharedLogArgs {
    #[command(subcommand)]
    command: SharedLogCommand,
}

/// Options of clients.
#[derive(Debug, Args)]
struct ClientArgs {
    /// The log's directory. Hosts of sequencers are those of the directory above it.
    #[arg(value_hint = ValueHint::DirPath, value_name = "LOG")]
    dir: PathBuf,
    /// Source of log positions: `lease` (this process holds the sequencer for a while), `direct`
    /// (the host that holds it) or the name of a host (which asks the holder).
    #[arg(long, default_value = "lease", value_name = "lease|direct|HOST")]
    numbers: String,
    /// Numbers that this process takes under a lease before it lets others have the sequencer.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    quota: u64,
    /// Milliseconds of a lease, for which this process holds the sequencer.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..))]
    term: u64,
    /// Milliseconds after a lease for which this process leaves the sequencer to others.
    #[arg(long, default_value_t = 5)]
    backoff: u64,
    /// Seconds to wait for a sequencer.
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

#[derive(Debug, Subcommand)]
enum SharedLogCommand {
    /// Append lines of standard input, one entry each, and print their positions. Makes the log if
    /// there is none.
    Append {
        #[command(flatten)]
        client: ClientArgs,
        /// Print a position only when its entry is on disk.
        #[arg(long)]
        sync: bool,
    },
    /// Print entries, one a line. Stops at the first position that is not written, or waits there
    /// with `--follow`.
    Read {
        #[arg(value_hint = ValueHint::DirPath, value_name = "LOG")]
        dir: PathBuf,
        /// First position; by default the first that is not trimmed.
        #[arg(long)]
        from: Option<u64>,
        /// Maximum number of positions.
        #[arg(long)]
        count: Option<u64>,
        /// Print the position before each entry, and holes that were filled.
        #[arg(long)]
        positions: bool,
        #[arg(long)]
        follow: bool,
    },
    /// Fill a position that a writer took and has not written, so that readers pass it.
    Fill {
        #[command(flatten)]
        client: ClientArgs,
        position: u64,
    },
    /// Remove all entries below a position.
    Trim {
        #[command(flatten)]
        client: ClientArgs,
        position: u64,
    },
    /// Print the position after the last one that was taken.
    Tail {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Depose the holder of the sequencer, for instance one that hangs, and print the tail.
    Seal {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Hold sequencers of the logs in a directory until stopped, and answer requests for numbers.
    Host {
        /// The directory above the logs.
        #[arg(value_hint = ValueHint::DirPath)]
        logs: PathBuf,
        /// This host's name, unique among the hosts of the directory.
        #[arg(long)]
        name: String,
        /// Address to listen on. Requests are not encrypted; clients find a token in the directory.
        #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
        listen: String,
        /// Hand sequencers to other hosts: a policy's Lua file, or `sequencers`.
        #[arg(long, value_name = "FILE.lua|NAME", value_hint = ValueHint::FilePath)]
        balancer: Option<PathBuf>,
        /// Seconds between decisions of the balancer.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86400))]
        every: u64,
        /// Seconds for which a sequencer stays where it was moved.
        #[arg(long, default_value_t = 60)]
        dwell: u64,
    },
    /// List the hosts of a directory of logs, and the sequencers that they hold.
    Hosts {
        #[arg(value_hint = ValueHint::DirPath)]
        logs: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

impl ClientArgs {
    fn open(&self, create: bool, durable: bool) -> Result<SharedLog> {
        let limits = LeaseLimits { quota: self.quota, term_ms: self.term, backoff_ms: self.backoff };
        let source = match self.numbers.as_str() {
            "lease" => NumberSource::Lease(limits),
            "direct" => NumberSource::Direct,
            host => NumberSource::Proxy(host.into()),
        };
        let options = LogOptions { source, durable, timeout_ms: self.timeout.saturating_mul(1000) };
        Ok(SharedLog::open(&self.dir, create, options)?)
    }
}

pub(crate) fn log(args: &SharedLogArgs) -> Result<ExitCode> {
    match &args.command {
        SharedLogCommand::Append { client, sync } => append(client.open(true, *sync)?)?,
        SharedLogCommand::Read { dir, from, count, positions, follow } => {
            read(dir, *from, count.unwrap_or(u64::MAX), *positions, *follow)?;
        }
        SharedLogCommand::Fill { client, position } => {
            let entry = client.open(false, false)?.fill(*position)?;
            print_text(&shown(*position, &entry))?;
        }
        SharedLogCommand::Trim { client, position } => client.open(false, false)?.trim(*position)?,
        SharedLogCommand::Tail { client } => return print_text(&client.open(false, false)?.tail()?),
        SharedLogCommand::Seal { client } => return print_text(&client.open(false, false)?.seal()?),
        SharedLogCommand::Host { logs, name, listen, balancer, every, dwell } => {
            let balancer = balancer.as_deref().map(|policy| engine(policy, *dwell)).transpose()?;
            let balancer = balancer.map(|engine| (engine, Duration::from_secs(*every)));
            host(logs, name, listen, balancer)?;
        }
        SharedLogCommand::Hosts { logs, json } => hosts(logs, *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Appends lines. A lease ends in time even if no line arrives.
fn append(mut log: SharedLog) -> Result<()> {
    let (sender, receiver) = mpsc::sync_channel(64);
    thread::spawn(move || {
        for line in io::stdin().lock().split(b'\n') {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        let line = match log.lease_left() {
            Some(left) => receiver.recv_timeout(left),
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match line {
            Ok(line) => {
                print_text(&log.append(&line.context("cannot read standard input")?)?)?;
            }
            Err(RecvTimeoutError::Timeout) => log.release()?,
            Err(RecvTimeoutError::Disconnected) => return Ok(log.release()?),
        }
    }
}

fn shown(position: u64, entry: &LogEntry) -> String {
    match entry {
        LogEntry::Data(bytes) => format!("{position}\t{}", String::from_utf8_lossy(bytes)),
        LogEntry::Filled => format!("{position} (filled)"),
        LogEntry::Trimmed => format!("{position} (trimmed)"),
        LogEntry::Unwritten => format!("{position} (not written)"),
    }
}

fn read(dir: &Path, from: Option<u64>, count: u64, positions: bool, follow: bool) -> Result<()> {
    let log = espalier_shared_log::LogDirectory::open(dir, false, false)?;
    let first = from.map_or_else(|| log.trim_mark(), Ok)?;
    let (mut position, end) = (first, first.saturating_add(count));
    let mut output = io::stdout().lock();
    while position < end {
        let entry = log.read(position)?;
        match &entry {
            LogEntry::Unwritten if follow => {
                output.flush()?;
                thread::sleep(Duration::from_millis(50));
                continue;
            }
            LogEntry::Unwritten => break,
            LogEntry::Trimmed => bail!("position {position} is trimmed"),
            _ if positions => writeln!(output, "{}", shown(position, &entry))?,
            LogEntry::Data(bytes) => output.write_all(&[bytes, &b"\n"[..]].concat())?,
            LogEntry::Filled => {}
        }
        position += 1;
    }
    Ok(())
}

fn engine(policy: &Path, dwell_s: u64) -> Result<BalancerEngine> {
    let policy = match policy.to_str() {
        Some("sequencers") => BalancerPolicy::new("sequencers", &policies::sequencers(0.5, 2)),
        _ => balancer::load(policy)?,
    };
    let mut engine = BalancerEngine::new(policy);
    engine.limits.dwell_ms = dwell_s.saturating_mul(1000);
    Ok(engine)
}

fn host(logs: &Path, name: &str, listen: &str, balancer: Option<(BalancerEngine, Duration)>) -> Result<()> {
    let stop = stop::on_signal()?;
    let on_plan = Box::new(|plan: &espalier_balancer::MovePlan| {
        // A reader of the output that is gone does not stop the host.
        let _ = print_text(plan);
    });
    let options = HostOptions { name: name.into(), listen: listen.into(), balancer, on_plan };
    let host = SequencerHost::start(logs, options)?;
    print_text(&format!("{name} listens on {}", host.address()))?;
    while !stop.load(std::sync::atomic::Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn hosts(logs: &Path, json: bool) -> Result<()> {
    let hosts = live_hosts(&logs.join(".hosts"))?;
    if json {
        let shown = hosts.iter().map(|host| {
            let sequencers: Vec<_> = host
                .sequencers
                .iter()
                .map(|(log, requests)| serde_json::json!({"log": log, "requests": requests}))
                .collect();
            serde_json::json!({
                "name": host.name, "address": host.address, "at_ms": host.at_ms,
                "requests": host.requests, "sequencers": sequencers,
            })
        });
        print_text(&serde_json::Value::from_iter(shown))?;
        return Ok(());
    }
    for host in hosts {
        print_text(&format!("{} {}: {:.0} requests/s", host.name, host.address, host.requests))?;
        for (log, requests) in host.sequencers {
            print_text(&format!("  {log}: {requests:.0} requests/s"))?;
        }
    }
    Ok(())
}
