//! Empty datafiles: after any crash, exactly the acknowledged ones exist.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::{DataReply, DataRequest, Ino, StreamStat, Time};
use espalier_store::{Datafiles, FormatOptions, LocalStore, MemoryStore, SimFile, Store, superblock};

type MemoryDatafiles = Datafiles<MemoryStore, SimFile>;

fn numbers(files: &MemoryDatafiles) -> BTreeSet<u64> {
    files.all().unwrap().into_iter().map(|(ino, _)| ino.0).collect()
}

fn stat(files: &MemoryDatafiles, ino: u64) -> StreamStat {
    match files.carry_out(DataRequest::Stat { inos: vec![Ino(ino)] }).unwrap() {
        DataReply::Stats(stats) => stats[0],
        other => panic!("{other:?}"),
    }
}

fn write(files: &MemoryDatafiles, ino: u64) {
    files.store().set_now(Time::new(5, 0));
    files.carry_out(DataRequest::write(Ino(ino), 0, vec![1].into())).unwrap();
}

#[test]
fn empty_datafile_exists_until_removed() {
    let files = MemoryDatafiles::in_memory(false).unwrap();
    assert_eq!(stat(&files, 7), StreamStat::default());
    files.carry_out(DataRequest::Create { ino: Ino(7), sync: true }).unwrap();
    let made = stat(&files, 7);
    assert_eq!((made.size, made.mtime), (0, Time::default()));
    assert!(made.exists);
    assert_eq!(files.store().streams().unwrap(), [], "no stream remains");
    files.carry_out(DataRequest::SetMtime { ino: Ino(7), mtime: Time::new(3, 0) }).unwrap();
    assert_eq!(stat(&files, 7).mtime, Time::new(3, 0), "an existing datafile has an mtime");
    write(&files, 7);
    files.carry_out(DataRequest::Create { ino: Ino(7), sync: true }).unwrap();
    assert_eq!((stat(&files, 7).size, files.all().unwrap()), (1, vec![(Ino(7), 1)]));
    files.carry_out(DataRequest::Remove { ino: Ino(7) }).unwrap();
    assert_eq!((stat(&files, 7), files.all().unwrap()), (StreamStat::default(), vec![]));
}

#[test]
fn many_are_made_by_one_sync() {
    let files = MemoryDatafiles::in_memory(true).unwrap();
    let syncs = || files.with_journal(SimFile::syncs);
    let before = syncs();
    files.create(&(1..1000).map(Ino).collect::<Vec<_>>(), true).unwrap();
    assert_eq!(syncs(), before + 1);
    files.create(&[Ino(5)], true).unwrap();
    assert_eq!(syncs(), before + 1, "the datafile is durable");
    files.create(&[Ino(1000)], false).unwrap();
    assert_eq!(syncs(), before + 1, "an empty datafile needs no sync");
    assert_eq!(files.all().unwrap().len(), 1000);
}

/// Random creates, writes and removals, more than the journal holds, with power failures and
/// crashes.
#[test]
fn answered_change_survives_any_crash() {
    let mut random = fastrand::Rng::with_seed(1);
    for seed in 0..8 {
        let mut files = MemoryDatafiles::in_memory(true).unwrap();
        // Datafiles that must exist, and those that may.
        let (mut there, mut maybe) = (BTreeSet::new(), BTreeSet::new());
        let mut next = 1;
        for step in 0..40 {
            match random.u8(0..8) {
                0..4 => {
                    let inos: Vec<_> = (next..next + random.u64(1..=4096)).map(Ino).collect();
                    next += inos.len() as u64;
                    files.create(&inos, true).unwrap();
                    there.extend(inos.iter().map(|ino| ino.0));
                }
                4 => there.iter().take(3).for_each(|ino| write(&files, *ino)),
                5 => {
                    let gone: Vec<u64> = there.iter().copied().skip(random.usize(0..9)).take(2000).collect();
                    let durable = random.bool();
                    for ino in gone {
                        files.carry_out(DataRequest::Remove { ino: Ino(ino) }).unwrap();
                        there.remove(&ino);
                        maybe.insert(ino);
                    }
                    if durable {
                        files.sync_removed().unwrap();
                        maybe.clear();
                    }
                }
                6 => files = files.crash(None).unwrap(),
                _ => {
                    files = files.crash(Some(seed * 1000 + step)).unwrap();
                    let found = numbers(&files);
                    there.extend(maybe.iter().filter(|ino| found.contains(ino)));
                    maybe.clear();
                }
            }
            let found = numbers(&files);
            assert_eq!(found, there, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn failed_creation_is_reported() {
    let files = MemoryDatafiles::in_memory(true).unwrap();
    files.with_journal(|file| file.fail_after(0));
    assert!(files.create(&[Ino(1)], true).is_err());
    files.with_journal(|file| file.fail_after(u64::MAX));
    files.create(&[Ino(2)], true).unwrap();
    assert_eq!(numbers(&files), [2].into());
}

/// In a local directory, with the store's own journal and tables.
#[test]
fn datafiles_persist_in_reopened_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    superblock::format(&path, &FormatOptions { journal_bytes: 128 << 10, ..FormatOptions::default() })
        .unwrap();
    let open = || {
        let (store, journal) = LocalStore::open(&path, false).unwrap();
        Datafiles::open(store, journal, true).unwrap()
    };
    let mut expected = BTreeMap::new();
    for round in 0..3 {
        let files = open();
        let first = round * 10_000;
        for batch in 0..5 {
            let inos: Vec<_> = (0..2000).map(|at| Ino(first + batch * 2000 + at + 1)).collect();
            files.create(&inos, true).unwrap();
            expected.extend(inos.into_iter().map(|ino| (ino, 0)));
        }
        let ino = Ino(first + 3);
        files.carry_out(DataRequest::write(ino, 0, vec![1; 9].into())).unwrap();
        expected.insert(ino, 9);
        files.carry_out(DataRequest::Discard { inos: vec![Ino(first + 1), Ino(first + 4)] }).unwrap();
        expected.retain(|ino, _| *ino != Ino(first + 1) && *ino != Ino(first + 4));
        drop(files);
        assert_eq!(open().all().unwrap(), expected.clone().into_iter().collect::<Vec<_>>());
    }
}
