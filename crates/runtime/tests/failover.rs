//! Servers that share a cluster map fail over. The stores of the ranks are local here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use espalier_meta::failover::ClusterMap;
use espalier_net::{ConnectError, Connection, Limits, Reason, Security, connect};
use espalier_proto::{
    Accesses, ClientId, ClusterId, FromClient, FromServer, Hello, Rank, ServerMap, Service,
};
use espalier_runtime::{
    Access, Error, MetaRole, MkfsOptions, OpenOptions, RankSource, RankStores, ServeOptions, Servers,
    SharedRanks, Volume, add_to_cluster_map, create_cluster_map, mkfs_joining, mkfs_ranks, read_cluster_map,
    serve, trace_of_rank,
};
use espalier_standby::FollowedState;
use espalier_store::{Engine, MemoryEngine};

use crate::common::Plain;

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// A change of the addresses.
type Listed = Plain<ServerMap>;

struct RunningServer {
    address: SocketAddr,
    ended: Receiver<Result<(), Error>>,
}

/// Stores in directories, and a map in memory.
struct LocalStores {
    engine: MemoryEngine,
    stores: Vec<PathBuf>,
}

impl RankStores for LocalStores {
    fn open(&self, rank: Rank, _: Option<FollowedState>) -> Result<Volume, Error> {
        let options = OpenOptions { session_ms: Some(60_000), with_ranks: true, ..OpenOptions::default() };
        Volume::open(&self.stores[usize::from(rank.0)], options)
    }

    fn fence(&self, _: Rank, clients: &[String]) -> Result<(), Error> {
        Ok(clients.iter().try_for_each(|client| self.engine.fence(client))?)
    }
}

/// Starts a server; it ends with the test process at the latest.
fn start(engine: &MemoryEngine, number: u16, stores: Vec<PathBuf>, dir: PathBuf) -> RunningServer {
    std::fs::create_dir(&dir).unwrap();
    let stores = Arc::new(LocalStores { engine: engine.client(), stores });
    let (engine, cluster) = (Arc::new(engine.client()), CLUSTER);
    let (address, standby_replay) = (None, false);
    let data_pool = None;
    let shared = SharedRanks { engine, stores, cluster, data_pool, number, address, standby_replay, dir };
    let source = RankSource::Shared(shared);
    let (access, data_servers) = (Access::default(), Vec::new());
    let role = MetaRole { source, access, session_ms: 60_000, data_servers, data_key: None };
    let options = ServeOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        security: Security::Insecure,
        limits: Limits::default(),
        max_connections: 10,
        threads: 2,
        metrics: None,
        slow: None,
        drain: Duration::from_secs(30),
        read_settings: None,
    };
    let (ready, address) = channel();
    let (end, ended) = channel();
    std::thread::spawn(move || {
        let outcome = serve(Some(role), None, options, |address| ready.send(address).unwrap());
        let _ = end.send(outcome);
    });
    RunningServer { address: address.recv().unwrap(), ended }
}

fn wait_for(engine: &MemoryEngine, what: impl Fn(&ClusterMap) -> bool) -> ClusterMap {
    let began = Instant::now();
    loop {
        let (_, map) = read_cluster_map(engine).unwrap();
        if what(&map) {
            return map;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{map:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn made() -> MkfsOptions {
    MkfsOptions { journal_bytes: Some(4 << 20), perm: 0o777, ..MkfsOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn rank_that_is_added_to_the_map_is_served_and_announced_to_clients() {
    let temporary = tempfile::tempdir().unwrap();
    let stores = [0, 1].map(|rank| temporary.path().join(format!("store-{rank}")));
    mkfs_ranks(&stores[..1], &made()).unwrap();
    let engine = MemoryEngine::new();
    create_cluster_map(&engine, 1).unwrap();
    let server = start(&engine, 0, stores.to_vec(), temporary.path().join("server-0"));
    wait_for(&engine, |map| map.ranks[0].serving);
    let (addresses, security) = (vec![server.address.to_string()], Security::Insecure);
    let (limits, client) = (Limits::default(), ClientId(9));
    let servers = Servers {
        addresses,
        security,
        limits,
        client,
        leases: true,
        accesses: Accesses::All,
        data_pool: None,
    };
    let (welcome, mut connection) = servers.reach().await.unwrap();
    assert_eq!(welcome.servers.ranks.len(), 1);

    mkfs_joining(&stores[1], &stores[0], Rank(1), None).unwrap();
    for wrong in [0, 2] {
        assert!(matches!(add_to_cluster_map(&engine, Rank(wrong)), Err(Error::OtherRanks)));
    }
    add_to_cluster_map(&engine, Rank(1)).unwrap();
    wait_for(&engine, |map| map.ranks.get(1).is_some_and(|rank| rank.serving));
    let mut batch = Vec::new();
    let is_announced = async {
        let served = |message: &FromServer| match message {
            FromServer::Servers(servers) => {
                servers.ranks == [welcome.servers.ranks[0].clone(), welcome.servers.ranks[0].clone()]
            }
            _ => false,
        };
        while !batch.drain(..).any(|message| served(&message)) {
            connection.receiver.next(&mut batch).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_announced).await.unwrap();

    let dir = temporary.path().join("server-0");
    let traced = |rank| trace_of_rank(&dir, rank, None, Duration::from_secs(1));
    assert!(traced(0).is_ok() && traced(1).is_ok(), "each rank can be traced");
    assert!(traced(2).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_takes_over_from_fenced_server() {
    let temporary = tempfile::tempdir().unwrap();
    let stores = vec![temporary.path().join("store")];
    mkfs_ranks(&stores, &made()).unwrap();
    let engine = MemoryEngine::new();
    create_cluster_map(&engine, 1).unwrap();
    assert!(create_cluster_map(&engine, 1).is_err(), "there is one already");
    let active = start(&engine, 0, stores.clone(), temporary.path().join("server-0"));
    let first = wait_for(&engine, |map| map.ranks[0].serving);
    let standby = start(&engine, 1, stores, temporary.path().join("server-1"));
    wait_for(&engine, |map| map.servers.len() == 2);

    let (security, limits) = (Security::Insecure, Limits::default());
    let (address, client) = (standby.address.to_string(), ClientId(9));
    let hello = |service| Hello { cluster: CLUSTER, service, client, incarnation: None };
    let metadata = Service::Metadata { leases: true, accesses: Accesses::All, rank: None };
    let refused = connect::<FromServer, FromClient>(&address, &security, &limits, hello(metadata)).await;
    let Err(ConnectError::Refused { refusal, .. }) = refused else { panic!("a standby has no rank") };
    assert_eq!(refusal.reason, Reason::Unready);
    let began = Instant::now();
    let (welcome, connection) = loop {
        let hello = hello(Service::Addresses);
        let asked = connect::<Listed, Listed>(&address, &security, &limits, hello).await.unwrap();
        if asked.0.servers.meta.len() == 2 || began.elapsed() > Duration::from_secs(20) {
            break asked;
        }
    };
    let Connection { mut receiver, sender: _sender } = connection;
    assert_eq!(welcome.servers.ranks, [active.address.to_string()]);
    assert_eq!(welcome.servers.meta, [address.clone(), active.address.to_string()]);
    let (leases, accesses) = (true, Accesses::All);
    let servers = Servers {
        addresses: vec![address.clone()],
        security,
        limits,
        client,
        leases,
        accesses,
        data_pool: None,
    };
    let (before, _) = servers.reach().await.unwrap();

    engine.fence(&first.servers[0].store_client).unwrap();
    let ended = active.ended.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(ended, Err(Error::Fenced)), "{ended:?}");
    wait_for(&engine, |map| map.ranks[0].serving && map.servers.len() == 1);
    let mut batch: Vec<Listed> = Vec::new();
    while batch.last().is_none_or(|Plain(servers)| servers.ranks != [address.clone()]) {
        receiver.next(&mut batch).await.unwrap();
    }
    let (after, _) = servers.reach().await.unwrap();
    assert!(after.incarnation > before.incarnation);
}
