//! Stores whose big files have a pool of their own, which is erasure-coded: it has no keys.
//! `suite.rs` has the contract that all stores share.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use espalier_proto::{ClientId, Ino, Rank, Time};
use espalier_store::engine::{MemoryPoolKind, ObjectOp};
use espalier_store::{
    DataPoolError, Engine, FormatError, FormatOptions, MemoryEngine, ObjectOptions, ObjectStore, PoolContent,
    RankLease, SharedStreams, Store, StoreError, Superblock, format_joining, format_objects, pools_of,
    read_superblock,
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

/// The streams as a client uses them that is not a server.
fn client(engine: &MemoryEngine) -> SharedStreams<MemoryEngine> {
    SharedStreams::new(engine.client().other_pool("data").unwrap())
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
fn streams_are_in_the_data_pool() {
    let (engine, store) = new();
    store.stream_create(Ino(5)).unwrap();
    store.stream_write(Ino(5), CHUNK - 2, b"over two chunks").unwrap();
    store.stream_sync(Ino(5)).unwrap();
    let (none, objects) = streams(&engine, "data");
    assert_eq!(none, Vec::<String>::new());
    let name = |end| format!("0.s.0000000000000005.{end}");
    assert_eq!(objects, ["0", "1", "head"].map(name));
    store.stream_truncate(Ino(5), 0).unwrap();
    assert_eq!(streams(&engine, "data").1, ["0", "head"].map(name));
    store.stream_write(Ino(5), 0, b"again").unwrap();
    store.stream_remove(Ino(5)).unwrap();
    store.sync_removed_streams().unwrap();
    assert_eq!(streams(&engine, "data"), Default::default(), "no object is left");
}

#[test]
fn clients_and_server_write_one_stream() {
    let (engine, store) = new();
    let clients = [client(&engine), client(&engine)];
    let ino = Ino(5);
    assert!(clients[0].write(Rank(0), ino, 0, b"x").is_err(), "there is no such stream");
    store.stream_create(ino).unwrap();
    for number in 0..20_u64 {
        let writer = number as usize % 3;
        let bytes = [number as u8 + 1; 9];
        let offset = number * CHUNK - 4 * u64::from(number > 0);
        match clients.get(writer) {
            Some(client) => client.write(Rank(0), ino, offset, &bytes).unwrap(),
            None => store.stream_write(ino, offset, &bytes).unwrap(),
        }
        for reader in 0..3 {
            let mut found = [0; 20];
            let length = match clients.get(reader) {
                Some(client) => client.read(Rank(0), ino, offset, &mut found).unwrap(),
                None => store.stream_read(ino, offset, &mut found).unwrap(),
            };
            assert_eq!(found[..length], bytes, "{writer} wrote {number} for {reader}");
        }
        assert_eq!(store.stream_stat(ino).unwrap().size, offset + 9);
    }
    // A client goes on with chunks that it has recorded before others truncate.
    store.stream_truncate(ino, 3).unwrap();
    assert_eq!(store.stream_stat(ino).unwrap().size, 3);
    clients[0].write(Rank(0), ino, 2 * CHUNK, b"end").unwrap();
    assert_eq!(store.stream_stat(ino).unwrap().size, 2 * CHUNK + 3);
    let mut bytes = vec![9; 2 * CHUNK as usize];
    assert_eq!(clients[1].read(Rank(0), ino, 3, &mut bytes).unwrap(), bytes.len());
    assert!(bytes[..2 * CHUNK as usize - 3].iter().all(|byte| *byte == 0), "no byte of before");
    store.stream_remove(ino).unwrap();
    store.sync_removed_streams().unwrap();
    assert_eq!(streams(&engine, "data"), Default::default(), "no object is left");
    assert!(clients[0].write(Rank(0), ino, 0, b"late").is_err());
}

#[test]
fn mtime_is_that_of_the_latest_write_of_any_client() {
    let (engine, store) = new();
    let client = client(&engine);
    let at = |secs| Time::new(secs, 7);
    let mtime = || store.stream_stat(Ino(5)).unwrap().mtime;
    engine.set_now(at(10));
    store.stream_write(Ino(5), 3 * CHUNK, b"server's").unwrap();
    assert_eq!(mtime(), at(10));
    engine.set_now(at(11));
    client.write(Rank(0), Ino(5), CHUNK, b"client's").unwrap();
    assert_eq!(mtime(), at(11));
    for set in [at(3), at(1_000)] {
        store.stream_set_mtime(Ino(5), set).unwrap();
        assert_eq!(mtime(), set);
    }
    engine.set_now(at(12));
    client.write(Rank(0), Ino(5), 0, b"later").unwrap();
    assert_eq!(mtime(), at(12));
    engine.set_now(at(13));
    store.stream_truncate(Ino(5), 5).unwrap();
    assert_eq!(mtime(), at(13));
    // More objects than are examined.
    engine.set_now(at(14));
    for chunk in 0..100 {
        store.stream_write(Ino(5), chunk * CHUNK, b"x").unwrap();
    }
    engine.set_now(at(15));
    client.write(Rank(0), Ino(5), CHUNK, b"client's").unwrap();
    assert_eq!(mtime(), at(15));
}

#[test]
fn fenced_client_writes_nothing() {
    let (engine, store) = new();
    let (client, other) = (client(&engine), client(&engine));
    client.register(ClientId(7)).unwrap();
    other.register(ClientId(8)).unwrap();
    store.stream_write(Ino(5), 0, b"bytes").unwrap();
    store.fence_clients(&[ClientId(7), ClientId(9)]).unwrap();
    assert!(client.write(Rank(0), Ino(5), 0, b"late").is_err());
    other.write(Rank(0), Ino(5), 1, b"Y").unwrap();
    let mut bytes = [0; 5];
    assert_eq!(store.stream_read(Ino(5), 0, &mut bytes).unwrap(), 5);
    assert_eq!(&bytes, b"bYtes");
    let registered = || engine.other_pool("data").unwrap().list("client.").unwrap();
    assert_eq!(registered(), ["client.8"]);
    // It comes back with another address.
    let again = self::client(&engine);
    again.register(ClientId(7)).unwrap();
    again.write(Rank(0), Ino(5), 0, b"B").unwrap();
    again.unregister(ClientId(7)).unwrap();
    store.fence_clients(&[ClientId(7)]).unwrap();
    again.write(Rank(0), Ino(5), 0, b"b").unwrap();
    assert_eq!(registered(), ["client.8"]);
    drop(store);
    format(&engine, Some("data"), true).unwrap();
    assert_eq!(registered(), Vec::<String>::new());
}

#[test]
fn bytes_are_durable_when_they_are_written() {
    let (engine, store) = new();
    store.stream_write(Ino(5), 0, b"first").unwrap();
    store.stream_write(Ino(5), 3 * CHUNK - 2, b"last").unwrap();
    let store = open(&Arc::new(engine.snapshot())).unwrap();
    assert_eq!(store.stream_stat(Ino(5)).unwrap().size, 3 * CHUNK + 2);
    store.stream_truncate(Ino(5), 5).unwrap();
    store.stream_truncate(Ino(5), 4 * CHUNK).unwrap();
    let mut bytes = vec![9; 4 * CHUNK as usize];
    assert_eq!(store.stream_read(Ino(5), 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.starts_with(b"first") && bytes[5..].iter().all(|byte| *byte == 0));
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
        let objects = streams(&engine, "data").1;
        let is_listed = !store.streams().unwrap().is_empty();
        assert!(objects.is_empty() || is_listed, "crash at operation {crash}: {objects:?}");
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
