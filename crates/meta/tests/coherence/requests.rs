//! Requests of clients.

use espalier_proto::*;
use fastrand::Rng;

use super::CurrentTree;
use crate::harness::{STRIP, name, open_how};

pub fn random_request(random: &mut Rng, tree: &CurrentTree) -> Request {
    let dirs: Vec<Ino> = tree.dirs.iter().copied().collect();
    let dir = *random.choice(&dirs).unwrap();
    let any_name = |random: &mut Rng| name(random.choice(&["a", "b", "c", "d"]).unwrap());
    // More often than not an existing name.
    let entries: Vec<_> = tree.names.iter().map(|((dir, name), ino)| (*dir, name.clone(), *ino)).collect();
    let (at, named, ino) = match random.choice(&entries) {
        Some((dir, name, ino)) if random.u8(..4) > 0 => (*dir, name.clone(), *ino),
        _ => (dir, any_name(random), dir),
    };
    let file = random.choice(&tree.files).copied().unwrap_or(dir);
    let new = any_name(random);
    match random.u32(..100) {
        0..20 => Request::Lookup { dir: at, name: named },
        20..32 => Request::GetAttr { ino },
        32..36 => Request::Read { ino: file, offset: 0, size: 1 << 20, noatime: false },
        36..44 => Request::ReadDir {
            dir,
            after: 0,
            limit: if random.bool() { 1000 } else { 2 },
            plus: random.bool(),
        },
        44..46 => Request::ListXattr { ino },
        46..54 => Request::Create {
            dir: at,
            name: if random.bool() { named } else { new },
            node: NewNode::Regular,
            perm: 0o644,
            umask: 0,
            open: random.bool().then(|| open_how(Access::WRITE, random.bool())),
            exclusive: random.u8(..4) == 0,
            writeback: None,
        },
        54..57 => Request::Create {
            dir: if tree.dirs.len() < 12 { dir } else { Ino::ROOT },
            name: new,
            node: NewNode::Directory,
            perm: 0o755,
            umask: 0,
            open: None,
            exclusive: true,
            writeback: None,
        },
        57..61 => Request::Link { ino: file, dir, name: new },
        61..67 => Request::Unlink { dir: at, name: named, time: None },
        67..68 => Request::RmDir { dir: at, name: named, time: None },
        68..74 => {
            let flags = if random.u8(..4) == 0 { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            Request::Rename { from_dir: at, from: named, to_dir: dir, to: new, flags, time: None }
        }
        74..80 => Request::SetAttr { ino, set: random_set(random) },
        80..82 => Request::SetXattr {
            ino,
            name: format!("user.{}", random.u8(..3)).into_bytes().into(),
            value: b"value".as_slice().into(),
            mode: XattrMode::Any,
            kill_sgid: false,
        },
        82..97 => {
            let access = if random.bool() { Access::WRITE } else { Access::READ };
            let reads = random.choice([Reads::Server, Reads::Whole, Reads::Client]).unwrap();
            Request::Open { ino: file, how: OpenHow { reads, ..open_how(access, random.u8(..4) == 0) } }
        }
        97..98 => Request::RemoveTree { dir },
        98..99 => Request::CopyTree(CopyTree {
            levels: vec![CopyLevel { from: dir, to: *random.choice(&dirs).unwrap(), after: 0 }],
            preserve: random.bool(),
            umask: 0,
        }),
        _ => Request::Fsync { ino: Ino::ROOT },
    }
}

fn random_set(random: &mut Rng) -> SetAttr {
    match random.u8(..4) {
        0 => SetAttr { perm: Some(0o600 + random.u32(..0o100)), ..SetAttr::default() },
        1 => {
            let time = Time::new(random.i64(0..1000), 0);
            SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() }
        }
        2 => SetAttr { size: Some(random.u64(..STRIP)), ..SetAttr::default() },
        _ => SetAttr { size: Some(random.u64(..4 * STRIP)), mtime: Some(SetTime::Now), ..SetAttr::default() },
    }
}

/// The requests that follow. A client that has opened a file uses it once and closes it.
pub fn following(random: &mut Rng, request: &Request, result: &Result<Reply, Errno>) -> Vec<Request> {
    let write = |random: &mut Rng, ino| {
        let (offset, length) = (random.u64(..STRIP), random.usize(1..STRIP as usize));
        Request::Write {
            ino,
            offset,
            data: vec![random.u8(..); length].into(),
            kill_suid_gid: false,
            time: None,
        }
    };
    let extend = |random: &mut Rng, ino| Request::Extend {
        ino,
        offset: random.u64(..4 * STRIP),
        length: 300,
        from: None,
        discards: false,
        acknowledged: false,
    };
    match (request, result) {
        (Request::Open { ino, how }, Ok(Reply::Opened(opened) | Reply::OpenedWhole(opened, _))) => {
            match opened.streamed {
                _ if !how.access.contains(Access::WRITE) => {
                    vec![
                        Request::Read { ino: *ino, offset: 0, size: 1 << 20, noatime: false },
                        Request::Release { ino: *ino },
                    ]
                }
                true => vec![extend(random, *ino)],
                false => vec![write(random, *ino)],
            }
        }
        (_, Ok(Reply::Created(entry, opened))) => {
            let ino = entry.attr.ino;
            if opened.streamed { vec![extend(random, ino)] } else { vec![write(random, ino)] }
        }
        (Request::Write { ino, .. }, Ok(Reply::Streamed)) => vec![extend(random, *ino)],
        (Request::Write { ino, .. } | Request::Extend { ino, .. }, _) => vec![Request::Release { ino: *ino }],
        (
            Request::ReadDir { dir, limit: limit @ 2, plus, .. },
            Ok(Reply::Listing { entries, end: false, .. }),
        ) => {
            let after = entries.last().map_or(0, |last| last.cursor);
            vec![Request::ReadDir { dir: *dir, after, limit: *limit, plus: *plus }]
        }
        (_, Ok(Reply::Entry(entry))) if random.bool() => {
            vec![Request::Forget { ino: entry.attr.ino, lookups: 1 }]
        }
        _ => Vec::new(),
    }
}
