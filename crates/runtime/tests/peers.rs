//! Metadata servers that share a tree: access control, and recovery from lost connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use espalier_meta::PeerMessage;
use espalier_net::pki::{Authority, Validity};
use espalier_net::{ConnectError, Connection, Identity, Limits, Reason, Security, connect};
use espalier_proto::{
    Accesses, Caller, ClientId, ClusterId, FromClient, FromServer, Hello, Ino, Name, NewNode, Rank, Reply,
    Request, RequestId, Service,
};
use espalier_runtime::{
    Access, Error, MetaRole, MkfsOptions, OpenOptions, OwnStore, RankSource, ServeOptions, Volume, fsck,
    fsck_cluster, mkfs_ranks, repair, serve,
};

use crate::common::{Plain, credentials};

fn stores(dir: &Path, ranks: usize) -> Vec<PathBuf> {
    let stores: Vec<_> = (0..ranks).map(|rank| dir.join(format!("store-{rank}"))).collect();
    let options = MkfsOptions { journal_bytes: Some(4 << 20), perm: 0o777, ..MkfsOptions::default() };
    mkfs_ranks(&stores, &options).unwrap();
    stores
}

fn role(store: &Path, ranks: Vec<String>) -> MetaRole {
    let (session_ms, lease_ms) = (1_200_000, 600_000);
    let open = OpenOptions {
        session_ms: Some(session_ms),
        lease_ms: Some(lease_ms),
        with_ranks: true,
        ..OpenOptions::default()
    };
    let (volume, store) = (Volume::open(store, open).unwrap(), store.to_path_buf());
    let (access, data_servers, data_key) = (Access::default(), Vec::new(), None);
    let source = RankSource::Own { stores: vec![OwnStore { volume, path: store }], ranks };
    MetaRole { source, access, session_ms, data_servers, data_key }
}

fn options(security: Security) -> ServeOptions {
    ServeOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        security,
        limits: Limits::default(),
        max_connections: 10,
        threads: 2,
        metrics: None,
        slow: None,
        drain: Duration::from_secs(30),
        read_settings: None,
    }
}

/// Runs a server until the test process ends.
fn server(role: MetaRole, security: Security) -> SocketAddr {
    let (ready, address) = channel();
    std::thread::spawn(move || {
        serve(Some(role), None, options(security), |address| ready.send(address).unwrap()).unwrap();
    });
    address.recv().unwrap()
}

fn cluster_of(store: &Path) -> ClusterId {
    ClusterId(espalier_store::superblock::read(store).unwrap().uuid.into_bytes())
}

type Said = Plain<PeerMessage>;

#[tokio::test]
async fn ranks_talk_to_the_right_ones_only() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path(), Validity::years(1)).unwrap();
    let hosts = ["127.0.0.1".to_string()];
    let issue = |name: &str| {
        let identity = Identity::server(name).unwrap();
        authority.issue_server(&identity, &hosts, Validity::years(1)).unwrap()
    };
    let own = credentials(dir.path(), "own", &issue("server-0"));
    let server_1 = credentials(dir.path(), "other", &issue("server-1"));
    let issued = authority.issue_client(&Identity::client("eve").unwrap(), Validity::years(1)).unwrap();
    let client = credentials(dir.path(), "client", &issued);
    let stores = stores(dir.path(), 2);
    let cluster = cluster_of(&stores[0]);
    assert_eq!(cluster, cluster_of(&stores[1]));
    let ranks = vec!["127.0.0.1:1".to_string(), "127.0.0.1:2".to_string()];
    let address = server(role(&stores[0], ranks.clone()), own).to_string();

    let reach = async |security: &Security, cluster: ClusterId, (from, to): (u16, u16)| {
        let service = Service::Peer { from: Rank(from), to: Rank(to) };
        let hello = Hello { cluster, service, client: ClientId(1), incarnation: Some(1) };
        connect::<Said, Said>(&address, security, &Limits::default(), hello).await
    };
    let refused = async |security: &Security, cluster, ranks| match reach(security, cluster, ranks).await {
        Err(ConnectError::Refused { refusal, .. }) => refusal.reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    };
    assert_eq!(refused(&client, cluster, (1, 0)).await, Reason::Identity);
    assert_eq!(refused(&server_1, ClusterId::ANY, (1, 0)).await, Reason::Cluster);
    assert_eq!(refused(&server_1, ClusterId([9; 16]), (1, 0)).await, Reason::Cluster);
    for wrong in [(1, 1), (0, 0), (2, 0), (0, 1)] {
        assert_eq!(refused(&server_1, cluster, wrong).await, Reason::Service);
    }
    assert_eq!(reach(&server_1, cluster, (1, 0)).await.unwrap().0.rank, Rank(0));

    let hello = Hello {
        cluster,
        service: Service::Metadata { leases: true, accesses: Accesses::All, rank: None },
        client: ClientId(1),
        incarnation: None,
    };
    let (welcome, _) =
        connect::<FromServer, FromClient>(&address, &client, &Limits::default(), hello).await.unwrap();
    assert_eq!((welcome.rank, welcome.servers.ranks), (Rank(0), ranks));
}

#[test]
fn rank_of_a_cluster_is_refused_on_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let stores = stores(dir.path(), 3);
    let refuses_single_rank =
        |outcome: Option<Error>| assert!(matches!(outcome, Some(Error::OneRank { .. })), "{outcome:?}");
    refuses_single_rank(Volume::open(&stores[1], OpenOptions::default()).err());
    refuses_single_rank(fsck(&stores[0], |_| {}).err());
    refuses_single_rank(repair(&stores[2], |_| {}).err());
    for named in [vec![], vec!["a:1".to_string(); 2]] {
        let outcome = serve(Some(role(&stores[0], named)), None, options(Security::Insecure), |_| {});
        assert!(matches!(outcome, Err(Error::Ranks { ranks: 3, .. })), "{outcome:?}");
    }
    let not_all = [&stores[..2], &[stores[0].clone(), stores[1].clone(), stores[1].clone()]];
    for stores in not_all {
        assert!(fsck_cluster(stores, &[], |_| {}).is_err());
    }
    let report = fsck_cluster(&stores, &[], |_| {}).unwrap();
    assert_eq!((report.findings, report.files), (vec![], 1));
}

/// A proxy between two ranks that can cut their connections.
#[derive(Clone, Default)]
struct Between(Arc<Mutex<Vec<TcpStream>>>);

impl Between {
    fn listen(&self, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let open = self.0.clone();
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (from, to) = (from.unwrap(), TcpStream::connect(to).unwrap());
                for (mut one, mut other) in [(&from, &to), (&to, &from)]
                    .map(|(one, other)| (one.try_clone().unwrap(), other.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        let mut bytes = [0; 1 << 16];
                        while let Ok(read @ 1..) = one.read(&mut bytes) {
                            if other.write_all(&bytes[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = other.shutdown(Shutdown::Both);
                    });
                }
                open.lock().unwrap().push(from);
            }
        });
        address
    }

    /// Cuts the present connections; returns their number.
    fn cut(&self) -> usize {
        self.0.lock().unwrap().drain(..).filter(|one| one.shutdown(Shutdown::Both).is_ok()).count()
    }
}

/// Creates directories at rank 0, of which every other one is placed at rank 1.
async fn make(connection: &mut Connection<FromServer, FromClient>, ids: std::ops::Range<u64>) -> usize {
    for id in ids.clone() {
        let request = Request::Create {
            dir: Ino::ROOT,
            name: Name::new(format!("directory {id}").as_bytes()).unwrap(),
            node: NewNode::Directory,
            perm: 0o755,
            umask: 0,
            open: None,
            exclusive: true,
            writeback: None,
        };
        let below = RequestId(ids.start);
        let message = FromClient::Request {
            id: RequestId(id),
            below,
            follows: Vec::new(),
            announced: false,
            caller: Caller::SERVER,
            request,
        };
        connection.sender.send(message).unwrap();
    }
    let (mut batch, mut answered, mut remote_replies) = (Vec::new(), 0, 0);
    while answered < ids.end - ids.start {
        connection.receiver.next(&mut batch).await.unwrap();
        for message in batch.drain(..) {
            let FromServer::Reply { result, .. } = message else { continue };
            remote_replies += usize::from(matches!(result.unwrap(), Reply::Remote { .. }));
            answered += 1;
        }
    }
    remote_replies
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_lost_with_connection_are_resent() {
    let dir = tempfile::tempdir().unwrap();
    let stores = stores(dir.path(), 2);
    let between = Between::default();
    let first = server(role(&stores[0], vec!["unused:1".into(); 2]), Security::Insecure);
    let reached = between.listen(first).to_string();
    server(role(&stores[1], vec![reached, "unused:1".into()]), Security::Insecure);

    let hello = Hello {
        cluster: ClusterId::ANY,
        service: Service::Metadata { leases: true, accesses: Accesses::All, rank: None },
        client: ClientId(1),
        incarnation: None,
    };
    let security = Security::Insecure;
    let connected = connect(&first.to_string(), &security, &Limits::default(), hello).await;
    let (_, mut connection) = connected.unwrap();
    let mut cuts = 0;
    for round in 0..20 {
        let cutter = between.clone();
        let cutting = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(round));
            cutter.cut()
        });
        let first = 1 + round * 50;
        assert_eq!(make(&mut connection, first..first + 50).await, 25);
        cuts += cutting.await.unwrap();
    }
    assert!(cuts > 0, "the ranks use the proxy");
}
