//! Messages of all sizes arrive unchanged, from any number of threads.

use crate::common::{
    ClientConnection, Heard, ServerConnection, bytes, pair, pattern, plain, stat, tls, within, write,
};
use espalier_net::{Limits, NetError, Security};
use espalier_proto::{FromClient, FromServer, Request, RequestId};

#[tokio::test]
async fn messages_come_as_they_were_sent() {
    let (server, client) = plain().await;
    let (mut at_server, mut at_client) = (Heard::new(server.receiver), Heard::new(client.receiver));
    client.sender.send(stat(1)).unwrap();
    client.sender.send(write(2, pattern(100))).unwrap();
    assert_eq!(at_server.next().await, stat(1));
    assert_eq!(at_server.next().await, write(2, pattern(100)));
    server.sender.send(bytes(1, pattern(16_384))).unwrap();
    assert_eq!(at_client.next().await, bytes(1, pattern(16_384)));
    let (here, there) = (client.sender.counts(), server.sender.counts());
    assert_eq!((here.messages_sent, here.messages_received), (2, 1));
    assert_eq!((there.messages_sent, there.messages_received), (1, 2));
    assert_eq!((here.bytes_sent, there.bytes_sent), (there.bytes_received, here.bytes_received));
    assert!((100..200).contains(&here.bytes_sent) && (16_384..16_500).contains(&there.bytes_sent));
}

#[tokio::test]
async fn payloads_of_all_sizes_around_the_limits() {
    for (server, client) in [plain().await, tls().await] {
        let (mut at_server, mut at_client) = (Heard::new(server.receiver), Heard::new(client.receiver));
        let eager = 16 << 10;
        let piece = 64 << 10;
        let max = (4 << 20) + (64 << 10);
        for length in
            [0, 1, eager - 1, eager, eager + 1, piece - 1, piece, piece + 1, 3 * piece, max - 1, max]
        {
            client.sender.send(write(1, pattern(length))).unwrap();
            server.sender.send(bytes(1, pattern(length))).unwrap();
            assert!(at_server.next().await == write(1, pattern(length)), "{length}");
            assert!(at_client.next().await == bytes(1, pattern(length)), "{length}");
        }
        let refused = client.sender.send(write(1, vec![0; max + 1])).unwrap_err();
        assert!(matches!(refused, NetError::TooLong { .. }), "{refused}");
        client.sender.send(stat(2)).unwrap();
        assert_eq!(at_server.next().await, stat(2));
    }
}

#[tokio::test]
async fn all_payloads_may_be_eager_or_none() {
    for eager_bytes in [0, 4 << 20] {
        let limits = Limits { eager_bytes, ..Limits::default() };
        let security = Security::Insecure;
        let (server, client) = pair((security.clone(), limits.clone()), (security, limits)).await;
        let (mut at_server, mut at_client) = (Heard::new(server.receiver), Heard::new(client.receiver));
        for length in [0, 1, 100_000, 4 << 20] {
            client.sender.send(write(1, pattern(length))).unwrap();
            assert!(at_server.next().await == write(1, pattern(length)), "{length}");
        }
        // The only answers are grants.
        assert_eq!(server.sender.counts().bytes_sent == 0, eager_bytes > 0);
        server.sender.send(bytes(1, pattern(1))).unwrap();
        assert!(at_client.next().await == bytes(1, pattern(1)));
    }
}

#[tokio::test]
async fn a_message_says_whether_a_short_payload_is_announced() {
    let (server, client) = plain().await;
    let (mut at_server, mut at_client) = (Heard::new(server.receiver), Heard::new(client.receiver));
    for wanted in [false, true] {
        let (mut request, mut reply) = (write(1, pattern(10)), bytes(1, pattern(10)));
        if let FromClient::Request { announced, .. } = &mut request {
            *announced = wanted;
        }
        if let FromServer::Reply { announced, .. } = &mut reply {
            *announced = wanted;
        }
        let before = server.sender.counts().bytes_sent;
        client.sender.send(request.clone()).unwrap();
        assert_eq!(at_server.next().await, request);
        assert_eq!(server.sender.counts().bytes_sent > before, wanted, "only grants are answered");
        server.sender.send(reply).unwrap();
        assert_eq!(at_client.next().await, bytes(1, pattern(10)), "how it was sent is not sent");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_send_at_once() {
    many_threads(plain().await).await;
    many_threads(tls().await).await;
}

/// Messages of one thread belong to one request, so they arrive in order.
async fn many_threads((server, client): (ServerConnection, ClientConnection)) {
    const THREADS: u64 = 8;
    const MESSAGES: u64 = 500;
    let (mut at_server, _answered) = (Heard::new(server.receiver), Heard::new(client.receiver));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let sender = client.sender.clone();
            std::thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for n in 0..MESSAGES {
                    let length = if n % 50 == 0 { 200_000 } else { random.usize(..3000) };
                    sender.send(numbered(thread, n, length)).unwrap();
                }
            })
        })
        .collect();
    let mut next = [0; THREADS as usize];
    for _ in 0..THREADS * MESSAGES {
        let FromClient::Request { id: RequestId(thread), request, .. } = at_server.next().await else {
            panic!()
        };
        let Request::Write { offset, data, .. } = request else { panic!() };
        let expected = &mut next[thread as usize];
        assert_eq!(offset, *expected);
        assert!(data.iter().all(|byte| *byte == offset as u8));
        *expected += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn numbered(id: u64, n: u64, length: usize) -> FromClient {
    let mut message = write(id, vec![n as u8; length]);
    if let FromClient::Request { request: Request::Write { offset, .. }, .. } = &mut message {
        *offset = n;
    }
    message
}

#[tokio::test]
async fn close_sends_queued_messages_first() {
    for (server, client) in [plain().await, tls().await] {
        let (mut at_server, at_client) = (Heard::new(server.receiver), Heard::new(client.receiver));
        for id in 0..20 {
            client.sender.queue(write(id, pattern(300_000))).unwrap();
        }
        within(client.sender.close()).await.unwrap();
        assert!(matches!(client.sender.send(stat(1)).unwrap_err(), NetError::Dropped));
        for _ in 0..20 {
            at_server.next().await;
        }
        assert!(matches!(within(at_server.ended).await.unwrap(), NetError::Closed));
        // The receiver was dropped after it had reported the end.
        assert!(matches!(server.sender.send(bytes(1, vec![])).unwrap_err(), NetError::Closed));
        assert!(matches!(within(at_client.ended).await.unwrap(), NetError::Closed));
    }
}
