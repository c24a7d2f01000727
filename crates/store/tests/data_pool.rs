//! Stores whose big files have a pool of their own, which is erasure-coded: it has no keys.
//! `suite.rs` has the contract that all stores share.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use espalier_proto::{Ino, Rank};
use espalier_store::engine::{MemoryPoolKind, ObjectOp};
use espalier_store::{
    DataPoolError, Engine, FormatError, FormatOptions, MemoryEngine, ObjectOptions, ObjectStore, PoolContent,
    RankLease, Store, StoreError, Superblock, format_joining, format_objects, pools_of, read_superblock,
};

const TERM: Duration = Duration::from_secs(60);
const CHUNK: u64 = 4 << 20;

/// A replicated pool, and the erasure-coded pools `data` and `other`.
fn pools() -> Arc<MemoryEngine> {
    let engine = MemoryEngine::new();
    engine.add_pool("data", MemoryPoolKind::ErasureCoded);
    engine.add_pool("other", MemoryPoolKind::ErasureCoded);
    Arc::new(engine)
}

fn options(data_pool: Option<&str>, force: bool) -> FormatOptions {
    let data_pool = data_pool.map(str::to_owned);
    FormatOptions { journal_bytes: 1 << 20, data_pool, force, ..FormatOptions::default() }
}

fn format(
    engine: &Arc<MemoryEngine>,
    data_pool: Option<&str>,
    force: bool,
) -> Result<Superblock, FormatError> {
    format_objects(engine, "test", &options(data_pool, force))
}

fn open(engine: &Arc<MemoryEngine>) -> Result<ObjectStore<MemoryEngine>, StoreError> {
    let superblock = read_superblock(engine.as_ref(), "test")?;
    let lease = RankLease::acquire(engine, Rank(0), TERM)?;
    ObjectStore::open(engine, &superblock, lease, ObjectOptions::default()).map(|(store, _)| store)
}

fn new() -> (Arc<MemoryEngine>, ObjectStore<MemoryEngine>) {
    let engine = pools();
    format(&engine, Some("data"), false).unwrap();
    let store = open(&engine).unwrap();
    (engine, store)
}

/// The objects of streams in the pool of the metadata, and in another one.
fn streams(engine: &MemoryEngine, pool: &str) -> (Vec<String>, Vec<String>) {
    (engine.list("0.s.").unwrap(), engine.other_pool(pool).unwrap().list("0.s.").unwrap())
}

fn refused(outcome: Result<Superblock, FormatError>) -> DataPoolError {
    match outcome {
        Err(FormatError::DataPool(error)) => error,
        outcome => panic!("{outcome:?}"),
    }
}

fn not_opened(engine: &Arc<MemoryEngine>) -> DataPoolError {
    match open(engine) {
        Err(StoreError::DataPool(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn bytes_are_in_the_data_pool_and_records_are_not() {
    let (engine, store) = new();
    store.stream_create(Ino(5)).unwrap();
    store.stream_write(Ino(5), CHUNK - 2, b"over two chunks").unwrap();
    store.stream_sync(Ino(5)).unwrap();
    let (records, bytes) = streams(&engine, "data");
    assert_eq!(records, ["0.s.0000000000000005.0"]);
    assert_eq!(bytes, ["0.s.0000000000000005.0", "0.s.0000000000000005.1"]);
    assert_eq!(engine.stat(&records[0]).unwrap().size, 0, "the record's object has no bytes");
    store.stream_truncate(Ino(5), 0).unwrap();
    assert_eq!(streams(&engine, "data").1, Vec::<String>::new());
    store.stream_write(Ino(5), 0, b"again").unwrap();
    store.stream_remove(Ino(5)).unwrap();
    store.sync_removed_streams().unwrap();
    assert_eq!(streams(&engine, "data"), Default::default(), "no object is left");
}

#[test]
fn bytes_after_a_crash_are_not_exposed() {
    let (engine, store) = new();
    store.stream_write(Ino(5), 0, b"synced").unwrap();
    store.stream_sync(Ino(5)).unwrap();
    store.stream_write(Ino(5), 3 * CHUNK - 2, b"lost").unwrap();
    store.stream_write(Ino(5), 6, b" and lost, too").unwrap();
    let store = open(&Arc::new(engine.snapshot())).unwrap();
    assert_eq!(store.stream_stat(Ino(5)).unwrap().size, 6);
    store.stream_truncate(Ino(5), 4 * CHUNK).unwrap();
    let mut bytes = vec![9; 4 * CHUNK as usize];
    assert_eq!(store.stream_read(Ino(5), 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.starts_with(b"synced") && bytes[6..].iter().all(|byte| *byte == 0));
}

#[test]
fn removal_survives_every_crash() {
    let (base, store) = new();
    store.stream_write(Ino(5), 0, &[1; 20]).unwrap();
    store.stream_write(Ino(5), 2 * CHUNK, &[1; 20]).unwrap();
    store.stream_sync(Ino(5)).unwrap();
    drop(store);
    for crash in 0.. {
        let engine = Arc::new(base.snapshot());
        let store = open(&engine).unwrap();
        store.stream_stat(Ino(5)).unwrap();
        engine.fail_after(Some(crash));
        let is_removed = store.stream_remove(Ino(5)).and_then(|()| store.sync_removed_streams()).is_ok();
        let engine = Arc::new(engine.snapshot());
        let store = open(&engine).unwrap();
        let (records, bytes) = streams(&engine, "data");
        assert!(bytes.is_empty() || !records.is_empty(), "crash at operation {crash}: {bytes:?}");
        store.stream_remove(Ino(5)).unwrap();
        store.sync_removed_streams().unwrap();
        assert_eq!(streams(&engine, "data"), Default::default(), "crash at operation {crash}");
        if is_removed {
            break;
        }
    }
}

#[test]
fn fenced_process_changes_nothing_in_the_data_pool() {
    let (engine, store) = new();
    store.stream_write(Ino(5), 0, b"old").unwrap();
    store.stream_sync(Ino(5)).unwrap();
    let other = Arc::new(engine.client());
    other.fence(&engine.address()).unwrap();
    let _ = store.stream_write(Ino(5), 0, b"new");
    assert!(store.stream_sync(Ino(5)).is_err());
    let data = other.other_pool("data").unwrap();
    assert_eq!(data.read("0.s.0000000000000005.0", 0, 9).unwrap(), b"old");
}

#[test]
fn pools_that_cannot_have_bytes_are_refused_and_nothing_is_made() {
    let engine = pools();
    engine.add_pool("append", MemoryPoolKind::AppendOnly);
    engine.add_pool("foreign", MemoryPoolKind::Replicated);
    let foreign = engine.other_pool("foreign").unwrap();
    foreign.apply("0.head", vec![ObjectOp::CreateExclusive]).unwrap();
    let format = |pool| format(&engine, Some(pool), true);
    assert_eq!(refused(format("absent")), DataPoolError::Absent("absent".into()));
    let no_overwrites = refused(format("append"));
    assert_eq!(no_overwrites, DataPoolError::NoOverwrites("append".into()));
    assert!(no_overwrites.to_string().contains("`ceph osd pool set append allow_ec_overwrites true`"));
    assert!(matches!(format("foreign"), Err(FormatError::NotEmpty(_))));
    assert_eq!(engine.list("").unwrap(), Vec::<String>::new());
    assert_eq!(engine.other_pool("append").unwrap().list("").unwrap(), Vec::<String>::new());
    assert_eq!(foreign.list("").unwrap(), ["0.head"]);

    let replicated = Arc::new(foreign);
    replicated.apply("0.head", vec![ObjectOp::Remove]).unwrap();
    let same = format_objects(&replicated, "test", &options(Some("foreign"), false));
    assert_eq!(refused(same), DataPoolError::Same("foreign".into()));
}

#[test]
fn erasure_coded_pool_cannot_have_metadata() {
    let engine = pools();
    let coded = Arc::new(engine.other_pool("other").unwrap());
    for data_pool in [None, Some("data")] {
        let outcome = format_objects(&coded, "test", &options(data_pool, false));
        assert!(matches!(outcome, Err(FormatError::ErasureCoded(_))), "{outcome:?}");
        assert_eq!(coded.list("").unwrap(), Vec::<String>::new());
        assert_eq!(engine.other_pool("data").unwrap().list("").unwrap(), Vec::<String>::new());
    }
}

#[test]
fn namespace_of_another_store_is_not_taken() {
    let (engine, store) = new();
    store.stream_write(Ino(5), 0, b"bytes").unwrap();
    store.stream_sync(Ino(5)).unwrap();
    drop(store);
    engine.add_pool("metadata", MemoryPoolKind::Replicated);
    let second = Arc::new(engine.other_pool("metadata").unwrap());
    for uuid in [None, Some(read_superblock(engine.as_ref(), "test").unwrap().uuid)] {
        let options = FormatOptions { uuid, ..options(Some("data"), true) };
        let taken = DataPoolError::Taken { pool: "data".into(), store: "test".into() };
        assert_eq!(refused(format_objects(&second, "second", &options)), taken);
    }
    assert_eq!(open(&engine).unwrap().stream_stat(Ino(5)).unwrap().size, 5);
    format_objects(&second, "second", &options(Some("other"), false)).unwrap();
}

#[test]
fn store_without_its_data_pool_is_not_opened() {
    let (engine, store) = new();
    drop(store);
    let data = engine.other_pool("data").unwrap();
    let owner = data.read("owner", 0, 4096).unwrap();
    data.apply("owner", vec![ObjectOp::Remove]).unwrap();
    assert_eq!(not_opened(&engine), DataPoolError::Foreign("data".into()));
    data.apply("owner", vec![ObjectOp::WriteFull(b"nonsense".to_vec())]).unwrap();
    assert_eq!(not_opened(&engine), DataPoolError::Foreign("data".into()));
    data.apply("owner", vec![ObjectOp::WriteFull(owner.clone())]).unwrap();
    open(&engine).unwrap();

    engine.remove_pool("data");
    assert_eq!(not_opened(&engine), DataPoolError::Lost("data".into()));
    engine.add_pool("data", MemoryPoolKind::ErasureCoded);
    let replaced = engine.other_pool("data").unwrap();
    replaced.apply("owner", vec![ObjectOp::WriteFull(owner)]).unwrap();
    let (expected, found) = (data.pool().number, replaced.pool().number);
    assert_eq!(not_opened(&engine), DataPoolError::Replaced { pool: "data".into(), found, expected });
}

#[test]
fn forced_format_removes_the_bytes_of_the_earlier_store() {
    for next in [None, Some("data"), Some("other")] {
        let (base, store) = new();
        store.stream_write(Ino(5), 0, b"bytes").unwrap();
        store.stream_sync(Ino(5)).unwrap();
        drop(store);
        assert!(matches!(format(&base, next, false), Err(FormatError::Exists(_))));
        assert_eq!(open(&base).unwrap().stream_stat(Ino(5)).unwrap().size, 5, "nothing was removed");
        for crash in 0.. {
            let engine = Arc::new(base.snapshot());
            engine.fail_after(Some(crash));
            let is_made = format(&engine, next, true).is_ok();
            let engine = Arc::new(engine.snapshot());
            if let (false, Ok(store)) = (is_made, open(&engine)) {
                assert_eq!(store.stream_stat(Ino(5)).unwrap().size, 5, "crash at operation {crash}");
            }
            format(&engine, next, true).unwrap();
            for pool in ["data", "other"] {
                let of_pool = engine.other_pool(pool).unwrap().list("").unwrap();
                let expected: &[&str] = if next == Some(pool) { &["owner"] } else { &[] };
                assert_eq!(of_pool, expected, "{next:?}, crash at operation {crash}");
            }
            let store = open(&engine).unwrap();
            assert_eq!(store.streams().unwrap(), []);
            if is_made {
                break;
            }
        }
    }
}

#[test]
fn rest_in_the_data_pool_is_replaced_only_by_force() {
    let engine = pools();
    let data = engine.other_pool("data").unwrap();
    data.apply("0.s.0000000000000005.0", vec![ObjectOp::CreateExclusive]).unwrap();
    assert!(matches!(format(&engine, Some("data"), false), Err(FormatError::Unfinished(_))));
    format(&engine, Some("data"), true).unwrap();
    assert_eq!(data.list("").unwrap(), ["owner"]);
}

#[test]
fn joining_rank_has_no_bytes_of_an_earlier_attempt() {
    let (engine, store) = new();
    let superblock = read_superblock(engine.as_ref(), "test").unwrap();
    store.stream_write(Ino(5), 0, b"of rank 0").unwrap();
    let data = engine.other_pool("data").unwrap();
    data.apply("1.s.0001000000000005.0", vec![ObjectOp::CreateExclusive]).unwrap();
    format_joining(&engine, &superblock, Rank(1)).unwrap();
    assert_eq!(data.list("").unwrap(), ["0.s.0000000000000005.0", "owner"]);
}

#[test]
fn space_is_that_of_the_data_pool() {
    let (engine, store) = new();
    let before = (store.space().unwrap().available, store.free_for_metadata().unwrap());
    store.stream_write(Ino(5), 0, &[1; 5000]).unwrap();
    store.stream_sync(Ino(5)).unwrap();
    assert_eq!(before.0 - store.space().unwrap().available, 5000);
    assert!(before.1 - store.free_for_metadata().unwrap() < 200);
    let pools = store.pools();
    let found: Vec<_> = pools.iter().map(|pool| (&*pool.name, pool.content)).collect();
    assert_eq!(found, [("", PoolContent::Metadata), ("data", PoolContent::BigFiles)]);
    assert_eq!(pools[1].free, Some(store.space().unwrap().available));
    let superblock = read_superblock(engine.as_ref(), "test").unwrap();
    assert_eq!(pools_of(engine.as_ref(), &superblock).unwrap(), pools);
}
