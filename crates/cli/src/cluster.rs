//! `espalier cluster`: the files of a cluster, and its servers on this machine.

mod add;
mod edit;
mod remove;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use espalier_library::Credentials;
use espalier_meta::LoadReport;
use espalier_net::pki::{AUTHORITY, Authority, CERTIFICATE, Issued, KEY, Validity};
use espalier_net::{Identity, SealKey};
use espalier_proto::{Rank, ServerId};
use espalier_runtime::{
    ClusterStatus, ClusterStores, Drained, FollowStatus, LoadOptions, MkfsOptions, Servers, Status, Undecided,
};
use rustix::process::Signal;

use crate::args::{ClusterCommand, InitArgs};
use crate::background;
use crate::copy;
use crate::serve::{Config, DataEntry, MetaEntry, Role, StorePaths};
use crate::{shared, table};
pub use add::AddArgs;
pub use remove::RemoveArgs;

/// Configuration file in a server's directory.
const CONFIG: &str = "server.toml";
/// Key shared by a cluster's servers, in the directory of each.
const DATA_KEY: &str = "data.key";
/// The client that `init` makes.
const ADMIN: &str = "admin";
/// Validity of certificates in years.
const YEARS: u32 = 10;
/// Time limit for stopping a server.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) fn cluster(command: &ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Init(args) => init(args),
        ClusterCommand::Add(args) => add::add(args),
        ClusterCommand::Remove(args) => remove::remove(args),
        ClusterCommand::Client { dir, name } => client(dir, name),
        ClusterCommand::Up { dir, servers } => up(dir, *servers),
        ClusterCommand::Down { dir } => down(dir),
        ClusterCommand::Fsck { dir, repair } => Ok(fsck(dir, *repair)),
        ClusterCommand::Dump { dir, to, resume } => dump(dir, to, *resume),
        ClusterCommand::Load { from, dir, force, resume, verify } => {
            let options = LoadOptions { force: *force, resume: *resume, ..LoadOptions::default() };
            let servers = servers(dir)?;
            match shared_store(&servers) {
                Some(store) => shared::load(from, store, &options, *verify),
                None => copy::load_cluster(from, &all_stores(&servers)?, &options, *verify),
            }
        }
        ClusterCommand::Resolve { dir, lost, yes } => resolve(dir, Rank(*lost), *yes),
        ClusterCommand::Drain { dir, server } => drain(dir, ServerId(*server)),
        ClusterCommand::Reload { dir } => reload(dir),
        ClusterCommand::Status { dir, json } => status(dir, *json),
    }
}

fn init(args: &InitArgs) -> Result<ExitCode> {
    let dir = &args.dir;
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is not empty: a new cluster needs a directory of its own", dir.display());
    }
    if args.store.is_none() && args.ranks > args.servers {
        bail!("{} servers cannot have {} ranks: each has one at most", args.servers, args.ranks);
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let configs = configs(args)?;
    let authority = if args.insecure { None } else { Some(Authority::create(dir, Validity::years(YEARS))?) };
    let data_key = SealKey::generate()?;
    let mut stores = Vec::new();
    for config in &configs {
        let server = dir.join(format!("server-{}", config.number));
        fs::create_dir(&server)?;
        if let Some(file) = &config.data_key {
            SealKey::write(&data_key, &server.join(file))?;
        }
        config.write(&server.join(CONFIG))?;
        if let Some(authority) = &authority {
            issue_server(authority, &args.hosts, config, dir, &server)?;
        }
        stores.extend(config.rank_stores(&server));
        if config.has(Role::Data) {
            espalier_runtime::mkfs_data(&server.join(&config.data_store), ServerId(config.number))?;
        }
    }
    match &args.store {
        Some(store) => shared::create(store, args.ranks, &mkfs_options(args))?,
        None => espalier_runtime::mkfs_ranks(&stores, &mkfs_options(args))?,
    }
    if let Some(authority) = &authority {
        issue_client(authority, dir, ADMIN)?;
    }
    let servers = if configs.len() == 1 { "server" } else { "servers" };
    println!(
        "made a cluster of {} {servers} in {}; `espalier cluster up {1}` starts it",
        configs.len(),
        dir.display()
    );
    if args.store.is_none() {
        println!("its stores have no redundancy: docs/failover.md describes servers that fail over");
    }
    Ok(ExitCode::SUCCESS)
}

/// Configurations of a new cluster's servers: the first ones are metadata servers; if there are
/// several servers, all are data servers.
fn configs(args: &InitArgs) -> Result<Vec<Config>> {
    let first = Config::new(args.listen.clone(), args.insecure);
    let (host, port) = args.listen.rsplit_once(':').unwrap_or((&args.listen, ""));
    let port = first.address().map(|_| port.parse::<u16>().ok())?.context("listen takes HOST:PORT")?;
    let address = |number: u16| -> Result<String> {
        let port =
            port.checked_add(number).context("port numbers exceed 65535: give --listen a smaller one")?;
        Ok(format!("{host}:{port}"))
    };
    if let Some(store) = &args.store {
        shared::locate(store)?;
        let config = |number| {
            let new = Config::new(address(number)?, args.insecure);
            let (store, standby_replay) = (StorePaths::One(store.into()), args.standby_replay);
            Ok(Config { number, store, standby_replay, ..new })
        };
        return (0..args.ranks + args.standbys).map(config).collect();
    }
    if args.servers == 1 {
        return Ok(vec![first]);
    }
    let entry = |number| Ok(DataEntry { number, address: address(number)?, drain: false });
    let data: Vec<_> = (0..args.servers).map(entry).collect::<Result<_>>()?;
    let entry = |rank| Ok(MetaEntry { rank, address: address(rank)? });
    let meta: Vec<_> = (0..args.ranks).filter(|_| args.ranks > 1).map(entry).collect::<Result<_>>()?;
    let config = |number: u16| {
        let (roles, meta, data) = if number < args.ranks {
            (vec![Role::Meta, Role::Data], meta.clone(), data.clone())
        } else {
            (vec![Role::Data], Vec::new(), Vec::new())
        };
        let data_key = Some(DATA_KEY.into());
        let new = Config::new(address(number)?, args.insecure);
        Ok(Config { number, roles, meta, data, data_key, ..new })
    };
    (0..args.servers).map(config).collect()
}

/// `hosts`: further names of the server. `cluster`: the directory of the cluster, `server` that of
/// the server.
fn issue_server(
    authority: &Authority,
    hosts: &[String],
    config: &Config,
    cluster: &Path,
    server: &Path,
) -> Result<()> {
    let mut hosts = hosts.to_vec();
    hosts.push(config.address()?.ip().to_string());
    if let Some((host, _)) = config.listen.rsplit_once(':') {
        hosts.push(host.to_string());
    }
    hosts.sort();
    hosts.dedup();
    let identity = Identity::server(&format!("server-{}", config.number))?;
    write(&authority.issue_server(&identity, &hosts, Validity::years(YEARS))?, cluster, server)
}

fn mkfs_options(args: &InitArgs) -> MkfsOptions {
    MkfsOptions {
        label: args.label.clone(),
        journal_bytes: args.journal,
        data_pool: args.data_pool.clone(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..MkfsOptions::default()
    }
}

/// Writes the credentials of one party: the authority's certificate, its own certificate, and its
/// key.
fn write(issued: &Issued, cluster: &Path, dir: &Path) -> Result<()> {
    fs::copy(cluster.join(AUTHORITY), dir.join(AUTHORITY))?;
    Ok(issued.write(&dir.join(CERTIFICATE), &dir.join(KEY))?)
}

fn issue_client(authority: &Authority, cluster: &Path, name: &str) -> Result<PathBuf> {
    let issued = authority.issue_client(&Identity::client(name)?, Validity::years(YEARS))?;
    let dir = cluster.join("clients").join(name);
    if dir.exists() {
        bail!("{} is there already: give the client another name", dir.display());
    }
    fs::create_dir_all(&dir)?;
    write(&issued, cluster, &dir)?;
    Ok(dir)
}

fn client(dir: &Path, name: &str) -> Result<ExitCode> {
    let made = issue_client(&Authority::load(dir)?, dir, name)?;
    println!("made credentials in {}: copy that directory to the client's machine", made.display());
    Ok(ExitCode::SUCCESS)
}

/// A server of a cluster.
struct ServerProcess {
    dir: PathBuf,
    config: Config,
}

/// The report of a running server.
struct RunningServer {
    pid: Option<u32>,
    url: Option<String>,
    /// One for its store, or for each rank that it holds.
    stores: Vec<Status>,
    /// The cluster map, if servers share a store.
    shared: Option<ClusterStatus>,
}

impl RunningServer {
    /// `stores`: status of its stores, also if it does not run.
    fn of_own(stores: Vec<Status>) -> Option<Self> {
        let Status { pid, url, .. } = stores.iter().find(|status| status.url.is_some())?;
        Some(Self { pid: *pid, url: url.clone(), stores, shared: None })
    }

    fn of_shared(status: ClusterStatus) -> Self {
        let (pid, url, stores) = (Some(status.pid), Some(status.url.clone()), status.ranks.clone());
        Self { pid, url, stores, shared: Some(status) }
    }

    /// How far it follows ranks of others.
    fn follows(&self) -> &[FollowStatus] {
        self.shared.as_ref().map_or(&[], |status| &status.follows)
    }
}

/// The servers of a cluster, by number.
fn servers(dir: &Path) -> Result<Vec<ServerProcess>> {
    let entries = fs::read_dir(dir).with_context(|| format!("no cluster in {}", dir.display()))?;
    let paths =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.join(CONFIG).is_file());
    let read = |dir: PathBuf| Ok(ServerProcess { config: Config::read(&dir.join(CONFIG))?, dir });
    let mut found = paths.map(read).collect::<Result<Vec<_>>>()?;
    found.sort_by_key(|server| server.config.number);
    if found.is_empty() {
        bail!("no cluster in {}: `espalier cluster init` makes one", dir.display());
    }
    Ok(found)
}

/// A store that a running server serves, or a rank of a server that shares its store.
pub(crate) struct TracedServer {
    /// The store, or the server's directory.
    pub path: PathBuf,
    pub rank: Option<u16>,
}

/// The ranks and stores that the running servers of a cluster serve.
pub(crate) fn traced_servers(dir: &Path) -> Result<Vec<TracedServer>> {
    let mut served = Vec::new();
    for server in servers(dir)? {
        if server.config.shared().is_some() {
            // Without an answer it does not run; a standby serves nothing.
            let ranks = espalier_runtime::status_of_server(&server.dir).map_or(Vec::new(), |it| it.ranks);
            let of_rank = |status: &Status| {
                // The only rank of a file system has no number in the status.
                let rank = status.ranks.as_ref().map_or(0, |ranks| ranks.rank);
                TracedServer { path: server.dir.clone(), rank: Some(rank) }
            };
            served.extend(ranks.iter().map(of_rank));
        } else if server.running()?.is_some() {
            served.extend(server.stores().into_iter().map(|path| TracedServer { path, rank: None }));
        }
    }
    if served.is_empty() {
        bail!("no server of the cluster in {} runs: `espalier cluster up` starts them", dir.display());
    }
    Ok(served)
}

/// The loads that each running metadata server knows, with at most `most` directories of its own.
pub(crate) fn loads(dir: &Path, most: usize) -> Result<Vec<LoadReport>> {
    let mut loads = Vec::new();
    for server in servers(dir)?.iter().filter(|server| server.config.has(Role::Meta)) {
        if server.running()?.is_none() {
            continue;
        }
        let own_store = server.stores().into_iter().next().filter(|_| server.config.shared().is_none());
        loads.push(espalier_runtime::load_of(&own_store.unwrap_or_else(|| server.dir.clone()), most)?);
    }
    if loads.is_empty() {
        bail!(
            "no metadata server of the cluster in {} runs: `espalier cluster up` starts them",
            dir.display()
        );
    }
    Ok(loads)
}

/// The address of a cluster, and the administrator's credentials.
pub(crate) fn client_of(dir: &Path) -> Result<(String, Credentials)> {
    let credentials = credentials(dir);
    if let Credentials::Directory(of_admin) = &credentials {
        let key = of_admin.join(KEY);
        // Servers do not answer others either.
        fs::File::open(&key)
            .with_context(|| format!("cannot read {}, the administrator's key", key.display()))?;
    }
    let address = |server: ServerProcess| Ok(server.address(server.running()?.as_ref()));
    let addresses = servers(dir)?.into_iter().filter_map(|server| address(server).transpose());
    let addresses = addresses.collect::<Result<Vec<_>>>()?;
    if addresses.is_empty() {
        bail!(
            "no metadata server of the cluster in {} runs: `espalier cluster up` starts them",
            dir.display()
        );
    }
    Ok((url(&addresses), credentials))
}

fn credentials(dir: &Path) -> Credentials {
    match dir.join(AUTHORITY).is_file() {
        true => Credentials::Directory(dir.join("clients").join(ADMIN)),
        false => Credentials::Insecure,
    }
}

/// True if the directory holds a cluster.
pub(crate) fn is_cluster(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join(CONFIG)).any(|config| config.is_file())
}

impl ServerProcess {
    fn stores(&self) -> Vec<PathBuf> {
        self.config.stores(&self.dir)
    }

    /// The stores of its ranks, if they are its own.
    fn rank_stores(&self) -> Vec<PathBuf> {
        self.config.rank_stores(&self.dir)
    }

    /// Status of the server if it runs; of its metadata store if it has one.
    fn running(&self) -> Result<Option<RunningServer>> {
        if self.config.shared().is_some() {
            return Ok(espalier_runtime::status_of_server(&self.dir).ok().map(RunningServer::of_shared));
        }
        let mut stores = self.rank_stores();
        if stores.is_empty() {
            stores = self.stores();
        }
        // A store is missing after an interrupted removal.
        let status = |store: &PathBuf| store.exists().then(|| espalier_runtime::status_of(store));
        let stores = stores.iter().filter_map(status).collect::<Result<Vec<_>, _>>()?;
        Ok(RunningServer::of_own(stores))
    }

    /// Sends a signal to the server's process, if it runs.
    fn signal(&self, signal: Signal) -> Result<bool> {
        let Some(pid) = self.running()?.and_then(|running| running.pid) else { return Ok(false) };
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the server has no process")?;
        rustix::process::kill_process(pid, signal)
            .with_context(|| format!("cannot send a signal to the server of {}", self.dir.display()))?;
        Ok(true)
    }

    /// Stops the server, if it runs, after it has written everything out.
    fn stop(&self) -> Result<()> {
        if !self.signal(Signal::TERM)? {
            if self.stores().iter().any(|store| espalier_store::is_open(store)) {
                bail!("the server of {} starts, or does not answer: try again later", self.dir.display());
            }
            return Ok(());
        }
        self.wait_for_end(|| match self.config.shared() {
            Some(_) => Ok(self.running()?.is_some()),
            None => Ok(self.stores().iter().any(|store| espalier_store::is_open(store))),
        })
    }

    fn wait_for_end(&self, runs: impl Fn() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        while runs()? {
            if began.elapsed() > PATIENCE {
                bail!("the server of {} still runs after {PATIENCE:?}: see its log", self.dir.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Address of a running metadata server.
    fn address(&self, running: Option<&RunningServer>) -> Option<String> {
        let url = running.filter(|_| self.config.has(Role::Meta))?.url.as_deref()?;
        Some(url.strip_prefix(Servers::SCHEME)?.trim_end_matches('/').into())
    }

    fn roles(&self) -> String {
        let named = [(Role::Meta, "meta"), (Role::Data, "data")];
        let roles: Vec<_> =
            named.into_iter().filter(|(role, _)| self.config.has(*role)).map(|(_, name)| name).collect();
        roles.join("+")
    }
}

fn up(dir: &Path, count: Option<u16>) -> Result<ExitCode> {
    if let Some(count) = count {
        match servers(dir) {
            Err(_) => drop(init(&InitArgs::of(dir, count))?),
            Ok(found) if found.len() == usize::from(count) => {}
            Ok(found) => bail!(
                "the cluster in {} has {} servers, not {count}: leave --servers out",
                dir.display(),
                found.len()
            ),
        }
    }
    let servers = servers(dir)?;
    let mut addresses = Vec::new();
    // Metadata servers need the data servers, so they start last.
    for server in servers.iter().rev() {
        if server.running()?.is_none() {
            let code = start(server)?;
            if code != ExitCode::SUCCESS {
                return Ok(code);
            }
        }
        let Some(running) = server.running()? else {
            bail!("the server has exited: see its log in {}", server.dir.display())
        };
        addresses.extend(server.address(Some(&running)));
    }
    addresses.reverse();
    wait_for_ranks(&servers)?;
    let url = url(&addresses);
    let how = match credentials(dir) {
        Credentials::Directory(dir) => format!("credentials={}", dir.display()),
        Credentials::Insecure => "insecure".into(),
    };
    println!("running; mount with\n  espalier mount {url} MOUNTPOINT -o {how}");
    Ok(ExitCode::SUCCESS)
}

/// Starts a server in the background; returns when clients may connect.
fn start(server: &ServerProcess) -> Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["--log", "info", "serve", "--announce", "--config"]).arg(server.dir.join(CONFIG));
    background::start(command)
}

/// Waits until servers that share a store serve all ranks.
fn wait_for_ranks(servers: &[ServerProcess]) -> Result<()> {
    let Some(server) = servers.iter().find(|server| server.config.shared().is_some()) else { return Ok(()) };
    let began = Instant::now();
    loop {
        let status = espalier_runtime::status_of_server(&server.dir)?;
        let (ranks, serving) = (status.map.ranks.len(), status.map.ranks.iter().filter(|rank| rank.serving));
        match serving.count() {
            serving if serving == ranks && ranks > 0 => return Ok(()),
            serving if began.elapsed() > PATIENCE => bail!(
                "{serving} of {ranks} ranks are served after {PATIENCE:?}: see the log in {}",
                server.dir.display()
            ),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Process id of a cluster's first server.
pub(crate) fn process(dir: &Path) -> Result<u32> {
    let status = servers(dir)?.first().map(ServerProcess::running).transpose()?.flatten();
    status
        .and_then(|running| running.pid)
        .with_context(|| format!("the server of {} does not run", dir.display()))
}

/// URL to mount.
fn url(addresses: &[String]) -> String {
    format!("{}{}/", Servers::SCHEME, addresses.join(","))
}

fn reload(dir: &Path) -> Result<ExitCode> {
    for server in servers(dir)? {
        if !server.signal(Signal::HUP)? {
            eprintln!("the server of {} does not run here: send SIGHUP to its process", server.dir.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn down(dir: &Path) -> Result<ExitCode> {
    let servers = servers(dir)?;
    // All at once: otherwise each hands its ranks to the next.
    let shared = servers.iter().filter(|server| server.config.shared().is_some());
    for server in shared.clone() {
        server.signal(Signal::TERM)?;
    }
    for server in shared {
        server.wait_for_end(|| Ok(server.running()?.is_some()))?;
    }
    for server in servers.iter().filter(|server| server.config.shared().is_none()) {
        server.stop()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All stores of the cluster in a directory.
pub(crate) fn offline_stores(dir: &Path) -> Result<ClusterStores> {
    all_stores(&servers(dir)?)
}

/// All stores of a cluster.
fn all_stores(servers: &[ServerProcess]) -> Result<ClusterStores> {
    let ranks: Vec<_> = servers.iter().flat_map(ServerProcess::rank_stores).collect();
    if servers.iter().any(|server| server.config.shared().is_some()) {
        bail!("the servers share a store: this is for clusters whose servers have stores of their own");
    }
    if ranks.is_empty() {
        bail!("no metadata server");
    }
    let data_servers = servers.iter().filter(|server| server.config.has(Role::Data));
    let data = data_servers
        .map(|server| (ServerId(server.config.number), server.dir.join(&server.config.data_store)));
    Ok(ClusterStores { ranks, data: data.collect() })
}

/// The store that all servers share, if they do.
fn shared_store(servers: &[ServerProcess]) -> Option<&str> {
    servers.first()?.config.shared()
}

fn dump(dir: &Path, to: &Path, resume: bool) -> Result<ExitCode> {
    let servers = servers(dir)?;
    match shared_store(&servers) {
        Some(store) => shared::dump(store, to, resume),
        None => copy::dump_cluster(&all_stores(&servers)?, to, resume),
    }
}

fn fsck(dir: &Path, is_repair: bool) -> ExitCode {
    crate::fsck::exit_code(servers(dir).and_then(|servers| {
        if let Some(store) = shared_store(&servers) {
            return shared::fsck(store, is_repair);
        }
        let ClusterStores { ranks, data } = all_stores(&servers)?;
        let run = if is_repair { crate::fsck::repair_cluster } else { crate::fsck::check_cluster };
        run(&ranks, &data)
    }))
}

fn drain(dir: &Path, number: ServerId) -> Result<ExitCode> {
    let servers = servers(dir)?;
    let ClusterStores { ranks, mut data } = all_stores(&servers)?;
    let Some(at) = data.iter().position(|(one, _)| *one == number) else {
        bail!("no data server with number {number} in {}", dir.display());
    };
    let from = data.remove(at);
    for ServerProcess { dir, config } in servers.iter().filter(|server| server.config.has(Role::Meta)) {
        if !config.drained().any(|drained| drained == number) {
            bail!(
                "new files would be placed there: set drain = true below [[data]] of number {number} in {}",
                dir.join(CONFIG).display()
            );
        }
        // Other servers may be draining too.
        data.retain(|(one, _)| !config.drained().any(|drained| drained == *one));
    }
    let Drained { moved, left } = espalier_runtime::drain(&ranks, from, &data)?;
    println!("moved {moved} files");
    if left > 0 {
        bail!("{left} files are on all other data servers too: add a server to the cluster, and drain again");
    }
    println!("data server {number} has no files: remove it from [[data]] in all configurations");
    Ok(ExitCode::SUCCESS)
}

fn resolve(dir: &Path, lost: Rank, yes: bool) -> Result<ExitCode> {
    let mut stores = Vec::new();
    for store in servers(dir)?.iter().flat_map(ServerProcess::rank_stores) {
        match espalier_store::superblock::read(&store) {
            Ok(superblock) if superblock.rank == lost => {
                bail!(
                    "rank {lost} has its store in {}: start its server, which knows its decisions",
                    store.display()
                )
            }
            Ok(_) => stores.push(store),
            // The lost server, or one that a later check misses.
            Err(_) => {}
        }
    }
    let mut count = 0;
    let done = espalier_runtime::resolve_lost(&stores, lost, |undecided| {
        count = undecided.len();
        for Undecided { rank, changes } in undecided {
            println!("rank {rank} does not know whether {}", changes.join(", and "));
        }
        yes
    })?;
    Ok(match (count, done) {
        (0, _) => {
            println!("rank {lost} has left nothing undecided");
            ExitCode::SUCCESS
        }
        (_, true) => {
            println!("these changes were aborted; never use the store of rank {lost} again");
            ExitCode::SUCCESS
        }
        (_, false) => {
            println!("nothing was changed: run again with --yes to undo this");
            ExitCode::from(1)
        }
    })
}

fn status(dir: &Path, json: bool) -> Result<ExitCode> {
    let servers = servers(dir)?;
    let mut all = Vec::new();
    for server in &servers {
        all.push((server, server.running()?));
    }
    let is_up = all.iter().all(|(_, running)| running.is_some());
    let newest = all.iter().filter_map(|(_, running)| running.as_ref()?.shared.as_ref());
    let newest = newest.max_by_key(|status| status.version);
    if json {
        let addresses: Vec<_> =
            all.iter().filter_map(|(server, running)| server.address(running.as_ref())).collect();
        let url = (!addresses.is_empty()).then(|| url(&addresses));
        let list: Vec<_> = all.iter().map(|(server, running)| server.json(running.as_ref())).collect();
        let map = newest.map(|status| serde_json::json!({ "version": status.version, "map": status.map }));
        println!("{}", serde_json::json!({ "url": url, "servers": list, "cluster": map }));
    } else {
        all.iter().for_each(|(server, running)| server.print(running.as_ref()));
        if let Some(status) = newest {
            shared::print_ranks(&status.map);
            let stores = all.iter().filter_map(|(_, running)| running.as_ref()?.stores.first());
            for pool in stores.take(1).flat_map(|status| &status.pools) {
                println!("pool {}", table::pool(pool));
            }
        }
    }
    Ok(if is_up { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

impl ServerProcess {
    fn json(&self, running: Option<&RunningServer>) -> serde_json::Value {
        let (dir, number, roles) = (&self.dir, self.config.number, self.roles());
        // One for each rank that it has.
        let stores = running.map(|running| &running.stores);
        let status = stores.and_then(|stores| stores.first());
        serde_json::json!({
            "dir": dir, "number": number, "roles": roles, "running": running.is_some(),
            "pid": running.and_then(|running| running.pid), "status": status, "stores": stores,
            "follows": running.map(RunningServer::follows).unwrap_or_default(),
        })
    }

    fn print(&self, running: Option<&RunningServer>) {
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let roles = self.roles();
        let Some(running) = running else { return println!("{name}  {roles}  not running") };
        let (url, pid) = (running.url.as_deref().unwrap_or_default(), running.pid.unwrap_or_default());
        print!("{name}  {roles}  {url}  process {pid}");
        if running.stores.is_empty() {
            print!("  standby");
        }
        for FollowStatus { rank, frames_behind, is_at_end, .. } in running.follows() {
            let more = if *is_at_end { "" } else { "more than " };
            print!("  follows rank {rank}, {more}{frames_behind} frames behind");
        }
        for status in &running.stores {
            if let Some(ranks) = status.ranks.as_ref().filter(|_| running.stores.len() > 1) {
                print!("  rank {}:", ranks.rank);
            }
            print!(
                "  {} clients  {} inodes in use{}",
                status.clients.unwrap_or_default(),
                status.files.unwrap_or_default(),
                status.failure.as_ref().map(|failure| format!("  FAILED: {failure}")).unwrap_or_default(),
            );
        }
        println!();
    }
}

/// True if a text is the address of a server.
pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with(Servers::SCHEME)
}
