//! Random namespaces with syncs in between, crashes of client and server among them: at the end the
//! server has what the namespace has.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use espalier_client::Answer;
use espalier_meta::{DECOUPLE, Decoupled};
use espalier_proto::{
    Attr, Errno, FileType, Ino, InodeFlags, Name, NewNode, RenameFlags, Request, SetAttr, SetTime, Time,
};

use super::offline::OfflineClient;
use super::tests::{Decoupling, find, make, name, open, read, write};
use super::*;

/// Entries by path.
type DescribedTree = BTreeMap<String, Described>;

/// An entry as users see it; a directory's mtime, too.
#[derive(Debug, PartialEq)]
struct Described {
    kind: FileType,
    perm: u32,
    nlink: u32,
    size: u64,
    mtime: Time,
    flags: InodeFlags,
    bytes: Vec<u8>,
    attribute: Option<Vec<u8>>,
}

/// A name with its inode, found below a directory.
struct FoundEntry {
    path: String,
    dir: Ino,
    name: Name,
    attr: Attr,
}

fn walk(client: &mut OfflineClient, top: Ino) -> Vec<FoundEntry> {
    let (mut found, mut dirs) = (Vec::new(), vec![(String::new(), top)]);
    while let Some((path, dir)) = dirs.pop() {
        let listing = client.ask(Request::ReadDir { dir, after: 0, limit: 1000, plus: false });
        let Ok(Answer::Listing { entries, .. }) = listing else { panic!("{listing:?}") };
        for entry in entries {
            let text = String::from_utf8(entry.name.to_vec()).unwrap();
            let attr = find(client, dir, &text).unwrap();
            let path = format!("{path}/{text}");
            if attr.kind == FileType::Directory {
                dirs.push((path.clone(), attr.ino));
            }
            found.push(FoundEntry { path, dir, name: entry.name, attr });
        }
    }
    found
}

fn describe(client: &mut OfflineClient, top: Ino) -> DescribedTree {
    let found = walk(client, top);
    let describe = |found: FoundEntry| {
        let Attr { ino, kind, perm, nlink, size, mtime, flags, .. } = found.attr;
        let bytes = match kind {
            FileType::Regular => read(client, ino, 1 << 20),
            FileType::Symlink => match client.ask(Request::ReadLink { ino }) {
                Ok(Answer::Bytes(to)) => to.to_vec(),
                answer => panic!("{answer:?}"),
            },
            _ => Vec::new(),
        };
        let attribute = match client.ask(Request::GetXattr { ino, name: b"user.a".as_slice().into() }) {
            Ok(Answer::Bytes(value)) => Some(value.to_vec()),
            _ => None,
        };
        (found.path, Described { kind, perm, nlink, size, mtime, flags, bytes, attribute })
    };
    found.into_iter().map(describe).collect()
}

/// Changes a namespace at random.
fn work(client: &mut OfflineClient, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..25) {
        let found = walk(client, Ino::ROOT);
        let mut dirs = vec![Ino::ROOT];
        dirs.extend(found.iter().filter(|one| one.attr.kind == FileType::Directory).map(|one| one.attr.ino));
        let dir = *random.choice(&dirs).unwrap();
        let new = format!("n{}", random.u32(0..12));
        let one = random.choice(&found);
        let is = |kind| one.is_some_and(|one| one.attr.kind == kind);
        let outcome = match (random.u32(0..14), one) {
            (0..3, _) | (_, None) => make(client, dir, &new, NewNode::Regular).map(|ino| {
                write(client, ino, 0, &vec![random.u8(..); random.usize(0..100)]);
            }),
            (3 | 4, _) => make(client, dir, &new, NewNode::Directory).map(drop),
            (5, _) => make(client, dir, &new, NewNode::Symlink(b"to".as_slice().into())).map(drop),
            (6, Some(FoundEntry { dir, name, .. })) if is(FileType::Directory) => {
                client.ask(Request::RmDir { dir: *dir, name: name.clone(), time: None }).map(drop)
            }
            (6, Some(FoundEntry { dir, name, .. })) => {
                client.ask(Request::Unlink { dir: *dir, name: name.clone(), time: None }).map(drop)
            }
            (7..10, Some(FoundEntry { dir: from_dir, name: from, .. })) => {
                let (from_dir, from) = (*from_dir, from.clone());
                let onto = random.choice(&found).map(|other| (other.dir, other.name.clone()));
                let (to_dir, to) = onto.filter(|_| random.bool()).unwrap_or((dir, name(&new)));
                let exchange = random.u32(0..4) == 0;
                let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                client.ask(Request::Rename { from_dir, from, to_dir, to, flags }).map(drop)
            }
            (10, Some(FoundEntry { attr, .. })) if !is(FileType::Directory) => {
                client.ask(Request::Link { ino: attr.ino, dir, name: name(&new) }).map(drop)
            }
            (11, Some(FoundEntry { attr, .. })) if is(FileType::Regular) => {
                let length = if random.u32(0..3) == 0 { 60_000 } else { random.usize(1..200) };
                write(client, attr.ino, random.u64(0..50), &vec![random.u8(..); length]);
                Ok(())
            }
            (12, Some(FoundEntry { attr, .. })) if is(FileType::Regular) || is(FileType::Directory) => {
                client.set_xattr(attr.ino, b"user.a", &[random.u8(..)])
            }
            (_, Some(FoundEntry { attr, .. })) => {
                let perm = (!is(FileType::Symlink)).then(|| 0o600 + random.u32(0..0o100));
                let mtime = Some(SetTime::To(Time::new(random.i64(0..1000), 5)));
                let size = (is(FileType::Regular) && random.bool()).then(|| random.u64(0..300));
                client
                    .ask(Request::SetAttr {
                        ino: attr.ino,
                        set: SetAttr { perm, mtime, size, ..SetAttr::default() },
                    })
                    .map(drop)
            }
        };
        let expected =
            [Errno::EEXIST, Errno::ENOTEMPTY, Errno::EINVAL, Errno::ENOTDIR, Errno::EISDIR, Errno::ENOENT];
        assert!(
            outcome.is_ok_and(|()| true) || outcome.is_err_and(|errno| expected.contains(&errno)),
            "{outcome:?}"
        );
    }
}

/// Decoupled as its server says.
fn state(client: &mut OfflineClient, made: &Decoupling) -> Decoupled {
    client.decoupled(made.directory).unwrap().unwrap()
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// One run.
fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let made = Decoupling::new(2000);
    let mut sync = NamespaceSync::new(&made.store(), made.origin());
    let mut shown = DescribedTree::new();
    for _ in 0..random.usize(1..7) {
        let mut client = open(&made.store());
        work(&mut client, &mut random);
        client.close().unwrap();
        if random.bool() {
            // As after a restart of the client.
            sync = NamespaceSync::new(&made.store(), made.origin());
        }
        let saved: Vec<_> = made.ranks.iter().map(|rank| rank.with_extension("saved")).collect();
        made.ranks.iter().zip(&saved).for_each(|(rank, saved)| copy(rank, saved));
        let namespace = Namespace::open(&made.store()).unwrap();
        let mut server = made.client();
        let decoupled = state(&mut server, &made);
        let rest = sync.rest_of(&namespace, &decoupled, false).unwrap();
        let outcome = random.u32(0..6);
        // 0: the client dies before it sends.
        if outcome > 0 {
            server.merge(&rest, made.directory, decoupled.merged, |_| ()).unwrap();
            let is_all = state(&mut server, &made).merged == rest.len();
            assert!(is_all);
            shown = describe(&mut server, made.directory);
        }
        server.close().unwrap();
        drop(rest);
        drop(namespace);
        // 1: the server loses power.
        if outcome == 1 {
            made.ranks.iter().zip(&saved).for_each(|(rank, saved)| copy(saved, rank));
        } else if outcome > 0 {
            let mut client = open(&made.store());
            let expected = describe(&mut client, Ino::ROOT);
            client.close().unwrap();
            for path in shown.keys() {
                assert!(expected.contains_key(path), "seed {seed}: {path} is gone");
            }
            // Big files come with the end, and count in their directories.
            for (path, entry) in expected.iter().filter(|(_, entry)| entry.bytes.len() < 32 << 10) {
                let synced = shown.get(path).unwrap_or_else(|| panic!("seed {seed}: {path} is not synced"));
                if entry.kind != FileType::Directory {
                    assert_eq!((synced, path), (entry, path), "seed {seed}");
                }
            }
        }
    }
    let mut client = open(&made.store());
    work(&mut client, &mut random);
    for found in walk(&mut client, Ino::ROOT) {
        if found.attr.kind == FileType::Directory && random.u32(0..8) == 0 {
            let flags = Some(InodeFlags::IMMUTABLE);
            client
                .ask(Request::SetAttr { ino: found.attr.ino, set: SetAttr { flags, ..SetAttr::default() } })
                .unwrap();
        }
    }
    let expected = describe(&mut client, Ino::ROOT);
    client.close().unwrap();
    made.apply(&made.store()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let mut server = made.client();
    let merged = describe(&mut server, made.directory);
    for path in expected.keys().chain(merged.keys()) {
        assert_eq!((merged.get(path), path), (expected.get(path), path), "seed {seed}");
    }
    let attribute = server.ask(Request::GetXattr { ino: made.directory, name: DECOUPLE.as_bytes().into() });
    assert_eq!(attribute.err(), Some(Errno::ENODATA));
    server.close().unwrap();
    assert_eq!(crate::fsck_cluster(&made.ranks, &[], |_| ()).unwrap().findings, []);
}

#[test]
fn synced_namespaces_are_merged_completely() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("SYNC_SEED");
    let count = number("SYNC_SEEDS").unwrap_or(if first.is_some() { 1 } else { 40 });
    let first = first.unwrap_or(0);
    (first..first + count).for_each(run);
}

#[test]
fn record_of_syncs_is_read_up_to_what_the_server_has() {
    let made = Decoupling::new(64);
    made.fill();
    let namespace = Namespace::open(&made.store()).unwrap();
    let mut sync = NamespaceSync::new(&made.store(), made.origin());
    let rest = sync.rest_of(&namespace, &made.decoupled, false).unwrap();
    let all = rest.len();
    assert!(all > 3);
    let merged = |merged| Decoupled { merged, shows: true, ..made.decoupled.clone() };
    drop(rest);
    for part in [all, all - 2, 1, 0, all - 1] {
        let mut sync = NamespaceSync::new(&made.store(), made.origin());
        let rest = sync.rest_of(&namespace, &merged(part), false).unwrap();
        assert_eq!((rest.first(), rest.len() >= all), (part, true));
    }
    let path = made.store().join("synced");
    let length = std::fs::metadata(&path).unwrap().len();
    for more in [0, 5] {
        // A torn end, and one that was lost.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length + more).unwrap();
        let mut sync = NamespaceSync::new(&made.store(), made.origin());
        assert_eq!(sync.rest_of(&namespace, &merged(all), false).unwrap().first(), all);
    }
    std::fs::remove_file(&path).unwrap();
    let mut sync = NamespaceSync::new(&made.store(), made.origin());
    let outcome = sync.rest_of(&namespace, &merged(1), false).map(drop);
    assert!(matches!(outcome, Err(Error::ChangedNamespace(_))), "{outcome:?}");
}
