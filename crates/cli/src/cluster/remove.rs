//! `espalier cluster remove`: a metadata server leaves a cluster, which may be running. Another one
//! serves its ranks from then on: inode numbers refer to ranks, which stay for good.
//!
//! Each step can be repeated: a removal that was interrupted is finished by the next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_proto::Rank;
use espalier_store::superblock;
use rustix::process::Signal;

use super::edit::{ConfigText, sync_directory};
use super::{CONFIG, ServerProcess, servers, start};
use crate::serve::{Config, Role};

/// Start of the name of a rank's store at the server that has taken the rank over.
const ADOPTED: &str = "rank-";

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The cluster's directory.
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Number of the server.
    #[arg(long, value_name = "NUMBER")]
    server: u16,
    /// Number of the server that takes over its ranks [default: the one with the fewest].
    #[arg(long, value_name = "NUMBER")]
    to: Option<u16>,
}

pub(super) fn remove(args: &RemoveArgs) -> Result<ExitCode> {
    let servers = servers(&args.dir)?;
    let leaving = numbered(&servers, args.server)?;
    if leaving.config.shared().is_some() {
        return remove_from_shared(&servers, leaving, args);
    }
    let successor = successor(&servers, leaving, args.to)?;
    let mut running = Vec::new();
    for server in &servers {
        if server.running()?.is_some() {
            running.push(server);
        }
    }
    let runs = |server: &ServerProcess| running.iter().any(|running| running.dir == server.dir);
    for server in [leaving, successor] {
        server.stop()?;
    }
    move_stores(leaving, successor)?;
    let ranks = list_stores(successor)?;
    for server in servers.iter().filter(|server| !server.config.meta.is_empty()) {
        let mut text = ConfigText::read(&server.dir)?;
        for rank in &ranks {
            text.set_address(*rank, &successor.config.listen)?;
        }
        text.write()?;
    }
    let is_data = leaving.config.has(Role::Data);
    if is_data {
        let mut text = ConfigText::read(&leaving.dir)?;
        text.make_data_server();
        text.write()?;
    } else {
        remove_directory(&leaving.dir)?;
    }
    let restarted = [(leaving, is_data), (successor, true)];
    for (server, _) in restarted.into_iter().filter(|(server, stays)| *stays && runs(server)) {
        // Its configuration has changed.
        let server =
            ServerProcess { config: Config::read(&server.dir.join(CONFIG))?, dir: server.dir.clone() };
        if start(&server)? != ExitCode::SUCCESS {
            bail!("the server of {} does not start: see its log", server.dir.display());
        }
    }
    for server in running.iter().filter(|server| ![&leaving.dir, &successor.dir].contains(&&server.dir)) {
        server.signal(Signal::HUP)?;
    }
    let (name, ranks) = (successor.dir.display(), join(&ranks));
    println!("the server of {name} has the ranks {ranks}");
    println!(
        "{} {}",
        leaving.dir.display(),
        if is_data { "is only a data server now" } else { "is removed" }
    );
    Ok(ExitCode::SUCCESS)
}

/// Stops a server whose ranks the others take over.
fn remove_from_shared(
    servers: &[ServerProcess],
    leaving: &ServerProcess,
    args: &RemoveArgs,
) -> Result<ExitCode> {
    if args.to.is_some() {
        bail!("the servers share a store: any of them takes the ranks over, so leave --to out");
    }
    if servers.len() < 2 {
        bail!("it is the only server of the cluster");
    }
    leaving.stop()?;
    remove_directory(&leaving.dir)?;
    println!("{} is removed", leaving.dir.display());
    Ok(ExitCode::SUCCESS)
}

fn numbered(servers: &[ServerProcess], number: u16) -> Result<&ServerProcess> {
    let found = servers.iter().find(|server| server.config.number == number && server.config.has(Role::Meta));
    found.with_context(|| {
        let numbers: Vec<_> = servers.iter().filter(|server| server.config.has(Role::Meta)).collect();
        let numbers: Vec<_> = numbers.iter().map(|server| Rank(server.config.number)).collect();
        format!("no metadata server has the number {number}: the numbers are {}", join(&numbers))
    })
}

/// The server that takes over the ranks.
fn successor<'a>(
    servers: &'a [ServerProcess],
    leaving: &ServerProcess,
    to: Option<u16>,
) -> Result<&'a ServerProcess> {
    let others = servers.iter().filter(|server| server.config.has(Role::Meta) && server.dir != leaving.dir);
    match to {
        Some(to) if to == leaving.config.number => bail!("server {to} is the one to be removed"),
        Some(to) => numbered(servers, to),
        None => others
            .min_by_key(|server| server.rank_stores().len())
            .context("it is the only metadata server of the cluster: add another one first"),
    }
}

fn move_stores(leaving: &ServerProcess, successor: &ServerProcess) -> Result<()> {
    for from in leaving.rank_stores().into_iter().filter(|from| from.exists()) {
        let to = successor.dir.join(format!("{ADOPTED}{}", superblock::read(&from)?.rank));
        fs::rename(&from, &to).with_context(|| {
            let (from, to) = (from.display(), to.display());
            format!("cannot move {from} to {to}: if these are on different disks, copy it there and remove it here, then run this again")
        })?;
        sync_directory(&successor.dir)?;
    }
    Ok(())
}

/// Lists all stores that have been moved to a server in its configuration, and returns their ranks.
fn list_stores(successor: &ServerProcess) -> Result<Vec<Rank>> {
    let (listed, mut ranks) = (successor.rank_stores(), Vec::new());
    let mut text = ConfigText::read(&successor.dir)?;
    for entry in fs::read_dir(&successor.dir)? {
        let entry = entry?;
        let (name, store) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().filter(|name| name.starts_with(ADOPTED)) else { continue };
        ranks.push(superblock::read(&store)?.rank);
        if !listed.contains(&store) {
            text.add_store(name);
        }
    }
    text.write()?;
    Ok(ranks)
}

/// Removes a server. Without a configuration a directory is no server's.
fn remove_directory(dir: &Path) -> Result<()> {
    fs::remove_file(dir.join(CONFIG)).with_context(|| format!("cannot remove {}", dir.display()))?;
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

fn join(ranks: &[Rank]) -> String {
    let ranks: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    ranks.join(", ")
}
