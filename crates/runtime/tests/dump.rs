//! Dumps and loads that are interrupted, damaged or resumed at any point.

use std::fs::File;
use std::path::Path;

use espalier_proto::{AllocateMode, Ino, ObjectId, TableWrite, Time};
use espalier_runtime::{
    Dumped, Error, LoadOptions, MkfsOptions, OpenOptions, Volume, dump, fsck, load, mkfs, repair,
    resume_dump, verify_dump,
};
use espalier_store::{FormatError, LocalStore, Store};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const TITLE_BYTES: usize = 24;
const RECORDS: u64 = 12;

fn mkfs_empty(dir: &Path) {
    let options =
        MkfsOptions { label: "label".into(), journal_bytes: Some(4 << 20), ..MkfsOptions::default() };
    mkfs(dir, &options).unwrap();
}

/// A store with records of various sizes and streams: with holes, longer than an extent, empty, and
/// all hole. The records are never decoded.
fn made() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    mkfs_empty(dir.path());
    let store = open(dir.path());
    for n in 0..RECORDS {
        write(&store, n, &vec![n as u8; 1 + 40 * n as usize]);
    }
    let time = |n: u64| Time::new(1_000_000_000 + n as i64, 123_456_789);
    store.stream_write(Ino(7), 0, &[7; 5000]).unwrap();
    store.stream_write(Ino(7), 1 << 20, &[8; 9000]).unwrap();
    store.stream_truncate(Ino(7), 2 << 20).unwrap();
    store.stream_write(Ino(300), 0, &[3; (1 << 20) + 100]).unwrap();
    store.stream_truncate(Ino(301), 1 << 40).unwrap();
    store.stream_truncate(Ino(0x1_0000_0007), 0).unwrap();
    for ino in store.streams().unwrap() {
        store.stream_set_mtime(ino, time(ino.0)).unwrap();
    }
    dir
}

fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir, false).unwrap().0
}

fn write(store: &LocalStore, n: u64, value: &[u8]) {
    let object = ObjectId::fragment(Ino(n / 4), 0);
    store.stage(vec![TableWrite { object, key: vec![n as u8; 9], value: Some(value.to_vec()) }]).unwrap();
    store.publish().unwrap();
}

fn dump_of(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    dump(dir, &mut bytes, |_| ()).unwrap();
    bytes
}

/// The starts of a dump's frames, and the end of the last one.
fn places(dump: &[u8]) -> Vec<usize> {
    let mut places = vec![TITLE_BYTES];
    while let Some(length) = dump.get(places[places.len() - 1]..).and_then(|rest| rest.first_chunk::<4>()) {
        places.push(places[places.len() - 1] + 12 + u32::from_le_bytes(*length) as usize);
    }
    assert_eq!(places.last(), Some(&dump.len()));
    places
}

/// Places where a dump may be interrupted: the end of each frame, and some inside frames.
fn cuts(dump: &[u8]) -> Vec<usize> {
    let inside =
        |pair: &[usize]| [pair[0], pair[0] + 1, pair[0] + 12, usize::midpoint(pair[0], pair[1]), pair[1] - 1];
    let mut cuts: Vec<usize> = places(dump).windows(2).flat_map(inside).collect();
    cuts.extend([0, 1, TITLE_BYTES - 1]);
    cuts
}

/// The end of the last complete frame within this many bytes.
fn whole(dump: &[u8], cut: usize) -> usize {
    places(dump).into_iter().rfind(|&place| place <= cut).unwrap_or(0)
}

fn verify(dump: &[u8]) -> Result<Dumped, Error> {
    verify_dump(&mut &*dump, |_| ())
}

/// The position of the damage in a dump.
#[track_caller]
fn damaged_at(dump: &[u8]) -> usize {
    match verify(dump) {
        Err(Error::DamagedDump { offset, .. }) => offset as usize,
        outcome => panic!("{outcome:?}"),
    }
}

/// `interval`: see [`LoadOptions`].
fn load_with(dump: &[u8], dir: &Path, resume: bool, interval: u64) -> Result<Dumped, Error> {
    let options = LoadOptions { resume, interval, ..LoadOptions::default() };
    load(&mut &*dump, dir, &options, |_| ())
}

/// The store cannot be opened as a file system.
fn assert_unusable(dir: &Path) {
    let outcome = Volume::open(dir, OpenOptions::default()).err();
    assert!(matches!(outcome, Some(Error::Loading(_))), "{outcome:?}");
    let outcome = repair(dir, |_| ());
    assert!(matches!(outcome, Err(Error::Loading(_))), "{outcome:?}");
    let outcome = fsck(dir, |_| ());
    assert!(matches!(outcome, Err(Error::Loading(_))), "{outcome:?}");
}

#[test]
fn load_restores_the_dump() {
    let dir = made();
    let bytes = dump_of(dir.path());
    assert_eq!(dump_of(dir.path()), bytes, "the dump contains only what the store contains");
    let expected = Dumped { records: verify(&bytes).unwrap().records, streams: 4, resumed_at: 0 };
    assert!(expected.records > RECORDS);
    assert!(bytes.len() < 2 << 20, "holes take no room");
    for interval in [1, 2000, u64::MAX] {
        let target = tempfile::tempdir().unwrap();
        assert_eq!(load_with(&bytes, target.path(), false, interval).unwrap(), expected);
        assert_eq!(dump_of(target.path()), bytes);
        let blocks = |dir: &Path, ino| open(dir).stream_stat(ino).unwrap().blocks;
        assert!(blocks(target.path(), Ino(7)) < 100 && blocks(target.path(), Ino(301)) < 100, "holes");
    }
}

#[test]
fn interrupted_dump_is_completed() {
    let dir = made();
    let bytes = dump_of(dir.path());
    let path = dir.path().with_extension("dump");
    let resumed = |start: &[u8]| {
        std::fs::write(&path, start).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let dumped = resume_dump(dir.path(), &file, |_| ()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "after {}", start.len());
        dumped.resumed_at as usize
    };
    for cut in cuts(&bytes) {
        assert_eq!(resumed(&bytes[..cut]), whole(&bytes, cut), "{cut}");
    }
    assert_eq!(resumed(&bytes), bytes.len());
    let last = places(&bytes)[places(&bytes).len() - 2];
    assert_eq!(resumed(&[&bytes, b"more".as_slice()].concat()), last);
    // After a power failure, the file contains other data.
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..20 {
        let at = random.usize(TITLE_BYTES..bytes.len());
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.u8(..8);
        assert_eq!(resumed(&flipped), whole(&bytes, at));
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn space_without_data_does_not_look_changed() {
    let dir = tempfile::tempdir().unwrap();
    mkfs_empty(dir.path());
    let store = open(dir.path());
    store.stream_allocate(Ino(5), 0, 200_000, AllocateMode::empty()).unwrap();
    store.stream_write(Ino(5), 100_000, b"data").unwrap();
    store.stream_truncate(Ino(6), 10).unwrap();
    drop(store);
    let bytes = dump_of(dir.path());
    // Once it is in the page cache, it counts as data.
    assert_eq!(open(dir.path()).stream_read(Ino(5), 0, &mut [0; 200_000]).unwrap(), 200_000);
    let path = dir.path().with_extension("dump");
    for cut in cuts(&bytes) {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        resume_dump(dir.path(), &file, |_| ()).unwrap();
        verify(&std::fs::read(&path).unwrap()).unwrap();
    }
    let target = tempfile::tempdir().unwrap();
    load_with(&std::fs::read(&path).unwrap(), target.path(), false, 1000).unwrap();
    let held = |dir: &Path| {
        let mut bytes = vec![1; 300_000];
        let read = open(dir).stream_read(Ino(5), 0, &mut bytes).unwrap();
        bytes.truncate(read);
        bytes
    };
    assert_eq!(held(target.path()), held(dir.path()));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn dump_of_changed_store_is_not_resumed() {
    let dir = made();
    let bytes = dump_of(dir.path());
    let path = dir.path().with_extension("dump");
    let refused = |start: &[u8]| {
        std::fs::write(&path, start).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let error = resume_dump(dir.path(), &file, |_| ()).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), start, "the file is unchanged");
        error
    };
    let places = places(&bytes);
    let (last, end) = (places[places.len() - 2], bytes.len());
    let mtime = Time::new(5, 5);
    open(dir.path()).stream_set_mtime(Ino(300), mtime).unwrap();
    assert!(matches!(refused(&bytes[..last]), Error::Changed));
    assert!(matches!(refused(&bytes[..end]), Error::Changed));
    write(&open(dir.path()), 3, b"another value");
    assert!(matches!(refused(&bytes[..last]), Error::Changed));
    // Up to the change, the dumps are equal.
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::write(&path, &bytes[..places[3]]).unwrap();
    resume_dump(dir.path(), &file, |_| ()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), dump_of(dir.path()));

    let other = dump_of(made().path());
    assert!(matches!(refused(&other[..last]), Error::OtherDump));
    assert!(matches!(refused(b"a letter to nobody in particular"), Error::ForeignDump));
    assert!(matches!(refused(b"a letter"), Error::ForeignDump));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn interrupted_load_is_completed() {
    let dir = made();
    let bytes = dump_of(dir.path());
    let places = places(&bytes);
    let (first, ends) = (places[1], &places[1..places.len() - 1]);
    let inside = places[1..].windows(2).map(|pair| usize::midpoint(pair[0], pair[1])).collect();
    for (interval, cuts) in [(1, ends.to_vec()), (2000, inside), (u64::MAX, ends[ends.len() - 6..].to_vec())]
    {
        for cut in cuts {
            let target = tempfile::tempdir().unwrap();
            let error = load_with(&bytes[..cut], target.path(), true, interval).unwrap_err();
            let expected = whole(&bytes, cut) as u64;
            assert!(matches!(error, Error::DamagedDump { offset, .. } if offset == expected), "{error}");
            assert_unusable(target.path());
            if interval == u64::MAX {
                // Any part of what was not durable may remain.
                let store = open(target.path());
                store.stream_write(Ino(7), 900_000, &[99; 3 << 20]).unwrap();
                store.stream_write(Ino(300), 10, b"nonsense").unwrap();
            }
            // The second attempt is interrupted by the same damage.
            assert!(load_with(&bytes[..cut], target.path(), true, interval).is_err());
            assert_unusable(target.path());
            let loaded = load_with(&bytes, target.path(), true, interval).unwrap();
            match interval {
                // The last frame is durable, except that the head is made durable with the store.
                1 if expected > first as u64 => assert_eq!(loaded.resumed_at, expected),
                u64::MAX => assert_eq!(loaded.resumed_at, 0),
                _ => assert!(loaded.resumed_at <= expected),
            }
            assert_eq!(dump_of(target.path()), bytes, "{interval} {cut}");
        }
    }
}

#[test]
fn load_resumes_only_from_same_dump_and_position() {
    let dir = made();
    let bytes = dump_of(dir.path());
    write(&open(dir.path()), 2, b"another value");
    let later = dump_of(dir.path());
    let other = dump_of(made().path());
    let cut = bytes.len() - 10;

    let target = tempfile::tempdir().unwrap();
    assert!(load_with(&bytes[..cut], target.path(), false, 1).is_err());
    for wrong in [&later, &other] {
        let error = load_with(wrong, target.path(), true, 1).unwrap_err();
        assert!(matches!(error, Error::OtherDump), "{error}");
        assert_unusable(target.path());
    }
    let again = load_with(&bytes, target.path(), false, 1).unwrap_err();
    assert!(matches!(again, Error::Format(FormatError::Exists(_))), "{again}");
    load_with(&bytes, target.path(), true, 1).unwrap();
    assert_eq!(dump_of(target.path()), bytes);
    let error = load_with(&bytes, target.path(), true, 1).unwrap_err();
    assert!(matches!(error, Error::Loaded(_)), "{error}");

    // A dump much shorter than the loaded part.
    let target = tempfile::tempdir().unwrap();
    assert!(load_with(&later[..later.len() - 10], target.path(), false, 1).is_err());
    let small = tempfile::tempdir().unwrap();
    mkfs_empty(small.path());
    let error = load_with(&dump_of(small.path()), target.path(), true, 1).unwrap_err();
    assert!(matches!(error, Error::OtherDump), "{error}");

    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("thesis.tex"), "").unwrap();
    let error = load_with(&bytes, foreign.path(), true, 1).unwrap_err();
    assert!(matches!(error, Error::Format(FormatError::NotEmpty(_))), "{error}");
    assert_eq!(std::fs::read_dir(foreign.path()).unwrap().count(), 1);
}

#[test]
fn damaged_dump_is_located_and_not_loaded() {
    let dir = made();
    let bytes = dump_of(dir.path());
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..1000 {
        let mut damaged = bytes.clone();
        let frames = places(&bytes);
        // Every frame is hit, independent of its length.
        let frame = random.usize(1..frames.len());
        let at = random.usize(frames[frame - 1]..frames[frame]);
        match random.u8(..3) {
            0 => damaged[at] ^= 1 << random.u8(..8),
            1 => damaged[at] = damaged[at].wrapping_add(random.u8(1..)),
            _ => damaged.truncate(at),
        }
        assert_eq!(damaged_at(&damaged), frames[frame - 1], "{at}");
        if round % 25 == 0 {
            let target = tempfile::tempdir().unwrap();
            assert!(load_with(&damaged, target.path(), false, 1000).is_err());
            assert!(Volume::open(target.path(), OpenOptions::default()).is_err());
            load_with(&bytes, target.path(), true, 1000).unwrap();
            assert_eq!(dump_of(target.path()), bytes);
        }
    }
    assert_eq!(damaged_at(&[&bytes, b"x".as_slice()].concat()), places(&bytes)[places(&bytes).len() - 2]);
    for title in
        ["Espalier dump, format 2\n", "Espalier dump, format 4\n", "Espalier dump, Format 3\n", "", "E"]
    {
        let rest = if title.len() < TITLE_BYTES { &[][..] } else { &bytes[TITLE_BYTES..] };
        let foreign = [title.as_bytes(), rest].concat();
        assert!(matches!(verify(&foreign), Err(Error::ForeignDump)), "{title}");
        let target = tempfile::tempdir().unwrap();
        assert!(matches!(load_with(&foreign, target.path(), false, 1), Err(Error::ForeignDump)));
        assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0);
    }
}

/// A dump of these frames.
fn joined(title: &[u8], frames: &[&[u8]]) -> Vec<u8> {
    [&[title], frames].concat().concat()
}

#[test]
fn missing_repeated_or_moved_frames_are_detected() {
    let dir = made();
    let bytes = dump_of(dir.path());
    let title = &bytes[..TITLE_BYTES];
    let places = places(&bytes);
    let frames: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
    for n in 0..frames.len() - 1 {
        let mut missing = frames.clone();
        missing.remove(n);
        assert_eq!(damaged_at(&joined(title, &missing)), places[n]);
        let mut twice = frames.clone();
        twice.insert(n, frames[n]);
        assert_eq!(damaged_at(&joined(title, &twice)), places[n + 1]);
        let mut swapped = frames.clone();
        swapped.swap(n, n + 1);
        assert_eq!(damaged_at(&joined(title, &swapped)), places[n]);
    }
}

#[test]
fn repeated_items_with_valid_checksums_are_detected() {
    let dir = made();
    let bytes = dump_of(dir.path());
    let places = places(&bytes);
    let frames: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
    for n in 0..frames.len() - 1 {
        let mut twice = frames.clone();
        twice.insert(n, frames[n]);
        let mut sum = 0;
        let sealed = twice.into_iter().flat_map(|frame| {
            sum = xxh3_64_with_seed(&frame[12..], sum);
            [&frame[..4], &sum.to_le_bytes(), &frame[12..]].concat()
        });
        let forged: Vec<u8> = bytes[..TITLE_BYTES].iter().copied().chain(sealed).collect();
        assert_eq!(damaged_at(&forged), places[n + 1], "{n} twice");
    }
}
