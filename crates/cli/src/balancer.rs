//! `espalier balancer`: load balancing among metadata servers.

mod metrics;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct BalancerArgs {
    #[command(subcommand)]
    command: BalancerCommand,
}

#[derive(Debug, Subcommand)]
enum BalancerCommand {
    /// Show what a balancer sees: the loads of the metadata servers and of the hottest directories.
    Metrics(metrics::MetricsArgs),
}

pub(crate) fn balancer(args: &BalancerArgs) -> Result<ExitCode> {
    match &args.command {
        BalancerCommand::Metrics(args) => metrics::metrics(args),
    }
}
