//! Starts servers for a test. Leases are long, so that slow machines do not affect the assertions.
#![allow(dead_code)] // Each test needs a part of it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use espalier_net::{Limits, SealKey, Security};
use espalier_proto::{Distribution, ServerId};
use espalier_runtime::{
    Access, DataRole, DataStore, MetaRole, MkfsOptions, OpenOptions, OwnStore, RankSource, ServeOptions,
    Striping, Volume, mkfs_data, mkfs_ranks, serve,
};

/// Starts an empty file system on `ranks` metadata servers until the test process ends; returns its
/// URL.
pub fn servers(ranks: u16) -> String {
    with_sessions(ranks, SESSION_MS)
}

/// As [`servers`]; a session expires after `session_ms` without a message of its client.
pub fn with_sessions(ranks: u16, session_ms: u32) -> String {
    let dir = tempfile::tempdir().unwrap();
    let stores: Vec<_> = (0..ranks).map(|rank| dir.path().join(rank.to_string())).collect();
    mkfs_ranks(&stores, &made()).unwrap();
    let addresses = addresses(ranks);
    let known: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let dir = Arc::new(dir);
    for (store, listen) in stores.into_iter().zip(addresses) {
        let ranks = if ranks == 1 { Vec::new() } else { known.clone() };
        let open = OpenOptions { with_ranks: ranks.len() > 1, session_ms: Some(session_ms), ..served() };
        run(&dir, Some(MetaRole { session_ms, ..role(store, open, ranks) }), None, listen);
    }
    format!("espalier://{}/", known.join(","))
}

/// Starts one metadata server and `count` data servers, over which big files are striped.
pub fn with_data_servers(count: u16) -> String {
    cluster(count).0
}

/// As [`with_data_servers`]; also returns the stores, that of the metadata server first.
pub fn cluster(count: u16) -> (String, Vec<PathBuf>) {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let key_file = dir.path().join("data.key");
    SealKey::write(&SealKey::generate().unwrap(), &key_file).unwrap();
    let key = || Some(SealKey::load(&key_file).unwrap());
    let addresses = addresses(count + 1);
    let numbers: Vec<_> = (0..count).map(ServerId).collect();
    for (number, listen) in numbers.iter().copied().zip(&addresses[1..]) {
        let path = dir.path().join(format!("data-{number}"));
        mkfs_data(&path, number).unwrap();
        let data = DataRole { store: DataStore::open(&path, number, false).unwrap(), data_key: key() };
        run(&dir, None, Some(data), *listen);
    }
    let store = dir.path().join("store");
    mkfs_ranks(std::slice::from_ref(&store), &made()).unwrap();
    let distribution = Distribution::SimpleStripe { strip: 64 << 10 };
    let striping = Striping::new(distribution, numbers.clone(), numbers.len()).unwrap().delegated();
    let open = OpenOptions { striping: Some(striping), ..served() };
    let known = addresses[1..].iter().map(ToString::to_string);
    let data_servers = numbers.into_iter().zip(known).collect();
    let meta = MetaRole { data_servers, data_key: key(), ..role(store.clone(), open, Vec::new()) };
    run(&dir, Some(meta), None, addresses[0]);
    let datafiles = (0..count).map(|number| dir.path().join(format!("data-{number}")));
    (format!("espalier://{}/", addresses[0]), [store].into_iter().chain(datafiles).collect())
}

/// Free addresses; each is passed to other servers before its server listens.
fn addresses(count: u16) -> Vec<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(17500);
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let ip = IpAddr::V4(Ipv4Addr::new(127, high | 128, middle, low));
    (first..first + count).map(|port| SocketAddr::new(ip, port)).collect()
}

const SESSION_MS: u32 = 1_200_000;

fn made() -> MkfsOptions {
    MkfsOptions { journal_bytes: Some(4 << 20), perm: 0o777, ..MkfsOptions::default() }
}

fn served() -> OpenOptions {
    OpenOptions { session_ms: Some(SESSION_MS), lease_ms: Some(600_000), ..OpenOptions::default() }
}

fn role(store: PathBuf, open: OpenOptions, ranks: Vec<String>) -> MetaRole {
    let volume = Volume::open(&store, open).unwrap();
    MetaRole {
        source: RankSource::Own { stores: vec![OwnStore { volume, path: store }], ranks },
        access: Access::default(),
        session_ms: SESSION_MS,
        data_servers: Vec::new(),
        data_key: None,
    }
}

/// Starts a server in a thread and waits until it serves; `dir` exists as long as it runs.
fn run(dir: &Arc<tempfile::TempDir>, meta: Option<MetaRole>, data: Option<DataRole>, listen: SocketAddr) {
    let (dir, (ready, is_ready)) = (Arc::clone(dir), channel());
    let session_ms = meta.as_ref().map_or(SESSION_MS, |meta| meta.session_ms);
    let options = ServeOptions {
        listen,
        security: Security::Insecure,
        limits: Limits::for_sessions(Duration::from_millis(session_ms.into())),
        max_connections: 100,
        threads: 2,
        metrics: None,
        slow: None,
        drain: Duration::from_secs(30),
        read_settings: None,
    };
    std::thread::spawn(move || {
        let _dir = dir;
        serve(meta, data, options, |_| ready.send(()).unwrap()).unwrap();
    });
    is_ready.recv().unwrap();
}
