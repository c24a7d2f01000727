//! A socket in the store by which a mounted file system tells how it is.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use espalier_fuse::{Granted, InitFlags, Transport};
use espalier_store::Superblock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::calls::Calls;
use crate::door::FuseDoor;
use crate::error::Error;
use crate::node::Node;
use crate::watch::{Figures, Top};

/// What is told instead of an answer.
#[derive(Serialize, Deserialize)]
struct Refused {
    error: String,
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
    /// What it has done; known while mounted.
    pub figures: Option<Figures>,
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
            figures: None,
        }
    }
}

/// For whoever watches and then does not ask any more, operations are not counted longer than this.
const LONGEST_WATCH: Duration = Duration::from_secs(600);

fn socket_path(store: &Path) -> PathBuf {
    store.join("control")
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

fn ask<T: DeserializeOwned>(store: &Path, question: &str) -> std::io::Result<T> {
    let mut stream = UnixStream::connect(socket_path(store))?;
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

/// The listening end of the socket.
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    still: Status,
    /// What is mounted on the mount point while this file system is.
    device: Option<u32>,
    stopped: AtomicBool,
}

impl Listener {
    /// `None`, with a warning, where there can be no socket: a file system is no worse to use without.
    pub(crate) fn bind(
        store: &Path,
        mountpoint: &Path,
        superblock: &Superblock,
        granted: &Granted,
    ) -> Option<Self> {
        let path = socket_path(store);
        // The store is locked, so that a socket there is left over.
        let _ = std::fs::remove_file(&path);
        let socket = UnixListener::bind(&path)
            .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "no status will be told"))
            .ok()?;
        let mut still = Status::of(superblock);
        still.mountpoint = Some(mountpoint.into());
        still.pid = Some(std::process::id());
        still.passthrough = Some(granted.flags.contains(InitFlags::PASSTHROUGH));
        still.fuse = Some(format!("7.{}", granted.minor));
        let device = mounted_on(mountpoint);
        Some(Self { socket, path, still, device, stopped: AtomicBool::new(false) })
    }

    pub(crate) fn serve(&self, node: &Node<FuseDoor>) {
        for stream in self.socket.incoming() {
            if self.stopped.load(Ordering::Acquire) {
                break;
            }
            let outcome = stream.and_then(|stream| self.answer(node, &stream));
            if let Err(error) = outcome {
                tracing::debug!(%error, "a question about the status was not answered");
            }
        }
        let _ = std::fs::remove_file(&self.path);
    }

    fn answer(&self, node: &Node<FuseDoor>, mut stream: &UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut line = String::new();
        BufReader::new(stream.take(64)).read_line(&mut line)?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let refused = |error: &str| serde_json::to_string(&Refused { error: error.into() });
        let answer = match words[..] {
            ["status"] => serde_json::to_string(&self.status(node)),
            ["top", viewer, millis, rows] => match top_request(viewer, millis, rows) {
                Some(request) => {
                    match node.errands.watch.top(request, node.figures(), |ino| node.path_of(ino)) {
                        Some(top) => serde_json::to_string(&top),
                        None => refused("too many are watching already"),
                    }
                }
                None => refused("malformed question"),
            },
            _ => refused("unknown question"),
        };
        stream.write_all(answer?.as_bytes())
    }

    fn status(&self, node: &Node<FuseDoor>) -> Status {
        let (files, broken) = node.state();
        let figures = node.activity();
        let mountpoint = self.still.mountpoint.clone();
        Status {
            mountpoint: mountpoint.filter(|path| mounted_on(path) == self.device),
            passthrough: self.still.passthrough.map(|passthrough| passthrough && !node.errands.disk.sync),
            files: Some(files),
            journal_used_bytes: Some(figures.journal.used_bytes),
            cache_bytes: Some(figures.cache.bytes),
            failure: broken.map(|errno| errno.to_string()),
            transport: node.door().transport().map(|transport| match transport {
                Transport::Uring => "uring".into(),
                Transport::Queues => "queues".into(),
            }),
            figures: Some(figures),
            ..self.still.clone()
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the thread that accepts; nobody need find the way to the socket for that.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

fn mounted_on(mountpoint: &Path) -> Option<u32> {
    espalier_fuse::mounted_device(mountpoint).ok().flatten()
}

fn top_request(viewer: &str, millis: &str, rows: &str) -> Option<(u64, Duration, usize)> {
    let lasting = Duration::from_millis(millis.parse().ok()?);
    Some((viewer.parse().ok()?, lasting.min(LONGEST_WATCH), rows.parse().ok()?))
}
