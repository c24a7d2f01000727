//! An outbox and an inbox without a network between them, and an inbox with arbitrary input.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::mem;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use espalier_proto::{
    Accesses, Caller, ClientId, ClusterId, FromClient, FromServer, Hello, Ino, Rank, Request, RequestId,
    RevocationId, ServerMap, Service, StreamIo, Welcome,
};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::error::NetError;
use crate::frame::{self, Header};
use crate::handshake::{
    ANSWER_BYTES_MAX, GREETING_BYTES_MAX, Greeting, Prelude, Reason, Refusal, Taken as Accepted,
};
use crate::inbox::{Inbox, Taken};
use crate::limits::{ANNOUNCED_MAX, Limits, Terms};
use crate::message::Message;
use crate::outbox::SendQueue;
use crate::pki::{Authority, Validity};
use crate::rope::Rope;
use crate::{Acceptor, Connection, Identity, Security};

/// Small, so that bounds are reached soon.
fn limits() -> Limits {
    Limits { eager_bytes: 100, receiving_bytes: 500_000, payload_bytes: 300_000, ..Limits::default() }
}

fn write(id: u64, offset: u64, length: usize) -> FromClient {
    let caller = Caller { uid: 1, gid: 2, pid: 3, groups: None };
    let data = vec![offset as u8; length].into();
    let request = Request::Write { ino: Ino(9), offset, data, kill_suid_gid: false, time: None };
    FromClient::Request {
        id: RequestId(id),
        below: RequestId(0),
        follows: Vec::new(),
        announced: false,
        caller,
        request,
    }
}

fn cancel(id: u64) -> FromClient {
    FromClient::Cancel { id: RequestId(id) }
}

/// One direction of a connection.
struct TestLine {
    outbox: SendQueue,
    wire: BytesMut,
    inbox: Inbox<FromClient>,
}

impl TestLine {
    fn new() -> Self {
        let terms = Terms::of(&limits());
        let inbox = Inbox::new(terms, limits().receiving_bytes);
        Self { outbox: SendQueue::new(terms), wire: BytesMut::new(), inbox }
    }

    fn queue(&mut self, mut message: FromClient) {
        let (request, announced) = (message.request(), message.announced());
        let payload = message.payload().map(mem::take).unwrap_or_default();
        let head = postcard::to_extend(&message, Vec::new()).unwrap();
        self.outbox.message(request, &head, payload, announced).unwrap();
    }

    /// Delivers a flight in parts of at most `bytes`. Returns the messages.
    fn step(&mut self, bytes: usize) -> Vec<FromClient> {
        let mut delivered = Vec::new();
        let mut flight = Rope::default();
        self.outbox.take(&mut flight);
        loop {
            self.wire.put(flight.copy_to_bytes(bytes.min(flight.remaining())));
            while let Some(taken) = self.inbox.take(&mut self.wire).unwrap() {
                match taken {
                    Taken::Message(message) => delivered.push(message),
                    Taken::Handled => {}
                    other => panic!("{other:?}"),
                }
            }
            while let Some(number) = self.inbox.grant() {
                self.outbox.grant(number).unwrap();
            }
            assert!(self.inbox.held_bytes() <= limits().receiving_bytes);
            if !flight.has_remaining() {
                return delivered;
            }
        }
    }

    fn all(&mut self) -> Vec<FromClient> {
        let mut delivered = Vec::new();
        while self.outbox.bytes() > 0 {
            delivered.extend(self.step(usize::MAX));
        }
        delivered
    }
}

fn announced(mut message: FromClient) -> FromClient {
    if let FromClient::Request { announced, .. } = &mut message {
        *announced = true;
    }
    message
}

#[test]
fn short_payloads_may_be_announced_too() {
    let mut line = TestLine::new();
    for message in [announced(write(1, 0, 10)), cancel(1), cancel(2), announced(write(3, 0, 0)), cancel(3)] {
        line.queue(message);
    }
    let expected = [cancel(2), announced(write(3, 0, 0)), cancel(3), announced(write(1, 0, 10)), cancel(1)];
    assert_eq!(line.all(), expected, "nothing is announced of what there is none");
    let many: Vec<_> = (0..3 * ANNOUNCED_MAX as u64).map(|id| announced(write(id, id, 1))).collect();
    many.iter().for_each(|message| line.queue(message.clone()));
    assert_eq!(line.all(), many, "those that must not be announced yet wait");
}

#[test]
fn large_messages_are_overtaken_but_by_their_own_kind() {
    let mut line = TestLine::new();
    let revoked = FromClient::Revoked { number: RevocationId(1) };
    for message in [write(1, 0, 200_000), cancel(1), revoked.clone(), write(2, 0, 10), write(1, 1, 300)] {
        line.queue(message);
    }
    let expected = [write(2, 0, 10), write(1, 0, 200_000), cancel(1), revoked, write(1, 1, 300)];
    let delivered = line.all();
    assert!(delivered == expected, "{:?}", delivered.iter().map(Message::request).collect::<Vec<_>>());
}

#[test]
fn large_messages_share_the_line() {
    let mut line = TestLine::new();
    line.queue(write(1, 0, 300_000));
    line.queue(write(2, 0, 70_000));
    let delivered = line.all();
    assert!(delivered == [write(2, 0, 70_000), write(1, 0, 300_000)]);
}

#[test]
fn message_waits_only_for_earlier_ones() {
    let mut line = TestLine::new();
    line.queue(write(1, 0, 150_000));
    line.queue(FromClient::Revoked { number: RevocationId(1) });
    // A constant queue of large messages does not delay it.
    for id in 2..100 {
        line.queue(write(id, 0, 150_000));
        if line.step(usize::MAX).contains(&FromClient::Revoked { number: RevocationId(1) }) {
            return;
        }
    }
    panic!("it is held for ever");
}

#[test]
fn more_large_messages_than_may_be_announced() {
    let mut line = TestLine::new();
    let count = 3 * ANNOUNCED_MAX as u64;
    for id in 0..count {
        line.queue(write(id, 0, 1000));
    }
    assert_eq!(line.all().len() as u64, count);
    line.queue(cancel(1));
    assert!(line.all() == [cancel(1)]);
}

#[test]
fn queued_messages_are_delivered_once_and_in_order() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut line = TestLine::new();
        let (mut sent, mut delivered) = (Vec::new(), Vec::new());
        for n in 0..300 {
            let id = random.u64(..8);
            let message = match random.u8(..10) {
                0 => FromClient::Revoked { number: RevocationId(n) },
                1 => write(id, n, random.usize(60_000..300_000)),
                2..5 => write(id, n, random.usize(..1000)),
                _ => write(id, n, random.usize(..100)),
            };
            sent.push(message.clone());
            line.queue(message);
            if random.bool() {
                let bytes = random.usize(1..100_000);
                delivered.extend(line.step(bytes));
            }
        }
        delivered.extend(line.all());
        assert_in_order(&sent, &delivered, seed);
    }
}

fn assert_in_order(sent: &[FromClient], delivered: &[FromClient], seed: u64) {
    let place: HashMap<u64, usize> = delivered.iter().enumerate().map(|(at, m)| (serial(m), at)).collect();
    assert_eq!((place.len(), delivered.len()), (sent.len(), sent.len()), "seed {seed}");
    let (mut latest, mut latest_of) = (None, HashMap::new());
    for message in sent {
        let at = place[&serial(message)];
        assert!(delivered[at] == *message, "seed {seed}");
        let before = latest_of.insert(message.request(), at);
        assert!(before < Some(at), "seed {seed}: about the same request");
        assert!(message.request().is_some() || latest < Some(at), "seed {seed}: about none");
        latest = latest.max(Some(at));
    }
}

fn serial(message: &FromClient) -> u64 {
    match message {
        FromClient::Request { request: Request::Write { offset, .. }, .. } => *offset,
        FromClient::Revoked { number } => number.0,
        _ => panic!("{message:?}"),
    }
}

fn put(wire: &mut BytesMut, header: Header, head: &[u8], payload: Bytes) {
    let mut frame = Rope::default();
    frame::put(&mut frame, header, head, payload);
    wire.put(frame);
}

/// Frames as a client sends them, some out of place.
fn stream(random: &mut fastrand::Rng) -> BytesMut {
    let mut bytes = BytesMut::new();
    for n in 0..random.u32(1..12) {
        let mut message = write(u64::from(n), 1, random.usize(..50));
        let payload = message.payload().map(mem::take).unwrap_or_default();
        let head = postcard::to_extend(&message, Vec::new()).unwrap();
        let number = random.u32(..4);
        let announce = Header::Announce { number, length: random.u32(1..400) };
        match random.u8(..8) {
            0 => put(&mut bytes, Header::Ping, &[], Bytes::new()),
            1 => put(&mut bytes, Header::Grant { number }, &[], Bytes::new()),
            2 | 3 => put(&mut bytes, announce, &head, Bytes::new()),
            4 | 5 => put(&mut bytes, Header::Piece { number }, &[], vec![7; 100].into()),
            _ => put(&mut bytes, Header::Message, &head, payload),
        }
    }
    bytes
}

fn mutate(random: &mut fastrand::Rng, bytes: &mut BytesMut) {
    for _ in 0..random.u8(..6) {
        let at = random.usize(..bytes.len());
        match random.u8(..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][random.usize(..5)],
            3 => bytes.truncate(at.max(1)),
            _ => {
                let end = random.usize(at..=bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.extend_from_slice(&again);
            }
        }
    }
}

/// Feeds the stream in parts until the inbox rejects it. Returns the number of frames accepted.
fn feed(random: &mut fastrand::Rng, mut stream: BytesMut) -> Result<usize, NetError> {
    let mut inbox: Inbox<FromClient> = Inbox::new(Terms::of(&limits()), limits().receiving_bytes);
    let (mut buffer, mut frames) = (BytesMut::new(), 0);
    while !stream.is_empty() {
        let part = random.usize(1..=stream.len());
        buffer.extend_from_slice(&stream.split_to(part));
        while inbox.take(&mut buffer)?.is_some() {
            frames += 1;
            while inbox.grant().is_some() {}
            assert!(inbox.held_bytes() <= limits().receiving_bytes);
        }
        // Room may be made for one whole frame, never for more.
        assert!(buffer.capacity() <= 4 << 20, "{}", buffer.capacity());
    }
    Ok(frames)
}

#[test]
fn mutated_streams_are_taken_or_refused() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..100_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = stream(&mut random);
        mutate(&mut random, &mut bytes);
        match feed(&mut random, bytes) {
            Ok(frames) => taken += frames,
            Err(NetError::Protocol(_)) => refused += 1,
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    // Both outcomes must be common.
    assert!(taken > 10_000 && refused > 10_000, "{taken} {refused}");
}

/// The classification of a frame needs only its beginning, and does not depend on the reads.
#[test]
fn frames_split_into_bytes_are_decoded() {
    for (id, value) in (0..300).flat_map(|id| [0, 3, 7].map(|value| (id, value))) {
        let (ino, below, announced, data) = (Ino(value << (3 * id % 60)), RequestId(0), false, Bytes::new());
        let io = StreamIo::write(ino, 0, 1);
        let stream = FromClient::Stream { id: RequestId(id), below, announced, io, data };
        for message in [write(id, value, id as usize % 90), cancel(id), stream] {
            let mut inbox: Inbox<FromClient> = Inbox::new(Terms::of(&limits()), limits().receiving_bytes);
            let (mut outbox, mut buffer) = (SendQueue::new(Terms::of(&limits())), BytesMut::new());
            let mut sent = message.clone();
            let payload = sent.payload().map(mem::take).unwrap_or_default();
            let head = postcard::to_extend(&sent, Vec::new()).unwrap();
            outbox.message(None, &head, payload, false).unwrap();
            let mut wire = Rope::default();
            outbox.take(&mut wire);
            while wire.has_remaining() {
                buffer.put_u8(wire.get_u8());
                match inbox.take(&mut buffer).unwrap() {
                    None => assert!(wire.has_remaining() && inbox.is_cut(), "{message:?} does not come"),
                    Some(Taken::Message(taken)) => assert!(!wire.has_remaining() && taken == message),
                    Some(other) => panic!("{message:?}: {other:?}"),
                }
            }
            assert!(!inbox.is_cut());
        }
    }
}

#[test]
fn random_bytes_are_refused() {
    for seed in 0..50_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = BytesMut::new();
        // A valid length, since nothing else is examined otherwise.
        let length = random.u32(..200);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend((0..length).map(|n| if n == 0 { random.u8(..7) } else { random.u8(..) }));
        match feed(&mut random, bytes) {
            Ok(_) | Err(NetError::Protocol(_)) => {}
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
}

#[test]
fn invalid_payload_frames_are_rejected() {
    let encoded = |message: &FromClient| postcard::to_extend(message, Vec::new()).unwrap();
    let (head, inline, other) = (encoded(&write(1, 1, 0)), encoded(&write(1, 1, 5)), encoded(&cancel(1)));
    let announce = |length| Header::Announce { number: 1, length };
    let piece = Header::Piece { number: 1 };
    for (expected, frames) in [
        ("a payload is too long to come unannounced", vec![(Header::Message, &head, 101)]),
        ("a payload belongs to no message", vec![(Header::Message, &other, 1)]),
        ("a payload belongs to no message", vec![(Header::Message, &inline, 1)]),
        ("a payload belongs to no message", vec![(announce(1), &other, 0)]),
        ("a payload belongs to no message", vec![(announce(1), &inline, 0)]),
        ("an announced payload is too long, or empty", vec![(announce(0), &head, 0)]),
        ("an announcement is malformed, or one too many", vec![(announce(9), &head, 1)]),
        (
            "an announcement is malformed, or one too many",
            vec![(announce(9), &head, 0), (announce(9), &head, 0)],
        ),
        (
            "a piece is empty, or longer than the missing rest",
            vec![(announce(9), &head, 0), (piece, &Vec::new(), 10)],
        ),
        (
            "a piece is empty, or longer than the missing rest",
            vec![(announce(9), &head, 0), (piece, &Vec::new(), 0)],
        ),
        (
            "a piece of a payload came that was not granted",
            vec![(announce(9), &head, 0), (piece, &Vec::new(), 9), (piece, &Vec::new(), 1)],
        ),
    ] {
        let mut bytes = BytesMut::new();
        for (header, head, payload) in frames {
            put(&mut bytes, header, head, vec![7; payload].into());
        }
        match feed(&mut fastrand::Rng::with_seed(0), bytes) {
            Err(NetError::Protocol(said)) => assert_eq!(said, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn greetings_and_answers_may_be_anything() {
    let hello = Hello {
        cluster: ClusterId([7; 16]),
        service: Service::Metadata { leases: true, accesses: Accesses::All, rank: None },
        client: ClientId(3),
        incarnation: Some(300),
    };
    let welcome = Welcome {
        incarnation: 5,
        window: 32,
        session_ms: 60_000,
        rank: Rank(0),
        root: Ino::ROOT,
        servers: ServerMap::NONE,
        data_pool: None,
    };
    let terms = Terms::of(&limits());
    let mut written = [Vec::new(), Vec::new(), Vec::new()];
    Prelude::greet(&mut written[0], &Greeting { terms, hello }).await.unwrap();
    Prelude::welcome(&mut written[1], &Accepted { terms, time: 1 << 31, welcome }).await.unwrap();
    let refusal = Refusal::new(Reason::Full, "é".repeat(1000));
    Prelude::refuse(&mut written[2], &refusal).await.unwrap();
    let read =
        Prelude::read(&mut &written[2][..], GREETING_BYTES_MAX).await.unwrap().answer().unwrap().unwrap_err();
    assert_eq!((read.reason, read.text), (Reason::Full, "é".repeat(512)));
    let (mut greetings, mut answers) = (0, 0);
    for seed in 0..30_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = BytesMut::from(&written[random.usize(..3)][..]);
        mutate(&mut random, &mut bytes);
        let Ok(prelude) = Prelude::read(&mut &bytes[..], GREETING_BYTES_MAX).await else { continue };
        assert!(prelude.body.len() <= GREETING_BYTES_MAX);
        greetings += u32::from(prelude.greeting().is_some());
        answers += u32::from(prelude.answer().is_some());
    }
    assert!(greetings > 1000 && answers > 1000, "{greetings} {answers}");
}

/// Bytes after TLS's close_notify must not cause a busy loop.
#[tokio::test]
async fn bytes_after_the_end_of_tls() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path(), Validity::years(1)).unwrap();
    let server = Identity::server("s1").unwrap();
    let issued = authority.issue_server(&server, &["localhost".to_owned()], Validity::years(1)).unwrap();
    let (certificate, key) = (dir.path().join("s1.pem"), dir.path().join("s1.key"));
    issued.write(&certificate, &key).unwrap();
    let security = Security::load(&dir.path().join("ca.pem"), &certificate, &key).unwrap();
    let Security::Tls(tls) = &security else { panic!() };
    let (config, terms) = (tls.client.clone(), Terms::of(&limits()));

    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let serving = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let incoming = Acceptor::new(security, limits()).accept(socket).await.unwrap();
        let welcome = Welcome {
            incarnation: 5,
            window: 32,
            session_ms: 60_000,
            rank: Rank(0),
            root: Ino::ROOT,
            servers: ServerMap::NONE,
            data_pool: None,
        };
        let mut connection: Connection<FromClient, FromServer> = incoming.welcome(welcome).await.unwrap();
        connection.receiver.next(&mut Vec::new()).await.unwrap_err()
    });
    let name = "localhost".try_into().unwrap();
    let mut stream = TlsConnector::from(config).connect(name, socket).await.unwrap();
    let hello = Hello {
        cluster: ClusterId([7; 16]),
        service: Service::Metadata { leases: true, accesses: Accesses::All, rank: None },
        client: ClientId(3),
        incarnation: None,
    };
    Prelude::greet(&mut stream, &Greeting { terms, hello }).await.unwrap();
    Prelude::read(&mut stream, ANSWER_BYTES_MAX).await.unwrap();
    let (mut socket, mut tls) = stream.into_inner();
    let mut last = Vec::new();
    tls.send_close_notify();
    tls.write_tls(&mut last).unwrap();
    // More than rustls reads at once.
    last.extend([7; 40_000]);
    socket.write_all(&last).await.unwrap();
    socket.shutdown().await.unwrap();
    let ended = timeout(Duration::from_secs(60), serving).await.unwrap().unwrap();
    assert!(matches!(ended, NetError::Closed), "{ended}");
}

#[test]
fn announcements_are_bounded() {
    let mut random = fastrand::Rng::with_seed(0);
    let mut head = write(1, 1, 0);
    head.payload().unwrap().clear();
    let head = postcard::to_extend(&head, Vec::new()).unwrap();
    let mut bytes = BytesMut::new();
    for number in 0..=ANNOUNCED_MAX as u32 {
        put(&mut bytes, Header::Announce { number, length: 300_000 }, &head, Bytes::new());
    }
    let refused = feed(&mut random, bytes.clone()).unwrap_err();
    assert!(matches!(refused, NetError::Protocol("an announcement is malformed, or one too many")));
    let mut long = BytesMut::new();
    put(&mut long, Header::Announce { number: 0, length: 300_001 }, &head, Bytes::new());
    assert!(feed(&mut random, long).is_err());
}
