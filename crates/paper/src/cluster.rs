//! A temporary cluster on this machine.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use espalier_balancer::BalancerPolicy;
use espalier_client::{Answer, Call};
use espalier_library::{Client, Credentials};
use espalier_meta::{BalancerCommand, BalancerReport, StoredPolicy, decode, encode};
use espalier_proto::{Caller, Ino, Request, Time, XattrMode};
use tempfile::TempDir;

use crate::error::PaperError;

/// Shape of the cluster.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub servers: u16,
    /// Metadata servers: the first ones.
    pub ranks: u16,
    /// Without TLS.
    pub insecure: bool,
    /// Lines for each server's configuration.
    pub settings: toml::Table,
    /// Stores lie in memory, where syncs are free.
    pub in_memory: bool,
}

/// A cluster in a directory of its own. Dropping it stops the servers and removes the directory.
#[derive(Debug)]
pub struct LocalCluster {
    program: PathBuf,
    dir: TempDir,
    url: String,
    insecure: bool,
}

/// Linux's file system in memory.
const MEMORY: &str = "/dev/shm";
/// A journal is written once at the start: those of eight servers would take 2 GiB by default.
const JOURNAL: &str = "32M";
/// Attempts to find a range of ports.
const TRIES: u32 = 100;
/// The root's attribute that shows and changes the balancer.
const BALANCER: &str = "user.espalier.balancer";

impl LocalCluster {
    /// `program`: the `espalier` binary, whose command `cluster` is used.
    ///
    /// # Errors
    /// [`PaperError::Cluster`]: the output of that command.
    pub fn start(program: &Path, wanted: &Wanted) -> Result<Self, PaperError> {
        let mut dir = tempfile::Builder::new();
        let dir = dir.prefix("espalier-cluster-");
        let dir = if wanted.in_memory { dir.tempdir_in(MEMORY)? } else { dir.tempdir()? };
        let listen = format!("127.0.0.1:{}", free_ports(wanted.servers)?);
        let url = format!("espalier://{listen}/");
        let cluster = Self { program: program.into(), dir, url, insecure: wanted.insecure };
        let (servers, ranks) = (wanted.servers.to_string(), wanted.ranks.to_string());
        let mut options =
            vec!["--listen", &listen, "--servers", &servers, "--ranks", &ranks, "--journal", JOURNAL];
        options.extend(wanted.insecure.then_some("--insecure"));
        cluster.command("init", &options)?;
        for server in 0..wanted.servers {
            cluster.configure(server, &wanted.settings)?;
        }
        cluster.command("up", &[])?;
        Ok(cluster)
    }

    /// The cluster's directory.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().join("cluster")
    }

    /// The servers' store directories.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn stores(&self) -> Result<Vec<PathBuf>, PaperError> {
        let servers = std::fs::read_dir(self.dir())?;
        let servers = servers.map(|server| Ok(server?.path())).collect::<std::io::Result<Vec<_>>>()?;
        let stores = servers.iter().flat_map(|server| ["store", "data"].map(|role| server.join(role)));
        Ok(stores.filter(|store| store.join("control").exists()).collect())
    }

    /// Stops the servers.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn stop(&self) -> Result<(), PaperError> {
        self.command("down", &[])
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn credentials(&self) -> Credentials {
        match self.insecure {
            true => Credentials::Insecure,
            false => Credentials::Directory(self.dir().join("clients").join("admin")),
        }
    }

    /// Has the metadata servers balance their load with a policy.
    ///
    /// # Errors
    /// They refuse it.
    pub fn balance(&self, policy: &BalancerPolicy, every_s: u32) -> Result<(), PaperError> {
        let stored = StoredPolicy {
            version: 1,
            name: policy.name().into(),
            text: policy.text().into(),
            every_s,
            who: "an experiment".into(),
            why: String::new(),
            time: Time::default(),
        };
        let value = encode(&BalancerCommand::Set(stored)).into();
        let (name, mode) = (BALANCER.as_bytes().into(), XattrMode::Any);
        self.ask(Request::SetXattr { ino: Ino::ROOT, name, value, mode, kill_sgid: false }).map(drop)
    }

    /// Number of moves that the balancer has begun.
    ///
    /// # Errors
    /// The servers do not answer, or there is no balancer.
    pub fn balancer_moves(&self) -> Result<u64, PaperError> {
        let answer = self.ask(Request::GetXattr { ino: Ino::ROOT, name: BALANCER.as_bytes().into() })?;
        let Answer::Bytes(value) = answer else { return Err(PaperError::Nothing(BALANCER)) };
        let report: BalancerReport = decode(&value).map_err(|_| PaperError::Nothing(BALANCER))?;
        Ok(report.ranks.iter().flat_map(|(_, status)| status).map(|status| status.moves).sum())
    }

    fn ask(&self, request: Request) -> Result<Answer, PaperError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = Client::connect(&self.url, &self.credentials(), false).await?;
            let answer = client.call(Caller::SERVER, Call::Request(request)).await;
            client.close().await;
            answer.map_err(|errno| PaperError::Failed { kind: BALANCER, errno })
        })
    }

    fn configure(&self, server: u16, settings: &toml::Table) -> Result<(), PaperError> {
        let path = self.dir().join(format!("server-{server}")).join("server.toml");
        let failed = |cause| PaperError::File { path: path.clone(), cause };
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let parsed: Result<toml::Table, _> = text.parse();
        let mut table = parsed.map_err(|error| PaperError::Cluster(error.to_string()))?;
        table.extend(settings.clone());
        std::fs::write(&path, table.to_string()).map_err(failed)
    }

    fn command(&self, command: &str, options: &[&str]) -> Result<(), PaperError> {
        let mut espalier = Command::new(&self.program);
        let espalier = espalier.args(["cluster", command]).arg(self.dir()).args(options).stdin(Stdio::null());
        // A process group of its own: a signal to this program's group must not end the cleanup.
        let output = espalier.process_group(0).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(PaperError::Cluster(format!("cluster {command}: {}", said.trim())))
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        // Without servers there is nothing to stop.
        let _ = self.command("down", &[]);
    }
}

/// The first of `count` free ports. If another program takes one in the next moment, the servers
/// report it.
fn free_ports(count: u16) -> Result<u16, PaperError> {
    for _ in 0..TRIES {
        let first = fastrand::u16(20_000..30_000);
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (first..first + count).all(is_free) {
            return Ok(first);
        }
    }
    Err(PaperError::Cluster(format!("there are no {count} free ports in a row")))
}
