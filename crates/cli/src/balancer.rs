//! `espalier balancer`: load balancing among metadata servers.

mod cluster;
mod metrics;
mod policies;
mod root;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Args)]
pub struct BalancerArgs {
    #[command(subcommand)]
    command: BalancerVerb,
}

/// A cluster that runs.
#[derive(Debug, Args)]
struct ClusterArg {
    /// A mount of the cluster's root, a path in it, or the cluster's directory.
    #[arg(value_hint = ValueHint::DirPath, value_name = "MOUNTPOINT|CLUSTER", default_value = ".")]
    cluster: PathBuf,
}

#[derive(Debug, Subcommand)]
enum BalancerVerb {
    /// Show what a balancer sees: the loads of the metadata servers and of the hottest directories.
    Metrics(metrics::MetricsArgs),
    /// List the policies that are part of Espalier.
    List {
        #[arg(long)]
        json: bool,
    },
    /// Run a policy in typical situations. Exits with 1 if it fails in any of them.
    Check {
        /// A policy's Lua file, or a name from `list`.
        #[arg(value_hint = ValueHint::FilePath, value_name = "FILE.lua|NAME")]
        policy: PathBuf,
    },
    /// Show which fragments a policy would move, and why. Moves nothing. Exits with 1 if the policy
    /// fails.
    DryRun {
        /// A policy's Lua file, or a name from `list`.
        #[arg(value_hint = ValueHint::FilePath, value_name = "FILE.lua|NAME")]
        policy: PathBuf,
        /// Metrics: a file that `record` has written, or for the present ones a mount of the
        /// cluster's root or the cluster's directory.
        #[arg(value_hint = ValueHint::AnyPath, value_name = "SNAPSHOTS.json|MOUNTPOINT|CLUSTER")]
        source: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Print the metrics that the ranks would decide on, for `dry-run`.
    Record {
        #[command(flatten)]
        mount: ClusterArg,
        /// Number of times.
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// Interval in seconds.
        #[arg(long, default_value_t = 10)]
        every: u64,
    },
    /// Have the metadata servers balance their load with a policy, until `off`. Checks it first.
    /// Needs the superuser.
    Set(cluster::SetArgs),
    /// Stop balancing. What has moved stays where it is.
    Off {
        #[command(flatten)]
        mount: ClusterArg,
        /// The reason, for the log.
        #[arg(long, default_value = "")]
        why: String,
    },
    /// Show the policy that balances, and the last decision of each metadata server.
    Show {
        #[command(flatten)]
        mount: ClusterArg,
        /// Print the policy's text only.
        #[arg(long)]
        text: bool,
        #[arg(long, conflicts_with = "text")]
        json: bool,
    },
    /// Print the log: changes of the policy, moves with their reasons, and failures.
    History {
        #[command(flatten)]
        mount: ClusterArg,
        #[arg(long)]
        json: bool,
    },
    /// Move back what the balancer has moved last.
    Undo {
        #[command(flatten)]
        mount: ClusterArg,
    },
}

pub(crate) use cluster::explain;
pub(crate) use policies::load;

pub(crate) fn balancer(args: &BalancerArgs) -> Result<ExitCode> {
    match &args.command {
        BalancerVerb::Metrics(args) => metrics::metrics(args),
        BalancerVerb::List { json } => policies::list(*json),
        BalancerVerb::Check { policy } => policies::check(policy),
        BalancerVerb::DryRun { policy, source, json } => policies::dry_run(policy, source, *json),
        BalancerVerb::Record { mount, count, every } => cluster::record(&mount.cluster, *count, *every),
        BalancerVerb::Set(args) => cluster::set(args),
        BalancerVerb::Off { mount, why } => cluster::off(&mount.cluster, why),
        BalancerVerb::Show { mount, text, json } => cluster::show(&mount.cluster, *text, *json),
        BalancerVerb::History { mount, json } => cluster::history(&mount.cluster, *json),
        BalancerVerb::Undo { mount } => cluster::undo(&mount.cluster),
    }
}
