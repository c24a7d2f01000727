#![allow(clippy::unwrap_used)]

use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::OwnedFd;

/// A reply whose message arrives on a socket instead of in the kernel.
fn reply(opcode: Opcode) -> (Reply, OwnedFd) {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    (Reply::new(ReplyDestination::Device(Channel::from(ours)), 0x1234, opcode as u32), theirs)
}

fn sent(socket: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 65536];
    let length = rustix::io::read(socket, &mut buffer[..]).unwrap();
    buffer.truncate(length);
    buffer
}

/// Sends a reply; checks its header and returns its body.
fn body(opcode: Opcode, answer: impl FnOnce(Reply)) -> Vec<u8> {
    let (reply, socket) = reply(opcode);
    answer(reply);
    let mut bytes = sent(&socket);
    assert_eq!(bytes[..4], (bytes.len() as u32).to_le_bytes());
    assert_eq!(bytes[4..16], [0, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
    assert!(rustix::io::read(&socket, &mut [0; 16][..]) == Ok(0), "one message only");
    bytes.split_off(16)
}

const ATTR: Attr = Attr {
    ino: 1,
    size: 2,
    blocks: 3,
    atime: (4, 7),
    mtime: (-5, 8),
    ctime: (6, 9),
    mode: 0o100644,
    nlink: 11,
    uid: 12,
    gid: 13,
    rdev: 14,
    blksize: 15,
};

#[rustfmt::skip]
const ATTR_BYTES: [u8; 88] = [
    1, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0, 0, 0, 0, 0,  3, 0, 0, 0, 0, 0, 0, 0,
    4, 0, 0, 0, 0, 0, 0, 0,  0xfb, 255, 255, 255, 255, 255, 255, 255,  6, 0, 0, 0, 0, 0, 0, 0,
    7, 0, 0, 0,  8, 0, 0, 0,  9, 0, 0, 0,  0xa4, 0x81, 0, 0,  11, 0, 0, 0,  12, 0, 0, 0,  13, 0, 0, 0,
    14, 0, 0, 0,  15, 0, 0, 0,  0, 0, 0, 0,
];

const ENTRY: Entry = Entry {
    node: 0x42,
    generation: 2,
    attr: ATTR,
    entry_valid: Duration::new(3, 4),
    attr_valid: Duration::new(5, 6),
};

fn entry_bytes() -> Vec<u8> {
    #[rustfmt::skip]
    let head = [
        0x42, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0, 0, 0, 0, 0,  3, 0, 0, 0, 0, 0, 0, 0,  5, 0, 0, 0, 0, 0, 0, 0,
        4, 0, 0, 0,  6, 0, 0, 0,
    ];
    [&head[..], &ATTR_BYTES].concat()
}

#[test]
fn entries_and_attributes() {
    assert_eq!(body(Opcode::Lookup, |r| r.entry(&ENTRY)), entry_bytes());
    let valid = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        body(Opcode::GetAttr, |r| r.attr(&ATTR, Duration::new(1, 2))),
        [&valid[..], &ATTR_BYTES].concat()
    );
    let absent = body(Opcode::Lookup, |r| r.entry(&Entry::absent(Duration::from_secs(9))));
    assert_eq!((absent.len(), absent[0], absent[16]), (128, 0, 9));
}

#[test]
fn open_files() {
    let opened = Opened { handle: 7, flags: OpenedFlags::KEEP_CACHE, backing: None };
    let plain = [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(body(Opcode::Open, |r| r.open(&opened)), plain);
    let backed = Opened { backing: Some(BackingId(5)), ..opened };
    assert_eq!(body(Opcode::Open, |r| r.open(&backed)), [7, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(body(Opcode::Create, |r| r.create(&ENTRY, &opened)), [&entry_bytes()[..], &plain].concat());
}

#[test]
fn data_in_one_piece_or_in_many() {
    assert_eq!(body(Opcode::Read, |r| r.data(b"hello")), b"hello");
    assert_eq!(body(Opcode::Read, |r| r.data(b"")), b"");
    for count in [0, 1, 15, 16, 17, 40] {
        let pieces: Vec<_> = (0..count).map(|_| IoSlice::new(b"ab")).collect();
        assert_eq!(body(Opcode::Read, |r| r.data_vectored(&pieces)), b"ab".repeat(count));
    }
}

#[test]
fn numbers() {
    assert_eq!(body(Opcode::Write, |r| r.written(0x102)), [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(body(Opcode::GetXattr, |r| r.xattr_size(3)), [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(body(Opcode::LSeek, |r| r.lseek(1 << 40)), [0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(body(Opcode::BMap, |r| r.bmap(3)), [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(body(Opcode::Poll, |r| r.poll(4)), [4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(body(Opcode::CopyFileRange, |r| r.copied(1 << 40)), [255, 255, 255, 255, 0, 0, 0, 0]);
    assert_eq!(body(Opcode::CopyFileRange64, |r| r.copied(1 << 40)), [0, 0, 0, 0, 0, 1, 0, 0]);
    let lock = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0];
    assert_eq!(body(Opcode::GetLk, |r| r.lock(1, 2, 3, 4)), lock);
    let ioctl = [255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'x'];
    assert_eq!(body(Opcode::Ioctl, |r| r.ioctl(-1, b"x")), ioctl);
}

#[test]
fn file_system_totals() {
    let stat = StatFs {
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        files: 4,
        files_free: 5,
        block_size: 6,
        fragment_size: 8,
        name_max: 7,
    };
    let bytes = body(Opcode::StatFs, |r| r.statfs(&stat));
    #[rustfmt::skip]
    let expected = [
        1, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0, 0, 0, 0, 0,  3, 0, 0, 0, 0, 0, 0, 0,  4, 0, 0, 0, 0, 0, 0, 0,
        5, 0, 0, 0, 0, 0, 0, 0,  6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0,
    ];
    assert_eq!(bytes[..expected.len()], expected);
    assert_eq!(bytes[expected.len()..], [0; 28]);
}

#[test]
fn statx() {
    let extra = StatXExtra { btime: Some((77, 88)), ..StatXExtra::default() };
    let attr = Attr { rdev: 0x0012_3456, ..ATTR };
    let bytes = body(Opcode::StatX, |r| r.statx(&attr, &extra, Duration::new(1, 2)));
    assert_eq!(bytes.len(), 288);
    let field = |offset: usize| u32::from_le_bytes(bytes[32 + offset..32 + offset + 4].try_into().unwrap());
    // Offsets of statx(2): mask, mode with its neighbour, inode, birth time, device.
    assert_eq!((field(0), field(28), field(32)), (0xfff, 0o100644, 1));
    assert_eq!((field(80), field(88)), (77, 88));
    assert_eq!((field(128), field(132)), (0x234, 0x156));
}

#[test]
fn errors_are_negative_and_valid() {
    for (errno, wire) in [(2, -2i32), (38, -38), (0, -5), (-2, -5), (512, -5), (i32::MIN, -5)] {
        let (reply, socket) = reply(Opcode::Lookup);
        reply.error(errno);
        let bytes = sent(&socket);
        assert_eq!(bytes.len(), 16);
        assert_eq!(bytes[4..8], wire.to_le_bytes());
    }
}

#[test]
fn a_dropped_reply_is_an_error() {
    let (reply, socket) = reply(Opcode::Lookup);
    drop(reply);
    assert_eq!(sent(&socket), [16, 0, 0, 0, 0xfb, 255, 255, 255, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn one_way_message_gets_no_reply() {
    for opcode in [Opcode::Forget, Opcode::BatchForget] {
        for answer in [|r: Reply| r.none(), |r: Reply| r.ok(), |r: Reply| r.error(38), drop] {
            let (reply, socket) = reply(opcode);
            answer(reply);
            assert!(sent(&socket).is_empty());
        }
    }
    let (awaited, socket) = reply(Opcode::Lookup);
    awaited.none();
    assert_eq!(sent(&socket)[4..8], [0xfb, 255, 255, 255], "the caller would wait forever");
    let (unanswered, socket) = reply(Opcode::Interrupt);
    drop(unanswered);
    assert!(sent(&socket).is_empty());
    let (answered, socket) = reply(Opcode::Interrupt);
    answered.error(38);
    assert_eq!(sent(&socket).len(), 16);
}
