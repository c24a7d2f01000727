//! Commands that report, as text or JSON.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use espalier_meta::failover::ClusterMap;
use espalier_runtime::{RanksStatus, SharedStore, Status};
use serde::Serialize;

use crate::args::StatusArgs;
use crate::namespace_status::NamespaceStatus;
use crate::{cluster, shared, table};

/// What `espalier status --json` prints of a store.
#[derive(Serialize)]
struct StatusReport<'a> {
    #[serde(flatten)]
    status: &'a Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<NamespaceStatus>,
    /// Which server has which rank, if servers share the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterMap>,
}

pub(crate) fn status(args: &StatusArgs) -> Result<ExitCode> {
    let store = store_of(&args.source)?.unwrap_or_else(|| args.source.clone());
    if store.to_str().is_some_and(cluster::is_url) {
        return status_of_mount(args);
    }
    if args.counters {
        bail!("--counters is for mounts of a server; other mounts send no messages");
    }
    let location = args.rados.locate(&store)?;
    let status = espalier_runtime::status_of(&location)?;
    let shared = if status.pid.is_none() { SharedStore::find(&location).ok().flatten() } else { None };
    let cluster = shared.map(|shared| shared.cluster_map()).transpose()?;
    let namespace = NamespaceStatus::of(&store, &status)?;
    if args.json {
        println!("{}", serde_json::to_string(&StatusReport { status: &status, namespace, cluster })?);
        return Ok(ExitCode::SUCCESS);
    }
    match &status.moved_to {
        Some(moved) => println!("store       {moved} (moved from {})", store.display()),
        None => println!("store       {}", store.display()),
    }
    for pool in &status.pools {
        println!("pool        {}", table::pool(pool));
    }
    println!("uuid        {}  format {}", status.uuid, status.format);
    if !status.label.is_empty() {
        println!("label       {}", status.label);
    }
    match (&status.url, &status.mountpoint, status.pid) {
        (Some(url), _, Some(pid)) => {
            println!("served at   {url} by process {pid}, to {} clients", status.clients.unwrap_or(0));
        }
        (None, Some(mountpoint), Some(pid)) => {
            println!("mounted on  {} by process {pid}", mountpoint.display());
        }
        _ if cluster.is_some() => {}
        _ => println!("mounted on  nothing"),
    }
    cluster.iter().for_each(shared::print_ranks);
    if let Some(RanksStatus { rank, ranks, connected, open }) = &status.ranks {
        println!(
            "rank        {rank} of {ranks}, connected to {connected:?}; {open} operations among them open"
        );
    }
    println!("strip       {} bytes", status.strip_bytes);
    if status.figures.is_none() {
        println!("journal     {} bytes", status.journal_bytes);
    }
    if let Some(files) = status.files {
        println!("inodes      {files} in use");
    }
    if let Some(namespace) = &namespace {
        print!("{}", namespace.text());
    }
    if let (Some(fuse), Some(passthrough)) = (&status.fuse, status.passthrough) {
        println!(
            "kernel      FUSE {fuse}, passthrough of big files {}",
            if passthrough { "on" } else { "off" }
        );
    }
    if let Some(transport) = &status.transport {
        println!("transport   {transport}");
    }
    if let Some(figures) = &status.figures {
        print!("{}\n{}", table::state(figures), table::operations(figures));
    }
    if let Some(failure) = &status.failure {
        println!("FAILED      changes are refused: {failure}; unmount, and run `espalier fsck`");
    }
    Ok(ExitCode::SUCCESS)
}

/// Status of a mount of servers.
fn status_of_mount(args: &StatusArgs) -> Result<ExitCode> {
    let status = espalier_runtime::status_of_mount(&args.source)?;
    if args.json {
        println!("{}", serde_json::to_string(&status)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.counters {
        print!("{}", table::counters(&status));
        return Ok(ExitCode::SUCCESS);
    }
    print!("{}", table::mount(&status));
    Ok(ExitCode::SUCCESS)
}

/// Fails for a mount of a server: only the server's machine has the requested data.
pub(crate) fn not_served_elsewhere(store: &Path) -> Result<()> {
    if store.to_str().is_some_and(cluster::is_url) {
        bail!(
            "this is mounted from {}: run `espalier cluster status` there, or query its store",
            store.display()
        );
    }
    Ok(())
}

/// The store that is mounted at a path, if any.
pub(crate) fn store_of(mountpoint: &Path) -> Result<Option<PathBuf>> {
    // A `stat` of the mount point would block if the file system does not answer.
    let wanted = std::path::absolute(mountpoint)?;
    let found = mounts()?.into_iter().rfind(|(at, _)| *at == wanted);
    Ok(found.map(|(_, store)| store))
}

/// True if a store is mounted anywhere.
pub(crate) fn is_mounted(store: &Path) -> Result<bool> {
    Ok(mounts()?.iter().any(|(_, mounted)| mounted == store))
}

/// Mount points of Espalier file systems, with their stores.
fn mounts() -> Result<Vec<(PathBuf, PathBuf)>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read the mount table")?;
    let entry = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let at = unescape(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        (right.next()? == "fuse.espalier").then(|| right.next().map(|store| (at, unescape(store))))?
    };
    Ok(table.lines().filter_map(entry).collect())
}

/// Decodes blanks and backslashes, which the mount table writes as octal escapes.
pub(crate) fn unescape(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) if byte == b'\\' => {
                bytes.push(code);
                rest = &after[3..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}
