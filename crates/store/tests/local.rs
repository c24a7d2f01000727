//! The local store: opening, refusals, and damage.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use espalier_proto::{Errno, Ino, ObjectId, Position, TableWrite};
use espalier_store::{
    FormatError, FormatOptions, JournalError, LocalStore, Record, Store, StoreError, SuperblockError,
    is_locked, is_open, superblock,
};
use tempfile::TempDir;

fn options() -> FormatOptions {
    FormatOptions { label: "a \"label\"\n".into(), journal_bytes: 1 << 20, ..FormatOptions::default() }
}

fn made() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    superblock::format(dir.path(), &options()).unwrap();
    dir
}

fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir, false).unwrap().0
}

fn error(dir: &Path) -> StoreError {
    LocalStore::open(dir, false).err().expect("an error")
}

fn record(n: u64) -> TableWrite {
    let key = [&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[..], b"a-name-16-bytes-"].concat();
    TableWrite {
        object: ObjectId::fragment(Ino(n % 50), 0),
        key,
        value: Some(vec![n as u8; 20 + n as usize % 80]),
    }
}

/// All regular files below a directory, with their contents.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

#[test]
fn a_superblock_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("made/for/it");
    let made = superblock::format(&inner, &options()).unwrap();
    assert_eq!(superblock::read(&inner).unwrap(), made);
    assert_eq!(made.label, "a \"label\"\n");
    let other = superblock::format(&dir.path().join("other"), &options()).unwrap();
    assert_ne!((made.uuid, made.hash_key), (other.uuid, other.hash_key));
}

#[test]
fn format_refuses_existing_data() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "").unwrap();
    for force in [false, true] {
        let outcome = superblock::format(dir.path(), &FormatOptions { force, ..options() });
        assert!(matches!(outcome, Err(FormatError::NotEmpty(_))), "{outcome:?}");
    }
    assert_eq!(files(dir.path()).len(), 1);

    let dir = made();
    assert!(matches!(superblock::format(dir.path(), &options()), Err(FormatError::Exists(_))));
    let force = FormatOptions { force: true, ..options() };
    let store = open(dir.path());
    store.stage(vec![record(1)]).unwrap();
    store.publish().unwrap();
    store.stream_write(Ino(1), 0, b"x").unwrap();
    let outcome = superblock::format(dir.path(), &force);
    assert!(matches!(outcome, Err(FormatError::Store(StoreError::InUse { .. }))), "{outcome:?}");
    drop(store);
    superblock::format(dir.path(), &force).unwrap();
    let store = open(dir.path());
    assert_eq!(store.records().count(), 0);
    assert_eq!(store.streams().unwrap(), []);
}

#[test]
fn interrupted_mkfs_can_be_repeated() {
    let dir = made();
    std::fs::remove_file(dir.path().join("superblock")).unwrap();
    assert!(matches!(superblock::format(dir.path(), &options()), Err(FormatError::Exists(_))), "its copy");
    std::fs::remove_file(dir.path().join("superblock.bak")).unwrap();
    assert!(matches!(superblock::format(dir.path(), &options()), Err(FormatError::Unfinished(_))));
    superblock::format(dir.path(), &FormatOptions { force: true, ..options() }).unwrap();
    open(dir.path());
}

#[test]
fn open_reports_superblock_damage() {
    let dir = tempfile::tempdir().unwrap();
    let kind = |dir: &Path| superblock::read(dir).unwrap_err();
    assert!(matches!(kind(&dir.path().join("absent")), SuperblockError::NoDirectory(_)));
    assert!(matches!(error(dir.path()), StoreError::Superblock(SuperblockError::NoStore(_))));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the directory stays empty");
    std::fs::write(dir.path().join("superblock"), "of another program\n").unwrap();
    assert!(matches!(kind(dir.path()), SuperblockError::NoStore(_)));

    let dir = made();
    std::fs::remove_file(dir.path().join("superblock.bak")).unwrap();
    let path = dir.path().join("superblock");
    let bytes = std::fs::read(&path).unwrap();
    for cut in [0, 10, 60, bytes.len() - 30, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(matches!(kind(dir.path()), SuperblockError::Damaged { .. }), "{cut}: {}", kind(dir.path()));
    }
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        std::fs::write(&path, flipped).unwrap();
        assert!(superblock::read(dir.path()).is_err(), "{at}");
    }
    for (format, advice) in [(5, "use version 7.0 or newer"), (3, "copy its files into a new one")] {
        let format = format!("format = {format}");
        let text =
            std::str::from_utf8(&bytes).unwrap().replace("format = 4", &format).replace("0.1.0", "7.0");
        let body = text.rsplit_once("checksum").unwrap().0;
        let sum = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
        std::fs::write(&path, format!("{body}checksum = \"{sum:016x}\"\n")).unwrap();
        let text = kind(dir.path()).to_string();
        assert!(text.contains(advice), "{text}");
    }
}

#[test]
fn a_store_is_opened_once() {
    let dir = made();
    assert!(!is_locked(dir.path()));
    let store = open(dir.path());
    assert!(is_locked(dir.path()));
    let pid = std::process::id();
    assert!(matches!(error(dir.path()), StoreError::InUse { pid: Some(by), .. } if by == pid));
    assert!(LocalStore::open(dir.path(), true).is_err());
    drop(store);
    assert!(!is_locked(dir.path()));
    let readers = [(); 2].map(|()| LocalStore::open(dir.path(), true).unwrap().0);
    assert!(matches!(error(dir.path()), StoreError::InUse { .. }));
    assert!(is_open(dir.path()) && !is_locked(dir.path()));
    drop(readers);
    assert!(!is_open(dir.path()));
    open(dir.path());
}

#[test]
fn cached_read_does_not_wait_for_disk() {
    let dir = made();
    let store = open(dir.path());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
    store.stream_write(Ino(7), 0, &bytes).unwrap();
    let mut buf = vec![0xee; 4_000_000];
    assert_eq!(store.stream_read_cached(Ino(7), 0, &mut buf).unwrap(), (bytes.len(), true));
    assert_eq!(buf[..bytes.len()], bytes);
    assert_eq!(store.stream_read_cached(Ino(7), 5_000_000, &mut buf).unwrap(), (0, true));

    store.stream_sync(Ino(7)).unwrap();
    let file = store.stream_file(Ino(7)).unwrap().unwrap();
    // The kernel may keep pages that it is using itself at that moment.
    let evicted_read = |buf: &mut [u8]| {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let (read, is_all) = store.stream_read_cached(Ino(7), 0, buf).unwrap();
        assert_eq!(is_all, read == bytes.len());
        (!is_all).then_some(read)
    };
    buf.fill(0xee);
    let read = (0..1_000).find_map(|_| evicted_read(&mut buf)).expect("an incomplete read");
    let rest = store.stream_read(Ino(7), read as u64, &mut buf[read..]).unwrap();
    assert_eq!((read + rest, &buf[..bytes.len()]), (bytes.len(), &bytes[..]));
}

#[test]
fn reading_only_writes_nothing() {
    let dir = made();
    let store = open(dir.path());
    store.stage((0..100).map(record).collect()).unwrap();
    store.publish().unwrap();
    store.stream_write(Ino(7), 0, b"seven").unwrap();
    drop(store);
    // Leftover of a killed process.
    std::fs::write(dir.path().join("tables/tables/99"), "unfinished").unwrap();
    std::fs::write(dir.path().join("tables/v77"), "unfinished").unwrap();
    let before = files(dir.path());
    let (store, mut journal) = LocalStore::open(dir.path(), true).unwrap();
    journal.replay(Position(0), |_, _| {}).unwrap();
    assert_eq!(store.records().count(), 100);
    assert_eq!(store.stream_read(Ino(7), 0, &mut [0; 9]).unwrap(), 5);
    assert_eq!(store.stream_file(Ino(8)).unwrap().map(drop), None);
    store.stream_sync(Ino(7)).unwrap();
    assert!(!store.maintain().unwrap());
    let refusals = [
        store.stage(vec![record(1)]),
        store.publish(),
        store.stream_write(Ino(7), 0, b""),
        store.stream_truncate(Ino(8), 0),
        store.stream_create(Ino(8)),
        store.stream_finalise(Ino(7)),
        store.stream_remove(Ino(7)),
    ];
    assert!(refusals.iter().all(|refusal| refusal.as_ref().unwrap_err().errno() == Errno::EROFS));
    drop((store, journal));
    assert_eq!(files(dir.path()), before);
    drop(open(dir.path()));
    assert!(!dir.path().join("tables/tables/99").exists());
}

#[test]
fn published_tables_are_found_again() {
    let dir = made();
    for round in 0..12 {
        let store = open(dir.path());
        assert_eq!(store.records().count(), round * 100);
        let range = round as u64 * 100..(round as u64 + 1) * 100;
        store.stage(range.map(record).collect()).unwrap();
        store.publish().unwrap();
        store.stage((5000..5100).map(record).collect()).unwrap();
        while store.maintain().unwrap() {}
    }
    let store = open(dir.path());
    for n in 0..1200 {
        let TableWrite { object, key, value } = record(n);
        assert_eq!(store.get(object, &key).unwrap(), value);
    }
}

#[test]
fn missing_and_truncated_parts_are_reported() {
    let dir = made();
    let journal = dir.path().join("journal");
    let file = std::fs::File::options().write(true).open(&journal).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 4096).unwrap();
    assert!(matches!(error(dir.path()), StoreError::Journal(JournalError::Truncated { .. })));
    std::fs::remove_file(&journal).unwrap();
    assert!(error(dir.path()).to_string().contains("journal is missing"), "{}", error(dir.path()));
    let other = made();
    std::fs::copy(other.path().join("journal"), &journal).unwrap();
    assert!(matches!(error(dir.path()), StoreError::Journal(JournalError::Foreign)));

    for part in ["tables", "streams", "tables/current", "tables/v0"] {
        let dir = made();
        std::fs::rename(dir.path().join(part), dir.path().join("gone")).unwrap();
        let error = error(dir.path());
        assert!(matches!(error, StoreError::Corrupt { .. } | StoreError::Io { .. }), "{part}: {error}");
    }
}

/// A store with records of every kind in several tables.
fn filled() -> (TempDir, Vec<Record>) {
    let dir = made();
    let store = open(dir.path());
    for round in 0..3 {
        store.stage((round * 400..(round + 1) * 400).map(record).collect()).unwrap();
        let removed = (0..20).map(|n| TableWrite { value: None, ..record(round * 100 + n) });
        store.stage(removed.collect()).unwrap();
        store.publish().unwrap();
    }
    let records = store.records().collect::<Result<_, _>>().unwrap();
    (dir, records)
}

#[test]
fn no_flipped_bit_makes_a_wrong_value() {
    let (dir, expected) = filled();
    let tables = dir.path().join("tables");
    let pristine = files(&tables);
    let mut random = fastrand::Rng::with_seed(3);
    let rounds = std::env::var("ESPALIER_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(150);
    let (mut reported, mut harmless) = (0, 0);
    for (path, bytes) in &pristine {
        for round in 0..rounds {
            // Unverified structures are most likely at the start and the end of a file.
            let at = match round % 3 {
                0 => random.usize(0..bytes.len()),
                1 => bytes.len() - 1 - random.usize(0..bytes.len().min(400)),
                _ => random.usize(0..bytes.len().min(200)),
            };
            for (path, bytes) in &pristine {
                std::fs::write(path, bytes).unwrap();
            }
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(&[bytes[at] ^ 1 << random.u8(0..8)], at as u64).unwrap();
            let outcome = check(dir.path(), &expected);
            match outcome {
                Ok(()) => harmless += 1,
                Err(StoreError::Corrupt { .. } | StoreError::Io { .. }) => reported += 1,
                Err(error) => panic!("{} at {at}: {error}", path.display()),
            }
        }
    }
    eprintln!("{reported} errors, {harmless} without effect");
    assert!(reported > harmless);
}

/// Reads all records by every method.
fn check(dir: &Path, expected: &[Record]) -> Result<(), StoreError> {
    let (store, _) = LocalStore::open(dir, true)?;
    let found: Vec<_> = store.records().collect::<Result<_, _>>()?;
    assert!(found == expected, "wrong records");
    for (object, key, value) in expected {
        assert_eq!(store.get(*object, key)?.as_ref(), Some(value));
    }
    for n in 0..20 {
        assert_eq!(store.get(record(n).object, &record(n).key)?, None);
    }
    drop(store);
    // Compaction reads by a different path.
    let (store, _) = LocalStore::open(dir, false)?;
    store.stage(vec![record(1_000_000)])?;
    store.publish()?;
    store.stage(vec![TableWrite { value: None, ..record(1_000_000) }])?;
    store.publish()?;
    while store.maintain()? {}
    let found: Vec<_> = store.records().collect::<Result<_, _>>()?;
    assert!(found == expected, "wrong records after a compaction");
    Ok(())
}

/// A file system of a given size, unmounted when dropped. `None` without permission to mount.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new(bytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"]).arg(dir.path());
        mount.output().is_ok_and(|output| output.status.success()).then(|| Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(self.0.path()).status().unwrap();
    }
}

#[test]
fn stream_removed_while_finalised_is_gone() {
    let dir = made();
    let store = open(dir.path());
    let begin = std::sync::Barrier::new(2);
    let rounds = 1..=5000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for ino in rounds.clone() {
                begin.wait();
                store.stream_finalise(Ino(ino)).unwrap();
            }
        });
        for ino in rounds.clone() {
            store.stream_create(Ino(ino)).unwrap();
            begin.wait();
            store.stream_remove(Ino(ino)).unwrap();
        }
    });
    assert_eq!(store.streams().unwrap(), []);
}

#[test]
fn a_full_disk_stops_a_checkpoint_and_space_lets_it_go_on() {
    let Some(disk) = SmallDisk::new(8 << 20) else { return eprintln!("not done: cannot mount") };
    let dir = disk.0.path().join("store");
    superblock::format(&dir, &options()).unwrap();
    let store = open(&dir);
    store.stage((0..100).map(record).collect()).unwrap();
    store.publish().unwrap();
    // Fills the disk except for a small remainder.
    let ballast = Ino(99);
    let available = store.space().unwrap().available;
    store.stream_write(ballast, 0, &vec![1; available as usize - 64 * 1024]).unwrap();
    for first in [100, 3000] {
        store.stage((first..first + 2900).map(record).collect()).unwrap();
        for _ in 0..20 {
            let error = store.publish().unwrap_err();
            assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
        }
        // A failed write takes no space.
        assert!(store.space().unwrap().available >= 60 * 1024, "{:?}", store.space());
        assert_eq!(store.records().count() as u64, first + 2900);
    }
    let error = store.stream_write(Ino(1), 0, &[1; 100_000]).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
    // A crash at this point finds the old checkpoint; with free space the new one can be published.
    let copy = made();
    std::fs::remove_dir_all(copy.path().join("tables")).unwrap();
    let copied = std::process::Command::new("cp").arg("-r").arg(dir.join("tables")).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    assert_eq!(open(copy.path()).records().count(), 100);
    store.stream_remove(ballast).unwrap();
    store.publish().unwrap();
    drop(store);
    assert_eq!(open(&dir).records().count(), 5900);
}

/// After a failed sync the contents of a file are unknown, so a later sync proves nothing.
#[test]
fn after_a_failure_the_tables_are_written_only_when_opened_again() {
    let dir = made();
    let store = open(dir.path());
    store.stage(vec![record(1)]).unwrap();
    store.publish().unwrap();
    let (tables, away) = (dir.path().join("tables"), dir.path().join("away"));
    std::fs::rename(&tables, &away).unwrap();
    store.stage(vec![record(2)]).unwrap();
    assert!(matches!(store.publish(), Err(StoreError::Io { .. })));
    std::fs::rename(&away, &tables).unwrap();
    for outcome in [store.publish(), store.maintain().map(drop)] {
        assert!(matches!(outcome, Err(StoreError::Failed { .. })), "{outcome:?}");
    }
    // Staged writes stay visible until the store is closed.
    assert_eq!(store.records().count(), 2);
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.records().count(), 1);
    store.stage(vec![record(2)]).unwrap();
    store.publish().unwrap();
}
