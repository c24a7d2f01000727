//! Peers that are slow, silent, of another version, or hostile.

use std::time::Duration;

use crate::common::{
    ClientConnection, Heard, ServerConnection, bytes, hello, pair, plain, stat, tls, welcome, within,
};
use espalier_net::{AcceptError, Acceptor, ConnectError, Limits, NetError, Reason, Security, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A prelude and a body, as docs/protocol.md describes them.
fn prelude(version: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"ESPALIER".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn greeting() -> Vec<u8> {
    let terms = (16_384_u32, 1_u32 << 20, 1_u32 << 22);
    prelude(1, &postcard::to_extend(&(terms, hello()), Vec::new()).unwrap())
}

fn frame(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_le_bytes(), content].concat()
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, client)
}

/// The reaction to a client that sends these bytes first.
async fn accepted(bytes: &[u8]) -> (AcceptError, Vec<u8>) {
    let (socket, mut client) = sockets().await;
    client.write_all(bytes).await.unwrap();
    let limits = Limits { handshake: Duration::from_millis(200), ..Limits::default() };
    let acceptor = Acceptor::new(Security::Insecure, limits);
    let reading = async {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        drop(client);
        received
    };
    let (accepted, received) = within(async { tokio::join!(acceptor.accept(socket), reading) }).await;
    (accepted.unwrap_err(), received)
}

/// A server's connection to a client with a valid greeting.
async fn greeted(limits: Limits) -> (ServerConnection, TcpStream) {
    let (socket, mut client) = sockets().await;
    client.write_all(&greeting()).await.unwrap();
    let incoming = Acceptor::new(Security::Insecure, limits).accept(socket).await.unwrap();
    assert_eq!(incoming.hello(), &hello());
    (incoming.welcome(welcome()).await.unwrap(), client)
}

/// The server's report on a client that sends these bytes and then nothing.
async fn said_of(bytes: &[u8]) -> NetError {
    let (server, mut client) = greeted(Limits::default()).await;
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    within(Heard::new(server.receiver).ended).await.unwrap()
}

#[tokio::test]
async fn another_version_is_refused() {
    for version in [0, 2, u32::MAX] {
        let (error, received) = accepted(&prelude(version, b"something new")).await;
        assert!(matches!(error, AcceptError::Version(theirs) if theirs == version), "{error}");
        let text = String::from_utf8(received[17..].to_vec()).unwrap();
        assert_eq!(received[16], 1);
        assert!(text.contains("speaks version") && text.contains("install"), "{text}");
    }
}

#[tokio::test]
async fn a_later_version_refuses() {
    for (answer, expected) in [
        (prelude(9, b"\x01use release 9"), Some((Reason::Version, "use release 9"))),
        (prelude(9, b"\xc8later reasons\n"), Some((Reason::Other(200), "later reasons "))),
        (prelude(9, b"\x00what is this?"), None),
        (prelude(1, b""), None),
        (prelude(1, b"\x00"), None),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), None),
    ] {
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let answering = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(&answer).await.unwrap();
            socket.shutdown().await.unwrap();
            // The server may be gone before it has read everything.
            let _ = socket.read_to_end(&mut Vec::new()).await;
        };
        let limits = Limits::default();
        let connecting = connect(&address, &Security::Insecure, &limits, hello());
        let (connected, ()): (Result<(_, ClientConnection), _>, ()) =
            within(async { tokio::join!(connecting, answering) }).await;
        match (connected.unwrap_err(), expected) {
            (ConnectError::Refused { refusal, .. }, Some((reason, text))) => {
                assert_eq!((refusal.reason, refusal.text.as_str()), (reason, text));
            }
            (ConnectError::Foreign { .. }, None) => {}
            (other, _) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn malformed_greetings_are_rejected() {
    let (error, received) = accepted(&prelude(1, b"no greeting at all, though it is here")).await;
    assert!(matches!(error, AcceptError::Malformed), "{error}");
    assert_eq!(received[16], 6);
    let mut long = prelude(1, b"");
    long[12..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(accepted(&long).await.0, AcceptError::Malformed));
    assert!(matches!(accepted(b"no bytes of Espalier's").await.0, AcceptError::Foreign));
    for cut in [0, 3, 8, 12, 16, 20] {
        let (error, _) = accepted(&greeting()[..cut]).await;
        assert!(matches!(error, AcceptError::TimedOut(_)), "{cut}: {error}");
    }
}

#[tokio::test]
async fn addresses_without_a_server() {
    let limits = Limits { handshake: Duration::from_secs(60), ..Limits::default() };
    let attempt = async |address: &str| -> ConnectError {
        let connected: Result<(_, ClientConnection), _> =
            connect(address, &Security::Insecure, &limits, hello()).await;
        connected.unwrap_err()
    };
    for address in ["", "localhost", "localhost:", ":1", "localhost:65536", "::1:5", "[::1:5"] {
        assert!(matches!(attempt(address).await, ConnectError::Address(_)), "{address}");
    }
    let unknown = attempt("no-such-host.invalid:1").await;
    assert!(matches!(unknown, ConnectError::UnknownHost { .. }), "{unknown}");
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let nobody = attempt(&format!("127.0.0.1:{port}")).await;
    assert!(matches!(nobody, ConnectError::NoServer { .. }), "{nobody}");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limits = Limits { handshake: Duration::from_millis(200), ..Limits::default() };
    let address = silent.local_addr().unwrap().to_string();
    let connected: Result<(_, ClientConnection), _> =
        connect(&address, &Security::Insecure, &limits, hello()).await;
    assert!(matches!(connected.unwrap_err(), ConnectError::TimedOut { .. }));
}

#[tokio::test]
async fn malformed_frames_are_rejected() {
    let protocol = async |bytes: &[u8], expected: &str| match said_of(bytes).await {
        NetError::Protocol(said) => assert_eq!(said, expected),
        other => panic!("{other}"),
    };
    protocol(&[255; 4], "a frame is too long").await;
    protocol(&(4_u32 << 20).to_le_bytes(), "a frame is too long").await;
    protocol(&frame(&[]), "a frame is of a kind that does not exist").await;
    protocol(&frame(&[6]), "a frame is of a kind that does not exist").await;
    protocol(&frame(&[0, 99]), "a message cannot be decoded").await;
    protocol(&frame(&[2, 1]), "it granted what was not announced").await;
    protocol(&frame(&[3, 1, 7]), "a piece of a payload came that was not granted").await;
    protocol(&frame(&[4, 0]), "a frame has bytes left over").await;
    // A payload on a message that has none.
    let cancel = postcard::to_extend(
        &espalier_proto::FromClient::Cancel { id: espalier_proto::RequestId(1) },
        vec![0],
    );
    let cancel = cancel.unwrap();
    protocol(&frame(&[&cancel[..], b"payload"].concat()), "a payload belongs to no message").await;
    assert!(matches!(said_of(&frame(&cancel)).await, NetError::Closed));
    let whole = frame(&cancel);
    for cut in 1..whole.len() {
        assert!(matches!(said_of(&whole[..cut]).await, NetError::Truncated), "{cut}");
    }
}

#[tokio::test]
async fn messages_before_nonsense_are_given() {
    let cancel = espalier_proto::FromClient::Cancel { id: espalier_proto::RequestId(1) };
    let bytes = postcard::to_extend(&cancel, vec![0]).unwrap();
    let (server, mut client) = greeted(Limits::default()).await;
    client.write_all(&[frame(&bytes), frame(&[99])].concat()).await.unwrap();
    let mut heard = Heard::new(server.receiver);
    assert_eq!(heard.next().await, cancel);
    assert!(matches!(within(heard.ended).await.unwrap(), NetError::Protocol(_)));
}

#[tokio::test]
async fn peer_that_does_not_read_is_disconnected() {
    let limits = Limits { unsent_bytes: 1 << 20, ..Limits::default() };
    let (server, client) = pair((Security::Insecure, limits), (Security::Insecure, Limits::default())).await;
    let heard = Heard::new(server.receiver);
    // The kernel's buffers take some, but a bounded amount.
    let error = (0..20_000).find_map(|id| {
        assert!(server.sender.unread() <= (1 << 20) + (16 << 10));
        server.sender.send(bytes(id, vec![1; 10_000])).err()
    });
    assert!(matches!(error, Some(NetError::SlowPeer(_))));
    assert!(matches!(within(heard.ended).await.unwrap(), NetError::SlowPeer(_)));
    assert!(matches!(server.sender.send(bytes(0, vec![])).unwrap_err(), NetError::SlowPeer(_)));
    let (mut other, other_client) = plain().await;
    other_client.sender.send(stat(1)).unwrap();
    within(other.receiver.next(&mut Vec::new())).await.unwrap();
    drop(client);
}

#[tokio::test]
async fn stalled_peer_is_dropped_even_without_reader() {
    let limits = Limits { silence: Duration::from_millis(100), ..Limits::default() };
    let (server, mut client) = greeted(limits).await;
    // More than the kernel's buffers take.
    while server.sender.unread() < 16 << 20 {
        server.sender.send(bytes(0, vec![1; 10_000])).unwrap();
    }
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.read_exact(&mut vec![0; 512 << 10]).await.unwrap();
    }
    server.sender.flush().unwrap();
    let given_up = async {
        while server.sender.unread() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(given_up).await;
    assert!(matches!(server.sender.flush().unwrap_err(), NetError::Unread));
}

#[tokio::test]
async fn large_messages_that_are_not_granted_are_bounded() {
    let limits = Limits { unsent_bytes: 8 << 20, ..Limits::default() };
    let (server, _client) = pair((Security::Insecure, limits), (Security::Insecure, Limits::default())).await;
    let error = (0..50).find_map(|id| server.sender.send(bytes(id, vec![1; 1 << 20])).err());
    assert!(matches!(error, Some(NetError::SlowPeer(bytes)) if bytes < 10 << 20));
}

#[tokio::test]
async fn grants_pass_while_peer_does_not_read() {
    let (server, client) = plain().await;
    for id in 0..32 {
        server.sender.send(bytes(id, vec![1; 1 << 20])).unwrap();
    }
    let read = async {
        while server.sender.unread() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(read).await;
    let (_granted, mut heard) = (Heard::new(server.receiver), Heard::new(client.receiver));
    for _ in 0..32 {
        heard.next().await;
    }
}

#[tokio::test]
async fn a_silent_peer_is_given_up() {
    let limits = Limits { silence: Duration::from_millis(50), ..Limits::default() };
    let (server, mut client) = greeted(limits).await;
    let error = within(Heard::new(server.receiver).ended).await.unwrap();
    assert!(matches!(error, NetError::Silent(_)), "{error}");
    let mut sent = Vec::new();
    within(client.read_to_end(&mut sent)).await.unwrap();
    assert!(sent.ends_with(&frame(&[4])), "{sent:?}");
}

#[tokio::test]
async fn idle_peer_stays_connected() {
    let limits = Limits { silence: Duration::from_secs(1), ..Limits::default() };
    let (server, client) = pair((Security::Insecure, limits), (Security::Insecure, Limits::default())).await;
    let _heard = Heard::new(client.receiver);
    let (mut receiver, mut batch) = (server.receiver, Vec::new());
    for _ in 0..3 {
        assert_eq!(within(receiver.next(&mut batch)).await.unwrap(), 0);
    }
    client.sender.send(stat(1)).unwrap();
    while batch.is_empty() {
        within(receiver.next(&mut batch)).await.unwrap();
    }
    assert_eq!(batch, [stat(1)]);
}

#[tokio::test]
async fn one_side_ends_the_connection() {
    for (server, client) in [plain().await, tls().await] {
        let heard = Heard::new(client.receiver);
        server.sender.end();
        assert!(matches!(server.sender.flush().unwrap_err(), NetError::Dropped));
        assert!(matches!(within(heard.ended).await.unwrap(), NetError::Closed));
        let mut receiver = server.receiver;
        assert!(matches!(within(receiver.next(&mut Vec::new())).await.unwrap_err(), NetError::Dropped));
    }
}
