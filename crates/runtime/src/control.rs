//! The control socket of a mounted or served file system, which answers status queries. It is in
//! the store; for a remote store, in the system's runtime directory.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use espalier_meta::LoadReport;
use espalier_proto::{Errno, Ino};
use espalier_store::{MigrationState, StorePool, Superblock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::location::{StoreLocation, is_in_cluster};
use crate::migrate::MigrationStatus;
use crate::migrate_mounted::MigrationRequest;
use crate::remote::{Messages, SessionState};
use crate::tracer::{Traced, Tracer};
use crate::watch::{Figures, MachineFigures, Top, Watch};

/// The reply to a query that failed.
#[derive(Serialize, Deserialize)]
struct Refused {
    error: String,
}

/// Answers status queries; the process that runs the state machine implements it.
pub(crate) trait StatusSource: Sync {
    /// Number of inodes in use, and the failure of the machine, if any.
    fn state(&self) -> (u64, Option<Errno>);
    fn figures(&self) -> MachineFigures;
    /// The load of the metadata machine, with at most this many directories; `None`: there is none.
    fn load(&self, _most: usize) -> Option<LoadReport> {
        None
    }
    fn watch(&self) -> &Watch;
    fn tracer(&self) -> &Tracer;
    /// The path of an inode, as far as it is cached.
    fn path_of(&self, ino: Ino) -> Option<String>;
    /// Starts a migration of the store, or does nothing if the same one runs.
    fn migrate(&self, _request: MigrationRequest) -> Result<(), String> {
        Err("it is served to clients, and can be migrated while it is stopped only: see docs/migrate.md"
            .into())
    }
    /// The last migration that was started.
    fn migration(&self) -> Option<MigrationStatus> {
        None
    }
    fn stop_migration(&self) {}
    /// Adds what the machine does not know.
    fn complete(&self, status: &mut Status);
}

/// The status of a file system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub uuid: String,
    pub label: String,
    pub format: u32,
    /// The mount point; `None` also while the last changes are written out after an unmount.
    pub mountpoint: Option<PathBuf>,
    /// The process that serves it.
    pub pid: Option<u32>,
    /// The store that has the file system, if it was migrated.
    pub moved_to: Option<String>,
    pub strip_bytes: u32,
    /// The pools of a store in a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<StorePool>,
    /// Inodes in use; known while mounted.
    pub files: Option<u64>,
    pub journal_used_bytes: Option<u64>,
    /// Memory of cached inodes, dentries and small files, in bytes; known while mounted.
    pub cache_bytes: Option<u64>,
    pub journal_bytes: u64,
    /// Why the file system is read-only, or why checkpoints cannot be written.
    pub failure: Option<String>,
    /// True if the kernel reads and writes big files itself (passthrough).
    pub passthrough: Option<bool>,
    /// The transport of kernel requests: `uring` or `queues`.
    pub transport: Option<String>,
    /// The version of the FUSE protocol.
    pub fuse: Option<String>,
    /// The URL where it is served.
    pub url: Option<String>,
    /// Number of connected clients.
    pub clients: Option<usize>,
    /// Status of the connections to the other ranks.
    pub ranks: Option<RanksStatus>,
    /// Statistics; known while mounted or served.
    pub figures: Option<Figures>,
}

/// Status of a metadata server among the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RanksStatus {
    pub rank: u16,
    /// Number of metadata servers.
    pub ranks: u16,
    /// The connected ranks.
    pub connected: Vec<u16>,
    /// Number of unfinished transactions with other ranks.
    pub open: usize,
}

/// The status of a mount of servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// The mounted URL.
    pub url: String,
    pub mountpoint: PathBuf,
    /// The process that serves it.
    pub pid: u32,
    /// The transport of kernel requests: `uring` or `queues`.
    pub transport: String,
    /// The version of the FUSE protocol.
    pub fuse: String,
    /// True if all metadata servers are connected.
    pub connected: bool,
    /// Number of calls that wait for servers.
    pub waiting: usize,
    /// The sessions with the metadata servers, by rank.
    pub ranks: Vec<SessionState>,
    /// Counts of messages since mounting.
    pub messages: Messages,
    /// Counts of requests to servers, by operation.
    pub asked: BTreeMap<String, u64>,
    /// Calls that the cache answered.
    pub cache_hits: u64,
    /// Cached inodes and names.
    pub cache_inodes: u64,
    pub cache_names: u64,
    /// Partitioned directories whose fragment maps are known.
    pub partitioned_directories: u64,
    /// Replies that sent a request to another fragment, since mounting.
    pub redirects: u64,
    /// First pages of directories that were requested ahead of walks, and those that callers have
    /// read, since mounting.
    pub pages_ahead: u64,
    pub pages_ahead_read: u64,
}

impl Status {
    fn of(superblock: &Superblock) -> Self {
        Self {
            uuid: superblock.uuid.to_string(),
            label: superblock.label.clone(),
            format: superblock.format,
            mountpoint: None,
            pid: None,
            moved_to: match &superblock.migration {
                MigrationState::Moved { to } => Some(to.clone()),
                MigrationState::None | MigrationState::Incoming { .. } => None,
            },
            strip_bytes: superblock.strip_bytes,
            pools: Vec::new(),
            files: None,
            journal_used_bytes: None,
            cache_bytes: None,
            journal_bytes: superblock.journal_bytes,
            failure: None,
            passthrough: None,
            transport: None,
            fuse: None,
            url: None,
            clients: None,
            ranks: None,
            figures: None,
        }
    }
}

/// Longest question in bytes: paths of a migration.
const QUESTION_BYTES: u64 = 32 << 10;

/// Maximum time for which counting continues after a viewer's last query.
const LONGEST_WATCH: Duration = Duration::from_secs(600);

/// The socket of a store's machine. `store`: its name.
fn socket_path(store: &Path) -> Option<PathBuf> {
    if !store.is_dir() && is_in_cluster(store) {
        let name = store.to_string_lossy().replace('/', "+");
        return Some(runtime_directory()?.join(name));
    }
    Some(store.join("control"))
}

/// The directory for the sockets of mounts whose store is not a directory.
fn runtime_directory() -> Option<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    let base = if is_root { "/run".into() } else { PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?) };
    Some(base.join("espalier"))
}

/// The socket of a mount of servers, named after the mounted device's number, which is unique at a
/// time.
fn mount_socket_path(device: u32) -> Option<PathBuf> {
    Some(runtime_directory()?.join(format!("mount-{device}")))
}

/// The status of a mount of servers.
pub fn status_of_mount(mountpoint: &Path) -> Result<MountStatus, Error> {
    ask_mount(mountpoint, "status")
}

fn ask_mount<T: DeserializeOwned>(mountpoint: &Path, question: &str) -> Result<T, Error> {
    let device = espalier_fuse::mounted_device(mountpoint).map_err(|source| Error::Io {
        context: format!("cannot look at {}", mountpoint.display()),
        source,
    })?;
    let response = match device.and_then(mount_socket_path) {
        Some(path) => ask_at(&path, question),
        None => Err(std::io::ErrorKind::NotFound.into()),
    };
    response.map_err(|source| Error::Io {
        context: format!(
            "cannot ask the mount on {}: was it mounted by the same user?",
            mountpoint.display()
        ),
        source,
    })
}

/// The status of a store, mounted or not.
pub fn status_of(location: impl Into<StoreLocation>) -> Result<Status, Error> {
    let location = location.into();
    // The serving process answers even if its disk has failed.
    ask(&location.name(), "status").or_else(|_| {
        let (superblock, pools) = location.examine()?;
        Ok(Status { pools, ..Status::of(&superblock) })
    })
}

/// Activity by process and directory since the viewer's last query, at most `rows` of each.
/// Counting starts with the first query and continues while the next one comes within `lasting`.
pub fn top_of(store: &Path, viewer: u64, lasting: Duration, rows: usize) -> Result<Top, Error> {
    ask(store, &format!("top {viewer} {} {rows}", lasting.as_millis())).map_err(|source| Error::Io {
        context: format!(
            "cannot ask the file system in {}: is it mounted, and by the same user?",
            store.display()
        ),
        source,
    })
}

/// The loads of all ranks as the machine of a store knows them, and of at most `most` of its
/// directories, hottest first. Of a server that shares its store with others: `store` is the
/// server's directory.
///
/// # Errors
/// No process serves the metadata of the store, or another user's does.
pub fn load_of(store: &Path, most: usize) -> Result<LoadReport, Error> {
    ask(store, &format!("load {most}")).map_err(|source| Error::Io {
        context: format!(
            "cannot ask the file system in {}: is it mounted or served, by the same user?",
            store.display()
        ),
        source,
    })
}

/// Spans of a store's machine with numbers from `since` on; `None` returns none. Keeps tracing on
/// for `lasting`.
///
/// # Errors
/// No process serves the store, or another user's does.
pub fn trace_of(store: &Path, since: Option<u64>, lasting: Duration) -> Result<Traced, Error> {
    ask_for_spans(store, &trace_question(since, lasting))
}

/// As [`trace_of`], for a rank of a server that shares its store with others. `dir`: of the server.
///
/// # Errors
/// No such server runs, or another user's does; it does not serve the rank.
pub fn trace_of_rank(dir: &Path, rank: u16, since: Option<u64>, lasting: Duration) -> Result<Traced, Error> {
    ask_for_spans(dir, &format!("{} {rank}", trace_question(since, lasting)))
}

fn ask_for_spans(store: &Path, question: &str) -> Result<Traced, Error> {
    ask(store, question).map_err(|source| Error::Io {
        context: format!(
            "cannot trace what {} does: is it mounted or served, by the same user?",
            store.display()
        ),
        source,
    })
}

/// As [`trace_of`], for a mount of servers.
///
/// # Errors
/// The path is not such a mount, or another user's.
pub fn trace_of_mount(mountpoint: &Path, since: Option<u64>, lasting: Duration) -> Result<Traced, Error> {
    ask_mount(mountpoint, &trace_question(since, lasting))
}

fn trace_question(since: Option<u64>, lasting: Duration) -> String {
    let since = since.map_or_else(|| "-".into(), |since| since.to_string());
    format!("trace {since} {}", lasting.as_millis())
}

/// Answers a trace query with these arguments.
pub(crate) fn answer_trace(tracer: &Tracer, since: &str, millis: &str) -> serde_json::Result<String> {
    let number = if since == "-" { Some(None) } else { since.parse().ok().map(Some) };
    let (Some(since), Ok(millis)) = (number, millis.parse()) else { return refused("malformed question") };
    serde_json::to_string(&tracer.report(since, Duration::from_millis(millis).min(LONGEST_WATCH)))
}

pub(crate) fn ask<T: DeserializeOwned>(store: &Path, question: &str) -> std::io::Result<T> {
    ask_at(&socket_path(store).ok_or(std::io::ErrorKind::NotFound)?, question)
}

fn ask_at<T: DeserializeOwned>(socket: &Path, question: &str) -> std::io::Result<T> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    writeln!(stream, "{question}")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let refused: Option<Refused> = serde_json::from_str(&text).ok();
    refused.map_or_else(
        || Ok(serde_json::from_str(&text)?),
        |Refused { error }| Err(std::io::Error::other(error)),
    )
}

/// A listening control socket.
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Identity of the socket's file: a later process may have replaced it.
    file: Option<(u64, u64)>,
    stopped: AtomicBool,
}

/// Device and inode number of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Listener {
    /// The socket of a store's machine.
    pub(crate) fn of_store(store: &Path) -> Option<Self> {
        Self::bind(socket_path(store)?)
    }

    /// The socket of a mount of servers.
    pub(crate) fn of_mount(mountpoint: &Path) -> Option<Self> {
        let device = espalier_fuse::mounted_device(mountpoint).ok().flatten()?;
        Self::bind(mount_socket_path(device)?)
    }

    /// Binds a socket. On an error it logs a warning and returns `None`, since the file system
    /// works without it.
    fn bind(path: PathBuf) -> Option<Self> {
        if path.parent() == runtime_directory().as_deref() {
            path.parent().map(|dir| std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir));
        }
        // The previous owner has ended: this process has locked the store, or the device is new.
        let _ = std::fs::remove_file(&path);
        let socket = UnixListener::bind(&path)
            .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "cannot open the control socket: no status is available"))
            .ok()?;
        Some(Self { socket, file: identity(&path), path, stopped: AtomicBool::new(false) })
    }

    /// `answer` replies to the words of a query.
    pub(crate) fn serve(&self, answer: impl Fn(&[&str]) -> serde_json::Result<String>) {
        for stream in self.socket.incoming() {
            if self.stopped.load(Ordering::Acquire) {
                break;
            }
            let outcome = stream.and_then(|stream| converse(&stream, &answer));
            if let Err(error) = outcome {
                tracing::debug!(%error, "cannot answer a status query");
            }
        }
        if identity(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the accepting thread, without the need to reach the socket by its path.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

fn converse(
    mut stream: &UnixStream,
    answer: impl Fn(&[&str]) -> serde_json::Result<String>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_BYTES)).read_line(&mut line)?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    stream.write_all(answer(&words)?.as_bytes())
}

pub(crate) fn refused(error: &str) -> serde_json::Result<String> {
    serde_json::to_string(&Refused { error: error.into() })
}

/// Answers a query of a store's machine.
pub(crate) fn answer(
    superblock: &Superblock,
    status_source: &impl StatusSource,
    words: &[&str],
) -> serde_json::Result<String> {
    match *words {
        ["status"] => serde_json::to_string(&status(superblock, status_source)),
        ["top", viewer, millis, rows] => match top_request(viewer, millis, rows) {
            Some(request) => match status_source
                .watch()
                .top(request, status_source.figures(), |ino| status_source.path_of(ino))
            {
                Some(top) => serde_json::to_string(&top),
                None => refused("too many viewers"),
            },
            None => refused("malformed question"),
        },
        ["load", most] => answer_load(|most| status_source.load(most), most),
        ["migrate", request] => {
            match serde_json::from_str(request).map(|request| status_source.migrate(request)) {
                Ok(Ok(())) => serde_json::to_string(&status_source.migration()),
                Ok(Err(error)) => refused(&error),
                Err(_) => refused("malformed question"),
            }
        }
        ["migration"] => serde_json::to_string(&status_source.migration()),
        ["migration", "stop"] => {
            status_source.stop_migration();
            serde_json::to_string(&status_source.migration())
        }
        ["trace", since, millis] => answer_trace(status_source.tracer(), since, millis),
        _ => refused("unknown question"),
    }
}

/// Answers a query about the load.
pub(crate) fn answer_load(
    report: impl Fn(usize) -> Option<LoadReport>,
    most: &str,
) -> serde_json::Result<String> {
    let Ok(most) = most.parse() else { return refused("malformed question") };
    match report(most) {
        Some(report) => serde_json::to_string(&report),
        None => refused("no metadata is served here"),
    }
}

pub(crate) fn status(superblock: &Superblock, status_source: &impl StatusSource) -> Status {
    let (files, broken) = status_source.state();
    let figures = status_source.watch().figures(&status_source.watch().totals(), status_source.figures());
    let mut status = Status {
        pid: Some(std::process::id()),
        files: Some(files),
        journal_used_bytes: Some(figures.journal.used_bytes),
        cache_bytes: Some(figures.cache.bytes),
        failure: broken.map(|errno| errno.to_string()),
        figures: Some(figures),
        ..Status::of(superblock)
    };
    status_source.complete(&mut status);
    status
}

fn top_request(viewer: &str, millis: &str, rows: &str) -> Option<(u64, Duration, usize)> {
    let lasting = Duration::from_millis(millis.parse().ok()?);
    Some((viewer.parse().ok()?, lasting.min(LONGEST_WATCH), rows.parse().ok()?))
}
