//! The server's last reply determines whether a file is streamed.
#![allow(clippy::unwrap_used)]

use espalier_client::{Call, Client, Next};
use espalier_proto::{Access, AllocateMode, Ino, OpenHow, Opened, RangeOp, Reply, Request, StreamIo};

#[test]
fn stream_lost_in_power_failure_is_not_requested_again() {
    let ino = Ino(7);
    let mut client = Client::default();
    let how = OpenHow { access: Access::WRITE, ..OpenHow::default() };
    let open = Call::Request(Request::Open { ino, how });
    let opened = Opened { streamed: true, ..Opened::default() };
    client.reply(&open, Ok(Reply::Opened(opened)));
    let write = Call::write(ino, 0, b"x"[..].into(), false);
    assert!(matches!(client.start(&write), Next::Ask(Request::Extend { .. })));
    assert!(matches!(
        client.reply(&write, Ok(Reply::Granted)),
        Next::Stream(StreamIo { op: RangeOp::Write { .. }, .. })
    ));
    assert!(matches!(client.reply(&write, Ok(Reply::Stuffed)), Next::Ask(Request::Write { .. })));
    assert!(matches!(client.start(&write), Next::Ask(Request::Write { .. })));
    // The file may outgrow the strip again.
    assert!(matches!(client.reply(&write, Ok(Reply::Streamed)), Next::Ask(Request::Extend { .. })));
}

/// A server permits a write in the step in which it executes it.
#[test]
fn metadata_request_follows_unsent_stream_writes() {
    let ino = Ino(7);
    let mut client = Client::default();
    client.is_served = true;
    let opened = Opened { streamed: true, ..Opened::default() };
    let open = |ino| Call::Request(Request::Open { ino, how: OpenHow::default() });
    for ino in [ino, Ino(8)] {
        client.reply(&open(ino), Ok(Reply::Opened(opened)));
    }
    let mode = AllocateMode::empty();
    for call in [
        Call::write(ino, 0, b"x"[..].into(), false),
        Call::range(ino, RangeOp::Allocate { offset: 0, length: 1, mode }, false),
        Call::range(ino, RangeOp::Copy { from: Ino(8), from_offset: 0, offset: 0, length: 1 }, false),
    ] {
        assert!(matches!(client.start(&call), Next::Stream(io) if io.op.is_change()), "{call:?}");
    }
}

/// A caller without `CAP_FSETID`: the driver learns from the reply that the mode has changed.
#[test]
fn set_id_bits_are_removed_before_bytes_change() {
    let ino = Ino(7);
    let kill_suid_gid = true;
    let removed = |changed| Ok(Reply::PrivilegesRemoved { changed });
    let calls = [
        Call::write(ino, 0, b"x"[..].into(), kill_suid_gid),
        Call::range(
            ino,
            RangeOp::Allocate { offset: 0, length: 1, mode: AllocateMode::empty() },
            kill_suid_gid,
        ),
        Call::range(ino, RangeOp::Copy { from: Ino(8), from_offset: 0, offset: 0, length: 1 }, kill_suid_gid),
    ];
    for is_served in [false, true] {
        let mut client = Client::default();
        client.is_served = is_served;
        let opened = Opened { streamed: true, ..Opened::default() };
        for ino in [ino, Ino(8)] {
            let open = Call::Request(Request::Open { ino, how: OpenHow::default() });
            client.reply(&open, Ok(Reply::Opened(opened)));
        }
        for call in &calls {
            let Next::Ask(Request::RemovePrivileges { ino: of }) = client.start(call) else {
                panic!("{call:?}");
            };
            assert_eq!(of, ino);
            assert_eq!(call.unprivileged(&removed(true)), Some(ino));
            assert_eq!(call.unprivileged(&removed(false)), None);
            let next = client.reply(call, removed(true));
            match next {
                Next::Stream(io) => assert!(is_served && io.op.is_change()),
                Next::Ask(Request::Extend { .. }) => assert!(!is_served),
                next => panic!("{next:?}"),
            }
        }
    }
    // A small file's server removes them with the write.
    let mut client = Client::default();
    let write = &calls[0];
    assert!(matches!(client.start(write), Next::Ask(Request::Write { kill_suid_gid: true, .. })));
    let again = client.reply(write, removed(true));
    assert!(matches!(again, Next::Ask(Request::Write { kill_suid_gid: false, .. })));
    assert!(matches!(client.start(&calls[1]), Next::Ask(Request::RemovePrivileges { .. })));
    assert!(matches!(client.reply(&calls[1], removed(false)), Next::Ask(Request::Allocate { .. })));
}
