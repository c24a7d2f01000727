//! A socket in the store by which a mounted file system tells how it is.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use espalier_fuse::{Granted, InitFlags};
use espalier_store::Superblock;
use serde::{Deserialize, Serialize};

use crate::door::FuseDoor;
use crate::error::Error;
use crate::node::Node;

/// How a file system is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub uuid: String,
    pub label: String,
    pub format: u32,
    /// Where it is mounted, if it is.
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
    /// Why nothing can be changed any more.
    pub failure: Option<String>,
    /// Big files are read and written by the kernel itself.
    pub passthrough: Option<bool>,
    /// The version of the kernel's protocol.
    pub fuse: Option<String>,
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
            fuse: None,
        }
    }
}

fn socket_path(store: &Path) -> PathBuf {
    store.join("control")
}

/// The status of a store, mounted or not.
pub fn status_of(store: &Path) -> Result<Status, Error> {
    let superblock = espalier_store::superblock::read(store)?;
    match ask(store) {
        Ok(status) => Ok(status),
        // Nobody is there to ask: it is not mounted.
        Err(_) => Ok(Status::of(&superblock)),
    }
}

fn ask(store: &Path) -> std::io::Result<Status> {
    let mut stream = UnixStream::connect(socket_path(store))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"status\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// The listening end of the socket.
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    still: Status,
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
        Some(Self { socket, path, still, stopped: AtomicBool::new(false) })
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
        if line.trim_end() != "status" {
            return stream.write_all(b"{\"error\":\"unknown question\"}\n");
        }
        let (files, broken) = node.state();
        let (used, capacity, _) = node.disk.journal_state();
        let status = Status {
            files: Some(files),
            journal_used_bytes: Some(used),
            cache_bytes: Some(node.cache_bytes()),
            journal_bytes: capacity,
            failure: broken.map(|errno| errno.to_string()),
            ..self.still.clone()
        };
        stream.write_all(serde_json::to_string(&status)?.as_bytes())
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(&self.path);
    }
}
