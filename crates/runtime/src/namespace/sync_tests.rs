//! Random namespaces with syncs in between, crashes of client and server among them: at the end the
//! server has what the namespace has.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use espalier_client::Answer;
use espalier_meta::{DECOUPLE, Decoupled, Input, MERGE, MergeBatch};
use espalier_proto::{
    Attr, Errno, FileType, Ino, InodeFlags, Name, NewNode, Rank, RenameFlags, Request, SetAttr, SetTime, Time,
};

use super::offline::OfflineClient;
use super::synced::{PlanHead, SyncedFile, SyncedStep};
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
                client.ask(Request::Rename { from_dir, from, to_dir, to, flags, time: None }).map(drop)
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

fn state_of(made: &Decoupling) -> Decoupled {
    let mut server = made.client();
    let decoupled = state(&mut server, made);
    server.close().unwrap();
    decoupled
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// The first request of a sync, which arrives late.
fn first_batch(rest: &NamespaceRest<'_>) -> Vec<u8> {
    let batch = next_batch(rest, rest.first(), |file| -> Result<((), Ino), Error> {
        panic!("{} is big", file.inode.ino)
    });
    batch.unwrap().value
}

/// Sends a sync, during which a late request of an earlier one may arrive.
fn send(made: &Decoupling, namespace: &Namespace, sync: &mut NamespaceSync, late: Option<Vec<u8>>) -> u64 {
    let mut server = made.client();
    let decoupled = state(&mut server, made);
    let rest = sync.rest_of(namespace, &decoupled, false).unwrap();
    sync.record(rest.len()).unwrap();
    if let Some(late) = late {
        let _ = server.set_xattr(made.directory, MERGE.as_bytes(), &late);
    }
    let sent = server.merge(&rest, made.directory, decoupled.merged, |_| ());
    let after = state(&mut server, made);
    server.close().unwrap();
    match sent {
        Ok(()) => assert_eq!((after.merged, rest.is_outdated(&after)), (rest.len(), false)),
        Err(error) => {
            assert!(rest.is_outdated(&after), "{error}");
            return send(made, namespace, sync, None);
        }
    }
    rest.len()
}

/// One run.
fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let made = Decoupling::new(2000);
    let mut sync = NamespaceSync::new(&made.store(), made.origin());
    let (mut shown, mut late) = (DescribedTree::new(), None);
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
        let outcome = random.u32(0..6);
        if outcome == 0 {
            // The client dies before the server executes its first request.
            let decoupled = state_of(&made);
            let rest = sync.rest_of(&namespace, &decoupled, false).unwrap();
            if random.bool() {
                sync.record(rest.len()).unwrap();
                late = Some(first_batch(&rest));
            }
            sync = NamespaceSync::new(&made.store(), made.origin());
        } else {
            let arrives = random.bool();
            send(&made, &namespace, &mut sync, if arrives { late.take() } else { None });
            let mut server = made.client();
            shown = describe(&mut server, made.directory);
            server.close().unwrap();
        }
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
    if let Some(late) = late {
        let mut server = made.client();
        let _ = server.set_xattr(made.directory, MERGE.as_bytes(), &late);
        server.close().unwrap();
    }
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
    let count = number("SYNC_SEEDS").unwrap_or(if first.is_some() { 1 } else { 6 });
    let first = first.unwrap_or(0);
    (first..first + count).for_each(run);
}

#[test]
fn record_of_syncs_is_read_up_to_what_the_server_has() {
    let made = Decoupling::new(64);
    made.fill();
    let namespace = Namespace::open(&made.store()).unwrap();
    let new = || NamespaceSync::new(&made.store(), made.origin());
    let state = |merged, digest| Decoupled { merged, digest, shows: true, ..made.decoupled.clone() };
    let recorded = |decoupled: &Decoupled| {
        let mut sync = new();
        let rest = sync.rest_of(&namespace, decoupled, false).unwrap();
        sync.record(rest.len()).unwrap();
        (rest.first(), rest.len(), rest.digest())
    };
    let (_, all, digest) = recorded(&made.decoupled);
    assert!(all > 3);
    // Each is another plan, after a part of the first one.
    for part in [all, all - 2, 1, 0, all - 1] {
        let (first, end, _) = recorded(&state(part, digest));
        assert_eq!((first, end >= all), (part, true));
    }
    let (_, end, second) = recorded(&state(2, digest));
    assert_eq!(recorded(&state(end, second)).0, end);
    let refused = |decoupled| {
        let outcome = new().rest_of(&namespace, &decoupled, false).map(drop);
        assert!(matches!(outcome, Err(Error::ChangedNamespace(_))), "{outcome:?}");
    };
    // A plan that is not recorded, and records that a plan does not have.
    refused(state(2, digest + 1));
    refused(state(1, second));
    refused(state(all + 1, digest));
    let path = made.store().join("synced");
    let length = std::fs::metadata(&path).unwrap().len();
    for more in [5, 0] {
        // A torn end.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length + more).unwrap();
        assert_eq!(recorded(&state(all, digest)).0, all);
    }
    std::fs::remove_file(&path).unwrap();
    refused(state(1, digest));
}

#[test]
fn steps_are_recorded_as_they_are_sent() {
    let made = Decoupling::new(64);
    made.fill();
    let namespace = Namespace::open(&made.store()).unwrap();
    let mut sync = NamespaceSync::new(&made.store(), made.origin());
    let rest = sync.rest_of(&namespace, &made.decoupled, false).unwrap();
    let (all, digest) = (rest.len(), rest.digest());
    sync.record(2).unwrap();
    sync.record(3).unwrap();
    sync.record(1).unwrap();
    for (merged, is_recorded) in [(2, true), (3, true), (4, false), (all, false)] {
        let decoupled = Decoupled { merged, digest, shows: true, ..made.decoupled.clone() };
        let mut sync = NamespaceSync::new(&made.store(), made.origin());
        assert_eq!(sync.rest_of(&namespace, &decoupled, false).is_ok(), is_recorded, "{merged}");
    }
}

/// Syncs a namespace that is not open.
fn sync(made: &Decoupling) {
    let namespace = Namespace::open(&made.store()).unwrap();
    send(made, &namespace, &mut NamespaceSync::new(&made.store(), made.origin()), None);
}

#[test]
fn removed_tree_that_is_not_swept_is_removed_at_the_server() {
    let made = Decoupling::new(64);
    made.fill();
    sync(&made);
    let mut client = open(&made.store());
    let sub = find(&mut client, Ino::ROOT, "sub").unwrap().ino;
    // From here on nothing is swept.
    crate::ranks::run(&mut client.volumes, [(Rank(0), Input::Drain)].into());
    client.ask(Request::RemoveTree { dir: sub }).unwrap();
    client.close().unwrap();
    let namespace = Namespace::open(&made.store()).unwrap();
    let is_entry = |record: &Record| record.0.kind == ObjectKind::Fragment && record.0.id == sub.0;
    assert!(namespace.disk.store.records().any(|record| is_entry(&record.unwrap())));
    drop(namespace);
    made.apply(&made.store()).unwrap();
    let mut server = made.client();
    assert_eq!(find(&mut server, made.directory, "sub").err(), Some(Errno::ENOENT));
    assert!(find(&mut server, made.directory, "new").is_ok());
    server.close().unwrap();
}

#[test]
fn flags_of_an_interrupted_merge_do_not_prevent_changes() {
    let made = Decoupling::new(64);
    made.fill();
    let mut client = open(&made.store());
    let sub = find(&mut client, Ino::ROOT, "sub").unwrap().ino;
    client.ask(Request::Unlink { dir: sub, name: name("big"), time: None }).unwrap();
    client.close().unwrap();
    sync(&made);
    let mut client = open(&made.store());
    find(&mut client, Ino::ROOT, "sub").unwrap();
    let file = find(&mut client, sub, "file").unwrap().ino;
    let set_flags = |client: &mut OfflineClient, flags| {
        let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
        for ino in [file, sub] {
            client.ask(Request::SetAttr { ino, set }).unwrap();
        }
    };
    set_flags(&mut client, InodeFlags::IMMUTABLE);
    client.close().unwrap();
    // All records but the end of the merge arrive.
    let namespace = Namespace::open(&made.store()).unwrap();
    let mut sync = NamespaceSync::new(&made.store(), made.origin());
    let mut server = made.client();
    let decoupled = state(&mut server, &made);
    let rest = sync.rest_of(&namespace, &decoupled, true).unwrap();
    sync.record(rest.len()).unwrap();
    let record = |number| match rest.record(number).unwrap() {
        Merged::Record(record) => record,
        Merged::Big(file) => panic!("{} is big", file.inode.ino),
    };
    let records: Vec<_> = (rest.first()..rest.len()).map(record).collect();
    let (digest, base, after) = (rest.digest(), rest.base(), rest.first());
    let id = decoupled.id;
    let batch = MergeBatch { id, digest, base, after, records, shows: false, end: None };
    server.set_xattr(made.directory, MERGE.as_bytes(), &encode(&batch)).unwrap();
    assert_eq!(state(&mut server, &made).merged, rest.len());
    let sub_there = find(&mut server, made.directory, "sub").unwrap();
    server.close().unwrap();
    drop(rest);
    drop(namespace);
    assert_eq!(sub_there.flags, InodeFlags::IMMUTABLE);
    let mut client = open(&made.store());
    set_flags(&mut client, InodeFlags::empty());
    client.ask(Request::Unlink { dir: sub, name: name("file"), time: None }).unwrap();
    client.close().unwrap();
    made.apply(&made.store()).unwrap();
    let mut server = made.client();
    let sub = find(&mut server, made.directory, "sub").unwrap();
    assert_eq!(sub.flags, InodeFlags::empty());
    assert_eq!(find(&mut server, sub.ino, "file").err(), Some(Errno::ENOENT));
    server.close().unwrap();
}

#[test]
fn temporary_names_are_free() {
    let made = Decoupling::new(64);
    let mut client = open(&made.store());
    let dirs = ["a", "b"].map(|dir| make(&mut client, Ino::ROOT, dir, NewNode::Directory).unwrap());
    client.close().unwrap();
    sync(&made);
    let mut client = open(&made.store());
    let (from, to, flags) = (name("a"), name("b"), RenameFlags::EXCHANGE);
    client
        .ask(Request::Rename { from_dir: Ino::ROOT, from, to_dir: Ino::ROOT, to, flags, time: None })
        .unwrap();
    for dir in dirs {
        make(&mut client, Ino::ROOT, &format!(".espalier-moved-{dir}-0"), NewNode::Regular).unwrap();
    }
    let expected = describe(&mut client, Ino::ROOT);
    client.close().unwrap();
    sync(&made);
    made.apply(&made.store()).unwrap();
    let mut server = made.client();
    assert_eq!(describe(&mut server, made.directory), expected);
    server.close().unwrap();
}

#[test]
fn crafted_record_of_syncs_ends_the_plan() {
    let made = Decoupling::new(64);
    let namespace = Namespace::open(&made.store()).unwrap();
    let first = made.decoupled.first;
    let (a, b) = (Ino(50), Ino(51));
    let create = |ino: Ino, dir, number| SyncedStep::Create {
        ino,
        number: Ino(first.0 + number),
        dir,
        name: name("x"),
        is_dir: true,
        ctime: Time::new(0, 0),
    };
    // Each directory is in the other one.
    let steps = [create(a, b, 0), create(b, a, 1)];
    let head = PlanHead::of(0, 0, &steps);
    SyncedFile::open(&made.store(), &made.decoupled).unwrap().append(Some(head), &steps).unwrap();
    let decoupled = Decoupled { merged: 2, digest: head.digest, shows: true, ..made.decoupled.clone() };
    let mut sync = NamespaceSync::new(&made.store(), made.origin());
    assert!(sync.rest_of(&namespace, &decoupled, true).is_err());
}
