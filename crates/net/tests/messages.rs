//! Messages of all sizes come as they were sent.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Heard, bytes, pattern, plain, stat, write};

#[tokio::test]
async fn messages_come_as_they_were_sent() {
    let (server, client) = plain().await;
    let (mut asked, mut answered) = (Heard::new(server.receiver), Heard::new(client.receiver));
    client.sender.send(stat(1)).unwrap();
    client.sender.send(write(2, pattern(100))).unwrap();
    assert_eq!(asked.next().await, stat(1));
    assert_eq!(asked.next().await, write(2, pattern(100)));
    server.sender.send(bytes(1, pattern(16_384))).unwrap();
    assert_eq!(answered.next().await, bytes(1, pattern(16_384)));
}

#[tokio::test]
async fn payloads_of_all_sizes_around_the_limits() {
    let (server, client) = plain().await;
    let (mut asked, mut answered) = (Heard::new(server.receiver), Heard::new(client.receiver));
    let eager = 16 << 10;
    let piece = 64 << 10;
    let max = (4 << 20) + (64 << 10);
    for length in [0, 1, eager - 1, eager, eager + 1, piece - 1, piece, piece + 1, 3 * piece, max - 1, max] {
        client.sender.send(write(1, pattern(length))).unwrap();
        server.sender.send(bytes(1, pattern(length))).unwrap();
        assert!(asked.next().await == write(1, pattern(length)), "{length}");
        assert!(answered.next().await == bytes(1, pattern(length)), "{length}");
    }
}
