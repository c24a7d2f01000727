//! `espalier serve`, and the configuration of a server.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use espalier_meta::Rights;
use espalier_net::{Limits, SealKey, Security};
use espalier_proto::{Distribution, ServerId};
use espalier_runtime::{
    Access, DataRole, DataStore, Error, MetaRole, OpenOptions, OwnStore, RankSource, ReadSettings,
    ServeOptions, Settings, Striping,
};
use serde::{Deserialize, Serialize};

use crate::args::{LogArgs, ServeArgs, parse_size};
use crate::background::{announce, log_file};
use crate::mount::{open_patiently, patiently};
use crate::options::{metrics_address, threads_for_servers};
use crate::{heap, policy, shared, start_log};

/// Time limit for writing everything out when the server stops.
const DRAIN: Duration = Duration::from_secs(30);
/// Default strip size in bytes on data servers.
const STRIP: u64 = 64 << 10;

/// Role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Metadata server.
    Meta,
    /// Data server.
    Data,
}

/// A data server, as metadata servers reach it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DataEntry {
    /// Permanent number: layouts of files refer to it.
    pub number: u16,
    /// Address as `HOST:PORT`; may change.
    pub address: String,
    /// Place no new files on this server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
}

/// A metadata server, as clients and other ranks reach it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetaEntry {
    /// Permanent rank: inode numbers contain it.
    pub rank: u16,
    /// Address as `HOST:PORT`; may change.
    pub address: String,
}

/// The paths of the stores of a server's ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum StorePaths {
    One(PathBuf),
    Several(Vec<PathBuf>),
}

impl Default for StorePaths {
    fn default() -> Self {
        Self::One(Config::STORE.into())
    }
}

impl StorePaths {
    fn as_slice(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }
}

/// A server's configuration file. Paths are relative to the directory of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Number of the server in the cluster.
    #[serde(default)]
    pub number: u16,
    #[serde(default = "Config::default_roles")]
    pub roles: Vec<Role>,
    /// Address to listen on, as `HOST:PORT`.
    pub listen: String,
    /// The metadata store, or a list with one for each rank of the server; or
    /// `rados:POOL/NAMESPACE`, which all servers of the cluster share.
    #[serde(default)]
    pub store: StorePaths,
    /// Address as `HOST:PORT` for clients and other servers, if they share the store; default:
    /// `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// As a standby, follow the journals of ranks that others serve, if servers share the store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby_replay: bool,
    /// The store for datafiles.
    #[serde(default = "Config::default_data_store")]
    pub data_store: PathBuf,
    /// Directory with `ca.pem`, `certificate.pem` and `key.pem`.
    #[serde(default = "Config::default_credentials")]
    pub credentials: PathBuf,
    /// No TLS: the server trusts every peer.
    #[serde(default)]
    pub insecure: bool,
    /// Acknowledge changes when they are durable.
    #[serde(default)]
    pub sync: bool,
    /// With `sync`, in number of queued requests: while more wait to be served, commits are
    /// deferred until `high_watermark` changes wait for one.
    #[serde(default = "Config::default_low_watermark")]
    pub low_watermark: usize,
    /// In number of changes; 1 commits each change by itself.
    #[serde(default = "Config::default_high_watermark")]
    pub high_watermark: usize,
    /// Memory limit in bytes, such as `512M`.
    pub memory: Option<String>,
    /// Seconds of silence after which a client's session ends.
    #[serde(default = "Config::default_session")]
    pub session_seconds: u32,
    /// Term of leases in seconds.
    #[serde(default = "Config::default_lease")]
    pub lease_seconds: u32,
    #[serde(default = "Config::default_connections")]
    pub max_connections: usize,
    /// Longest payload in bytes that is sent with its request or reply (eager).
    #[serde(default = "Config::default_eager")]
    pub eager_bytes: u32,
    /// Threads that serve requests; default: the number of processors plus two.
    pub threads: Option<usize>,
    /// Address that serves metrics for Prometheus.
    pub metrics: Option<String>,
    /// Strip size on data servers in bytes, such as `64K`. Existing files keep theirs.
    pub stripe_strip: Option<String>,
    /// Number of data servers for a big file, if there are enough.
    #[serde(default = "Config::default_width")]
    pub stripe_width: usize,
    /// File with the key that all servers of the cluster share. It lets clients access data servers
    /// directly; without it, all data goes through the metadata server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_key: Option<PathBuf>,
    /// The metadata servers, including this one; empty if it is the only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub meta: Vec<MetaEntry>,
    /// The data servers; empty if the metadata store holds all data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataEntry>,
    /// Default policy of files whose directories have none.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub policy: toml::Table,
    /// Rights of clients, by the name in their certificates; unlisted clients have all rights.
    #[serde(default)]
    pub clients: HashMap<String, Rights>,
}

impl Config {
    /// Default path of the metadata store.
    pub(crate) const STORE: &str = "store";

    pub(crate) fn new(listen: String, insecure: bool) -> Self {
        Self {
            number: 0,
            roles: Self::default_roles(),
            data_store: Self::default_data_store(),
            stripe_strip: None,
            stripe_width: Self::default_width(),
            data_key: None,
            meta: Vec::new(),
            data: Vec::new(),
            address: None,
            standby_replay: false,
            listen,
            insecure,
            store: StorePaths::default(),
            credentials: Self::default_credentials(),
            sync: false,
            low_watermark: Self::default_low_watermark(),
            high_watermark: Self::default_high_watermark(),
            memory: None,
            session_seconds: Self::default_session(),
            lease_seconds: Self::default_lease(),
            max_connections: Self::default_connections(),
            eager_bytes: Self::default_eager(),
            threads: None,
            metrics: None,
            policy: toml::Table::new(),
            clients: HashMap::new(),
        }
    }

    fn default_roles() -> Vec<Role> {
        vec![Role::Meta]
    }

    fn default_data_store() -> PathBuf {
        "data".into()
    }

    fn default_width() -> usize {
        8
    }

    fn default_credentials() -> PathBuf {
        ".".into()
    }

    fn default_session() -> u32 {
        60
    }

    fn default_lease() -> u32 {
        10
    }

    fn default_connections() -> usize {
        12_000
    }

    fn default_low_watermark() -> usize {
        espalier_meta::Config::WATERMARKS.0
    }

    fn default_high_watermark() -> usize {
        espalier_meta::Config::WATERMARKS.1
    }

    fn default_eager() -> u32 {
        Limits::default().eager_bytes
    }

    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| {
            format!("cannot read {}: `espalier cluster init` makes such a file", file.display())
        })?;
        let config: Self = toml::from_str(&text)
            .with_context(|| format!("{} is no server's configuration", file.display()))?;
        // An idle client sends a message every 5 seconds.
        if !(10..=3600).contains(&config.session_seconds) {
            bail!("session_seconds in {} is 10 to 3600", file.display());
        }
        if !(1..=config.session_seconds).contains(&config.lease_seconds) {
            bail!("lease_seconds in {} is 1 to session_seconds", file.display());
        }
        if config.high_watermark == 0 {
            bail!("high_watermark in {} is at least 1", file.display());
        }
        if config.store.as_slice().is_empty() {
            bail!("store in {} is a path, or a list of the paths of the server's ranks", file.display());
        }
        if config.roles.is_empty() {
            bail!("roles in {} are \"meta\", \"data\", or both", file.display());
        }
        if !config.data.is_empty() && !config.has(Role::Meta) {
            bail!("[[data]] in {} is for a server with the role \"meta\"", file.display());
        }
        if !config.meta.is_empty() && !config.has(Role::Meta) {
            bail!("[[meta]] in {} is for a server with the role \"meta\"", file.display());
        }
        if config.shared().is_some() && !(config.meta.is_empty() && config.data.is_empty()) {
            bail!("[[meta]] and [[data]] in {} are for servers with stores of their own", file.display());
        }
        if config.standby_replay && config.shared().is_none() {
            bail!("standby_replay in {} is for servers that share a store", file.display());
        }
        if config.ranks().zip(0..).any(|(entry, rank)| entry.rank != rank) {
            bail!("[[meta]] in {} names each rank once, from 0 on", file.display());
        }
        Ok(config)
    }

    /// Makes a configuration file.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let mut text = String::from("# Configuration of an Espalier server; see docs/cluster.md.\n");
        text.push_str(&toml::to_string(self)?);
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Distribution of new big files; `None` if they are not striped.
    fn striping(&self) -> Result<Option<Striping>> {
        if self.data.is_empty() {
            return Ok(None);
        }
        let strip = match &self.stripe_strip {
            Some(text) => parse_size(text).ok().context("stripe_strip is a size such as 64K or 1M")?,
            None => STRIP,
        };
        let servers = self.data.iter().map(|entry| ServerId(entry.number)).collect();
        let striping = Striping::new(Distribution::SimpleStripe { strip }, servers, self.stripe_width);
        let striping = striping.context("stripe_strip or [[data]] is invalid")?;
        let striping = if self.data_key.is_some() { striping.delegated() } else { striping };
        let drained: Vec<_> = self.drained().collect();
        Ok(Some(striping.drain(&drained).context("at least one of [[data]] must be without drain = true")?))
    }

    /// Data servers that get no new files.
    pub(crate) fn drained(&self) -> impl Iterator<Item = ServerId> {
        self.data.iter().filter(|entry| entry.drain).map(|entry| ServerId(entry.number))
    }

    /// The metadata servers, by rank.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = &MetaEntry> {
        let mut ranks: Vec<_> = self.meta.iter().collect();
        ranks.sort_by_key(|entry| entry.rank);
        ranks.into_iter()
    }

    /// Addresses of the metadata servers, by rank; none if there is only one.
    fn rank_addresses(&self) -> Vec<String> {
        self.ranks().map(|entry| entry.address.clone()).collect()
    }

    pub(crate) fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// The store that all servers share; `None`: the server has its own.
    pub(crate) fn shared(&self) -> Option<&str> {
        let StorePaths::One(store) = &self.store else { return None };
        store.to_str().filter(|store| shared::is_shared(store) && self.has(Role::Meta))
    }

    /// Paths of the stores of the server's ranks, if they are its own. `dir`: the directory of its
    /// configuration.
    pub(crate) fn rank_stores(&self, dir: &Path) -> Vec<PathBuf> {
        let is_own = self.has(Role::Meta) && self.shared().is_none();
        self.store.as_slice().iter().filter(|_| is_own).map(|store| dir.join(store)).collect()
    }

    /// Paths of the server's own stores: those of its ranks, then that of datafiles.
    pub(crate) fn stores(&self, dir: &Path) -> Vec<PathBuf> {
        let data = self.has(Role::Data).then(|| dir.join(&self.data_store));
        self.rank_stores(dir).into_iter().chain(data).collect()
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        let found = self.listen.to_socket_addrs().ok().and_then(|mut found| found.next());
        found.with_context(|| {
            format!("listen takes HOST:PORT, as in 127.0.0.1:7440, and not `{}`", self.listen)
        })
    }
}

/// Time between two attempts to reach the store.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) fn serve(args: &ServeArgs, log: &LogArgs) -> Result<ExitCode> {
    heap::keep_freed();
    let file = std::path::absolute(&args.config)?;
    let base = file.parent().unwrap_or(Path::new("/"));
    let config = Config::read(&file)?;
    let listen = config.address()?;
    let striping = config.striping()?;
    let watermarks = (config.low_watermark, config.high_watermark);
    let mut open =
        OpenOptions { sync: config.sync, watermarks, striping, with_ranks: true, ..OpenOptions::default() };
    open.policy = policy::from_table(config.policy.clone())
        .with_context(|| format!("[policy] in {} is invalid", file.display()))?;
    if let Some(memory) = &config.memory {
        open.memory = parse_size(memory).ok().context("memory is a size such as 512M or 4G")?;
    }
    (open.session_ms, open.lease_ms) =
        (Some(config.session_seconds * 1000), Some(config.lease_seconds * 1000));
    let security = if config.insecure {
        eprintln!(
            "espalier: WARNING: no TLS: everyone who can reach {listen} can read and change everything. Only for trials on one machine."
        );
        Security::Insecure
    } else {
        Security::load_from(&base.join(&config.credentials))?
    };
    if args.announce {
        let _ = rustix::process::setsid();
        start_log(log, std::sync::Mutex::new(log_file(&base.join("log"))?))?;
    } else {
        start_log(log, std::io::stderr)?;
    }
    let number = ServerId(config.number);
    let session = Duration::from_secs(config.session_seconds.into());
    let options = ServeOptions {
        listen,
        security,
        limits: Limits { eager_bytes: config.eager_bytes, ..Limits::for_sessions(session) },
        max_connections: config.max_connections,
        threads: config.threads.unwrap_or_else(threads_for_servers),
        metrics: config.metrics.as_deref().map(metrics_address).transpose()?,
        slow: Some(Duration::from_secs(1)),
        drain: DRAIN,
        read_settings: Some(read_settings(file.clone())),
    };
    raise_limit(config.max_connections);
    let data_key = config.data_key.as_ref().map(|file| SealKey::load(&base.join(file))).transpose()?;
    let data = match config.has(Role::Data) {
        true => {
            let store = base.join(&config.data_store);
            let store = patiently(&(&store).into(), || DataStore::open(&store, number, config.sync))?;
            let store = if config.high_watermark == 1 { store.individually() } else { store };
            Some(DataRole { store, data_key: data_key.clone() })
        }
        false => None,
    };
    let meta = match config.has(Role::Meta) {
        true => Some(meta_role(config, open, data_key, (base, args.anew))?),
        false => None,
    };
    let served = espalier_runtime::serve(meta, data, options, |address| {
        if args.announce {
            announce();
        } else {
            let _ = writeln!(std::io::stdout(), "serving {} at espalier://{address}/", base.display());
        }
    });
    match served {
        Err(Error::BrokenJournal) => start_anew(),
        served => Ok(served.map(|()| ExitCode::SUCCESS)?),
    }
}

/// Replaces the program by another start of it, with a new connection to the store.
fn start_anew() -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot start anew")?;
    let args = std::env::args_os().skip(1).filter(|arg| arg != ServeArgs::ANEW);
    let failed = Command::new(program).args(args).arg(ServeArgs::ANEW).exec();
    Err(failed).context("cannot start anew")
}

/// The metadata service of a server. `base`: the directory of its configuration. `waits`: for the
/// store that servers share.
fn meta_role(
    config: Config,
    mut open: OpenOptions,
    data_key: Option<SealKey>,
    (base, waits): (&Path, bool),
) -> Result<MetaRole> {
    let source = match config.shared() {
        Some(store) => RankSource::Shared(loop {
            match shared::ranks(&config, store, open.clone(), base) {
                Err(error) if waits => tracing::warn!("the store does not answer yet: {error:#}"),
                outcome => break outcome?,
            }
            std::thread::sleep(RETRY);
        }),
        None => {
            let paths = config.rank_stores(base);
            // The limit is the process's.
            open.memory /= paths.len() as u64;
            let stores = paths.into_iter().map(|path| own_store(path, open.clone()));
            RankSource::Own { stores: stores.collect::<Result<_>>()?, ranks: config.rank_addresses() }
        }
    };
    let (access, session_ms) = (Access { clients: config.clients }, config.session_seconds * 1000);
    let address = |entry: DataEntry| (ServerId(entry.number), entry.address);
    let data_servers = config.data.into_iter().map(address).collect();
    Ok(MetaRole { source, access, session_ms, data_servers, data_key })
}

fn own_store(path: PathBuf, open: OpenOptions) -> Result<OwnStore> {
    let volume = open_patiently(&(&path).into(), open)?;
    if volume.replayed > 0 {
        tracing::info!(rank = %volume.superblock.rank, events = volume.replayed, "replayed the journal");
    }
    Ok(OwnStore { volume, path })
}

/// Rereads the settings that can change at run time from the configuration.
fn read_settings(file: PathBuf) -> ReadSettings {
    Arc::new(move || {
        Config::read(&file)
            .map(|config| Settings {
                ranks: config.rank_addresses(),
                access: Access { clients: config.clients },
                watermarks: (config.low_watermark, config.high_watermark),
                eager_bytes: config.eager_bytes,
            })
            .inspect_err(|error| tracing::error!("{error:#}: the settings are unchanged"))
            .ok()
    })
}

/// Raises the limit of open files: each connection needs one.
fn raise_limit(max_connections: usize) {
    /// Estimate of the files that the store has open.
    const OTHERS: usize = 1024;
    let needed = max_connections + OTHERS;
    if let Err(current) = espalier_runtime::may_open(needed as u64) {
        tracing::warn!(
            current,
            needed,
            "this process may not open as many files as max_connections asks for: raise `ulimit -Hn`, or LimitNOFILE= of its service"
        );
    }
}
