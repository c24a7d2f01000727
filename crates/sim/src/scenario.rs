//! Scenarios: TOML files that describe a simulation.

use std::path::{Path, PathBuf};

use espalier_policy::{Policy, PolicyError};
use serde::Deserialize;

use crate::balancer::BalancerSettings;
use crate::clock::ClockSettings;
use crate::disk::DiskSettings;
use crate::dist::Distribution;
use crate::faults::{FaultKind, FaultSettings};
use crate::model::{Model, ModelError, ModelSettings};
use crate::network::NetworkSettings;
use crate::node::NodeNumbers;
use crate::quantity::{Bytes, parse_time};
use crate::source::Workload;
use crate::storage::{OSDS, StoreKind};
use crate::sweep::SweepSettings;
use crate::time::Nanos;

/// A scenario. A run is a function of it and its seed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    pub seed: u64,
    pub cluster: Cluster,
    pub policy: FilePolicy,
    pub model: ModelSettings,
    pub network: NetworkSettings,
    pub disk: DiskSettings,
    pub clock: ClockSettings,
    pub faults: FaultSettings,
    pub balancer: BalancerSettings,
    /// A file made by `espalier sim calibrate`, instead of `model` and `network`.
    pub machine: Option<PathBuf>,
    pub workload: Vec<Workload>,
    pub sweep: SweepSettings,
    pub output: OutputSettings,
    /// Directory of the scenario; file names are relative to it.
    #[serde(skip)]
    pub dir: PathBuf,
    /// Contents of the file `machine`.
    #[serde(skip)]
    pub on: Option<Machine>,
}

/// A calibrated machine that runs clients and servers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// Processors shared by all nodes; `None`: each node has its own.
    pub processors: Option<usize>,
    pub network: NetworkSettings,
    pub model: ModelSettings,
}

/// The table `[cluster]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Number of metadata servers, or of ranks if servers fail over.
    pub ranks: u16,
    /// Times at which the last ones of `ranks` join, ascending. The other servers hear of each
    /// within a second.
    pub joins: Vec<Nanos>,
    /// Metadata servers that leave, ascending. The other servers hear of each within a second.
    pub leaves: Vec<Leave>,
    /// Migrations of the store of the only metadata server, which stands for an embedded mount.
    pub migrations: Vec<Migration>,
    /// Time of each step of a migration.
    pub migration_step: Distribution,
    /// Number of servers that share one store and fail over; 0: each rank has a server with a store
    /// of its own.
    pub servers: u16,
    /// If `servers` share a store: bytes of big files are in an erasure-coded pool of their own.
    pub data_pool: bool,
    /// With `data_pool`: clients read and write that pool themselves, except each third one.
    pub direct: bool,
    /// How many of `servers` start only when the others hold all ranks.
    pub standbys: u16,
    /// Standbys follow the journals of ranks that others serve.
    pub standby_replay: bool,
    /// Number of data servers.
    pub data: u16,
    pub clients: u32,
    /// Requests that a server executes in parallel.
    pub cores: usize,
    pub durability: Durability,
    /// With durable acknowledgements: while more requests than `low_watermark` wait to be served,
    /// commits are deferred until `high_watermark` changes wait for one. A high watermark of 1
    /// commits each change by itself (carns III.C).
    pub low_watermark: usize,
    pub high_watermark: usize,
    pub cache: Caching,
    /// Metadata write-back in exclusive directories.
    pub writeback: bool,
    /// Time of silence after which a client's session ends.
    pub session: Nanos,
    pub lease: Nanos,
    /// Largest size of a stuffed file.
    pub strip: Bytes,
    pub journal: Bytes,
    /// Approximate memory of a metadata server for its tables.
    pub memory: Bytes,
    /// Number of names that a step of a split or move has.
    pub names_per_step: u64,
    /// Time limit, after the end of all processes, for everything to become idle.
    pub drain: Nanos,
}

/// A metadata server that leaves: another one takes over its ranks, with their stores.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    pub at: Nanos,
    /// Numbers of both: those of the ranks that they had at the beginning.
    pub server: u16,
    pub to: u16,
}

/// A migration to another store.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    pub at: Nanos,
    pub to: StoreKind,
}

impl Cluster {
    /// True if the servers that leave, and those that take over, are there until then.
    fn are_leaves_possible(&self) -> bool {
        let Self { leaves, servers, .. } = self;
        let are_there = leaves.iter().enumerate().all(|(at, Leave { server, to, .. })| {
            let is_there = |number: &u16| {
                *number < self.first_ranks() && !leaves[..at].iter().any(|before| before.server == *number)
            };
            server != to && is_there(server) && is_there(to)
        });
        are_there && leaves.is_sorted_by_key(|leave| leave.at) && (leaves.is_empty() || *servers == 0)
    }

    /// True if a client reads and writes the data pool itself.
    pub fn is_direct(&self, client: u32) -> bool {
        self.direct && client % 3 != 1
    }

    /// Number of ranks at the beginning.
    pub fn first_ranks(&self) -> u16 {
        self.ranks.saturating_sub(self.joins.len() as u16)
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            ranks: 1,
            joins: Vec::new(),
            leaves: Vec::new(),
            migrations: Vec::new(),
            migration_step: Distribution::constant(Nanos(50_000_000)),
            servers: 0,
            data_pool: false,
            direct: false,
            standbys: 0,
            standby_replay: false,
            data: 0,
            clients: 1,
            cores: 1,
            durability: Durability::Written,
            low_watermark: espalier_meta::Config::WATERMARKS.0,
            high_watermark: espalier_meta::Config::WATERMARKS.1,
            cache: Caching::Leases,
            writeback: true,
            session: Nanos::from_millis(60_000),
            lease: Nanos::from_millis(10_000),
            strip: Bytes(64 << 10),
            journal: Bytes(16 << 20),
            memory: Bytes(1 << 30),
            names_per_step: espalier_meta::Config::SPLIT_NAMES,
            drain: Nanos::from_millis(300_000),
        }
    }
}

/// The table `[policy]`: default policy of the metadata servers, as in a server's configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct FilePolicy(pub Policy);

impl TryFrom<toml::Table> for FilePolicy {
    type Error = PolicyError;
    fn try_from(table: toml::Table) -> Result<Self, PolicyError> {
        let text = |value: toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Policy::parse(table.into_iter().map(|(name, value)| (name, text(value)))).map(Self)
    }
}

/// When changes are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When they are in the journal's file: a loss of power may take the last second.
    Written,
    Durable,
}

/// The caching mode of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Caching {
    Leases,
    None,
    /// Names and attributes for a fixed term, without leases.
    Ttl(Nanos),
}

impl TryFrom<String> for Caching {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match (text.as_str(), text.strip_prefix("ttl ").and_then(parse_time)) {
            ("leases", _) => Ok(Self::Leases),
            ("none", _) => Ok(Self::None),
            (_, Some(time)) => Ok(Self::Ttl(time)),
            _ => Err(format!("`{text}` is not \"leases\", \"none\", or a time as \"ttl 100 ms\"")),
        }
    }
}

/// The table `[output]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputSettings {
    /// Sampling interval of series.
    pub series: Nanos,
}

impl Default for OutputSettings {
    fn default() -> Self {
        Self { series: Nanos::from_millis(1000) }
    }
}

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("{}: {cause}", path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    /// The cause contains the line.
    #[error("{}: {cause}", path.display())]
    Malformed { path: PathBuf, cause: Box<toml::de::Error> },
    #[error("{key}: {wanted}")]
    Bad { key: String, wanted: String },
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Machine {
    /// # Errors
    /// [`ScenarioError`]
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ScenarioError::Read { path: path.into(), cause })?;
        Self::parse(&text, path)
    }

    /// # Errors
    /// [`ScenarioError`]
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        let machine: Self = toml::from_str(text)
            .map_err(|cause| ScenarioError::Malformed { path: path.into(), cause: Box::new(cause) })?;
        if machine.processors.is_some_and(|processors| !(1..=4096).contains(&processors)) {
            let (key, wanted) = ("processors".into(), "it is 1 to 4096".into());
            return Err(ScenarioError::Bad { key, wanted });
        }
        Ok(machine)
    }
}

impl Scenario {
    /// # Errors
    /// [`ScenarioError`]
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ScenarioError::Read { path: path.into(), cause })?;
        let mut scenario = Self::parse(&text, path)?;
        scenario.dir = path.parent().unwrap_or(Path::new("")).into();
        if let Some(machine) = &scenario.machine {
            scenario.on = Some(Machine::read(&scenario.dir.join(machine))?);
        }
        Ok(scenario)
    }

    /// Parses a scenario. `path`: its file, for messages and relative file names.
    ///
    /// # Errors
    /// [`ScenarioError`]
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text)
            .map_err(|cause| ScenarioError::Malformed { path: path.into(), cause: Box::new(cause) })?;
        scenario.sweep.scenarios(&scenario).iter().try_for_each(Self::check)?;
        Ok(scenario)
    }

    /// # Errors
    /// [`ScenarioError::Model`]
    pub fn cost_model(&self) -> Result<Model, ScenarioError> {
        let settings = self.on.as_ref().map_or(&self.model, |machine| &machine.model);
        Ok(Model::new(settings, &self.dir)?)
    }

    /// The network between nodes.
    pub fn network(&self) -> &NetworkSettings {
        self.on.as_ref().map_or(&self.network, |machine| &machine.network)
    }

    /// Processors shared by all nodes, if they run on one machine.
    pub fn processors(&self) -> Option<usize> {
        self.on.as_ref().and_then(|machine| machine.processors)
    }

    /// Checks the ranges and combinations of values.
    fn check(&self) -> Result<(), ScenarioError> {
        let Cluster {
            ranks,
            servers,
            data_pool,
            direct,
            standbys,
            data,
            clients,
            cores,
            session,
            lease,
            strip,
            journal,
            ref joins,
            ..
        } = self.cluster;
        let loss = self.network.loss;
        // A restarted server refuses changes until all leases have expired.
        let checks = [
            ((1..=4096).contains(&ranks), "[cluster] ranks", "1 to 4096"),
            (
                joins.len() < ranks.into() && joins.is_sorted() && (joins.is_empty() || servers == 0),
                "[cluster] joins",
                "one ascending time for each rank that joins, less than `ranks`, and none with `servers`",
            ),
            (
                self.cluster.are_leaves_possible(),
                "[cluster] leaves",
                "ascending, of servers that are there, and none with `servers`",
            ),
            (
                self.cluster.migrations.is_empty() || ranks == 1 && servers == 0,
                "[cluster] migrations",
                "of the store of one metadata server only",
            ),
            (data <= 4096, "[cluster] data", "at most 4096"),
            (servers <= 64, "[cluster] servers", "at most 64"),
            (servers == 0 || ranks <= 64, "[cluster] ranks", "at most 64 with `servers`"),
            (servers == 0 || data == 0, "[cluster] data", "0 with `servers`"),
            (!data_pool || servers > 0, "[cluster] data_pool", "with `servers` only"),
            (!direct || data_pool, "[cluster] direct", "with `data_pool` only"),
            (standbys == 0 || standbys < servers, "[cluster] standbys", "less than `servers`"),
            (
                servers == 0 || self.cluster.durability == Durability::Durable,
                "[cluster] durability",
                "\"durable\" with `servers`",
            ),
            ((1..=1_000_000).contains(&clients), "[cluster] clients", "1 to 1000000"),
            ((1..=4096).contains(&cores), "[cluster] cores", "1 to 4096"),
            (self.cluster.names_per_step > 0, "[cluster] names_per_step", "1 at least"),
            (self.cluster.high_watermark > 0, "[cluster] high_watermark", "1 at least"),
            (session >= Nanos::from_millis(1000), "[cluster] session", "at least 1 s"),
            (session <= Nanos::from_millis(86_400_000), "[cluster] session", "at most 24 h"),
            (
                (Nanos::from_millis(100)..=session).contains(&lease),
                "[cluster] lease",
                "at least 100 ms, and at most as long as a session",
            ),
            (journal.0 >= 2 << 20 && journal.0 <= 1 << 30, "[cluster] journal", "2 MiB to 1 GiB"),
            (journal.0.is_multiple_of(8), "[cluster] journal", "a multiple of 8 B"),
            (
                strip.0 <= 1 << 20 && strip.0 <= journal.0 / 16,
                "[cluster] strip",
                "at most 1 MiB, and a sixteenth of the journal",
            ),
            ((0.0..0.9).contains(&loss), "[network] loss", "0 to 0.9"),
            ((0.0..=1e5).contains(&self.clock.drift_ppm), "[clock] drift_ppm", "0 to 100000"),
            (
                self.clock.skew.is_none_or(|skew| skew <= Nanos::from_millis(86_400_000)),
                "[clock] skew",
                "at most 24 h",
            ),
            (
                self.faults.slowness.is_none_or(|slowness| (1.0..=1e6).contains(&slowness)),
                "[faults] slowness",
                "1 to 1000000",
            ),
            (self.output.series >= Nanos(1_000_000), "[output] series", "at least 1 ms"),
        ];
        let is_said = self.model != ModelSettings::default() || self.network != NetworkSettings::default();
        if self.machine.is_some() && is_said {
            let wanted = "it stands for [model] and [network]: leave it out, or these".into();
            return Err(ScenarioError::Bad { key: "machine".into(), wanted });
        }
        for (fits, key, wanted) in checks {
            if !fits {
                return Err(ScenarioError::Bad { key: key.into(), wanted: format!("it is {wanted}") });
            }
        }
        self.balancer.check()?;
        FaultKind::ALL.into_iter().try_for_each(|kind| self.check_fault(kind))
    }

    fn check_fault(&self, kind: FaultKind) -> Result<(), ScenarioError> {
        let Some(fault) = self.faults.of(kind) else { return Ok(()) };
        let bad =
            |wanted: String| Err(ScenarioError::Bad { key: format!("[faults] {}", kind.name()), wanted });
        if fault.every.is_none() && fault.at.is_empty() {
            return bad("it says `every` how much time it happens, or `at` which times".into());
        }
        if fault.every.as_ref().is_some_and(|every| every.mean() < Nanos::from_millis(1)) {
            return bad("it happens every 1 ms at most".into());
        }
        let Cluster { servers, ranks, data, clients, .. } = self.cluster;
        match (kind.of_failover(), servers) {
            (Some(true), 0) => return bad("it concerns clusters with `servers`".into()),
            (Some(false), 1..) => return bad("it concerns clusters without `servers`".into()),
            _ => {}
        }
        let nodes = match kind {
            FaultKind::ClientCrash => clients,
            FaultKind::Late => self.nodes(),
            FaultKind::OsdDown => OSDS as u32,
            _ if servers > 0 => servers.into(),
            _ => u32::from(ranks) + u32::from(data),
        };
        match fault.nodes.iter().find(|node| **node >= nodes) {
            Some(node) => {
                bad(format!("there is no node {node}: the valid numbers are from 0 to {}", nodes - 1))
            }
            None => Ok(()),
        }
    }

    /// Number of nodes of all types.
    pub fn nodes(&self) -> u32 {
        NodeNumbers::of(&self.cluster).count()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Scenario, String> {
        Scenario::parse(text, Path::new("it.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_scenario_has_defaults() {
        let scenario = parse("").unwrap();
        assert_eq!((scenario.cluster.ranks, scenario.cluster.clients, scenario.seed), (1, 1, 0));
        assert_eq!(scenario.nodes(), 2);
    }

    #[test]
    fn all_can_be_said() {
        let scenario = parse(
            "seed = 7\n[cluster]\nranks = 4\ndata = 3\nclients = 32\ndurability = \"durable\"\ncache = \"ttl 100 ms\"\n\
             [model]\npreset = \"wu\"\nlookup = { uniform = [\"1 us\", \"2 us\"] }\n\
             [network]\npreset = \"myri10g\"\nloss = 0.001\n[disk]\nsync = \"5 ms\"\n[clock]\nskew = \"1 s\"\ndrift_ppm = 50\n\
             [faults]\nuntil = \"30 s\"\ncrash = { every = { exponential = \"5 s\" }, for = \"1 s\" }\n[output]\nseries = \"100 ms\"\n",
        )
        .unwrap();
        assert_eq!(scenario.cluster.durability, Durability::Durable);
        assert_eq!(scenario.cluster.cache, Caching::Ttl(Nanos::from_millis(100)));
        assert_eq!(scenario.nodes(), 39);
        assert!(scenario.cost_model().is_ok());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("[cluster]\nrank = 4", "line 2"),
            ("[cluster]\nrank = 4", "`rank`"),
            ("[cluster]\nranks = 0", "[cluster] ranks: it is 1 to 4096"),
            ("[cluster]\ncache = \"some\"", "`some`"),
            ("[cluster]\ncache = \"ttl 5\"", "`ttl 5`"),
            ("[cluster]\nlease = \"100 s\"", "as long as a session"),
            ("[network]\nloss = 1.0", "[network] loss"),
            ("[faults]\ncrash = {}", "[faults] crash: it says `every`"),
            ("[faults]\ncrash = { every = \"1 us\" }", "1 ms"),
            ("[faults]\npower = { at = [\"1 s\"], nodes = [1] }", "there is no node 1"),
            ("[policy]\nstuffing = \"perhaps\"", "true or false, and not `perhaps`"),
            ("[[nothing]]", "`nothing`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
