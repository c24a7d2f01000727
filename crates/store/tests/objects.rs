//! The store in objects: crashes, faults, shards, leases and the journal. `suite.rs` has the
//! contract that all stores share.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use espalier_proto::{Errno, Ino, ObjectId, Position, Rank, TableWrite};
use espalier_store::engine::ObjectOp;
use espalier_store::{
    Engine, FormatError, FormatOptions, Journal, MemoryEngine, ObjectFile, ObjectOptions, ObjectStore,
    RankLease, Store, StoreError, Superblock, SuperblockError, break_lease, format_objects, lease_holder,
    read_superblock, replace_objects_journal,
};

const TERM: Duration = Duration::from_secs(60);

type OpenedRank = (ObjectStore<MemoryEngine>, Journal<ObjectFile<MemoryEngine>>);

fn format(engine: &Arc<MemoryEngine>) -> Superblock {
    let options = FormatOptions { journal_bytes: 1 << 20, ..FormatOptions::default() };
    format_objects(engine, "test", &options).unwrap()
}

fn open(engine: &Arc<MemoryEngine>) -> Result<OpenedRank, StoreError> {
    let superblock = read_superblock(engine.as_ref(), "test")?;
    let lease = RankLease::acquire(engine, Rank(0), TERM)?;
    ObjectStore::open(engine, &superblock, lease, ObjectOptions::default())
}

fn new() -> (Arc<MemoryEngine>, ObjectStore<MemoryEngine>) {
    let engine = Arc::new(MemoryEngine::new());
    format(&engine);
    let (store, _) = open(&engine).unwrap();
    (engine, store)
}

/// What a new process finds after a crash of all clients.
fn after_crash(engine: &MemoryEngine) -> Arc<MemoryEngine> {
    Arc::new(engine.snapshot())
}

fn write(n: u64, value: Option<&[u8]>) -> TableWrite {
    let object = ObjectId::fragment(Ino(n % 7), 0);
    TableWrite { object, key: n.to_be_bytes().to_vec(), value: value.map(<[u8]>::to_vec) }
}

type AllRecords = BTreeMap<(ObjectId, Vec<u8>), Vec<u8>>;

fn all(store: &impl Store) -> AllRecords {
    store.records().map(|record| record.map(|(object, key, value)| ((object, key), value)).unwrap()).collect()
}

/// Numbers of records of a checkpoint that needs a redo record: more than one compound write holds.
const MANY: u64 = 10_500;

fn stage_first(store: &impl Store) {
    store.stage((0..MANY).map(|n| write(n, Some(b"first"))).collect()).unwrap();
}

fn stage_second(store: &impl Store) {
    store.stage((0..MANY).map(|n| write(n, (n % 3 > 0).then_some(b"second"))).collect()).unwrap();
    store.stage(vec![write(MANY, Some(b""))]).unwrap();
}

#[test]
fn checkpoint_is_atomic_at_every_crash() {
    let (base, store) = new();
    stage_first(&store);
    store.publish().unwrap();
    let before = all(&store);
    stage_second(&store);
    let after = all(&store);
    drop(store);
    let mut published = [0, 0];
    for crash in 0.. {
        let engine = after_crash(&base);
        let (store, _) = open(&engine).unwrap();
        stage_second(&store);
        engine.fail_after(Some(crash));
        let outcome = store.publish();
        let found = all(&open(&after_crash(&engine)).unwrap().0);
        assert!(found == before || found == after, "crash at operation {crash}");
        assert!(outcome.is_err() || found == after);
        published[usize::from(found == after)] += 1;
        if outcome.is_ok() {
            break;
        }
    }
    // The redo record, its commit, and the batches.
    assert!(published[0] >= 2 && published[1] >= 3, "{published:?}");
}

#[test]
fn recovery_survives_every_crash() {
    // The redo record is committed, and half of it applied.
    let (interrupted, expected) = interrupted();
    for crash in 0.. {
        let engine = after_crash(&interrupted);
        engine.fail_after(Some(crash));
        let applied = open(&engine).and_then(|(store, _)| store.publish());
        assert_eq!(all(&open(&after_crash(&engine)).unwrap().0), expected, "crash at operation {crash}");
        if applied.is_ok() {
            break;
        }
    }
    let engine = after_crash(&interrupted);
    let operations = engine.operations();
    let (_opened, _) = open(&engine).unwrap();
    assert!(engine.operations() - operations < 20, "opening applies nothing");
    let superblock = read_superblock(interrupted.as_ref(), "test").unwrap();
    let lease = RankLease::acquire(&interrupted, Rank(0), TERM).unwrap();
    let operations = interrupted.operations();
    let read_only = ObjectOptions { read_only: true, ..ObjectOptions::default() };
    let (reader, _) = ObjectStore::open(&interrupted, &superblock, lease, read_only).unwrap();
    assert_eq!(all(&reader), expected, "a reader applies it in memory");
    assert!(interrupted.operations() - operations < 100);
    assert_eq!(reader.publish().unwrap_err().errno(), Errno::EROFS);
}

/// An engine after a crash in a checkpoint that is half applied, and its records.
fn interrupted() -> (Arc<MemoryEngine>, AllRecords) {
    let (engine, store) = new();
    stage_first(&store);
    store.publish().unwrap();
    stage_second(&store);
    let expected = all(&store);
    engine.fail_after(Some(4));
    assert!(store.publish().is_err());
    (after_crash(&engine), expected)
}

#[test]
fn checkpoint_after_an_interrupted_one_is_atomic_at_every_crash() {
    let (interrupted, before) = interrupted();
    for count in [1, MANY] {
        // Records that the interrupted checkpoint has changed, too.
        let writes = || (0..count).map(|n| write(n, Some(b"third"))).collect::<Vec<_>>();
        let mut after = before.clone();
        after.extend(writes().into_iter().map(|write| ((write.object, write.key), write.value.unwrap())));
        let mut published = [0, 0];
        for crash in 0.. {
            let engine = after_crash(&interrupted);
            let (store, _) = open(&engine).unwrap();
            engine.fail_after(Some(crash));
            let outcome = store.stage(writes()).and_then(|()| store.publish());
            let found = all(&open(&after_crash(&engine)).unwrap().0);
            assert!(found == before || found == after, "crash at operation {crash} with {count} records");
            assert!(outcome.is_err() || found == after);
            published[usize::from(found == after)] += 1;
            if outcome.is_ok() {
                break;
            }
        }
        assert!(published[0] >= 2 && published[1] >= 1, "{published:?}");
    }
}

#[test]
fn checkpoint_is_repeated_after_any_fault() {
    for fault in 0.. {
        let (engine, store) = new();
        stage_first(&store);
        store.publish().unwrap();
        stage_second(&store);
        let expected = all(&store);
        engine.fail_once_after(fault);
        let outcome = store.publish();
        assert_eq!(all(&store), expected, "staged changes stay after fault {fault}");
        store.stage(vec![write(1, Some(b"later"))]).unwrap();
        store.publish().unwrap();
        let found = open(&after_crash(&engine)).unwrap().0;
        let TableWrite { object, key, .. } = write(1, None);
        assert_eq!(found.get(object, &key).unwrap().unwrap(), b"later");
        assert_eq!(all(&found).len(), expected.len());
        if outcome.is_ok() {
            break;
        }
    }
}

#[test]
fn full_pool_is_reported_and_nothing_is_lost() {
    let (engine, store) = new();
    stage_first(&store);
    engine.set_full(true);
    assert_eq!(store.publish().unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(store.stream_write(Ino(5), 0, b"x").unwrap_err().errno(), Errno::ENOSPC);
    engine.set_full(false);
    store.publish().unwrap();
    assert_eq!(all(&open(&after_crash(&engine)).unwrap().0).len(), MANY as usize);
}

/// Number of keys in each shard.
fn shards(engine: &MemoryEngine) -> Vec<usize> {
    let names = engine.list("0.t.").unwrap();
    names.iter().map(|name| engine.page(name, Bound::Unbounded, usize::MAX).unwrap().pairs.len()).collect()
}

#[test]
fn shards_are_split_before_they_are_too_large() {
    let (engine, store) = new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut numbers: Vec<u64> = (0..240_000).collect();
    random.shuffle(&mut numbers);
    for (round, part) in numbers.chunks(60_000).enumerate() {
        store.stage(part.iter().map(|n| write(*n, Some(b"value"))).collect()).unwrap();
        store.publish().unwrap();
        let found = shards(&engine);
        assert!(found.iter().all(|keys| *keys <= 100_000), "{found:?}");
        assert_eq!(found.iter().sum::<usize>(), 60_000 * (round + 1), "no key is left over");
    }
    assert!(shards(&engine).len() >= 3, "{:?}", shards(&engine));
    // Writes of existing keys split nothing.
    for _ in 0..3 {
        store.stage(numbers[..60_000].iter().map(|n| write(*n, Some(b"other"))).collect()).unwrap();
        store.publish().unwrap();
    }
    assert!(shards(&engine).len() <= 6, "{:?}", shards(&engine));
    let found = open(&after_crash(&engine)).unwrap().0;
    assert_eq!(all(&found).len(), 240_000);
    for n in 0..7 {
        let object = ObjectId::fragment(Ino(n), 0);
        let keys = found.scan(object, Bound::Unbounded, usize::MAX).unwrap();
        assert!(keys.len() >= 240_000 / 7 && keys.is_sorted());
    }
}

#[test]
fn split_survives_every_crash() {
    let (base, store) = new();
    store.stage((0..95_000).map(|n| write(n, Some(b"old"))).collect()).unwrap();
    store.publish().unwrap();
    let before = all(&store);
    drop(store);
    let stage = |store: &ObjectStore<MemoryEngine>| {
        store.stage((95_000..105_000).map(|n| write(n, Some(b"new"))).collect()).unwrap();
    };
    let operations = {
        let engine = after_crash(&base);
        let (store, _) = open(&engine).unwrap();
        stage(&store);
        let before = engine.operations();
        store.publish().unwrap();
        assert_eq!(shards(&engine).len(), 3);
        engine.operations() - before
    };
    // Copying takes most operations, and differs little from one to the next.
    for crash in (0..operations).filter(|crash| crash % 29 == 0 || operations - crash < 12) {
        let engine = after_crash(&base);
        let (store, _) = open(&engine).unwrap();
        stage(&store);
        engine.fail_after(Some(crash));
        let outcome = store.publish();
        let again = after_crash(&engine);
        let (store, _) = open(&again).unwrap();
        let found = all(&store);
        assert!(found == before || found.len() == 105_000, "crash at operation {crash}");
        assert!(outcome.is_err() || found.len() == 105_000, "crash at operation {crash}");
        stage(&store);
        store.publish().unwrap();
        assert_eq!(all(&store).len(), 105_000);
        assert_eq!(shards(&again).iter().sum::<usize>(), 105_000, "crash at operation {crash}");
    }
}

#[test]
fn a_process_that_was_replaced_changes_nothing() {
    let (engine, store) = new();
    stage_first(&store);
    let other = Arc::new(engine.client());
    assert!(matches!(open(&other), Err(StoreError::HeldBy { .. })));
    engine.skip(TERM);
    let (successor, _) = open(&other).unwrap();
    assert!(store.publish().is_err() && store.stream_write(Ino(5), 0, b"x").is_err());
    assert_eq!(all(&successor).len(), 0);
    successor.stage(vec![write(1, Some(b"1"))]).unwrap();
    successor.publish().unwrap();
    drop(successor);
    assert_eq!(lease_holder(other.as_ref(), Rank(0)).unwrap(), None, "it was released");
    drop(store);
    assert_eq!(all(&open(&other).unwrap().0).len(), 1);
}

#[test]
fn released_lease_needs_no_fencing() {
    let engine = Arc::new(MemoryEngine::new());
    let lease = RankLease::acquire(&engine, Rank(3), TERM).unwrap();
    assert!(lease.is_held() && lease.rank() == Rank(3));
    let holder = lease_holder(engine.as_ref(), Rank(3)).unwrap().unwrap();
    assert!(holder.description.contains(&std::process::id().to_string()));
    let other = Arc::new(engine.client());
    let Err(StoreError::HeldBy { holder: named, .. }) = RankLease::acquire(&other, Rank(3), TERM) else {
        panic!("a lease has one holder");
    };
    assert_eq!(named, holder.description);
    drop(lease);
    let _lease = RankLease::acquire(&other, Rank(3), TERM).unwrap();
    engine.stat("0.lock").unwrap_err();
    assert!(engine.stat("3.lock").is_ok(), "the first client is not fenced");
}

#[test]
fn lease_is_renewed_and_ends_without_renewal() {
    let engine = Arc::new(MemoryEngine::new());
    let lease = RankLease::acquire(&engine, Rank(0), Duration::from_millis(400)).unwrap();
    std::thread::sleep(Duration::from_millis(1000));
    assert!(lease.is_held());
    engine.fail_after(Some(0));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!lease.is_held());
}

#[test]
fn only_lease_of_fenced_client_is_broken() {
    let engine = Arc::new(MemoryEngine::new());
    let ended = Arc::new(engine.client());
    let lease = RankLease::acquire_for(&ended, Rank(1), TERM).unwrap();
    assert!(lease.is_held());
    ended.end_after(0);
    drop(lease);
    assert!(lease_holder(engine.as_ref(), Rank(1)).unwrap().is_some(), "its process could not release it");
    break_lease(engine.as_ref(), Rank(1), &["another".into()]).unwrap();
    assert!(matches!(RankLease::acquire_for(&engine, Rank(1), TERM), Err(StoreError::HeldBy { .. })));
    engine.fence(&ended.address()).unwrap();
    break_lease(engine.as_ref(), Rank(1), &[ended.address()]).unwrap();
    assert!(RankLease::acquire_for(&engine, Rank(1), TERM).unwrap().is_held());
}

#[test]
fn client_that_ends_writes_no_more() {
    let engine = Arc::new(MemoryEngine::new());
    let ending = engine.client();
    let append = |client: &MemoryEngine| client.apply("object", vec![ObjectOp::Append(b"1".to_vec())]);
    ending.end_after(1);
    append(&ending).unwrap();
    append(&ending).unwrap_err();
    append(&engine).unwrap();
    assert_eq!(engine.read("object", 0, 10).unwrap(), b"11");
}

#[test]
fn journal_in_objects_survives_reopening() {
    let (engine, _store) = new();
    let superblock = read_superblock(engine.as_ref(), "test").unwrap();
    drop(_store);
    let (store, mut journal) = open(&engine).unwrap();
    assert_eq!(journal.capacity(), superblock.journal_bytes);
    journal.replay(Position(0), |_, _| panic!("it is empty")).unwrap();
    let frame = |n: u32| vec![n as u8; 1000 + n as usize];
    // Longer than the ring.
    for n in 0..1500 {
        journal.append(&frame(n)).unwrap();
        if n % 10 == 9 {
            let durable = journal.sync().unwrap();
            journal.trim(if n < 1400 { durable } else { Position(0) });
        }
    }
    let from = journal.sync().unwrap().0 - journal.used();
    drop((store, journal));
    let (_store, mut journal) = open(&after_crash(&engine)).unwrap();
    let mut next = 1400;
    journal
        .replay(Position(from), |_, payload| {
            assert_eq!(payload, frame(next));
            next += 1;
        })
        .unwrap();
    assert_eq!(next, 1500);
}

#[test]
fn failed_write_of_the_journal_fails_the_sync() {
    let (engine, store) = new();
    drop(store);
    let (_store, mut journal) = open(&engine).unwrap();
    journal.replay(Position(0), |_, _| ()).unwrap();
    journal.append(b"1").unwrap();
    journal.sync().unwrap();
    engine.fail_once_after(0);
    journal.append(b"2").unwrap();
    assert!(journal.sync().is_err());
    assert!(journal.append(b"3").is_err(), "what is on disk is unknown");
}

#[test]
fn cut_bytes_of_a_stream_stay_away() {
    const CHUNK: u64 = 4 << 20;
    let (engine, store) = new();
    store.stream_write(Ino(5), 0, b"first").unwrap();
    store.stream_write(Ino(5), 3 * CHUNK - 2, b"last").unwrap();
    let crashed = after_crash(&engine);
    let (store, _) = open(&crashed).unwrap();
    assert_eq!(store.stream_stat(Ino(5)).unwrap().size, 3 * CHUNK + 2);
    store.stream_truncate(Ino(5), 2).unwrap();
    store.stream_truncate(Ino(5), 4 * CHUNK).unwrap();
    let mut bytes = vec![9; 4 * CHUNK as usize];
    assert_eq!(store.stream_read(Ino(5), 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.starts_with(b"fi") && bytes[2..].iter().all(|byte| *byte == 0));
    assert_eq!(store.stream_stat(Ino(5)).unwrap().blocks, CHUNK / 512, "the rest is a hole");
    store.stream_remove(Ino(5)).unwrap();
    store.sync_removed_streams().unwrap();
    assert_eq!(crashed.list("0.s.").unwrap(), Vec::<String>::new(), "no object is left");
}

#[test]
fn failed_write_of_a_stream_fails_its_sync() {
    let (engine, store) = new();
    store.stream_write(Ino(5), 0, b"first").unwrap();
    store.stream_sync(Ino(5)).unwrap();
    engine.fail_once_after(0);
    store.stream_write(Ino(5), 5, b"second").unwrap();
    assert!(store.stream_sync(Ino(5)).is_err());
    store.stream_sync(Ino(5)).unwrap();
}

#[test]
fn namespace_in_use_is_not_formatted() {
    let engine = Arc::new(MemoryEngine::new());
    let options = FormatOptions { journal_bytes: 1 << 20, ..FormatOptions::default() };
    let read = |engine: &Arc<MemoryEngine>| read_superblock(engine.as_ref(), "test");
    assert!(matches!(read(&engine), Err(StoreError::Superblock(SuperblockError::NoStore(_)))));
    let made = format(&engine);
    assert_eq!(read(&engine).unwrap(), made);
    assert!(matches!(format_objects(&engine, "test", &options), Err(FormatError::Exists(_))));
    let forced = FormatOptions { force: true, ..options.clone() };
    let (store, _) = open(&engine).unwrap();
    let refused = format_objects(&engine, "test", &forced).unwrap_err();
    assert!(matches!(refused, FormatError::Store(StoreError::HeldBy { .. })), "{refused}");
    store.stage(vec![write(1, Some(b"1"))]).unwrap();
    store.publish().unwrap();
    drop(store);
    let replaced = format_objects(&engine, "test", &forced).unwrap();
    assert_ne!(replaced.uuid, made.uuid);
    assert_eq!(all(&open(&engine).unwrap().0).len(), 0);
    engine.apply("foreign", vec![ObjectOp::WriteFull(b"x".to_vec())]).unwrap();
    assert!(matches!(format_objects(&engine, "test", &forced), Err(FormatError::NotEmpty(_))));
}

#[test]
fn damaged_and_newer_superblocks_are_refused() {
    let (engine, store) = new();
    drop(store);
    let text = engine.read("superblock", 0, 4096).unwrap();
    let replace = |bytes: Vec<u8>| engine.apply("superblock", vec![ObjectOp::WriteFull(bytes)]).unwrap();
    let refused = || read_superblock(engine.as_ref(), "test").unwrap_err().to_string();
    replace(text[..text.len() / 2].to_vec());
    assert!(refused().contains("damaged"), "{}", refused());
    replace(b"another program's".to_vec());
    assert!(refused().contains("not an Espalier store"), "{}", refused());
    replace(text);
    engine.apply("0.head", vec![ObjectOp::Remove]).unwrap();
    let missing = open(&engine).map(drop).unwrap_err().to_string();
    assert!(missing.contains("0.head is missing"), "{missing}");
}

#[test]
fn a_journal_is_overwritten_after_its_copy_is_durable() {
    let (engine, store) = new();
    drop(store);
    let frames = || {
        let (_store, mut journal) = open(&engine).unwrap();
        let mut frames = Vec::new();
        journal.replay(Position(0), |_, frame| frames.push(frame.to_vec())).unwrap();
        frames
    };
    let (_store, mut journal) = open(&engine).unwrap();
    journal.replay(Position(0), |_, _| ()).unwrap();
    journal.forget_torn().unwrap();
    journal.append(b"event").unwrap();
    journal.sync().unwrap();
    drop((_store, journal));
    let superblock = read_superblock(engine.as_ref(), "test").unwrap();
    let mut old = Vec::new();
    let full = || Err(std::io::ErrorKind::StorageFull.into());
    assert!(replace_objects_journal(&engine, &superblock, Rank(0), &mut old, full).is_err());
    assert!(old.windows(5).any(|bytes| bytes == b"event"));
    assert_eq!(frames(), [b"event"]);
    replace_objects_journal(&engine, &superblock, Rank(0), &mut Vec::new(), || Ok(())).unwrap();
    assert!(frames().is_empty());
}
