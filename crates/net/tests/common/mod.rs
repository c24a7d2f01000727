//! Both ends of connections over loopback.
#![allow(dead_code)]

use std::future::Future;
use std::time::Duration;

use espalier_net::pki::{Authority, Issued, Validity};
use espalier_net::{
    Acceptor, ConnectError, Connection, Identity, Limits, Message, NetError, Receiver, Security, connect,
};
use espalier_proto::{
    Accesses, Caller, ClientId, ClusterId, FromClient, FromServer, Hello, Ino, Rank, Reply, Request,
    RequestId, ServerMap, Service, Touched, Welcome,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub type ServerConnection = Connection<FromClient, FromServer>;
pub type ClientConnection = Connection<FromServer, FromClient>;

/// An authority with certificates of every kind.
pub struct TestPki {
    pub dir: TempDir,
    pub authority: Authority,
}

impl TestPki {
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let authority = Authority::create(dir.path(), Validity::years(1)).unwrap();
        Self { dir, authority }
    }

    pub fn server(&self) -> Security {
        self.server_for("localhost", Validity::years(1))
    }

    pub fn server_for(&self, host: &str, validity: Validity) -> Security {
        let identity = Identity::server("s1").unwrap();
        self.load(self.authority.issue_server(&identity, &[host.to_owned()], validity).unwrap())
    }

    pub fn client(&self, name: &str) -> Security {
        self.client_for(name, Validity::years(1))
    }

    pub fn client_for(&self, name: &str, validity: Validity) -> Security {
        self.load(self.authority.issue_client(&Identity::client(name).unwrap(), validity).unwrap())
    }

    pub fn load(&self, issued: Issued) -> Security {
        let dir = TempDir::new().unwrap();
        let (certificate, key) = (dir.path().join("c.pem"), dir.path().join("c.key"));
        issued.write(&certificate, &key).unwrap();
        Security::load(&self.dir.path().join("ca.pem"), &certificate, &key).unwrap()
    }
}

/// Longer than any step takes unless it hangs.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it hangs")
}

pub fn hello() -> Hello {
    Hello {
        cluster: ClusterId([7; 16]),
        service: Service::Metadata { leases: true, accesses: Accesses::All, rank: None },
        client: ClientId(3),
        incarnation: None,
    }
}

pub fn welcome() -> Welcome {
    Welcome {
        incarnation: 5,
        window: 32,
        session_ms: 60_000,
        rank: Rank(0),
        root: Ino::ROOT,
        servers: ServerMap::NONE,
        data_pool: None,
    }
}

/// Two connected ends.
pub async fn pair(
    server: (Security, Limits),
    client: (Security, Limits),
) -> (ServerConnection, ClientConnection) {
    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let address = format!("localhost:{}", listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let incoming = Acceptor::new(server.0, server.1).accept(socket).await.unwrap();
        assert_eq!(incoming.hello(), &hello());
        incoming.welcome(welcome()).await.unwrap()
    });
    let connected: Result<(Welcome, ClientConnection), ConnectError> =
        connect(&address, &client.0, &client.1, hello()).await;
    let (welcomed, client) = connected.unwrap();
    assert_eq!(welcomed, welcome());
    (serving.await.unwrap(), client)
}

pub async fn plain() -> (ServerConnection, ClientConnection) {
    pair((Security::Insecure, Limits::default()), (Security::Insecure, Limits::default())).await
}

pub async fn tls() -> (ServerConnection, ClientConnection) {
    let cluster = TestPki::new();
    pair((cluster.server(), Limits::default()), (cluster.client("alice"), Limits::default())).await
}

/// A request with a payload.
pub fn write(id: u64, data: Vec<u8>) -> FromClient {
    let request =
        Request::Write { ino: Ino(9), offset: id, data: data.into(), kill_suid_gid: false, time: None };
    request_of(id, request)
}

/// A request without one.
pub fn stat(id: u64) -> FromClient {
    request_of(id, Request::GetAttr { ino: Ino(id) })
}

fn request_of(id: u64, request: Request) -> FromClient {
    let caller = Caller { uid: 1, gid: 2, pid: 3, groups: Default::default() };
    FromClient::Request {
        id: RequestId(id),
        below: RequestId(0),
        follows: Vec::new(),
        announced: false,
        caller,
        request,
    }
}

pub fn bytes(id: u64, data: Vec<u8>) -> FromServer {
    FromServer::Reply {
        id: RequestId(id),
        lease_ms: 0,
        announced: false,
        touched: Touched::default(),
        result: Ok(Reply::Bytes(data.into())),
    }
}

/// A side that receives continuously, as connections require.
pub struct Heard<In> {
    messages: mpsc::UnboundedReceiver<In>,
    /// Why the connection ended.
    pub ended: JoinHandle<NetError>,
}

impl<In: Message> Heard<In> {
    pub fn new(mut receiver: Receiver<In>) -> Self {
        let (to, messages) = mpsc::unbounded_channel();
        let ended = tokio::spawn(async move {
            let mut batch = Vec::new();
            loop {
                if let Err(error) = receiver.next(&mut batch).await {
                    return error;
                }
                batch.drain(..).for_each(|message| drop(to.send(message)));
            }
        });
        Self { messages, ended }
    }

    pub async fn next(&mut self) -> In {
        match within(self.messages.recv()).await {
            Some(message) => message,
            None => panic!("the connection has ended: {}", (&mut self.ended).await.unwrap()),
        }
    }
}

/// Bytes that all differ from their neighbours.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 31 + n / 251) as u8).collect()
}
