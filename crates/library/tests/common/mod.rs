//! A file system on servers, for a test. Leases are long, so that no machine is too slow for what is asserted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use espalier_net::{Limits, Security};
use espalier_runtime::{Access, MetaRole, MkfsOptions, OpenOptions, ServeOptions, Volume, mkfs_ranks, serve};

/// Serves an empty file system by so many servers that share the tree, for as long as the test's process runs; its URL.
pub fn servers(ranks: u16) -> String {
    let dir = tempfile::tempdir().unwrap();
    let stores: Vec<_> = (0..ranks).map(|rank| dir.path().join(rank.to_string())).collect();
    let made = MkfsOptions {
        label: String::new(),
        strip_bytes: MkfsOptions::STRIP_BYTES,
        journal_bytes: Some(4 << 20),
        force: false,
        uid: 0,
        gid: 0,
        perm: 0o777,
    };
    mkfs_ranks(&stores, &made).unwrap();
    let addresses = addresses(ranks);
    let known: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let dir = std::sync::Arc::new(dir);
    for (store, listen) in stores.into_iter().zip(addresses) {
        let ranks = if ranks == 1 { Vec::new() } else { known.clone() };
        let (dir, (ready, is_ready)) = (dir.clone(), channel());
        std::thread::spawn(move || {
            let _dir = dir;
            run(store, listen, ranks, || ready.send(()).unwrap());
        });
        is_ready.recv().unwrap();
    }
    format!("espalier://{}/", known.join(","))
}

/// As many that no other process has: each must be known before its server listens.
fn addresses(count: u16) -> Vec<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(17500);
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let ip = IpAddr::V4(Ipv4Addr::new(127, high | 128, middle, low));
    (first..first + count).map(|port| SocketAddr::new(ip, port)).collect()
}

fn run(store: PathBuf, listen: SocketAddr, ranks: Vec<String>, ready: impl FnOnce()) {
    let (session_ms, lease_ms) = (1_200_000, 600_000);
    let with_ranks = ranks.len() > 1;
    let open = OpenOptions {
        session_ms: Some(session_ms),
        lease_ms: Some(lease_ms),
        with_ranks,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, open).unwrap();
    let options = ServeOptions {
        listen,
        security: Security::Insecure,
        limits: Limits::default(),
        max_connections: 100,
        threads: 2,
        metrics: None,
        slow: None,
        drain: Duration::from_secs(30),
    };
    let (access, data_servers, data_key) = (Access::default(), Vec::new(), None);
    let meta = MetaRole { volume, store, access, session_ms, ranks, data_servers, data_key };
    serve(Some(meta), None, options, |_| ready()).unwrap();
}
