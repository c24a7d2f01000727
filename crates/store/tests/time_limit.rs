//! Requests to the store in objects that exceed their time limit. They have failed, and may take
//! effect at once, later, or not at all.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use espalier_proto::{Ino, ObjectId, Rank, TableWrite};
use espalier_store::engine::TimedOutEffect;
use espalier_store::{
    Engine, FormatOptions, MemoryEngine, ObjectOptions, ObjectStore, RankLease, Store, StoreError,
    format_objects, read_superblock,
};

const TERM: Duration = Duration::from_secs(60);
const CHUNK: u64 = 4 << 20;
const EFFECTS: [TimedOutEffect; 3] = [TimedOutEffect::None, TimedOutEffect::Applied, TimedOutEffect::Late];

fn open(engine: &Arc<MemoryEngine>) -> Result<ObjectStore<MemoryEngine>, StoreError> {
    let superblock = read_superblock(engine.as_ref(), "test")?;
    let lease = RankLease::acquire_for(engine, Rank(0), TERM)?;
    Ok(ObjectStore::open(engine, &superblock, lease, ObjectOptions::default())?.0)
}

fn new() -> (Arc<MemoryEngine>, ObjectStore<MemoryEngine>) {
    let engine = Arc::new(MemoryEngine::new());
    let options = FormatOptions { journal_bytes: 1 << 20, ..FormatOptions::default() };
    format_objects(&engine, "test", &options).unwrap();
    let store = open(&engine).unwrap();
    (engine, store)
}

/// The engine as a process finds it that has fenced all earlier ones.
fn after_takeover(engine: &MemoryEngine) -> Arc<MemoryEngine> {
    Arc::new(engine.snapshot())
}

/// Makes one operation exceed its limit, after `after` others.
fn time_out(engine: &MemoryEngine, mut after: u64, effect: TimedOutEffect) {
    engine.set_time_out(Some(Box::new(move |_| {
        let is_due = after == 0;
        after = after.wrapping_sub(1);
        is_due.then_some(effect)
    })));
}

type AllRecords = BTreeMap<(ObjectId, Vec<u8>), Vec<u8>>;

fn all(store: &impl Store) -> AllRecords {
    store.records().map(|record| record.map(|(object, key, value)| ((object, key), value)).unwrap()).collect()
}

fn write(n: u64, value: &[u8]) -> TableWrite {
    TableWrite {
        object: ObjectId::fragment(Ino(1), 0),
        key: n.to_be_bytes().to_vec(),
        value: Some(value.to_vec()),
    }
}

/// Writes that need a redo record: they are larger than a compound write.
fn large(byte: u8) -> Vec<TableWrite> {
    (0..2).map(|n| write(n, &vec![byte; CHUNK as usize / 2 + 100])).collect()
}

#[test]
fn checkpoint_that_is_repeated_twice_is_atomic_at_every_crash() {
    let (base, store) = new();
    store.stage(large(1)).unwrap();
    store.publish().unwrap();
    let before = all(&store);
    drop(store);
    let (mut failed, mut found_new) = (0, 0);
    for effect in [TimedOutEffect::None, TimedOutEffect::Late] {
        for [first, second] in (0..8).flat_map(|first| (0..8).map(move |second| [first, second])) {
            for crash in 0..3 {
                let engine = after_takeover(&base);
                let store = open(&engine).unwrap();
                let mut states = vec![before.clone()];
                for (byte, after) in [(2, first), (3, second)] {
                    // Each attempt has more than the one before.
                    store.stage(large(byte)).unwrap();
                    states.push(all(&store));
                    time_out(&engine, after, effect);
                    failed += u64::from(store.publish().is_err());
                    engine.set_time_out(None);
                }
                store.stage(large(4)).unwrap();
                let last = all(&store);
                engine.fail_after(Some(crash));
                let published = store.publish().is_ok();
                engine.fail_after(None);
                // The next holder has fenced this one: what is late takes no effect.
                let found = all(&open(&after_takeover(&engine)).unwrap());
                let what = format!("{effect:?} of {first} and {second}, crash at {crash}");
                assert!(found == last || states.contains(&found) && !published, "{what}");
                found_new += u64::from(found != before);
            }
        }
    }
    assert!(failed > 100 && found_new > 100, "{failed} {found_new}");
}

#[test]
fn removal_of_a_stream_is_repeated_until_it_is_done() {
    for (effect, after) in EFFECTS.into_iter().flat_map(|effect| (0..8).map(move |after| (effect, after))) {
        let (engine, store) = new();
        for ino in [Ino(5), Ino(6)] {
            store.stream_create(ino).unwrap();
            store.stream_write(ino, 2 * CHUNK, b"bytes").unwrap();
            store.stream_sync(ino).unwrap();
        }
        time_out(&engine, after, effect);
        for ino in [Ino(5), Ino(6)] {
            let removed = (0..3).find(|_| store.stream_remove(ino).is_ok());
            assert!(removed.is_some(), "{effect:?} of {after}");
        }
        let mut failures = 0;
        while store.sync_removed_streams().is_err() {
            failures += 1;
            assert!(failures < 3);
        }
        engine.apply_late();
        assert_eq!(engine.list("0.s.").unwrap(), Vec::<String>::new(), "{effect:?} of {after}");
        assert_eq!(store.new_streams().unwrap(), [], "{effect:?} of {after}");
    }
}

#[test]
fn stream_that_is_made_again_is_not_removed() {
    for effect in EFFECTS {
        let (engine, store) = new();
        store.stream_write(Ino(5), 0, b"first").unwrap();
        store.stream_sync(Ino(5)).unwrap();
        // After the head is read.
        time_out(&engine, 1, effect);
        store.stream_remove(Ino(5)).unwrap();
        engine.set_time_out(None);
        store.stream_truncate(Ino(5), 0).unwrap();
        store.stream_write(Ino(5), 0, b"again").unwrap();
        store.stream_sync(Ino(5)).unwrap();
        store.sync_removed_streams().unwrap();
        let mut bytes = [0; 9];
        assert_eq!(store.stream_read(Ino(5), 0, &mut bytes).unwrap(), 5, "{effect:?}");
        assert_eq!(&bytes[..5], b"again");
    }
}

#[test]
fn size_of_a_stream_is_right_after_a_write_that_failed() {
    type Change = fn(&ObjectStore<MemoryEngine>) -> Result<(), StoreError>;
    let changes: [Change; 5] = [
        |store| store.stream_write(Ino(5), 0, b"first bytes"),
        |store| store.stream_write(Ino(5), 3 * CHUNK - 2, b"last"),
        |store| store.stream_truncate(Ino(5), CHUNK + 1),
        |store| store.stream_truncate(Ino(5), 2 * CHUNK),
        |store| store.stream_write(Ino(5), CHUNK, b"again"),
    ];
    let mut failed = 0;
    for (effect, after) in EFFECTS.into_iter().flat_map(|effect| (0..24).map(move |after| (effect, after))) {
        let (engine, store) = new();
        time_out(&engine, after, effect);
        for change in changes {
            let changed = change(&store).and_then(|()| store.stream_sync(Ino(5)));
            failed += u64::from(changed.is_err());
            let Ok(known) = store.stream_stat(Ino(5)) else { continue };
            // As a process finds it that opens the store.
            engine.apply_late();
            let found = open(&after_takeover(&engine)).unwrap().stream_stat(Ino(5)).unwrap();
            assert_eq!(known.size, found.size, "{effect:?} of {after}");
        }
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn write_that_is_late_undoes_nothing_newer() {
    let (engine, store) = new();
    store.stage(vec![write(1, b"old")]).unwrap();
    time_out(&engine, 0, TimedOutEffect::Late);
    assert!(store.publish().is_err());
    engine.set_time_out(None);
    drop(store);
    // The lease was not released: the next holder fences the process.
    let other = Arc::new(engine.client());
    assert!(matches!(open(&other), Err(StoreError::HeldBy { .. })));
    engine.skip(TERM);
    let store = open(&other).unwrap();
    store.stage(vec![write(1, b"new")]).unwrap();
    store.publish().unwrap();
    engine.apply_late();
    drop(store);
    let TableWrite { object, key, .. } = write(1, b"");
    assert_eq!(open(&other).unwrap().get(object, &key).unwrap().unwrap(), b"new");
}
