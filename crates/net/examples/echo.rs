//! Measures round trips over loopback, both ends in one process: `cargo run --release -p
//! espalier-net --example echo`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use espalier_net::pki::{Authority, Validity};
use espalier_net::{Acceptor, Connection, Identity, Limits, Security, connect};
use espalier_proto::{
    Accesses, Caller, ClientId, ClusterId, FromClient, FromServer, Hello, Ino, Rank, Reply, Request,
    RequestId, ServerMap, Service, Touched, Welcome,
};
use tokio::net::TcpListener;

const MEASURED: Duration = Duration::from_secs(2);

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = certified(dir.path());
    for (name, server, client) in [("plain", Security::Insecure, Security::Insecure), ("TLS", server, client)]
    {
        for outstanding in [1, 32] {
            for size in [0, 4 << 10, 1 << 20] {
                let (rate, median) = measure(server.clone(), client.clone(), outstanding, size);
                let each = 1e6 / rate;
                println!(
                    "{name:5} {outstanding:2} outstanding, answers of {size:7} bytes: {rate:8.0}/s, {each:6.1} us, half of the round trips {median:6.1} us"
                );
            }
        }
        println!("{name:5} an idle connection, both its ends: {} bytes", idle(server, client));
    }
}

/// Memory of an idle connection in bytes, at both ends together.
fn idle(server: Security, client: Security) -> usize {
    const CONNECTIONS: usize = 400;
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let (limits, mut retained, before) = (Limits::default(), Vec::new(), resident());
        let acceptor = Acceptor::new(server, limits.clone());
        for _ in 0..CONNECTIONS {
            let serving = async {
                let incoming = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
                incoming.welcome(WELCOME).await.unwrap()
            };
            let (mut served, requester): (Connection<FromClient, FromServer>, Result<_, _>) =
                tokio::join!(serving, connect(&address, &client, &limits, HELLO));
            let (_, mut requester): (_, Connection<FromServer, FromClient>) = requester.unwrap();
            requester.sender.send(request(1)).unwrap();
            served.receiver.next(&mut Vec::new()).await.unwrap();
            let result = Ok(Reply::Done);
            served
                .sender
                .send(FromServer::Reply {
                    id: RequestId(1),
                    lease_ms: 0,
                    announced: false,
                    touched: Touched::default(),
                    result,
                })
                .unwrap();
            requester.receiver.next(&mut Vec::new()).await.unwrap();
            retained.push((served, requester));
        }
        (resident() - before) / CONNECTIONS
    })
}

const HELLO: Hello = Hello {
    cluster: ClusterId([1; 16]),
    service: Service::Metadata { leases: true, accesses: Accesses::All, rank: None },
    client: ClientId(1),
    incarnation: None,
};
const WELCOME: Welcome = Welcome {
    incarnation: 1,
    window: 32,
    session_ms: 60_000,
    rank: Rank(0),
    root: Ino::ROOT,
    servers: ServerMap::NONE,
    data_pool: None,
};

fn request(id: u64) -> FromClient {
    let caller = Caller { uid: 1, gid: 1, pid: 1, groups: None };
    let id = RequestId(id);
    FromClient::Request {
        id,
        below: id,
        follows: Vec::new(),
        announced: false,
        caller,
        request: Request::GetAttr { ino: Ino(1) },
    }
}

/// Certificates and keys of a server and a client.
fn certified(dir: &std::path::Path) -> (Security, Security) {
    let authority = Authority::create(dir, Validity::years(1)).unwrap();
    let load = |name: &str, issued: espalier_net::pki::Issued| {
        let paths = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        issued.write(&paths.0, &paths.1).unwrap();
        Security::load(&dir.join("ca.pem"), &paths.0, &paths.1).unwrap()
    };
    let identity = Identity::server("s1").unwrap();
    let server = authority.issue_server(&identity, &["localhost".to_owned()], Validity::years(1)).unwrap();
    let client = authority.issue_client(&Identity::client("c1").unwrap(), Validity::years(1)).unwrap();
    (load("server", server), load("client", client))
}

/// Replies per second, and the median round trip in us of requests that are sent together. Each
/// end has its own thread.
fn measure(server: Security, client: Security, outstanding: u64, size: usize) -> (f64, f64) {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind("localhost:0").unwrap();
    let address = format!("localhost:{}", listener.local_addr().unwrap().port());
    listener.set_nonblocking(true).unwrap();
    let serving = std::thread::spawn(move || runtime().block_on(serve(listener, server, size)));
    let rate = runtime().block_on(ask(&address, client, outstanding));
    serving.join().unwrap();
    rate
}

async fn serve(listener: std::net::TcpListener, security: Security, size: usize) {
    let (socket, _) = TcpListener::from_std(listener).unwrap().accept().await.unwrap();
    let incoming = Acceptor::new(security, Limits::default()).accept(socket).await.unwrap();
    let mut connection: Connection<FromClient, FromServer> = incoming.welcome(WELCOME).await.unwrap();
    let mut batch = Vec::new();
    while connection.receiver.next(&mut batch).await.is_ok() {
        for message in batch.drain(..) {
            let FromClient::Request { id, .. } = message else { continue };
            let result = Ok(Reply::Bytes(vec![7; size].into()));
            connection
                .sender
                .queue(FromServer::Reply {
                    id,
                    lease_ms: 0,
                    announced: false,
                    touched: Touched::default(),
                    result,
                })
                .unwrap();
        }
        let _ = connection.sender.flush();
    }
}

async fn ask(address: &str, security: Security, outstanding: u64) -> (f64, f64) {
    let (_, mut connection): (_, Connection<FromServer, FromClient>) =
        connect(address, &security, &Limits::default(), HELLO).await.unwrap();
    for id in 0..outstanding {
        connection.sender.queue(request(id)).unwrap();
    }
    connection.sender.flush().unwrap();
    let (started, mut answered, mut batch) = (Instant::now(), 0, Vec::new());
    let (mut sent, mut times) = (started, Vec::new());
    while sent.duration_since(started) < MEASURED {
        connection.receiver.next(&mut batch).await.unwrap();
        for _ in batch.drain(..) {
            answered += 1;
            connection.sender.queue(request(outstanding + answered)).unwrap();
        }
        connection.sender.flush().unwrap();
        let now = Instant::now();
        times.push(now.duration_since(sent));
        sent = now;
    }
    times.sort_unstable();
    (answered as f64 / sent.duration_since(started).as_secs_f64(), times[times.len() / 2].as_secs_f64() * 1e6)
}
