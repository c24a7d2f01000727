//! Inode numbers for metadata write-back.

use espalier_meta::Config;
use espalier_proto::*;

use super::set_layout::{ONE, OTHER, ask, connect};
use crate::harness::{Harness, config, everywhere, name};

const TAKE: Request = Request::TakeNumbers { rank: Rank(0), count: 256 };

/// A server and two clients.
pub fn server() -> Harness {
    let mut fs = Harness::with(Config { session_ms: Some(10_000), ..config() });
    connect(&mut fs);
    fs
}

pub fn take(fs: &mut Harness, client: ClientId) -> (u64, u64) {
    match ask(fs, client, TAKE) {
        Ok(Reply::Numbers { first, count, .. }) => (first.0, first.0 + u64::from(count)),
        other => panic!("{other:?}"),
    }
}

/// A [`Request::Create`] of a file that the client has already acknowledged.
pub fn writeback(file: &str, ino: u64, time: Time) -> Request {
    let (dir, name, node, open) = (Ino::ROOT, name(file), NewNode::Regular, None);
    let writeback = Some(WritebackCreate { ino: Ino(ino), time });
    Request::Create { dir, name, node, perm: 0o644, umask: 0, open, exclusive: true, writeback }
}

fn make(fs: &mut Harness, client: ClientId, file: &str, ino: u64) -> Result<Reply, Errno> {
    let time = fs.now;
    ask(fs, client, writeback(file, ino, time))
}

#[test]
fn numbers_are_unique_to_their_client() {
    let fs = &mut server();
    let (one, other) = (take(fs, ONE), take(fs, OTHER));
    assert!(one.0 < one.1 && one.1 <= other.0, "{one:?} {other:?}");
    let own = fs.create(Ino::ROOT, "own", NewNode::Regular);
    assert_eq!(own, Err(Errno::ESTALE), "this client has no session");
    let mut request = writeback("own", 0, Time::default());
    if let Request::Create { writeback, .. } = &mut request {
        *writeback = None;
    }
    let Ok(Reply::Entry(entry)) = ask(fs, ONE, request) else { panic!("it can be made") };
    assert!(entry.attr.ino.0 >= other.1);
    assert!(make(fs, ONE, "a", one.1 - 1).is_ok() && make(fs, OTHER, "b", other.0).is_ok());
    assert_eq!(fs.fsck(), []);
}

#[test]
fn a_client_has_only_so_many() {
    let fs = &mut server();
    let taken: Vec<u64> = (0..4)
        .flat_map(|_| {
            let (first, end) = take(fs, ONE);
            first..end
        })
        .collect();
    assert_eq!(taken.len(), 1024);
    assert_eq!(ask(fs, ONE, TAKE), Err(Errno::EAGAIN));
    // Taking every other one leaves the most ranges.
    for ino in taken.iter().step_by(2).take(255) {
        make(fs, ONE, &ino.to_string(), *ino).unwrap();
        assert_eq!(ask(fs, ONE, TAKE), Err(Errno::EAGAIN));
    }
    make(fs, ONE, "last", taken[1]).unwrap();
    take(fs, ONE);
    take(fs, OTHER);
    assert_eq!(fs.fsck(), []);
}

#[test]
fn client_without_session_gets_no_leases() {
    everywhere(|fs| assert_eq!(fs.ask(TAKE), Err(Errno::EINVAL)));
    everywhere(|fs| assert_eq!(fs.ask(writeback("file", 2, fs.now)), Err(Errno::EINVAL)));
    let fs = &mut server();
    assert_eq!(
        ask(fs, ONE, Request::TakeNumbers { rank: Rank(1), count: 256 }),
        Err(Errno::EINVAL),
        "another's"
    );
}

/// Otherwise the client might acknowledge files under numbers that the server does not know to be
/// its own.
#[test]
fn they_are_durable_before_the_client_has_them() {
    for acknowledge in [espalier_meta::Acknowledge::Written, espalier_meta::Acknowledge::Durable] {
        let mut fs = Harness::with(Config { session_ms: Some(10_000), acknowledge, ..config() });
        connect(&mut fs);
        let (first, end) = take(&mut fs, ONE);
        let mut fs = fs.crash();
        connect(&mut fs);
        for client in [ONE, OTHER] {
            // The harness restarts its request numbers with a crash.
            fs.next += 100;
            assert_eq!(
                ask(&mut fs, client, Request::Reclaim { held: vec![], last: true, again: vec![] }),
                Ok(Reply::Done)
            );
        }
        let other = take(&mut fs, OTHER);
        assert!(other.0 >= end);
        assert!(make(&mut fs, ONE, "a", first).is_ok());
        assert_eq!(make(&mut fs, ONE, "b", first), Err(Errno::EINVAL));
        assert_eq!(fs.fsck(), []);
    }
}
