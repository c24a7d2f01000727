//! `espalier cluster`: a cluster's files, and its servers on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use espalier_net::Identity;
use espalier_net::pki::{AUTHORITY, Authority, CERTIFICATE, Issued, KEY, Validity};
use espalier_runtime::{MkfsOptions, Servers, Status};

use crate::args::{ClusterCommand, InitArgs};
use crate::background;
use crate::serve::Config;

/// A server's configuration, in its directory.
const CONFIG: &str = "server.toml";
/// The client that `init` makes.
const ADMIN: &str = "admin";
/// How long certificates are good.
const YEARS: u32 = 10;
/// How long a server may take to stop.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) fn cluster(command: &ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Init(args) => init(args),
        ClusterCommand::Client { dir, name } => client(dir, name),
        ClusterCommand::Up { dir } => up(dir),
        ClusterCommand::Down { dir } => down(dir),
        ClusterCommand::Status { dir, json } => status(dir, *json),
    }
}

fn init(args: &InitArgs) -> Result<ExitCode> {
    let dir = &args.dir;
    if args.servers != 1 {
        bail!("a cluster has one server for now: give --servers 1");
    }
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is not empty: a new cluster needs a directory of its own", dir.display());
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let config = Config::new(args.listen.clone(), args.insecure);
    let address = config.address()?;
    let server = dir.join("server-0");
    fs::create_dir(&server)?;
    let mut text = String::from("# A server of Espalier; docs/cluster.md says what can be set.\n");
    text.push_str(&toml::to_string(&config)?);
    fs::write(server.join(CONFIG), text)?;
    if !args.insecure {
        let authority = Authority::create(dir, Validity::years(YEARS))?;
        let mut hosts = args.hosts.clone();
        hosts.push(address.ip().to_string());
        if let Some((host, _)) = args.listen.rsplit_once(':') {
            hosts.push(host.to_string());
        }
        hosts.sort();
        hosts.dedup();
        let identity = Identity::server("server-0")?;
        write(&authority.issue_server(&identity, &hosts, Validity::years(YEARS))?, dir, &server)?;
        issue_client(&authority, dir, ADMIN)?;
    }
    let options = MkfsOptions {
        label: args.label.clone(),
        strip_bytes: MkfsOptions::STRIP_BYTES,
        journal_bytes: None,
        force: false,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        perm: 0o755,
    };
    espalier_runtime::mkfs(&server.join(&config.store), &options)?;
    println!("made a cluster of 1 server in {}; `espalier cluster up {0}` starts it", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes the credentials of one side: the authority's certificate, its own, and its key.
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

/// The directories of a cluster's servers.
fn servers(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("no cluster in {}", dir.display()))?;
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join(CONFIG).is_file())
        .collect();
    found.sort();
    if found.is_empty() {
        bail!("no cluster in {}: `espalier cluster init` makes one", dir.display());
    }
    Ok(found)
}

fn store_of(server: &Path) -> Result<PathBuf> {
    Ok(server.join(Config::read(&server.join(CONFIG))?.store))
}

/// How a server is, if it runs.
fn running(server: &Path) -> Result<Option<Status>> {
    Ok(Some(espalier_runtime::status_of(&store_of(server)?)?).filter(|status| status.url.is_some()))
}

fn up(dir: &Path) -> Result<ExitCode> {
    let mut url = None;
    for server in servers(dir)? {
        let config = server.join(CONFIG);
        if running(&server)?.is_none() {
            let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
            command
                .args(["--log", "info", "serve", "--announce", "--config"])
                .arg(&config)
                .stdin(Stdio::null());
            let code = background::start(command)?;
            if code != ExitCode::SUCCESS {
                return Ok(code);
            }
        }
        url = running(&server)?.and_then(|status| status.url);
    }
    let Some(url) = url else { bail!("the server has ended again: see its log in {}", dir.display()) };
    let how = if dir.join(AUTHORITY).is_file() {
        format!("credentials={}", dir.join("clients").join(ADMIN).display())
    } else {
        "insecure".into()
    };
    println!("running; mount with\n  espalier mount {url} MOUNTPOINT -o {how}");
    Ok(ExitCode::SUCCESS)
}

fn down(dir: &Path) -> Result<ExitCode> {
    for server in servers(dir)? {
        let store = store_of(&server)?;
        let Some(pid) = running(&server)?.and_then(|status| status.pid) else { continue };
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the server has no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .with_context(|| format!("cannot stop the server of {}", server.display()))?;
        let began = Instant::now();
        while espalier_store::is_open(&store) {
            if began.elapsed() > PATIENCE {
                bail!("the server of {} still runs after {PATIENCE:?}: see its log", server.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn status(dir: &Path, json: bool) -> Result<ExitCode> {
    let servers = servers(dir)?;
    let mut all = Vec::new();
    for server in &servers {
        all.push((server, running(server)?));
    }
    let is_up = all.iter().all(|(_, status)| status.is_some());
    if json {
        let url = all.iter().find_map(|(_, status)| status.as_ref()?.url.clone());
        let list: Vec<_> = all
            .iter()
            .map(|(server, status)| serde_json::json!({ "dir": server, "running": status.is_some(), "status": status }))
            .collect();
        println!("{}", serde_json::json!({ "url": url, "servers": list }));
    } else {
        for (server, status) in &all {
            let name = server.file_name().unwrap_or_default().to_string_lossy();
            match status {
                None => println!("{name}  not running"),
                Some(status) => println!(
                    "{name}  {}  process {}  {} clients  {} inodes in use{}",
                    status.url.as_deref().unwrap_or_default(),
                    status.pid.unwrap_or_default(),
                    status.clients.unwrap_or_default(),
                    status.files.unwrap_or_default(),
                    status.failure.as_ref().map(|failure| format!("  FAILED: {failure}")).unwrap_or_default(),
                ),
            }
        }
    }
    Ok(if is_up { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Whether a text is the address of a server.
pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with(Servers::SCHEME)
}
