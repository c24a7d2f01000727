//! Whether a file's bytes are in a stream is what its server has said last.
#![allow(clippy::unwrap_used)]

use espalier_client::{Call, Client, Next};
use espalier_proto::{Access, AllocateMode, Ino, OpenHow, Opened, Reply, Request, StreamIo};

#[test]
fn a_stream_that_a_loss_of_power_has_taken_is_asked_for_no_more() {
    let ino = Ino(7);
    let mut client = Client::default();
    let how = OpenHow { access: Access::WRITE, ..OpenHow::default() };
    let open = Call::Request(Request::Open { ino, how });
    let opened = Opened { streamed: true, ..Opened::default() };
    client.reply(&open, Ok(Reply::Opened(opened)));
    let write = Call::Write { ino, offset: 0, data: b"x"[..].into(), kill_suid_gid: false };
    assert!(matches!(client.start(&write), Next::Ask(Request::Extend { .. })));
    assert!(matches!(client.reply(&write, Ok(Reply::Granted)), Next::Stream(StreamIo::Write { .. })));
    assert!(matches!(client.reply(&write, Ok(Reply::Stuffed)), Next::Ask(Request::Write { .. })));
    assert!(matches!(client.start(&write), Next::Ask(Request::Write { .. })));
    // It may outgrow the strip another time.
    assert!(matches!(client.reply(&write, Ok(Reply::Streamed)), Next::Ask(Request::Extend { .. })));
}

/// A server allows what is written in the turn in which it comes.
#[test]
fn a_server_is_not_asked_before_it_is_sent_what_is_written() {
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
        Call::Write { ino, offset: 0, data: b"x"[..].into(), kill_suid_gid: false },
        Call::Allocate { ino, offset: 0, length: 1, mode },
        Call::Copy { from: Ino(8), from_offset: 0, to: ino, to_offset: 0, length: 1 },
    ] {
        assert!(matches!(client.start(&call), Next::Stream(io) if io.is_change()), "{call:?}");
    }
}
