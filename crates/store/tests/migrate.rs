//! Migrations: while the source is used, with faults of every operation, and over every pair of
//! engines.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use espalier_proto::{AllocateMode, END, Ino, ObjectId, Position, Rank, StreamStat, TableWrite, Time};
use espalier_store::engine::MemoryPoolKind;
use espalier_store::{
    FormatOptions, Journal, LocalOptions, LocalStore, MemoryEngine, MigrationMachine, MigrationProgress,
    MigrationStart, MigrationState, MigrationStep, Migrator, MovableStore, ObjectOptions, ObjectStore,
    RankLease, Store, StoreError, Superblock, format_objects, read_superblock, superblock,
};

const JOURNAL_BYTES: u64 = 1 << 20;

/// Where a store of a test is.
#[derive(Clone)]
enum Place {
    Objects(Arc<MemoryEngine>, &'static str),
    /// Big files are in a pool of their own.
    TwoPools(Arc<MemoryEngine>, &'static str),
    Directory(Arc<tempfile::TempDir>),
}

impl Place {
    fn objects(name: &'static str) -> Self {
        Self::Objects(Arc::new(MemoryEngine::new()), name)
    }

    fn two_pools(name: &'static str) -> Self {
        let engine = MemoryEngine::new();
        engine.add_pool("data", MemoryPoolKind::ErasureCoded);
        Self::TwoPools(Arc::new(engine), name)
    }

    fn directory() -> Self {
        Self::Directory(Arc::new(tempfile::tempdir().unwrap()))
    }

    fn name(&self) -> String {
        match self {
            Self::Objects(_, name) | Self::TwoPools(_, name) => (*name).into(),
            Self::Directory(dir) => dir.path().display().to_string(),
        }
    }

    fn format(&self, options: &FormatOptions) -> Result<(), String> {
        match self {
            Self::TwoPools(engine, name) => {
                let options = FormatOptions { data_pool: Some("data".into()), ..options.clone() };
                format_objects(engine, name, &options).map(drop).map_err(|error| error.to_string())
            }
            Self::Objects(engine, name) => {
                format_objects(engine, name, options).map(drop).map_err(|error| error.to_string())
            }
            Self::Directory(dir) => {
                superblock::format(dir.path(), options).map(drop).map_err(|error| error.to_string())
            }
        }
    }

    fn superblock(&self) -> Option<Superblock> {
        match self {
            Self::Objects(engine, name) | Self::TwoPools(engine, name) => {
                read_superblock(engine.as_ref(), name).ok()
            }
            Self::Directory(dir) => superblock::read(dir.path()).ok(),
        }
    }

    fn open(&self) -> Result<(Box<dyn Store>, Journal), StoreError> {
        match self {
            Self::Objects(engine, name) | Self::TwoPools(engine, name) => {
                let superblock = read_superblock(engine.as_ref(), name)?;
                let lease = RankLease::acquire_for(engine, Rank(0), Duration::from_secs(600))?;
                let (store, journal) =
                    ObjectStore::open(engine, &superblock, lease, ObjectOptions::default())?;
                Ok((Box::new(store), journal.erase()))
            }
            Self::Directory(dir) => {
                let options = LocalOptions { incoming: true, ..LocalOptions::default() };
                let (store, journal) = LocalStore::open_with(dir.path(), options)?;
                Ok((Box::new(store), journal.erase()))
            }
        }
    }

    /// True if a user may use the file system here.
    fn is_whole(&self) -> bool {
        self.superblock().is_some_and(|found| found.check_present(Path::new(&self.name())).is_ok())
    }

    /// The stores after a crash.
    fn after_crash(&self) -> Self {
        match self {
            Self::Objects(engine, name) => Self::Objects(Arc::new(engine.snapshot()), name),
            Self::TwoPools(engine, name) => Self::TwoPools(Arc::new(engine.snapshot()), name),
            Self::Directory(dir) => Self::Directory(Arc::clone(dir)),
        }
    }

    fn fail_after(&self, operations: u64) {
        if let Self::Objects(engine, _) | Self::TwoPools(engine, _) = self {
            engine.fail_after(Some(operations));
        }
    }
}

/// An open source.
struct Source {
    store: Arc<MovableStore>,
    journal: Arc<Mutex<Journal>>,
}

fn open(place: &Place) -> Source {
    let (store, mut journal) = place.open().unwrap();
    journal.replay(Position(0), |_, _| ()).unwrap();
    journal.forget_torn().unwrap();
    Source { store: Arc::new(MovableStore::new(store)), journal: Arc::new(Mutex::new(journal)) }
}

fn new(place: &Place) -> Source {
    place.format(&FormatOptions { journal_bytes: JOURNAL_BYTES, ..FormatOptions::default() }).unwrap();
    open(place)
}

/// Migrates once; what `espalier migrate` does.
fn migrate(
    source: Option<&Source>,
    (from, to): (&Place, &Place),
    mut before: impl FnMut(MigrationStep),
) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let superblock = from.superblock().ok_or("no source")?;
    let start = MigrationStart::decide(
        (&from.name(), &superblock),
        (&to.name(), to.superblock().as_ref()),
        to.superblock().is_none(),
    );
    match start.map_err(|error| error.to_string())? {
        MigrationStart::Ended => return Ok(()),
        MigrationStart::Finish => {
            return to.open().and_then(|(store, _)| store.set_migration(MigrationState::None)).map_err(text);
        }
        MigrationStart::Format => to.format(&FormatOptions {
            journal_bytes: JOURNAL_BYTES,
            // An interrupted attempt may have left something.
            force: true,
            hash_key: Some(superblock.hash_key),
            uuid: Some(superblock.uuid),
            migration: MigrationState::Incoming { from: from.name() },
            ..FormatOptions::default()
        })?,
        MigrationStart::Resume => {}
    }
    let opened;
    let source = match source {
        Some(source) => source,
        None => {
            opened = open(from);
            &opened
        }
    };
    let progress = Arc::new(MigrationProgress::default());
    let destination = to.open().map_err(text)?;
    let parts = (Arc::clone(&source.store), Arc::clone(&source.journal));
    let mut migrator = Migrator::new(parts, destination, to.name(), progress, Vec::new);
    let mut machine = MigrationMachine::default();
    while let Some(step) = machine.step() {
        before(step);
        machine.done(migrator.carry_out(step).map_err(text)?);
    }
    Ok(())
}

/// The contents of a store and its journal.
#[derive(Debug, PartialEq, Eq)]
struct StoreContents {
    records: Vec<(ObjectId, Vec<u8>, Vec<u8>)>,
    streams: BTreeMap<Ino, (Vec<u8>, Time)>,
    provisional: Vec<Ino>,
    frames: Vec<Vec<u8>>,
}

fn contents(place: &Place) -> StoreContents {
    let (store, mut journal) = place.open().unwrap();
    let mut frames = Vec::new();
    journal.replay(Position(0), |_, frame| frames.push(frame.to_vec())).unwrap();
    let streams = store.streams().unwrap().into_iter().map(|ino| {
        let StreamStat { size, mtime, .. } = store.stream_stat(ino).unwrap();
        let mut bytes = vec![0; size as usize];
        assert_eq!(store.stream_read(ino, 0, &mut bytes).unwrap(), bytes.len());
        (ino, (bytes, mtime))
    });
    StoreContents {
        records: store.records().collect::<Result<_, _>>().unwrap(),
        streams: streams.collect(),
        provisional: store.new_streams().unwrap(),
        frames,
    }
}

fn write(n: u64, value: Option<Vec<u8>>) -> TableWrite {
    TableWrite { object: ObjectId::fragment(Ino(n % 7), 0), key: n.to_be_bytes().to_vec(), value }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % below
}

/// One random change, as the metadata machine or a file's writer makes it.
fn change(source: &Source, state: &mut u64, number: u64) {
    let Source { store, journal } = source;
    let ino = Ino(100 + random(state, 6));
    let offset = random(state, 3 << 20);
    let bytes = vec![number as u8 | 1; 1 + random(state, 40_000) as usize];
    match random(state, 14) {
        0 => store.stream_create(ino).unwrap(),
        1 => store.stream_write(ino, offset, &bytes).unwrap(),
        2 => store.stream_write(ino, END, &bytes).unwrap(),
        3 => store.stream_truncate(ino, offset / 2).unwrap(),
        4 => {
            let mode = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
            store.stream_allocate(ino, offset, 70_000, mode).unwrap();
        }
        5 => drop(store.stream_copy(Ino(100), 0, ino, offset + (4 << 20), 50_000).unwrap()),
        6 => store.stream_set_mtime(ino, Time::new(number as i64, 5)).unwrap(),
        7 => store.stream_finalise(ino).unwrap(),
        8 if random(state, 4) == 0 => store.stream_remove(ino).unwrap(),
        9 => drop(journal.lock().unwrap().append(&number.to_le_bytes()).unwrap()),
        10 => store.publish().unwrap(),
        _ => {
            let value = (random(state, 3) > 0).then(|| vec![number as u8; random(state, 200) as usize]);
            store.stage(vec![write(random(state, 3000), value)]).unwrap();
        }
    }
}

fn fill(source: &Source, state: &mut u64, changes: u64) {
    source.store.stage((0..3000).step_by(2).map(|n| write(n, Some(vec![1; 50]))).collect()).unwrap();
    (0..changes).for_each(|number| change(source, state, number));
    source.store.publish().unwrap();
    source.store.sync_all().unwrap();
    source.journal.lock().unwrap().sync().unwrap();
}

/// Changes go on in every step, and their effect is found at the destination.
fn changes_follow(from: &Place, to: &Place, seed: u64) {
    let (source, model) = (new(from), new(&Place::objects("model")));
    let (mut state, mut model_state) = (seed, seed);
    fill(&source, &mut state, 200);
    fill(&model, &mut model_state, 200);
    let mut number = 1000;
    migrate(Some(&source), (from, to), |step| {
        // A switch waits for the end of a checkpoint.
        if step == MigrationStep::Wait {
            source.store.publish().unwrap();
            return model.store.publish().unwrap();
        }
        for _ in 0..60 {
            number += 1;
            change(&source, &mut state, number);
            change(&model, &mut model_state, number);
        }
    })
    .unwrap();
    for _ in 0..60 {
        number += 1;
        change(&source, &mut state, number);
        change(&model, &mut model_state, number);
    }
    let records = |source: &Source| source.store.records().collect::<Result<Vec<_>, _>>().unwrap();
    assert!(records(&source) == records(&model), "seed {seed}");
    for ino in (100..106).map(Ino) {
        let bytes = |source: &Source| {
            let stat = source.store.stream_stat(ino).unwrap();
            let mut bytes = vec![0; stat.size as usize];
            source.store.stream_read(ino, 0, &mut bytes).unwrap();
            (stat.exists, bytes)
        };
        assert!(bytes(&source) == bytes(&model), "seed {seed}: stream {ino}");
    }
    assert_eq!(source.store.new_streams().unwrap(), model.store.new_streams().unwrap());
    assert_eq!(source.store.migration().unwrap(), MigrationState::None);
    source.store.publish().unwrap();
    source.store.sync_all().unwrap();
    source.journal.lock().unwrap().sync().unwrap();
    drop(source);
    assert!(!from.is_whole() && to.is_whole());
    let frames = |journal: &Mutex<Journal>| {
        let mut journal = journal.lock().unwrap();
        let (mut frames, from) = (Vec::new(), Position(0));
        journal.replay(from, |_, frame| frames.push(frame.to_vec())).unwrap();
        frames
    };
    assert_eq!(contents(to).frames, frames(&model.journal), "seed {seed}");
}

#[test]
fn changes_during_a_migration_are_at_the_destination() {
    for seed in 0..2 {
        changes_follow(&Place::objects("a"), &Place::objects("b"), seed);
        changes_follow(&Place::directory(), &Place::objects("b"), 10 + seed);
        changes_follow(&Place::objects("a"), &Place::directory(), 20 + seed);
        changes_follow(&Place::directory(), &Place::directory(), 30 + seed);
        changes_follow(&Place::two_pools("a"), &Place::objects("b"), 40 + seed);
        changes_follow(&Place::directory(), &Place::two_pools("b"), 50 + seed);
    }
}

#[test]
fn one_store_is_whole_after_every_fault() {
    let base = Place::objects("a");
    let source = new(&base);
    fill(&source, &mut 5, 40);
    drop(source);
    let expected = contents(&base);
    // Faults of the destination, then of the source, which also has the switch.
    for of_source in [false, true] {
        let (mut fault, mut moved) = (0, 0);
        loop {
            let (from, to) = (base.after_crash(), Place::objects("b"));
            let source = open(&from);
            if of_source {
                from.fail_after(fault)
            } else {
                to.fail_after(fault)
            }
            let outcome = migrate(Some(&source), (&from, &to), |_| ());
            drop(source);
            let (from, to) = (from.after_crash(), to.after_crash());
            let is_whole = [from.is_whole(), to.is_whole()];
            assert_ne!(is_whole, [true, true], "fault {fault}, of the source: {of_source}");
            if outcome.is_ok() {
                assert_eq!(is_whole, [false, true]);
            }
            moved += u32::from(!is_whole[0]);
            // The same command completes it.
            migrate(None, (&from, &to), |_| ())
                .unwrap_or_else(|error| panic!("fault {fault}, of the source: {of_source}: {error}"));
            assert_eq!([from.is_whole(), to.is_whole()], [false, true]);
            assert!(contents(&to) == expected, "fault {fault}, of the source: {of_source}");
            if outcome.is_ok() {
                break;
            }
            fault += 1 + fault / 40;
        }
        assert!(fault > 40 && moved >= 1, "{fault} faults, of them {moved} after the switch");
    }
}

#[test]
fn a_mark_that_is_not_durable_is_no_switch() {
    let (from, to) = (Place::directory(), Place::objects("b"));
    let source = new(&from);
    fill(&source, &mut 4, 20);
    let Place::Directory(dir) = &from else { return };
    // The superblock is replaced, but not its copy.
    let copy = dir.path().join("superblock.bak");
    let refused = migrate(Some(&source), (&from, &to), |step| {
        if step == MigrationStep::Switch && !copy.is_dir() {
            std::fs::remove_file(&copy).unwrap();
            std::fs::create_dir(&copy).unwrap();
        }
    });
    assert_eq!(refused.unwrap_err(), StoreError::Undecided.to_string());
    assert!(matches!(source.store.streams(), Err(StoreError::Undecided)));
    drop(source);
    assert!(!from.is_whole() && !to.is_whole());
    std::fs::remove_dir(&copy).unwrap();
    migrate(None, (&from, &to), |_| ()).unwrap();
    assert!(!from.is_whole() && to.is_whole());
}

#[test]
fn an_interrupted_migration_continues_after_changes() {
    let (from, to) = (Place::objects("a"), Place::objects("b"));
    let source = new(&from);
    let mut state = 8;
    fill(&source, &mut state, 100);
    to.fail_after(45);
    assert!(migrate(Some(&source), (&from, &to), |_| ()).is_err());
    assert!(from.is_whole() && !to.is_whole());
    let to = to.after_crash();
    // Not noted by anyone.
    (0..100).for_each(|number| change(&source, &mut state, number));
    source.store.publish().unwrap();
    source.store.sync_all().unwrap();
    drop(source);
    let expected = contents(&from);
    migrate(None, (&from, &to), |_| ()).unwrap();
    assert!(contents(&to) == expected);
}

#[test]
fn a_damaged_copy_is_refused() {
    let (from, to) = (Place::objects("a"), Place::objects("b"));
    let source = new(&from);
    fill(&source, &mut 3, 30);
    let Place::Objects(engine, _) = &to else { return };
    let thief = engine.client();
    let damage = |step| {
        use espalier_store::Engine;
        use espalier_store::engine::ObjectOp;
        if step == MigrationStep::Verify {
            for name in thief.list("0.t.").unwrap() {
                let keys = thief.page(&name, std::ops::Bound::Unbounded, 1).unwrap().pairs;
                thief.apply(&name, vec![ObjectOp::RemoveKeys(vec![keys[0].0.clone()])]).unwrap();
            }
        }
    };
    let refused = migrate(Some(&source), (&from, &to), damage).unwrap_err();
    assert!(refused.contains("differs"), "{refused}");
    assert!(from.is_whole() && !to.is_whole());
    // It is found and copied again.
    migrate(Some(&source), (&from, &to), |_| ()).unwrap();
}

/// A store with a file of many chunks.
fn with_big_file(place: &Place) -> Source {
    let source = new(place);
    let Source { store, .. } = &source;
    store.stream_create(Ino(200)).unwrap();
    (0..40).for_each(|chunk| store.stream_write(Ino(200), chunk << 20, &[7; 1 << 20]).unwrap());
    store.stream_finalise(Ino(200)).unwrap();
    store.sync_all().unwrap();
    source
}

#[test]
fn a_damaged_copy_of_a_growing_file_is_refused() {
    let (from, to) = (Place::objects("a"), Place::directory());
    let source = with_big_file(&from);
    let Place::Directory(dir) = &to else { return };
    let migrated = migrate(Some(&source), (&from, &to), |step| {
        if step == MigrationStep::Verify {
            let mut paths = vec![dir.path().join("streams")];
            while let Some(path) = paths.pop() {
                if path.is_dir() {
                    paths.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                } else if path.metadata().unwrap().len() >= 40 << 20 {
                    let file = std::fs::File::options().write(true).open(path).unwrap();
                    std::os::unix::fs::FileExt::write_all_at(&file, &[1], 3 << 20).unwrap();
                }
            }
            source.store.stream_write(Ino(200), END, &[1]).unwrap();
        }
    });
    let refused = migrated.unwrap_err();
    assert!(refused.contains("differs"), "{refused}");
}

#[test]
fn a_pause_reads_the_changed_part_of_a_file() {
    let (from, to) = (Place::objects("a"), Place::objects("b"));
    let source = with_big_file(&from);
    let Place::Objects(engine, _) = &from else { return };
    let (mut begun, mut ended) = (0, 0);
    migrate(Some(&source), (&from, &to), |step| match step {
        MigrationStep::Switch => {
            source.store.stream_write(Ino(200), 5 << 20, &[2]).unwrap();
            source.store.stream_write(Ino(200), END, &[1]).unwrap();
            begun = engine.operations();
        }
        MigrationStep::Finish => ended = engine.operations(),
        _ => {}
    })
    .unwrap();
    assert!(ended - begun < 40, "{} operations", ended - begun);
    drop(source);
    let stream = &contents(&to).streams[&Ino(200)].0;
    assert_eq!((stream.len(), stream[5 << 20], stream[40 << 20]), ((40 << 20) + 1, 2, 1));
}

#[test]
fn threads_go_on_during_a_migration() {
    let (from, to) = (Place::directory(), Place::directory());
    let source = new(&from);
    fill(&source, &mut 1, 50);
    let ends = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (store, journal, ends) = (&source.store, &source.journal, &ends);
                scope.spawn(move || {
                    let mut number = 0_u64;
                    while !ends.load(Ordering::Relaxed) {
                        let ino = Ino(1000 * (writer + 1) + number % 50);
                        store.stream_write(ino, END, &number.to_le_bytes()).unwrap();
                        if writer == 0 {
                            store.stage(vec![write(5000 + number, Some(vec![7]))]).unwrap();
                            if number % 8 == 7 {
                                store.publish().unwrap();
                            }
                            if number < 10_000 {
                                journal.lock().unwrap().append(&number.to_le_bytes()).unwrap();
                            }
                        }
                        number += 1;
                    }
                    number
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        migrate(Some(&source), (&from, &to), |step| {
            if step == MigrationStep::Wait {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
        ends.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    source.store.publish().unwrap();
    drop(source);
    assert!(!from.is_whole() && to.is_whole());
    let found = contents(&to);
    for (writer, count) in (0..).zip(&written) {
        for first in 0..50.min(*count) {
            let expected: Vec<u8> = (first..*count).step_by(50).flat_map(u64::to_le_bytes).collect();
            let ino = Ino(1000 * (writer + 1) + first);
            assert!(found.streams[&ino].0 == expected, "{ino} of {count}");
        }
    }
    let records = found.records.iter().filter(|(_, _, value)| *value == [7]).count() as u64;
    assert_eq!(records, written[0]);
}
