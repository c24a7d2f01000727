//! Servers on this machine, for a while.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use espalier_library::Credentials;
use tempfile::TempDir;

use crate::error::PaperError;

/// What cluster is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub servers: u16,
    /// The first ones share the tree.
    pub ranks: u16,
    /// No TLS.
    pub insecure: bool,
    /// What is to be said in the configuration of each server.
    pub settings: toml::Table,
    /// Its stores lie in memory, where syncs cost nothing.
    pub in_memory: bool,
}

/// A cluster in a directory of its own. It ends, and what it holds goes, when this is dropped.
#[derive(Debug)]
pub struct LocalCluster {
    program: PathBuf,
    dir: TempDir,
    url: String,
    insecure: bool,
}

/// A file system in memory that Linux has.
const MEMORY: &str = "/dev/shm";
/// It is written once before a server begins: those of eight servers would be 2 GiB.
const JOURNAL: &str = "32M";
/// So often a range of ports is looked for.
const TRIES: u32 = 100;

impl LocalCluster {
    /// `program`: `espalier`, whose command `cluster` is used.
    ///
    /// # Errors
    /// [`PaperError::Cluster`]: what that says.
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

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().join("cluster")
    }

    /// Where its servers keep what they have.
    ///
    /// # Errors
    /// Its directory cannot be read.
    pub fn stores(&self) -> Result<Vec<PathBuf>, PaperError> {
        let servers = std::fs::read_dir(self.dir())?;
        let servers = servers.map(|server| Ok(server?.path())).collect::<std::io::Result<Vec<_>>>()?;
        let stores = servers.iter().flat_map(|server| ["store", "data"].map(|role| server.join(role)));
        Ok(stores.filter(|store| store.join("control").exists()).collect())
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
        // What ends this program, and is sent to its whole group, is not to end what it cleans up with.
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
        // Without servers there is nothing to end.
        let _ = self.command("down", &[]);
    }
}

/// The first of so many ports that nobody uses; most likely nobody takes them within the next moment, and else the servers say so.
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
