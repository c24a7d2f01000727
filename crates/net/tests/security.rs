//! The peers that may connect, and the reasons that others get.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::common::{
    ClientConnection, Heard, ServerConnection, TestPki, bytes, hello, pair, pattern, welcome, within, write,
};
use espalier_net::pki::{Authority, Issued, Validity};
use espalier_net::{
    AcceptError, Acceptor, ConnectError, Identity, Limits, Reason, Refusal, Security, connect,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const DAY: Duration = Duration::from_secs(86_400);

fn expired() -> Validity {
    Validity { from: SystemTime::now() - 3 * DAY, until: SystemTime::now() - DAY }
}

fn not_yet() -> Validity {
    Validity { from: SystemTime::now() + DAY, until: SystemTime::now() + 3 * DAY }
}

/// The results of a connection attempt at both sides.
async fn attempt(
    server: Security,
    client: Security,
) -> (Result<ServerConnection, AcceptError>, Result<ClientConnection, ConnectError>) {
    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let address = format!("localhost:{}", listener.local_addr().unwrap().port());
    let serving = async {
        let (socket, _) = listener.accept().await.unwrap();
        let incoming = Acceptor::new(server, Limits::default()).accept(socket).await?;
        Ok(incoming.welcome(welcome()).await.unwrap())
    };
    let limits = Limits::default();
    let connecting = async {
        connect(&address, &client, &limits, hello()).await.map(|(_, client): (_, ClientConnection)| client)
    };
    within(async { tokio::join!(serving, connecting) }).await
}

#[tokio::test]
async fn messages_go_over_tls() {
    let cluster = TestPki::new();
    let limits = Limits::default();
    let (server, client) =
        pair((cluster.server(), limits.clone()), (cluster.client("alice"), limits.clone())).await;
    let (mut at_server, mut at_client) = (Heard::new(server.receiver), Heard::new(client.receiver));
    for length in [0, 1, 16_384, 16_385, 65_536, 1_000_000, 4_194_304] {
        client.sender.send(write(1, pattern(length))).unwrap();
        server.sender.send(bytes(1, pattern(length))).unwrap();
        assert!(at_server.next().await == write(1, pattern(length)), "{length}");
        assert!(at_client.next().await == bytes(1, pattern(length)), "{length}");
    }
    client.sender.close().await.unwrap();
    assert!(matches!(within(at_server.ended).await.unwrap(), espalier_net::NetError::Closed));
}

#[tokio::test]
async fn server_identifies_connecting_client() {
    let cluster = TestPki::new();
    for (security, expected) in [
        (cluster.client("alice"), Identity::Client("alice".into())),
        (cluster.server(), Identity::Server("s1".into())),
    ] {
        assert_eq!(security.identity(), Some(&expected));
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let connecting = tokio::spawn(async move {
            let connected: Result<(_, ClientConnection), _> =
                connect(&address, &security, &Limits::default(), hello()).await;
            connected.unwrap_err()
        });
        let (socket, _) = listener.accept().await.unwrap();
        let acceptor = Acceptor::new(cluster.server(), Limits::default());
        let incoming = acceptor.accept(socket).await.unwrap();
        assert_eq!(incoming.identity(), Some(&expected));
        let refusal = Refusal::new(Reason::Full, "no room: come back later");
        incoming.refuse(refusal.clone()).await;
        match within(connecting).await.unwrap() {
            ConnectError::Refused { refusal: reported, .. } => assert_eq!(reported, refusal),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn an_authority_is_found_again() {
    let cluster = TestPki::new();
    let authority = Authority::load(cluster.dir.path()).unwrap();
    let issued = authority.issue_client(&Identity::client("bob").unwrap(), Validity::years(1)).unwrap();
    let (server, client) = attempt(cluster.server(), cluster.load(issued)).await;
    assert!(server.is_ok() && client.is_ok());
    let mode = |name: &str| cluster.dir.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("ca.key"), 0o600);
    let again = Authority::create(cluster.dir.path(), Validity::years(1)).unwrap_err();
    assert!(again.to_string().contains("ca.key is there already"), "{again}");
    let other = TestPki::new();
    std::fs::copy(other.dir.path().join("ca.pem"), cluster.dir.path().join("ca.pem")).unwrap();
    assert!(Authority::load(cluster.dir.path()).unwrap_err().to_string().contains("do not belong together"));
}

#[tokio::test]
async fn certificates_of_another_authority() {
    let (ours, theirs) = (TestPki::new(), TestPki::new());
    let (server, client) = attempt(ours.server(), theirs.client("alice")).await;
    assert!(matches!(client.unwrap_err(), ConnectError::UnknownAuthority { .. }));
    server.unwrap_err();

    // A client of another cluster that trusts the server.
    let stranger = Authority::create(TempDir::new().unwrap().path(), Validity::years(1)).unwrap();
    let issued = stranger.issue_client(&Identity::client("alice").unwrap(), Validity::years(1)).unwrap();
    let (server, client) = attempt(ours.server(), ours.load(issued)).await;
    assert!(matches!(server.unwrap_err(), AcceptError::Certificate(_)));
    let error = client.unwrap_err();
    assert!(matches!(error, ConnectError::OwnAuthority { .. }), "{error}");
}

#[tokio::test]
async fn certificates_out_of_their_time() {
    let cluster = TestPki::new();
    for validity in [expired(), not_yet()] {
        let (server, client) =
            attempt(cluster.server_for("localhost", validity), cluster.client("alice")).await;
        let error = client.unwrap_err();
        assert!(matches!(error, ConnectError::CertificateTime { .. }), "{error}");
        server.unwrap_err();
        let (server, client) = attempt(cluster.server(), cluster.client_for("alice", validity)).await;
        assert!(matches!(server.unwrap_err(), AcceptError::Certificate(_)));
        let error = client.unwrap_err();
        assert!(matches!(error, ConnectError::OwnTime { .. }), "{error}");
    }
}

#[tokio::test]
async fn certificates_for_something_else() {
    let cluster = TestPki::new();
    let (server, client) = attempt(cluster.client("mallory"), cluster.client("alice")).await;
    let error = client.unwrap_err();
    assert!(
        matches!(error, ConnectError::NotAServer { .. } | ConnectError::CertificateName { .. }),
        "{error}"
    );
    server.unwrap_err();
    // Refused also if it names the host and is issued for servers.
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    for purposes in [vec![ClientAuth], vec![ClientAuth, ServerAuth]] {
        let (server, client) = attempt(careless(&cluster, purposes), cluster.client("alice")).await;
        let error = client.unwrap_err();
        assert!(matches!(error, ConnectError::NotAServer { .. }), "{error}");
        server.unwrap_err();
    }
    let other_host = cluster.server_for("files.example.com", Validity::years(1));
    let (server, client) = attempt(other_host, cluster.client("alice")).await;
    let error = client.unwrap_err();
    assert!(matches!(error, ConnectError::CertificateName { .. }), "{error}");
    server.unwrap_err();
}

/// A client's certificate with a host name, as a careless authority may issue it.
fn careless(cluster: &TestPki, purposes: Vec<rcgen::ExtendedKeyUsagePurpose>) -> Security {
    cluster.load(signed(cluster, &["mallory.client.espalier.internal", "localhost"], purposes))
}

/// Anything that the authority's key can be made to sign.
fn signed(cluster: &TestPki, names: &[&str], purposes: Vec<rcgen::ExtendedKeyUsagePurpose>) -> Issued {
    let pem = std::fs::read_to_string(cluster.dir.path().join("ca.key")).unwrap();
    let authority = rcgen::KeyPair::from_pem(&pem).unwrap();
    let mut issuer = rcgen::CertificateParams::default();
    let id: String = issuer.key_identifier(&authority).iter().take(8).map(|b| format!("{b:02x}")).collect();
    issuer.distinguished_name.push(rcgen::DnType::CommonName, format!("Espalier authority {id}"));
    let issuer = rcgen::Issuer::new(issuer, authority);
    let key = rcgen::KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.extended_key_usages = purposes;
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    Issued { certificate, key: key.serialize_pem() }
}

#[tokio::test]
async fn certificates_without_names() {
    let cluster = TestPki::new();
    for names in [
        &["localhost"][..],
        &["alice.espalier.internal"],
        &["Alice.client.espalier.internal"],
        &["a.b.client.espalier.internal"],
        &["alice.client.espalier.internal", "s1.server.espalier.internal"],
    ] {
        let issued = signed(&cluster, names, vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth]);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(cluster.dir.path().join("ca.pem")).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
        let config =
            ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();

        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let response = async {
            let connector = TlsConnector::from(Arc::new(config));
            let mut stream = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
            let terms = (16_384_u32, 1_u32 << 20, 1_u32 << 22);
            let body = postcard::to_extend(&(terms, hello()), Vec::new()).unwrap();
            stream.write_all(b"ESPALIER\x01\0\0\0").await.unwrap();
            stream.write_all(&(body.len() as u32).to_le_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.unwrap();
            response
        };
        let acceptor = Acceptor::new(cluster.server(), Limits::default());
        let accepting = async { acceptor.accept(listener.accept().await.unwrap().0).await };
        let (accepted, response) = within(async { tokio::join!(accepting, response) }).await;
        assert!(matches!(accepted.unwrap_err(), AcceptError::Identity(_)), "{names:?}");
        assert_eq!(response[16], 4);
        assert!(String::from_utf8_lossy(&response).contains("name"), "{names:?}");
    }
}

#[tokio::test]
async fn one_side_without_tls() {
    let cluster = TestPki::new();
    let (server, client) = attempt(cluster.server(), Security::Insecure).await;
    assert!(matches!(server.unwrap_err(), AcceptError::NoTls));
    match client.unwrap_err() {
        ConnectError::Refused { refusal, .. } => assert_eq!(refusal.reason, Reason::NoTls),
        other => panic!("{other}"),
    }
    let (server, client) = attempt(Security::Insecure, cluster.client("alice")).await;
    assert!(matches!(server.unwrap_err(), AcceptError::Tls));
    let error = client.unwrap_err();
    assert!(matches!(error, ConnectError::NoTls { .. }), "{error}");
}

#[tokio::test]
async fn browser_gets_an_explanation() {
    for security in [Security::Insecure, TestPki::new().server()] {
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let mut browser = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        browser.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let acceptor = Acceptor::new(security, Limits::default());
        let (accepted, response) = within(async {
            let mut response = Vec::new();
            tokio::join!(acceptor.accept(socket), async {
                browser.read_to_end(&mut response).await.unwrap();
                drop(browser);
                response
            })
        })
        .await;
        assert!(matches!(accepted.unwrap_err(), AcceptError::Foreign));
        assert!(String::from_utf8_lossy(&response).contains("Espalier"), "{response:?}");
    }
}

#[test]
fn unusable_certificate_files_are_rejected() {
    let cluster = TestPki::new();
    let dir = cluster.dir.path();
    let issued = |name: &str| {
        let identity = Identity::client(name).unwrap();
        let issued = cluster.authority.issue_client(&identity, Validity::years(1)).unwrap();
        let paths = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        issued.write(&paths.0, &paths.1).unwrap();
        paths
    };
    let (alice, alice_key) = issued("alice");
    let (_, bob_key) = issued("bob");
    let ca = dir.join("ca.pem");
    let message = |authority: &Path, certificate: &Path, key: &Path| {
        Security::load(authority, certificate, key).unwrap_err().to_string()
    };
    let missing = dir.join("missing.pem");
    assert!(message(&missing, &alice, &alice_key).contains("missing.pem: No such file"));
    assert!(message(&ca, &alice, &bob_key).contains("do not belong together"));
    assert!(message(&ca, &alice_key, &alice_key).contains("alice.key has no certificate"));
    assert!(message(&ca, &alice, &alice).contains("alice.pem has no private key"));
    assert!(message(&ca, &ca, &dir.join("ca.key")).contains("ca.pem: the certificate has no name"));
}

#[test]
fn invalid_certificate_names() {
    for name in ["", "Alice", "a.b", "-a", "a-", "a b", &"a".repeat(64)] {
        assert!(Identity::client(name).is_err(), "{name}");
        assert!(Identity::server(name).is_err(), "{name}");
    }
    let cluster = TestPki::new();
    let identity = Identity::server("s1").unwrap();
    for host in ["", "a b", "x.client.espalier.internal", "*.example.com"] {
        let issued = cluster.authority.issue_server(&identity, &[host.to_owned()], Validity::years(1));
        assert!(issued.is_err(), "{host}");
    }
    let hosts = ["10.0.0.1", "::1", "files.example.com"].map(str::to_owned);
    cluster.authority.issue_server(&identity, &hosts, Validity::years(1)).unwrap();
}
