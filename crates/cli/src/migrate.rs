//! `espalier migrate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_runtime::{
    MigrationDestination, MigrationRequest, MigrationRun, MigrationStatus, migrate_stopped, migration_of,
    request_migration, stop_migration,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::RadosArgs;
use crate::{cluster, report};

#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The file system: its directory, rados:POOL/NAMESPACE, or its mount point.
    #[arg(value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    /// An empty directory, created if absent, or rados:POOL/NAMESPACE.
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "stop")]
    pub destination: Option<PathBuf>,
    /// Replace a store at the destination, which is lost.
    #[arg(long)]
    pub force: bool,
    /// Stop the migration of a mounted file system. It can be continued.
    #[arg(long, conflicts_with_all = ["destination", "force", "data_pool"])]
    pub stop: bool,
    /// At a destination in a cluster: pool for the bytes of big files, which may be erasure-coded
    /// [default: that of the rest].
    #[arg(long, value_name = "POOL", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub data_pool: Option<String>,
    #[command(flatten)]
    pub rados: RadosArgs,
}

/// Time between two looks at a migration.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn migrate(args: &MigrateArgs) -> Result<ExitCode> {
    let store = report::store_of(&args.source)?.unwrap_or_else(|| args.source.clone());
    if store.to_str().is_some_and(cluster::is_url) {
        bail!("{} is mounted from a server: migrate the server's store while it is stopped", store.display());
    }
    let source = args.rados.locate(&store)?;
    let from = source.full_name();
    let Some(destination) = &args.destination else {
        return match stop_migration(&from)? {
            Some(_) => Ok(ExitCode::SUCCESS),
            None => bail!("{} is not being migrated by a mount", from.display()),
        };
    };
    let location = args.rados.locate(destination)?;
    let (to, data_pool) = (location.full_name(), args.data_pool.clone());
    let destination = MigrationDestination { location, force: args.force, data_pool: data_pool.clone() };
    // The mount's process may have another environment.
    let conf = args.rados.conf.clone().or_else(|| std::env::var_os("CEPH_CONF").map(PathBuf::from));
    let conf = conf.map(std::path::absolute).transpose();
    let request = MigrationRequest {
        from: from.clone(),
        to: to.clone(),
        conf: conf.context("the configuration's path is invalid")?,
        user: args.rados.user.clone(),
        force: args.force,
        data_pool,
    };
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template(
        "{msg}: {bar:30} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)",
    )?);
    let ended = match request_migration(&request)? {
        Some(status) => follow(status, &bar, || {
            migration_of(&from)?
                .with_context(|| format!("the mount of {} has ended: see its log", from.display()))
        })?,
        None => {
            let run = MigrationRun::new(&destination.location);
            std::thread::scope(|scope| {
                scope.spawn(|| migrate_stopped(&source, &destination, &run));
                follow(run.status(), &bar, || Ok(run.status()))
            })?
        }
    };
    bar.finish_and_clear();
    if let Some(error) = ended.error {
        bail!("{error}");
    }
    println!("{} has moved to {}", from.display(), to.display());
    advise(&from, &to)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress until the migration has ended.
fn follow(
    mut status: MigrationStatus,
    bar: &ProgressBar,
    mut next: impl FnMut() -> Result<MigrationStatus>,
) -> Result<MigrationStatus> {
    while !status.ended {
        bar.set_message(status.step.clone());
        bar.set_length(status.total);
        bar.set_position(status.done);
        std::thread::sleep(INTERVAL);
        status = next()?;
    }
    Ok(status)
}

/// Reminds of what refers to the source.
fn advise(from: &Path, to: &Path) -> Result<()> {
    if report::is_mounted(from)? {
        println!("the mount goes on with it; mount {} next time, also in /etc/fstab", to.display());
    }
    Ok(())
}
