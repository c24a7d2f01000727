//! A file system on a server, for a test. Leases are long, so that no machine is too slow for what is asserted.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc::channel;
use std::time::Duration;

use espalier_net::{Limits, Security};
use espalier_proto::ServerId;
use espalier_runtime::{Access, MetaRole, MkfsOptions, OpenOptions, ServeOptions, Volume, mkfs, serve};

/// Serves an empty file system, for as long as the test's process runs; its URL.
pub fn server() -> String {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let made = MkfsOptions {
        label: String::new(),
        strip_bytes: MkfsOptions::STRIP_BYTES,
        journal_bytes: Some(4 << 20),
        force: false,
        uid: 0,
        gid: 0,
        perm: 0o777,
    };
    mkfs(&store, &made).unwrap();
    let (session_ms, lease_ms) = (1_200_000, 600_000);
    let open =
        OpenOptions { session_ms: Some(session_ms), lease_ms: Some(lease_ms), ..OpenOptions::default() };
    let volume = Volume::open(&store, open).unwrap();
    let options = ServeOptions {
        number: ServerId(0),
        listen: ([127, 0, 0, 1], 0).into(),
        security: Security::Insecure,
        limits: Limits::default(),
        max_connections: 100,
        threads: 2,
        metrics: None,
        slow: None,
        drain: Duration::from_secs(30),
    };
    let (ready, address) = channel();
    std::thread::spawn(move || {
        let _dir = dir;
        let (access, data_servers) = (Access::default(), Vec::new());
        let meta = MetaRole { volume, store, access, session_ms, data_servers };
        serve(Some(meta), None, options, |address| ready.send(address).unwrap()).unwrap();
    });
    format!("espalier://{}/", address.recv().unwrap())
}
