//! The contract of `Store`. Each test runs on all engines.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Bound;

use espalier_proto::{AllocateMode, END, Errno, Ino, ObjectId, TableWrite, Time};
use std::sync::Arc;
use std::time::Duration;

use espalier_proto::Rank;
use espalier_store::engine::MemoryPoolKind;
use espalier_store::{
    Engine, FormatOptions, LocalOptions, LocalStore, MemoryEngine, MemoryStore, ObjectOptions, ObjectStore,
    Rados, RadosAddress, RankLease, SeekWhat, Store, StreamStat, format_objects, superblock,
};

macro_rules! on_every_engine {
    ($($test:ident)*) => {
        mod memory { $(#[test] fn $test() { super::$test(&super::MemoryStore::new()); })* }
        mod local { $(#[test] fn $test() { super::on_local(super::$test); })* }
        mod objects { $(#[test] fn $test() { super::on_objects(super::$test); })* }
        mod data_pool { $(#[test] fn $test() { super::on_data_pool(super::$test); })* }
        mod rados { $(#[test] fn $test() { super::on_rados(stringify!($test), None, super::$test); })* }
        mod rados_data_pool { $(#[test] fn $test() {
            let Ok(pool) = std::env::var("ESPALIER_TEST_DATA_POOL") else { return };
            super::on_rados(stringify!($test), Some(pool), super::$test);
        })* }
    };
}

on_every_engine! {
    a_published_record_is_read
    staged_records_count_before_they_are_published
    scans_stay_within_their_object
    scans_respect_their_bounds
    records_come_in_order
    random_checkpoints_match_a_model
    an_absent_stream_is_empty
    bytes_come_back
    truncation_cuts_and_extends
    allocation_and_holes
    copies
    times_are_set
    new_streams_are_listed_until_finalised
    removed_streams_are_gone
    offsets_beyond_the_end_of_the_world
    threads_use_it_at_once
}

/// Keeps few files open, so that files are closed and reopened constantly.
fn on_local(test: fn(&LocalStore)) {
    let dir = tempfile::tempdir().unwrap();
    let options = FormatOptions { journal_bytes: 1 << 20, ..FormatOptions::default() };
    superblock::format(dir.path(), &options).unwrap();
    let options = LocalOptions { open_files: 1, ..LocalOptions::default() };
    test(&LocalStore::open_with(dir.path(), options).unwrap().0);
}

/// A new store in objects.
fn objects<E: Engine>(engine: E, data_pool: Option<String>) -> ObjectStore<E> {
    let engine = Arc::new(engine);
    let options = FormatOptions { journal_bytes: 1 << 20, data_pool, ..FormatOptions::default() };
    let superblock = format_objects(&engine, "test", &options).unwrap();
    let lease = RankLease::acquire(&engine, Rank(0), Duration::from_secs(60)).unwrap();
    ObjectStore::open(&engine, &superblock, lease, ObjectOptions::default()).unwrap().0
}

fn on_objects(test: fn(&ObjectStore<MemoryEngine>)) {
    test(&objects(MemoryEngine::new(), None));
}

fn on_data_pool(test: fn(&ObjectStore<MemoryEngine>)) {
    let engine = MemoryEngine::new();
    engine.add_pool("data", MemoryPoolKind::ErasureCoded);
    test(&objects(engine, Some("data".into())));
}

/// Skipped unless the environment names a cluster with `CEPH_CONF`, and pools for tests: with
/// `ESPALIER_TEST_POOL`, and with `ESPALIER_TEST_DATA_POOL` that of big files.
fn on_rados(name: &str, data_pool: Option<String>, test: fn(&ObjectStore<Rados>)) {
    let (true, Ok(pool)) = (std::env::var_os("CEPH_CONF").is_some(), std::env::var("ESPALIER_TEST_POOL"))
    else {
        return;
    };
    let namespace = format!("{name}-{:016x}", fastrand::u64(..));
    let address = RadosAddress { pool, namespace, conf: None, user: "admin".into() };
    test(&objects(Rados::connect(&address).unwrap(), data_pool));
}

fn put(object: ObjectId, key: &[u8], value: &[u8]) -> TableWrite {
    TableWrite { object, key: key.to_vec(), value: Some(value.to_vec()) }
}

fn remove(object: ObjectId, key: &[u8]) -> TableWrite {
    TableWrite { object, key: key.to_vec(), value: None }
}

fn dir(ino: u64) -> ObjectId {
    ObjectId::fragment(Ino(ino), 0)
}

fn all(store: &impl Store) -> Vec<(ObjectId, Vec<u8>, Vec<u8>)> {
    store.records().collect::<Result<_, _>>().unwrap()
}

fn contents(store: &impl Store, ino: Ino) -> Vec<u8> {
    let mut buf = vec![0xee; store.stream_stat(ino).unwrap().size as usize + 10];
    let read = store.stream_read(ino, 0, &mut buf).unwrap();
    buf.truncate(read);
    buf
}

fn a_published_record_is_read(store: &impl Store) {
    assert_eq!(store.get(dir(1), b"a").unwrap(), None);
    store.publish().unwrap();
    store
        .stage(vec![put(dir(1), b"a", b"1"), put(dir(1), b"", b""), put(ObjectId::SUPER, b"", b"s")])
        .unwrap();
    store.publish().unwrap();
    assert_eq!(store.get(dir(1), b"a").unwrap().unwrap(), b"1");
    assert_eq!(store.get(dir(1), b"").unwrap().unwrap(), b"");
    assert_eq!(store.get(ObjectId::SUPER, b"").unwrap().unwrap(), b"s");
    store.stage(vec![remove(dir(1), b"a"), remove(dir(1), b"absent")]).unwrap();
    store.publish().unwrap();
    assert_eq!(store.get(dir(1), b"a").unwrap(), None);
}

fn staged_records_count_before_they_are_published(store: &impl Store) {
    store.stage(vec![put(dir(1), b"a", b"1"), put(dir(1), b"b", b"1")]).unwrap();
    store.publish().unwrap();
    // The last of several writes of a key wins.
    store.stage(vec![put(dir(1), b"a", b"2"), put(dir(1), b"a", b"3"), remove(dir(1), b"b")]).unwrap();
    assert_eq!(store.get(dir(1), b"a").unwrap().unwrap(), b"3");
    assert_eq!(store.get(dir(1), b"b").unwrap(), None);
    assert_eq!(store.scan(dir(1), Bound::Unbounded, 9).unwrap(), [(b"a".to_vec(), b"3".to_vec())]);
    assert_eq!(all(store).len(), 1);
}

fn scans_stay_within_their_object(store: &impl Store) {
    let last = ObjectId { id: u64::MAX, part: u32::MAX, ..ObjectId::ORPHANS };
    let (first_part, second_part) = (ObjectId::fragment(Ino(7), 0), ObjectId::fragment(Ino(7), u32::MAX));
    for object in [dir(6), first_part, second_part, dir(8), last] {
        store.stage(vec![put(object, b"", b"x"), put(object, &[0xff; 20], b"y")]).unwrap();
    }
    for object in [dir(6), first_part, second_part, dir(8), last] {
        assert_eq!(store.scan(object, Bound::Unbounded, usize::MAX).unwrap().len(), 2, "{object:?}");
    }
}

fn scans_respect_their_bounds(store: &impl Store) {
    let keys = [b"a", b"b", b"d"];
    store.stage(keys.iter().map(|&key| put(dir(1), key, b"x")).collect()).unwrap();
    let scan = |from: Bound<&[u8]>, limit| -> Vec<u8> {
        store.scan(dir(1), from, limit).unwrap().into_iter().flat_map(|(key, _)| key).collect()
    };
    assert_eq!(scan(Bound::Included(b"b"), 9), b"bd");
    assert_eq!(scan(Bound::Excluded(b"b"), 9), b"d");
    assert_eq!(scan(Bound::Included(b"c"), 9), b"d");
    assert_eq!(scan(Bound::Excluded(b"d"), 9), b"");
    assert_eq!(scan(Bound::Unbounded, 2), b"ab");
    assert_eq!(scan(Bound::Unbounded, 0), b"");
}

fn records_come_in_order(store: &impl Store) {
    store
        .stage(vec![put(ObjectId::ORPHANS, b"o", b""), put(dir(300), b"x", b""), put(dir(2), b"z", b"")])
        .unwrap();
    store.publish().unwrap();
    store.stage(vec![put(dir(2), b"y", b"1"), put(ObjectId::SUPER, b"", b"")]).unwrap();
    let found: Vec<_> = all(store).into_iter().map(|(object, key, _)| (object, key)).collect();
    let key = |key: &[u8]| key.to_vec();
    let expected = [
        (ObjectId::SUPER, key(b"")),
        (dir(2), key(b"y")),
        (dir(2), key(b"z")),
        (dir(300), key(b"x")),
        (ObjectId::ORPHANS, key(b"o")),
    ];
    assert_eq!(found, expected);
}

fn random_checkpoints_match_a_model(store: &impl Store) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut model = BTreeMap::new();
    for _ in 0..60 {
        for _ in 0..random.u32(0..4) {
            let write = |random: &mut fastrand::Rng| {
                let (object, key) = (dir(random.u64(0..4)), vec![random.u8(0..20); random.usize(0..3)]);
                let value = random.bool().then(|| vec![random.u8(..); random.usize(0..100)]);
                TableWrite { object, key, value }
            };
            let writes: Vec<_> = (0..random.usize(0..50)).map(|_| write(&mut random)).collect();
            for TableWrite { object, key, value } in writes.clone() {
                match value {
                    Some(value) => model.insert((object, key), value),
                    None => model.remove(&(object, key)),
                };
            }
            store.stage(writes).unwrap();
        }
        match random.u8(0..3) {
            0 => store.publish().unwrap(),
            1 => while store.maintain().unwrap() {},
            _ => {}
        }
        let found = all(store).into_iter().map(|(object, key, value)| ((object, key), value));
        assert!(found.eq(model.clone()));
        for ((object, key), value) in &model {
            assert_eq!(store.get(*object, key).unwrap().as_ref(), Some(value));
        }
    }
}

fn an_absent_stream_is_empty(store: &impl Store) {
    let ino = Ino(5);
    assert_eq!(contents(store, ino), b"");
    assert_eq!(store.stream_stat(ino).unwrap(), StreamStat::default());
    assert_eq!(store.stream_seek(ino, 0, SeekWhat::Data).unwrap(), None);
    assert_eq!(store.stream_copy(ino, 0, Ino(6), 0, 10).unwrap(), 0);
    store.stream_sync(ino).unwrap();
    store.stream_remove(ino).unwrap();
    store.stream_finalise(ino).unwrap();
    assert_eq!(store.streams().unwrap(), []);
}

fn bytes_come_back(store: &impl Store) {
    let ino = Ino(0x1_0000_0005);
    store.stream_write(ino, 10, b"hello").unwrap();
    assert_eq!(contents(store, ino), b"\0\0\0\0\0\0\0\0\0\0hello");
    store.stream_write(ino, 12, b"LL").unwrap();
    store.stream_sync(ino).unwrap();
    store.stream_sync(ino).unwrap();
    let mut buf = [0; 3];
    assert_eq!(store.stream_read(ino, 11, &mut buf).unwrap(), 3);
    assert_eq!(&buf, b"eLL");
    assert_eq!(store.stream_read(ino, 15, &mut buf).unwrap(), 0);
    store.stream_write(ino, END, b", and").unwrap();
    store.stream_write(ino, END, b" more").unwrap();
    assert_eq!(contents(store, ino)[10..], *b"heLLo, and more");
    store.stream_truncate(ino, 15).unwrap();
    let big: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    store.stream_write(ino, 4000, &big).unwrap();
    assert_eq!(&contents(store, ino)[4000..], big);
    assert_eq!(store.streams().unwrap(), [ino]);
}

fn truncation_cuts_and_extends(store: &impl Store) {
    let ino = Ino(5);
    store.stream_truncate(ino, 3).unwrap();
    assert_eq!(contents(store, ino), [0; 3]);
    store.stream_write(ino, 0, &[1; 9000]).unwrap();
    store.stream_truncate(ino, 5000).unwrap();
    store.stream_truncate(ino, 9000).unwrap();
    let expected = [vec![1; 5000], vec![0; 4000]].concat();
    assert_eq!(contents(store, ino), expected);
    store.stream_truncate(ino, 1 << 40).unwrap();
    let stat = store.stream_stat(ino).unwrap();
    assert_eq!(stat.size, 1 << 40);
    // Some engines allocate chunks of 4 MiB.
    assert!(stat.blocks <= 8192);
}

fn allocation_and_holes(store: &impl Store) {
    let ino = Ino(5);
    // Objects cannot reserve space, and have holes of whole chunks only.
    let reserves = store.stream_allocate(ino, 0, 1, AllocateMode::KEEP_SIZE).is_ok();
    if !reserves {
        return holes_of_chunks(store);
    }
    store.stream_write(ino, 0, &[1; 65536]).unwrap();
    let (keep, punch, zero) = (AllocateMode::KEEP_SIZE, AllocateMode::PUNCH_HOLE, AllocateMode::ZERO_RANGE);
    store.stream_allocate(ino, 8192, 16384, punch | keep).unwrap();
    assert_eq!(store.stream_seek(ino, 0, SeekWhat::Hole).unwrap(), Some(8192));
    assert_eq!(store.stream_seek(ino, 8192, SeekWhat::Data).unwrap(), Some(24576));
    assert_eq!(store.stream_seek(ino, 9000, SeekWhat::Hole).unwrap(), Some(9000));
    assert_eq!(store.stream_seek(ino, 30000, SeekWhat::Hole).unwrap(), Some(65536));
    assert_eq!(store.stream_seek(ino, 65536, SeekWhat::Hole).unwrap(), None);
    assert_eq!(store.stream_seek(ino, u64::MAX, SeekWhat::Data).unwrap(), None);
    store.stream_allocate(ino, 65536, 100, keep).unwrap();
    assert_eq!(store.stream_stat(ino).unwrap().size, 65536);
    store.stream_allocate(ino, 65536, 100, AllocateMode::empty()).unwrap();
    store.stream_allocate(ino, 1, 100, zero).unwrap();
    let bytes = contents(store, ino);
    assert_eq!(bytes.len(), 65636);
    let ones = bytes.iter().filter(|&&byte| byte == 1).count();
    assert_eq!(ones, 65536 - 16384 - 100);
    let refused = store.stream_allocate(ino, 0, 100, punch).unwrap_err();
    assert_eq!(refused.errno(), Errno::EOPNOTSUPP);
}

fn holes_of_chunks(store: &impl Store) {
    const CHUNK: u64 = 4 << 20;
    let ino = Ino(6);
    store.stream_write(ino, 3 * CHUNK - 1, &[1; 10]).unwrap();
    assert_eq!(store.stream_seek(ino, 0, SeekWhat::Data).unwrap(), Some(2 * CHUNK));
    assert_eq!(store.stream_seek(ino, 5, SeekWhat::Hole).unwrap(), Some(5));
    assert_eq!(store.stream_seek(ino, 3 * CHUNK, SeekWhat::Hole).unwrap(), Some(3 * CHUNK + 9));
    assert_eq!(store.stream_seek(ino, 3 * CHUNK + 9, SeekWhat::Data).unwrap(), None);
    let (keep, punch, zero) = (AllocateMode::KEEP_SIZE, AllocateMode::PUNCH_HOLE, AllocateMode::ZERO_RANGE);
    store.stream_allocate(ino, 3 * CHUNK - 1, 3, punch | keep).unwrap();
    store.stream_allocate(ino, 3 * CHUNK + 8, 100, zero).unwrap();
    let mut tail = [9; 200];
    assert_eq!(store.stream_read(ino, 3 * CHUNK - 1, &mut tail).unwrap(), 109);
    assert_eq!(tail[..10], [0, 0, 0, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(tail[10..109], [0; 99]);
    let refused = store.stream_allocate(ino, 0, 100, punch).unwrap_err();
    assert_eq!(refused.errno(), Errno::EOPNOTSUPP);
}

fn copies(store: &impl Store) {
    let (from, to) = (Ino(5), Ino(6));
    store.stream_write(from, 0, b"0123456789").unwrap();
    assert_eq!(store.stream_copy(from, 2, to, 1, 3).unwrap(), 3);
    assert_eq!(contents(store, to), b"\x00234");
    assert_eq!(store.stream_copy(from, 8, to, 4, 1000).unwrap(), 2);
    assert_eq!(contents(store, to), b"\x0023489");
    assert_eq!(store.stream_copy(from, 10, to, 0, 1000).unwrap(), 0);
    assert_eq!(store.stream_copy(from, 0, from, 20, 10).unwrap(), 10);
    assert_eq!(store.stream_copy(from, 0, from, 40, 1000).unwrap(), 30);
    let overlap = store.stream_copy(from, 0, from, 2, 10).unwrap_err();
    assert_eq!(overlap.errno(), Errno::EINVAL);
}

fn times_are_set(store: &impl Store) {
    let mtime = Time::new(-5, 123_456_789);
    store.stream_write(Ino(5), 0, b"x").unwrap();
    store.stream_set_mtime(Ino(5), mtime).unwrap();
    assert_eq!(store.stream_stat(Ino(5)).unwrap().mtime, mtime);
}

fn new_streams_are_listed_until_finalised(store: &impl Store) {
    let (first, second, third) = (Ino(0x105), Ino(6), Ino(0x205));
    store.stream_write(third, 0, b"never created").unwrap();
    for ino in [first, second] {
        store.stream_create(ino).unwrap();
        store.stream_write(ino, 0, b"old").unwrap();
        store.stream_sync(ino).unwrap();
    }
    assert_eq!(store.new_streams().unwrap(), [second, first]);
    assert_eq!(store.streams().unwrap(), [second, first, third]);
    store.stream_finalise(first).unwrap();
    store.stream_finalise(first).unwrap();
    assert_eq!(store.new_streams().unwrap(), [second]);
    assert_eq!(contents(store, first), b"old");
    store.stream_write(first, 1, b"NEW").unwrap();
    assert_eq!(contents(store, first), b"oNEW");
    // Creating an existing stream changes nothing.
    store.stream_create(second).unwrap();
    assert_eq!((contents(store, second), store.new_streams().unwrap()), (b"old".to_vec(), vec![second]));
    store.stream_create(third).unwrap();
    assert_eq!(store.new_streams().unwrap(), [second]);
    store.stream_remove(second).unwrap();
    assert_eq!(store.new_streams().unwrap(), []);
}

fn removed_streams_are_gone(store: &impl Store) {
    for ino in 1..40 {
        store.stream_write(Ino(ino), 0, b"x").unwrap();
    }
    let retained = store.stream_file(Ino(3)).unwrap();
    store.stream_remove(Ino(3)).unwrap();
    assert_eq!(contents(store, Ino(3)), b"");
    assert_eq!(store.streams().unwrap().len(), 38);
    store.stream_write(Ino(3), 0, b"another").unwrap();
    assert_eq!(contents(store, Ino(3)), b"another");
    if let Some(file) = retained {
        assert_eq!(file.metadata().unwrap().len(), 1);
        let file = store.stream_file(Ino(3)).unwrap().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 7);
    }
}

fn offsets_beyond_the_end_of_the_world(store: &impl Store) {
    let ino = Ino(5);
    let errno = |outcome: Result<(), espalier_store::StoreError>| outcome.unwrap_err().errno();
    assert_eq!(errno(store.stream_write(ino, u64::MAX - 1, b"x")), Errno::EFBIG);
    assert_eq!(errno(store.stream_write(ino, i64::MAX as u64, b"x")), Errno::EFBIG);
    assert_eq!(errno(store.stream_truncate(ino, u64::MAX)), Errno::EFBIG);
    assert_eq!(errno(store.stream_allocate(ino, u64::MAX, 1, AllocateMode::empty())), Errno::EFBIG);
    store.stream_write(ino, 0, b"x").unwrap();
    assert_eq!(store.stream_read(ino, u64::MAX, &mut [0; 8]).unwrap(), 0);
    assert_eq!(store.stream_copy(ino, u64::MAX, Ino(6), 0, 1).unwrap(), 0);
}

fn threads_use_it_at_once(store: &impl Store) {
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for round in 0..50_u64 {
                    let ino = Ino(round % 7 * 16 + 256 * thread);
                    store.stream_write(ino, 8 * round, &round.to_le_bytes()).unwrap();
                    let mut buf = [0; 8];
                    assert_eq!(store.stream_read(ino, 8 * round, &mut buf).unwrap(), 8);
                    assert_eq!(u64::from_le_bytes(buf), round);
                    let key = round.to_be_bytes();
                    store.stage(vec![put(dir(thread), &key, &key)]).unwrap();
                    assert_eq!(store.get(dir(thread), &key).unwrap().unwrap(), key);
                    if round % 10 == thread {
                        store.publish().unwrap();
                    }
                    store.maintain().unwrap();
                    assert_eq!(
                        store.scan(dir(thread), Bound::Unbounded, 99).unwrap().len() as u64,
                        round + 1
                    );
                    store.stream_sync(ino).unwrap();
                }
            });
        }
    });
    assert_eq!(all(store).len(), 200);
}

#[test]
fn memory_store_loses_undurable_changes() {
    let store = MemoryStore::new();
    store.stage(vec![put(dir(1), b"a", b"1")]).unwrap();
    store.publish().unwrap();
    store.stage(vec![put(dir(1), b"a", b"2")]).unwrap();
    store.set_full(true);
    assert_eq!(store.publish().unwrap_err().errno(), Errno::ENOSPC);
    store.stream_sync(Ino(9)).unwrap();
    store.set_full(false);
    store.stream_write(Ino(5), 0, b"durable").unwrap();
    store.stream_sync(Ino(5)).unwrap();
    store.stream_write(Ino(5), 0, b"LOST").unwrap();
    store.stream_write(Ino(6), 0, b"lost").unwrap();
    let found = store.crash();
    assert_eq!(found.get(dir(1), b"a").unwrap().unwrap(), b"1");
    assert_eq!(contents(&found, Ino(5)), b"durable");
    assert_eq!(found.streams().unwrap(), [Ino(5)]);
    store.publish().unwrap();
    assert_eq!(store.crash().get(dir(1), b"a").unwrap().unwrap(), b"2");
}
