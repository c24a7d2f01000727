//! `espalier balancer`: load balancing among metadata servers.

mod metrics;
mod policies;

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
}

pub(crate) fn balancer(args: &BalancerArgs) -> Result<ExitCode> {
    match &args.command {
        BalancerCommand::Metrics(args) => metrics::metrics(args),
        BalancerCommand::List { json } => policies::list(*json),
        BalancerCommand::Check { policy } => policies::check(policy),
        BalancerCommand::DryRun { policy, snapshot, json } => policies::dry_run(policy, snapshot, *json),
    }
}
