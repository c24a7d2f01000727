//! A data server's access control and requests.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use espalier_net::pki::{Authority, Validity};
use espalier_net::{ConnectError, Connection, Identity, Limits, Reason, SealKey, Security, connect};
use espalier_proto::{
    Access, Accesses, Capability, ClientId, ClusterId, DataReply, DataRequest, Errno, FromData, Hello, Ino,
    RequestId, ServerId, Service, StreamStat, Time, ToData, Welcome,
};
use espalier_runtime::{
    DataFigures, DataRole, DataStore, Holder, MetricsAddress, ServeOptions, mkfs_data, serve, status_of,
};

use crate::common::credentials;

type DataRequester = Connection<FromData, ToData>;

/// Runs data server 3 until the test process ends.
fn data_server(dir: &Path, security: Security, key: SealKey) -> SocketAddr {
    let path = dir.join("data");
    mkfs_data(&path, ServerId(3)).unwrap();
    assert!(DataStore::open(&path, ServerId(2), false).is_err(), "the store belongs to another server");
    let store = DataStore::open(&path, ServerId(3), false).unwrap();
    let options = ServeOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        security,
        limits: Limits::default(),
        max_connections: 10,
        threads: 2,
        metrics: Some(MetricsAddress::Unix(dir.join("metrics"))),
        slow: None,
        drain: Duration::from_secs(30),
        read_settings: None,
    };
    let (ready, address) = channel();
    std::thread::spawn(move || {
        let ready = |address| ready.send(address).unwrap();
        serve(None, Some(DataRole { store, data_key: Some(key) }), options, ready).unwrap();
    });
    address.recv().unwrap()
}

async fn reach(
    address: SocketAddr,
    security: &Security,
    service: Service,
) -> Result<(Welcome, DataRequester), ConnectError> {
    let hello = Hello { cluster: ClusterId::ANY, service, client: ClientId(0), incarnation: Some(1) };
    connect(&address.to_string(), security, &Limits::default(), hello).await
}

async fn ask(requester: &mut DataRequester, request: DataRequest) -> Result<DataReply, Errno> {
    ask_with(requester, None, request).await
}

async fn ask_with(
    requester: &mut DataRequester,
    capability: Option<Capability>,
    request: DataRequest,
) -> Result<DataReply, Errno> {
    requester.sender.send(ToData { id: RequestId(7), request, capability }).unwrap();
    let mut batch = Vec::new();
    while batch.is_empty() {
        requester.receiver.next(&mut batch).await.unwrap();
    }
    batch.remove(0).result
}

/// The certificates of a cluster, and its data server 3.
struct DataCluster {
    dir: tempfile::TempDir,
    authority: Authority,
    key: SealKey,
    address: SocketAddr,
}

fn new_key(path: &Path) -> SealKey {
    SealKey::write(&SealKey::generate().unwrap(), path).unwrap();
    SealKey::load(path).unwrap()
}

impl DataCluster {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path(), Validity::years(1)).unwrap();
        let key = new_key(&dir.path().join("data.key"));
        let mut cluster = Self { dir, authority, key, address: ([127, 0, 0, 1], 0).into() };
        let own = cluster.server("server-3");
        cluster.address = data_server(cluster.dir.path(), own, cluster.key.clone());
        cluster
    }

    fn server(&self, name: &str) -> Security {
        let identity = Identity::server(name).unwrap();
        let hosts = ["127.0.0.1".to_string()];
        let issued = self.authority.issue_server(&identity, &hosts, Validity::years(1)).unwrap();
        credentials(self.dir.path(), name, &issued)
    }

    fn client(&self, name: &str) -> Security {
        let issued =
            self.authority.issue_client(&Identity::client(name).unwrap(), Validity::years(1)).unwrap();
        credentials(self.dir.path(), name, &issued)
    }

    /// The capability that server 0, incarnation 1, issues to this client.
    fn capability(&self, name: &str, session: u64) -> Capability {
        let (server, access) = (ServerId(0), Access::READ | Access::WRITE);
        let (since, announced, seal) = (0, false, [0; 32]);
        let mut capability =
            Capability { ino: INO, access, server, incarnation: 1, session, since, announced, seal };
        Holder::new(Some(&Identity::client(name).unwrap()), ClientId(0)).seal(&mut capability, &self.key);
        capability
    }
}

const INO: Ino = Ino(9);

fn data(number: u16) -> Service {
    Service::Data(ServerId(number))
}

fn write() -> DataRequest {
    DataRequest::write(INO, 5, b"bytes"[..].into())
}

fn refused(outcome: Result<(Welcome, DataRequester), ConnectError>) -> Reason {
    match outcome {
        Err(ConnectError::Refused { refusal, .. }) => refusal.reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    }
}

#[tokio::test]
async fn data_servers_are_for_servers() {
    let cluster = DataCluster::new();
    let (address, server, client) = (cluster.address, cluster.server("server-0"), cluster.client("eve"));
    assert_eq!(refused(reach(address, &client, data(3)).await), Reason::Identity);
    assert_eq!(refused(reach(address, &server, data(2)).await), Reason::Service);
    let metadata = Service::Metadata { leases: true, accesses: Accesses::All, rank: None };
    assert_eq!(refused(reach(address, &client, metadata).await), Reason::Service);
    let other = Service::Delegated(ServerId(2));
    assert_eq!(refused(reach(address, &client, other).await), Reason::Service);

    let (_, mut requester) = reach(address, &server, data(3)).await.unwrap();
    let ino = INO;
    assert_eq!(ask(&mut requester, write()).await, Ok(DataReply::Done));
    let read = || DataRequest::read(ino, 3, 100);
    assert_eq!(ask(&mut requester, read()).await, Ok(DataReply::Bytes(b"\0\0bytes"[..].into())));
    assert_eq!(ask(&mut requester, DataRequest::Sync { ino }).await, Ok(DataReply::Done));
    assert_eq!(ask(&mut requester, DataRequest::New).await, Ok(DataReply::Inos(vec![])));
    assert_eq!(ask(&mut requester, DataRequest::Remove { ino }).await, Ok(DataReply::Done));
    assert_eq!(ask(&mut requester, read()).await, Ok(DataReply::Bytes(vec![].into())));
    // The mtime of a missing datafile is dropped, and a fill without bytes creates none.
    let mtime = Time::new(5, 0);
    assert_eq!(ask(&mut requester, DataRequest::SetMtime { ino, mtime }).await, Ok(DataReply::Done));
    let fill = |size| DataRequest::Fill { ino, data: Vec::new().into(), size, mtime, sync: true };
    for (size, new) in [(4, vec![ino]), (0, vec![])] {
        assert_eq!(ask(&mut requester, fill(size)).await, Ok(DataReply::Done));
        assert_eq!(ask(&mut requester, DataRequest::New).await, Ok(DataReply::Inos(new)));
    }
    let (inos, stat) = (vec![Ino(10), Ino(11)], DataRequest::Stat { inos: vec![Ino(10), Ino(11)] });
    assert_eq!(ask(&mut requester, DataRequest::Precreate { inos: inos.clone() }).await, Ok(DataReply::Done));
    let Ok(DataReply::Stats(made)) = ask(&mut requester, stat.clone()).await else { panic!("no stats") };
    let is_new = |stat: &StreamStat| stat.exists && (stat.size, stat.mtime) == (0, Time::default());
    assert!(made.iter().all(is_new), "they exist and are empty: {made:?}");
    assert_eq!(ask(&mut requester, DataRequest::Discard { inos }).await, Ok(DataReply::Done));
    assert_eq!(ask(&mut requester, stat).await, Ok(DataReply::Stats(vec![StreamStat::default(); 2])));
    let far = DataRequest::write(ino, espalier_proto::END, vec![1].into());
    assert_eq!(ask(&mut requester, far).await, Err(Errno::EINVAL));
}

#[tokio::test]
async fn clients_access_only_files_of_their_capabilities() {
    let cluster = DataCluster::new();
    let service = Service::Delegated(ServerId(3));
    let (_, mut server) = reach(cluster.address, &cluster.server("server-0"), data(3)).await.unwrap();
    let (_, mut alice) = reach(cluster.address, &cluster.client("alice"), service).await.unwrap();
    let (_, mut eve) = reach(cluster.address, &cluster.client("eve"), service).await.unwrap();
    let capability = cluster.capability("alice", 1);
    let stale = Ok(DataReply::Stale);
    assert_eq!(ask_with(&mut alice, Some(capability), write()).await, stale, "issued by an unknown server");
    let admit = |below, live: &[u64]| DataRequest::Admit { below, live: live.into(), durable: 0 };
    assert_eq!(ask(&mut server, admit(1, &[])).await, Ok(DataReply::Done));
    assert_eq!(ask_with(&mut alice, Some(capability), write()).await, Ok(DataReply::Done));
    let read = || DataRequest::read(INO, 5, 100);
    assert_eq!(
        ask_with(&mut alice, Some(capability), read()).await,
        Ok(DataReply::Bytes(b"bytes"[..].into()))
    );

    // No capability, another client's, and an altered one of the client's own.
    let own = cluster.capability("eve", 2);
    let mut by_stranger = own;
    let other_key = new_key(&cluster.dir.path().join("other.key"));
    Holder::new(Some(&Identity::client("eve").unwrap()), ClientId(0)).seal(&mut by_stranger, &other_key);
    for forged in [
        None,
        Some(capability),
        Some(by_stranger),
        Some(Capability { ino: Ino(10), ..own }),
        Some(Capability { session: 3, ..own }),
        Some(Capability { incarnation: 2, ..own }),
        Some(Capability { server: ServerId(1), ..own }),
        Some(Capability { access: Access::READ, ..own }),
        Some(Capability { seal: [0; 32], ..own }),
    ] {
        assert_eq!(ask_with(&mut eve, forged, write()).await, Err(Errno::EACCES), "{forged:?}");
    }
    let other_file = DataRequest::read(Ino(10), 0, 1);
    assert_eq!(ask_with(&mut eve, Some(own), other_file).await, Err(Errno::EACCES));
    assert_eq!(ask_with(&mut eve, Some(own), DataRequest::Remove { ino: INO }).await, Err(Errno::EACCES));
    assert_eq!(ask_with(&mut eve, Some(own), admit(9, &[])).await, Err(Errno::EACCES));
    assert_eq!(ask_with(&mut eve, Some(own), write()).await, Ok(DataReply::Done));

    // One session ends, the other continues; then the metadata server restarts.
    assert_eq!(ask(&mut server, admit(3, &[2])).await, Ok(DataReply::Done));
    assert_eq!(ask_with(&mut alice, Some(capability), write()).await, stale);
    assert_eq!(ask_with(&mut eve, Some(own), write()).await, Ok(DataReply::Done));
    let hello =
        Hello { cluster: ClusterId::ANY, service: data(3), client: ClientId(0), incarnation: Some(2) };
    let security = Security::load_from(&cluster.dir.path().join("server-0")).unwrap();
    let anew = connect(&cluster.address.to_string(), &security, &Limits::default(), hello).await;
    let (_, mut anew): (Welcome, DataRequester) = anew.unwrap();
    assert_eq!(ask(&mut anew, admit(1, &[])).await, Ok(DataReply::Done));
    assert_eq!(ask_with(&mut eve, Some(own), write()).await, stale);
}

#[tokio::test]
async fn data_server_operations_are_counted() {
    let cluster = DataCluster::new();
    let (_, mut server) = reach(cluster.address, &cluster.server("server-0"), data(3)).await.unwrap();
    assert_eq!(ask(&mut server, write()).await, Ok(DataReply::Done));
    let far = DataRequest::write(INO, espalier_proto::END, vec![1].into());
    assert_eq!(ask(&mut server, far).await, Err(Errno::EINVAL));
    let read = DataRequest::read(INO, 3, 100);
    assert_eq!(ask(&mut server, read).await, Ok(DataReply::Bytes(b"\0\0bytes"[..].into())));
    assert_eq!(ask(&mut server, DataRequest::Remove { ino: INO }).await, Ok(DataReply::Done));

    let figures = status_of(&cluster.dir.path().join("data")).unwrap().figures.unwrap();
    let of = |name| figures.operations.iter().find(|operation| operation.name == name).unwrap();
    for (name, count, errors) in [("write", 2, 1), ("read", 1, 0), ("unlink", 1, 0)] {
        assert_eq!((of(name).count, of(name).errors), (count, errors), "{name}");
    }
    assert!(of("write").seconds.disk > 0.0, "{:?}", of("write"));
    assert_eq!(figures.data, DataFigures { read_bytes: 7, written_bytes: 5 });
    assert_eq!(figures.waiting, 0);
    for path in ["/metrics", "/metrics/data"] {
        let mut metrics = UnixStream::connect(cluster.dir.path().join("metrics")).unwrap();
        write!(metrics, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut reported = String::new();
        metrics.read_to_string(&mut reported).unwrap();
        for line in [
            "espalier_operation_duration_seconds_count{operation=\"write\"} 2",
            "espalier_data_read_bytes_total 7",
        ] {
            assert!(
                reported.lines().any(|reported| reported.strip_suffix(".0").unwrap_or(reported) == line),
                "{line}: {reported}"
            );
        }
    }
}

/// A client that reads nothing, or repeats its requests, does not delay other clients.
#[tokio::test]
async fn client_that_does_not_read_blocks_no_other() {
    let cluster = DataCluster::new();
    let service = Service::Delegated(ServerId(3));
    let (_, mut server) = reach(cluster.address, &cluster.server("server-0"), data(3)).await.unwrap();
    assert_eq!(
        ask(&mut server, DataRequest::Admit { below: 1, live: vec![], durable: 0 }).await,
        Ok(DataReply::Done)
    );
    let bytes = DataRequest::write(INO, 0, vec![1; 1 << 20].into());
    assert_eq!(ask(&mut server, bytes).await, Ok(DataReply::Done));
    let (_, greedy) = reach(cluster.address, &cluster.client("greedy"), service).await.unwrap();
    let capability = Some(cluster.capability("greedy", 1));
    for id in 0..4096 {
        let request = DataRequest::read(INO, 0, 1 << 20);
        greedy.sender.send(ToData { id: RequestId(id % 1024), request, capability }).unwrap();
    }
    let (_, mut alice) = reach(cluster.address, &cluster.client("alice"), service).await.unwrap();
    for _ in 0..100 {
        let capability = Some(cluster.capability("alice", 2));
        assert_eq!(ask_with(&mut alice, capability, write()).await, Ok(DataReply::Done));
    }
}
