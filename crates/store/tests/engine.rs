//! The contract of `Engine`, in memory and on a cluster. The latter is skipped unless the
//! environment names a cluster with `CEPH_CONF`, a pool for tests with `ESPALIER_TEST_POOL`, and
//! an erasure-coded one with `ESPALIER_TEST_DATA_POOL`.
#![allow(clippy::unwrap_used)]

use std::ops::Bound;
use std::time::Duration;

use espalier_proto::Time;
use espalier_store::engine::{EngineError, EngineFailure, KEYS_MAX, MemoryPoolKind, ObjectOp, ObjectStat};
use espalier_store::{Engine, MemoryEngine, Rados, RadosAddress};

const TERM: Duration = Duration::from_secs(60);

macro_rules! on_every_engine {
    ($($test:ident)*) => {
        mod memory { $(#[test] fn $test() {
            let engine = super::MemoryEngine::new();
            super::$test(&engine, || engine.client());
        })* }
        mod rados { $(#[test] fn $test() {
            let Some(address) = super::address() else { return };
            let connect = || super::Rados::connect(&address).unwrap();
            super::$test(&connect(), connect);
        })* }
    };
}

on_every_engine! {
    keys_come_in_order
    bytes_are_written_and_read
    failing_guards_change_nothing
    versions_compare_and_swap
    objects_are_listed
    locks_have_one_holder_and_a_term
    fenced_clients_fail
    many_operations_are_in_flight
    invalid_requests_are_refused
}

fn address() -> Option<RadosAddress> {
    std::env::var_os("CEPH_CONF")?;
    let (pool, namespace) =
        (std::env::var("ESPALIER_TEST_POOL").ok()?, format!("{:016x}", fastrand::u64(..)));
    Some(RadosAddress { pool, namespace, conf: None, user: "admin".into() })
}

/// The contract of an erasure-coded pool beside the first one.
fn erasure_coded_pool_has_bytes_only<E: Engine>(engine: &E, data_pool: &str, connect: impl Fn() -> E) {
    assert_eq!(failure(engine.other_pool("no-such-pool").map(drop)), EngineFailure::Missing);
    let data = engine.other_pool(data_pool).unwrap();
    assert_eq!((&*data.pool().name, data.address()), (data_pool, engine.address()));
    assert_eq!(data.pool(), connect().other_pool(data_pool).unwrap().pool());
    assert_ne!(data.pool().number, engine.pool().number);
    engine.apply("o", vec![ObjectOp::WriteFull(b"first pool".to_vec())]).unwrap();
    assert_eq!(failure(data.stat("o")), EngineFailure::Missing);
    let write = |offset, bytes: &[u8]| vec![ObjectOp::Write { offset, bytes: bytes.to_vec() }];
    data.apply("o", write(3, b"defg")).unwrap();
    data.apply("o", write(1, b"bc")).unwrap();
    assert_eq!(data.read("o", 0, 99).unwrap(), b"\0bcdefg");
    data.apply("o", vec![ObjectOp::Zero { offset: 2, length: 2 }]).unwrap();
    data.apply("o", vec![ObjectOp::Truncate(6)]).unwrap();
    assert_eq!(data.read("o", 0, 99).unwrap(), b"\0b\0\0ef");
    for absent in [ObjectOp::Truncate(0), ObjectOp::Zero { offset: 0, length: 9 }] {
        data.apply("absent", vec![absent]).unwrap();
    }
    for keys in [set(&[(b"k", b"v")]), ObjectOp::RemoveKeys(vec![b"k".to_vec()])] {
        assert_eq!(failure(data.apply("o", vec![keys])), EngineFailure::Unsupported);
    }
    assert_eq!(data.list("o").unwrap(), ["o"]);
    // An address is excluded from all pools.
    let victim = connect();
    let of_victim = victim.other_pool(data_pool).unwrap();
    of_victim.apply("v", write(0, b"1")).unwrap();
    engine.fence(&victim.address()).unwrap();
    assert_eq!(data.read("v", 0, 9).unwrap(), b"1");
    assert_eq!(failure(of_victim.apply("v", write(0, b"2"))), EngineFailure::Fenced);
    data.settle_fences().unwrap();
    assert_eq!(failure(of_victim.apply("untouched", write(0, b"2"))), EngineFailure::Fenced);
    assert_eq!(data.read("v", 0, 9).unwrap(), b"1");
    // The client is connected as long as one of its pools is open.
    drop(connect().other_pool(data_pool).unwrap());
    data.apply("o", vec![ObjectOp::Remove]).unwrap();
}

#[test]
fn erasure_coded_pool_in_memory() {
    let engine = MemoryEngine::new();
    engine.add_pool("data", MemoryPoolKind::ErasureCoded);
    erasure_coded_pool_has_bytes_only(&engine, "data", || engine.client());
}

#[test]
fn erasure_coded_pool_on_a_cluster() {
    let (Some(address), Ok(pool)) = (address(), std::env::var("ESPALIER_TEST_DATA_POOL")) else { return };
    let connect = || Rados::connect(&address).unwrap();
    let engine = connect();
    erasure_coded_pool_has_bytes_only(&engine, &pool, connect);
    // The second pool outlives the first one of its connection.
    let data = engine.other_pool(&pool).unwrap();
    drop(engine);
    data.apply("o", vec![ObjectOp::CreateExclusive]).unwrap();
}

fn failure<T: std::fmt::Debug>(outcome: Result<T, EngineError>) -> EngineFailure {
    outcome.unwrap_err().failure
}

fn set(pairs: &[(&[u8], &[u8])]) -> ObjectOp {
    ObjectOp::SetKeys(pairs.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
}

fn keys_come_in_order<E: Engine>(engine: &E, _: impl Fn() -> E) {
    let keys: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"\x01", b"\x02\xff", b"a", b"\xff"];
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().rev().map(|key| (*key, &b"v"[..])).collect();
    engine.apply("o", vec![set(&pairs)]).unwrap();
    let page = |from: Bound<&[u8]>, limit| {
        let page = engine.page("o", from, limit).unwrap();
        (page.pairs.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(page(Bound::Unbounded, 99), (keys.map(<[u8]>::to_vec).to_vec(), false));
    assert_eq!(page(Bound::Included(b"\0"), 2), (vec![b"\0".to_vec(), b"\0\0".to_vec()], true));
    assert_eq!(page(Bound::Excluded(b"\0"), 1), (vec![b"\0\0".to_vec()], true));
    assert_eq!(page(Bound::Included(b"b"), 9), (vec![b"\xff".to_vec()], false));
    let within = |prefix: &[u8], from: Bound<&[u8]>, limit| {
        let page = engine.page_of_prefix("o", prefix, from, limit).unwrap();
        (page.pairs.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(within(b"\0", Bound::Unbounded, 9), (vec![b"\0".to_vec(), b"\0\0".to_vec()], false));
    assert_eq!(within(b"\0", Bound::Included(b"\0"), 1), (vec![b"\0".to_vec()], true));
    assert_eq!(within(b"\0", Bound::Excluded(b"\0\0"), 9), (vec![], false));
    assert_eq!(within(b"\x02", Bound::Included(b"\x02\x01"), 9), (vec![b"\x02\xff".to_vec()], false));
    let values = engine.values("o", &[b"a", b"absent", b""]).unwrap();
    assert_eq!(values, [(b"".to_vec(), b"v".to_vec()), (b"a".to_vec(), b"v".to_vec())]);
    engine.apply("o", vec![ObjectOp::RemoveKeys(vec![b"a".to_vec(), b"absent".to_vec()])]).unwrap();
    assert_eq!(engine.values("o", &[b"a"]).unwrap(), []);
    assert_eq!(failure(engine.values("absent", &[b"a"])), EngineFailure::Missing);
    assert_eq!(failure(engine.page("absent", Bound::Unbounded, 1)), EngineFailure::Missing);
    // More than one request lists, and as many as one write sets.
    let many: Vec<_> = (0..KEYS_MAX as u32).map(|n| (n.to_be_bytes().to_vec(), vec![1])).collect();
    engine.apply("many", vec![ObjectOp::SetKeys(many.clone())]).unwrap();
    let found = engine.page("many", Bound::Unbounded, usize::MAX).unwrap();
    assert!(found.pairs == many && !found.more);
}

fn bytes_are_written_and_read<E: Engine>(engine: &E, _: impl Fn() -> E) {
    assert_eq!(failure(engine.read("o", 0, 1)), EngineFailure::Missing);
    let write = |offset, bytes: &[u8]| ObjectOp::Write { offset, bytes: bytes.to_vec() };
    engine.apply("o", vec![write(2, b"cde"), ObjectOp::Append(b"fg".to_vec())]).unwrap();
    assert_eq!(engine.read("o", 0, 99).unwrap(), b"\0\0cdefg");
    assert_eq!(engine.read("o", 3, 2).unwrap(), b"de");
    assert_eq!(engine.read("o", 99, 2).unwrap(), b"");
    engine.apply("o", vec![ObjectOp::Zero { offset: 3, length: 1 }, ObjectOp::Truncate(6)]).unwrap();
    assert_eq!(engine.read("o", 2, 9).unwrap(), b"c\0ef");
    let mtime = Time::new(-3, 123_456_789);
    engine.apply("o", vec![ObjectOp::AssertExists, ObjectOp::SetMtime(mtime)]).unwrap();
    assert_eq!(engine.stat("o").unwrap(), ObjectStat { size: 6, mtime });
    engine.apply("o", vec![ObjectOp::WriteFull(b"new".to_vec())]).unwrap();
    assert_eq!(engine.read("o", 0, 9).unwrap(), b"new");
    engine.apply("o", vec![ObjectOp::Remove]).unwrap();
    assert_eq!(failure(engine.stat("o")), EngineFailure::Missing);
    assert_eq!(failure(engine.apply("o", vec![ObjectOp::Remove])), EngineFailure::Missing);
}

fn failing_guards_change_nothing<E: Engine>(engine: &E, _: impl Fn() -> E) {
    let compare = |value: &[u8]| ObjectOp::Compare { key: b"k".to_vec(), value: value.to_vec() };
    engine.apply("o", vec![ObjectOp::CreateExclusive, set(&[(b"k", b"1")])]).unwrap();
    let version = engine.apply("o", vec![compare(b"1"), set(&[(b"k", b"2")])]).unwrap();
    let change = || set(&[(b"k", b"3")]);
    for (guard, expected) in [
        (compare(b"1"), EngineFailure::Guard),
        (ObjectOp::CreateExclusive, EngineFailure::Exists),
        (ObjectOp::AssertVersion(version + 1), EngineFailure::Guard),
        (ObjectOp::AssertVersion(version - 1), EngineFailure::Guard),
    ] {
        assert_eq!(failure(engine.apply("o", vec![change(), guard.clone()])), expected, "{guard:?}");
    }
    assert_eq!(
        failure(engine.apply("absent", vec![ObjectOp::AssertExists, change()])),
        EngineFailure::Missing
    );
    assert_eq!(engine.values("o", &[b"k"]).unwrap()[0].1, b"2");
    engine.apply("o", vec![ObjectOp::AssertExists, ObjectOp::AssertVersion(version), change()]).unwrap();
    assert_eq!(engine.values("o", &[b"k"]).unwrap()[0].1, b"3");
}

fn versions_compare_and_swap<E: Engine>(engine: &E, _: impl Fn() -> E) {
    let first = engine.write_if("map", b"one".to_vec(), None).unwrap();
    assert_eq!(failure(engine.write_if("map", b"none".to_vec(), None)), EngineFailure::Exists);
    let read = engine.read_versioned("map").unwrap();
    assert_eq!((&read.bytes[..], read.version), (&b"one"[..], first));
    let second = engine.write_if("map", b"two".to_vec(), Some(first)).unwrap();
    assert!(second > first);
    assert_eq!(failure(engine.write_if("map", b"late".to_vec(), Some(first))), EngineFailure::Guard);
    let read = engine.read_versioned("map").unwrap();
    assert_eq!((&read.bytes[..], read.version), (&b"two"[..], second));
}

fn objects_are_listed<E: Engine>(engine: &E, _: impl Fn() -> E) {
    assert_eq!(engine.list("").unwrap(), Vec::<String>::new());
    for name in ["b.2", "a.1", "b.1"] {
        engine.apply(name, vec![ObjectOp::CreateExclusive]).unwrap();
    }
    assert_eq!(engine.list("").unwrap(), ["a.1", "b.1", "b.2"]);
    assert_eq!(engine.list("b.").unwrap(), ["b.1", "b.2"]);
}

fn locks_have_one_holder_and_a_term<E: Engine>(engine: &E, connect: impl Fn() -> E) {
    assert_eq!(engine.lock_holder("l").unwrap(), None);
    engine.lock("l", "one", TERM).unwrap();
    let holder = engine.lock_holder("l").unwrap().unwrap();
    assert_eq!((&*holder.cookie, holder.client.is_empty()), ("one", false));
    let other = connect();
    for (client, cookie) in [(engine, "one"), (engine, "two"), (&other, "one")] {
        assert_eq!(failure(client.lock("l", cookie, TERM)), EngineFailure::Locked);
    }
    engine.renew("l", "one", TERM).unwrap();
    assert_eq!(failure(other.renew("l", "one", TERM)), EngineFailure::Missing);
    other.unlock("l", "one").unwrap();
    assert_eq!(engine.lock_holder("l").unwrap().as_ref(), Some(&holder));
    other.break_lock("l", &holder).unwrap();
    assert_eq!(failure(engine.renew("l", "one", TERM)), EngineFailure::Missing);
    other.lock("l", "two", Duration::from_secs(1)).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(engine.lock_holder("l").unwrap(), None, "its term is over");
    assert_eq!(failure(other.renew("l", "two", TERM)), EngineFailure::Missing);
    engine.lock("l", "three", TERM).unwrap();
    engine.unlock("l", "three").unwrap();
    engine.unlock("l", "three").unwrap();
}

fn fenced_clients_fail<E: Engine>(engine: &E, connect: impl Fn() -> E) {
    let victim = connect();
    victim.apply("o", vec![ObjectOp::WriteFull(b"1".to_vec())]).unwrap();
    engine.fence(&victim.address()).unwrap();
    // An OSD may not know of it before an operation of a client that does.
    assert_eq!(engine.read("o", 0, 9).unwrap(), b"1");
    let write = || vec![ObjectOp::WriteFull(b"2".to_vec())];
    assert_eq!(failure(victim.apply("o", write())), EngineFailure::Fenced);
    assert_eq!(engine.read("o", 0, 9).unwrap(), b"1");
    engine.apply("o", write()).unwrap();
    connect().apply("o", write()).unwrap();
}

fn many_operations_are_in_flight<E: Engine>(engine: &E, _: impl Fn() -> E) {
    let submit = |n: u32| {
        let op = ObjectOp::Append(vec![n as u8; 64 << 10]);
        engine.submit(&format!("o{}", n % 8), vec![op])
    };
    // More operations and bytes than are admitted at a time.
    let pending: Vec<_> = (0..1200).map(submit).collect();
    for operation in pending {
        operation.wait().unwrap();
    }
    let reads: Vec<_> = (0..8).map(|n| engine.submit_read(&format!("o{n}"), 0, 10 << 20)).collect();
    for (n, read) in reads.into_iter().enumerate() {
        let bytes = read.wait().unwrap().bytes;
        let expected = (0..150).flat_map(|round| vec![(8 * round + n) as u8; 64 << 10]);
        assert!(bytes.into_iter().eq(expected), "writes to one object are applied in order");
    }
    drop(engine.submit("o0", vec![ObjectOp::Remove]));
    assert_eq!(failure(engine.stat("o0")), EngineFailure::Missing, "a dropped operation takes effect");
}

fn invalid_requests_are_refused<E: Engine>(engine: &E, _: impl Fn() -> E) {
    let refused = failure(engine.apply("o", vec![set(&[(b"k", b"")])]));
    assert!(matches!(refused, EngineFailure::Invalid(_)), "{refused}");
    assert_eq!(failure(engine.stat("o")), EngineFailure::Missing);
}
