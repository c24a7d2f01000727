//! A socket by which a mounted or served file system tells how it is: in its store, or if that is on another machine, where the
//! system keeps such things.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use espalier_proto::{Errno, Ino};
use espalier_store::Superblock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::remote::{Messages, SessionState};
use crate::tracer::{Traced, Tracer};
use crate::watch::{Figures, MachineFigures, Top, Watch};

/// What is told instead of an answer.
#[derive(Serialize, Deserialize)]
struct Refused {
    error: String,
}

/// Who can say how a file system is: whoever has its machine.
pub(crate) trait Told: Sync {
    /// Inodes in use, and what is wrong, if anything is.
    fn state(&self) -> (u64, Option<Errno>);
    fn figures(&self) -> MachineFigures;
    fn watch(&self) -> &Watch;
    fn tracer(&self) -> &Tracer;
    /// As far as it is in memory.
    fn path_of(&self, ino: Ino) -> Option<String>;
    /// What does not depend on the machine.
    fn complete(&self, status: &mut Status);
}

/// How a file system is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub uuid: String,
    pub label: String,
    pub format: u32,
    /// Where it is mounted, if it is: not while it only writes out what it had not written when it was unmounted.
    pub mountpoint: Option<PathBuf>,
    /// The process that serves it.
    pub pid: Option<u32>,
    pub strip_bytes: u32,
    /// Inodes in use; known while mounted.
    pub files: Option<u64>,
    pub journal_used_bytes: Option<u64>,
    /// Memory that inodes, dentries and small files take; known while mounted.
    pub cache_bytes: Option<u64>,
    pub journal_bytes: u64,
    /// Why nothing can be changed any more, or what has been changed stays in the journal for now.
    pub failure: Option<String>,
    /// Big files are read and written by the kernel itself.
    pub passthrough: Option<bool>,
    /// How requests come from the kernel: `uring` or `queues`.
    pub transport: Option<String>,
    /// The version of the kernel's protocol.
    pub fuse: Option<String>,
    /// Where it is served, if it is.
    pub url: Option<String>,
    /// Clients that are connected to its server.
    pub clients: Option<usize>,
    /// Of a server that shares the tree with others.
    pub ranks: Option<RanksStatus>,
    /// What it has done; known while mounted or served.
    pub figures: Option<Figures>,
}

/// How a metadata server is with the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RanksStatus {
    pub rank: u16,
    /// How many share the tree.
    pub ranks: u16,
    /// Those that are connected to it.
    pub connected: Vec<u16>,
    /// Operations with others that are not at their end.
    pub open: usize,
}

/// How a mount of servers is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// What is mounted.
    pub url: String,
    pub mountpoint: PathBuf,
    /// The process that serves it.
    pub pid: u32,
    /// How requests come from the kernel: `uring` or `queues`.
    pub transport: String,
    /// The version of the kernel's protocol.
    pub fuse: String,
    /// Whether there are connections to all metadata servers now.
    pub connected: bool,
    /// Calls that wait for a server.
    pub waiting: usize,
    /// The sessions with the metadata servers, by rank.
    pub ranks: Vec<SessionState>,
    /// What has been sent and received since it was mounted.
    pub messages: Messages,
    /// Of these what was asked of servers, by operation.
    pub asked: BTreeMap<String, u64>,
    /// Calls that were answered without a message.
    pub cache_hits: u64,
    /// Inodes that are known, and names that are cached.
    pub cache_inodes: u64,
    pub cache_names: u64,
}

impl Status {
    fn of(superblock: &Superblock) -> Self {
        Self {
            uuid: superblock.uuid.to_string(),
            label: superblock.label.clone(),
            format: superblock.format,
            mountpoint: None,
            pid: None,
            strip_bytes: superblock.strip_bytes,
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

/// For whoever watches and then does not ask any more, operations are not counted longer than this.
const LONGEST_WATCH: Duration = Duration::from_secs(600);

fn socket_path(store: &Path) -> PathBuf {
    store.join("control")
}

/// Where mounts of servers tell how they are: by the number of the device that is mounted, which no two have at a time.
fn mount_socket_path(device: u32) -> Option<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    let base = if is_root { "/run".into() } else { PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?) };
    Some(base.join("espalier").join(format!("mount-{device}")))
}

/// The status of a mount of servers.
pub fn status_of_mount(mountpoint: &Path) -> Result<MountStatus, Error> {
    ask_mount(mountpoint, "status")
}

fn ask_mount<T: DeserializeOwned>(mountpoint: &Path, question: &str) -> Result<T, Error> {
    let device = espalier_fuse::mounted_device(mountpoint)
        .map_err(|source| Error::Io { what: format!("cannot look at {}", mountpoint.display()), source })?;
    let asked = match device.and_then(mount_socket_path) {
        Some(path) => ask_at(&path, question),
        None => Err(std::io::ErrorKind::NotFound.into()),
    };
    asked.map_err(|source| Error::Io {
        what: format!("cannot ask the mount on {}: was it mounted by the same user?", mountpoint.display()),
        source,
    })
}

/// The status of a store, mounted or not.
pub fn status_of(store: &Path) -> Result<Status, Error> {
    // Who serves it knows, even if its disk fails.
    ask(store, "status").or_else(|_| Ok(Status::of(&espalier_store::superblock::read(store)?)))
}

/// Who does what in a mounted file system, since the same viewer last asked: at most so many processes and directories.
/// They are counted from the first question on, as long as the next comes within the time `lasting`.
pub fn top_of(store: &Path, viewer: u64, lasting: Duration, rows: usize) -> Result<Top, Error> {
    ask(store, &format!("top {viewer} {} {rows}", lasting.as_millis())).map_err(|source| Error::Io {
        what: format!(
            "cannot ask the file system in {}: is it mounted, and by the same user?",
            store.display()
        ),
        source,
    })
}

/// The spans with these numbers and larger ones of the machine that has a store; `None`: none yet. From now on, for the time `lasting` at least,
/// they are written.
///
/// # Errors
/// Nobody serves the store, or somebody else does.
pub fn trace_of(store: &Path, since: Option<u64>, lasting: Duration) -> Result<Traced, Error> {
    ask(store, &trace_question(since, lasting)).map_err(|source| Error::Io {
        what: format!(
            "cannot trace what {} does: is it mounted or served, by the same user?",
            store.display()
        ),
        source,
    })
}

/// As [`trace_of`], of a mount of servers.
///
/// # Errors
/// It is none, or somebody else's.
pub fn trace_of_mount(mountpoint: &Path, since: Option<u64>, lasting: Duration) -> Result<Traced, Error> {
    ask_mount(mountpoint, &trace_question(since, lasting))
}

fn trace_question(since: Option<u64>, lasting: Duration) -> String {
    let since = since.map_or_else(|| "-".into(), |since| since.to_string());
    format!("trace {since} {}", lasting.as_millis())
}

/// What is said to the words of such a question after the first.
pub(crate) fn answer_trace(tracer: &Tracer, since: &str, millis: &str) -> serde_json::Result<String> {
    let number = if since == "-" { Some(None) } else { since.parse().ok().map(Some) };
    let (Some(since), Ok(millis)) = (number, millis.parse()) else { return refused("malformed question") };
    serde_json::to_string(&tracer.tell(since, Duration::from_millis(millis).min(LONGEST_WATCH)))
}

fn ask<T: DeserializeOwned>(store: &Path, question: &str) -> std::io::Result<T> {
    ask_at(&socket_path(store), question)
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

/// The listening end of a socket.
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// What is at the path: who comes after us may have put another there.
    file: Option<(u64, u64)>,
    stopped: AtomicBool,
}

/// Which file it is.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Listener {
    /// Of a store's machine.
    pub(crate) fn of_store(store: &Path) -> Option<Self> {
        Self::bind(socket_path(store))
    }

    /// Of a mount of servers.
    pub(crate) fn of_mount(mountpoint: &Path) -> Option<Self> {
        let device = espalier_fuse::mounted_device(mountpoint).ok().flatten()?;
        let path = mount_socket_path(device)?;
        path.parent().map(|dir| std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir));
        Self::bind(path)
    }

    /// `None`, with a warning, where there can be no socket: a file system is no worse to use without.
    fn bind(path: PathBuf) -> Option<Self> {
        // Whoever was there has ended: the store is locked, or the device another.
        let _ = std::fs::remove_file(&path);
        let socket = UnixListener::bind(&path)
            .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "no status will be told"))
            .ok()?;
        Some(Self { socket, file: identity(&path), path, stopped: AtomicBool::new(false) })
    }

    /// `answer`: what is said to the words of a question.
    pub(crate) fn serve(&self, answer: impl Fn(&[&str]) -> serde_json::Result<String>) {
        for stream in self.socket.incoming() {
            if self.stopped.load(Ordering::Acquire) {
                break;
            }
            let outcome = stream.and_then(|stream| converse(&stream, &answer));
            if let Err(error) = outcome {
                tracing::debug!(%error, "a question about the status was not answered");
            }
        }
        if identity(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the thread that accepts; nobody need find the way to the socket for that.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

fn converse(
    mut stream: &UnixStream,
    answer: impl Fn(&[&str]) -> serde_json::Result<String>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut line = String::new();
    BufReader::new(stream.take(64)).read_line(&mut line)?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    stream.write_all(answer(&words)?.as_bytes())
}

pub(crate) fn refused(error: &str) -> serde_json::Result<String> {
    serde_json::to_string(&Refused { error: error.into() })
}

/// What a store's machine says to a question.
pub(crate) fn answer(
    superblock: &Superblock,
    told: &impl Told,
    words: &[&str],
) -> serde_json::Result<String> {
    match *words {
        ["status"] => serde_json::to_string(&status(superblock, told)),
        ["top", viewer, millis, rows] => match top_request(viewer, millis, rows) {
            Some(request) => match told.watch().top(request, told.figures(), |ino| told.path_of(ino)) {
                Some(top) => serde_json::to_string(&top),
                None => refused("too many are watching already"),
            },
            None => refused("malformed question"),
        },
        ["trace", since, millis] => answer_trace(told.tracer(), since, millis),
        _ => refused("unknown question"),
    }
}

fn status(superblock: &Superblock, told: &impl Told) -> Status {
    let (files, broken) = told.state();
    let figures = told.watch().figures(&told.watch().totals(), told.figures());
    let mut status = Status {
        pid: Some(std::process::id()),
        files: Some(files),
        journal_used_bytes: Some(figures.journal.used_bytes),
        cache_bytes: Some(figures.cache.bytes),
        failure: broken.map(|errno| errno.to_string()),
        figures: Some(figures),
        ..Status::of(superblock)
    };
    told.complete(&mut status);
    status
}

fn top_request(viewer: &str, millis: &str, rows: &str) -> Option<(u64, Duration, usize)> {
    let lasting = Duration::from_millis(millis.parse().ok()?);
    Some((viewer.parse().ok()?, lasting.min(LONGEST_WATCH), rows.parse().ok()?))
}
