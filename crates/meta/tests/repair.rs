//! `fsck --repair`: whatever happens to the records, afterwards a check finds nothing, the file
//! system works, and every file whose records were not damaged is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::{Harness, ROOT_CALLER, TestDisk, config, name, open_how};
use espalier_meta::{Config, Dentry, InoRecord, Inode, Input, Repair, Repaired, Super, decode};
use espalier_proto::*;
use espalier_store::Store;

pub type RecordKey = (ObjectId, Vec<u8>);

pub fn records(store: &dyn Store) -> BTreeMap<RecordKey, Vec<u8>> {
    let records = store.records().map(Result::unwrap);
    records.map(|(object, key, value)| ((object, key), value)).collect()
}

fn plan(store: &dyn Store) -> Repaired {
    plan_all(&[store]).remove(0)
}

/// As [`plan`], for the stores of all ranks.
pub fn plan_all(stores: &[&dyn Store]) -> Vec<Repaired> {
    let ranks = stores.len() as u16;
    let mut repair = Repair::new(config().hash_key, Time::new(5000, 0), ranks);
    for (rank, store) in (0..ranks).map(Rank).zip(stores) {
        for ((object, key), value) in records(*store) {
            repair.record(rank, object, &key, &value);
        }
        for ino in store.streams().unwrap() {
            repair.stream(rank, ino, store.stream_stat(ino).unwrap().size);
        }
    }
    repair.finish()
}

/// Executes a plan as the driver does: all of it, or only the part before the writes.
pub fn carry_out(store: &dyn Store, plan: &Repaired, all: bool) {
    for ino in &plan.empty {
        store.stream_create(*ino).unwrap();
        store.stream_sync(*ino).unwrap();
    }
    for (from, to) in &plan.copies {
        store.stream_create(*to).unwrap();
        let size = store.stream_stat(*from).unwrap().size;
        store.stream_copy(*from, 0, *to, 0, size).unwrap();
        store.stream_sync(*to).unwrap();
    }
    for ino in store.new_streams().unwrap() {
        store.stream_finalise(ino).unwrap();
    }
    if all {
        store.stage(plan.writes.clone()).unwrap();
        store.publish().unwrap();
        for (from, _) in &plan.copies {
            store.stream_remove(*from).unwrap();
        }
    }
}

/// A file system with files of all types, after a checkpoint.
fn grown(rng: &mut fastrand::Rng) -> Harness {
    let mut fs = Harness::new();
    let (mut dirs, mut files) = (vec![Ino::ROOT], Vec::new());
    for step in 0..rng.usize(10..60) {
        let dir = dirs[rng.usize(..dirs.len())];
        let text = format!("n{step}");
        match rng.u8(0..12) {
            0..=2 => dirs.push(fs.create(dir, &text, NewNode::Directory).unwrap()),
            3 => drop(fs.create(dir, &text, NewNode::Symlink(b"target".as_slice().into())).unwrap()),
            4 => drop(fs.create(dir, &text, NewNode::Fifo).unwrap()),
            5 if !files.is_empty() => {
                let ino = files[rng.usize(..files.len())];
                drop(fs.ask(Request::Link { ino, dir, name: name(&text) }));
            }
            6 if !files.is_empty() => {
                let (name, value) = (b"user.a".as_slice().into(), vec![rng.u8(..); 9].into());
                let ino = files[rng.usize(..files.len())];
                let mode = XattrMode::Any;
                fs.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false }).unwrap();
            }
            7 => {
                let ino = fs.create(dir, &text, NewNode::Regular).unwrap();
                fs.ask(Request::Open { ino, how: open_how(Access::READ, false) }).unwrap();
                fs.write(ino, 0, b"without a name").unwrap();
                fs.ask(Request::Unlink { dir, name: name(&text), time: None }).unwrap();
            }
            _ => {
                let ino = fs.create(dir, &text, NewNode::Regular).unwrap();
                let bytes = vec![step as u8 + 1; rng.usize(0..100)];
                fs.ask(Request::Open { ino, how: open_how(Access::WRITE, false) }).unwrap();
                if fs.write(ino, 0, &bytes).unwrap() == Reply::Streamed {
                    fs.disk.store().stream_write(ino, 0, &bytes).unwrap();
                    fs.disk.store().stream_sync(ino).unwrap();
                    fs.ask(Request::Fsync { ino }).unwrap();
                }
                fs.ask(Request::Release { ino }).unwrap();
                files.push(ino);
            }
        }
    }
    if rng.bool() && dirs.len() > 1 {
        // A tree that is removed at this point stays in the trash.
        fs.input(espalier_meta::Input::Drain);
        fs.ask(Request::RemoveTree { dir: dirs[rng.usize(1..dirs.len())] }).unwrap();
    }
    for ino in dirs.into_iter().chain(files) {
        fs.send(&ROOT_CALLER, Request::Forget { ino, lookups: u64::MAX });
    }
    fs.checkpoint();
    fs
}

/// Damages a store. Returns the damaged keys and streams.
pub fn damage(rng: &mut fastrand::Rng, store: &dyn Store) -> (BTreeSet<RecordKey>, BTreeSet<Ino>) {
    let (mut touched, mut streams) = (BTreeSet::new(), BTreeSet::new());
    let mut put = |(object, key): &RecordKey, value: Option<Vec<u8>>| {
        let write = TableWrite { object: *object, key: key.clone(), value };
        store.stage(vec![write]).unwrap();
        store.publish().unwrap();
        touched.insert((*object, key.clone()));
    };
    for _ in 0..rng.usize(1..6) {
        let all = records(store);
        // Rare kinds of records are damaged as often as frequent ones.
        let kind = |(object, key): &RecordKey| match object.kind {
            ObjectKind::Inodes => key.first().copied().unwrap_or(0),
            kind => kind as u8,
        };
        let kinds: BTreeSet<u8> = all.keys().map(kind).collect();
        let Some(wanted) = rng.choice(kinds) else { continue };
        let of_kind: Vec<_> = all.iter().filter(|(key, _)| kind(key) == wanted).collect();
        let (key, value) = rng.choice(of_kind).unwrap();
        let (other, other_value) = rng.choice(&all).unwrap();
        let mut value = value.clone();
        match rng.u8(0..9) {
            0 => put(key, None),
            1 | 2 if !value.is_empty() => {
                for _ in 0..rng.usize(1..4) {
                    let at = rng.usize(..value.len());
                    value[at] ^= 1 << rng.u8(0..8);
                }
                put(key, Some(value));
            }
            3 => {
                value.truncate(rng.usize(..=value.len()));
                put(key, Some(value));
            }
            4 => {
                put(other, Some(value));
                put(key, Some(other_value.clone()));
            }
            5 => put(other, Some(value)),
            6 => {
                let (mut object, mut text) = (key.0.to_bytes(), key.1.clone());
                let at = rng.usize(..object.len() + text.len());
                *object.iter_mut().chain(&mut text).nth(at).unwrap() ^= 1 << rng.u8(0..8);
                if let Some(object) = ObjectId::from_bytes(object) {
                    put(&(object, text), Some(value));
                    if rng.bool() {
                        put(key, None);
                    }
                }
            }
            7 => {
                let all = store.streams().unwrap();
                if let Some(ino) = rng.choice(all) {
                    store.stream_remove(ino).unwrap();
                    streams.insert(ino);
                }
            }
            _ => {
                let ino = Ino(rng.u64(1..80));
                store.stream_write(ino, 0, b"stray").unwrap();
                store.stream_sync(ino).unwrap();
                streams.insert(ino);
            }
        }
    }
    (touched, streams)
}

/// The inode that a record claims to be, and the one that its key or name refers to.
pub fn speaks_of((object, key): &RecordKey, value: &[u8]) -> (Option<Ino>, Option<Ino>) {
    match object.kind {
        ObjectKind::Super => (None, None),
        ObjectKind::Fragment => match decode::<Dentry>(value) {
            Ok(Dentry::Primary(inode)) => (Some(inode.ino), Some(inode.ino)),
            Ok(Dentry::Remote(remote)) => (None, Some(remote.ino)),
            Err(_) => (None, None),
        },
        _ => {
            let inode = decode::<Inode>(value).ok().map(|inode| inode.ino);
            (inode, InoRecord::from_key(key).map(|(_, ino)| ino).or(inode))
        }
    }
}

/// A name in the tree.
struct Seen {
    dir: Ino,
    name: Name,
    ino: Ino,
    /// The directories on the way to it.
    above: Vec<Ino>,
    bytes: Option<Vec<u8>>,
}

/// Everything that is reachable, by path.
fn look(fs: &mut Harness) -> BTreeMap<Vec<Name>, Seen> {
    let mut seen = BTreeMap::new();
    let mut ahead = vec![(Ino::ROOT, Vec::new(), Vec::new())];
    while let Some((dir, path, above)) = ahead.pop() {
        for entry in fs.list(dir, true) {
            let Attr { ino, kind, .. } = entry.entry.unwrap().attr;
            let bytes = (kind == FileType::Regular).then(|| fs.read(ino));
            fs.ask(Request::ListXattr { ino }).unwrap();
            let path = [path.as_slice(), std::slice::from_ref(&entry.name)].concat();
            if kind == FileType::Directory {
                ahead.push((ino, path.clone(), [above.as_slice(), &[ino]].concat()));
            }
            seen.insert(path, Seen { dir, name: entry.name, ino, above: above.clone(), bytes });
        }
    }
    seen
}

fn repair_of_random_damage(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut fs = grown(&mut rng);
    let expected = look(&mut fs);
    let mut disk: TestDisk = fs.disk.crash();
    disk.forget_journal();
    let before = records(disk.store());
    let clean = plan(disk.store());
    assert_eq!(clean, Repaired::default(), "seed {seed}: nothing is wrong");

    let (touched, streams) = damage(&mut rng, disk.store());
    let found = disk.check(&config());
    let damaged = records(disk.store());
    let mut repaired = plan(disk.store());
    assert!(found.is_empty() || repaired != Repaired::default(), "seed {seed}: {found:?}");
    if rng.bool() {
        // A power failure before the writes are durable.
        carry_out(disk.store(), &repaired, false);
        disk = disk.crash();
        repaired = plan(disk.store());
    }
    carry_out(disk.store(), &repaired, true);
    assert_eq!(disk.check(&config()), [], "seed {seed}: {repaired:#?}");
    let again = plan(disk.store());
    assert_eq!(again, Repaired::default(), "seed {seed}: the second repair has nothing to do");

    let mut fs = Harness::recover(disk, config());
    let left = look(&mut fs);
    let mut changed = streams.clone();
    let mut blocked = BTreeSet::new();
    let has_trash = before.iter().any(|((object, _), value)| {
        object.kind == ObjectKind::Orphans && decode::<Inode>(value).is_ok_and(|inode| inode.is_dir())
    });
    for key in &touched {
        let (old, new) = (before.get(key), damaged.get(key));
        changed.extend(
            InoRecord::from_key(&key.1).map(|(_, ino)| ino).filter(|_| key.0.kind == ObjectKind::Inodes),
        );
        changed.extend(old.and_then(|value| speaks_of(key, value).1));
        blocked.extend(new.and_then(|value| speaks_of(key, value).0));
    }
    for (path, Seen { ino, above, bytes, .. }) in expected {
        if changed.contains(&ino) {
            continue;
        }
        // Another record may be of the same inode and as consistent; then one of the two remains.
        let in_doubt = blocked.contains(&ino);
        let same_way = above.iter().all(|dir| !changed.contains(dir) && !blocked.contains(dir));
        let there = match same_way && !in_doubt {
            true => left.get(&path).filter(|seen| seen.ino == ino),
            false => left.values().find(|seen| seen.ino == ino),
        };
        // A directory that was swapped with one in a removed tree is freed with everything below
        // it.
        let may_be_freed = has_trash && !same_way;
        let Some(there) = there else {
            assert!(may_be_freed, "seed {seed}: {path:?} ({ino}): {repaired:#?}");
            continue;
        };
        assert!(there.bytes == bytes || in_doubt, "seed {seed}: {path:?}: {:?}, not {bytes:?}", there.bytes);
    }
    // The repaired file system works.
    let ino = fs.create(Ino::ROOT, "made afterwards", NewNode::Regular).unwrap();
    fs.write(ino, 0, b"something").unwrap();
    for Seen { dir, name, .. } in left.into_values().rev() {
        let removed = fs.ask(Request::Unlink { dir, name: name.clone(), time: None });
        if removed == Err(Errno::EISDIR) {
            fs.ask(Request::RmDir { dir, name, time: None }).unwrap();
        } else {
            removed.unwrap();
        }
    }
    assert_eq!(fs.fsck(), [], "seed {seed}");
}

#[test]
fn missing_wrong_and_stale_inode_locations_are_repaired() {
    let mut fs = Harness::with(config());
    let (file, gone) = (fs.file("file", b"bytes"), fs.file("gone", b""));
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("gone"), time: None }).unwrap();
    fs.send(&ROOT_CALLER, Request::Forget { ino: gone, lookups: u64::MAX });
    fs.checkpoint();
    let mut disk = fs.disk.crash();
    disk.forget_journal();
    let before = records(disk.store());
    let right = before.get(&InoRecord::Place.place(file)).cloned();
    assert!(right.is_some());
    for (ino, value) in [(file, None), (file, Some(vec![1, 5])), (gone, right)] {
        let (object, key) = InoRecord::Place.place(ino);
        disk.store().stage(vec![TableWrite { object, key, value }]).unwrap();
        disk.store().publish().unwrap();
        assert_ne!(disk.check(&config()), []);
        let repaired = plan(disk.store());
        carry_out(disk.store(), &repaired, true);
        assert_eq!(disk.check(&config()), []);
        assert_eq!(records(disk.store()), before);
    }
}

/// Their clients may have acknowledged files under these numbers.
#[test]
fn inode_numbers_of_clients_are_not_reused() {
    let mut fs = Harness::with(Config { session_ms: Some(10_000), ..config() });
    fs.input(Input::Connect { client: ClientId(1), leases: false, resumes: false });
    let taken = fs.ask(Request::TakeNumbers { rank: Rank(0), count: 256 });
    let Ok(Reply::Numbers { first, count, .. }) = taken else { panic!("{taken:?}") };
    fs.checkpoint();
    let (object, key) = (ObjectId::SUPER, Vec::new());
    fs.disk.store().stage(vec![TableWrite { object, key, value: None }]).unwrap();
    fs.disk.store().publish().unwrap();
    let plan = plan(fs.disk.store());
    let record = plan.writes.iter().find(|write| write.object == object).unwrap();
    let next_ino = Super::parse(record.value.as_ref().unwrap()).unwrap().next_ino;
    assert_eq!(next_ino, first.0 + u64::from(count));
}

#[test]
fn repair_preserves_undamaged_rest() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let first = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        repair_of_random_damage(seed);
    }
}
