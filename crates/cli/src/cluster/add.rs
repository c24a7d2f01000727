//! `espalier cluster add`: another metadata server joins a cluster, which may be running.
//!
//! The new server runs before the others hear of it, so that nothing is placed at a rank that does
//! not start. An addition that was interrupted is finished by the next one.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_net::pki::Authority;
use espalier_proto::Rank;
use espalier_runtime::Status;
use espalier_store::superblock;
use rustix::process::Signal;

use super::edit::ConfigText;
use super::{CONFIG, DATA_KEY, PATIENCE, ServerProcess, issue_server, servers, start, wait_for_ranks};
use crate::args::parse_size;
use crate::serve::{Config, MetaEntry, Role};
use crate::shared;

/// Maximum number of metadata servers.
const MAX_RANKS: usize = 1024;

#[derive(Debug, Args)]
pub struct AddArgs {
    /// The cluster's directory.
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Address of the new server, as HOST:PORT [default: the port after those of all others].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Further names and addresses by which clients reach the server.
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Capacity of the server's journal [default: as of rank 0].
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    journal: Option<u64>,
}

pub(super) fn add(args: &AddArgs) -> Result<ExitCode> {
    let before = servers(&args.dir)?;
    if let Some(store) = before.iter().find_map(|server| server.config.shared()) {
        return add_to_shared(args, &before, store);
    }
    let mut ranks = known_ranks(&before)?;
    let is_new = metadata_servers(&before).all(|server| server.config.meta.len() == listed(&ranks));
    if is_new {
        let rank = u16::try_from(ranks.len()).ok().filter(|_| ranks.len() < MAX_RANKS);
        let rank = rank.with_context(|| format!("a cluster has at most {MAX_RANKS} metadata servers"))?;
        let address = address(args, &before)?;
        ranks.push(MetaEntry { rank, address: address.clone() });
        make_server(args, &before, address, Some(&ranks))?;
    }
    let after = servers(&args.dir)?;
    let last = ranks.last().context("no metadata server")?.rank;
    let is_of_last =
        |store: &PathBuf| superblock::read(store).is_ok_and(|superblock| superblock.rank == Rank(last));
    let is_joining = |server: &&ServerProcess| server.rank_stores().iter().any(is_of_last);
    let joining = metadata_servers(&after).find(is_joining);
    let joining = joining.with_context(|| format!("{} has no store of rank {last}", args.dir.display()))?;
    let others: Vec<_> = metadata_servers(&after).filter(|server| server.dir != joining.dir).collect();
    let mut running = Vec::new();
    for server in &others {
        if server.running()?.is_some() {
            running.push(*server);
        }
    }
    if !running.is_empty() && joining.running()?.is_none() && start(joining)? != ExitCode::SUCCESS {
        bail!(
            "the server of {} does not start, and no other server has heard of it: correct {}, and run this again",
            joining.dir.display(),
            joining.dir.join(CONFIG).display()
        );
    }
    for server in &others {
        list_ranks(server, &ranks)?;
    }
    for server in &running {
        server.signal(Signal::HUP)?;
    }
    for server in &running {
        wait_until_joined(server, Rank(last))?;
    }
    for server in others.iter().filter(|server| running.iter().all(|other| other.dir != server.dir)) {
        println!(
            "the server of {} does not run here: it hears of rank {last} when it starts",
            server.dir.display()
        );
    }
    let how = if running.is_empty() { "will join when the servers start" } else { "has joined" };
    println!("rank {last} {how}: {}", joining.dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Adds a server and a rank to a cluster whose servers share a store. Any of them takes the rank.
fn add_to_shared(args: &AddArgs, before: &[ServerProcess], store: &str) -> Result<ExitCode> {
    let mut is_up = false;
    for server in before {
        is_up |= server.running()?.is_some();
    }
    let dir = make_server(args, before, address(args, before)?, None)?;
    let after = servers(&args.dir)?;
    let added = after.iter().find(|server| server.dir == dir).context("the new server is gone")?;
    if is_up && start(added)? != ExitCode::SUCCESS {
        bail!("the server of {} does not start, and no rank was added: remove this directory", dir.display());
    }
    let rank = shared::add_rank(store)?;
    if is_up {
        wait_for_ranks(&after)?;
    }
    println!("rank {rank} has joined, and a server: {}", dir.display());
    Ok(ExitCode::SUCCESS)
}

fn metadata_servers(servers: &[ServerProcess]) -> impl Iterator<Item = &ServerProcess> {
    servers.iter().filter(|server| server.config.has(Role::Meta))
}

/// The length of `[[meta]]` in the configurations of a cluster with these ranks.
fn listed(ranks: &[MetaEntry]) -> usize {
    if ranks.len() > 1 { ranks.len() } else { 0 }
}

/// The ranks of the cluster: those of the configuration that lists most.
fn known_ranks(servers: &[ServerProcess]) -> Result<Vec<MetaEntry>> {
    let longest = metadata_servers(servers).max_by_key(|server| server.config.meta.len());
    let longest = longest.context("no metadata server")?;
    let ranks: Vec<MetaEntry> = longest.config.ranks().cloned().collect();
    if !ranks.is_empty() {
        return Ok(ranks);
    }
    let address = longest.config.listen.clone();
    if longest.config.address()?.ip().is_unspecified() {
        bail!(
            "{} listens on all addresses: let it have the one by which other servers reach it",
            longest.dir.join(CONFIG).display()
        );
    }
    Ok(vec![MetaEntry { rank: 0, address }])
}

/// The address of the new server.
fn address(args: &AddArgs, servers: &[ServerProcess]) -> Result<String> {
    if let Some(address) = &args.listen {
        return Ok(address.clone());
    }
    let ports = servers.iter().map(|server| Ok(server.config.address()?.port()));
    let last = ports.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or_default();
    let port = last.checked_add(1).context("the next port exceeds 65535: name an address with --listen")?;
    let first = metadata_servers(servers).next().context("no metadata server")?;
    let (host, _) = first.config.listen.rsplit_once(':').context("listen takes HOST:PORT")?;
    Ok(format!("{host}:{port}"))
}

/// Makes the directory of a server, with a store for the last of these ranks if it has its own. The
/// configuration comes last: a directory without one is no server's.
fn make_server(
    args: &AddArgs,
    servers: &[ServerProcess],
    listen: String,
    ranks: Option<&[MetaEntry]>,
) -> Result<PathBuf> {
    let first = metadata_servers(servers).next().context("no metadata server")?;
    let number = servers.iter().map(|server| server.config.number).max().unwrap_or_default();
    let number = number.checked_add(1).context("the numbers of servers exceed 65535")?;
    let dir = args.dir.join(format!("server-{number}"));
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    let fresh = Config::new(listen, first.config.insecure);
    let template = Config::read(&first.dir.join(CONFIG))?;
    let data_key = template.data_key.as_ref().map(|file| first.dir.join(file));
    let config = Config {
        number,
        roles: vec![Role::Meta],
        listen: fresh.listen,
        address: None,
        store: if ranks.is_some() { fresh.store } else { template.store },
        data_store: fresh.data_store,
        credentials: fresh.credentials,
        metrics: None,
        meta: ranks.unwrap_or_default().to_vec(),
        data_key: data_key.as_ref().map(|_| DATA_KEY.into()),
        ..template
    };
    config.address()?;
    fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    if let Some(key) = data_key {
        fs::copy(&key, dir.join(DATA_KEY)).with_context(|| format!("cannot copy {}", key.display()))?;
    }
    if !config.insecure {
        issue_server(&Authority::load(&args.dir)?, &args.hosts, &config, &args.dir, &dir)?;
    }
    if let Some(MetaEntry { rank, .. }) = ranks.and_then(<[_]>::last) {
        let of = first.rank_stores().into_iter().next().context("no store")?;
        let store = config.rank_stores(&dir).into_iter().next().context("no store")?;
        espalier_runtime::mkfs_joining(&store, &of, Rank(*rank), args.journal)?;
    }
    config.write(&dir.join(CONFIG))?;
    Ok(dir)
}

/// Appends the ranks that a server's configuration lacks.
fn list_ranks(server: &ServerProcess, ranks: &[MetaEntry]) -> Result<()> {
    let missing = &ranks[server.config.meta.len()..];
    if missing.is_empty() {
        return Ok(());
    }
    let mut text = ConfigText::read(&server.dir)?;
    missing.iter().try_for_each(|entry| text.add_rank(entry))?;
    text.write()
}

/// Waits until a running server is connected to a new rank.
fn wait_until_joined(server: &ServerProcess, rank: Rank) -> Result<()> {
    let began = Instant::now();
    loop {
        let running = server.running()?.with_context(|| {
            format!("the server of {} has ended: see its log, and start it", server.dir.display())
        })?;
        let has_joined =
            |status: &Status| status.ranks.as_ref().is_some_and(|ranks| ranks.connected.contains(&rank.0));
        if running.stores.iter().all(has_joined) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("rank {rank} has not connected to the server of {}: see its log", server.dir.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
