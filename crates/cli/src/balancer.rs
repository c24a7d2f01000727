//! `espalier balancer`: load balancing among metadata servers.

mod metrics;
mod policies;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Args)]
pub struct BalancerArgs {
    #[command(subcommand)]
    command: BalancerCommand,
}

#[derive(Debug, Subcommand)]
enum BalancerCommand {
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
        /// Metrics: a snapshot, or a list of consecutive ones.
        #[arg(value_hint = ValueHint::FilePath, value_name = "SNAPSHOT.json")]
        snapshot: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Balance the load of a running cluster until stopped: every few seconds let a policy decide
    /// for each metadata server, and move directories' names as it says. Needs the superuser.
    Run(run::RunArgs),
    /// Print the moves that balancers have begun, with their reasons.
    History {
        /// A mount of the cluster's root.
        #[arg(value_hint = ValueHint::DirPath)]
        mountpoint: PathBuf,
    },
    /// Move back what a balancer has moved last.
    Undo {
        /// A mount of the cluster's root.
        #[arg(value_hint = ValueHint::DirPath)]
        mountpoint: PathBuf,
    },
}

pub(crate) use run::explain;

pub(crate) fn balancer(args: &BalancerArgs) -> Result<ExitCode> {
    match &args.command {
        BalancerCommand::Metrics(args) => metrics::metrics(args),
        BalancerCommand::List { json } => policies::list(*json),
        BalancerCommand::Check { policy } => policies::check(policy),
        BalancerCommand::DryRun { policy, snapshot, json } => policies::dry_run(policy, snapshot, *json),
        BalancerCommand::Run(args) => run::run(args),
        BalancerCommand::History { mountpoint } => run::history(mountpoint),
        BalancerCommand::Undo { mountpoint } => run::undo(mountpoint),
    }
}
