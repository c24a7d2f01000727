#![allow(clippy::unwrap_used)]

use super::*;
use crate::abi::{InitFlags, Opcode};

/// A message with node 0x42, uid 1000, gid 100 and pid 77.
fn message(opcode: u32, body: &[u8], extensions: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&((40 + body.len() + extensions.len()) as u32).to_le_bytes());
    bytes.extend_from_slice(&opcode.to_le_bytes());
    bytes.extend_from_slice(&[0xef, 0xbe, 0xad, 0xde, 0, 0, 0, 0]);
    bytes.extend_from_slice(&[0x42, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&[0xe8, 0x03, 0, 0, 100, 0, 0, 0, 77, 0, 0, 0]);
    bytes.extend_from_slice(&((extensions.len() / 8) as u16).to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(extensions);
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn with(mut head: Vec<u8>, tail: &[u8]) -> Vec<u8> {
    head.extend_from_slice(tail);
    head
}

/// Two 32-bit fields as one word, in memory order.
const fn pair(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

/// A minimal body for each opcode, and its meaning.
fn samples() -> Vec<(u32, Vec<u8>, Op<'static>)> {
    let read = words(&[5, 4096, pair(512, 2), 9, pair(0o100000, 0)]);
    let lock = words(&[5, 9, 10, 20, pair(1, 77), pair(1, 0)]);
    let decoded = Lock { handle: 5, owner: 9, start: 10, end: 20, kind: 1, pid: 77, flock: true };
    let copy = words(&[5, 100, 0x43, 6, 200, 1 << 40, 0]);
    let copied = Op::CopyFileRange {
        handle_in: 5,
        offset_in: 100,
        node_out: 0x43,
        handle_out: 6,
        offset_out: 200,
        length: 1 << 40,
        flags: 0,
    };
    vec![
        (1, b"abc\0".to_vec(), Op::Lookup { name: b"abc" }),
        (2, vec![3, 0, 0, 0, 0, 0, 0, 0], Op::Forget { lookups: 3 }),
        (3, words(&[pair(1, 0), 5]), Op::GetAttr { handle: Some(5) }),
        (3, words(&[pair(0, 0), 5]), Op::GetAttr { handle: None }),
        (
            4,
            words(&[
                pair(0xfff, 0),
                5,
                4096,
                9,
                11,
                (-1i64) as u64,
                13,
                pair(21, 22),
                pair(23, 0o644),
                pair(0, 1000),
                pair(100, 0),
            ]),
            Op::SetAttr(SetAttr {
                mode: Some(0o644),
                uid: Some(1000),
                gid: Some(100),
                size: Some(4096),
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::Now),
                ctime: Some((13, 23)),
                handle: Some(5),
                lock_owner: Some(9),
                kill_suid_gid: true,
            }),
        ),
        (
            4,
            words(&[pair(0x30, 0), 5, 4096, 9, 11, (-1i64) as u64, 13, pair(21, 22), pair(23, 0), 0, 0]),
            Op::SetAttr(SetAttr {
                atime: Some(SetTime::To(11, 21)),
                mtime: Some(SetTime::To(-1, 22)),
                ..SetAttr::default()
            }),
        ),
        (5, vec![], Op::ReadLink),
        (6, b"link\0/target\0".to_vec(), Op::Symlink { name: b"link", target: b"/target" }),
        (
            8,
            with(words(&[pair(0o020600, 0x103), pair(0o22, 0)]), b"null\0"),
            Op::MkNod { name: b"null", mode: 0o020600, umask: 0o22, rdev: 0x103 },
        ),
        (
            9,
            with(words(&[pair(0o755, 0o22)]), b"dir\0"),
            Op::MkDir { name: b"dir", mode: 0o755, umask: 0o22 },
        ),
        (10, b"gone\0".to_vec(), Op::Unlink { name: b"gone" }),
        (11, b"dir\0".to_vec(), Op::RmDir { name: b"dir" }),
        (
            12,
            with(words(&[0x43]), b"old\0new\0"),
            Op::Rename { name: b"old", new_parent: 0x43, new_name: b"new", flags: 0 },
        ),
        (13, with(words(&[0x43]), b"name\0"), Op::Link { node: 0x43, new_name: b"name" }),
        (14, words(&[pair(0o102, 1)]), Op::Open { flags: 0o102, kill_suid_gid: true }),
        (
            15,
            read.clone(),
            Op::Read { handle: 5, offset: 4096, size: 512, flags: 0o100000, lock_owner: Some(9) },
        ),
        (
            16,
            with(words(&[5, 4096, pair(3, 5), 9, pair(1, 0)]), b"xyz"),
            Op::Write {
                handle: 5,
                offset: 4096,
                data: b"xyz",
                flags: 1,
                lock_owner: None,
                cache: true,
                kill_suid_gid: true,
            },
        ),
        (17, vec![], Op::StatFs),
        (
            18,
            words(&[5, pair(2, 3), 9]),
            Op::Release { handle: 5, flags: 2, flush: true, flock_unlock: true, lock_owner: 9 },
        ),
        (20, words(&[5, pair(1, 0)]), Op::FSync { handle: 5, datasync: true }),
        (
            21,
            with(words(&[pair(3, 1), pair(1, 0)]), b"user.a\0\0\x01\x02"),
            Op::SetXattr { name: b"user.a", value: &[0, 1, 2], flags: 1, acl_kill_sgid: true },
        ),
        (22, with(words(&[pair(64, 0)]), b"user.a\0"), Op::GetXattr { name: b"user.a", size: 64 }),
        (23, words(&[pair(64, 0)]), Op::ListXattr { size: 64 }),
        (24, b"user.a\0".to_vec(), Op::RemoveXattr { name: b"user.a" }),
        (25, words(&[5, 0, 9]), Op::Flush { handle: 5, lock_owner: 9 }),
        (
            26,
            vec![7, 0, 0, 0, 45, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0x40, 0x20, 0, 0, 0],
            Op::Init(Init {
                major: 7,
                minor: 45,
                max_readahead: 131_072,
                flags: InitFlags::ASYNC_READ | InitFlags::INIT_EXT | InitFlags::PASSTHROUGH,
            }),
        ),
        (27, words(&[pair(0o200000, 0)]), Op::OpenDir { flags: 0o200000 }),
        (28, read.clone(), Op::ReadDir { handle: 5, offset: 4096, size: 512 }),
        (29, words(&[5, pair(2, 0), 9]), Op::ReleaseDir { handle: 5, flags: 2 }),
        (30, words(&[5, 0]), Op::FSyncDir { handle: 5, datasync: false }),
        (31, lock.clone(), Op::GetLk(decoded)),
        (32, lock.clone(), Op::SetLk(decoded)),
        (33, lock, Op::SetLkW(decoded)),
        (34, words(&[pair(4, 0)]), Op::Access { mask: 4 }),
        (
            35,
            with(words(&[pair(0o101, 0o100644), pair(0o22, 1)]), b"new\0"),
            Op::Create { name: b"new", flags: 0o101, mode: 0o100644, umask: 0o22, kill_suid_gid: true },
        ),
        (36, words(&[0xdead_beee]), Op::Interrupt { unique: 0xdead_beee }),
        (37, words(&[12, pair(4096, 0)]), Op::BMap { block: 12, block_size: 4096 }),
        (38, vec![], Op::Destroy),
        (
            39,
            with(words(&[5, pair(16, 0x5401), 0x7fff, pair(2, 8)]), &[1, 2]),
            Op::Ioctl { handle: 5, flags: 16, command: 0x5401, argument: 0x7fff, data: &[1, 2], out_size: 8 },
        ),
        (40, words(&[5, 6, pair(1, 4)]), Op::Poll { handle: 5, kernel_handle: 6, flags: 1, events: 4 }),
        (
            42,
            words(&[pair(2, 0), 0x42, 1, 0x43, 2]),
            Op::BatchForget(Forgets(&[
                0x42, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, //
                0x43, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
            ])),
        ),
        (
            43,
            words(&[5, 100, 200, pair(3, 0)]),
            Op::FAllocate { handle: 5, offset: 100, length: 200, mode: 3 },
        ),
        (44, read, Op::ReadDirPlus { handle: 5, offset: 4096, size: 512 }),
        (
            45,
            with(words(&[0x43, pair(2, 0)]), b"old\0new\0"),
            Op::Rename { name: b"old", new_parent: 0x43, new_name: b"new", flags: 2 },
        ),
        (46, words(&[5, (-3i64) as u64, pair(4, 0)]), Op::LSeek { handle: 5, offset: -3, whence: 4 }),
        (47, copy.clone(), copied),
        (50, words(&[0]), Op::SyncFs),
        (
            51,
            words(&[pair(2, 0o100600), pair(0o22, 0)]),
            Op::TmpFile { flags: 2, mode: 0o100600, umask: 0o22 },
        ),
        (
            52,
            words(&[pair(1, 0), 5, pair(0x2000, 0xfff)]),
            Op::StatX { handle: Some(5), flags: 0x2000, mask: 0xfff },
        ),
        (53, copy, copied),
        (9999, vec![], Op::Unknown(9999)),
    ]
}

#[test]
fn every_opcode_is_decoded() {
    let samples = samples();
    for &opcode in Opcode::ALL {
        assert!(samples.iter().any(|sample| sample.0 == opcode as u32), "no sample of {opcode:?}");
    }
    for (opcode, body, op) in samples {
        let bytes = message(opcode, &body, &[]);
        let request = Request::parse(&bytes).unwrap();
        let expected =
            Request { unique: 0xdead_beef, node: 0x42, uid: 1000, gid: 100, pid: 77, parent_group: None, op };
        assert_eq!(request, expected);
    }
}

#[test]
fn every_truncation_is_an_error() {
    for (opcode, body, op) in samples() {
        for length in 0..body.len() {
            let bytes = message(opcode, &body[..length], &[]);
            let malformed = Request::parse(&bytes).expect_err(&format!("{op:?} cut to {length}"));
            assert_eq!((malformed.unique, malformed.opcode), (Some(0xdead_beef), Some(opcode)));
            assert_ne!(malformed.flaw, Flaw::Length { stated: bytes.len(), read: bytes.len() });
        }
    }
}

#[test]
fn bytes_appended_by_newer_kernels_are_ignored() {
    for (opcode, body, op) in samples() {
        let bytes = message(opcode, &with(body, &[0; 24]), &[]);
        assert_eq!(Request::parse(&bytes).unwrap().op, op);
    }
}

#[test]
fn message_with_wrong_length_is_an_error() {
    let bytes = message(1, b"abc\0", &[]);
    for length in 0..40 {
        let malformed = Request::parse(&bytes[..length]).unwrap_err();
        assert_eq!(malformed.unique, None);
        assert_eq!(malformed.flaw, Flaw::Short { needs: 40, has: length });
    }
    for length in 40..bytes.len() {
        let flaw = Request::parse(&bytes[..length]).unwrap_err().flaw;
        assert_eq!(flaw, Flaw::Length { stated: 44, read: length });
    }
    let longer = with(bytes, b"x");
    assert_eq!(Request::parse(&longer).unwrap_err().flaw, Flaw::Length { stated: 44, read: 45 });
}

#[test]
fn counts_beyond_the_message_are_errors() {
    for (opcode, body) in [
        (16, words(&[5, 0, pair(u32::MAX, 0), 0, 0])),
        (21, with(words(&[pair(u32::MAX, 0), 0]), b"user.a\0")),
        (39, words(&[5, 0, 0, pair(u32::MAX, 0)])),
        (42, words(&[pair(u32::MAX, 0), 1, 1])),
    ] {
        let malformed = Request::parse(&message(opcode, &body, &[])).map(|_| ()).unwrap_err();
        assert!(matches!(malformed.flaw, Flaw::Short { .. }), "{malformed}");
    }
}

#[test]
fn batch_forget_yields_each_node() {
    let bytes = message(42, &words(&[pair(2, 0), 0x42, 1, 0x43, 2]), &[]);
    let Op::BatchForget(forgets) = Request::parse(&bytes).unwrap().op else { panic!() };
    assert_eq!(forgets.collect::<Vec<_>>(), [(0x42, 1), (0x43, 2)]);
}

#[test]
fn extensions_are_no_part_of_the_arguments() {
    let body = with(words(&[pair(0o755, 0o22)]), b"dir\0");
    let op = Op::MkDir { name: b"dir", mode: 0o755, umask: 0o22 };
    // A security context of sixteen bytes, then one group.
    let groups = with(words(&[pair(16, 1), 0]), &words(&[pair(16, 32), pair(1, 4711)]));
    let none = words(&[pair(16, 32), pair(0, 0)]);
    let endless = words(&[pair(0, 5), pair(u32::MAX, 32)]);
    for (extensions, group) in [(groups, Some(4711)), (none, None), (endless, None), (vec![], None)] {
        let bytes = message(9, &body, &extensions);
        let request = Request::parse(&bytes).unwrap();
        assert_eq!((request.op, request.parent_group), (op, group));
    }

    let mut bytes = message(9, &body, &[]);
    bytes[36] = 200;
    assert_eq!(Request::parse(&bytes).unwrap_err().flaw, Flaw::Short { needs: 1600, has: 12 });
}

#[test]
fn no_single_byte_makes_the_decoder_panic() {
    for (opcode, body, _) in samples() {
        let bytes = message(opcode, &body, &words(&[pair(16, 32), pair(1, 4711)]));
        for place in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] = value;
                let _ = Request::parse(&changed);
            }
        }
    }
}
