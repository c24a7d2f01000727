//! `espalier cluster remove`: a metadata server leaves a cluster, which may be running. Another one
//! serves its ranks from then on: inode numbers refer to ranks, which stay for good.
//!
//! Each step can be repeated: a removal that was interrupted is finished by the next one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_proto::Rank;
use espalier_store::superblock;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::edit::{ConfigText, sync_directory, write_durably};
use super::{CONFIG, ServerProcess, servers, start};
use crate::serve::{Config, Role};

/// File in the directory of a server whose removal has begun.
const BEGUN: &str = "removal.toml";

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

/// A removal that has begun, in the directory of the server that leaves.
#[derive(Serialize, Deserialize)]
struct Removal {
    /// Number of the server that takes over.
    to: u16,
    /// Ranks of the leaving server, in the order of its stores.
    ranks: Vec<u16>,
}

pub(super) fn remove(args: &RemoveArgs) -> Result<ExitCode> {
    let servers = servers(&args.dir)?;
    let leaving = numbered(&servers, args.server)?;
    if leaving.config.shared().is_some() {
        return remove_from_shared(&servers, leaving, args);
    }
    let begun = begun(leaving)?;
    let was_interrupted = begun.is_some();
    let removal = match begun {
        Some(removal) if args.to.is_some_and(|to| to != removal.to) => {
            bail!("the removal has begun, and server {} takes over the ranks: leave --to out", removal.to)
        }
        Some(removal) => removal,
        None => {
            let successor = successor(&servers, leaving, args.to)?;
            Removal { to: successor.config.number, ranks: ranks_of(leaving)? }
        }
    };
    let successor = numbered(&servers, removal.to)?;
    // Configurations that cannot be changed are found before anything has changed.
    let configurations = with_new_addresses(&servers, &address_of(successor)?, &removal.ranks)?;
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
    write_durably(&leaving.dir.join(BEGUN), &toml::to_string(&removal)?)?;
    move_stores(leaving, successor, &removal.ranks)?;
    configurations.iter().try_for_each(ConfigText::write)?;
    list_stores(successor, &removal.ranks)?;
    let is_data = leaving.config.has(Role::Data);
    if is_data {
        let mut text = ConfigText::read(&leaving.dir)?;
        text.make_data_server();
        text.write()?;
        fs::remove_file(leaving.dir.join(BEGUN))?;
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
    let (name, ranks) = (successor.dir.display(), join(&removal.ranks));
    println!("the server of {name} has the ranks {ranks}");
    println!(
        "{} {}",
        leaving.dir.display(),
        if is_data { "is only a data server now" } else { "is removed" }
    );
    if was_interrupted {
        println!(
            "the removal was interrupted before: `espalier cluster up` starts all servers that do not run"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The removal of a server that has begun before.
fn begun(leaving: &ServerProcess) -> Result<Option<Removal>> {
    let file = leaving.dir.join(BEGUN);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    Ok(Some(toml::from_str(&text).with_context(|| format!("{} is damaged", file.display()))?))
}

/// The ranks of a server's stores, all of which must be there.
fn ranks_of(server: &ServerProcess) -> Result<Vec<u16>> {
    server.rank_stores().iter().map(|store| Ok(superblock::read(store)?.rank.0)).collect()
}

/// The address by which clients and other servers reach a server.
fn address_of(server: &ServerProcess) -> Result<String> {
    let ranks = ranks_of(server)?;
    let entry = server.config.ranks().find(|entry| ranks.contains(&entry.rank));
    let entry = entry.with_context(|| {
        format!("[[meta]] in {} has no rank of this server", server.dir.join(CONFIG).display())
    })?;
    Ok(entry.address.clone())
}

/// The configurations that list metadata servers, with another address of some ranks.
fn with_new_addresses(servers: &[ServerProcess], address: &str, ranks: &[u16]) -> Result<Vec<ConfigText>> {
    let listing = servers.iter().filter(|server| !server.config.meta.is_empty());
    let changed = |server: &ServerProcess| {
        let mut text = ConfigText::read(&server.dir)?;
        ranks.iter().try_for_each(|rank| text.set_address(Rank(*rank), address))?;
        Ok(text)
    };
    listing.map(changed).collect()
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
        let servers = servers.iter().filter(|server| server.config.has(Role::Meta));
        let numbers: Vec<_> = servers.map(|server| server.config.number).collect();
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

fn move_stores(leaving: &ServerProcess, successor: &ServerProcess, ranks: &[u16]) -> Result<()> {
    for (from, rank) in leaving.rank_stores().into_iter().zip(ranks) {
        let to = successor.dir.join(adopted(*rank));
        let (from_name, to_name) = (from.display(), to.display());
        match (from.exists(), to.exists()) {
            (true, false) => fs::rename(&from, &to).with_context(|| {
                format!("cannot move {from_name} to {to_name}: if these are on different disks, copy it there and remove it here, then run this again")
            })?,
            (false, true) => {}
            (true, true) => bail!("both {from_name} and {to_name} are there: remove the older one"),
            (false, false) => bail!("neither {from_name} nor {to_name} is there: mount its disk, and run this again"),
        }
        sync_directory(&successor.dir)?;
    }
    Ok(())
}

/// Name of a rank's store at the server that has taken the rank over.
fn adopted(rank: u16) -> String {
    format!("rank-{rank}")
}

/// Lists the stores that have been moved to a server in its configuration.
fn list_stores(successor: &ServerProcess, ranks: &[u16]) -> Result<()> {
    let mut text = ConfigText::read(&successor.dir)?;
    let listed = successor.rank_stores();
    for name in ranks.iter().map(|rank| adopted(*rank)) {
        if !listed.contains(&successor.dir.join(&name)) {
            text.add_store(&name);
        }
    }
    text.write()
}

/// Removes a server. Without a configuration a directory is no server's.
fn remove_directory(dir: &Path) -> Result<()> {
    fs::remove_file(dir.join(CONFIG)).with_context(|| format!("cannot remove {}", dir.display()))?;
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

fn join(numbers: &[u16]) -> String {
    let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}
